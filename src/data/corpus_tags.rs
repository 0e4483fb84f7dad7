//! Source lines without a tag, where the vocabulary has tags, or with one too many; and corpora with one that it does
//! not have.

use std::path::PathBuf;

use super::training::{TrainingData, about};
use crate::data::corpus::{PairSource, Side, is_blank, read_all};
use crate::data::tags::{is_read_as_text, listed, unknown_word};
use crate::data::texts::{Named, Texts};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::data::{CorpusConfig, DataConfig};
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::notice::Notice;

/// About how many lines of the validation or test set to look at.
const SAMPLED: usize = 1000;
/// A line's tag is among this many tokens at its beginning.
const FIRST: usize = 16;

/// Refuses corpora whose tag the vocabulary does not have. If it is not known which strings are tags, there is a
/// warning.
pub fn refuse_unknown(texts: &Texts, source: &Tokenizer, tell: &dyn Fn(Notice)) -> Result<()> {
    let tags = source.language_tags();
    if tags.is_empty() {
        let is_text = |named: &Named<'_>| named.text.tag().is_some_and(|tag| is_read_as_text(tag, source));
        if let Some(Named { text, key, .. }) = texts.all().find(is_text) {
            let tag = quoted(text.tag().unwrap_or_default());
            tell(Notice::Warning(format!(
                "`{key}.tag`: the vocabulary has no tags, so {tag} is read as text like any other (`tokenizer.tags` \
                 adds them to a model's own vocabulary)"
            )));
        }
        return Ok(());
    }
    let unknown = texts.all().filter_map(|Named { text, key, .. }| {
        let word = unknown_word(text.tag()?, source)?;
        let what = format!("`{key}.tag`: {word} is not one of the tags of the vocabulary");
        Some(Error::usage(what).help(format!("it has {}; `tokenizer.tags` adds others to a model's", listed(&tags))))
    });
    let unknown: Vec<Error> = unknown.collect();
    if unknown.is_empty() { Ok(()) } else { Err(Error::many(unknown)) }
}

/// The tags of a tokenizer.
struct Tags {
    /// One of them.
    first: String,
    ids: Vec<u32>,
}

impl Tags {
    /// `None` if there are no tags, or if they are languages, which every text states.
    fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let names = if tokenizer.languages().is_empty() { tokenizer.language_tags() } else { Vec::new() };
        Some(Self { first: (*names.first()?).to_owned(), ids: tokenizer.ids_of(&names) })
    }

    fn begin(&self, line: &[u32]) -> bool {
        line.iter().take(FIRST).any(|id| self.ids.contains(id))
    }

    /// How many a line begins with; `between` may stand before each.
    fn count(&self, line: &[u32], between: &[u32]) -> usize {
        let at_beginning = line.iter().take_while(|id| self.ids.contains(id) || between.contains(id));
        at_beginning.filter(|id| self.ids.contains(id)).count()
    }

    /// The warning about the lines `without` a tag, of `all` that were looked at; `origin` tells where they are.
    fn warning(
        &self,
        (without, all): (&[usize], usize),
        set: &str,
        origin: impl Fn(usize) -> (PathBuf, usize),
    ) -> Option<String> {
        let (path, line) = origin(*without.first()?);
        let (share, first, path) = (about(without.len(), all), &self.first, path.display());
        Some(format!(
            "{share} of the source lines{set} begin with none of the tags, such as {first}; the first found is \
             {path}:{line} (what only some lines begin with belongs in tokenizer.symbols)"
        ))
    }
}

/// A warning if sampled pairs of the training text lack one.
pub fn training_warning(data: &TrainingData) -> Option<String> {
    let tags = Tags::new(&data.tokenizers.source)?;
    let without: Vec<usize> = data.sampled().filter(|index| !tags.begin(&data.ids(*index).0)).collect();
    tags.warning((&without, data.sampled().count()), "", |index| data.corpus.origin(index, Side::Source))
}

/// A warning if sampled pairs of the training text have one already, and the `tag` of their corpus puts another in
/// front.
pub fn two_tags_warning(data: &TrainingData, config: &DataConfig) -> Option<String> {
    let tokenizer = &data.tokenizers.source;
    let tags = Tags::new(tokenizer)?;
    // A tag may have a space in front that is a piece of its own, and other symbols, which are no tags, may come before
    // it.
    let between = tokenizer.ids_of(&[&["▁"][..], &tokenizer.symbols()].concat());
    let count = |line: &[u32]| tags.count(line, &between);
    let added = |corpus: &CorpusConfig| corpus.tag.as_ref().map_or(0, |tag| count(&tokenizer.encode(tag)));
    let added: Vec<usize> = config.train.iter().map(added).collect();
    let has_two = |index: &usize| {
        let corpus = data.corpus.ranges().iter().position(|corpus| corpus.range.contains(index));
        let added = corpus.and_then(|corpus| added.get(corpus).copied()).unwrap_or(0);
        added > 0 && count(&data.ids(*index).0) > added
    };
    let two: Vec<usize> = data.sampled().filter(has_two).collect();
    let (path, line) = data.corpus.origin(*two.first()?, Side::Source);
    let (share, path) = (about(two.len(), data.sampled().count()), path.display());
    Some(format!(
        "{share} of the source lines begin with a tag, and the `tag` of their corpus puts another in front; the first \
         found is {path}:{line}"
    ))
}

/// A warning if sampled pairs of a validation or test set lack one: its scores would say little.
pub fn warning_about_set(
    name: &str,
    tokenizers: &Tokenizers,
    corpus: &dyn PairSource,
    pairs: &[(String, String)],
) -> Option<String> {
    let tags = Tags::new(&tokenizers.source)?;
    let sampled = || (0..pairs.len()).step_by(pairs.len().div_ceil(SAMPLED).max(1));
    let lacks = |index: &usize| {
        let source = &pairs[*index].0;
        !is_blank(source) && !tags.begin(&tokenizers.source.encode(source))
    };
    let without: Vec<usize> = sampled().filter(lacks).collect();
    let warning_about_set = format!(" of the {name} set");
    tags.warning((&without, sampled().count()), &warning_about_set, |index| corpus.origin(index, Side::Source))
}

/// The same of the test set, which is read only for this. If it cannot be, whoever needs it will say so.
pub fn test_set_warning(texts: &Texts, tokenizers: &Tokenizers) -> Option<String> {
    let test = texts.test.as_ref().filter(|text| text.is_kept())?;
    Tags::new(&tokenizers.source)?;
    let corpus = test.open(1.0, &|_| ()).ok()?;
    warning_about_set("test", tokenizers, &*corpus, &read_all(&*corpus).ok()?)
}
