//! A small MarianMT folder and SentencePiece models, written by hand.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, tag = "1")]
    piece: String,
    #[prost(float, tag = "2")]
    score: f32,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

/// The words of the small corpus, as pieces.
pub const WORDS: [&str; 10] = ["▁the", "▁cat", "▁dog", "▁a", "▁die", "▁der", "▁Katze", "▁Hund", "▁eine", "▁ein"];

/// A unigram model: `<unk>`, `<s>`, `</s>`, then these pieces, then single characters.
pub fn sentencepiece(pieces: &[&str]) -> Vec<u8> {
    sentencepiece_after(["<unk>", "<s>", "</s>"], pieces)
}

/// As [`sentencepiece`], with other special pieces first.
pub fn sentencepiece_after(special: [&str; 3], pieces: &[&str]) -> Vec<u8> {
    let kind = |piece| if piece == "<unk>" { 2 } else { 3 };
    let mut all: Vec<Piece> =
        special.map(|piece| Piece { piece: piece.into(), score: 0.0, kind: Some(kind(piece)) }).into();
    all.extend(pieces.iter().map(|piece| Piece { piece: (*piece).into(), score: -2.0, kind: None }));
    let characters = "▁abcdefghijklmnopqrstuvwxyzäöüKHST".chars();
    all.extend(characters.map(|c| Piece { piece: c.to_string(), score: -5.0, kind: None }));
    Model { pieces: all }.encode_to_vec()
}

/// Model width, feed-forward width, layers, positions.
pub const SHAPE: [usize; 4] = [16, 32, 1, 64];

/// Writes a folder with rule-made weights; `change` may edit `config.json` and the tensors, by name.
pub fn write(folder: &Path, change: impl FnOnce(&mut Value, &mut Tensors)) {
    std::fs::create_dir_all(folder).unwrap();
    for side in ["source", "target"] {
        std::fs::write(folder.join(format!("{side}.spm")), sentencepiece(&WORDS)).unwrap();
    }
    let characters: Vec<String> = "▁abcdefghijklmnopqrstuvwxyzäöüKHST".chars().map(String::from).collect();
    let pieces = ["</s>", "<unk>", ">>fra<<", ">>deu<<"].into_iter().chain(WORDS);
    let pieces: Vec<String> = pieces.map(str::to_owned).chain(characters).chain(["<pad>".to_owned()]).collect();
    let vocabulary: serde_json::Map<String, Value> = pieces.iter().cloned().zip((0..).map(Value::from)).collect();
    std::fs::write(folder.join("vocab.json"), Value::Object(vocabulary).to_string()).unwrap();
    let size = pieces.len();
    let [d, f, layers, positions] = SHAPE;
    let mut config = json!({
        "model_type": "marian", "vocab_size": size, "d_model": d, "encoder_layers": layers, "decoder_layers": layers,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": f, "decoder_ffn_dim": f,
        "activation_function": "swish", "dropout": 0.1, "max_position_embeddings": positions, "scale_embedding": true,
        "share_encoder_decoder_embeddings": true, "tie_word_embeddings": true, "pad_token_id": size - 1,
        "eos_token_id": 0, "bos_token_id": 0, "decoder_start_token_id": size - 1, "forced_eos_token_id": 0,
        "bad_words_ids": [[size - 1]], "num_beams": 3, "max_length": 60, "normalize_before": false,
        "static_position_embeddings": true, "architectures": ["MarianMTModel"], "_name_or_path": "x",
        "id2label": {"0": "a"},
    });
    let mut tensors = HashMap::new();
    add(&mut tensors, "model.shared.weight", &[size, d]);
    add(&mut tensors, "final_logits_bias", &[1, size]);
    add_layers(&mut tensors, SHAPE);
    change(&mut config, &mut tensors);
    save(folder, &config, &tensors);
}

/// Tensors by name, with their shapes.
pub type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

/// Adds a tensor with values that follow from its name.
pub fn add(tensors: &mut Tensors, name: &str, shape: &[usize]) {
    let seed = name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let draw = |i: u64| (mt::rng::mix64(seed.wrapping_add(i)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    let scale = if shape.len() == 2 && shape[0] > 1 { 0.4 } else { 0.1 };
    let base = if name.contains("norm.weight") { 1.0 } else { 0.0 };
    let count = shape.iter().product::<usize>() as u64;
    tensors.insert(name.to_owned(), (shape.to_vec(), (0..count).map(|i| base + scale * draw(i)).collect()));
}

/// Adds those of all layers: of a model width, a feed-forward width and so many layers.
pub fn add_layers(tensors: &mut Tensors, [d, f, layers, _]: [usize; 4]) {
    let mut add = |name: &str, shape: &[usize]| add(tensors, name, shape);
    for stack in ["encoder", "decoder"] {
        for layer in 0..layers {
            let attentions: &[&str] = if stack == "encoder" { &["self_attn"] } else { &["self_attn", "encoder_attn"] };
            let layer = format!("model.{stack}.layers.{layer}");
            for attention in attentions {
                for projection in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                    add(&format!("{layer}.{attention}.{projection}.weight"), &[d, d]);
                    add(&format!("{layer}.{attention}.{projection}.bias"), &[d]);
                }
                add(&format!("{layer}.{attention}_layer_norm.weight"), &[d]);
                add(&format!("{layer}.{attention}_layer_norm.bias"), &[d]);
            }
            for (name, shape) in [("fc1", [f, d]), ("fc2", [d, f])] {
                add(&format!("{layer}.{name}.weight"), &shape);
                add(&format!("{layer}.{name}.bias"), &shape[..1]);
            }
            add(&format!("{layer}.final_layer_norm.weight"), &[d]);
            add(&format!("{layer}.final_layer_norm.bias"), &[d]);
        }
    }
}

/// Writes `config.json` and `model.safetensors`.
pub fn save(folder: &Path, config: &Value, tensors: &Tensors) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| {
            (name.clone(), shape.clone(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(n, shape, data)| (n, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}
