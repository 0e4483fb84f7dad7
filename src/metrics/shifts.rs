//! The edit distance with shifts of TER (Snover et al. 2006, "A Study of Translation Edit Rate with Targeted Human
//! Annotation"): insertions, deletions, substitutions, and moves of a block of words, each costing one.
//!
//! Finding the fewest is hard, so the search is greedy: it repeatedly makes the move that lowers the edit distance
//! most. Which moves are tried, which wins a tie, and how far from the diagonal the distance is computed are as in
//! sacrebleu 2.6.0, which follows Tercom; scores are only comparable if these agree.

use std::ops::Range;

/// The longest block that is moved.
const LONGEST_BLOCK: usize = 10;
/// The furthest that a block is moved, in words.
const FURTHEST: usize = 50;
/// Cells computed on each side of the diagonal.
const BEAM: usize = 25;
/// After this many moves have been tried for a line, no more are made.
const MOST_TRIED: usize = 1000;

/// Beyond any distance; one more does not overflow.
const UNREACHED: u32 = u32::MAX / 2;

/// A word's number.
type Word = u32;

/// The fewest edits found that turn `hypothesis` into `reference`.
pub(super) fn edits(hypothesis: &[Word], reference: &[Word]) -> usize {
    if reference.is_empty() {
        return hypothesis.len();
    }
    let mut words = hypothesis.to_vec();
    let mut table = Table::new(words.len(), reference);
    let (mut shifts, mut tried) = (0, 0);
    loop {
        let distance = table.fill(&words, 0);
        let best = table.best_shift(&words, distance, &mut tried);
        match best {
            Some(best) if best.gain > 0 && tried < MOST_TRIED => {
                best.shift.apply(&mut words);
                shifts += 1;
            }
            _ => return shifts + distance as usize,
        }
    }
}

/// Moves a block of words to just before position `target`.
#[derive(Clone, Copy)]
struct Shift {
    start: usize,
    length: usize,
    target: usize,
}

impl Shift {
    /// The words that are moved past each other.
    fn range(self, words: usize) -> Range<usize> {
        let Self { start, length, target } = self;
        if target < start {
            target..start + length
        } else if target > start + length {
            start..target
        } else {
            // A target within the block moves it to the right by the target's offset in the block.
            start..(length + target).min(words)
        }
    }

    fn apply(self, words: &mut [Word]) {
        let range = self.range(words.len());
        if self.target < self.start {
            words[range].rotate_right(self.length);
        } else {
            words[range].rotate_left(self.length);
        }
    }
}

/// A shift, and by how much it lowers the edit distance.
struct Candidate {
    gain: i64,
    shift: Shift,
}

impl Candidate {
    /// The greatest gain, then the longest block, then the earliest, then the earliest target.
    fn beats(&self, other: &Self) -> bool {
        let rank = |of: &Self| {
            let Shift { start, length, target } = of.shift;
            (of.gain, length, std::cmp::Reverse(start), std::cmp::Reverse(target))
        };
        rank(self) > rank(other)
    }
}

/// The step by which a cell of the table is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Keep,
    Substitute,
    /// A word of the hypothesis is left out.
    Delete,
    /// A word of the reference is put in.
    Insert,
}

/// An alignment of hypothesis and reference.
struct Alignment {
    /// For each word of the reference, the position in the hypothesis after the words aligned with it or with earlier
    /// ones.
    behind: Vec<usize>,
    /// Whether a word of the reference is not matched.
    reference_errors: Vec<bool>,
    /// Whether a word of the hypothesis matches none.
    hypothesis_errors: Vec<bool>,
}

/// Distances between all prefixes of a hypothesis and of a reference, near the diagonal. Only the cells that are needed
/// are stored: a line may have a hundred thousand words.
struct Table<'a> {
    reference: &'a [Word],
    /// The columns stored for each row; row i is for the first i words of the hypothesis.
    columns: Vec<Range<usize>>,
    /// Where each row's cells begin.
    starts: Vec<usize>,
    /// The cells, row by row.
    cells: Vec<u32>,
    /// The cells after a shift; only the rows from the first one that it changes are valid.
    shifted: Vec<u32>,
    /// The words after a shift.
    words: Vec<Word>,
}

