//! Translation on the processor: a separate engine without tensors.
//!
//! ```text
//! Engine            weights, packed once                         mod.rs, weights.rs
//!   .encode         sentences -> Source: keys and values of the  encoder.rs
//!                   cross-attention of every layer
//!   .begin, .step   Session: one token for every live row        decoder.rs
//! Encoder           the encoder alone: states of every layer     encoder.rs
//! ```
//!
//! It computes the same as [`crate::model`], without gradients, and tests compare the two. It is fast because it never
//! computes padding, and a block of rows goes through all layers on one thread, with buffers kept from step to step.
//! (Only with few rows do threads divide the columns of a product instead.) Keys and values of a source are computed
//! once per sentence, and those of a target are never moved: a row stores, for every position, the row of its ancestor
//! there.
//!
//! Sums run in one order for any number of rows and threads: a sentence decodes to the same tokens alone and in a
//! batch.

mod attention;
mod decoder;
mod encoder;
mod weights;

use std::ops::Range;

pub use decoder::Session;
pub use encoder::{Encoder, Source};

use crate::error::Result;
use crate::model::positions::{self, PositionKind};
use crate::model::{ModelConfig, Stack, layout};
use crate::ops::dropout::Dropout;
use crate::ops::norm::{Addend, NormKind, NormWeights, add_rows, norm_rows};
use crate::ops::rotary::Rotary;
use crate::ops::sublayer::NormPlacement;
pub use weights::{ComputeType, Lookup, model_values};
use weights::{FeedForward, Layer, Linear, Weight};

/// A model's weights, ready to translate with.
#[derive(Debug)]
pub struct Engine {
    common: Common,
    /// Source embedding, [V, D]; `None` where it shares the matrix of the output projection.
    source_table: Option<Weight>,
    /// Target embedding, [V, D]; `None` as for the source.
    target_table: Option<Weight>,
    encoder: Layers,
    decoder: Layers,
    output: Linear,
}

/// What encoder and decoder have in common.
#[derive(Debug)]
struct Common {
    config: ModelConfig,
    rotary: Option<Rotary>,
}

/// The layers of one side.
#[derive(Debug)]
struct Layers {
    layers: Vec<Layer>,
    embedding_norm: Option<Norm>,
    final_norm: Option<Norm>,
    /// Added to the embeddings, [positions, D]; empty if there are none.
    positions: Vec<f32>,
    /// Added to the scores of self-attention by distance, [2·positions − 1, H]; empty if there are none.
    by_distance: Vec<f32>,
}

/// γ and, if there is one, β behind it, ε and kind.
#[derive(Debug)]
struct Norm {
    parameters: Vec<f32>,
    eps: f32,
    kind: NormKind,
}

impl Norm {
    fn weights(&self) -> NormWeights<'_> {
        NormWeights::new(&self.parameters, self.eps, self.kind)
    }
}

/// How threads divide the work on some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Each thread has its own rows.
    Alone,
    /// There are few rows: threads divide the columns of products among them.
    Columns,
}

/// Divides items into blocks of about `aim` rows or more, and decides how threads work on them. `items` has the number
/// of rows of each item; items are never split.
fn blocks(items: &[usize], aim: usize) -> (Vec<Range<usize>>, Sharing) {
    /// Rows per thread below which dividing columns is better: with fewer, reading the weights would take most of the
    /// time.
    const FEWEST_ROWS: usize = 8;
    let (rows, threads) = (items.iter().sum::<usize>(), rayon::current_num_threads());
    if threads == 1 || rows < FEWEST_ROWS * threads {
        return (std::iter::once(0..items.len()).collect(), Sharing::Columns);
    }
    let count = (rows / aim).next_multiple_of(threads).max(threads).min(items.len());
    let (mut blocks, mut start, mut before) = (Vec::with_capacity(count), 0, 0);
    for (i, size) in items.iter().enumerate() {
        before += size;
        if before * count >= (blocks.len() + 1) * rows {
            blocks.push(start..i + 1);
            start = i + 1;
        }
    }
    (blocks, Sharing::Alone)
}

