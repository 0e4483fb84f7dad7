//! Code that several commands share.
//!
//! | | |
//! |---|---|
//! | [`arguments`], [`model`] | runs and models that flags ask for |
//! | [`input`], [`output`], [`answered`] | lines in, results out, and how far a command has come |
//! | [`reserved`] | names that no output may take |
//! | [`test_set`] | sources and references, of flags or of a model's configuration |
//! | [`requests`] | lines to translate, with what is demanded of each |
//! | [`pairs`] | sources and translations, side by side |
//! | [`decoding`] | a translator and its options, from flags |
//! | [`synthesis`] | whole corpora translated in parts, with what has been done kept on disk |
//! | [`languages`] | the languages between which a multilingual model translates, from flags |
//! | [`decimals`] | log-probabilities and scores as text |
//! | [`attention`] | the file of `--attention` |
//! | [`suspicious`], [`tags`], [`line_summary`] | warnings about lines of the input and their translations |
//! | [`signals`] | those that stop training, and those that end a command |

pub(super) mod answered;
pub(super) mod arguments;
pub(super) mod attention;
pub(super) mod decimals;
pub(super) mod decoding;
pub(super) mod input;
pub(super) mod languages;
pub(super) mod line_summary;
pub(super) mod model;
pub(super) mod output;
pub(super) mod pairs;
pub(super) mod requests;
pub(super) mod reserved;
pub(super) mod signals;
pub(super) mod suspicious;
pub(super) mod synthesis;
pub(super) mod tags;
pub(super) mod test_set;
