//! The weights: each array of the file must belong to a parameter, and each parameter must have an array.

use super::npz::Npz;
use super::settings::Arrays;
use crate::error::Result;
use crate::interop::import::tensor_problems;
use crate::model::init::LEFT_OUT_BIAS;
use crate::model::{ModelConfig, NormPlacement, Tie};
use crate::ops::params::ParameterLayout;

/// The bias on the logits.
const OUTPUT_BIAS: &str = "decoder_ff_logit_out_b";

/// The shape of an array in the file.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// [inputs, outputs]: the transpose of ours.
    Transposed,
    /// [1, N].
    Row,
    /// [V, D], a vector for each piece; ours has one more, for padding.
    Table,
    /// [D, V].
    TransposedTable,
    /// [1, V].
    TableRow,
}

/// All parameters, in the order of `layout`.
///
/// # Errors
/// Arrays are missing, superfluous or of another shape; all of them are named.
pub(super) fn read(npz: &Npz, config: &ModelConfig, arrays: Arrays, layout: &ParameterLayout) -> Result<Vec<f32>> {
    let mut values = vec![0f32; layout.total()];
    let mut problems = Vec::new();
    let names = npz.names();
    let mut left = names.clone();
    for entry in layout.entries() {
        let sources = sources(&entry.name, config, arrays);
        let source = sources.iter().find(|(name, _)| names.contains(name.as_str()));
        let Some(place) = values.get_mut(entry.range()) else { continue };
        if entry.name == "output_projection.bias" {
            place.fill(0.0);
            place.iter_mut().last().into_iter().for_each(|bias| *bias = LEFT_OUT_BIAS);
        }
        let Some((name, form)) = source else {
            if entry.name == "output_projection.bias" && !arrays.has_output_bias {
                continue;
            }
            let wanted: Vec<&str> = sources.iter().map(|(name, _)| name.as_str()).collect();
            problems.push(format!("missing: `{}`", wanted.join("` or `")));
            continue;
        };
        left.remove(name.as_str());
        let [rows, columns] = match entry.shape[..] {
            [rows, columns] => [rows, columns],
            _ => [1, entry.range().len()],
        };
        let shape = match form {
            Form::Transposed => [columns, rows],
            Form::Row => [1, columns],
            Form::Table => [rows - 1, columns],
            Form::TransposedTable => [columns, rows - 1],
            Form::TableRow => [1, columns - 1],
        };
        match npz.values(name, &shape) {
            Ok(found) if matches!(form, Form::Transposed | Form::TransposedTable) => {
                transpose(&found, shape[1], place);
            }
            // Padding, which the file does not have, keeps its initial values.
            Ok(found) => place.iter_mut().zip(&found).for_each(|(place, value)| *place = *value),
            Err(problem) => problems.push(problem),
        }
    }
    problems.extend(left.iter().map(|name| format!("superfluous: `{name}`")));
    tensor_problems(problems, "its options (special:model.yml)", &npz.path)?;
    Ok(values)
}

/// Writes a matrix with `columns` columns, transposed, to the beginning of `out`.
fn transpose(matrix: &[f32], columns: usize, out: &mut [f32]) {
    let rows = matrix.len() / columns.max(1);
    for (column, out) in out.chunks_exact_mut(rows.max(1)).take(columns).enumerate() {
        let values = matrix.iter().skip(column).step_by(columns);
        out.iter_mut().zip(values).for_each(|(out, value)| *out = *value);
    }
}

/// The names under which a parameter may be stored.
fn sources(name: &str, config: &ModelConfig, arrays: Arrays) -> Vec<(String, Form)> {
    let one = |name: &str, form| vec![(name.to_owned(), form)];
    match name {
        "source_embedding.weight" | "target_embedding.weight" if arrays.shares_embeddings => {
            return one("Wemb", Form::Table);
        }
        "source_embedding.weight" => return one("encoder_Wemb", Form::Table),
        "target_embedding.weight" => return one("decoder_Wemb", Form::Table),
        "output_projection.weight" => {
            debug_assert!(config.tie == Tie::None);
            let mut both = one("decoder_ff_logit_out_Wt", Form::Table);
            both.extend(one("decoder_ff_logit_out_W", Form::TransposedTable));
            return both;
        }
        "output_projection.bias" => return one(OUTPUT_BIAS, Form::TableRow),
        _ => {}
    }
    // `encoder.layers.0.self_attn.q_proj.weight` is `encoder_l1_self_Wq`; `encoder.norm.weight`,
    // `encoder_top_ln_scale`.
    let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let is_weight = kind == "weight";
    let norm = |prefix: String, suffix: &str| {
        let part = if is_weight { "scale" } else { "bias" };
        vec![(format!("{prefix}_ln_{part}{suffix}"), Form::Row)]
    };
    let parts: Vec<&str> = module.split('.').collect();
    let (stack, number, inner) = match parts[..] {
        [stack, "layers", number, ref inner @ ..] => (stack, number.parse::<usize>().unwrap_or(0) + 1, inner),
        _ => return norm(format!("{}_top", parts[0]), ""),
    };
    let layer = format!("{stack}_l{number}");
    let suffix = if config.norm == NormPlacement::Pre { "_pre" } else { "" };
    let projection = match inner {
        ["self_attn_norm"] => return norm(format!("{layer}_self_Wo"), suffix),
        ["cross_attn_norm"] => return norm(format!("{layer}_context_Wo"), suffix),
        ["feed_forward_norm"] => return norm(format!("{layer}_ffn_ffn"), suffix),
        [module, "q_proj"] => (*module, "q"),
        [module, "k_proj"] => (*module, "k"),
        [module, "v_proj"] => (*module, "v"),
        [module, "out_proj"] => (*module, "o"),
        [module, "fc1"] => (*module, "1"),
        [module, _] => (*module, "2"),
        _ => (module, ""),
    };
    let (module, part) = projection;
    let module = match module {
        "self_attn" => "self",
        "cross_attn" => "context",
        _ => "ffn",
    };
    let (letter, form) = if is_weight { ("W", Form::Transposed) } else { ("b", Form::Row) };
    vec![(format!("{layer}_{module}_{letter}{part}"), form)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_marian() {
        let config = ModelConfig { norm: NormPlacement::Pre, ..ModelConfig::default() };
        let names = |name: &str, config: &ModelConfig| {
            let found = sources(name, config, Arrays { shares_embeddings: false, has_output_bias: true });
            found.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("encoder.layers.0.self_attn.q_proj.weight", &config), "encoder_l1_self_Wq");
        assert_eq!(names("decoder.layers.11.cross_attn.out_proj.bias", &config), "decoder_l12_context_bo");
        assert_eq!(names("decoder.layers.1.feed_forward.fc2.weight", &config), "decoder_l2_ffn_W2");
        assert_eq!(names("decoder.layers.1.cross_attn_norm.bias", &config), "decoder_l2_context_Wo_ln_bias_pre");
        assert_eq!(names("encoder.norm.weight", &config), "encoder_top_ln_scale");
        let post = ModelConfig::default();
        assert_eq!(names("encoder.layers.2.feed_forward_norm.weight", &post), "encoder_l3_ffn_ffn_ln_scale");
    }

    #[test]
    fn transposing_leaves_the_rest() {
        let mut out = [9.0; 8];
        transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, &mut out);
        assert_eq!(out, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0, 9.0, 9.0]);
    }
}
