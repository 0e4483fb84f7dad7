//! Batched beam search with a length penalty and an exact stopping rule.
//!
//! At each step, all continuations of a sentence's live hypotheses are ranked by the sum of their log-probabilities.
//! From the top down, those that end are set aside as finished and the others stay live, until `W` are live: ends take
//! no place in the beam. Of the hypotheses set aside the `W` best by score are kept. At the maximum length, what is live
//! is cut and joins them on equal terms.
//!
//! Once `W` hypotheses are kept, a live one is dropped as soon as it could not displace the worst of them even if
//! everything to come had probability 1 and the most favourable length. This is exact: all live hypotheses of a step are
//! equally long, so whatever takes the place of a dropped one's continuations is less probable than it was, and hopeless
//! too. A sentence is done when nothing is live.

use std::cmp::Ordering;

use super::{Batch, Continuation, Hypothesis, SearchOptions, StepModel, penalty};
use crate::error::Result;

/// Beam search with `W = options.beam`. Rows of dropped hypotheses and finished sentences leave the batch at once.
pub(super) fn search(model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
    let end = model.end_token();
    // Enough for each row: what stays live is among the W best that do not end, and a row has one end.
    let k = options.beam + 1;
    let mut history = History::new(model.start_token());
    let mut beams: Vec<Beam> = (0..options.max_lengths.len()).map(|sentence| Beam::new(sentence, options)).collect();
    let mut candidates = Vec::new();
    let mut batch = Batch::default();
    let mut position = 0;
    loop {
        batch.clear();
        beams.iter_mut().for_each(|beam| beam.push_rows(&history, &mut batch));
        if batch.len() == 0 {
            break;
        }
        let best = batch.step(model, position, k)?;
        position += 1;
        for beam in beams.iter_mut().filter(|beam| !beam.live.is_empty()) {
            beam.rank(best, k, &mut candidates)?;
            beam.advance(&candidates, position, end, &mut history);
        }
    }
    Ok(beams.into_iter().map(|beam| beam.into_hypotheses(&history)).collect())
}

/// The tokens of all hypotheses as a tree of back-pointers, so that extending one copies nothing.
struct History {
    /// The token of each node and the node before it; the first node is the root, which holds the start token.
    nodes: Vec<(u32, usize)>,
}

impl History {
    const ROOT: usize = 0;

    fn new(start: u32) -> Self {
        Self { nodes: vec![(start, Self::ROOT)] }
    }

    fn push(&mut self, token: u32, parent: usize) -> usize {
        self.nodes.push((token, parent));
        self.nodes.len() - 1
    }

    /// The tokens from the root, which is left out, to `node`.
    fn tokens(&self, mut node: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        while node != Self::ROOT {
            let (token, parent) = self.nodes[node];
            tokens.push(token);
            node = parent;
        }
        tokens.reverse();
        tokens
    }
}

/// A hypothesis that is still being extended.
struct Live {
    node: usize,
    /// The row of the previous step that it continues.
    parent_row: usize,
    log_prob: f64,
}

/// A continuation of a live hypothesis.
struct Candidate {
    /// Which live hypothesis of the sentence it continues.
    rank: usize,
    token: u32,
    /// Of the whole hypothesis, this token included.
    log_prob: f64,
}

impl Candidate {
    /// The most probable first; no two candidates of a sentence are equal, so the order is total and does not depend
    /// on the rest of the batch.
    fn order(&self, other: &Self) -> Ordering {
        other.log_prob.total_cmp(&self.log_prob).then(self.rank.cmp(&other.rank)).then(self.token.cmp(&other.token))
    }
}

/// A hypothesis set aside, ended or cut.
struct Kept {
    /// The last token, the end token left out.
    node: usize,
    log_prob: f64,
    score: f64,
    finished: bool,
}

