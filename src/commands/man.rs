//! `mt man`

use std::fs;

use serde_json::json;

use super::shared::output::{Replacement, print_json};
use super::shared::reserved;
use crate::cli::{Common, ManArgs, manual_pages};
use crate::console::info;
use crate::error::{Error, Result};
use crate::escape::shown_path;

/// Writes the page of each command into a directory.
pub(super) fn run(args: &ManArgs, common: &Common) -> Result<()> {
    reserved::refuse(&args.out)?;
    fs::create_dir_all(&args.out).map_err(|error| Error::io("create", &args.out, error))?;
    let pages = manual_pages().map_err(|error| Error::io("write", &args.out, error))?;
    for (name, text) in &pages {
        let mut page = Replacement::open(&args.out.join(name))?;
        page.output().bytes(text)?;
        page.finish()?;
    }
    if common.json {
        print_json(&json!({ "out": args.out.display().to_string(), "pages": pages.len() }))?;
    }
    info(format_args!("{}: {} pages, such as mt.1", shown_path(&args.out), pages.len()));
    Ok(())
}
