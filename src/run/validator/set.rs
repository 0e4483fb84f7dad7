//! One set of text, and its scores.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

use super::warnings::{normalisation_warning, spaces_warning};
use crate::comet::{Lines, OnDemand};
use crate::config::Config;
use crate::data::batch::{Batch, larger_side, split_by_tokens};
use crate::data::corpus::{Side, is_blank, read_all};
use crate::data::texts::Text;
use crate::data::tokenizers::Tokenizers;
use crate::data::{corpus_tags, coverage};
use crate::decode::explain::explain;
use crate::decode::neural::{Neural, SpecialTokens};
use crate::decode::source::Reader;
use crate::decode::translate::{Constraints, TranslateOptions, Translation, Translator};
use crate::decode::{Ending, Strategy};
use crate::error::{Error, Result};
use crate::metrics::{BleuOptions, ChrfOptions, MeanScore, Metric, Statistics, TextMetric};
use crate::model::Transformer;
use crate::model_dir::Tell;
use crate::notice::Notice;
use crate::ops::loss::Sums;
use crate::ranks::group::Group;
use crate::run::Stop;
use crate::run::training_data::is_learnt;
use crate::train::best::Judged;
use crate::train::evaluate::Evaluator;
use crate::train::{Score, ValidMetric, Validation};

/// How many samples to explain, and the longest shown, in tokens.
const EXPLAINED: (usize, usize) = (3, 60);

/// COMET, of which each line has a score.
pub(super) fn comet() -> MeanScore {
    MeanScore { key: ValidMetric::Comet.name(), name: "COMET", options: Vec::new(), has_references: true }
}

/// A set of text, ready to be scored.
pub(super) struct ScoredSet {
    sources: Vec<String>,
    pub(super) references: Vec<String>,
    /// The tags of the languages of the references, of a model with several.
    languages: Vec<Constraints>,
    batches: Vec<Batch>,
    tokenizers: Tokenizers,
    options: TranslateOptions,
    /// The longest lines of the training text, in tokens.
    trained_length: usize,
    pub(super) samples: usize,
    /// Decides which model is the best.
    pub(super) metric: ValidMetric,
    pub(super) bleu: BleuOptions,
    pub(super) chrf: ChrfOptions,
    pub(super) fingerprint: String,
}

/// Of fewer sources, that most have the same translation says little.
const FEW_SOURCES: usize = 20;

/// The translation that more than half of different sources have, and how many; `None` if there is none.
fn repeated<'t>(sources: &[String], translations: &[&'t str]) -> Option<(&'t str, usize)> {
    let pairs: HashSet<(&str, &str)> = sources.iter().map(String::as_str).zip(translations.iter().copied()).collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (_, translation) in &pairs {
        *counts.entry(translation).or_default() += 1;
    }
    let (text, count) = counts.into_iter().max_by_key(|(text, count)| (*count, *text))?;
    (pairs.len() >= FEW_SOURCES && 2 * count > pairs.len()).then_some((text, count))
}

