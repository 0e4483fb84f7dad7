//! What a run goes on from: its newest checkpoint, made to fit the configuration and the text of now.
//!
//! When this is reached, [`super::compare`] has found that the configuration may be continued with, or `--force`
//! insists; the run has its old tokenizers. The files of the run change only afterwards, in
//! [`super::directory::Resumption::persist`].

use std::path::Path;

use super::init::Start;
use super::training_data::batch_options;
use super::{compare, restore};
use crate::config::Config;
use crate::data::batches;
use crate::data::training::TrainingData;
use crate::error::Result;
use crate::model::Transformer;
use crate::model_dir::Tell;
use crate::model_dir::record::{self, Values};
use crate::notice::Notice;
use crate::train::TrainConfig;
use crate::train::optimizer::Optimizer;
use crate::train::state::{TextChecksums, TrainState};

/// The state to start from, with its parameters loaded: the newest checkpoint of the run that is resumed, else the
/// beginning, with the weights of `train.init` if the configuration names a model. Also says whether there was a
/// checkpoint.
pub fn begin(
    resumed: Option<&Path>,
    config: &Config,
    force: bool,
    model: &Transformer,
    optimizer: &Optimizer,
    text: &TextChecksums,
    tell: Tell<'_>,
) -> Result<(TrainState, bool)> {
    let loaded = match resumed {
        Some(run) => restore::load(run, model, optimizer, tell)?,
        None => None,
    };
    if let Some(state) = &loaded {
        check_text(state, text, config, force, tell)?;
    } else if let Some(start) = Start::open(config)? {
        start.load(model, tell)?;
        optimizer.begin(config.train.seed)?;
        tell(Notice::Info(start.describe()));
    }
    let is_loaded = loaded.is_some();
    let validation_due = config.valid.on_start && !config.valid.every.is_never();
    Ok((loaded.unwrap_or_else(|| TrainState { validation_due, ..TrainState::default() }), is_loaded))
}

/// Refuses to continue with other text than the state's or, if `force` insists, notes it.
pub fn check_text(
    state: &TrainState,
    text: &TextChecksums,
    config: &Config,
    force: bool,
    tell: Tell<'_>,
) -> Result<()> {
    match compare::text(state, text, config) {
        Err(error) if force => {
            error.all().for_each(|one| tell(Notice::Note(one.what().to_owned())));
            Ok(())
        }
        compared => compared,
    }
}

/// Says so if what computes from now on, as [`super::backend::machines`] describes it, is not what has computed the run
/// so far.
pub fn note_machine(machine: &str, state: &TrainState, tell: Tell<'_>) {
    let TrainState { step, machine: before, .. } = state;
    if *step > 0 && before != machine {
        tell(Notice::Note(format!(
            "this run was computed on {before} up to update {step}, and goes on with {machine}: the two round \
             differently, so its results will not be bit for bit those of one of them alone"
        )));
    }
}

/// Adapts the state to the configuration with which the run continues, after it was trained with `old`. Also returns
/// the configuration to record.
pub fn adapt(
    mut state: TrainState,
    old: Option<&Config>,
    config: &Config,
    data: &TrainingData,
    text: TextChecksums,
    force: bool,
    tell: Tell<'_>,
) -> Result<(TrainState, Config)> {
    let note = |text: String| tell(Notice::Note(text));
    let before = old.map_or_else(|| state.configuration.clone(), |old| record::before(old, &state.configuration));
    if force {
        let is_other_order = record::is_other_order(&before, config) || state.text.train != text.train;
        let position = batches::nearest(data, &batch_options(config), state.sampler, is_other_order)?;
        if position != state.sampler {
            note("the epoch begins again: its batches are not those of which training has seen a part".to_owned());
            state.sampler = position;
        }
    }
    let is_lowered = |state: &TrainState| state.health.is_rate_lowered() || state.plateau.lowered > 0;
    let (best, was_lowered) = (state.best.clone(), is_lowered(&state));
    let recorded = recorded(&state, old, &before, config, &text);
    if let (Some(why), Some(best)) = (record::adapt(&mut state, &before, &recorded, text), best) {
        note(format!(
            "the best validation so far, that of update {}, {why}: the next one counts as the best",
            best.step
        ));
    }
    if was_lowered && !is_lowered(&state) {
        note(
            "the learning rate is that of the changed `train.schedule`: that it was lowered belonged to the former one"
                .to_owned(),
        );
    }
    let (step, last) = (state.step, config.train.max_updates);
    if last > 0 && step > last {
        note(format!("the run has already reached update {step}, past `train.max_updates` = {last}"));
    }
    Ok((state, recorded))
}

/// The configuration to record when a run goes on from `state`. If that is where training ends, nothing is trained with
/// `config`: what the run was trained with stays recorded, but for the limits and what its final model is made of.
fn recorded(
    state: &TrainState,
    old: Option<&Config>,
    before: &Values,
    config: &Config,
    text: &TextChecksums,
) -> Config {
    let mut state = state.clone();
    record::adapt(&mut state, before, config, text.clone());
    match old {
        Some(old) if state.end(&config.train, &config.valid).is_some() => {
            let TrainConfig { average_last, max_updates, max_epochs, .. } = config.train;
            let train = TrainConfig { average_last, max_updates, max_epochs, ..old.train.clone() };
            Config { train, ..config.clone() }
        }
        _ => config.clone(),
    }
}
