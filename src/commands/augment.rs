//! `mt augment`

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::shared::output::Output;
use super::shared::synthesis::{self, ChosenPairs, Input, Maker};
use super::shared::{languages, model, reserved};
use crate::cli::{AugmentArgs, Common};
use crate::console::{info, note, tell};
use crate::data::corpus::PairSource;
use crate::data::{CorpusLocation, texts};
use crate::error::{Error, Result};
use crate::synthetic::PART_LINES;

/// Translates text in the target language back, into pairs to train on.
pub(super) fn run(args: &AugmentArgs, common: &Common) -> Result<()> {
    reserved::refuse(&args.out)?;
    let selection = synthesis::selection(&args.selection)?;
    let (mut first, mut others) = model::load_all(&args.models, common)?;
    let models = std::iter::once(&mut first).chain(&mut others);
    let tag = languages::choose(&args.languages, args.tag.as_deref(), models)?;
    if let Some(tag) = args.mark.as_deref().filter(|tag| tag.trim().is_empty() || tag.contains(char::is_whitespace)) {
        return Err(Error::usage(format!("--mark \"{tag}\" is not one word")));
    }
    let languages = first.languages.clone();
    let mut maker = Maker::new((first, others), &args.models.weights, &args.decode, common)?;
    refuse_own_pairs(args)?;
    let open = |path: &PathBuf| texts::find_one(&CorpusLocation::files(path, path), common.offline)?.open(1.0, &tell);
    let corpora: Vec<Box<dyn PairSource>> = args.input.iter().map(open).collect::<Result<_>>()?;
    let lines: usize = corpora.iter().map(|pairs| pairs.len()).sum();
    let progress = synthesis::progress(lines);
    let (mut made, mut parts_before) = (Vec::new(), 0);
    for (index, (path, pairs)) in args.input.iter().zip(&corpora).enumerate() {
        let key = path.display().to_string();
        let (tag, languages) = (tag.as_deref(), languages.clone());
        let input = Input { key: &key, pairs: &**pairs, tag, languages, parts_before };
        let name = folder_of_text(index);
        // None of a share alone.
        let parts = synthesis::translate(&mut maker, &input, (&args.out, &name), args.shard, &progress)?;
        parts_before += pairs.len().div_ceil(PART_LINES);
        made.extend(parts.map(|parts| (key, parts, &**pairs)));
    }
    progress.finish_and_clear();
    if args.shard.is_some() {
        note("this share is done; when all are, the same command without --shard writes the pairs");
        return Ok(());
    }
    let (mut output, mut kept) = (Output::open(None)?, 0);
    for (key, parts, pairs) in &made {
        // The text itself is the target.
        let pair = |text: &str, translation: &str| {
            let mark = args.mark.as_ref().map_or(String::new(), |mark| format!("{mark} "));
            [format!("{mark}{translation}"), text.to_owned()]
        };
        let ChosenPairs { source, target, counts, .. } = synthesis::choose(parts, *pairs, selection, pair)?;
        info(synthesis::summary(key, counts));
        kept += counts.kept;
        if common.json {
            let [source, target] = [&source, &target].map(|path| path.display().to_string());
            output.json(&json!({ "input": key, "source": source, "target": target, "counts": counts }))?;
        } else {
            output.path(&source)?;
            output.path(&target)?;
        }
    }
    output.flush()?;
    if kept == 0 {
        return Err(synthesis::nothing_left());
    }
    if let Some(mark) = &args.mark {
        note(format_args!("for {mark} to be one piece, add it to `tokenizer.symbols` before the vocabulary is learnt"));
    }
    Ok(())
}

/// Where the pairs of a text go, in the output's folder.
fn folder_of_text(index: usize) -> String {
    format!("text-{index}")
}

/// Refuses text in a folder that pairs go to, where it would be replaced.
fn refuse_own_pairs(args: &AugmentArgs) -> Result<()> {
    let folders = (0..args.input.len()).flat_map(|index| fs::canonicalize(args.out.join(folder_of_text(index))));
    let folders: Vec<PathBuf> = folders.collect();
    let is_in = |path: &PathBuf| folders.iter().any(|folder| path.starts_with(folder));
    let Some(path) = args.input.iter().find(|path| fs::canonicalize(path).is_ok_and(|path| is_in(&path))) else {
        return Ok(());
    };
    let error = Error::usage("this text lies in the folder that the pairs are written to").at(path);
    Err(error.help("name another folder with --out"))
}
