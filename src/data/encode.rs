//! Filtering and splitting into subwords: a corpus becomes shards, once, on all cores.
//!
//! ```text
//! one thread reads blocks of pairs → all threads split their lines → in order: filter, shards → the sink
//! ```

use std::sync::mpsc::sync_channel;

use rayon::prelude::*;
use serde_json::{Value, json};

use super::corpus::{PairBlock, PairSource, Side, is_blank};
use super::filter::{DropReason, Filter};
use super::shard::{Builder, Elements, EncodedPair, Shard};
use super::tokenizers::Tokenizers;
use crate::error::{Error, Result};

/// Pairs that one task encodes: enough to hide the cost of a task, few enough to balance.
const CHUNK: usize = 256;
/// Blocks read ahead.
const AHEAD: usize = 2;

/// Turns lines into subwords.
pub trait Encode: Sync {
    /// The ids of a line, without special tokens.
    fn encode(&self, side: Side, line: &str) -> Vec<u32>;

    /// The form of the line that encoding works on: it has the same ids.
    fn encoded_form(&self, side: Side, line: &str) -> String;
}

impl Encode for Tokenizers {
    fn encode(&self, side: Side, line: &str) -> Vec<u32> {
        self.side(side).encode(line)
    }

    fn encoded_form(&self, side: Side, line: &str) -> String {
        self.side(side).encoded_form(line)
    }
}

/// How a corpus is prepared.
#[derive(Clone, Copy)]
pub struct Recipe<'a> {
    /// Splits the lines. A blank line has no subword, whatever this returns.
    pub encoder: &'a dyn Encode,
    /// Which pairs are kept.
    pub filter: Filter,
    /// What is kept of them.
    pub elements: Elements,
    /// How good they are, if that counts.
    pub quality: Option<Quality<'a>>,
}

/// The scores of a corpus, and the least that keeps a pair.
#[derive(Clone, Copy)]
pub struct Quality<'a> {
    /// One for each pair.
    pub scores: &'a [f32],
    /// Pairs with a lower score are dropped.
    pub least: f64,
    /// What tells the model that gave them from others.
    pub model: &'a Value,
}

impl Quality<'_> {
    /// What decides which pairs are dropped, beside the text.
    pub(super) fn key(self) -> Value {
        json!({ "least": self.least, "model": self.model })
    }
}

/// Called now and then with the number of pairs of a corpus read so far. An error ends the work.
pub type Progress<'a> = &'a dyn Fn(usize) -> Result<()>;

/// A corpus as shards in memory.
pub fn shards(corpus: &dyn PairSource, recipe: Recipe<'_>, progress: Progress<'_>) -> Result<Vec<Shard>> {
    let mut shards = Vec::new();
    let mut sink = |shard| {
        shards.push(shard);
        Ok(())
    };
    encode(corpus, recipe, 0, &mut sink, progress)?;
    Ok(shards)
}

/// Gives the pairs of a corpus from number `first` on, in shards, to `sink`. The order of the pairs is kept.
pub fn encode(
    corpus: &dyn PairSource,
    recipe: Recipe<'_>,
    first: usize,
    sink: &mut dyn FnMut(Shard) -> Result<()>,
    progress: Progress<'_>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (sender, blocks) = sync_channel(AHEAD);
        let read = move || {
            let send = |block: Result<PairBlock>| {
                let last = block.is_err();
                // A closed channel means that the work has ended with an error.
                sender.send(block).is_ok() && !last
            };
            let _ = match corpus.blocks() {
                Ok(mut blocks) => blocks.all(send),
                Err(error) => send(Err(error)),
            };
        };
        let thread = std::thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, read);
        thread.map_err(|error| Error::thread("reads the corpus", error))?;
        let empty = || Builder::new(recipe.elements, corpus.is_weighted());
        let mut builder = empty();
        let mut read = 0;
        for block in blocks {
            let block = block?;
            let skipped = first.saturating_sub(read).min(block.len());
            add(&block, (read, skipped), recipe, &mut builder)?;
            read += block.len();
            if builder.is_full() {
                sink(std::mem::replace(&mut builder, empty()).finish())?;
            }
            progress(read)?;
        }
        if !builder.is_empty() {
            sink(builder.finish())?;
        }
        Ok(())
    })
}

