//! Calls into parsers of other crates, which may panic on a damaged or hostile file, or fill the memory.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::error::{Error, Result};

thread_local! {
    /// Whether a panic of this thread becomes an error, so that its message is not printed.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may panic, on this thread. Do not use what it changed before a panic.
///
/// # Errors
/// It panicked; the caller adds the file's name and what to do.
pub(crate) fn guarded<T>(parse: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                usual(info);
            }
        }));
    });
    let before = IS_GUARDED.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(parse));
    IS_GUARDED.set(before);
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason is given");
        Error::failure(format!("its reader failed: {text}"))
    })
}

/// Refuses JSON of more than so many values, of about 70 bytes each once it is read; an object, which takes many times
/// as much, counts as eight.
///
/// # Errors
/// It has more.
pub(crate) fn refuse_many_values(json: &[u8], most: usize) -> Result<()> {
    const OBJECT: usize = 8;
    let (mut values, mut is_text, mut is_escaped) = (0usize, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b'[' if !is_text => values += 1,
            b'{' if !is_text => values += OBJECT,
            _ => {}
        }
    }
    match values > most {
        true => Err(Error::failure(format!("it has about {values} values, and there may be {most}"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_before_they_are_read() {
        let few = br#"{"a": [1, 2], "text": "{,[\",["}"#;
        assert!(refuse_many_values(few, 11).is_ok());
        assert!(refuse_many_values(few, 10).unwrap_err().what().contains("about 11 values"));
    }

    #[test]
    fn a_panic_becomes_an_error_that_says_why() {
        assert_eq!(guarded(|| 3).unwrap(), 3);
        let empty: &[u8] = &[];
        let error = guarded(|| empty[std::hint::black_box(7)]).unwrap_err();
        assert!(error.what().starts_with("its reader failed: index out of bounds"), "{error}");
        let inner = guarded(|| guarded(|| panic!("inner")).is_err()).unwrap();
        assert!(inner && !IS_GUARDED.get());
    }
}
