//! The user's own symbols: strings that are one piece wherever they occur in a text. Those that begin source lines,
//! such as the `<2de>` of a multilingual model, are tags; others are masks of names and the like.
//!
//! In `tokenizer.json` they are the first alternatives of the regular expression that cuts words, the tags in a group,
//! and stand in the vocabulary without merges, where `ignore_merges` of the model finds them. They are text like any
//! other: decoding gives them back, and a space before one is a piece by itself.

use std::collections::HashSet;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use super::pipeline::{ESCAPE, SPACE};
use super::vocabulary::{SPECIALS, byte_of_piece};
use crate::error::{Error, Result};
use crate::escape::quoted;

/// Characters with a special meaning in a regular expression.
const META: &str = r"\.+*?()|[]{}^$";
/// What the group of the tags begins with.
const GROUP: &str = "(?:";
/// At most so many symbols at the beginning of a line apply to all of it.
const MOST_LEADING: usize = 8;
/// Help for an invalid symbol.
const HELP: &str = "write a symbol as `<name>` or similar: without spaces, and beginning with a sign such as `<`";

/// The symbols of a tokenizer, as normalising leaves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbols {
    /// Those that lines begin with.
    pub(super) tags: Vec<String>,
    /// All others.
    pub(super) others: Vec<String>,
}

impl Symbols {
    /// These tags and others, as normalising has left them.
    ///
    /// # Errors
    /// A usage error: one occurs twice, or would be found instead of another.
    pub(super) fn new(tags: Vec<String>, others: Vec<String>) -> Result<Self> {
        let symbols = Self { tags, others };
        let mut seen = HashSet::new();
        if let Some(twice) = symbols.iter().find(|symbol| !seen.insert(*symbol)) {
            let what = format!("the symbol {} occurs twice after normalisation", quoted(twice));
            return Err(Error::usage(what).help("leave one of them out, or write them differently"));
        }
        let begins = |tag: &&String| symbols.others.iter().any(|other| other.starts_with(tag.as_str()));
        if let Some(tag) = symbols.tags.iter().find(begins) {
            let what = format!("another symbol begins with the tag {}, which would be found in its place", quoted(tag));
            return Err(Error::usage(what).help("write one of them differently"));
        }
        Ok(symbols)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &String> {
        self.tags.iter().chain(&self.others)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(super) fn contains(&self, word: &str) -> bool {
        self.iter().any(|symbol| symbol == word)
    }

    /// As alternatives of a regular expression.
    pub(super) fn pattern(&self) -> String {
        let tags = format!("{GROUP}{})", alternatives(&self.tags));
        match (self.tags.is_empty(), self.others.is_empty()) {
            (true, _) => alternatives(&self.others),
            (_, true) => tags,
            _ => format!("{tags}|{}", alternatives(&self.others)),
        }
    }

    /// The symbols of an expression that begins with [`Self::pattern`] and `|`, followed by `rest`.
    pub(super) fn from_pattern(expression: &str, rest: &str) -> Self {
        let mut chars = expression.find(rest).map_or("", |end| &expression[..end]).chars();
        let mut symbols = Self::default();
        let mut is_tag = chars.as_str().starts_with(GROUP);
        if is_tag {
            chars = chars.as_str()[GROUP.len()..].chars();
        }
        let mut symbol = String::new();
        while let Some(c) = chars.next() {
            match c {
                // After the group.
                '|' if symbol.is_empty() => {}
                '|' | ')' => {
                    let group = if is_tag { &mut symbols.tags } else { &mut symbols.others };
                    group.push(std::mem::take(&mut symbol));
                    is_tag &= c != ')';
                }
                '\\' => symbol.extend(chars.next()),
                c => symbol.push(c),
            }
        }
        symbols
    }

    /// The symbols that a line begins with, and the white space about them. `normalise` gives a word the form that
    /// symbols have.
    pub(super) fn leading<'t>(&self, line: &'t str, normalise: impl Fn(&str) -> String) -> &'t str {
        let mut rest = line;
        for _ in 0..MOST_LEADING {
            let Some(after) = self.after_symbol(rest.trim_start(), &normalise) else { break };
            rest = after;
        }
        if rest.len() < line.len() { &line[..line.len() - rest.trim_start().len()] } else { "" }
    }

    /// What comes after the symbol that a text begins with.
    fn after_symbol<'t>(&self, text: &'t str, normalise: impl Fn(&str) -> String) -> Option<&'t str> {
        let symbols: Vec<&String> = self.iter().collect();
        longest_of(&symbols, text, normalise).map(|end| &text[end..])
    }

    /// The first word of a line, after other symbols, if it is a tag or looks like one.
    pub(super) fn tag_of<'t>(&self, line: &'t str, normalise: impl Fn(&str) -> String) -> Option<&'t str> {
        let mut line = line.trim_start();
        while let Some(rest) = self.others.iter().find_map(|symbol| line.strip_prefix(symbol.as_str())) {
            line = rest.trim_start();
        }
        if let Some(end) = longest_of(&self.tags.iter().collect::<Vec<_>>(), line, normalise) {
            return Some(&line[..end]);
        }
        let word = line.split_whitespace().next()?;
        let ends = |text: &str| (text.chars().next(), text.chars().next_back());
        let is_like = |tag: &String| ends(tag) == ends(word) && tag.chars().nth(1) == word.chars().nth(1);
        self.tags.iter().any(is_like).then_some(word)
    }
}

