const { runs, compared } = JSON.parse(document.getElementById("data").textContent);
const state = { axis: "update", logarithmic: false, smoothing: 0, hidden: new Set() };

const CHARTS = [
  { title: "Loss", unit: "nats a token, label-smoothed", train: e => e.loss, valid: e => e.loss },
  { title: "Perplexity", unit: "a token", logarithmic: true, train: e => e.perplexity, valid: e => e.perplexity },
  { title: "BLEU", unit: "of the validation set", valid: e => e.bleu },
  { title: "chrF", unit: "of the validation set", valid: e => e.chrf },
  { title: "COMET", unit: "of the validation set", valid: e => e.comet },
  { title: "Learning rate", train: e => e.learning_rate },
  { title: "Gradient norm", unit: "before clipping", train: e => e.gradient_norm },
  { title: "Speed", unit: "target tokens a second", train: e => e.tokens_per_second },
  { title: "Memory", unit: "MiB", train: e => e.memory == null ? null : e.memory / 1048576 },
];
/* Scores of translations, their keys in the log, and their decimals. */
const SCORES = [["BLEU", "bleu", 2], ["chrF", "chrf", 2], ["COMET", "comet", 4]];
const AXES = {
  update: ["updates", e => e.update],
  hours: ["hours", e => e.seconds == null ? null : e.seconds / 3600],
  tokens: ["target tokens", (e, run) => tokensAt(run, e.update)],
};

function duration(seconds) {
  const whole = Math.round(seconds), minutes = Math.round(seconds / 60);
  if (whole < 600) return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const entries = (run, event) => run.log.filter(entry => entry.event === event);
/* The entries of validations on a set of data.monitor; those with a model are of the final one. */
const monitored = (run, set) => run.log.filter(entry => entry.event === "monitor" && entry.set === set && !entry.model);
const setsOf = run => [...new Set(entries(run, "monitor").map(entry => entry.set))];
const allSets = [...new Set(runs.flatMap(setsOf))];
/* Eight colours, then the same darker, and lighter. */
const color = index => {
  const plain = `var(--c${index % 8})`, mixed = (share, other) => `color-mix(in srgb, ${plain} ${share}%, var(${other}))`;
  return [plain, mixed(50, "--ink"), mixed(45, "--panel")][Math.floor(index / 8) % 3];
};

/* The colour of a curve on the page of a single run. */
const colorOf = (kind, name) => color(kind === "train" ? 0 : kind === "valid" ? 1 : 2 + allSets.indexOf(name));
/* Where colours cannot be told apart, the shape of the marks says which run a curve is of: no two of 24 runs have both in common. */
const SHAPES = ["M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", "M-3 -3h6v6h-6z", "M0 -4L4 3H-4z", "M0 -4.2L4.2 0L0 4.2L-4.2 0z", "M0 4L4 -3H-4z", "M-1.2 -4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z"];
const marked = (index, x, y, parent) =>
  drawn("path", { class: "mark", d: SHAPES[index % SHAPES.length], transform: `translate(${x} ${y})`, style: `fill: ${color(index)}` }, parent);

/* Of each run, its entries of training, in the order of updates. */
const trained = new WeakMap();

function tokensAt(run, update) {
  if (!trained.has(run)) trained.set(run, entries(run, "train"));
  const known = trained.get(run);
  let from = 0, to = known.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (known[middle].update <= update) from = middle + 1;
    else to = middle;
  }
  return from ? known[from - 1].target_tokens : null;
}

/* There may be more numbers than a function can take as arguments. */
const lowest = numbers => numbers.reduce((a, b) => Math.min(a, b), Infinity);
const highest = numbers => numbers.reduce((a, b) => Math.max(a, b), -Infinity);

/* The mean of a window that grows with the slider, and is narrower towards the ends; on a logarithmic axis of logarithms. */
function smoothed(points, most, logarithmic) {
  const [from, to] = logarithmic ? [Math.log, Math.exp] : [y => y, y => y];
  return points.map((point, i) => {
    const width = Math.min(most, i, points.length - 1 - i), window = points.slice(i - width, i + width + 1);
    return { ...point, y: to(window.reduce((sum, other) => sum + from(other.y), 0) / window.length) };
  });
}

