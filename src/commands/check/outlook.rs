//! Estimates of training: vocabulary, memory, time.

use std::time::Instant;

use candle_core::Device;
use serde_json::json;

use crate::config::Config;
use crate::console::tell;
use crate::data::training::TrainingData;
use crate::data::{TokenizerConfig, batches};
use crate::error::Result;
use crate::limits::LEAST_PIECES;
use crate::model::{NormPlacement, Transformer};
use crate::model_dir::vocabulary;
use crate::notice::grouped;
use crate::ops::Mode;
use crate::rng;
use crate::run::backend;
use crate::run::plan::Plan;
use crate::train::split::{Limit, MicroBatch};
use crate::train::{accumulate, memory, schedule};

/// Pieces that occur less often than this can hardly be learnt.
const RARE: u32 = 10;

/// Estimates of training.
pub(super) struct Outlook {
    plan: Plan,
    pairs: usize,
    /// Target tokens of an epoch, including ends of sentences.
    tokens_per_epoch: f64,
    dropped: String,
    /// The initial model, if any.
    start: Option<String>,
    pieces: usize,
    rare: usize,
    /// `None` until it is measured.
    tokens_per_second: Option<f64>,
    warnings: Vec<String>,
}

impl Outlook {
    /// Without the speed. `start` describes the initial model; `warnings` come from preparing the text.
    pub(super) fn new(
        config: &Config,
        data: &TrainingData,
        start: Option<String>,
        is_on_host: bool,
        mut warnings: Vec<String>,
    ) -> Result<Self> {
        let plan = Plan::new(config, data)?;
        let counts = counts(data);
        let target = &data.tokenizers.target;
        let learnt = (0..).zip(&counts).filter(|(id, _)| !target.is_byte(*id)).map(|(_, count)| *count);
        let (learnt, pieces) = (learnt.collect::<Vec<u32>>(), counts.len());
        let rare = learnt.iter().filter(|count| **count < RARE).count();
        let is_given = config.tokenizer.path.is_some() || config.train.init.is_some();
        warnings.extend(vocabulary_size(&config.tokenizer, is_given, pieces, [rare, learnt.len()]));
        warnings.extend(unused_symbols(&config.tokenizer, data, &counts));
        warnings.extend(plan.warnings(config, is_on_host));
        warnings.extend(plan.updates.into_iter().flat_map(|updates| short_training(config, updates)));
        warnings.extend(high_rate(config, plan.updates));
        warnings.extend(config.train.schedule.idle_end(config.train.max_updates));
        if config.model.norm == NormPlacement::Pre && !config.model.final_norm {
            warnings.push(
                "`model.norm` = \"pre\" without `model.final_norm`: the sums of all sub-layers reach the output \
                 unnormalised"
                    .to_owned(),
            );
        }
        Ok(Self {
            plan,
            pairs: data.corpus.len(),
            tokens_per_epoch: data.corpus.epoch().iter().sum(),
            dropped: data.report.to_string(),
            start,
            pieces,
            rare,
            tokens_per_second: None,
            warnings,
        })
    }

    /// Tries the largest batch on a device.
    pub(super) fn measure(&mut self, config: &Config, data: &TrainingData, device: &Device) -> Result<()> {
        let compute = backend::number_type(config.runtime.precision, device, &tell);
        let model = Transformer::with_precision(&config.model, vocabulary(&data.tokenizers), device, compute)?;
        model.initialise(config.train.seed)?;
        self.tokens_per_second = Some(speed(&model, data, config)?);
        Ok(())
    }

    /// Seconds of the forward and backward passes, if the run has an end and the speed is known.
    fn seconds(&self) -> Option<f64> {
        let tokens = self.tokens_per_epoch / self.plan.updates_per_epoch as f64;
        let (updates, tokens_per_second) = self.plan.updates.zip(self.tokens_per_second)?;
        Some(updates as f64 * tokens / tokens_per_second)
    }

    /// As JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "pairs": self.pairs, "pieces": self.pieces, "rare_pieces": self.rare,
            "parameters": self.plan.parameters.total(),
            "updates": self.plan.updates, "memory_bytes": self.plan.memory_bytes,
            "tokens_per_second": self.tokens_per_second, "seconds": self.seconds(),
            "warnings": self.warnings,
        })
    }

    /// As lines of text.
    pub(super) fn in_words(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.warnings.iter().map(|text| format!("warning: {text}")).collect();
        lines.push(format!("data: {}", self.dropped));
        lines.extend(self.start.clone());
        lines.push(format!("parameters: {}", grouped(self.plan.parameters.total())));
        lines.extend(self.plan.training());
        lines.push(format!("memory: about {:.2} GiB", memory::gibibytes(self.plan.memory_bytes)));
        let time = match (self.plan.updates, self.seconds()) {
            (Some(updates), Some(seconds)) => format!("; {updates} updates in about {}", duration(seconds)),
            _ => String::new(),
        };
        lines.extend(self.tokens_per_second.map(|speed| {
            format!("speed: about {speed:.0} target tokens/s here, without optimizer and validation{time}")
        }));
        lines
    }
}

