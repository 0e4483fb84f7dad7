//! Target-language tags at the beginning of a line, which select one of a model's target languages: `>>fra<<` as in
//! Marian's models, which is a piece of its own, or `<2fr>` as in MADLAD-400, which is split with the line.

use super::SentencePiece;

impl SentencePiece {
    /// The tags that the vocabulary has.
    pub(super) fn tags(&self) -> Vec<&str> {
        let is_tag = match &self.stored {
            stored if stored.language_tags => |piece: &&str| piece.starts_with(">>") && piece.ends_with("<<"),
            stored if stored.tags_in_text => |piece: &&str| is_text_tag(piece),
            _ => return Vec::new(),
        };
        self.vocabulary.pieces.iter().map(AsRef::as_ref).filter(is_tag).collect()
    }

    /// The tag that a line begins with, known or not, if this tokenizer knows of tags.
    pub(super) fn tag_of<'t>(&self, line: &'t str) -> Option<&'t str> {
        if self.stored.tags_in_text && line.starts_with("<2") {
            return line.get(..=line.find('>')?).filter(|tag| is_text_tag(tag));
        }
        self.split_tag(line).0
    }

    /// The tag that is a piece of its own at the beginning of a line, and the rest of the line.
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

/// Whether a piece is a tag such as `<2fr>` or `<2zh_Hant>`.
pub fn is_text_tag(piece: &str) -> bool {
    let code = piece.strip_prefix("<2").and_then(|rest| rest.strip_suffix('>'));
    code.is_some_and(|code| {
        (2..=16).contains(&code.len()) && code.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}
