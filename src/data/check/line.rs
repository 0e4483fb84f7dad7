//! Findings on a single line.

use super::Kind;
use crate::data::text::lines::is_long;
use crate::data::tokenizer::INVISIBLE;

/// Oddities of a line, given without its `\n`.
pub(super) fn findings(bytes: &[u8]) -> Vec<Kind> {
    let mut found = Vec::new();
    let bytes = match bytes.strip_suffix(b"\r") {
        Some(bytes) => {
            found.push(Kind::CarriageReturn);
            bytes
        }
        None => bytes,
    };
    if bytes.is_empty() {
        found.push(Kind::EmptyLine);
        return found;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => {
            found.push(Kind::NotUtf8);
            return found;
        }
    };
    let is_break = |c: char| matches!(c, '\r' | '\x0B' | '\x0C' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let is_space = |c: char| c.is_whitespace() && !is_break(c);
    if text.trim().is_empty() {
        found.push(Kind::WhiteSpace);
    } else if text.starts_with(is_space) || text.ends_with(is_space) || text.contains("  ") {
        found.push(Kind::Spacing);
    }
    if is_long(text) {
        found.push(Kind::LongLine);
    }
    if text.contains(is_break) {
        found.push(Kind::LineBreak);
    }
    if text.contains('\0') {
        found.push(Kind::Nul);
    }
    if text.trim().contains('\t') {
        found.push(Kind::Tab);
    }
    if text.contains(|c: char| c.is_control() && c != '\t' && c != '\0' && !is_break(c)) {
        found.push(Kind::Control);
    }
    if text.contains('\u{FFFD}') {
        found.push(Kind::Replacement);
    }
    if text.contains(INVISIBLE) {
        found.push(Kind::Invisible);
    }
    if text.contains(is_direction) {
        found.push(Kind::Direction);
    }
    if has_entity(text) {
        found.push(Kind::Entity);
    }
    if has_markup(text) {
        found.push(Kind::Markup);
    }
    if is_misread(text) {
        found.push(Kind::Mojibake);
    }
    found
}

/// Whether a character only sets the direction of text.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200E}' | '\u{200F}' | '\u{61C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Whether there is an `&name;`, `&#number;` or `&#xnumber;`.
fn has_entity(text: &str) -> bool {
    text.split('&').skip(1).any(|rest| {
        let Some((name, _)) = rest.split_once(';') else { return false };
        let is_number = |digits: &str| match digits.strip_prefix(['x', 'X']) {
            Some(digits) => !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
            None => !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()),
        };
        let is_name = |name: &str| {
            matches!(name, "amp" | "lt" | "gt" | "quot" | "apos" | "nbsp" | "copy" | "bar")
                || matches!(
                    name,
                    "mdash" | "ndash" | "hellip" | "lsquo" | "rsquo" | "ldquo" | "rdquo" | "laquo" | "raquo"
                )
        };
        name.strip_prefix('#').map_or_else(|| is_name(name), is_number)
    })
}

/// Whether there is a tag of HTML or of a translation memory, such as `<p>`, `</b>`, `<br/>` or `<a href="…">`.
fn has_markup(text: &str) -> bool {
    const NAMES: &[&str] = &[
        "a",
        "b",
        "i",
        "u",
        "p",
        "s",
        "br",
        "hr",
        "em",
        "strong",
        "small",
        "sub",
        "sup",
        "div",
        "span",
        "font",
        "center",
        "code",
        "pre",
        "q",
        "li",
        "ul",
        "ol",
        "dl",
        "dt",
        "dd",
        "table",
        "tr",
        "td",
        "th",
        "tbody",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "img",
        "body",
        "html",
        "head",
        "title",
        "meta",
        "link",
        "script",
        "style",
        "blockquote",
        "cite",
        "g",
        "x",
        "bpt",
        "ept",
        "ph",
        "it",
        "seg",
    ];
    text.split('<').skip(1).any(|rest| {
        let Some((tag, _)) = rest.split_once('>') else { return false };
        let tag = tag.strip_prefix('/').unwrap_or(tag);
        let (name, attributes) = tag.split_at(tag.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(tag.len()));
        let is_closed = matches!(attributes.trim_end_matches('/').trim(), "") || attributes.contains('=');
        is_closed && NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
    })
}

/// Whether the text holds characters whose Windows-1252 bytes are the UTF-8 of a letter: a lead byte and its
/// continuation.
fn is_misread(text: &str) -> bool {
    let mut bytes = Vec::new();
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None if is_utf8_of_letters(&bytes) => return true,
            None => bytes.clear(),
        }
    }
    is_utf8_of_letters(&bytes)
}

