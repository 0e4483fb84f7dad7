//! Any two texts as a translation and its reference, scored with every metric and every tokenizer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mt::metrics::{BleuOptions, ChrfOptions, Statistics, TerOptions, TextMetric, Tokenize};

fuzz_target!(|texts: (&str, &str)| {
    let (hypothesis, reference) = texts;
    let score = |metric: &dyn TextMetric, most: f64| {
        let statistics = Statistics::new(metric, &[hypothesis], &[vec![reference]]).unwrap();
        let score = metric.score(&statistics.sum());
        assert!((0.0..=most + 1e-9).contains(&score), "{}: {score}", metric.name());
    };
    for tokenize in Tokenize::NAMES.iter().filter_map(|name| Tokenize::named(name)) {
        for effective_order in [false, true] {
            let options =
                BleuOptions { tokenize, lowercase: effective_order, effective_order, ..BleuOptions::default() };
            score(&options, 100.0);
        }
    }
    for word_order in [0, 2] {
        for eps_smoothing in [false, true] {
            score(
                &ChrfOptions { word_order, eps_smoothing, whitespace: eps_smoothing, ..ChrfOptions::default() },
                100.0,
            );
        }
    }
    for all in [false, true] {
        let options = TerOptions { normalized: all, no_punct: all, asian_support: all, case_sensitive: all };
        score(&options, f64::INFINITY);
    }
});
