//! Models between `mt` and other programs: read from theirs ([`import`]), written for them ([`export`]).

pub mod export;
pub mod import;
mod marian_names;
pub mod marian_search;
