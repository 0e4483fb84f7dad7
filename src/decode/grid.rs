//! Grid beam search (Hokamp and Liu 2017, "Lexically Constrained Decoding for Sequence Generation Using Grid Beam
//! Search"): beam search for hypotheses that contain given phrases.
//!
//! A sentence has a beam for each number of the phrases' tokens that a hypothesis may have, from none to all
//! ([`Phrases::tokens_found`]). At each step, every live hypothesis is continued by its most probable tokens, and by
//! tokens that begin or continue a phrase. Each continuation goes to the beam for its number of phrase tokens, and the
//! most probable of each beam stay live. So hypotheses compete only with equally advanced ones: more probable ones
//! without a phrase cannot crowd out one that has it. Only hypotheses with all phrases may end. From the most advanced
//! beam with hypotheses, some can always advance, so if there is room for all phrase tokens, the search finds a
//! hypothesis with all phrases.
//!
//! With patience, a sentence stops once enough have ended, and no live hypothesis has a better score, at its present
//! length, than the worst that is kept: where phrases come early, what ends first is seldom the best. Everything else
//! is as in [`super::beam`], which a sentence without phrases equals.

use std::cmp::Ordering;
use std::sync::Arc;

use super::history::{Finished, History, Node};
use super::neural::largest;
use super::phrases::{Phrases, Progress};
use super::{Constraint, Continuation, Ending, Hypothesis, SearchOptions, StepModel, StepRows, not_a_number};
use crate::error::Result;

/// The most live hypotheses of a sentence: with very many phrases, its beams become narrower than requested.
const MOST_ROWS: usize = 512;

/// How many hypotheses each beam of a sentence holds.
fn width_of_each(width: usize, phrases: &Phrases) -> usize {
    width.min(MOST_ROWS / (phrases.tokens() + 1)).max(1)
}

/// The most live hypotheses of a sentence with these phrases.
pub(super) fn rows(width: usize, phrases: &Phrases) -> usize {
    width_of_each(width, phrases) * (phrases.tokens() + 1)
}

/// Searches all sentences, each with as many hypotheses as `width` at the end.
pub(super) fn search(model: &mut dyn StepModel, options: &SearchOptions, width: usize) -> Result<Vec<Vec<Hypothesis>>> {
    let end = model.end_token();
    let mut history = History::new(model.start_token());
    let none = Arc::new(Phrases::new([], &Arc::default()));
    let mut grids: Vec<Grid> =
        (0..options.sentences.len()).map(|sentence| Grid::new(sentence, options, width, &none)).collect();
    let mut batch = StepRows::default();
    let mut position = 0;
    loop {
        batch.clear();
        for grid in &mut grids {
            grid.push_rows(&history, position, end, &mut batch);
        }
        if batch.len() == 0 {
            break;
        }
        batch.whole(position, |rows, log_probs| model.distributions(rows, log_probs))?;
        position += 1;
        let vocabulary = batch.log_probs.len() / batch.len();
        for grid in &mut grids {
            grid.advance(&mut batch, vocabulary, position, end, &mut history)?;
        }
    }
    let hypotheses = |grid: Grid| {
        let mut all = Vec::new();
        grid.finished.hypotheses_into(&history, &mut all);
        all
    };
    Ok(grids.into_iter().map(hypotheses).collect())
}

/// A hypothesis that can still be extended.
struct Live {
    node: usize,
    /// The row of the previous step that it continues.
    parent_row: usize,
    log_prob: f64,
    progress: Progress,
}

/// A continuation of a live hypothesis.
struct Candidate {
    row: usize,
    token: u32,
    /// The log-probability of the token alone.
    step: f32,
    /// The log-probability of the whole hypothesis, this token included.
    log_prob: f64,
    /// `None` for one that ends.
    progress: Option<Progress>,
}

impl Candidate {
    /// The most probable first. No two of a beam are equal, so the order is total and does not depend on the rest of
    /// the batch.
    fn order(&self, other: &Self) -> Ordering {
        other.log_prob.total_cmp(&self.log_prob).then(self.row.cmp(&other.row)).then(self.token.cmp(&other.token))
    }
}

