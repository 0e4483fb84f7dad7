//! The files in `configs/`, and the table of keys against the types.

use crate::data::{CorpusConfig, CorpusLocation, DataConfig, SetConfig};
use crate::model::{ModelConfig, Preset};
use crate::train::{LowRankConfig, ScheduleConfig, TrainConfig};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value as Json, json};

use super::super::document::{Source, parse, parse_value, to_json};
use super::super::{schema, *};
use super::Folder;
use crate::data::hub::HubSplit;
use crate::key::{Key, Kind, Variant};

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")
}

/// Every file in a folder and the folders in it, by its path there without `.toml`.
fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(inner, path)| (format!("{name}/{inner}"), path)));
        } else {
            found.insert(name, path);
        }
    }
    found
}

#[test]
fn every_shipped_configuration_loads() {
    let shipped = files(&configs());
    for path in shipped.values() {
        load_for_training(std::slice::from_ref(path), &[])
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    for name in [
        "reference",
        "quickstart",
        "multi30k-tiny",
        "multi30k-hub",
        "iwslt14-de-en",
        "iwslt17-de-en",
        "wmt14-en-de-big",
        "wmt14-en-fr-base",
    ] {
        assert!(shipped.contains_key(name), "{name}");
    }
}

/// The changes of each row of the paper's Table 3 to the base model, by file name.
const TABLE_3: &[(&str, &[(&str, &str)])] = &[
    ("a-h1", &[("model.d_k", "512"), ("model.d_v", "512"), ("model.heads", "1")]),
    ("a-h16", &[("model.d_k", "32"), ("model.d_v", "32"), ("model.heads", "16")]),
    ("a-h32", &[("model.d_k", "16"), ("model.d_v", "16"), ("model.heads", "32")]),
    ("a-h4", &[("model.d_k", "128"), ("model.d_v", "128"), ("model.heads", "4")]),
    ("b-dk16", &[("model.d_k", "16")]),
    ("b-dk32", &[("model.d_k", "32")]),
    ("base", &[]),
    (
        "big",
        &[
            ("model.d_ff", "4096"),
            ("model.d_model", "1024"),
            ("model.dropout", "0.3"),
            ("model.embedding_dropout", "0.3"),
            ("model.heads", "16"),
            ("model.preset", "\"transformer-big\""),
            ("train.average_last", "20"),
            ("train.max_updates", "300000"),
            ("train.save_every", "600"),
        ],
    ),
    ("c-d1024", &[("model.d_k", "128"), ("model.d_model", "1024"), ("model.d_v", "128")]),
    ("c-d256", &[("model.d_k", "32"), ("model.d_model", "256"), ("model.d_v", "32")]),
    ("c-ff1024", &[("model.d_ff", "1024")]),
    ("c-ff4096", &[("model.d_ff", "4096")]),
    ("c-n2", &[("model.decoder_layers", "2"), ("model.encoder_layers", "2")]),
    ("c-n4", &[("model.decoder_layers", "4"), ("model.encoder_layers", "4")]),
    ("c-n8", &[("model.decoder_layers", "8"), ("model.encoder_layers", "8")]),
    ("d-drop0", &[("model.dropout", "0.0"), ("model.embedding_dropout", "0.0")]),
    ("d-drop02", &[("model.dropout", "0.2"), ("model.embedding_dropout", "0.2")]),
    ("d-ls0", &[("train.label_smoothing", "0.0")]),
    ("d-ls02", &[("train.label_smoothing", "0.2")]),
    ("e-learned", &[("model.positions", "\"learned\"")]),
];

#[test]
fn the_rows_of_table_3_change_what_they_say() {
    let file = |name: &str| load(&[configs().join(format!("{name}.toml"))], &[]).unwrap();
    let base = file("paper/base");
    assert_eq!(base, file("wmt14-en-de-base"));
    assert_eq!(file("paper/big"), file("wmt14-en-de-big"));
    let rows = files(&configs().join("paper"));
    let expected: BTreeMap<_, _> = TABLE_3.iter().copied().collect();
    assert!(rows.keys().eq(expected.keys()), "{:?}", rows.keys());
    for (name, path) in rows {
        let changed = differences(&base, &load(std::slice::from_ref(&path), &[]).unwrap());
        let changed: Vec<_> = changed.iter().map(|(key, _, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(changed, expected[name.as_str()], "{name}");
        let text = fs::read_to_string(path).unwrap();
        assert!(text.starts_with("# \"Attention Is All You Need\""), "{name} does not say which row it is");
        let extends = if name == "base" { "../wmt14-en-de-base.toml" } else { "base.toml" };
        let first = text.lines().find(|line| !line.starts_with('#') && !line.is_empty());
        assert_eq!(first, Some(format!("extends = \"{extends}\"").as_str()), "{name}");
    }
}

#[test]
fn the_paper_s_configurations_say_what_the_paper_says() {
    for (name, vocabulary, preset, dropout, updates, average) in [
        ("wmt14-en-de-base", 37_000, Preset::Base, 0.1, 100_000, 5),
        ("wmt14-en-de-big", 37_000, Preset::Big, 0.3, 300_000, 20),
        ("wmt14-en-fr-base", 32_000, Preset::Base, 0.1, 100_000, 5),
        ("wmt14-en-fr-big", 32_000, Preset::Big, 0.1, 300_000, 20),
    ] {
        let config = load(&[configs().join(format!("{name}.toml"))], &[]).unwrap();
        assert_eq!((config.tokenizer.vocab_size, config.tokenizer.joint), (vocabulary, true), "{name}");
        let shape = ModelConfig { dropout, embedding_dropout: dropout, ..ModelConfig::from_preset(preset) };
        assert_eq!(config.model, shape, "{name}");
        assert_eq!((config.train.max_updates, config.train.average_last), (updates, average), "{name}");
        let tokens = config.train.batch_tokens * config.train.accumulate;
        assert!((24_000..=26_000).contains(&tokens), "{name}");
        assert_eq!(config.train.schedule, ScheduleConfig::Noam { warmup: 4000, factor: 1.0 }, "{name}");
        assert_eq!((config.decode.beam, config.decode.length_penalty, config.decode.max_length_extra), (4, 0.6, 50));
        let [config_name, target] = if name.contains("en-fr") { ["fr-en", "fr"] } else { ["de-en", "de"] };
        let set = |split: &str| {
            CorpusLocation::Hub(HubSplit {
                name: "wmt/wmt14".into(),
                config: Some(config_name.into()),
                split: split.into(),
                revision: None,
                source: "en".into(),
                target: target.into(),
            })
        };
        let data = config.data;
        assert_eq!(
            data.train,
            [CorpusConfig { location: set("train"), tag: None, languages: [None, None], weight: 1.0, weights: None }],
            "{name}"
        );
        assert_eq!((data.valid, data.test), (Some(set("validation").into()), Some(set("test").into())), "{name}");
    }
}

/// The serialised form of a configuration with every optional key.
fn full() -> Json {
    let name = |name: &str| Some(name.to_owned());
    let location = || {
        CorpusLocation::Hub(HubSplit {
            name: "org/name".into(),
            config: name("c"),
            split: "train".into(),
            revision: name("main"),
            source: "a".into(),
            target: "b".into(),
        })
    };
    let languages = || [name("a"), name("b")];
    let mut config = Config::default();
    (config.decode.source_language, config.decode.target_language) = (name("eng_Latn"), name("deu_Latn"));
    config.data.train.push(CorpusConfig {
        location: location(),
        tag: name("<2b>"),
        languages: languages(),
        weight: 1.0,
        weights: Some("w".into()),
    });
    config.data.valid = Some(SetConfig { tag: name("<2b>"), languages: languages(), ..location().into() });
    config.data.test = config.data.valid.clone();
    config.data.monitor.push(SetConfig {
        tag: name("<2b>"),
        languages: languages(),
        name: name("n"),
        ..location().into()
    });
    // Its default depends on the run directory.
    config.data.cache_dir = Some("data-cache".into());
    config.tokenizer.path = Some("spm.model".into());
    config.tokenizer.target_path = Some("spm.target.model".into());
    config.tokenizer.codes = Some("bpe.codes".into());
    config.tokenizer.target_codes = Some("bpe.target.codes".into());
    config.tokenizer.vocabulary = Some("vocab.en".into());
    config.tokenizer.target_vocabulary = Some("vocab.de".into());
    config.model.preset = Some(Preset::Base);
    config.train.init = Some("imported".into());
    config.train.low_rank = Some(LowRankConfig::default());
    config.data.quality = Some(serde_json::from_value(serde_json::json!({ "least": 0.5 })).unwrap());
    let mut keys = serde_json::to_value(config).unwrap();
    let columns = CorpusLocation::Tsv { file: "a.tsv".into(), columns: [1, 2] };
    let tsv = serde_json::to_value(SetConfig::from(columns)).unwrap()["tsv"].take();
    for pointer in ["/data/train/0", "/data/valid", "/data/test", "/data/monitor/0"] {
        keys.pointer_mut(pointer).unwrap()["tsv"] = tsv.clone();
    }
    keys
}

/// The types' defaults of one kind of a tagged table, with 5e-4 or 1 for keys that have none.
fn variant_defaults(section: &str, variant: &Variant) -> Json {
    let mut stated = json!({ "kind": variant.kind });
    for key in variant.keys.iter().filter(|key| key.required) {
        stated[key.name] = if let Kind::Integer { .. } = key.kind { json!(1) } else { json!(5e-4) };
    }
    let mut config = serde_json::to_value(Config::default()).unwrap();
    config["train"][section] = stated;
    // Fails if a key that the schema does not require has no default.
    let config: Config = serde_json::from_value(config).unwrap();
    let mut defaults = serde_json::to_value(config).unwrap()["train"][section].take();
    if let Some(total) = defaults.get_mut("total") {
        *total = json!(TrainConfig::default().max_updates);
    }
    defaults
}

/// Compares the schema's keys with those of the serialised types.
fn assert_same_keys(path: &str, keys: &[Key], written: &Json) {
    let mut written: BTreeMap<_, _> = written.as_object().unwrap().iter().collect();
    for key in keys {
        let path = schema::join(path, key.name);
        let value = written.remove(&key.name.to_owned()).unwrap_or_else(|| panic!("{path} is only in the schema"));
        match &key.kind {
            Kind::Table(keys) => assert_same_keys(&path, keys, value),
            Kind::List(keys) => assert_same_keys(&path, keys, &value[0]),
            Kind::Tagged { default, variants } => {
                assert_eq!(value["kind"], *default);
                for variant in *variants {
                    let mut defaults = variant_defaults(key.name, variant);
                    assert_eq!(defaults.as_object_mut().unwrap().shift_remove("kind"), Some(json!(variant.kind)));
                    assert_same_keys(&format!("{path}.{}", variant.kind), variant.keys, &defaults);
                }
            }
            _ => {}
        }
    }
    assert!(written.is_empty(), "only in the types, in [{path}]: {written:?}");
}

#[test]
fn the_schema_has_the_types_keys() {
    assert_same_keys("", schema::ROOT, &full());
    // And its checks pass the types' own defaults.
    let folder = Folder::new(&[("a.toml", &to_toml(&Config::default()))]);
    folder.load(&["a.toml"], &[]).unwrap();
}

/// The reference file's settings by dotted key, commented-out ones too; each further `kind` of a table under
/// `table.kind.key`. Panics at a key without a comment above it.
fn reference_settings() -> BTreeMap<String, Json> {
    let text = fs::read_to_string(configs().join("reference.toml")).unwrap();
    let source = Rc::new(Source {
        order: 0,
        layer: (0, Reverse(0)),
        name: "reference".into(),
        text: None,
        directory: PathBuf::new(),
    });
    let (mut section, mut kind, mut settings) = (String::new(), String::new(), BTreeMap::new());
    let mut explained = false;
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
            kind.clear();
            continue;
        }
        let setting = line.strip_prefix("# ").unwrap_or(line).split_once(" = ");
        let Some((name, value)) = setting.filter(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        else {
            explained = line.starts_with('#');
            continue;
        };
        let value = parse_value(value, &source).unwrap_or_else(|| panic!("{line}")).to_json();
        if name == "kind" && section != "tokenizer" {
            kind = format!(".{}", value.as_str().unwrap());
        }
        assert!(explained || !kind.is_empty(), "no comment above {section}.{name}");
        explained = false;
        let key = format!("{section}{kind}.{name}");
        assert!(settings.insert(key.clone(), value).is_none(), "{key} stands twice");
    }
    settings
}

/// Every key with its default, named as by [`reference_settings`].
fn defaults(path: &str, keys: &[Key], written: &Json, found: &mut BTreeMap<String, Json>) {
    for key in keys {
        let (inner, value) = (schema::join(path, key.name), &written[key.name]);
        match &key.kind {
            Kind::Table(keys) if !path.is_empty() || key.name == "data" => {
                // `data.valid` and `data.test` are examples, written inline.
                if path.is_empty() {
                    defaults(&inner, keys, value, found);
                } else {
                    found.insert(inner, Json::Null);
                }
            }
            Kind::Table(keys) => defaults(&inner, keys, value, found),
            Kind::List(_) => drop(found.insert(inner, Json::Null)),
            Kind::Tagged { variants, .. } => {
                for variant in *variants {
                    for (name, value) in variant_defaults(key.name, variant).as_object().unwrap() {
                        found.insert(format!("{inner}.{}.{name}", variant.kind), value.clone());
                    }
                }
            }
            _ => drop(found.insert(inner, value.clone())),
        }
    }
}

#[test]
fn the_reference_lists_every_key_with_its_default() {
    let mut expected = BTreeMap::new();
    defaults("", schema::ROOT, &full(), &mut expected);
    let settings = reference_settings();
    let names = |settings: &BTreeMap<String, Json>| settings.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&settings), names(&expected));
    for (key, default) in expected.iter().filter(|(_, default)| !default.is_null()) {
        assert_eq!(&settings[key], default, "{key}");
    }
}

#[test]
fn the_reference_loads_as_the_defaults() {
    let mut config = load(&[configs().join("reference.toml")], &[]).unwrap();
    assert_eq!(config.data.train.len(), 1);
    config.data =
        DataConfig { root: ".".into(), train: Vec::new(), valid: None, test: None, cache_dir: None, ..config.data };
    assert_eq!(config, Config::default());
}

#[test]
fn documents_become_json_unchanged() {
    let text = "a = [1, 2.5, true, \"x\"]\nb.c = 1979-05-27\n".to_owned();
    let source = Rc::new(Source {
        order: 0,
        layer: (0, Reverse(0)),
        name: "x".into(),
        text: Some(text),
        directory: PathBuf::new(),
    });
    let table = parse(&source).unwrap_or_default();
    assert_eq!(to_json(&table), json!({ "a": [1, 2.5, true, "x"], "b": { "c": "1979-05-27" } }));
}
