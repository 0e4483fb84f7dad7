//! The size of a run, computed before it begins.

use crate::config::Config;
use crate::data::batches;
use crate::data::sampler::Sampler;
use crate::data::training::TrainingData;
use crate::device;
use crate::error::{Error, Result};
use crate::model::layout;
use crate::model_dir::vocabulary;
use crate::notice::grouped;
use crate::ops::params::ParameterLayout;
use crate::train::memory::{Needed, Sizes};
use crate::train::{TrainConfig, memory};

/// Refuses more ranks than an update has micro-batches; returns a warning where some ranks have fewer than others.
pub fn refuse_idle_ranks(train: &TrainConfig, count: usize) -> Result<Option<String>> {
    let (accumulate, tokens) = (train.accumulate, train.batch_tokens);
    let of = |accumulate: usize| format!("{accumulate} makes updates of {} tokens", grouped(accumulate * tokens));
    if accumulate < count {
        let what = format!("an update has {accumulate} micro-batches, and there are {count} ranks to compute them");
        return Err(Error::usage(what).help(format!(
            "set train.accumulate, which counts over all ranks: {}, {}; or start fewer ranks (now, updates have {} \
             tokens at most)",
            of(count),
            of(2 * count),
            grouped(accumulate * tokens)
        )));
    }
    let turns = accumulate.div_ceil(count);
    let idle = 100 * (turns * count - accumulate) / (turns * count);
    let [fewer, more] = [accumulate / count * count, turns * count];
    Ok((fewer != accumulate).then(|| {
        format!(
            "train.accumulate = {accumulate} is no multiple of the {count} ranks: they are idle for {idle} % of the \
             time; {} and {}",
            of(fewer),
            of(more)
        )
    }))
}

/// The ranks of a run, in words; on so many machines, if that is known.
pub fn of_ranks(config: &Config, count: usize, machines: Option<usize>) -> String {
    let accumulate = config.train.accumulate;
    let on = match machines {
        None => String::new(),
        Some(1) => " on one machine".to_owned(),
        Some(machines) => format!(" on {machines} machines"),
    };
    let tokens = grouped(accumulate * config.train.batch_tokens);
    format!("ranks: {count}{on}; an update has {accumulate} micro-batches over all ranks, {tokens} tokens at most")
}

/// The size of a run.
pub struct Plan {
    /// The model's parameters.
    pub parameters: ParameterLayout,
    /// Source subwords of the training text.
    pub source_tokens: usize,
    /// Its target subwords.
    pub target_tokens: usize,
    /// How many of them are trained, and how.
    pub sizes: Sizes,
    /// Micro-batches per epoch, about.
    pub batches_per_epoch: usize,
    /// Updates per epoch, about.
    pub updates_per_epoch: usize,
    /// Updates after which the run ends, if `train.max_updates` or `train.max_epochs` say so.
    pub updates: Option<u64>,
    /// Memory needed in training, about.
    pub memory_bytes: usize,
    /// Whether it has a copy of what a checkpoint holds, so that training goes on while the checkpoint is written.
    pub copies_checkpoints: bool,
    /// What is said if that is more than the machine has.
    pub memory_warning: Option<String>,
}

