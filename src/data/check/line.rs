//! What one line shows.

use super::Kind;

/// Characters beyond which a line is no sentence.
const LONG: usize = 10_000;

/// What is odd about a line, given without its `\n`.
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
    if text.trim().is_empty() {
        found.push(Kind::WhiteSpace);
    }
    if bytes.len() > LONG && text.chars().count() > LONG {
        found.push(Kind::LongLine);
    }
    let is_break = |c: char| matches!(c, '\r' | '\x0B' | '\x0C' | '\u{85}' | '\u{2028}' | '\u{2029}');
    if text.contains(is_break) {
        found.push(Kind::LineBreak);
    }
    if text.contains('\0') {
        found.push(Kind::Nul);
    }
    if text.contains(|c: char| c.is_control() && c != '\t' && c != '\0' && !is_break(c)) {
        found.push(Kind::Control);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_what_is_odd() {
        for (line, expected) in [
            (&b"A dog."[..], vec![]),
            ("Ein Hund läuft über\tdas Gras – schnell!".as_bytes(), vec![]),
            (b"", vec![Kind::EmptyLine]),
            (b"\r", vec![Kind::CarriageReturn, Kind::EmptyLine]),
            (b"a\r", vec![Kind::CarriageReturn]),
            ("\u{3000} \t".as_bytes(), vec![Kind::WhiteSpace]),
            (b"caf\xE9", vec![Kind::NotUtf8]),
            (b"a\0b", vec![Kind::Nul]),
            (b"a\x1Bb\x7F", vec![Kind::Control]),
            (b"a\rb", vec![Kind::LineBreak]),
            ("a\u{2028}b".as_bytes(), vec![Kind::LineBreak]),
            ("a\u{85}b\x0C".as_bytes(), vec![Kind::LineBreak]),
        ] {
            assert_eq!(findings(line), expected, "{:?}", String::from_utf8_lossy(line));
        }
        assert_eq!(findings("é".repeat(10_000).as_bytes()), []);
        assert_eq!(findings("é".repeat(10_001).as_bytes()), [Kind::LongLine]);
    }
}