/// Buffers of one block, kept from step to step.
#[derive(Debug, Default)]
struct Workspace {
    /// The rows, [rows, D].
    x: Vec<f32>,
    /// The normalised rows, or the new ones.
    normal: Vec<f32>,
    /// A sub-layer's output, [rows, D].
    h: Vec<f32>,
    /// Queries, keys and values, or the feed-forward's hidden layer.
    wide: Vec<f32>,
    /// What heads return, [rows, H·d_v].
    heads: Vec<f32>,
    /// Logits of some rows, [rows, V].
    logits: Vec<f32>,
}

/// The first `len` numbers of a buffer, which grows if needed; their contents are unspecified.
fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

impl Engine {
    /// From a configuration and its parameters by name.
    ///
    /// # Errors
    /// A parameter cannot be read.
    pub fn new(config: &ModelConfig, parameters: &Lookup<'_>, precision: ComputeType) -> Result<Self> {
        let output = layout::output_table(config.tie);
        let table = |name: &str| -> Result<Option<Weight>> {
            if name == output {
                Ok(None)
            } else {
                Weight::new(parameters, &[name], config.d_model, precision).map(Some)
            }
        };
        // The largest matrix first: while it is packed, it is in memory twice.
        let output = Linear::new(
            parameters,
            &[output],
            config.output_bias.then_some("output_projection.bias").as_slice(),
            config.d_model,
            precision,
        )?;
        Ok(Self {
            common: Common::new(config),
            source_table: table("source_embedding.weight")?,
            target_table: table(layout::target_table(config.tie))?,
            encoder: Layers::new(config, parameters, Stack::Encoder, precision)?,
            decoder: Layers::new(config, parameters, Stack::Decoder, precision)?,
            output,
        })
    }

    /// Size of the target vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.output.width()
    }

    /// The longest sequence that the positions allow.
    pub fn max_positions(&self) -> usize {
        self.common.config.max_length
    }

    /// The number of rows that keeps all threads busy; more are not faster.
    pub fn rows(&self) -> usize {
        decoder::BLOCK_ROWS * rayon::current_num_threads()
    }

    /// The table of an embedding, which may be that of the output projection.
    fn table<'a>(&'a self, own: &'a Option<Weight>) -> &'a Weight {
        own.as_ref().unwrap_or(&self.output.weight)
    }
}

impl Layers {
    /// Those of the encoder or the decoder.
    fn new(config: &ModelConfig, parameters: &Lookup<'_>, stack: Stack, precision: ComputeType) -> Result<Self> {
        let (name, is_decoder) = (stack.name(), stack == Stack::Decoder);
        let layers = if is_decoder { config.decoder_layers } else { config.encoder_layers };
        let layer = |i| Layer::new(config, parameters, &format!("{name}.layers.{i}"), is_decoder, precision);
        let norm = |is_there: bool, norm: &str| {
            is_there.then(|| Norm::new(config, parameters, &format!("{name}.{norm}"))).transpose()
        };
        let positions = match config.positions {
            PositionKind::Learned => parameters(&layout::positions_table(stack))?.floats(),
            PositionKind::Sinusoidal | PositionKind::Rotary | PositionKind::Relative => positions::fixed(config),
        };
        let by_distance = match positions::buckets(config, stack) {
            Some(buckets) => buckets.rows_of(&parameters(&layout::relative_table(stack))?.floats(), config.heads),
            None => Vec::new(),
        };
        Ok(Self {
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            embedding_norm: norm(config.embedding_norm, "embedding_norm")?,
            final_norm: norm(config.final_norm, "norm")?,
            positions,
            by_distance,
        })
    }