/// The end of the longest symbol at the beginning of a text, in its original or its normalised form.
fn longest_of(symbols: &[&String], text: &str, normalise: impl Fn(&str) -> String) -> Option<usize> {
    let as_written = symbols.iter().filter(|symbol| text.starts_with(symbol.as_str())).map(|symbol| symbol.len()).max();
    // Normalising shortens some strings, but hardly to less than a quarter of their characters.
    let most = 4 * symbols.iter().map(|symbol| symbol.chars().count()).max()?;
    let word = text.find(char::is_whitespace).map_or(text, |end| &text[..end]);
    let first = normalise(&word[..word.chars().next()?.len_utf8()]);
    let normalised = || {
        let ends = word.char_indices().map(|(start, c)| start + c.len_utf8()).take(most);
        ends.filter(|end| symbols.contains(&&normalise(&word[..*end]))).last()
    };
    // Most lines begin with none.
    let may_begin = || symbols.iter().any(|symbol| symbol.starts_with(&first));
    as_written.or_else(|| may_begin().then(normalised).flatten())
}

/// As alternatives of a regular expression, the longest first.
fn alternatives(symbols: &[String]) -> String {
    let mut sorted: Vec<&String> = symbols.iter().collect();
    sorted.sort_by_key(|symbol| std::cmp::Reverse(symbol.len()));
    let escaped = sorted.into_iter().map(|symbol| {
        let escaped = symbol.chars().flat_map(|c| META.contains(c).then_some('\\').into_iter().chain([c]));
        escaped.collect::<String>()
    });
    escaped.collect::<Vec<_>>().join("|")
}

/// Checks `symbol`, the normalised form of `stated`, and returns it.
///
/// # Errors
/// A usage error with the reason why it is invalid.
pub(super) fn checked(stated: &str, symbol: String) -> Result<String> {
    match fault(&symbol) {
        Some(fault) => Err(Error::usage(format!("the symbol {} {fault}", quoted(stated))).help(HELP)),
        None => Ok(symbol),
    }
}

/// Why a normalised string cannot be a symbol, if it cannot; completes "the symbol …".
fn fault(symbol: &str) -> Option<&'static str> {
    use GeneralCategoryGroup::{Letter, Mark, Number};
    let first = symbol.chars().next();
    if first.is_none() {
        return Some("is empty");
    }
    if symbol.contains(|c: char| c.is_whitespace() || c.is_control() || c == SPACE || c == ESCAPE) {
        return Some("contains a space, a mark for a space or a control character");
    }
    if SPECIALS.contains(&symbol) || byte_of_piece(symbol).is_some() {
        return Some("is the name of a special token or of a byte");
    }
    if first.is_some_and(|first| matches!(first.general_category_group(), Letter | Mark | Number)) {
        return Some("begins with a letter, a digit or a mark, as if it could stand inside a word");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(tags: &[&str], others: &[&str]) -> Symbols {
        let [tags, others] = [tags, others].map(|list| list.iter().map(|&symbol| symbol.to_owned()).collect());
        Symbols { tags, others }
    }

    #[test]
    fn invalid_symbols_are_refused() {
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
        let sorted = |mut symbols: Symbols| {
            symbols.tags.sort_unstable();
            symbols.others.sort_unstable();
            symbols
        };
        for (tags, others) in [
            (&["<2de>", "<2deu>", "(?:", ")"][..], &["-a|b", r"(\)", "[^x]", "{2}"][..]),
            (&[], &["(?:", "|", "<a>"]),
            (&["|"], &[]),
            (&[], &[]),
        ] {
            let symbols = symbols(tags, others);
            let separator = if symbols.is_empty() { "" } else { "|" };
            let expression = format!("{}{separator}▁?(?:x", symbols.pattern());
            assert_eq!(sorted(Symbols::from_pattern(&expression, "▁?(?:")), sorted(symbols), "{expression}");
        }
        assert!(Symbols::from_pattern("abc", "▁?(?:").is_empty());
        assert!(symbols(&[], &["<2de>", "<2deu>"]).pattern().starts_with("<2deu>|"));
    }

    #[test]
    fn lines_begin_with_symbols() {
        let symbols = symbols(&["<2de>", "<2fr>"], &["<bt>", "<2def>"]);
        let lower = |word: &str| word.to_lowercase();
        for (line, leading, tag) in [
            ("<2de> Good morning.", "<2de> ", Some("<2de>")),
            (" <2de><bt>  Good <bt> morning.", " <2de><bt>  ", Some("<2de>")),
            ("<2def> <2fr> x", "<2def> <2fr> ", Some("<2fr>")),
            ("<2def> x", "<2def> ", None),
            ("<2DE> x", "<2DE> ", Some("<2DE>")),
            ("<2DE>x", "<2DE>", Some("<2DE>")),
            ("<2DEF>x", "<2DEF>", None),
            ("<2xx> x", "", Some("<2xx>")),
            ("Good <2de>", "", None),
            ("<b> x", "", None),
            ("<2de> <2de>", "<2de> <2de>", Some("<2de>")),
            ("", "", None),
        ] {
            assert_eq!((symbols.leading(line, lower), symbols.tag_of(line, lower)), (leading, tag), "{line}");
        }
        let many = "<bt>".repeat(20) + " x";
        assert_eq!(symbols.leading(&many, lower).len(), 4 * MOST_LEADING);
    }
}
