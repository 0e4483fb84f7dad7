//! The run that already exists in the run directory, and whether `--resume` could continue it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::checkpoint::CONFIG_FILE;
use crate::config::{self, Config};
use crate::data::texts::Texts;
use crate::data::tokenizers::Tokenizers;
use crate::data::training::TrainingData;
use crate::error::{Error, Result};
use crate::run::compare::{self, Comparison};
use crate::run::ended::Ended;
use crate::run::validator::Validator;
use crate::run::{directory, lock, restore};
use crate::train::state::TrainState;

/// A run that already exists.
pub(super) struct Existing {
    directory: PathBuf,
    /// Its tokenizers, if they are undamaged and the run can be continued under this configuration.
    pub tokenizers: Option<Tokenizers>,
    state: Option<TrainState>,
    notes: Vec<String>,
    refused: Vec<Error>,
    /// Why nothing may train there now.
    held: Option<Error>,
    /// Whether there is nothing left to do, unless the text has changed.
    ended: Option<Ended>,
}

impl Existing {
    /// The run in a directory, if there is one. Its problems are among the refusals; `locate` adds the location of each
    /// key.
    pub(super) fn find(run: &Path, config: &Config, locate: &dyn Fn(Error, &str) -> Error) -> Option<Self> {
        let config_file = run.join(CONFIG_FILE);
        if !directory::is_run(run) {
            return None;
        }
        let Comparison { notes, mut refused, impossible, is_same, .. } = match config::load_resolved(&config_file) {
            Ok(old) => compare::configurations(&config_file, &old, config, locate),
            Err(error) => Comparison { refused: vec![error], ..Comparison::default() },
        };
        refused.extend(impossible);
        let notes = RefCell::new(notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>());
        let state = match restore::newest(run, &|notice| notes.borrow_mut().push(notice.to_string())) {
            Ok(newest) => newest.map(|(state, _)| state),
            Err(error) => {
                refused.push(error);
                None
            }
        };
        let tokenizers = match directory::tokenizers(run) {
            Ok(tokenizers) => refused.is_empty().then_some(tokenizers),
            Err(error) => {
                refused.push(error);
                None
            }
        };
        let held = lock::refused_by_another(run);
        let ended = match Ended::find(run, config) {
            Ok(ended) => ended.filter(|_| is_same),
            Err(error) => {
                refused.push(error);
                None
            }
        };
        Some(Self { directory: run.to_path_buf(), tokenizers, state, notes: notes.into_inner(), refused, held, ended })
    }

    /// Compares the text with that of the run, unless the run cannot be continued anyway. Returns whether it refuses
    /// the text. The data must have been read with the run's tokenizers.
    pub(super) fn refuses_text(&mut self, config: &Config, texts: &Texts, data: &TrainingData) -> Result<bool> {
        let Some(state) = self.state.as_ref().filter(|_| self.refused.is_empty()) else { return Ok(false) };
        let valid = Validator::open(config, texts, &data.tokenizers, &|_| ())?;
        let text = compare::checksums(&data.corpus, valid.as_ref());
        let compared = compare::text(state, &text, config);
        self.refused.extend(compared.err().into_iter().flat_map(Error::into_all));
        Ok(!self.refused.is_empty())
    }

    /// Whether it has a checkpoint to go on from.
    pub(super) fn has_checkpoint(&self) -> bool {
        self.state.is_some()
    }

    /// The update of its newest checkpoint, if one is whole.
    fn update(&self) -> Option<u64> {
        self.state.as_ref().map(|state| state.step)
    }

    /// Why `--resume` would be refused.
    fn refused(&self) -> impl Iterator<Item = &Error> {
        self.refused.iter().chain(&self.held)
    }

    fn has_ended(&self) -> bool {
        self.ended.is_some() && self.refused().next().is_none()
    }

    /// As JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "directory": self.directory.to_string_lossy(), "update": self.update(), "notes": self.notes,
            "refused": self.refused().map(Error::to_string).collect::<Vec<_>>(), "ended": self.has_ended(),
        })
    }

    /// As lines of text.
    pub(super) fn in_words(&self) -> Vec<String> {
        let update = self.update().map(|update| format!(", at update {update}")).unwrap_or_default();
        let directory = self.directory.display();
        let ways = if self.has_ended() {
            "it has ended, and --resume leaves its final model as it is; replace"
        } else if self.refused().next().is_none() {
            "continue it with --resume, replace"
        } else {
            "replace"
        };
        let mut lines = vec![match &self.held {
            Some(_) => format!("note: there is a run in {directory}{update}: name another with --run-dir"),
            None => format!(
                "note: there is a run in {directory}{update}: {ways} it with --overwrite, or name another with \
                 --run-dir"
            ),
        }];
        lines.extend(self.notes.iter().cloned());
        lines.extend(self.refused().map(|error| format!("warning: --resume would refuse it: {error}")));
        lines
    }
}
