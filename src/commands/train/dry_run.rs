//! `mt train --dry-run`: shows what would be done. Text beyond `data.cache_above` is still prepared on disk.

use std::fmt::Display;
use std::path::Path;

use candle_core::Device;
use serde_json::json;

use crate::cli::{Common, TrainArgs};
use crate::commands::info;
use crate::commands::shared::output::Output;
use crate::config::{self, Config};
use crate::console::pairs_bar;
use crate::data::texts::Texts;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::escape::harmless;
use crate::notice::Notice;
use crate::run::init::{self, Start};
use crate::run::plan::Plan;
use crate::run::training_data::{self, Preparation};
use crate::run::validator::Validator;
use crate::run::{compare, directory, restore, resume};
use crate::train::memory;

/// Prints the resolved configuration, parameters, corpus statistics, batches per epoch and estimated memory. `saved`
/// holds the configuration and the tokenizers of the run to continue, and its text is compared; `of_ranks` says what
/// several ranks would do. With `--overwrite`, any other existing run would be replaced.
pub(super) fn print(
    run: &Path,
    config: &Config,
    (texts, of_ranks): (&mut Texts, &[String]),
    saved: Option<(Config, Tokenizers)>,
    args: &TrainArgs,
    device: &Device,
    common: &Common,
) -> Result<()> {
    let mut lines = Vec::new();
    let report = std::cell::RefCell::new(Vec::new());
    let say = |notice: Notice| report.borrow_mut().push(notice);
    let (old, saved) = saved.unzip();
    let data = training_data::prepare(
        config,
        texts,
        saved,
        &Preparation::beside(run, &config.data, &say).offline(common.offline).without_scoring().showing(&pairs_bar),
    )?;
    let config = &init::stating_what_is_known(config.clone(), old.as_ref(), &data.tokenizers);
    let validator = Validator::open(config, texts, &data.tokenizers, &say)?;
    let validator = validator.map(|validator| validator.with_model(&Device::Cpu, common.offline)).transpose()?;
    if old.is_some()
        && let Some((state, _)) = restore::newest(run, &say)?
    {
        resume::check_text(&state, &compare::checksums(&data.corpus, validator.as_ref()), config, args.force, &say)?;
    }
    if let Some(test) = &texts.test {
        test.open(1.0, &say)?;
    }
    let plan = Plan::new(config, &data)?;
    let Plan { parameters, source_tokens, target_tokens, .. } = &plan;
    let (batches, updates) = (plan.batches_per_epoch, plan.updates_per_epoch);
    let mut output = Output::open(None)?;
    if common.json {
        let json = json!({
            "run_dir": run.to_string_lossy(), "config": config, "parameters": info::counts(parameters),
            "corpus": {
                "pairs": data.corpus.len(), "source_tokens": source_tokens, "target_tokens": target_tokens,
                "dropped": data.report.dropped,
            },
            "vocabulary": { "source": data.tokenizers.source.vocab_size(),
            "target": data.tokenizers.target.vocab_size() },
            "batches_per_epoch": batches, "updates_per_epoch": updates, "memory_bytes": plan.memory_bytes,
        });
        output.json(&json)?;
        return output.flush();
    }
    lines.push(config::to_toml(config));
    lines.extend(report.into_inner().iter().map(comment));
    if old.is_none() {
        lines.extend(Start::described(config)?.map(comment));
    }
    lines.push(format!("# parameters: {}", crate::notice::grouped(parameters.total())));
    for (name, count) in info::by_part(parameters) {
        lines.push(format!("#   {name}: {}", crate::notice::grouped(count)));
    }
    lines.extend(plan.training().map(|text| format!("# {text}")));
    let pairs = data.corpus.len() as f64;
    lines.push(format!(
        "# corpus: {} source and {} target subwords; {:.1} and {:.1} per sentence",
        crate::notice::grouped(*source_tokens),
        crate::notice::grouped(*target_tokens),
        *source_tokens as f64 / pairs,
        *target_tokens as f64 / pairs
    ));
    lines.push(format!("# batches per epoch: about {batches}, so {updates} updates per epoch"));
    let exists = match directory::is_run(run) {
        true if old.is_some() => "; its run would go on",
        true if args.overwrite => "; its run would be replaced",
        true => "; it exists: --resume or --overwrite will be needed",
        false => "",
    };
    lines.push(comment(format_args!("run directory: {}{exists}", run.display())));
    lines.extend(of_ranks.iter().map(comment));
    lines.push(format!("# memory in training: about {:.2} GiB", memory::gibibytes(plan.memory_bytes)));
    lines.extend(plan.warnings(config, device.is_cpu()).map(|warning| comment(format_args!("warning: {warning}"))));
    for line in lines {
        output.line(&line)?;
    }
    output.flush()
}

/// Foreign text as a comment of the configuration, so that no line of it is a key.
fn comment(text: impl Display) -> String {
    format!("# {}", harmless(&text.to_string()).replace('\n', "\n# "))
}
