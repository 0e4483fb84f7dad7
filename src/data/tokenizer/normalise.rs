//! The form of text: its normalisation before splitting, as normalisers of `tokenizer.json` and as a function.

use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{
    Lowercase, NFC, NFKC, Prepend, Replace, Sequence as NormalizerSequence, Strip as StripText,
};
use tokenizers::{NormalizedString, NormalizerWrapper};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::pipeline::{ESCAPE, ESCAPED_ESCAPE, ESCAPED_SPACE, SPACE_PIECE, built};
use crate::choice::choice;
use crate::error::Result;

/// Characters without width that belong to no word, and are removed: soft hyphen, zero-width space, word joiner, byte
/// order mark. Joiners and marks of direction are not among them: Persian, Indic scripts, Arabic and Hebrew need them.
pub const INVISIBLE: [char; 4] = ['\u{AD}', '\u{200B}', '\u{2060}', '\u{FEFF}'];

choice! {
    /// The form of Unicode that text is brought into before it is split; translations come out in it.
    #[derive(Default)]
    pub enum Normalization {
        /// NFKC: what looks different but means the same becomes one, such as full-width forms and ligatures.
        #[default]
        Nfkc = "nfkc",
        /// NFC: only what should look the same.
        Nfc = "nfc",
        /// As it is.
        None = "none",
    }
}

/// What is done to text before it is split into words; translations come out so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextForm {
    /// The form of Unicode.
    pub normalization: Normalization,
    /// Whether it is turned to lower case.
    pub lowercase: bool,
    /// Whether runs of white space, and control characters, become one space, and vanish at the ends; and soft
    /// hyphens, zero-width spaces, word joiners and byte order marks are removed.
    pub remove_extra_whitespaces: bool,
}

impl Default for TextForm {
    fn default() -> Self {
        Self { normalization: Normalization::default(), lowercase: false, remove_extra_whitespaces: true }
    }
}

impl TextForm {
    /// Every form there is.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let normalizations = Normalization::NAMES.iter().filter_map(|name| Normalization::named(name));
        let spaced = normalizations.flat_map(|form| [(form, true), (form, false)]);
        spaced.flat_map(|(normalization, remove_extra_whitespaces)| {
            [false, true].map(|lowercase| Self { normalization, lowercase, remove_extra_whitespaces })
        })
    }

    /// Text in this form.
    pub fn apply(self, text: &str) -> String {
        normalise(text, self)
    }
}

/// The extra white space that becomes U+0020, or nothing at the ends of a line: several characters of white space in a
/// row, and any control character, line and paragraph separator. Other single spaces (U+00A0, U+3000, …) stay
/// where the form of Unicode has left them.
const EXTRA: &str = r"[\p{Z}\p{Cc}]{2,}|[\p{Zl}\p{Zp}\p{Cc}]";

/// The normaliser of a new tokenizer.
pub(super) fn normalizer(form: TextForm) -> Result<NormalizerWrapper> {
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if form.remove_extra_whitespaces {
        let any = format!("[{}]", String::from_iter(INVISIBLE));
        steps.push(built(Replace::new(ReplacePattern::Regex(any), ""))?.into());
    }
    match form.normalization {
        Normalization::Nfkc => steps.push(NFKC.into()),
        Normalization::Nfc => steps.push(NFC.into()),
        Normalization::None => {}
    }
    if form.remove_extra_whitespaces {
        steps.push(built(Replace::new(ReplacePattern::Regex(EXTRA.to_owned()), " "))?.into());
        steps.push(StripText::new(true, true).into());
    }
    if form.lowercase {
        steps.push(Lowercase.into());
    }
    steps.push(built(Replace::new(ESCAPE.to_string(), ESCAPED_ESCAPE))?.into());
    steps.push(built(Replace::new(SPACE_PIECE, ESCAPED_SPACE))?.into());
    steps.push(Prepend::new(SPACE_PIECE.to_owned()).into());
    Ok(NormalizerSequence::new(steps).into())
}

