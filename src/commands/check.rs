//! `mt check`

use std::time::Instant;

use serde_json::json;

use super::output::Output;
use super::train::prepare::{self, Data};
use crate::cli::{CheckArgs, Common};
use crate::config::{self, Config};
use crate::console::message;
use crate::data::check::{self, Findings, Kind, Seen, Severity};
use crate::data::sampler::Sampler;
use crate::device;
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::ops::Mode;
use crate::rng;
use crate::train::{inputs, memory};

/// Pieces that come less often have hardly a chance to be learnt.
const RARE: u32 = 10;

/// Looks for everything that can be known wrong before training: in the configuration, the text, the vocabulary, and what
/// memory and time it will take.
pub fn run(args: &CheckArgs, common: &Common) -> Result<()> {
    let config = config::load(&args.config, &args.set)?;
    config::check_for_training(&config)?;
    prepare::check_files(&config.data)?;
    device::set_threads(common.threads.unwrap_or(config.runtime.threads));
    let findings = texts(&config)?;
    let refused = findings.iter().any(|(kind, _)| kind.severity() == Severity::Error);
    let mut output = Output::open(None)?;
    if !common.json {
        findings.iter().try_for_each(|(kind, finding)| output.line(&in_words(kind, finding)))?;
        output.flush()?;
    }
    let plan = if refused { None } else { Some(Plan::new(&config, common)?) };
    if common.json {
        let list: Vec<_> = findings
            .iter()
            .map(|(kind, finding)| {
                json!({
                    "kind": kind, "severity": kind.severity(), "text": kind.text(), "count": finding.count,
                    "places": finding.places,
                })
            })
            .collect();
        output.line(&json!({ "findings": list, "plan": plan.as_ref().map(Plan::json) }).to_string())?;
    } else if let Some(plan) = &plan {
        output.line(&plan.in_words(&config))?;
    }
    output.flush()?;
    if refused {
        return Err(Error::failure("training would refuse this text").help("mend what is marked `error` above"));
    }
    Ok(())
}

/// Checks every corpus of the configuration: first those that must not be trained on.
fn texts(config: &Config) -> Result<Findings> {
    let mut seen = Seen::default();
    let mut findings = Findings::default();
    for pair in [&config.data.valid, &config.data.test].into_iter().flatten() {
        findings.merge(check::check(&pair.source, &pair.target, false, &mut seen)?);
    }
    for corpus in &config.data.train {
        findings.merge(check::check(&corpus.source, &corpus.target, true, &mut seen)?);
    }
    Ok(findings)
}

/// One kind of finding with its places.
fn in_words(kind: Kind, finding: &check::Finding) -> String {
    let mut text = format!("{}: {} ({})", kind.severity(), kind.text(), finding.count);
    for place in &finding.places {
        let line = if place.line > 0 { format!(":{}", place.line) } else { String::new() };
        text += &format!("\n  --> {}{line}", place.file.display());
    }
    if finding.count > finding.places.len() {
        text += &format!("\n  and {} more", finding.count - finding.places.len());
    }
    text
}

/// What training will be like.
struct Plan {
    pairs: usize,
    dropped: String,
    pieces: usize,
    rare: usize,
    parameters: usize,
    updates: u64,
    memory: u64,
    tokens_per_second: f64,
    seconds: f64,
}