/// The state of one sentence.
struct Beam {
    sentence: usize,
    width: usize,
    alpha: f64,
    max_length: usize,
    /// The most probable first; its rows in the batch stand in this order, from `first_row` on.
    live: Vec<Live>,
    /// Filled at each step and exchanged with `live`.
    next: Vec<Live>,
    first_row: usize,
    /// At most `width`, the best score first, of equal scores the one set aside first.
    kept: Vec<Kept>,
}

impl Beam {
    fn new(sentence: usize, options: &SearchOptions) -> Self {
        let mut beam = Self {
            sentence,
            width: options.beam,
            alpha: options.length_penalty,
            max_length: options.max_lengths[sentence],
            live: vec![Live { node: History::ROOT, parent_row: sentence, log_prob: 0.0 }],
            next: Vec::with_capacity(options.beam),
            first_row: 0,
            kept: Vec::with_capacity(options.beam + 1),
        };
        if beam.max_length == 0 {
            beam.cut(0);
        }
        beam
    }

    fn push_rows(&mut self, history: &History, batch: &mut Batch) {
        self.first_row = batch.len();
        for live in &self.live {
            batch.push(history.nodes[live.node].0, live.parent_row, self.sentence);
        }
    }

    /// Collects the best continuations of the live hypotheses, the most probable first: enough that `width` of them do
    /// not end, if there are as many. `best` holds `k` continuations for each row of the whole batch.
    fn rank(&self, best: &[Continuation], k: usize, candidates: &mut Vec<Candidate>) -> Result<()> {
        candidates.clear();
        let rows = best.chunks_exact(k).skip(self.first_row);
        for (rank, (live, row)) in self.live.iter().zip(rows).enumerate() {
            for continuation in row {
                let Some(log_prob) = continuation.log_prob()? else { break };
                candidates.push(Candidate { rank, token: continuation.token, log_prob: live.log_prob + log_prob });
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
        if candidates.is_empty() && self.kept.is_empty() {
            // Nothing is possible any more: what there is must do.
            return self.cut(length - 1);
        }
        self.next.clear();
        for candidate in candidates {
            if self.next.len() == self.width {
                break;
            }
            let Candidate { rank, token, log_prob } = *candidate;
            let parent = self.live[rank].node;
            if token == end {
                self.keep(parent, log_prob, length, true);
            } else {
                let node = history.push(token, parent);
                self.next.push(Live { node, parent_row: self.first_row + rank, log_prob });
            }
        }
        std::mem::swap(&mut self.live, &mut self.next);
        if length >= self.max_length {
            self.cut(length);
        } else {
            self.drop_hopeless(length);
        }
    }

    /// Sets a hypothesis aside unless `width` others are at least as good.
    fn keep(&mut self, node: usize, log_prob: f64, length: usize, finished: bool) {
        let score = penalty::score(log_prob, length, self.alpha);
        let place = self.kept.partition_point(|kept| kept.score >= score);
        self.kept.insert(place, Kept { node, log_prob, score, finished });
        self.kept.truncate(self.width);
    }

    /// Sets all that is live aside, unfinished, with `length` tokens.
    fn cut(&mut self, length: usize) {
        for Live { node, log_prob, .. } in std::mem::take(&mut self.live) {
            self.keep(node, log_prob, length, false);
        }
    }

    /// Drops the live hypotheses of `length` tokens that can never displace a kept one.
    fn drop_hopeless(&mut self, length: usize) {
        let Some(worst) = self.kept.get(self.width - 1).map(|kept| kept.score) else { return };
        let (longest, alpha) = (self.max_length, self.alpha);
        self.live.retain(|live| penalty::best_attainable(live.log_prob, length + 1, longest, alpha) > worst);
    }

    fn into_hypotheses(self, history: &History) -> Vec<Hypothesis> {
        let hypothesis = |Kept { node, log_prob, score, finished }| {
            let tokens = history.tokens(node);
            Hypothesis { tokens, log_prob, score, finished }
        };
        self.kept.into_iter().map(hypothesis).collect()
    }
}
