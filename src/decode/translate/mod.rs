//! Text in, text out: tokenise, batch by length, encode, search, detokenise, in the order of the input.

mod constraints;
mod options;
mod translation;

use super::ensemble::Ensemble;
use super::neural::Neural;
use super::rerank::Judge;
use super::shortlist::Shortlist;
use super::source::{self, BeyondPositions, Long, Reader, Source};
use super::{Demands, Hypothesis, Prediction, StepModel, Surfaces, force, in_halves, predict};
use crate::data::corpus::Side;
use crate::data::tokenizer::Tokenizer;
use crate::error::Result;
pub use constraints::{Constraints, Fault};
pub use options::TranslateOptions;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use translation::PartTranslation;
pub(super) use translation::has_space_between;
pub use translation::{Candidate, Translation};

/// One or more models ready to translate.
#[derive(Debug)]
pub struct Translator {
    models: Ensemble,
    /// One per model.
    readers: Vec<Reader>,
    target: Arc<Tokenizer>,
    /// The tag of the language of translations.
    language: Option<String>,
    /// What the target's tokens write; made when they are first asked for.
    surfaces: OnceLock<Arc<Surfaces>>,
    /// Chooses among samples, if a model is to.
    judge: Option<Arc<dyn Judge>>,
}

impl Translator {
    /// A translator of at least one model, each with the reader of its sources. Their target vocabularies are the same.
    ///
    /// # Panics
    /// As [`Ensemble::new`].
    pub fn new(models: Vec<(Neural, Reader)>) -> Self {
        let (models, readers): (Vec<Neural>, Vec<Reader>) = models.into_iter().unzip();
        let target = readers[0].tokenizers().target.clone();
        let models = Ensemble::new(models);
        Self { models, readers, target, language: None, surfaces: OnceLock::new(), judge: None }
    }

    /// Into the language with this tag, unless a target or a prefix begins with another.
    #[must_use]
    pub fn with_language(self, language: Option<String>) -> Self {
        Self { language, ..self }
    }

    /// With weights of the models; see [`Ensemble::weighted`].
    #[must_use]
    pub fn weighted(self, weights: &[f64]) -> Self {
        Self { models: self.models.weighted(weights), ..self }
    }

    /// With a model that chooses among translations, for what a [`Rerank`](super::rerank::Rerank) needs.
    #[must_use]
    pub fn judged_by(self, judge: Option<Arc<dyn Judge>>) -> Self {
        Self { judge, ..self }
    }

