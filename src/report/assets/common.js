"use strict";
function make(name, properties = {}, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

function drawn(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function short(value) {
  if (value == null || !isFinite(value)) return "–";
  const size = Math.abs(value);
  /* Three digits of what is just below a unit are those of the unit. */
  if (size >= 999.5e9) return value.toExponential(1);
  if (size >= 999.5e6) return (value / 1e9).toPrecision(3) + "G";
  if (size >= 999.5e3) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 9999.5) return (value / 1e3).toPrecision(3) + "k";
  if (size !== 0 && size < 1e-2) return value.toExponential(1);
  return String(+value.toPrecision(4));
}

/* Which way text runs: that of its first letter. */
const LETTER = /\p{L}/u, RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const direction = text => RIGHT_TO_LEFT.test((LETTER.exec(text) ?? [""])[0]) ? "rtl" : "ltr";

/* Text within a sentence of this page, which runs its own way and leaves the rest in its place. */
const isolated = text => `\u2068${text}\u2069`;
