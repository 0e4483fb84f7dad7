//! Tags for the target language, as messages list them and as corpora state them.

use super::tokenizer::{Tokenizer, code_of, tag_of};
use crate::error::{Error, Result};

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

/// Whether a model without tags would read a corpus's tag, or that of `--tag`, as text, word by word.
pub fn is_read_as_text(tag: &str, tokenizer: &Tokenizer) -> bool {
    let is_piece = |word: &str| tokenizer.pieces(word).iter().any(|piece| piece == word);
    // A piece that another program treats as a tag is a tag, too.
    tokenizer.language_tags().is_empty() && unknown_word(tag, tokenizer).is_some_and(|word| !is_piece(word))
}

/// The languages for which a vocabulary has tags: codes, with their tags.
pub struct LanguageTags<'t> {
    known: Vec<(String, String)>,
    /// Brings text into the form that the tags have.
    form: Box<dyn Fn(&str) -> String + 't>,
    /// Whether they are of a multilingual model, both of whose sides begin with one.
    is_multilingual: bool,
}

impl<'t> LanguageTags<'t> {
    /// Those of a tokenizer.
    pub fn of(tokenizer: &'t Tokenizer) -> Self {
        let (languages, form) = (tokenizer.languages(), |text: &str| tokenizer.encoded_form(text));
        if languages.is_empty() {
            return Self::listed(tokenizer.language_tags(), form);
        }
        let known = languages.iter().map(|(code, _)| ((*code).to_owned(), tag_of(code))).collect();
        Self { known, form: Box::new(form), is_multilingual: true }
    }

    /// Those of tags such as `<2de>`, with which source lines begin, in this form of text.
    pub fn listed<'s>(tags: impl IntoIterator<Item = &'s str>, form: impl Fn(&str) -> String + 't) -> Self {
        let known = tags.into_iter().map(&form).map(|tag| (code_of(&tag).to_owned(), tag)).collect();
        Self { known, form: Box::new(form), is_multilingual: false }
    }

    /// The tag of a language by its code, as `--to` and `target_language` give it: `deu_Latn` has `>>deu_Latn<<`, `de`
    /// may have `<2de>`. A tag is its own code, too.
    ///
    /// # Errors
    /// There is no such language; the error names the most similar one. `asked` is the flag or key; exit code 2.
    pub fn tag(&self, asked: &str, code: &str) -> Result<String> {
        if self.known.is_empty() {
            let what = format!("{asked} {code}: the model translates one language, and has no tags for others");
            return Err(Error::usage(what).help("leave it out, or give the languages tags (`tokenizer.tags`)"));
        }
        let same = (self.form)(code);
        let is_meant = |text: &String| text == code || *text == same;
        if let Some((_, tag)) = self.known.iter().find(|(known, tag)| is_meant(known) || is_meant(tag)) {
            return Ok(tag.clone());
        }
        let similarity = |known: &str| strsim::jaro_winkler(&code.to_lowercase(), &known.to_lowercase());
        let nearest = self.known.iter().max_by(|a, b| similarity(&a.0).total_cmp(&similarity(&b.0)));
        let nearest = nearest.filter(|(known, _)| similarity(known) > 0.6);
        let nearest = nearest.map(|(known, _)| format!("did you mean {known}? ")).unwrap_or_default();
        let all: Vec<&str> = self.known.iter().map(|(known, _)| known.as_str()).collect();
        let error = Error::usage(format!("{asked}: the model has no language {code}"));
        Err(error.help(format!("{nearest}it has {}", all.join(" "))))
    }

    /// The tags of both sides of a text that `key` names, with this `tag` and in these languages, as stated.
    ///
    /// # Errors
    /// There is no such language; a multilingual model is not told a language; or a tag is stated, too.
    pub fn tags(&self, key: &str, tag: Option<&str>, languages: [Option<&str>; 2]) -> Result<[Option<String>; 2]> {
        let [source, target] = languages;
        let of =
            |name: &str, code: Option<&str>| code.map(|code| self.tag(&format!("`{key}.{name}`"), code)).transpose();
        if self.is_multilingual {
            if let Some(tag) = tag {
                let what = format!("`{key}.tag` = \"{tag}\" is for models with tags, and this one has languages");
                return Err(Error::usage(what).help("leave it out, and state `source_language` and `target_language`"));
            }
            let tags = [of("source_language", source)?, of("target_language", target)?];
            if let Some(side) = tags.iter().position(Option::is_none) {
                let name = ["source_language", "target_language"][side];
                let error =
                    Error::usage(format!("the model has many languages, and `{key}` does not state its `{name}`"));
                return Err(error.help(format!("add {name} = \"…\" to it; `mt info MODEL` lists the languages")));
            }
            return Ok(tags);
        }
        match (tag, target) {
            (Some(_), Some(_)) => {
                let error =
                    Error::usage(format!("`{key}` has both a `tag` and a `target_language`, which has one, too"));
                Err(error.help("leave one of them out"))
            }
            (None, Some(_)) => Ok([of("target_language", target)?, None]),
            (tag, None) => Ok([tag.map(str::to_owned), None]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_is_found_in_the_form_that_its_tag_has() {
        let lower = LanguageTags::listed(["<2DE>", "<2fr>"], |text| text.to_lowercase());
        for code in ["DE", "de", "<2DE>", "<2de>"] {
            assert_eq!(lower.tag("--to", code).unwrap(), "<2de>", "{code}");
        }
        let as_it_is = LanguageTags::listed(["<2de>"], str::to_owned);
        assert_eq!(as_it_is.tag("--to", "de").unwrap(), "<2de>");
        as_it_is.tag("--to", "DE").unwrap_err();
    }
}
