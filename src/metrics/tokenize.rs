//! Splits a line into words for scoring, by the rules of sacrebleu 2.6.0.
//!
//! The rules come from regular expressions in mteval-v13a.pl and mteval-v14.pl. Each replaces a single character or a
//! pair of neighbours, so here each is one pass over the line.

use std::borrow::Cow;
use std::str::FromStr;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::choice::choice;
use crate::error::{Error, Result};

choice! {
    /// A tokenizer for scoring.
    #[derive(Default, Hash)]
    pub enum Tokenize {
        /// `13a`: the rules of mteval-v13a.pl, used by WMT.
        #[default]
        V13a = "13a",
        /// `intl`: the international rules of mteval-v14.pl, by Unicode general category.
        Intl = "intl",
        /// `char`: every character that is not whitespace is a word.
        Char = "char",
        /// `zh`: every Chinese character is a word, the rest follows `13a` without its unescaping.
        Zh = "zh",
        /// `none`: words are what whitespace separates.
        None = "none",
    }
}

impl Tokenize {
    /// Separates the words of `line` by whitespace; [`words`] then yields them. Whitespace at the end of the line is
    /// dropped first, which matters to rules that look at neighbours.
    pub fn separate(self, line: &str) -> Cow<'_, str> {
        let line = line.trim_end_matches(is_whitespace);
        match self {
            Self::V13a => Cow::Owned(separate_western(&format!(" {} ", unescape(line)))),
            Self::Intl => Cow::Owned(separate_international(line)),
            Self::Char => Cow::Owned(line.chars().flat_map(|c| [c, ' ']).collect()),
            Self::Zh => Cow::Owned(separate_western(&isolate_chinese(line.trim_start_matches(is_whitespace)))),
            Self::None => Cow::Borrowed(line),
        }
    }
}

impl FromStr for Tokenize {
    type Err = Error;

    /// Fails with a usage error that lists the names.
    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| {
            let names = [Self::NAMES, &super::pieces::NAMES].concat().join(", ");
            Error::usage(format!("unknown tokenizer `{name}`")).help(format!("choose one of {names}"))
        })
    }
}

/// Whitespace as Python's `str.split` and `str.strip` know it: Unicode's, and the four separators U+001C to U+001F.
pub fn is_whitespace(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// The words of a line: what lies between whitespace, as Python's `str.split()` has it.
pub fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(is_whitespace).filter(|word| !word.is_empty())
}

/// Undoes the markup that mteval-v13a.pl undoes, in its order: `&amp;lt;` becomes `<`.
fn unescape(line: &str) -> Cow<'_, str> {
    const REPLACEMENTS: [(&str, &str); 7] =
        [("<skipped>", ""), ("-\n", ""), ("\n", " "), ("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")];
    let mut line = Cow::Borrowed(line);
    if !line.bytes().any(|b| matches!(b, b'&' | b'\n' | b'<')) {
        return line;
    }
    for (from, to) in REPLACEMENTS {
        if line.contains(from) {
            line = Cow::Owned(line.replace(from, to));
        }
    }
    line
}

/// Which side of a separated pair gets a space beside the one between its two.
#[derive(Clone, Copy)]
enum Outer {
    Before,
    After,
}

/// Puts a space between two neighbours if the first satisfies `first` and the second `second`, and one more outside.
/// Pairs are found from the left and do not overlap, as in a global substitution of a regular expression.
fn separate_pairs<T: Copy>(
    units: &[T],
    space: T,
    first: impl Fn(T) -> bool,
    second: impl Fn(T) -> bool,
    outer: Outer,
) -> Vec<T> {
    let mut out = Vec::with_capacity(units.len() + units.len() / 4);
    let mut rest = units;
    while let [a, tail @ ..] = rest {
        match tail {
            [b, after @ ..] if first(*a) && second(*b) => {
                match outer {
                    Outer::Before => out.extend([space, *a, space, *b]),
                    Outer::After => out.extend([*a, space, *b, space]),
                }
                rest = after;
            }
            _ => {
                out.push(*a);
                rest = tail;
            }
        }
    }
    out
}

