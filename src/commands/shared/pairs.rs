//! Sources and their translations, side by side: two files of lines, or a file and n-best lists.

use std::path::{Path, PathBuf};

use super::input::{Input, shown_name};
use super::line_summary::LineSummary;
use crate::error::{Error, Result};

/// A source and a translation of it.
pub(crate) struct Pair {
    pub source: String,
    pub target: String,
    /// Their lines in the two files, from 1.
    pub lines: [usize; 2],
    /// The other fields of its line, if it is from an n-best list.
    pub entry: Option<Entry>,
}

/// A line of an n-best list, `NUMBER ||| TEXT ||| …`, but for its text.
pub(crate) struct Entry {
    /// The number of its source, from 0.
    pub number: usize,
    /// The other fields.
    pub fields: Vec<String>,
}

/// The separator of fields in an n-best list. Other programs know no escape for it.
pub(crate) const FIELD: &str = " ||| ";

impl Entry {
    /// The entry and the text of a line, if it is one, and whether the text has separators. A field may be empty.
    fn parse(line: &str) -> Option<(Self, String, bool)> {
        // So that no space is missing at the end or between two separators.
        let line = format!("{} ", line.trim_end()).replace("||| |||", "|||  |||");
        let mut fields = line.split(FIELD);
        let number = fields.next()?.trim().parse().ok()?;
        let mut fields: Vec<String> = fields.map(|field| field.trim().to_owned()).collect();
        let other = fields.split_off(words_of_text(&fields)?);
        Some((Self { number, fields: other }, fields.join(FIELD), fields.len() > 1))
    }

    /// Whether it has a feature of this name.
    fn has(&self, name: &str) -> bool {
        let is_it = |word: &str| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        self.fields.iter().flat_map(|field| field.split_whitespace()).any(is_it)
    }

    /// The line with this text and one more feature. The feature goes to the end of the features: the first field with
    /// a name such as `LogProb=`, else an empty field after the text, else a new field.
    pub(crate) fn with(&self, text: &str, name: &str, value: &str) -> String {
        let mut fields = self.fields.clone();
        let is_free = |fields: &[String]| fields.first().is_some_and(String::is_empty);
        let features = fields.iter().position(|field| has_names(field)).or(is_free(&fields).then_some(0));
        match features.and_then(|features| fields.get_mut(features)) {
            Some(features) => *features = format!("{features} {name}= {value}").trim_start().to_owned(),
            None => fields.push(format!("{name}= {value}")),
        }
        [self.number.to_string(), text.to_owned()].into_iter().chain(fields).collect::<Vec<_>>().join(FIELD)
    }
}

/// Whether a field is of features with names, such as `LogProb= -1`.
fn has_names(field: &str) -> bool {
    field.split_whitespace().any(|word| word.len() > 1 && word.ends_with('='))
}

/// Whether a field is of features as old programs write them, such as `d: 0 lm: -12`.
fn has_old_names(field: &str) -> bool {
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let is_name = |word: &str| word.len() > 1 && word.ends_with(':') && !word.starts_with(|c: char| c.is_ascii_digit());
    let mut words = field.split_whitespace();
    let begins = words.next().is_some_and(is_name) && words.next().is_some_and(is_number);
    begins && words.all(|word| is_name(word) || is_number(word))
}

/// How many of the fields after the number are the text, which may have separators in it: all before the features, but
/// for an alignment; without features, all before alignments and numbers at the end. `None` if there is no field.
fn words_of_text(fields: &[String]) -> Option<usize> {
    let all = |field: &str, is_it: &dyn Fn(&str) -> bool| field.split_whitespace().all(is_it);
    let is_link =
        |word: &str| word.contains(['-', '=']) && word.split(['-', '=']).all(|part| part.parse::<u32>().is_ok());
    let is_feature =
        |word: &str| word.split_once('=').is_some_and(|(name, value)| !name.is_empty() && value.parse::<f64>().is_ok());
    let (_, others) = fields.split_first()?;
    let is_named = |field: &String| has_names(field) || has_old_names(field) || all(field, &is_feature);
    let features = others.iter().position(|field| !field.is_empty() && is_named(field));
    let before = others.get(..features.unwrap_or(others.len()))?;
    let is_number = |word: &str| features.is_none() && word.parse::<f64>().is_ok();
    let is_of_text = |field: &String| !all(field, &|word| is_link(word) || is_number(word));
    Some(1 + before.iter().rposition(is_of_text).map_or(0, |last| last + 1))
}

