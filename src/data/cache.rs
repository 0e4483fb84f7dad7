//! Prepared text on disk, for corpora that are larger than memory or are trained on often.
//!
//! ```text
//! CACHE/text-<key>/about.json            what the key is made of, for people
//!                  00000.bin 00000.json  a shard and its summary, …
//! CACHE/vocabulary-<key>/tokenizer.json digest      tokenizers learned from a text, and their checksum
//! CACHE/quality-<key>/…                             scores of its pairs (`scores`)
//! ```
//!
//! The key is a checksum of all that decides the result: the text, the tokenizers, the filter. So an entry never needs
//! renewal, runs share it, and it can be deleted at any time. A shard counts once its summary exists, which is written
//! after it and holds its checksum; both are synced, then renamed. Interrupted preparation resumes after the last valid
//! shard, and so does the repair of a damaged entry.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rayon::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::corpus::{PairSource, Side};
use super::encode::{self, Progress, Quality, Recipe};
use super::shard::{Shard, Summary};
use super::tokenizers::Tokenizers;
use crate::data::{SamplingConfig, TokenizerConfig};
use crate::error::{Error, Result};
use crate::escape::hex;
use crate::file::{self, Attempt, Folder, Links};
use crate::hub::Room;
use crate::limits::NOTE_BYTES;
use crate::notice::Notice;

/// To be raised when the meaning of shards or their contents changes.
const FORMAT: u32 = 3;
/// File with the checksum of tokenizers.
const DIGEST: &str = "digest";
/// Locked by the process that adds to an entry.
const LOCK: &str = ".lock";
/// The time between attempts to lock it.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// A directory of prepared text.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// Where the prepared text of a corpus lies, or will.
pub struct Entry {
    directory: PathBuf,
    about: Value,
    pairs: usize,
}

impl Cache {
    /// The cache in a directory, which need not exist yet.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf() }
    }

    /// The entry of a corpus prepared under a recipe, whose encoder is `tokenizers`.
    pub fn entry(&self, corpus: &dyn PairSource, recipe: Recipe<'_>, tokenizers: &Tokenizers) -> Entry {
        let key = json!({
            "format": FORMAT, "text": hex(&corpus.digest()), "tokenizers": tokenizers.digest(),
            "max_length": recipe.filter.max_length, "max_ratio": recipe.filter.max_ratio, "elements": recipe.elements,
            "quality": recipe.quality.map(Quality::key),
        });
        let name = |side| corpus.origin(0, side).0.display().to_string();
        let about =
            json!({ "source": name(Side::Source), "target": name(Side::Target), "pairs": corpus.len(), "key": key });
        Entry { directory: self.directory.join(named("text", &key)), about, pairs: corpus.len() }
    }

    /// The path of an entry of this name.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The entry of the tokenizers learned from these corpora.
    ///
    /// # Errors
    /// A file that the configuration names cannot be read.
    pub fn tokenizers(&self, corpora: &[Box<dyn PairSource>], config: &TokenizerConfig) -> Result<TokenizersEntry> {
        let texts: Vec<_> = corpora.iter().map(|corpus| hex(&corpus.digest())).collect();
        // What files say counts, not where they lie.
        let files = [&config.codes, &config.vocabulary, &config.target_codes, &config.target_vocabulary];
        let digest = |path: &Option<PathBuf>| path.as_deref().map(checksum).transpose();
        let files = files.into_iter().map(digest).collect::<Result<Vec<_>>>()?;
        let config = TokenizerConfig {
            codes: None,
            vocabulary: None,
            target_codes: None,
            target_vocabulary: None,
            // Sampling affects training only, not the learnt vocabulary.
            dropout: 0.0,
            sampling: SamplingConfig::default(),
            ..config.clone()
        };
        let key = json!({ "format": FORMAT, "texts": texts, "tokenizer": config, "files": files });
        Ok(TokenizersEntry { directory: self.directory.join(named("vocabulary", &key)) })
    }
}

