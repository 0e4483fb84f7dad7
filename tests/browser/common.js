"use strict";
/* What the checks of pages have in common: check.py puts it before them. */
const failures = [];
const check = (holds, what) => { if (!holds) failures.push(what); };
const of = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const set = (input, event, change) => { change(input); input.dispatchEvent(new Event(event)); };
const changes = (what, look, act) => { const before = look(); act(); check(look() !== before, `${what} changes nothing`); };

/* Works every control of the view of explained translations in `parent`, which has so many sentences. */
function checkAttention(parent, count) {
  const [kinds, heads, tokens, map, words, step, select, slider] =
    [".group", ".heads", ".tokens", ".map", ".words", ".step", "select", "input[type=range]"].map(selector => parent.querySelector(selector));
  const pressed = node => of("[aria-pressed=true]", node).length;
  const fills = () => of("rect", map).map(rect => rect.getAttribute("style")).join("|");
  const chips = () => of("button.token", tokens);

  check(select.hidden === (count === 1) && select.options.length === count, "sentences cannot be chosen");
  check(of("rect", map).length >= 4 && of("line", words).length >= 1, "no map or no alignment");
  const pixels = canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  check(of("canvas", heads).every(canvas => pixels(canvas).some(value => value)), "a small map is blank");
  const thumbs = of(".thumb", heads), layers = of("tr", heads).length - 1;
  check(layers >= 1 && thumbs.length % layers === 0 && pressed(heads) === 1, "not a small map each layer and head, one of them chosen");
  thumbs.forEach((thumb, i) => {
    const look = () => map.querySelector("h3").textContent + fills();
    if (thumb.getAttribute("aria-pressed") !== "true") changes(`small map ${i}`, look, () => thumb.click());
    check(thumb.getAttribute("aria-pressed") === "true" && pressed(heads) === 1, `small map ${i} is not chosen`);
  });

  changes("a token", () => step.textContent, () => chips().pop().click());
  check(chips().pop().getAttribute("aria-pressed") === "true" && pressed(tokens) === 1, "the token is not chosen");
  check(of("text.chosen", map).length === 1, "the map shows no chosen token");
  chips()[1].focus();
  chips()[1].click();
  check(document.activeElement === chips()[1], "the keyboard loses its place among the tokens");
  check(/[01]\.\d\d/.test(tokens.querySelector("span.token .weight").textContent), "a token shows no weight");
  changes("a cell of the map", () => step.textContent, () => of("rect", map)[0].dispatchEvent(new MouseEvent("click")));
  check(chips()[0].getAttribute("aria-pressed") === "true", "a click on the map chooses no token");
  of("rect", map)[0].dispatchEvent(new PointerEvent("pointerenter"));
  check(/ to .*: [01]\.\d\d$/.test(map.querySelector("div").textContent), "the pointer shows no weight");
  check(of("span.token", tokens).every(chip => chip.style.background.includes("color-mix")), "a token is not coloured");

  const shares = () => of(".bar span", step).map(bar => parseFloat(bar.style.width));
  const whole = at => check(Math.abs(shares().reduce((a, b) => a + b, 0) - 100) < 0.5, `probabilities at ${at} sum to ${shares()}`);
  const at = (value, temperature) => {
    set(slider, "input", input => { input.value = value; });
    check(slider.parentNode.textContent.includes(temperature), `the temperature is not ${temperature}`);
    whole(temperature);
    return shares()[0];
  };
  const [cold, one, hot] = [at(4, "0.5"), at(9, "1.0"), at(19, "2.0")];
  check(cold > one && one > hot, `the temperature does not sharpen and flatten: ${cold}, ${one}, ${hot}`);

  for (const button of of("button", kinds).reverse()) {
    if (button.getAttribute("aria-pressed") !== "true") changes(button.textContent, fills, () => button.click());
    check(button.getAttribute("aria-pressed") === "true" && pressed(kinds) === 1, `${button.textContent} is not chosen`);
  }
  if (count > 1) changes("the sentence", () => tokens.textContent, () => set(select, "change", () => { select.value = "1"; }));
}

/* What holds for every page, and the end of its checks: what failed goes into <html data-checks="...">. */
function finish() {
  const wide = of("body *").filter(node => !node.parentNode.closest(".scroll, .bars") && node.getBoundingClientRect().right > window.innerWidth + 0.5);
  const names = wide.map(node => `${node.tagName}.${node.className} ${node.getBoundingClientRect().right}`).slice(0, 5);
  check(document.documentElement.scrollWidth <= window.innerWidth, `the page is wider than the window of ${window.innerWidth}, ${document.documentElement.scrollWidth}: ${names}`);
  check(performance.getEntriesByType("resource").length === 0, "the page asks for something");
  const addresses = of("[src], [href]").map(node => node.getAttribute("src") || node.getAttribute("href"));
  check(addresses.every(address => address.startsWith("data:")), `the page names ${addresses}`);
  const result = JSON.stringify(failures.concat(window.errors));
  document.documentElement.dataset.checks = result;
  if (parent !== window) parent.postMessage(result, "*");
}
