//! An explained translation as a picture: which words belong together, what attended to what, and how sure each token
//! was.

use plotters::style::RGBColor;

use super::sketch::{Anchor, LETTER, LINE, Sketch, shown, width_of};
use crate::error::{Error, Result};
use crate::explanation::{Explanation, Step};

const INK: RGBColor = RGBColor(29, 33, 38);
const SOFT: RGBColor = RGBColor(93, 102, 112);
const FAINT: RGBColor = RGBColor(225, 228, 232);
/// Full attention.
const STRONG: RGBColor = RGBColor(20, 74, 150);
/// The first candidates of a step; the rest of the vocabulary is faint.
const CANDIDATES: [RGBColor; 4] =
    [RGBColor(37, 99, 176), RGBColor(194, 65, 12), RGBColor(21, 128, 61), RGBColor(126, 34, 206)];
/// The temperatures whose effect is drawn.
const TEMPERATURES: [f64; 3] = [0.5, 1.0, 1.5];
const SMALL: i32 = 10;
/// The longest sentence, in tokens of a side, whose picture is still legible.
const MOST_TOKENS: usize = 150;
/// Between parts of the picture.
const GAP: i32 = 26;

/// The weights of one layer and head, or a mean of several: one row per query.
type Map = Vec<Vec<f32>>;

/// The whole picture, as SVG.
///
/// # Errors
/// The sentence is too long for a legible picture.
pub fn whole(explanation: &Explanation) -> Result<String> {
    let mut sketch = Sketch::default();
    let tokens = explanation.attention.source.len().max(explanation.attention.target.len());
    if tokens > MOST_TOKENS {
        return Err(Error::failure(format!(
            "a sentence of {tokens} tokens is too long for a picture, which shows {MOST_TOKENS}"
        ))
        .help("name a .html or a .json file"));
    }
    if explanation.attention.source.is_empty() {
        sketch.text("a blank line: there is nothing to translate", (0, LINE / 2), Anchor::Start, LETTER, SOFT);
        return sketch.svg();
    }
    let right = words(&mut sketch, explanation);
    attention(&mut sketch, explanation, right + 2 * GAP);
    heads(&mut sketch, explanation);
    steps(&mut sketch, explanation);
    sketch.svg()
}

/// The attention of the translation to the source alone, as SVG.
///
/// # Errors
/// As [`whole`].
pub fn maps(explanation: &Explanation) -> Result<String> {
    let mut sketch = Sketch::default();
    if !explanation.attention.source.is_empty() {
        attention(&mut sketch, explanation, 0);
        heads(&mut sketch, explanation);
    }
    sketch.svg()
}

fn title(sketch: &mut Sketch, text: &str, at: (i32, i32)) {
    sketch.text(text, at, Anchor::Start, LETTER, SOFT);
}

/// Words of the source and of the translation in two columns, with lines between those that belong together. Returns
/// the x coordinate of its right edge.
fn words(sketch: &mut Sketch, explanation: &Explanation) -> i32 {
    let [source, target]: [Vec<String>; 2] =
        [&explanation.text, &explanation.translation].map(|text| text.split_whitespace().map(word).collect());
    let widest = |words: &[String]| words.iter().map(|word| width_of(word, LETTER)).max().unwrap_or(0);
    let left = widest(&source);
    let right = left + 70;
    let height = |i: usize| LINE + LINE / 2 + i as i32 * LINE;
    title(sketch, "words", (0, 0));
    let is_there = |(from, to): &&(usize, usize)| *from < source.len() && *to < target.len();
    for (from, to) in explanation.alignment.iter().filter(is_there) {
        sketch.line((left + 5, height(*from)), (right - 5, height(*to)), CANDIDATES[0]);
    }
    for (i, word) in source.iter().enumerate() {
        sketch.text(word, (left, height(i)), Anchor::End, LETTER, INK);
    }
    for (i, word) in target.iter().enumerate() {
        sketch.text(word, (right, height(i)), Anchor::Start, LETTER, INK);
    }
    right + widest(&target)
}

/// The mean over the heads of the last layer, whose attention words are aligned by, with all tokens.
fn attention(sketch: &mut Sketch, explanation: &Explanation, left: i32) {
    let weights = &explanation.attention;
    let Some(heads) = weights.cross.last() else { return };
    let map = mean(heads);
    let rows = weights.target.iter().map(|piece| width_of(piece, LETTER)).max().unwrap_or(0);
    let columns = weights.source.iter().map(|piece| width_of(piece, LETTER)).max().unwrap_or(0);
    title(
        sketch,
        &format!("attention to the source, layer {}, mean of {} heads", weights.cross.len(), heads.len()),
        (left, 0),
    );
    let (x, y) = (left + rows + 6, LINE + columns + 6);
    for (i, piece) in weights.source.iter().enumerate() {
        sketch.text(piece, (x + i as i32 * LINE + LINE / 2, y - 4), Anchor::Up, LETTER, INK);
    }
    for (i, piece) in weights.target.iter().enumerate() {
        sketch.text(piece, (x - 6, y + i as i32 * LINE + LINE / 2), Anchor::End, LETTER, INK);
    }
    cells(sketch, &map, (x, y), LINE);
}

