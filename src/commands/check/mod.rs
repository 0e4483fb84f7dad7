//! `mt check`: finds all problems that can be found before training, in one run.
//!
//! ```text
//! configuration → run directory → text (`data::check`) → existing run (`existing`) → vocabulary and prepared text
//!               → device, memory → what training will take (`outlook`)
//! ```
//!
//! Only a wrong configuration ends the check. A `report` collects all other errors, and the check goes on with whatever
//! does not depend on them.

mod existing;
mod outlook;
mod report;

use std::cell::RefCell;
use std::path::PathBuf;

use candle_core::Device;
use serde_json::json;

use super::shared::arguments;
use super::shared::output::Output;
use crate::cli::{Common, RunArgs};
use crate::config::Config;
use crate::data::check::words::Sample;
use crate::data::check::{PairCheck, Scripts, Seen, Severity, SideCheck};
use crate::data::corpus::Side;
use crate::data::texts::{Named, Role, Texts};
use crate::data::training::TrainingData;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::run::directory;
use crate::run::init::Start;
use crate::run::request::RunRequest;
use crate::run::training_data::{self, Preparation};
use crate::run::validator::Validator;
use crate::train::memory;
use existing::Existing;
use outlook::Outlook;
use report::{Report, errors_json};

/// Looks for all problems that can be found before training: in the configuration, the text, an existing run, the
/// vocabulary, the device, and the needed memory and time.
pub(super) fn run(args: &RunArgs, common: &Common) -> Result<()> {
    let mut output = Output::open(None)?;
    let training = match Training::load(args, common) {
        Ok(training) => training,
        Err(error) => {
            if common.json {
                output.json(&json!({ "errors": errors_json([&error]) }))?;
                output.flush()?;
            }
            return Err(error);
        }
    };
    training.request.set_threads(&training.config, 1)?;
    let mut report = Report::default();
    report.keep(directory::refuse_unusable(&training.run, &training.config, true));
    let mut texts = training.check_text(&mut report);
    if !common.json {
        // The rest may take long.
        report.findings_in_words().try_for_each(|line| output.description(&line))?;
        output.flush()?;
    }
    training.check_prospects(&mut texts, &mut report);
    if common.json {
        output.json(&report.json())?;
    } else {
        report.prospects_in_words().try_for_each(|line| output.description(&line))?;
    }
    output.flush()?;
    report.into_result()
}

/// The training that is checked.
struct Training {
    config: Config,
    /// The run directory.
    run: PathBuf,
    request: RunRequest,
}

impl Training {
    fn load(args: &RunArgs, common: &Common) -> Result<Self> {
        let request = arguments::run(args, common);
        Ok(Self { config: request.config()?, run: request.run_directory()?, request })
    }

