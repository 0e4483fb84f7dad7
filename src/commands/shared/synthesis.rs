//! Translating whole corpora in parts: what `mt distill` and `mt augment` share.

use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::cli::{Common, DecodeArgs, SelectionArgs};
use crate::commands::shared::tags::Tags;
use crate::commands::shared::{decoding, languages};
use crate::console::{Counted, info, is_watched, progress_bar, warning};
use crate::data::corpus::{PairSource, tagged};
use crate::data::tags::{LanguageTags, unknown_word};
use crate::data::tokenizer::TokenizerKind;
use crate::decode::rerank::{Criterion, Utility};
use crate::decode::source::Long;
use crate::decode::translate::{TranslateOptions, Translator};
use crate::error::{Error, Result};
use crate::escape::hex;
use crate::model_dir::ModelFiles;
use crate::synthetic::{Chosen, Counts, Made, PART_LINES, PairWriter, Parts, Selection, Shard};

/// Lines about the progress of a corpus at most, where there is no bar.
const LINES_OF_PROGRESS: usize = 20;

/// Models that translate together, and how.
pub(crate) struct Maker {
    first: ModelFiles,
    others: Vec<ModelFiles>,
    /// The languages that each was found with.
    languages: Vec<[Option<String>; 2]>,
    weights: Vec<f64>,
    precision: Option<String>,
    options: TranslateOptions,
    /// For the languages that it was made for last.
    translator: Option<([Option<String>; 2], Translator)>,
}

impl Maker {
    /// Of these models, with flags over the configuration of the first one.
    pub(crate) fn new(
        (first, others): (ModelFiles, Vec<ModelFiles>),
        weights: &[f64],
        decode: &DecodeArgs,
        common: &Common,
    ) -> Result<Self> {
        if decode.shortlist.is_some() {
            let error = Error::usage("--shortlist is for translations that are needed at once");
            return Err(error.help("leave it out: training text should be as good as the models can make it"));
        }
        if decode.long.as_deref() == Some(Long::Error.name()) {
            let error = Error::usage("--long error does not go with whole corpora");
            return Err(error.help("with --long truncate, lines that are cut are left out"));
        }
        match decode.strategy.criterion()? {
            Some(Criterion::Likeness(Utility::Comet)) => {
                let error = Error::usage("--mbr comet takes too long for whole corpora");
                return Err(error.help("give --mbr chrf or bleu"));
            }
            Some(Criterion::Quality) => {
                let error = Error::usage("--rerank takes too long for whole corpora");
                return Err(error.help("leave it out; --keep leaves out what the model is least sure of"));
            }
            _ => {}
        }
        let [source, target] = [&first.tokenizers.source, &first.tokenizers.target];
        if [source, target].iter().any(|it| it.kind() == Some(TokenizerKind::SubwordNmt) && !it.has_codes()) {
            let what =
                "the model reads and writes text that is split into subwords already, and its translations are whole";
            let error = Error::usage(what).at(first.directory());
            return Err(error.help("state the codes (`tokenizer.codes`), and give plain text"));
        }
        let options = decoding::translate_options(decode, None, (&first, &others), common)?;
        let (weights, precision) = (weights.to_vec(), decode.precision.clone());
        let languages = std::iter::once(&first).chain(&others).map(|model| model.languages.clone()).collect();
        Ok(Self { first, others, languages, weights, precision, options, translator: None })
    }

    /// The job with what decides the translations beside the text.
    fn added_to(&self, mut job: Value) -> Result<Value> {
        let models = std::iter::once(&self.first).chain(&self.others);
        job["models"] = models.map(ModelFiles::identity).collect::<Result<Vec<_>>>()?.into();
        let options = TranslateOptions { lines_before: 0, batch_tokens: 0, ..self.options.clone() };
        job["options"] = format!("{options:?}").into();
        (job["weights"], job["precision"]) = (self.weights.clone().into(), json!(self.precision));
        Ok(job)
    }

