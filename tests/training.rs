//! What keys of the configuration do to training, by what a run leaves and says of itself.

mod common;

use common::project::{Project, fails, file, floats, sets, stderr, stdout, succeeds};
use safetensors::SafeTensors;
use serde_json::Value;

/// Trains a project's model into a directory, with these settings.
fn train(project: &Project, run: &str, keys: &[&str]) {
    succeeds(&project.train(&[&["--run-dir", run][..], &sets(keys)].concat()));
}

fn model(project: &Project, run: &str) -> Vec<u8> {
    file(project, run, "model.safetensors")
}

/// The numbers of a tensor in a safetensors file.
fn tensor(bytes: &[u8], name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    tensors.tensor(name).unwrap().data().as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

fn number(entry: &Value, key: &str) -> f64 {
    entry[key].as_f64().unwrap_or_else(|| panic!("no {key} in {entry}"))
}

/// The difference of two numbers, relative to the second.
fn relative(found: f64, expected: f64) -> f64 {
    ((found - expected) / expected).abs()
}

/// After one update, Adam's means are those of a single gradient g: (1 - β₁)·g and (1 - β₂)·g².
#[test]
fn the_optimizer_is_as_configured_and_its_gradients_are_clipped() {
    let project = Project::new();
    let one_update = |run: &str, keys: &[&str]| {
        train(&project, run, &[&["train.max_updates=1", "valid.every=0", "train.average_last=0"], keys].concat());
        let norm = number(&project.logged(run, "train")[0], "gradient_norm");
        let state = file(&project, run, "checkpoints/step-00000001/optimizer.safetensors");
        let [first, second] = ["adam.first_moment", "adam.second_moment"].map(|name| tensor(&state, name));
        let length = first.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        (norm, length, second.iter().map(|x| f64::from(*x)).sum::<f64>())
    };
    let adam = |keys: &str| format!("train.optimizer={{kind='adam',{keys}}}");
    // Sums of 31,616 float32 products.
    let is_near = |found: f64, expected: f64| relative(found, expected) < 1e-5;

    let (norm, first, second) = one_update("plain", &["train.clip_norm=0"]);
    assert!(is_near(first, 0.1 * norm) && is_near(second, 0.02 * norm * norm), "{norm} {first} {second}");
    let (whole, first, second) = one_update("clipped", &["train.clip_norm=0.5"]);
    assert_eq!(whole, norm);
    assert!(norm > 1.0 && is_near(first, 0.1 * 0.5) && is_near(second, 0.02 * 0.25), "{norm} {first} {second}");
    let (whole, first, second) = one_update("betas", &["train.clip_norm=0", &adam("betas=[0.5,0.75]")]);
    assert_eq!(whole, norm);
    assert!(is_near(first, 0.5 * norm) && is_near(second, 0.25 * norm * norm), "{norm} {first} {second}");
    for keys in ["weight_decay=0.5", "eps=0.1"] {
        one_update(keys, &["train.clip_norm=0", &adam(keys)]);
        assert_ne!(model(&project, keys), model(&project, "plain"), "{keys}");
    }

    let other = ["train.max_updates=2", "train.clip_norm=1", "valid.every=0", "train.average_last=0"];
    let resume = ["train", "--config", "small.toml", "--run-dir", "clipped", "--resume", "--dry-run"];
    let output = project.mt(&[&resume[..], &sets(&other)].concat());
    succeeds(&output);
    assert!(stderr(&output).contains("note: `train.clip_norm` was 0.5 "), "{}", stderr(&output));
}

#[test]
fn an_exponential_average_is_what_is_validated_saved_and_kept() {
    let project = Project::new();
    train(&project, "run", &["train.exponential_average=0.9", "train.average_last=0"]);
    let averaged = model(&project, "run");
    assert_eq!(averaged, file(&project, "run", "checkpoints/step-00000012/model.safetensors"));
    let state = file(&project, "run", "checkpoints/step-00000012/optimizer.safetensors");
    // The two files have the parameters in different orders.
    let sorted = |mut numbers: Vec<f32>| {
        numbers.sort_by(f32::total_cmp);
        numbers
    };
    let [trained, averaged] = [tensor(&state, "training.values"), floats(&averaged)].map(sorted);
    assert!(trained.len() == averaged.len() && trained != averaged);

    let validations = project.logged("run", "valid");
    let validated = number(&validations[1], "perplexity");
    assert_eq!(validations[1]["update"], 12);
    let output = project.mt(&["eval", "--model", "run", "--checkpoint", "12", "--ppl", "--json", "-q"]);
    succeeds(&output);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    // Training and translation sum in other orders.
    let found = found["ppl"]["score"].as_f64().unwrap();
    assert!(relative(found, validated) < 1e-4, "{found} {validated}");
}

/// A corpus of weight 3 is drawn three times in an epoch.
#[test]
fn a_weight_multiplies_what_an_epoch_draws() {
    let project = Project::new();
    let drawn = |weight: u32| {
        let corpus = format!("data.train=[{{source=\"train.en\",target=\"train.de\",weight={weight}}}]");
        let run = format!("weight-{weight}");
        let keys = ["train.max_updates=0", "train.max_epochs=1", "tokenizer.dropout=0", "valid.every=0", &corpus];
        train(&project, &run, &keys);
        let last = project.logged(&run, "train").pop().unwrap();
        last["target_tokens"].as_u64().unwrap()
    };
    let once = drawn(1);
    assert!(once > 500, "{once}");
    assert_eq!(drawn(3), 3 * once);
}

#[test]
fn pairs_of_too_unequal_lengths_are_left_out() {
    let project = Project::new();
    for (name, line) in [("train.en", "the cat\n"), ("train.de", "die Katze und der Hund und die Katze und der Hund\n")]
    {
        let text = std::fs::read_to_string(project.path(name)).unwrap() + line;
        project.write(name, text);
    }
    let dropped = |ratio: &str| {
        let keys = [&["train", "--config", "small.toml", "--dry-run", "--json"], &sets(&[ratio])[..]].concat();
        let output = project.mt(&keys);
        succeeds(&output);
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()["corpus"]["dropped"]["ratio"].clone()
    };
    let found = dropped("data.max_ratio=4");
    assert_eq!((&found["count"], &found["line"]), (&1.into(), &121.into()), "{found}");
    assert!(dropped("data.max_ratio=20").is_null());
    let output =
        project.mt(&[&["train", "--config", "small.toml", "--dry-run"], &sets(&["data.max_ratio=1"])[..]].concat());
    let said = stdout(&output);
    assert!(said.contains("with a length ratio above 1 (first at ") && said.contains("/train.en:1)"), "{said}");
}

/// The loss has label smoothing, in training and in validation; the perplexity has not.
#[test]
fn a_loss_is_smoothed_and_a_perplexity_is_not() {
    let project = Project::new();
    for (run, smoothing) in [("plain", "0"), ("smoothed", "0.1")] {
        train(&project, run, &[&format!("train.label_smoothing={smoothing}")]);
        for event in ["train", "valid", "final"] {
            let entries = project.logged(run, event);
            assert!(!entries.is_empty(), "{event}");
            for entry in entries {
                let (loss, likelihood) = (number(&entry, "loss"), number(&entry, "perplexity").ln());
                let is_equal = relative(loss, likelihood) < 1e-9;
                assert_eq!(is_equal, run == "plain", "{loss} {likelihood} in {entry}");
            }
        }
    }
}

/// As many as `valid.samples` says, each the line's source, reference and translation.
#[test]
fn samples_of_a_validation_are_its_first_lines() {
    let project = Project::new();
    train(&project, "run", &["valid.samples=2", "valid.every=12"]);
    let read = |name: &str| std::fs::read_to_string(project.path(name)).unwrap();
    let [sources, references, outputs] = ["valid.en", "valid.de", "run/validation/best.txt"].map(read);
    let lines = sources.lines().zip(references.lines()).zip(outputs.lines());
    let samples: Vec<String> = lines
        .take(2)
        .map(|((source, reference), output)| {
            format!("  source     {source}\n  reference  {reference}\n  output     {output}\n")
        })
        .collect();
    let validations = project.logged("run", "valid");
    assert_eq!(validations.len(), 1);
    assert_eq!(validations[0]["samples"], Value::from(samples));
}

#[test]
fn a_seed_may_be_a_flag_or_a_key() {
    let project = Project::new();
    for (run, more) in [("flag", &["--seed", "2"][..]), ("key", &["--set", "train.seed=2"]), ("default", &[])] {
        succeeds(&project.train(&[&["--run-dir", run, "--set", "train.max_updates=4"], more].concat()));
    }
    let [flag, key, default] = ["flag", "key", "default"].map(|run| model(&project, run));
    assert!(flag == key && flag != default);
}

/// Further sets are scored at each validation, as `mt eval` scores them, and change nothing else.
#[test]
fn further_sets_are_scored_and_decide_nothing() {
    let project = Project::new();
    let lines = |name: &str| std::fs::read_to_string(project.path(name)).unwrap();
    let first = |name: &str| lines(name).lines().take(30).map(|line| format!("{line}\n")).collect::<String>();
    project.write("news.en", first("train.en"));
    project.write("news.de", first("train.de"));
    let monitor = "data.monitor=[{ source = 'news.en', target = 'news.de' }, \
                   { name = 'half', source = 'train.en', target = 'train.de' }]";
    let keys = ["valid.every=4", "valid.metric=loss", "train.average_last=0"];
    train(&project, "without", &keys);
    train(&project, "with", &[&keys[..], &[monitor]].concat());
    assert_eq!(model(&project, "without"), model(&project, "with"));
    let told = project.logged("with", "monitor");
    let of = |entry: &Value| (entry["set"].as_str().unwrap().to_owned(), entry["update"].as_u64().unwrap());
    let at = |update| [("news".to_owned(), update), ("half".to_owned(), update)];
    assert_eq!(told.iter().map(of).collect::<Vec<_>>(), [at(4), at(8), at(12), at(12)].concat());
    // The last two are the final model's.
    assert!(told.iter().map(|entry| entry["model"].is_string()).eq([[false; 6].as_slice(), &[true; 2]].concat()));
    for (set, more) in
        [("news", &["--src", "news.en", "--ref", "news.de"][..]), ("half", &["--src", "train.en", "--ref", "train.de"])]
    {
        let found = told.iter().rfind(|entry| entry["set"] == set).unwrap();
        let eval = |what: &[&str]| -> Value {
            let output = project.mt(&[&["eval", "--model", "with", "--json", "-q"], more, what].concat());
            succeeds(&output);
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let scores = eval(&["--bleu", "--chrf", "--beam", "1"]);
        assert!(relative(number(&scores["bleu"], "score"), number(found, "bleu")) < 1e-9, "{scores} {found}");
        assert!(relative(number(&scores["chrf"], "score"), number(found, "chrf")) < 1e-9, "{scores} {found}");
        let likelihood = eval(&["--ppl"]);
        assert!(
            relative(number(&likelihood["ppl"], "score"), number(found, "perplexity")) < 1e-4,
            "{likelihood} {found}"
        );
    }
    // Other sets are no other training.
    let other = "data.monitor=[{ name = 'other', source = 'news.en', target = 'news.de' }]";
    let resume = ["train", "--config", "small.toml", "-q", "--run-dir", "with", "--resume", "--json"];
    let output = project.mt(&[&resume[..], &sets(&[&keys[..], &[other, "train.max_updates=16"]].concat())].concat());
    succeeds(&output);
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(result["monitor"]["other"]["bleu"].is_number() && result["valid"]["bleu"].is_number(), "{result}");
    // The run has ended: what is told is what its log has.
    let again = project.mt(&[&resume[..], &sets(&[&keys[..], &[other, "train.max_updates=16"]].concat())].concat());
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&again["monitor"], &again["valid"]), (&result["monitor"], &result["valid"]));
    // Nothing else needs their text.
    std::fs::remove_file(project.path("news.en")).unwrap();
    succeeds(&project.mt(&["shortlist", "with", "--out", "list"]));
    // Text that is not there is named, like all others.
    let missing = "data.monitor=[{ source = 'nowhere.en', target = 'news.de' }]";
    fails(&project.train(&["--run-dir", "none", "--set", missing]), 1, &["nowhere.en"]);
    let twice = "data.monitor=[{ source = 'news.en', target = 'news.de' }, { source = 'news.de', target = 'news.en' }]";
    fails(&project.train(&["--run-dir", "none", "--set", twice]), 2, &["two sets of `data.monitor` are called news"]);
}
