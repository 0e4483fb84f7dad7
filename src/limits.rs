//! How much of the computer's memory, disk and time foreign input may take: every limit on it, in one place.
//!
//! Input that goes beyond a limit is refused with an error that names the file and the limit. `docs/security.md` says which
//! input is foreign and what is promised of it.
