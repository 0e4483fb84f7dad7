//! Whether two sides are shifted against each other: a line lost or added on one side, and every pair after it is
//! wrong.
//!
//! Lengths show it, in any two languages: a translation of a long line is long. In blocks of lines the correlation of
//! the lengths is high where lines belong together, and near 0 where they do not.

use std::ops::Range;

/// Lines of a block.
const BLOCK: usize = 100;
/// The largest offset that is tried for every block.
const FARTHEST: isize = 10;
/// The largest offset to try for a long run of lines that are unrelated to the other side.
const FARTHEST_OF_RUN: isize = 1000;
/// So many are many: fewer, with the threshold below, may be chance; …
const RUN: usize = 3 * BLOCK;
/// … and so many belong nowhere, if no offset fits: they are shuffled, or other text.
const LOST: usize = 1000;
/// How often larger offsets are tried in a corpus: they take long.
const RUNS: usize = 20;
/// Lines are unrelated if their lengths have at most this correlation with the other side. (Shifted lines may have a
/// much higher one if neighbours are of similar length: 0.25 in Multi30k, in some blocks 0.5.)
const APART: f64 = 0.2;
/// Lines belong together if their correlation is at least this, …
const TOGETHER: f64 = 0.5;
/// … and beyond chance: at least this many standard errors, 1/√n each.
const ERRORS: f64 = 5.0;
/// Fewer lines give no evidence.
const LEAST: usize = 30;

/// Lines that belong to other lines than those at the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    /// The first of them, from 0.
    pub(super) start: usize,
    /// One past the last of them.
    pub(super) end: usize,
    /// Line i of the source belongs to line i + offset of the target; `None` if to none that was tried.
    pub(super) offset: Option<isize>,
}

/// The shifts in a corpus, given the lengths of both sides' lines in characters.
pub(super) fn shifts(source: &[u32], target: &[u32]) -> Vec<Shift> {
    let lengths = Lengths::new(source, target);
    let pairs = source.len().min(target.len());
    let mut found: Vec<Shift> = Vec::new();
    let (mut start, mut apart, mut runs) = (0, 0..0, 0);
    while pairs - start >= LEAST {
        // A short remainder joins the last block.
        let end = if pairs - start < BLOCK + LEAST { pairs } else { start + BLOCK };
        let offset = lengths.offset(start, end);
        if let Some(offset) = offset {
            match found.last_mut() {
                Some(last) if last.end == start && last.offset == Some(offset) => last.end = end,
                last => {
                    // The shift may begin in the previous, mostly aligned block.
                    let from = last.map_or(0, |last| last.end).max(start.saturating_sub(BLOCK));
                    let start = lengths.beginning(from, end, offset);
                    // A few extreme lengths can make a correlation that no run of lines bears out.
                    if start < end {
                        found.push(Shift { start, end, offset: Some(offset) });
                    }
                }
            }
        }
        let is_apart = offset.is_none() && lengths.correlation(start, end, 0).is_some_and(|(r, _)| r < TOGETHER);
        match is_apart {
            true if apart.end == start => apart.end = end,
            true => apart = start..end,
            false => {}
        }
        start = end;
        let is_last = pairs - start < LEAST;
        if (!is_apart || is_last) && apart.len() >= RUN && runs < RUNS {
            runs += 1;
            let before = found.iter().map(|shift| shift.end).filter(|end| *end <= apart.start).max();
            let far = lengths.far(&apart, before.unwrap_or(0));
            // Chance may have cut a single shift in two.
            let is_near = |shift: &&mut Shift| shift.end <= apart.start && apart.start - shift.end <= LOST;
            match (far, found.iter_mut().rfind(is_near)) {
                (Some(far), Some(last)) if last.offset == far.offset => last.end = far.end,
                (far, _) => found.extend(far),
            }
        }
        if !is_apart {
            apart = 0..0;
        }
    }
    found.sort_by_key(|shift| shift.start);
    found
}

/// Logarithms of lengths, clipped far from the median: otherwise a few blank or enormous lines would decide a block's
/// correlation.
fn clipped_logarithms(lengths: &[u32]) -> Vec<f32> {
    /// Of as many standard deviations of a normal distribution, …
    const WIDEST: f32 = 2.5;
    /// … which is as many times the median distance from the median; …
    const DEVIATIONS: f32 = 1.4826;
    /// … but lengths up to √e times the median are not clipped where most are equal.
    const LEAST_WIDTH: f32 = 0.5;
    let median = |mut values: Vec<f32>| {
        let middle = values.len() / 2;
        if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(middle, f32::total_cmp).1 }
    };
    let logarithms: Vec<f32> = lengths.iter().map(|length| (1.0 + f64::from(*length)).ln() as f32).collect();
    let middle = median(logarithms.clone());
    let spread = median(logarithms.iter().map(|value| (value - middle).abs()).collect());
    let width = (WIDEST * DEVIATIONS * spread).max(LEAST_WIDTH);
    logarithms.into_iter().map(|value| value.clamp(middle - width, middle + width)).collect()
}

