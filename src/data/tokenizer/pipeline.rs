//! From raw text to words: the library's normaliser and pre-tokeniser, exactly as `tokenizer.json` states them.
//!
//! | step | in the file | what it does |
//! |---|---|---|
//! | normalise | see [`super::normalise`] | gives the text that decoding restores |
//! | escape | two `Replace` | keeps a `▁` of the text apart from the marker of a space |
//! | prefix | `Prepend ▁` | the first word of a line looks like any other |
//! | words | `Metaspace` | every U+0020 becomes `▁` and starts a word |
//! | borders | `Split` | cuts between letters, digits and all else, where the script changes, and around symbols |
//!
//! **Escape.** A `▁` in the text becomes U+FDD0 U+FDD2, and a U+FDD0 in the text becomes U+FDD0 U+FDD1. These are
//! noncharacters, never part of the alphabet, so they turn into byte pieces. Every U+FDD0 of escaped text begins a
//! pair, hence decoding undoes the second rule after the first, and the mapping is one to one.
//!
//! **Locality.** U+0020 never takes part in a composition and no combining mark moves across it, so normalising the
//! stretches between spaces one by one gives what normalising the line gives. If extra white space is removed, empty
//! stretches are no words, and the others lose white space at their ends, as they would at the end of a line or next to
//! a space. Encoding relies on this: it works on one stretch at a time, and caches it.

use std::borrow::Cow;

use serde_json::Value;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::TextForm;
use super::normalise::{normalise, normalizer, with_final_sigmas};
use super::symbols::Symbols;
use crate::error::{Error, Result};
use crate::foreign::guarded;

/// The marker of a space, U+2581.
pub(super) const SPACE: char = '\u{2581}';
/// The marker of a space as a piece.
pub(super) const SPACE_PIECE: &str = "\u{2581}";
/// Begins every escaped pair.
pub(super) const ESCAPE: char = '\u{FDD0}';
/// What a U+FDD0 of the text becomes.
pub(super) const ESCAPED_ESCAPE: &str = "\u{FDD0}\u{FDD1}";
/// What a `▁` of the text becomes.
pub(super) const ESCAPED_SPACE: &str = "\u{FDD0}\u{FDD2}";

/// The scripts whose letters are kept apart from each other; letters of all other scripts form one more group. Han and
/// kana are one group, as in SentencePiece: Japanese words mix them. Only names that every regular-expression engine
/// among the readers of `tokenizer.json` knows are listed.
const SCRIPTS: [&str; 30] = [
    r"\p{Latin}",
    r"\p{Cyrillic}",
    r"\p{Greek}",
    r"\p{Arabic}",
    r"\p{Hebrew}",
    r"\p{Han}\p{Hiragana}\p{Katakana}",
    r"\p{Hangul}",
    r"\p{Devanagari}",
    r"\p{Bengali}",
    r"\p{Gurmukhi}",
    r"\p{Gujarati}",
    r"\p{Oriya}",
    r"\p{Tamil}",
    r"\p{Telugu}",
    r"\p{Kannada}",
    r"\p{Malayalam}",
    r"\p{Sinhala}",
    r"\p{Thai}",
    r"\p{Lao}",
    r"\p{Tibetan}",
    r"\p{Myanmar}",
    r"\p{Khmer}",
    r"\p{Georgian}",
    r"\p{Armenian}",
    r"\p{Ethiopic}",
    r"\p{Syriac}",
    r"\p{Thaana}",
    r"\p{Mongolian}",
    r"\p{Cherokee}",
    r"\p{Bopomofo}",
];

/// Letters and marks, with the Han numerals (〇, 〡) that belong to words.
const LETTER: &str = r"[\p{L}\p{M}[\p{Nl}&&\p{Han}]]";

/// The zero-width joiner and non-joiner, which stand inside words of Persian, Sinhala and other languages.
const JOINERS: &str = "\u{200C}\u{200D}";

/// What [`border_pattern`] begins with where there are no symbols.
const WORD: &str = "\u{2581}?(?:";

