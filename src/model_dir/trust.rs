//! Text that a model's configuration names. Somebody else may have written that configuration, so the program reports
//! what it reads, and fetches nothing unless the user allows it.

use std::path::Path;

use super::Tell;
use crate::data::CorpusLocation;
use crate::error::{Error, Result};
use crate::file;
use crate::notice::Notice;

/// Tells that a model's configuration names a text, and refuses one that should not be read for that alone; `what` it
/// is for completes "names … as its".
///
/// # Errors
/// It is a data set of the hub, and the user does not trust the model; or it is no file of text.
pub fn check(location: &CorpusLocation, what: &str, trusts: bool, tell: Tell<'_>) -> Result<()> {
    if let CorpusLocation::Hub(split) = location {
        if !trusts {
            let what =
                format!("the model's configuration names {split} of the hub as its {what}, which would be fetched");
            return Err(
                Error::usage(what).help("give --trust-model-data if you trust the model; or name files of your own")
            );
        }
        tell(Notice::Info(format!("{what}: {split} of the hub, which the model's configuration names")));
        return Ok(());
    }
    let mut sides = location.sides().to_vec();
    sides.dedup();
    sides.iter().try_for_each(|side| check_file(side))?;
    let names: Vec<String> = sides.iter().map(|side| side.display().to_string()).collect();
    tell(Notice::Info(format!("{what}: {}, which the model's configuration names", names.join(" and "))));
    Ok(())
}

/// Fails for a pipe, a device, or a file whose contents the system makes while it is read. A missing file fails later,
/// when it is opened.
fn check_file(path: &Path) -> Result<()> {
    let refused = |why: &str| {
        let error = Error::failure(format!("the model's configuration names as text what is {why}")).at(path);
        Err(error.help("name files of your own"))
    };
    match file::open_regular(path).and_then(|file| file.metadata()) {
        Ok(metadata) if metadata.len() == 0 => refused("empty, or no file of text"),
        Err(error) if file::is_not_regular(&error) => refused("not a regular file"),
        _ => Ok(()),
    }
}
