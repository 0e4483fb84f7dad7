//! Scripts.

use unicode_script::Script;

/// Whether text in this script has no spaces between words.
pub fn is_without_spaces(script: Script) -> bool {
    matches!(
        script,
        Script::Han
            | Script::Hiragana
            | Script::Katakana
            | Script::Bopomofo
            | Script::Thai
            | Script::Lao
            | Script::Khmer
            | Script::Myanmar
            | Script::Tibetan
    )
}
