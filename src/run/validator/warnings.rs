//! What is said of references before anything is scored.

use crate::config::Config;
use crate::data::tokenizer::{Normalization, TextForm, TokenizerKind};
use crate::data::tokenizers::Tokenizers;
use crate::metrics::bleu;
use crate::run::training_data::is_learnt;

/// Warn if normalisation changes more than this per cent of references.
const MANY_CHANGED: usize = 10;

/// A warning if BLEU finds no words in this text.
pub(super) fn spaces_warning(config: &Config, references: &[String]) -> Option<String> {
    let spaceless = bleu::spaceless_warning(references, config.valid.tokenize);
    spaceless.map(|text| format!("{text}; set valid.tokenize to \"zh\" or \"char\""))
}

/// A warning if the tokenizer changes many `references` of a `set` ("validation "): no translation can equal those.
/// They are as in the file: text that is split already is encoded so, and only translations are joined.
pub fn normalisation_warning(
    config: &Config,
    tokenizers: &Tokenizers,
    set: &str,
    references: &[String],
) -> Option<String> {
    let target = &tokenizers.target;
    let words = |line: &str| -> Vec<String> {
        let line = if target.lowers_case() { line.to_lowercase() } else { line.to_owned() };
        line.split_whitespace().map(str::to_owned).collect()
    };
    // Of text that is split already: translations are joined, so one that is not can be equalled, too.
    let is_split = config.tokenizer.kind == TokenizerKind::SubwordNmt && !target.has_codes();
    let references: Vec<&String> = references.iter().filter(|line| !is_split || line.contains("@@ ")).collect();
    let changed_by = |normalise: &dyn Fn(&str) -> String| {
        references.iter().filter(|line| words(&normalise(line)) != words(&target.plain(line))).count()
    };
    let is_much = |changed: usize| changed * 100 > MANY_CHANGED * references.len();
    let (changed, all) = (changed_by(&|line| target.normalise(line)), references.len());
    let form = config.tokenizer.normalization;
    if !is_much(changed) {
        None
    } else if is_learnt(config) && config.tokenizer.kind == TokenizerKind::Bpe {
        let keeps = |normalization: Normalization| {
            let form = TextForm { normalization, ..TextForm::default() };
            !is_much(changed_by(&|line| form.apply(line)))
        };
        let keeping = if keeps(Normalization::Nfc) { "\"nfc\" or \"none\"" } else { "\"none\"" };
        Some(format!(
            "{changed} of {all} {set}references are not in the form that tokenizer.normalization = \"{form}\" \
             brings text into: no translation can equal them; {keeping} keeps them as they are"
        ))
    } else {
        Some(format!(
            "{changed} of {all} {set}references are changed by the target's tokenizer, which normalises them or \
             lacks some of their characters: no translation can equal them"
        ))
    }
}