impl ScoredSet {
    /// Reads a set. Messages call it `name`.
    pub(super) fn open(
        config: &Config,
        text: &Text,
        name: &str,
        tokenizers: &Tokenizers,
        tell: Tell<'_>,
    ) -> Result<Self> {
        let corpus = text.open(1.0, tell)?;
        let warn = |text: String| tell(Notice::Warning(text));
        let pairs = read_all(&*corpus)?;
        let limit =
            if config.valid.max_sentences == 0 { pairs.len() } else { config.valid.max_sentences.min(pairs.len()) };
        let most = config.model.max_length - 1;
        // As in training, a blank line is empty, whatever the tokenizer makes of it.
        let ids = |side, line: &str| if is_blank(line) { Vec::new() } else { tokenizers.side(side).encode(line) };
        let encode = |(source, target): &(String, String)| (ids(Side::Source, source), ids(Side::Target, target));
        let mut encoded: Vec<_> = pairs.iter().map(encode).collect();
        let usable = |(s, t): &(Vec<u32>, Vec<u32>)| s.len().max(t.len()) <= most && !s.is_empty() && !t.is_empty();
        let first_left_out = encoded.iter().position(|pair| !usable(pair));
        let trained = config.data.max_length.min(most);
        let long = encoded[..limit].iter().filter(|(source, _)| source.len() > trained).count();
        let options = TranslateOptions {
            strategy: Strategy::Beam { width: config.valid.beam },
            ..TranslateOptions::from_config(&config.decode)
        };
        let is_beyond = |(source, target): &&(Vec<u32>, Vec<u32>)| {
            !source.is_empty() && source.len() <= trained && target.len() + 1 > options.limit(source.len(), 0)
        };
        let beyond = encoded[..limit].iter().filter(is_beyond).count();
        encoded.retain(usable);
        let left_out = pairs.len() - encoded.len();
        if encoded.is_empty() {
            let what =
                format!("no pair is left to validate on: all {left_out} are empty or longer than {most} subwords");
            return Err(Error::failure(what).at(text.name()).help("check the set in [data], and model.max_length"));
        }
        corpus_tags::warning_about_set(name, tokenizers, &*corpus, &pairs).into_iter().for_each(warn);
        coverage::warnings(name, tokenizers, is_learnt(config), &encoded).into_iter().for_each(warn);
        if let Some(first) = first_left_out {
            let (path, line) = corpus.origin(first, Side::Source);
            let (path, all) = (path.display(), pairs.len());
            warn(format!(
                "{left_out} of {all} {name} pairs are not part of the loss: empty, or longer than the {most} \
                 subwords that model.max_length allows; the first is {path}:{line}"
            ));
        }
        if long > 0 {
            warn(format!(
                "longer than {trained} subwords, and so translated in parts, as by `mt translate`: {long} of the \
                 sources whose translations are scored"
            ));
        }
        if beyond > 0 {
            let (ratio, extra) = (options.max_length_ratio, options.max_length_extra);
            warn(format!(
                "{beyond} of {limit} {name} references are longer than a translation may become: {ratio} times the \
                 subwords of its source and {extra} more (decode.max_length_ratio, decode.max_length_extra)"
            ));
        }
        encoded.sort_by_key(larger_side);
        let batch_tokens = config.train.batch_tokens;
        let mut hash = Sha256::new();
        for (source, target) in &pairs {
            // Lines contain no line feed, so this is unambiguous.
            [source, "\n", target, "\n"].iter().for_each(|text| hash.update(text));
        }
        let (sources, references): (_, Vec<String>) = pairs.into_iter().take(limit).unzip();
        let changed = normalisation_warning(config, tokenizers, &format!("{name} "), &references);
        let is_multilingual = !tokenizers.target.languages().is_empty();
        let tag = |line: &String| tokenizers.target.language_tag(line).unwrap_or_default().to_owned();
        let tag = |line| Constraints { prefix: tag(line), ..Constraints::default() };
        let languages = references.iter().filter(|_| is_multilingual).map(tag).collect();
        let plain = |line: String| tokenizers.target.plain(&line).into_owned();
        let references: Vec<String> = references.into_iter().map(plain).collect();
        spaces_warning(config, &references).into_iter().chain(changed).for_each(warn);
        let bleu = super::scoring(config, tokenizers);
        let chrf = ChrfOptions { lowercase: bleu.lowercase, ..ChrfOptions::default() };
        Ok(Self {
            sources,
            references,
            languages,
            batches: split_by_tokens(&encoded, batch_tokens)
                .into_iter()
                .map(|part| Batch::new(&encoded[part], &tokenizers.special_ids()))
                .collect(),
            tokenizers: tokenizers.clone(),
            options,
            trained_length: config.data.max_length,
            samples: config.valid.samples,
            metric: config.valid.metric,
            bleu,
            chrf,
            fingerprint: format!("{:x}", hash.finalize()),
        })
    }

    /// Adds the scores of the set's translations, and the value by which the model is judged, unless that is COMET.
    fn add_scores(&self, validation: &mut Validation, texts: &[String]) -> Result<()> {
        validation.value = validation.loss;
        let (bleu, chrf): (&dyn TextMetric, &dyn TextMetric) = (&self.bleu, &self.chrf);
        let deciding = match self.metric {
            ValidMetric::Bleu => Some(bleu.key()),
            ValidMetric::Chrf => Some(chrf.key()),
            ValidMetric::Comet | ValidMetric::Loss => None,
        };
        for metric in [bleu, chrf] {
            let statistics = Statistics::new(metric, texts, std::slice::from_ref(&self.references))?;
            let value = metric.score(&statistics.sum());
            if deciding == Some(metric.key()) {
                (validation.value, validation.lines) = (value, statistics.counts());
            }
            validation.scores.push(Score { key: metric.key(), name: metric.name(), value, decimals: 2 });
        }
        Ok(())
    }