/// The checksum of what a file says.
fn checksum(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let copied = File::open(path).and_then(|mut file| std::io::copy(&mut file, &mut hash));
    copied.map_err(|error| Error::io("read", path, error))?;
    Ok(hex(&hash.finalize()))
}

/// Where tokenizers learned from a text lie, or will.
pub struct TokenizersEntry {
    directory: PathBuf,
}

impl TokenizersEntry {
    /// The tokenizers, if they exist and are unchanged since they were saved.
    pub fn load(&self) -> Option<Tokenizers> {
        let digest = file::read_at_most(&self.directory.join(DIGEST), NOTE_BYTES).ok()?;
        let digest = String::from_utf8(digest).ok()?;
        let tokenizers = Tokenizers::load(&self.directory).ok()?;
        (tokenizers.digest() == digest.trim()).then_some(tokenizers)
    }

    /// Saves the tokenizers. They are valid once their digest, the last file, exists.
    pub fn save(&self, tokenizers: &Tokenizers) -> Result<()> {
        let folder = made(&self.directory)?;
        tokenizers.save(&self.directory)?;
        write_whole(&folder, DIGEST, format!("{}\n", tokenizers.digest()).as_bytes())
    }
}

/// The directory name of an entry with this key.
pub(super) fn named(kind: &str, key: &Value) -> String {
    let hash = format!("{:x}", Sha256::digest(key.to_string()));
    format!("{kind}-{}", &hash[..16])
}

impl Entry {
    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The leading shards that are there and whole. Damaged ones count as missing.
    ///
    /// Fails where one cannot be read.
    pub fn load(&self) -> Result<Vec<Shard>> {
        self.whole_shards(0)
    }

    /// All shards: the leading ones in `shards`, which come from [`Self::load`], and then new ones made from the
    /// corpus. `say` gets messages for the user.
    pub fn complete(
        &self,
        mut shards: Vec<Shard>,
        corpus: &dyn PairSource,
        recipe: Recipe<'_>,
        progress: Progress<'_>,
        say: &dyn Fn(Notice),
    ) -> Result<Vec<Shard>> {
        let folder = made(&self.directory)?;
        let _lock = lock(&folder, progress, say)?;
        write_whole(&folder, "about.json", format!("{:#}\n", self.about).as_bytes())?;
        // Another process may have made more meanwhile.
        shards.extend(self.whole_shards(shards.len())?);
        if self.is_complete(&shards) {
            return Ok(shards);
        }
        let done = shards.iter().map(|shard| shard.summary().read).sum();
        if done > 0 {
            let directory = self.directory.display();
            say(Notice::Info(format!("{done} of {} pairs were prepared before, in {directory}", self.pairs)));
        }
        let mut sink = |shard: Shard| {
            shards.push(self.store(&folder, shards.len(), &shard)?);
            Ok(())
        };
        encode::encode(corpus, recipe, done, &mut sink, progress)?;
        Ok(shards)
    }

    /// Whether these are all of them.
    pub fn is_complete(&self, shards: &[Shard]) -> bool {
        shards.iter().map(|shard| shard.summary().read).sum::<usize>() == self.pairs
    }

    /// The files of a shard and of its summary.
    fn files(&self, number: usize) -> [PathBuf; 2] {
        names(number).map(|name| self.directory.join(name))
    }

    /// The shards from number `first` on, up to one that is missing or damaged.
    fn whole_shards(&self, first: usize) -> Result<Vec<Shard>> {
        let summaries: Vec<Summary> = (first..).map_while(|number| self.summary(number)).collect();
        let map = |(number, summary)| Shard::map(&self.files(first + number)[0], summary);
        let shards: Vec<_> = summaries.into_par_iter().enumerate().map(map).collect();
        shards.into_iter().map_while(Result::transpose).collect()
    }

    fn summary(&self, number: usize) -> Option<Summary> {
        let [bytes, summary] = self.files(number);
        let summary = serde_json::from_slice(&file::read(&summary).ok()?).ok()?;
        bytes.exists().then_some(summary)
    }