/// Clipped logarithms of lengths.
struct Lengths {
    source: Vec<f32>,
    target: Vec<f32>,
    /// How much longer source lines are on average.
    usual: f64,
}

impl Lengths {
    fn new(source: &[u32], target: &[u32]) -> Self {
        let [source, target] = [source, target].map(clipped_logarithms);
        let mean = |side: &[f32]| side.iter().copied().map(f64::from).sum::<f64>() / side.len() as f64;
        let usual = mean(&source) - mean(&target);
        Self { source, target, usual }
    }

    /// The offset between a block's lines and their translations, if it is not 0.
    fn offset(&self, start: usize, end: usize) -> Option<isize> {
        let opposite = self.correlation(start, end, 0)?.0;
        let shifted = (-FARTHEST..=FARTHEST).filter(|offset| *offset != 0).filter_map(|offset| {
            let (correlation, lines) = self.correlation(start, end, offset)?;
            let least = TOGETHER.max(ERRORS / (lines as f64).sqrt());
            (correlation >= least && opposite < correlation / 2.0).then_some((correlation, offset))
        });
        shifted.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, offset)| offset)
    }

    /// Where the lines of an unrelated run belong; lines before `before` belong elsewhere.
    fn far(&self, run: &Range<usize>, before: usize) -> Option<Shift> {
        let Range { start, end } = *run;
        let opposite = self.correlation(start, end, 0)?.0;
        if !self.varies(run) {
            return None;
        }
        // Lines in the middle belong to others whose shift is the same, even if it was mended soon after.
        let (middle, half) = ((start + end) / 2, (end - start).min(LOST) / 2);
        let tried = (-FARTHEST_OF_RUN..=FARTHEST_OF_RUN).filter_map(|offset| {
            let (correlation, lines) = self.correlation(middle - half, middle + half, offset)?;
            let least = TOGETHER.max(ERRORS / (lines as f64).sqrt());
            (correlation >= least && opposite < correlation / 2.0).then_some((correlation, offset))
        });
        match tried.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, offset)) => {
                let start = self.beginning(before.max(start.saturating_sub(LOST)), end, offset);
                (start < end).then_some(Shift { start, end, offset: Some(offset) })
            }
            None => (opposite < APART && end - start >= LOST).then_some(Shift { start, end, offset: None }),
        }
    }

    /// Whether the lengths vary enough on both sides to distinguish lines: by a third, typically.
    fn varies(&self, run: &Range<usize>) -> bool {
        let spread = |side: &[f32]| {
            let lines = side.get(run.clone()).unwrap_or_default();
            let mean = lines.iter().copied().map(f64::from).sum::<f64>() / lines.len() as f64;
            let squares = lines.iter().map(|length| (f64::from(*length) - mean).powi(2));
            (squares.sum::<f64>() / lines.len() as f64).sqrt()
        };
        spread(&self.source) > 0.3 && spread(&self.target) > 0.3
    }

    /// Pearson's correlation of a block's lines with those `offset` lines further on, and the number of lines compared.
    fn correlation(&self, start: usize, end: usize, offset: isize) -> Option<(f64, usize)> {
        let opposite = |i: usize| i.checked_add_signed(offset).and_then(|j| self.target.get(j));
        let both = |i: usize| Some((f64::from(self.source[i]), f64::from(*opposite(i)?)));
        let pairs: Vec<(f64, f64)> = (start..end).filter_map(both).collect();
        let count = pairs.len() as f64;
        if pairs.len() < LEAST {
            return None;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum::<f64>();
        let spread = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
        // Lines of equal lengths give no evidence.
        Some(if spread > 1e-9 { (sum(&|a, b| a * b) / spread, pairs.len()) } else { (0.0, pairs.len()) })
    }

    /// The line at which a shift by `offset` begins: before it, opposite lines differ less in length; from it on,
    /// shifted lines do. Source lines that lie between, because their translations were lost, belong to the shift.
    fn beginning(&self, from: usize, end: usize, offset: isize) -> usize {
        // Lines before this one have none that far back.
        let first = offset.min(0).unsigned_abs();
        let start = change(from.max(first)..end, |i| self.difference(i, 0) - self.difference(i, offset));
        if offset >= 0 || start >= end {
            return start;
        }
        let mean = |offset| (start..end).map(|i| self.difference(i, offset)).sum::<f64>() / (end - start) as f64;
        // Between what lines differ by that belong together, and by chance.
        let middle = f64::midpoint(mean(offset), mean(0));
        let lost = from.max(start.saturating_sub(offset.unsigned_abs()))..start;
        change(lost, |i| self.difference(i, 0) - middle)
    }

    /// How much more than usual line i of the source and line i + offset of the target differ in length; 0 if there is
    /// none.
    fn difference(&self, i: usize, offset: isize) -> f64 {
        let opposite = i.checked_add_signed(offset).and_then(|j| self.target.get(j));
        opposite.map_or(0.0, |target| (f64::from(self.source[i]) - f64::from(*target) - self.usual).abs())
    }
}

