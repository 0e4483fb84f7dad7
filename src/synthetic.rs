//! Synthetic training text: translations of whole corpora, made in parts that survive an interruption, and the choice
//! of those that are worth training on.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decode::translate::Translation;
use crate::error::{Error, Result};
use crate::file::{self, Folder, Staged};

/// Lines of a part.
pub const PART_LINES: usize = 2048;
/// Says what the parts were made of.
const JOB: &str = "job.json";

/// A translation as a part has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// The translation.
    pub text: String,
    /// Its log-probability, natural logarithm.
    pub log_prob: f64,
    /// Tokens that have a share in it, the end counted.
    pub tokens: usize,
    /// Whether the whole source was translated, to its end.
    pub is_finished: bool,
}

impl Made {
    /// Whether its text is one line, as all translations are.
    fn is_of_one_line(&self) -> bool {
        !self.text.contains(['\n', '\r'])
    }

    /// The best of a line's translations, whose first `given` tokens, a language, were not predicted.
    pub fn new(translation: &Translation, given: usize) -> Self {
        let best = translation.best();
        // JSON knows no infinity, which an impossible token has.
        let is_possible = best.log_prob.is_finite();
        Self {
            text: best.text.clone(),
            log_prob: if is_possible { best.log_prob } else { 0.0 },
            tokens: best.token_log_probs.len().saturating_sub(given),
            is_finished: is_possible && best.finished() && !translation.source_cut,
        }
    }
}

/// Which of several processes makes which parts: `2/8` is the second of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Shard {
    /// Makes all parts.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match numbers {
            Some((index @ 1.., count)) if index <= count => Ok(Self { index: index - 1, count }),
            _ => Err("give the number of this share and that of all, such as 2/8".to_owned()),
        }
    }
}

/// The parts of a corpus, in a folder.
pub struct Parts {
    folder: Folder,
}

impl Parts {
    /// Those in a folder below `root`; both are made if they are missing, and nothing is written through a link below
    /// `root`. `job` says what decides the translations.
    ///
    /// # Errors
    /// The folder has parts of another job, or other files, or cannot be written.
    pub fn open(root: &Path, below: &str, job: &Value) -> Result<Self> {
        let path = root.join(below);
        let opened = fs::create_dir_all(root).and_then(|()| Folder::open(root)?.made_below(Path::new(below)));
        let folder = opened.map_err(|error| {
            let is_file = [ErrorKind::AlreadyExists, ErrorKind::NotADirectory].contains(&error.kind());
            let error = Error::io("make the folder", &path, error);
            if is_file { error.help("a file has the name of a folder; give another folder") } else { error }
        });
        let parts = Self { folder: folder? };
        if !parts.folder.has(JOB) {
            let names = parts.folder.names().map_err(|error| Error::io("read the folder", &path, error))?;
            // What another process has begun to write, which may have been killed.
            let is_begun = |name: &OsString| name.to_string_lossy().starts_with(&format!(".{JOB}."));
            if names.iter().all(is_begun) {
                parts.replace(JOB, &job.to_string())?;
            } else if !parts.folder.has(JOB) {
                // Nor has another process written it meanwhile.
                let error = Error::usage("this folder has files that are no translations of mt");
                return Err(error.at(&path).help("give another folder, or move the files away"));
            }
        }
        let Some(known) = parts.text(JOB).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok()) else {
            let error = Error::failure("this file is damaged, so it is not known what made the translations");
            return Err(error.at(path.join(JOB)).help("remove the folder, to make them again"));
        };
        if known != *job {
            let what = format!("these translations were made with {}", differences(&known, job));
            let help = "repeat the command as it was; or remove the folder, or give another one";
            return Err(Error::usage(what).at(&path).help(help));
        }
        Ok(parts)
    }

    fn name(number: usize) -> String {
        format!("part-{number:06}.jsonl")
    }

    /// Whether a part has been made.
    pub fn has(&self, number: usize) -> bool {
        self.folder.has(Self::name(number))
    }

    /// Writes a part, at once or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, number: usize, made: &[Made]) -> Result<()> {
        let line = |made: &Made| serde_json::to_string(made).map(|line| line + "\n");
        let lines: serde_json::Result<String> = made.iter().map(line).collect();
        let lines = lines.map_err(|error| Error::failure("cannot write translations").caused_by(error))?;
        self.replace(&Self::name(number), &lines)
    }

    /// Reads a part of so many lines.
    ///
    /// # Errors
    /// It is damaged, or has another number of lines.
    pub fn read(&self, number: usize, lines: usize) -> Result<Vec<Made>> {
        let name = Self::name(number);
        let made: serde_json::Result<Vec<Made>> = self.text(&name)?.lines().map(serde_json::from_str).collect();
        match made {
            Ok(made) if made.len() == lines && made.iter().all(Made::is_of_one_line) => Ok(made),
            _ => {
                let error = Error::failure(format!("this is not what mt wrote of {lines} lines"));
                let error = error.at(self.folder.path().join(name));
                Err(error.help("remove the file: the same command makes it again"))
            }
        }
    }

    fn text(&self, name: &str) -> Result<String> {
        let path = self.folder.path().join(name);
        file::read_own_text(&path).map_err(|error| Error::io("read", path, error))
    }

    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let replaced = self.folder.replace_shared(name, text.as_bytes());
        replaced.map_err(|error| Error::io("write", self.folder.path().join(name), error))
    }
}

