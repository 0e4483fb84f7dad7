//! The memory of a beam search: a tree of tokens, and the best complete hypotheses.

use super::{Ending, Hypothesis, LengthPenalty};

/// The tokens of all hypotheses as a tree of back-pointers, so that extending one copies nothing.
pub(super) struct History {
    /// The first is the root, which holds the start token.
    nodes: Vec<Node>,
}

/// A token of a hypothesis.
pub(super) struct Node {
    pub(super) token: u32,
    /// The log-probability of the token alone.
    pub(super) log_prob: f32,
    pub(super) before: usize,
}

impl History {
    pub(super) const ROOT: usize = 0;

    pub(super) fn new(start: u32) -> Self {
        Self { nodes: vec![Node { token: start, log_prob: 0.0, before: Self::ROOT }] }
    }

    pub(super) fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The last token of a hypothesis.
    pub(super) fn token(&self, node: usize) -> u32 {
        self.nodes[node].token
    }

    /// The tokens from the root, which is left out, to `node`.
    pub(super) fn tokens(&self, node: usize) -> Vec<u32> {
        self.path(node, |node| node.token)
    }

    /// The log-probability of each.
    fn log_probs(&self, node: usize) -> Vec<f32> {
        self.path(node, |node| node.log_prob)
    }

    fn path<T>(&self, mut node: usize, value: impl Fn(&Node) -> T) -> Vec<T> {
        let mut values = Vec::new();
        while node != Self::ROOT {
            values.push(value(&self.nodes[node]));
            node = self.nodes[node].before;
        }
        values.reverse();
        values
    }
}

/// A hypothesis set aside, ended or cut.
struct Kept {
    /// The last token, the end token left out.
    node: usize,
    /// The log-probability of the end token, if it ended.
    end: Option<f32>,
    log_prob: f64,
    score: f64,
    ending: Ending,
}

/// The best of the hypotheses that were set aside, by one or more length penalties.
pub(super) struct Finished {
    /// At least one.
    rankings: Vec<Ranking>,
    /// Hypotheses that ended so far, kept or not.
    pub(super) ended: usize,
}

impl Finished {
    /// Keeps at most `width`, the best by one penalty.
    pub(super) fn new(penalty: LengthPenalty, width: usize) -> Self {
        Self { rankings: vec![Ranking::new(penalty, width)], ended: 0 }
    }

    /// Keeps the best one by each of these penalties.
    pub(super) fn best_by_each(penalties: &[LengthPenalty]) -> Self {
        Self { rankings: penalties.iter().map(|penalty| Ranking::new(*penalty, 1)).collect(), ended: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rankings[0].kept.is_empty()
    }

    /// Sets a hypothesis aside that ended with a token of log-probability `step`; its length counts the end.
    pub(super) fn end(&mut self, before: usize, step: f32, log_prob: f64, length: usize) {
        self.ended += 1;
        self.keep(before, Some(step), log_prob, length, Ending::End);
    }

    /// Sets a hypothesis aside that did not end.
    pub(super) fn cut(&mut self, node: usize, log_prob: f64, length: usize, ending: Ending) {
        self.keep(node, None, log_prob, length, ending);
    }

    fn keep(&mut self, node: usize, end: Option<f32>, log_prob: f64, length: usize, ending: Ending) {
        for ranking in &mut self.rankings {
            let score = ranking.penalty.score(log_prob, length);
            ranking.keep(Kept { node, end, log_prob, score, ending });
        }
    }

    /// The worst score that is kept by the first penalty.
    pub(super) fn worst(&self) -> Option<f64> {
        self.rankings[0].worst()
    }

    /// Whether a hypothesis of `length` tokens can displace a kept one, or a further one is kept, as long as it gets no
    /// longer than `longest`.
    pub(super) fn can_improve(&self, log_prob: f64, length: usize, longest: usize) -> bool {
        self.rankings.iter().any(|ranking| ranking.can_improve(log_prob, length, longest))
    }

    /// The kept ones, those of each penalty together, the best score first.
    pub(super) fn hypotheses(self, history: &History) -> impl Iterator<Item = Hypothesis> {
        self.rankings.into_iter().flat_map(|ranking| ranking.kept).map(|kept| kept.hypothesis(history))
    }

    /// As [`Self::hypotheses`], those that are not among `all` yet.
    pub(super) fn hypotheses_into(self, history: &History, all: &mut Vec<Hypothesis>) {
        for hypothesis in self.hypotheses(history) {
            let Hypothesis { tokens, ending, .. } = &hypothesis;
            if !all.iter().any(|other| other.tokens == *tokens && other.ending == *ending) {
                all.push(hypothesis);
            }
        }
    }
}

impl Kept {
    fn hypothesis(self, history: &History) -> Hypothesis {
        let Self { node, end, log_prob, score, ending } = self;
        let (tokens, mut token_log_probs) = (history.tokens(node), history.log_probs(node));
        token_log_probs.extend(end);
        Hypothesis { tokens, token_log_probs, log_prob, score, ending }
    }
}

/// The best hypotheses by one length penalty.
struct Ranking {
    penalty: LengthPenalty,
    width: usize,
    /// At most `width`, the best score first; among equal scores, the one set aside earlier.
    kept: Vec<Kept>,
}

impl Ranking {
    fn new(penalty: LengthPenalty, width: usize) -> Self {
        Self { penalty, width, kept: Vec::with_capacity(width + 1) }
    }

    fn keep(&mut self, new: Kept) {
        let index = self.kept.partition_point(|kept| kept.score >= new.score);
        self.kept.insert(index, new);
        self.kept.truncate(self.width);
    }

    fn worst(&self) -> Option<f64> {
        self.kept.last().map(|kept| kept.score)
    }

    fn can_improve(&self, log_prob: f64, length: usize, longest: usize) -> bool {
        let is_better = |worst: f64| self.penalty.best_attainable(log_prob, length + 1, longest) > worst;
        self.kept.len() < self.width || self.worst().is_some_and(is_better)
    }
}
