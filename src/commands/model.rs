//! Finding and loading the model that a command works with.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};

use crate::checkpoint::{self, Slot, Which};
use crate::cli::{Common, DecodeArgs, ModelArgs};
use crate::config::{self, Config, DecodeConfig, Precision};
use crate::console::message;
use crate::data::tokenizers::Tokenizers;
use crate::decode::translate::TranslateOptions;
use crate::decode::{LengthPenalty, PenaltyKind, Sampling, Strategy};
use crate::device;
use crate::error::{Error, Result};
use crate::model::{Transformer, Vocabulary};
use crate::ops::memory::change_on_host;
use crate::ops::params::Entry;

/// A model with what is needed to use it.
pub struct Loaded {
    /// Its resolved configuration.
    pub config: Config,
    /// Its tokenizers.
    pub tokenizers: Tokenizers,
    /// The model.
    pub model: Transformer,
}

/// Sizes of the vocabularies and their padding.
pub fn vocabulary(tokenizers: &Tokenizers) -> Vocabulary {
    Vocabulary {
        source: tokenizers.source.vocab_size(),
        target: tokenizers.target.vocab_size(),
        source_padding: tokenizers.source.pad_id(),
        target_padding: tokenizers.target.pad_id(),
    }
}

/// The places of all parameters, as checkpoints need them.
pub fn slots(entries: &[Entry]) -> Vec<Slot<'_>> {
    entries.iter().map(|e| Slot { name: &e.name, shape: &e.shape, offset: e.offset }).collect()
}

/// Fills a model's parameters from a `model.safetensors`.
pub fn load_parameters(file: &Path, model: &Transformer) -> Result<()> {
    let parameters = model.parameters();
    change_on_host(parameters.values(), |flat| checkpoint::load_into(file, &slots(parameters.entries()), flat))?
}

/// What training computes products in on this device; told where it is not what was asked for.
pub fn training_type(precision: Precision, device: &Device, common: &Common) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 if !device.is_cpu() || Precision::Bf16.is_native() => DType::BF16,
        Precision::Bf16 => {
            if !common.quiet {
                message(
                    "note: runtime.precision = \"bf16\", but this processor has no instructions for bfloat16 products: \
                     computing in f32",
                );
            }
            DType::F32
        }
    }
}

/// What inference computes products in: on the processor always float32.
fn inference_type(precision: Precision, device: &Device) -> DType {
    match precision {
        Precision::Bf16 if !device.is_cpu() => DType::BF16,
        _ => DType::F32,
    }
}

/// Loads the model that the flags name.
pub fn load(args: &ModelArgs, common: &Common) -> Result<Loaded> {
    let which = args.checkpoint.as_deref().map(str::parse::<Which>).transpose()?;
    let directory = directory(args.model.as_deref(), common)?;
    let config = config_of(&directory)?;
    device::set_threads(common.threads.unwrap_or(config.runtime.threads));
    let device = device::open(common.device.as_deref().unwrap_or(&config.runtime.device))?;
    let located = checkpoint::locate(&directory, which)?;
    for warning in &located.warnings {
        message(format_args!("warning: {warning}"));
    }
    if !common.quiet {
        message(format_args!("model: {} ({})", directory.display(), located.what));
    }
    let tokenizers = Tokenizers::load(&directory)?;
    let compute = inference_type(config.runtime.precision, &device);
    let model = Transformer::with_precision(&config.model, vocabulary(&tokenizers), &device, compute)?;
    load_parameters(&located.model, &model)?;
    Ok(Loaded { config, tokenizers, model })
}

/// The resolved configuration of a run or model directory.
pub fn config_of(directory: &Path) -> Result<Config> {
    let file = directory.join(checkpoint::CONFIG_FILE);
    if !file.exists() {
        let error = Error::failure("this is neither a run nor a model directory: it has no config.toml").at(directory);
        return Err(error.help("name a run directory (runs/<name>) or a model directory"));
    }
    config::load_resolved(&file)
}

