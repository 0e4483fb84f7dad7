/* Translations explained: attention by layer, head and token, alignment of words, and what else could have been chosen. */

/* Of each kind of attention: its name, the tokens of its rows and columns, and what it is called in the paper. */
const ROW = "The row of a token is the position that predicts it, whose own input is the token before. ";
const KINDS = {
  cross: ["translation to source", s => s.target, s => s.source, "Encoder-decoder attention. " + ROW],
  encoder: ["source to source", s => s.source, s => s.source, "Self-attention of the encoder. "],
  decoder: ["translation to what was before", s => s.target, s => s.input, "Masked self-attention of the decoder. " + ROW],
};

/* The weights of a layer and head, or their mean over the heads (head -1), as a function of query and key. */
function weights(sentence, kind, layer, head) {
  const { heads, hex } = sentence.maps[kind], [, queries, keys] = KINDS[kind];
  const rows = queries(sentence).length, columns = keys(sentence).length;
  const at = (head, i, j) => {
    const from = 2 * (((layer * heads + head) * rows + i) * columns + j);
    return parseInt(hex.slice(from, from + 2), 16) / 255;
  };
  if (head >= 0) return (i, j) => at(head, i, j);
  return (i, j) => { let sum = 0; for (let h = 0; h < heads; h++) sum += at(h, i, j); return sum / heads; };
}

/* How many letters wide a text is: characters of East Asian scripts, and emoji, are two. */
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}]|[\u{20000}-\u{3fffd}]/u;
const columnsOf = text => [...text].reduce((sum, c) => sum + (WIDE.test(c) ? 2 : 1), 0);

/* How strongly a weight shows, in percent. The root lets small ones be seen. */
const strength = weight => Math.round(100 * Math.sqrt(weight));
const shade = weight => `color-mix(in srgb, var(--accent) ${strength(weight)}%, var(--panel))`;
const percent = p => (100 * p).toFixed(p < 0.0995 ? 1 : 0) + " %";

function choices(parent, options, pick) {
  const buttons = options.map(([value, text]) => {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => pick(value));
    parent.append(button);
    return [value, button];
  });
  return chosen => buttons.forEach(([value, button]) => button.setAttribute("aria-pressed", String(value === chosen)));
}

