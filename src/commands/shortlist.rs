//! `mt shortlist`

use std::path::PathBuf;

use super::shared::model;
use super::shared::output::{Replacement, is_stdout, print_json, refuse_inputs, refuse_unwritable};
use crate::cli::{Common, ShortlistArgs};
use crate::console::{info, pairs_bar, tell};
use crate::data::lexicon::{Lexicon, Pair, most_frequent};
use crate::data::texts::Texts;
use crate::data::{CorpusConfig, CorpusLocation, DataConfig};
use crate::decode::shortlist::Shortlist;
use crate::error::{Error, Result};
use crate::model_dir::{hub, trust};
use crate::run::training_data::{self, Preparation};

/// Iterations of expectation maximisation: after these the lists hardly change.
const ITERATIONS: usize = 5;

/// Learns from a model's training text into which target tokens its source tokens are translated.
pub(super) fn run(args: &ShortlistArgs, common: &Common) -> Result<()> {
    if args.best == 0 || args.sample_lines == 0 {
        return Err(Error::usage("--best and --sample-lines must be at least 1"));
    }
    if is_stdout(&args.out) {
        return Err(Error::usage("a shortlist cannot go to stdout").help("name a file with --out"));
    }
    refuse_unwritable(&args.out)?;
    let mut loaded = model::load_from(Some(&args.model), None, common)?;
    // Only training text is used, so the other text of the model need not be there.
    let train = match (&args.src, &args.tgt) {
        (Some(source), Some(target)) => {
            vec![CorpusConfig {
                languages: [args.languages.from.clone(), args.languages.to.clone()],
                location: CorpusLocation::files(source, target),
                tag: None,
                weight: 1.0,
                weights: None,
            }]
        }
        _ => {
            let locations = loaded.config.data.train.iter().map(|corpus| &corpus.location);
            locations.into_iter().try_for_each(|it| trust::check(it, "training text", args.trust_model_data, &tell))?;
            loaded.config.data.train
        }
    };
    // A foreign model must not decide where to write, nor what to fetch.
    let cache_dir = loaded.config.data.cache_dir.filter(|_| args.trust_model_data);
    let quality = loaded.config.data.quality.filter(|_| args.trust_model_data);
    loaded.config.data =
        DataConfig { train, valid: None, test: None, monitor: Vec::new(), quality, cache_dir, ..loaded.config.data };
    if loaded.config.data.train.is_empty() {
        let error = Error::usage("the model's configuration names no training text").at(loaded.directory());
        return Err(error.help("give --src FILE and --tgt FILE, with text like that to be translated"));
    }
    let mut texts = Texts::find(&loaded.config.data, common.offline)?;
    let corpora = loaded.config.data.train.iter().flat_map(|corpus| corpus.location.sides());
    let inputs: Vec<PathBuf> = corpora.chain(loaded.files()).collect();
    refuse_inputs(Some(&args.out), inputs.iter().map(PathBuf::as_path))?;
    // The model has its own copies of the tokenizers, so changes of the original files do not matter.
    (loaded.config.tokenizer.path, loaded.config.tokenizer.target_path) = (None, None);
    // Beside the run, also if the user named a checkpoint. A model of the hub lies in the user's cache, where nobody
    // would look.
    let beside = if hub::repository(&args.model).is_some() { &args.out } else { loaded.directory() };
    let preparation = Preparation::beside(beside, &loaded.config.data, &tell).offline(common.offline).without_scoring();
    let preparation = preparation.showing(&pairs_bar);
    let data = training_data::prepare(&loaded.config, &mut texts, Some(loaded.tokenizers.clone()), &preparation)?;
    let every = data.corpus.len().div_ceil(args.sample_lines).max(1);
    let ids: Vec<_> = (0..data.corpus.len()).step_by(every).map(|index| data.ids(index)).collect();
    let pairs: Vec<Pair> = ids.iter().map(|(source, target)| (&source[..], &target[..])).collect();
    let [sources, targets] =
        [&loaded.tokenizers.source, &loaded.tokenizers.target].map(|tokenizer| tokenizer.vocab_size());
    let lexicon = Lexicon::learn(&pairs, [sources, targets], ITERATIONS);
    let mut always = most_frequent(&pairs, targets, args.first);
    always.push(loaded.tokenizers.target.eos_id());
    let is_joint = loaded.tokenizers.is_joint();
    let best = |source| {
        let mut best = lexicon.best(source, args.best);
        // The model copies names and numbers, also those that the text does not have.
        if is_joint && !best.contains(&source) {
            best.push(source);
        }
        best
    };
    let list = Shortlist::new((0..sources as u32).map(best), always);
    let mut file = Replacement::open(&args.out)?;
    file.output().bytes(&list.to_bytes(&loaded.tokenizers)?)?;
    file.finish()?;
    if common.json {
        let json = serde_json::json!({
            "out": args.out.display().to_string(), "average_tokens": list.average(), "pairs": pairs.len(),
        });
        print_json(&json)?;
    }
    info(format_args!(
        "{}: {:.1} target tokens for a source token, learnt from {} pairs; use it with `mt translate --shortlist`",
        args.out.display(),
        list.average(),
        pairs.len()
    ));
    Ok(())
}
