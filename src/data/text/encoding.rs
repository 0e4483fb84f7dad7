//! What is wrong with text that is not UTF-8, and what to do about it.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};

/// How many bytes on each side of the first wrong one decide on the encoding.
const AROUND: usize = 1 << 19;
/// Fewer bytes do not show an alphabet.
const FEW: usize = 8;

/// What surrounds byte `offset` of a text.
pub fn around(bytes: &[u8], offset: usize) -> &[u8] {
    let end = bytes.len().min(offset.saturating_add(AROUND));
    bytes.get(offset.saturating_sub(AROUND)..end).unwrap_or(bytes)
}

/// What to do about text that is not UTF-8; `sample` is a part of it.
pub fn advice(sample: &[u8]) -> String {
    match encoding(sample) {
        Some(encoding) => {
            format!("convert the text, for example with `iconv -f {encoding} -t UTF-8`, or fix the line")
        }
        None => "other characters around it are UTF-8, so the text is damaged: get it anew, fix the line, or leave \
                 out the bytes that are wrong, with `iconv -c -f UTF-8 -t UTF-8`"
            .to_owned(),
    }
}

/// The probable encoding of bytes, as `iconv` names it; `None` for damaged UTF-8: at least half of the bytes beyond
/// ASCII are well-formed, which hardly ever happens in other encodings.
fn encoding(sample: &[u8]) -> Option<&'static str> {
    let (mut formed, mut wrong, mut has_controls) = (0, 0, false);
    for chunk in sample.utf8_chunks() {
        formed += chunk.valid().chars().filter(|character| !character.is_ascii()).count();
        wrong += usize::from(!chunk.invalid().is_empty());
        has_controls |= chunk.invalid().iter().any(|byte| (0x80..0xA0).contains(byte));
    }
    if formed > 0 && formed >= wrong {
        return None;
    }
    let western = if has_controls { "CP1252" } else { "LATIN1" };
    // With few letters beyond ASCII, alphabets that are mostly ASCII cannot be recognised.
    let (letters, high) = sample.iter().fold((0, 0), |(letters, high), byte| {
        (letters + usize::from(byte.is_ascii_alphabetic()), high + usize::from(!byte.is_ascii()))
    });
    if high < FEW || high < letters {
        return Some(western);
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(sample, true);
    match detector.guess(None, Utf8Detection::Deny).name() {
        "windows-1252" => Some(western),
        name => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_and_other_encodings_are_distinguished() {
        for (sample, expected) in [
            // Some multi-byte characters, and a byte that was lost or changed.
            (&b"l\xC3\xBCtt und gr\xC3\xBC\xC3n"[..], None),
            (b"\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1 \xD0\xBC\xD0\xB8\xD1\x80", None),
            (b"caf\xC3\xA9, caf\xE9", None),
            // Quotes, dashes, the euro.
            (b"\x93quoted\x94 text", Some("CP1252")),
            (b"it\x92s 5 \x80", Some("CP1252")),
            (b"caf\xE9 \x96 cr\xE8me", Some("CP1252")),
            (b"caf\xE9 au lait", Some("LATIN1")),
            (b"Gr\xFC\xDFe aus K\xF6ln", Some("LATIN1")),
            (b"\xE9\n", Some("LATIN1")),
            // Of other alphabets.
            (
                b"\xCF\xF0\xE8\xE2\xE5\xF2, \xEC\xE8\xF0! \xCA\xE0\xEA \xE4\xE5\xEB\xE0? \xD5\xEE\xF0\xEE\xF8\xEE.",
                Some("windows-1251"),
            ),
            (b"\x93\x8C\x8B\x9E\x82\xCD\x93\xFA\x96{\x82\xCC\x8E\xF1\x93s\x82\xC5\x82\xB7\x81B", Some("Shift_JIS")),
        ] {
            assert_eq!(encoding(sample), expected, "{}", String::from_utf8_lossy(sample));
        }
        assert!(advice(b"caf\xE9").contains("`iconv -f LATIN1 -t UTF-8`"));
        assert!(advice(b"\xC3\xBC \xE9").contains("`iconv -c -f UTF-8 -t UTF-8`"));
    }
}
