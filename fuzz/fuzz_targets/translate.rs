//! Any text through a model, line by line: one translation per line, the same alone as in a batch.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mt::data::TokenizerConfig;
use mt::data::corpus::{Corpus, PairSource};
use mt::data::tokenizers::Tokenizers;
use mt::decode::DecodeConfig;
use mt::decode::neural::{Neural, SpecialTokens};
use mt::decode::source::Reader;
use mt::decode::translate::{TranslateOptions, Translator};
use mt::model::Transformer;
use mt::model::{ModelConfig, Preset};
use mt::model_dir::vocabulary;

/// A small untrained model.
static TRANSLATOR: LazyLock<Translator> = LazyLock::new(|| {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/quickstart/");
    let corpus = Corpus::open(format!("{data}valid.en"), format!("{data}valid.de"), 1.0).unwrap();
    let corpora: Vec<Box<dyn PairSource>> = vec![Box::new(corpus)];
    let tokenizers = Tokenizers::train(&TokenizerConfig { vocab_size: 400, ..TokenizerConfig::default() }, &corpora);
    let tokenizers = tokenizers.unwrap();
    let config = ModelConfig {
        d_model: 16,
        d_ff: 32,
        heads: 2,
        d_k: 8,
        d_v: 8,
        encoder_layers: 1,
        decoder_layers: 1,
        max_length: 40,
        ..ModelConfig::from_preset(Preset::Tiny)
    };
    let model = Transformer::new(&config, vocabulary(&tokenizers), &candle_core::Device::Cpu).unwrap();
    model.initialise(1).unwrap();
    let neural = Neural::new(&model, SpecialTokens::new(&tokenizers)).unwrap();
    Translator::new(vec![(neural, Reader::new(&config, &tokenizers).with_trained_length(20))])
});

fuzz_target!(|text: &str| {
    let lines: Vec<&str> = text.split('\n').take(8).collect();
    let options = TranslateOptions { max_length: Some(6), ..TranslateOptions::from_config(&DecodeConfig::default()) };
    let together = TRANSLATOR.translate(&lines, &[], &options, |_| ()).unwrap();
    assert_eq!(together.len(), lines.len());
    for (line, translation) in lines.iter().zip(&together) {
        assert!(!translation.best().text.contains('\n'));
        let alone = TRANSLATOR.translate(&[line], &[], &options, |_| ()).unwrap();
        assert_eq!(alone[0].best().text, translation.best().text);
    }
});
