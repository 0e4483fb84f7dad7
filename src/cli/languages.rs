//! Flags of the commands that take a multilingual model.

use clap::Args;

/// Between which of its languages a model translates.
#[derive(Args, Debug)]
pub struct LanguageArgs {
    /// The language of the sources, such as eng_Latn; `mt info MODEL` lists those of a model
    ///
    /// For multilingual models such as NLLB-200. A line may also name its own: `>>fra_Latn<< Bonjour.` Default:
    /// `decode.source_language` of the model.
    #[arg(long, value_name = "LANGUAGE")]
    pub from: Option<String>,
    /// The language to translate into, such as deu_Latn
    ///
    /// Also for models with tags: `--to de` puts `<2de>` in front of each line if the model has that tag. Default:
    /// `decode.target_language` of the model.
    #[arg(long, value_name = "LANGUAGE")]
    pub to: Option<String>,
}
