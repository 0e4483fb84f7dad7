//! What several commands share.
//!
//! | | |
//! |---|---|
//! | [`arguments`], [`model`] | runs and models that flags ask for |
//! | [`input`], [`output`], [`answered`] | lines in, results out, and how far a command has come |
//! | [`reserved`] | names that no output may take |
//! | [`requests`] | lines to translate, with what is demanded of each |
//! | [`pairs`] | sources and translations, side by side |
//! | [`decoding`] | a translator and its options, from flags |
//! | [`decimals`] | log-probabilities and scores as text |
//! | [`attention`] | the file of `--attention` |
//! | [`suspicious`], [`tags`], [`line_summary`] | warnings about lines of the input and their translations |
//! | [`signals`] | those that stop training, and those that end a command |

pub mod answered;
pub mod arguments;
pub mod attention;
pub mod decimals;
pub mod decoding;
pub mod input;
pub mod line_summary;
pub mod model;
pub mod output;
pub mod pairs;
pub mod requests;
pub mod reserved;
pub mod signals;
pub mod suspicious;
pub mod tags;
