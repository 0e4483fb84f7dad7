//! Tags for the target language, as messages list them and as corpora state them.

use super::tokenizer::Tokenizer;

/// The most tags that a message lists.
const MOST: usize = 60;

/// Tags as a message lists them.
pub fn listed(tags: &[&str]) -> String {
    let more = if tags.len() > MOST { " …" } else { "" };
    tags.iter().take(MOST).copied().collect::<Vec<_>>().join(" ") + more
}

/// The first word of a corpus's tag, or of `--tag`, that is neither a tag nor another symbol of the vocabulary.
pub fn unknown_word<'w>(tag: &'w str, tokenizer: &Tokenizer) -> Option<&'w str> {
    let known: Vec<&str> = tokenizer.language_tags().into_iter().chain(tokenizer.symbols()).collect();
    let is_known = |word: &str| known.contains(&word) || known.contains(&tokenizer.encoded_form(word).as_str());
    tag.split_whitespace().find(|word| !is_known(word))
}