    /// Translates lines; the result has one translation per line, in order. `constraints` has an entry per line,
    /// without any [`Fault`], or is empty. `progress` gets the number of finished lines; a line in parts is finished
    /// when all its parts are.
    ///
    /// # Errors
    /// As [`super::search`].
    pub fn translate<S: AsRef<str> + Sync>(
        &self,
        lines: &[S],
        constraints: &[Constraints],
        options: &TranslateOptions,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Translation>> {
        let whole = self.translate_while(lines, constraints, options, |done| {
            progress(done);
            true
        })?;
        Ok(whole.unwrap_or_default())
    }

    /// As [`Self::translate`], but stops without a result if `go_on`, asked after each batch, returns false.
    ///
    /// # Errors
    /// As [`super::search`].
    pub fn translate_while<S: AsRef<str> + Sync>(
        &self,
        lines: &[S],
        constraints: &[Constraints],
        options: &TranslateOptions,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Translation>>> {
        let mut sources = self.read(lines, options.long, options.tag.as_deref());
        let demands = self.demands(&sources, constraints, options)?;
        let mut parts_left = vec![0usize; lines.len()];
        let translated = sources[0].iter().filter(|source| !source.ids.is_empty());
        translated.for_each(|source| parts_left[source.line] += 1);
        let mut done = parts_left.iter().filter(|&&parts| parts == 0).count();
        let go_on = |batch: &[usize]| {
            for &i in batch {
                let left = &mut parts_left[sources[0][i].line];
                *left -= 1;
                done += usize::from(*left == 0);
            }
            go_on(done)
        };
        let Some(found) = self.models.translate(&sources, &demands, options, go_on)? else { return Ok(None) };
        let mut parts: Vec<Vec<PartTranslation>> = lines.iter().map(|_| Vec::new()).collect();
        // A model with fewer positions than the first may have cut a source that the first takes whole.
        let is_cut: Vec<bool> = (0..found.len()).map(|i| sources.iter().any(|of_model| of_model[i].cut)).collect();
        // Samples are in no order.
        let ranked = options.strategy.is_ranked();
        let demands = demands.into_iter().map(Some).chain(std::iter::repeat(None));
        for (((source, hypotheses), source_cut), demands) in
            sources.swap_remove(0).into_iter().zip(found).zip(is_cut).zip(demands)
        {
            if !hypotheses.is_empty() {
                let line = source.line;
                let part = self.part((source, source_cut), hypotheses, demands.unwrap_or_default(), ranked, options);
                parts[line].push(part);
            }
        }
        let translation = |parts: Vec<PartTranslation>| match parts.is_empty() {
            true => Translation::blank(),
            false => Translation::from_parts(parts, ranked, options.n_best),
        };
        let mut translations: Vec<Translation> = parts.into_iter().map(translation).collect();
        if let Some(rerank) = options.rerank {
            let source = &self.readers[0].tokenizers().source;
            let sources: Vec<String> = lines.iter().map(|line| source.readable(line.as_ref())).collect();
            rerank.choose(&mut translations, &sources, self.judge.as_deref())?;
        }
        Ok(Some(translations))
    }

    /// Scores given translations: for each pair of a source and a target, returns the
    /// target tokens, with log-probabilities including the end. None of the pairs may be [`Fit::TooLong`].
    ///
    /// # Errors
    /// As [`super::search`].
    pub fn score<S: AsRef<str> + Sync>(
        &self,
        sources: &[S],
        targets: &[S],
        batch_tokens: usize,
    ) -> Result<Vec<(Vec<u32>, Vec<f32>)>> {
        let targets = self.target_ids(targets);
        let log_probs = self.teacher_force(sources, &targets, batch_tokens, force)?;
        Ok(targets.into_iter().zip(log_probs).collect())
    }

    /// How well the models predict given translations. None of the pairs may be [`Fit::TooLong`].
    ///
    /// # Errors
    /// As [`super::search`].
    pub fn predict<S: AsRef<str> + Sync>(
        &self,
        sources: &[S],
        targets: &[S],
        batch_tokens: usize,
    ) -> Result<Prediction> {
        let targets = self.target_ids(targets);
        // Summed in the order of the lines, so that batching does not change the rounding.
        Ok(self.teacher_force(sources, &targets, batch_tokens, predict)?.into_iter().sum())
    }

    /// The tokens of targets, without the end, whole; none where a line is blank, as on the source side.
    fn target_ids<S: AsRef<str> + Sync>(&self, targets: &[S]) -> Vec<Vec<u32>> {
        let targets = source::encoded(&self.target, self.language.as_deref(), targets, usize::MAX);
        targets.into_iter().map(|target| target.ids).collect()
    }

    /// The results of `look` for each pair of a source and a target. It is called for each batch, with the models ready
    /// to decode its sources, and its targets.
    fn teacher_force<S: AsRef<str> + Sync, T: Clone + Default>(
        &self,
        sources: &[S],
        targets: &[Vec<u32>],
        batch_tokens: usize,
        look: impl Fn(&mut dyn StepModel, &[&[u32]]) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let sources = self.read(sources, Long::Truncate, None);
        let longest =
            |&i: &usize| sources.iter().map(|of_model| of_model[i].ids.len()).fold(targets[i].len(), usize::max);
        let mut order: Vec<usize> = (0..targets.len()).collect();
        source::by_length(&mut order, longest);
        let mut found = vec![T::default(); targets.len()];
        let look = |batch: &[usize]| {
            let targets: Vec<&[u32]> = batch.iter().map(|&i| targets[i].as_slice()).collect();
            look(&mut self.models.begin_with(&sources, batch, &[])?, &targets)
        };
        for batch in source::batches(&order, longest, batch_tokens, self.models.rows(true)) {
            batch.iter().zip(in_halves(batch, &look)?).for_each(|(&i, of_pair)| found[i] = of_pair);
        }
        Ok(found)
    }

    /// The first line with more tokens than a model has positions.
    pub fn beyond_positions<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Option<BeyondPositions> {
        let beyond = self.readers.iter().filter_map(|reader| reader.beyond_positions(lines).into_iter().next());
        beyond.min_by_key(|beyond| beyond.line)
    }

    /// Whether the models can predict the target of each pair.
    pub fn fit<S: AsRef<str> + Sync>(&self, sources: &[S], targets: &[S]) -> Vec<Fit> {
        let positions = self.models.max_positions();
        let mut fits: Vec<Fit> = (self.target_ids(targets).iter().enumerate())
            .map(|(line, tokens)| match tokens.len() {
                0 => Fit::Empty,
                n if n < positions => Fit::Whole,
                n => Fit::TooLong(Side::Target, BeyondPositions { line, tokens: n + 1, and_more: false, positions }),
            })
            .collect();
        for reader in &self.readers {
            for source in reader.read(sources) {
                let fit = &mut fits[source.line];
                if source.ids.is_empty() && *fit == Fit::Whole {
                    *fit = Fit::Empty;
                }
            }
            for beyond in reader.beyond_positions(sources) {
                fits[beyond.line] = Fit::TooLong(Side::Source, beyond);
            }
        }
        fits
    }

    /// The tokenizer of the first model's sources.
    pub fn source(&self) -> &Tokenizer {
        &self.readers[0].tokenizers().source
    }

    /// The first model's shortlist, if it has one.
    pub fn shortlist(&self) -> Option<&Shortlist> {
        self.models.members()[0].shortlist()
    }

    /// The target tokenizer.
    pub fn target(&self) -> &Tokenizer {
        &self.target
    }

    /// For each model the sources of all lines, in order; a line that is split has one for each part.
    fn read<'l, S: AsRef<str> + Sync>(&self, lines: &'l [S], long: Long, tag: Option<&str>) -> Vec<Vec<Source>> {
        let mut sources: Vec<Vec<Source>> = self.readers.iter().map(|reader| reader.read(lines)).collect();
        let is_cut =
            |line: usize| sources.iter().zip(&self.readers).any(|(sources, reader)| reader.is_long(&sources[line]));
        if long != Long::Split || !(0..lines.len()).any(is_cut) {
            return sources;
        }
        // A tag gives the target language of the whole line, so each part needs it. Perhaps only one of the models
        // knows it.
        let leading = |line: &'l str| {
            let known = self.readers.iter().map(|reader| reader.tokenizers().source.leading(line));
            let given = tag.and_then(|tag| line.strip_prefix(tag)?.strip_prefix(' '));
            let given = given.map(|rest| &line[..line.len() - rest.len()]);
            let leading = known.chain(given).max_by_key(|leading| leading.len()).unwrap_or_default();
            if leading.len() < line.trim_end().len() { leading } else { "" }
        };
        // With as much white space as separates words: every part begins with it.
        let repeated = |leading: &str| {
            let words = leading.split_whitespace().collect::<Vec<_>>().join(" ");
            if leading.ends_with(char::is_whitespace) { words + " " } else { words }
        };
        let parts_of = |line: &'l str| -> Vec<Cow<'l, str>> {
            let text = &line[leading(line).len()..];
            let leading = repeated(leading(line));
            let parts = source::split(text, &leading, &self.readers).into_iter();
            parts.map(|part| if leading.is_empty() { part.into() } else { format!("{leading}{part}").into() }).collect()
        };
        let parts: Vec<Vec<Cow<str>>> =
            (0..lines.len()).map(|i| if is_cut(i) { parts_of(lines[i].as_ref()) } else { Vec::new() }).collect();
        for (reader, sources) in self.readers.iter().zip(&mut sources) {
            let whole = std::mem::take(sources).into_iter().zip(&parts);
            *sources = whole
                .flat_map(|(source, parts)| {
                    if parts.is_empty() {
                        return vec![source];
                    }
                    let leading = repeated(leading(lines[source.line].as_ref()).trim_end());
                    let leading_tokens = reader.leading_tokens(&leading);
                    let of_line = |(part, read): (usize, Source)| {
                        let added = if part == 0 { 0 } else { leading_tokens };
                        Source { line: source.line, part, added, ..read }
                    };
                    reader.read(parts).into_iter().enumerate().map(of_line).collect()
                })
                .collect();
        }
        sources
    }

