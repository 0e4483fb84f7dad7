//! The Transformer as a [`StepModel`].

use std::sync::Arc;

use rayon::prelude::*;

use super::shortlist::Shortlist;
use super::{Characters, Constraint, Continuation, Rows, StepModel};
use crate::data::batch::end_source;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::gpu;
use crate::gpu::decode::{Excluded, InferenceEngine, Step};
use crate::gpu::launch::Exclusions;
use crate::infer::{ComputeType, Engine, Session, model_values};
use crate::model::cache::{Decoder, State};
use crate::model::{Sequences, Transformer};
use crate::ops::simd::vectorised;
use crate::ops::softmax::log_sum_exp;
use crate::ops::{Implementation, Mode};

/// Token ids that the search needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Ends a source.
    pub source_end: u32,
    /// Whether a source's first token, its language, comes after its end.
    pub language_last: bool,
    /// First decoder input.
    pub start: u32,
    /// Ends a hypothesis.
    pub end: u32,
    /// The languages that a target may begin with. That a search is made to begin with one is not counted among the
    /// probabilities.
    pub languages: Vec<u32>,
    /// Never produced: by default padding, start and unknown; the tokenizer decides.
    pub forbidden: Vec<u32>,
    /// The tokens that are parts of characters.
    pub characters: Arc<Characters>,
}

impl SpecialTokens {
    /// The special tokens of a model with these tokenizers.
    pub fn new(tokenizers: &Tokenizers) -> Self {
        let target = &tokenizers.target;
        Self {
            source_end: tokenizers.source.eos_id(),
            language_last: tokenizers.source.language_last(),
            start: target.bos_id(),
            end: target.eos_id(),
            languages: target.languages().into_iter().map(|(_, id)| id).collect(),
            forbidden: target.forbidden(),
            characters: Arc::new(Characters::from_tokenizer(target)),
        }
    }

    /// A source with its end.
    pub fn ended(&self, source: &[u32]) -> Vec<u32> {
        let mut row = vec![0; source.len() + 1];
        end_source(source, self.source_end, self.language_last, &mut row);
        row
    }
}

/// A model prepared for search: an [`Engine`] on the processor, an [`InferenceEngine`] on NVIDIA GPUs, else plain
/// operations.
#[derive(Debug)]
pub struct Neural {
    kind: Kind,
    special: SpecialTokens,
    vocabulary: usize,
    max_positions: usize,
    shortlist: Option<Shortlist>,
}

#[derive(Debug)]
enum Kind {
    Engine(Box<Engine>),
    Device(Box<(InferenceEngine, u32)>),
    Plain(Box<(Transformer, Decoder)>),
}

impl Neural {
    /// In the fastest implementation for the model's device; on the processor in float32.
    ///
    /// # Errors
    /// The device fails.
    pub fn new(model: &Transformer, special: SpecialTokens) -> Result<Self> {
        let parameters = model.parameters();
        #[cfg(feature = "cuda")]
        if parameters.device().is_cuda() {
            let queue = crate::gpu::cuda::Cuda::on(parameters.device())?;
            return Ok(Self::on_device(model, InferenceEngine::new(model, queue, parameters.compute())?, special));
        }
        if !parameters.device().is_cpu() {
            return Self::plain(model, special);
        }
        Ok(Self::from_engine(Engine::new(model.config(), &model_values(model), ComputeType::F32)?, special))
    }

    /// With the processor's engine.
    pub fn from_engine(engine: Engine, special: SpecialTokens) -> Self {
        let (vocabulary, max_positions) = (engine.vocabulary(), engine.max_positions());
        Self { kind: Kind::Engine(Box::new(engine)), special, vocabulary, max_positions, shortlist: None }
    }

    /// With the engine of a GPU.
    pub fn on_device(model: &Transformer, engine: InferenceEngine, special: SpecialTokens) -> Self {
        let (vocabulary, max_positions) = (model.vocabulary().target, model.config().max_length);
        let kind = Kind::Device(Box::new((engine, model.vocabulary().source_padding)));
        Self { kind, special, vocabulary, max_positions, shortlist: None }
    }

    /// Whether a GPU's engine computes.
    pub fn is_on_device(&self) -> bool {
        matches!(self.kind, Kind::Device(_))
    }

    /// Gives memory back that is kept for further batches.
    pub fn release_memory(&self) {
        if let Kind::Device(device) = &self.kind {
            device.0.release_memory();
        }
    }

    /// In plain operations, on any device.
    ///
    /// # Errors
    /// The device fails.
    pub fn plain(model: &Transformer, special: SpecialTokens) -> Result<Self> {
        let (vocabulary, max_positions) = (model.vocabulary().target, model.config().max_length);
        let kind = Kind::Plain(Box::new((model.clone(), model.decoder()?)));
        Ok(Self { kind, special, vocabulary, max_positions, shortlist: None })
    }

