//! Which tokens may continue a hypothesis: forced beginnings, minimum lengths, n-grams that must not repeat.

use super::SearchOptions;

/// The search options of one sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sentence {
    /// The fewest tokens before the end token.
    pub min_length: usize,
    /// The most tokens, the end token counted; 0 gives an empty hypothesis.
    pub max_length: usize,
    /// The tokens that every hypothesis begins with.
    pub prefix: Vec<u32>,
    /// The key of its random numbers, together with the seed.
    pub key: u64,
}

/// Which tokens may follow a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraint {
    /// Only this one.
    pub forced: Option<u32>,
    /// None of these.
    pub forbidden: Vec<u32>,
}

impl Constraint {
    /// Any token may follow.
    pub const NONE: Self = Self { forced: None, forbidden: Vec::new() };

    /// Whether this token may follow.
    pub fn allows(&self, token: u32) -> bool {
        self.forced.is_none_or(|forced| forced == token) && !self.forbidden.contains(&token)
    }
}

impl SearchOptions {
    /// What may follow a hypothesis of `length` tokens; `tokens` returns them and is called only if they matter.
    pub(super) fn constraint(
        &self,
        sentence: usize,
        length: usize,
        end: u32,
        tokens: impl FnOnce() -> Vec<u32>,
    ) -> Constraint {
        let sentence = &self.sentences[sentence];
        if let Some(&forced) = sentence.prefix.get(length) {
            return Constraint { forced: Some(forced), forbidden: Vec::new() };
        }
        let mut forbidden = Vec::new();
        if self.no_repeat_ngram > 0 && length >= self.no_repeat_ngram {
            self.characters.forbid_repeats(&tokens(), self.no_repeat_ngram, &mut forbidden);
        }
        if length < sentence.min_length {
            forbidden.push(end);
        }
        Constraint { forced: None, forbidden }
    }
}
