"use strict";
const runs = JSON.parse(document.getElementById("data").textContent);
const state = { axis: "update", logarithmic: false, smoothing: 0, hidden: new Set() };

const CHARTS = [
  { title: "Loss", unit: "nats a token, label-smoothed", train: e => e.loss, valid: e => e.loss },
  { title: "Perplexity", unit: "a token", logarithmic: true, train: e => e.perplexity, valid: e => e.perplexity },
  { title: "BLEU", unit: "of the validation set", valid: e => e.bleu },
  { title: "Learning rate", train: e => e.learning_rate },
  { title: "Gradient norm", unit: "before clipping", train: e => e.gradient_norm },
  { title: "Speed", unit: "target tokens a second", train: e => e.tokens_per_second },
  { title: "Memory", unit: "MiB", train: e => e.memory == null ? null : e.memory / 1048576 },
];
const AXES = {
  update: ["updates", e => e.update],
  hours: ["hours", e => e.seconds == null ? null : e.seconds / 3600],
  tokens: ["target tokens", (e, run) => tokensAt(run, e.update)],
};

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
  if (size >= 1e9) return (value / 1e9).toPrecision(3) + "G";
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  if (size !== 0 && size < 1e-2) return value.toExponential(1);
  return String(+value.toPrecision(4));
}

