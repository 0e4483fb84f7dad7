//! What no message may show: the token, a password in an address, and the signature of one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Shown instead of a secret.
const HIDDEN: &str = "***";
/// The most characters of a text of somebody else that a message shows.
const MOST_SHOWN: usize = 4000;
/// Parts of the names of parameters whose value is one, for words that are no address.
const SECRET: [&str; 4] = ["signature=", "credential=", "token=", "password="];

/// The secrets of this process.
#[derive(Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// The secrets in these texts; some may be empty.
    pub(super) fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let mut texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        // A longer one may contain a shorter one.
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Self(texts)
    }

    /// A text of somebody else without them.
    pub(super) fn hide(&self, text: &str) -> String {
        let hidden = self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN));
        hide(&hidden)
    }
}

/// `user:password` as a header has it.
pub(super) fn basic(user: &str, password: &str) -> String {
    STANDARD.encode(format!("{user}:{password}"))
}

/// A text without passwords and parameters of addresses in it, and not longer than a message can be.
pub(super) fn hide(text: &str) -> String {
    if let Some((end, _)) = text.char_indices().nth(MOST_SHOWN) {
        // Half an address could show half a password.
        let whole_words = text.split_at(end).0.trim_end_matches(|c: char| !c.is_whitespace());
        return format!("{}…", hide(whole_words));
    }
    text.split_inclusive(char::is_whitespace).map(hide_in_word).collect()
}

fn hide_in_word(word: &str) -> String {
    let (text, space) = word.split_at(word.trim_end().len());
    if let Some((scheme, rest)) = text.split_once("://") {
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // A password that was not encoded may have a slash in it.
        let (authority, path) = match (authority.rfind('@'), rest.rfind('@')) {
            (None, Some(at)) if authority.contains(':') => (HIDDEN, rest.split_at(at).1),
            _ => (authority, path),
        };
        let host = authority.rsplit_once('@').map(|(_, host)| format!("{HIDDEN}@{host}"));
        return format!("{scheme}://{}{}{space}", host.as_deref().unwrap_or(authority), hide_in_word(path));
    }
    let query = text.split_once('?').filter(|(_, query)| query.contains('='));
    if let Some((path, _)) = query {
        return format!("{path}?{HIDDEN}{space}");
    }
    let lower = text.to_ascii_lowercase();
    match SECRET.iter().filter_map(|name| Some(lower.find(name)? + name.len())).min() {
        Some(end) => format!("{}{HIDDEN}{space}", text.split_at(end).0),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_no_secret() {
        for (text, shown) in [
            ("nothing to hide", "nothing to hide"),
            ("see https://hub.example/a/b, please", "see https://hub.example/a/b, please"),
            ("at https://me:pw@hub.example/a b", "at https://***@hub.example/a b"),
            ("at https://me:p@w@hub.example b", "at https://***@hub.example b"),
            ("at https://me:p/w@hub.example b", "at https://***@hub.example b"),
            ("(https://s.example/f?X-Amz-Signature=0a1b&x=y)\n", "(https://s.example/f?***\n"),
            ("/f?X-Amz-Credential=0a1b", "/f?***"),
            ("X-Amz-Signature=0a1b failed", "X-Amz-Signature=*** failed"),
            ("what? why=that", "what? why=that"),
            ("a://b:c@d/e://f:g@h/", "a://***@d/e://***@h/"),
            ("://", "://"),
            ("", ""),
        ] {
            assert_eq!(hide(text), shown);
        }
        let long = format!("first words {}", "a://b:c@d/".repeat(100_000));
        assert_eq!(hide(&long), "first words …");
        assert_eq!(hide(&"word ".repeat(10_000)).chars().count(), MOST_SHOWN + 1);
        let secrets = Secrets::new(["hf_secret".to_owned(), String::new(), "hf_secret_long".to_owned()]);
        assert_eq!(secrets.hide("no hf_secret_long, hf_secret, hf_s"), "no ***, ***, hf_s");
        assert_eq!(basic("me", "pw"), "bWU6cHc=");
    }
}
