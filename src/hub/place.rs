//! Where the cache and the token of the hub lie: as for all programs of the hub, in the user's cache directory unless the
//! environment says otherwise.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// The user's directory for what can be had again: `XDG_CACHE_HOME`, else `.cache` in the home directory, which is `HOME`, or as
/// the password database says. `None` if there is neither. A directory that everybody may write, such as /tmp, is no
/// replacement: others could put files there.
pub fn user_cache() -> Option<PathBuf> {
    chosen(env::var_os("XDG_CACHE_HOME"), env::home_dir())
}

/// The XDG specification says that relative paths are to be ignored.
fn chosen(xdg: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let xdg = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
    xdg.or_else(|| Some(home.filter(|path| path.is_absolute())?.join(".cache")))
}

/// The directory of the hub's programs: `HF_HOME`, else `huggingface` in the user's cache.
pub(super) fn home() -> Option<PathBuf> {
    named("HF_HOME").or_else(|| Some(user_cache()?.join("huggingface")))
}

/// The hub's cache: `HF_HUB_CACHE` (formerly `HUGGINGFACE_HUB_CACHE`), else `hub` in its programs' directory.
pub(super) fn cache() -> Result<PathBuf> {
    let cache = named("HF_HUB_CACHE").or_else(|| named("HUGGINGFACE_HUB_CACHE"));
    cache.or_else(|| Some(home()?.join("hub"))).ok_or_else(|| {
        let error = Error::failure("there is no place for the cache of the hub: the user has no home directory");
        error.help("set HOME to the path of the home directory, or HF_HOME to that of another one for the cache")
    })
}

/// What a variable of the environment names.
fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_places_of_a_cache() {
        let cache = |xdg: Option<&str>, home: Option<&str>| chosen(xdg.map(OsString::from), home.map(PathBuf::from));
        assert_eq!(cache(Some("/x"), Some("/h")), Some("/x".into()));
        for xdg in [None, Some(""), Some("x"), Some("./x")] {
            assert_eq!(cache(xdg, Some("/h")), Some("/h/.cache".into()));
            for home in [None, Some(""), Some("a")] {
                assert_eq!(cache(xdg, home), None);
            }
        }
    }
}
