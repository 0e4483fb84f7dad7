//! Word alignment: which source word each word of a translation comes from, by the decoder's attention.

use std::cmp::Reverse;
use std::fmt;

use rayon::prelude::*;

use super::attention::cross_attention;
use super::source::{Reader, Source};
use super::translate::{Candidate, Translation, has_space_between};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::model::Transformer;

/// Pairs of a source word and a target word, both counted from 0; words are what white space separates in the line, as
/// a reader would see it ([`Tokenizer::plain`]), and in its translation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignment(pub Vec<(usize, usize)>);

impl Alignment {
    /// Without a line's first words: the others are counted from there.
    #[must_use]
    pub fn after(self, words: usize) -> Self {
        Self(self.0.into_iter().filter_map(|(source, target)| Some((source.checked_sub(words)?, target))).collect())
    }
}

/// In the format of Pharaoh and its successors: `0-0 1-2`.
impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (source, target)) in self.0.iter().enumerate() {
            write!(f, "{}{source}-{target}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Stands for a space in pieces.
const SPACE: char = '▁';

/// A token's number of a word, if it has one.
type Number = Option<usize>;

/// Pairs each word of translations with the source word that it attends to most, in the order of the translation. A
/// word from several parts of a line gets one pair per part. Aligns at most the first `most` translations of each line.
///
/// Attention is the mean over the heads of the last layer, summed over the pieces of each word; see [`Part::links`] for
/// which is the most.
///
/// # Errors
/// The device fails.
pub fn align<S: AsRef<str> + Sync>(
    model: &Transformer,
    reader: &Reader,
    lines: &[S],
    translations: &[Translation],
    most: usize,
) -> Result<Vec<Vec<Alignment>>> {
    let parts_of_line = |(line, translation)| translation_parts(reader, AsRef::as_ref(line), translation, most);
    let parts: Vec<Vec<Vec<Part>>> = lines.par_iter().zip(translations).map(parts_of_line).collect();
    let all: Vec<&Part> = parts.iter().flatten().flatten().collect();
    let mut links = attended(model, reader, &all)?.into_iter();
    let mut alignment = |parts: &Vec<Part>| {
        let mut pairs: Vec<(usize, usize)> = links.by_ref().take(parts.len()).flatten().collect();
        // A word that spans parts may have the same source word in each.
        pairs.dedup();
        Alignment(pairs)
    };
    Ok(parts.iter().map(|translations| translations.iter().map(&mut alignment).collect()).collect())
}

/// A part of a line and its translation, to align.
struct Part<'t> {
    source: &'t Source,
    /// What the decoder made, and the words of the translation that its tokens belong to.
    tokens: Vec<u32>,
    to: Vec<Number>,
    /// The words of the line that the source's tokens belong to.
    from: Vec<Number>,
}

/// The parts of each of the first `most` translations of a line.
fn translation_parts<'t>(reader: &Reader, line: &str, translation: &'t Translation, most: usize) -> Vec<Vec<Part<'t>>> {
    let Tokenizers { source, target } = reader.tokenizers();
    let is_language_last = source.language_last();
    let parts = &translation.parts;
    let own: Vec<&[u32]> = parts.iter().map(|part| part.ids.get(part.added..).unwrap_or_default()).collect();
    // A language that a line names is a word of it, which the source's text lacks.
    let after = source.language_tag(line).filter(|_| !source.languages().is_empty());
    let after = after.and_then(|tag| line.trim_start().strip_prefix(tag));
    let first = usize::from(after.is_some_and(|rest| rest.starts_with(char::is_whitespace)));
    let counted = |number: Number| number.map(|number| number + first);
    let numbers: Vec<Vec<Number>> =
        line_words(source, line, &own).into_iter().map(|part| part.into_iter().map(counted).collect()).collect();
    let of_candidate = |candidate: &Candidate| {
        let Candidate { tokens, joints, .. } = candidate;
        let starts = [0].into_iter().chain(joints.iter().copied());
        let ends = joints.iter().copied().chain([tokens.len()]);
        let made: Vec<&[u32]> = starts.zip(ends).map(|(start, end)| &tokens[start..end]).collect();
        let to = translation_words(target, &candidate.text, &made);
        let part = |(i, to): (usize, Vec<Number>)| {
            let source = &parts[i];
            let before = if i == 0 { &[][..] } else { &translation.later_prefix };
            let unnumbered = |count: usize| vec![None; count];
            let mut from = [unnumbered(source.ids.len() - own[i].len()), numbers[i].clone()].concat();
            if is_language_last && !from.is_empty() {
                // The model reads the language behind the words and the end.
                from.remove(0);
            }
            Part { source, tokens: [before, made[i]].concat(), to: [unnumbered(before.len()), to].concat(), from }
        };
        to.into_iter().enumerate().take(parts.len()).map(part).collect()
    };
    translation.n_best.iter().take(most).map(of_candidate).collect()
}

