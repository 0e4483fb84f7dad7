//! From corpora on disk to text that is ready for training: filtered, split into subwords, in memory or in the cache.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use candle_core::Device;

use super::init::Start;
use super::pair_quality::PairJudge;
use super::{Never, Stop};
use crate::config::Config;
use crate::data::batches::BatchOptions;
use crate::data::cache::{Cache, Entry};
use crate::data::corpus::{PairSource, Side};
use crate::data::encode::{self, Recipe};
use crate::data::encoded::EncodedCorpus;
use crate::data::filter::Filter;
use crate::data::shard::{Elements, Shard};
use crate::data::tags::LanguageTags;
use crate::data::texts::Texts;
use crate::data::tokenizers::Tokenizers;
use crate::data::training::TrainingData;
use crate::data::{DataConfig, TokenizerConfig, corpus_tags, coverage};
use crate::error::{Error, Result};
use crate::model_dir::Tell;
use crate::notice::Notice;
use crate::ranks::Ranks;
use crate::train::StopReason;

/// Directory of prepared text beside the run directories, unless `data.cache_dir` names another.
const CACHE: &str = "data-cache";

/// Given a total, begins to show progress: what it returns is called with how far the work has come, and dropped at its
/// end.
pub type Meter<'a> = &'a dyn Fn(u64) -> Box<dyn Fn(u64)>;

/// Where text is prepared, and how progress is reported.
pub struct Preparation<'a> {
    /// The directory of prepared text.
    cache: PathBuf,
    /// Whether even small text goes there.
    pub always_cache: bool,
    /// Whether pairs without scores get them (`data.quality`), which may take hours.
    pub(super) gives_scores: bool,
    /// Whether nothing is fetched.
    offline: bool,
    /// What computes those scores.
    device: Device,
    /// Receives messages.
    pub(super) tell: Tell<'a>,
    /// Asks to stop.
    stop: &'a dyn Stop,
    /// Given how many pairs there are, begins to show how many of them have been read.
    pub(super) meter: Meter<'a>,
}

impl<'a> Preparation<'a> {
    /// Beside the run directory, unless the configuration names another place.
    pub fn beside(run: &Path, config: &DataConfig, tell: Tell<'a>) -> Self {
        let beside = || {
            // What `.` and `..` lie in, their names do not say.
            let named = run.file_name().is_none().then(|| run.canonicalize().ok()).flatten();
            named.as_deref().unwrap_or(run).parent().unwrap_or(Path::new("")).join(CACHE)
        };
        let cache = config.cache_dir.clone().unwrap_or_else(beside);
        let (always_cache, gives_scores, offline, device) = (false, true, false, Device::Cpu);
        Self { cache, always_cache, gives_scores, offline, device, tell, stop: &Never, meter: &|_| Box::new(|_| ()) }
    }

    /// Stops when that asks for it.
    pub fn watching(self, stop: &'a dyn Stop) -> Self {
        Self { stop, ..self }
    }

    /// Fetches nothing, if wanted.
    pub fn offline(self, offline: bool) -> Self {
        Self { offline, ..self }
    }

    /// With scores by this device instead of the processor.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// Gives no pairs scores that have none.
    pub fn without_scoring(self) -> Self {
        Self { gives_scores: false, ..self }
    }

    /// Shows how far it has come.
    pub fn showing(self, meter: Meter<'a>) -> Self {
        Self { meter, ..self }
    }

    /// Says nothing.
    #[cfg(test)]
    pub fn quiet(cache: &Path) -> Self {
        Self { cache: cache.to_path_buf(), ..Self::beside(Path::new("run"), &DataConfig::default(), &|_| ()) }
    }

    pub(super) fn allow_immediate_end(&self, at_once: bool) {
        self.stop.allow_immediate_end(at_once);
    }

    pub(super) fn check_stop(&self) -> Result<()> {
        match self.stop.stop() {
            None => Ok(()),
            Some(end) => {
                let what = "stopped by a signal while the text was being prepared; what is in the cache is kept";
                Err(Error::stopped(end == StopReason::Terminated, what))
            }
        }
    }
}

