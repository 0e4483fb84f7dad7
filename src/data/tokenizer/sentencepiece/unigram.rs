//! The likeliest segmentation under a unigram language model (Kudo 2018).
//!
//! Scores are summed as SentencePiece's optimised encoder does, in single precision and from the left, so that ties
//! fall alike: of equals that end at one position the one that begins first wins, and a sum that has grown large
//! restarts at 0.

use super::Segment;
use super::trie::Trie;

/// Beyond this, sums begin again.
const LARGE: f32 = 100_000.0;
/// What an unknown character costs, below the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Score of each byte of a user-defined piece after the first; other pieces have negative scores.
const USER_DEFINED: f64 = 0.1;

/// A unigram model.
pub(super) struct Unigram {
    /// The pieces that text can have, with their ids.
    pub(super) trie: Trie,
    /// The score of each id.
    pub(super) scores: Vec<Score>,
    pub(super) worst: f32,
    pub(super) unknown: u32,
}

/// How a piece counts.
#[derive(Clone, Copy)]
pub(super) enum Score {
    LogProbability(f32),
    /// Better than any other way to write the same text.
    UserDefined,
    /// Never chosen.
    Unused,
}

/// The best path to a position in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    start: usize,
    id: u32,
}

impl Unigram {
    /// The pieces of a normalised line.
    pub(super) fn segment(&self, line: &str) -> Vec<Segment> {
        let mut ends: Vec<Option<Best>> = vec![None; line.len() + 1];
        let unknown_score = self.worst - UNKNOWN_PENALTY;
        // No piece has ended beyond this position yet.
        let mut furthest = 0;
        for (start, character) in line.char_indices() {
            let mut so_far = ends.get(start).copied().flatten().map_or(0.0, |best| best.score);
            if so_far.abs() > LARGE {
                let ahead = ends.get_mut(start..=furthest).unwrap_or_default();
                ahead.iter_mut().flatten().for_each(|best| best.score -= so_far);
                so_far = 0.0;
            }
            let single = character.len_utf8();
            let mut has_single = false;
            let mut offer = |length: usize, score: f32, id: u32| {
                furthest = furthest.max(start + length);
                let Some(end) = ends.get_mut(start + length) else { return };
                if end.is_none_or(|best| score > best.score) {
                    *end = Some(Best { score, start, id });
                }
            };
            let rest = line.as_bytes().get(start..).unwrap_or_default();
            self.trie.prefixes(rest, |length, id| {
                let score = match self.scores.get(id as usize) {
                    Some(Score::LogProbability(score)) => *score,
                    Some(Score::UserDefined) => ((length - 1) as f64 * USER_DEFINED) as f32,
                    Some(Score::Unused) | None => return,
                };
                offer(length, score + so_far, id);
                has_single |= length == single;
            });
            if !has_single {
                offer(single, unknown_score + so_far, self.unknown);
            }
        }
        let mut segments = Vec::new();
        let mut end = line.len();
        while let Some(Some(best)) = ends.get(end).filter(|_| end > 0) {
            segments.push(Segment { start: best.start, end, id: best.id });
            end = best.start;
        }
        segments.reverse();
        segments
    }
}
