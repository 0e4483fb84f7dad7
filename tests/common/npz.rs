//! A small model in Marian's own format, written by hand.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};

use super::marian::{WORDS, sentencepiece};

/// Model width, feed-forward width.
const SHAPE: [usize; 2] = [16, 32];

/// Arrays by name: shape and values.
pub type Arrays = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The options of a model whose vocabulary has `size` pieces, as Marian writes them.
pub fn options(size: usize) -> String {
    let [d, f] = SHAPE;
    format!(
        "dec-depth: 1\ndim-emb: {d}\ndim-rnn: 1024\ndim-vocabs:\n  - {size}\n  - {size}\nenc-depth: 1\n\
         enc-type: bidirectional\n\
         input-types:\n  []\nlemma-dim-emb: 0\noutput-omit-bias: false\nright-left: false\ntied-embeddings: false\n\
         tied-embeddings-all: true\ntied-embeddings-src: false\ntransformer-decoder-autoreg: self-attention\n\
         transformer-decoder-dim-ffn: 0\ntransformer-dim-ffn: {f}\ntransformer-ffn-activation: swish\n\
         transformer-ffn-depth: 2\n\
         transformer-heads: 2\ntransformer-postprocess: dan\ntransformer-postprocess-emb: d\n\
         transformer-postprocess-top: \"\"\n\
         transformer-preprocess: \"\"\ntransformer-tied-layers:\n  []\ntype: transformer\nulr: false\n\
         version: v1.12.0\0\0"
    )
}

/// The pieces of `opus.vocab.yml`, in the order of their ids.
pub fn pieces() -> Vec<String> {
    let characters = "▁abcdefghijklmnopqrstuvwxyzäöüKHST".chars().map(String::from);
    let words = ["</s>", "<unk>", ">>fra<<", ">>deu<<"].into_iter().chain(WORDS).map(str::to_owned);
    words.chain(characters).collect()
}

/// Writes a folder like OPUS-MT's releases, with rule-made weights; `change` may edit options and arrays.
pub fn write(folder: &Path, change: impl FnOnce(&mut String, &mut Arrays)) {
    std::fs::create_dir_all(folder).unwrap();
    for side in ["source", "target"] {
        std::fs::write(folder.join(format!("{side}.spm")), sentencepiece(&WORDS)).unwrap();
    }
    let pieces = pieces();
    let quoted = |piece: &String| serde_json::to_string(piece).unwrap();
    let vocabulary: String = pieces.iter().zip(0..).map(|(piece, id)| format!("{}: {id}\n", quoted(piece))).collect();
    std::fs::write(folder.join("opus.vocab.yml"), vocabulary).unwrap();
    let decoder = "models:\n  - /where/it/was/made/model.npz\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\n\
                   beam-size: 3\n\
                   normalize: 1\nword-penalty: 0\nmini-batch: 1\nmaxi-batch-sort: src\nrelative-paths: true\n";
    std::fs::write(folder.join("decoder.yml"), decoder).unwrap();
    let (mut options, mut arrays) = (options(pieces.len()), arrays(pieces.len()));
    change(&mut options, &mut arrays);
    let tensor = |(name, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
        (name.clone(), Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).unwrap())
    };
    let mut tensors: Vec<(String, Tensor)> = arrays.iter().map(tensor).collect();
    if !options.is_empty() {
        let bytes = Tensor::from_slice(options.as_bytes(), options.len(), &Device::Cpu).unwrap();
        tensors.push(("special:model.yml".to_owned(), bytes));
    }
    Tensor::write_npz(&tensors, folder.join("model.npz")).unwrap();
}

fn arrays(size: usize) -> Arrays {
    let [d, f] = SHAPE;
    let mut arrays = Arrays::new();
    let mut add = |name: String, shape: [usize; 2]| {
        let seed = name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let draw = |i: u64| (mt::rng::mix64(seed.wrapping_add(i)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let scale = if shape[0] > 1 { 0.4 } else { 0.1 };
        let base = if name.contains("ln_scale") { 1.0 } else { 0.0 };
        let values = (0..shape.iter().product::<usize>() as u64).map(|i| base + scale * draw(i)).collect();
        arrays.insert(name, (shape.to_vec(), values));
    };
    add("Wemb".to_owned(), [size, d]);
    add("decoder_ff_logit_out_b".to_owned(), [1, size]);
    for stack in ["encoder", "decoder"] {
        let attentions: &[&str] = if stack == "encoder" { &["self"] } else { &["self", "context"] };
        for attention in attentions {
            for projection in ["q", "k", "v", "o"] {
                add(format!("{stack}_l1_{attention}_W{projection}"), [d, d]);
                add(format!("{stack}_l1_{attention}_b{projection}"), [1, d]);
            }
            for part in ["scale", "bias"] {
                add(format!("{stack}_l1_{attention}_Wo_ln_{part}"), [1, d]);
            }
        }
        for (number, [inputs, outputs]) in [("1", [d, f]), ("2", [f, d])] {
            add(format!("{stack}_l1_ffn_W{number}"), [inputs, outputs]);
            add(format!("{stack}_l1_ffn_b{number}"), [1, outputs]);
        }
        for part in ["scale", "bias"] {
            add(format!("{stack}_l1_ffn_ffn_ln_{part}"), [1, d]);
        }
    }
    arrays
}