/// The language-dependent rules of mteval-v13a.pl: ASCII punctuation is separated, but a period or a comma only where
/// no digit is on that side, a dash only after a digit, and an apostrophe never.
///
/// Works on bytes: every rule tests an ASCII byte and whether its neighbour is a digit, for which the neighbouring byte
/// of a longer character is enough.
fn separate_western(line: &str) -> String {
    separate_stops(&separate_punctuation(line))
}

/// The first of these rules: ASCII punctuation except apostrophe, comma, period and dash.
pub(super) fn separate_punctuation(line: &str) -> Vec<u8> {
    let mut separated = Vec::with_capacity(line.len() * 3 / 2);
    for byte in line.bytes() {
        match byte {
            b'!'..=b'&' | b'('..=b'+' | b'/' | b':'..=b'@' | b'['..=b'`' | b'{'..=b'~' => {
                separated.extend([b' ', byte, b' ']);
            }
            _ => separated.push(byte),
        }
    }
    separated
}

/// The other rules: commas, periods and dashes, depending on neighbouring digits. `line` is UTF-8.
pub(super) fn separate_stops(line: &[u8]) -> String {
    let digit = |byte: u8| byte.is_ascii_digit();
    let not_digit = |byte: u8| !byte.is_ascii_digit();
    let stop = |byte: u8| matches!(byte, b'.' | b',');
    let separated = separate_pairs(line, b' ', not_digit, stop, Outer::After);
    let separated = separate_pairs(&separated, b' ', stop, not_digit, Outer::Before);
    let separated = separate_pairs(&separated, b' ', digit, |byte| byte == b'-', Outer::After);
    // Spaces were only inserted next to ASCII bytes, never inside a character, so this cannot be lossy.
    String::from_utf8(separated).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The Unicode classes that the international rules ask for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Number,
    Punctuation,
    Symbol,
    Other,
}

impl Class {
    fn from_char(c: char) -> Self {
        // A short cut: most characters of most texts need no table lookup.
        if c.is_ascii_alphabetic() || c == ' ' {
            return Self::Other;
        }
        match c.general_category_group() {
            GeneralCategoryGroup::Number => Self::Number,
            GeneralCategoryGroup::Punctuation => Self::Punctuation,
            GeneralCategoryGroup::Symbol => Self::Symbol,
            _ => Self::Other,
        }
    }
}

