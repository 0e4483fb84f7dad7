//! Prepares lines of text for the encoder: tokenises them, cuts or splits those beyond the model's positions, and
//! batches them by length.

use std::borrow::{Borrow, Cow};
use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::sentences::{is_space, middle, sentences};
use crate::choice::choice;
use crate::data::batch::Batch;
use crate::data::corpus::{is_blank, tagged};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::error::Error;
use crate::model::{ModelConfig, Sequences};

choice! {
    /// What to do with a line that has more tokens than a model takes.
    pub enum Long {
        /// Translate its sentences one by one, and a sentence that is still too long in parts.
        Split = "split",
        /// Translate its beginning, as far as the model's positions reach.
        Truncate = "truncate",
        /// Refuse it.
        Error = "error",
    }
}

/// A line, or a part of one, as a model takes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// Which of the lines it is.
    pub line: usize,
    /// Which part of that line.
    pub part: usize,
    /// Its tokens, without the end of the sentence; none where the line is blank.
    pub ids: Vec<u32>,
    /// How many leading ids are a repeated tag.
    pub added: usize,
    /// Whether some of its text was left out: tokens beyond the positions, or what follows more text than is read.
    pub cut: bool,
}

/// A line that has more tokens than a model's positions reach, or goes on after more text than is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondPositions {
    /// Which of the lines it is.
    pub line: usize,
    /// Its tokens with the end of the sentence; only its beginning is counted if it is enormous.
    pub tokens: usize,
    /// Whether the line continues after those.
    pub and_more: bool,
    /// The model's number of positions.
    pub positions: usize,
}

impl BeyondPositions {
    /// An error about `file`, in which `first` is the number of the first of the lines.
    pub fn error(&self, file: &Path, first: usize) -> Error {
        let Self { line, tokens, and_more, positions } = self;
        let model = format!("the model has {positions} positions (model.max_length)");
        let what = match and_more {
            // Nor is white space read further; one token may stand for any amount of it.
            true if tokens <= positions => format!(
                "the line goes on after so much white space that only {tokens} tokens were read, counting its end; \
                 {model}"
            ),
            true => format!("the line has more than {tokens} tokens, counting its end, but {model}"),
            false => format!("the line has {tokens} tokens, counting its end, but {model}"),
        };
        Error::failure(what).at_line(file, first + line, 0)
    }
}

/// Turns lines into the encoder's input.
#[derive(Clone, Debug)]
pub struct Reader {
    tokenizers: Tokenizers,
    /// Most tokens of a line, without the end of the sentence.
    longest: usize,
    /// Tokens of the longest line that the model has learnt to translate.
    trained: usize,
    /// The tag of the language of lines that do not begin with one.
    language: Option<String>,
}

/// As much of a line as could matter to a model that takes `longest` tokens, so that a line of a gigabyte costs little,
/// and the rest. If that much is all white space, leading white space is skipped, so that a line with text does not
/// seem blank.
pub fn beginning(line: &str, longest: usize) -> (&str, &str) {
    const LEAST: usize = 1 << 20;
    const BYTES_A_TOKEN: usize = 256;
    let end = longest.saturating_mul(BYTES_A_TOKEN).max(LEAST);
    let (first, rest) = line.split_at(line.floor_char_boundary(end));
    if rest.is_empty() || !first.trim_start().is_empty() {
        return (first, rest);
    }
    let text = line.trim_start();
    text.split_at(text.floor_char_boundary(end))
}

/// A line as token ids.
pub(super) struct Encoded {
    /// Its tokens, without the end of the sentence.
    pub(super) ids: Vec<u32>,
    /// Whether unread text follows; white space alone does not count.
    and_more: bool,
}

/// Lines as token ids, as far as they could matter to a model that takes `longest` tokens. A blank line, with or
/// without a tag, has no tokens, whatever the tokenizer makes of it.
///
/// `language` is the tag of those that begin with none.
pub(super) fn encoded<S: AsRef<str> + Sync>(
    tokenizer: &Tokenizer,
    language: Option<&str>,
    lines: &[S],
    longest: usize,
) -> Vec<Encoded> {
    let encode = |line: &S| encoded_line(tokenizer, language, line.as_ref(), longest);
    lines.par_iter().with_min_len(64).map(encode).collect()
}

fn encoded_line(tokenizer: &Tokenizer, language: Option<&str>, line: &str, longest: usize) -> Encoded {
    let (text, rest) = beginning(line, longest);
    let tag = tokenizer.language_tag(text).unwrap_or_default();
    let has_text = !is_blank(text.trim_start().strip_prefix(tag).unwrap_or(text));
    let ids = if has_text { tokenizer.encode(&with_language(tokenizer, language, text)) } else { Vec::new() };
    Encoded { ids, and_more: !rest.trim_start().is_empty() }
}

/// A line with the tag of a language in front, unless it begins with one.
pub(super) fn with_language<'l>(tokenizer: &Tokenizer, language: Option<&str>, line: &'l str) -> Cow<'l, str> {
    match language {
        Some(language) if tokenizer.language_tag(line).is_none() => tagged(Some(language), line),
        _ => line.into(),
    }
}

