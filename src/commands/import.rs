//! `mt import`

use super::model::write_model;
use super::output::Output;
use crate::checkpoint::import::marian;
use crate::checkpoint::{Elements, NamedTensor, export};
use crate::cli::{Common, ImportArgs};
use crate::console::message;
use crate::error::Result;

/// Reads another program's model and writes it as one of ours.
pub fn run(args: &ImportArgs, common: &Common) -> Result<()> {
    let marian::Imported { config, tokenizers, layout, values } = marian::import(&args.source)?;
    let tensors: Vec<NamedTensor> = layout
        .entries()
        .iter()
        .map(|entry| NamedTensor {
            name: &entry.name,
            shape: &entry.shape,
            data: Elements::F32(&values[entry.range()]),
        })
        .collect();
    export::directory(&args.out, |directory| write_model(directory, &config, &tokenizers, &tensors))?;
    if common.json {
        let mut output = Output::open(None)?;
        let json = serde_json::json!({ "out": args.out.to_string_lossy(), "parameters": layout.total() });
        output.line(&json.to_string())?;
        return output.flush();
    }
    if !common.quiet {
        let parameters = super::info::grouped(layout.total());
        message(format_args!("{parameters} parameters, written to {}", args.out.display()));
        let tags = tokenizers.source.language_tags();
        if !tags.is_empty() {
            message(format_args!("a line begins with the language that is wanted: {}", tags.join(" ")));
        }
    }
    Ok(())
}
