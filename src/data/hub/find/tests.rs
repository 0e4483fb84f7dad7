use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn wanted<'a>(config: Option<&'a str>, split: &'a str) -> Wanted<'a> {
    Wanted { config, split, languages: ["en", "de"] }
}

fn found(files: &[&str], config: Option<&str>, split: &str) -> Result<Vec<String>, Missing> {
    by_name(&names(files), wanted(config, split)).map(|found| found.files)
}

#[test]
fn the_names_that_data_sets_have() {
    let wmt = [
        "README.md",
        "cs-en/test-00000-of-00001.parquet",
        "cs-en/train-00000-of-00001.parquet",
        "de-en/test-00000-of-00001.parquet",
        "de-en/train-00001-of-00003.parquet",
        "de-en/train-00000-of-00003.parquet",
        "de-en/train-00002-of-00003.parquet",
        "de-en/validation-00000-of-00001.parquet",
    ];
    let shards = names(&[
        "de-en/train-00000-of-00003.parquet",
        "de-en/train-00001-of-00003.parquet",
        "de-en/train-00002-of-00003.parquet",
    ]);
    assert_eq!(found(&wmt, Some("de-en"), "train"), Ok(shards));
    assert_eq!(found(&wmt, Some("de-en"), "valid"), Ok(names(&["de-en/validation-00000-of-00001.parquet"])));
    assert_eq!(found(&wmt, None, "train"), Err(Missing::Config(names(&["cs-en", "de-en"]))));
    assert_eq!(found(&wmt, Some("en-de"), "train"), Err(Missing::Config(names(&["cs-en", "de-en"]))));
    assert_eq!(found(&wmt, Some("de-en"), "tset"), Err(Missing::Split(names(&["test", "train", "validation"]))));

    let multi30k = ["README.md", "train.jsonl", "val.jsonl", "test.jsonl"];
    for (split, file) in [("train", "train.jsonl"), ("validation", "val.jsonl"), ("test", "test.jsonl")] {
        assert_eq!(found(&multi30k, None, split), Ok(names(&[file])));
    }
    assert_eq!(found(&multi30k, None, "dev2"), Err(Missing::Split(names(&["test", "train", "val"]))));

    let converted = [
        "iwslt2017-de-en/test/0000.parquet",
        "iwslt2017-de-en/train/0000.parquet",
        "iwslt2017-de-en/train/0001.parquet",
        "iwslt2017-en-de/train/0000.parquet",
        "big/partial-train/0000.parquet",
    ];
    assert_eq!(
        found(&converted, Some("iwslt2017-de-en"), "train"),
        Ok(names(&["iwslt2017-de-en/train/0000.parquet", "iwslt2017-de-en/train/0001.parquet"]))
    );
    assert_eq!(found(&converted, Some("big"), "train"), Ok(names(&["big/partial-train/0000.parquet"])));

    assert_eq!(
        found(&["default/train/0000.parquet", "default/test/0000.parquet"], None, "test"),
        Ok(names(&["default/test/0000.parquet"]))
    );
    assert_eq!(
        found(&["data/train-00000-of-00001-0a1b.parquet", "data/test.parquet"], None, "train"),
        Ok(names(&["data/train-00000-of-00001-0a1b.parquet"]))
    );
    assert_eq!(
        found(&["train.en", "train.de", "train.fr", "valid.en"], None, "train"),
        Ok(names(&["train.en", "train.de"]))
    );
    assert_eq!(found(&["x/dev.en.gz", "x/dev.de"], Some("x"), "validation"), Ok(names(&["x/dev.en.gz", "x/dev.de"])));
    assert_eq!(found(&["de-en-train.tsv", "fr-en-train.tsv"], Some("de-en"), "train"), Ok(names(&["de-en-train.tsv"])));
    assert_eq!(
        found(&["opus.de-en-train.de", "opus.de-en-train.en"], None, "train"),
        Ok(names(&["opus.de-en-train.en", "opus.de-en-train.de"]))
    );
    // Several pairs of files, and one without its other side.
    let several =
        ["b.train.de", "a.train.en", "c-10.train.en", "b.train.en", "c-9.train.de", "c-10.train.de", "c-9.train.en"];
    assert_eq!(
        found(&several, None, "train"),
        Ok(names(&["b.train.en", "b.train.de", "c-9.train.en", "c-9.train.de", "c-10.train.en", "c-10.train.de"]))
    );
    assert_eq!(found(&["a.train.en", "b.train.de"], None, "train").map_err(drop), Err(()));
    assert_eq!(found(&["v-01-train-00000-of-00001.csv"], None, "x"), Err(Missing::Split(names(&["v-01-train"]))));
    assert_eq!(found(&["train.zip", "valid.en"], None, "train"), Err(Missing::Form(names(&["train.zip"]))));
    assert_eq!(found(&[], None, "train"), Err(Missing::Split(Vec::new())));
    // A better format, and the other split's name within the name.
    assert_eq!(
        found(&["train.csv", "train.parquet", "train_extra.parquet"], None, "train"),
        Ok(names(&["train.parquet"]))
    );
}