impl<'a> Table<'a> {
    fn new(rows: usize, reference: &'a [Word]) -> Self {
        let width = reference.len() + 1;
        let columns: Vec<Range<usize>> =
            (0..=rows).map(|row| if row == 0 { 0..width } else { beam(row, rows, reference.len()) }).collect();
        let mut end = 0;
        let mut start = |columns: &Range<usize>| {
            end += columns.len();
            end - columns.len()
        };
        let starts = columns.iter().map(&mut start).collect();
        let mut cells = vec![UNREACHED; end];
        cells.iter_mut().take(width).zip(0..).for_each(|(cell, insertions)| *cell = insertions);
        Self { reference, columns, starts, shifted: cells.clone(), cells, words: Vec::new() }
    }

    /// Words of the hypothesis.
    fn rows(&self) -> usize {
        self.columns.len() - 1
    }

    /// Where in `cells` a row is.
    fn cells_of_row(&self, row: usize) -> Range<usize> {
        self.starts[row]..self.starts[row] + self.columns[row].len()
    }

    /// Computes the distance of `words`.
    fn fill(&mut self, words: &[Word], from: usize) -> u32 {
        let mut cells = std::mem::take(&mut self.cells);
        self.rows_from(words, from, &mut cells);
        self.cells = cells;
        self.cells[self.cells.len() - 1]
    }

    /// Computes the rows after row `from` of a table.
    fn rows_from(&self, words: &[Word], from: usize, cells: &mut [u32]) {
        for row in from + 1..=self.rows() {
            let (before, rest) = cells.split_at_mut(self.starts[row]);
            let above = &before[self.starts[row - 1]..];
            let (first_above, columns) = (self.columns[row - 1].start, self.columns[row].clone());
            let at = |column: usize| match column.checked_sub(first_above) {
                Some(i) => above.get(i).copied().unwrap_or(UNREACHED),
                None => UNREACHED,
            };
            let word = words[row - 1];
            let mut left = UNREACHED;
            for (cell, column) in rest.iter_mut().zip(columns) {
                let mut cost = at(column) + 1;
                if column > 0 {
                    let substituted = at(column - 1) + u32::from(word != self.reference[column - 1]);
                    cost = cost.min(substituted).min(left + 1);
                }
                left = cost.min(UNREACHED);
                *cell = left;
            }
        }
    }

    /// The steps from the first cell to the last. A match or a substitution is preferred to a deletion, and that to an
    /// insertion.
    fn alignment(&self, words: &[Word]) -> Alignment {
        let width = self.reference.len() + 1;
        let cell = |row: usize, column: usize| match column.checked_sub(self.columns[row].start) {
            Some(i) if i < self.columns[row].len() => self.cells[self.starts[row] + i],
            _ => UNREACHED,
        };
        let (mut row, mut column) = (self.rows(), width - 1);
        let mut steps = Vec::with_capacity(self.rows() + width);
        while row > 0 || column > 0 {
            let here = cell(row, column);
            let is_match = row > 0 && column > 0 && words[row - 1] == self.reference[column - 1];
            let step = if row > 0 && column > 0 && cell(row - 1, column - 1) + u32::from(!is_match) == here {
                if is_match { Step::Keep } else { Step::Substitute }
            } else if row > 0 && cell(row - 1, column) + 1 == here {
                Step::Delete
            } else {
                Step::Insert
            };
            steps.push(step);
            row -= usize::from(step != Step::Insert);
            column -= usize::from(step != Step::Delete);
        }
        let mut alignment = Alignment {
            behind: Vec::with_capacity(width),
            reference_errors: Vec::with_capacity(width),
            hypothesis_errors: Vec::with_capacity(self.rows()),
        };
        for step in steps.into_iter().rev() {
            let is_error = step != Step::Keep;
            if step != Step::Insert {
                alignment.hypothesis_errors.push(is_error);
            }
            if step != Step::Delete {
                alignment.reference_errors.push(is_error);
                alignment.behind.push(alignment.hypothesis_errors.len());
            }
        }
        alignment
    }

