//! Target-language tags: the `>>fra<<` at the beginning of a line selects one of a model's target languages, as in
//! Marian's models.

use super::SentencePiece;

impl SentencePiece {
    /// The tags that the vocabulary has.
    pub(super) fn tags(&self) -> Vec<&str> {
        if !self.stored.language_tags {
            return Vec::new();
        }
        let pieces = self.vocabulary.pieces.iter().map(AsRef::as_ref);
        pieces.filter(|piece: &&str| piece.starts_with(">>") && piece.ends_with("<<")).collect()
    }

    /// The tag that a line begins with, if this tokenizer knows of tags, and the rest of the line.
    pub(super) fn split_tag<'t>(&self, line: &'t str) -> (Option<&'t str>, &'t str) {
        if !self.stored.language_tags || !line.starts_with(">>") {
            return (None, line);
        }
        match line.find("<<").and_then(|end| line.split_at_checked(end + 2)) {
            Some((tag, rest)) => (Some(tag), rest),
            None => (None, line),
        }
    }
}
