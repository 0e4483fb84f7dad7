//! Targets: one token at a time for every live row.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::attend_row;
use super::weights::Linear;
use super::{Engine, Sharing, Source, Workspace, blocks, grown};
use crate::ops::memory::{Scratch, SharedRows};

/// Rows of a block: enough that reading the weights takes little time compared with using them.
pub(super) const BLOCK_ROWS: usize = 128;

/// The target tokens that each sentence may be translated with.
#[derive(Debug)]
struct Allowed {
    /// Those of each sentence, ascending.
    tokens: Vec<Vec<u32>>,
    /// Their columns in `output`.
    columns: Vec<Vec<u32>>,
    /// The output layer, reduced to the allowed tokens of all sentences.
    output: Linear,
}

impl Allowed {
    fn new(tokens: Vec<Vec<u32>>, output: &Linear) -> Self {
        let mut all = tokens.concat();
        all.sort_unstable();
        all.dedup();
        let mut column_of = vec![0; output.width()];
        (0..).zip(&all).for_each(|(column, &token)| column_of[token as usize] = column);
        let columns = tokens.iter().map(|list| list.iter().map(|&token| column_of[token as usize]).collect()).collect();
        Self { output: output.subset(&all), columns, tokens }
    }
}

/// What a batch of sentences has produced so far.
#[derive(Debug)]
pub struct Session<'a> {
    engine: &'a Engine,
    source: Source,
    /// `None` if all tokens are.
    allowed: Option<Allowed>,
    /// One for each layer.
    cached: Vec<Cache>,
    /// For every live row, the rows of its ancestors by position, then its own.
    ancestors: Vec<Vec<u32>>,
    /// Number of target positions so far.
    position: usize,
    /// One for each block.
    work: Vec<Workspace>,
}

/// For every position, the keys and values of the rows that were live at that step, side by side, [rows, H·(K + d_v)].
///
/// They lie in pages of one size, so that the next sentences can reuse them: buffers that fit each step's rows would
/// come in too many sizes.
#[derive(Debug, Default)]
struct Cache {
    pages: Vec<Scratch>,
    /// Page and range of each position.
    positions: Vec<(usize, Range<usize>)>,
}

impl Cache {
    /// Adds a position of `len` numbers; returns the positions before it, and the new one for writing.
    fn push(&mut self, len: usize) -> (Vec<&[f32]>, &mut [f32]) {
        const PAGE: usize = 1 << 18;
        let end = self.positions.last().map_or(0, |(_, range)| range.end);
        let start = match self.pages.last() {
            Some(page) if end + len <= page.len() => end,
            _ => {
                self.pages.push(Scratch::new(len.max(PAGE)));
                0
            }
        };
        let last = self.pages.len() - 1;
        let (full, rest) = self.pages.split_at_mut(last);
        let (used, free) = rest[0].split_at_mut(start);
        let page = |page: usize| if page < last { &full[page][..] } else { &*used };
        let past = self.positions.iter().map(|(number, range)| &page(*number)[range.clone()]).collect();
        self.positions.push((last, start..start + len));
        (past, &mut free[..len])
    }
}

/// What the blocks of one step share.
struct Step<'a> {
    engine: &'a Engine,
    source: &'a Source,
    tokens: &'a [u32],
    sentences: &'a [usize],
    ancestors: &'a [Vec<u32>],
    position: usize,
    sharing: Sharing,
    /// The output layer, of all tokens or of the allowed ones.
    output: &'a Linear,
    allowed: Option<&'a Allowed>,
    /// Keys and values of the positions before this one, by layer.
    past: Vec<Vec<&'a [f32]>>,
    /// Keys and values of this position, for writing, by layer.
    new: Vec<SharedRows<'a>>,
}

impl Engine {
    /// Begins to decode. `allowed` has the target tokens that each sentence may use, ascending; `None` allows all.
    pub fn begin(&self, source: Source, allowed: Option<Vec<Vec<u32>>>) -> Session<'_> {
        let cached = self.decoder.layers.iter().map(|_| Cache::default()).collect();
        let allowed = allowed.map(|tokens| Allowed::new(tokens, &self.output));
        Session { engine: self, source, allowed, cached, ancestors: Vec::new(), position: 0, work: Vec::new() }
    }
}

