//! Sources: from tokens to the keys and values that decoders attend to.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::attend_row;
use super::{Engine, Sharing, Workspace, blocks, grown};
use crate::ops::memory::{Scratch, SharedRows};

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
        /// Rows of a block: enough for fast products, and few enough that its activations stay in a thread's cache.
        const BLOCK_ROWS: usize = 96;
        let lengths: Vec<usize> = sentences.iter().map(|sentence| sentence.len()).collect();
        let mut starts = vec![0];
        starts.extend(lengths.iter().scan(0, |sum, length| {
            *sum += length;
            Some(*sum)
        }));
        let (rows, width) = (starts[sentences.len()], self.cached_width());
        // Rounded to few different sizes, so that buffers are reused for other sentences.
        let buffer = || Scratch::new((rows * width).next_power_of_two());
        let mut cached: Vec<Scratch> = self.decoder.layers.iter().map(|_| buffer()).collect();
        let shared: Vec<SharedRows> =
            cached.iter_mut().map(|layer| SharedRows::new(&mut layer[..rows * width], width)).collect();
        let (blocks, sharing) = blocks(&lengths, BLOCK_ROWS);
        let encode = |block: Range<usize>| {
            let mut work = Workspace::default();
            self.encode_block(&sentences[block.clone()], &mut work, sharing);
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

    /// Leaves the encoder's states in `work.x`.
    fn encode_block(&self, sentences: &[&[u32]], work: &mut Workspace, sharing: Sharing) {
        let d = self.config.d_model;
        let rows: usize = sentences.iter().map(|sentence| sentence.len()).sum();
        work.x.clear();
        work.x.resize(rows * d, 0.0);
        let tokens = sentences.iter().flat_map(|sentence| sentence.iter().enumerate());
        for (x, (position, &token)) in work.x.chunks_exact_mut(d).zip(tokens) {
            self.embed(&self.source_table, &self.encoder, token, position, x);
        }
        self.normalise(self.encoder.embedding_norm.as_ref(), work);
        for layer in &self.encoder.layers {
            let attention = &layer.attention;
            self.sublayer(&attention.norm, &attention.output.bias, work, |input, h, wide, heads| {
                let packed = grown(wide, rows * attention.query_key_value.width());
                attention.query_key_value.apply(input, packed, sharing);
                let heads = grown(heads, rows * self.config.heads * self.config.d_v);
                self.attend_sentences(sentences, packed, heads);
                attention.output.product(heads, h, sharing);
            });
            self.feed_forward(&layer.feed_forward, work, sharing);
        }
        self.normalise(self.encoder.final_norm.as_ref(), work);
    }

    /// Attention of every row of a sentence to all of its rows. packed: queries, keys and values side by side.
    fn attend_sentences(&self, sentences: &[&[u32]], packed: &mut [f32], out: &mut [f32]) {
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
            for (row, result) in rows.chunks_exact(width).zip(results.chunks_exact_mut(shape[0] * shape[2])) {
                attend_row(&row[..keys], &seen, shape, &mut scores, result);
            }
        }
    }
}