    /// What is put in front of each source, for a corpus with this tag and these languages; multilingual models are set
    /// to the latter.
    fn prepare(&mut self, input: &Input<'_>) -> Result<Option<String>> {
        let Input { key, tag, ref languages, .. } = *input;
        for (model, own) in std::iter::once(&mut self.first).chain(&mut self.others).zip(&self.languages) {
            model.languages = own.clone();
        }
        let models = std::iter::once(&mut self.first).chain(&mut self.others);
        languages::state(languages.clone(), key, models)?;
        let source = &self.first.tokenizers.source;
        if source.languages().is_empty() {
            let known = LanguageTags::of(source);
            let target = languages[1].as_deref().filter(|_| !source.language_tags().is_empty());
            let [tag, _] = known.tags(key, tag, [None, target])?;
            let Some(word) = tag.as_deref().and_then(|tag| unknown_word(tag, source)) else { return Ok(tag) };
            let known = source.language_tags();
            if !known.is_empty() {
                let error = Error::usage(format!("`{key}`: the model that translates has no tag {word}"));
                return Err(error.help(format!("it has {}", known.join(" "))));
            }
        } else if self.first.languages.iter().any(Option::is_none) {
            let what = format!("the model has many languages, and `{key}` does not say which it is to translate");
            return Err(Error::usage(what).help("state both languages; `mt info MODEL` lists them"));
        }
        if let Some(tag) = tag {
            warning(format_args!("`{key}`: the model that translates knows no {tag}, and gets the lines without it"));
        }
        Ok(None)
    }

    /// The translator for the languages of the last [`Self::prepare`].
    fn translator(&mut self) -> Result<&Translator> {
        if self.translator.as_ref().is_none_or(|(known, _)| *known != self.first.languages) {
            self.translator = None;
            let precision = self.precision.as_deref();
            let translator = decoding::translator(&self.first, &self.others, &self.weights, precision)?;
            self.translator = Some((self.first.languages.clone(), translator));
        }
        let missing = || Error::failure("no model translates");
        self.translator.as_ref().map(|(_, translator)| translator).ok_or_else(missing)
    }
}

/// A corpus to translate: from its source side.
pub(crate) struct Input<'a> {
    /// Its key or name, for messages.
    pub key: &'a str,
    /// Its pairs; of text in one language, each line twice.
    pub pairs: &'a dyn PairSource,
    /// Its tag and languages.
    pub tag: Option<&'a str>,
    pub languages: [Option<String>; 2],
    /// How many parts the corpora before it have: shares count all parts.
    pub parts_before: usize,
}

/// Translates what of a corpus has no translation yet, and returns the parts; of a shard alone, none.
pub(crate) fn translate(
    maker: &mut Maker,
    input: &Input<'_>,
    (root, folder): (&Path, &str),
    shard: Option<Shard>,
    progress: &ProgressBar,
) -> Result<Option<Parts>> {
    let Shard { index, count } = shard.unwrap_or(Shard::WHOLE);
    let tag = maker.prepare(input)?;
    let job = json!({
        "text": hex(&input.pairs.digest()), "lines": input.pairs.len(), "tag": tag,
        "languages": maker.first.languages,
    });
    let job = maker.added_to(job)?;
    let parts = Parts::open(root, folder, &job)?;
    warn_of_tags(&maker.first, input, tag.as_deref())?;
    let (mut number, all) = (0, input.pairs.len().div_ceil(PART_LINES));
    each_part(input.pairs, |lines| {
        if (input.parts_before + number) % count == index && !parts.has(number) {
            let lines_before = number * PART_LINES;
            let options = TranslateOptions { lines_before, tag: tag.clone(), ..maker.options.clone() };
            let translator = maker.translator()?;
            let sources: Vec<_> = lines.iter().map(|[source, _]| tagged(tag.as_deref(), source)).collect();
            languages::refuse_without(translator, [&sources, &[]], |error, _, _| error)?;
            let before = progress.position();
            let moved = |done: usize| progress.set_position(before + done as u64);
            let translations = translator.translate(&sources, &[], &options, moved)?;
            let given = usize::from(!translator.target().languages().is_empty());
            let made: Vec<Made> = translations.iter().map(|line| Made::new(line, given)).collect();
            parts.write(number, &made)?;
            if progress.is_hidden() && (number + 1).is_multiple_of(all.div_ceil(LINES_OF_PROGRESS)) {
                info(format_args!("{}: {} of {all} parts", input.key, number + 1));
            }
        } else {
            progress.inc(lines.len() as u64);
        }
        number += 1;
        Ok(())
    })?;
    Ok(shard.is_none().then_some(parts))
}

/// Warns where the model has tags, and lines lack them.
fn warn_of_tags(model: &ModelFiles, input: &Input<'_>, tag: Option<&str>) -> Result<()> {
    if model.tokenizers.source.language_tags().is_empty() {
        return Ok(());
    }
    let mut tags = Tags::new(model, tag);
    each_part(input.pairs, |lines| {
        lines.iter().for_each(|[source, _]| tags.count(&tagged(tag, source)));
        Ok(())
    })?;
    tags.warnings().iter().for_each(|text| warning(format_args!("{}: {text}", input.key)));
    Ok(())
}

