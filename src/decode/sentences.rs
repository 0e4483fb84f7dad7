//! Where sentences of a text end, and where a text that is still too long is best cut.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};
use unicode_segmentation::UnicodeSegmentation;

/// The sentences of a text by Unicode's annex 29, except that none ends after an abbreviation.
pub(super) fn sentences(text: &str) -> impl Iterator<Item = &str> {
    stretches(text).flat_map(of_stretch)
}

/// The text, cut wherever so many characters follow each other that none is of a word: finding the ends of sentences
/// takes time with the square of their number.
fn stretches(text: &str) -> impl Iterator<Item = &str> {
    const MOST: usize = 64;
    let mut between = 0;
    text.split_inclusive(move |c: char| {
        let is_of_word = c.is_alphanumeric() && c.general_category_group() != GeneralCategoryGroup::Mark;
        between = if is_of_word || between == MOST { 0 } else { between + 1 };
        between == MOST
    })
}

/// The sentences of one of these.
fn of_stretch(text: &str) -> impl Iterator<Item = &str> {
    let mut bounds = text.split_sentence_bound_indices();
    let mut first = 0;
    std::iter::from_fn(move || {
        for (start, sentence) in bounds.by_ref() {
            let end = start + sentence.len();
            if end == text.len() || !is_abbreviated(sentence) {
                let whole = &text[first..end];
                first = end;
                return Some(whole);
            }
        }
        None
    })
}

/// Whether a text ends with a full stop after a single letter or digit, a number of two digits, or a short capitalised
/// word without a vowel, but not one of capitals: `J.`, `am 3.`, `Mrs.`, but `TV.`
fn is_abbreviated(text: &str) -> bool {
    let last = text.split_whitespace().next_back().and_then(|word| word.strip_suffix('.'));
    let word = last.unwrap_or_default().trim_start_matches(|c: char| !c.is_alphanumeric());
    let (length, are) = (word.chars().count(), |kind: fn(char) -> bool| word.chars().all(kind));
    match word.chars().next() {
        Some(_) if length == 1 => true,
        Some(first) if first.is_uppercase() => {
            let is_small = |c: char| c.is_ascii_lowercase() && !"aeiouy".contains(c);
            length <= 3 && !"AEIOUY".contains(first) && first.is_ascii() && word.chars().skip(1).all(is_small)
        }
        Some(_) => length == 2 && are(char::is_numeric),
        None => false,
    }
}

/// Whether a character stands between words: white space or, in Khmer and the like, U+200B.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || c == '\u{200B}'
}

