//! Whether a run has ended, with a final model that stays as it is.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::train::log::{self, LOG_FILE};

/// A run that has ended.
pub struct Ended {
    /// Its last update, if its log is there.
    pub update: Option<u64>,
    /// The log's entry of the final model, if that was validated.
    pub made: Option<Value>,
    /// Those of the final model on the sets of `data.monitor`.
    pub monitored: Vec<Value>,
    /// What that was chosen from, if there was a choice.
    pub candidates: Vec<Value>,
}

impl Ended {
    /// The run in a directory, if there is nothing left to do as long as its configuration stays the same: its final
    /// model is whole and was validated.
    ///
    /// # Errors
    /// The final model or the log is there, but cannot be read.
    pub fn find(run: &Path, config: &Config) -> Result<Option<Self>> {
        match checkpoint::verify(run) {
            Ok(_) => {}
            Err(error) if checkpoint::is_known_damage(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let path = run.join(LOG_FILE);
        let entries = match log::entries(&path) {
            Ok(entries) => entries,
            // Nothing says whether the model was validated; it is whole, which counts for more.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Some(Self { update: None, made: None, monitored: Vec::new(), candidates: Vec::new() }));
            }
            Err(error) => return Err(Error::io("read the log", &path, error)),
        };
        // When a run goes on, this entry is removed.
        let made = entries.last().filter(|entry| entry["event"] == "final" && entry["loss"].is_number()).cloned();
        let is_validated = !config.valid.every.is_never() && config.data.valid.is_some();
        let update = entries.iter().rev().find_map(|entry| entry["update"].as_u64());
        let (mut monitored, mut candidates) = (Vec::new(), Vec::new());
        for mut entry in entries {
            if log::is_of_final_model(&entry) {
                monitored.push(entry);
            } else if entry["event"] == "candidate" {
                let fields = entry.as_object_mut().into_iter();
                fields.for_each(|fields| fields.retain(|key, _| !["event", "update"].contains(&key.as_str())));
                candidates.push(entry);
            }
        }
        Ok((made.is_some() || !is_validated).then_some(Self { update, made, monitored, candidates }))
    }

    /// " at update 12", if that is known.
    pub fn at(&self) -> String {
        self.update.map(|update| format!(" at update {update}")).unwrap_or_default()
    }
}
