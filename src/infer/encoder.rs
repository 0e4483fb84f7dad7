//! The encoder: from tokens to states, and of a translator to the keys and values that its decoder attends to.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::attend_row;
use super::weights::Weight;
use super::{Common, ComputeType, Engine, Layers, Lookup, Sharing, Workspace, blocks, grown};
use crate::error::Result;
use crate::model::{ModelConfig, Stack};
use crate::ops::memory::{Scratch, SharedRows};

/// Rows of a block: enough for fast products, and few enough that its activations stay in a thread's cache.
const BLOCK_ROWS: usize = 96;

/// Encoded sentences, without padding: sentence i has the rows `starts[i]..starts[i + 1]`.
#[derive(Debug)]
pub struct Source {
    pub(super) starts: Vec<usize>,
    /// For each decoder layer, keys and values side by side, [rows, H·(K + d_v)]; the buffers may be longer.
    pub(super) cached: Vec<Scratch>,
}

impl Engine {
    /// Encodes sentences. Each is the ids of its tokens, including the end of the sentence.
    pub fn encode(&self, sentences: &[&[u32]]) -> Source {
        let lengths: Vec<usize> = sentences.iter().map(|sentence| sentence.len()).collect();
        let mut starts = vec![0];
        starts.extend(lengths.iter().scan(0, |sum, length| {
            *sum += length;
            Some(*sum)
        }));
        let (rows, width) = (starts[sentences.len()], self.common.cached_width());
        // Rounded to few different sizes, so that buffers are reused for other sentences.
        let buffer = || Scratch::new((rows * width).next_power_of_two());
        let mut cached: Vec<Scratch> = self.decoder.layers.iter().map(|_| buffer()).collect();
        let shared: Vec<SharedRows> =
            cached.iter_mut().map(|layer| SharedRows::new(&mut layer[..rows * width], width)).collect();
        let (blocks, sharing) = blocks(&lengths, BLOCK_ROWS);
        let side = Side { common: &self.common, table: self.table(&self.source_table), stack: &self.encoder };
        let encode = |block: Range<usize>| {
            let mut work = Workspace::default();
            side.encode_block(&sentences[block.clone()], &mut work, sharing, |_, _| ());
            let range = starts[block.start]..starts[block.end];
            for (layer, shared) in self.decoder.layers.iter().zip(&shared) {
                let Some(cross) = &layer.cross else { continue };
                // SAFETY: blocks are disjoint ranges of sentences, and so of rows.
                cross.key_value.apply(&work.x, unsafe { shared.rows(range.clone()) }, sharing);
            }
        };
        match sharing {
            Sharing::Columns => blocks.into_iter().for_each(encode),
            Sharing::Alone => blocks.into_par_iter().with_max_len(1).for_each(encode),
        }
        Source { starts, cached }
    }
}

/// An encoder alone, ready to compute states with.
#[derive(Debug)]
pub struct Encoder {
    common: Common,
    /// [V, D].
    table: Weight,
    stack: Layers,
}

impl Encoder {
    /// From a configuration and the parameters of its encoder by name.
    ///
    /// # Errors
    /// A parameter cannot be read.
    pub fn new(config: &ModelConfig, parameters: &Lookup<'_>, precision: ComputeType) -> Result<Self> {
        Ok(Self {
            common: Common::new(config),
            table: Weight::new(parameters, &["source_embedding.weight"], config.d_model, precision)?,
            stack: Layers::new(config, parameters, Stack::Encoder, precision)?,
        })
    }