/// What differs in two jobs, in words.
fn differences(one: &Value, other: &Value) -> String {
    let named = [
        (&["text", "lines"][..], "other text"),
        (&["tag", "languages"], "another tag or other languages"),
        (&["models"], "other models"),
        (&["weights"], "other weights of the models"),
        (&["precision"], "another --precision"),
        (&["options"], "other flags for searching"),
    ];
    let differs = |keys: &&[&str]| keys.iter().any(|key| one[*key] != other[*key]);
    let found: Vec<&str> = named.iter().filter(|(keys, _)| differs(keys)).map(|(_, name)| *name).collect();
    if found.is_empty() { "another version of mt".to_owned() } else { found.join(", ") }
}

/// Which translations are worth training on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    /// The share with the best mean log-probability a token that stays, above 0 and at most 1.
    pub keep: f64,
    /// How many times longer or shorter than usual, for its source, a translation may be; at least 1.
    pub tolerance: f64,
}

/// How many lines stay, and why others do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All.
    pub lines: usize,
    /// Source or translation are blank.
    pub blank: usize,
    /// The translation does not end, or the source was cut.
    pub unfinished: usize,
    /// The translation is far longer or shorter than usual.
    pub odd_length: usize,
    /// The model is less sure of it than of others.
    pub unlikely: usize,
    /// Those that stay.
    pub kept: usize,
}

/// A [`Selection`] for the translations of a corpus.
#[derive(Clone, Debug)]
pub struct Chosen {
    selection: Selection,
    /// Mean log-probabilities a token, and logarithms of relative lengths, until [`Self::settle`].
    seen: Vec<[f32; 2]>,
    /// The usual logarithm of the relative length.
    usual: f32,
    /// The least mean log-probability a token.
    least: f32,
    /// What [`Self::takes`] has found.
    pub counts: Counts,
}

impl Chosen {
    /// Nothing has been seen yet.
    pub fn new(selection: Selection) -> Self {
        let (usual, least) = (0.0, f32::NEG_INFINITY);
        Self { selection, seen: Vec::new(), usual, least, counts: Counts::default() }
    }

    /// The mean log-probability a token, and the logarithm of the length relative to that of the source, in characters.
    fn measures(source: &str, made: &Made) -> Option<[f32; 2]> {
        let is_usable = made.is_finished && made.tokens > 0;
        let lengths = [source, &made.text].map(|text| text.trim().chars().count());
        if !is_usable || lengths.contains(&0) {
            return None;
        }
        let [source, target] = lengths.map(|length| length as f32);
        Some([(made.log_prob / made.tokens as f64) as f32, (target / source).ln()])
    }

    /// Looks at a line and its translation.
    pub fn see(&mut self, source: &str, made: &Made) {
        self.seen.extend(Self::measures(source, made));
    }

    /// Decides, after all of them have been seen.
    pub fn settle(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        if seen.is_empty() {
            return;
        }
        let middle = seen.len() / 2;
        self.usual = seen.select_nth_unstable_by(middle, |a, b| a[1].total_cmp(&b[1])).1[1];
        seen.retain(|[_, length]| self.has_usual_length(*length));
        let kept = ((self.selection.keep * seen.len() as f64).ceil() as usize).clamp(1, seen.len());
        self.least = seen.select_nth_unstable_by(kept - 1, |a, b| b[0].total_cmp(&a[0])).1[0];
    }

    fn has_usual_length(&self, length: f32) -> bool {
        (length - self.usual).abs() <= self.selection.tolerance.ln() as f32
    }