/// The words that each part's words attend to most: see [`Part::links`]. Parts of similar lengths are computed
/// together.
fn attended(model: &Transformer, reader: &Reader, parts: &[&Part]) -> Result<Vec<Vec<(usize, usize)>>> {
    let mut links = vec![Vec::new(); parts.len()];
    let mut order: Vec<usize> = (0..parts.len()).filter(|&i| parts[i].has_words()).collect();
    order.sort_by_key(|&i| Reverse(parts[i].lengths()));
    let mut rest = &order[..];
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(batch(rest.iter().map(|&i| parts[i].lengths())));
        rest = after;
        let sequences: Vec<(&Source, &[u32])> =
            batch.iter().map(|&i| (parts[i].source, parts[i].tokens.as_slice())).collect();
        for (&i, weights) in batch.iter().zip(cross_attention(model, reader, &sequences)?) {
            links[i] = parts[i].links(&weights);
        }
    }
    Ok(links)
}

/// How many of the first parts are computed together, given their numbers of target and source tokens: at least one.
fn batch(lengths: impl Iterator<Item = (usize, usize)>) -> usize {
    /// The most padded tokens of a side, and the most weights of a head. All heads of all layers are kept for a while.
    const MOST: [usize; 2] = [1 << 12, 1 << 19];
    let (mut target, mut source) = (0, 0);
    let fits = |(i, (t, s)): (usize, (usize, usize))| {
        (target, source) = (target.max(t), source.max(s));
        let rows = i + 1;
        i == 0 || (rows * target.max(source) <= MOST[0] && rows * target * (target + source) <= MOST[1])
    };
    lengths.enumerate().map(fits).take_while(|fits| *fits).count().max(1)
}

impl Part<'_> {
    /// Numbers of target and source tokens.
    fn lengths(&self) -> (usize, usize) {
        (self.tokens.len(), self.source.ids.len() + 1)
    }

    /// Whether both sides have words.
    fn has_words(&self) -> bool {
        [&self.from, &self.to].iter().all(|numbers| numbers.iter().any(Option::is_some))
    }

    /// Each of its target words, after the source word that it attends to most, given the attention of each target
    /// token to the source tokens.
    ///
    /// The score is the share of the word's attention to words, divided by the total attention that the source word
    /// gets: some words, such as a full stop, get some attention from every word without being its translation
    /// (docs/results.md has the effect).
    fn links(&self, weights: &[Vec<f32>]) -> Vec<(usize, usize)> {
        /// Added to the total attention of a source word, so that a little attention does not win only because there is
        /// no other.
        const LEAST_RECEIVED: f32 = 0.05;
        // Numbers ascend.
        let range = |numbers: &[Number]| -> Option<(usize, usize)> {
            let mut numbers = numbers.iter().flatten();
            let first = *numbers.next()?;
            Some((first, numbers.next_back().map_or(1, |last| last + 1 - first)))
        };
        let (Some((first_source, sources)), Some((first_target, targets))) = (range(&self.from), range(&self.to))
        else {
            return Vec::new();
        };
        let mut sums = vec![0f32; sources * targets];
        for (row, target) in weights.iter().zip(&self.to) {
            let Some(target) = target else { continue };
            for (weight, source) in row.iter().zip(&self.from) {
                if let Some(source) = source {
                    sums[(target - first_target) * sources + source - first_source] += weight;
                }
            }
        }
        for row in sums.chunks_exact_mut(sources) {
            let total: f32 = row.iter().sum();
            row.iter_mut().for_each(|share| *share /= total.max(f32::MIN_POSITIVE));
        }
        let mut received = vec![0f32; sources];
        for row in sums.chunks_exact(sources) {
            received.iter_mut().zip(row).for_each(|(sum, share)| *sum += share);
        }
        for row in sums.chunks_exact_mut(sources) {
            row.iter_mut().zip(&received).for_each(|(share, all)| *share /= all + LEAST_RECEIVED);
        }
        let largest = |row: &[f32]| (1..sources).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        let of_word = |(target, row)| (first_source + largest(row), first_target + target);
        sums.chunks_exact(sources).enumerate().map(of_word).collect()
    }
}

