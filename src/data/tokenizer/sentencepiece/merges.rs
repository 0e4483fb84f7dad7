//! Byte-pair encoding as SentencePiece does it: over the whole line, the best-scored pair of all first, the leftmost of
//! equals.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::Segment;
use super::model::Pieces;
use super::trie::Trie;

/// A stretch of the line that has become one symbol, in a linked list.
struct Symbol {
    previous: Option<usize>,
    next: Option<usize>,
    start: usize,
    /// The same as `start` where it was merged into the symbol before it.
    end: usize,
    /// A user-defined piece, which is not merged.
    frozen: bool,
}

impl Symbol {
    fn len(&self) -> usize {
        self.end - self.start
    }
}

/// Two symbols side by side that make a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Length of both together, in bytes: it shows if one of them has changed since.
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        // No score is NaN. Not `total_cmp`, for which 0 is more than -0.
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// A line during merging.
struct Line<'a> {
    text: &'a str,
    pieces: &'a Pieces,
    symbols: Vec<Symbol>,
    agenda: BinaryHeap<Pair>,
    /// For each unused piece that came up, the length of its left part.
    divided: HashMap<&'a str, usize>,
}

/// The pieces of a normalised line; `kept` has the user-defined ones.
pub(super) fn segment(pieces: &Pieces, kept: Option<&Trie>, text: &str) -> Vec<Segment> {
    let mut line = Line::new(text, pieces, kept);
    for right in 1..line.symbols.len() {
        line.offer(Some(right - 1), Some(right));
    }
    while let Some(Pair { left, right, length, .. }) = line.agenda.pop() {
        line.merge(left, right, length);
    }
    line.finish()
}

impl<'a> Line<'a> {
    /// Its characters and user-defined pieces.
    fn new(text: &'a str, pieces: &'a Pieces, kept: Option<&Trie>) -> Self {
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut start = 0;
        while let Some(rest) = text.get(start..)
            && let Some(first) = rest.chars().next()
        {
            let found = kept.and_then(|kept| kept.longest(rest.as_bytes()));
            let end = start + found.unwrap_or(first.len_utf8());
            let (here, frozen) = (symbols.len(), found.is_some());
            symbols.push(Symbol { previous: here.checked_sub(1), next: Some(here + 1), start, end, frozen });
            start = end;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        Self { text, pieces, symbols, agenda: BinaryHeap::new(), divided: HashMap::new() }
    }

    /// Queues a pair if it makes a piece.
    fn offer(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (Some(a), Some(b)) = (self.symbols.get(left), self.symbols.get(right)) else { return };
        if a.frozen || b.frozen {
            return;
        }
        let text = self.text.get(a.start..b.end).unwrap_or_default();
        let Some(id) = self.pieces.text_id(text) else { return };
        self.agenda.push(Pair { score: self.pieces.score(id), left, right, length: text.len() });
        if self.pieces.is_unused(id) {
            self.divided.insert(text, a.len());
        }
    }

    /// Merges a pair, unless one of its symbols has changed since it was queued.
    fn merge(&mut self, left: usize, right: usize, length: usize) {
        let (Some(a), Some(b)) = (self.symbols.get(left), self.symbols.get(right)) else { return };
        if a.len() == 0 || b.len() == 0 || a.len() + b.len() != length {
            return;
        }
        let (end, next) = (b.end, b.next);
        if let Some(b) = self.symbols.get_mut(right) {
            b.end = b.start;
        }
        if let Some(after) = next.and_then(|next| self.symbols.get_mut(next)) {
            after.previous = Some(left);
        }
        let Some(a) = self.symbols.get_mut(left) else { return };
        (a.end, a.next) = (end, next);
        let previous = a.previous;
        self.offer(previous, Some(left));
        self.offer(Some(left), next);
    }

    /// The symbols that are left, unused pieces taken apart again.
    fn finish(self) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut open = Vec::new();
        let mut here = (!self.symbols.is_empty()).then_some(0);
        while let Some(symbol) = here.and_then(|here| self.symbols.get(here)) {
            open.push((symbol.start, symbol.end));
            while let Some((start, end)) = open.pop() {
                let text = self.text.get(start..end).unwrap_or_default();
                // Text that looks like a control symbol is not one.
                let id = self.pieces.text_id(text).unwrap_or(self.pieces.unknown());
                match self.divided.get(text).filter(|_| self.pieces.is_unused(id)) {
                    Some(&left) => open.extend([(start + left, end), (start, start + left)]),
                    None => segments.push(Segment { start, end, id }),
                }
            }
            here = symbol.next;
        }
        segments
    }
}