/// The line before which the sum of a difference is least: up to there it is mostly below 0, and from there on above.
fn change(lines: Range<usize>, difference: impl Fn(usize) -> f64) -> usize {
    let (mut sum, mut least) = (0.0, (0.0, lines.start));
    for i in lines {
        sum += difference(i);
        if sum < least.0 {
            least = (sum, i + 1);
        }
    }
    least.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::key;

    /// Lengths of lines, and of translations that are 90 to 129 % as long.
    fn lengths(lines: usize) -> (Vec<u32>, Vec<u32>) {
        let draw = |what: &str, i: usize, range: u64| key(3, what, &[i as u64]) % range;
        let source: Vec<u32> = (0..lines).map(|i| 10 + draw("length", i, 120) as u32).collect();
        let target = source.iter().enumerate().map(|(i, length)| length * (90 + draw("times", i, 40) as u32) / 100);
        let target = target.collect();
        (source, target)
    }

    #[test]
    fn a_line_lost_is_found_where_it_was() {
        for lines in [40, 131, 250, 1000] {
            let (source, target) = lengths(lines);
            assert_eq!(shifts(&source, &target), [], "{lines}");
        }
        for (lost, end) in [(0, 999), (417, 999), (700, 999)] {
            let (mut source, target) = lengths(1000);
            source.remove(lost);
            let found = shifts(&source, &target);
            let [Shift { start, end: found_end, offset: Some(1) }] = found[..] else { panic!("{found:?}") };
            assert!(start.abs_diff(lost) <= 3 && found_end == end, "{found:?}");
        }
        let (source, mut target) = lengths(400);
        target.drain(100..103);
        let found = shifts(&source, &target);
        assert!(matches!(found[..], [Shift { offset: Some(-3), .. }]), "{found:?}");
    }

    /// Blank and enormous lines that are as far apart on both sides do not make a shift of the good pairs around them.
    #[test]
    fn a_few_odd_lines_are_no_shift() {
        for lines in [100, 1000] {
            let (mut source, mut target) = lengths(lines);
            for (at, length) in [(20, 0), (30, 5600)] {
                source[at] = length;
                target[at + 2] = length;
            }
            assert_eq!(shifts(&source, &target), [], "{lines}");
        }
    }

    #[test]
    fn many_lines_lost_are_found_too() {
        for lost in [11, 50, 400] {
            let (mut source, target) = lengths(3000);
            source.drain(1000..1000 + lost);
            let found = shifts(&source, &target);
            let [Shift { start, offset, .. }] = found[..] else { panic!("{found:?}") };
            assert!(start.abs_diff(1000) <= 5 && offset == Some(lost as isize), "{found:?}");
        }
    }

    /// The counterparts of the lost lines have no translations, either.
    #[test]
    fn pairs_are_wrong_from_the_first_lost_translation_on() {
        for lost in [7, 50, 400, 900] {
            let (source, mut target) = lengths(5000);
            target.drain(1000..1000 + lost);
            let found = shifts(&source, &target);
            let [Shift { start, offset, .. }] = found[..] else { panic!("{found:?}") };
            assert!(start.abs_diff(1000) <= 10 && offset == Some(-(lost as isize)), "{lost}: {found:?}");
        }
    }

    #[test]
    fn shuffled_lines_belong_nowhere() {
        let (source, mut target) = lengths(5000);
        crate::rng::Stream::new(5, "shuffle").shuffle(&mut target[2000..]);
        let found = shifts(&source, &target);
        let [Shift { start: 2000..=2100, end: 5000, offset: None }] = found[..] else { panic!("{found:?}") };
    }

    #[test]
    fn it_may_be_mended_further_on() {
        let (mut source, mut target) = lengths(1000);
        source.remove(200);
        target.remove(600);
        let found = shifts(&source, &target);
        let [Shift { start, end, offset: Some(1) }] = found[..] else { panic!("{found:?}") };
        assert!(start.abs_diff(200) <= 3 && end.abs_diff(600) <= BLOCK, "{found:?}");
    }

    #[test]
    fn two_extreme_lengths_are_no_shift() {
        let (mut source, mut target) = lengths(400);
        (source[3], target[5]) = (1_000_000, 1_200_000);
        assert_eq!(shifts(&source, &target), []);
    }

    #[test]
    fn other_texts_are_not_shifted() {
        // No translation of each other at all; equal lengths; sorted by length; hardly any.
        let (source, _) = lengths(500);
        let other: Vec<u32> = (0..500).map(|i| 10 + (key(4, "other", &[i]) % 120) as u32).collect();
        assert_eq!(shifts(&source, &other), []);
        assert_eq!(shifts(&[20; 300], &[30; 300]), []);
        let sorted: Vec<u32> = (0..300).collect();
        assert_eq!(shifts(&sorted, &sorted), []);
        assert_eq!(shifts(&source[..20], &source[1..21]), []);
        assert_eq!(shifts(&[], &source), []);
    }
}