    /// Runs sentences, given as token ids, through all layers, a block of them at a time. For each block, `begin` gets
    /// its sentences; `look` gets what that returned, and the states [rows, D] after the embedding (0) and after each
    /// layer (1 and so on). The result has what `begin` returned, by block, in order.
    pub fn states<T: Send>(
        &self,
        sentences: &[&[u32]],
        begin: impl Fn(Range<usize>) -> T + Sync,
        look: impl Fn(&mut T, usize, &[f32]) + Sync,
    ) -> Vec<T> {
        let lengths: Vec<usize> = sentences.iter().map(|sentence| sentence.len()).collect();
        let (blocks, sharing) = blocks(&lengths, BLOCK_ROWS);
        let side = Side { common: &self.common, table: &self.table, stack: &self.stack };
        let encode = |block: Range<usize>| {
            let (mut work, mut of_block) = (Workspace::default(), begin(block.clone()));
            side.encode_block(&sentences[block], &mut work, sharing, |layer, states| {
                look(&mut of_block, layer, states)
            });
            of_block
        };
        match sharing {
            Sharing::Columns => blocks.into_iter().map(encode).collect(),
            Sharing::Alone => blocks.into_par_iter().with_max_len(1).map(encode).collect(),
        }
    }
}

/// The encoder of an [`Engine`] or an [`Encoder`].
struct Side<'a> {
    common: &'a Common,
    table: &'a Weight,
    stack: &'a Layers,
}

impl Side<'_> {
    /// Leaves the encoder's states in `work.x`. `look` gets the states after the embedding (0) and after each layer.
    fn encode_block(
        &self,
        sentences: &[&[u32]],
        work: &mut Workspace,
        sharing: Sharing,
        mut look: impl FnMut(usize, &[f32]),
    ) {
        let Self { common, stack, .. } = *self;
        let config = &common.config;
        let d = config.d_model;
        let rows: usize = sentences.iter().map(|sentence| sentence.len()).sum();
        work.x.clear();
        work.x.resize(rows * d, 0.0);
        let tokens = sentences.iter().flat_map(|sentence| sentence.iter().enumerate());
        for (x, (position, &token)) in work.x.chunks_exact_mut(d).zip(tokens) {
            common.embed(self.table, stack, token, position, x);
        }
        common.normalise(stack.embedding_norm.as_ref(), work);
        look(0, &work.x);
        for (number, layer) in stack.layers.iter().enumerate() {
            let attention = &layer.attention;
            common.sublayer(&attention.norm, &attention.output.bias, work, |input, h, wide, heads| {
                let packed = grown(wide, rows * attention.query_key_value.width());
                attention.query_key_value.apply(input, packed, sharing);
                let heads = grown(heads, rows * config.heads * config.d_v);
                common.attend_sentences(stack, sentences, packed, heads);
                attention.output.product(heads, h, sharing);
            });
            common.feed_forward(&layer.feed_forward, work, sharing);
            look(number + 1, &work.x);
        }
        common.normalise(stack.final_norm.as_ref(), work);
    }
}

impl Common {
    /// Attention of every row of a sentence to all of its rows. packed: queries, keys and values side by side.
    fn attend_sentences(&self, stack: &Layers, sentences: &[&[u32]], packed: &mut [f32], out: &mut [f32]) {
        let shape = [self.config.heads, self.config.d_k, self.config.d_v];
        let (keys, width) = (shape[0] * shape[1], shape[0] * shape[1] + self.cached_width());
        let (mut packed, mut out) = (packed, out);
        let mut scores = Vec::new();
        for sentence in sentences {
            let (rows, rest) = packed.split_at_mut(sentence.len() * width);
            let (results, out_rest) = out.split_at_mut(sentence.len() * shape[0] * shape[2]);
            (packed, out) = (rest, out_rest);
            if let Some(rotary) = &self.rotary {
                rotary.turn(rows, width, 2 * shape[0], 0, sentence.len());
            }
            let seen: Vec<&[f32]> = rows.chunks_exact(width).map(|row| &row[keys..]).collect();
            let rows = rows.chunks_exact(width).zip(results.chunks_exact_mut(shape[0] * shape[2]));
            for (position, (row, result)) in rows.enumerate() {
                let added = stack.by_distance(position, seen.len(), shape[0]);
                attend_row(&row[..keys], &seen, added, shape, &mut scores, result);
            }
        }
    }
}
