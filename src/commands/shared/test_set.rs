//! Sources with references that a model translates, to be scored.

use std::path::{Path, PathBuf};

use super::input::shown_name;
use super::tags::{self, Tags};
use crate::cli::{Common, SetArgs};
use crate::console::{tell, warning};
use crate::data::corpus::{read_all, tagged};
use crate::data::tags::LanguageTags;
use crate::data::text::documents::{self, Part, Place, Places};
use crate::data::text::lines::LineFile;
use crate::data::text::returns;
use crate::data::text::test_set::{self, TestFile};
use crate::data::{CorpusLocation, SetConfig, texts};
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::metrics::tokenize::is_whitespace;
use crate::model_dir::{ModelFiles, trust};

/// The set of a model's configuration that is used if flags name none.
pub(crate) struct OwnSet<'a> {
    /// Its key, such as `data.test`.
    pub(crate) key: &'static str,
    /// What messages call it.
    pub(crate) name: &'static str,
    pub(crate) set: Option<&'a SetConfig>,
}

/// A test set that a model will translate, and its files.
pub(crate) struct Text {
    pub(crate) source: PathBuf,
    pub(crate) reference: Vec<PathBuf>,
    pub(crate) sources: Vec<String>,
    /// The tag in front of each source.
    pub(crate) tag: Option<String>,
    /// As they are scored.
    pub(crate) references: Vec<Vec<String>>,
    /// Of documents: where each line is.
    pub(crate) places: Vec<Place>,
    /// The first reference as training would read it.
    pub(crate) predicted: Vec<String>,
}

impl Text {
    /// Reads the set of the flags, else the model's own. `tag`: that of the flags.
    pub(crate) fn find(
        args: &SetArgs,
        own: &OwnSet<'_>,
        tag: Option<&str>,
        model: &ModelFiles,
        common: &Common,
    ) -> Result<Self> {
        let of_flag = tag;
        if args.src.is_some() == args.reference.is_empty() {
            let error = Error::usage(if args.src.is_some() { "--src without --ref" } else { "--ref without --src" });
            return Err(error.help(format!("give both, or neither for the model's {}", own.name)));
        }
        let SetConfig { location, tag, languages, .. } = match (&args.src, own.set) {
            (Some(source), _) => {
                let reference = args.reference.first().cloned().unwrap_or_default();
                SetConfig { tag: of_flag.map(str::to_owned), ..CorpusLocation::files(source, reference).into() }
            }
            (None, Some(set)) => {
                trust::check(&set.location, own.name, args.trust_model_data, &tell)?;
                // `--to` counts more than what the set states.
                let (tag, languages) = match of_flag {
                    Some(tag) => (Some(tag.to_owned()), Default::default()),
                    None => (set.tag.clone(), set.languages.clone()),
                };
                SetConfig { tag, languages, ..set.clone() }
            }
            (None, None) => {
                let what = format!("the model's configuration names no {}", own.name);
                let error = Error::usage(what).at(model.directory());
                return Err(error.help("give --src FILE and --ref FILE"));
            }
        };
        let tag = match &model.tokenizers.source {
            // Its reader adds them.
            tokenizer if !tokenizer.languages().is_empty() => tag,
            tokenizer => {
                let languages = languages.each_ref().map(Option::as_deref);
                let [tag, _] = LanguageTags::of(tokenizer).tags(own.key, tag.as_deref(), languages)?;
                tag
            }
        };
        let [source, reference] = location.sides();
        let reference = if args.reference.is_empty() { vec![reference] } else { args.reference.clone() };
        let mut places = Vec::new();
        let (sources, references, predicted): (_, Vec<(PathBuf, Vec<String>)>, _) = match &location {
            CorpusLocation::Files { .. } => {
                let of_file = |path: &PathBuf| read_versions(path, Part::References);
                let versions = reference.iter().map(of_file).collect::<Result<Vec<_>>>()?;
                let mut versions: Vec<TestText> = versions.into_iter().flatten().collect();
                let mut sources = read_versions(&source, Part::Sources)?;
                places = align(&mut [&mut sources, &mut versions])?;
                let predicted = versions.first().map(|version| as_trained(&version.lines)).unwrap_or_default();
                // As in validation, a byte order mark is no part of the text.
                let of_version = |version: TestText| (version.path, version.lines.iter().map(trimmed).collect());
                let sources = sources.first().map(|version| as_trained(&version.lines)).unwrap_or_default();
                (sources, versions.into_iter().map(of_version).collect(), predicted)
            }
            CorpusLocation::Tsv { .. } | CorpusLocation::Hub(_) => {
                let text = texts::find_one(&location, common.offline)?.open(1.0, &tell)?;
                let (sources, references): (Vec<_>, Vec<_>) = read_all(&*text)?.into_iter().unzip();
                let as_scored = references.iter().map(|line| trimmed(line)).collect();
                (sources, vec![(reference.first().cloned().unwrap_or_default(), as_scored)], references)
            }
        };
        let tokenizer = &model.tokenizers.source;
        tags::check_flag(of_flag, tokenizer)?;
        let mut tags = Tags::new(model, tag.as_deref());
        sources.iter().for_each(|line| tags.count(&tagged(tag.as_deref(), line)));
        tags.warnings().into_iter().for_each(warning);
        check_counts(&source, sources.len(), &references)?;
        if sources.is_empty() {
            return Err(nothing_to_score(&source));
        }
        let references = references.into_iter().map(|(_, lines)| lines).collect();
        Ok(Self { source, reference, sources, tag, references, places, predicted })
    }
}

