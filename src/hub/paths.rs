//! Paths of the hub's cache and token: as for all programs of the hub, in the user's cache directory unless the
//! environment names others.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use uzers::os::unix::UserExt;

use crate::error::{Error, Result};

/// The user's cache directory: `XDG_CACHE_HOME` ([`named`]), else `.cache` in the home directory, which comes from
/// `HOME` or the password database. `None` if there is neither. A directory for all users, such as /tmp, is no
/// replacement: others could put files there.
pub fn user_cache() -> Option<PathBuf> {
    chosen(named("XDG_CACHE_HOME"), env::home_dir())
}

/// The XDG specification says that relative paths are to be ignored.
fn chosen(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let xdg = xdg.filter(|path| path.is_absolute());
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
        let error = Error::failure("there is no directory for the cache of the hub: the user has no home directory");
        error.help("set HOME to the path of the home directory, or HF_HOME to that of another one for the cache")
    })
}

/// The file of the token: `HF_TOKEN_PATH`, else `token` in the directory of the hub's programs.
pub(super) fn token() -> Option<PathBuf> {
    named("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))
}

/// The path in a variable of the environment, with `~` and `$NAME` expanded: where a value is quoted, or does not come
/// from a shell, nothing else has done so.
fn named(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|value| !value.is_empty())?;
    let home_of = |user: &OsStr| match user.is_empty() {
        true => env::home_dir(),
        false => Some(uzers::get_user_by_name(user)?.home_dir().to_path_buf()),
    };
    Some(expanded(&value, home_of, |name| env::var_os(name)).into())
}

/// Expands a path like Python's `os.path.expandvars(os.path.expanduser(path))`, which the hub's own programs use: `~`
/// and `~USER` at the beginning, `$NAME` and `${NAME}` anywhere. Unknown names stay, and nothing is expanded twice.
fn expanded(
    path: &OsStr,
    home_of: impl Fn(&OsStr) -> Option<PathBuf>,
    value_of: impl Fn(&OsStr) -> Option<OsString>,
) -> OsString {
    let path = path.as_bytes();
    let user = path.strip_prefix(b"~").map(|rest| rest.split(|byte| *byte == b'/').next().unwrap_or_default());
    let home = user.and_then(|user| Some((home_of(OsStr::from_bytes(user))?, user.len() + 1)));
    let path = match home {
        Some((home, length)) => {
            let home = home.into_os_string().into_vec();
            let end = home.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
            let whole = [home.get(..end).unwrap_or_default(), path.get(length..).unwrap_or_default()].concat();
            if whole.is_empty() { b"/".to_vec() } else { whole }
        }
        None => path.to_vec(),
    };
    let (mut result, mut rest) = (Vec::new(), path.as_slice());
    while let Some(start) = rest.iter().position(|byte| *byte == b'$') {
        let (before, reference) = rest.split_at(start);
        let (name, length) = name_in(reference.get(1..).unwrap_or_default());
        let (reference, after) = reference.split_at(1 + length);
        result.extend_from_slice(before);
        match value_of(OsStr::from_bytes(name)).filter(|_| length > 0) {
            Some(value) => result.extend_from_slice(value.as_bytes()),
            None => result.extend_from_slice(reference),
        }
        rest = after;
    }
    result.extend_from_slice(rest);
    OsString::from_vec(result)
}

/// The name of the variable at the beginning of the text after a `$`, as `NAME` or `{NAME}`, and its length with
/// brackets, in bytes; 0 if there is none.
fn name_in(text: &[u8]) -> (&[u8], usize) {
    if let Some(inner) = text.strip_prefix(b"{") {
        let end = inner.iter().position(|byte| *byte == b'}');
        return end.map_or((&[], 0), |end| (inner.get(..end).unwrap_or_default(), end + 2));
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = text.iter().position(|byte| !is_name(byte)).unwrap_or(text.len());
    (text.get(..length).unwrap_or_default(), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_places_of_a_cache() {
        let cache = |xdg: Option<&str>, home: Option<&str>| chosen(xdg.map(PathBuf::from), home.map(PathBuf::from));
        assert_eq!(cache(Some("/x"), Some("/h")), Some("/x".into()));
        for xdg in [None, Some(""), Some("x"), Some("./x")] {
            assert_eq!(cache(xdg, Some("/h")), Some("/h/.cache".into()));
            for home in [None, Some(""), Some("a")] {
                assert_eq!(cache(xdg, home), None);
            }
        }
    }

    /// The values are those of Python 3.11's `posixpath`.
    #[test]
    fn paths_are_expanded_as_by_python() {
        let home_of = |user: &OsStr| match user.to_str()? {
            "" => Some("/home/me/".into()),
            "root" => Some("/".into()),
            _ => None,
        };
        let value_of = |name: &OsStr| match name.to_str()? {
            "DISK" => Some("/disk".into()),
            "TWICE" => Some("$DISK/~".into()),
            "a-b" => Some("braces".into()),
            "EMPTY" => Some("".into()),
            _ => None,
        };
        for (path, expected) in [
            ("~", "/home/me"),
            ("~/x", "/home/me/x"),
            ("~root/x", "/x"),
            ("~root", "/"),
            ("~nobody-here/x", "~nobody-here/x"),
            ("x/~", "x/~"),
            ("$DISK", "/disk"),
            ("$DISK/hf/${DISK}s", "/disk/hf//disks"),
            ("~/$EMPTY/x", "/home/me//x"),
            ("${a-b}$a-b", "braces$a-b"),
            ("$TWICE", "$DISK/~"),
            ("$NONE/${NONE}/$/${DISK", "$NONE/${NONE}/$/${DISK"),
            ("$$DISK", "$/disk"),
            ("/plain path", "/plain path"),
        ] {
            assert_eq!(expanded(OsStr::new(path), home_of, value_of), expected, "{path}");
        }
    }
}
