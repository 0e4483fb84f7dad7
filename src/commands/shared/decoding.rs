//! Builds a `Translator` and its options from the flags of the commands that decode.

use std::path::PathBuf;
use std::sync::Arc;

use super::model::open_device;
use crate::cli::{Common, DecodeArgs};
use crate::comet::{Comet, Found, Hardware};
use crate::console::{tell, warning};
use crate::decode::rerank::{Criterion, Judge, Rerank, Utility};
use crate::decode::shortlist::Shortlist;
use crate::decode::source::Long;
use crate::decode::translate::{TranslateOptions, Translator};
use crate::decode::{LengthPenalty, MAX_BEAM, PenaltyKind};
use crate::error::{Error, Result};
use crate::infer::ComputeType;
use crate::model_dir::ModelFiles;
use crate::run::validator;

/// How to decode: flags over the configuration of the first of the models that translate together.
pub(crate) fn translate_options(
    args: &DecodeArgs,
    n_best: Option<usize>,
    (first, others): (&ModelFiles, &[ModelFiles]),
    common: &Common,
) -> Result<TranslateOptions> {
    // All by name, so that no flag is forgotten.
    let DecodeArgs {
        strategy,
        length_penalty,
        length_penalty_kind,
        patience,
        no_repeat_ngram,
        min_length,
        max_length,
        max_length_ratio,
        max_length_extra,
        batch_tokens,
        long,
        // Of the translator.
        shortlist: _,
        precision: _,
    } = args;
    // As many as the model with the fewest has.
    let positions = |model: &ModelFiles| model.config.model.max_length;
    let positions = others.iter().map(positions).fold(positions(first), usize::min);
    let (config, seed) = (&first.config.decode, first.config.train.seed);
    let of_config = TranslateOptions::from_config(config);
    let kind = length_penalty_kind.as_deref().map(|name| PenaltyKind::from_flag("--length-penalty-kind", name));
    let long = long.as_deref().map(|name| Long::from_flag("--long", name));
    let n_best = n_best.unwrap_or(1);
    let bleu = validator::scoring(&first.config, &first.tokenizers);
    let rerank = strategy.criterion()?.map(|by| Rerank { by, bleu, keep: n_best });
    let strategy = strategy.strategy(config.beam, n_best, common.seed.unwrap_or(seed))?;
    // It chooses among all that the search finds.
    let n_best = if rerank.is_some() { strategy.rows() } else { n_best };
    let options = TranslateOptions {
        strategy,
        n_best,
        rerank,
        length_penalty: LengthPenalty {
            kind: kind.transpose()?.unwrap_or(config.length_penalty_kind),
            alpha: length_penalty.unwrap_or(config.length_penalty),
        },
        patience: patience.unwrap_or(of_config.patience),
        no_repeat_ngram: no_repeat_ngram.unwrap_or(of_config.no_repeat_ngram),
        min_length: min_length.unwrap_or(of_config.min_length),
        max_length: *max_length,
        max_length_ratio: max_length_ratio.unwrap_or(of_config.max_length_ratio),
        max_length_extra: max_length_extra.unwrap_or(of_config.max_length_extra),
        batch_tokens: batch_tokens.unwrap_or(of_config.batch_tokens),
        long: long.transpose()?.unwrap_or(of_config.long),
        lines_before: of_config.lines_before,
        tag: of_config.tag,
    };
    if min_length.is_none() && options.min_length >= positions {
        let what = format!("`decode.min_length` is {}, more tokens than a translation can have", options.min_length);
        let error =
            Error::failure(what).help(format!("the model has {positions} positions: give a lower --min-length"));
        return Err(error);
    }
    check(&options, args, positions)?;
    if options.length_penalty.kind == PenaltyKind::Average && length_penalty.is_some() {
        warning("--length-penalty does nothing with --length-penalty-kind average, which has no strength");
    }
    Ok(options)
}

