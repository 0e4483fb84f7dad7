//! Files over files, overrides, paths, computed defaults, and the dump.

use crate::data::{CorpusConfig, CorpusLocation, DataConfig, TokenizerConfig};
use crate::model::{ModelConfig, NormPlacement, Preset, Tie};
use crate::train::{Interval, OptimizerConfig, ScheduleConfig};
use std::fs;
use std::path::Path;

use super::super::*;
use super::{Folder, assert_mentions, loaded};
use crate::data::tokenizer::TokenizerKind;
use crate::train::schedule::Decay;

#[test]
fn nothing_given_is_the_default() {
    let mut config = load(&[], &[]).unwrap();
    assert!(config.data.root.is_absolute());
    config.data.root = DataConfig::default().root;
    assert_eq!(config, Config::default());
}

#[test]
fn later_files_and_sets_override_earlier_ones() {
    let folder = Folder::new(&[
        ("base/base.toml", "[model]\nd_ff = 64\nheads = 2\ndropout = 0.2\n[valid]\nevery = 7\n"),
        ("child.toml", "extends = \"base/base.toml\"\n[model]\nheads = 4\ndropout = 0.3\n"),
        ("more.toml", "extends = \"base/base.toml\"\n[model]\ndropout = 0.4\n"),
    ]);
    let config = folder.load(&["child.toml", "more.toml"], &["valid.every=9", "valid.every = 11"]).unwrap();
    // `base` is below both files, so it does not undo `heads` of the first.
    assert_eq!(
        (config.model.d_ff, config.model.heads, config.model.dropout, config.valid.every),
        (64, 4, 0.4, Interval::Updates(11))
    );
    assert_eq!(config.model.embedding_dropout, 0.4);
}