/// The kind of targets.
#[derive(Clone, Copy)]
pub(crate) enum Targets<'a> {
    /// Lines, each the translation of the source line of the same number.
    Lines,
    /// N-best lists, which get a feature of this name if there is one.
    Lists(Option<&'a str>),
}

/// The pairs of two files.
pub(crate) struct Pairs<'a> {
    pub paths: [&'a PathBuf; 2],
    pub inputs: [Input; 2],
    targets: Targets<'a>,
    /// Lines of n-best lists whose text has what separates fields.
    separated: LineSummary,
    /// Lines read of each.
    lines: [usize; 2],
    /// The last source, and whether there is one.
    source: String,
}

/// Pairs of one window, and the error of the pair after them, if that ended the window.
pub(crate) type Window = (Vec<Pair>, Option<Error>);

impl<'a> Pairs<'a> {
    /// Opens the files of sources and of targets.
    ///
    /// # Errors
    /// One cannot be opened.
    pub(crate) fn open(paths: [&'a PathBuf; 2], targets: Targets<'a>) -> Result<Self> {
        let open = |path: &Path| Input::open(Some(path));
        let inputs = [open(paths[0])?, open(paths[1])?];
        Ok(Self { paths, inputs, targets, separated: LineSummary::default(), lines: [0; 2], source: String::new() })
    }

    /// Whether no target has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines[1] == 0
    }

