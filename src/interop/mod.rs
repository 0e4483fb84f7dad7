//! Exchanges models with other programs: [`import`] reads theirs, [`export`] writes ours for them.

pub mod export;
pub mod import;
mod marian_names;
pub mod marian_search;
