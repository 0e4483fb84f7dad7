//! Warnings about the target-language tags that lines begin with.

use super::line_summary::LineSummary;
use crate::console::warning;
use crate::data::corpus::{is_blank, tagged};
use crate::data::tags::{is_read_as_text, listed, unknown_word};
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::model_dir::ModelFiles;

/// Refuses a `--tag` that the model does not know. A model without tags would read it as text, word by word; then this
/// warns.
pub(crate) fn check_flag(tag: Option<&str>, tokenizer: &Tokenizer) -> Result<()> {
    let Some(word) = tag.and_then(|tag| unknown_word(tag, tokenizer)) else { return Ok(()) };
    let known = tokenizer.language_tags();
    if known.is_empty() {
        if tag.is_some_and(|tag| is_read_as_text(tag, tokenizer)) {
            warning(format_args!(
                "--tag: the model's vocabulary has no tags, so {word} is read as text like any other"
            ));
        }
        return Ok(());
    }
    let error = Error::usage(format!("--tag: the model has no tag {word}"));
    Err(error.help(format!("it knows {}", listed(&known))))
}

/// Counts lines without a tag, with an unknown tag, or with a tag of their own behind that of `--tag`.
pub(crate) struct Tags<'t> {
    tokenizer: &'t Tokenizer,
    /// The tag that `--tag` puts in front of each line, with the space behind it; empty without `--tag`.
    added: String,
    known: Vec<&'t str>,
    /// Whether lines without a tag get one.
    is_chosen: bool,
    lines: usize,
    missing: LineSummary,
    unknown: LineSummary,
    /// The first unknown tag.
    unknown_tag: String,
    second: LineSummary,
    /// The first tag behind that of `--tag`.
    second_tag: String,
}

impl<'t> Tags<'t> {
    /// For lines that this model reads, with this `--tag` in front.
    pub(crate) fn new(model: &'t ModelFiles, tag: Option<&str>) -> Self {
        let tokenizer = &model.tokenizers.source;
        Self {
            tokenizer,
            is_chosen: model.languages[0].is_some(),
            added: tag.map_or_else(String::new, |tag| tagged(Some(tag), ".").trim_end_matches('.').to_owned()),
            // A line without a language has that of `--from`.
            known: if tokenizer.languages().is_empty() { tokenizer.language_tags() } else { Vec::new() },
            lines: 0,
            missing: LineSummary::default(),
            unknown: LineSummary::default(),
            unknown_tag: String::new(),
            second: LineSummary::default(),
            second_tag: String::new(),
        }
    }

    /// Takes note of the next line.
    pub(crate) fn count(&mut self, line: &str) {
        self.lines += 1;
        if is_blank(line) {
            return;
        }
        if self.known.is_empty() {
            let word = line.split_whitespace().next().unwrap_or_default();
            let tag = word.find("<<").filter(|_| word.starts_with(">>")).map(|end| &word[..end + 2]);
            let is_multilingual = !self.tokenizer.languages().is_empty();
            if let Some(tag) = tag.filter(|_| is_multilingual && self.tokenizer.language_tag(line).is_none()) {
                self.unknown.add(self.lines);
                if self.unknown_tag.is_empty() {
                    tag.clone_into(&mut self.unknown_tag);
                }
            }
            return;
        }
        let is_known =
            |tag: &str| self.known.contains(&tag) || self.known.contains(&self.tokenizer.encoded_form(tag).as_str());
        let own = line.strip_prefix(&self.added).filter(|_| !self.added.is_empty());
        if let Some(tag) = own.and_then(|own| self.tokenizer.language_tag(own)).filter(|tag| is_known(tag)) {
            self.second.add(self.lines);
            if self.second_tag.is_empty() {
                tag.clone_into(&mut self.second_tag);
            }
        }
        match self.tokenizer.language_tag(line) {
            Some(tag) if is_known(tag) => {}
            Some(tag) => {
                self.unknown.add(self.lines);
                if self.unknown_tag.is_empty() {
                    tag.clone_into(&mut self.unknown_tag);
                }
            }
            // With a single language there is nothing to choose.
            None if self.known.len() > 1 && !self.is_chosen => self.missing.add(self.lines),
            None => {}
        }
    }

    /// Warnings about them.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (lines, known) = (self.lines, listed(&self.known));
        let second = self.second.subject(lines, "line", ["begins", "begin"]).map(|begin| {
            let (tag, added) = (&self.second_tag, self.added.trim_end());
            format!("{begin} with a tag ({tag}), and with {added} in front of it the model reads two tags")
        });
        let unknown = self.unknown.subject(lines, "line", ["begins", "begin"]).map(|begin| {
            let tag = &self.unknown_tag;
            let it_knows = match self.known.is_empty() {
                true => "`mt info MODEL` lists its languages".to_owned(),
                false => format!("it knows {known}"),
            };
            format!("{begin} with a tag that the model does not know ({tag}); {it_knows}")
        });
        let missing = self
            .missing
            .subject(lines, "line", ["does", "do"])
            .map(|do_| format!("{do_} not begin with a tag for the target language; the model knows {known}"));
        [second, unknown, missing].into_iter().flatten().collect()
    }
}