    /// Whether a line and its translation stay.
    pub fn takes(&mut self, source: &str, made: &Made) -> bool {
        let measures = Self::measures(source, made);
        let is_blank = source.trim().is_empty() || made.text.trim().is_empty();
        let has_usual_length = measures.is_some_and(|[_, length]| self.has_usual_length(length));
        let stays = has_usual_length && measures.is_some_and(|[score, _]| score >= self.least);
        let counts = &mut self.counts;
        counts.lines += 1;
        let reason = match () {
            () if stays => &mut counts.kept,
            () if has_usual_length => &mut counts.unlikely,
            () if measures.is_some() => &mut counts.odd_length,
            () if is_blank => &mut counts.blank,
            () => &mut counts.unfinished,
        };
        *reason += 1;
        stays
    }
}

/// Files of text, line by line, that are there when they are whole: sources, targets, and perhaps what else there is of
/// each pair.
pub struct PairWriter<'p, const N: usize> {
    folder: &'p Folder,
    files: [Unfinished; N],
}

struct Unfinished {
    name: &'static str,
    path: PathBuf,
    staged: Staged,
    /// What is not written yet.
    pending: Vec<u8>,
}

/// Bytes that are written at once.
const AT_ONCE: usize = 1 << 20;

impl<'p, const N: usize> PairWriter<'p, N> {
    /// In the folder of parts.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn create(parts: &'p Parts, names: [&'static str; N]) -> Result<Self> {
        let create = |name: &'static str| -> Result<_> {
            let path = parts.folder.path().join(name);
            let staged = parts.folder.stage_shared(name).map_err(|error| Error::io("write", &path, error))?;
            Ok(Unfinished { name, path, staged, pending: Vec::new() })
        };
        let files = names.into_iter().map(create).collect::<Result<Vec<_>>>()?;
        let Ok(files) = files.try_into() else { unreachable!("a file for each name") };
        Ok(Self { folder: &parts.folder, files })
    }

    /// Appends a line to each.
    ///
    /// # Errors
    /// As there.
    pub fn push(&mut self, pair: [&str; N]) -> Result<()> {
        for (file, line) in self.files.iter_mut().zip(pair) {
            file.pending.extend(line.bytes().chain([b'\n']));
            if file.pending.len() >= AT_ONCE {
                file.write()?;
            }
        }
        Ok(())
    }

    /// Gives them their names. At no time is a new file beside an old one.
    ///
    /// # Errors
    /// As there.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        for file in &mut self.files {
            file.write()?;
            file.staged.file().sync_all().map_err(|error| Error::io("write", &file.path, error))?;
        }
        for file in self.files.iter().skip(1) {
            self.folder.remove_file(file.name).map_err(|error| Error::io("replace", &file.path, error))?;
        }
        self.files.into_iter().map(Unfinished::persist).collect()
    }
}

impl Unfinished {
    fn write(&mut self) -> Result<()> {
        let written = self.staged.file().write_all(&self.pending);
        self.pending.clear();
        written.map_err(|error| Error::io("write", &self.path, error))
    }

