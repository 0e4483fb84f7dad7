//! Findings on a pair: its lengths, scripts and languages, compared with those of its corpus.

use std::collections::HashMap;

use unicode_script::{Script, UnicodeScript};
use unicode_width::UnicodeWidthChar;

use super::Kind;
use super::words::Words;
use crate::data::corpus::Side;

/// A side more than this many times longer than the other, in letters, is no translation …
const RATIO: usize = 9;
/// … if it has at least this many letters: short lines differ by chance.
const RATIO_FROM: usize = 30;
/// A wide character (Han, kana, Hangul) carries about as much information as this many letters.
const WIDE: usize = 3;
/// A line with fewer letters has no script of its own.
const LETTERS: usize = 5;
/// Share of a file's lines that must be mostly in one script for it to be the file's.
const USUAL: f64 = 0.9;
/// Known words that a line needs to be judged by its language, …
const WORDS: usize = 4;
/// … and the mean log-odds that it needs, in nats.
const CLEAR: f64 = 1.5;

/// The script that nearly all lines of a side are mostly in, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scripts(pub(super) [Option<Script>; 2]);

/// The scripts of a corpus, and the words of each side.
pub(super) struct Languages<'w> {
    pub(super) scripts: Scripts,
    pub(super) words: &'w Words,
}

impl Languages<'_> {
    /// Oddities of a pair, each with its side.
    pub(super) fn findings(&self, source: &[u8], target: &[u8]) -> Vec<(Kind, Side)> {
        let (Ok(source), Ok(target)) = (std::str::from_utf8(source), std::str::from_utf8(target)) else {
            return Vec::new();
        };
        let (source, target) = (source.trim(), target.trim());
        if source.is_empty() || target.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        let is_text = source.contains(char::is_alphabetic);
        if source == target && is_text {
            found.push((Kind::Identical, Side::Source));
        }
        let [shorter, longer] = {
            let mut lengths = [source, target].map(letters);
            lengths.sort_unstable();
            lengths
        };
        if longer >= RATIO_FROM && longer > RATIO * shorter {
            found.push((Kind::Ratio, Side::Source));
        }
        let sides = [(Side::Source, source), (Side::Target, target)];
        let [a, b] = sides.map(|(_, text)| script(text));
        let Scripts(usual) = self.scripts;
        if a.is_some() && b.is_some() && usual == [b, a] && a != b {
            found.push((Kind::Swapped, Side::Source));
            return found;
        }
        for ((side, _), (found_in, usual)) in sides.iter().zip([a, b].into_iter().zip(usual)) {
            if found_in.is_some() && usual.is_some() && found_in != usual {
                found.push((Kind::Script, *side));
            }
        }
        // Positive for the source's language.
        let [a, b] = sides.map(|(_, text)| self.words.language(text, WORDS));
        match (a, b) {
            (Some(a), Some(b)) if a < -CLEAR && b > CLEAR => found.push((Kind::Swapped, Side::Source)),
            (Some(a), _) if a < -CLEAR && source != target => found.push((Kind::Language, Side::Source)),
            (_, Some(b)) if b > CLEAR && source != target => found.push((Kind::Language, Side::Target)),
            _ => {}
        }
        found
    }
}

/// How long a text is in letters; a wide character counts as several.
fn letters(text: &str) -> usize {
    text.chars().map(|c| if c.width() == Some(2) { WIDE } else { 1 }).sum()
}

/// The script of nearly all of these lines.
pub(super) fn usual_script(of_lines: impl Iterator<Item = Script>) -> Option<Script> {
    let mut lines_of: HashMap<Script, usize> = HashMap::new();
    of_lines.for_each(|script| *lines_of.entry(script).or_default() += 1);
    let lines: usize = lines_of.values().sum();
    let usual = lines_of.into_iter().max_by_key(|(script, lines)| (*lines, script.full_name()));
    usual.filter(|(_, of)| *of as f64 >= USUAL * lines as f64).map(|(script, _)| script)
}