    /// The shortlist, if it has one.
    pub fn shortlist(&self) -> Option<&Shortlist> {
        self.shortlist.as_ref()
    }

    /// Allows only the target tokens of a shortlist; has an effect only with the processor's engine.
    pub fn with_shortlist(self, shortlist: Shortlist) -> Self {
        Self { shortlist: Some(shortlist), ..self }
    }

    /// The longest target that the positions allow.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Size of the target vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The largest useful number of rows: more only take memory.
    pub fn rows(&self) -> usize {
        match &self.kind {
            Kind::Engine(engine) => engine.rows(),
            Kind::Device(_) | Kind::Plain(_) => usize::MAX,
        }
    }

    /// Encodes sentences, given as token ids with the end of the sentence, and begins to decode them.
    ///
    /// # Errors
    /// The device fails.
    pub fn begin(&self, sources: &[&[u32]]) -> Result<NeuralStep<'_>> {
        self.begin_allowing(sources, &[])
    }

    /// Like [`Self::begin`]; a shortlist, if there is one, also allows the tokens that are `needed` for each sentence.
    ///
    /// # Errors
    /// The device fails.
    pub fn begin_allowing(&self, sources: &[&[u32]], needed: &[Vec<u32>]) -> Result<NeuralStep<'_>> {
        let state = match &self.kind {
            Kind::Engine(engine) => {
                let needed = |i: usize| needed.get(i).map_or(&[][..], Vec::as_slice);
                let of = |list: &Shortlist| -> Vec<Vec<u32>> {
                    let sources = sources.iter().enumerate();
                    sources.map(|(i, source)| list.tokens_for(source, needed(i), &self.special.forbidden)).collect()
                };
                Progress::Engine(engine.begin(engine.encode(sources), self.shortlist.as_ref().map(of)))
            }
            Kind::Device(device) => {
                let (engine, padding) = &**device;
                Progress::Device(engine.begin(&Sequences::padded(sources, *padding))?)
            }
            Kind::Plain(plain) => {
                let (model, decoder) = &**plain;
                let mode = Mode { training: None, implementation: Implementation::Reference };
                let memory = model.encode(&Sequences::padded(sources, model.vocabulary().source_padding), &mode)?;
                Progress::Plain(decoder, decoder.begin(&memory)?)
            }
        };
        Ok(NeuralStep { model: self, state, sentences: sources.len() })
    }
}

/// A batch of encoded sentences being decoded.
#[derive(Debug)]
pub struct NeuralStep<'a> {
    model: &'a Neural,
    state: Progress<'a>,
    sentences: usize,
}

