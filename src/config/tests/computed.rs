//! Computed values when the configuration of a run is changed.

use super::super::*;
use super::{Folder, loaded};
use crate::data::CorpusLocation;
use crate::model::{ModelConfig, Tie};

/// The run's configuration, changed.
fn changed(run: &Config, sets: &[&str]) -> Config {
    Folder::new(&[("config.toml", &to_toml(run))]).load(&["config.toml"], sets).unwrap()
}

/// Every change has the same effect as on the user's own file.
#[test]
fn what_was_not_stated_follows_the_keys_that_it_depends_on() {
    let own = "[tokenizer]\nvocab_size = 500\n[model]\ndropout = 0.3\n";
    let tiny = "[model]\npreset = \"transformer-tiny\"\nnorm = \"pre\"\nd_ff = 300\n";
    for text in [own, tiny, ""] {
        let run = loaded(text, &["data.root=/"]);
        assert_eq!(changed(&run, &[]), run);
        for sets in [
            &["model.norm=pre"][..],
            &["model.norm=post"],
            &["model.heads=2"],
            &["model.d_model=256"],
            &["model.d_model=256", "model.heads=2"],
            &["model.preset=transformer-small"],
            &["model.preset=transformer-base", "model.encoder_layers=2"],
            &["model.dropout=0.2"],
            &["tokenizer.joint=false"],
            &["tokenizer.path=/a.json", "tokenizer.target_path=/b.json"],
        ] {
            let with = [&["data.root=/"], sets].concat();
            let (there, here) = (loaded(text, &with), changed(&run, sets));
            assert_eq!(differences(&there, &here), [], "{sets:?} with {text:?}");
        }
    }
    let model = changed(&loaded("", &[]), &["model.norm=pre", "model.heads=16", "model.dropout=0.2"]).model;
    assert!(model.final_norm);
    assert_eq!((model.d_k, model.d_v, model.embedding_dropout), (32, 32, 0.2));
}

#[test]
fn what_is_stated_stays() {
    // With values other than the computed ones.
    let stated =
        "[tokenizer]\njoint = true\n[model]\nfinal_norm = true\nd_k = 32\ntie = \"none\"\nembedding_dropout = 0\n";
    let model = changed(
        &loaded(stated, &[]),
        &["model.norm=pre", "model.heads=16", "model.dropout=0.2", "tokenizer.joint=false"],
    )
    .model;
    assert_eq!((model.final_norm, model.d_k, model.d_v, model.tie), (true, 32, 32, Tie::None));
    assert_eq!((model.dropout, model.embedding_dropout), (0.2, 0.0));
    // Above the file, also with the same value.
    let run = loaded("", &[]);
    let sets = ["model.final_norm=false", "model.norm=pre", "model.embedding_dropout=0.1", "model.dropout=0.2"];
    let model = changed(&run, &sets).model;
    assert_eq!((model.final_norm, model.embedding_dropout), (false, 0.1));
    let model = changed(&run, &["model.preset=transformer-tiny", "model.heads=8"]).model;
    assert_eq!((model.d_model, model.heads, model.d_k), (128, 8, 16));
    // In a user's own file.
    let folder = Folder::new(&[("a.toml", "[model]\nnorm = \"post\"\nfinal_norm = false\n")]);
    assert!(!folder.load(&["a.toml"], &["model.norm=pre"]).unwrap().model.final_norm);
}

#[test]
fn files_above_change_it_too_and_files_below_do_not() {
    let run = loaded("[model]\ndropout = 0.3\n", &[]);
    let folder = Folder::new(&[
        ("run/config.toml", &to_toml(&run)),
        ("over.toml", "[model]\nnorm = \"pre\"\n"),
        ("child.toml", "extends = \"run/config.toml\"\n[model]\ndropout = 0.2\n"),
        ("under.toml", "[model]\npreset = \"transformer-tiny\"\nd_ff = 7\nnorm = \"pre\"\nfinal_norm = true\n"),
    ]);
    let model = |files: &[&str], sets: &[&str]| folder.load(files, sets).unwrap().model;
    assert!(model(&["run/config.toml", "over.toml"], &[]).final_norm);
    let child = model(&["child.toml"], &[]);
    assert_eq!((child.dropout, child.embedding_dropout), (0.2, 0.2));
    let over = model(&["under.toml", "run/config.toml"], &[]);
    assert_eq!(ModelConfig { preset: None, ..over }, run.model);
    // Nor do values of files below come back.
    let over = model(&["under.toml", "run/config.toml"], &["model.preset=transformer-small"]);
    assert_eq!((over.d_model, over.d_ff, over.final_norm), (512, 1024, false));
    // Of two runs, the one named last counts.
    let other = to_toml(&loaded("[model]\nnorm = \"pre\"\n", &[]));
    let folder = Folder::new(&[("a.toml", &to_toml(&run)), ("b.toml", &other)]);
    assert!(folder.load(&["a.toml", "b.toml"], &[]).unwrap().model.final_norm);
    assert!(!folder.load(&["a.toml", "b.toml"], &["model.norm=post"]).unwrap().model.final_norm);
}

/// A run that fine-tunes a model keeps what its own configuration states, whatever has become of that model's.
#[test]
fn a_model_that_training_began_with_changes_nothing_later() {
    let folder =
        Folder::new(&[("base/config.toml", &to_toml(&loaded("", &[]))), ("tune.toml", "[train]\ninit = \"base\"\n")]);
    let run = folder.load(&["tune.toml"], &[]).unwrap();
    std::fs::write(folder.path("run.toml"), to_toml(&run)).unwrap();
    std::fs::write(folder.path("base/config.toml"), to_toml(&loaded("[model]\nfinal_norm = true\n", &[]))).unwrap();
    assert_eq!(load_resolved(folder.path("run.toml")).unwrap(), run);
    let model = folder.load(&["run.toml"], &["model.dropout=0.4"]).unwrap().model;
    assert_eq!((model.final_norm, model.embedding_dropout), (false, 0.4));
}

/// A run goes on where its text has been moved.
#[test]
fn text_follows_its_root() {
    let text = "[data]\nroot = \"/old\"\ntrain = [{ source = \"a.en\", target = \"b/../a.de\" }, { tsv = \"a.tsv\", \
                source = 1, target = 2 }]\nvalid = { source = \"/else/v.en\", target = \"v.de\" }\n\
                test = { hub = \"a/b\", split = \"c\", source = \"en\", target = \"de\" }\n";
    let run = loaded(text, &[]);
    assert_eq!(changed(&run, &["data.root=/old"]), run);
    assert_eq!(changed(&run, &["data.root=/new"]).data, loaded(text, &["data.root=/new"]).data);
    // A path that is stated beside the new root does not follow it.
    let sets = ["data.root=/new", "data.valid.target=/old/w.de", "data.train=[{ source = '/old/x', target = 'y' }]"];
    let data = changed(&run, &sets).data;
    assert_eq!(data.valid, Some(CorpusLocation::files("/else/v.en", "/old/w.de").into()));
    assert_eq!(data.train[0].location, CorpusLocation::files("/old/x", "/new/y"));
    // So it is for a user's own file.
    let folder =
        Folder::new(&[("a.toml", "[data]\nroot = \"/old\"\nvalid = { source = \"/old/a\", target = \"b\" }\n")]);
    let valid = folder.load(&["a.toml"], &["data.root=/new"]).unwrap().data.valid;
    assert_eq!(valid, Some(CorpusLocation::files("/old/a", "/new/b").into()));
}