#[test]
fn the_header_comes_first() {
    let files = names(&["raw/a.parquet", "raw/b.parquet", "train.parquet", "x/y/test.csv"]);
    let config = |name: &str, is_default, split: &str, pattern: &str| CardConfig {
        name: name.into(),
        is_default,
        folder: String::new(),
        splits: vec![(split.into(), vec![pattern.into()])],
    };
    let configs = [config("one", false, "train", "raw/*"), config("two", true, "test", "**/*.csv")];
    let card = |config, split| by_card(&configs, &files, wanted(config, split)).map(|found| found.files);
    assert_eq!(card(Some("one"), "train"), Ok(names(&["raw/a.parquet", "raw/b.parquet"])));
    assert_eq!(card(None, "test"), Ok(names(&["x/y/test.csv"])));
    assert_eq!(card(Some("one"), "test"), Err(Missing::Split(names(&["train"]))));
    assert_eq!(card(Some("three"), "test"), Err(Missing::Config(names(&["one", "two"]))));
    let gone = [config("one", false, "train", "gone/*.parquet")];
    assert_eq!(by_card(&gone, &files, wanted(None, "train")), Err(Missing::Files(names(&["gone/*.parquet"]))));
    // Only a folder: by name in it.
    let folder = [CardConfig { name: "x".into(), folder: "x/y".into(), ..CardConfig::default() }];
    assert_eq!(by_card(&folder, &files, wanted(None, "test")).unwrap().files, names(&["x/y/test.csv"]));
}

#[test]
fn a_pattern_that_would_take_memory_or_time_without_bound_is_refused() {
    let files: Vec<String> = (0..1000).map(|index| format!("a{{{index}.csv")).collect();
    let matched = |patterns: &[String]| matching(patterns, &files).map(|found| found.len());
    for bad in [
        "{a,".repeat(240),
        "{a,".repeat(limits::PATTERN_DEPTH + 1),
        "*".repeat(limits::PATTERN_BYTES + 1),
        "[".to_owned(),
        "{a".to_owned(),
        "}".to_owned() + "{a}*",
    ] {
        assert_eq!(matched(std::slice::from_ref(&bad)), Err(Missing::Pattern(bad)));
    }
    assert_eq!(matched(&vec!["*.tsv".to_owned(); limits::PATTERNS]), Ok(0));
    assert_eq!(matched(&vec!["*.tsv".to_owned(); limits::PATTERNS + 1]), Err(Missing::Pattern("*.tsv".into())));
    // Plain names are as many as there are files, and may be no patterns at all.
    let names: Vec<String> = files.iter().cloned().chain((0..100_000).map(|index| index.to_string())).collect();
    assert_eq!(matched(&names), Ok(files.len()));
    assert_eq!(matched(&["a[{]{1,2}{3,4}.csv".to_owned()]), Ok(4));
}

#[test]
fn shards_are_in_order_and_none_is_missing() {
    let mut files = names(&["a-10.parquet", "a-9.parquet", "a-1.parquet", "b.parquet"]);
    files.sort_by(|a, b| in_order(a, b));
    assert_eq!(files, names(&["a-1.parquet", "a-9.parquet", "a-10.parquet", "b.parquet"]));
    let shard = |index: usize| format!("d/train-{index:05}-of-00003.parquet");
    assert_eq!(missing_shard(&[shard(0), shard(1), shard(2)]), None);
    assert_eq!(missing_shard(&[shard(0), shard(2)]), Some(shard(1)));
    assert_eq!(missing_shard(&names(&["train.parquet"])), None);
    assert_eq!(missing_shard(&names(&["best-of-3.parquet"])), None);
    // Each with its own checksum.
    let hashed = names(&["data/train-00000-of-00002-0a1b.parquet", "data/train-00001-of-00002-9f8e.parquet"]);
    assert_eq!(missing_shard(&hashed), None);
    let missing = |index: usize| Some(format!("data/train-0000{index}-of-00002*.parquet"));
    assert_eq!(missing_shard(&hashed[..1]), missing(1));
    assert_eq!(missing_shard(&hashed[1..]), missing(0));
    // Shards of another split or count do not belong to these.
    let other = names(&["data/test-00000-of-00002-0a1b.parquet", "data/train-00000-of-00003-0a1b.parquet"]);
    assert_eq!(missing_shard(&[&other[..], &hashed[1..]].concat()), missing(0));
}