    /// Checks every corpus as far as it can be read. Validation and test sets, which training must not use, come first.
    fn check_text(&self, report: &mut Report) -> Texts {
        let (texts, errors) = Texts::gather(&self.config.data, self.request.offline);
        errors.into_iter().for_each(|error| report.add(error));
        let mut sample = Sample::default();
        // None for a text that cannot be read.
        let scripts_of = |Named { text, .. }: Named<'_>| {
            let mut sampler = sample.sampler();
            match report.keep(text.windows(|sides| sampler.add(&sides))) {
                Some(()) => Some(sampler.scripts()),
                None => {
                    sampler.discard();
                    None
                }
            }
        };
        let scripts: Vec<Option<Scripts>> = texts.all().map(scripts_of).collect();
        for (text, _) in &texts.train {
            report.keep(text.check_weights());
        }
        // With tags, pairs may be of any language direction.
        let words = sample.learn(!self.config.tokenizer.tags.is_empty());
        let mut seen = Seen::default();
        for (Named { text, role, .. }, scripts) in texts.all().zip(scripts) {
            let Some(scripts) = scripts else {
                for side in [Side::Source, Side::Target] {
                    let mut check = SideCheck::default();
                    match report.keep(text.windows_of_side(side, |window| check.add(&window))) {
                        Some(true) => report.findings.merge(check.finish()),
                        Some(false) => {}
                        None => report.findings.merge(check.break_off()),
                    }
                }
                continue;
            };
            // Monitored sets do not influence training, and may be part of any other text.
            let mut apart = Seen::default();
            let seen = if role == Role::Monitored { &mut apart } else { &mut seen };
            let mut check = PairCheck::new(scripts, &words, role == Role::Training, seen);
            if report.keep(text.windows(|sides| check.add(&sides))).is_some() {
                report.findings.merge(check.finish());
            }
        }
        if report.findings.iter().any(|(kind, _)| kind.severity() == Severity::Error) {
            let error = Error::failure("training would refuse this text");
            report.add(error.help("correct what is marked `error` above"));
        }
        texts
    }

    /// Checks the run that is there already, the vocabulary, the device and the memory, and looks at what training will
    /// take.
    fn check_prospects(&self, texts: &mut Texts, report: &mut Report) {
        report.existing = Existing::find(&self.run, &self.config, &|error, key| self.request.locate(error, key));
        let prepared = self.prepare(texts, report);
        let device = report.keep(self.request.open_device(&self.config, 0));
        // Only the processor uses the machine's memory; `cpu` and `auto` can always be opened.
        let is_host = device.as_ref().is_some_and(Device::is_cpu);
        let is_possible = !is_host
            || report
                .keep(memory::refuse_the_impossible(&self.config.model, self.config.tokenizer.vocab_size))
                .is_some();
        let (Some((data, warnings)), true) = (prepared, is_possible) else { return };
        let is_continued = report.existing.as_ref().is_some_and(Existing::has_checkpoint);
        let start = if is_continued { None } else { report.keep(Start::described(&self.config)).flatten() };
        report.outlook = report.keep(Outlook::new(&self.config, &data, start, is_host, warnings));
        if let (Some(outlook), Some(device)) = (&mut report.outlook, &device) {
            let measured = outlook.measure(&self.config, &data, device);
            report.keep(measured);
        }
    }

    /// The text as training reads it, with warnings: as for continuing the existing run if that is possible, else as
    /// for a new run. After an earlier error it prepares nothing, and only checks tokenizers that need not be learnt.
    fn prepare(&self, texts: &mut Texts, report: &mut Report) -> Option<(TrainingData, Vec<String>)> {
        let config = &self.config;
        let saved = report.existing.as_mut().and_then(|existing| existing.tokenizers.take());
        if !report.is_clean() {
            report.keep(training_data::tokenizers(config, saved, &|_| ()));
            return None;
        }
        let warnings = RefCell::new(Vec::new());
        // Only warnings: everything else is part of the report.
        let say = |notice| {
            if let Notice::Warning(text) = notice {
                warnings.borrow_mut().push(text);
            }
        };
        let preparation = Preparation::beside(&self.run, &config.data, &say).offline(self.request.offline);
        let preparation = preparation.without_scoring();
        let mut data = report.keep(training_data::prepare(config, texts, saved, &preparation))?;
        let existing = report.existing.as_mut();
        let refuses = existing.map_or(Ok(false), |existing| existing.refuses_text(config, texts, &data));
        if report.keep(refuses) == Some(true) {
            // Only a new run remains possible, with tokenizers of its own.
            warnings.borrow_mut().clear();
            data = report.keep(training_data::prepare(config, texts, None, &preparation))?;
        }
        let with_model = |validator: Validator| validator.with_model(&Device::Cpu, self.request.offline);
        let validator = Validator::open(config, texts, &data.tokenizers, &say);
        report.keep(validator.and_then(|validator| validator.map(with_model).transpose()));
        // Training does not read it; `mt eval` will.
        texts.test.iter().for_each(|test| drop(report.keep(test.open(1.0, &say))));
        Some((data, warnings.into_inner()))
    }
}
