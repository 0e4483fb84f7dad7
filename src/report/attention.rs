//! Explained translations for HTML pages; `assets/attention.js` draws them.

use std::fmt::Write;

use serde_json::{Value, json};

use super::page::{COMMON_SCRIPT, embedded, filled};
use crate::explanation::{Explanation, Weights, temperatures};

const PAGE: &str = include_str!("assets/attention.html");
/// Draws [`packed`] explanations.
pub(super) const SCRIPT: &str = include_str!("assets/attention.js");
/// Draws the attention of a page without other contents.
const PAGE_SCRIPT: &str = include_str!("assets/attention_page.js");

/// An explained translation as a page has it: two bytes for each weight, which in an [`Explanation`] takes four.
pub struct Sentence {
    title: String,
    data: String,
}

impl Sentence {
    /// Packs an explanation.
    pub fn new(explanation: &Explanation) -> Self {
        let title = format!("{} → {}", explanation.text, explanation.translation);
        Self { title, data: embedded(&packed(explanation)) }
    }

    /// Its bytes on a page.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

/// Writes a page of explained translations only, part by part, since it may be large.
///
/// # Errors
/// Those of `write`.
pub fn page<E>(sentences: &[Sentence], mut write: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let title = match sentences {
        [one] => one.title.clone(),
        several => format!("{} translations", several.len()),
    };
    let page = filled(PAGE, &title, &[COMMON_SCRIPT, SCRIPT, PAGE_SCRIPT].concat());
    let (before, after) = page.split_once("@DATA@").unwrap_or((&page, ""));
    write(before)?;
    write(&format!("{{\"temperatures\":{},\"sentences\":[", json!(temperatures().collect::<Vec<_>>())))?;
    for (number, sentence) in sentences.iter().enumerate() {
        write(if number == 0 { "" } else { "," })?;
        write(&sentence.data)?;
    }
    write("]}")?;
    write(after)
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
        "maps": {
            "cross": map(&attention.cross), "encoder": map(&attention.encoder), "decoder": map(&attention.decoder),
        },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explanation::{SentenceAttention, Step};

    #[test]
    fn numbers_are_packed_as_the_script_reads_them() {
        let step =
            Step { log_prob: -0.123_456, rank: 2, candidates: vec![("a".into(), -0.5)], log_sums: vec![1.25; 20] };
        let cross = vec![vec![vec![vec![0.0, 1.0], vec![0.5, 0.2]]]];
        let explanation = Explanation {
            text: "</script>".to_owned(),
            attention: SentenceAttention { cross, ..SentenceAttention::default() },
            steps: vec![step],
            ..Explanation::default()
        };
        let packed = packed(&explanation);
        assert_eq!(packed["maps"]["cross"], json!({ "layers": 1, "heads": 1, "hex": "00ff8033" }));
        let step = &packed["steps"][0];
        assert_eq!((&step["logProb"], &step["rank"], &step["sums"][19]), (&json!(-0.1235), &json!(2), &json!(1.25)));
        assert_eq!(step["candidates"], json!([["a", -0.5]]));

        let mut whole = String::new();
        let sentence = Sentence::new(&explanation);
        page(&[Sentence::new(&explanation), sentence], |part| -> Result<(), ()> {
            whole += part;
            Ok(())
        })
        .unwrap();
        let data =
            whole.split_once(r#"type="application/json" id="data">"#).unwrap().1.split_once("</script>").unwrap().0;
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["sentences"], json!([packed, packed]));
        assert_eq!(data["temperatures"][0], 0.1);
    }
}