/// The tokenizers, if they need not be learnt: those of the run being continued, else of the model that training begins
/// with, else those that the configuration names.
pub fn tokenizers(config: &Config, saved: Option<Tokenizers>, tell: Tell<'_>) -> Result<Option<Tokenizers>> {
    let Some(saved) = saved else {
        if let Some(start) = Start::open(config)? {
            return Ok(Some(start.tokenizers));
        }
        let config = &config.tokenizer;
        let named = Tokenizers::named(config)?;
        for (side, appended) in named.iter().flat_map(Tokenizers::appended) {
            let path = if side == Side::Source { &config.path } else { &config.target_path };
            let path = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
            let appended = appended.join(", ");
            tell(Notice::Info(format!("tokenizer: {path} has no {appended}: added at the end of its vocabulary")));
        }
        if let Some(named) = &named {
            let sizes = [&named.source, &named.target].map(|tokenizer| tokenizer.vocab_size());
            let sizes = if named.is_joint() {
                format!("{} pieces, joint", sizes[0])
            } else {
                format!("{} and {} pieces", sizes[0], sizes[1])
            };
            tell(Notice::Info(format!("tokenizer: {sizes}, from a file")));
        }
        // What is wrong with them is said before text is read.
        Tokenizers::codes(config)?;
        return Ok(named);
    };
    // The run has its own copy; the original file may be gone.
    let config = &config.tokenizer;
    let is_there = |path: &Option<PathBuf>| path.as_ref().is_none_or(|path| path.exists());
    if let (Some(path), true, true) = (&config.path, is_there(&config.path), is_there(&config.target_path))
        && let Some(named) = Tokenizers::named(config)?
        && !named.is_same(&saved)
    {
        let error = Error::usage("the tokenizer is not the one that the run began with").at(path);
        return Err(error.help("name the original one, or start another run with --run-dir"));
    }
    let files = [&config.codes, &config.target_codes, &config.vocabulary, &config.target_vocabulary];
    if let (Some(path), true) = (&config.codes, files.into_iter().all(is_there))
        && !saved.has_codes(&Tokenizers::codes(config)?)
    {
        let error = Error::usage("the codes, or their vocabulary, are not those that the run began with").at(path);
        return Err(error.help("name the original ones, or start another run with --run-dir"));
    }
    Ok(Some(saved))
}

/// Opens the corpora, learns the tokenizers (unless they are `saved`), encodes and filters.
///
/// The texts get the tags of their languages. Text of more than `data.cache_above` MiB is prepared on disk, once; less
/// in memory, unless it is on disk already.
pub fn prepare(
    config: &Config,
    texts: &mut Texts,
    saved: Option<Tokenizers>,
    preparation: &Preparation<'_>,
) -> Result<TrainingData> {
    let named = tokenizers(config, saved, preparation.tell)?;
    let decode = [&config.decode.source_language, &config.decode.target_language].map(Option::as_deref);
    let form = |text: &str| config.tokenizer.form().apply(text);
    let languages = match &named {
        Some(tokenizers) => LanguageTags::of(&tokenizers.source),
        None => LanguageTags::listed(config.tokenizer.tags.iter().map(String::as_str), form),
    };
    texts.resolve(&languages, decode)?;
    drop(languages);
    named.iter().try_for_each(|tokenizers| corpus_tags::refuse_unknown(texts, &tokenizers.source, preparation.tell))?;
    // Reading all text once and learning a vocabulary take long, and leave nothing behind.
    preparation.allow_immediate_end(true);
    preparation.check_stop()?;
    let open = texts.train.iter().map(|(text, weight)| text.open(*weight, preparation.tell));
    let corpora = open.collect::<Result<Vec<_>>>()?;
    let bytes: u64 = corpora.iter().map(|corpus| corpus.text_bytes()).sum();
    let on_disk = preparation.always_cache || bytes >> 20 >= config.data.cache_above;
    let cache = Cache::new(&preparation.cache);
    let tokenizers = match named {
        Some(tokenizers) => tokenizers,
        None => learn(&config.tokenizer, &corpora, &cache, on_disk, preparation)?,
    };
    preparation.allow_immediate_end(false);
    preparation.check_stop()?;
    let filter = Filter { max_length: config.data.max_length, max_ratio: config.data.max_ratio };
    let elements = elements(&config.tokenizer, &tokenizers);
    let judge = config
        .data
        .quality
        .as_ref()
        .map(|quality| PairJudge::open(quality, &preparation.device, preparation.offline))
        .transpose()?;
    let (mut parts, mut directories) = (Vec::with_capacity(corpora.len()), Vec::<PathBuf>::new());
    for corpus in corpora {
        let scores = match &judge {
            Some(judge) => judge.scores(&*corpus, &tokenizers, &cache, preparation)?,
            None => None,
        };
        let quality = judge.as_ref().zip(scores.as_ref()).map(|(judge, scores)| judge.quality(scores));
        let recipe = Recipe { encoder: &tokenizers, filter, elements, quality };
        let entry = cache.entry(&*corpus, recipe, &tokenizers);
        let (shards, from_disk) = shards(&*corpus, recipe, &entry, on_disk, preparation)?;
        let directory = entry.directory();
        if from_disk && !directories.iter().any(|known| known == directory) {
            directories.push(directory.to_path_buf());
        }
        parts.push((corpus, shards));
    }
    let (corpus, report) = EncodedCorpus::new(parts, filter)?;
    (preparation.tell)(Notice::Info(format!("data: {report}")));
    let data = TrainingData { tokenizers, corpus: Arc::new(corpus), report, directories };
    let corpus_tags =
        corpus_tags::training_warning(&data).into_iter().chain(corpus_tags::two_tags_warning(&data, &config.data));
    let corpus_tags = corpus_tags.chain(corpus_tags::test_set_warning(texts, &data.tokenizers));
    let pairs: Vec<_> = data.sampled().map(|pair| data.ids(pair)).collect();
    let warnings = coverage::warnings(coverage::TRAINING, &data.tokenizers, is_learnt(config), &pairs);
    let is_split = || coverage::split_already(&data.tokenizers, config.tokenizer.kind, &pairs);
    let split = if is_learnt(config) { is_split() } else { Vec::new() };
    warnings
        .into_iter()
        .chain(split)
        .chain(corpus_tags)
        .for_each(|warning| (preparation.tell)(Notice::Warning(warning)));
    Ok(data)
}

