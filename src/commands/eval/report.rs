//! `mt eval --report`: where translations fail, in words or as JSON.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};
use similar::{ChangeTag, TextDiff};

use super::test_set::System;
use crate::error::Result;
use crate::metrics::analysis::{self, OddLines, Oddity, OfFrequency, OfLength, Texts};
use crate::metrics::{BleuOptions, ChrfOptions, Metric, Statistics, TextMetric, Tokenize};

/// How many of the worst, the best, and the most different lines to show.
const SHOWN: usize = 5;
/// The most characters to show of a line.
const LONGEST: usize = 400;

/// Where the translations of some systems fail.
pub(super) struct Report<'a> {
    sources: Option<&'a [String]>,
    references: &'a [String],
    systems: &'a [System],
    /// Keys and names.
    metrics: Vec<(&'static str, String)>,
    /// How text is split into words, and whether case is ignored.
    bleu: BleuOptions,
    /// The name of the text that word frequencies are from.
    counted: String,
    of_systems: Vec<OfSystem>,
    /// Lines by how much better the second system is than the first, by sentence chrF.
    differences: Vec<(usize, f64)>,
}

struct OfSystem {
    lengths: Vec<OfLength>,
    frequencies: Vec<OfFrequency>,
    oddities: Vec<(Oddity, OddLines)>,
    /// chrF of every line.
    chrf: Vec<f64>,
    /// Lines from the worst to the best.
    order: Vec<usize>,
}

