//! Exchanges models with other programs: [`import`] reads theirs, [`export`] writes ours for them; [`search`] says what
//! of a search they have.

pub mod export;
pub mod import;
mod marian_names;
pub mod search;
