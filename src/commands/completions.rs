//! `mt completions`

use serde_json::json;

use super::shared::output::Output;
use crate::cli::{Common, CompletionsArgs, completions};
use crate::error::Result;

/// Writes a shell's script to standard output.
pub(super) fn run(args: &CompletionsArgs, common: &Common) -> Result<()> {
    let script = completions(args.shell);
    let mut output = Output::open(None)?;
    if common.json {
        output.json(&json!({ "script": String::from_utf8_lossy(&script) }))?;
    } else {
        output.bytes(&script)?;
    }
    output.flush()
}
