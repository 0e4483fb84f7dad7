//! Multilingual models: `--from`, `--to`, and the languages of corpora. `make test-interop` tests that imported ones
//! compute the same as in `transformers`.

mod common;

use common::marian::Tensors;
use common::multilingual::{Family, write};
use common::project::{Project, fails, file, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::{Value, json};

/// A project with an imported model in `model`.
fn imported(family: Family) -> Project {
    let project = Project::new();
    write(&project.path("theirs"), family, |_, _| ());
    succeeds(&project.mt(&["import", "theirs", "--out", "model"]));
    project
}

#[test]
fn every_family_translates_between_its_languages() {
    for family in Family::ALL {
        let project = imported(family);
        let [english, german, french] = family.languages();
        let info = &project.answers(&["info", "model", "--json"])[0];
        assert_eq!(info["history"]["languages"], family.languages().join(" "));
        let translate = |model: &str, from: &str, to: &str, text: &str| {
            let args = ["translate", "-q", "--json", "--model", model, "--from", from, "--to", to, "--max-length", "8"];
            project.answers(&[&args[..], &[text]].concat()).remove(0)
        };
        let found = translate("model", english, german, "the cat");
        // The language is the first token, is certain, and is not in the text.
        assert_eq!(found["tokens"][0], family.pieces()[1]);
        assert_eq!(found["token_log_probs"][0], 0.0);
        assert!(!found["translation"].as_str().unwrap().contains(german), "{found}");
        let scores = |found: &Value| found["token_log_probs"].clone();
        assert_ne!(scores(&found), scores(&translate("model", french, german, "the cat")));
        assert_ne!(scores(&found), scores(&translate("model", english, french, "the cat")));
        // A line may name its own language.
        let line = format!(">>{french}<< the cat");
        assert_eq!(
            scores(&translate("model", english, german, &line)),
            scores(&translate("model", french, german, "the cat"))
        );
        for search in [&["--n-best", "2"][..], &["--sample", "2"], &["--beam", "1"]] {
            let args = ["translate", "-q", "--json", "--model", "model", "--from", english, "--to", german, "a dog"];
            let found = &project.answers(&[&args[..], &["--max-length", "5"], search].concat())[0];
            assert_eq!((&found["tokens"][0], &found["token_log_probs"][0]), (&json!(family.pieces()[1]), &json!(0.0)));
        }
        // Given translations: the language is certain, and is no token of the perplexity.
        let text = found["translation"].as_str().unwrap();
        project.write("source", "the cat\n");
        project.write("target", format!("{text}\n"));
        let languages = ["--from", english, "--to", german];
        let args = ["score", "-q", "--json", "--model", "model", "--src", "source", "--tgt", "target"];
        let scored = &project.answers(&[&args[..], &languages].concat())[0];
        assert_eq!(scored["token_log_probs"][0], 0.0);
        assert_eq!(scored["tokens"][0], family.pieces()[1]);
        let tokens = scored["tokens"].as_array().unwrap().len();
        let args = ["eval", "-q", "--json", "--ppl", "--model", "model", "--src", "source", "--ref", "target"];
        let ppl = &project.answers(&[&args[..], &languages].concat())[0]["ppl"];
        assert_eq!(ppl["tokens"], tokens);
        let mean = -scored["log_prob"].as_f64().unwrap() / tokens as f64;
        assert!((ppl["score"].as_f64().unwrap().ln() - mean).abs() < 1e-4, "{ppl} {scored}");
        assert!((scored["average"].as_f64().unwrap() + mean).abs() < 1e-6, "{scored}");
        let args = ["eval", "-q", "--bleu", "--model", "model", "--src", "valid.en", "--ref", "valid.de"];
        succeeds(&project.mt(&[&args[..], &languages, &["--max-length", "5"]].concat()));
        succeeds(&project.mt(&["embed", "-q", "--model", "model", "--from", english, "the cat"]));
        // Models that translate together.
        let args =
            ["translate", "-q", "--json", "--model", "model", "--model", "model", "--max-length", "8", "the cat"];
        assert_eq!(project.answers(&[&args[..], &languages].concat())[0]["tokens"], found["tokens"]);
        // Exported and imported again, it is the same.
        succeeds(&project.mt(&["export", "model", "--format", "hf", "--out", "again"]));
        succeeds(&project.mt(&["import", "again", "--out", "model2"]));
        assert_eq!(file(&project, "model2", "model.safetensors"), file(&project, "model", "model.safetensors"));
        assert_eq!(translate("model2", english, german, "the cat"), found);
        let spm = "sentencepiece.bpe.model";
        assert_eq!(file(&project, "again", spm), file(&project, "theirs", spm));
        // Also from its tokenizer.json alone, where rows without a piece stay without one.
        std::fs::remove_file(project.path("again").join(spm)).unwrap();
        succeeds(&project.mt(&["import", "again", "--out", "model3"]));
        succeeds(&project.mt(&["export", "model3", "--format", "hf", "--out", "third"]));
        let tokenizer = String::from_utf8(file(&project, "third", "tokenizer.json")).unwrap();
        assert!(tokenizer.contains(&family.pieces()[1]) && !tokenizer.contains("<unused_"), "{tokenizer}");
        succeeds(&project.mt(&["export", "model", "--format", "ct2", "--out", "ct2"]));
        let refused = project.mt(&["export", "model", "--format", "hf-marian", "--out", "other"]);
        assert!(stderr(&refused).contains("MarianMT cannot take"), "{}", stderr(&refused));
    }
}

/// What is said of languages that are missing, unknown, or not asked for.
#[test]
fn languages_that_are_not_known_are_told() {
    let project = imported(Family::Nllb);
    project.write("in", "the cat\n>>fra_Latn<< the dog\n");
    project.write("plain", "the cat\nthe dog\n");
    project.write("languages", ">>deu_Latn<< die Katze\n>>deu_Latn<< der Hund\n");
    project.write("json", "{\"text\": \"the cat\"}\n");
    let mut transcript = Transcript::new(&project);
    for args in [
        "translate --model model --to deu_Latn --input in",
        "translate --model model --from eng_Latn --input in",
        "translate --model model --from eng_Latn --to german --input in",
        "translate --model model --from eng_Latn --to deu_Latn --max-length 2 >>fra<<Bonjour",
        "translate --model model --from xx --to deu_Latn --input in",
        "translate --model model --from eng_Latn --json-input --input json",
        "translate --model model --tag >>spa_Latn<< --to deu_Latn cat",
        "score --model model --from eng_Latn --src in --tgt in",
        "score --model model --to deu_Latn --src in --tgt in",
        "eval --model model --to deu_Latn --src in --ref in --bleu",
        "embed --model model cat",
        "tune model --from eng_Latn --src in --ref in",
        "eval --model model --from eng_Latn --src in --ref languages --bleu",
        "translate --model model --to deu_Latn --input plain --prefix-file languages",
    ] {
        transcript.run(args);
    }
    assert_transcript!(transcript);
}

/// `--to` of a model with tags is its tag for the language; other models have nothing to choose.
#[test]
fn models_with_tags_have_languages_too() {
    let project = Project::new();
    let tags = ["tokenizer.tags=[\"<2de>\", \"<2fr>\"]", "train.max_updates=2"];
    let tagged = "data.train=[{ source = \"train.en\", target = \"train.de\", target_language = \"de\" }]";
    let valid = "data.valid={ source = \"valid.en\", target = \"valid.de\", target_language = \"de\" }";
    let args = ["train", "--config", "small.toml", "-q", "--run-dir", "tagged"];
    succeeds(&project.mt(&[&args[..], &sets(&tags), &sets(&[tagged, valid])].concat()));
    let translate = |more: &[&str]| {
        let args = ["translate", "-q", "--json", "--model", "tagged", "the cat", "--max-length", "4"];
        project.answers(&[&args[..], more].concat()).remove(0)
    };
    assert_eq!(translate(&["--to", "de"]), translate(&["--tag", "<2de>"]));
    assert_ne!(translate(&["--to", "fr"])["log_prob"], translate(&["--to", "de"])["log_prob"]);
    // Another default language, for texts that state none and lines without a tag.
    let default = ["decode.target_language=\"de\"", "train.max_updates=2"];
    let args = ["train", "--config", "small.toml", "-q", "--run-dir", "default"];
    succeeds(&project.mt(&[&args[..], &sets(&tags[..1]), &sets(&default)].concat()));
    let log_prob = |args: &[&str]| {
        let by_default = ["translate", "--json", "--model", "default", "--max-length", "4"];
        let output = project.mt(&[&by_default[..], args].concat());
        assert!(!stderr(&output).contains("tag"), "{}", stderr(&output));
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()["log_prob"].clone()
    };
    assert_eq!(log_prob(&["the cat"]), log_prob(&["--to", "de", "the cat"]));
    assert_eq!(log_prob(&["<2fr> the cat"]), log_prob(&["--to", "fr", "the cat"]));
    assert_ne!(log_prob(&["<2fr> the cat"]), log_prob(&["the cat"]));
    let ppl = |more: &[&str]| {
        let args = ["eval", "-q", "--json", "--ppl", "--model", "default"];
        project.answers(&[&args[..], more].concat()).remove(0)["ppl"]["score"].clone()
    };
    let [own, french] = ["<2de>", "<2fr>"].map(|tag| ppl(&["--src", "valid.en", "--ref", "valid.de", "--tag", tag]));
    assert_ne!(own, french);
    assert_eq!([ppl(&[]), ppl(&["--to", "fr"])], [own, french]);
    // The tag is no part of what was scored.
    project.write("source", "the cat\n");
    let args = ["score", "-q", "--json", "--model", "tagged", "--src", "source", "--tgt", "source", "--to", "de"];
    assert_eq!(project.answers(&args)[0]["source"], "the cat");
    let args = ["train", "--config", "small.toml", "-q", "--run-dir", "arrows"];
    succeeds(&project.mt(&[&args[..], &sets(&["tokenizer.tags=[\">>de<<\"]", "train.max_updates=2"])].concat()));
    let mut transcript = Transcript::new(&project);
    for args in [
        "translate --model tagged --model arrows --to de cat",
        "translate --model tagged --to es cat",
        "translate --model tagged --to de --tag <2de> cat",
        "translate --model tagged --from en cat",
        "translate -q --model tagged --from en --to de --max-length 4 cat",
    ] {
        transcript.run(args);
    }
    succeeds(&project.mt(&[
        "train",
        "--config",
        "small.toml",
        "-q",
        "--run-dir",
        "plain",
        "--set",
        "train.max_updates=2",
    ]));
    transcript.run("translate --model plain --to de cat");
    let both =
        "data.train=[{ source = \"train.en\", target = \"train.de\", target_language = \"de\", tag = \"<2de>\" }]";
    let unknown = "data.train=[{ source = \"train.en\", target = \"train.de\", target_language = \"es\" }]";
    for train in [both, unknown] {
        let args = ["train", "--config", "small.toml", "-q", "--run-dir", "other"];
        transcript.messages(&[&args[..], &sets(&tags), &sets(&[train])].concat());
    }
    assert_transcript!(transcript);
}

/// A configuration that fine-tunes the imported model on the project's corpus.
const FINE_TUNING: &str = r#"
[data]
train = [{ source = "train.en", target = "train.de", source_language = "eng_Latn", target_language = "deu_Latn" }]
valid = { source = "valid.en", target = "valid.de", source_language = "eng_Latn", target_language = "deu_Latn" }
max_length = 50
[model]
dropout = 0.0
embedding_dropout = 0.0
[train]
init = "model"
batch_tokens = 10000
max_updates = 8
log_every = 1
label_smoothing = 0.0
schedule = { kind = "constant", learning_rate = 0.001 }
[valid]
every = 4
beam = 1
samples = 1
[decode]
max_length_extra = 8
"#;

#[test]
fn corpora_state_the_languages_of_fine_tuning() {
    let project = imported(Family::Nllb);
    project.write("tune.toml", FINE_TUNING);
    // What a run records is what a dry run says.
    let planned = project.answers(&["train", "--config", "tune.toml", "-q", "--dry-run", "--json"]).remove(0);
    assert_eq!(planned["config"]["decode"]["target_language"], "deu_Latn");
    succeeds(&project.mt(&["train", "--config", "tune.toml", "-q"]));
    let entries = project.logged("runs/tune", "train");
    let losses: Vec<f64> = entries.iter().filter_map(|entry| entry["loss"].as_f64()).collect();
    assert!(losses.len() == 8 && losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    // Neither references nor translations have the language in their text.
    let validations = project.logged("runs/tune", "valid");
    assert!(validations.iter().all(|entry| !entry["samples"].to_string().contains("Latn")), "{validations:?}");
    // The run translates between the languages that it was validated with.
    let args = ["translate", "-q", "--json", "--model", "runs/tune", "the cat", "--max-length", "5"];
    let found = project.answers(&args).remove(0);
    assert_eq!(found["tokens"][0], "deu_Latn");
    let given = ["--from", "eng_Latn", "--to", "deu_Latn"];
    assert_eq!(project.answers(&[&args[..], &given].concat())[0], found);
    let args = ["eval", "-q", "--bleu", "--model", "runs/tune", "--src", "valid.en", "--ref", "valid.de"];
    succeeds(&project.mt(&args));
    // A run that was resumed reads the same text.
    succeeds(&project.mt(&["train", "--config", "tune.toml", "-q", "--resume", "--set", "train.max_updates=9"]));
    let mut transcript = Transcript::new(&project);
    for train in [
        "data.train=[{ source = \"train.en\", target = \"train.de\", target_language = \"deu_Latn\" }]",
        "data.train=[{ source = \"train.en\", target = \"train.de\", source_language = \"en\", \
         target_language = \"deu_Latn\" }]",
        "data.train=[{ source = \"train.en\", target = \"train.de\", tag = \">>deu_Latn<<\" }]",
    ] {
        transcript.messages(&["train", "--config", "tune.toml", "-q", "--run-dir", "other", "--set", train]);
    }
    assert_transcript!(transcript);
}

/// A sharded folder: the weights are in two files.
fn shard(project: &Project, folder: &str) {
    let tensors =
        candle_core::safetensors::load(project.path(&format!("{folder}/model.safetensors")), &candle_core::Device::Cpu);
    let tensors = tensors.unwrap();
    let (mut names, mut map): (Vec<&String>, serde_json::Map<String, Value>) =
        (tensors.keys().collect(), Default::default());
    names.sort_unstable();
    for (number, part) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", number + 1);
        map.extend(part.iter().map(|name| ((*name).clone(), Value::from(file.clone()))));
        let part: std::collections::HashMap<&str, _> =
            part.iter().map(|name| (name.as_str(), tensors[*name].clone())).collect();
        candle_core::safetensors::save(&part, project.path(&format!("{folder}/{file}"))).unwrap();
    }
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    project.write(&format!("{folder}/model.safetensors.index.json"), index.to_string());
    std::fs::remove_file(project.path(&format!("{folder}/model.safetensors"))).unwrap();
}

#[test]
fn weights_may_be_in_several_files() {
    let project = imported(Family::Mbart50);
    shard(&project, "theirs");
    succeeds(&project.mt(&["import", "theirs", "--out", "sharded"]));
    assert_eq!(file(&project, "sharded", "model.safetensors"), file(&project, "model", "model.safetensors"));
    let mut transcript = Transcript::new(&project);
    let index = "theirs/model.safetensors.index.json";
    let [first, second] = [1, 2].map(|number| format!("theirs/model-0000{number}-of-00002.safetensors"));
    let whole = file(&project, "theirs", "model-00002-of-00002.safetensors");
    let good = file(&project, "theirs", "model.safetensors.index.json");
    let mut wrong = |what: &str, change: &dyn Fn()| {
        change();
        transcript.note(what);
        transcript.run("import theirs --out other");
        project.write(&second, &whole);
        project.write(index, &good);
    };
    wrong("a missing part", &|| std::fs::remove_file(project.path(&second)).unwrap());
    wrong("a truncated part", &|| project.write(&second, &whole[..whole.len() / 2]));
    wrong("a part that is not there to the end of its header", &|| project.write(&second, &whole[..20]));
    let change = |from: &str, to: &str| {
        let text = String::from_utf8(good.clone()).unwrap();
        assert!(text.contains(from));
        project.write(index, text.replacen(from, to, 1));
    };
    wrong("a part outside the folder", &|| change("model-00001-of-00002.safetensors", "../model.safetensors"));
    wrong("an absolute path", &|| change("model-00001-of-00002.safetensors", "/etc/passwd"));
    wrong("a tensor that its part does not have", &|| change("model.shared.weight", "model.shared.width"));
    wrong("no list", &|| project.write(index, "{}"));
    wrong("a tensor in both parts", &|| {
        std::fs::copy(project.path(&first), project.path(&second)).unwrap();
    });
    assert_transcript!(transcript);
    assert!(!project.path("other").exists());
}

/// What cannot be expressed, is missing or contradicts itself: one sentence each.
#[test]
fn what_is_wrong_with_a_folder_is_said() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    let mut wrong = |what: &str, family: Family, change: &dyn Fn(&mut Value, &mut Tensors), after: &dyn Fn()| {
        let _ = std::fs::remove_dir_all(project.path("theirs"));
        write(&project.path("theirs"), family, change);
        after();
        transcript.note(what);
        transcript.run("import theirs --out model");
    };
    let nothing: &dyn Fn(&mut Value, &mut Tensors) = &|_, _| ();
    let remove = |name: &'static str| std::fs::remove_file(project.path(&format!("theirs/{name}"))).unwrap();
    wrong("mBART-25", Family::Mbart50, &|config, _| config["decoder_start_token_id"] = 50.into(), &|| ());
    wrong("no list of languages", Family::Nllb, nothing, &|| remove("special_tokens_map.json"));
    wrong("no ids of pieces", Family::M2m100, nothing, &|| remove("vocab.json"));
    wrong("no subwords", Family::Nllb, nothing, &|| remove("sentencepiece.bpe.model"));
    wrong("another vocabulary", Family::M2m100, &|config, _| config["vocab_size"] = 40.into(), &|| ());
    wrong(
        "a forced language that is none",
        Family::Nllb,
        &|config, _| config["forced_bos_token_id"] = 7.into(),
        &|| (),
    );
    wrong("another padding", Family::Nllb, &|config, _| config["pad_token_id"] = 5.into(), &|| ());
    wrong(
        "an activation and tensors that mt lacks",
        Family::Mbart50,
        &|config, tensors| {
            config["activation_function"] = "quick_gelu".into();
            config["router_bias"] = true.into();
            tensors.clear();
        },
        &|| (),
    );
    wrong(
        "tensors",
        Family::Mbart50,
        &|_, tensors| {
            tensors.remove("model.encoder.layernorm_embedding.bias");
            tensors.get_mut("model.decoder.embed_positions.weight").unwrap().0 = vec![65, 16];
            tensors.get_mut("model.decoder.embed_positions.weight").unwrap().1.truncate(65 * 16);
            tensors.insert("model.extra".into(), (vec![1], vec![0.0]));
            tensors.get_mut("model.decoder.layer_norm.bias").unwrap().1[3] = f32::NAN;
        },
        &|| (),
    );
    wrong("vocab.json with a hole", Family::M2m100, nothing, &|| {
        project.write("theirs/vocab.json", "{\"<s>\": 0, \"a\": 2}")
    });
    for (what, id) in [("the highest id", u32::MAX), ("an id beyond the model", 80), ("an id after a gap", 55)] {
        let added = json!({ "added_tokens_decoder": { id.to_string(): { "content": "spa_Latn" } } });
        let larger = |config: &mut Value, _: &mut Tensors| config["vocab_size"] = 60.into();
        wrong(what, Family::Nllb, &larger, &|| project.write("theirs/tokenizer_config.json", added.to_string()));
    }
    wrong("BART", Family::Nllb, &|config, _| config["model_type"] = "bart".into(), &|| ());
    assert_transcript!(transcript);
    assert!(!project.path("model").exists());
}