/// `--model`, else `$MT_MODEL`, else the newest run under `./runs`.
pub fn directory(named: Option<&Path>, common: &Common) -> Result<PathBuf> {
    let variable = || std::env::var_os("MT_MODEL").filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = named.map(Path::to_path_buf).or_else(variable) {
        if !directory.is_dir() {
            let name = if named.is_some() { "--model" } else { "$MT_MODEL" };
            let error = Error::failure(format!("{name} names no directory")).at(&directory);
            return Err(error.help("check the path; `mt train` writes models into runs/<name>"));
        }
        return Ok(directory);
    }
    let newest = newest_run(Path::new("runs")).ok_or_else(|| {
        Error::failure("no --model given, $MT_MODEL is not set, and there is no run with a checkpoint under ./runs")
            .help("train a model first: mt train --config FILE")
    })?;
    if !common.quiet {
        message("no --model given: taking the newest run");
    }
    Ok(newest)
}

/// The run under `root` whose model or newest checkpoint changed last.
fn newest_run(root: &Path) -> Option<PathBuf> {
    let changed = |run: &Path| {
        let newest = |path: PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        newest(run.join(checkpoint::MODEL_FILE)).max(newest(run.join(checkpoint::LAST)))
    };
    let runs = std::fs::read_dir(root).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let dated = runs.filter_map(|run| changed(&run).map(|when| (when, run)));
    dated.max().map(|(_, run)| run)
}

/// How to decode: flags over the configuration. `seed` is what sampling takes where no flag gives one.
pub fn translate_options(
    args: &DecodeArgs,
    n_best: Option<usize>,
    config: &DecodeConfig,
    common: &Common,
    seed: u64,
) -> Result<TranslateOptions> {
    let of_config = TranslateOptions::of(config);
    let kind = args.length_penalty_kind.as_deref().map(|name| {
        PenaltyKind::named(name).ok_or_else(|| {
            let error = Error::usage(format!("there is no length penalty {name:?}"));
            error.help(format!("--length-penalty-kind is one of {}", PenaltyKind::NAMES.join(", ")))
        })
    });
    let n_best = n_best.unwrap_or(1);
    let width = args.beam.unwrap_or(config.beam);
    let strategy = match args.beam_groups {
        _ if args.sample => Strategy::Sample(Sampling {
            count: n_best,
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            seed: common.seed.unwrap_or(seed),
        }),
        Some(groups) => Strategy::Diverse { width, groups, penalty: args.diversity },
        None => Strategy::Beam { width },
    };
    let options = TranslateOptions {
        strategy,
        n_best,
        length_penalty: LengthPenalty {
            kind: kind.transpose()?.unwrap_or(config.length_penalty_kind),
            alpha: args.length_penalty.unwrap_or(config.length_penalty),
        },
        patience: args.patience.unwrap_or(config.patience),
        no_repeat_ngram: args.no_repeat_ngram.unwrap_or(config.no_repeat_ngram),
        min_length: args.min_length.unwrap_or(config.min_length),
        max_length: args.max_length,
        max_length_ratio: args.max_length_ratio.unwrap_or(config.max_length_ratio),
        max_length_extra: args.max_length_extra.unwrap_or(config.max_length_extra),
        batch_tokens: args.batch_tokens.unwrap_or(config.batch_tokens),
        ..of_config
    };
    if options.max_length == Some(0) || options.batch_tokens == 0 || n_best == 0 {
        return Err(Error::usage("--max-length, --batch-tokens and --n-best must be at least 1"));
    }
    if !(options.max_length_ratio.is_finite() && options.max_length_ratio >= 0.0) {
        return Err(Error::usage(format!(
            "a --max-length-ratio of {} is not a number from 0 on",
            options.max_length_ratio
        )));
    }
    if options.max_length.is_some_and(|most| most < options.min_length) {
        return Err(Error::usage(format!("--min-length {} is more than --max-length", options.min_length)));
    }
    if !args.sample && n_best > width {
        return Err(Error::usage(format!("--n-best {n_best} is more than a beam of {width} holds"))
            .help(format!("give --beam {n_best} as well")));
    }
    options.check()?;
    Ok(options)
}
