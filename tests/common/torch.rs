//! A PyTorch module around `torch.nn.Transformer`, from its `state_dict` saved as safetensors (docs/parity.md).
//!
//! PyTorch has queries, keys and values in one matrix `in_proj_weight` [3·D, D]; ours are adjacent and in the same
//! order, so the matrix can be copied as it is. Norms are numbered by their order in the layer.

use std::path::Path;

use mt::checkpoint::{Slot, load_into};
use mt::error::{Error, Result};

/// What a module calls its parts: prefixes of names in its `state_dict`, without the last dot.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The `nn.Transformer`; empty if the file holds it alone.
    pub transformer: &'a str,
    /// The `nn.Embedding` of the source.
    pub source_embedding: &'a str,
    /// The `nn.Embedding` of the target.
    pub target_embedding: &'a str,
    /// The `nn.Linear` that gives the logits.
    pub output: &'a str,
}

/// Fills `flat`, with parameters at the places in `layout`, from a `state_dict`. The model must be one that
/// `nn.Transformer` can be: `final_norm`, attention with biases and heads of D/H, `tie = "none"`, no learned positions.
///
/// # Errors
/// As [`load_into`]: every tensor that is missing, left over or of another shape is named. A parameter that
/// `nn.Transformer` does not have.
pub fn load_transformer(file: &Path, layout: &[Slot], names: &Names, flat: &mut [f32]) -> Result<()> {
    // Name in PyTorch, shape and offset; adjacent q, k and v become one place.
    let mut places: Vec<(String, Vec<usize>, usize)> = Vec::new();
    for slot in layout {
        let name = torch_name(slot.name, names).ok_or_else(|| {
            let what = format!("torch.nn.Transformer has nothing that `{}` could be read from", slot.name);
            Error::failure(what).help("leave out what it does not have, such as learned positions or tied embeddings")
        })?;
        match places.last_mut() {
            Some((last, shape, _)) if *last == name => shape[0] += slot.shape[0],
            _ => places.push((name, slot.shape.to_vec(), slot.offset)),
        }
    }
    let slots: Vec<Slot> = places.iter().map(|(name, shape, offset)| Slot { name, shape, offset: *offset }).collect();
    load_into(file, &slots, flat)
}

/// The PyTorch tensor that is, or contains, a parameter of ours.
fn torch_name(name: &str, names: &Names) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    let outside = |prefix: &str| Some(format!("{prefix}.{kind}"));
    match module {
        "source_embedding" => return outside(names.source_embedding),
        "target_embedding" => return outside(names.target_embedding),
        "output_projection" => return outside(names.output),
        _ => {}
    }
    let prefix = if names.transformer.is_empty() { String::new() } else { format!("{}.", names.transformer) };
    if matches!(module, "encoder.norm" | "decoder.norm") {
        return Some(format!("{prefix}{name}"));
    }
    let parts: Vec<&str> = module.split('.').collect();
    let [stack, "layers", number, inner @ ..] = &parts[..] else { return None };
    let inner = match (*stack, inner) {
        (_, ["self_attn", "out_proj"]) => format!("self_attn.out_proj.{kind}"),
        (_, ["cross_attn", "out_proj"]) => format!("multihead_attn.out_proj.{kind}"),
        (_, ["self_attn", _]) => format!("self_attn.in_proj_{kind}"),
        (_, ["cross_attn", _]) => format!("multihead_attn.in_proj_{kind}"),
        (_, ["self_attn_norm"]) => format!("norm1.{kind}"),
        (_, ["cross_attn_norm"]) | ("encoder", ["feed_forward_norm"]) => format!("norm2.{kind}"),
        (_, ["feed_forward_norm"]) => format!("norm3.{kind}"),
        (_, ["feed_forward", "fc1"]) => format!("linear1.{kind}"),
        (_, ["feed_forward", "fc2"]) => format!("linear2.{kind}"),
        _ => return None,
    };
    Some(format!("{prefix}{stack}.layers.{number}.{inner}"))
}
