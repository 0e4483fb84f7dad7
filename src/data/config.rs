//! `[data]` and `[tokenizer]`: where text is, and how it becomes subwords.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hub::{Column, HubSplit};
use super::tokenizer::{Normalization, RandomSplit, SubwordSampling, TextForm, TokenizerKind, TrainOptions};
use crate::choice::choice;
use crate::escape::shown_path;
use crate::hub::DEFAULT_QE;

/// `[data]`: the corpora and which pairs are dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// The folder that the file names below are relative to. Default: the folder of the file that names them.
    pub root: PathBuf,
    /// The parallel corpora to train on.
    pub train: Vec<CorpusConfig>,
    /// The text validated on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<SetConfig>,
    /// The text that `mt eval` scores when it is given none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<SetConfig>,
    /// Further texts that are scored at each validation, and decide nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub monitor: Vec<SetConfig>,
    /// Training pairs with more subwords than this on either side, end of sentence not counted, are dropped.
    pub max_length: usize,
    /// Training pairs whose longer side has more than this times the subwords of the shorter are dropped; 0: none.
    pub max_ratio: f64,
    /// Training pairs that a model finds bad are dropped; none: such a model is not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityConfig>,
    /// Training text of at least this many MiB is prepared on disk, once, instead of in memory; 0: any text.
    pub cache_above: u64,
    /// The directory for that. Default: `data-cache`, beside the run directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
}

impl DataConfig {
    /// Where all text is.
    pub fn locations(&self) -> impl Iterator<Item = &CorpusLocation> {
        let sets = self.valid.iter().chain(&self.test).chain(&self.monitor).map(|set| &set.location);
        self.train.iter().map(|corpus| &corpus.location).chain(sets)
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            root: PathBuf::from("."),
            train: Vec::new(),
            valid: None,
            test: None,
            monitor: Vec::new(),
            max_length: 100,
            max_ratio: 9.0,
            quality: None,
            cache_above: 256,
            cache_dir: None,
        }
    }
}

/// `data.quality`: which pairs a model of quality estimation finds good enough.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QualityConfig {
    /// Pairs with a lower score are dropped.
    pub least: f64,
    /// The model, one of COMET's that need no references: `hf:ORG/NAME` or a folder.
    #[serde(default = "QualityConfig::default_model")]
    pub model: String,
    /// The number type of its matrix products, as `--comet-precision` has it.
    #[serde(default = "QualityConfig::default_precision")]
    pub precision: String,
}

impl QualityConfig {
    fn default_model() -> String {
        DEFAULT_QE.to_owned()
    }

    fn default_precision() -> String {
        "f32".to_owned()
    }
}

/// `[tokenizer]`: the subword vocabulary, learnt (by byte-pair encoding, Sennrich et al. 2016) or from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenizerConfig {
    /// A tokenizer.json or SentencePiece model to use; none: one is learnt from the training text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The target side's, if it is a different one; none: `path` is for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_path: Option<PathBuf>,
    /// How the vocabulary is learnt.
    pub kind: TokenizerKind,
    /// The merges of subword-nmt or fastBPE that split text; none: it is split already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<PathBuf>,
    /// The target side's, if they are different ones; none: `codes` are for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_codes: Option<PathBuf>,
    /// Pieces with their counts, into which the codes may split words; `None`: into any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PathBuf>,
    /// The target side's, if it is a different one; none: `vocabulary` is for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_vocabulary: Option<PathBuf>,
    /// The least count of a piece in these files; 0: any.
    pub vocabulary_threshold: u64,
    /// Pieces in the vocabulary, special tokens and the 256 bytes included (of each side, unless `joint`).
    pub vocab_size: usize,
    /// One vocabulary for both languages.
    pub joint: bool,
    /// Probability of leaving out a merge while training (BPE-dropout, Provilkov et al. 2020).
    pub dropout: f64,
    /// Which text is split at random in training, and how a unigram model does it.
    pub sampling: SamplingConfig,
    /// The form of Unicode that text is brought into before it is split; translations come out in it.
    pub normalization: Normalization,
    /// Several characters of white space, and control characters, become one space, and nothing at the ends of a line;
    /// invisible ones are removed.
    pub remove_extra_whitespaces: bool,
    /// Lowercase text before it is split; translations come out in lower case.
    pub lowercase: bool,
    /// The longest piece learned, in characters.
    pub max_piece_length: usize,
    /// Share of the text's characters that get pieces of their own; the rarest beyond it are spelt in bytes.
    pub character_coverage: f64,
    /// Tags such as the `<2de>` of a multilingual model. Every source line begins with one; each is one piece.
    pub tags: Vec<String>,
    /// Other strings that are one piece wherever they occur.
    pub symbols: Vec<String>,
    /// The most lines of each side that the merges are learned from; 0: all.
    pub sample_lines: usize,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self {
            path: None,
            target_path: None,
            kind: TokenizerKind::Bpe,
            codes: None,
            target_codes: None,
            vocabulary: None,
            target_vocabulary: None,
            vocabulary_threshold: 0,
            vocab_size: 10_000,
            joint: true,
            dropout: 0.0,
            sampling: SamplingConfig::default(),
            normalization: Normalization::Nfkc,
            remove_extra_whitespaces: true,
            lowercase: false,
            max_piece_length: 16,
            character_coverage: 0.9999,
            tags: Vec::new(),
            symbols: Vec::new(),
            sample_lines: 2_000_000,
        }
    }
}

