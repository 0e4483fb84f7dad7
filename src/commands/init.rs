//! `mt init`

use serde_json::json;

use super::shared::model::open_device;
use super::shared::output::{print, print_json};
use crate::cli::{Common, InitArgs};
use crate::console::{info, warning};
use crate::device;
use crate::error::Result;
use crate::escape::{in_one_line, shell_word, shown_path};
use crate::notice::grouped;
use crate::starter::{self, Machine, Starter, StarterRequest};

/// If no more than one pair in so many is left out, nothing is said.
const FEW: usize = 20;

/// Writes a configuration for two files of text.
pub(super) fn run(args: &InitArgs, common: &Common) -> Result<()> {
    device::set_threads(common.threads.unwrap_or(0))?;
    let machine = Machine { has_gpu: !open_device(common)?.is_cpu() };
    let valid = args.valid.as_deref().and_then(|files| <[_; 2]>::try_from(files.to_vec()).ok());
    let request = StarterRequest {
        train: [args.source.clone(), args.target.clone()],
        valid,
        file: args.output.clone(),
        overwrite: args.overwrite,
        machine,
        seed: common.seed.unwrap_or(1),
    };
    let Starter { file, train_pairs, valid_pairs, folder, recipe } = starter::begin(&request)?;
    if common.json {
        return print_json(&json!({
            "config": file.to_string_lossy(),
            "train_pairs": train_pairs,
            "valid_pairs": valid_pairs,
            "folder": folder.map(|folder| folder.to_string_lossy().into_owned()),
            "preset": recipe.preset.to_string(),
            "vocab_size": recipe.vocab_size,
            "max_updates": recipe.max_updates,
        }));
    }
    if recipe.left_out * FEW > train_pairs {
        warning(format_args!(
            "about {} of {} pairs have more than {} subwords and are left out; `mt` translates sentences: split longer \
             text first",
            grouped(recipe.left_out),
            grouped(train_pairs),
            grouped(recipe.max_length)
        ));
    }
    let text = folder.map(|folder| format!(", in {}", shown_path(&folder))).unwrap_or_default();
    info(format_args!("{} pairs to train on, {} to validate on{text}", grouped(train_pairs), grouped(valid_pairs)));
    info(format_args!("next: mt train --config {}", in_one_line(&shell_word(&file))));
    print(shown_path(&file))
}