#[test]
fn another_kind_replaces_the_table_and_the_same_kind_does_not() {
    let noam = "[train.schedule]\nwarmup = 123\nfactor = 2.0\n";
    let folder = Folder::new(&[
        ("noam.toml", noam),
        ("same.toml", "[train.schedule]\nkind = \"noam\"\nfactor = 3.0\n"),
        ("cosine.toml", "[train.schedule]\nkind = \"cosine\"\nlearning_rate = 1e-3\n"),
        ("cosine_more.toml", "extends = \"cosine.toml\"\n[train.schedule]\nend = 1e-5\n"),
    ]);
    let schedule = |names: &[&str], sets: &[&str]| folder.load(names, sets).unwrap().train.schedule;
    assert_eq!(schedule(&["noam.toml", "same.toml"], &[]), ScheduleConfig::Noam { warmup: 123, factor: 3.0 });
    // `warmup = 123` was Noam's.
    let cosine = |end| ScheduleConfig::Cosine(Decay { learning_rate: 1e-3, warmup: 4000, total: 100_000, end });
    assert_eq!(schedule(&["noam.toml", "cosine.toml"], &[]), cosine(0.0));
    assert_eq!(schedule(&["noam.toml", "cosine_more.toml"], &[]), cosine(1e-5));
    for sets in [
        ["train.schedule.kind=constant", "train.schedule.learning_rate=1"],
        ["train.schedule.learning_rate=1", "train.schedule.kind=constant"],
    ] {
        let constant = ScheduleConfig::Constant { learning_rate: 1.0, warmup: 0 };
        assert_eq!(schedule(&["noam.toml"], &sets), constant);
        assert_eq!(schedule(&["cosine.toml"], &sets), constant);
    }
    // [tokenizer] has a kind too.
    let folder = Folder::new(&[
        ("bpe.toml", "[tokenizer]\nvocab_size = 1000\nnormalization = \"nfc\"\ndropout = 0.1\n"),
        ("pieces.toml", "[tokenizer]\nkind = \"subword-nmt\"\n"),
        ("same.toml", "[tokenizer]\nkind = \"bpe\"\n"),
    ]);
    let tokenizer = |names: &[&str], sets: &[&str]| folder.load(names, sets).unwrap().tokenizer;
    let pieces = TokenizerConfig { kind: TokenizerKind::SubwordNmt, ..TokenizerConfig::default() };
    assert_eq!(tokenizer(&["bpe.toml", "pieces.toml"], &[]), pieces);
    let sets = ["tokenizer.joint=false", "tokenizer.kind=subword-nmt"];
    assert_eq!(tokenizer(&["bpe.toml"], &sets), TokenizerConfig { joint: false, ..pieces });
    assert_eq!(tokenizer(&["bpe.toml", "same.toml"], &[]).vocab_size, 1000);
    // Whatever was set of the table before is replaced: it was of another kind.
    let table = "train.schedule={ kind = 'inverse_sqrt', learning_rate = 1, warmup = 7 }";
    assert_eq!(schedule(&["cosine.toml"], &[table, "train.schedule.kind=noam"]), ScheduleConfig::default());
    let keys = [table, "train.schedule.kind=constant", "train.schedule.learning_rate=2"];
    assert_eq!(schedule(&[], &keys), ScheduleConfig::Constant { learning_rate: 2.0, warmup: 0 });
    assert_eq!(
        schedule(&[], &["train.schedule.kind=linear", "train.schedule.end=1", "train.schedule.kind=noam"]),
        ScheduleConfig::default()
    );
    let inverse = ScheduleConfig::InverseSqrt { learning_rate: 1.0, warmup: 7, initial: 0.0 };
    assert_eq!(schedule(&["cosine.toml"], &["train.schedule.kind=noam", table]), inverse);
    assert_eq!(schedule(&["cosine.toml"], &["train.schedule.end=1", "train.keep=3", table]), inverse);
    let inner = ["train={ schedule = { kind = 'constant', learning_rate = 1 } }", "train.schedule.kind=noam"];
    assert_eq!(schedule(&["cosine.toml"], &inner), ScheduleConfig::default());
    // A table without a kind has keys of the one that is set later.
    let constant = ["train.schedule={ learning_rate = 1 }", "train.schedule.kind=constant"];
    assert_eq!(schedule(&["noam.toml"], &constant), ScheduleConfig::Constant { learning_rate: 1.0, warmup: 0 });
    let total = schedule(&["cosine.toml"], &["train.max_updates=5000"]);
    assert!(matches!(total, ScheduleConfig::Cosine(Decay { total: 5000, .. })));
}

/// Conflicting keys may be stated in any order.
#[test]
fn the_order_of_sets_does_not_decide_what_goes_together() {
    let folder = Folder::new(&[("a.toml", "[tokenizer]\nvocab_size = 400\n")]);
    let mut sets = ["tokenizer.vocab_size=500", "tokenizer.lowercase=true", "tokenizer.path=/a.json"];
    for _ in 0..3 {
        sets.rotate_left(1);
        let problems = folder.problems(&["a.toml"], &sets);
        assert_eq!(problems.len(), 2, "{problems:#?}");
        for (key, set) in [("vocab_size", "vocab_size=500"), ("lowercase", "lowercase=true")] {
            let what = format!("`tokenizer.{key}` is about learning a tokenizer, but `tokenizer.path` names one");
            assert_mentions(&problems.concat(), &[&what, &format!("--> --set tokenizer.{set}")]);
        }
    }
    // A file below is covered.
    let config = folder.load(&["a.toml"], &["tokenizer.path=/a.json"]).unwrap();
    assert!(config.tokenizer.path.is_some());
}

