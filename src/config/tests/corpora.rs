//! Corpora: files, columns of a file, data sets of the hub.

use super::super::*;
use super::{Folder, assert_mentions, loaded, problem};
use crate::data::hub::{Column, HubSplit};
use crate::data::{CorpusConfig, CorpusLocation, SetConfig};

/// The location of the validation set as a file would state it.
fn valid(config: &Config) -> String {
    let toml = to_toml(config);
    let rest = toml.split_once("[data.valid]\n").map_or("", |(_, rest)| rest);
    rest.lines().take_while(|line| !line.is_empty() && !line.starts_with('[')).collect::<Vec<_>>().join(", ")
}

#[test]
fn an_empty_corpus_is_not_passed_over() {
    let text = "[data]\nvalid = { source = \"a\", target = \"b\" }\ntest = { source = \"c\", target = \"d\" }\n";
    let folder = Folder::new(&[("a.toml", text), ("b.toml", "[data.test]\n"), ("none.toml", "")]);
    let problems = folder.problems(&["a.toml", "b.toml"], &["data.valid={}"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert_mentions(&problems[0], &["`data.test` is empty", "--> b.toml:1:1", "give it `source` and `target`"]);
    let says = ["`data.valid` is empty", "--> --set data.valid={}", "or leave it out; `valid.every = 0`"];
    assert_mentions(&problems[1], &says);
    // Without a corpus below, its keys are missing unless the layer above states them.
    let problems = folder.problems(&["none.toml"], &["data.valid={}"]).concat();
    assert_mentions(&problems, &["`data.valid.source` is missing", "`data.valid.target` is missing"]);
    folder.load(&["b.toml"], &["data.test.source=c", "data.test.target=d"]).unwrap();
}

#[test]
fn a_data_set_of_the_hub_names_columns_not_files() {
    let hub = "hub = \"wmt/wmt14\", config = \"de-en\", source = \"en\", target = \"de\"";
    let text = format!(
        "[data]\nroot = \"x\"\ntrain = [{{ {hub}, split = \"train\", weight = 2.0 }}, {{ source = \"a\", target = \
         \"b\" }}]\n\
         valid = {{ {hub}, split = \"validation\", revision = \"v1.0\" }}\n"
    );
    let config = loaded(&text, &[]);
    let split = |split: &str, revision: Option<&str>| HubSplit {
        name: "wmt/wmt14".into(),
        config: Some("de-en".into()),
        split: split.into(),
        revision: revision.map(str::to_owned),
        source: "en".into(),
        target: "de".into(),
    };
    let first = CorpusConfig {
        location: CorpusLocation::Hub(split("train", None)),
        tag: None,
        languages: [None, None],
        weight: 2.0,
        weights: None,
    };
    assert_eq!(config.data.train[0], first);
    assert!(config.data.train[1].location.sides()[0].ends_with("x/a"));
    assert_eq!(config.data.valid, Some(CorpusLocation::Hub(split("validation", Some("v1.0"))).into()));
    // And comes back from a run's config.toml.
    let folder = Folder::new(&[("resolved.toml", &to_toml(&config))]);
    assert_eq!(folder.load(&["resolved.toml"], &[]).unwrap(), config);
    let shown: Vec<String> = config.data.train.iter().map(|corpus| corpus.location.to_string()).collect();
    assert_eq!(shown[0], "hub:wmt/wmt14 de-en train");
}

#[test]
fn a_file_of_columns_is_named_with_their_numbers() {
    let text = "[data]\nroot = \"x\"\ntrain = [{ tsv = \"a.tsv.gz\", source = 2, target = 1, weight = 0.5, weights = \
                \"w.gz\" }]\n\
                valid = { tsv = \"v.tsv\", source = 1, target = 3 }\n";
    let config = loaded(text, &[]);
    let CorpusLocation::Tsv { file, columns } = &config.data.train[0].location else {
        panic!("{:?}", config.data.train)
    };
    assert!(file.is_absolute() && file.ends_with("x/a.tsv.gz"));
    assert_eq!((columns, config.data.train[0].weight), (&[2, 1], 0.5));
    let weights = config.data.train[0].weights.as_ref().unwrap();
    assert!(weights.is_absolute() && weights.ends_with("x/w.gz"), "{weights:?}");
    let folder = Folder::new(&[("resolved.toml", &to_toml(&config))]);
    assert_eq!(folder.load(&["resolved.toml"], &[]).unwrap(), config);
}

#[test]
fn a_tag_is_one_of_the_vocabulary_s() {
    let text = "[data]\ntrain = [{ source = \"a\", target = \"b\", tag = \"<2de> <f>\" }]\n\
                valid = { source = \"a\", target = \"b\", tag = \"<2de>\" }\n";
    let all = format!("{text}[tokenizer]\ntags = [\"<2de>\"]\nsymbols = [\"<f>\"]\n");
    let config = loaded(&all, &[]);
    assert_eq!(config.data.train[0].tag.as_deref(), Some("<2de> <f>"));
    assert_eq!(config.data.valid.as_ref().unwrap().tag.as_deref(), Some("<2de>"));
    let folder = Folder::new(&[("resolved.toml", &to_toml(&config))]);
    assert_eq!(folder.load(&["resolved.toml"], &[]).unwrap(), config);
    // Another corpus does not get the tag.
    let other = folder.load(&["resolved.toml"], &["data.valid={ source = \"c\", target = \"d\" }"]).unwrap();
    assert_eq!(other.data.valid.unwrap().tag, None);
    let same = folder.load(&["resolved.toml"], &["data.valid.source=c"]).unwrap();
    assert_eq!(same.data.valid.unwrap().tag.as_deref(), Some("<2de>"));

    let folder = Folder::new(&[("a.toml", &format!("{text}[tokenizer]\ntags = [\"<2fr>\"]\n"))]);
    let problems = folder.problems(&["a.toml"], &[]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    let says = [
        "`data.train[0].tag`: <2de> is not one of `tokenizer.tags`",
        "--> a.toml:2:",
        "tags = [\"<2fr>\", \"<2de>\", \"<f>\"]",
    ];
    assert_mentions(&problems[0], &says);
    assert_mentions(&problems[1], &["`data.valid.tag`: <2de>", "--> a.toml:3:"]);
    // The contents of a given vocabulary are not known yet.
    loaded(text, &["tokenizer.path=spm.model"]);
}

#[test]
fn another_corpus_replaces_the_one_below() {
    let below =
        "[data]\nvalid = { hub = \"a/b\", config = \"c\", split = \"test\", source = \"en\", target = \"de\" }\n";
    let over = |layer: &str, sets: &[&str]| {
        let folder = Folder::new(&[("a.toml", below), ("b.toml", layer)]);
        valid(&folder.load(&["a.toml", "b.toml"], sets).unwrap())
    };
    let files = over("[data]\nvalid = { source = \"/v.en\", target = \"/v.de\" }\n", &[]);
    assert_eq!(files, "source = \"/v.en\", target = \"/v.de\"");
    let other = "[data]\nvalid = { hub = \"x/y\", split = \"dev\", source = \"s\", target = \"t\" }\n";
    assert_eq!(over(other, &[]), "hub = \"x/y\", split = \"dev\", source = \"s\", target = \"t\"");
    let columns = over("[data]\nvalid = { tsv = \"/v.tsv\", source = 1, target = 2 }\n", &[]);
    assert_eq!(columns, "tsv = \"/v.tsv\", source = 1, target = 2");
    // A single key changes that key alone.
    let text = over("", &["data.valid.split=2016", "data.valid.revision=v2"]);
    assert_eq!(
        text,
        "hub = \"a/b\", config = \"c\", split = \"2016\", revision = \"v2\", source = \"en\", target = \"de\""
    );
    let text = over("[data.valid]\nsource = \"fr\"\n", &[]);
    assert!(text.contains("hub = \"a/b\"") && text.contains("source = \"fr\""), "{text}");
}

#[test]
fn keys_of_a_data_set_go_together() {
    let text = "[data]\ntrain = [\n  { hub = \"wmt/../x\", source = \"en\", target = \"de\" },\n  { source = \"a\", \
                target = \"b\", split = \"train\" },\n]\nvalid = { hub = \"a/b\", split = \"\", target = \"de\" }\n\
                test = { hub = \"a/b\", split = \"test\", revison = \"x\", revision = \"../..\", source = \"en\", \
                target = \"de\" }\n";
    let problems = Folder::new(&[("a.toml", text)]).problems(&["a.toml"], &[]);
    for (location, parts) in [
        ("a.toml:3:11", &["`data.train[0].hub` cannot be \"wmt/../x\"", "ORG/NAME"][..]),
        ("a.toml:3:3", &["`data.train[0].split` is missing"]),
        ("a.toml:4:41", &["`data.train[1].split` is about a data set", "add hub ="]),
        ("a.toml:6:32", &["`data.valid.split` must be text in quotes, not empty"]),
        ("a.toml:6:1", &["`data.valid.source` is missing"]),
        ("a.toml:7:39", &["unknown key `revison` in [data.test]", "did you mean `revision`?"]),
        ("a.toml:7:65", &["`data.test.revision` cannot be \"../..\"", "a branch, a tag or a commit"]),
    ] {
        let found = problems.iter().find(|problem| problem.lines().any(|line| line == format!("  --> {location}")));
        assert_mentions(found.unwrap_or_else(|| panic!("none at {location} in {problems:#?}")), parts);
    }
    assert_eq!(problems.len(), 7, "{problems:#?}");
}

/// As addresses have it, and as other programs do.
#[test]
fn a_data_set_with_another_name_is_no_file() {
    let folder = Folder::new(&[("a.toml", "")]);
    for (set, says) in [
        (
            "data.train=[{ hub = 'hf:wmt/wmt14', split = 'a', source = 'b', target = 'c' }]",
            &["write hub = \"wmt/wmt14\""][..],
        ),
        (
            "data.train=[{ hub = 'datasets/wmt/wmt14', split = 'a', source = 'b', target = 'c' }]",
            &["write hub = \"wmt/wmt14\""],
        ),
        (
            "data.valid={ hub = 'https://huggingface.co/datasets/wmt/wmt14/tree/v1', split = 'a', source = 'b', target \
             = 'c' }",
            &["`data.valid.hub` cannot be", "write hub = \"wmt/wmt14\", revision = \"v1\""],
        ),
        (
            "data.train=[{ hub = 'hf://datasets/a/b@x', split = 'a', source = 'b', target = 'c' }]",
            &["revision = \"x\""],
        ),
        ("data.train=['wmt/wmt14']", &["`data.train[0]` must be a table", "hub = \"wmt/wmt14\", split = "]),
        ("data.train=wmt/wmt14", &["a data set of the hub is { hub = \"wmt/wmt14\""]),
        ("data.valid=hf://datasets/wmt/wmt14", &["a data set of the hub is { hub = \"wmt/wmt14\""]),
        (
            "data.valid={ tsv = 'https://huggingface.co/datasets/a/b/blob/main/x.tsv', source = 1, target = 2 }",
            &["`data.valid.tsv` is a repository of the hub, and a file is expected", "{ hub = \"a/b\""],
        ),
        ("data.valid={ source = 'hf:a/b', target = 'c' }", &["`data.valid.source` is a repository of the hub"]),
    ] {
        assert_mentions(&folder.problems(&["a.toml"], &[set]).concat(), says);
    }
    // A file may be called so.
    loaded("[data]\nvalid = { source = \"wmt/wmt14\", target = \"datasets/a/b\" }\n", &[]);
}

/// Each problem of each entry, whatever the others lack.
#[test]
fn all_corpora_are_looked_at() {
    let folder = Folder::new(&[("a.toml", "")]);
    let set =
        "data.train=[{ source = 'a' }, { source = 5, target = 'x' }, { hub = 'a/b', source = 'a', target = 'b' }]";
    let problems = folder.problems(&["a.toml"], &[set]);
    assert_eq!(problems.len(), 3, "{problems:#?}");
    let all = problems.concat();
    assert_mentions(&all, &["`data.train[0].target` is missing", "`data.train[1].source` is the number of a column"]);
    // An entry of a list cannot be set alone.
    assert_mentions(&all, &["`data.train[2].split` is missing", "give a path in quotes: source = \"5\""]);
}

#[test]
fn columns_go_with_a_file_of_columns() {
    let text = "[data]\ntrain = [\n  { tsv = \"a.tsv\", source = \"en\", target = 2 },\n  { source = 1, target = \"b\" \
                },\n]\n\
                valid = { hub = \"a/b\", split = \"c\", tsv = \"d\", source = 1, target = 2 }\n\
                test = { tsv = 3, source = 0, target = 2 }\n";
    let problems = Folder::new(&[("a.toml", text)]).problems(&["a.toml"], &[]);
    for (location, parts) in [
        ("a.toml:3:29", &["`data.train[0].source` is the number of a column of `tsv`", "\"en\"", "count from 1"][..]),
        ("a.toml:4:14", &["`data.train[1].source` is the number of a column, but no `tsv`", "tsv = "]),
        ("a.toml:6:17", &["both a data set of the hub and a file", "leave one of them out"]),
        ("a.toml:7:16", &["`data.test.tsv` must be a path in quotes"]),
        ("a.toml:7:28", &["`data.test.source` must be the number of a column, from 1", "0"]),
    ] {
        let found = problems.iter().find(|problem| problem.lines().any(|line| line == format!("  --> {location}")));
        assert_mentions(found.unwrap_or_else(|| panic!("none at {location} in {problems:#?}")), parts);
    }
    assert_eq!(problems.len(), 5, "{problems:#?}");
}

#[test]
fn a_side_that_is_no_column_of_its_corpus_is_refused() {
    let text = problem("[data]\nvalid = { tsv = \"a.tsv\", source = 1001, target = 2 }\n");
    assert_mentions(&text, &["a.toml:2:35", "a column, from 1 to 1000, or a path", "1001"]);
    // One that has no line of names.
    let config = loaded("[data]\nvalid = { hub = \"a/b\", split = \"c\", source = 2, target = 1 }\n", &[]);
    let Some(SetConfig { location: CorpusLocation::Hub(split), .. }) = &config.data.valid else { panic!() };
    assert_eq!((&split.source, &split.target), (&Column::Number(2), &Column::Number(1)));
    let folder = Folder::new(&[("resolved.toml", &to_toml(&config))]);
    assert_eq!(folder.load(&["resolved.toml"], &[]).unwrap(), config);
    for (keys, column) in [
        ("tsv = \"a.tsv\", source = 1, target = 1", "1"),
        ("hub = \"a/b\", split = \"c\", source = \"en\", target = \"en\"", "\"en\""),
        ("hub = \"a/b\", split = \"c\", source = 2, target = 2", "2"),
    ] {
        let text = problem(&format!("[data]\ntest = {{ {keys} }}\n"));
        let what = format!("`data.test.source` and `data.test.target` are the same column, {column}");
        assert_mentions(&text, &["a.toml:2:", &what, "the column of each language"]);
    }
    // A model may be trained to copy a file.
    loaded("[data]\nvalid = { source = \"a\", target = \"a\" }\n", &[]);
}

#[test]
fn a_column_may_be_set_by_its_number() {
    let text =
        "[data]\nvalid = { tsv = \"/v.tsv\", source = 1, target = 2 }\ntest = { source = \"a\", target = \"b\" }\n";
    let config = loaded(text, &["data.valid.source=3"]);
    assert_eq!(valid(&config), "tsv = \"/v.tsv\", source = 3, target = 2");
    // A value that is no number is text, and so is a quoted one.
    let config = loaded(text, &["data.test.source=3.en", "data.test.target=\"4\""]);
    let sides = config.data.test.unwrap().location.sides();
    assert!(sides[0].ends_with("3.en") && sides[1].ends_with("4"), "{sides:?}");
    let folder = Folder::new(&[("a.toml", text)]);
    let text = folder.problems(&["a.toml"], &["data.test.source=3"]).concat();
    assert_mentions(
        &text,
        &["no `tsv` names a file", "--> --set data.test.source=3", "--set 'data.test.source=\"3\"'"],
    );
}

#[test]
fn the_form_of_a_corpus_may_be_set_after_its_sides() {
    let files = "[data]\nvalid = { source = \"/v.en\", target = \"/v.de\" }\n";
    let mut sets = ["data.valid.source=2", "data.valid.target=1", "data.valid.tsv=/v.tsv"];
    for _ in 0..3 {
        sets.rotate_left(1);
        assert_eq!(valid(&loaded(files, &sets)), "tsv = \"/v.tsv\", source = 2, target = 1", "{sets:?}");
    }
    // A whole corpus that was set before is replaced.
    let whole = "data.valid={ tsv = '/a.tsv', source = 1, target = 2 }";
    let text = Folder::new(&[("a.toml", files)]).problems(&["a.toml"], &[whole, "data.valid.hub=a/b"]).concat();
    assert_mentions(&text, &["`data.valid.source` is missing", "`data.valid.target` is missing"]);
    assert_eq!(valid(&loaded(files, &["data.valid.tsv=/v.tsv", whole])), "tsv = \"/a.tsv\", source = 1, target = 2");
}
