//! A training run on disk, for those that make, prepare, check, resume or read one.
//!
//! | | |
//! |---|---|
//! | [`request`], [`stages`] | the request for a run; its stages from there to its end |
//! | [`directory`], [`lock`] | where a run is and which files it has; who trains there |
//! | [`ended`] | whether it has ended |
//! | [`compare`] | whether a run may continue with another configuration or other text |
//! | [`training_data`], `pair_quality` | its encoded text; which pairs of it a model finds good enough |
//! | [`plan`] | how many batches there are and what they need |
//! | [`validator`] | its validation set |
//! | [`init`], [`restore`] | what it begins with: another model, or its own checkpoint |
//! | [`resume`] | the state from which it goes on, with another configuration perhaps |
//! | [`backend`] | what computes its updates |
//! | [`follower`] | ranks that train along with rank 0 |
//! | [`callbacks`], [`saver`], [`finish`] | what the loop asks for: validation, checkpoints, its final model |

pub mod backend;
pub mod callbacks;
pub mod compare;
pub mod directory;
pub mod ended;
pub mod finish;
pub mod follower;
pub mod init;
pub mod lock;
mod pair_quality;
pub mod plan;
pub mod request;
pub mod restore;
pub mod resume;
pub mod saver;
pub mod stages;
pub mod training_data;
pub mod validator;

use crate::train::StopReason;

/// Asks training to stop, as a signal does.
pub trait Stop {
    /// Whether to stop, and why.
    fn stop(&self) -> Option<StopReason>;

    /// Tells whether a signal may end the process at once, because there is nothing to save.
    fn allow_immediate_end(&self, at_once: bool);
}

/// Never asks to stop.
pub struct Never;

impl Stop for Never {
    fn stop(&self) -> Option<StopReason> {
        None
    }

    fn allow_immediate_end(&self, _: bool) {}
}