/// Where to halve a text of at least two characters.
pub(super) fn middle(text: &str) -> usize {
    let centre = text.len() / 2;
    let nearest = |offsets: &mut dyn Iterator<Item = usize>| offsets.min_by_key(|offset| offset.abs_diff(centre));
    // These full stops end a sentence even without a space after them.
    let wide = |c: char| matches!(c, '。' | '！' | '？' | '．' | '।' | '؟' | '۔');
    let ends = |c: char| wide(c) || matches!(c, '.' | '!' | '?' | '…' | ';' | ':');
    let closes = |c: char| matches!(c, '"' | '\'' | ')' | ']' | '»' | '”' | '’' | '“' | '」' | '』');
    // Not at the very edge, where it would halve nothing.
    let is_inside = |offset: usize, share: usize| offset.min(text.len() - offset) >= text.len() / share;
    let is_sentence_end = |offset: usize| {
        let before = text[..offset].trim_end_matches(closes);
        before.chars().next_back().is_some_and(ends) && !is_abbreviated(before)
    };
    let spaces = || text.char_indices().filter(|(offset, c)| *offset > 0 && is_space(*c)).map(|(offset, _)| offset);
    // After the last of the marks and quotes that follow a wide one.
    let mut follows_wide = false;
    let after_wide = text.char_indices().filter_map(|(offset, c)| {
        let is_mark = ends(c) || closes(c);
        let is_after = follows_wide && !is_mark;
        follows_wide = wide(c) || (follows_wide && is_mark);
        is_after.then_some(offset)
    });
    let sentences =
        &mut spaces().filter(|offset| is_sentence_end(*offset)).chain(after_wide).filter(|p| is_inside(*p, 8));
    // Wide commas have no space after them.
    let after_comma = |offset: &usize| text[..*offset].ends_with([',', '،', '，', '、']);
    let after_wide_comma = text.match_indices(['，', '、']).map(|(offset, comma)| offset + comma.len());
    let commas = &mut spaces().filter(after_comma).chain(after_wide_comma).filter(|p| is_inside(*p, 4));
    nearest(sentences)
        .or_else(|| nearest(commas))
        .or_else(|| nearest(&mut spaces()))
        .or_else(|| nearest(&mut text.grapheme_indices(true).map(|(offset, _)| offset).filter(|offset| *offset > 0)))
        .or_else(|| nearest(&mut text.char_indices().map(|(offset, _)| offset).filter(|offset| *offset > 0)))
        .unwrap_or(centre)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The search for ends of sentences would take minutes.
    #[test]
    fn sentences_are_found_beside_very_many_marks() {
        for mark in [")", "\u{301}", "\u{93F}", " "] {
            let text = format!("One. Two.{}three. Four.", mark.repeat(1 << 18));
            let found: Vec<&str> = sentences(&text).collect();
            assert_eq!(found.concat(), text);
            assert!(found[0] == "One. " && found.last().unwrap().ends_with("Four."));
        }
        let text = "(One.) \"Two …\" – three.";
        assert_eq!(stretches(text).collect::<Vec<_>>(), [text]);
    }

    #[test]
    fn texts_are_halved_where_a_sentence_ends() {
        for (text, first) in [
            ("One. Two is long, and goes on", "One."),
            ("Abc def. Ghi jkl. Mno", "Abc def."),
            ("(He said \"no.\") Then he left us", "(He said \"no.\")"),
            ("no end in these words", "no end in"),
            ("no end, though there are two commas, in these words", "no end, though there are two commas,"),
            ("no, end in these words: it is so", "no, end in these words:"),
            ("3,5 of these words, no more", "3,5 of these words,"),
            ("no, end in these words", "no, end in"),
            ("一二三，四五六七、八九", "一二三，"),
            ("Mr. Smith and the old dog went", "Mr. Smith and"),
            ("we saw the old Dr. Smith there", "we saw the old"),
            ("So. It went on and on and on and on and on", "So. It went on and on"),
            ("3.14159265", "3.141"),
            ("一二三。四五六七八九", "一二三。"),
            ("「一二三。」四五六七八九", "「一二三。」"),
            ("一二三？！四五六七八九", "一二三？！"),
            ("一二三四五六七八九。。。", "一二三四五六"),
            ("一二三四五六七八九。」", "一二三四五"),
            ("日本語文", "日本"),
            ("กขค\u{200B}งจฉชซ", "กขค"),
            ("a\u{301}a\u{301}a\u{301}", "a\u{301}"),
        ] {
            assert_eq!(text[..middle(text)].trim_end(), first);
        }
    }

    #[test]
    fn sentences_end_where_they_end() {
        for parts in [
            &["One. ", "Two is long, and goes on"][..],
            &["Mrs. J. Smith and Dr. Who met (at St. Pauls). ", "They left."],
            &["It costs 3.50 at 5.30 p.m. in July. ", "Am 3. Mai auch. ", "Im Jahr 1990. ", "Ja!"],
            &["He bought a TV. ", "She has a PC. ", "Dr. Who saw the DVD. ", "Mr. X did not."],
            &["\u{201c}No,\u{201d} she said. ", "He asked why? ", "So it is. "],
            &["一二三。", "四五六！", "七"],
            &["no end"],
            &["3.14159265"],
        ] {
            let text = parts.concat();
            assert_eq!(sentences(&text).collect::<Vec<_>>(), parts);
        }
        assert_eq!(sentences("").count(), 0);
    }
}
