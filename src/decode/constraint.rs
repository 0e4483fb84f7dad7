//! Which tokens may continue a hypothesis: forced beginnings, minimum lengths, n-grams that must not repeat, phrases
//! that must not occur.

use std::sync::Arc;

use super::SearchOptions;
use super::avoid::Avoid;
use super::phrases::Phrases;

/// What is demanded of the hypotheses of one sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// The tokens that every hypothesis begins with.
    pub prefix: Vec<u32>,
    /// What every hypothesis contains; only beam search can see to that.
    pub must: Option<Arc<Phrases>>,
    /// What no hypothesis contains.
    pub avoid: Option<Arc<Avoid>>,
}

impl Demands {
    /// The fewest tokens that a hypothesis needs for them, its end not counted.
    pub fn tokens(&self) -> usize {
        self.prefix.len() + self.must.as_ref().map_or(0, |must| must.tokens())
    }

    /// The tokens that a hypothesis may need for them, so that nothing must exclude these.
    pub fn needed(&self) -> Vec<u32> {
        self.prefix.iter().copied().chain(self.must.iter().flat_map(|must| must.all_tokens())).collect()
    }
}

/// The search options of one sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sentence {
    /// The fewest tokens before the end token.
    pub min_length: usize,
    /// The most tokens, the end token counted; 0 gives an empty hypothesis.
    pub max_length: usize,
    /// What is demanded of its hypotheses.
    pub demands: Demands,
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
    /// How many of them, the first, are forbidden only for ending a repeated n-gram.
    pub repeats: usize,
}

impl Constraint {
    /// Any token may follow.
    pub const NONE: Self = Self { forced: None, forbidden: Vec::new(), repeats: 0 };

    /// Whether this token may follow where it may end a repeated n-gram.
    pub fn allows_demanded(&self, token: u32) -> bool {
        let Self { forced, forbidden, repeats } = self;
        forced.is_none_or(|forced| forced == token) && !forbidden.iter().skip(*repeats).any(|other| *other == token)
    }

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
        let Sentence { min_length, demands: Demands { prefix, avoid, .. }, .. } = &self.sentences[sentence];
        if let Some(&forced) = prefix.get(length) {
            return Constraint { forced: Some(forced), ..Constraint::NONE };
        }
        let (mut forbidden, mut repeats) = (Vec::new(), 0);
        let may_repeat = self.no_repeat_ngram > 0 && length >= self.no_repeat_ngram;
        if may_repeat || avoid.is_some() {
            let tokens = tokens();
            if may_repeat {
                self.characters.forbid_repeats(&tokens, self.no_repeat_ngram, &mut forbidden);
                repeats = forbidden.len();
            }
            if let Some(avoid) = avoid {
                // Behind those that may only not repeat, which `allows_demanded` counts.
                forbidden.extend(avoid.forbid(&tokens, prefix.len()));
            }
        }
        if length < *min_length {
            forbidden.push(end);
        }
        Constraint { forced: None, forbidden, repeats }
    }
}
