//! The scores that a model gives to the pairs of a corpus. They take long, so they are kept on disk: another threshold
//! needs no others.
//!
//! ```text
//! CACHE/quality-<key>/about.json   what the key is made of, for people
//!                     00000.f32 …  the scores of PART pairs each, and a checksum
//! ```

use std::path::PathBuf;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::cache::{self, Cache};
use super::corpus::{PairSource, Side};
use super::encode::Progress;
use crate::error::Result;
use crate::escape::hex;
use crate::file;
use crate::notice::Notice;

/// Pairs whose scores are one file: what a stop may cost.
const PART: usize = 2048;
/// Bytes of a file's checksum.
const CHECKSUM: usize = 8;

/// Gives pairs their scores.
pub type Scorer<'a> = &'a mut dyn FnMut(&[[String; 2]]) -> Result<Vec<f32>>;

/// Where the scores of a corpus lie, or will.
pub struct Scores {
    directory: PathBuf,
    about: Value,
    pairs: usize,
}

impl Cache {
    /// The scores that a model gives, which `model` tells from others.
    pub fn scores(&self, corpus: &dyn PairSource, model: &Value) -> Scores {
        let key = json!({ "part": PART, "text": hex(&corpus.digest()), "model": model });
        let name = |side| corpus.origin(0, side).0.display().to_string();
        let about =
            json!({ "source": name(Side::Source), "target": name(Side::Target), "pairs": corpus.len(), "key": key });
        Scores { directory: self.folder(&cache::named("quality", &key)), about, pairs: corpus.len() }
    }
}

impl Scores {
    /// All of them, if they are there and whole.
    pub fn load(&self) -> Option<Vec<f32>> {
        Some((0..self.pairs.div_ceil(PART)).map(|number| self.part(number)).collect::<Option<Vec<_>>>()?.concat())
    }

    /// How many pairs have one.
    pub fn scored(&self) -> usize {
        (0..self.pairs.div_ceil(PART)).filter_map(|number| Some(self.part(number)?.len())).sum()
    }

    /// The scores of all pairs; those that are not there are made. `say` gets messages for the user.
    ///
    /// # Errors
    /// The corpus cannot be read or the scores written, the model fails, or `progress` ends it.
    pub fn complete(
        &self,
        corpus: &dyn PairSource,
        score: Scorer<'_>,
        progress: Progress<'_>,
        say: &dyn Fn(Notice),
    ) -> Result<Vec<f32>> {
        let folder = cache::made(&self.directory)?;
        let _lock = cache::lock(&folder, progress, say)?;
        cache::write_whole(&folder, "about.json", format!("{:#}\n", self.about).as_bytes())?;
        let mut scores = Vec::with_capacity(self.pairs);
        let mut pairs: Vec<[String; 2]> = Vec::with_capacity(PART);
        let mut flush = |pairs: &mut Vec<[String; 2]>| -> Result<()> {
            let number = scores.len() / PART;
            let part = match self.part(number) {
                Some(part) => part,
                None => {
                    let part = score(pairs)?;
                    let bytes: Vec<u8> = part.iter().flat_map(|score| score.to_le_bytes()).collect();
                    let bytes = [&bytes[..], &checksum(number, &bytes)].concat();
                    cache::write_whole(&folder, &name(number), &bytes)?;
                    part
                }
            };
            pairs.clear();
            scores.extend(part);
            progress(scores.len())
        };
        for block in corpus.blocks()? {
            let block = block?;
            for index in 0..block.len() {
                let (source, target) = block.get(index);
                pairs.push([source.to_owned(), target.to_owned()]);
                if pairs.len() == PART {
                    flush(&mut pairs)?;
                }
            }
        }
        if !pairs.is_empty() {
            flush(&mut pairs)?;
        }
        Ok(scores)
    }

    /// The scores of one file, if it is there and whole.
    fn part(&self, number: usize) -> Option<Vec<f32>> {
        let count = PART.min(self.pairs.checked_sub(number * PART)?);
        let most = (4 * PART + CHECKSUM) as u64;
        let bytes = file::read_at_most(&self.directory.join(name(number)), most).ok()?;
        let (scores, found) = bytes.split_at_checked(4 * count)?;
        let is_whole = count > 0 && found == checksum(number, scores);
        is_whole.then(|| scores.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

fn name(number: usize) -> String {
    format!("{number:05}.f32")
}

fn checksum(number: usize, scores: &[u8]) -> [u8; CHECKSUM] {
    let digest = Sha256::new().chain_update((number as u64).to_le_bytes()).chain_update(scores).finalize();
    std::array::from_fn(|index| digest[index])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::corpus::Corpus;
    use super::*;
    use crate::error::Error;

    const PAIRS: usize = 2 * PART + 100;

    /// What a stop or a bad disk has left is used, and the result is the same.
    #[test]
    fn scoring_goes_on_where_it_was_left() {
        let directory = tempfile::tempdir().unwrap();
        let side = |word: &str| (0..PAIRS).map(|i| format!("{word} {i}\n")).collect::<String>();
        let files = ["en", "de"].map(|side| directory.path().join(side));
        fs::write(&files[0], side("number")).unwrap();
        fs::write(&files[1], side("Nummer")).unwrap();
        let corpus = Corpus::open(&files[0], &files[1], 1.0).unwrap();
        let cache = Cache::new(&directory.path().join("cache"));
        let scores = cache.scores(&corpus, &json!("a"));
        let mut asked = 0;
        let mut complete = |most: usize| {
            asked = 0;
            let mut score = |pairs: &[[String; 2]]| {
                asked += pairs.len();
                let number = |pair: &[String; 2]| {
                    assert_eq!(pair[0].replace("number", "Nummer"), pair[1]);
                    pair[0].rsplit(' ').next().unwrap().parse::<f32>().unwrap()
                };
                Ok(pairs.iter().map(number).collect())
            };
            let progress = |done| if done < most { Ok(()) } else { Err(Error::stopped(false, "stopped")) };
            let made = scores.complete(&corpus, &mut score, &progress, &|_| ());
            (made, asked)
        };
        let expected: Vec<f32> = (0..PAIRS).map(|number| number as f32).collect();
        let (stopped, asked) = complete(PART);
        assert_eq!((stopped.unwrap_err().exit_code(), asked, scores.scored()), (130, PART, PART));
        assert!(scores.load().is_none());
        let (made, asked) = complete(usize::MAX);
        assert_eq!((made.unwrap(), asked), (expected.clone(), PAIRS - PART));
        assert_eq!(scores.load().as_ref(), Some(&expected));
        let (made, asked) = complete(usize::MAX);
        assert_eq!((made.unwrap(), asked), (expected.clone(), 0));
        for number in 0..3 {
            let file = scores.directory.join(name(number));
            for damage in 0..3 {
                let bytes = fs::read(&file).unwrap();
                match damage {
                    0 => fs::remove_file(&file).unwrap(),
                    1 => fs::write(&file, &bytes[1..]).unwrap(),
                    _ => fs::write(&file, [&bytes[..9], &[bytes[9] ^ 16], &bytes[10..]].concat()).unwrap(),
                }
                let lost = PART.min(PAIRS - number * PART);
                assert_eq!((scores.load(), scores.scored()), (None, PAIRS - lost));
                let (made, asked) = complete(usize::MAX);
                assert_eq!((made.unwrap(), asked), (expected.clone(), lost));
            }
        }
        assert_ne!(scores.directory, cache.scores(&corpus, &json!("b")).directory);
    }
}
