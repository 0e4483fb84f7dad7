//! Configurations that are refused, and the messages about them.

use std::fs;

use super::super::{load_for_training, to_toml};
use super::{Folder, assert_mentions, loaded, problem};
use crate::error::Error;

#[test]
fn values_of_other_toolkits_lead_to_ours() {
    for (text, help) in [
        ("[model]\npreset = \"base\"\n", "did you mean \"transformer-base\"? one of"),
        ("[model]\nactivation = \"SiLU\"\n", "did you mean \"swish\"? one of"),
        ("[valid]\nmetric = \"perplexity\"\n", "did you mean \"loss\"? one of"),
        (
            "[tokenizer]\nkind = \"sentencepiece\"\n",
            "for a SentencePiece model, write `path = \"FILE.model\"` instead of `kind`; otherwise one of \"bpe\", ",
        ),
        ("[train]\noptimizer = \"adam\"\n", "write `optimizer = { kind = \"adam\" }`"),
        ("[train]\noptimizer = \"sgd\"\n", "write `optimizer = { kind = KIND }`, where KIND is \"adam\""),
        ("[train]\nschedule = \"noam\"\n", "write `schedule = { kind = \"noam\" }`"),
        (
            "[train]\nschedule = \"inverse-square-root\"\n",
            "write `schedule = { kind = \"inverse_sqrt\", learning_rate = NUMBER }`",
        ),
    ] {
        assert_mentions(&problem(text), &[&format!("help: {help}")]);
    }
}

#[test]
fn only_the_beginning_of_a_long_key_is_shown() {
    let key = "k".repeat(5000);
    for text in [format!("[model]\n{key} = 3\n"), format!("[{key}]\na = 3\n"), format!("{key} = 3\n")] {
        let error = problem(&text).to_string();
        assert!(error.contains("kkk…") && error.len() < 2000, "{error}");
    }
}

#[test]
fn a_wrong_type_is_refused() {
    for (text, parts) in [
        (
            "[model]\ndropout = \"high\"\n",
            ["a.toml:2:11", "`model.dropout` must be a number, found the string \"high\""],
        ),
        ("[train]\nmax_updates = 8e3\n", ["a.toml:2:15", "must be a whole number, found the number 8000.0"]),
        ("[tokenizer]\njoint = 1\n", ["a.toml:2:9", "must be true or false, found the integer 1"]),
        ("model = 3\n", ["a.toml:1:9", "`model` must be a table"]),
        (
            "[data]\ntrain = { source = \"a\", target = \"b\" }\n",
            ["a.toml:2:9", "help: put brackets around it: train = [{ … }]"],
        ),
        ("[data]\ntrain = [\n  \"a\"]\n", ["a.toml:3:3", "`data.train[0]` must be a table"]),
        ("[data]\nroot = 3\n", ["a.toml:2:8", "must be a path in quotes, found the integer 3"]),
        ("[tokenizer]\nsymbols = \"<2de>\"\n", ["a.toml:2:11", "must be a list of texts in quotes"]),
        ("[tokenizer]\nsymbols = [\"<a>\", 3]\n", ["a.toml:2:19", "`tokenizer.symbols[1]` must be text in quotes"]),
        ("[train.optimizer]\nbetas = [0.9]\n", ["a.toml:2:9", "must be a list of two numbers"]),
        ("[train]\nschedule = \"noam\"\n", ["a.toml:2:12", "must be a table with a `kind`"]),
    ] {
        assert_mentions(&problem(text), &parts);
    }
}

#[test]
fn what_can_be_no_symbol_is_refused_where_it_stands() {
    let text = "[tokenizer]\nsymbols = [\"<2de>\",\n  \"ENT\",\n  \"</s>\"]\n";
    let problems = Folder::new(&[("a.toml", text)]).problems(&["a.toml"], &[]).join("\n");
    assert_mentions(
        &problems,
        &["a.toml:3:3", "`tokenizer.symbols[1]`", "begins with a letter", "a.toml:4:3", "special"],
    );
    let many: Vec<String> = (0..60).map(|i| format!("\"<{i}>\"")).collect();
    let text = format!("[tokenizer]\nvocab_size = 300\nsymbols = [{}]\n", many.join(", "));
    assert_mentions(&problem(&text), &["a.toml:3:", "too small", "at least 321"]);
    let symbols = r#"tokenizer.symbols=["<2de>", "<2DE>"]"#;
    assert_eq!(super::loaded("", &[symbols]).tokenizer.symbols, ["<2de>", "<2DE>"]);
}

