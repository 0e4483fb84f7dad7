//! Any bytes as two files of a corpus, plain or compressed: read, checked and encoded, or refused.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mt::data::check::words::Sample;
use mt::data::check::{Findings, Kind, PairCheck, Seen};
use mt::data::corpus::{Corpus, PairSource, read_all};
use mt::data::text::raw::windows_of_files;
use mt::error::Result;

fuzz_target!(|bytes: (&[u8], &[u8])| {
    let folder = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "target"].map(|name| folder.path().join(name));
    std::fs::write(&source, bytes.0).unwrap();
    std::fs::write(&target, bytes.1).unwrap();
    let corpus = Corpus::open(&source, &target, 1.0);
    let findings = check(&source, &target);
    match corpus {
        Ok(corpus) => {
            let findings = findings.expect("what training reads can be checked");
            let refused = [Kind::LineCounts, Kind::EmptyFile, Kind::NotUtf8];
            assert!(refused.iter().all(|kind| findings.count(*kind) == 0));
            let pairs = read_all(&corpus).unwrap();
            assert_eq!(pairs.len(), corpus.len());
            pairs.iter().for_each(|(source, target)| assert!(!source.contains('\n') && !target.contains('\n')));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

/// As `mt check` does.
fn check(source: &Path, target: &Path) -> Result<Findings> {
    let mut sample = Sample::default();
    let mut sampler = sample.sampler();
    windows_of_files([source, target], |sides| sampler.add(&sides))?;
    let scripts = sampler.scripts();
    let words = sample.learn(false);
    let mut seen = Seen::default();
    let mut check = PairCheck::new(scripts, &words, true, &mut seen);
    windows_of_files([source, target], |sides| check.add(&sides))?;
    Ok(check.finish())
}