impl Plan {
    /// Computes the plan from the data.
    pub fn new(config: &Config, data: &TrainingData) -> Result<Self> {
        let train = &config.train;
        let vocabulary = vocabulary(&data.tokenizers);
        let parameters = layout::layout(&config.model, vocabulary);
        let sampler = Sampler::new(data.corpus.clone(), data.corpus.ranges(), train.batch_tokens, train.seed)?;
        let batches_per_epoch = sampler.batches_per_epoch_estimate(0).max(1);
        let updates_per_epoch = batches_per_epoch.div_ceil(train.accumulate);
        let limits = [train.max_updates, train.max_epochs.saturating_mul(updates_per_epoch as u64)];
        let [source_tokens, target_tokens] = data.corpus.token_counts().map(|count| count as usize);
        let needed = |train: &TrainConfig| {
            let (rows, tokens) = batches::largest_shape(data, train.batch_tokens);
            memory::estimate(&config.model, train, Sizes::of(&parameters, train), vocabulary.target, rows * tokens)
        };
        let Needed { training, copy } = needed(train);
        let copies_checkpoints = needed(train).has_room_for_copy(device::machine_memory());
        let memory_warning = memory::warning(training, train, |train| needed(train).training);
        Ok(Self {
            sizes: Sizes::of(&parameters, train),
            parameters,
            source_tokens,
            target_tokens,
            batches_per_epoch,
            updates_per_epoch,
            updates: limits.into_iter().filter(|limit| *limit > 0).min(),
            memory_bytes: if copies_checkpoints { training.saturating_add(copy) } else { training },
            copies_checkpoints,
            memory_warning,
        })
    }

    /// What is trained, if that is not every parameter.
    pub fn training(&self) -> Option<String> {
        let Sizes { parameters, frozen, trained, adapted } = self.sizes;
        let [all, frozen, trained, changed] = [parameters, frozen, trained, adapted].map(grouped);
        match (adapted, self.sizes.frozen) {
            (0, 0) => None,
            (0, _) => Some(format!("frozen: {frozen} of {all} parameters")),
            _ => Some(format!("low-rank factors change {changed} of {all} parameters; {trained} numbers are trained")),
        }
    }

    /// Warnings about too little memory, if training `is_on_host`, about updates larger than the text, about training
    /// that has no end, and about a learning rate that does not come down.
    pub fn warnings(&self, config: &Config, is_on_host: bool) -> impl Iterator<Item = String> {
        let (accumulate, batches) = (config.train.accumulate, self.batches_per_epoch);
        let is_more = accumulate > batches;
        let more = is_more.then(|| {
            format!(
                "train.accumulate = {accumulate} makes one update of more than an epoch, of about {batches} \
                 micro-batches: lower it"
            )
        });
        let waits = (!self.copies_checkpoints).then(|| {
            "memory has no room for a copy of what a checkpoint holds: training waits while one is written".to_owned()
        });
        let memory = self.memory_warning.clone().or(waits).filter(|_| is_on_host);
        let (train, valid) = (&config.train, &config.valid);
        let has_patience = valid.patience > 0 && !valid.every.is_never() && config.data.valid.is_some();
        let is_endless = train.max_updates == 0 && train.max_epochs == 0 && !has_patience;
        let endless = is_endless.then(|| {
            "training has no end: only a signal will stop it, and then there is no final model (train.max_updates, \
             train.max_epochs, or valid.patience with a validation set)"
                .to_owned()
        });
        let high = self.updates.and_then(|updates| train.schedule.high_end(train.max_updates, updates));
        memory.into_iter().chain(more).chain(endless).chain(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_without_a_micro_batch_are_refused_and_idle_ones_are_named() {
        let of = |accumulate, count| {
            let train = TrainConfig { accumulate, batch_tokens: 1000, ..TrainConfig::default() };
            refuse_idle_ranks(&train, count)
        };
        assert_eq!(of(1, 1).unwrap(), None);
        assert_eq!(of(8, 4).unwrap(), None);
        let error = of(2, 3).unwrap_err().to_string();
        assert!(error.contains("an update has 2 micro-batches, and there are 3 ranks"), "{error}");
        assert!(error.contains("3 makes updates of 3,000 tokens, 6 makes updates of 6,000 tokens"), "{error}");
        // Two turns of four ranks, of which the second has one micro-batch.
        let warning = of(5, 4).unwrap().unwrap();
        assert!(warning.contains("idle for 37 % of the time"), "{warning}");
        assert!(warning.contains("4 makes updates of 4,000 tokens and 8 makes updates of 8,000 tokens"), "{warning}");
    }
}
