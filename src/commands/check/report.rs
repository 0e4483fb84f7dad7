//! The findings of a check, which it prints at its end.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::existing::Existing;
use super::outlook::Outlook;
use crate::data::check::{Finding, Findings, Kind};
use crate::error::{Error, Result};

/// What was found.
#[derive(Default)]
pub(super) struct Report {
    /// Errors and oddities of the text.
    pub findings: Findings,
    /// The run in the run directory, if there is one.
    pub existing: Option<Existing>,
    /// Estimated costs of training, as far as known.
    pub outlook: Option<Outlook>,
    /// Why training could not begin.
    errors: Vec<Error>,
    /// The texts of these.
    known: HashSet<String>,
}

impl Report {
    /// Adds an error, or several held in one, unless they are known: the same file may be read more than once.
    pub(super) fn add(&mut self, error: Error) {
        for error in error.into_all() {
            if self.known.insert(error.to_string()) {
                self.errors.push(error);
            }
        }
    }

    /// The value; or nothing, and its error is added.
    pub(super) fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    /// Whether no error was found.
    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// As JSON.
    pub(super) fn json(&self) -> Value {
        let finding = |(kind, finding): (Kind, &Finding)| {
            json!({
                "kind": kind, "severity": kind.severity(), "text": kind.text(), "count": finding.count,
                "places": finding.places, "details": finding.details,
            })
        };
        json!({
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "run": self.existing.as_ref().map(Existing::json), "plan": self.outlook.as_ref().map(Outlook::json),
            "errors": errors_json(&self.errors),
        })
    }

    /// The findings as lines of text.
    pub(super) fn findings_in_words(&self) -> impl Iterator<Item = String> {
        self.findings.iter().map(|(kind, finding)| in_words(kind, finding))
    }

    /// The existing run and the outlook as lines of text.
    pub(super) fn prospects_in_words(&self) -> impl Iterator<Item = String> {
        let existing = self.existing.iter().flat_map(Existing::in_words);
        existing.chain(self.outlook.iter().flat_map(Outlook::in_words))
    }

    /// All errors as one, if there are any.
    pub(super) fn into_result(self) -> Result<()> {
        if self.errors.is_empty() { Ok(()) } else { Err(Error::many(self.errors)) }
    }
}

/// Errors as a JSON list, including those that they carry.
pub(super) fn errors_json<'a>(errors: impl IntoIterator<Item = &'a Error>) -> Vec<Value> {
    errors.into_iter().flat_map(Error::all).map(as_json).collect()
}

/// What is wrong, where, and what to do. Lines and columns count from 1; 0 means none in particular.
fn as_json(error: &Error) -> Value {
    let location = error.location();
    json!({
        "what": error.what(), "file": location.map(|it| it.path.to_string_lossy()), "line": location.map(|it| it.line),
        "column": location.map(|it| it.column), "help": error.helps(),
    })
}

/// One kind of finding with its locations.
fn in_words(kind: Kind, finding: &Finding) -> String {
    let mut text = format!("{}: {} ({})", kind.severity(), kind.text(), finding.count);
    for location in &finding.places {
        let line = if location.line > 0 { format!(":{}", location.line) } else { String::new() };
        text += &format!("\n  --> {}{line}", location.file.display());
    }
    finding.details.iter().for_each(|detail| text += &format!("\n  {detail}"));
    if finding.count > finding.places.len() {
        text += &format!("\n  and {} more", finding.count - finding.places.len());
    }
    text
}