/// The state of a sentence.
struct Grid<'a> {
    options: &'a SearchOptions,
    sentence: usize,
    phrases: Arc<Phrases>,
    /// Of each beam.
    width: usize,
    /// Hypotheses that end the search, with patience.
    enough: usize,
    max_length: usize,
    /// A beam for each number of tokens, each with the most probable first; their rows in the batch are in this order,
    /// from `first_row` on.
    beams: Vec<Vec<Live>>,
    first_row: usize,
    finished: Finished,
}

impl<'a> Grid<'a> {
    fn new(sentence: usize, options: &'a SearchOptions, width: usize, none: &Arc<Phrases>) -> Self {
        let of_sentence = &options.sentences[sentence];
        let phrases = of_sentence.demands.must.as_ref().unwrap_or(none).clone();
        let mut beams: Vec<Vec<Live>> = (0..=phrases.tokens()).map(|_| Vec::new()).collect();
        beams[0].push(Live { node: History::ROOT, parent_row: sentence, log_prob: 0.0, progress: phrases.start() });
        let enough = options.patience * width as f64;
        let mut grid = Self {
            options,
            sentence,
            width: width_of_each(width, &phrases),
            phrases,
            enough: if enough == 0.0 { usize::MAX } else { enough.ceil() as usize },
            max_length: of_sentence.max_length,
            beams,
            first_row: 0,
            finished: Finished::new(options.length_penalty, width),
        };
        if grid.max_length == 0 {
            grid.cut(0, Ending::MaxLength);
        }
        grid
    }

    fn live(&self) -> impl Iterator<Item = &Live> {
        self.beams.iter().flatten()
    }

    fn push_rows(&mut self, history: &History, length: usize, end: u32, batch: &mut StepRows) {
        self.first_row = batch.len();
        for live in self.live() {
            let tokens = || history.tokens(live.node);
            let constraint = self.options.constraint(self.sentence, length, end, tokens);
            batch.push(history.token(live.node), live.parent_row, self.sentence, constraint);
        }
    }

    /// Takes one step, after which the live hypotheses have `length` tokens. The batch holds the distributions of all
    /// rows.
    fn advance(
        &mut self,
        batch: &mut StepRows,
        vocabulary: usize,
        length: usize,
        end: u32,
        history: &mut History,
    ) -> Result<()> {
        if self.live().next().is_none() {
            return Ok(());
        }
        let candidates = self.candidates(batch, vocabulary, end)?;
        if candidates.iter().all(Vec::is_empty) && self.finished.is_empty() {
            // Nothing can follow and nothing is kept: the live hypotheses are the result.
            self.cut(length - 1, Ending::Stuck);
            return Ok(());
        }
        let before: Vec<usize> = self.live().map(|live| live.node).collect();
        for (beam, mut candidates) in self.beams.iter_mut().zip(candidates) {
            candidates.sort_unstable_by(Candidate::order);
            beam.clear();
            for (rank, candidate) in candidates.into_iter().enumerate() {
                if beam.len() == self.width {
                    break;
                }
                let Candidate { row, token, step, log_prob, progress } = candidate;
                let before = before[row - self.first_row];
                match progress {
                    Some(progress) => {
                        let node = history.push(Node { token, log_prob: step, before });
                        beam.push(Live { node, parent_row: row, log_prob, progress });
                    }
                    None if rank < self.width => self.finished.end(before, step, log_prob, length),
                    None => {}
                }
            }
        }
        if length >= self.max_length {
            self.cut(length, Ending::MaxLength);
        } else if self.finished.ended >= self.enough && !self.is_worth_waiting(length) {
            self.beams.iter_mut().for_each(Vec::clear);
        }
        let (finished, longest) = (&self.finished, self.max_length);
        if self.options.patience == 0.0 {
            let can_improve = |live: &Live| finished.can_improve(live.log_prob, length, longest);
            self.beams.iter_mut().for_each(|beam| beam.retain(can_improve));
        } else if !self.live().any(|live| finished.can_improve(live.log_prob, length, longest)) {
            self.beams.iter_mut().for_each(Vec::clear);
        }
        Ok(())
    }