    /// What the target's tokens write.
    fn surfaces(&self) -> &Arc<Surfaces> {
        self.surfaces.get_or_init(|| Arc::new(Surfaces::from_tokenizer(&self.target)))
    }

    /// The translations of a source from its hypotheses; `source_cut`: the source was cut.
    fn part(
        &self,
        (source, source_cut): (Source, bool),
        mut hypotheses: Vec<Hypothesis>,
        demands: Demands,
        ranked: bool,
        options: &TranslateOptions,
    ) -> PartTranslation {
        let forced = if source.part == 0 { Vec::new() } else { demands.prefix };
        if forced.is_empty() {
            hypotheses.truncate(options.n_best);
        }
        let lacks_phrases = |tokens: &[u32]| {
            demands.must.as_ref().is_some_and(|must| {
                let progress = tokens.iter().fold(must.start(), |progress, token| must.after(&progress, *token));
                !must.are_found(&progress)
            })
        };
        let candidate = |hypothesis: Hypothesis| {
            let lacks_phrases = lacks_phrases(&hypothesis.tokens);
            Candidate { lacks_phrases, ..self.candidate(hypothesis, forced.len()) }
        };
        let mut n_best: Vec<Candidate> = hypotheses.into_iter().map(candidate).collect();
        // Without the forced tokens, another may be the best.
        if !forced.is_empty() && ranked {
            n_best.sort_by(|a, b| b.score.total_cmp(&a.score));
        }
        PartTranslation { source, source_cut, n_best, forced }
    }

