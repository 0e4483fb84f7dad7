//! A model on disk or on the Hugging Face hub: finding it, loading it, and writing one.
//!
//! | | |
//! |---|---|
//! | `find` | its directory and configuration |
//! | [`hub`] | models of the hub, imported into a cache |
//! | `load` | its weights, for what they are needed for; writing one |
//! | [`names`] | the names that such a directory has for itself |
//! | [`record`] | the configuration that a checkpoint was trained with |
//! | [`trust`] | text that a model's configuration names |

mod find;
pub mod hub;
mod load;
pub mod names;
pub mod record;
pub mod trust;

use std::path::PathBuf;
use std::sync::Arc;

use crate::notice::Notice;
pub use find::{config_of, directory, is_there, not_a_directory, whole_path};
pub use load::{
    ModelFiles, Wanted, engine, files_of, load, load_parameters, named, slots, text_files, verify_tokenizers,
    vocabulary, write_imported, write_model,
};

/// Which model to load, and where to run it.
#[derive(Clone, Debug, Default)]
pub struct ModelRequest {
    /// A model or run directory, a run's checkpoint, or `hf:ORG/NAME`; none: `$MT_MODEL`, else the newest run under
    /// `./runs`.
    pub model: Option<PathBuf>,
    /// `best`, `last`, `final` or an update; none: the first of final, best and last that is there.
    pub checkpoint: Option<String>,
    /// The value of `--device`; `None`: the model's configuration decides.
    pub device: Option<String>,
    /// Threads on the processor; `None`: the model's configuration decides.
    pub threads: Option<usize>,
    /// Whether the hub may not be accessed, only its cache.
    pub offline: bool,
}

/// Receives notices of the work.
pub type Tell<'a> = &'a dyn Fn(Notice);

/// The same, for other threads.
pub type Notices = Arc<dyn Fn(Notice) + Send + Sync>;
