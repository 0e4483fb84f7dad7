//! Any text as a tokenizer.json, and any line through one that was accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mt::data::tokenizer::Tokenizer;

fuzz_target!(|input: (&str, &str)| {
    let (json, line) = input;
    let Ok(tokenizer) = Tokenizer::from_json(json.to_owned()) else { return };
    for ids in [tokenizer.encode(line), tokenizer.encode_with_dropout(line, 0.5, 1)] {
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        tokenizer.decode(&ids);
    }
});
