//! How much memory training takes, estimated before it begins.

use crate::config::Config;
use crate::device;
use crate::error::{Error, Result};
use crate::model::{Vocabulary, layout};

/// Batches differ in shape, and the allocator keeps what earlier ones left: resident memory is about twice what one holds.
/// Measured on tiny models with 768 to 4,096 tokens a batch.
const REUSE: usize = 2;
/// What the process holds whatever the model: code, threads, tokenizer with its cache. From the same measurements.
const PROCESS: usize = 200 << 20;

/// Bytes of training one micro-batch of `tokens` padded tokens a side: parameters, gradients and moments; the copy of what a
/// checkpoint holds, while it is written; what every sub-layer keeps for backward and needs while in it; and the logits of one
/// chunk of the loss.
pub fn estimate(config: &Config, parameters: usize, vocabulary: usize, tokens: usize) -> usize {
    let model = &config.model;
    let (d, f) = (model.d_model, model.d_ff);
    let (keys, values) = (model.heads * model.d_k, model.heads * model.d_v);
    // Kept a token: packed projections, head outputs, output before the norm, and the tensor handed on.
    let attention = 2 * keys + 2 * values + 2 * d;
    let cross = keys + (keys + values) + values + 2 * d;
    let feed_forward = 2 * f + 2 * d;
    let encoder = model.encoder_layers * (attention + feed_forward);
    let decoder = model.decoder_layers * (attention + cross + feed_forward);
    // The largest sub-layer on its way back holds about as much again, and autograd a few gradients.
    let backward = (attention + cross).max(feed_forward) + 6 * d;
    let activations = tokens.saturating_mul(encoder + decoder + backward + 4 * d);
    let logits = tokens.min(1024) * vocabulary + 2 * vocabulary * d;
    // An average is one more copy, in training and in a checkpoint.
    let average = usize::from(config.train.exponential_average > 0.0);
    let of_optimizer = parameters.saturating_mul((4 + average) + (3 + average));
    let numbers = activations.saturating_add(logits).saturating_mul(REUSE).saturating_add(of_optimizer);
    numbers.saturating_mul(4).saturating_add(PROCESS)
}

/// A warning, where training takes more than this machine's memory.
pub fn warning(needed: usize) -> Option<String> {
    let memory = device::machine_memory().filter(|memory| needed as u64 > *memory)?;
    Some(format!(
        "training takes about {:.1} GiB of memory, and the machine has {:.1} GiB: lower train.batch_tokens, and raise \
         train.accumulate by the same factor",
        gibibytes(needed),
        gibibytes(memory as usize)
    ))
}

/// Refuses a model whose parameters, gradients and moments alone, with the smallest vocabulary, are more than the machine's
/// memory: the allocator would end the process.
pub fn refuse_the_impossible(config: &Config) -> Result<()> {
    let pieces = config.tokenizer.vocab_size.min(300);
    let vocabulary = Vocabulary { source: pieces, target: pieces, source_padding: 0, target_padding: 0 };
    let needed = layout::layout(&config.model, vocabulary).total().saturating_mul(16);
    match device::machine_memory() {
        Some(memory) if needed as u64 > memory => {
            let what = format!(
                "training this model takes more than {:.1} GiB of memory; this machine has {:.1} GiB",
                gibibytes(needed),
                gibibytes(memory as usize)
            );
            Err(Error::usage(what).help("make the model smaller: see `mt info` with the configuration"))
        }
        _ => Ok(()),
    }
}

/// Bytes in GiB.
pub fn gibibytes(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}
