//! Explained translations for HTML pages; `assets/attention.js` draws them.

use std::fmt::Write;

use serde_json::{Value, json};

use super::page::{COMMON_SCRIPT, STYLE, embedded, escaped};
use crate::explanation::{Explanation, Weights, temperatures};

const PAGE: &str = include_str!("assets/attention.html");
/// Draws [`packed`] explanations.
pub(super) const SCRIPT: &str = include_str!("assets/attention.js");

/// A page of explained translations only.
pub fn page(explanations: &[Explanation]) -> String {
    let sentences: Vec<Value> = explanations.iter().map(packed).collect();
    let data = json!({ "sentences": sentences, "temperatures": temperatures().collect::<Vec<_>>() });
    let title = match explanations {
        [one] => format!("{} → {}", one.text, one.translation),
        several => format!("{} translations", several.len()),
    };
    PAGE.replace("@TITLE@", &escaped(&title))
        .replace("@STYLE@", STYLE)
        .replace("@SCRIPT@", &format!("{COMMON_SCRIPT}{SCRIPT}"))
        .replace("@DATA@", &embedded(&data))
}

/// An explanation in the script's compact format: weights are two hexadecimal digits, with 255 for 1.
pub fn packed(explanation: &Explanation) -> Value {
    let Explanation { text, translation, attention, steps, alignment } = explanation;
    let short = |number: f32| (f64::from(number) * 1e4).round() / 1e4;
    let steps: Vec<Value> = steps
        .iter()
        .map(|step| {
            let candidates: Vec<(&str, f64)> =
                step.candidates.iter().map(|(piece, log_prob)| (piece.as_str(), short(*log_prob))).collect();
            let sums: Vec<f64> = step.log_sums.iter().map(|sum| short(*sum)).collect();
            json!({ "logProb": short(step.log_prob), "rank": step.rank, "candidates": candidates, "sums": sums })
        })
        .collect();
    json!({
        "text": text, "translation": translation, "source": attention.source, "input": attention.target_input,
        "target": attention.target, "steps": steps, "alignment": alignment,
        "maps": { "cross": map(&attention.cross), "encoder": map(&attention.encoder), "decoder": map(&attention.decoder) },
    })
}

fn map(weights: &Weights) -> Value {
    let mut hex = String::new();
    for weight in weights.iter().flatten().flatten().flatten() {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{:02x}", (weight.clamp(0.0, 1.0) * 255.0).round() as u8);
    }
    json!({ "layers": weights.len(), "heads": weights.first().map_or(0, Vec::len), "hex": hex })
}
