//! Small folders of the multilingual families of `transformers`, written by hand.

use std::path::Path;

use serde_json::{Value, json};

use super::marian::{self, SHAPE, Tensors, WORDS, add, add_layers};

/// A family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Nllb,
    M2m100,
    Mbart50,
}

impl Family {
    pub const ALL: [Self; 3] = [Self::Nllb, Self::M2m100, Self::Mbart50];

    /// Three languages, as users call them: English, German, French.
    pub fn languages(self) -> [&'static str; 3] {
        match self {
            Self::Nllb => ["eng_Latn", "deu_Latn", "fra_Latn"],
            Self::M2m100 => ["en", "de", "fr"],
            Self::Mbart50 => ["en_XX", "de_DE", "fr_XX"],
        }
    }

    /// Their pieces.
    pub fn pieces(self) -> [String; 3] {
        let of = |code: &str| if self == Self::M2m100 { format!("__{code}__") } else { code.to_owned() };
        self.languages().map(of)
    }
}

/// Writes a folder with rule-made weights; `change` may edit `config.json` and the tensors, by name.
pub fn write(folder: &Path, family: Family, change: impl FnOnce(&mut Value, &mut Tensors)) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("sentencepiece.bpe.model"), marian::sentencepiece(&WORDS)).unwrap();
    let of_model = WORDS.len() + "▁abcdefghijklmnopqrstuvwxyzäöüKHST".chars().count();
    let special = json!({ "additional_special_tokens": family.pieces() });
    std::fs::write(folder.join("special_tokens_map.json"), special.to_string()).unwrap();
    let mut size = 4 + of_model + 3;
    if family == Family::M2m100 {
        let characters = "▁abcdefghijklmnopqrstuvwxyzäöüKHST".chars().map(String::from);
        let pieces = ["<s>", "<pad>", "</s>", "<unk>"].into_iter().chain(WORDS).map(str::to_owned).chain(characters);
        let vocabulary: serde_json::Map<String, Value> = pieces.zip((0..).map(Value::from)).collect();
        std::fs::write(folder.join("vocab.json"), Value::Object(vocabulary).to_string()).unwrap();
        // Made-up words.
        size += 8;
    } else {
        // <mask>
        size += 1;
    }
    let [d, f, layers, positions] = SHAPE;
    let mut config = json!({
        "model_type": if family == Family::Mbart50 { "mbart" } else { "m2m_100" }, "vocab_size": size, "d_model": d,
        "encoder_layers": layers, "decoder_layers": layers, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": f, "decoder_ffn_dim": f, "activation_function": "relu",
        "dropout": 0.1, "max_position_embeddings": positions, "scale_embedding": true, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "num_beams": 3, "max_length": 60,
        "is_encoder_decoder": true, "encoder_layerdrop": 0.05, "normalize_before": true,
    });
    let mut tensors = Tensors::new();
    add(&mut tensors, "model.shared.weight", &[size, d]);
    for stack in ["encoder", "decoder"] {
        let mut norm = |name: &str| {
            add(&mut tensors, &format!("model.{stack}.{name}.weight"), &[d]);
            add(&mut tensors, &format!("model.{stack}.{name}.bias"), &[d]);
        };
        // Names that end in `norm`, as the values follow from them.
        norm("layer_norm");
        if family == Family::Mbart50 {
            norm("layernorm_embedding");
            add(&mut tensors, &format!("model.{stack}.embed_positions.weight"), &[positions + 2, d]);
        }
    }
    add_layers(&mut tensors, SHAPE);
    // Else a state is nearest to the embedding of its own token, which would be repeated for ever.
    let last = &mut tensors.get_mut("model.decoder.layer_norm.weight").unwrap().1;
    last.iter_mut().step_by(2).for_each(|weight| *weight = -*weight);
    change(&mut config, &mut tensors);
    marian::save(folder, &config, &tensors);
}
