//! Any two texts as a translation and its reference, with every tokenizer of the metric.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mt::metrics::{BleuOptions, Tokenize, bleu};

fuzz_target!(|texts: (&str, &str)| {
    for name in ["13a", "intl", "char", "zh", "none"] {
        for lowercase in [false, true] {
            let options = BleuOptions { tokenize: name.parse::<Tokenize>().unwrap(), lowercase, ..BleuOptions::default() };
            let score = bleu::corpus_bleu(&[texts.0], &[vec![texts.1]], &options).unwrap().score;
            assert!((0.0..=100.0 + 1e-9).contains(&score), "{score}");
            let score = bleu::sentence_bleu(texts.0, &[texts.1], &options).unwrap().score;
            assert!((0.0..=100.0 + 1e-9).contains(&score), "{score}");
        }
    }
});
