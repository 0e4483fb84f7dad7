//! What becomes of a line: its translations, joined from those of its parts.

use crate::decode::Ending;
use crate::decode::source::Source;

/// The translations of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The best first, or in the order they were drawn; at least one.
    pub n_best: Vec<Candidate>,
    /// Whether the source was cut to fit the model's positions.
    pub source_cut: bool,
    /// The sources of its parts, as the first model reads them: one unless the line was split; none for a blank line.
    pub parts: Vec<Source>,
}

impl Translation {
    /// The translation of a blank line: a blank line.
    pub(super) fn blank() -> Self {
        Self { n_best: vec![Candidate::default()], source_cut: false, parts: Vec::new() }
    }

    /// Appends the translation of the next part.
    pub(super) fn joined(mut self, next: Self) -> Self {
        let n_best = self.n_best.into_iter().zip(next.n_best).map(|(first, second)| first.joined(second)).collect();
        self.parts.extend(next.parts);
        Self { n_best, source_cut: self.source_cut || next.source_cut, parts: self.parts }
    }

    /// The first, and best, translation.
    pub fn best(&self) -> &Candidate {
        &self.n_best[0]
    }
}

/// One translation of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The text, on one line.
    pub text: String,
    /// Its tokens, without the end.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, and that of the end where there is one.
    pub token_log_probs: Vec<f32>,
    /// The sum of these.
    pub log_prob: f64,
    /// The score under the length penalty; of a line in parts, the sum of their scores.
    pub score: f64,
    /// Why it stopped; of a line in parts, the first reason other than the end token.
    pub ending: Ending,
    /// The index in `tokens` at which each part after the first begins.
    pub joints: Vec<usize>,
}

impl Default for Candidate {
    /// An empty, finished translation.
    fn default() -> Self {
        let (text, tokens, token_log_probs, joints) = Default::default();
        Self { text, tokens, token_log_probs, log_prob: 0.0, score: 0.0, ending: Ending::End, joints }
    }
}

impl Candidate {
    /// Appends the translation of the next part.
    fn joined(mut self, next: Self) -> Self {
        if let (Some(before), Some(after)) = (self.text.chars().next_back(), next.text.chars().next())
            && has_space_between(before, after)
        {
            self.text.push(' ');
        }
        self.text += &next.text;
        self.joints.push(self.tokens.len());
        self.tokens.extend(next.tokens);
        self.token_log_probs.extend(next.token_log_probs);
        self.log_prob += next.log_prob;
        self.score += next.score;
        if self.finished() {
            self.ending = next.ending;
        }
        self
    }

    /// Whether it ended with the end token.
    pub fn finished(&self) -> bool {
        self.ending == Ending::End
    }
}

/// Whether to put a space between two sentences, given the last character of one and the first of the next: not between
/// Chinese or Japanese text, nor after their punctuation.
pub(in crate::decode) fn has_space_between(before: char, after: char) -> bool {
    let is_east_asian = |c: char| {
        matches!(c, '\u{3000}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' |
            '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
    };
    !(is_east_asian(before) && (is_east_asian(after) || !before.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with any part is wrong with the line.
    #[test]
    fn a_line_ends_as_its_first_part_that_did_not_end_well() {
        let joined = |endings: &[Ending]| {
            let parts = endings.iter().map(|ending| Candidate { ending: *ending, ..Candidate::default() });
            parts.reduce(Candidate::joined).unwrap().ending
        };
        for (endings, whole) in [
            ([Ending::End, Ending::End, Ending::End], Ending::End),
            ([Ending::End, Ending::MaxLength, Ending::End], Ending::MaxLength),
            ([Ending::Stuck, Ending::End, Ending::MaxLength], Ending::Stuck),
            ([Ending::End, Ending::End, Ending::Stuck], Ending::Stuck),
        ] {
            assert_eq!(joined(&endings), whole, "{endings:?}");
        }
    }

    #[test]
    fn sentences_are_joined_as_their_script_has_it() {
        let join = |parts: [&str; 2]| {
            let [first, next] = parts.map(|text| Candidate { text: text.to_owned(), ..Candidate::default() });
            first.joined(next).text
        };
        for (parts, whole) in [
            (["Ein Satz.", "Noch einer."], "Ein Satz. Noch einer."),
            (["我走了。", "你来了。"], "我走了。你来了。"),
            (["猫です。", "OK。"], "猫です。OK。"),
            (["是 OK", "猫です"], "是 OK 猫です"),
            (["猫", "は"], "猫は"),
            (["나는 간다.", "너는 온다."], "나는 간다. 너는 온다."),
            (["ฉันไป", "คุณมา"], "ฉันไป คุณมา"),
            (["", "a"], "a"),
            (["a", ""], "a"),
        ] {
            assert_eq!(join(parts), whole);
        }
    }
}
