//! The decoding flags of `mt translate` and `mt eval`.

use crate::cli::{Common, DecodeArgs};
use crate::config::DecodeConfig;
use crate::decode::source::Long;
use crate::decode::translate::TranslateOptions;
use crate::decode::{LengthPenalty, MAX_BEAM, PenaltyKind, Sampling, Strategy};
use crate::error::{Error, Result};

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
        long: match args.long.as_deref() {
            Some(name) => Long::named(name).ok_or_else(|| {
                let error = Error::usage(format!("--long cannot be `{name}`"));
                error.help(format!("one of {}", Long::NAMES.join(", ")))
            })?,
            None => of_config.long,
        },
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
    if n_best > MAX_BEAM {
        return Err(Error::usage(format!("--n-best {n_best} is more than {MAX_BEAM}")));
    }
    if !args.sample && n_best > width && width > 0 {
        return Err(Error::usage(format!("--n-best {n_best} is more than a beam of {width} holds"))
            .help(format!("give --beam {n_best} as well")));
    }
    options.check()?;
    Ok(options)
}