/// Encodes the pairs of a block, which comes after so many pairs, all but the first `skipped`, and adds them in order.
fn add(block: &PairBlock, (before, skipped): (usize, usize), recipe: Recipe<'_>, builder: &mut Builder) -> Result<()> {
    let work = |index| {
        let pair = encode_pair(block.get(index), recipe)?;
        let is_good = |Quality { scores, least, .. }: Quality<'_>| f64::from(scores[before + index]) >= least;
        if recipe.quality.is_none_or(is_good) { Ok(pair) } else { Err(DropReason::LowQuality) }
    };
    let pairs: Vec<_> = (skipped..block.len()).into_par_iter().with_min_len(CHUNK).map(work).collect();
    for (index, pair) in (skipped..).zip(pairs) {
        match pair {
            Ok((pair, [source, target])) => builder.keep(&pair, (&source, &target), block.weight(index))?,
            Err(reason) => builder.drop(reason),
        }
    }
    Ok(())
}

/// A pair's ids and, where they are wanted, its normalised lines; or why it is dropped.
type Encoded = std::result::Result<(EncodedPair, [String; 2]), DropReason>;

/// A line, or as much of an enormous one as shows that it is too long: in encoding, text without spaces takes a hundred
/// times its size in memory.
fn beginning<'l>(line: &'l str, side: Side, recipe: Recipe<'_>) -> &'l str {
    const LEAST: usize = 1 << 20;
    const BYTES_A_TOKEN: usize = 256;
    let most = recipe.filter.max_length;
    let first = &line[..line.floor_char_boundary(most.saturating_mul(BYTES_A_TOKEN).max(LEAST))];
    let is_shown = most > 0 && first.len() < line.len() && recipe.encoder.encode(side, first).len() > most;
    if is_shown { first } else { line }
}

fn encode_pair((source, target): (&str, &str), recipe: Recipe<'_>) -> Encoded {
    let [source, target] = [(source, Side::Source), (target, Side::Target)].map(|(l, side)| beginning(l, side, recipe));
    let normalise = |side, line| match recipe.elements {
        Elements::Text => recipe.encoder.encoded_form(side, line),
        _ => String::new(),
    };
    let texts = [normalise(Side::Source, source), normalise(Side::Target, target)];
    let encode = |side, line: &str, text: &str| match recipe.elements {
        _ if is_blank(line) => Vec::new(),
        // The normalised text, because each epoch will split that anew.
        Elements::Text => recipe.encoder.encode(side, text),
        _ => recipe.encoder.encode(side, line),
    };
    let ids = [encode(Side::Source, source, &texts[0]), encode(Side::Target, target, &texts[1])];
    match recipe.filter.check(ids[0].len(), ids[1].len()) {
        Some(reason) => Err(reason),
        None => {
            let [source, target] = ids;
            Ok((EncodedPair::new(source, target), texts))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A subword for each word; remembers the longest text that it was given.
    #[derive(Default)]
    struct Words(Mutex<usize>);

    impl Encode for Words {
        fn encode(&self, _: Side, line: &str) -> Vec<u32> {
            let mut longest = self.0.lock().unwrap();
            *longest = line.len().max(*longest);
            line.split_whitespace().map(|word| word.len() as u32).collect()
        }

        fn encoded_form(&self, _: Side, line: &str) -> String {
            line.to_owned()
        }
    }

    #[test]
    fn only_the_beginning_of_an_enormous_line_is_split() {
        let filter = Filter { max_length: 10, max_ratio: 0.0 };
        let encoded = |source: &str| {
            let words = Words::default();
            let found = encode_pair(
                (source, "a b"),
                Recipe { encoder: &words, filter, elements: Elements::NarrowIds, quality: None },
            );
            (found.map(|(pair, _)| pair.source.len()), words.0.into_inner().unwrap())
        };
        assert_eq!(encoded(&"ab ".repeat(1 << 20)), (Err(DropReason::SourceTooLong), 1 << 20));
        // Here the beginning does not show it.
        let gap = " ".repeat(2 << 20);
        assert_eq!(encoded(&format!("a{gap}b")), (Ok(2), gap.len() + 2));
        assert_eq!(encoded(&format!("a{gap}{}", "b ".repeat(10))).0, Err(DropReason::SourceTooLong));
    }
}