choice! {
    /// Which side is split at random.
    pub enum SampledSide {
        /// Source and target.
        Both = "both",
        /// The source alone.
        Source = "source",
        /// The target alone.
        Target = "target",
    }
}

/// `[tokenizer.sampling]`: subword sampling in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingConfig {
    /// Of a unigram model: the power of a segmentation's probability; 0: off.
    pub alpha: f64,
    /// Of a unigram model: among how many of the best segmentations one is drawn; 0: among all.
    pub nbest: usize,
    /// Which side is split at random, with this or with dropout.
    pub side: SampledSide,
    /// In how many epochs, the first ones; 0: in all.
    pub epochs: u64,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self { alpha: 0.0, nbest: 0, side: SampledSide::Both, epochs: 0 }
    }
}

impl TokenizerConfig {
    /// How text is split at random in training, if it is.
    pub fn subword_sampling(&self) -> Option<SubwordSampling> {
        let SamplingConfig { alpha, nbest, side, epochs } = self.sampling;
        let how = match () {
            () if self.dropout > 0.0 => RandomSplit::Dropout(self.dropout as f32),
            () if alpha > 0.0 => RandomSplit::Unigram { alpha, nbest },
            () => return None,
        };
        let sides = [side != SampledSide::Target, side != SampledSide::Source];
        Some(SubwordSampling { how, sides, epochs })
    }

    /// The normalisation of text before splitting.
    pub fn form(&self) -> TextForm {
        TextForm {
            normalization: self.normalization,
            lowercase: self.lowercase,
            remove_extra_whitespaces: self.remove_extra_whitespaces,
        }
    }

    /// Sets the keys to a tokenizer's form of text.
    pub fn set_form(&mut self, form: TextForm) {
        let TextForm { normalization, lowercase, remove_extra_whitespaces } = form;
        (self.normalization, self.lowercase) = (normalization, lowercase);
        self.remove_extra_whitespaces = remove_extra_whitespaces;
    }

    /// How a vocabulary is learnt by byte-pair encoding.
    pub fn options(&self) -> TrainOptions {
        TrainOptions {
            vocab_size: self.vocab_size,
            form: self.form(),
            max_piece_length: self.max_piece_length,
            character_coverage: self.character_coverage,
            tags: self.tags.clone(),
            symbols: self.symbols.clone(),
        }
    }
}

/// One training corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stated", into = "Stated")]
pub struct CorpusConfig {
    /// Where it is.
    pub location: CorpusLocation,
    /// What is put in front of each of its source lines.
    pub tag: Option<String>,
    /// The languages of its sides, for a model with several.
    pub languages: [Option<String>; 2],
    /// How often an epoch draws each pair: 2.0 twice, 0.5 every second pair; positive.
    pub weight: f64,
    /// A file with a number for each pair, by which its loss is multiplied.
    pub weights: Option<PathBuf>,
}

/// A validation or test set, or one that is monitored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stated", into = "Stated")]
pub struct SetConfig {
    /// Where it is.
    pub location: CorpusLocation,
    /// What is put in front of each of its source lines.
    pub tag: Option<String>,
    /// The languages of its sides, for a model with several.
    pub languages: [Option<String>; 2],
    /// The name of a monitored set; see [`SetConfig::name`].
    pub name: Option<String>,
}

impl SetConfig {
    /// Its name among several sets; by default that of its text.
    pub fn name(&self) -> String {
        let of_file = |file: &Path| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.split('.').find(|part| !part.is_empty()).unwrap_or("set").to_owned()
        };
        self.name.clone().unwrap_or_else(|| match &self.location {
            CorpusLocation::Files { source: file, .. } | CorpusLocation::Tsv { file, .. } => of_file(file),
            CorpusLocation::Hub(HubSplit { name, split, .. }) => format!("{name} {split}"),
        })
    }
}

/// Where pairs of sentences are. Of a data set of the hub there is what `D` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorpusLocation<D = HubSplit> {
    /// Two files, aligned line by line.
    Files {
        /// The source side, one sentence per line.
        source: PathBuf,
        /// The target side, line by line the translation of the source.
        target: PathBuf,
    },
    /// A file of tab-separated columns, one pair per line.
    Tsv {
        /// The file.
        file: PathBuf,
        /// Which columns are source and target, from 1.
        columns: [usize; 2],
    },
    /// A split of a data set of the Hugging Face hub.
    Hub(D),
}

