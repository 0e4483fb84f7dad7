//! Exchanges models with other programs: [`import`] reads theirs, [`export`] writes ours for them; [`search`] says what
//! of a search they have.

pub mod export;
mod hf_names;
pub mod import;
pub mod search;
pub(crate) mod yaml;