impl Session<'_> {
    /// Begins again with the same sentences.
    pub fn restart(&mut self) {
        self.cached.iter_mut().for_each(|cache| *cache = Cache::default());
        self.ancestors.clear();
        self.position = 0;
    }

    /// Extends the ancestors: the rows of this step continue rows `parents` of the last one.
    fn advance(&mut self, parents: &[usize]) {
        let old = std::mem::take(&mut self.ancestors);
        let line = |(row, &parent): (usize, &usize)| {
            let mut line = Vec::with_capacity(self.position + 1);
            if self.position > 0 {
                line.extend_from_slice(&old[parent]);
            }
            line.push(row as u32);
            line
        };
        self.ancestors = parents.iter().enumerate().map(line).collect();
    }

    /// One step: row r continues row `parents[r]` of the last step with `tokens[r]`, for sentence `sentences[r]`; at
    /// the first step the values in `parents` are ignored. `answer` gets each row's number, its logits (which it may
    /// change), the tokens of the logits if not all are allowed, and the row's part of `answers`, equally long for
    /// every row.
    pub fn step<T: Send>(
        &mut self,
        tokens: &[u32],
        parents: &[usize],
        sentences: &[usize],
        answers: &mut [T],
        answer: impl Fn(usize, &mut [f32], Option<&[u32]>, &mut [T]) + Sync,
    ) {
        let rows = tokens.len();
        if rows == 0 {
            return;
        }
        self.advance(parents);
        let allowed = self.allowed.as_ref();
        let (width, per_row) = (self.engine.common.cached_width(), answers.len() / rows);
        let (mut past, mut new) = (Vec::with_capacity(self.cached.len()), Vec::with_capacity(self.cached.len()));
        for layer in &mut self.cached {
            let (before, last) = layer.push(rows * width);
            past.push(before);
            new.push(SharedRows::new(last, width));
        }
        let (blocks, sharing) = blocks(&vec![1; rows], BLOCK_ROWS);
        let step = Step {
            engine: self.engine,
            source: &self.source,
            tokens,
            sentences,
            ancestors: &self.ancestors,
            position: self.position,
            sharing,
            output: allowed.map_or(&self.engine.output, |allowed| &allowed.output),
            allowed,
            past,
            new,
        };
        if self.work.len() < blocks.len() {
            self.work.resize_with(blocks.len(), Workspace::default);
        }
        let mut rest = answers;
        let mut tasks = Vec::with_capacity(blocks.len());
        for (block, work) in blocks.into_iter().zip(&mut self.work) {
            let (answers, after) = rest.split_at_mut(block.len() * per_row);
            rest = after;
            tasks.push((block, work, answers));
        }
        let run = |(block, work, answers): (Range<usize>, &mut Workspace, &mut [T])| {
            step.block(block.clone(), work);
            step.answer_block(block, work, answers, &answer);
        };
        match sharing {
            Sharing::Columns => tasks.into_iter().for_each(run),
            Sharing::Alone => tasks.into_par_iter().with_max_len(1).for_each(run),
        }
        self.position += 1;
    }
}