/// Whatever is wrong with one text of a list, the others are checked too.
#[test]
fn every_wrong_text_of_a_list_is_reported() {
    let text = "[tokenizer]\ntags = [\"\", \"ENT\", 3, \"</s>\"]\n[train]\nfreeze = [\"encoder\", \" \", \"decodr\"]\n";
    let problems = Folder::new(&[("a.toml", text)]).problems(&["a.toml"], &[]);
    let expected = [
        ("a.toml:2:9", "`tokenizer.tags[0]` must be text in quotes, not empty"),
        ("a.toml:2:13", "`tokenizer.tags[1]`"),
        ("a.toml:2:20", "`tokenizer.tags[2]` must be text in quotes"),
        ("a.toml:2:23", "`tokenizer.tags[3]`"),
        ("a.toml:4:10", "the model has no decodr"),
        ("a.toml:4:22", "`train.freeze[1]` must be text in quotes, not empty"),
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, (location, what)) in problems.iter().zip(expected) {
        assert_mentions(problem, &[&format!("--> {location}"), what]);
    }
}

/// Updates are computed in f32, where these are 0 or infinite.
#[test]
fn a_learning_rate_that_a_float32_cannot_hold_is_refused() {
    let with = |kind: &str, keys: &str| problem(&format!("[train.schedule]\nkind = \"{kind}\"\n{keys}"));
    let rate = "learning_rate = 1e-3\n";
    for (kind, keys, line, key) in [
        ("constant", "learning_rate = 1e40\n".to_owned(), 3, "learning_rate"),
        ("constant", "learning_rate = 1e-50\n".to_owned(), 3, "learning_rate"),
        ("noam", "factor = 1e39\n".to_owned(), 3, "factor"),
        ("inverse_sqrt", format!("{rate}initial = 1e40\n"), 4, "initial"),
        ("cosine", format!("{rate}end = 1e40\n"), 4, "end"),
        ("plateau", format!("{rate}min = 1e40\n"), 4, "min"),
    ] {
        let location = format!("--> a.toml:{line}:");
        assert_mentions(&with(kind, &keys), &[&location, &format!("`train.schedule.{key}` must be"), "at most 1e38"]);
    }
    let text = problem("[train.optimizer]\nweight_decay = 1e40\n");
    assert_mentions(&text, &["a.toml:2:16", "`train.optimizer.weight_decay` must be 0, or at least 1e-38"]);
    let constant = ["train.schedule.kind=constant", "train.schedule.learning_rate=1e30"];
    assert_eq!(loaded("", &constant).train.schedule.contradiction(), None);
}

#[test]
fn a_number_may_be_a_whole_one_of_any_size() {
    let config = super::loaded("", &["train.clip_norm=100000000000000000000"]);
    assert_eq!(config.train.clip_norm, 1e20);
}

