//! Sources with references that a model translates, to be scored.

use std::path::{Path, PathBuf};

use super::input::shown_name;
use super::tags::{self, Tags};
use crate::cli::{Common, SetArgs};
use crate::console::{tell, warning};
use crate::data::corpus::{read_all, tagged};
use crate::data::tags::LanguageTags;
use crate::data::text::lines::{LineFile, read_test_set, read_test_set_from};
use crate::data::text::returns;
use crate::data::{CorpusLocation, SetConfig, texts};
use crate::error::{Error, Result};
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
                set.clone()
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
        let (sources, references, predicted) = match &location {
            CorpusLocation::Files { .. } => {
                let files = reference.iter().map(|path| read_file(path)).collect::<Result<Vec<_>>>()?;
                let predicted = files.first().map(as_trained).unwrap_or_default();
                // As in validation, a byte order mark is no part of the text.
                let references = files.iter().map(|file| file.iter().map(trimmed).collect());
                (as_trained(&read_file(&source)?), references.collect(), predicted)
            }
            CorpusLocation::Tsv { .. } | CorpusLocation::Hub(_) => {
                let text = texts::find_one(&location, common.offline)?.open(1.0, &tell)?;
                let (sources, references): (Vec<_>, Vec<_>) = read_all(&*text)?.into_iter().unzip();
                (sources, vec![references.iter().map(|line| trimmed(line)).collect()], references)
            }
        };
        let tokenizer = &model.tokenizers.source;
        tags::check_flag(of_flag, tokenizer)?;
        let mut tags = Tags::new(tokenizer, tag.as_deref());
        sources.iter().for_each(|line| tags.count(&tagged(tag.as_deref(), line)));
        tags.warnings().into_iter().for_each(warning);
        check_counts(&source, sources.len(), &reference, &references)?;
        if sources.is_empty() {
            return Err(nothing_to_score(&source));
        }
        Ok(Self { source, reference, sources, tag, references, predicted })
    }
}

pub(crate) fn nothing_to_score(file: &Path) -> Error {
    Error::failure("there are no lines to score").at(file).help("give a file with a sentence on each line")
}

/// A file, or stdin.
pub(crate) fn read_file(path: &Path) -> Result<LineFile> {
    let file = match path == Path::new("-") {
        true => read_test_set_from(std::io::stdin(), Path::new("stdin")),
        false => read_test_set(path),
    }?;
    if let Some(odd) = file.returns() {
        warning(returns::warning(shown_name(path), odd));
    }
    Ok(file)
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
pub(crate) fn check_counts(
    path: &Path,
    lines: usize,
    reference_paths: &[PathBuf],
    references: &[Vec<String>],
) -> Result<()> {
    for (reference, reference_lines) in reference_paths.iter().zip(references) {
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