/// The text in this form.
pub(super) fn normalise(text: &str, form: TextForm) -> String {
    let mut normalized = match form.remove_extra_whitespaces {
        true => NormalizedString::from(text.replace(INVISIBLE, "")),
        false => NormalizedString::from(text),
    };
    match form.normalization {
        Normalization::Nfkc => drop(normalized.nfkc()),
        Normalization::Nfc => drop(normalized.nfc()),
        Normalization::None => {}
    }
    if form.remove_extra_whitespaces {
        normalized = without_extra_whitespaces(normalized.get()).into();
    }
    if form.lowercase {
        normalized.lowercase();
    }
    normalized.get().to_owned()
}

/// Lower-case text as Greek writes it: the library, which looks at one letter at a time, makes each Σ a σ, but at the
/// end of a word it is a ς (Unicode's `Final_Sigma`). Metrics that ignore case write it so.
pub(super) fn with_final_sigmas(text: String) -> String {
    if !text.contains('σ') {
        return text;
    }
    // Whether the last character that is not ignored is a letter with a case.
    let mut is_inside = false;
    let (mut written, mut rest) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = rest.next() {
        let is_followed = || rest.clone().find(|c| !is_ignored(*c)).is_some_and(is_cased);
        written.push(if c == 'σ' && is_inside && !is_followed() { 'ς' } else { c });
        is_inside = if is_ignored(c) { is_inside } else { is_cased(c) };
    }
    written
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// Whether a character stands inside words without being a letter: Unicode's `Case_Ignorable`.
fn is_ignored(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, Format, ModifierLetter, ModifierSymbol, NonspacingMark};
    const INSIDE_WORDS: &str =
        ":·\u{387}\u{55F}\u{5F4}\u{2027}\u{FE13}\u{FE55}\u{FF1A}.'‘’\u{2024}\u{FE52}\u{FF07}\u{FF0E}";
    let category = c.general_category();
    matches!(category, NonspacingMark | EnclosingMark | Format | ModifierLetter | ModifierSymbol)
        || INSIDE_WORDS.contains(c)
}

/// The text without what [`EXTRA`] matches.
fn without_extra_whitespaces(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    // What the white space since the last other character becomes.
    let mut space = None;
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() {
            let stays = c.is_whitespace() && !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
            space = Some(if stays && space.is_none() { c } else { ' ' });
            continue;
        }
        clean.extend(space.take().filter(|_| !clean.is_empty()));
        clean.push(c);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_white_space_is_replaced() {
        for (text, clean) in [
            ("", ""),
            (" \t\u{85}", ""),
            ("a b", "a b"),
            ("  a  b  ", "a b"),
            ("\u{2029}a\tb\0c\u{85}", "a b c"),
            // A single space of another kind stays, unless it is at an end.
            ("\u{3000}a\u{A0}b\u{3000}c\u{202F}", "a\u{A0}b\u{3000}c"),
            ("a\u{A0} b \u{3000}c\u{A0}\u{A0}d", "a b c d"),
        ] {
            assert_eq!(without_extra_whitespaces(text), clean, "{text:?}");
        }
    }

    #[test]
    fn the_last_sigma_of_a_word_is_written_as_such() {
        let form = TextForm { lowercase: true, normalization: Normalization::None, ..TextForm::default() };
        for text in [
            "ΟΔΟΣ",
            "ΟΔΟΣ, ΣΑΣ Σ.",
            "ΣΊΣΥΦΟΣ",
            "ΟΣ\u{301}",
            "Σ",
            "ΑΣΑ",
            "aσ ΣΣ",
            "ΌΣΟΣ1Σ",
            "Μ.Σ.",
            "ΟΣ’Α ΟΣ’",
            "«ΟΣ»",
            "Σ.Σ",
        ] {
            let theirs = text.to_lowercase();
            assert_eq!(with_final_sigmas(normalise(text, form)), theirs.replace("aσ", "aς"), "{text}");
        }
    }
}