pub(crate) fn nothing_to_score(file: &Path) -> Error {
    Error::failure("there are no lines to score").at(file).help("give a file with a sentence on each line")
}

/// Lines of a test set: a file, or of a file in XML or SGML the sources, a translator's or a system's.
pub(crate) struct TestText {
    /// The file, as it was named; with several versions, with `#` and its own name behind.
    pub(crate) path: PathBuf,
    /// The system's name, if the file says one.
    name: Option<String>,
    pub(crate) lines: LineFile,
    /// As it is in XML or SGML.
    segments: Option<documents::Version>,
}

impl TestText {
    /// The name of a system.
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.path.display().to_string())
    }
}

/// Between a file in XML or SGML and the name of a translator or a system in it.
const OF_FILE: char = '#';

/// The versions of a part of a test set that a file has, or stdin. Of a file of lines, there is one; of one in XML or
/// SGML, all of this part, or the one that is named behind a `#`.
pub(crate) fn read_versions(path: &Path, part: Part) -> Result<Vec<TestText>> {
    let text = path.to_str().unwrap_or_default();
    let named = text.match_indices(OF_FILE).map(|(at, _)| (Path::new(&text[..at]), &text[at + 1..]));
    // Both the file and the name may have such characters.
    let mut named = named.filter(|(file, _)| !path.exists() && (file.exists() || *file == Path::new("-")));
    let (file, wanted) = named.next().map_or((path, None), |(file, name)| (file, Some(name)));
    let read = match file == Path::new("-") {
        true => test_set::read_from(std::io::stdin(), Path::new("stdin")),
        false => test_set::read(file),
    }?;
    let all = match read {
        TestFile::Lines(lines) => {
            if wanted.is_some() {
                let error = Error::usage("this file has one sentence on each line, and no names").at(file);
                return Err(error.help("name it alone: a name behind # is for test sets in XML or SGML"));
            }
            if let Some(odd) = lines.returns() {
                warning(returns::warning(shown_name(path), odd));
            }
            return Ok(vec![TestText { path: path.to_path_buf(), name: None, lines, segments: None }]);
        }
        TestFile::Versions(all) => all,
    };
    let is_wanted =
        |version: &documents::Version| version.part == part && wanted.is_none_or(|wanted| version.name == wanted);
    let (found, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
    if found.is_empty() {
        let mut of_part = others.iter().filter(|version| version.part == part).peekable();
        let error = match wanted {
            Some(wanted) if of_part.peek().is_some() => {
                let what = format!("the test set has no {} by {}", part.name(), quoted(wanted));
                let names: Vec<_> = of_part.filter(|it| !it.name.is_empty()).map(|it| quoted(&it.name)).collect();
                Error::failure(what).help(match names.join(", ").as_str() {
                    "" => "they have no name there: name the file alone".to_owned(),
                    names => format!("it has those by {names}"),
                })
            }
            _ => {
                let error = Error::failure(format!("the test set has no {}", part.name()));
                error.help("--src takes sources, --ref references, and --hyp translations of systems")
            }
        };
        return Err(error.at(file));
    }
    let is_alone = found.len() == 1;
    let version = |version: documents::Version| {
        let name = Some(version.name.clone()).filter(|name| !name.is_empty());
        let of_name = name.as_ref().filter(|_| !is_alone).map(|name| format!("{}{OF_FILE}{name}", file.display()));
        let path = of_name.map_or_else(|| file.to_path_buf(), PathBuf::from);
        let lines = joined(&path, version.segments.iter().map(|(_, text)| text))?;
        Ok(TestText { path, name, lines, segments: Some(version) })
    };
    found.into_iter().map(version).collect()
}

fn joined<'a>(path: &Path, lines: impl Iterator<Item = &'a String>) -> Result<LineFile> {
    LineFile::from_bytes(path, lines.map(|line| format!("{line}\n")).collect::<String>().into_bytes())
}