/// Whether the vocabulary of a run is learnt from its training text.
pub fn is_learnt(config: &Config) -> bool {
    config.tokenizer.path.is_none() && config.train.init.is_none()
}

/// What is kept of pairs: text where each epoch splits it anew, else ids as wide as the larger vocabulary needs.
fn elements(config: &TokenizerConfig, tokenizers: &Tokenizers) -> Elements {
    if config.subword_sampling().is_some() {
        return Elements::Text;
    }
    Elements::ids(tokenizers.source.vocab_size().max(tokenizers.target.vocab_size()))
}

/// How training text becomes batches.
pub fn batch_options(config: &Config) -> BatchOptions {
    BatchOptions {
        batch_tokens: config.train.batch_tokens,
        max_epochs: config.train.max_epochs,
        max_length: config.model.max_length,
        sampling: config.tokenizer.subword_sampling(),
        seed: config.train.seed,
        accumulate: config.train.accumulate as u64,
        ranks: Ranks::ALONE,
    }
}

/// Tokenizers learned from the corpora, now or when the corpora were prepared earlier.
fn learn(
    config: &TokenizerConfig,
    corpora: &[Box<dyn PairSource>],
    cache: &Cache,
    on_disk: bool,
    preparation: &Preparation<'_>,
) -> Result<Tokenizers> {
    let entry = cache.tokenizers(corpora, config)?;
    let (tokenizers, how) = match entry.load() {
        Some(tokenizers) => (tokenizers, ", learned when the text was prepared"),
        None => {
            let tokenizers = Tokenizers::train(config, corpora)?;
            if on_disk {
                entry.save(&tokenizers)?;
            }
            (tokenizers, "")
        }
    };
    let (pieces, asked) = (tokenizers.target.vocab_size(), config.vocab_size);
    let joint = if tokenizers.is_joint() { ", joint" } else { "" };
    let fewer =
        if pieces < asked { format!("; the text gives no more, though {asked} were asked for") } else { String::new() };
    (preparation.tell)(Notice::Info(format!("tokenizer: {pieces} pieces{joint}{how}{fewer}")));
    Ok(tokenizers)
}

/// The shards of a corpus, from disk or made now, and whether they are mapped from disk.
fn shards(
    corpus: &dyn PairSource,
    recipe: Recipe<'_>,
    entry: &Entry,
    on_disk: bool,
    preparation: &Preparation<'_>,
) -> Result<(Vec<Shard>, bool)> {
    let found = entry.load()?;
    if entry.is_complete(&found) {
        return Ok((found, true));
    }
    let shown = (preparation.meter)(corpus.len() as u64);
    let progress = |read: usize| {
        shown(read as u64);
        preparation.check_stop()
    };
    let started = Instant::now();
    let shards = if on_disk {
        entry.complete(found, corpus, recipe, &progress, preparation.tell)
    } else {
        encode::shards(corpus, recipe, &progress)
    };
    drop(shown);
    if on_disk && shards.is_ok() {
        let (pairs, seconds) = (corpus.len(), started.elapsed().as_secs_f64());
        let directory = entry.directory().display();
        (preparation.tell)(Notice::Info(format!("prepared {pairs} pairs in {seconds:.1} s, in {directory}")));
    }
    Ok((shards?, on_disk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::Tokenizer;

    #[test]
    fn text_is_prepared_beside_the_run() {
        let config = DataConfig::default();
        let cache = |run: &Path| Preparation::beside(run, &config, &|_| ()).cache;
        assert_eq!(cache(Path::new("runs/a")), Path::new("runs").join(CACHE));
        assert_eq!(cache(Path::new("a")), Path::new(CACHE));
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(cache(Path::new(".")), here.with_file_name(CACHE));
        assert_eq!(cache(Path::new("src/..")), here.with_file_name(CACHE));
    }

    #[test]
    fn ids_are_as_wide_as_the_larger_vocabulary_needs() {
        let of = |size: u32| {
            let special = ["<pad>", "</s>", "<unk>"].map(str::to_owned);
            let pieces = special.into_iter().chain((3..size).map(|id| id.to_string())).zip(0..);
            Arc::new(Tokenizer::from_words(pieces.collect()).unwrap())
        };
        let (small, most, large) = (of(5), of(65_536), of(65_537));
        let config = |dropout| TokenizerConfig { dropout, ..TokenizerConfig::default() };
        for (source, target, expected) in [
            (&small, &most, Elements::NarrowIds),
            (&most, &small, Elements::NarrowIds),
            (&small, &large, Elements::WideIds),
            (&large, &small, Elements::WideIds),
        ] {
            let tokenizers = Tokenizers { source: source.clone(), target: target.clone() };
            assert_eq!(elements(&config(0.0), &tokenizers), expected);
            assert_eq!(elements(&config(0.1), &tokenizers), Elements::Text);
        }
    }
}
