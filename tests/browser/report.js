"use strict";
/* Works every control of a report: see check.py. */
{
  const shape = () => of(".chart:not([hidden]) path").map(path => path.getAttribute("d")).join("|");
  const count = runs.length;

  const titles = of("#charts .chart:not([hidden]) h3").map(title => title.firstChild.textContent);
  for (const title of ["Loss", "Perplexity", "BLEU", "Learning rate", "Gradient norm", "Speed", "Memory"]) {
    check(titles.includes(title), `no chart of ${title}`);
  }
  check(of("path.curve").every(path => /^M[\d.]+ [\d.]+(L[\d.]+ [\d.]+)*$/.test(path.getAttribute("d"))), "a path is no path");
  check(of("#charts path.curve.monitor").length === 4 * count, "the monitored set has no curves");
  check(document.getElementById("runs").textContent.includes("test"), "the monitored set has no name");
  check(of("path.curve.train").length >= 5 * count && of("path.curve.valid").length >= 3 * count, "curves are missing");

  const [updates, hours, tokens] = of("#axes button");
  const last = () => document.querySelector(".chart svg").lastElementChild && of(".chart:not([hidden]) svg text").map(t => t.textContent);
  for (const [button, name] of [[hours, "hours"], [tokens, "target tokens"], [updates, "updates"]]) {
    button.click();
    check(button.getAttribute("aria-pressed") === "true", `${name} is not pressed`);
    check(of("#axes [aria-pressed=true]").length === 1, "several axes are pressed");
    check(last().includes(name), `the axis is not of ${name}`);
  }
  const logarithmic = document.getElementById("logarithmic");
  changes("the logarithm", shape, () => set(logarithmic, "change", box => { box.checked = true; }));
  set(logarithmic, "change", box => { box.checked = false; });
  changes("smoothing", shape, () => set(document.getElementById("smoothing"), "input", slider => { slider.value = 10; }));

  const svg = document.querySelector(".chart svg"), frame = svg.getBoundingClientRect();
  const pointer = name => svg.dispatchEvent(new PointerEvent(name, { clientX: frame.left + frame.width / 2, clientY: frame.top + 50 }));
  pointer("pointermove");
  check(/at \d+: /.test(document.querySelector(".note").textContent), "the pointer shows no value");
  pointer("pointerleave");
  check(document.querySelector(".note").textContent === "", "the value stays");
  const press = key => svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const noted = () => /at (\d+): /.exec(document.querySelector(".note").textContent)?.[1];
  press("Home");
  const first = noted();
  press("ArrowRight");
  check(first && +noted() > +first, "the keyboard reads no values");
  press("End");
  const end = noted();
  press("ArrowLeft");
  check(+noted() < +end && +noted() > +first, "the keyboard does not go back");
  svg.dispatchEvent(new FocusEvent("blur"));
  check(document.querySelector(".note").textContent === "", "the value of the keyboard stays");

  const slider = document.querySelector("#samples input[type=range]");
  const samples = () => document.querySelector("#samples").textContent;
  check(of(".sample dd").length >= 3 && samples().includes("reference"), "no samples");
  const before = samples();
  set(slider, "input", input => { input.value = 0; });
  check(samples() !== before, "the slider changes no sample");

  const views = of("#attention > div");
  check(views.length === count, "no attention");
  views.forEach((view, i) => checkAttention(view, runs[i].attention.sentences.length));

  const histograms = of("#corpus .chart");
  check(histograms.length === 3 && histograms.every(box => of(".count", box).length >= 10), "no histograms");
  for (const box of histograms) {
    of(".whole", box)[8].dispatchEvent(new PointerEvent("pointerenter"));
    check(/^[\d.]+( to [\d.]+| and more)?: [\d,]+ pairs$/.test(box.querySelector(".note").textContent), "a bar shows no number");
    box.querySelector("svg").dispatchEvent(new PointerEvent("pointerleave"));
    check(box.querySelector(".note").textContent === "", "the number of a bar stays");
  }
  check(of("#corpus td").length >= 12 && document.querySelector("#corpus").textContent.includes("8,000"), "no corpus statistics");

  const rows = () => of("#configuration tr").length;
  if (count > 1) {
    const curves = of("path.curve").length;
    set(document.querySelector("#runs input"), "change", box => { box.checked = false; });
    check(of("path.curve").length < curves, "a run cannot be hidden");
    const different = rows();
    check(document.getElementById("differing").checked && different > 1 && different < 20, "what differs is not shown alone");
    set(document.getElementById("differing"), "change", box => { box.checked = false; });
    check(rows() > 50, "what is the same cannot be shown");
    const shapes = new Set(of("#runs .mark").map(mark => mark.getAttribute("d")));
    check(shapes.size === count && of("#charts .mark").length > 10 * count, "curves have no marks");
    check(of("#tiles td").length >= 3 * count, "runs are not compared");
    check(of("#significance td").length === 2 * count && /p = [01]\.\d+/.test(document.querySelector("#significance").textContent), "no significance");
  } else {
    check(of(".tile").length >= 5, "no tiles");
    check(rows() > 50, "no configuration");
  }
  finish();
}
