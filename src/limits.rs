//! How much of the computer's memory, disk and time foreign input may take: every limit on it, in one place.
//!
//! Input that goes beyond a limit is refused with an error that names the file and the limit. `docs/security.md` says which
//! input is foreign and what is promised of it.

// Messages.

/// Errors that are reported together; of the others only their number.
pub(crate) const MOST_ERRORS: usize = 100;
/// Characters of one part of a message: what is wrong, where, or what to do.
pub(crate) const LONGEST_MESSAGE: usize = 4000;
/// Characters of a word, a line or a value of others that a message quotes.
pub(crate) const LONGEST_QUOTED: usize = 80;

// Pictures.

/// Size of a number that is drawn; of one nearer to 0 than its reciprocal, 0.
pub(crate) const LARGEST_DRAWN: f64 = 1e100;

// Configurations.

/// Sets that are scored at each validation.
pub(crate) const MOST_MONITORED: usize = 100;

// Models.

/// Positions of a model: a table of them is made whatever its file holds, D numbers for each.
pub(crate) const MOST_POSITIONS: i128 = 1 << 16;
/// A file of which less than one part in so many is on the disk was never written, or not to the end; reading it would take as
/// long as if it had been.
pub(crate) const MOST_SPARSE: u64 = 16;
