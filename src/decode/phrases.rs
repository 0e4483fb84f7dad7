//! Phrases that a translation must contain, as an automaton over tokens (Aho and Corasick 1975): how far a hypothesis
//! has come with each of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::surfaces::Surfaces;

/// Phrases that a hypothesis must contain, as whole words.
///
/// A phrase may have several forms, and any one is enough: inside Chinese text, for example, its first piece has no
/// space marker. The same phrase given twice must occur twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phrases {
    /// The first is the root: no token of any phrase.
    nodes: Vec<Node>,
    phrases: Vec<Phrase>,
    surfaces: Arc<Surfaces>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Phrase {
    forms: Vec<Vec<u32>>,
    /// Tokens of the longest form.
    tokens: usize,
    /// How often it must occur.
    times: u32,
}

/// The beginning of a form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    tokens: Vec<u32>,
    next: Vec<(u32, usize)>,
    /// The longest proper end of these tokens that is the beginning of a form.
    suffix: usize,
    /// The forms that begin so.
    begun: Vec<Begun>,
    /// The phrases with a form that ends here.
    ended: Vec<usize>,
}

/// A form that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun {
    phrase: usize,
    /// How many of its tokens are still to come, and the first of them.
    left: usize,
    next: Option<u32>,
}

/// How far a hypothesis has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    node: usize,
    /// How often each phrase has been found.
    found: Vec<u32>,
    /// The phrases that the last token completed: they do not count if their last word goes on.
    completed: Vec<usize>,
    /// The token before the next one.
    last: Option<u32>,
}

impl Phrases {
    const ROOT: usize = 0;

    /// Phrases, each with its forms: at least one, and none empty.
    pub fn new(phrases: impl IntoIterator<Item = Vec<Vec<u32>>>, surfaces: &Arc<Surfaces>) -> Self {
        let mut this = Self { nodes: vec![Node::default()], phrases: Vec::new(), surfaces: surfaces.clone() };
        for forms in phrases {
            if let Some(same) = this.phrases.iter_mut().find(|phrase| phrase.forms == forms) {
                same.times += 1;
                continue;
            }
            let tokens = forms.iter().map(Vec::len).max().unwrap_or(0);
            for form in &forms {
                this.add(this.phrases.len(), form);
            }
            this.phrases.push(Phrase { forms, tokens, times: 1 });
        }
        this.link();
        this
    }

    fn add(&mut self, phrase: usize, form: &[u32]) {
        let mut node = Self::ROOT;
        for (count, &token) in (1..).zip(form) {
            node = self.child(node, token).unwrap_or_else(|| {
                let child = self.nodes.len();
                self.nodes.push(Node { tokens: form[..count].to_vec(), ..Node::default() });
                self.nodes[node].next.push((token, child));
                child
            });
            let begun = Begun { phrase, left: form.len() - count, next: form.get(count).copied() };
            self.nodes[node].begun.push(begun);
        }
        self.nodes[node].ended.push(phrase);
    }

    /// Finds the suffix of each node. A form begins only where a word may begin.
    fn link(&mut self) {
        let nodes: HashMap<&[u32], usize> = (0..).zip(&self.nodes).map(|(i, node)| (&node.tokens[..], i)).collect();
        let suffix = |Node { tokens, .. }: &Node| {
            let starts = (1..tokens.len()).filter(|&start| !self.surfaces.joins(tokens[start - 1], tokens[start]));
            starts.map(|start| &tokens[start..]).find_map(|end| nodes.get(end).copied()).unwrap_or(Self::ROOT)
        };
        let suffixes: Vec<usize> = self.nodes[1..].iter().map(suffix).collect();
        self.nodes[1..].iter_mut().zip(suffixes).for_each(|(node, suffix)| node.suffix = suffix);
    }

    fn child(&self, node: usize, token: u32) -> Option<usize> {
        self.nodes[node].next.iter().find(|(next, _)| *next == token).map(|(_, child)| *child)
    }

