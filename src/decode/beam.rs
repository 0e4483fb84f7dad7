//! Batched beam search with a length penalty and an exact stopping rule, in one group or in several diverse ones.
//!
//! At each step, all continuations of a group's live hypotheses are ranked by the sum of their log-probabilities, minus
//! a penalty for tokens that earlier groups took at this step. From the top down, those that end become finished, if
//! they are among the first `W`, and the others stay live, until `W` are live: finished ones take no room in the beam.
//! Of the finished hypotheses, the `W` with the best scores are kept. At the maximum length, live hypotheses are cut
//! and compete with them on equal terms.
//!
//! A group stops when `patience · W` hypotheses have finished (Kasai et al. 2022, "Beam Decoding with Controlled
//! Patience"; with a patience of 1 this is the rule of fairseq, Marian and CTranslate2), or goes on until nothing can
//! become better (a patience of 0). In either case it stops earlier if that cannot change the result. Once `W`
//! hypotheses are kept, a live one is hopeless if it cannot replace the worst of them, even with probability 1 for all
//! its further tokens and an end at the most favourable length. A single group with a patience of 0 drops hopeless
//! hypotheses at once. This is exact: all live hypotheses of a step are equally long, so whatever replaces a dropped
//! one is less probable than it, and hopeless too. In other searches a hopeless hypothesis still matters, because it
//! may finish or take tokens from other groups: then all go on until all are hopeless.

use std::cmp::Ordering;

use super::history::{Finished, History, Node};
use super::{Continuation, Ending, Hypothesis, LengthPenalty, SearchOptions, StepModel, StepRows};
use crate::error::Result;

/// How the beam of a sentence is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Most live hypotheses of a group: `W`.
    pub width: usize,
    /// Log-probability subtracted from a continuation for each earlier group's hypothesis that took its token at this
    /// step.
    pub penalty: f64,
}

/// Searches all sentences. Rows of dropped hypotheses and finished sentences leave the batch at once.
pub(super) fn search(
    model: &mut dyn StepModel,
    options: &SearchOptions,
    groups: Groups,
) -> Result<Vec<Vec<Hypothesis>>> {
    let (sentences, history) = run(model, options, groups, || Finished::new(options.length_penalty, groups.width))?;
    Ok(sentences.into_iter().map(|beams| hypotheses(beams, &history)).collect())
}

/// The best hypothesis of each sentence by each of these length penalties: what [`search`] puts first with this penalty
/// alone. The penalty decides neither which hypotheses are extended nor which finish, only when no further one matters.
pub(super) fn best_by_each(
    model: &mut dyn StepModel,
    options: &SearchOptions,
    width: usize,
    penalties: &[LengthPenalty],
) -> Result<Vec<Vec<Hypothesis>>> {
    let groups = Groups { count: 1, width, penalty: 0.0 };
    let (sentences, history) = run(model, options, groups, || Finished::best_by_each(penalties))?;
    let best = |beams: Vec<Beam>| beams.into_iter().flat_map(|beam| beam.finished.hypotheses(&history)).collect();
    Ok(sentences.into_iter().map(best).collect())
}

/// The groups of each sentence after the search; `finished` makes what each keeps its hypotheses in.
fn run<'a>(
    model: &mut dyn StepModel,
    options: &'a SearchOptions,
    groups: Groups,
    finished: impl Fn() -> Finished,
) -> Result<(Vec<Vec<Beam<'a>>>, History)> {
    let mut search = Search::new(model, options, groups);
    let beams = |sentence| (0..groups.count).map(|_| Beam::new(sentence, options, groups.width, finished())).collect();
    let mut sentences: Vec<Vec<Beam>> = (0..options.sentences.len()).map(beams).collect();
    let mut batch = StepRows::default();
    let mut position = 0;
    loop {
        batch.clear();
        for beam in sentences.iter_mut().flatten() {
            beam.push_rows(&search.history, position, search.end, &mut batch);
        }
        if batch.len() == 0 {
            break;
        }
        let best = batch.step(model, position, search.k)?;
        position += 1;
        for beams in &mut sentences {
            search.advance(beams, best, position)?;
        }
    }
    Ok((sentences, search.history))
}