/// Refuses options that are impossible or do not go together.
fn check(options: &TranslateOptions, args: &DecodeArgs, positions: usize) -> Result<()> {
    let n_best = options.rerank.map_or(options.n_best, |rerank| rerank.keep);
    let counts = [
        ("--max-length", options.max_length),
        ("--batch-tokens", Some(options.batch_tokens)),
        ("--n-best", Some(n_best)),
    ];
    if let Some((flag, _)) = counts.into_iter().find(|(_, value)| *value == Some(0)) {
        return Err(Error::usage(format!("{flag} must be at least 1")));
    }
    if !(options.max_length_ratio.is_finite() && options.max_length_ratio >= 0.0) {
        return Err(Error::usage(format!(
            "--max-length-ratio {} is not a number of at least 0",
            options.max_length_ratio
        )));
    }
    if let Some(most) = options.max_length.filter(|most| *most < options.min_length) {
        let least = options.min_length;
        return Err(match args.min_length {
            Some(_) => Error::usage(format!("--min-length {least} is more than --max-length {most}")),
            None => Error::usage(format!("--max-length {most} is less than the model's `decode.min_length`, {least}"))
                .help("give --min-length as well"),
        });
    }
    if options.min_length >= positions {
        let error =
            Error::usage(format!("--min-length {} is more tokens than a translation can have", options.min_length));
        return Err(error.help(format!("the model has {positions} positions (model.max_length): give a lower number")));
    }
    if options.n_best > MAX_BEAM {
        let flag = match args.strategy.draws_to_choose() {
            true if options.rerank.is_some() => "--samples",
            _ if options.rerank.is_some() => "--beam",
            _ => "--n-best",
        };
        return Err(Error::usage(format!("{flag} {} is more than {MAX_BEAM}", options.n_best)));
    }
    let rows = options.strategy.rows();
    if n_best > rows && rows > 0 {
        return Err(Error::usage(format!("--n-best {n_best} is more than a beam of {rows} holds"))
            .help(format!("give --beam {n_best} as well")));
    }
    options.check()
}

/// A translator with one or more models, beginning with `first`, and with their weights, if given.
pub(crate) fn translator(
    first: &ModelFiles,
    others: &[ModelFiles],
    weights: &[f64],
    precision: Option<&str>,
) -> Result<Translator> {
    for other in others {
        same_target(first, other)?;
    }
    let models = std::iter::once(first).chain(others);
    let models = models.map(|model| Ok((model.neural(precision, &tell)?, model.reader())));
    let translator = Translator::new(models.collect::<Result<_>>()?).with_language(first.languages[1].clone());
    Ok(if weights.is_empty() { translator } else { translator.weighted(weights) })
}

/// Refuses models with different target vocabularies.
fn same_target(first: &ModelFiles, other: &ModelFiles) -> Result<()> {
    let [a, b] = [first, other].map(|model| &model.tokenizers.target);
    let Some(why) = a.difference(b) else { return Ok(()) };
    let what = format!(
        "the target vocabularies of {} and {} differ: {why}",
        first.directory().display(),
        other.directory().display()
    );
    Err(Error::failure(what).help("models that translate together need the same target tokenizer"))
}

/// A translator for the flags: with a shortlist if one is given.
pub(crate) fn translator_with_flags(
    first: &ModelFiles,
    others: &[ModelFiles],
    weights: &[f64],
    args: &DecodeArgs,
    common: &Common,
) -> Result<Translator> {
    // Before a model that translates is loaded.
    let judge = judge(args, common)?;
    let precision = args.precision.as_deref();
    let Some(file) = &args.shortlist else {
        return Ok(translator(first, others, weights, precision)?.judged_by(judge));
    };
    if !others.is_empty() {
        return Err(Error::usage("--shortlist works with only one model").help("give one --model, or leave it out"));
    }
    if !first.is_on_processor() {
        return Err(Error::usage("--shortlist works only on the CPU").help("leave it out, or give --device cpu"));
    }
    let list = Shortlist::load(file, &first.tokenizers)?;
    let model = (first.neural(precision, &tell)?.with_shortlist(list), first.reader());
    Ok(Translator::new(vec![model]).with_language(first.languages[1].clone()).judged_by(judge))
}

/// The model that chooses among translations, if `--mbr comet` or `--rerank` is given.
fn judge(args: &DecodeArgs, common: &Common) -> Result<Option<Arc<dyn Judge>>> {
    let Some(found) = judge_model(args, common)? else { return Ok(None) };
    let hardware = Hardware::of(&open_device(common)?, ComputeType::F32)?;
    Ok(Some(Arc::new(Comet::load(&found, &hardware)?)))
}

/// Its files, which nothing may be written to.
pub(crate) fn files_of_judge(args: &DecodeArgs, common: &Common) -> Result<Vec<PathBuf>> {
    Ok(judge_model(args, common)?.map_or_else(Vec::new, |found| found.files()))
}

fn judge_model(args: &DecodeArgs, common: &Common) -> Result<Option<Found>> {
    let found = match args.strategy.criterion()? {
        Some(Criterion::Likeness(Utility::Comet)) => {
            Found::with_references("--mbr-model", &args.strategy.mbr_model, common.offline)
        }
        Some(Criterion::Quality) => {
            Found::without_references("--rerank-model", &args.strategy.rerank_model, common.offline)
        }
        _ => return Ok(None),
    };
    found.map(Some)
}