/// Whether a run of bytes beyond ASCII holds UTF-8 of Latin or Cyrillic letters, or of punctuation such as dashes.
fn is_utf8_of_letters(bytes: &[u8]) -> bool {
    // Many byte pairs are also real characters side by side, such as C2 BB in «Â»; the ones below hardly ever are.
    (0..bytes.len()).any(|start| match bytes[start] {
        0xC3 => bytes.get(start + 1).is_some_and(|byte| (0x80..0xC0).contains(byte)),
        0xE2 => bytes.get(start + 1..start + 3).is_some_and(|rest| rest[0] == 0x80 && (0x80..0xC0).contains(&rest[1])),
        0xD0 | 0xD1 => {
            let rest = &bytes[start..];
            rest.len() >= 4
                && (0x80..0xC0).contains(&rest[1])
                && matches!(rest[2], 0xD0 | 0xD1)
                && (0x80..0xC0).contains(&rest[3])
        }
        _ => false,
    })
}

/// The Windows-1252 byte of a character beyond ASCII; bytes that Windows-1252 leaves undefined are taken as Latin-1.
fn byte_of(c: char) -> Option<u8> {
    /// 0x80 to 0x9F.
    const UPPER: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8D}', 'Ž', '\u{8F}', '\u{90}', '‘',
        '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9D}', 'ž', 'Ÿ',
    ];
    match c {
        '\u{80}'..='\u{FF}' => Some(c as u8),
        _ => UPPER.iter().position(|other| *other == c).map(|index| 0x80 + index as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_what_is_odd() {
        for (line, expected) in [
            (&b"A dog."[..], vec![]),
            ("Ein Hund läuft über das Gras – schnell!".as_bytes(), vec![]),
            (b"17\tA dog.", vec![Kind::Tab]),
            (b"A dog.\t", vec![Kind::Spacing]),
            (b"", vec![Kind::EmptyLine]),
            (b"\r", vec![Kind::CarriageReturn, Kind::EmptyLine]),
            (b"a\r", vec![Kind::CarriageReturn]),
            ("\u{3000} \t".as_bytes(), vec![Kind::WhiteSpace]),
            (b"A dog. ", vec![Kind::Spacing]),
            ("\u{3000}A dog.".as_bytes(), vec![Kind::Spacing]),
            (b"A  dog.\r", vec![Kind::CarriageReturn, Kind::Spacing]),
            (b"caf\xE9", vec![Kind::NotUtf8]),
            (b"a\0b", vec![Kind::Nul]),
            (b"a\x1Bb\x7F", vec![Kind::Control]),
            (b"a\rb", vec![Kind::LineBreak]),
            ("a\u{2028}b".as_bytes(), vec![Kind::LineBreak]),
            ("a\u{FFFD}b".as_bytes(), vec![Kind::Replacement]),
            ("a\u{200B}b co\u{AD}op".as_bytes(), vec![Kind::Invisible]),
            ("\u{200F}القط".as_bytes(), vec![Kind::Direction]),
            ("می\u{200C}خواهم".as_bytes(), vec![]),
            ("نمی\u{200C}خواهم \u{200F}".as_bytes(), vec![Kind::Direction]),
            (b"AT&amp;T", vec![Kind::Entity]),
            (b"it &#39;s &#x27;", vec![Kind::Entity]),
            (b"<p>Hello</p>", vec![Kind::Markup]),
            (b"a line<br/>break, <A HREF='x'>link</A>", vec![Kind::Markup]),
            (b"<2de> a <ent> is not, nor 3 < 4 > 2, x <i and b>", vec![]),
            (b"R&D; a && b &; x & y; &#; &#x;", vec![]),
            ("Ã¼ber".as_bytes(), vec![Kind::Mojibake]),
            ("donâ€™t".as_bytes(), vec![Kind::Mojibake]),
            ("Ð¿Ñ€Ð¸Ð²ÐµÑ‚".as_bytes(), vec![Kind::Mojibake]),
            ("«Â», SÃO PAULO, ÂÃ, naïve, Ÿ – „Straße“ 5 € …".as_bytes(), vec![]),
            ("Привет, žluťoučký kůň, ð, ÐÑ, Łódź".as_bytes(), vec![]),
            ("a\u{85}b\x0C".as_bytes(), vec![Kind::LineBreak]),
        ] {
            assert_eq!(findings(line), expected, "{:?}", String::from_utf8_lossy(line));
        }
        assert_eq!(findings("é".repeat(10_000).as_bytes()), []);
        assert_eq!(findings("é".repeat(10_001).as_bytes()), [Kind::LongLine]);
    }
}