#[test]
fn an_impossible_value_is_refused() {
    for (section, setting) in [
        ("model", "dropout = 1.0"),
        ("model", "dropout = -0.1"),
        ("model", "dropout = nan"),
        ("model", "norm_eps = 0.0"),
        ("model", "norm_eps = inf"),
        ("train.optimizer", "eps = 1e-46"),
        ("train.optimizer", "betas = [0.9, 0.99999999]"),
        ("model", "d_model = 513"),
        ("model", "d_model = 0"),
        ("model", "heads = 0"),
        ("model", "encoder_layers = 0"),
        ("model", "d_ff = 99999999999999999999"),
        ("tokenizer", "vocab_size = 299"),
        ("data", "max_ratio = 0.5"),
        ("data", "max_length = 0"),
        ("data", "root = \"\""),
        ("data", "train = [{ source = \"a\", target = \"b\", weight = 0 }]"),
        ("data", "train = [{ source = \"a\", target = \"b\", weight = 1e30 }]"),
        ("train", "accumulate = 0"),
        ("train", "seed = -1"),
        ("train", "label_smoothing = 1"),
        ("train.schedule", "warmup = 0"),
        ("train.schedule", "kind = \"inverse_sqrt\"\nlearning_rate = 0"),
        ("train.schedule", "kind = \"plateau\"\nlearning_rate = 1\nfactor = 1"),
        ("train.optimizer", "betas = [0.9, 1.0]"),
        ("train.optimizer", "eps = 0"),
        ("valid", "beam = 0"),
        ("decode", "beam = 0"),
        ("decode", "length_penalty = -51"),
        ("runtime", "threads = -1"),
    ] {
        assert_mentions(&problem(&format!("[{section}]\n{setting}\n")), &["a.toml:", " must be "]);
    }
    // The bounds themselves.
    let text =
        "[tokenizer]\nvocab_size = 300\ndropout = 0\n[data]\nmax_ratio = 1\n[train]\nseed = 9223372036854775807\n";
    let config = loaded(text, &[]);
    assert_eq!((config.tokenizer.vocab_size, config.data.max_ratio, config.train.seed), (300, 1.0, i64::MAX as u64));
}

#[test]
fn a_value_that_is_not_a_choice_comes_with_the_choices() {
    let text = problem("[model]\nactivation = \"rleu\"\n");
    assert_mentions(
        &text,
        &["a.toml:2:14", "invalid value \"rleu\" for", "did you mean \"relu\"?", "\"relu\", \"gelu\", \"swish\""],
    );
    let text = problem("[train.schedule]\nkind = \"sqrt\"\nlearning_rate = 1\n");
    assert_mentions(
        &text,
        &["invalid value \"sqrt\" for `train.schedule.kind`", "\"noam\", \"inverse_sqrt\", \"linear\""],
    );
    let text = problem("[runtime]\nprecision = \"f16\"\n");
    assert_mentions(&text, &["one of \"auto\", \"f32\", \"bf16\""]);
    for device in ["gpu", "cuda:", "cuda:x", "cuda:+1", "CPU"] {
        let text = problem(&format!("[runtime]\ndevice = \"{device}\"\n"));
        assert_mentions(&text, &["a.toml:2:10", &format!("`runtime.device`: unknown device `{device}`")]);
    }
    assert_eq!(loaded("[runtime]\ndevice = \"cuda:1\"\n", &[]).runtime.device, "cuda:1");
}

#[test]
fn a_key_of_another_kind_is_explained() {
    let text = problem("[train.schedule]\nkind = \"noam\"\nlearning_rate = 1e-3\n");
    assert_mentions(&text, &["a.toml:3:1", "`learning_rate`", "\"inverse_sqrt\" or \"linear\"", "has warmup, factor"]);
    let text = problem("[train.schedule]\nkind = \"constant\"\n");
    assert_mentions(
        &text,
        &["a.toml:1:8", "`train.schedule.learning_rate` is missing, which kind = \"constant\" needs"],
    );
}