/// What the sentences of a search share.
struct Search {
    groups: Groups,
    /// Continuations asked for each row.
    k: usize,
    end: u32,
    /// Whether groups go on until nothing can become better.
    is_exhaustive: bool,
    /// A group stops when it has this many finished hypotheses.
    enough: usize,
    history: History,
    /// Used again at every step.
    candidates: Vec<Candidate>,
    taken: Vec<u32>,
}

impl Search {
    fn new(model: &dyn StepModel, options: &SearchOptions, groups: Groups) -> Self {
        let is_exhaustive = options.patience == 0.0;
        Self {
            groups,
            // Enough for each row: a group needs at most W continuations of it that neither end nor use a token of an
            // earlier group. Those groups take at most W (count - 1) tokens, and one continuation ends.
            k: groups.width * groups.count + 1,
            end: model.end_token(),
            is_exhaustive,
            enough: if is_exhaustive { usize::MAX } else { (options.patience * groups.width as f64).ceil() as usize },
            history: History::new(model.start_token()),
            candidates: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Takes one step with the groups of a sentence, after which their live hypotheses have `length` tokens. `best` are
    /// the continuations of all rows of the batch.
    fn advance(&mut self, beams: &mut [Beam], best: &[Continuation], length: usize) -> Result<()> {
        self.taken.clear();
        for beam in beams.iter_mut().filter(|beam| !beam.live.is_empty()) {
            beam.rank(best, self.k, &self.taken, self.groups.penalty, &mut self.candidates)?;
            beam.advance(&self.candidates, length, self.end, &mut self.history);
            self.taken.extend(beam.live.iter().map(|live| self.history.token(live.node)));
            // The maximum length is checked first: hypotheses cut there compete with those that end there.
            if length >= beam.max_length {
                beam.cut(length, Ending::MaxLength);
            } else if beam.finished.ended >= self.enough {
                beam.live.clear();
            }
        }
        match beams {
            [beam] if self.is_exhaustive => beam.drop_hopeless(length),
            beams if beams.iter().all(|beam| beam.is_hopeless(length)) => {
                beams.iter_mut().for_each(|beam| beam.live.clear());
            }
            _ => {}
        }
        Ok(())
    }
}

/// The hypotheses that the groups of a sentence kept, without duplicates, the best score first.
fn hypotheses(beams: Vec<Beam>, history: &History) -> Vec<Hypothesis> {
    let mut all: Vec<Hypothesis> = Vec::new();
    beams.into_iter().for_each(|beam| beam.finished.hypotheses_into(history, &mut all));
    // Stable: among equal scores, the one from the earlier group or set aside earlier comes first.
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all
}

/// A hypothesis that can still be extended.
struct Live {
    node: usize,
    /// The row of the previous step that it continues.
    parent_row: usize,
    log_prob: f64,
}

/// A continuation of a live hypothesis.
struct Candidate {
    /// The index of the live hypothesis of the group that it continues.
    rank: usize,
    token: u32,
    /// The log-probability of the token alone.
    step: f32,
    /// The log-probability of the whole hypothesis, this token included.
    log_prob: f64,
    /// `log_prob` minus the penalty for tokens of earlier groups.
    rating: f64,
}

impl Candidate {
    /// The best rating first; no two candidates of a group are equal, so the order is total and does not depend on the
    /// rest of the batch.
    fn order(&self, other: &Self) -> Ordering {
        other.rating.total_cmp(&self.rating).then(self.rank.cmp(&other.rank)).then(self.token.cmp(&other.token))
    }
}

/// The state of one group of a sentence.
struct Beam<'a> {
    options: &'a SearchOptions,
    sentence: usize,
    width: usize,
    max_length: usize,
    /// The most probable first; their rows in the batch are in this order, from `first_row` on.
    live: Vec<Live>,
    /// Filled at each step and exchanged with `live`.
    next: Vec<Live>,
    first_row: usize,
    finished: Finished,
}

impl<'a> Beam<'a> {
    fn new(sentence: usize, options: &'a SearchOptions, width: usize, finished: Finished) -> Self {
        let mut beam = Self {
            options,
            sentence,
            width,
            max_length: options.sentences[sentence].max_length,
            live: vec![Live { node: History::ROOT, parent_row: sentence, log_prob: 0.0 }],
            next: Vec::with_capacity(width),
            first_row: 0,
            finished,
        };
        if beam.max_length == 0 {
            beam.cut(0, Ending::MaxLength);
        }
        beam
    }