impl Plan {
    /// Learns the vocabulary, and tries the largest batch.
    fn new(config: &Config, common: &Common) -> Result<Self> {
        let say = |text: String| {
            if !common.quiet {
                message(text);
            }
        };
        let data = prepare::data(config, None, &say)?;
        let device = device::open(common.device.as_deref().unwrap_or(&config.runtime.device))?;
        let compute = super::model::training_type(config.runtime.precision, &device, common);
        let vocabulary = super::model::vocabulary(&data.tokenizers);
        let model = Transformer::with_precision(&config.model, vocabulary, &device, compute)?;
        model.initialise(config.train.seed)?;
        let parameters = model.parameters().values().elem_count();
        let tokens_per_second = speed(&model, &data, config)?;

        let train = &config.train;
        let sampler = Sampler::new(data.corpus.lengths(), data.corpus.ranges(), train.batch_tokens, train.seed)?;
        let batches = sampler.batches_per_epoch_estimate(0).max(1);
        let an_epoch = batches.div_ceil(train.accumulate).max(1) as u64;
        let limits = [train.max_updates, train.max_epochs.saturating_mul(an_epoch)];
        let updates = limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(0);
        let (_, target_tokens) = data.corpus.token_counts();
        let tokens = (target_tokens + data.corpus.len()) as f64 / an_epoch as f64;
        Ok(Self {
            pairs: data.corpus.len(),
            dropped: data.report.to_string(),
            pieces: data.tokenizers.target.vocab_size(),
            rare: rare_pieces(&data),
            parameters,
            updates,
            memory: memory::estimate(&config.model, parameters, vocabulary.target, train.batch_tokens) as u64,
            tokens_per_second,
            seconds: updates as f64 * tokens / tokens_per_second,
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "pairs": self.pairs, "pieces": self.pieces, "rare_pieces": self.rare, "parameters": self.parameters,
            "updates": self.updates, "memory_bytes": self.memory, "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
        })
    }

    fn in_words(&self, config: &Config) -> String {
        let mut lines = Vec::new();
        if self.pieces < config.tokenizer.vocab_size {
            lines.push(format!(
                "warning: the text has no more than {} pieces, of tokenizer.vocab_size = {}",
                self.pieces, config.tokenizer.vocab_size
            ));
        }
        if self.rare * 4 > self.pieces {
            lines.push(format!(
                "warning: {} of {} target pieces come fewer than {RARE} times: a smaller tokenizer.vocab_size may do better",
                self.rare, self.pieces
            ));
        }
        lines.push(format!("data: {}", self.dropped));
        lines.push(format!("parameters: {}", super::info::grouped(self.parameters)));
        lines.push(format!("memory: about {:.2} GiB", self.memory as f64 / (1u64 << 30) as f64));
        if device::machine_memory().is_some_and(|memory| self.memory > memory) {
            lines.push("warning: that is more memory than this machine has: lower train.batch_tokens".to_owned());
        }
        let speed = self.tokens_per_second;
        let time = if self.updates > 0 {
            format!("; {} updates in about {:.1} hours", self.updates, self.seconds / 3600.0)
        } else {
            String::new()
        };
        lines.push(format!("speed: about {speed:.0} target tokens/s here, without optimizer and validation{time}"));
        lines.join("\n")
    }
}

/// Target tokens a second of forward and backward over the largest batch.
fn speed(model: &Transformer, data: &Data, config: &Config) -> Result<f64> {
    let batch = prepare::largest_batch(data, config);
    let mut seconds = f64::INFINITY;
    for pass in 0..2 {
        let started = Instant::now();
        model.parameters().clear_gradients()?;
        let mode =
            Mode { training: Some(rng::key(config.train.seed, "check", &[pass])), implementation: Default::default() };
        let (source, target, targets) = inputs(&batch, data.tokenizers.target.pad_id(), config.train.label_smoothing);
        let (loss, _) = model.loss(&source, &target, &targets, &mode)?;
        loss.backward()?;
        seconds = seconds.min(started.elapsed().as_secs_f64());
    }
    Ok(batch.target_tokens as f64 / seconds)
}

/// Target pieces that the training text has fewer than [`RARE`] times.
fn rare_pieces(data: &Data) -> usize {
    let mut counts = vec![0u32; data.tokenizers.target.vocab_size()];
    for index in 0..data.corpus.len() {
        let (source, target) = data.corpus.pair(index);
        // A joint vocabulary learns from both sides.
        let source = if data.tokenizers.is_joint() { source } else { &[] };
        for id in source.iter().chain(target) {
            counts[*id as usize] = counts[*id as usize].saturating_add(1);
        }
    }
    counts.iter().filter(|count| **count < RARE).count()
}
