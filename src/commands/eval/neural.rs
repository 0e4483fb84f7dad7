//! `--comet` and `--qe`: scores by models of COMET.

use std::path::PathBuf;

use super::results::Scored;
use super::test_set::TestSet;
use crate::cli::{Common, EvalArgs};
use crate::comet::{Comet, Found, Hardware, Lines};
use crate::commands::shared::model::open_device;
use crate::commands::shared::output::refuse_inputs;
use crate::console::{Counted, info, progress_bar};
use crate::error::{Error, Result};
use crate::escape::in_one_line;
use crate::infer::ComputeType;
use crate::metrics::{MeanScore, Statistics};

/// A model that was asked for, found but not loaded: translating comes first, and both would take memory.
pub(super) struct Wanted {
    key: &'static str,
    name: &'static str,
    found: Found,
    hardware: Hardware,
}

/// Finds the models that flags ask for.
///
/// # Errors
/// One is missing, damaged or of another kind, or needs text that is not given.
pub(super) fn find(args: &EvalArgs, common: &Common) -> Result<Vec<Wanted>> {
    let precision = ComputeType::from_flag("--comet-precision", &args.metrics.comet_precision)?;
    let mut wanted = Vec::new();
    for (key, name, flag, model) in
        [("comet", "COMET", "--comet", &args.metrics.comet), ("qe", "QE", "--qe", &args.metrics.qe)]
    {
        let Some(model) = model else { continue };
        let hardware = Hardware::of(&open_device(common)?, precision)?;
        let found = match key {
            "qe" => Found::without_references(flag, model, common.offline),
            _ => Found::with_references(flag, model, common.offline),
        }?;
        let files = found.files();
        refuse_inputs(args.output.as_deref(), files.iter().map(PathBuf::as_path))?;
        if found.needs_sources() && !args.hyp.is_empty() && args.set.src.is_none() {
            return Err(Error::usage(format!("{flag} needs the sources of the translations")).help("give --src FILE"));
        }
        if args.hyp.is_empty() {
            // Before a long translation, to see whether it is damaged.
            Comet::load(&found, &Hardware::EXACT)?;
        }
        wanted.push(Wanted { key, name, found, hardware });
    }
    Ok(wanted)
}

impl Wanted {
    /// Scores the systems of a test set.
    ///
    /// # Errors
    /// The model cannot be loaded.
    pub(super) fn score(self, set: &TestSet) -> Result<Scored> {
        let Self { key, name, found, hardware } = self;
        info(format_args!("{name}: {}", found.name));
        let model = Comet::load(&found, &hardware)?;
        let systems: Vec<&[String]> = set.systems.iter().map(|(_, lines)| &lines[..]).collect();
        let has_references = key == "comet";
        let references = if has_references { &set.references[..] } else { &[] };
        let lines = Lines { sources: set.sources.as_deref().unwrap_or_default(), systems: &systems, references };
        let bar = progress_bar(Counted::Sentences, None);
        let scores = model.scores(lines, |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        })?;
        bar.finish_and_clear();
        // A signature has bars between its parts.
        let mut options = vec![("model", in_one_line(&found.name).replace('|', "%7C"))];
        options.extend(found.revision.clone().map(|revision| ("revision", revision)));
        if references.len() > 1 {
            options.push(("refs", "mean".to_owned()));
        }
        options.push(("precision", hardware.precision().to_string()));
        let statistics = scores.iter().map(|scores| Statistics::from_scores(scores, references.len())).collect();
        Ok(Scored { metric: Box::new(MeanScore { key, name, options, has_references }), statistics })
    }
}