/// For each part of a line, the numbers of the line's words that its tokens belong to.
///
/// Tokens belong to normalised text, in which several words or none may stand for one word of the line (NFKC makes two
/// of `a´b`). So this normalises the line's words one by one, and counts the normalised words along the tokens. A part
/// begins inside a word if the part before has not reached the word's last character.
fn line_words(tokenizer: &Tokenizer, line: &str, parts: &[&[u32]]) -> Vec<Vec<Number>> {
    let mut normalised = stretches(tokenizer, line).enumerate().flat_map(|(number, stretch)| {
        let lengths = lengths(&words(tokenizer, &tokenizer.encode(stretch)));
        lengths.into_iter().map(move |length| (number, length))
    });
    // The word of the line, and how many characters of the normalised one are still to come.
    let (mut number, mut left) = (None, 0usize);
    let mut of_part = |tokens: &&[u32]| {
        let mut before = None;
        let of_token = |position: Option<WordPosition>| {
            let WordPosition { word, length } = position?;
            let steps = match before {
                Some(before) => word - before,
                None => word + usize::from(left == 0),
            };
            before = Some(word);
            if let Some(more) = steps.checked_sub(1) {
                (number, left) = normalised.nth(more).map_or((None, 0), |(number, length)| (Some(number), length));
            }
            left = left.saturating_sub(length);
            number
        };
        words(tokenizer, tokens).into_iter().map(of_token).collect()
    };
    parts.iter().map(&mut of_part).collect()
}

/// The words of a line as they are in the file: white space separates them, but not where it joins pieces of a word.
fn stretches<'l>(tokenizer: &Tokenizer, line: &'l str) -> impl Iterator<Item = &'l str> {
    let mut rest = line.trim();
    std::iter::from_fn(move || {
        let mut end = 0;
        loop {
            let start = end + rest[end..].find(|c: char| !c.is_whitespace())?;
            end = start + rest[start..].find(char::is_whitespace).unwrap_or(rest.len() - start);
            let next = end + rest[end..].find(|c: char| !c.is_whitespace()).unwrap_or(rest.len() - end);
            let is_last = next == rest.len();
            // With the first character of the next, to see whether a space is left.
            let both = &rest[start..rest.ceil_char_boundary((next + 1).min(rest.len()))];
            if is_last || tokenizer.plain(both).contains(char::is_whitespace) {
                let stretch = &rest[..end];
                rest = &rest[next..];
                return Some(stretch);
            }
        }
    })
}

/// For each part of a translation, the numbers of the translation's words that its tokens belong to. A part begins
/// inside a word if it was appended without a space.
fn translation_words(tokenizer: &Tokenizer, text: &str, parts: &[&[u32]]) -> Vec<Vec<Number>> {
    let all = text.split_whitespace().count();
    let (mut count, mut last) = (0usize, None);
    let mut of_part = |tokens: &&[u32]| {
        let part = tokenizer.decode(tokens);
        let is_joined = last.zip(part.chars().next()).is_some_and(|(before, after): (char, char)| {
            !before.is_whitespace() && !after.is_whitespace() && !has_space_between(before, after)
        });
        last = part.chars().next_back().or(last);
        let first = count.saturating_sub(usize::from(is_joined));
        let number = |position: Option<WordPosition>| position.map(|position| first + position.word);
        let numbers: Vec<Number> = words(tokenizer, tokens).into_iter().map(number).collect();
        count = numbers.iter().flatten().last().map_or(count, |last| last + 1);
        numbers.into_iter().map(|number| number.filter(|number| *number < all)).collect()
    };
    parts.iter().map(&mut of_part).collect()
}

/// Where a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WordPosition {
    /// The number of its word among the words of the tokens, from 0.
    word: usize,
    /// How many characters of its piece are of that word.
    length: usize,
}