#[test]
fn sets_take_toml_or_bare_text() {
    let sets = [
        "runtime.device=cuda",
        "model.tie = \"decoder\"",
        "data.root=2024",
        "train.optimizer.betas=[0.8, 0.9]",
        "data.valid={source='v.a', target='v=b'}",
        "train.seed=0x10",
        "tokenizer.lowercase=true",
        "model.preset=transformer-tiny",
    ];
    let config = loaded("", &sets);
    assert_eq!((config.runtime.device.as_str(), config.model.tie, config.model.d_model), ("cuda", Tie::Decoder, 128));
    let OptimizerConfig::Adam { betas, .. } = config.train.optimizer;
    assert_eq!((betas, config.train.seed, config.tokenizer.lowercase), ([0.8, 0.9], 16, true));
    let root = std::env::current_dir().unwrap().join("2024");
    assert_eq!(config.data.valid, Some(CorpusLocation::files(root.join("v.a"), root.join("v=b")).into()));
    assert_eq!(config.data.root, root);
    let folder = Folder::new(&[("a.toml", "")]);
    let text = folder.problems(&["a.toml"], &["model.dropout=lots", "model..heads=3", "=3"]).join("\n");
    assert_mentions(
        &text,
        &["--set model.dropout=lots", "found the string \"lots\"", "--set model..heads=3", "--set =3"],
    );
}

