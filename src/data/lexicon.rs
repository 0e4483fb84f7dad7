//! Which target tokens translate a source token, learnt from parallel text.
//!
//! IBM Model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine Translation"): every target token comes from
//! one source token of its line, or from none (NULL), and t(target | source) is found by expectation maximisation. Both
//! steps run in parallel without shared writes: the expectation over lines, the maximisation over source tokens.

use rayon::prelude::*;

/// Tokens of a line's two sides.
pub type Pair<'a> = (&'a [u32], &'a [u32]);

/// t(target | source).
#[derive(Clone, Debug)]
pub struct Lexicon {
    /// For each source token, and NULL after them, the target tokens that share a line with it, ascending, and their
    /// probabilities.
    of: Vec<Vec<(u32, f32)>>,
}

impl Lexicon {
    /// Learns from pairs of token ids below `vocabularies` (source, target), in so many iterations.
    pub fn learn(pairs: &[Pair<'_>], vocabularies: [usize; 2], iterations: usize) -> Self {
        let lines = lines_of(pairs, vocabularies[0]);
        // Where each line's target tokens begin among the tokens of all lines.
        let starts: Vec<usize> = pairs
            .iter()
            .scan(0, |sum, (_, target)| {
                *sum += target.len();
                Some(*sum - target.len())
            })
            .collect();
        let uniform = 1.0 / vocabularies[1].max(1) as f32;
        let seen = |lines: &Vec<u32>| -> Vec<(u32, f32)> {
            let mut tokens: Vec<u32> = lines.iter().flat_map(|&line| pairs[line as usize].1).copied().collect();
            tokens.sort_unstable();
            tokens.dedup();
            tokens.into_iter().map(|token| (token, uniform)).collect()
        };
        let mut lexicon = Self { of: lines.par_iter().map(seen).collect() };
        let mut sums = vec![0f32; starts.last().map_or(0, |last| last + pairs[pairs.len() - 1].1.len())];
        for _ in 0..iterations {
            lexicon.expect(pairs, &mut sums);
            lexicon.maximise(pairs, &lines, &starts, &sums, vocabularies[1]);
        }
        lexicon
    }

    fn null(&self) -> usize {
        self.of.len() - 1
    }

    /// For every target token the sum of t over the source tokens it could come from.
    fn expect(&self, pairs: &[Pair<'_>], sums: &mut [f32]) {
        let mut rest = sums;
        let mut tasks = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let (sums, after) = rest.split_at_mut(pair.1.len());
            tasks.push((pair, sums));
            rest = after;
        }
        tasks.into_par_iter().for_each(|((source, target), sums)| {
            for (sum, &token) in sums.iter_mut().zip(*target) {
                let of_source = |&source: &u32| self.probability(source as usize, token);
                *sum = source.iter().map(of_source).sum::<f32>() + self.probability(self.null(), token);
            }
        });
    }

    fn maximise(&mut self, pairs: &[Pair<'_>], lines: &[Vec<u32>], starts: &[usize], sums: &[f32], targets: usize) {
        let indices = || vec![0u32; targets];
        self.of.par_iter_mut().zip(lines).for_each_init(indices, |indices, (of, lines)| {
            for (index, (token, _)) in (0..).zip(of.iter()) {
                indices[*token as usize] = index;
            }
            let mut counts = vec![0f64; of.len()];
            for &line in lines {
                let target = pairs[line as usize].1;
                for (token, sum) in target.iter().zip(&sums[starts[line as usize]..]) {
                    let index = indices[*token as usize] as usize;
                    counts[index] += f64::from(of[index].1) / f64::from(sum.max(f32::MIN_POSITIVE));
                }
            }
            let total: f64 = counts.iter().sum();
            for ((_, probability), count) in of.iter_mut().zip(counts) {
                *probability = (count / total.max(f64::MIN_POSITIVE)) as f32;
            }
        });
    }

    /// t(target | source).
    fn probability(&self, source: usize, target: u32) -> f32 {
        let of = &self.of[source];
        of.binary_search_by_key(&target, |(token, _)| *token).map_or(0.0, |index| of[index].1)
    }

    /// The `most` most probable target tokens of a source token, the first the most probable.
    pub fn best(&self, source: u32, most: usize) -> Vec<u32> {
        let mut of = self.of[source as usize].clone();
        // A probability near 0 is no translation.
        of.retain(|(_, probability)| *probability > 1e-5);
        of.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        of.into_iter().take(most).map(|(token, _)| token).collect()
    }
}

/// For each source token the lines it is in, repeated as often as it occurs there; for NULL all lines.
fn lines_of(pairs: &[Pair<'_>], sources: usize) -> Vec<Vec<u32>> {
    let mut lines = vec![Vec::new(); sources + 1];
    for (line, (source, _)) in (0..).zip(pairs) {
        for &token in *source {
            lines[token as usize].push(line);
        }
        lines[sources].push(line);
    }
    lines
}

/// The `most` most frequent target tokens, the first the most frequent.
pub fn most_frequent(pairs: &[Pair<'_>], vocabulary: usize, most: usize) -> Vec<u32> {
    let mut counts = vec![0usize; vocabulary];
    pairs.iter().flat_map(|(_, target)| *target).for_each(|&token| counts[token as usize] += 1);
    let mut tokens: Vec<u32> = (0..vocabulary as u32).filter(|&token| counts[token as usize] > 0).collect();
    tokens.sort_by_key(|&token| (std::cmp::Reverse(counts[token as usize]), token));
    tokens.truncate(most);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    /// the house, the book, a house: das Haus, das Buch, ein Haus (the example of Koehn 2010, "Statistical Machine
    /// Translation", section 4.2).
    const PAIRS: [Pair<'static>; 3] = [(&[0, 1], &[0, 1]), (&[0, 2], &[0, 2]), (&[3, 1], &[3, 1])];

    #[test]
    fn words_find_their_translations() {
        let lexicon = Lexicon::learn(&PAIRS, [4, 4], 20);
        for token in 0..4 {
            assert_eq!(lexicon.best(token, 1), [token]);
        }
        assert!(lexicon.best(1, 4).contains(&1) && !lexicon.best(2, 4).contains(&3));
        for of in &lexicon.of {
            let sum: f32 = of.iter().map(|(_, probability)| probability).sum();
            assert!((sum - 1.0).abs() < 1e-5);
        }
    }

    /// One iteration by hand: every target token is shared evenly between the source tokens of its line and NULL.
    #[test]
    fn the_first_iteration_counts_evenly() {
        let lexicon = Lexicon::learn(&PAIRS, [4, 4], 1);
        let want = [(0, 0.5), (1, 0.25), (2, 0.25)];
        for (got, want) in lexicon.of[0].iter().zip(want) {
            assert!(got.0 == want.0 && (got.1 - want.1).abs() < 1e-6);
        }
        let null: Vec<u32> = lexicon.of[4].iter().map(|(token, _)| *token).collect();
        assert_eq!(null, [0, 1, 2, 3]);
    }

    #[test]
    fn nothing_gives_nothing() {
        assert!(Lexicon::learn(&[], [2, 2], 3).best(0, 5).is_empty());
        assert_eq!(most_frequent(&PAIRS, 4, 2), [0, 1]);
    }
}
