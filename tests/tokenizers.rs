//! Given tokenizers, which `mt` has not learnt, on the command line.

mod common;

use common::marian::{WORDS, sentencepiece};
use common::project::{CONFIG, Project, fails, file, stderr, stdout, succeeds};
use serde_json::Value;

/// A project whose configuration has this `[tokenizer]`.
fn project(tokenizer: &str) -> Project {
    let project = Project::new();
    let learnt = "[tokenizer]\nvocab_size = 320\ndropout = 0.1\n";
    assert!(CONFIG.contains(learnt));
    project.write("small.toml", CONFIG.replace(learnt, &format!("[tokenizer]\n{tokenizer}\n")));
    project.write("spm.model", sentencepiece(&WORDS));
    project
}

#[test]
fn a_sentencepiece_model_is_trained_with() {
    let project = project("path = \"spm.model\"");
    let output = project.mt(&["train", "--config", "small.toml"]);
    succeeds(&output);
    let text = stderr(&output);
    assert!(text.contains("spm.model has no <pad>: added at the end of its vocabulary"), "{text}");
    assert!(text.contains("48 pieces, joint, from a file"), "{text}");
    let stored: Value = serde_json::from_slice(&file(&project, "runs/small", "tokenizer.json")).unwrap();
    assert_eq!((stored["type"].as_str(), stored["appended"][0].as_str()), (Some("sentencepiece"), Some("<pad>")));
    for model in
        [&["--tokenizer", "spm.model"][..], &["--tokenizer", "runs/small/tokenizer.json"], &["--model", "runs/small"]]
    {
        let tokenize = [&["tokenize", "-q"], model].concat();
        assert_eq!(
            stdout(&project.mt_with_input(&tokenize, "the cat eats ☃\n".as_bytes())),
            "▁the ▁cat ▁ e a t s ▁ ☃\n"
        );
        let detokenize = [&["detokenize", "-q"], model].concat();
        let text = project.mt_with_input(&detokenize, "▁the ▁cat ▁ e a t s ▁ ☃\n".as_bytes());
        assert_eq!(stdout(&text), "the cat eats ☃\n");
    }
    succeeds(&project.mt(&["translate", "the cat sleeps", "--model", "runs/small"]));
    let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", "small.toml", "--json"]))).unwrap();
    assert_eq!(info["vocabulary"]["target"], 48);
    succeeds(&project.mt(&["train", "--config", "small.toml", "--dry-run"]));
    succeeds(&project.mt(&["check", "--config", "small.toml"]));
    // A run is resumed with its own copy, wherever the file is, but not with another tokenizer.
    let resume = |more: &[&str]| project.train(&[&["--resume", "--set", "train.max_updates=14"], more].concat());
    project.write("moved.model", sentencepiece(&WORDS));
    std::fs::remove_file(project.path("spm.model")).unwrap();
    succeeds(&resume(&["--set", "tokenizer.path=moved.model"]));
    succeeds(&resume(&["--set", "train.max_updates=15"]));
    project.write("moved.model", sentencepiece(&WORDS[..5]));
    fails(&resume(&["--set", "tokenizer.path=moved.model"]), 2, &["not the one that the run began with"]);
}

/// No translation can equal a reference that the tokenizer changes.
#[test]
fn what_a_tokenizer_does_to_references_is_said() {
    // The messages about references that end in a letter.
    let said = |project: &Project, letter: &str| {
        let references = String::from_utf8(file(project, ".", "valid.de")).unwrap();
        project.write("valid.de", references.replace('\n', &format!("{letter}\n")));
        let output = project.mt(&["check", "--config", "small.toml"]);
        succeeds(&output);
        stdout(&output)
    };
    let given = project("path = \"spm.model\"");
    let known = said(&given, " a");
    assert!(!known.contains("validation references"), "{known}");
    let lacking = said(&given, " é");
    assert!(lacking.contains("validation references are changed by the target's tokenizer"), "{lacking}");
    // Normalisation composes decomposed text, which changes it too.
    let decomposed = said(&project("vocab_size = 320"), " e\u{301}");
    assert!(decomposed.contains("no translation can equal them; \"none\" keeps them as they are"), "{decomposed}");
}