/// Where each token is; `None` for tokens of white space alone. A token of several words counts as of the last.
fn words(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<Option<WordPosition>> {
    let (mut word, mut in_space) = (None, true);
    let of_token = |text: &String| {
        let mut length = 0;
        for character in text.chars() {
            if character == SPACE || character.is_whitespace() {
                in_space = true;
            } else {
                if in_space {
                    (word, length) = (Some(word.map_or(0, |word| word + 1)), 0);
                }
                (in_space, length) = (false, length + 1);
            }
        }
        word.filter(|_| length > 0).map(|word| WordPosition { word, length })
    };
    texts(tokenizer, tokens).iter().map(of_token).collect()
}

/// What each token stands for, with `▁` for a space. Byte tokens stand for the character that they are a part of, where
/// they are one: some white space is bytes.
fn texts(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
    let byte = |piece: &String| {
        let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
        u8::from_str_radix(digits, 16).ok()
    };
    let mut texts = tokenizer.marked(tokens);
    let bytes: Vec<Option<u8>> = texts.iter().map(byte).collect();
    let mut start = 0;
    for run in bytes.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let mut index = start;
        start += run.len();
        let run: Vec<u8> = run.iter().copied().flatten().collect();
        for chunk in run.utf8_chunks() {
            for character in chunk.valid().chars() {
                let of_character = &mut texts[index..index + character.len_utf8()];
                index += character.len_utf8();
                // In the text itself it is no space.
                if character != SPACE {
                    of_character.fill(character.to_string());
                }
            }
            index += chunk.invalid().len();
        }
    }
    texts
}