    /// Warnings about the files, as far as they have been read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_list = self.separated.location(self.lines[1], &shown_name(self.paths[1]).to_string_lossy());
        let of_list = of_list.map(|location| {
            format!("there is a ||| before the features in {location}: all before them was taken as the text")
        });
        // Of a file that is both sides, once.
        let inputs = if self.paths[0] == self.paths[1] { &self.inputs[..1] } else { &self.inputs[..] };
        inputs.iter().flat_map(Input::warnings).chain(of_list).collect()
    }

    /// The next pairs; none at the end. From stdin, only pairs that have arrived, but at least one.
    ///
    /// # Errors
    /// The very next pair cannot be read.
    pub(crate) fn read(&mut self) -> Result<Window> {
        /// Pairs processed together: enough to batch by length, few enough to bound memory.
        const WINDOW: usize = 2000;
        const WINDOW_BYTES: usize = 4 << 20;
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        while pairs.len() < WINDOW
            && bytes < WINDOW_BYTES
            && (pairs.is_empty() || !self.inputs.iter().any(Input::may_wait))
        {
            let next = match self.targets {
                Targets::Lines => self.next_of_lines(),
                Targets::Lists(feature) => self.next_of_list(feature),
            };
            match next {
                Ok(Some(pair)) => {
                    bytes += pair.source.len() + pair.target.len();
                    pairs.push(pair);
                }
                Ok(None) => break,
                Err(error) if pairs.is_empty() => return Err(error),
                Err(error) => return Ok((pairs, Some(error))),
            }
        }
        Ok((pairs, None))
    }

    /// The next line of one of the files.
    fn line(&mut self, side: usize) -> Result<Option<String>> {
        let line = self.inputs[side].lines(1)?.pop();
        self.lines[side] += usize::from(line.is_some());
        Ok(line)
    }

    fn next_of_lines(&mut self) -> Result<Option<Pair>> {
        match (self.line(0)?, self.line(1)?) {
            (Some(source), Some(target)) => Ok(Some(Pair { source, target, lines: self.lines, entry: None })),
            (None, None) => Ok(None),
            (source, _) => Err(self.uneven(source.is_some())),
        }
    }

    fn next_of_list(&mut self, feature: Option<&str>) -> Result<Option<Pair>> {
        const HELP: &str = "the lines before it are done";
        let Some(line) = self.line(1)? else { return Ok(None) };
        let at = |error: Error, this: &Self| Err(error.at_line(shown_name(this.paths[1]), this.lines[1], 0));
        let Some((entry, target, is_separated)) = Entry::parse(&line) else {
            let error =
                Error::failure("this is not a line of an n-best list: `NUMBER ||| TEXT ||| …`, numbered from 0");
            return at(error.help(HELP), self);
        };
        if is_separated {
            self.separated.add(self.lines[1]);
        }
        if let Some(name) = feature.filter(|name| entry.has(name)) {
            let error = Error::failure(format!("the line has a feature `{name}=` already"));
            return at(error.help(format!("name the new one with --feature; {HELP}")), self);
        }
        if entry.number.saturating_add(1) < self.lines[0] {
            let (number, before) = (entry.number, self.lines[0] - 1);
            let error = Error::failure(format!("the number {number} follows {before}, but they must not fall"));
            return at(error.help("sort the list by its numbers; the lines before it are done"), self);
        }
        while self.lines[0] <= entry.number {
            let Some(source) = self.line(0)? else {
                let (sources, number) = (self.lines[0], entry.number);
                let what = format!("there is no source {number}: {} has {sources} lines", self.paths[0].display());
                return at(Error::failure(what).help("the sources are numbered from 0"), self);
            };
            self.source = source;
        }
        Ok(Some(Pair { source: self.source.clone(), target, lines: self.lines, entry: Some(entry) }))
    }

    fn uneven(&self, source_goes_on: bool) -> Error {
        let [short, long] =
            if source_goes_on { [1, 0] } else { [0, 1] }.map(|side: usize| shown_name(self.paths[side]));
        let lines = self.lines[0].min(self.lines[1]);
        let s = if lines == 1 { "" } else { "s" };
        let what = format!("{} ends after {lines} line{s}, but {} goes on", short.display(), long.display());
        Error::failure(what).help("the two must be aligned line by line; the lines before that are done")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    fn texts(pairs: &[Pair]) -> Vec<[&str; 2]> {
        pairs.iter().map(|pair| [pair.source.as_str(), &pair.target]).collect()
    }

    /// Pairs before the damage are scored, and the error names the damaged line.
    #[test]
    fn damage_in_one_file_costs_the_pairs_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let [source, target] = ["source.gz", "target"].map(|name| folder.path().join(name));
        // The second member of the compressed file ends right after its header.
        let cut = gzip("d\ne\n")[..12].to_vec();
        std::fs::write(&target, "A\nB\nC\nD\nE\n").unwrap();
        for damaged_first in [true, false] {
            std::fs::write(&source, [gzip("a\nb\nc\n"), cut.clone()].concat()).unwrap();
            let paths = if damaged_first { [&source, &target] } else { [&target, &source] };
            let (pairs, refused) = Pairs::open(paths, Targets::Lines).unwrap().read().unwrap();
            let mut found = texts(&pairs);
            if !damaged_first {
                found.iter_mut().for_each(|pair| pair.reverse());
            }
            assert_eq!(found, [["a", "A"], ["b", "B"], ["c", "C"]]);
            let error = refused.unwrap().to_string();
            assert!(error.contains("source.gz:4") && error.contains("the lines before it are done"), "{error}");
            // With nothing before it there is nothing to write.
            std::fs::write(&source, &cut).unwrap();
            assert!(Pairs::open(paths, Targets::Lines).unwrap().read().is_err());
        }
    }

    #[test]
    fn n_best_lists_are_read_beside_their_sources() {
        let folder = tempfile::tempdir().unwrap();
        let [source, list] = ["source", "list"].map(|name| folder.path().join(name));
        std::fs::write(&source, "a\nb\nc\n").unwrap();
        let read = |lines: &str| {
            std::fs::write(&list, lines).unwrap();
            let mut pairs = Pairs::open([&source, &list], Targets::Lists(Some("Score"))).unwrap();
            pairs.read().map(|(pairs, error)| {
                (texts(&pairs).iter().map(|pair| pair.join("/")).collect::<Vec<_>>(), error.map(|e| e.to_string()))
            })
        };
        // Sources without translations are passed over; a text may be empty.
        let whole = "0 ||| A ||| LogProb= -1 ||| -0.5\n0 ||| A2\n2 ||| C c\n2 |||  ||| F= 1\n2 ||| ||| F= 1\n";
        assert_eq!(read(whole).unwrap(), (["a/A", "a/A2", "c/C c", "c/", "c/"].map(str::to_owned).to_vec(), None));
        for (lines, told) in [
            ("0 ||| A\n1 ||| B\n0 ||| A\n", "list:3"),
            ("0 ||| A\n1 ||| B\n3 ||| D\n", "no source 3"),
            ("0 ||| A\n1 ||| B\n18446744073709551615 ||| D\n", "no source 18446744073709551615"),
            ("0 ||| A\n1 ||| B\nC\n", "not a line of an n-best list"),
            ("0 ||| A\n1 ||| B\nx ||| C\n", "list:3"),
            ("0 ||| A\n1 ||| B ||| ScoreB= 1\n1 ||| B ||| Score= -1\n", "has a feature `Score=` already"),
            ("0 ||| A\n1 ||| B\n1 ||| B ||| lm=1 Score=-1\n", "--feature"),
        ] {
            let (found, error) = read(lines).unwrap();
            assert_eq!(found, ["a/A", "b/B"]);
            assert!(error.as_ref().is_some_and(|error| error.contains(told) && error.contains("list:3")), "{error:?}");
        }
    }

    #[test]
    fn a_score_joins_the_features() {
        for (line, with) in [
            ("3 ||| a b", "3 ||| a b ||| Score= -1"),
            ("3 ||| a ||| LogProb= -2 ||| -0.5", "3 ||| a ||| LogProb= -2 Score= -1 ||| -0.5"),
            ("3 ||| a ||| F0= 1 2 LM= 3 ||| 7 ||| 0-0", "3 ||| a ||| F0= 1 2 LM= 3 Score= -1 ||| 7 ||| 0-0"),
            ("3 ||| a ||| 0-0 ||| LogProb= -2 ||| -0.5", "3 ||| a ||| 0-0 ||| LogProb= -2 Score= -1 ||| -0.5"),
            ("3 ||| a = b ||| 0-0", "3 ||| a = b ||| 0-0 ||| Score= -1"),
            ("3 ||| a ||| ||| -3", "3 ||| a ||| Score= -1 ||| -3"),
            ("3 ||| a |||", "3 ||| a ||| Score= -1"),
        ] {
            let (entry, text, _) = Entry::parse(line).unwrap();
            assert_eq!(entry.with(&text, "Score", "-1"), with);
        }
    }

    /// As far as the lines show.
    #[test]
    fn a_text_may_have_separators() {
        for (line, text) in [
            ("0 ||| left ||| right ||| LogProb= -1 ||| -1", "left ||| right"),
            ("0 ||| left ||| 5 ||| LogProb= -1 ||| -1", "left ||| 5"),
            ("0 ||| a ||| ||| b ||| 0-0 1-1 ||| LogProb= -1 ||| -1", "a |||  ||| b"),
            ("0 ||| a ||| b ||| lm=-1 tm=-2.5 ||| -1", "a ||| b"),
            ("0 ||| a ||| b", "a ||| b"),
            ("0 ||| a ||| b ||| -1", "a ||| b"),
            ("0 ||| a ||| LogProb= -1 ||| -1 ||| |0-1| |2-2|", "a"),
            ("0 ||| a ||| 0-0=1-1 ||| -1", "a"),
            ("0 ||| a= 1 ||| F0= -1", "a= 1"),
            ("0 ||| |||  ||| -1", ""),
            ("0 ||| a ||| d: 0 lm: -12.5 w: -5 ||| -5.3", "a"),
            ("0 ||| a ||| b: 5 or so ||| -5.3", "a ||| b: 5 or so"),
        ] {
            let (_, found, is_separated) = Entry::parse(line).unwrap();
            assert_eq!((found.as_str(), is_separated), (text, text.contains("|||")), "{line}");
        }
    }
}