#[test]
fn each_side_can_have_its_own() {
    let project = project("path = \"spm.model\"\ntarget_path = \"runs/other/tokenizer.json\"");
    project.write("other.toml", CONFIG);
    succeeds(&project.mt(&[
        "train",
        "-q",
        "--config",
        "other.toml",
        "--run-dir",
        "runs/other",
        "--set",
        "train.max_updates=1",
    ]));
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    assert_eq!(file(&project, "runs/small", "tokenizer.tgt.json"), file(&project, "runs/other", "tokenizer.json"));
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    assert!(config.contains("joint = false") && config.contains("tie = \"decoder\""), "{config}");
    succeeds(&project.mt(&["translate", "the cat", "--model", "runs/small"]));
}

/// The file that is extended lies below, though it is read later.
#[test]
fn a_file_may_be_named_above_a_configuration_that_learns() {
    for (below, above, is_accepted) in
        [("vocab_size = 500", "path = \"spm.model\"", true), ("path = \"spm.model\"", "vocab_size = 500", false)]
    {
        let project = project(below);
        project.write("top.toml", format!("extends = \"small.toml\"\n[tokenizer]\n{above}\n"));
        let output = project.mt(&["train", "--config", "top.toml", "--dry-run"]);
        match is_accepted {
            true => succeeds(&output),
            false => fails(&output, 2, &["top.toml:3", "`tokenizer.vocab_size` is about learning"]),
        }
    }
}

#[test]
fn what_a_file_cannot_do_is_refused() {
    let output = project("path = \"spm.model\"\nvocab_size = 500\nlowercase = true").train(&[]);
    fails(&output, 2, &["small.toml:8", "`tokenizer.vocab_size` is about learning", "`tokenizer.lowercase`"]);
    let output = project("path = \"spm.model\"").train(&[
        "--set",
        "tokenizer.lowercase=true",
        "--set",
        "tokenizer.tags=['<a>']",
    ]);
    fails(&output, 2, &["--set tokenizer.lowercase", "`tokenizer.lowercase` is about learning", "`tokenizer.tags`"]);
    fails(&project("target_path = \"spm.model\"").train(&[]), 2, &["`tokenizer.path` is missing"]);
    let output = project("path = \"spm.model\"\ndropout = 0.1").train(&[]);
    fails(&output, 2, &["spm.model", "`tokenizer.dropout` = 0.1", "no BPE-dropout"]);
    let tied = project("path = \"none.model\"\ntarget_path = \"none.model\"");
    let says = ["`tokenizer.target_path` gives the target its own", "leave `target_path` out"];
    fails(&tied.train(&["--set", "model.tie=all"]), 2, &says);
    let foreign = project("path = \"words.json\"");
    foreign.write(
        "words.json",
        mt::data::tokenizer::Tokenizer::of_words(
            ["<pad>", "</s>", "<unk>", "nothing"]
                .iter()
                .zip(0..)
                .map(|(piece, id)| ((*piece).to_owned(), id))
                .collect(),
        )
        .unwrap()
        .json(),
    );
    let output = foreign.mt(&["train", "--config", "small.toml", "--set", "train.max_updates=1"]);
    succeeds(&output);
    assert!(
        stderr(&output).contains("100 % of the source tokens of the training text are unknown to the tokenizer"),
        "{}",
        stderr(&output)
    );
    // So they are when the model is used.
    let unknown = |side: &str| format!("100 % of the {side} tokens are unknown to the model");
    let said = stderr(&foreign.mt(&["translate", "--model", "runs/small", "the cat"]));
    assert!(said.contains(&unknown("source")), "{said}");
    let said = stderr(&foreign.mt(&["score", "--model", "runs/small", "--src", "valid.en", "--tgt", "valid.de"]));
    assert!(said.contains(" % of the target tokens are unknown to the model"), "{said}");
    foreign.write("bpe.codes", "#version: 0.2\nt h\nth e</w>\n");
    let output = foreign.mt(&["train", "--config", "small.toml", "--set", "tokenizer.path=bpe.codes", "--overwrite"]);
    assert!(stderr(&output).contains("set tokenizer.kind = \"subword-nmt\"\n"), "{}", stderr(&output));
    let empty = project("path = \"empty.model\"");
    empty.write("empty.model", "");
    fails(&empty.train(&[]), 1, &["empty.model", "it is empty"]);
    let output = project("path = \"none.model\"\ntarget_path = \"small.toml\"").train(&[]);
    fails(&output, 1, &["`tokenizer.path`", "none.model", "`tokenizer.target_path`", "not a SentencePiece model"]);
    let output = project("kind = \"subword-nmt\"\ndropout = 0.1\nlowercase = true").train(&[]);
    fails(&output, 2, &["`tokenizer.dropout` does nothing", "`tokenizer.lowercase` does nothing"]);
    // A later configuration may name a file although an earlier one has settings for learning.
    let project = Project::new();
    project.write("spm.model", sentencepiece(&WORDS));
    let sets = ["--set", "tokenizer.path=spm.model", "--set", "tokenizer.dropout=0", "--set", "train.max_updates=1"];
    succeeds(&project.train(&sets));
}

