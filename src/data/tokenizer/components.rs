//! What a `tokenizer.json` states, looked over before the library reads it: it takes much for granted, and ends the
//! program or fills the memory where that does not hold.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use super::pipeline;
use super::vocabulary::merge_parts;
use crate::error::{Error, Result};
use crate::limits;

/// The parts of a file that are made of steps.
const PARTS: [&str; 4] = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];
/// The marks of a model's pieces.
const MARKS: [&str; 3] = ["continuing_subword_prefix", "end_of_word_suffix", "unk_token"];

/// Refuses parts of a parsed file that the library would fail on, or that would take memory or time without bound.
///
/// # Errors
/// The file has such a part; the error names it.
pub(super) fn check(file: &Value) -> Result<()> {
    let mut steps = Steps::default();
    for part in PARTS {
        let own = (part == "pre_tokenizer").then(|| pipeline::own_expression(&file[part])).flatten();
        steps.look_at(&file[part], own).map_err(|error| error.context(format_args!("its `{part}`")))?;
    }
    check_model(&file["model"])
}

/// What the steps of all parts have together.
#[derive(Default)]
struct Steps {
    count: usize,
    expressions: usize,
}

impl Steps {
    /// Goes over a step and what belongs to it; `own` is an expression that mt wrote.
    fn look_at(&mut self, step: &Value, own: Option<&str>) -> Result<()> {
        if let Some(list) = step.as_array() {
            return list.iter().try_for_each(|step| self.look_at(step, own));
        }
        let Some(object) = step.as_object() else { return Ok(()) };
        self.count += 1;
        if self.count > limits::TOKENIZER_STEPS {
            return Err(Error::failure(format!("there are more than {} steps", limits::TOKENIZER_STEPS)));
        }
        for (key, value) in object {
            match (key.as_str(), value) {
                ("precompiled_charsmap", value) => check_charsmap(value)?,
                ("Regex", Value::String(text)) if Some(text.as_str()) != own => self.check_expression(text)?,
                ("Regex", Value::String(_)) => {}
                ("length", Value::Number(length)) if length.as_u64() == Some(0) => {
                    return Err(Error::failure("a `length` is 0"));
                }
                (_, Value::String(text)) => check_text(key, text)?,
                (_, value) => self.look_at(value, own)?,
            }
        }
        Ok(())
    }

    fn check_expression(&mut self, text: &str) -> Result<()> {
        self.expressions += text.len();
        let weight = text.len().saturating_mul(counts(text));
        if self.expressions > limits::EXPRESSION_BYTES || weight > limits::EXPRESSION_WEIGHT {
            let start: String = text.chars().take(40).collect();
            return Err(Error::failure(format!("its regular expressions are too long, or count too far: {start}")));
        }
        Ok(())
    }
}

/// The product of the counts (`{3,20}`) of a regular expression.
fn counts(expression: &str) -> usize {
    let mut product = 1usize;
    let mut before = "";
    for part in expression.split_inclusive('{') {
        // `\p{…}`, `\x{…}` and the like count nothing.
        let is_name = ["p", "P", "x", "u", "U", "k", "g"].iter().any(|name| before.ends_with(&format!("\\{name}{{")));
        let numbers = part.split('}').next().unwrap_or_default();
        if !before.is_empty() && !is_name {
            let number = |text: &str| text.trim().parse().unwrap_or(1usize);
            product = product.saturating_mul(numbers.split(',').map(number).max().unwrap_or(1).max(1));
        }
        before = part;
    }
    product
}

fn check_text(key: &str, text: &str) -> Result<()> {
    if text.len() > limits::STEP_BYTES {
        return Err(Error::failure(format!("its `{key}` has {} bytes, more than {}", text.len(), limits::STEP_BYTES)));
    }
    Ok(())
}

fn damaged() -> Error {
    Error::failure("its table of replaced characters is damaged")
}

fn check_charsmap(table: &Value) -> Result<()> {
    let bytes = table.as_str().filter(|text| text.len() <= limits::CHARSMAP_BYTES).ok_or_else(damaged)?;
    check_table(&BASE64.decode(bytes).map_err(|_| damaged())?)
}

/// Checks what the library assumes about a table of replaced characters: wherever a text leads in its trie, there is a
/// unit, and every value is the offset of a replacement. Also, no replacement is many times as long as the replaced
/// text.
pub(super) fn check_table(bytes: &[u8]) -> Result<()> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    let (trie, replacements) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(damaged)?;
    let (units, []) = trie.as_chunks::<4>() else { return Err(damaged()) };
    let replacements = std::str::from_utf8(replacements).map_err(|_| damaged())?;
    let unit = |at: u32| units.get(at as usize).map(|unit| u32::from_le_bytes(*unit)).ok_or_else(damaged);
    // From a unit to its children, as Darts writes it.
    let children = |at: u32, unit: u32| at ^ ((unit >> 10) << ((unit & 1 << 9) >> 6));
    let mut is_seen = vec![false; units.len()];
    // Where children are, and the bytes that lead there.
    let mut open = vec![(children(0, unit(0)?), 1)];
    while let Some((base, depth)) = open.pop() {
        for byte in 1..=0xFF {
            let at = base ^ byte;
            let found = unit(at)?;
            if found & (1 << 31 | 0xFF) != byte || std::mem::replace(&mut is_seen[at as usize], true) {
                continue;
            }
            let base = children(at, found);
            if found >> 8 & 1 == 1 {
                let offset = unit(base)? & !(1 << 31);
                let replacement = replacements.get(offset as usize..).and_then(|rest| rest.split('\0').next());
                let length = replacement.ok_or_else(damaged)?.len();
                if length > depth * limits::REPLACEMENT_GROWTH {
                    return Err(Error::failure(format!(
                        "its table of replaced characters makes {length} bytes of {depth}, more than {} times as many",
                        limits::REPLACEMENT_GROWTH
                    )));
                }
            }
            open.push((base, depth + 1));
        }
    }
    Ok(())
}

fn check_model(model: &Value) -> Result<()> {
    for mark in MARKS {
        check_text(mark, model[mark].as_str().unwrap_or_default())?;
    }
    // The library cuts so many bytes off the right side of each merge, whatever they are.
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default().len();
    if prefix > 0 {
        let merges = model["merges"].as_array().into_iter().flatten();
        let mut pairs = merges.filter_map(|merge| Some((merge, merge_parts(merge)?)));
        if let Some((merge, _)) = pairs.find(|(_, (_, right))| right.get(prefix..).is_none()) {
            return Err(Error::failure(format!("its merge {merge} has no `continuing_subword_prefix`")));
        }
    }
    // Of Unigram, where pieces have scores.
    let pieces = model["vocab"].as_array().into_iter().flatten().filter_map(|entry| entry[0].as_str());
    let mut bytes = 0;
    for piece in pieces {
        bytes += piece.len();
        if piece.len() > limits::PIECE_BYTES || bytes > limits::UNIGRAM_BYTES {
            let (one, all) = (limits::PIECE_BYTES, limits::UNIGRAM_BYTES);
            return Err(Error::failure(format!("its pieces are too long: more than {one} bytes one, or {all} all")));
        }
    }
    Ok(())
}