impl Reader {
    /// For a model and its tokenizers.
    pub fn new(config: &ModelConfig, tokenizers: &Tokenizers) -> Self {
        let longest = config.max_length - 1;
        Self { tokenizers: tokenizers.clone(), longest, trained: longest, language: None }
    }

    /// For lines in the language with this tag, unless they begin with another.
    pub fn with_language(self, language: Option<String>) -> Self {
        Self { language, ..self }
    }

    /// Whether it cannot be known in which language a line is.
    pub fn lacks_language(&self, line: &str) -> bool {
        let source = &self.tokenizers.source;
        self.language.is_none()
            && !source.languages().is_empty()
            && !is_blank(line)
            && source.language_tag(line).is_none()
    }

    /// How many tokens the tag and symbols at the beginning of a line have, or the language that it is read with.
    pub(super) fn leading_tokens(&self, leading: &str) -> usize {
        let source = &self.tokenizers.source;
        let language = self.language.as_deref().filter(|_| source.language_tag(leading).is_none());
        source.encode(leading).len() + language.map_or(0, |language| source.encode(language).len())
    }

    /// For a model trained on lines of at most this many tokens.
    pub fn with_trained_length(self, tokens: usize) -> Self {
        Self { trained: tokens.clamp(1, self.longest), ..self }
    }

    /// The tokenizers of both sides.
    pub fn tokenizers(&self) -> &Tokenizers {
        &self.tokenizers
    }

    /// Whether a source is longer than any that the model has learnt to translate.
    pub fn is_long(&self, source: &Source) -> bool {
        source.cut || source.ids.len() > self.trained
    }

    /// One source per line, cut if it is too long; a blank line has no tokens.
    pub fn read<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Vec<Source> {
        let source = |(line, Encoded { mut ids, and_more }): (usize, Encoded)| {
            let cut = self.is_beyond(&ids, and_more);
            ids.truncate(self.longest);
            Source { line, ids, cut, ..Source::default() }
        };
        self.encoded(lines).into_iter().enumerate().map(source).collect()
    }

    /// The lines that [`Self::read`] cuts, in order: those with more tokens than the model has positions, or with too
    /// much text.
    pub fn beyond_positions<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Vec<BeyondPositions> {
        let positions = self.longest + 1;
        let beyond = |(line, Encoded { ids, and_more }): (usize, Encoded)| {
            let beyond = BeyondPositions { line, tokens: ids.len() + 1, and_more, positions };
            self.is_beyond(&ids, and_more).then_some(beyond)
        };
        self.encoded(lines).into_iter().enumerate().filter_map(beyond).collect()
    }

    fn encoded<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Vec<Encoded> {
        encoded(&self.tokenizers.source, self.language.as_deref(), lines, self.longest)
    }

    /// Whether a line of these tokens, and more text after them or not, does not fit the positions.
    fn is_beyond(&self, ids: &[u32], and_more: bool) -> bool {
        and_more || ids.len() > self.longest
    }

    /// Whether this text is no longer than the model has learnt to translate.
    fn takes(&self, text: &str) -> bool {
        let Encoded { ids, and_more } =
            encoded_line(&self.tokenizers.source, self.language.as_deref(), text, self.longest);
        !and_more && ids.len() <= self.trained
    }

    /// Sources as one padded batch.
    pub fn sequences<S: Borrow<Source>>(&self, sources: &[S]) -> Sequences {
        let ids: Vec<&[u32]> = sources.iter().map(|source| source.borrow().ids.as_slice()).collect();
        let batch = Batch::source_only(&ids, &self.tokenizers.special_ids());
        Sequences { ids: batch.source, lengths: Arc::new(batch.source_lengths), length: batch.source_length }
    }
}

/// Splits text into sentences short enough for every model once `leading` is prepended.
///
/// Most models have learnt from single sentences: given several at once, they tend to translate only one. A text that
/// is too long is halved, repeatedly, near its middle: at the end of a sentence, a semicolon or colon, else after a
/// comma, else at white space or a zero-width space, else between any two visible characters.
pub fn split<'t>(text: &'t str, leading: &str, readers: &[Reader]) -> Vec<&'t str> {
    let is_taken = |text: &str| {
        let whole = if leading.is_empty() { Cow::from(text) } else { format!("{leading}{text}").into() };
        readers.iter().all(|reader| reader.takes(&whole))
    };
    let mut parts = Vec::new();
    let mut rest: Vec<&str> =
        sentences(text).map(|text| text.trim_matches(is_space)).filter(|text| !text.is_empty()).collect();
    rest.reverse();
    while let Some(text) = rest.pop() {
        let mut after = text.chars();
        after.next();
        // A single character cannot be split: it is kept even if too long, and cut later.
        if after.as_str().is_empty() || is_taken(text) {
            parts.push(text);
            continue;
        }
        let (first, second) = text.split_at(middle(text));
        rest.extend(
            [second.trim_start_matches(is_space), first.trim_end_matches(is_space)]
                .into_iter()
                .filter(|half| !half.is_empty()),
        );
    }
    parts
}