/// Warnings about what would happen only after the last of `updates`.
fn short_training(config: &Config, updates: u64) -> Vec<String> {
    let (warmup, valid) = (config.train.schedule.warmup(), config.valid.every);
    let ends = format!("training ends at update {updates}");
    let mut warnings = Vec::new();
    if warmup >= updates {
        warnings.push(format!(
            "{ends}, within `train.schedule.warmup` = {warmup}: the learning rate never gets to its peak"
        ));
    }
    if valid.first().is_some_and(|first| first > updates) && config.data.valid.is_some() {
        warnings.push(format!("{ends}, before the first validation at `valid.every` = {valid}"));
    }
    let (patience, after) = (config.valid.patience, config.valid.patience_after);
    if patience > 0 && after > updates && config.data.valid.is_some() {
        warnings.push(format!("{ends}, before `valid.patience_after` = {after}: `valid.patience` never stops it"));
    }
    warnings
}

/// A warning about a learning rate far above usual ones for Transformers: 0.0007 at the paper's peak, and about 0.005
/// for small models.
fn high_rate(config: &Config, updates: Option<u64>) -> Option<String> {
    const HIGH: f64 = 0.05;
    let peak = config.train.schedule.warmup().max(1).min(updates.unwrap_or(u64::MAX));
    let rate = schedule::learning_rate(&config.train.schedule, config.model.d_model, peak, 0);
    (rate > HIGH).then(|| {
        format!(
            "the learning rate is {rate:.2} at update {peak}: training will probably diverge (usual are 0.0003 to \
             0.005)"
        )
    })
}

/// Warnings about the number of target pieces. Of the `learnt` ones, which are not single bytes, `rare` are rare.
fn vocabulary_size(config: &TokenizerConfig, is_given: bool, pieces: usize, [rare, learnt]: [usize; 2]) -> Vec<String> {
    let mut warnings = Vec::new();
    if pieces < config.vocab_size && !is_given {
        let wanted = config.vocab_size;
        warnings.push(format!("the text makes only {pieces} pieces, fewer than tokenizer.vocab_size = {wanted}"));
    }
    // The size of a given tokenizer cannot be chosen.
    if rare * 4 > learnt && !is_given && config.vocab_size > LEAST_PIECES {
        warnings.push(format!(
            "{rare} of {learnt} target pieces (without bytes) occur fewer than {RARE} times: \
             a smaller tokenizer.vocab_size may do better"
        ));
    }
    warnings
}

fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.5 => "a second".to_owned(),
        _ if seconds < 120.0 => format!("{seconds:.0} seconds"),
        _ if seconds < 7200.0 => format!("{:.0} minutes", seconds / 60.0),
        _ if seconds < 3.0 * 86400.0 => format!("{:.1} hours", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86400.0),
    }
}

/// Target tokens per second in forward and backward passes over the largest batch.
fn speed(model: &Transformer, data: &TrainingData, config: &Config) -> Result<f64> {
    let batch = batches::largest_batch(data, config.train.batch_tokens);
    let (mut backend, mut limit) = (backend::open(model, None)?, Limit::default());
    let tokens = batch.target_tokens as f64;
    let loss = config.train.loss(data.tokenizers.target.pad_id());
    let mut parts = vec![MicroBatch::only(vec![batch])];
    let mut seconds = f64::INFINITY;
    for pass in 0..2 {
        let started = Instant::now();
        let mode =
            Mode { training: Some(rng::key(config.train.seed, "check", &[pass])), implementation: Default::default() };
        // In parts if it does not fit, as in training.
        let work = |batches: &[MicroBatch]| accumulate(&mut *backend, batches, &loss, false, |_, _| Some(mode));
        parts = limit.within(parts, |_| (), work)?;
        backend.sums()?;
        seconds = seconds.min(started.elapsed().as_secs_f64());
    }
    Ok(tokens / seconds)
}

/// How often each target piece occurs in the training text; on both sides if the vocabulary is joint.
fn counts(data: &TrainingData) -> Vec<u32> {
    let mut counts = vec![0u32; data.tokenizers.target.vocab_size()];
    for index in 0..data.corpus.len() {
        let (source, target) = data.ids(index);
        let source = if data.tokenizers.is_one_vocabulary() { source } else { Vec::new() };
        for id in source.into_iter().chain(target) {
            counts[id as usize] = counts[id as usize].saturating_add(1);
        }
    }
    counts
}

/// A warning about unused symbols in a joint vocabulary.
fn unused_symbols(config: &TokenizerConfig, data: &TrainingData, counts: &[u32]) -> Option<String> {
    if !data.tokenizers.is_joint() {
        return None;
    }
    let options = config.options();
    let symbols: Vec<String> =
        config.tags.iter().chain(&config.symbols).filter_map(|stated| options.symbol(stated).ok()).collect();
    let target = &data.tokenizers.target;
    let names: Vec<&str> = symbols.iter().map(String::as_str).collect();
    let unused: Vec<&str> = target
        .ids_of(&names)
        .into_iter()
        .filter(|id| counts[*id as usize] == 0)
        .filter_map(|id| target.piece(id))
        .collect();
    (!unused.is_empty())
        .then(|| format!("the training text has no {} (tokenizer.tags, tokenizer.symbols)", unused.join(", ")))
}
