//! The parts of a training run, for the commands that make, prepare, check, resume or read one.
//!
//! | | |
//! |---|---|
//! | [`configuration`] | what the command line says of it |
//! | [`directory`], [`lock`] | where a run is and which files it has; who trains there |
//! | [`ended`] | whether it has ended |
//! | [`compare`] | whether a run may continue with another configuration or other text |
//! | [`training_data`], [`batches`], [`plan`] | its encoded text; its batches; how many there are and what they need |
//! | [`validator`] | its validation set |
//! | [`corpus_tags`] | lines of any of its text that lack a tag, or have one too many |
//! | [`unwritten`] | text that the vocabulary can hardly write |
//! | [`init`], [`restore`] | what it begins with: another model, or its own checkpoint |
//! | [`resume`] | the state from which it goes on, with another configuration perhaps |
//! | [`record`] | what a checkpoint records of the configuration that it was trained with |
//! | [`backend`] | what computes its updates |

pub mod backend;
pub mod batches;
pub mod compare;
pub mod configuration;
pub mod corpus_tags;
pub mod directory;
pub mod ended;
pub mod init;
pub mod lock;
pub mod plan;
pub mod record;
pub mod restore;
pub mod resume;
pub mod training_data;
pub mod unwritten;
pub mod validator;
