//! Symbols of the user's own: strings that are one piece wherever they stand in a text, such as the `<2de>` of a
//! multilingual model or the `<ent>` of a masked name.
//!
//! In `tokenizer.json` they are the first alternatives of the regular expression that cuts words, and stand in the
//! vocabulary without merges, where `ignore_merges` of the model finds them. They are text like any other: decoding gives
//! them back, and a space before one is a piece by itself.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use super::pipeline::{ESCAPE, SPACE};
use super::vocabulary::{SPECIALS, byte_of_piece};

/// What has a meaning of its own in a regular expression.
const META: &str = r"\.+*?()|[]{}^$";

/// What to do about one that cannot be.
pub(super) const HELP: &str = "write a symbol as `<name>` or alike: no spaces, and a sign at its beginning";

/// Why a string cannot be a symbol, if it cannot; completes "the symbol …". It is as normalising leaves it.
pub(super) fn fault(symbol: &str) -> Option<&'static str> {
    use GeneralCategoryGroup::{Letter, Mark, Number};
    let first = symbol.chars().next();
    if first.is_none() {
        return Some("is empty");
    }
    if symbol.contains(|c: char| c.is_whitespace() || c.is_control() || c == SPACE || c == ESCAPE) {
        return Some("has a space, a mark of a space or a control character in it");
    }
    if SPECIALS.contains(&symbol) || byte_of_piece(symbol).is_some() {
        return Some("is the name of a special token or of a byte");
    }
    if first.is_some_and(|first| matches!(first.general_category_group(), Letter | Mark | Number)) {
        return Some("begins with a letter, a digit or a mark, as if it could stand inside a word");
    }
    None
}

/// The symbols as alternatives of a regular expression, the longest first.
pub(super) fn pattern(symbols: &[String]) -> String {
    let mut sorted: Vec<&String> = symbols.iter().collect();
    sorted.sort_by_key(|symbol| std::cmp::Reverse(symbol.len()));
    let escaped = sorted.into_iter().map(|symbol| {
        let escaped = symbol.chars().flat_map(|c| META.contains(c).then_some('\\').into_iter().chain([c]));
        escaped.collect::<String>()
    });
    escaped.collect::<Vec<_>>().join("|")
}

/// The symbols of such alternatives, which stand at the beginning of a longer `expression` before `rest`.
pub(super) fn of_pattern(expression: &str, rest: &str) -> Vec<String> {
    let Some(alternatives) = expression.find(rest).map(|end| &expression[..end]) else {
        return Vec::new();
    };
    let (mut symbols, mut symbol, mut chars) = (Vec::new(), String::new(), alternatives.chars());
    while let Some(c) = chars.next() {
        match c {
            '|' => symbols.push(std::mem::take(&mut symbol)),
            '\\' => symbol.extend(chars.next()),
            c => symbol.push(c),
        }
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_symbol_is_told() {
        for symbol in ["<2de>", "[ENT]", ">>fra<<", "__x__", "¦", "@-@", "⟨0⟩", "<", "<pad", "\\|"] {
            assert_eq!(fault(symbol), None, "{symbol}");
        }
        for (symbol, why) in [
            ("", "empty"),
            ("<2 de>", "space"),
            ("<\t>", "space"),
            ("▁<2de>", "space"),
            ("<pad>", "special"),
            ("<0x41>", "byte"),
            ("2de", "digit"),
            ("ENT", "letter"),
            ("\u{301}<", "mark"),
        ] {
            assert!(fault(symbol).is_some_and(|fault| fault.contains(why)), "{symbol}: {:?}", fault(symbol));
        }
    }

    #[test]
    fn a_pattern_says_which_symbols_it_is_of() {
        let symbols = ["<2de>", "<2deu>", "a|b", r"(\)", "[^x]", "{2}"].map(str::to_owned);
        let expression = format!("{}|▁?(", pattern(&symbols));
        let mut read = of_pattern(&expression, "▁?(");
        assert_eq!(read[0], "<2deu>");
        read.sort_unstable();
        let mut sorted = symbols.to_vec();
        sorted.sort_unstable();
        assert_eq!(read, sorted);
        assert!(of_pattern("abc", "▁?(").is_empty() && of_pattern("▁?(", "▁?(").is_empty());
    }
}
