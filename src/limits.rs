//! All limits on the memory, disk space and time that foreign input may take.
//!
//! Input that goes beyond a limit is refused with an error that names the file and the limit. `docs/security.md`
//! defines foreign input and what the program guarantees about it.

// A build without the hub or pictures lacks what some of them limit.
#![cfg_attr(not(all(feature = "hub", feature = "pictures")), allow(dead_code))]

use std::time::Duration;

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

/// Fewest pieces of a vocabulary that is learnt: 256 bytes, the special tokens, and room for some merges.
pub(crate) const LEAST_PIECES: usize = 300;
/// Positions of a model: a table of them is made whatever its file holds, D numbers for each.
pub(crate) const MOST_POSITIONS: i128 = 1 << 16;
/// Bytes of all phrases that the translation of a line must have or must not have: each is looked for at every step.
pub(crate) const PHRASES_BYTES: usize = 1 << 14;
/// Segmentations of a line among which one is drawn.
pub(crate) const MOST_SEGMENTATIONS: i128 = 1 << 12;
/// The rank of factors.
pub(crate) const MOST_RANK: i128 = 1 << 12;
/// The largest quotient of a file's size and its blocks on the disk. A sparser file was never written to its end, but
/// reading it would take as long as if it had been.
pub(crate) const MOST_SPARSE: u64 = 16;
/// Only files of at least so many bytes are refused for that. Zeros may be holes in a sound file, too: the moments of
/// an optimizer that has made no update, in a sparse copy or on a file system that compresses.
pub(crate) const SPARSE_BYTES: u64 = 16 << 30;
/// Bytes of a tensor file's header: the format allows 100 MB; this holds more than a hundred thousand tensors.
pub(crate) const TENSOR_HEADER_BYTES: u64 = 16 << 20;
/// Bytes of a manifest. Ours have a few kB.
pub(crate) const MANIFEST_BYTES: u64 = 1 << 20;
/// Bytes of a training state; most of it are the statistics of the validation set's lines.
pub(crate) const STATE_BYTES: u64 = 64 << 20;
/// Numbers of such statistics that a state holds: they take some 17 MB of text, and at most 44.
pub(crate) const STATISTICS: usize = 1 << 22;
/// Bytes of a file that is read whole: the log of a million updates has some 300 MB.
pub(crate) const WHOLE_FILE_BYTES: u64 = 1 << 30;
/// Bytes of the name of a checkpoint in `best` or `last`.
pub(crate) const POINTER_BYTES: u64 = 256;
/// Bytes of each of the small files that go with the weights of other programs' models.
pub(crate) const IMPORTED_BYTES: u64 = 1 << 26;
/// Bytes of the pickle in a checkpoint of PyTorch: the names of a thousand tensors take some 100 kB.
pub(crate) const PICKLE_BYTES: u64 = 1 << 22;
/// Values that a pickle may repeat, and each 64 bytes of text, each repetition counted; of a thousand tensors some ten
/// thousand.
pub(crate) const PICKLE_COPIES: usize = 1 << 20;
/// How deeply its values nest; those of a checkpoint need about 8.
pub(crate) const PICKLE_DEPTH: usize = 32;

// Limits on the answers of the hub, a mirror or a storage behind it.

/// Most bytes of an answer about a repository: [`HUB_FILES`] names of 100 bytes have 20 million.
pub(crate) const HUB_ANSWER: u64 = 1 << 25;
/// Seconds in which such an answer must arrive completely. A slow connection transfers 20 million bytes in that time.
pub(crate) const HUB_ANSWER_TIME: Duration = Duration::from_secs(60);
/// Most bytes of the text of a refusal: of it, one sentence is shown.
pub(crate) const HUB_REFUSAL: u64 = 1 << 14;
/// Most files of a revision: the hub itself advises against more than 100,000.
pub(crate) const HUB_FILES: usize = 200_000;
/// Most bytes of a file's name within its repository: systems take paths of 4096.
pub(crate) const HUB_NAME: usize = 1024;
/// Most bytes between two slashes of such a name: the limit of file systems.
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
/// The part of a file that makes a broken try count as progress, and the most bytes of it: so the number of tries is
/// bounded.
pub(crate) const HUB_PROGRESS: (u64, u64) = (1000, 1 << 20);