    /// What is added to the scores of the query at `position` and the first `keys` keys: [keys, H], or empty.
    fn by_distance(&self, position: usize, keys: usize, heads: usize) -> &[f32] {
        let first = (self.by_distance.len() / heads / 2).saturating_sub(position);
        if self.by_distance.is_empty() { &[] } else { &self.by_distance[first * heads..][..keys * heads] }
    }
}

impl Common {
    fn new(config: &ModelConfig) -> Self {
        Self { config: config.clone(), rotary: positions::rotary(config) }
    }

    /// Width of keys and values, side by side.
    fn cached_width(&self) -> usize {
        self.config.heads * (self.config.d_k + self.config.d_v)
    }

    /// scale·table[token] + encoding of a position.
    fn embed(&self, table: &Weight, stack: &Layers, token: u32, position: usize, out: &mut [f32]) {
        let (d, scale) = (self.config.d_model, self.config.embedding_scale());
        table.row(token as usize, out);
        if stack.positions.is_empty() {
            out.iter_mut().for_each(|x| *x *= scale);
        } else {
            let encoding = &stack.positions[position * d..][..d];
            out.iter_mut().zip(encoding).for_each(|(x, p)| *x = x.mul_add(scale, *p));
        }
    }

    /// One sub-layer on the rows of a workspace: `f` computes the sub-layer's output, without bias, from its input.
    fn sublayer(
        &self,
        norm: &Norm,
        bias: &[f32],
        work: &mut Workspace,
        f: impl FnOnce(&[f32], &mut [f32], &mut Vec<f32>, &mut Vec<f32>),
    ) {
        let d = self.config.d_model;
        let Workspace { x, normal, h, wide, heads, .. } = work;
        let (rows, h) = (&x[..], grown(h, x.len()));
        let bias = (!bias.is_empty()).then_some(bias);
        let next = grown(normal, rows.len());
        match self.config.norm {
            NormPlacement::Post => {
                f(rows, h, wide, heads);
                let addend = Addend { h, bias, dropout: Dropout::OFF, first_row: 0 };
                norm_rows(rows, Some(addend), norm.weights(), d, next);
            }
            NormPlacement::Pre => {
                norm_rows(rows, None, norm.weights(), d, next);
                f(next, h, wide, heads);
                let addend = Addend { h, bias, dropout: Dropout::OFF, first_row: 0 };
                add_rows(rows, addend, d, next);
            }
        }
        normal.truncate(x.len());
        std::mem::swap(x, normal);
    }

    fn feed_forward(&self, layer: &FeedForward, work: &mut Workspace, sharing: Sharing) {
        let rows = work.x.len() / self.config.d_model;
        self.sublayer(&layer.norm, &layer.fc2.bias, work, |input, h, wide, _| {
            let hidden = grown(wide, rows * layer.fc1.width());
            layer.fc1.apply(input, hidden, sharing);
            if self.config.gated {
                self.config.activation.apply_gate(hidden, self.config.d_ff);
            } else {
                self.config.activation.apply(hidden);
            }
            layer.fc2.product(&hidden[..rows * self.config.d_ff], h, sharing);
        });
    }

    /// Normalises the rows of a workspace, if there is a norm.
    fn normalise(&self, norm: Option<&Norm>, work: &mut Workspace) {
        if let Some(norm) = norm {
            let next = grown(&mut work.normal, work.x.len());
            norm_rows(&work.x, None, norm.weights(), self.config.d_model, next);
            work.normal.truncate(work.x.len());
            std::mem::swap(&mut work.x, &mut work.normal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_every_item_once() {
        for (items, aim) in
            [(vec![1; 100], 32), (vec![7, 1, 30, 2, 2], 16), (vec![200], 64), (vec![1], 64), (vec![], 8)]
        {
            let (blocks, _) = blocks(&items, aim);
            let all: Vec<usize> = blocks.iter().cloned().flatten().collect();
            assert_eq!(all, (0..items.len()).collect::<Vec<_>>(), "{items:?}");
        }
    }
}
