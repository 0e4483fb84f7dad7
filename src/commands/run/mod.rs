//! What a training run is made of, for the commands that make, prepare, check or resume one.
//!
//! | | |
//! |---|---|
//! | [`directory`] | where a run lies, who holds it, what stands in it |
//! | [`compare`] | whether a run may go on under another configuration or with other text |
//! | [`training_data`], [`batches`], [`plan`] | its text, encoded; the batches of it; how many there are and what they need |
//! | [`validator`] | its validation set |
//! | [`init`], [`restore`] | what it begins with: another model, or its own checkpoint |
//! | [`signals`] | what asks it to stop |

pub mod batches;
pub mod compare;
pub mod directory;
pub mod init;
pub mod plan;
pub mod restore;
pub mod signals;
pub mod training_data;
pub mod validator;
