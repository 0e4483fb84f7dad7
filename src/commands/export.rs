//! `mt export`

use super::shared::model;
use super::shared::output::print_json;
use super::shared::reserved::refuse_taken;
use crate::cli::{Common, ExportArgs};
use crate::console::{info, note};
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::interop::export::{Format, Model, ct2, hf_marian};
use crate::interop::search;

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
    match format {
        Format::Ct2 => ct2::export(&exported, quantization, &args.out)?,
        Format::HfMarian => hf_marian::export(&exported, &args.out)?,
    }
    if common.json {
        print_json(&serde_json::json!({ "out": args.out.to_string_lossy(), "format": format }))?;
    } else {
        info(format_args!("written to {}", shown_path(&args.out)));
    }
    if format == Format::HfMarian {
        hf_marian::notes(&loaded.config.model, &loaded.tokenizers).into_iter().for_each(note);
        let lost = search::lost(&loaded.config.decode);
        if !lost.is_empty() {
            let lost = lost.join("; ");
            note(format_args!(
                "transformers searches differently: {lost}. `mt import` of this folder restores the search of mt"
            ));
        }
    }
    let target = &loaded.tokenizers.target;
    // Our own tokenizers can split any text into pieces, so their models never learn to produce `<unk>`.
    let must_disable_unk = !target.has_dropout() && target.forbidden().contains(&target.unk_id());
    if format == Format::Ct2 {
        let (arguments, differences) =
            search::of_ctranslate2(&loaded.config.decode, loaded.config.model.max_length, must_disable_unk);
        let but = if differences.is_empty() { String::new() } else { format!("; but {}", differences.join(", and ")) };
        note(format_args!(
            "CTranslate2 keeps no search settings: to search as mt does, call translate_batch(…, {arguments}){but}"
        ));
    }
    Ok(())
}