#[test]
fn text_that_is_split_already_is_joined_again() {
    let project = project("kind = \"subword-nmt\"\nvocab_size = 300");
    for (name, text) in [("train", 120), ("valid", 6)] {
        for (side, lines) in [("en", common::project::SOURCE), ("de", common::project::TARGET)] {
            let split = |line: &str| {
                line.replace("sleeps", "sle@@ eps").replace("schläft", "schl@@ äft").replace("Katze", "Kat@@ ze")
                    + " and@@ er@@ swo ."
            };
            let lines: Vec<String> = lines.iter().cycle().take(text).map(|line| split(line)).collect();
            project.write(&format!("{name}.{side}"), lines.join("\n") + "\n");
        }
    }
    let steps = [
        "--set",
        "train.max_updates=150",
        "--set",
        "valid.every=150",
        "--set",
        "train.save_every=150",
        "--set",
        "model.dropout=0",
    ];
    let trained = project.mt(&[&["train", "--config", "small.toml"], &steps[..]].concat());
    succeeds(&trained);
    assert!(!stderr(&trained).contains("no translation can equal them"), "{}", stderr(&trained));
    // References may have tokens that no translation has; the perplexity is still that of training and of `mt score`.
    project.write("unknown.de", "die Ж Kat@@ ze\n");
    project.write("unknown.en", "the cat\n");
    let model = ["--model", "runs/small", "-q", "--json"];
    let files = ["--src", "unknown.en", "--ref", "unknown.de"];
    let found = project.mt(&[&["eval", "--ppl"], &model[..], &files].concat());
    succeeds(&found);
    let found: Value = serde_json::from_str(&stdout(&found)).unwrap();
    let scored = project.mt(&[&["score", "--src", "unknown.en", "--tgt", "unknown.de"], &model[..]].concat());
    let scored: Value = serde_json::from_str(&stdout(&scored)).unwrap();
    let (perplexity, tokens) = (found["ppl"]["score"].as_f64().unwrap(), found["ppl"]["tokens"].as_f64().unwrap());
    let log_prob = scored["log_prob"].as_f64().unwrap();
    assert!((perplexity.ln() * tokens + log_prob).abs() < 1e-4, "{found} {scored}");
    assert!(tokens >= 4.0, "{found}");
    let bleu = project.logged("runs/small", "valid").pop().unwrap()["bleu"].as_f64();
    // The model has learnt the text by heart; BLEU can only be so high if the references are joined.
    assert!(bleu.unwrap() > 90.0, "{bleu:?}");
    let output = project.mt(&["translate", "the cat sle@@ eps and@@ er@@ swo .", "--model", "runs/small", "-q"]);
    assert_eq!(stdout(&output), "die Katze schläft anderswo .\n");
    let prefixed =
        |prefix: &str| project.mt(&["translate", "the cat", "--model", "runs/small", "-q", "--prefix", prefix]);
    succeeds(&prefixed("die"));
    fails(&prefixed("die Ж"), 2, &["cannot write all of the prefix \"die Ж\"", "mt tokenize --target"]);
    let eval = project.mt(&["eval", "--model", "runs/small", "-q", "--bleu", "--json"]);
    let scores: Value = serde_json::from_str(&stdout(&eval)).unwrap();
    assert!(scores["bleu"]["score"].as_f64().unwrap() > 90.0, "{scores}");
}