function attentionView(parent, sentences, temperatures) {
  if (!sentences.length) { parent.append(make("p", { className: "soft", textContent: "There were no lines." })); return; }
  const state = { sentence: 0, kind: "cross", layer: 0, head: -1, token: 0, temperature: temperatures.indexOf(1) };
  const box = (className, ...children) => { const node = make("div", { className }, ...children); parent.append(node); return node; };
  const select = make("select", {}, ...sentences.map((s, i) => make("option", { value: i, textContent: `${i + 1}: ${isolated(s.text)}` })));
  select.setAttribute("aria-label", "sentence");
  select.addEventListener("change", () => { state.sentence = +select.value; begin(); });
  const kinds = make("span", { className: "group" });
  box("controls", select, kinds);
  select.hidden = sentences.length < 2;
  const pressKind = choices(kinds, Object.entries(KINDS).map(([kind, [name]]) => [kind, name]), kind => { state.kind = kind; begin(); });
  const [heads, tokens, map] = [box("scroll heads"), box("tokens"), box("scroll map")];
  const title = text => make("h3", { textContent: text });
  const slider = make("input", { type: "range", min: 0, max: temperatures.length - 1, value: state.temperature });
  slider.setAttribute("aria-label", "temperature");
  const degree = make("span"), step = make("div", { className: "step" });
  const steps = box("", title("What else could have been chosen"), make("div", { className: "controls" }, make("label", {}, "temperature ", slider, " ", degree)), step);
  const words = box("scroll words");
  slider.addEventListener("input", () => { state.temperature = +slider.value; showTokens(); showStep(); });

  const sentence = () => sentences[state.sentence];
  const probability = (s, i, logProb) => Math.exp(logProb / temperatures[state.temperature] - s.steps[i].sums[state.temperature]);

  function begin() {
    const s = sentence(), { layers } = s.maps[state.kind];
    state.layer = layers - 1;
    state.head = -1;
    state.token = 0;
    pressKind(state.kind);
    const empty = !s.source.length;
    steps.hidden = empty;
    for (const node of [heads, tokens, map, step, words]) node.replaceChildren();
    if (empty) { tokens.append(make("p", { className: "soft", textContent: "a blank line" })); return; }
    showHeads();
    showWords();
    show();
  }
  const show = () => { showTokens(); showMap(); showStep(); };

  /* A small map of each layer (down) and head (across), the mean of the heads first; a click takes it. */
  function showHeads() {
    const s = sentence(), { layers, heads: count } = s.maps[state.kind];
    const rows = KINDS[state.kind][1](s).length, columns = KINDS[state.kind][2](s).length;
    const names = [...Array(count).keys()].map(h => `head ${h + 1}`);
    const table = make("table", {}, make("tr", {}, ...["", "mean", ...names].map(text => make("th", { textContent: text }))));
    const buttons = [], accent = getComputedStyle(parent).getPropertyValue("--accent");
    for (let layer = 0; layer < layers; layer++) {
      const row = make("tr", {}, make("th", { textContent: `layer ${layer + 1}` }));
      for (let head = -1; head < count; head++) {
        const canvas = make("canvas", { width: columns, height: rows }), context = canvas.getContext("2d");
        const at = weights(s, state.kind, layer, head);
        context.fillStyle = accent;
        for (let i = 0; i < rows; i++) {
          for (let j = 0; j < columns; j++) {
            context.globalAlpha = strength(at(i, j)) / 100;
            context.fillRect(j, i, 1, 1);
          }
        }
        const button = make("button", { type: "button", className: "thumb" }, canvas);
        button.setAttribute("aria-label", `layer ${layer + 1}, ${head < 0 ? "mean of the heads" : names[head]}`);
        button.addEventListener("click", () => { state.layer = layer; state.head = head; press(); show(); });
        buttons.push([layer, head, button]);
        row.append(make("td", {}, button));
      }
      table.append(row);
    }
    const press = () => buttons.forEach(([layer, head, button]) =>
      button.setAttribute("aria-pressed", String(layer === state.layer && head === state.head)));
    heads.replaceChildren(table);
    press();
  }

  /* The tokens; those that the chosen one attends to are coloured, and a click chooses another. */
  function showTokens() {
    const s = sentence(), [, queries, keys, about] = KINDS[state.kind], at = weights(s, state.kind, state.layer, state.head);
    const chip = (text, i, coloured, choose) => {
      const node = make(choose ? "button" : "span", { className: "token", textContent: text, dir: "auto" });
      if (coloured) {
        node.style.background = shade(at(state.token, i));
        if (at(state.token, i) > 0.35) node.classList.add("strong");
        node.title = at(state.token, i).toFixed(2);
        if (at(state.token, i) >= 0.05) node.append(make("span", { className: "weight", textContent: node.title }));
      }
      if (choose) {
        node.type = "button";
        node.setAttribute("aria-pressed", String(i === state.token));
        node.addEventListener("click", () => { state.token = i; show(); });
      }
      if (choose && state.kind !== "encoder") {
        const p = probability(s, i, s.steps[i].logProb);
        node.append(make("span", { className: "sure", style: `width: ${Math.max(1, 100 * p)}%` }));
        node.title = `probability ${percent(p)}`;
      }
      return node;
    };
    const row = (name, list, coloured, choose) =>
      make("div", { className: "row" }, make("span", { className: "soft", textContent: name }),
        make("div", { className: "group", dir: direction(list.join("")) }, ...list.map((text, i) => chip(text, i, coloured, choose))));
    const hint = make("p", { className: "soft", textContent: about + "Choose a token: what it attends to is coloured, with weights from 0.05. Green: how probable the token was. The strength of a colour is the root of the weight." });
    const isChoosing = tokens.contains(document.activeElement);
    tokens.replaceChildren(hint, row("to", keys(s), true, false), row("from", queries(s), false, true));
    /* The keyboard goes on from there. */
    if (isChoosing) tokens.querySelector("[aria-pressed=true]").focus();
  }

  function showMap() {
    const s = sentence(), [, queries, keys] = KINDS[state.kind], at = weights(s, state.kind, state.layer, state.head);
    const rows = queries(s), columns = keys(s), cell = 18, letter = 7;
    const longest = list => Math.max(0, ...list.map(columnsOf)) * letter + 12;
    const left = longest(rows), top = longest(columns);
    const W = left + columns.length * cell, H = top + rows.length * cell;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img" })) svg.setAttribute(key, value);
    svg.setAttribute("aria-label", "attention weights");
    columns.forEach((text, j) => {
      const x = left + j * cell + cell / 2 + 4, y = top - 6;
      drawn("text", { x, y, transform: `rotate(-90 ${x} ${y})` }, svg, text);
    });
    const note = make("div", { className: "soft", textContent: " " });
    rows.forEach((text, i) => {
      const y = top + i * cell;
      drawn("text", { x: left - 6, y: y + 13, "text-anchor": "end", class: i === state.token ? "chosen" : "" }, svg, text);
      columns.forEach((key, j) => {
        const weight = at(i, j);
        const rect = drawn("rect", { x: left + j * cell, y, width: cell - 1, height: cell - 1, style: `fill: ${shade(weight)}` }, svg);
        rect.addEventListener("pointerenter", () => { note.textContent = `${isolated(text)} to ${isolated(key)}: ${weight.toFixed(2)}`; });
        rect.addEventListener("click", () => { state.token = i; show(); });
      });
    });
    map.replaceChildren(title(`Layer ${state.layer + 1}, ${state.head < 0 ? "mean of the heads" : `head ${state.head + 1}`}`), note, svg);
  }

  /* The distribution that the chosen token of the translation comes from. */
  function showStep() {
    const s = sentence();
    degree.textContent = temperatures[state.temperature].toFixed(1);
    if (!s.steps.length) { step.replaceChildren(make("p", { className: "soft", textContent: "The translation has no token." })); return; }
    if (state.kind === "encoder") { step.replaceChildren(make("p", { className: "soft", textContent: "Choose a token of the translation." })); return; }
    const { logProb, rank, candidates } = s.steps[state.token], list = make("div");
    const bar = (name, p, className) => list.append(
      make("span", { textContent: name, className, dir: "auto" }), make("span", { className: "bar" }, make("span", { style: `width: ${100 * p}%` })), make("span", { textContent: percent(p) }));
    const chosen = s.target[state.token];
    const all = candidates.some(([name]) => name === chosen) ? candidates : [...candidates, [chosen, logProb]];
    for (const [name, value] of all) bar(name, probability(s, state.token, value), name === chosen ? "chosen" : "");
    const rest = 1 - all.reduce((sum, [, value]) => sum + probability(s, state.token, value), 0);
    bar("all others", Math.max(0, rest), "soft");
    list.className = "bars";
    step.replaceChildren(make("p", {}, `After “${isolated(s.input.slice(0, state.token + 1).join(" "))}”: `, make("b", { textContent: isolated(chosen) }),
      `, rank ${rank} of the vocabulary, ${percent(probability(s, state.token, logProb))}`), list);
  }

  /* Words that belong together. */
  function showWords() {
    const s = sentence(), split = text => text.split(/\p{White_Space}+/u).filter(word => word);
    const lists = [split(s.text), split(s.translation)], places = [];
    const letter = 8, gap = 14, H = 110, width = word => columnsOf(word) * letter;
    const W = Math.max(...lists.map(list => list.reduce((sum, word) => sum + width(word) + gap, 4)));
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    lists.forEach((list, side) => {
      const mirrored = direction(list.join("")) === "rtl";
      let at = 4;
      places.push(list.map(word => {
        const middle = at + width(word) / 2, x = mirrored ? W - middle : middle;
        drawn("text", { x, y: side ? H - 8 : 18, "text-anchor": "middle" }, svg, word);
        at += width(word) + gap;
        return x;
      }));
    });
    for (const [i, j] of s.alignment) {
      if (i in places[0] && j in places[1]) drawn("line", { class: "link", x1: places[0][i], y1: 26, x2: places[1][j], y2: H - 24 }, svg);
    }
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": "aligned words" })) svg.setAttribute(key, value);
    words.replaceChildren(title("Words that belong together"), svg);
  }
  begin();
}
