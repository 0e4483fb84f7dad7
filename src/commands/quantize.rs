//! `mt quantize`

use super::shared::model;
use super::shared::output::print_json;
use super::shared::reserved::refuse_taken;
use crate::checkpoint::{Elements, NamedTensor, scale_name};
use crate::cli::{Common, QuantizeArgs};
use crate::console::info;
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::model_dir::write_model;
use crate::ops::matmul::int8::{Quantised, Values};
use crate::ops::params::Kind;

/// Writes a model whose matrices are 8-bit integers into a directory of its own.
pub(super) fn run(args: &QuantizeArgs, common: &Common) -> Result<()> {
    refuse_taken(&args.out)?;
    let loaded = model::load_from(Some(&args.model), args.checkpoint.as_deref(), common)?;
    let (layout, mut file) = loaded.stored()?;
    if file.is_quantised() {
        return Err(Error::usage("the weights of the model are 8-bit integers already").at(&args.model));
    }
    let mut values = Vec::with_capacity(layout.entries().len());
    for (i, entry) in layout.entries().iter().enumerate() {
        let stored = file.parameter(i, &entry.name)?;
        // Position tables are not used in products, so they stay as they are.
        let is_matrix = entry.kind == Kind::Weight && !entry.name.ends_with("positions.weight");
        values.push(match entry.shape[..] {
            [_, columns] if is_matrix && columns > 0 => Values::I8(stored.integers(columns)),
            _ => stored,
        });
    }
    file.finish()?;
    let scales: Vec<(String, [usize; 1])> =
        layout.entries().iter().map(|entry| (scale_name(&entry.name), [entry.shape[0]])).collect();
    let mut tensors = Vec::new();
    for ((entry, values), (scale, rows)) in layout.entries().iter().zip(&values).zip(&scales) {
        let tensor = |data| NamedTensor { name: &entry.name, shape: &entry.shape, data };
        match values {
            Values::F32(values) => tensors.push(tensor(Elements::F32(values))),
            Values::I8(Quantised { values, scales }) => {
                tensors.push(tensor(Elements::I8(values)));
                tensors.push(NamedTensor { name: scale, shape: rows, data: Elements::F32(scales) });
            }
        }
    }
    let made_from = format!("{} (8-bit integers)", shown_path(&args.model));
    write_model(&args.out, &loaded.config, &loaded.tokenizers, &tensors, &made_from)?;
    let before = 4 * layout.total();
    let after: usize = tensors.iter().map(|tensor| tensor.data.bytes()).sum();
    if common.json {
        let json = serde_json::json!({
            "out": args.out.display().to_string(), "bytes_before": before, "bytes_after": after,
        });
        print_json(&json)?;
    }
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    info(format_args!(
        "{}: {:.1} MB of weights, {:.1} MB before; compare with `mt eval --bleu`",
        args.out.display(),
        megabytes(after),
        megabytes(before)
    ));
    Ok(())
}