function duration(seconds) {
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.round(seconds)} s`;
}

const entries = (run, event) => run.log.filter(entry => entry.event === event);
const color = index => `var(--c${index % 8})`;

function tokensAt(run, update) {
  const known = entries(run, "train").filter(entry => entry.update <= update);
  return known.length ? known[known.length - 1].target_tokens : null;
}

/* The mean of a window that grows with the slider, and is narrower towards the ends. */
function smoothed(points, most) {
  return points.map((point, i) => {
    const width = Math.min(most, i, points.length - 1 - i), window = points.slice(i - width, i + width + 1);
    return { ...point, y: window.reduce((sum, other) => sum + other.y, 0) / window.length };
  });
}

const isLogarithmic = chart => chart.logarithmic || state.logarithmic;

function curves(chart) {
  const x = AXES[state.axis][1], found = [];
  runs.forEach((run, index) => {
    if (state.hidden.has(index)) return;
    for (const kind of ["train", "valid"]) {
      if (!chart[kind]) continue;
      const points = entries(run, kind).map(e => ({ x: x(e, run), y: chart[kind](e), update: e.update }))
        .filter(p => p.x != null && p.y != null && isFinite(p.y) && (!isLogarithmic(chart) || p.y > 0));
      if (points.length) {
        found.push({ run, index, kind, points: kind === "train" ? smoothed(points, state.smoothing) : points });
      }
    }
  });
  return found;
}

function ticks(low, high, count) {
  const step = 10 ** Math.floor(Math.log10((high - low) / count || 1));
  const width = [1, 2, 5, 10].map(f => f * step).find(w => (high - low) / w <= count) || step * 10;
  const out = [];
  const first = Math.ceil(low / width);
  for (let i = 0; i <= count && (first + i) * width <= high + width * 1e-9; i++) out.push(+((first + i) * width).toPrecision(12));
  return out;
}

function draw(chart, box) {
  const all = curves(chart);
  box.hidden = !all.length;
  box.replaceChildren();
  if (!all.length) return;
  const unit = chart.unit ? make("span", { className: "soft", textContent: " " + chart.unit }) : "";
  box.append(make("h3", {}, chart.title, unit));
  const W = 420, H = 230, left = 48, right = 22, top = 12, bottom = 30;
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": chart.title }, box);
  const scale = isLogarithmic(chart) ? Math.log10 : v => v;
  const points = all.flatMap(c => c.points), xs = points.map(p => p.x), ys = points.map(p => scale(p.y));
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (x0 === x1) x1 = x0 + 1;
  // Means of equal numbers differ in their last digits.
  if (y1 - y0 <= 1e-9 * Math.abs(y1)) [y0, y1] = [y0 - Math.abs(y0 || 1) / 10, y1 + Math.abs(y1 || 1) / 10];
  const X = v => left + (v - x0) / (x1 - x0) * (W - left - right);
  const Y = v => H - bottom - (scale(v) - y0) / (y1 - y0) * (H - top - bottom);
  for (const t of ticks(y0, y1, 5)) {
    const y = H - bottom - (t - y0) / (y1 - y0) * (H - top - bottom);
    drawn("line", { class: "grid", x1: left, x2: W - right, y1: y, y2: y }, svg);
    drawn("text", { x: left - 5, y: y + 4, "text-anchor": "end" }, svg, short(isLogarithmic(chart) ? 10 ** t : t));
  }
  for (const t of ticks(x0, x1, 5)) drawn("text", { x: X(t), y: H - 12, "text-anchor": "middle" }, svg, short(t));
  drawn("text", { x: W - right, y: H - 1, "text-anchor": "end" }, svg, AXES[state.axis][0]);
  for (const { index, kind, points } of all) {
    const stroke = runs.length > 1 || kind === "train" ? color(index) : color(1);
    const path = points.map((p, i) => `${i ? "L" : "M"}${X(p.x).toFixed(1)} ${Y(p.y).toFixed(1)}`).join("");
    drawn("path", { class: `curve ${kind}`, d: path, style: `stroke: ${stroke}` }, svg);
    if (points.length <= 40) {
      for (const p of points) drawn("circle", { class: "dot", cx: X(p.x), cy: Y(p.y), r: 2.6, style: `fill: ${stroke}` }, svg);
    }
  }
  const cross = drawn("line", { class: "cross", y1: top, y2: H - bottom, visibility: "hidden" }, svg);
  const note = make("div", { className: "note" });
  box.append(note);
  const leave = () => { cross.setAttribute("visibility", "hidden"); note.replaceChildren(); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect();
    const at = x0 + ((event.clientX - frame.left) / frame.width * W - left) / (W - left - right) * (x1 - x0);
    const near = curve => curve.points.reduce((best, p) => Math.abs(p.x - at) < Math.abs(best.x - at) ? p : best);
    const x = X(near(all[0]).x);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    note.replaceChildren(...all.map(curve => {
      const p = near(curve), name = runs.length > 1 ? `${curve.run.name} ` : "";
      return make("div", { textContent: `${name}${curve.kind} at ${p.update}: ${short(p.y)}` });
    }));
  });
}

const boxes = CHARTS.map(chart => {
  const box = make("div", { className: "chart" });
  document.getElementById("charts").append(box);
  return [chart, box];
});
const redraw = () => boxes.forEach(([chart, box]) => draw(chart, box));

function controls() {
  const axes = document.getElementById("axes");
  for (const [key, [name]] of Object.entries(AXES)) {
    const button = make("button", { type: "button", textContent: name });
    const press = () => axes.childNodes.forEach(b => b.setAttribute("aria-pressed", String(b === button)));
    button.addEventListener("click", () => { state.axis = key; press(); redraw(); });
    axes.append(button);
    if (key === state.axis) press();
  }
  const logarithmic = document.getElementById("logarithmic"), smoothing = document.getElementById("smoothing");
  logarithmic.addEventListener("change", () => { state.logarithmic = logarithmic.checked; redraw(); });
  smoothing.addEventListener("input", () => { state.smoothing = +smoothing.value; redraw(); });
  const legend = document.getElementById("runs");
  if (runs.length === 1) {
    for (const [kind, index] of [["train", 0], ["valid", 1]]) {
      legend.append(make("span", {}, make("span", { className: `key ${kind}`, style: `color: ${color(index)}` }), kind));
    }
    return;
  }
  runs.forEach((run, index) => {
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => { state.hidden[box.checked ? "delete" : "add"](index); redraw(); });
    legend.append(make("label", {}, box, " ", make("span", { className: "key", style: `color: ${color(index)}` }), run.name));
  });
  legend.append(make("span", { className: "soft", textContent: "solid: training, dashed: validation" }));
}

/* Of a run: what there is to tell in a number. */
function summary(run) {
  const train = entries(run, "train"), valid = entries(run, "valid"), last = train[train.length - 1];
  const best = valid.filter(e => e.best).pop(), final = entries(run, "final").pop(), out = {};
  if (last) {
    const speeds = train.map(e => e.tokens_per_second).sort((a, b) => a - b);
    out["updates"] = String(last.update);
    out["training time"] = duration(last.seconds);
    out["tokens a second"] = short(speeds[speeds.length >> 1]);
  }
  if (best) {
    out["best validation"] = `update ${best.update}`;
    out["its perplexity"] = short(best.perplexity);
    if (best.bleu != null) out["its BLEU"] = best.bleu.toFixed(2);
  }
  if (final && final.bleu != null) out["BLEU of the final model"] = final.bleu.toFixed(2);
  return out;
}

function tiles() {
  const parent = document.getElementById("tiles"), all = runs.map(summary);
  if (runs.length === 1) {
    for (const [name, value] of Object.entries(all[0])) {
      parent.append(make("div", { className: "tile" }, name, make("b", { textContent: value })));
    }
    return;
  }
  const cells = (name, texts) => texts.map(text => make(name, { textContent: text ?? "–" }));
  const table = make("table", {}, make("tr", {}, ...cells("th", ["", ...runs.map(run => run.name)])));
  for (const key of new Set(all.flatMap(of => Object.keys(of)))) {
    table.append(make("tr", {}, ...cells("th", [key]), ...cells("td", all.map(of => of[key]))));
  }
  parent.className = "scroll";
  parent.append(table);
}

function incidents() {
  const parent = document.getElementById("events");
  const words = {
    skip: e => `update ${e.update} skipped: loss ${e.loss}, gradient norm ${e.gradient_norm}`,
    spike: e => `update ${e.update}: loss ${short(e.loss)}, usual is ${short(e.usual)}`,
    back: e => `back to update ${e.update} from ${e.from}: ${e.why}`,
  };
  const lines = e => (e.lines || []).map(l => `${l.file}: ${l.lines.slice(0, 8).join(", ")}${l.lines.length > 8 ? ", …" : ""}`);
  const found = runs.flatMap(run => run.log.filter(e => words[e.event]).map(e => [run, e]));
  if (!found.length) return;
  const list = make("ul");
  for (const [run, e] of found.slice(0, 200)) {
    const name = runs.length > 1 ? `${run.name}: ` : "";
    list.append(make("li", {}, name + words[e.event](e), make("span", { className: "soft", textContent: " " + lines(e).join("; ") })));
  }
  parent.append(make("h2", { textContent: "Incidents" }), list);
}

function samples() {
  const parent = document.getElementById("samples");
  runs.forEach(run => {
    const valid = entries(run, "valid").filter(e => e.samples && e.samples.length);
    if (!valid.length) return;
    const slider = make("input", { type: "range", min: 0, max: valid.length - 1, value: valid.length - 1 });
    slider.setAttribute("aria-label", "validation");
    const at = make("span", { className: "soft" }), list = make("div");
    const show = () => {
      const entry = valid[slider.value];
      const bleu = entry.bleu == null ? "" : `, BLEU ${entry.bleu.toFixed(2)}`;
      at.textContent = `after update ${entry.update}: perplexity ${short(entry.perplexity)}${bleu}`;
      list.replaceChildren(...entry.samples.map(sample => {
        const rows = make("dl");
        for (const line of sample.split("\n").filter(line => line.trim())) {
          const [, what, text] = /^\s*(\S+)\s*(.*)$/.exec(line);
          rows.append(make("dt", { textContent: what }), make("dd", { textContent: text }));
        }
        return make("div", { className: "sample" }, rows);
      }));
    };
    slider.addEventListener("input", show);
    const title = runs.length > 1 ? `Sample translations of ${run.name}` : "Sample translations";
    parent.append(make("h2", { textContent: title }), make("div", { className: "controls" }, slider, at), list);
    show();
  });
}

function configuration() {
  const table = document.getElementById("configuration"), differing = document.getElementById("differing");
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.config)))];
  differing.parentNode.hidden = runs.length === 1;
  const show = () => {
    table.replaceChildren(make("tr", {}, ...["", ...runs.map(run => run.name)].map(text => make("th", { textContent: text }))));
    for (const key of keys) {
      const values = runs.map(run => run.config[key] ?? "–");
      const differs = values.some(value => value !== values[0]);
      if (differing.checked && !differs) continue;
      const row = make("tr", { className: differs ? "differs" : "" }, make("th", { textContent: key }));
      values.forEach(value => row.append(make("td", { textContent: value })));
      table.append(row);
    }
  };
  differing.addEventListener("change", show);
  show();
}

document.getElementById("about").textContent = runs.map(run => run.directory).join(", ");
controls();
tiles();
redraw();
incidents();
samples();
configuration();