    /// The candidate of a hypothesis, without its first `forced` tokens, which an earlier part of the line already has.
    fn candidate(&self, hypothesis: Hypothesis, forced: usize) -> Candidate {
        let Hypothesis { mut tokens, mut token_log_probs, mut log_prob, mut score, ending } = hypothesis;
        tokens.drain(..forced.min(tokens.len()));
        let before = token_log_probs.drain(..forced.min(token_log_probs.len()));
        let whole = log_prob;
        log_prob -= before.map(f64::from).sum::<f64>();
        // The score is the log-probability, divided by a penalty.
        if log_prob != whole {
            score *= log_prob / whole;
        }
        let text = self.target.decode(&tokens).replace(['\n', '\r'], " ");
        Candidate { text, tokens, token_log_probs, log_prob, score, ending, ..Candidate::default() }
    }
}

/// Whether models can predict the target of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// They can.
    Whole,
    /// One of the sides has no tokens: they can, but training and validation leave such pairs out.
    Empty,
    /// They cannot: this side has more tokens than they have positions.
    TooLong(Side, BeyondPositions),
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::data::tokenizer::{TextForm, TrainOptions};
    use crate::data::tokenizers::Tokenizers;
    use crate::decode::neural::SpecialTokens;
    use crate::model::{ModelConfig, Preset, Transformer, Vocabulary};

    /// With a tokenizer that makes a token of every space, and a model of eight positions.
    fn translator() -> Translator {
        let form = TextForm { remove_extra_whitespaces: false, ..TextForm::default() };
        let options = TrainOptions { vocab_size: 300, form, ..TrainOptions::default() };
        let tokenizer = Arc::new(Tokenizer::train(&[&["the cat sleeps"][..]], &options).unwrap());
        let size = tokenizer.vocab_size();
        let vocabulary = Vocabulary { source: size, target: size, source_padding: 0, target_padding: 0 };
        let config = ModelConfig { max_length: 8, ..ModelConfig::from_preset(Preset::Tiny) };
        let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
        model.initialise(1).unwrap();
        let tokenizers = Tokenizers { source: tokenizer.clone(), target: tokenizer };
        let neural = Neural::new(&model, SpecialTokens::new(&tokenizers)).unwrap();
        Translator::new(vec![(neural, Reader::new(&config, &tokenizers))])
    }

    #[test]
    fn blank_lines_have_no_tokens_on_either_side() {
        let translator = translator();
        let spaces = " ".repeat(200);
        let pairs = [
            ("cat", "cat"),
            ("cat", ""),
            ("cat", "   "),
            ("cat", &spaces),
            ("", "cat"),
            ("   ", "cat"),
            (&spaces, "cat"),
            (&spaces, &spaces),
        ];
        let (sources, targets): (Vec<&str>, Vec<&str>) = pairs.into_iter().unzip();
        let fits = translator.fit(&sources, &targets);
        assert_eq!(fits[0], Fit::Whole);
        assert!(fits[1..].iter().all(|fit| *fit == Fit::Empty), "{fits:?}");
        assert_eq!(translator.beyond_positions(&sources), None);
        // All can be scored, as if the white space were not there.
        let scores = translator.score(&sources, &targets, 1000).unwrap();
        assert!(scores[1].0.is_empty() && scores[1].1.len() == 1);
        assert_eq!([&scores[2], &scores[3]], [&scores[1]; 2]);
        assert_eq!([&scores[5], &scores[6]], [&scores[4]; 2]);
        let long = format!("{spaces}cat");
        for (pair, side) in [([long.as_str(), "cat"], Side::Source), (["cat", &long], Side::Target)] {
            let fit = translator.fit(&pair[..1], &pair[1..])[0];
            assert!(matches!(fit, Fit::TooLong(of, _) if of == side), "{fit:?}");
        }
    }
}