/// The regular expression whose matches are the words' parts; together they cover any text.
///
/// Letters and marks that belong to no script (`Common`: ー, ʼ; `Inherited`: combining marks) stay with the letters
/// around them, a mark after a digit or punctuation stays with that. The user's symbols begin with neither letter,
/// digit nor mark, so only a run of other characters could run into one: it has to end before it.
///
/// [`JOINERS`] belong to the word that they stand in.
fn border_pattern(symbols: &Symbols) -> String {
    let inside = |set: &str| format!("[[[{set}]&&{LETTER}]{JOINERS}]");
    let neutral = format!(r"[[\p{{Common}}\p{{Inherited}}]&&{LETTER}]");
    let mut groups: Vec<String> = SCRIPTS
        .iter()
        .map(|script| format!(r"[[{script}]&&{LETTER}]{}*", inside(&format!(r"{script}\p{{Common}}\p{{Inherited}}"))))
        .collect();
    let listed = SCRIPTS.concat();
    groups.push(format!(r"[[^{listed}\p{{Common}}\p{{Inherited}}]&&{LETTER}]{}*", inside(&format!("^{listed}"))));
    let letters = format!("{neutral}*(?:{})|{neutral}+", groups.join("|"));
    let digits = r"[\p{N}&&[^\p{Han}]][[\p{N}\p{M}]&&[^\p{Han}]]*";
    let other = format!(r"[^{SPACE}\p{{L}}\p{{N}}]");
    if symbols.is_empty() {
        return format!("{WORD}{letters}|{digits}|{other}+)|{SPACE}");
    }
    let symbols = symbols.pattern();
    format!("{symbols}|{WORD}{letters}|{digits}|(?:(?!{symbols}){other})+)|{SPACE}")
}

/// A library call that cannot fail for the constants of this file, as the crate's error.
pub(super) fn built<T>(result: tokenizers::Result<T>) -> Result<T> {
    result.map_err(|error| Error::failure("cannot build the tokenizer's pipeline").caused_by(error))
}

/// The pre-tokeniser of a new tokenizer with these symbols.
pub(super) fn pre_tokenizer(symbols: &Symbols) -> Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(border_pattern(symbols));
    let borders = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
    Ok(PreTokenizerSequence::new(vec![
        Metaspace::new(SPACE, PrependScheme::Never, true).into(),
        built(borders)?.into(),
    ])
    .into())
}

/// The decoder of a new tokenizer: what [`super::detokenise`] does, for other readers of the file. With lower case,
/// these write σ where [`Pipeline::finish`] writes ς.
pub(super) fn decoder() -> Result<DecoderWrapper> {
    Ok(DecoderSequence::new(vec![
        built(Replace::new(SPACE_PIECE, " "))?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
        Strip::new(' ', 1, 0).into(),
        built(Replace::new(ESCAPED_SPACE, SPACE_PIECE))?.into(),
        built(Replace::new(ESCAPED_ESCAPE, ESCAPE.to_string()))?.into(),
    ])
    .into())
}

/// Undoes the escape.
pub(super) fn unescape(text: String) -> String {
    if text.contains(ESCAPE) {
        text.replace(ESCAPED_SPACE, SPACE_PIECE).replace(ESCAPED_ESCAPE, "\u{FDD0}")
    } else {
        text
    }
}

/// The part of a `tokenizer.json` that turns text into words.
pub(super) struct Pipeline {
    normalizer: NormalizerWrapper,
    pre_tokenizer: PreTokenizerWrapper,
    form: TextForm,
    /// Whether the pre-tokeniser is this module's.
    is_own: bool,
    /// The symbols that it keeps whole.
    symbols: Symbols,
}

impl Pipeline {
    /// Reads the pipeline of a parsed `tokenizer.json`; refuses one whose text could not be given back.
    pub(super) fn from_json(file: &Value) -> Result<Self> {
        let is_of =
            |form: &TextForm| normalizer(*form).is_ok_and(|ours| is_ours(&file["normalizer"], ours).unwrap_or(false));
        let Some(form) = TextForm::all().find(is_of) else {
            return Err(Error::failure("its `normalizer` is none of those that mt writes"));
        };
        if !is_ours(&file["decoder"], decoder()?)? {
            return Err(Error::failure("its `decoder` is not the one that mt writes"));
        }
        check_pre_tokenizer(&file["pre_tokenizer"])?;
        let read = |what: &str, error: serde_json::Error| {
            Error::failure(format!("its `{what}` cannot be read: {error}")).caused_by(error)
        };
        let symbols = symbols_of(&file["pre_tokenizer"]);
        let is_own = is_ours(&file["pre_tokenizer"], pre_tokenizer(&symbols)?)?;
        Ok(Self {
            normalizer: serde_json::from_value(file["normalizer"].clone()).map_err(|e| read("normalizer", e))?,
            pre_tokenizer: guarded(|| serde_json::from_value(file["pre_tokenizer"].clone()))?
                .map_err(|e| read("pre_tokenizer", e))?,
            form,
            is_own,
            symbols: if is_own { symbols } else { Symbols::default() },
        })
    }