#[test]
fn keys_that_do_not_go_together_are_refused() {
    for (text, parts) in [
        ("[model]\nheads = 7\n", vec!["a.toml:2:9", "`model.d_model` = 512", "`model.heads` = 7"]),
        ("[model]\nheads = 7\nd_k = 64\n", vec!["`model.heads` = 7"]),
        ("[model]\npreset = \"transformer-tiny\"\nheads = 3\n", vec!["a.toml:3:9", "`model.d_model` = 128"]),
        ("[tokenizer]\njoint = false\n[model]\ntie = \"all\"\n", vec!["a.toml:4:7", "`tokenizer.joint` = false"]),
        ("[model]\nnorm_eps = inf\n", vec!["a.toml:2:12", "must be a finite number, found inf"]),
        ("[model]\nnorm_eps = 1e-50\n", vec!["must be at least 1e-30 and at most 1"]),
        ("[model]\npositions = \"rotary\"\nd_k = 7\n", vec!["a.toml:3:7", "`model.d_k` = 7 is odd"]),
        ("[model]\nrelative_buckets = 8\n", vec!["a.toml:2:20", "is for relative positions"]),
        (
            "[model]\npositions = \"relative\"\nrelative_distance = 16\n",
            vec!["a.toml:3:21", "`model.relative_distance` = 16 must be more than half", "to more than 16"],
        ),
        ("[model]\npositions = \"relative\"\nrelative_buckets = 3\n", vec!["a.toml:3:20", "at least 4"]),
        ("[decode]\nmin_length = 1024\n", vec!["a.toml:2:14", "`decode.min_length` = 1024", "at most 1023"]),
        ("[data]\nmax_length = 1024\n", vec!["a.toml:2:14", "`model.max_length` = 1024", "at most 1023"]),
        (
            "[train]\nmax_updates = 10\n[train.schedule]\nkind = \"linear\"\nlearning_rate = 1\nwarmup = 10\n",
            vec!["a.toml:6:10", "`train.schedule.warmup` = 10", "`total` = 10"],
        ),
        (
            "[train]\nmax_updates = 0\n[train.schedule]\nkind = \"cosine\"\nlearning_rate = 1\n",
            vec!["`train.schedule.total` is missing"],
        ),
        (
            "[train]\nfreeze = [\"encoder\", \"decoder.layer\"]\n",
            vec!["a.toml:2:10", "the model has no decoder.layer", "decoder, encoder, source_"],
        ),
        (
            "[train]\nfreeze = [\"target_embedding\"]\n",
            vec!["a.toml:2:10", "no matrix of its own (`model.tie` = \"all\")", "name \"source_embedding\""],
        ),
        (
            "[train]\nfreeze = [\"output_projection\"]\n[model]\noutput_bias = true\n",
            vec!["a.toml:2:10", "no matrix of its own", "or \"output_projection.bias\" for the bias alone"],
        ),
        (
            "[train]\nfreeze = [\"source_embedding\", \"encoder\", \"decoder\"]\n[model]\noutput_bias = false\n",
            vec!["a.toml:2:10", "leaves no parameter to be trained"],
        ),
        (
            "[train]\ninit = \"m\"\nlow_rank = { projections = [], also = [\"encoder\"] }\n",
            vec!["a.toml:3:12", "gives factors to no matrix"],
        ),
        (
            "[tokenizer]\ndropout = 0.1\npath = \"spm.model\"\nsampling = { alpha = 0.1 }\n",
            vec!["a.toml:4:22", "leave one of them out"],
        ),
        ("[tokenizer]\nsampling = { alpha = 0.1 }\n", vec!["a.toml:2:22", "`mt` learns none"]),
        ("[tokenizer]\nsampling = { nbest = 8 }\n", vec!["a.toml:2:22", "has no effect", "set `alpha`"]),
        ("[train]\ninit_layers = { encoder = [0] }\n", vec!["a.toml:2:", "`train.init` names no model"]),
        ("[model]\npositions = \"learned\"\nsinusoid = \"halves\"\n", vec!["a.toml:3:", "leave `sinusoid` out"]),
        ("[tokenizer]\nsampling.side = \"target\"\n", vec!["a.toml:2:17", "`tokenizer.dropout`, or `alpha`"]),
        (
            "[train]\nr_drop = 5\n[model]\npreset = \"transformer-tiny\"\ndropout = 0\n",
            vec!["a.toml:2:10", "the model has no dropout"],
        ),
        (
            "[train.schedule]\nkind = \"plateau\"\nlearning_rate = 1\npatience = 10\n",
            vec!["a.toml:4:12", "after 10 validations", "`valid.patience` = 10 ends training then"],
        ),
        (
            "[train.schedule]\nkind = \"plateau\"\nlearning_rate = 1\n[valid]\nevery = 0\n",
            vec!["a.toml:2:8", "waits for validations", "`valid.every` = 0"],
        ),
    ] {
        assert_mentions(&problem(text), &parts);
    }
    assert_eq!(loaded("[model]\nheads = 7\nd_k = 64\nd_v = 32\n", &[]).model.value_width(), 224);
    assert_eq!(loaded("[data]\nmax_length = 1023\n", &[]).data.max_length, 1023);
}