    /// The shift that lowers the distance most. It tries only blocks with an error in them, and only positions where
    /// the reference has the same words, not all of them matched.
    fn best_shift(&mut self, words: &[Word], distance: u32, tried: &mut usize) -> Option<Candidate> {
        let Alignment { behind, reference_errors, hypothesis_errors } = self.alignment(words);
        let mut best: Option<Candidate> = None;
        let reference = self.reference;
        for (start, at, length) in same_blocks(words, reference) {
            let has_error = |errors: &[bool], from: usize| errors[from..from + length].contains(&true);
            // `behind` is the number of words of the hypothesis up to the aligned one, so that this one's index is one
            // less.
            let is_inside = (start + 1..=start + length).contains(&behind[at]);
            if !has_error(&hypothesis_errors, start) || !has_error(&reference_errors, at) || is_inside {
                continue;
            }
            let mut last = None;
            for offset in 0..=length {
                // The candidates: after the reference word before the block, and after each word of the block.
                let target = match (at + offset).checked_sub(1) {
                    None => 0,
                    Some(word) => match behind.get(word) {
                        Some(target) => *target,
                        None => break,
                    },
                };
                if last.replace(target) == Some(target) {
                    continue;
                }
                let shift = Shift { start, length, target };
                let gain = i64::from(distance) - i64::from(self.distance_after(shift, words));
                *tried += 1;
                let candidate = Candidate { gain, shift };
                if best.as_ref().is_none_or(|best| candidate.beats(best)) {
                    best = Some(candidate);
                }
            }
            if *tried >= MOST_TRIED {
                break;
            }
        }
        best
    }

    /// The distance after a shift. Rows before the first word that it moves do not change.
    fn distance_after(&mut self, shift: Shift, words: &[Word]) -> u32 {
        let first = shift.range(words.len()).start;
        let (mut shifted, mut moved) = (std::mem::take(&mut self.shifted), std::mem::take(&mut self.words));
        moved.clear();
        moved.extend_from_slice(words);
        shift.apply(&mut moved);
        let row = self.cells_of_row(first);
        shifted[row.clone()].copy_from_slice(&self.cells[row]);
        self.rows_from(&moved, first, &mut shifted);
        (self.shifted, self.words) = (shifted, moved);
        self.shifted[self.shifted.len() - 1]
    }
}

/// The columns of a row to compute, around the diagonal of the (not square) table; the last row extends to its end.
fn beam(row: usize, rows: usize, reference: usize) -> Range<usize> {
    let ratio = reference as f64 / rows as f64;
    let beam = if (BEAM as f64) < ratio / 2.0 { (ratio / 2.0 + BEAM as f64).ceil() as usize } else { BEAM };
    let diagonal = (row as f64 * ratio).floor() as usize;
    let end = if row == rows { reference + 1 } else { (reference + 1).min(diagonal + beam) };
    diagonal.saturating_sub(beam)..end
}

/// Blocks of words that occur in both, at most [`FURTHEST`] apart: start in the hypothesis, start in the reference,
/// length.
fn same_blocks<'a>(
    hypothesis: &'a [Word],
    reference: &'a [Word],
) -> impl Iterator<Item = (usize, usize, usize)> + use<'a> {
    let pairs = move |start: usize| {
        let near = start.saturating_sub(FURTHEST)..reference.len().min(start + FURTHEST + 1);
        near.map(move |at| (start, at))
    };
    (0..hypothesis.len()).flat_map(pairs).flat_map(move |(start, at)| {
        let same = hypothesis[start..].iter().zip(&reference[at..]).take_while(|(a, b)| a == b);
        (1..=same.take(LONGEST_BLOCK).count()).map(move |length| (start, at, length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Word> {
        text.bytes().map(Word::from).collect()
    }

    #[test]
    fn edits_by_hand() {
        for (hypothesis, reference, expected) in
            [("abcd", "abcd", 0), ("cdab", "abcd", 1), ("abxd", "abcd", 1), ("", "abc", 3), ("abc", "", 3), ("", "", 0)]
        {
            assert_eq!(edits(&words(hypothesis), &words(reference)), expected, "{hypothesis} {reference}");
        }
    }

    /// With all cells kept, a line like this would take 40 GB.
    #[test]
    fn long_lines_take_little_memory() {
        let reference: Vec<Word> = (0..100_000).collect();
        let mut hypothesis = reference.clone();
        hypothesis[70_000] = Word::MAX;
        assert_eq!(edits(&hypothesis, &reference), 1);
    }
}