    /// Writes a shard, and returns it mapped from the file.
    fn store(&self, folder: &Folder, number: usize, shard: &Shard) -> Result<Shard> {
        let [bytes, summary] = names(number);
        self.check_room(shard.bytes().len() as u64)?;
        write_whole(folder, &bytes, shard.bytes())?;
        write_whole(folder, &summary, json!(shard.summary()).to_string().as_bytes())?;
        let [bytes, _] = self.files(number);
        let written = Shard::map(&bytes, shard.summary().clone())?;
        written.ok_or_else(|| {
            Error::failure("what was read back is not what was written")
                .at(&bytes)
                .help("check the disk, and run again")
        })
    }

    /// Fails if text of the hub, which anyone may have put there, would leave the disk full.
    fn check_room(&self, needed: u64) -> Result<()> {
        let source = self.about["source"].as_str().filter(|source| source.starts_with("hub:"));
        let (Some(source), Some(room)) = (source, Room::at(&self.directory)) else { return Ok(()) };
        let checked = room.check(needed, format_args!("the prepared text of {source}"));
        checked.map_err(|error| error.more_help("or set `data.cache_dir` to a larger disk, then run it again"))
    }
}

/// Waits until no other process adds to the entry in this folder; `progress` may stop it.
pub(super) fn lock(folder: &Folder, progress: Progress<'_>, say: &dyn Fn(Notice)) -> Result<Option<File>> {
    let mut waits = false;
    loop {
        match file::try_lock(folder, LOCK).map_err(|error| cannot_write(&folder.path().join(LOCK), error))? {
            Attempt::Locked(file) => return Ok(Some(file)),
            // Both processes write the same bytes: harmless.
            Attempt::NoLocks => return Ok(None),
            Attempt::Held(_) => {}
        }
        if !std::mem::replace(&mut waits, true) {
            let directory = folder.path().display();
            say(Notice::Info(format!("waiting for another process that is preparing the same text in {directory}")));
        }
        progress(0)?;
        std::thread::sleep(LOCK_PAUSE);
    }
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    let help = "`data.cache_dir` says where prepared text is kept (by default data-cache, beside the run directory)";
    Error::io("write the prepared data", path, error).help(help)
}

/// Writes a file that is there whole or not at all, also after a crash; without a lock, others may write the same.
pub(super) fn write_whole(folder: &Folder, name: &str, bytes: &[u8]) -> Result<()> {
    folder.replace_shared(name, bytes).map_err(|error| cannot_write(&folder.path().join(name), error))
}

/// The names of a shard's file and of its summary.
fn names(number: usize) -> [String; 2] {
    ["bin", "json"].map(|ending| format!("{number:05}.{ending}"))
}