    /// The text as it is encoded.
    pub(super) fn normalise(&self, text: &str) -> String {
        normalise(text, self.form)
    }

    /// The text of decoded pieces as it is shown.
    pub(super) fn finish(&self, text: String) -> String {
        if self.form.lowercase { with_final_sigmas(text) } else { text }
    }

    /// What is done to text.
    pub(super) fn form(&self) -> TextForm {
        self.form
    }

    /// The symbols that are words by themselves wherever they stand.
    pub(super) fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// The JSON of the pre-tokeniser with other symbols, if it is this module's.
    pub(super) fn pre_tokenizer_with(&self, symbols: &Symbols) -> Option<Value> {
        self.is_own.then(|| serde_json::to_value(pre_tokenizer(symbols).ok()?).ok())?
    }

    /// Whether a stretch may hold a symbol.
    fn may_hold_symbol(&self, stretch: &str) -> bool {
        // None begins with a letter, so that case plays no part.
        self.symbols.iter().any(|symbol| symbol.chars().next().is_some_and(|first| stretch.contains(first)))
    }

    /// Calls `word` with each word of `stretch`, the text between two U+0020 of a line.
    pub(super) fn for_each_word(&self, stretch: &str, mut word: impl FnMut(&str)) {
        let removes = self.form.remove_extra_whitespaces;
        if stretch.is_empty() {
            if !removes {
                word(SPACE_PIECE);
            }
            return;
        }
        let is_unchanged = stretch.is_ascii() && !(removes && stretch.contains(|c: char| c.is_ascii_control()));
        if self.is_own && is_unchanged && !self.may_hold_symbol(stretch) {
            return self.for_each_ascii_word(stretch, word);
        }
        self.for_each_word_by_library(stretch, word);
    }

    /// Like [`Self::for_each_word`] for a stretch of ASCII, in which a normaliser changes only control characters: cuts
    /// between letters, digits and all else.
    fn for_each_ascii_word(&self, stretch: &str, mut word: impl FnMut(&str)) {
        let mut text = String::with_capacity(SPACE_PIECE.len() + stretch.len());
        text.push_str(SPACE_PIECE);
        text.push_str(stretch);
        if self.form.lowercase {
            text.make_ascii_lowercase();
        }
        let kind = |byte: u8| (byte.is_ascii_alphabetic(), byte.is_ascii_digit());
        let (mut start, bytes) = (0, text.as_bytes());
        for end in SPACE_PIECE.len() + 1..=bytes.len() {
            if end == bytes.len() || kind(bytes[end]) != kind(bytes[end - 1]) {
                word(&text[start..end]);
                start = end;
            }
        }
    }

    fn for_each_word_by_library(&self, stretch: &str, mut word: impl FnMut(&str)) {
        let mut normalized = NormalizedString::from(stretch);
        let mut words = None;
        if self.normalizer.normalize(&mut normalized).is_ok() {
            let mut split = PreTokenizedString::from(normalized.clone());
            let is_split = guarded(|| self.pre_tokenizer.pre_tokenize(&mut split).is_ok());
            words = is_split.is_ok_and(|is_split| is_split).then_some(split);
        }
        match words {
            Some(split) => split
                .get_splits(OffsetReferential::Normalized, OffsetType::None)
                .iter()
                .for_each(|(text, ..)| word(text)),
            // A foreign regular expression may give up: the text is then kept as one word.
            None => word(&normalized.get().replace(' ', SPACE_PIECE)),
        }
    }
}

