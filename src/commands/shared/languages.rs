//! `--from` and `--to`: between which of a model's languages it translates.

use crate::cli::LanguageArgs;
use crate::console::warning;
use crate::data::corpus::Side;
use crate::data::tags::LanguageTags;
use crate::decode::translate::{Constraints, Translator};
use crate::error::{Error, Result};
use crate::model_dir::ModelFiles;

/// Takes the flags to heart: a multilingual model reads and writes these languages. Returns the tag that goes in front
/// of each source: that of `--tag` or, of a model with tags, the one for the language of `--to`.
///
/// # Errors
/// A model has no such language, or two flags ask for a tag; exit code 2.
pub(crate) fn choose<'a>(
    args: &LanguageArgs,
    tag: Option<&str>,
    models: impl IntoIterator<Item = &'a mut ModelFiles>,
) -> Result<Option<String>> {
    let mut of_first = tag.map(str::to_owned);
    for (index, model) in models.into_iter().enumerate() {
        let tokenizer = model.tokenizers.source.clone();
        if !tokenizer.languages().is_empty() {
            let of_flag = |flag: &str, code: &Option<String>| {
                code.as_deref().map(|code| LanguageTags::of(&tokenizer).tag(flag, code)).transpose()
            };
            let [source, target] = [of_flag("--from", &args.from)?, of_flag("--to", &args.to)?];
            let [own_source, own_target] = model.languages.clone();
            model.languages = [source.or(own_source), target.or(own_target)];
            continue;
        }
        if let Some(code) = &args.to {
            if tag.is_some() {
                let error = Error::usage("--to and --tag both say which tag is put in front of the lines");
                return Err(error.help("give one of them"));
            }
            let found = LanguageTags::of(&tokenizer).tag("--to", code)?;
            if index > 0 && of_first.as_ref() != Some(&found) {
                let [first, other] = [of_first.as_deref().unwrap_or("no tag"), &found];
                let what =
                    format!("--to {code}: the first model needs {first}, and {} {other}", model.directory().display());
                return Err(Error::usage(what).help("translate with models whose languages have the same tags"));
            }
            of_first = Some(found);
        } else if let Some(code) = &args.from {
            if tokenizer.language_tags().is_empty() {
                let what = format!("--from {code}: the model translates one language, and has no tags for others");
                return Err(Error::usage(what).help("leave it out"));
            }
            let what = format!("--from {code} needs --to: the model has tags for the languages that it writes");
            return Err(Error::usage(what).help("give --to as well, or leave --from out"));
        }
        if args.from.is_some() && index == 0 {
            warning("--from has no effect: the model's tags say only into which language it translates");
        }
    }
    Ok(of_first)
}

/// Makes multilingual models read and write the languages that `key` states, where it states any.
///
/// # Errors
/// A model has no such language; exit code 2.
pub(crate) fn state<'a>(
    languages: [Option<String>; 2],
    key: &str,
    models: impl IntoIterator<Item = &'a mut ModelFiles>,
) -> Result<()> {
    for model in models.into_iter().filter(|model| !model.tokenizers.source.languages().is_empty()) {
        let known = LanguageTags::of(&model.tokenizers.source);
        for (side, code) in languages.iter().enumerate() {
            if let Some(code) = code {
                model.languages[side] = Some(known.tag(key, code)?);
            }
        }
    }
    Ok(())
}

/// Refuses to translate into a language that is unknown, where a model has several.
///
/// # Errors
/// It is; exit code 2.
pub(crate) fn refuse_unknown_target(translator: &Translator) -> Result<()> {
    let lacks = translator.lacks_target_language(&Constraints::default());
    lacks.map_or(Ok(()), |fault| Err(Error::usage(fault.what).help(fault.help)))
}

/// Refuses lines whose language is unknown, where a model has several.
///
/// # Errors
/// Names the first of them; `locate` adds where it is.
pub(crate) fn refuse_without<S: AsRef<str>>(
    translator: &Translator,
    lines: [&[S]; 2],
    locate: impl Fn(Error, usize, Side) -> Error,
) -> Result<()> {
    let [sources, targets] = lines;
    let found =
        sources.iter().enumerate().find_map(|(i, line)| Some((i, translator.lacks_source_language(line.as_ref())?)));
    if let Some((index, fault)) = found {
        return Err(locate(Error::failure(fault.what).help(fault.help), index, Side::Source));
    }
    let lacks = |prefix: &S| {
        translator.lacks_target_language(&Constraints { prefix: prefix.as_ref().to_owned(), ..Constraints::default() })
    };
    match targets.iter().enumerate().find_map(|(i, line)| Some((i, lacks(line)?))) {
        Some((index, fault)) => Err(locate(Error::failure(fault.what).help(fault.help), index, Side::Target)),
        None => Ok(()),
    }
}