#[test]
fn all_problems_of_all_files_come_at_once_in_order() {
    let base = "[model]\nnorm = \"mid\"\nlayers = 3\n[decode]\nbeam = 0\n";
    let child =
        "extends = \"base.toml\"\n[tokenizer]\njoint = false\ndropout = 2\n[model]\ntie = \"all\"\nnorm = \"pre\"\n";
    let folder = Folder::new(&[("base.toml", base), ("child.toml", child), ("other.toml", "[valid]\nbeam = \"x\"\n")]);
    let problems = folder.problems(&["child.toml", "other.toml"], &["model.hedas=8", "train.keep=0", "noequals"]);
    let expected = [
        ("child.toml:4:11", "tokenizer.dropout"),
        ("child.toml:6:7", "model.tie"),
        ("base.toml:2:8", "\"mid\""),
        ("base.toml:3:1", "layers"),
        ("base.toml:5:8", "decode.beam"),
        ("other.toml:2:8", "valid.beam"),
        ("--set model.hedas=8", "did you mean `heads`?"),
        ("--set train.keep=0", "must be at least 1"),
        ("--set noequals", "has no `=`"),
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, (location, what)) in problems.iter().zip(expected) {
        assert_mentions(problem, &[&format!("--> {location}"), what]);
    }
}

#[test]
fn a_check_of_several_keys_is_left_out_where_one_of_them_is_wrong() {
    // 512, the default, would not be a multiple of 7; but `d_model` is not the default, it is a typing error.
    let text = problem("[model]\nheads = 7\nd_model = \"700\"\n");
    assert_mentions(&text, &["`model.d_model` must be a whole number"]);
}

#[test]
fn syntax_errors_have_a_place_and_do_not_hide_other_files() {
    let folder = Folder::new(&[
        ("bad.toml", "[model]\nheads = \n"),
        ("twice.toml", "[model]\nheads = 4\nheads = 8\n"),
        ("lines.toml", "a = [1,\n[model\nheads = = 3\n"),
        ("other.toml", "[model]\nhaeds = 1\n[train.schedule]\nlearning_rate = 1\n"),
    ]);
    let problems = folder.problems(&["bad.toml", "twice.toml", "other.toml"], &[]);
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert_mentions(&problems[0], &["bad.toml:2:", "not valid TOML"]);
    assert_mentions(&problems[1], &["twice.toml:3:1", "duplicate key `heads`"]);
    // The unreadable file may state the schedule's kind, so there is no report about `learning_rate`.
    assert_mentions(&problems[2], &["other.toml:2:1", "`haeds`"]);
    // The parser finds seven errors, most of which follow from others.
    let lines = folder.problems(&["lines.toml"], &[]);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_mentions(&lines[1], &["lines.toml:3:1"]);
}

#[test]
fn unreadable_files_are_usage_errors_at_who_names_them() {
    let folder = Folder::new(&[("a.toml", "\nextends = \"none.toml\"\n"), ("b.toml", "extends = 3\n")]);
    assert_mentions(&folder.problems(&["a.toml"], &[])[0], &["a.toml:2:11", "none.toml"]);
    assert_mentions(&folder.problems(&["b.toml"], &[])[0], &["b.toml:1:11", "`extends` must be the path"]);
    assert_mentions(&folder.problems(&["none.toml"], &[])[0], &["cannot read the configuration", "none.toml"]);
    fs::write(folder.path("latin.toml"), b"# ok\n# caf\xe9\n").unwrap();
    assert_mentions(&folder.problems(&["latin.toml"], &[])[0], &["latin.toml:2", "not UTF-8"]);
}

#[test]
fn columns_count_characters_and_a_byte_order_mark_counts_nothing() {
    let text = problem("\u{feff}[data]\r\nvalid = { source = \"größe\", tarket = \"b\", target = \"c\" }\r\n");
    assert_mentions(&text, &["a.toml:2:29"]);
    assert_mentions(&problem("\u{feff}beam = 1\n"), &["--> a.toml:1:1\n"]);
}