#[derive(Debug)]
enum Progress<'a> {
    Engine(Session<'a>),
    Device(gpu::decode::Session<'a>),
    Plain(&'a Decoder, State),
}

impl NeuralStep<'_> {
    /// Runs the model on rows. `answer` gets a row's number, its logits, the tokens they are for (`None`: the whole
    /// vocabulary) and the row's part of `answers`, which it fills.
    fn run<T: Send>(
        &mut self,
        rows: &Rows<'_>,
        answers: &mut [T],
        answer: impl Fn(usize, &mut [f32], Option<&[u32]>, &mut [T]) + Sync,
    ) -> Result<()> {
        let Rows { tokens, parents, sentences, .. } = *rows;
        let mut logits = match &mut self.state {
            Progress::Engine(session) => {
                session.step(tokens, parents, sentences, answers, answer);
                return Ok(());
            }
            Progress::Device(session) => session.logits(&Step { tokens, parents, sentences })?,
            Progress::Plain(decoder, state) => decoder.step(state, tokens, parents, sentences)?,
        };
        let per_row = answers.len() / rows.len();
        let rows = logits.par_chunks_mut(self.model.vocabulary).zip(answers.par_chunks_mut(per_row));
        rows.enumerate().for_each(|(row, (logits, answers))| answer(row, logits, None, answers));
        Ok(())
    }

    /// Prepares for a step: the first one begins a search. Fails if the rows are past the model's last position.
    fn prepare(&mut self, rows: &Rows<'_>) -> Result<()> {
        if rows.position == 0 {
            match &mut self.state {
                Progress::Engine(session) => session.restart(),
                Progress::Device(session) => session.restart(),
                Progress::Plain(_, state) => state.restart(),
            }
        }
        if rows.position < self.model.max_positions {
            return Ok(());
        }
        let positions = self.model.max_positions;
        Err(Error::failure(format!(
            "a target has more tokens than the model has positions (model.max_length = {positions})"
        ))
        .help("split the line, or allow a translation fewer tokens"))
    }
}

impl StepModel for NeuralStep<'_> {
    fn sentences(&self) -> usize {
        self.sentences
    }

    fn start_token(&self) -> u32 {
        self.model.special.start
    }

    fn end_token(&self) -> u32 {
        self.model.special.end
    }

    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        let forbidden = &self.model.special.forbidden;
        self.prepare(rows)?;
        if let Progress::Device(session) = &mut self.state {
            let Rows { tokens, parents, sentences, .. } = *rows;
            let (tokens, log_probs) =
                session.best(&Step { tokens, parents, sentences }, &excluded(rows, forbidden), k)?;
            for ((best, token), log_prob) in best.iter_mut().zip(tokens).zip(log_probs) {
                *best = Continuation { token, log_prob };
            }
            return Ok(());
        }
        self.run(rows, best, |row, logits, tokens, best| {
            best_continuations(logits, log_sum_exp(logits), tokens, forbidden, rows.constraint(row), best);
        })
    }

    fn log_probs(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        self.prepare(rows)?;
        log_probs.resize(rows.len() * self.model.vocabulary, 0.0);
        self.run(rows, log_probs, |_, logits, tokens, log_probs| {
            let log_sum = log_sum_exp(logits);
            match tokens {
                None => log_probs.iter_mut().zip(logits).for_each(|(log_prob, logit)| *log_prob = *logit - log_sum),
                Some(tokens) => {
                    log_probs.fill(f32::NEG_INFINITY);
                    tokens.iter().zip(logits).for_each(|(&token, logit)| log_probs[token as usize] = *logit - log_sum);
                }
            }
        })
    }

    fn forbidden(&self) -> &[u32] {
        &self.model.special.forbidden
    }

    fn languages(&self) -> &[u32] {
        &self.model.special.languages
    }
}

/// The constraints of rows, for a device.
fn excluded(rows: &Rows<'_>, forbidden: &[u32]) -> Excluded {
    let mut excluded = Excluded { always: forbidden.to_vec(), starts: vec![0], ..Excluded::default() };
    for row in 0..rows.len() {
        let constraint = rows.constraint(row);
        excluded.forced.push(constraint.forced.unwrap_or(Exclusions::NO_TOKEN));
        excluded.tokens.extend_from_slice(&constraint.forbidden);
        excluded.starts.push(excluded.tokens.len() as u32);
    }
    excluded
}

vectorised! {
    fn any_above(values: &[f32], threshold: f32) -> bool {
        // No early exit: it would prevent vectorisation.
        let mut any = false;
        for value in values {
            any |= *value > threshold;
        }
        any
    }
}

/// The index of a token in a row of values for `tokens` (ascending), or for the whole vocabulary.
fn index(tokens: Option<&[u32]>, token: u32) -> Option<usize> {
    tokens.map_or(Some(token as usize), |tokens| tokens.binary_search(&token).ok())
}

fn forbid(row: &mut [f32], tokens: Option<&[u32]>, forbidden: &[u32]) {
    for index in forbidden.iter().filter_map(|&token| index(tokens, token)) {
        if let Some(value) = row.get_mut(index) {
            *value = f32::NEG_INFINITY;
        }
    }
}

/// The best continuations of one row of logits, by falling log-probability, the smaller token first among equals. The
/// logits are those of `tokens` (ascending) or of all; `log_sum` is the logarithm of their summed exponentials.
pub(super) fn best_continuations(
    logits: &mut [f32],
    log_sum: f32,
    tokens: Option<&[u32]>,
    forbidden: &[u32],
    constraint: &Constraint,
    best: &mut [Continuation],
) {
    if !log_sum.is_finite() {
        // Not a number: the search turns this into an error.
        best[0] = Continuation { token: 0, log_prob: f32::NAN };
        return;
    }
    if let Some(token) = constraint.forced {
        if let Some(logit) = index(tokens, token).and_then(|index| logits.get(index)) {
            best[0] = Continuation { token, log_prob: logit - log_sum };
        }
        return;
    }
    forbid(logits, tokens, forbidden);
    forbid(logits, tokens, &constraint.forbidden);
    for continuation in largest(logits, best) {
        continuation.log_prob -= log_sum;
        if let Some(tokens) = tokens {
            continuation.token = tokens[continuation.token as usize];
        }
    }
}