/// Whether a part of the file equals `ours`.
fn is_ours(part: &Value, ours: impl serde::Serialize) -> Result<bool> {
    let ours = serde_json::to_value(ours)
        .map_err(|error| Error::failure("cannot write the tokenizer's pipeline").caused_by(error))?;
    Ok(*part == ours)
}

/// The regular expression of a pre-tokeniser that [`pre_tokenizer`] may have written.
fn expression_of(part: &Value) -> Option<&str> {
    part["pretokenizers"][1]["pattern"]["Regex"].as_str()
}

/// The symbols of a pre-tokeniser, if it may be one that [`pre_tokenizer`] wrote.
fn symbols_of(part: &Value) -> Symbols {
    Symbols::from_pattern(expression_of(part).unwrap_or_default(), WORD)
}

/// The regular expression of a pre-tokeniser that [`pre_tokenizer`] wrote: as long as the user's symbols make it.
pub(super) fn own_expression(part: &Value) -> Option<&str> {
    let symbols = symbols_of(part);
    expression_of(part).filter(|expression| *expression == border_pattern(&symbols))
}

/// Accepts `Metaspace` as we write it followed by any number of `Split` that remove nothing.
fn check_pre_tokenizer(part: &Value) -> Result<()> {
    let unusable = |what: Cow<'static, str>| Err(Error::failure(format!("its `pre_tokenizer` {what}")));
    let Some(steps) = part["pretokenizers"].as_array() else {
        return unusable("is not a `Sequence`".into());
    };
    let Some((first, rest)) = steps.split_first() else {
        return unusable("is empty".into());
    };
    if !is_ours(first, Metaspace::new(SPACE, PrependScheme::Never, true))? {
        return unusable(format!("does not begin with `Metaspace` marking spaces with `{SPACE}` and no prefix").into());
    }
    for step in rest {
        if step["type"] != "Split" || step["behavior"] == "Removed" {
            return unusable(format!("has a step that may lose text: {step}").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::data::tokenizer::Normalization;

    fn pipeline(form: TextForm) -> Pipeline {
        let file = serde_json::json!({
            "normalizer": normalizer(form).unwrap(), "pre_tokenizer": pre_tokenizer(&Symbols::default()).unwrap(),
            "decoder": decoder().unwrap(),
        });
        Pipeline::from_json(&file).unwrap()
    }

    const KEEPING: TextForm =
        TextForm { normalization: Normalization::Nfkc, lowercase: false, remove_extra_whitespaces: false };

    fn words(form: TextForm, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        pipeline(form).for_each_word(text, |word| found.push(word.to_owned()));
        found
    }

    #[test]
    fn words_are_cut_at_borders() {
        let table: &[(&str, &[&str])] = &[
            ("Hello", &["▁Hello"]),
            ("don't", &["▁don", "'", "t"]),
            ("(3.5km)", &["▁(", "3", ".", "5", "km", ")"]),
            ("東京タワーは高い", &["▁東京タワーは高い"]),
            ("二〇一九年", &["▁二〇一九年"]),
            ("日本Tokyo한국", &["▁日本", "Tokyo", "한국"]),
            ("Москваmoscow", &["▁Москва", "moscow"]),
            // A combining mark without a composed form stays with its letter, and with a digit or a symbol.
            ("x\u{0301}y", &["▁x\u{0301}y"]),
            ("1\u{20E3}a", &["▁1\u{20E3}", "a"]),
            ("☎\u{FE0F}a", &["▁☎\u{FE0F}", "a"]),
            ("हिन्दी", &["▁हिन्दी"]),
            ("👩\u{200D}👩", &["▁👩\u{200D}👩"]),
            ("می\u{200C}خواهم", &["▁می\u{200C}خواهم"]),
            ("ශ්\u{200D}රී!", &["▁ශ්\u{200D}රී", "!"]),
            ("क्\u{200D}a", &["▁क्\u{200D}", "a"]),
            // Scripts that are not listed form one group of their own.
            ("ꓐꓑab", &["▁ꓐꓑ", "ab"]),
            // A no-break space is a space after NFKC.
            ("a\u{A0}b", &["▁a", "▁b"]),
            ("▁", &["▁\u{FDD0}\u{FDD2}"]),
            ("</s>", &["▁</", "s", ">"]),
        ];
        for (text, expected) in table {
            for form in [TextForm::default(), KEEPING] {
                assert_eq!(words(form, text), *expected, "{text}");
            }
        }
    }

    #[test]
    fn extra_white_space_is_removed_where_that_is_asked_for() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("", &[], &["▁"]),
            ("\t", &[], &["▁\t"]),
            ("a\tb\r", &["▁a", "▁b"], &["▁a", "\t", "b", "\r"]),
            ("\u{FEFF}a\u{A0}\u{A0}b", &["▁a", "▁b"], &["▁\u{FEFF}", "a", "▁", "▁b"]),
            ("\u{AD}e\u{200B}\u{301}\u{2060}", &["▁é"], &["▁\u{AD}", "e", "\u{200B}\u{301}\u{2060}"]),
            ("\u{AD}", &[], &["▁\u{AD}"]),
            ("\u{3000}a\u{2028}b", &["▁a", "▁b"], &["▁", "▁a", "\u{2028}", "b"]),
        ];
        for (text, removed, kept) in table {
            assert_eq!(words(TextForm::default(), text), *removed, "{text:?}");
            assert_eq!(words(KEEPING, text), *kept, "{text:?}");
        }
    }

    #[test]
    fn ascii_is_cut_as_the_library_cuts_it() {
        let mut stream = crate::rng::Stream::new(5, "ascii");
        for (lowercase, remove_extra_whitespaces) in [(false, true), (true, true), (true, false)] {
            let pipeline = pipeline(TextForm { lowercase, remove_extra_whitespaces, ..TextForm::default() });
            assert!(pipeline.is_own);
            for round in 0..3000 {
                let length = 1 + stream.below(9) as usize;
                // Every character by itself, then several.
                let any = |_| char::from(stream.below(128) as u8);
                let text: String =
                    if round < 128 { char::from(round as u8).to_string() } else { (0..length).map(any).collect() };
                // A stretch has no space in it.
                let text = text.replace(' ', "-");
                let (mut ours, mut library) = (Vec::new(), Vec::new());
                pipeline.for_each_word(&text, |word| ours.push(word.to_owned()));
                pipeline.for_each_word_by_library(&text, |word| library.push(word.to_owned()));
                assert_eq!(ours, library, "{text:?}");
            }
        }
    }

    #[test]
    fn the_escape_is_undone() {
        for text in ["▁", "\u{FDD0}", "\u{FDD0}▁\u{FDD2}", "\u{FDD0}\u{FDD0}\u{FDD1}", "\u{FDD0}\u{FDD2}", "▁\u{FDD1}"]
        {
            let escaped = text.replace(ESCAPE, ESCAPED_ESCAPE).replace(SPACE, ESCAPED_SPACE);
            assert_eq!(unescape(escaped), text);
        }
    }

    #[test]
    fn a_file_of_our_own_is_known_and_its_symbols_are_read() {
        let symbols = Symbols { tags: vec!["<2de>".to_owned()], others: Vec::new() };
        let file = serde_json::json!({
            "normalizer": normalizer(TextForm::default()).unwrap(), "decoder": decoder().unwrap(),
            "pre_tokenizer": pre_tokenizer(&symbols).unwrap(),
        });
        let pipeline = Pipeline::from_json(&file).unwrap();
        assert_eq!(*pipeline.symbols(), symbols);
        assert_eq!(pipeline.pre_tokenizer_with(&symbols).unwrap(), file["pre_tokenizer"]);
        let mut words = Vec::new();
        pipeline.for_each_word("a\u{200D}b", |word| words.push(word.to_owned()));
        assert_eq!(words, ["▁a\u{200D}b"]);
    }

    #[test]
    fn a_pre_tokenizer_that_loses_text_is_refused() {
        let mut part = serde_json::to_value(pre_tokenizer(&Symbols::default()).unwrap()).unwrap();
        assert!(check_pre_tokenizer(&part).is_ok());
        part["pretokenizers"][1]["behavior"] = "Removed".into();
        assert!(check_pre_tokenizer(&part).unwrap_err().what().contains("may lose text"));
        assert!(check_pre_tokenizer(&serde_json::json!({"type": "Whitespace"})).is_err());
    }
}