/// Calls `each` with the pairs of one part after the other.
fn each_part(pairs: &dyn PairSource, mut each: impl FnMut(&[[String; 2]]) -> Result<()>) -> Result<()> {
    let mut lines: Vec<[String; 2]> = Vec::with_capacity(PART_LINES);
    for block in pairs.blocks()? {
        let block = block?;
        for (source, target) in (0..block.len()).map(|index| block.get(index)) {
            lines.push([source.to_owned(), target.to_owned()]);
            if lines.len() == PART_LINES {
                each(&lines)?;
                lines.clear();
            }
        }
    }
    if lines.is_empty() { Ok(()) } else { each(&lines) }
}

/// The files of the pairs that are worth training on.
pub(crate) struct ChosenPairs {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    /// Their weights, if the corpus has some.
    pub(crate) weights: Option<PathBuf>,
    /// What was left out.
    pub(crate) counts: Counts,
}

/// Writes the pairs that are worth training on into the folder of the parts: `pair` makes both lines of a source and
/// its translation. Each keeps the weight of its source.
pub(crate) fn choose(
    parts: &Parts,
    pairs: &dyn PairSource,
    selection: Selection,
    pair: impl Fn(&str, &str) -> [String; 2],
) -> Result<ChosenPairs> {
    let mut chosen = Chosen::new(selection);
    each_made(parts, pairs, |source, made| {
        chosen.see(source, made);
        Ok(())
    })?;
    chosen.settle();
    let mut weights = pairs.is_weighted().then(|| weights_of(pairs)).transpose()?.map(Vec::into_iter);
    let mut writer = PairWriter::create(parts, ["source.txt", "target.txt"])?;
    let mut of_weights = weights.is_some().then(|| PairWriter::create(parts, ["weights.txt"])).transpose()?;
    each_made(parts, pairs, |source, made| {
        let weight = weights.as_mut().and_then(Iterator::next);
        if !chosen.takes(source, made) {
            return Ok(());
        }
        if let (Some(weight), Some(writer)) = (weight, &mut of_weights) {
            writer.push([&weight.to_string()])?;
        }
        let [source, target] = pair(source, &made.text);
        writer.push([&source, &target])
    })?;
    let weights = of_weights.map(PairWriter::finish).transpose()?.and_then(|files| files.into_iter().next());
    let Ok([source, target]) = <[PathBuf; 2]>::try_from(writer.finish()?) else { unreachable!("two files") };
    Ok(ChosenPairs { source, target, weights, counts: chosen.counts })
}

/// The weight of each pair.
fn weights_of(pairs: &dyn PairSource) -> Result<Vec<f32>> {
    let mut weights = Vec::with_capacity(pairs.len());
    for block in pairs.blocks()? {
        let block = block?;
        weights.extend((0..block.len()).map(|index| block.weight(index)));
    }
    Ok(weights)
}

fn each_made(parts: &Parts, pairs: &dyn PairSource, mut each: impl FnMut(&str, &Made) -> Result<()>) -> Result<()> {
    let mut number = 0;
    each_part(pairs, |lines| {
        let made = parts.read(number, lines.len())?;
        number += 1;
        lines.iter().zip(&made).try_for_each(|([source, _], made)| each(source, made))
    })
}

/// A bar for the translation of so many lines, where somebody watches.
pub(crate) fn progress(lines: usize) -> ProgressBar {
    if is_watched() { progress_bar(Counted::Sentences, Some(lines as u64)) } else { ProgressBar::hidden() }
}

/// The selection that the flags ask for.
pub(crate) fn selection(args: &SelectionArgs) -> Result<Selection> {
    let SelectionArgs { keep, length_tolerance: tolerance } = *args;
    if !(keep > 0.0 && keep <= 1.0) {
        return Err(Error::usage(format!("--keep {keep} is not a share: above 0 and at most 1")));
    }
    if !(tolerance >= 1.0 && tolerance.is_finite()) {
        return Err(Error::usage(format!("--length-tolerance {tolerance} is not a number of at least 1")));
    }
    Ok(Selection { keep, tolerance })
}

/// The error where nothing is left to train on.
pub(crate) fn nothing_left() -> Error {
    let help = "see above why: --keep and --length-tolerance decide about likelihood and length, --max-length and the \
                search about those that do not end";
    Error::failure("no translation is worth training on").help(help)
}

/// What is said of a corpus.
pub(crate) fn summary(name: &str, counts: Counts) -> String {
    let Counts { lines, blank, unfinished, odd_length, unlikely, kept } = counts;
    format!(
        "{name}: {kept} of {lines} translations stay; left out: {unlikely} less likely ones, {odd_length} of unusual \
         length, {unfinished} unfinished, {blank} blank"
    )
}