/// NLLB-200's first tokenizers put a source's language after its end.
#[test]
fn a_language_after_the_end_is_kept() {
    let project = imported(Family::Nllb);
    project.write("theirs/tokenizer_config.json", "{\"legacy_behaviour\": true}");
    succeeds(&project.mt(&["import", "theirs", "--out", "legacy"]));
    let translate = |model: &str| {
        let args = ["translate", "-q", "--json", "--model", model, "--from", "eng_Latn", "--to", "deu_Latn", "the cat"];
        project.answers(&[&args[..], &["--max-length", "6", "--alignment"]].concat()).remove(0)
    };
    assert_ne!(translate("legacy")["log_prob"], translate("model")["log_prob"]);
    succeeds(&project.mt(&["export", "legacy", "--format", "hf", "--out", "again"]));
    succeeds(&project.mt(&["import", "again", "--out", "back"]));
    assert_eq!(translate("back"), translate("legacy"));
}

/// A `config.json` may leave out what is the default of its class.
#[test]
fn what_a_configuration_does_not_say_is_as_in_its_class() {
    let project = Project::new();
    write(&project.path("whole"), Family::M2m100, |_, _| ());
    write(&project.path("short"), Family::M2m100, |config, _| {
        for key in ["activation_function", "scale_embedding", "dropout"] {
            assert!(config.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        }
    });
    let model = |name: &str| {
        succeeds(&project.mt(&["import", name, "--out", &format!("{name}-model")]));
        let info = stdout(&project.mt(&["info", &format!("{name}-model"), "--json"]));
        serde_json::from_str::<Value>(&info).unwrap()["config"]["model"].clone()
    };
    assert_eq!(model("short"), model("whole"));
}

/// A line in parts: each has the languages, and the translation has them once.
#[test]
fn parts_of_a_line_have_its_languages() {
    let project = imported(Family::Nllb);
    let line = "the cat sees the dog. a dog sees a cat. ".repeat(20);
    let args = [
        "translate",
        "-q",
        "--json",
        "--model",
        "model",
        "--from",
        "eng_Latn",
        "--to",
        "deu_Latn",
        "--max-length",
        "4",
    ];
    let found = project.answers(&[&args[..], &["--alignment", &line]].concat()).remove(0);
    let tokens: Vec<&str> = found["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    // Each part has the language and three tokens: the later ones are without the language.
    let joints: Vec<usize> = serde_json::from_value(found["joints"].clone()).unwrap();
    assert!(joints.len() > 5 && joints.iter().zip(1..).all(|(joint, part)| *joint == 3 * part + 1), "{found}");
    assert_eq!((tokens.len(), tokens[0]), (3 * joints.len() + 4, "deu_Latn"));
    let words = line.split_whitespace().count();
    let pairs = found["alignment"].as_str().unwrap().split_whitespace();
    let sources: Vec<usize> = pairs.map(|pair| pair.split_once('-').unwrap().0.parse().unwrap()).collect();
    assert!(!sources.is_empty() && sources.iter().all(|word| *word < words), "{sources:?}");
    // A language that the line names is a word of it.
    let aligned = |line: &str| {
        let found = project.answers(&[&args[..], &["--alignment", line]].concat()).remove(0);
        let pairs = found["alignment"].as_str().unwrap().split_whitespace();
        pairs.map(|pair| pair.split_once('-').unwrap().0.parse().unwrap()).collect::<Vec<usize>>()
    };
    let plain = aligned("the cat");
    let shifted: Vec<usize> = plain.iter().map(|word| word + 1).collect();
    assert!(!plain.is_empty());
    assert_eq!(aligned(">>eng_Latn<< the cat"), shifted);
    assert_eq!(aligned(" >>eng_Latn<<  the cat"), shifted);
    assert_eq!(aligned(">>eng_Latn<<the cat"), plain);
}

/// Tokens that users have added to the vocabulary are either read or named.
#[test]
fn added_tokens_are_not_lost() {
    let project = Project::new();
    write(&project.path("theirs"), Family::M2m100, |_, _| ());
    let config = json!({ "added_tokens_decoder": { "51": { "content": "<bt>" }, "1": { "content": "<pad>" } } });
    project.write("theirs/tokenizer_config.json", config.to_string());
    let says = ["tokens were added to its vocabulary, which mt would read as text: \"<bt>\"", "added_tokens_decoder"];
    fails(&project.mt(&["import", "theirs", "--out", "model"]), 1, &says);
}

/// Text that needs no other pieces is split as before, and its tokens have the probability of those that are gone.
#[test]
fn what_text_does_not_need_can_be_removed() {
    for family in Family::ALL {
        let project = imported(family);
        let [english, german, _] = family.languages();
        project.write("text.en", "the cat\nthe katze\n");
        project.write("text.de", "die Katze\n");
        // A tag is as good as a code.
        let languages = format!("{english},>>{german}<<");
        let args = ["trim", "model", "--json", "--keep-vocabulary-of", "text.en", "text.de", "--out", "small"];
        let report = &project.answers(&[&args[..], &["--keep-languages", &languages]].concat())[0];
        // Four words are left of ten, all letters, and ▁a, which is one; no row is left that no piece has.
        let spare = if family == Family::M2m100 { 8 } else { 0 };
        assert_eq!(report["pieces"].as_u64().unwrap() + 5 + 1 + spare, report["pieces_before"].as_u64().unwrap());
        assert_eq!((&report["languages"], &report["languages_before"]), (&json!(2), &json!(3)));
        project.write("source", "the cat\nthe Katze\ncat the the\n");
        project.write("target", "die Katze\ndie\nKatze die die cat\n");
        let score = |model: &str| {
            let args =
                ["score", "-q", "--json", "--src", "source", "--tgt", "target", "--from", english, "--to", german];
            project.answers(&[&args[..], &["--model", model]].concat())
        };
        for (before, after) in score("model").iter().zip(&score("small")) {
            assert_eq!(before["tokens"], after["tokens"]);
            let [before, after] = [before, after]
                .map(|line| serde_json::from_value::<Vec<f64>>(line["token_log_probs"].clone()).unwrap());
            assert_eq!((before[0], after[0]), (0.0, 0.0));
            assert!(before[1..].iter().zip(&after[1..]).all(|(a, b)| a < b && b - a < 2.0), "{before:?} {after:?}");
        }
        // It is a model like any other.
        succeeds(&project.mt(&["export", "small", "--format", "hf", "--out", "theirs-small"]));
        succeeds(&project.mt(&["import", "theirs-small", "--out", "back"]));
        if family != Family::M2m100 {
            assert_eq!(score("back"), score("small"));
        }
        let set = |name: &str| {
            let files = format!("source = \"{name}.en\", target = \"{name}.de\"");
            format!("{{ {files}, source_language = \"{english}\", target_language = \"{german}\" }}")
        };
        let (train, valid) = (format!("data.train=[{}]", set("train")), format!("data.valid={}", set("valid")));
        let tuned = [&train[..], &valid, "train.init=small", "train.max_updates=1"];
        project.write("tune.toml", FINE_TUNING);
        succeeds(&project.mt(&[&["train", "--config", "tune.toml", "-q"][..], &sets(&tuned)].concat()));
        // Its languages have the names of their pieces there.
        succeeds(&project.mt(&["export", "runs/tune", "--format", "hf", "--out", "tuned"]));
        let config: Value = serde_json::from_slice(&file(&project, "tuned", "tokenizer_config.json")).unwrap();
        assert_eq!([&config["src_lang"], &config["tgt_lang"]], [&family.pieces()[0], &family.pieces()[1]]);
    }
    let project = imported(Family::Nllb);
    project.write("text", "the cat\n");
    succeeds(&project.mt(&[
        "train",
        "--config",
        "small.toml",
        "-q",
        "--run-dir",
        "own",
        "--set",
        "train.max_updates=1",
    ]));
    let mut transcript = Transcript::new(&project);
    for args in [
        "trim model --out small",
        "trim model --keep-languages eng_Latn,deu --out small",
        "trim model --keep-vocabulary-of missing --out small",
        "trim own --keep-languages en --out small",
        "trim own --keep-vocabulary-of text --out small",
        "trim model --keep-languages eng_Latn --keep-vocabulary-of text --out small",
        "translate --model small --from eng_Latn --to deu_Latn cat",
    ] {
        transcript.run(args);
    }
    assert_transcript!(transcript);
}
