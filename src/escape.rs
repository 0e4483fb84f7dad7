//! Text of others, such as a name, a path or a line of a corpus, as messages show it: it must not command a terminal or
//! look like another message.

use std::borrow::Cow;
use std::path::Path;

use crate::limits::LONGEST_QUOTED;

/// Whether a character controls a terminal, changes the order or the lines of shown text, is invisible although it may
/// carry a message, or is not allowed in text. Joiners and direction marks are harmless: words of some languages need
/// them.
pub fn is_harmful(c: char) -> bool {
    let orders = matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}');
    let is_invisible = matches!(c, '\u{E0000}'..='\u{E007F}' | '\u{FFF9}'..='\u{FFFB}');
    c.is_control() || orders || is_invisible || (u32::from(c) & 0xFFFE) == 0xFFFE
}

/// Text with its harmful characters ([`is_harmful`]) escaped, except line breaks and tabs.
pub fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_harmful(c) && !matches!(c, '\n' | '\t'), |c| c.escape_default().to_string())
}

/// Like [`harmless`], but escapes line breaks, too: for foreign text inside a message.
pub fn in_one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_harmful(c) && c != '\t', |c| c.escape_default().to_string())
}

/// The beginning of foreign text, as much as a message quotes.
pub fn brief(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_QUOTED).and_then(|(end, _)| text.get(..end)) {
        Some(beginning) => format!("{beginning}…").into(),
        None => text.into(),
    }
}

/// The same in quotes, with escapes.
pub fn quoted(text: &str) -> String {
    format!("{:?}", brief(text))
}

/// A path inside a message.
pub fn shown_path(path: &Path) -> String {
    in_one_line(&path.to_string_lossy()).into_owned()
}

/// JSON with its harmful characters as JSON escapes, so that its meaning stays.
pub fn harmless_json(json: &str) -> Cow<'_, str> {
    let escape = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    escaped(json, |c| is_harmful(c) && c != '\n', escape)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return text.into();
    }
    let written = |c: char| if is_escaped(c) { escape(c) } else { c.to_string() };
    text.chars().map(written).collect::<String>().into()
}

/// A path as a word of a command that the user can give to a shell: in quotes if the shell would take it for something
/// else.
pub fn shell_word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // Not an option of the command.
    let path = if path.starts_with('-') && path.len() > 1 { format!("./{path}").into() } else { path };
    if !path.is_empty() && path.chars().all(|c| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c)) {
        return path.into_owned();
    }
    format!("'{}'", path.replace('\'', r"'\''"))
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_cannot_command_the_terminal() {
        for (text, expected) in [
            ("größe\n\tx", "größe\n\tx"),
            ("a\u{1b}[2Jb\r\u{7}\0\u{9b}", "a\\u{1b}[2Jb\\r\\u{7}\\u{0}\\u{9b}"),
            ("a\u{202e}b\u{2066}c\u{2028}d\u{e0041}\u{fffe}", "a\\u{202e}b\\u{2066}c\\u{2028}d\\u{e0041}\\u{fffe}"),
            // Persian, Hebrew and an emoji need theirs.
            (
                "می\u{200c}خواهم \u{200f}א\u{200e} 👩\u{200d}🚀 \u{feff}",
                "می\u{200c}خواهم \u{200f}א\u{200e} 👩\u{200d}🚀 \u{feff}",
            ),
        ] {
            assert_eq!(harmless(text), expected);
        }
        assert_eq!(in_one_line("a\nb\u{202e}"), "a\\nb\\u{202e}");
    }

    #[test]
    fn harmless_json_says_the_same() {
        let value = serde_json::json!({ "a\u{9b}": "x\u{202e}\u{e0041}\n\u{1b}é" });
        let (plain, json) = (value.to_string(), harmless_json(&value.to_string()).into_owned());
        assert!(json != plain && !json.contains(is_harmful), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
    }

    #[test]
    fn paths_in_commands_are_quoted_for_the_shell_if_need_be() {
        for (path, expected) in [
            ("runs/a-b_c/step=1,2.toml", "runs/a-b_c/step=1,2.toml"),
            (r"runs\a", r"'runs\a'"),
            ("runs/a b", "'runs/a b'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
            ("größe", "'größe'"),
            ("~/x", "'~/x'"),
            ("", "''"),
            // A command would take it for an option; but `-` alone is stdin.
            ("-x y.toml", "'./-x y.toml'"),
            ("-x.toml", "./-x.toml"),
            ("-", "-"),
        ] {
            assert_eq!(shell_word(Path::new(path)), expected);
        }
    }
}