impl<D> CorpusLocation<D> {
    /// Two files.
    pub fn files(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self::Files { source: source.into(), target: target.into() }
    }
}

impl CorpusLocation {
    /// Each side, as the user would look it up.
    pub fn sides(&self) -> [PathBuf; 2] {
        match self {
            Self::Files { source, target } => [source.clone(), target.clone()],
            Self::Tsv { file, .. } => [file.clone(), file.clone()],
            Self::Hub(split) => [&split.source, &split.target].map(|side| format!("{split} ({side})").into()),
        }
    }
}

/// Without a tag.
impl From<CorpusLocation> for SetConfig {
    fn from(location: CorpusLocation) -> Self {
        Self { location, tag: None, languages: [None, None], name: None }
    }
}

/// As messages show it.
impl fmt::Display for CorpusLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files { source: file, .. } | Self::Tsv { file, .. } => f.write_str(&shown_path(file)),
            Self::Hub(split) => write!(f, "{split}"),
        }
    }
}

/// The value of `source` or `target`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StatedSide {
    /// The number of a column.
    Column(usize),
    /// A path, or the name of a column.
    Text(PathBuf),
}

impl StatedSide {
    fn text(self) -> PathBuf {
        match self {
            Self::Column(number) => number.to_string().into(),
            Self::Text(text) => text,
        }
    }

    fn column(self) -> usize {
        match self {
            Self::Column(number) => number,
            Self::Text(_) => 1,
        }
    }
}

/// The keys of all forms, as a file states them; the schema has refused keys that do not go together.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stated {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hub: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tsv: Option<PathBuf>,
    source: StatedSide,
    target: StatedSide,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<PathBuf>,
}

impl From<Stated> for CorpusLocation {
    fn from(stated: Stated) -> Self {
        let Stated { hub, config, split, revision, tsv, source, target, .. } = stated;
        match (hub, tsv) {
            (None, None) => Self::Files { source: source.text(), target: target.text() },
            (None, Some(file)) => Self::Tsv { file, columns: [source.column(), target.column()] },
            (Some(name), _) => {
                let [source, target] = [source, target].map(|side| match side {
                    StatedSide::Column(number) => Column::Number(number),
                    StatedSide::Text(name) => Column::Name(name.to_string_lossy().into_owned()),
                });
                Self::Hub(HubSplit { name, config, split: split.unwrap_or_default(), revision, source, target })
            }
        }
    }
}

impl From<CorpusLocation> for Stated {
    fn from(location: CorpusLocation) -> Self {
        let of = |[source, target]: [StatedSide; 2]| Self {
            name: None,
            hub: None,
            config: None,
            split: None,
            revision: None,
            tsv: None,
            source,
            target,
            tag: None,
            source_language: None,
            target_language: None,
            weight: None,
            weights: None,
        };
        match location {
            CorpusLocation::Files { source, target } => of([source, target].map(StatedSide::Text)),
            CorpusLocation::Tsv { file, columns } => Self { tsv: Some(file), ..of(columns.map(StatedSide::Column)) },
            CorpusLocation::Hub(HubSplit { name, config, split, revision, source, target }) => Self {
                hub: Some(name),
                config,
                split: Some(split),
                revision,
                ..of([source, target].map(|column| match column {
                    Column::Name(name) => StatedSide::Text(name.into()),
                    Column::Number(number) => StatedSide::Column(number),
                }))
            },
        }
    }
}

impl From<Stated> for CorpusConfig {
    fn from(stated: Stated) -> Self {
        let (tag, weight, weights) = (stated.tag.clone(), stated.weight.unwrap_or(1.0), stated.weights.clone());
        let languages = [stated.source_language.clone(), stated.target_language.clone()];
        Self { location: stated.into(), tag, languages, weight, weights }
    }
}

impl From<CorpusConfig> for Stated {
    fn from(corpus: CorpusConfig) -> Self {
        let [source_language, target_language] = corpus.languages;
        Self {
            tag: corpus.tag,
            source_language,
            target_language,
            weight: Some(corpus.weight),
            weights: corpus.weights,
            ..corpus.location.into()
        }
    }
}

impl From<Stated> for SetConfig {
    fn from(stated: Stated) -> Self {
        let (tag, name) = (stated.tag.clone(), stated.name.clone());
        let languages = [stated.source_language.clone(), stated.target_language.clone()];
        Self { location: stated.into(), tag, languages, name }
    }
}

impl From<SetConfig> for Stated {
    fn from(set: SetConfig) -> Self {
        let [source_language, target_language] = set.languages;
        Self { tag: set.tag, source_language, target_language, name: set.name, ..set.location.into() }
    }
}