#[test]
fn extends_in_a_circle_is_reported() {
    let folder = Folder::new(&[("a.toml", "extends = \"b.toml\"\n"), ("b.toml", "\nextends = \"./a.toml\"\n")]);
    let problems = folder.problems(&["a.toml"], &[]);
    assert_eq!(problems.len(), 1);
    assert_mentions(&problems[0], &["b.toml:2:11", "circle"]);
}

/// Its configuration cannot be changed, so the user's is at fault.
#[test]
fn the_model_that_training_begins_with_is_not_blamed() {
    let run = to_toml(&loaded("[data]\nmax_length = 50\n[model]\nmax_length = 64\n", &[]));
    let folder = Folder::new(&[("run/config.toml", &run), ("a.toml", "[train]\ninit = \"run\"\n")]);
    let with = |sets: &[&str]| folder.problems(&["a.toml"], sets);
    let problems = with(&["tokenizer.joint=false"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert_mentions(&problems[0], &["`model.max_length` = 64", "a.toml:2:8", "lower `data.max_length` to at most 63"]);
    let joint = "`tokenizer.joint` is false, but the vocabulary comes from `train.init`, where it is true";
    assert_mentions(&problems[1], &[joint, "--> --set tokenizer.joint=false", "leave it out"]);

    let files = ["data.max_length=50", "tokenizer.path=a.json", "tokenizer.target_path=b.json"];
    let text = with(&files).concat();
    assert_mentions(
        &text,
        &["`tokenizer.target_path` gives", "--> --set tokenizer.target_path", "help: leave `target_path` out"],
    );
    // A tie of the user's own can be changed.
    let text = with(&["data.max_length=50", "tokenizer.joint=false", "model.tie=all"]).concat();
    assert_mentions(&text, &["--> --set model.tie=all", "set `tie = \"decoder\"`, or `joint = true`"]);
}

/// But one that the user names as well can be changed.
#[test]
fn a_configuration_that_the_user_names_is_blamed() {
    let run = to_toml(&loaded("[model]\nsinusoid = \"tensor2tensor\"\ntie = \"decoder\"\n", &[]));
    let folder = Folder::new(&[("run/config.toml", &run)]);
    let init_of = |folder: &Folder| format!("train.init={}", folder.path("run").display());
    let text = folder.problems(&["run/config.toml"], &[&init_of(&folder), "model.positions=rotary"]).concat();
    assert_mentions(&text, &["--> run/config.toml:", "set `sinusoid` to \"interleaved\" or \"halves\""]);
    // A tie that no other key explains is intended.
    let text = folder.problems(&["run/config.toml"], &["tokenizer.joint=false", "model.tie=all"]).concat();
    assert_mentions(&text, &["--> --set model.tie=all", "set `tie = \"decoder\"`, or `joint = true`"]);
    // One that only follows from the vocabulary is the model's.
    let folder = Folder::new(&[("run/config.toml", &to_toml(&loaded("", &[])))]);
    let text = folder.problems(&["run/config.toml"], &[&init_of(&folder), "tokenizer.joint=false"]).concat();
    let joint = "`tokenizer.joint` is false, but the vocabulary comes from `train.init`, where it is true";
    assert_mentions(&text, &[joint, "--> --set tokenizer.joint=false", "leave it out"]);
}

#[test]
fn training_needs_corpora() {
    let with = |sets: &[&str]| load_for_training(&[], &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
    let error = with(&[]).unwrap_err();
    assert_eq!(error.all().map(Error::what).filter(|what| what.contains("is missing")).count(), 2);
    assert_eq!(error.exit_code(), 2);
    let train = "data.train=[{source='a', target='b'}]";
    assert!(with(&[train]).unwrap_err().what().contains("`data.valid`"));
    with(&[train, "valid.every=0"]).unwrap();
    with(&[train, "data.valid={source='a', target='b'}"]).unwrap();

    // Stated corpora are reported at their locations; other commands need no corpus.
    let folder = Folder::new(&[("a.toml", "[data]\ntrain = []\n[valid]\nevery = 5\n")]);
    folder.load(&["a.toml"], &[]).unwrap();
    let text = load_for_training(&[folder.path("a.toml")], &[]).unwrap_err().to_string();
    let says = ["`data.train` is empty", "a.toml:2:9", "`data.valid` is missing, but `valid.every` = 5", "a.toml:4:9"];
    assert_mentions(&text, &says);
}

/// Missing keys are reported with all other problems, unless one of those explains them.
#[test]
fn missing_corpora_are_reported_with_the_rest() {
    let problems = |text: &str| -> Vec<String> {
        let folder = Folder::new(&[("a.toml", text)]);
        let error = load_for_training(&[folder.path("a.toml")], &[]).unwrap_err();
        error.all().map(|error| error.what().to_owned()).collect()
    };
    let found = problems("[model]\nheads = 7\nbogus = 1\n[train]\nseed = \"x\"\n");
    let missing = found.iter().filter(|what| what.contains("is missing")).count();
    assert_eq!((found.len(), missing), (5, 2), "{found:?}");
    for (text, follows) in [
        ("[data]\ntrian = [{ source = \"a\", target = \"b\" }]\n", "`data.valid` is missing"),
        ("[data]\ntrain = [{ source = \"a\" }]\n", "`data.valid` is missing"),
        ("[data]\ntrain = \"a\"\n", "`data.valid` is missing"),
        ("[data]\nvalid = { source = \"a\" }\n", "`data.train` is missing"),
    ] {
        let found = problems(text);
        assert!(found.len() == 2 && found.iter().any(|what| what.starts_with(follows)), "{found:?}");
    }
    assert_eq!(problems("[dta]\ntrain = [{ source = \"a\", target = \"b\" }]\n").len(), 1);
    assert_eq!(problems("data = 3\n").len(), 1);
}

#[test]
fn a_misspelt_kind_is_the_only_problem() {
    let text = problem("[train.schedule]\nknid = \"cosine\"\nlearning_rate = 1e-3\n");
    assert_mentions(&text, &["a.toml:2:1", "did you mean `kind`?"]);
    let text = problem("[train.schedule]\nlearning_rat = 1e-3\n");
    assert_mentions(&text, &["did you mean `learning_rate`?"]);
}

#[test]
fn misplaced_extends_and_short_names_are_explained() {
    assert_mentions(&problem("[model]\nextends = \"a.toml\"\n"), &["before the first section"]);
    let text = problem("zz = 3\n");
    assert_mentions(&text, &["help: the sections are data, tokenizer, model"]);
}

#[test]
fn an_absurdly_deep_key_is_refused() {
    let folder = Folder::new(&[("a.toml", "")]);
    let deep = format!("a{}=1", ".a".repeat(50_000));
    assert_mentions(&folder.problems(&["a.toml"], &[&deep])[0], &["at most 8 parts, found 50001", "--> --set a.a.a"]);
}

/// Each of these took a minute or more.
#[test]
fn a_file_of_nothing_but_problems_is_not_described_whole() {
    let unknown: String = (0..200_000).map(|i| format!("unknown_{i} = 1\n")).collect();
    let text = problem_of_many(&format!("[model]\n{unknown}"));
    assert!(text.starts_with("unknown key `unknown_0` in [model]"), "{text}");
    assert!(text.ends_with("\nerror: the configuration has 199901 more problems"), "{text}");
    let set = |i: usize| format!("{{ name = \"{i}\", source = \"v.en\", target = \"v.de\" }},");
    let sets: String = (0..60_000).map(set).collect();
    let text = problem_of_many(&format!(
        "[data]\ntrain = [{{ source = \"a\", target = \"b\" }}]\nvalid = {{ source = \"a\", target = \"b\" }}\n\
         monitor = [{sets}]\n"
    ));
    assert_mentions(&text, &["`data.monitor` has 60000 sets, but at most 100 can be", "name fewer"]);
}

fn problem_of_many(text: &str) -> String {
    let folder = Folder::new(&[("a.toml", text)]);
    let error = load_for_training(&[folder.path("a.toml")], &[]).err().map(|error| error.to_string());
    error.unwrap_or_default().replace(&folder.path("").display().to_string(), "")
}