impl<'a> Report<'a> {
    /// Analyses all systems, with the tokenization and case of `bleu`. `frequencies` are the word counts of a text,
    /// with its name.
    pub(super) fn new(
        metrics: &[Box<dyn TextMetric>],
        sources: Option<&'a [String]>,
        references: &'a [Vec<String>],
        systems: &'a [System],
        bleu: BleuOptions,
        (frequencies, counted): (&HashMap<String, usize>, String),
    ) -> Result<Self> {
        let chrf = ChrfOptions { lowercase: bleu.lowercase, ..ChrfOptions::default() };
        let of_system = |(_, hypotheses): &'a System| -> Result<OfSystem> {
            let texts = Texts { sources, references: &references[0], hypotheses, bleu: &bleu };
            let statistics = metrics
                .iter()
                .map(|metric| Statistics::new(metric.as_ref(), hypotheses, references))
                .collect::<Result<Vec<_>>>()?;
            let scored: Vec<(&dyn Metric, &Statistics)> =
                metrics.iter().map(|metric| &**metric as &dyn Metric).zip(&statistics).collect();
            let of_lines = Statistics::new(&chrf, hypotheses, references)?;
            let chrf: Vec<f64> = of_lines.lines().map(|line| chrf.score(line)).collect();
            let mut order: Vec<usize> = (0..chrf.len()).collect();
            order.sort_by(|a, b| chrf[*a].total_cmp(&chrf[*b]));
            Ok(OfSystem {
                lengths: analysis::by_length(&texts, &scored),
                frequencies: analysis::by_frequency(&texts, frequencies),
                oddities: analysis::oddities(&texts),
                chrf,
                order,
            })
        };
        let of_systems = systems.iter().map(of_system).collect::<Result<Vec<_>>>()?;
        let mut differences: Vec<(usize, f64)> = match &of_systems[..] {
            [first, second, ..] => (0..first.chrf.len()).map(|i| (i, second.chrf[i] - first.chrf[i])).collect(),
            _ => Vec::new(),
        };
        differences.retain(|(line, _)| cased(&systems[0].1[*line], &bleu) != cased(&systems[1].1[*line], &bleu));
        differences.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
        let metrics = metrics.iter().map(|metric| (metric.key(), metric.name())).collect();
        Ok(Self { sources, references: &references[0], systems, metrics, bleu, counted, of_systems, differences })
    }

    /// `[{"hyp", "lengths", "words", "oddities", "worst", "best"}, …]`, and `differences` of the first two systems.
    pub(super) fn json(&self) -> Value {
        let of_system = |((name, lines), of): (&System, &OfSystem)| {
            let length = |bucket: &OfLength| {
                let mut json = json!({ "from": bucket.words.start(), "to": end(&bucket.words), "lines": bucket.lines });
                for ((key, _), score) in self.metrics.iter().zip(&bucket.scores) {
                    json[*key] = json!(score);
                }
                json
            };
            let word = |of: &OfFrequency| {
                json!({
                    "from": of.times.start(), "to": end(&of.times), "references": of.in_references,
                    "hypotheses": of.in_hypotheses, "matched": of.matched, "f1": of.f1(),
                })
            };
            let oddity = |(oddity, found): &(Oddity, OddLines)| {
                (oddity.key().to_owned(), json!({ "count": found.count, "lines": found.lines }))
            };
            let line = |line: &usize| {
                json!({
                    "line": line + 1, "chrf": of.chrf[*line], "source": self.sources.map(|sources| &sources[*line]),
                    "reference": self.references[*line], "hypothesis": lines[*line],
                })
            };
            json!({
                "hyp": name,
                "lengths": of.lengths.iter().map(length).collect::<Vec<_>>(),
                "words": of.frequencies.iter().map(word).collect::<Vec<_>>(),
                "oddities": of.oddities.iter().map(oddity).collect::<Map<_, _>>(),
                "worst": of.order.iter().take(SHOWN).map(line).collect::<Vec<_>>(),
                "best": of.order.iter().rev().take(SHOWN).map(line).collect::<Vec<_>>(),
            })
        };
        let difference = |(line, gain): &(usize, f64)| {
            json!({
                "line": line + 1, "chrf": gain, "reference": self.references[*line],
                "hypotheses": [self.systems[0].1[*line], self.systems[1].1[*line]],
            })
        };
        json!({
            "systems": self.systems.iter().zip(&self.of_systems).map(of_system).collect::<Vec<_>>(),
            "differences": self.differences.iter().take(SHOWN).map(difference).collect::<Vec<_>>(),
        })
    }

    /// The systems' names, without directories if they still differ.
    fn names(&self) -> Vec<String> {
        let short = |(name, _): &System| {
            Path::new(name).file_name().map_or_else(|| name.clone(), |name| name.to_string_lossy().into_owned())
        };
        let names: Vec<String> = self.systems.iter().map(short).collect();
        let are_unique = names.iter().collect::<HashSet<_>>().len() == names.len();
        if are_unique { names } else { self.systems.iter().map(|(name, _)| name.clone()).collect() }
    }

    /// As text, for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let names = self.names();
        for ((name, (_, lines)), of) in names.iter().zip(self.systems).zip(&self.of_systems) {
            let title = if self.systems.len() > 1 { format!("{name}: ") } else { String::new() };
            let side = if self.sources.is_some() { "source" } else { "reference" };
            let rows = of.lengths.iter().map(|bucket| {
                let scores = bucket.scores.iter().map(|score| format!("{score:.1}"));
                [in_words(&bucket.words), bucket.lines.to_string()].into_iter().chain(scores).collect()
            });
            let head = [format!("words of the {side}"), "lines".to_owned()]
                .into_iter()
                .chain(self.metrics.iter().map(|(_, name)| name.clone()));
            text += &format!("{title}by length\n{}\n\n", table(head.collect(), rows));
            let rows = of.frequencies.iter().map(|words| {
                let numbers =
                    [words.in_references, words.in_hypotheses, words.matched].map(|number| number.to_string());
                [in_words(&words.times)].into_iter().chain(numbers).chain([format!("{:.1}", words.f1())]).collect()
            });
            let head = ["times", "in references", "translated", "right", "F1"].map(str::to_owned).to_vec();
            text += &format!("{title}by how often a word occurs in {}\n{}\n\n", self.counted, table(head, rows));
            let found = of.oddities.iter().filter(|(_, found)| found.count > 0);
            let rows = found.map(|(oddity, found)| {
                let more = if found.count > found.lines.len() { ", …" } else { "" };
                let lines: Vec<String> = found.lines.iter().map(usize::to_string).collect();
                vec![oddity.text().to_owned(), found.count.to_string(), lines.join(", ") + more]
            });
            let rows: Vec<Vec<String>> = rows.collect();
            if rows.is_empty() {
                text += &format!("{title}no line is empty, looping, copied, untranslated, cut off or too long\n\n");
            } else {
                let head = ["translation", "lines", "which"].map(str::to_owned).to_vec();
                text += &format!("{title}odd lines\n{}\n\n", table(head, rows.into_iter()));
            }
            let mut show = |what: &str, order: &mut dyn Iterator<Item = &usize>| {
                text += &format!("{title}{what} by chrF\n");
                for &line in order.take(SHOWN) {
                    text += &format!("  line {}, chrF {:.1}\n", line + 1, of.chrf[line]);
                    if let Some(sources) = self.sources {
                        text += &format!("    source       {}\n", shown(&sources[line]));
                    }
                    text += &format!(
                        "    reference    {}\n    translation  {}\n",
                        shown(&self.references[line]),
                        shown(&lines[line])
                    );
                }
                text.push('\n');
            };
            show("worst", &mut of.order.iter());
            show("best", &mut of.order.iter().rev());
        }
        if let ([first, second, ..], [a, b, ..]) = (self.systems, &names[..]) {
            text += &format!(
                "lines in which {a} and {b} differ most: how much chrF is better in the second; \
                 [ ] marks words of one alone\n"
            );
            if self.differences.is_empty() {
                text += "  no line differs\n";
            }
            for (line, gain) in self.differences.iter().take(SHOWN) {
                let [first, second] = marked(&shown(&first.1[*line]), &shown(&second.1[*line]), &self.bleu);
                text += &format!(
                    "  line {}, {gain:+.1}\n    reference    {}\n    {:<12} {first}\n    {:<12} {second}\n",
                    line + 1,
                    shown(&self.references[*line]),
                    "first",
                    "second"
                );
            }
            text.push('\n');
        }
        text.trim_end().to_owned()
    }
}

