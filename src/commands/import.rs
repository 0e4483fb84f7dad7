//! `mt import`

use super::shared::output::print_json;
use super::shared::reserved::refuse_taken;
use crate::cli::{Common, ImportArgs};
use crate::console::{info, note, tell};
use crate::error::Result;
use crate::escape::{in_one_line, shell_word, shown_path};
use crate::interop::import;
use crate::model_dir::{hub, write_imported};

/// Reads another program's model and writes it in our format.
pub(super) fn run(args: &ImportArgs, common: &Common) -> Result<()> {
    // Before a download.
    refuse_taken(&args.out)?;
    let repo = hub::repository(&args.source);
    let folder = match &repo {
        Some(repo) => hub::fetch(repo, common.offline, &tell)?.folder,
        None => args.source.clone(),
    };
    let imported = import::import(&folder)
        .map_err(|error| if folder.exists() { error } else { hub::advised(error, &args.source) })?;
    if let Some(repo) = &repo {
        hub::check_room(&args.out, repo, &imported)
            .map_err(|error| error.more_help("or give an --out on a larger disk"))?;
    }
    write_imported(&imported, &args.out, &args.source)?;
    let parameters = imported.layout.total();
    if common.json {
        print_json(&serde_json::json!({ "out": args.out.to_string_lossy(), "parameters": parameters }))?;
    } else {
        info(format_args!("{} parameters, written to {}", crate::notice::grouped(parameters), shown_path(&args.out)));
    }
    let tags = imported.tokenizers.source.language_tags();
    let languages = imported.tokenizers.source.languages();
    if !languages.is_empty() {
        let (count, out) = (languages.len(), shell_word(&args.out));
        info(format_args!("{count} languages, for --from and --to: mt info {} lists them", in_one_line(&out)));
    } else if !tags.is_empty() {
        info(format_args!("each line to translate must begin with a tag for the target language: {}", tags.join(" ")));
    }
    imported.notes.iter().for_each(note);
    Ok(())
}