    /// The continuations of the live hypotheses, for each beam: enough to fill it, if so many exist.
    fn candidates(&self, batch: &mut StepRows, vocabulary: usize, end: u32) -> Result<Vec<Vec<Candidate>>> {
        let mut candidates: Vec<Vec<Candidate>> = self.beams.iter().map(|_| Vec::new()).collect();
        let StepRows { constraints, log_probs, .. } = batch;
        let rows = log_probs.chunks_exact_mut(vocabulary).zip(constraints.iter()).enumerate().skip(self.first_row);
        for (live, (row, (log_probs, constraint))) in self.live().zip(rows) {
            for continuation in self.continuations(live, constraint, log_probs)? {
                let Some(step) = continuation.log_prob()? else { continue };
                let (token, log_prob) = (continuation.token, live.log_prob + step);
                let (beam, progress) = match token == end {
                    true if !self.phrases.are_found(&live.progress) => continue,
                    true => (self.phrases.tokens(), None),
                    false => {
                        let progress = self.phrases.after(&live.progress, token);
                        (self.phrases.tokens_found(&progress), Some(progress))
                    }
                };
                candidates[beam].push(Candidate { row, token, step: step as f32, log_prob, progress });
            }
        }
        Ok(candidates)
    }

    /// The continuations of a row: tokens that begin or continue a phrase, the best of all others, as many as a beam
    /// holds, and the end. The others all go to the same beam, except those that turn a phrase just found into another
    /// word: these are ranked separately.
    fn continuations(&self, live: &Live, constraint: &Constraint, log_probs: &mut [f32]) -> Result<Vec<Continuation>> {
        if log_probs.iter().any(|log_prob| log_prob.is_nan()) {
            return Err(not_a_number());
        }
        let of = |token: u32, log_probs: &[f32]| {
            let log_prob = log_probs.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            Continuation { token, log_prob }
        };
        if let Some(token) = constraint.forced {
            return Ok(vec![of(token, log_probs)]);
        }
        let mut take = |token: u32| {
            let continuation = of(token, log_probs);
            if let Some(log_prob) = log_probs.get_mut(token as usize) {
                *log_prob = f32::NEG_INFINITY;
            }
            continuation
        };
        // A token with which more of the phrases is found may repeat an n-gram: a phrase may repeat one itself.
        let found = |progress: &Progress| self.phrases.tokens_found(progress);
        let finds_more = |token: u32| found(&self.phrases.after(&live.progress, token)) > found(&live.progress);
        let may_follow =
            |token: &u32| constraint.allows(*token) || (constraint.allows_demanded(*token) && finds_more(*token));
        let next = self.phrases.next(&live.progress).into_iter().filter(may_follow);
        let mut all: Vec<Continuation> = next.map(&mut take).collect();
        constraint.forbidden.iter().for_each(|&token| {
            take(token);
        });
        let mut best = vec![Continuation::IMPOSSIBLE; self.width + 1];
        if let Some(last) = self.phrases.may_be_lost(&live.progress) {
            let goes_on = |token: usize| self.phrases.surfaces().joins(last, token as u32);
            let lost = log_probs.iter_mut().enumerate().map(|(token, log_prob)| match goes_on(token) {
                true => std::mem::replace(log_prob, f32::NEG_INFINITY),
                false => f32::NEG_INFINITY,
            });
            all.extend_from_slice(largest(&lost.collect::<Vec<f32>>(), &mut best));
        }
        all.extend_from_slice(largest(log_probs, &mut best));
        Ok(all)
    }

    /// Whether there are phrases, and a live hypothesis of `length` tokens is better so far than the worst that is
    /// kept.
    fn is_worth_waiting(&self, length: usize) -> bool {
        let Some(worst) = self.finished.worst().filter(|_| self.phrases.tokens() > 0) else { return false };
        let penalty = self.options.length_penalty;
        self.live().any(|live| penalty.score(live.log_prob, length) > worst)
    }

    /// Finishes the live hypotheses with all phrases. If there are none, and none has ended before, those with the most
    /// phrases. They have `length` tokens.
    fn cut(&mut self, length: usize, ending: Ending) {
        let mut beams = std::mem::take(&mut self.beams).into_iter().rev();
        let full = beams.next().unwrap_or_default();
        let most = match full.is_empty() && self.finished.is_empty() {
            true => beams.find(|beam| !beam.is_empty()).unwrap_or_default(),
            false => full,
        };
        for Live { node, log_prob, .. } in most {
            self.finished.cut(node, log_prob, length, ending);
        }
    }
}