/// The characters of each word.
fn lengths(positions: &[Option<WordPosition>]) -> Vec<usize> {
    let mut lengths = vec![0; positions.iter().flatten().last().map_or(0, |last| last.word + 1)];
    positions.iter().flatten().for_each(|position| lengths[position.word] += position.length);
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::{TextCounts, TrainOptions};

    fn bpe() -> Tokenizer {
        let options = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
        Tokenizer::train(&[&["the old dog sleeps", "Ein Satz. Noch einer."][..]], &options).unwrap()
    }

    /// The words that each part's tokens belong to, each once.
    fn numbers(of_parts: Vec<Vec<Number>>) -> Vec<Vec<usize>> {
        let of_part = |numbers: Vec<Number>| {
            let mut numbers: Vec<usize> = numbers.into_iter().flatten().collect();
            numbers.dedup();
            numbers
        };
        of_parts.into_iter().map(of_part).collect()
    }

    /// As [`numbers`], of the tokens of these parts of a line.
    fn in_line(tokenizer: &Tokenizer, line: &str, parts: &[&str]) -> Vec<Vec<usize>> {
        let ids: Vec<Vec<u32>> = parts.iter().map(|part| tokenizer.encode(part)).collect();
        numbers(line_words(tokenizer, line, &ids.iter().map(Vec::as_slice).collect::<Vec<_>>()))
    }

    #[test]
    fn spaces_of_normalisation_begin_no_word() {
        let bpe = bpe();
        for line in [
            "The´ old dog sleeps.",
            "´The old dog´s sleeps.",
            "the ´ dog sleeps",
            "a\u{a0}b c\u{3000}d",
            "a\u{2028}b\tc d▁e",
        ] {
            assert_eq!(in_line(&bpe, line, &[line]), [[0, 1, 2, 3]], "{line}");
        }
        // The last token of the line is of its last word, whatever is before.
        let line = "´´ ´a´b´ ¨ x";
        let found = line_words(&bpe, line, &[&bpe.encode(line)]);
        assert_eq!(found[0].last(), Some(&Some(3)));
    }

    #[test]
    fn bytes_are_of_their_character() {
        let bpe = bpe();
        let found = texts(&bpe, &bpe.encode("o\u{200C}猫"));
        let own = ["\u{200C}"; 3].into_iter().chain(["猫"; 3]);
        assert!(found.iter().map(String::as_str).rev().take(6).eq(own.rev()), "{found:?}");
        // A `▁` of the text is no space, and half a character none at all.
        for pieces in [&["<0xE2>", "<0x96>", "<0x81>"][..], &["<0xE7>", "<0x8C>"]] {
            let ids: Vec<u32> = pieces.iter().flat_map(|piece| bpe.ids_of(&[piece])).collect();
            assert_eq!(texts(&bpe, &ids), pieces);
        }
    }

    #[test]
    fn what_every_word_attends_to_is_no_translation_of_it() {
        let source = Source::default();
        let numbers = |words: usize| (0..words).map(Some).collect();
        let part = Part { source: &source, tokens: Vec::new(), to: numbers(3), from: numbers(3) };
        // Each word has some attention for its own source word, and more for the last one.
        let weights = [vec![0.3, 0.1, 0.5, 0.1], vec![0.1, 0.3, 0.5, 0.1], vec![0.05, 0.05, 0.8, 0.1]];
        assert_eq!(part.links(&weights), [(0, 0), (1, 1), (2, 2)]);
        // What is left for the end of the source does not count; a word may have no attention.
        let weights = [vec![0.0, 0.02, 0.01, 0.97], vec![0.0, 0.4, 0.6, 0.0], vec![0.0, 0.0, 0.0, 1.0]];
        assert_eq!(part.links(&weights), [(1, 0), (2, 1), (0, 2)]);
        // Two pieces of one word count together, and of a single word all attention is its own.
        let part = Part { to: vec![Some(0), Some(0), None], from: vec![None, Some(0), Some(1)], ..part };
        assert_eq!(part.links(&[vec![0.9, 0.0, 0.1], vec![0.0, 0.3, 0.7], vec![1.0, 0.0, 0.0]]), [(1, 0)]);
    }

    #[test]
    fn a_part_begins_a_word_only_where_the_line_has_a_space() {
        let bpe = bpe();
        for (line, parts, expected) in [
            ("Ein Satz. Noch einer.", &["Ein Satz.", "Noch einer."][..], &[&[0, 1][..], &[2, 3]][..]),
            ("我走了。你来了。 他来了。", &["我走了。", "你来了。", "他来了。"], &[&[0], &[0], &[1]]),
            ("the sleepsleepsleep dog", &["the sleep", "sleepsl", "eep dog"], &[&[0, 1], &[1], &[1, 2]]),
            ("x a´b c", &["x a", "´b", "c"], &[&[0, 1], &[1], &[2]]),
            ("the dog sleeps", &["the", "dog"], &[&[0], &[1]]),
        ] {
            assert_eq!(in_line(&bpe, line, parts), expected, "{line}");
        }
    }

    #[test]
    fn no_number_is_beyond_the_words() {
        let bpe = bpe();
        assert_eq!(in_line(&bpe, "the", &["the old", "dog"]), [vec![0], vec![]]);
        assert_eq!(in_line(&bpe, " ", &["the old"]), [Vec::<usize>::new()]);
        let ids = bpe.encode("the old dog");
        assert_eq!(numbers(translation_words(&bpe, "the old", &[&ids])), [[0, 1]]);
    }

    #[test]
    fn a_translated_part_begins_a_word_where_a_space_was_put() {
        let bpe = bpe();
        for (text, parts, expected) in [
            ("Ein Satz. Noch einer.", &["Ein Satz.", "Noch einer."][..], &[&[0, 1][..], &[2, 3]][..]),
            ("我走了。你来了。", &["我走了。", "你来了。"], &[&[0], &[0]]),
            ("我走了。你 来了。OK a", &["我走了。", "你 来了。", "", "OK a"], &[&[0], &[0, 1], &[], &[1, 2]]),
        ] {
            let ids: Vec<Vec<u32>> = parts.iter().map(|part| bpe.encode(part)).collect();
            let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
            assert_eq!(numbers(translation_words(&bpe, text, &ids)), expected, "{text}");
        }
    }

    #[test]
    fn pieces_that_a_file_has_split_are_of_one_word() {
        let line = "the l@@ ow@@ er  low   l@@ ow";
        let mut text = TextCounts::default();
        text.add(line);
        let pieces = Tokenizer::from_pieces(&[(&text, None)], 100).unwrap().remove(0);
        let plain = pieces.plain(line);
        assert_eq!(stretches(&pieces, line).count(), plain.split_whitespace().count());
        assert_eq!(stretches(&pieces, line).collect::<Vec<_>>(), ["the", "l@@ ow@@ er", "low", "l@@ ow"]);
        assert_eq!(in_line(&pieces, line, &[line]), [[0, 1, 2, 3]]);
        assert_eq!(in_line(&pieces, line, &["the l@@ ow@@", "er low", "l@@ ow"]), [vec![0, 1], vec![1, 2], vec![3]]);
        // To others, these are words.
        assert_eq!(stretches(&bpe(), " a@@ b ").collect::<Vec<_>>(), ["a@@", "b"]);
        assert_eq!(stretches(&bpe(), " \u{3000}").count(), 0);
    }
}