    fn persist(self) -> Result<PathBuf> {
        let Self { path, staged, .. } = self;
        staged.persist().map_err(|error| Error::io("write", &path, error))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decode::translate::Candidate;

    fn made(text: &str, log_prob: f64) -> Made {
        Made { text: text.to_owned(), log_prob, tokens: 2, is_finished: true }
    }

    #[test]
    fn shards_are_counted_from_one() {
        assert_eq!("2/8".parse(), Ok(Shard { index: 1, count: 8 }));
        assert_eq!("1/1".parse(), Ok(Shard::WHOLE));
        for text in ["0/2", "3/2", "2", "a/b", "1/0", "-1/2", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }

    /// It can be written and read, and is never chosen.
    #[test]
    fn an_impossible_translation_is_unfinished() {
        let candidate = Candidate { text: "eins".to_owned(), log_prob: f64::NEG_INFINITY, ..Candidate::default() };
        let (parts, later_prefix) = (Vec::new(), Vec::new());
        let translation = Translation { n_best: vec![candidate], source_cut: false, parts, later_prefix };
        let made = Made::new(&translation, 0);
        assert!(!made.is_finished);
        assert_eq!(serde_json::from_str::<Made>(&serde_json::to_string(&made).unwrap()).unwrap(), made);
    }

    #[test]
    fn parts_are_of_one_job_and_whole() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::open(folder.path(), "corpus-0", &json!({ "beam": 4 })).unwrap();
        let lines = [made("eins", -1.5), Made { is_finished: false, ..made("zwei", -2.0) }];
        assert!(!parts.has(3));
        parts.write(3, &lines).unwrap();
        assert!(parts.has(3) && !parts.has(2));
        let again = Parts::open(folder.path(), "corpus-0", &json!({ "beam": 4 })).unwrap();
        assert_eq!(again.read(3, 2).unwrap(), lines);
        assert!(again.read(3, 1).unwrap_err().to_string().contains("1 lines"));
        let error = Parts::open(folder.path(), "corpus-0", &json!({ "beam": 5 })).err().unwrap();
        assert!(error.to_string().contains("another version"), "{error}");
        let here = folder.path().join("corpus-0");
        fs::write(here.join("part-000003.jsonl"), "{\"text\": 1}\n").unwrap();
        assert!(again.read(3, 2).is_err());
        // It would move all the lines after it.
        parts.write(4, &[made("eins\nzwei", -1.0)]).unwrap();
        assert!(again.read(4, 1).unwrap_err().to_string().contains("1 lines"));
        for (known, says) in [("", "damaged"), ("{\"beam\": 4, \"models\": [1]}", "other models")] {
            fs::write(here.join(JOB), known).unwrap();
            let error = Parts::open(folder.path(), "corpus-0", &json!({ "beam": 4 })).err().unwrap();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    /// Nothing is written through a link, or beside files of others.
    #[test]
    fn a_folder_that_is_not_theirs_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            |below: &str| Parts::open(&folder.path().join("run"), below, &json!({})).err().map(|e| e.to_string());
        fs::create_dir_all(folder.path().join("run/own")).unwrap();
        fs::create_dir(folder.path().join("victim")).unwrap();
        fs::write(folder.path().join("run/own/source.txt"), "mine").unwrap();
        assert!(open("own").unwrap().contains("no translations of mt"));
        for link in ["run/corpus-0", "run/distilled"] {
            std::os::unix::fs::symlink(folder.path().join("victim"), folder.path().join(link)).unwrap();
        }
        assert!(open("corpus-0").unwrap().contains("link") && open("distilled/corpus-0").unwrap().contains("link"));
        assert_eq!(fs::read_dir(folder.path().join("victim")).unwrap().count(), 0);
        assert_eq!(open("distilled-2/corpus-0"), None);
        // Left by a process that was killed before it had begun.
        fs::create_dir(folder.path().join("run/killed")).unwrap();
        fs::write(folder.path().join("run/killed/.job.json.7.new"), "{").unwrap();
        assert_eq!(open("killed"), None);
    }

    /// Ten lines of which each fault takes one; of the others, half.
    #[test]
    fn the_best_of_usual_length_stay() {
        let source = "abcd";
        let mut lines: Vec<Made> = (1..=6).map(|i| made("wxyz", -f64::from(i))).collect();
        lines.push(made("w", -0.1));
        lines.push(Made { is_finished: false, ..made("wxyz", -0.1) });
        lines.push(made(" ", -0.1));
        lines.push(made(&"w".repeat(40), -0.1));
        let mut chosen = Chosen::new(Selection { keep: 0.5, tolerance: 2.0 });
        lines.iter().for_each(|line| chosen.see(source, line));
        chosen.settle();
        let stay: Vec<bool> = lines.iter().map(|line| chosen.takes(source, line)).collect();
        assert_eq!(stay, [true, true, true, false, false, false, false, false, false, false]);
        let counts = Counts { lines: 10, blank: 1, unfinished: 1, odd_length: 2, unlikely: 3, kept: 3 };
        assert_eq!(chosen.counts, counts);
        // All that can be used.
        let mut all = Chosen::new(Selection { keep: 1.0, tolerance: 100.0 });
        lines.iter().for_each(|line| all.see(source, line));
        all.settle();
        assert_eq!(lines.iter().filter(|line| all.takes(source, line)).count(), 8);
        let mut none = Chosen::new(Selection { keep: 1.0, tolerance: 2.0 });
        none.settle();
        assert!(!none.takes("", &made("", 0.0)));
    }

    #[test]
    fn pairs_are_there_when_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let parts = Parts::open(folder.path(), "pairs", &json!({})).unwrap();
        let mut writer = PairWriter::create(&parts, ["source.txt", "target.txt"]).unwrap();
        writer.push(["a b", "c"]).unwrap();
        assert!(!folder.path().join("pairs/source.txt").exists());
        let files = writer.finish().unwrap();
        assert_eq!(files.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>(), ["a b\n", "c\n"]);
        assert_eq!(fs::read_dir(folder.path().join("pairs")).unwrap().count(), 3);
        // Where one cannot be replaced, neither is.
        let target = folder.path().join("pairs/target.txt");
        fs::remove_file(&target).unwrap();
        fs::create_dir(&target).unwrap();
        let mut writer = PairWriter::create(&parts, ["source.txt", "target.txt"]).unwrap();
        writer.push(["d", "e"]).unwrap();
        assert!(writer.finish().unwrap_err().to_string().contains("target.txt"));
        assert_eq!(fs::read_to_string(folder.path().join("pairs/source.txt")).unwrap(), "a b\n");
    }
}
