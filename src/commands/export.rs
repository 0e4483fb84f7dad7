//! `mt export`

use super::shared::model;
use super::shared::output::print_json;
use super::shared::reserved::refuse_taken;
use crate::cli::{Common, ExportArgs};
use crate::console::{info, note};
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::interop::export::{Format, Model, ct2};

/// Writes a model in the format of another program.
pub(super) fn run(args: &ExportArgs, common: &Common) -> Result<()> {
    let format = Format::from_flag("--format", &args.format)?;
    let quantization = ct2::Quantization::from_flag("--quantization", &args.quantization)?;
    if format != Format::Ct2 && quantization != ct2::Quantization::Float32 {
        return Err(Error::usage(format!("--quantization {quantization} is for --format ct2")).help("leave it out"));
    }
    refuse_taken(&args.out)?;
    let loaded = model::load_from(Some(&args.model), args.checkpoint.as_deref(), common)?;
    let (layout, mut file) = loaded.stored()?;
    let mut values = vec![0f32; layout.total()];
    for (i, entry) in layout.entries().iter().enumerate() {
        file.read(i, 0, &mut values[entry.range()])?;
    }
    file.finish()?;
    let exported = Model { config: &loaded.config, tokenizers: &loaded.tokenizers, layout: &layout, values: &values };
    let notes = format.export(&exported, quantization, &args.out)?;
    if common.json {
        print_json(&serde_json::json!({ "out": args.out.to_string_lossy(), "format": format }))?;
    } else {
        info(format_args!("written to {}", shown_path(&args.out)));
    }
    notes.iter().for_each(note);
    Ok(())
}