    fn push_rows(&mut self, history: &History, length: usize, end: u32, batch: &mut StepRows) {
        self.first_row = batch.len();
        for live in &self.live {
            let tokens = || history.tokens(live.node);
            let constraint = self.options.constraint(self.sentence, length, end, tokens);
            batch.push(history.token(live.node), live.parent_row, self.sentence, constraint);
        }
    }

    /// Collects the best continuations of the live hypotheses, the best rating first, until `width` of them do not end,
    /// if so many exist. `best` holds `k` continuations for each row of the whole batch; `taken` are the tokens of
    /// earlier groups, each with the penalty `price`.
    fn rank(
        &self,
        best: &[Continuation],
        k: usize,
        taken: &[u32],
        price: f64,
        candidates: &mut Vec<Candidate>,
    ) -> Result<()> {
        candidates.clear();
        let rows = best.chunks_exact(k).skip(self.first_row);
        for (rank, (live, row)) in self.live.iter().zip(rows).enumerate() {
            for continuation in row {
                let Some(log_prob) = continuation.log_prob()? else { break };
                let (token, step) = (continuation.token, log_prob as f32);
                let log_prob = live.log_prob + log_prob;
                let times = taken.iter().filter(|&&other| other == token).count();
                candidates.push(Candidate { rank, token, step, log_prob, rating: log_prob - price * times as f64 });
            }
        }
        // At most one end for each of at most `width` rows.
        let enough = 2 * self.width;
        if candidates.len() > enough {
            candidates.select_nth_unstable_by(enough, Candidate::order);
            candidates.truncate(enough);
        }
        candidates.sort_unstable_by(Candidate::order);
        Ok(())
    }

    /// Takes one step: `candidates`, in order, have `length` tokens each.
    fn advance(&mut self, candidates: &[Candidate], length: usize, end: u32, history: &mut History) {
        if candidates.is_empty() && self.finished.is_empty() {
            // Nothing can follow and nothing is kept: the live hypotheses are the result.
            return self.cut(length - 1, Ending::Stuck);
        }
        self.next.clear();
        for (position, candidate) in candidates.iter().enumerate() {
            if self.next.len() == self.width {
                break;
            }
            let Candidate { rank, token, step, log_prob, .. } = *candidate;
            let before = self.live[rank].node;
            if token == end {
                if position < self.width {
                    self.finished.end(before, step, log_prob, length);
                }
            } else {
                let node = history.push(Node { token, log_prob: step, before });
                self.next.push(Live { node, parent_row: self.first_row + rank, log_prob });
            }
        }
        std::mem::swap(&mut self.live, &mut self.next);
    }

    /// Sets all live hypotheses aside; they have `length` tokens.
    fn cut(&mut self, length: usize, ending: Ending) {
        for Live { node, log_prob, .. } in std::mem::take(&mut self.live) {
            self.finished.cut(node, log_prob, length, ending);
        }
    }

    /// Drops the live hypotheses of `length` tokens that can never displace a kept one.
    fn drop_hopeless(&mut self, length: usize) {
        self.live.retain(|live| self.finished.can_improve(live.log_prob, length, self.max_length));
    }

    /// Whether no live hypothesis of `length` tokens can displace a kept one.
    fn is_hopeless(&self, length: usize) -> bool {
        !self.live.iter().any(|live| self.finished.can_improve(live.log_prob, length, self.max_length))
    }
}
