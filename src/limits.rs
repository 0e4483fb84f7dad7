//! How much of the computer's memory, disk and time foreign input may take: every limit on it, in one place.
//!
//! Input that goes beyond a limit is refused with an error that names the file and the limit. `docs/security.md` says which
//! input is foreign and what is promised of it.

// Messages.

/// Errors that are reported together; of the others only their number.
pub(crate) const MOST_ERRORS: usize = 100;
/// Characters of one part of a message: what is wrong, where, or what to do.
pub(crate) const LONGEST_MESSAGE: usize = 4000;

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
use std::time::Duration;

// What the hub, a mirror or a storage behind it sends.

/// Most bytes of an answer about a repository: [`HUB_FILES`] names of 100 bytes have 20 million.
pub(crate) const HUB_ANSWER: u64 = 1 << 25;
/// Seconds until such an answer must be there whole, however it drips: a slow line brings 20 million bytes in that time.
pub(crate) const HUB_ANSWER_TIME: Duration = Duration::from_secs(60);
/// Most bytes of the text of a refusal: of it, one sentence is shown.
pub(crate) const HUB_REFUSAL: u64 = 1 << 14;
/// Most files of a revision: the hub itself advises against more than 100,000.
pub(crate) const HUB_FILES: usize = 200_000;
/// Most bytes of a file's name within its repository: systems take paths of 4096.
pub(crate) const HUB_NAME: usize = 1024;
/// Most bytes between two slashes of such a name: what file systems take.
pub(crate) const HUB_NAME_PART: usize = 255;
/// Most bytes of a file: the hub itself takes none above 500 GB.
pub(crate) const HUB_FILE: u64 = 1 << 39;
/// Most bytes of a file whose size is not announced: the hub announces all.
pub(crate) const HUB_UNANNOUNCED: u64 = 1 << 30;
/// Most redirects of a request: the hub needs two, a mirror before it a few more.
pub(crate) const HUB_REDIRECTS: usize = 10;
/// Most pages of a repository's pull requests that are looked at.
pub(crate) const HUB_PAGES: usize = 20;
/// Most commits of a pull request that are looked at.
pub(crate) const HUB_COMMITS: usize = 10;
/// Bytes that a download must bring within [`HUB_SLOW_TIME`]: a modem brought more.
pub(crate) const HUB_SLOW: u64 = 1 << 16;
/// The time in which a download is measured: long enough for a line to come back.
pub(crate) const HUB_SLOW_TIME: Duration = Duration::from_secs(300);
/// The part of a file that makes a broken try count as progress, and the most bytes of it: so the number of tries is bounded.
pub(crate) const HUB_PROGRESS: (u64, u64) = (1000, 1 << 20);

// What is written of foreign contents.

/// Most bytes that are left free on a disk: enough for its owner to work on.
pub(crate) const DISK_RESERVE: u64 = 1 << 30;
/// The part of a smaller disk that is left free: a twentieth.
pub(crate) const DISK_RESERVE_PART: u64 = 20;
