//! Calls into parsers of other crates, which may panic on a damaged or hostile file.

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

#[cfg(test)]
mod tests {
    use super::*;

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