/// The script of most letters. Japanese mixes three, which count as one.
pub(super) fn script(text: &str) -> Option<Script> {
    let mut counts: HashMap<Script, usize> = HashMap::new();
    for c in text.chars().filter(|c| c.is_alphabetic()) {
        let script = match c.script() {
            Script::Hiragana | Script::Katakana => Script::Han,
            script => script,
        };
        *counts.entry(script).or_default() += 1;
    }
    let all: usize = counts.values().sum();
    let (script, most) = counts.into_iter().max_by_key(|(script, count)| (*count, script.full_name()))?;
    (all >= LETTERS && 2 * most > all && !matches!(script, Script::Common | Script::Inherited)).then_some(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::check::words::Sample;
    use crate::data::text::raw;

    const ENGLISH: [&str; 6] = [
        "the dog runs over the green grass",
        "a woman reads a book in the park",
        "two men are sitting on the bench",
        "the children play with a red ball",
        "a man in the street sells old books",
        "the cat sleeps under the kitchen table",
    ];
    const GERMAN: [&str; 6] = [
        "der Hund läuft über das grüne Gras",
        "eine Frau liest im Park ein Buch",
        "zwei Männer sitzen auf der Bank",
        "die Kinder spielen mit einem roten Ball",
        "ein Mann auf der Straße verkauft alte Bücher",
        "die Katze schläft unter dem Küchentisch",
    ];

    /// The words and scripts of these pairs, each twenty times.
    fn learnt(source: &[&str], target: &[&str]) -> (Words, Scripts) {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["source", "target"].map(|name| folder.path().join(name));
        for (path, text) in paths.iter().zip([source, target]) {
            std::fs::write(path, text.repeat(20).join("\n")).unwrap();
        }
        let mut sample = Sample::default();
        let mut sampler = sample.sampler();
        raw::windows_of_files(paths.each_ref().map(|path| path.as_path()), |sides| sampler.add(&sides)).unwrap();
        let scripts = sampler.scripts();
        (sample.learn(false), scripts)
    }

    fn found(languages: &Languages, source: &str, target: &str) -> Vec<Kind> {
        languages.findings(source.as_bytes(), target.as_bytes()).into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn words_distinguish_languages_of_one_script() {
        let (words, scripts) = learnt(&ENGLISH, &GERMAN);
        let languages = Languages { scripts, words: &words };
        for (english, german) in ENGLISH.iter().zip(GERMAN) {
            assert_eq!(found(&languages, english, german), []);
            assert_eq!(found(&languages, german, english), [Kind::Swapped]);
            assert_eq!(found(&languages, english, english), [Kind::Identical]);
        }
        assert_eq!(found(&languages, ENGLISH[0], ENGLISH[1]), [Kind::Language]);
        assert_eq!(languages.findings(GERMAN[0].as_bytes(), GERMAN[1].as_bytes()), [(Kind::Language, Side::Source)]);
        // Names and numbers are the same in both.
        assert_eq!(found(&languages, "1984", "1984"), []);
        assert_eq!(found(&languages, "Anna Schmidt, Wien", "Anna Schmidt, Vienna"), []);
    }

    #[test]
    fn scripts_other_than_the_file_s_are_found() {
        let russian = ["собака бежит по траве", "женщина читает книгу в парке"];
        let (words, scripts) = learnt(&ENGLISH, &russian);
        let languages = Languages { scripts, words: &words };
        assert_eq!(found(&languages, ENGLISH[0], russian[0]), []);
        assert_eq!(found(&languages, russian[0], ENGLISH[0]), [Kind::Swapped]);
        assert_eq!(
            languages.findings(ENGLISH[0].as_bytes(), "犬が草の上を走っている".as_bytes()),
            [(Kind::Script, Side::Target)]
        );
        assert!(found(&languages, ENGLISH[0], ENGLISH[1]).contains(&Kind::Script));
        assert_eq!(script("犬が草の上を走っている。"), Some(Script::Han));
        assert_eq!(script("12 % – 3"), None);
    }

    #[test]
    fn lengths_of_no_translation_are_found() {
        let (words, scripts) = learnt(&ENGLISH, &GERMAN);
        let languages = Languages { scripts, words: &words };
        assert_eq!(found(&languages, "ja", &"zzzz ".repeat(10)), [Kind::Ratio]);
        // At 30 characters and more, and more than nine times as long.
        for (shorter, longer, is_told) in [(4, 36, false), (4, 37, true), (3, 29, false), (3, 30, true)] {
            let [shorter, longer] = [shorter, longer].map(|length| "z".repeat(length));
            assert_eq!(found(&languages, &shorter, &longer) == [Kind::Ratio], is_told, "{shorter} {longer}");
        }
        assert_eq!(found(&languages, "I", "zzzz zzzz zzzz"), []);
        // Four Han characters are a sentence.
        let han = |text| found(&languages, "He kept on going no matter what happened.", text).contains(&Kind::Ratio);
        assert!(!han("百折不撓") && han("不"));
    }
}