/// A line that is safe for a terminal: control characters are replaced, and it is cut if it is very long.
fn shown(line: &str) -> String {
    let mut shown: String =
        line.chars().take(LONGEST).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if line.chars().nth(LONGEST).is_some() {
        shown += " …";
    }
    shown
}

/// Text as it is compared.
fn cased<'t>(text: &'t str, bleu: &BleuOptions) -> Cow<'t, str> {
    if bleu.lowercase { text.to_lowercase().into() } else { text.into() }
}

/// Two lines, with brackets around the words (or characters, depending on the tokenizer) that only one of them has.
fn marked(a: &str, b: &str, bleu: &BleuOptions) -> [String; 2] {
    let of_characters = matches!(bleu.tokenize, Tokenize::Char | Tokenize::Zh);
    let parts = |line: &'_ str| -> Vec<String> {
        if of_characters {
            line.chars().map(String::from).collect()
        } else {
            line.split_whitespace().map(str::to_owned).collect()
        }
    };
    let between = if of_characters { "" } else { " " };
    let lines = [a, b].map(parts);
    let compared = lines.each_ref().map(|line| line.iter().map(|part| cased(part, bleu)).collect::<Vec<_>>());
    let [a, b] = compared.each_ref().map(|line| line.iter().map(AsRef::as_ref).collect::<Vec<&str>>());
    let diff = TextDiff::from_slices(&a, &b);
    let side = |own: ChangeTag| {
        // The original words: the compared ones may be lower-cased.
        let mut words = lines[usize::from(own == ChangeTag::Insert)].iter();
        let mut out: Vec<String> = Vec::new();
        let mut inside = false;
        for change in diff.iter_all_changes().filter(|change| change.tag() == own || change.tag() == ChangeTag::Equal) {
            let is_own = change.tag() == own;
            let Some(word) = words.next() else { break };
            match out.last_mut() {
                // Neighbours share a pair of brackets.
                Some(last) if is_own && inside => {
                    last.pop();
                    *last += &format!("{between}{word}]");
                }
                _ if is_own => out.push(format!("[{word}]")),
                _ => out.push(word.clone()),
            }
            inside = is_own;
        }
        out.join(between)
    };
    [side(ChangeTag::Delete), side(ChangeTag::Insert)]
}

fn end(range: &RangeInclusive<usize>) -> Option<usize> {
    (*range.end() < usize::MAX).then_some(*range.end())
}

fn in_words(range: &RangeInclusive<usize>) -> String {
    match end(range) {
        Some(end) if end == *range.start() => end.to_string(),
        Some(end) => format!("{}-{end}", range.start()),
        None => format!("{} or more", range.start()),
    }
}

fn table(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(head).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_in_brackets() {
        let bleu = &BleuOptions::default();
        let [a, b] = marked("the old cat sat here", "the very big cat sat down", bleu);
        assert_eq!((a.as_str(), b.as_str()), ("the [old] cat sat [here]", "the [very big] cat sat [down]"));
        assert_eq!(marked("", "a b", bleu), [String::new(), "[a b]".to_owned()]);
        let [a, b] = marked("The Cat sat", "the old cat Sat", &BleuOptions { lowercase: true, ..*bleu });
        assert_eq!((a.as_str(), b.as_str()), ("The Cat sat", "the [old] cat Sat"));
        let chinese = &BleuOptions { tokenize: Tokenize::Zh, ..*bleu };
        let [a, b] = marked("狗忘记了桥。", "狗在忘了桥。", chinese);
        assert_eq!((a.as_str(), b.as_str()), ("狗忘[记]了桥。", "狗[在]忘了桥。"));
    }

    #[test]
    fn case_counts_unless_bleu_ignores_it() {
        let texts = |lines: [&str; 2]| lines.map(str::to_owned).to_vec();
        let references = [texts(["Die Katze schläft", "Sie singt"])];
        let systems = ["a", "b"]
            .map(str::to_owned)
            .into_iter()
            .zip([["die katze schläft", "sie singt"], ["Die Katze schläft", "Sie springt"]].map(texts));
        let systems: Vec<System> = systems.collect();
        let differing = |lowercase| {
            let bleu = BleuOptions { lowercase, ..BleuOptions::default() };
            let report = Report::new(&[], None, &references, &systems, bleu, (&HashMap::new(), String::new())).unwrap();
            let is_perfect = report.of_systems[0].chrf.iter().all(|chrf| (chrf - 100.0).abs() < 1e-9);
            (report.differences.len(), is_perfect)
        };
        assert_eq!((differing(false), differing(true)), ((2, false), (1, true)));
    }

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        assert_eq!(shown("a\u{1b}[31mb\tc"), "a\u{fffd}[31mb\u{fffd}c");
        assert_eq!(shown(&"ä".repeat(500)), "ä".repeat(400) + " …");
    }
}