/// Puts the versions of a test set that are of XML or SGML into one order, that of the longest of the first part that
/// has some. Those of references or systems that are not like it are left out, with a warning, if others are. Returns
/// the places of the segments, if they are known.
pub(crate) fn align(parts: &mut [&mut Vec<TestText>]) -> Result<Vec<Place>> {
    let longest = parts.iter().find_map(|part| {
        let all = part.iter().filter_map(|version| version.segments.as_ref());
        // The first of those that are as long.
        all.reduce(|longest, next| if next.segments.len() > longest.segments.len() { next } else { longest })
    });
    let Some(longest) = longest else { return Ok(Vec::new()) };
    let places = Places::new(longest.segments.iter().map(|(place, _)| place.clone()).collect());
    for part in parts {
        let (mut whole, mut errors) = (Vec::new(), Vec::new());
        for mut version in part.drain(..) {
            if let Some(segments) = &version.segments {
                match places.order(segments) {
                    Ok(lines) => version.lines = joined(&version.path, lines.iter())?,
                    Err(error) => {
                        errors.push(error.at(&version.path));
                        continue;
                    }
                }
            }
            whole.push(version);
        }
        if whole.is_empty() && !errors.is_empty() {
            let error = errors.swap_remove(0);
            return Err(error.help("all files of a test set must have the same segments of the same documents"));
        }
        for error in errors {
            let path = error.location().map(|location| location.path.display().to_string()).unwrap_or_default();
            warning(format_args!("{path} is left out: {}", error.what()));
        }
        **part = whole;
    }
    Ok(places.list)
}

/// Lines as training and translation read them.
pub(crate) fn as_trained(file: &LineFile) -> Vec<String> {
    file.iter().map(str::to_owned).collect()
}

/// Lines as sacrebleu reads them: a byte order mark stays part of the first, white space at the end does not.
pub(crate) fn as_scored(file: &LineFile) -> Vec<String> {
    let mut lines: Vec<String> = file.iter().map(trimmed).collect();
    if let (true, Some(first)) = (file.byte_order_mark, lines.first_mut()) {
        first.insert(0, '\u{FEFF}');
    }
    lines
}

/// Removes white space at the end of a line, as sacrebleu does.
pub(crate) fn trimmed(line: &str) -> String {
    line.trim_end_matches(is_whitespace).to_owned()
}

/// Checks that every reference has as many lines as the text to score.
pub(crate) fn check_counts(path: &Path, lines: usize, references: &[(PathBuf, Vec<String>)]) -> Result<()> {
    for (reference, reference_lines) in references {
        if reference_lines.len() != lines {
            let s = if lines == 1 { "" } else { "s" };
            let [path, reference] = [path, reference].map(|path| match path.to_str() {
                Some("-") => "stdin".into(),
                _ => path.to_string_lossy(),
            });
            let what = format!("{path} has {lines} line{s}, but {reference} has {}", reference_lines.len());
            return Err(Error::failure(what).help("translations, sources and references must be aligned line by line"));
        }
    }
    Ok(())
}