    /// Adds COMET; returns false if a signal stops it.
    pub(super) fn add_comet(
        &self,
        validation: &mut Validation,
        texts: &[String],
        metric: &OnDemand,
        stops: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let sources: Vec<String> = self.sources.iter().map(|line| self.tokenizers.source.readable(line)).collect();
        let references = std::slice::from_ref(&self.references);
        let lines = Lines { sources: &sources, systems: &[texts], references };
        let Some(scores) = metric.model()?.scores_while(lines, |_, _| !stops())? else { return Ok(false) };
        let value = comet().score(&Statistics::from_scores(&scores[0], 1).sum());
        if self.metric == ValidMetric::Comet {
            validation.value = value;
            validation.lines = scores[0].iter().map(|score| (*score as f32).to_bits()).collect();
        }
        validation.scores.push(Score { key: comet().key, name: comet().name(), value, decimals: 4 });
        Ok(true)
    }

    /// The sums of the losses over the whole set, which ranks share; `None` if a signal stops it.
    fn losses(
        &self,
        evaluator: &mut Evaluator<'_>,
        stops: &dyn Fn() -> bool,
        group: Option<&Group>,
    ) -> Result<Option<Sums>> {
        let Some(group) = group else { return evaluator.losses(&self.batches, stops) };
        let ranks = group.ranks();
        let own = self.batches.iter().skip(ranks.rank).step_by(ranks.count);
        let own: Option<Vec<u8>> = own
            .map(|batch| {
                let sums = evaluator.losses(std::slice::from_ref(batch), stops)?;
                Ok(sums.map(|sums| [sums.smoothed.to_le_bytes(), sums.nll.to_le_bytes()].concat()))
            })
            .collect::<Result<Option<Vec<_>>>>()?
            .map(|sums| sums.concat());
        // In JSON, numbers that are not finite would be lost.
        let message = own.map_or_else(|| vec![0], |own| [&[1], &own[..]].concat());
        let all = group.communicator().gather(&message)?;
        if all.iter().any(|message| message.first() != Some(&1)) {
            return Ok(None);
        }
        // In the order in which one rank adds them up.
        let mut sums = Sums::default();
        for number in 0..self.batches.len() {
            let bytes = &all[number % ranks.count][1 + 16 * (number / ranks.count)..];
            sums.smoothed += f64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            sums.nll += f64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        }
        Ok(Some(sums))
    }

    /// The translations of the set, which ranks share: those that this rank has made, and the texts of all. The first
    /// ones, which may be shown as samples, are rank 0's. `None` if a signal stops it.
    fn translate(
        &self,
        model: &Transformer,
        reader: &Reader,
        stops: &dyn Fn() -> bool,
        group: Option<&Group>,
    ) -> Result<Option<(Vec<Translation>, Vec<String>)>> {
        let neural = Neural::new(model, SpecialTokens::new(&self.tokenizers))?;
        let translator = Translator::new(vec![(neural, reader.clone())]);
        let translate = |sources: &[String], languages: &[Constraints]| {
            translator.translate_while(sources, languages, &self.options, |_| !stops())
        };
        let text = |translation: &Translation| translation.best().text.clone();
        let Some(group) = group else {
            let Some(translations) = translate(&self.sources, &self.languages)? else { return Ok(None) };
            let texts = translations.iter().map(text).collect();
            return Ok(Some((translations, texts)));
        };
        let ranks = group.ranks();
        let owner = |number: usize| if number < self.samples { 0 } else { number % ranks.count };
        let own: Vec<usize> = (0..self.sources.len()).filter(|number| owner(*number) == ranks.rank).collect();
        let sources: Vec<String> = own.iter().map(|number| self.sources[*number].clone()).collect();
        let languages: Vec<_> = own.iter().filter_map(|number| self.languages.get(*number).cloned()).collect();
        let translations = translate(&sources, &languages)?;
        let texts: Option<Vec<String>> = translations.as_ref().map(|made| made.iter().map(text).collect());
        let all: Option<Vec<Vec<String>>> = group.gather(&texts)?.into_iter().collect();
        let (Some(translations), Some(all)) = (translations, all) else { return Ok(None) };
        let mut all: Vec<_> = all.into_iter().map(Vec::into_iter).collect();
        let texts = (0..self.sources.len()).map(|number| all[owner(number)].next().unwrap_or_default());
        Ok(Some((translations, texts.collect())))
    }