/// Sorts by the number of tokens, the longest first, so that too large a batch fails at once; equal ones stay in order.
pub fn by_length<T>(items: &mut [T], tokens: impl Fn(&T) -> usize) {
    items.sort_by_key(|item| Reverse(tokens(item)));
}

/// Batches of items that are sorted [`by_length`]: each has at most `batch_tokens` padded tokens, ends included, and at
/// most `most` items, but at least one.
pub fn batches<T>(
    items: &[T],
    tokens: impl Fn(&T) -> usize,
    batch_tokens: usize,
    most: usize,
) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let rows = (batch_tokens / (tokens(rest.first()?) + 1)).min(most).clamp(1, rest.len());
        let (batch, after) = rest.split_at(rows);
        rest = after;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::{TextForm, TrainOptions};

    /// For a model of eight positions.
    fn reader() -> Reader {
        reader_with(&TrainOptions::default())
    }

    fn reader_with(options: &TrainOptions) -> Reader {
        let options = TrainOptions { vocab_size: 300, ..options.clone() };
        let tokenizer = Arc::new(Tokenizer::train(&[&["the cat sleeps"][..]], &options).unwrap());
        let tokenizers = Tokenizers { source: tokenizer.clone(), target: tokenizer };
        Reader::new(&ModelConfig { max_length: 8, ..ModelConfig::default() }, &tokenizers)
    }

    #[test]
    fn a_line_that_begins_with_very_much_white_space_is_not_blank() {
        let reader = reader();
        let space = " \u{3000}".repeat(1 << 19);
        let line = format!("{space}a b");
        let [read, plain] = [line.as_str(), "a b"].map(|line| reader.read(&[line]).remove(0));
        assert!(!plain.ids.is_empty() && !plain.cut);
        // Nothing but white space is left out.
        assert_eq!(read, plain);
        assert!(reader.beyond_positions(&[&line]).is_empty());
        assert_eq!(split(&line, "", std::slice::from_ref(&reader)), ["a b"]);
        assert_eq!(reader.read(&[space]), [Source::default()]);
    }

    #[test]
    fn text_after_very_much_white_space_is_not_forgotten() {
        // Spaces are no tokens.
        let pieces = ["<pad>", "</s>", "<unk>", "a", "b"];
        let pieces = pieces.iter().zip(0..).map(|(piece, id)| ((*piece).to_owned(), id)).collect();
        let tokenizer = Arc::new(Tokenizer::from_words(pieces).unwrap());
        let tokenizers = Tokenizers { source: tokenizer.clone(), target: tokenizer };
        let reader = Reader::new(&ModelConfig { max_length: 8, ..ModelConfig::default() }, &tokenizers);
        let space = " ".repeat(1 << 21);
        let before = format!("a{space}");
        assert!(reader.beyond_positions(&[&before]).is_empty());
        let [read] = &reader.read(&[&before])[..] else { panic!("one line") };
        assert!(read.ids == [3] && !read.cut && !reader.is_long(read), "{read:?}");
        let line = format!("a{space} b");
        let [read] = &reader.read(&[&line])[..] else { panic!("one line") };
        assert!(read.ids == [3] && read.cut && reader.is_long(read), "{read:?}");
        let beyond = reader.beyond_positions(&[&line]);
        assert!(beyond.len() == 1 && beyond[0].and_more, "{beyond:?}");
        let error = beyond[0].error(Path::new("a.txt"), 3).to_string();
        assert!(error.contains("goes on after so much white space") && error.contains("a.txt:3"), "{error}");
    }

    /// Here the tokenizer makes a token of every space.
    #[test]
    fn a_blank_line_has_no_tokens_however_long_it_is() {
        let form = TextForm { remove_extra_whitespaces: false, ..TextForm::default() };
        let reader = reader_with(&TrainOptions { form, ..TrainOptions::default() });
        let line = " ".repeat(200);
        assert!(reader.tokenizers.source.encode(&line).len() > 8);
        assert_eq!(reader.read(&[&line]), [Source::default()]);
        assert_eq!(reader.beyond_positions(&[&line]), []);
        let beyond = reader.beyond_positions(&[format!("{line}a")]);
        assert!(beyond.len() == 1 && beyond[0].tokens > 8 && !beyond[0].and_more, "{beyond:?}");
    }

    #[test]
    fn batches_hold_their_bound_and_every_source_once() {
        let mut items: Vec<(usize, usize)> = (0..100).map(|i| (i, i * 7 % 23)).collect();
        by_length(&mut items, |item| item.1);
        for bound in [1, 24, 100, 10_000] {
            let batches: Vec<&[(usize, usize)]> = batches(&items, |item| item.1, bound, 9).collect();
            assert!(batches.iter().all(|b| b.len() == 1 || b.len() * (b[0].1 + 1) <= bound && b.len() <= 9));
            assert_eq!(batches.concat(), items);
        }
    }
}