#[test]
fn a_long_set_is_shown_by_its_beginning() {
    let symbols: String = (0..1900).map(|number| format!("\"<é{number}>\", ")).collect();
    let set = format!("tokenizer.symbols=[{symbols}\"\"]");
    let folder = Folder::new(&[("a.toml", "")]);
    let problems = folder.problems(&["a.toml"], &[&set, &"é".repeat(1000)]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    let beginning: String = set.chars().take(80).collect();
    assert_mentions(&problems[0], &["tokenizer.symbols[1900]"]);
    assert!(problems[0].ends_with(&format!("--> --set {beginning}…")), "{}", problems[0]);
    let beginning = "é".repeat(80);
    assert_mentions(&problems[1], &[&format!("`{beginning}…` has no `=`"), &format!("--> --set {beginning}…\n")]);
    assert!(problems.iter().all(|problem| problem.chars().count() < 400), "{problems:#?}");
}

#[test]
fn paths_start_at_the_file_that_states_them() {
    let base = "[data]\nroot = \"../data/x\"\ntrain = [{ source = \"t.en\", target = \"t.de\" }]\n";
    let child =
        "extends = \"configs/base.toml\"\n[data]\ntest = { source = \"sub/../e.en\", target = \"/abs/./e.de\" }\n";
    let rootless = "[data]\nvalid = { source = \"v.en\", target = \"../v.de\" }\n";
    let folder = Folder::new(&[
        ("configs/base.toml", base),
        ("child.toml", child),
        ("configs/rootless.toml", rootless),
        ("user.toml", "extends = \"configs/rootless.toml\"\n"),
    ]);
    let data = folder.load(&["child.toml"], &[]).unwrap().data;
    assert_eq!(data.root, folder.path("data/x"));
    assert_eq!(data.train[0].location.sides()[0], folder.path("data/x/t.en"));
    let test = CorpusLocation::files(folder.path("data/x/e.en"), "/abs/e.de");
    assert_eq!(data.test, Some(test.into()));
    let working = std::env::current_dir().unwrap();
    let data = folder.load(&["child.toml"], &["data.root=./y/../z"]).unwrap().data;
    let [source, _] = data.train[0].location.sides();
    assert_eq!((data.root, source), (working.join("z"), working.join("z/t.en")));
    // No root: names are relative to the file that states them, not to the one that extends it.
    let data = folder.load(&["user.toml"], &[]).unwrap().data;
    let valid = CorpusLocation::files(folder.path("configs/v.en"), folder.path("v.de"));
    assert_eq!((data.root, data.valid), (folder.0.path().to_path_buf(), Some(valid.into())));
}

#[cfg(unix)]
#[test]
fn leaving_a_symbolic_link_leads_to_its_target_s_parent() {
    let folder = Folder::new(&[("real/deep/a.toml", "[data]\nroot = \"../data\"\n")]);
    std::os::unix::fs::symlink(folder.path("real/deep"), folder.path("link")).unwrap();
    let root = folder.load(&["link/a.toml"], &[]).unwrap().data.root;
    assert_eq!(root, folder.path("real").canonicalize().unwrap().join("data"));
}

#[test]
fn computed_defaults_follow_what_is_stated() {
    let model =
        loaded("[model]\npreset = \"transformer-big\"\nd_model = 512\nnorm = \"pre\"\ndropout = 0.3\n", &[]).model;
    assert_eq!((model.d_ff, model.heads, model.d_k, model.d_v), (4096, 16, 32, 32));
    assert!(model.final_norm);
    assert_eq!((model.embedding_dropout, model.attention_dropout), (0.3, 0.0));
    let stated =
        "[tokenizer]\njoint = false\n[model]\nnorm = \"post\"\nfinal_norm = true\nembedding_dropout = 0\nd_k = 10\n";
    let model = loaded(stated, &[]).model;
    assert_eq!((model.tie, model.final_norm, model.embedding_dropout), (Tie::Decoder, true, 0.0));
    assert_eq!((model.d_k, model.d_v, model.key_width()), (10, 64, 80));
    for preset in Preset::NAMES {
        let model = loaded(&format!("[model]\npreset = \"{preset}\"\n"), &[]).model;
        assert_eq!(model, ModelConfig::from_preset(model.preset.unwrap()), "{preset}");
    }
}

#[test]
fn a_dump_loads_as_the_same_configuration() {
    let odd = "[data]\nroot = \"spa ce/\\\"q\\\"\\\\n\"\nmax_ratio = 1.5\n\
               train = [{ source = \"a\", target = \"b\", weight = 0.1 }, { source = \"c\", target = \"d\" }]\n\
               valid = { source = \"ü\", target = \"f\" }\n[tokenizer]\njoint = false\n[model]\n\
               preset = \"transformer-tiny\"\n\
               norm_eps = 1e-12\n[train]\nseed = 9223372036854775807\nclip_norm = 1e22\n\
               [train.schedule]\nkind = \"linear\"\nlearning_rate = 3.3e-4\n";
    let folder = Folder::new(&[("odd.toml", odd), ("empty.toml", "")]);
    for name in ["odd.toml", "empty.toml"] {
        let config = folder.load(&[name], &[]).unwrap();
        let dump = folder.path("elsewhere.toml");
        fs::write(&dump, to_toml(&config)).unwrap();
        let again = load_resolved(&dump).unwrap();
        assert_eq!(again, config, "{}", to_toml(&config));
        assert_eq!(differences(&again, &config), []);
    }
}

#[test]
fn differences_name_the_keys() {
    let a = loaded("", &["data.root=x"]);
    let b = loaded("[train.schedule]\nkind = \"constant\"\nlearning_rate = 0.5\nwarmup = 4000\n", &["data.root=x"]);
    let triple = |key: &str, a: &str, b: &str| (key.to_owned(), a.to_owned(), b.to_owned());
    let expected = vec![
        triple("train.schedule.factor", "1.0", "not set"),
        triple("train.schedule.kind", "\"noam\"", "\"constant\""),
        triple("train.schedule.learning_rate", "not set", "0.5"),
    ];
    assert_eq!(differences(&a, &b), expected);
    let mut c = a.clone();
    c.data.train.push(CorpusConfig {
        location: CorpusLocation::files("s", "t"),
        tag: None,
        languages: [None, None],
        weight: 2.0,
        weights: None,
    });
    let train = "[{ source = \"s\", target = \"t\", weight = 2.0 }]";
    assert_eq!(differences(&a, &c), [triple("data.train", "[]", train)]);
}

#[test]
fn a_model_that_training_begins_with_gives_what_is_not_stated() {
    let model = "[model]\npreset = \"transformer-tiny\"\nnorm = \"pre\"\ndropout = 0.2\nembedding_dropout = 0.1\n\
        [decode]\nbeam = 7\n[train]\naverage_last = 9\n[data]\ntest = { source = \"a\", target = \"b\" }\n";
    let folder = Folder::new(&[("source.toml", model)]);
    let written = to_toml(&folder.load(&["source.toml"], &[]).unwrap());
    let tune = "[train]\ninit = \"run\"\n[decode]\nlength_penalty = 0.9\n";
    let folder =
        Folder::new(&[("run/config.toml", &written), ("tune.toml", tune), ("run/checkpoints/step-00000004/x", "")]);
    let load = |sets: &[&str]| folder.load(&["tune.toml"], sets).unwrap();
    let (config, run) = (load(&[]), load_resolved(folder.path("run/config.toml")).unwrap());
    assert_eq!(config.model, run.model);
    assert_eq!((config.decode.beam, config.decode.length_penalty), (7, 0.9));
    // Nothing else of that run is taken over.
    assert_eq!((config.train.average_last, config.data.test), (10, None));
    let checkpoint = folder.path("run/checkpoints/step-00000004");
    assert_eq!(load(&[&format!("train.init={}", checkpoint.display())]).model, run.model);
    // Stated values stay, and others follow from them.
    let model = load(&["model.dropout=0.3"]).model;
    assert_eq!((model.dropout, model.embedding_dropout, model.d_model), (0.3, 0.3, 128));
    let model = load(&["model.preset=transformer-small"]).model;
    assert_eq!((model.d_model, model.d_ff, model.norm), (512, 1024, NormPlacement::Pre));
    // A model that is not there, or is damaged, gives nothing here: opening it is what fails.
    assert_eq!(load(&["train.init=nowhere"]).model, ModelConfig::default());
    fs::write(folder.path("run/config.toml"), "[model]\nd_model = \"wide\"\n").unwrap();
    assert_eq!(load(&[]).model, ModelConfig::default());
}

/// Sweeps over weights need not state the corpora again.
#[test]
fn a_key_of_one_corpus_can_be_set() {
    let text =
        "[data]\nroot = \"data\"\ntrain = [{ source = \"a\", target = \"b\" }, { source = \"c\", target = \"d\" }]\n";
    let folder = Folder::new(&[("a.toml", text)]);
    let sets = ["data.train[1].weight=2.5", "data.train.0.weight=3", "data.train.0.tag=<x>", "tokenizer.tags=['<x>']"];
    let train = folder.load(&["a.toml"], &sets).unwrap().data.train;
    assert_eq!([train[0].weight, train[1].weight], [3.0, 2.5]);
    assert_eq!([&train[0].tag, &train[1].tag], [&Some("<x>".to_owned()), &None]);
    assert_eq!(train[1].location.sides()[0], folder.path("data/c"));
    // A text in quotes is not needed, a path is as in other overrides, and a set list comes before its keys.
    let sets = ["data.train=[{ source = '/x', target = '/y' }]", "data.train.0.source=/z"];
    let train = folder.load(&["a.toml"], &sets).unwrap().data.train;
    assert_eq!((train.len(), train[0].location.sides()[0].as_path()), (1, Path::new("/z")));
    for (set, says) in [
        ("data.train.2.weight=1", ["there is no `data.train[2]`", "has 2, from number 0"]),
        ("data.monitor.0.name=x", ["there is no `data.monitor[0]`", "has 0, from number 0"]),
        ("data.train.1.wieght=1", ["unknown key `wieght` in [data.train[1]]", "did you mean `weight`?"]),
        ("data.train.1.weight=0", ["`data.train[1].weight`", "above 0"]),
        ("model.0.heads=1", ["[model.0]", "--set model.0.heads=1"]),
        ("data.train[0]={ source = 'a', target = 'b' }", ["number 0", "name one of its keys, data.train.0.weight=2"]),
    ] {
        assert_mentions(&folder.problems(&["a.toml"], &[set])[0], &says);
    }
}