/// Every layer and head as a small map.
fn heads(sketch: &mut Sketch, explanation: &Explanation) {
    let cross = &explanation.attention.cross;
    let (rows, columns) = (explanation.attention.target.len() as i32, explanation.attention.source.len() as i32);
    let cell = (90 / rows.max(columns)).clamp(2, 9);
    let top = sketch.height() + GAP;
    title(sketch, "the same by layer (down) and head (across)", (0, top));
    for (layer, heads) in cross.iter().enumerate() {
        let y = top + LINE + layer as i32 * (rows * cell + 10);
        sketch.text(&(layer + 1).to_string(), (0, y + rows * cell / 2), Anchor::Start, SMALL, SOFT);
        for (head, map) in heads.iter().enumerate() {
            cells(sketch, map, (24 + head as i32 * (columns * cell + 10), y), cell);
        }
    }
}

/// How sure each token was, and its alternatives, at several temperatures.
fn steps(sketch: &mut Sketch, explanation: &Explanation) {
    let pieces = &explanation.attention.target;
    let top = sketch.height() + GAP;
    let [low, one, high] = TEMPERATURES;
    let words = format!(
        "token, its probability and rank; the first candidates at temperatures {low}, {one}, {high} (bars, downwards)"
    );
    title(sketch, &words, (0, top));
    let widest = pieces.iter().map(|piece| width_of(piece, LETTER)).max().unwrap_or(0);
    let (number, bars) = (widest + 14, widest + 14 + width_of("0.123 (1234)", LETTER) + 14);
    let (across, texts) = (180, bars + 180 + 14);
    for (i, (piece, step)) in pieces.iter().zip(&explanation.steps).enumerate() {
        let y = top + LINE + i as i32 * 2 * LINE;
        let middle = y + LINE;
        sketch.text(piece, (0, middle), Anchor::Start, LETTER, INK);
        let probability = f64::from(step.log_prob).exp();
        sketch.text(&format!("{probability:.3} ({})", step.rank), (number, middle), Anchor::Start, LETTER, INK);
        for (bar, temperature) in TEMPERATURES.into_iter().enumerate() {
            stacked(sketch, step, temperature, (bars, y + 3 + bar as i32 * 10), (across, 8));
        }
        let mut x = texts;
        for ((piece, log_prob), color) in step.candidates.iter().zip(CANDIDATES) {
            // Apart, so that a piece that runs from right to left does not take the number along.
            for (text, gap) in [(piece.as_str(), LETTER / 2), (&format!("{:.3}", f64::from(*log_prob).exp()), 14)] {
                sketch.text(text, (x, middle), Anchor::Start, LETTER, color);
                x += width_of(&shown(text), LETTER) + gap;
            }
        }
    }
}

/// A bar of the probabilities of the first candidates.
fn stacked(sketch: &mut Sketch, step: &Step, temperature: f64, at: (i32, i32), size: (i32, i32)) {
    sketch.rectangle(at, size, FAINT);
    let mut sum = 0.0;
    let pixel = |sum: f64| (sum.min(1.0) * f64::from(size.0)).round() as i32;
    for ((_, log_prob), color) in step.candidates.iter().zip(CANDIDATES) {
        let from = pixel(sum);
        sum += step.at_temperature(*log_prob, temperature);
        sketch.rectangle((at.0 + from, at.1), (pixel(sum) - from, size.1), color);
    }
}

/// A word, shortened to the space there is.
fn word(word: &str) -> String {
    let mut letters = word.chars();
    let beginning: String = letters.by_ref().take(30).collect();
    shown(&if letters.next().is_some() { beginning + "…" } else { beginning })
}

fn cells(sketch: &mut Sketch, map: &Map, corner: (i32, i32), cell: i32) {
    let columns = map.first().map_or(0, Vec::len);
    sketch.rectangle(corner, (columns as i32 * cell, map.len() as i32 * cell), shade(0.0));
    for (i, row) in map.iter().enumerate() {
        // Most weights are practically zero.
        for (j, weight) in row.iter().enumerate().filter(|(_, weight)| **weight > 5e-4) {
            let at = (corner.0 + j as i32 * cell, corner.1 + i as i32 * cell);
            sketch.rectangle(at, (cell, cell), shade(*weight));
        }
    }
}

/// A colour between the background's and that of full attention. The square root makes small weights visible.
fn shade(weight: f32) -> RGBColor {
    let share = weight.clamp(0.0, 1.0).sqrt();
    let mixed = |strong: u8| (245.0 + share * (f32::from(strong) - 245.0)).round() as u8;
    RGBColor(mixed(STRONG.0), mixed(STRONG.1), mixed(STRONG.2))
}

/// Over the heads.
fn mean(heads: &[Map]) -> Map {
    let (rows, columns) = (heads[0].len(), heads[0].first().map_or(0, Vec::len));
    let at = |i: usize, j: usize| heads.iter().map(|head| head[i][j]).sum::<f32>() / heads.len() as f32;
    (0..rows).map(|i| (0..columns).map(|j| at(i, j)).collect()).collect()
}
