//! A random language model for the tests of the search: every distribution is a hash of the sentence and the whole
//! prefix, so that a row continued from a wrong parent gives a wrong answer.

use super::{Continuation, Rows, StepModel};
use crate::error::Result;

/// Number of special tokens: `<pad>`, `<s>`, `</s>`, `<unk>`. Words come after them.
const SPECIAL: u32 = 4;
const START: u32 = 1;
pub(super) const END: u32 = 2;

/// The next-token distributions of a toy model, without the state of a search.
#[derive(Clone, Debug)]
pub(super) struct Language {
    pub seed: u64,
    /// Number of ordinary words.
    pub words: u32,
    /// Added to the end token's logit: large values make short sentences.
    pub end_bias: f64,
    /// Log-probabilities are (unnormalised) multiples of a half, so that sums tie often and exactly.
    pub coarse: bool,
}

/// SplitMix64's finaliser over the two values.
fn hash(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(b).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Language {
    /// The state before the start token of the sentence whose content is `key`.
    fn initial(&self, key: u64) -> u64 {
        hash(self.seed, key)
    }

    /// The tokens that can follow and their log-probabilities, in order of the tokens.
    fn continuations(&self, state: u64) -> Vec<Continuation> {
        let tokens = std::iter::once(END).chain(SPECIAL..SPECIAL + self.words);
        if self.coarse {
            let log_prob = |token| (hash(state, token) % 4) as f32 * -0.5;
            return tokens.map(|token| Continuation { token, log_prob: log_prob(u64::from(token)) }).collect();
        }
        let unit = |token| hash(state, token) as f64 / u64::MAX as f64;
        let bias = |token| if token == END { self.end_bias } else { 0.0 };
        let logits: Vec<(u32, f64)> = tokens.map(|token| (token, 4.0 * unit(u64::from(token)) + bias(token))).collect();
        let log_sum = logits.iter().map(|(_, logit)| logit.exp()).sum::<f64>().ln();
        let normal = |(token, logit)| Continuation { token, log_prob: (logit - log_sum) as f32 };
        logits.into_iter().map(normal).collect()
    }

    /// What can follow `prefix` (without the start token) in the sentence `key`.
    pub(super) fn after(&self, key: u64, prefix: &[u32]) -> Vec<Continuation> {
        let state = prefix.iter().fold(hash(self.initial(key), u64::from(START)), |s, &t| hash(s, u64::from(t)));
        self.continuations(state)
    }
}

/// A [`StepModel`] of several sentences in one [`Language`].
pub(super) struct Toy {
    pub language: Language,
    /// Of each sentence: its number and its state before the start token.
    initial: Vec<(usize, u64)>,
    /// Each row of the last step: its sentence and its state.
    rows: Vec<(usize, u64)>,
    sentences: usize,
    /// Number of rows of each step so far.
    pub row_counts: Vec<usize>,
}

impl Toy {
    /// `keys` stand for the contents of the sentences.
    pub(super) fn new(language: &Language, keys: &[u64]) -> Self {
        let initial: Vec<_> = keys.iter().enumerate().map(|(i, &key)| (i, language.initial(key))).collect();
        let (rows, sentences) = (initial.clone(), keys.len());
        Self { language: language.clone(), initial, rows, sentences, row_counts: Vec::new() }
    }
}

impl StepModel for Toy {
    fn sentences(&self) -> usize {
        self.sentences
    }

    fn start_token(&self) -> u32 {
        START
    }

    fn end_token(&self) -> u32 {
        END
    }

    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        assert_eq!(best.len(), rows.len() * k);
        let answers = self.answers(rows);
        for (r, (answer, mut continuations)) in best.chunks_exact_mut(k).zip(answers).enumerate() {
            continuations.retain(|continuation| rows.constraint(r).allows(continuation.token));
            // Stable: the smaller token stays first among equals.
            continuations.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
            answer.iter_mut().zip(continuations).for_each(|(slot, continuation)| *slot = continuation);
        }
        Ok(())
    }

    fn forbidden(&self) -> &[u32] {
        &[]
    }

    fn log_probs(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        let vocabulary = (SPECIAL + self.language.words) as usize;
        for continuations in self.answers(rows) {
            let first = log_probs.len();
            log_probs.resize(first + vocabulary, f32::NEG_INFINITY);
            continuations.iter().for_each(|c| log_probs[first + c.token as usize] = c.log_prob);
        }
        Ok(())
    }
}

impl Toy {
    /// What can follow each row; advances the states.
    fn answers(&mut self, rows: &Rows<'_>) -> Vec<Vec<Continuation>> {
        assert!(!rows.is_empty() && rows.parents.len() == rows.len() && rows.sentences.len() == rows.len());
        assert!(rows.sentences.is_sorted(), "the rows of a sentence stand together");
        if rows.position == 0 {
            self.rows.clone_from(&self.initial);
            self.row_counts.clear();
        }
        assert_eq!(rows.position, self.row_counts.len());
        assert_eq!(rows.constraints.len(), rows.len());
        self.row_counts.push(rows.len());
        let (mut states, mut answers) = (Vec::new(), Vec::new());
        for r in 0..rows.len() {
            let (sentence, state) = self.rows[rows.parents[r]];
            assert_eq!(sentence, rows.sentences[r], "a row is continued within its sentence");
            assert!(rows.position > 0 || rows.tokens[r] == START);
            let state = hash(state, u64::from(rows.tokens[r]));
            states.push((sentence, state));
            answers.push(self.language.continuations(state));
        }
        self.rows = states;
        answers
    }
}
