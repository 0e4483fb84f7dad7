//! The hints of messages: other toolkits' keys, slips of the pen, invalid TOML.

use super::{Folder, assert_mentions, problem};

#[test]
fn an_unknown_key_is_named_with_value_place_and_nearest_key() {
    let text = problem("[data]\nmax_length = 50\n[model]\n  dropuot = 0.3\n");
    assert_mentions(&text, &["a.toml:4:3", "unknown key `dropuot` in [model]", "0.3", "did you mean `dropout`?"]);
    let text = problem("[modle]\nd_ff = 4\n");
    assert_mentions(&text, &["a.toml:1:2", "unknown section [modle]", "did you mean `model`?"]);
    let text = problem("[model]\nlabel_smoothing = 0.1\n");
    assert_mentions(&text, &["unknown key `label_smoothing` in [model]", "belongs to [train]"]);
    let text = problem("dropout = 0.1\n");
    assert_mentions(&text, &["a.toml:1:1", "outside any section", "belongs to [tokenizer] or [model]"]);
    let text = problem("[train.schedule]\nwarmup_updates = 5\n");
    assert_mentions(&text, &["did you mean `warmup`?"]);
    let text = problem("[train]\nlearning_rat = 5\n");
    assert_mentions(&text, &["did you mean `learning_rate` in [train.schedule]?"]);
    let text = problem("[train]\nbeta = [0.9, 0.98]\n");
    assert_mentions(&text, &["did you mean `betas` in [train.optimizer]?"]);
    let text = problem("[train]\nwarmup_step = 9\n");
    assert_mentions(&text, &["the key for that is `warmup` in [train.schedule]"]);
    let text = problem("[model]\nnum_layer = 9\n");
    assert_mentions(&text, &["did you mean `encoder_layers` or `decoder_layers`?"]);
    let text = problem("[decode]\nzzz = 5\n");
    assert_mentions(&text, &["the keys are beam, length_penalty, length_penalty_kind,", ", batch_tokens"]);
}

#[test]
fn keys_of_other_toolkits_lead_to_ours() {
    for (text, help) in [
        ("[train]\nmax_tokens = 4096\n", "did you mean `batch_tokens`?"),
        ("[data]\nupdate-freq = 2\n", "the key for that is `accumulate` in [train]"),
        ("Mini_Batch = 64\n", "the key for that is `batch_tokens` in [train], in tokens"),
        ("[train]\nwarmup_steps = 4000\n", "the key for that is `warmup` in [train.schedule]"),
        (
            "[train]\nlr = 3\n",
            "the key for that is `learning_rate` in [train.schedule] (with kind = \"inverse_sqrt\" or \"linear\" or",
        ),
        ("[train.schedule]\nkind = \"constant\"\nlr = 3\n", "did you mean `learning_rate` (with kind ="),
        ("[train]\nlearning_rate = 3\n", "the key for that is `learning_rate` in [train.schedule] (with kind ="),
        ("[train]\nearly_stopping = 5\n", "the key for that is `patience` in [valid]"),
        ("[model]\nhidden_size = 5\n", "did you mean `d_model`?"),
        ("[model]\nnum_layers = 5\n", "did you mean `encoder_layers` or `decoder_layers`?"),
        ("[decode]\nbeam_size = 5\n", "did you mean `beam`?"),
        ("[valid]\nbeam_size = 5\n", "did you mean `beam`?"),
        ("beam_size = 5\n", "the key for that is `beam` in [decode] or `beam` in [valid]"),
        ("[model]\nshare_all_embeddings = true\n", "did you mean `tie = \"all\"`?"),
        ("[train]\nfp16 = true\n", "the key for that is `precision = \"bf16\"` in [runtime]"),
        ("[model]\nN = 6\n", "did you mean `encoder_layers` or `decoder_layers`?"),
        ("[model]\nh = 6\n", "did you mean `heads`?"),
        ("[model]\nP_drop = 0.3\n", "did you mean `dropout`?"),
        ("[train]\nepsilon_ls = 0.1\n", "did you mean `label_smoothing`?"),
        ("[tokenizer]\nvocab = 300\n", "did you mean `path` or `vocab_size`?"),
        ("[train]\nfp16 = false\n", "the key for that is `precision` in [runtime]"),
        ("[decode]\nnormalize = 0.6\n", "did you mean `length_penalty` with `length_penalty_kind = \"power\"`?"),
        ("[train]\nmax_sentences = 64\n", "did you mean `batch_tokens`, in tokens?"),
        ("[decode]\nbatch_size = 64\n", "did you mean `batch_tokens`, in tokens?"),
        ("[train]\nexponential-smoothing = 0.0005\n", "did you mean `exponential_average = 0.9995`?"),
        ("[train]\nexponential-smoothing = true\n", "did you mean `exponential_average = 0.9999`?"),
        ("[train]\ncheckpoint_interval = 5\n", "did you mean `save_every`"),
        ("[tokenizer]\nmodel_type = \"bpe\"\n", "did you mean `kind`?"),
        ("[tokenizer]\nnormalize = true\n", "did you mean `normalization`?"),
        ("[tokenizer]\nmodel = \"a.model\"\n", "did you mean `path`?"),
        ("[tokenizer]\ntype = \"bpe\"\n", "did you mean `kind`?"),
        ("[model]\ntype = \"transformer\"\n", "did you mean `preset`?"),
        ("[train.optimizer]\ntype = \"adam\"\n", "did you mean `kind`?"),
        ("[data]\nvalid = { src = \"a\", target = \"b\" }\n", "did you mean `source`?"),
        ("[data]\ntrain = [{ source = \"a\", trg = \"b\" }]\n", "did you mean `target`?"),
        ("[data]\nseed = 1\n", "the key for that is `seed` in [train]"),
        ("[model]\nmodel_dtype = \"fp16\"\n", "the key for that is `precision` in [runtime]"),
        ("[model]\nshare_vocab = true\n", "the key for that is `joint = true` in [tokenizer]"),
        ("[data]\nsource = \"a\"\n", "did you mean `train` (a list of `{ source = \"FILE\", target = \"FILE\" }`) or"),
        (
            "[tokenizer]\nsrc_subword_alpha = 0.1\n",
            "did you mean `dropout` (for BPE) or `alpha` in [tokenizer.sampling] (for a unigram model)?",
        ),
        // Our own name of another table goes with another toolkit's.
        ("[train]\nalpha = 16\n", "the key for that is `alpha` in [train.low_rank] or `length_penalty` in [decode]"),
        ("[decode]\nalpha = 0.6\n", "did you mean `length_penalty`?"),
        ("[train]\nepochs = 3\n", "did you mean `max_epochs`?"),
        // It says how often both happen.
        ("[train]\nvalidation_freq = 9\n", "did you mean `save_every` or `every` in [valid]?"),
        ("[train]\naverage_decay = 0.0005\n", "did you mean `exponential_average = 0.9995`?"),
        // A slip of the pen is likelier.
        ("[train]\nmax_epoch = 3\n", "did you mean `max_epochs`?"),
    ] {
        assert_mentions(&problem(text), &["unknown key", &format!("help: {help}")]);
    }
    let section = problem("[data]\ndev = { source = \"a\", target = \"b\" }\n");
    assert_mentions(&section, &["unknown section [data.dev]", "help: did you mean `valid`?"]);
}

