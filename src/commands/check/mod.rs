//! `mt check`: finds everything that can be known to be wrong before training, in one pass.
//!
//! ```text
//! configuration → text (`data::check`) → the run in the run directory (`existing`) → what training will take (`outlook`)
//! ```

mod existing;
mod outlook;

use std::cell::RefCell;

use serde_json::{Value, json};

use super::output::Output;
use super::run::directory;
use super::run::training_data::{self, Workplace};
use super::texts::Texts;
use crate::cli::{Common, RunArgs};
use crate::config::{self, Config};
use crate::console::Notice;
use crate::data::check::words::Sample;
use crate::data::check::{self, Findings, Kind, Seen, Severity};
use crate::device;
use crate::error::{Error, Result};
use existing::Existing;
use outlook::Outlook;

/// Looks for everything that can be known to be wrong before training: in the configuration, the text, a run that already
/// exists, the vocabulary, and the memory and time needed.
pub fn run(args: &RunArgs, common: &Common) -> Result<()> {
    let mut is_told = false;
    let result = look(args, common, &mut is_told);
    if let (Err(error), true, false) = (&result, common.json, is_told) {
        let mut output = Output::open(None)?;
        let errors: Vec<_> = error.all().map(as_json).collect();
        output.line(&json!({ "errors": errors }).to_string())?;
        output.flush()?;
    }
    result
}

/// Checks and reports. Sets `is_told` when it writes its JSON, so that an error is not reported twice.
fn look(args: &RunArgs, common: &Common, is_told: &mut bool) -> Result<()> {
    let config = load(args)?;
    let run = directory::of(args.run_dir.as_deref(), &args.config)?;
    directory::refuse_unusable(&run, &config)?;
    let found = Texts::find(&config.data, common)?;
    device::set_threads(common.threads.unwrap_or(config.runtime.threads));
    let findings = texts(&found, !config.tokenizer.tags.is_empty())?;
    let refused = findings.iter().any(|(kind, _)| kind.severity() == Severity::Error);
    let mut output = Output::open(None)?;
    if !common.json {
        findings.iter().try_for_each(|(kind, finding)| output.line(&in_words(kind, finding)))?;
        output.flush()?;
    }
    let mut existing = Existing::find(&run, &config)?;
    let outlook = if refused {
        None
    } else {
        let saved = existing.as_mut().and_then(|existing| existing.tokenizers.take());
        let said = RefCell::new(Vec::new());
        // Only warnings: everything else is reported below.
        let say = |notice| {
            if let Notice::Warning(text) = notice {
                said.borrow_mut().push(text);
            }
        };
        let data =
            training_data::prepare(&config, &found, saved, &Workplace::beside(&run, &config.data, common, &say))?;
        if let Some(existing) = &mut existing {
            existing.compare_text(&config, &found, &data)?;
        }
        Some(Outlook::new(&config, &found, &data, said.into_inner(), common)?)
    };
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
        *is_told = true;
        let (existing, plan) = (existing.as_ref().map(Existing::json), outlook.as_ref().map(Outlook::json));
        output.line(&json!({ "findings": list, "run": existing, "plan": plan }).to_string())?;
    } else {
        let existing = existing.iter().flat_map(Existing::in_words);
        let outlook = outlook.iter().flat_map(|outlook| outlook.in_words());
        existing.chain(outlook).try_for_each(|line| output.line(&line))?;
    }
    output.flush()?;
    if refused {
        return Err(Error::failure("training would refuse this text").help("correct what is marked `error` above"));
    }
    Ok(())
}

fn load(args: &RunArgs) -> Result<Config> {
    let config = config::load(&args.config, &args.set)?;
    config::check_for_training(&config)?;
    Ok(config)
}

/// What is wrong, where, and what to do. Lines and columns count from 1; 0 means none in particular.
fn as_json(error: &Error) -> Value {
    let place = error.place();
    json!({
        "what": error.what(), "file": place.map(|place| &place.path), "line": place.map(|place| place.line),
        "column": place.map(|place| place.column), "help": error.helps(),
    })
}

/// Checks every corpus, first those that must not be trained on. With tags, pairs may be of any language direction.
fn texts(texts: &Texts, has_tags: bool) -> Result<Findings> {
    let train = || texts.train.iter().map(|(text, _)| text);
    let mut sample = Sample::default();
    for text in [&texts.valid, &texts.test].into_iter().flatten().chain(train()) {
        let [source, target] = text.raw()?;
        sample.add(&source, &target);
    }
    let words = sample.learn(has_tags);
    let mut seen = Seen::default();
    let mut findings = Findings::default();
    for text in [&texts.valid, &texts.test].into_iter().flatten() {
        findings.merge(check::check_lines(&text.raw()?, false, &mut seen, &words));
    }
    for text in train() {
        findings.merge(check::check_lines(&text.raw()?, true, &mut seen, &words));
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