const isLogarithmic = chart => chart.logarithmic || state.logarithmic;

function curves(chart) {
  const x = AXES[state.axis][1], found = [];
  runs.forEach((run, index) => {
    if (state.hidden.has(index)) return;
    const pointsOf = (of, number) => of.map(e => ({ x: x(e, run), y: number(e), update: e.update }))
      .filter(p => p.x != null && p.y != null && isFinite(p.y) && (!isLogarithmic(chart) || p.y > 0));
    const add = (kind, name, points) => { if (points.length) found.push({ run, index, kind, name, points }); };
    if (chart.train) add("train", "train", smoothed(pointsOf(entries(run, "train"), chart.train), state.smoothing, isLogarithmic(chart)));
    if (chart.valid) {
      add("valid", "valid", pointsOf(entries(run, "valid"), chart.valid));
      for (const set of allSets) add("monitor", set, pointsOf(monitored(run, set), chart.valid));
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

/* Marks of an axis that runs from one logarithm to another: round numbers, evenly where few of these lie on it, and whole powers where too many do. */
function logarithmicTicks(low, high, count) {
  const first = Math.floor(low), powers = Array.from({ length: Math.ceil(high) - first + 1 }, (_, i) => first + i);
  const marks = factors => powers.flatMap(power => factors.map(factor => +`${factor}e${power}`))
    .filter(mark => Math.log10(mark) >= low - 1e-9 && Math.log10(mark) <= high + 1e-9);
  const round = [[1, 2, 5], [1, 3], [1]].map(marks).find(found => found.length <= count + 1);
  if (!round) return ticks(low, high, count).map(power => +`1e${power}`);
  return round.length < 3 ? ticks(10 ** low, 10 ** high, count) : round;
}

function draw(chart, box) {
  const all = curves(chart);
  box.hidden = !all.length;
  box.replaceChildren();
  if (!all.length) return;
  const unit = chart.unit ? make("span", { className: "soft", textContent: " " + chart.unit }) : "";
  box.append(make("h3", {}, chart.title, unit));
  const W = 420, H = 234, left = 48, right = 22, top = 12, bottom = 34;
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${chart.title}: arrow keys read its values`, tabindex: 0 }, box);
  const scale = isLogarithmic(chart) ? Math.log10 : v => v;
  const points = all.flatMap(c => c.points), xs = points.map(p => p.x), ys = points.map(p => scale(p.y));
  let [x0, x1] = [lowest(xs), highest(xs)], [y0, y1] = [lowest(ys), highest(ys)];
  if (x0 === x1) x1 = x0 + 1;
  // Means of equal numbers differ in their last digits.
  if (y1 - y0 <= 1e-9 * Math.abs(y1)) [y0, y1] = [y0 - Math.abs(y0 || 1) / 10, y1 + Math.abs(y1 || 1) / 10];
  const X = v => left + (v - x0) / (x1 - x0) * (W - left - right);
  const Y = v => H - bottom - (scale(v) - y0) / (y1 - y0) * (H - top - bottom);
  for (const t of isLogarithmic(chart) ? logarithmicTicks(y0, y1, 5) : ticks(y0, y1, 5)) {
    const y = Y(t);
    drawn("line", { class: "grid", x1: left, x2: W - right, y1: y, y2: y }, svg);
    drawn("text", { x: left - 5, y: y + 4, "text-anchor": "end" }, svg, short(t));
  }
  for (const t of ticks(x0, x1, 6)) drawn("text", { x: X(t), y: H - 17, "text-anchor": "middle" }, svg, short(t));
  drawn("text", { x: W - right, y: H - 4, "text-anchor": "end" }, svg, AXES[state.axis][0]);
  /* Curves of training are behind those of validation, and fainter where these would drown in their noise. */
  const behind = all.filter(c => c.kind === "train"), before = all.filter(c => c.kind !== "train");
  for (const { index, kind, name, points } of [...behind, ...before]) {
    const stroke = runs.length > 1 ? color(index) : colorOf(kind, name);
    const path = points.map((p, i) => `${i ? "L" : "M"}${X(p.x).toFixed(1)} ${Y(p.y).toFixed(1)}`).join("");
    drawn("path", { class: `curve ${kind}${before.length && points.length > 400 ? " noise" : ""}`, d: path, style: `stroke: ${stroke}` }, svg);
    if (runs.length > 1) {
      /* A few on each curve, side by side where curves lie on one another. */
      const every = Math.max(1, Math.round(points.length / 5));
      points.forEach((p, i) => { if ((i + 1 + index % every) % every === 0) marked(index, X(p.x), Y(p.y), svg); });
    } else if (points.length <= 40) {
      for (const p of points) drawn("circle", { class: "dot", cx: X(p.x), cy: Y(p.y), r: 2.6, style: `fill: ${stroke}` }, svg);
    }
  }
  const cross = drawn("line", { class: "cross", y1: top, y2: H - bottom, visibility: "hidden" }, svg);
  const note = make("div", { className: "note" });
  note.setAttribute("aria-live", "polite");
  box.append(note);
  const leave = () => { cross.setAttribute("visibility", "hidden"); note.replaceChildren(); };
  const show = at => {
    const near = curve => curve.points.reduce((best, p) => Math.abs(p.x - at) < Math.abs(best.x - at) ? p : best);
    const x = X(near(all[0]).x);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    note.replaceChildren(...all.map(curve => {
      const p = near(curve), name = runs.length > 1 ? `${curve.run.name} ` : "";
      return make("div", { textContent: `${name}${curve.name} at ${p.update}: ${short(p.y)}` });
    }));
  };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect();
    show(x0 + ((event.clientX - frame.left) / frame.width * W - left) / (W - left - right) * (x1 - x0));
  });
  /* The keyboard goes over the points of the first curve, in forty steps where there are more. */
  const along = all[0].points, stride = Math.max(1, Math.round(along.length / 40));
  let here = null;
  svg.addEventListener("blur", () => { here = null; leave(); });
  svg.addEventListener("keydown", event => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const last = along.length - 1, to = { ArrowRight: (here ?? -stride) + stride, ArrowLeft: (here ?? last + stride) - stride, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    here = Math.min(last, Math.max(0, to));
    show(along[here].x);
  });
}

const boxes = CHARTS.map(chart => {
  const box = make("div", { className: "chart" });
  document.getElementById("charts").append(box);
  return [chart, box];
});
const redraw = () => {
  boxes.forEach(([chart, box]) => draw(chart, box));
  document.getElementById("nothing").hidden = boxes.some(([, box]) => !box.hidden);
};

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
  const legend = document.getElementById("runs"), thinned = runs.filter(run => run.thinning > 1);
  document.getElementById("thinned").textContent = thinned.map(run => `Of every ${run.thinning} lines that ${run.name} logged of training two are drawn: the one with the largest gradient norm, and the last.`).join(" ");
  if (runs.length === 1) {
    for (const [kind, name] of [["train", "train"], ["valid", "valid"], ...allSets.map(set => ["monitor", set])]) {
      legend.append(make("span", {}, make("span", { className: `key ${kind}`, style: `color: ${colorOf(kind, name)}` }), name));
    }
    return;
  }
  runs.forEach((run, index) => {
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => { state.hidden[box.checked ? "delete" : "add"](index); redraw(); });
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [key, value] of Object.entries({ viewBox: "-14 -6 28 12", class: "mark-of", "aria-hidden": true })) mark.setAttribute(key, value);
    drawn("path", { class: "line-of", d: "M-14 0H14", style: `stroke: ${color(index)}` }, mark);
    marked(index, 0, 0, mark);
    legend.append(make("label", {}, box, " ", mark, run.name));
  });
  const dotted = allSets.length ? `, dotted: ${allSets.join(", ")}` : "";
  legend.append(make("span", { className: "soft", textContent: `solid: training, dashed: validation${dotted}` }));
}

/* Of a run: what there is to tell in a number. */
function summary(run) {
  const train = entries(run, "train"), valid = entries(run, "valid"), last = train[train.length - 1];
  const best = valid.filter(e => e.best).pop(), final = entries(run, "final").pop(), out = {};
  if (last) {
    const speeds = train.map(e => e.tokens_per_second).sort((a, b) => a - b);
    out["updates logged"] = String(last.update);
    out["training time"] = duration(last.seconds);
    const half = speeds.length / 2;
    out["tokens a second, median"] = short((speeds[Math.ceil(half) - 1] + speeds[Math.floor(half)]) / 2);
  }
  if (last?.ranks) {
    // Another number of ranks may have begun the run.
    const alike = train.filter(e => e.ranks === last.ranks && e.idle?.length === e.ranks);
    const waiting = last.idle.map((_, rank) => alike.reduce((sum, e) => sum + e.idle[rank], 0) / alike.length);
    out["ranks"] = String(last.ranks);
    out["waiting for others, by rank"] = waiting.map(share => `${(100 * share).toFixed(0)} %`).join(", ");
    const of = key => Number(run.config[key]);
    out["tokens of an update, at most"] = (of("train.accumulate") * of("train.batch_tokens")).toLocaleString("en");
  }
  if (run.corpus?.parameters) out["parameters"] = run.corpus.parameters.toLocaleString("en");
  if (best) {
    out["best validation"] = `update ${best.update}`;
    out["its perplexity"] = short(best.perplexity);
    for (const [name, key, decimals] of SCORES) if (best[key] != null) out[`its ${name}`] = best[key].toFixed(decimals);
  }
  if (final && final.perplexity != null) out["perplexity of the final model"] = short(final.perplexity);
  for (const [name, key, decimals] of SCORES) {
    if (final && final[key] != null) out[`${name} of the final model`] = final[key].toFixed(decimals);
  }
  for (const of of entries(run, "monitor").filter(e => e.model)) {
    for (const [name, key, decimals] of SCORES) if (of[key] != null) out[`its ${name} on ${of.set}`] = of[key].toFixed(decimals);
  }
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
  const differ = of => new Set(runs.map(of).filter(value => value != null)).size > 1, notes = [];
  if (differ(run => run.corpus?.tokenizers ?? run.corpus?.target?.vocabulary)) notes.push("Perplexity and loss are those of a token: runs with other vocabularies cannot be compared by them.");
  if (differ(run => run.config["train.label_smoothing"])) notes.push("The losses are label-smoothed, some more than others: perplexities are not.");
  if (notes.length) parent.append(make("p", { className: "soft", textContent: notes.join(" ") }));
}

/* Whether differences of the runs' translations are more than chance. */
function significance() {
  if (!compared) return;
  const parent = document.getElementById("significance");
  parent.append(make("h2", { textContent: "Translations of the validation set" }));
  if (compared.notes.length) parent.append(make("p", { className: "soft", textContent: compared.notes.join(" ") }));
  if (!compared.systems) return;
  const metrics = Object.keys(compared.systems[0]).filter(key => key !== "hyp");
  const head = ["", ...metrics.map(key => ({ bleu: "BLEU", chrf: "chrF2" })[key] ?? key)];
  const table = make("table", {}, make("tr", {}, ...head.map(text => make("th", { textContent: text }))));
  compared.systems.forEach((system, i) => {
    const row = make("tr", {}, make("th", { textContent: system.hyp + (i ? "" : ", baseline") }));
    for (const key of metrics) {
      const { score, confidence, p_value: p } = system[key];
      const chance = p == null ? "" : `, p = ${p.toFixed(4)}`;
      row.append(make("td", { className: p < 0.05 ? "chosen" : "", textContent: `${score.toFixed(2)} ± ${confidence.toFixed(2)}${chance}` }));
    }
    table.append(row);
  });
  const words = `${compared.lines} lines; 95 % intervals and p by paired bootstrap: how likely so large a difference from the baseline would be by chance; coloured below 0.05. `;
  parent.append(make("div", { className: "scroll" }, table), make("p", { className: "soft", textContent: words + metrics.map((key, i) => `${head[i + 1]}|${compared.systems[0][key].signature}`).join("; ") }));
}

/* What the training text is like. */
function corpus() {
  const parent = document.getElementById("corpus"), seen = new Set();
  const textOf = ({ corpus }) => JSON.stringify({ ...corpus, parameters: 0, tokenizers: 0 });
  runs.filter(run => run.corpus).forEach(run => {
    const of = run.corpus, text = textOf(run);
    if (seen.has(text)) return;
    const names = runs.filter(other => other.corpus && textOf(other) === text).map(other => other.name).join(", ");
    seen.add(text);
    parent.append(make("h2", { textContent: runs.length > 1 ? `Training text of ${names}` : "Training text" }), make("p", { textContent: of.filters }));
    const cells = (name, texts) => texts.map(text => make(name, { textContent: text }));
    const sides = make("table", {}, make("tr", {}, ...cells("th", ["", "source", "target"])));
    for (const [name, key] of [["tokens", "tokens"], ["vocabulary", "vocabulary"], ["median length", "median"], ["longest", "longest"]]) {
      sides.append(make("tr", {}, ...cells("th", [name]), ...cells("td", [of.source[key], of.target[key]].map(n => n.toLocaleString("en")))));
    }
    const files = make("table", {}, make("tr", {}, ...cells("th", ["source", "target", "pairs", "weight"])));
    for (const { source, target, pairs, weight } of of.corpora) files.append(make("tr", {}, ...cells("td", [source, target, pairs.toLocaleString("en"), weight])));
    parent.append(make("div", { className: "scroll" }, sides), make("div", { className: "scroll" }, files));
    const charts = make("div", { className: "charts" });
    histogram(charts, "Source length", "subwords", of.source.lengths, 0);
    histogram(charts, "Target length", "subwords", of.target.lengths, 0);
    histogram(charts, "Target length", "times the source length", of.ratios, 1);
    parent.append(charts);
  });
}

function histogram(parent, title, unit, { start, width, counts }, digits) {
  const box = make("div", { className: "chart bars-of" }), W = 420, H = 194, left = 12, right = 12, top = 24, bottom = 34;
  box.append(make("h3", {}, title, make("span", { className: "soft", textContent: " " + unit })));
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}, ${unit}` }, box);
  const most = highest(counts), each = (W - left - right) / counts.length;
  const note = make("div", { className: "note" });
  const edge = i => (start + i * width).toFixed(digits);
  counts.forEach((count, i) => {
    const height = (H - top - bottom) * count / most, x = left + i * each;
    drawn("rect", { class: "count", x: x + .5, y: H - bottom - height, width: Math.max(.5, each - 1), height }, svg);
    /* A bar of nothing can be pointed at as well. */
    const area = drawn("rect", { class: "whole", x, y: top, width: each, height: H - top - bottom }, svg);
    const range = i === counts.length - 1 ? `${edge(i)} and more` : digits || width > 1 ? `${edge(i)} to ${digits ? edge(i + 1) : edge(i + 1) - 1}` : edge(i);
    area.addEventListener("pointerenter", () => { note.textContent = `${range}: ${count.toLocaleString("en")} pairs`; });
  });
  svg.addEventListener("pointerleave", () => { note.textContent = ""; });
  const step = Math.max(1, Math.ceil(counts.length / 8));
  drawn("text", { x: left, y: 14 }, svg, `highest bar: ${most.toLocaleString("en")} pairs`);
  drawn("text", { x: W - right, y: H - 4, "text-anchor": "end" }, svg, `last bar: ${edge(counts.length - 1)} and more`);
  for (let i = 0; i < counts.length; i += step) drawn("text", { x: left + i * each, y: H - 18, "text-anchor": "start" }, svg, edge(i));
  box.append(note);
  parent.append(box);
}

/* What the final model could have been. */
function candidates() {
  const parent = document.getElementById("events");
  for (const run of runs.filter(run => entries(run, "candidate").length)) {
    const list = make("ul"), of = runs.length > 1 ? ` of ${run.name}` : "";
    for (const e of entries(run, "candidate")) {
      const scores = SCORES.map(([name, key, decimals]) => e[key] == null ? "" : `, ${name} ${e[key].toFixed(decimals)}`).join("");
      const text = `${e.model}: loss ${e.loss == null ? "not finite" : e.loss.toFixed(3)}${scores}`;
      list.append(make("li", {}, make(e.chosen ? "b" : "span", { textContent: text })));
    }
    parent.append(make("h2", { textContent: `What the final model${of} was chosen from` }), list);
  }
}

function incidents() {
  const parent = document.getElementById("events");
  const words = {
    skip: e => `update ${e.update} skipped: loss ${e.loss}, gradient norm ${e.gradient_norm}`,
    spike: e => `update ${e.update}: loss ${short(e.loss)}, usual is ${short(e.usual)}`,
    change: e => `from update ${e.update} on: ${e.changes.join("; ")}`,
    back: e => `back to update ${e.update} from ${e.from}: ${e.why}`,
  };
  const lines = e => (e.lines || []).map(l => `${l.file}: ${l.lines.slice(0, 8).join(", ")}${l.lines.length > 8 ? ", …" : ""}`);
  const found = runs.flatMap(run => run.log.filter(e => words[e.event]).map(e => [run, e]));
  if (!found.length) return;
  const list = make("ul");
  const MOST = 200;
  for (const [run, e] of found.slice(0, MOST)) {
    const name = runs.length > 1 ? `${run.name}: ` : "";
    list.append(make("li", {}, name + words[e.event](e), make("span", { className: "soft", textContent: " " + lines(e).join("; ") })));
  }
  if (found.length > MOST) list.append(make("li", {}, `${found.length - MOST} more are in log.jsonl`));
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
      const scores = SCORES.map(([name, key, decimals]) => entry[key] == null ? "" : `, ${name} ${entry[key].toFixed(decimals)}`);
      at.textContent = `after update ${entry.update}: perplexity ${short(entry.perplexity)}${scores.join("")}`;
      list.replaceChildren(...entry.samples.map(sample => {
        const rows = make("dl");
        for (const line of sample.split("\n").filter(line => line.trim())) {
          const [, what, text] = /^\s*(\S+)\s*(.*)$/s.exec(line);
          rows.append(make("dt", { textContent: what }), make("dd", { textContent: text, dir: "auto" }));
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

/* Sample translations explained: a click chooses layer, head and token. */
function attention() {
  const parent = document.getElementById("attention");
  runs.filter(run => run.attention && run.attention.sentences.length).forEach(run => {
    const { update, sentences, temperatures } = run.attention, of = runs.length > 1 ? ` of ${run.name}` : "";
    const view = make("div");
    parent.append(make("h2", { textContent: `Attention${of}` }), make("p", { className: "soft", textContent: run.attention.final ? "of the final model" : `after update ${update}` }), view);
    attentionView(view, sentences, temperatures);
  });
}

function configuration() {
  const table = document.getElementById("configuration"), differing = document.getElementById("differing");
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.config)))];
  differing.parentNode.hidden = runs.length === 1;
  differing.checked = runs.length > 1;
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
/* What one part cannot read does not hide the others. */
for (const part of [controls, tiles, significance, redraw, candidates, incidents, samples, attention, corpus, configuration]) {
  try {
    part();
  } catch (error) {
    const text = `A part of this page (${part.name}) cannot be shown, its data are damaged: ${error.message}`;
    document.getElementById("about").after(make("p", { className: "damaged", textContent: text }));
  }
}