/// The rules of mteval-v14.pl's international tokenization: punctuation (`\p{P}`) is separated where a side of it is
/// not a number (`\p{N}`), symbols (`\p{S}`) always. Nothing is unescaped.
fn separate_international(line: &str) -> String {
    let units: Vec<(char, Class)> = line.chars().map(|c| (c, Class::from_char(c))).collect();
    let space = (' ', Class::Other);
    let punctuation = |(_, class): (char, Class)| class == Class::Punctuation;
    let not_number = |(_, class): (char, Class)| class != Class::Number;
    let units = separate_pairs(&units, space, not_number, punctuation, Outer::After);
    let units = separate_pairs(&units, space, punctuation, not_number, Outer::Before);
    let mut out = String::with_capacity(units.len() * 2);
    for (c, class) in units {
        if class == Class::Symbol {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    out
}

/// Puts spaces around every character that sacrebleu takes for Chinese.
fn isolate_chinese(line: &str) -> String {
    let mut out = String::with_capacity(line.len() * 5 / 3);
    for c in line.chars() {
        if is_chinese(c) {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether sacrebleu takes `c` for Chinese.
///
/// Its list means to hold the supplementary planes (U+20000 to U+2A6D6, U+2F800 to U+2FA1D), but writes them as
/// four-digit escapes with a digit behind. Compared as strings, those are U+2001 to U+2A6D and U+2F81 to U+2FA1: so
/// general punctuation, arrows and mathematical operators count as Chinese and the supplementary planes do not.
fn is_chinese(c: char) -> bool {
    matches!(c,
        '\u{2001}'..='\u{2a6d}' // meant: extension B; holds miscellaneous symbols and dingbats too
        | '\u{2e80}'..='\u{2eff}' // radicals supplement
        | '\u{2f00}'..='\u{2fdf}' // Kangxi radicals; the other misread range lies within
        | '\u{2ff0}'..='\u{303f}' // ideographic description, CJK punctuation
        | '\u{3100}'..='\u{312f}' // Bopomofo
        | '\u{31a0}'..='\u{31bf}' // Bopomofo extended
        | '\u{31c0}'..='\u{31ef}' // strokes
        | '\u{3200}'..='\u{33ff}' // enclosed letters, compatibility
        | '\u{3400}'..='\u{4db5}' // extension A
        | '\u{4e00}'..='\u{9fbb}' // unified ideographs
        | '\u{f900}'..='\u{fa2d}' // compatibility ideographs
        | '\u{fa30}'..='\u{fa6a}'
        | '\u{fa70}'..='\u{fad9}'
        | '\u{fe10}'..='\u{fe1f}' // vertical forms
        | '\u{fe30}'..='\u{fe4f}' // compatibility forms
        | '\u{ff00}'..='\u{ffef}' // half and full width forms
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(tokenize: Tokenize, line: &str) -> String {
        words(&tokenize.separate(line)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rules_of_13a() {
        for (line, expected) in [
            ("", ""),
            ("Hello, world!", "Hello , world !"),
            ("1,000.5 and 3.", "1,000.5 and 3 ."),
            ("don't (well-known) 9-10", "don't ( well-known ) 9 - 10"),
            ("... a..b", ". . . a . . b"),
            ("&amp;lt;b&quot;&gt;", "< b \" >"),
            ("x <skipped>y com-\nputer\nz-\n", "x y computer z-"),
            ("ä.ö,5 5.ä", "ä . ö , 5 5 . ä"),
            ("„Zitat“ – 5€", "„Zitat“ – 5€"),
        ] {
            assert_eq!(tokens(Tokenize::V13a, line), expected, "{line:?}");
        }
    }

    #[test]
    fn rules_of_intl() {
        for (line, expected) in [
            ("Im Jahr 1984.", "Im Jahr 1984."),
            ("1.000,5 – „Ja“!", "1.000,5 – „ Ja “ !"),
            ("5€ a+b &amp;", "5 € a + b & amp ;"),
            ("½.x ².3", "½ . x ².3"),
            ("don't!?", "don ' t ! ?"),
        ] {
            assert_eq!(tokens(Tokenize::Intl, line), expected, "{line:?}");
        }
    }

    #[test]
    fn rules_of_zh_char_and_none() {
        assert_eq!(tokens(Tokenize::Zh, "我有 3.5 个 apples。"), "我 有 3.5 个 apples 。");
        assert_eq!(tokens(Tokenize::Zh, " .5 &amp;"), ".5 & amp ;");
        // The misread ranges: an en dash is Chinese, extension B is not.
        assert_eq!(tokens(Tokenize::Zh, "a–b\u{20000}\u{20001}"), "a – b\u{20000}\u{20001}");
        assert_eq!(tokens(Tokenize::Char, "ab \u{301}c\u{3000}"), "a b \u{301} c");
        assert_eq!(tokens(Tokenize::None, "a,b  c.\u{1f}d\u{a0}e\u{200b}"), "a,b c. d e\u{200b}");
    }

    #[test]
    fn names_round_trip() {
        for name in Tokenize::NAMES {
            assert_eq!(name.parse::<Tokenize>().unwrap().to_string(), *name);
        }
        let error = "14a".parse::<Tokenize>().unwrap_err().to_string();
        assert!(error.contains("`14a`") && error.contains("13a, intl, char, zh, none"), "{error}");
    }
}