impl Step<'_> {
    /// Leaves the decoder's states of a block of rows in `work.x`.
    fn block(&self, block: Range<usize>, work: &mut Workspace) {
        let (engine, sharing) = (self.engine, self.sharing);
        let d = engine.common.config.d_model;
        work.x.clear();
        work.x.resize(block.len() * d, 0.0);
        for (x, &token) in work.x.chunks_exact_mut(d).zip(&self.tokens[block.clone()]) {
            engine.common.embed(engine.table(&engine.target_table), &engine.decoder, token, self.position, x);
        }
        engine.common.normalise(engine.decoder.embedding_norm.as_ref(), work);
        for (index, layer) in engine.decoder.layers.iter().enumerate() {
            let attention = &layer.attention;
            engine.common.sublayer(&attention.norm, &attention.output.bias, work, |input, h, wide, heads| {
                let packed = grown(wide, block.len() * attention.query_key_value.width());
                attention.query_key_value.apply(input, packed, sharing);
                let heads = self.self_attention(index, block.clone(), packed, heads);
                attention.output.product(heads, h, sharing);
            });
            if let Some(cross) = &layer.cross {
                engine.common.sublayer(&cross.norm, &cross.output.bias, work, |input, h, wide, heads| {
                    let queries = grown(wide, block.len() * cross.query.width());
                    cross.query.apply(input, queries, sharing);
                    let heads = self.cross_attention(index, block.clone(), queries, heads);
                    cross.output.product(heads, h, sharing);
                });
            }
            engine.common.feed_forward(&layer.feed_forward, work, sharing);
        }
        engine.common.normalise(engine.decoder.final_norm.as_ref(), work);
    }

    /// From the states of a block of rows in `work.x` to their logits, and from these to the answers: see
    /// [`Session::step`].
    fn answer_block<T>(
        &self,
        block: Range<usize>,
        work: &mut Workspace,
        answers: &mut [T],
        answer: &impl Fn(usize, &mut [f32], Option<&[u32]>, &mut [T]),
    ) {
        let d = self.engine.common.config.d_model;
        // Few rows at a time, so that their logits stay in a thread's cache, but more in wider models, since the whole
        // matrix is read each time.
        let chunk = (d / 10).max(1).next_multiple_of(12);
        let (outputs, per_row) = (self.output.width(), answers.len() / block.len());
        let Workspace { x, logits, wide, .. } = work;
        let chunks = x.chunks(chunk * d).zip(answers.chunks_mut(chunk * per_row));
        for (first, (x, answers)) in block.step_by(chunk).zip(chunks) {
            let logits = grown(logits, answers.len() / per_row * outputs);
            self.output.apply(x, logits, self.sharing);
            let rows = logits.chunks_exact_mut(outputs).zip(answers.chunks_exact_mut(per_row));
            for (row, (logits, answers)) in (first..).zip(rows) {
                let Some(Allowed { tokens, columns, .. }) = self.allowed else {
                    answer(row, logits, None, answers);
                    continue;
                };
                // Only the logits of its own tokens, independent of the other sentences.
                let sentence = self.sentences[row];
                wide.clear();
                wide.extend(columns[sentence].iter().map(|&column| logits[column as usize]));
                answer(row, wide, Some(&tokens[sentence]), answers);
            }
        }
    }

    /// Attention of every row to its ancestors and itself. packed: queries, keys and values side by side.
    fn self_attention<'a>(
        &self,
        layer: usize,
        block: Range<usize>,
        packed: &mut [f32],
        heads: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let config = &self.engine.common.config;
        let shape = [config.heads, config.d_k, config.d_v];
        let (keys, cached) = (shape[0] * shape[1], self.engine.common.cached_width());
        let width = keys + cached;
        if let Some(rotary) = &self.engine.common.rotary {
            // One position per step, queries and keys side by side.
            rotary.turn(packed, width, 2 * shape[0], self.position, 1);
        }
        // SAFETY: blocks are disjoint ranges of rows.
        let new = unsafe { self.new[layer].rows(block.clone()) };
        let out = grown(heads, block.len() * shape[0] * shape[2]);
        let (mut seen, mut scores) = (Vec::with_capacity(self.position + 1), Vec::new());
        let added = self.engine.decoder.by_distance(self.position, self.position + 1, shape[0]);
        let rows = packed.chunks_exact(width).zip(new.chunks_exact_mut(cached));
        for ((row, (packed, new)), out) in block.zip(rows).zip(out.chunks_exact_mut(shape[0] * shape[2])) {
            new.copy_from_slice(&packed[keys..]);
            seen.clear();
            let past = self.past[layer].iter().zip(&self.ancestors[row]);
            seen.extend(past.map(|(step, &ancestor)| &step[ancestor as usize * cached..][..cached]));
            seen.push(&packed[keys..]);
            attend_row(&packed[..keys], &seen, added, shape, &mut scores, out);
        }
        out
    }

    /// Attention of every row to its source.
    fn cross_attention<'a>(
        &self,
        layer: usize,
        block: Range<usize>,
        queries: &[f32],
        heads: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let config = &self.engine.common.config;
        let shape = [config.heads, config.d_k, config.d_v];
        let (keys, cached) = (shape[0] * shape[1], self.engine.common.cached_width());
        let out = grown(heads, block.len() * shape[0] * shape[2]);
        let (mut seen, mut scores) = (Vec::new(), Vec::new());
        let rows = queries.chunks_exact(keys).zip(out.chunks_exact_mut(shape[0] * shape[2]));
        for (&sentence, (query, out)) in self.sentences[block].iter().zip(rows) {
            let rows = self.source.starts[sentence]..self.source.starts[sentence + 1];
            let source = &self.source.cached[layer][rows.start * cached..rows.end * cached];
            seen.clear();
            seen.extend(source.chunks_exact(cached));
            attend_row(query, &seen, &[], shape, &mut scores, out);
        }
        out
    }
}
