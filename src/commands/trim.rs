//! `mt trim`

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use unicode_script::{Script, UnicodeScript};

use super::shared::model;
use super::shared::output::print_json;
use super::shared::reserved::refuse_taken;
use crate::cli::{Common, TrimArgs};
use crate::console::info;
use crate::data::tags::LanguageTags;
use crate::data::text::file::TextFile;
use crate::data::tokenizer::{Tokenizer, tag_of};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::model::layout;
use crate::model_dir::{ModelFiles, named, vocabulary, write_model};
use crate::notice::grouped;

/// Writes a model without the languages, and without the pieces, that are not needed.
pub(super) fn run(args: &TrimArgs, common: &Common) -> Result<()> {
    refuse_taken(&args.out)?;
    if args.keep_languages.is_empty() && args.keep_vocabulary_of.is_empty() {
        let error = Error::usage("neither --keep-languages nor --keep-vocabulary-of says what to keep");
        return Err(error.help("give one or both of them"));
    }
    let loaded = model::load_from(Some(&args.model), args.checkpoint.as_deref(), common)?;
    let tokenizer = &loaded.tokenizers.source;
    if !loaded.tokenizers.is_one_vocabulary() {
        let error = Error::usage("the model has a vocabulary for each side").at(&args.model);
        return Err(error.help("only a vocabulary that both sides share can be trimmed"));
    }
    let mut is_kept = match args.keep_vocabulary_of.is_empty() {
        true => vec![true; tokenizer.vocab_size()],
        false => of_text(tokenizer, &args.keep_vocabulary_of)?,
    };
    let languages = tokenizer.languages();
    let tags = tags_to_keep(tokenizer, &args.keep_languages)?;
    for (code, id) in &languages {
        is_kept[*id as usize] = tags.is_empty() || tags.contains(&tag_of(code));
    }
    let (trimmed, kept) = tokenizer.trimmed(is_kept).map_err(|error| error.at(&args.model))?;
    let (pieces, left) = (tokenizer.vocab_size(), trimmed.vocab_size());
    let trimmed = Arc::new(trimmed);
    let count = trimmed.languages().len();
    let parameters = write(&loaded, Tokenizers { source: trimmed.clone(), target: trimmed }, &kept, args)?;
    if common.json {
        print_json(&json!({
            "out": args.out.to_string_lossy(), "pieces": left, "pieces_before": pieces, "languages": count,
            "languages_before": languages.len(), "parameters": parameters[1], "parameters_before": parameters[0],
        }))?;
    }
    let [before, after] = parameters.map(grouped);
    let of_languages = match languages.len() {
        0 => String::new(),
        all => format!(", {count} of {all} languages"),
    };
    info(format_args!(
        "{} of {} pieces{of_languages}, {after} of {before} parameters: written to {}",
        grouped(left),
        grouped(pieces),
        shown_path(&args.out)
    ));
    Ok(())
}

/// The tags of the languages to keep; none for all.
fn tags_to_keep(tokenizer: &Tokenizer, asked: &[String]) -> Result<HashSet<String>> {
    if asked.is_empty() {
        return Ok(HashSet::new());
    }
    if tokenizer.languages().is_empty() {
        let error = Error::usage("--keep-languages: the model has no languages of which some could be kept");
        return Err(error.help("leave it out"));
    }
    let known = LanguageTags::of(tokenizer);
    asked.iter().map(|code| known.tag("--keep-languages", code)).collect()
}

/// Which pieces text needs: those that it is split into, and the single characters of its scripts, so that other words
/// can be spelt.
fn of_text(tokenizer: &Tokenizer, files: &[impl AsRef<Path>]) -> Result<Vec<bool>> {
    let mut is_kept = vec![false; tokenizer.vocab_size()];
    let mut scripts = HashSet::from([Script::Common, Script::Inherited]);
    let mut bytes = Vec::new();
    for file in files {
        let file = TextFile::scan(file.as_ref())?;
        let mut lines = file.reader()?;
        loop {
            bytes.clear();
            if !lines.next_line(&mut bytes)? {
                break;
            }
            let line = String::from_utf8_lossy(&bytes);
            tokenizer.encode(&line).into_iter().for_each(|id| is_kept[id as usize] = true);
            scripts.extend(line.chars().map(|c| c.script()));
        }
    }
    for (id, is_kept) in (0..).zip(&mut is_kept) {
        let text = tokenizer.piece(id).unwrap_or_default();
        let mut characters = text.strip_prefix('▁').unwrap_or(text).chars();
        if let (Some(only), None) = (characters.next(), characters.next()) {
            *is_kept |= scripts.contains(&only.script());
        }
    }
    Ok(is_kept)
}

/// Writes the model with these rows of its embeddings; returns the numbers of parameters before and after.
fn write(loaded: &ModelFiles, tokenizers: Tokenizers, kept: &[u32], args: &TrimArgs) -> Result<[usize; 2]> {
    let (before, mut stored) = loaded.stored()?;
    if stored.is_quantised() {
        let error = Error::usage("the weights of the model are 8-bit integers").at(&args.model);
        return Err(error.help("trim the model that it was made of, then `mt quantize` the result"));
    }
    let after = layout::layout(&loaded.config.model, vocabulary(&tokenizers));
    let mut values = vec![0f32; after.total()];
    for (i, (old, new)) in before.entries().iter().zip(after.entries()).enumerate() {
        let place = &mut values[new.range()];
        if old.shape == new.shape {
            stored.read(i, 0, place)?;
            continue;
        }
        // A row for each piece.
        let width = place.len() / kept.len().max(1);
        for (row, id) in place.chunks_exact_mut(width).zip(kept) {
            stored.read(i, *id as usize * width, row)?;
        }
    }
    stored.finish()?;
    let mut config = loaded.config.clone();
    config.tokenizer.vocab_size = tokenizers.target.vocab_size().max(crate::limits::LEAST_PIECES);
    let codes: Vec<&str> = tokenizers.target.languages().into_iter().map(|(code, _)| code).collect();
    let decode = &mut config.decode;
    for language in [&mut decode.source_language, &mut decode.target_language] {
        language.take_if(|language| !codes.is_empty() && !codes.contains(&language.as_str()));
    }
    let made_from = format!("{} (trimmed)", shown_path(&args.model));
    write_model(&args.out, &config, &tokenizers, &named(after.entries(), &values), &made_from)?;
    Ok([before.total(), after.total()])
}