/// Writes the largest logits above -∞ and their indices to `best`, the largest first, the smaller index first among
/// equals. Returns the filled part of `best`.
pub(super) fn largest<'a>(logits: &[f32], best: &'a mut [Continuation]) -> &'a mut [Continuation] {
    /// Logits tested together: most blocks have none above the threshold.
    const BLOCK: usize = 64;
    let mut filled = 0;
    let mut threshold = f32::NEG_INFINITY;
    for (block, first) in logits.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        if !any_above(block, threshold) {
            continue;
        }
        for (token, &logit) in (first..).zip(block) {
            // Strictly greater: among equals the earlier token stays first.
            if logit > threshold {
                insert(best, filled, Continuation { token, log_prob: logit });
                filled = (filled + 1).min(best.len());
                if filled == best.len() {
                    threshold = best[filled - 1].log_prob;
                }
            }
        }
    }
    &mut best[..filled]
}

/// Inserts a continuation among the first `filled`, after equal ones; if `best` is full, the last one is lost.
fn insert(best: &mut [Continuation], filled: usize, new: Continuation) {
    let mut rank = filled.min(best.len() - 1);
    while rank > 0 && best[rank - 1].log_prob < new.log_prob {
        best[rank] = best[rank - 1];
        rank -= 1;
    }
    best[rank] = new;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best_of(logits: &mut [f32], forbidden: &[u32], constraint: &Constraint, best: &mut [Continuation]) {
        best_continuations(logits, log_sum_exp(logits), None, forbidden, constraint, best);
    }

    /// A damaged model must not look like one for which no token is possible.
    #[test]
    fn nan_is_an_error() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut best = vec![Continuation::IMPOSSIBLE; 2];
            best_of(&mut [0.0, bad, 1.0], &[], &Constraint::NONE, &mut best);
            assert!(best[0].log_prob().is_err());
        }
    }

    #[test]
    fn continuations_of_some_tokens() {
        let tokens = [3, 5, 8, 9];
        let run = |constraint: Constraint| {
            let (mut logits, mut best) = (vec![1.0, 3.0, 2.0, 4.0], vec![Continuation::IMPOSSIBLE; 3]);
            best_continuations(&mut logits, 0.0, Some(&tokens), &[9], &constraint, &mut best);
            best.iter().map(|best| (best.token, best.log_prob)).collect::<Vec<_>>()
        };
        assert_eq!(run(Constraint::NONE), [(5, 3.0), (8, 2.0), (3, 1.0)]);
        let without = Constraint { forbidden: vec![4, 8], ..Constraint::NONE };
        assert_eq!(run(without)[..2], [(5, 3.0), (3, 1.0)]);
        assert_eq!(run(Constraint { forced: Some(8), ..Constraint::NONE })[0], (8, 2.0));
        assert_eq!(run(Constraint { forced: Some(4), ..Constraint::NONE })[0].1, f32::NEG_INFINITY);
    }

    #[test]
    fn finds_the_best_in_order() {
        let mut logits = vec![0.0, 3.0, 1.0, 3.0, 2.0, 9.0];
        let mut best = vec![Continuation::IMPOSSIBLE; 4];
        best_of(&mut logits, &[5], &Constraint::NONE, &mut best);
        assert_eq!(best.iter().map(|b| b.token).collect::<Vec<_>>(), [1, 3, 4, 2]);
        let total: f64 = [0.0f64, 3.0, 1.0, 3.0, 2.0, 9.0].iter().map(|x| x.exp()).sum();
        assert!((best[0].log_prob as f64 - (3.0 - total.ln())).abs() < 1e-6);
    }

    #[test]
    fn constraints_change_no_log_probability() {
        let logits = [0.0, 3.0, 1.0, 3.0, 2.0, 9.0];
        let best = |constraint: Constraint| {
            let mut best = vec![Continuation::IMPOSSIBLE; 6];
            best_of(&mut logits.clone(), &[5], &constraint, &mut best);
            best
        };
        let all = best(Constraint::NONE);
        let some = best(Constraint { forbidden: vec![1, 2, 1], ..Constraint::NONE });
        assert_eq!(some[..3], [all[1], all[2], all[4]]);
        assert_eq!(some[3], Continuation::IMPOSSIBLE);
        let forced = best(Constraint { forced: Some(2), forbidden: vec![2], ..Constraint::NONE });
        assert_eq!((forced[0], forced[1]), (all[3], Continuation::IMPOSSIBLE));
    }

    #[test]
    fn fewer_tokens_than_asked_leaves_the_rest_impossible() {
        let mut logits = vec![1.0, 2.0];
        let mut best = vec![Continuation::IMPOSSIBLE; 3];
        best_of(&mut logits, &[0], &Constraint::NONE, &mut best);
        assert_eq!(best[0].token, 1);
        assert_eq!(best[1], Continuation::IMPOSSIBLE);
    }
}