/// The directory of an entry, made if it is missing. The user names the one around it, which may be a link.
pub(super) fn made(entry: &Path) -> Result<Folder> {
    let (cache, name) = (file::folder_of(entry), entry.file_name().unwrap_or_default());
    fs::create_dir_all(cache).map_err(|error| cannot_write(entry, error))?;
    let folder = Folder::open(cache).and_then(|cache| cache.made_folder(name, Links::Refused));
    folder.map_err(|error| cannot_write(entry, error))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::corpus::Corpus;
    use super::super::filter::Filter;
    use super::super::shard::Elements;
    use super::*;

    /// Pairs enough for two shards, and tokenizers learned from some of them.
    struct World {
        directory: tempfile::TempDir,
        corpus: Corpus,
        tokenizers: Tokenizers,
    }

    const PAIRS: usize = (1 << 18) + 20_000;

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let side = |word: &str| (0..PAIRS).map(|i| format!("{word} {}\n", i % 97)).collect::<String>();
            let files = ["en", "de"].map(|side| directory.path().join(side));
            fs::write(&files[0], side("number")).unwrap();
            fs::write(&files[1], side("Nummer")).unwrap();
            let corpus = Corpus::open(&files[0], &files[1], 1.0).unwrap();
            let config = TokenizerConfig { vocab_size: 400, ..TokenizerConfig::default() };
            let tokenizers = Tokenizers::train(&config, &[Box::new(corpus.clone()) as _]).unwrap();
            Self { directory, corpus, tokenizers }
        }

        fn recipe(&self, max_length: usize) -> Recipe<'_> {
            let filter = Filter { max_length, max_ratio: 0.0 };
            Recipe { encoder: &self.tokenizers, filter, elements: Elements::NarrowIds, quality: None }
        }

        fn entry(&self, recipe: Recipe<'_>) -> Entry {
            let cache = Cache::new(&self.directory.path().join("cache"));
            cache.entry(&self.corpus, recipe, &self.tokenizers)
        }
    }

    /// The whole files left by a stop, a crash or a bad disk are used, and the result is the same.
    #[test]
    fn preparing_goes_on_where_it_was_left() {
        let world = World::new();
        let recipe = world.recipe(100);
        let entry = world.entry(recipe);
        let made = Cell::new(0);
        let make = |stop: usize| {
            made.set(0);
            let progress = |read| {
                made.set(read);
                if read < stop { Ok(()) } else { Err(Error::stopped(false, "stopped")) }
            };
            entry.complete(entry.load().unwrap(), &world.corpus, recipe, &progress, &|_| ())
        };
        let expected = encode::shards(&world.corpus, recipe, &|_| Ok(())).unwrap();
        let is_expected = |shards: &[Shard]| {
            shards.len() == 2
                && shards.iter().zip(&expected).all(|(a, b)| a.summary() == b.summary() && a.bytes() == b.bytes())
        };
        // Stopped in the second shard: the first is kept, and not made again.
        assert_eq!(make(PAIRS).err().unwrap().exit_code(), 130);
        assert_eq!(entry.load().unwrap().len(), 1);
        let first = entry.files(0).map(|file| fs::metadata(file).unwrap().modified().unwrap());
        let left = entry.directory().join(".00001.bin.7.new");
        fs::write(&left, "left by a kill").unwrap();
        assert!(is_expected(&make(usize::MAX).unwrap()));
        assert!(!left.exists());
        assert_eq!(first, entry.files(0).map(|file| fs::metadata(file).unwrap().modified().unwrap()));
        assert!(is_expected(&entry.load().unwrap()));
        // Whole: nothing is read.
        assert!(is_expected(&make(usize::MAX).unwrap()));
        assert_eq!(made.get(), 0);
        for number in [0, 1] {
            let [bytes, summary] = entry.files(number);
            for damage in [0, 1, 2, 3] {
                match damage {
                    0 => fs::remove_file(&bytes).unwrap(),
                    1 => fs::write(&summary, "{").unwrap(),
                    2 => fs::write(&bytes, &fs::read(&bytes).unwrap()[1..]).unwrap(),
                    _ => {
                        let mut content = fs::read(&bytes).unwrap();
                        content[4321] ^= 16;
                        // A new file: the old one may be mapped.
                        fs::remove_file(&bytes).unwrap();
                        fs::write(&bytes, content).unwrap();
                    }
                }
                assert_eq!(entry.load().unwrap().len(), number, "{damage}");
                assert!(is_expected(&make(usize::MAX).unwrap()), "{number} {damage}");
            }
        }
    }

    #[test]
    fn an_entry_that_another_process_adds_to_is_waited_for() {
        let world = World::new();
        let recipe = world.recipe(100);
        let entry = world.entry(recipe);
        fs::create_dir_all(entry.directory()).unwrap();
        let lock = File::create(entry.directory().join(LOCK)).unwrap();
        lock.lock().unwrap();
        let complete = |progress: Progress<'_>, say: &dyn Fn(Notice)| {
            entry.complete(Vec::new(), &world.corpus, recipe, progress, say).map(|shards| shards.len())
        };
        // Whoever waits can be stopped.
        let stop = |_| Err(Error::stopped(false, "stopped"));
        assert_eq!(complete(&stop, &|_| ()).err().unwrap().exit_code(), 130);
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || complete(&|_| Ok(()), &|notice| told.send(notice).unwrap()).unwrap());
            let Ok(Notice::Info(message)) = heard.recv() else { panic!("it does not wait") };
            assert!(
                message.starts_with("waiting for another process that is preparing the same text in "),
                "{message}"
            );
            assert!(!entry.directory().join("about.json").exists());
            drop(lock);
            assert_eq!(waiting.join().unwrap(), 2);
        });
    }

    #[test]
    fn whatever_changes_the_outcome_changes_the_key() {
        let world = World::new();
        let directory = |entry: Entry| entry.directory().to_path_buf();
        let entry = directory(world.entry(world.recipe(100)));
        assert_eq!(entry, directory(world.entry(world.recipe(100))));
        assert_ne!(entry, directory(world.entry(world.recipe(101))));
        let filter = Filter { max_length: 100, max_ratio: 2.0 };
        assert_ne!(entry, directory(world.entry(Recipe { filter, ..world.recipe(100) })));
        assert_ne!(entry, directory(world.entry(Recipe { elements: Elements::Text, ..world.recipe(100) })));
        let other = Tokenizers { source: world.tokenizers.source.clone(), target: other_tokenizer() };
        let cache = Cache::new(&world.directory.path().join("cache"));
        assert_ne!(entry, directory(cache.entry(&world.corpus, world.recipe(100), &other)));
        let swapped = Corpus::open(world.corpus.target().path(), world.corpus.source().path(), 1.0).unwrap();
        assert_ne!(entry, directory(cache.entry(&swapped, world.recipe(100), &world.tokenizers)));
        let corpora: Vec<Box<dyn PairSource>> = vec![Box::new(world.corpus.clone())];
        let entry = |config: TokenizerConfig| cache.tokenizers(&corpora, &config).unwrap();
        let default = TokenizerConfig::default;
        let same = TokenizerConfig { dropout: 0.1, ..default() };
        assert_eq!(entry(default()).directory, entry(same).directory);
        let other = TokenizerConfig { lowercase: true, ..default() };
        assert_ne!(entry(default()).directory, entry(other).directory);
        // What a file says counts, wherever it lies.
        let with_codes = |name: &str, codes: &str| {
            let path = world.directory.path().join(name);
            fs::write(&path, codes).unwrap();
            entry(TokenizerConfig { codes: Some(path), ..default() }).directory
        };
        let first = with_codes("a.codes", "e n</w>");
        assert_eq!(with_codes("b.codes", "e n</w>"), first);
        assert_ne!(with_codes("a.codes", "e r</w>"), first);
    }

    #[test]
    fn tokenizers_are_taken_as_they_were_saved_or_not_at_all() {
        let world = World::new();
        let directory = world.directory.path().join("vocabulary");
        let entry = TokenizersEntry { directory: directory.clone() };
        assert!(entry.load().is_none());
        entry.save(&world.tokenizers).unwrap();
        assert_eq!(entry.load().unwrap().digest(), world.tokenizers.digest());
        let file = directory.join("tokenizer.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen("Nummer", "Nummen", 1)).unwrap();
        assert!(entry.load().is_none());
        fs::write(&file, text).unwrap();
        assert!(entry.load().is_some());
        fs::remove_file(directory.join(DIGEST)).unwrap();
        assert!(entry.load().is_none());
    }

    fn other_tokenizer() -> std::sync::Arc<super::super::tokenizer::Tokenizer> {
        let options = super::super::tokenizer::TrainOptions { vocab_size: 300, ..Default::default() };
        std::sync::Arc::new(super::super::tokenizer::Tokenizer::train(&[&["a b c"][..]], &options).unwrap())
    }
}