// Limits on the output of foreign contents.

/// Most bytes that are left free on a disk: enough for its owner to work on.
pub(crate) const DISK_RESERVE: u64 = 1 << 30;
/// The part of a smaller disk that is left free: a twentieth.
pub(crate) const DISK_RESERVE_PART: u64 = 20;

// Tokenizers.

/// Bytes of a tokenizer's file: the largest in use, with a million pieces and their merges, have some 40 MB.
pub(crate) const TOKENIZER_BYTES: u64 = 1 << 27;
/// Values in a `tokenizer.json`, at about 70 bytes each: three times as many as half a million pieces and a million
/// merges need.
pub(crate) const TOKENIZER_VALUES: usize = 1 << 23;
/// Values in a JSON file of settings, or in one row of a data set, at about 70 bytes each.
pub(crate) const FOREIGN_VALUES: usize = 1 << 20;
/// Bytes of a SentencePiece model; an enormous one would become many times as large in memory.
pub(crate) const SENTENCEPIECE_BYTES: usize = 1 << 24;
/// Steps of normalising, splitting, decoding and so on in a `tokenizer.json`, with their parts; usual files have about
/// twenty.
pub(crate) const TOKENIZER_STEPS: usize = 256;
/// Bytes of a text that such a step inserts, removes or searches for, and of the markers of a model's pieces.
pub(crate) const STEP_BYTES: usize = 1 << 10;
/// Bytes of all regular expressions of a `tokenizer.json`, without the user's own symbols: ours has some 6 kB, others
/// one.
pub(crate) const EXPRESSION_BYTES: usize = 1 << 14;
/// Bytes of a regular expression times its counts (`{100}`), which repeat its parts in memory.
pub(crate) const EXPRESSION_WEIGHT: usize = 1 << 20;
/// Bytes of a table of replaced characters; the one for NFKC has about 300 kB.
pub(crate) const CHARSMAP_BYTES: usize = 1 << 24;
/// Bytes of a replacement for each byte that it replaces. Unicode's own longest, of U+FDFA, has 11.
pub(crate) const REPLACEMENT_GROWTH: usize = 16;
/// Bytes of text that SentencePiece replaces at once.
pub(crate) const REPLACED_BYTES: usize = 1 << 8;
/// Bytes of a piece of a unigram model, which is searched for at each position of a text. In the library each byte is
/// also a level of a tree, which it frees by recursion.
pub(crate) const PIECE_BYTES: usize = 1 << 10;
/// Bytes of all pieces of the library's Unigram, at about 400 bytes each: twice as many as half a million pieces need.
pub(crate) const UNIGRAM_BYTES: usize = 1 << 23;
/// Characters of a word that `WordPiece` looks for in all ways, which takes time with their square; the usual number is
/// 100.
pub(crate) const WORDPIECE_CHARACTERS: u64 = 1000;

/// Bytes that a text may become for each of its bytes when it is normalised, split or decoded: NFKC alone makes 11 of
/// one.
const TEXT_GROWTH: usize = 16;
/// The same for a long text, in which no rare character counts much.
const LONG_TEXT_GROWTH: usize = 4;
/// Bytes by which a text may grow whatever its length.
const TEXT_GROWTH_FREE: usize = 1 << 12;
/// Bytes to which a text may grow by [`TEXT_GROWTH`].
const TEXT_GROWN: usize = 1 << 22;