    /// Loss over the whole set, translations and their scores; `None` if a signal stops it. If the loss is not finite,
    /// nothing is translated.
    pub(super) fn score(
        &self,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        comet: Option<&OnDemand>,
        stop: &dyn Stop,
        group: Option<&Group>,
    ) -> Result<Option<Validation>> {
        let stops = || stop.stop().is_some();
        let Some(sums) = self.losses(evaluator, &stops, group)? else { return Ok(None) };
        evaluator.release_memory();
        let tokens = self.batches.iter().map(|batch| batch.target_tokens).sum::<usize>().max(1) as f64;
        let mut validation =
            Validation { loss: sums.smoothed / tokens, perplexity: (sums.nll / tokens).exp(), ..Validation::default() };
        if !validation.loss.is_finite() {
            return Ok(Some(validation));
        }
        let reader = Reader::new(model.config(), &self.tokenizers).with_trained_length(self.trained_length);
        let Some((translations, texts)) = self.translate(model, &reader, &stops, group)? else { return Ok(None) };
        if let Some(group) = group.filter(|group| !group.leads()) {
            // What decides is rank 0's: another processor might round otherwise.
            let judged: Option<Judged> = group.share(None)?;
            return Ok(judged.map(|Judged { value, loss, lines, .. }| Validation { value, loss, lines, ..validation }));
        }
        self.add_scores(&mut validation, &texts)?;
        let add_comet = |metric| self.add_comet(&mut validation, &texts, metric, &stops);
        let is_whole = comet.map_or(Ok(true), add_comet)?;
        if let Some(group) = group {
            group.share(Some(is_whole.then(|| validation.judged(0))))?;
        }
        if !is_whole {
            return Ok(None);
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let samples = self.sources.iter().zip(&self.references).zip(&texts).take(self.samples);
        validation.samples = samples
            .map(|((source, reference), text)| {
                let source = self.tokenizers.source.plain(source);
                format!("  source     {source}\n  reference  {reference}\n  output     {text}\n")
            })
            .collect();
        validation.repeated = repeated(&self.sources, &texts).map(|(text, count)| (text.to_owned(), count));
        validation.translations = texts.iter().map(|text| (*text).to_owned()).collect();
        let (count, longest) = EXPLAINED;
        // Chosen by their sources alone, so that they are the same at every validation.
        let is_short =
            |translation: &Translation| matches!(&translation.parts[..], [source] if source.ids.len() < longest);
        let beginning = |translation: &Translation| {
            let mut translation = translation.clone();
            let best = &mut translation.n_best[0];
            if best.tokens.len() >= longest {
                best.tokens.truncate(longest);
                best.ending = Ending::MaxLength;
            }
            translation
        };
        let explained = count.min(self.samples);
        // Single sentences are explained on the processor, whatever the device.
        let model = if explained > 0 { model.on_processor()? } else { model.clone() };
        let samples = self.sources.iter().zip(&translations).take(self.samples);
        validation.explained = samples
            .filter(|(_, translation)| is_short(translation))
            .take(explained)
            .map(|(source, translation)| explain(&model, &reader, source, &beginning(translation)))
            .collect::<Result<_>>()?;
        Ok(Some(validation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_does_not_look_at_the_source_is_noticed() {
        let sources: Vec<String> = (0..20).map(|n| format!("source {n}")).collect();
        let translations =
            |same: usize| (0..20).map(|n| if n < same { "the same" } else { &sources[n] }).collect::<Vec<_>>();
        assert_eq!(repeated(&sources, &translations(11)), Some(("the same", 11)));
        assert_eq!(repeated(&sources, &translations(10)), None);
        assert_eq!(repeated(&sources[..19], &translations(19)[..19]), None, "too few to tell");
        // Sources that are the same are translated alike.
        assert_eq!(repeated(&vec!["hello".to_owned(); 30], &["hallo"; 30]), None);
        assert_eq!(repeated(&[], &[]), None);
    }
}