    /// A node and those that are ends of it, the longest first, the root last.
    fn suffixes(&self, node: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(node), |node| (*node != Self::ROOT).then(|| self.nodes[*node].suffix))
    }

    /// The progress of an empty hypothesis.
    pub fn start(&self) -> Progress {
        Progress { node: Self::ROOT, found: vec![0; self.phrases.len()], completed: Vec::new(), last: None }
    }

    /// The progress with one more token, which does not end the hypothesis.
    pub fn after(&self, before: &Progress, token: u32) -> Progress {
        // What writes nothing, such as a language, changes nothing.
        if self.surfaces.writes_nothing(token) {
            return before.clone();
        }
        let mut found = before.found.clone();
        let joins = before.last.is_some_and(|last| self.surfaces.joins(last, token));
        if joins {
            before.completed.iter().for_each(|phrase| found[*phrase] -= 1);
        }
        let from = |node: usize| if node == Self::ROOT && joins { None } else { self.child(node, token) };
        let node = self.suffixes(before.node).find_map(from).unwrap_or(Self::ROOT);
        let mut completed: Vec<usize> =
            self.suffixes(node).flat_map(|node| self.nodes[node].ended.iter().copied()).collect();
        completed.sort_unstable();
        completed.dedup();
        completed.iter().for_each(|phrase| found[*phrase] += 1);
        Progress { node, found, completed, last: Some(token) }
    }

    /// Whether a phrase is still to come.
    fn lacks(&self, progress: &Progress, phrase: usize) -> bool {
        progress.found[phrase] < self.phrases[phrase].times
    }

    /// Whether a hypothesis has all phrases.
    pub fn are_found(&self, progress: &Progress) -> bool {
        (0..self.phrases.len()).all(|phrase| !self.lacks(progress, phrase))
    }

    /// How many tokens of the phrases a hypothesis has: all tokens of each phrase it contains, and for one it has
    /// begun, those of its longest form minus those still missing, and minus those of phrases that are lost when it
    /// goes on. So each token of [`Self::next`] adds some, but one that goes on with a longer form of what is found, or
    /// loses more than it brings.
    pub fn tokens_found(&self, progress: &Progress) -> usize {
        let whole = |(phrase, found): (&Phrase, &u32)| phrase.tokens * (*found).min(phrase.times) as usize;
        let counts = |phrase: &&usize| progress.found[**phrase] <= self.phrases[**phrase].times;
        let lost: usize = progress.completed.iter().filter(counts).map(|phrase| self.phrases[*phrase].tokens).sum();
        let joins = |token| progress.last.is_some_and(|last| self.surfaces.joins(last, token));
        let begun = self.suffixes(progress.node).flat_map(|node| self.nodes[node].begun.iter());
        let part = begun.filter_map(|begun| {
            let next = begun.next.filter(|_| self.lacks(progress, begun.phrase))?;
            let missing = begun.left + if joins(next) { lost } else { 0 };
            Some(self.phrases[begun.phrase].tokens.saturating_sub(missing))
        });
        self.phrases.iter().zip(&progress.found).map(whole).sum::<usize>() + part.max().unwrap_or(0)
    }

    /// The tokens of all phrases: what [`Self::tokens_found`] is once all are found.
    pub fn tokens(&self) -> usize {
        self.phrases.iter().map(|phrase| phrase.tokens * phrase.times as usize).sum()
    }

    /// The tokens that begin a phrase that is still to come, or go on with it; and those that go on with a longer form
    /// of a phrase just found: where they join the last token, that one no longer counts, and the longer one may.
    pub fn next(&self, progress: &Progress) -> Vec<u32> {
        let children =
            self.suffixes(progress.node).flat_map(|node| self.nodes[node].next.iter().map(move |next| (node, next)));
        let is_wanted = |node: usize, child: usize| {
            let mut begun = self.nodes[child].begun.iter();
            let goes_on = |phrase| node != Self::ROOT && progress.completed.contains(phrase);
            begun.any(|Begun { phrase, .. }| self.lacks(progress, *phrase) || goes_on(phrase))
        };
        let wanted = children.filter(|(node, (_, child))| is_wanted(*node, *child));
        let mut tokens: Vec<u32> = wanted.map(|(_, (token, _))| *token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// The last token, if a phrase was found with it that does not count once its last word goes on.
    pub(super) fn may_be_lost(&self, progress: &Progress) -> Option<u32> {
        progress.last.filter(|_| !progress.completed.is_empty())
    }

    /// What the tokens write.
    pub(super) fn surfaces(&self) -> &Surfaces {
        &self.surfaces
    }

    /// Every token of every form.
    pub fn all_tokens(&self) -> impl Iterator<Item = u32> {
        self.phrases.iter().flat_map(|phrase| phrase.forms.iter().flatten().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 10 to 19 are words of their own, 20 to 29 go on with a word.
    fn surfaces() -> Arc<Surfaces> {
        Arc::new(Surfaces::new((0..30).map(|token: u32| match token {
            0..10 => Vec::new(),
            10..20 => format!(" w{token}").into_bytes(),
            _ => format!("x{token}").into_bytes(),
        })))
    }

    /// Tokens found after each token, and whether all phrases are there at the end.
    fn walk(phrases: &[&[&[u32]]], tokens: &[u32]) -> (Vec<usize>, bool) {
        let forms = |forms: &&[&[u32]]| forms.iter().map(|form| form.to_vec()).collect();
        let phrases = Phrases::new(phrases.iter().map(forms), &surfaces());
        let mut progress = phrases.start();
        let mut found = Vec::new();
        for token in tokens {
            progress = phrases.after(&progress, *token);
            found.push(phrases.tokens_found(&progress));
        }
        (found, phrases.are_found(&progress))
    }

    #[test]
    fn progress_is_counted_in_tokens() {
        let two: &[&[&[u32]]] = &[&[&[10, 11]], &[&[12]]];
        assert_eq!(walk(two, &[13, 10, 11, 12]), (vec![0, 1, 2, 3], true));
        // A phrase that is broken off begins anew.
        assert_eq!(walk(two, &[10, 12, 11, 10, 11]), (vec![1, 1, 1, 2, 3], true));
        // A wrong beginning may hold the right one.
        assert_eq!(walk(&[&[&[10, 10, 11]]], &[10, 10, 10, 11]), (vec![1, 2, 2, 3], true));
        // Phrases may overlap, or hold others.
        assert_eq!(walk(&[&[&[10, 11]], &[&[11, 12]]], &[10, 11, 12]), (vec![1, 3, 4], true));
        assert_eq!(walk(&[&[&[10, 11, 12]], &[&[11]]], &[10, 11, 12]), (vec![1, 3, 4], true));
        // A phrase given twice must occur twice.
        assert_eq!(walk(&[&[&[10]], &[&[10]]], &[10, 11, 10, 10]), (vec![1, 1, 2, 2], true));
        assert!(!walk(&[&[&[10]], &[&[10]]], &[10]).1);
        // A phrase that begins another one is lost when its word goes on.
        let one_in_another: &[&[&[u32]]] = &[&[&[10]], &[&[10, 20]]];
        assert_eq!(walk(one_in_another, &[10, 20, 10]), (vec![1, 2, 3], true));
        assert_eq!(walk(one_in_another, &[10, 10, 20]), (vec![1, 2, 3], true));
        // It stays if a new word follows.
        assert_eq!(walk(&[&[&[10]], &[&[10, 11]]], &[10, 11]), (vec![2, 3], true));
        // Either form is enough; progress is as far as that of the longer one.
        assert_eq!(walk(&[&[&[10, 11, 12], &[13]]], &[10, 11, 12]), (vec![1, 2, 3], true));
        assert_eq!(walk(&[&[&[10, 11, 12], &[13, 14]]], &[13, 14]), (vec![2, 3], true));
    }

    #[test]
    fn phrases_are_whole_words() {
        // A word that goes on is another word, and a form inside a word does not begin there.
        assert_eq!(walk(&[&[&[10]]], &[10, 21]), (vec![1, 0], false));
        assert_eq!(walk(&[&[&[10]]], &[10, 21, 10, 11]), (vec![1, 0, 1, 1], true));
        assert_eq!(walk(&[&[&[21]]], &[10, 21]), (vec![0, 0], false));
        assert_eq!(walk(&[&[&[21]]], &[21, 10]), (vec![1, 1], true));
        assert_eq!(walk(&[&[&[10, 21]]], &[10, 21, 11]), (vec![1, 2, 2], true));
    }

    #[test]
    fn what_comes_next_is_known() {
        let phrases = Phrases::new([vec![vec![10, 11]], vec![vec![12]], vec![vec![11, 13]]], &surfaces());
        let mut progress = phrases.start();
        let mut next = vec![phrases.next(&progress)];
        for token in [10, 11, 13, 12] {
            progress = phrases.after(&progress, token);
            next.push(phrases.next(&progress));
        }
        assert_eq!(next, [vec![10, 11, 12], vec![10, 11, 12], vec![11, 12, 13], vec![12], vec![]]);
        assert_eq!(phrases.tokens(), 5);
        // A longer form of what is found, whose next token makes the shorter one part of another word.
        let phrases = Phrases::new([vec![vec![10, 21], vec![10]], vec![vec![12]]], &surfaces());
        let progress = phrases.after(&phrases.start(), 10);
        assert_eq!(phrases.next(&progress), [12, 21]);
        assert_eq!(phrases.tokens_found(&phrases.after(&progress, 21)), phrases.tokens_found(&progress));
    }
}