#[test]
fn a_key_stands_for_the_misspelt_one_it_is_nearest_to() {
    let text = problem("[data]\nvalid = { sorce = \"a\", target = \"b\" }\n");
    assert_mentions(&text, &["a.toml:2:11", "did you mean `source`?"]);
    let text = problem("[data]\nvalid = { target = \"b\" }\n");
    assert_mentions(&text, &["`data.valid.source` is missing"]);
    let text = problem("[data]\ntrain = [{ source = \"a\", target = \"b\" }, { source = \"a\" }]\n");
    assert_mentions(&text, &["a.toml:2:42", "`data.train[1].target` is missing"]);
}

#[test]
fn common_slips_in_toml_are_named() {
    for (line, says) in [
        ("preset = transformer-tiny # small", ["text needs quotation marks", "preset = \"transformer-tiny\""]),
        ("kind = noam", ["text needs quotation marks", "kind = \"noam\""]),
        ("norm = post", ["text needs quotation marks", "norm = \"post\""]),
        ("root = ../data", ["text needs quotation marks", "root = \"../data\""]),
        ("root = “data”", ["typographic quotation marks", "root = \"data\""]),
        ("root = “../data”", ["typographic quotation marks", "help: root = \"../data\""]),
        ("valid = { source = “a.en”, target = “b” }", ["typographic quotation marks", "help: source = \"a.en\""]),
        ("dropout = 0,1", ["a number has a decimal point", "dropout = 0.1"]),
        ("learning_rate = 0,001", ["a number has a decimal point", "learning_rate = 0.001"]),
        ("max_updates = 20,000", ["a number has no separators", "max_updates = 20000"]),
        (
            "valid = { source = train.en, target = \"b\" }",
            ["text needs quotation marks", "help: source = \"train.en\""],
        ),
        ("monitor = [{ source = \"a\", name = news }]", ["text needs quotation marks", "help: name = \"news\""]),
        ("joint = yes", ["a switch is true or false", "joint = true"]),
        ("joint = True", ["in lower case", "joint = true"]),
        // Not one of them.
        ("heads = 4 8", ["not valid TOML", "a.toml:2:"]),
        ("heads == 4", ["not valid TOML", "a.toml:2:"]),
        ("heads", ["not valid TOML", "a.toml:2:"]),
    ] {
        let problems = Folder::new(&[("a.toml", &format!("[model]\n{line}\n"))]).problems(&["a.toml"], &[]);
        assert_mentions(&problems[0], &says);
        assert_mentions(&problems[0], &["a.toml:2:"]);
    }
}