/// To how many bytes a text of `length` bytes may grow.
pub(crate) fn grown(length: usize) -> usize {
    let much = length.saturating_mul(TEXT_GROWTH).saturating_add(TEXT_GROWTH_FREE);
    much.min(length.saturating_mul(LONG_TEXT_GROWTH).max(TEXT_GROWN))
}

// Text.

/// Bytes of a line: no sentence is so long, and one line at a time is in memory.
pub(crate) const LINE_BYTES: u64 = 1 << 26;
/// Bytes of a test set, which is in memory as a whole: the largest have some MB.
pub(crate) const TEST_SET_BYTES: u64 = 1 << 30;
/// Bytes of the beginning of an element of a test set in XML or SGML, with its names: those of WMT have some hundred.
pub(crate) const TAG_BYTES: usize = 1 << 12;
/// Bytes that each of its lines takes there beside its text.
pub(crate) const BESIDE_LINE: u64 = 64;

// Data sets.

/// Bytes of a Parquet file's footer; that of a thousand row groups has some hundred kB, that of a wide table some MB.
pub(crate) const PARQUET_FOOTER_BYTES: u64 = 1 << 25;
/// Bytes of a page's header, which may hold the least and the greatest text of the page.
pub(crate) const PARQUET_HEADER_BYTES: u64 = 1 << 24;
/// Bytes of a page, unpacked: usual are one MB, and a hundred where a page is all of a row group.
pub(crate) const PARQUET_PAGE_BYTES: u64 = 1 << 28;
/// Values of a page whose lengths are unpacked beforehand.
pub(crate) const PARQUET_PAGE_VALUES: u64 = 1 << 24;
/// Columns of a Parquet file, including those that hold other columns.
pub(crate) const PARQUET_COLUMNS: usize = 10_000;
/// Row groups of a Parquet file, each of which takes a kB of memory. Usual are 1,000 rows or more in each.
pub(crate) const PARQUET_GROUPS: usize = 1 << 16;
/// How deeply columns nest; a list of lists of objects has 7.
pub(crate) const PARQUET_DEPTH: usize = 32;
/// Bytes of the full names of all columns, including the columns around them.
pub(crate) const PARQUET_NAME_BYTES: usize = 1 << 24;
/// How deeply the values of the footer may nest; known files need 8.
pub(crate) const THRIFT_DEPTH: usize = 16;
/// Bytes of text for each byte of a data set's file: of translations, compression saves hardly more than nine tenths.
pub(crate) const DATA_SET_GROWTH: u64 = 1000;
/// Bytes of text that a file may hold whatever its size.
pub(crate) const DATA_SET_FREE: u64 = 1 << 26;
/// Bytes of the header of a data set's page; longer ones are not looked at.
pub(crate) const CARD_BYTES: usize = 1 << 20;
/// How deeply that header nests; the library recurses.
pub(crate) const CARD_DEPTH: usize = 32;
/// Bytes of a pattern of file names there.
pub(crate) const PATTERN_BYTES: usize = 1 << 10;
/// How deeply its alternatives (`{a,{b,c}}`) nest.
pub(crate) const PATTERN_DEPTH: usize = 8;
/// Patterns of a split, beside plain names: each is compared with every file.
pub(crate) const PATTERNS: usize = 1000;

// Files and configurations.

/// Directories within one another that are removed as a whole: each is kept open meanwhile, and ours have one within.
pub(crate) const NESTED_FOLDERS: usize = 64;
/// Bytes of a configuration: the largest known one has a few thousand corpora in less than 1 MiB.
pub(crate) const CONFIGURATION_BYTES: u64 = 4 << 20;
/// Configurations that extend one another: people use two or three.
pub(crate) const EXTENDED_CONFIGURATIONS: usize = 16;
/// Files that a manifest may list: all are open at once, and ours list at most eight.
pub(crate) const MANIFEST_FILES: usize = 64;
/// Bytes of a note in a run or cache directory, such as who has locked it.
pub(crate) const NOTE_BYTES: u64 = 1 << 12;
