//! What keys of the configuration do to training, by what a run leaves and says of itself.

mod common;

use common::project::{Project, file, floats, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
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
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&resume[..], &sets(&other)].concat()));
    assert_transcript!(transcript);
}

#[test]
fn an_exponential_average_is_what_is_validated_saved_and_kept() {
    let project = Project::new();
    train(&project, "run", &["train.exponential_average=0.9", "train.average_last=0"]);
    let averaged = file(&project, "run", "checkpoints/step-00000012/model.safetensors");
    train(&project, "alone", &["train.exponential_average=0.9", "train.average_last=0", "valid.every=0"]);
    assert_eq!(model(&project, "alone"), averaged);
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
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("prepare", &["data.max_ratio=1"]);
    assert_transcript!(transcript);
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
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--run-dir", "none", "--set", missing]);
    let twice = "data.monitor=[{ source = 'news.en', target = 'news.de' }, { source = 'news.de', target = 'news.en' }]";
    transcript.train(&["--run-dir", "none", "--set", twice]);
    assert_transcript!(transcript);
}

/// The mean of all checkpoints of a loss that falls all the time is behind the last: it is tried, and not taken.
#[test]
fn the_final_model_is_chosen_by_validation() {
    let project = Project::new();
    let keys = ["train.save_every=1", "valid.every=1", "valid.metric=loss", "train.average_last=12"];
    let args = ["train", "--config", "small.toml", "--run-dir", "run", "--json"];
    let output = project.mt(&[&args[..], &sets(&keys)].concat());
    succeeds(&output);
    let said = stderr(&output);
    let tried = project.logged("run", "candidate");
    let names: Vec<&str> = tried.iter().map(|entry| entry["model"].as_str().unwrap()).collect();
    let mean = |count: u32| format!("average of the last {count} checkpoints");
    assert_eq!(names, [&mean(12), &mean(6), &mean(3), "best, update 12"]);
    let chosen: Vec<bool> = tried.iter().map(|entry| entry["chosen"].as_bool().unwrap()).collect();
    assert_eq!(chosen, [false, false, false, true]);
    let losses: Vec<f64> = tried.iter().map(|entry| number(entry, "loss")).collect();
    assert!(losses[..3].is_sorted_by(|a, b| a > b) && losses[3] < losses[2], "{losses:?}");
    for (name, entry) in names.iter().zip(&tried) {
        assert!(said.contains(&format!("  {name}: loss {:.3}", number(entry, "loss"))), "{said}");
    }
    assert!(said.contains("note: best, update 12 is better than average of the last 12 checkpoints"), "{said}");
    let made = project.log("run").pop().unwrap();
    assert_eq!((&made["event"], &made["model"]), (&"final".into(), &"best, update 12".into()));
    assert_eq!(model(&project, "run"), file(&project, "run", "checkpoints/step-00000012/model.safetensors"));
    let result: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let told = result["candidates"].as_array().unwrap();
    assert!(told.len() == 4 && told.iter().zip(&tried).all(|(told, entry)| told["loss"] == entry["loss"]), "{result}");
    // Without a validation set, there is nothing to choose by.
    train(&project, "alone", &["train.save_every=1", "valid.every=0", "train.average_last=12"]);
    succeeds(&project.mt(&["average", "alone", "--last", "12", "--out", "mean"]));
    assert!(model(&project, "alone") == model(&project, "mean") && project.logged("alone", "candidate").is_empty());
    // Of fewer checkpoints than are asked for, all; and once a mean is the better model, it is the final one.
    let keys =
        ["train.average_last=99", "train.schedule.learning_rate=0.1", "valid.metric=loss", "train.max_updates=120"];
    train(&project, "noisy", &[&keys[..], &["valid.every=120", "train.keep=99"]].concat());
    let tried = project.logged("noisy", "candidate");
    let best = tried.iter().min_by(|a, b| number(a, "loss").total_cmp(&number(b, "loss"))).unwrap();
    assert_eq!(tried[0]["model"], mean(30).as_str());
    assert!(best["chosen"] == true && best["model"].as_str().unwrap().starts_with("average of the last "), "{tried:?}");
    assert_eq!(project.logged("noisy", "final")[0]["loss"], best["loss"]);
}

/// With an exponential average, that and what it is an average of compete.
#[test]
fn an_exponential_average_competes_with_what_it_is_made_of() {
    let project = Project::new();
    train(&project, "run", &["train.exponential_average=0.99", "train.average_last=2", "valid.metric=loss"]);
    let tried = project.logged("run", "candidate");
    let names: Vec<&str> = tried.iter().map(|entry| entry["model"].as_str().unwrap()).collect();
    let without = "last, update 12, without the exponential average";
    assert_eq!(names, ["average of the last 2 checkpoints", "exponential average", without]);
    // The loss falls: what looks back is behind.
    let losses: Vec<f64> = tried.iter().map(|entry| number(entry, "loss")).collect();
    assert!(losses[2] < losses[1] && losses[1] < losses[0], "{losses:?}");
    let state = file(&project, "run", "checkpoints/step-00000012/optimizer.safetensors");
    let sorted = |mut numbers: Vec<f32>| {
        numbers.sort_by(f32::total_cmp);
        numbers
    };
    assert_eq!(sorted(tensor(&state, "training.values")), sorted(floats(&model(&project, "run"))));
}

/// The scores of six lines that are hardly translated are noise: the loss decides, also after a kill.
#[test]
fn noise_does_not_choose_the_best_model() {
    let project = Project::new();
    let keys = ["valid.every=1", "train.max_updates=9", "train.save_every=4", "train.average_last=3"];
    train(&project, "whole", &keys);
    let validations = |run: &str| -> Vec<(Value, Value, bool)> {
        let of = |entry: Value| (entry["bleu"].clone(), entry["loss"].clone(), entry["best"] == true);
        project.logged(run, "valid").into_iter().map(of).collect()
    };
    let all = validations("whole");
    let mut lowest = f64::INFINITY;
    for (bleu, loss, is_best) in &all {
        assert!(bleu.as_f64().unwrap() < 10.0, "{all:?}");
        assert_eq!(*is_best, loss.as_f64().unwrap() < lowest, "{all:?}");
        lowest = lowest.min(loss.as_f64().unwrap());
    }
    train(&project, "parts", &[&keys[..], &["train.max_updates=5"]].concat());
    let more = [&["--run-dir", "parts", "--resume"], &sets(&keys)[..]].concat();
    succeeds(&project.train(&more));
    assert_eq!(validations("parts"), all);
    assert_eq!(model(&project, "parts"), model(&project, "whole"));
    assert_eq!(project.logged("parts", "candidate"), project.logged("whole", "candidate"));
}

#[test]
fn the_best_checkpoints_are_kept_and_averaged() {
    let project = Project::new();
    let keys = ["valid.metric=loss", "valid.every=2", "train.save_every=100", "train.keep=1", "train.keep_best=3"];
    // The loss falls at first, and then the model is spoilt.
    train(&project, "run", &[&keys[..], &["train.max_updates=8"]].concat());
    let worse = ["train.max_updates=14", "train.schedule.learning_rate=1"];
    succeeds(&project.train(&[&["--run-dir", "run", "--resume"], &sets(&[&keys[..], &worse].concat())[..]].concat()));
    let entries = std::fs::read_dir(project.path("run/checkpoints")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["step-00000004", "step-00000006", "step-00000008", "step-00000014"]);
    let info = stdout(&project.mt(&["info", "run"]));
    assert!(info.contains("next best, kept too: updates 6, 4"), "{info}");
    let average = |chosen: &[&str]| project.mt(&[&["average", "run", "-q"], chosen].concat());
    succeeds(&average(&["--best", "2", "--out", "best"]));
    succeeds(&average(&["--checkpoints", "6,8", "--out", "named"]));
    assert_eq!(model(&project, "best"), model(&project, "named"));
    let mut transcript = Transcript::new(&project);
    transcript.run("average run --best 4 --out no");
    transcript.run("average run --best 2 --last 2 --out no");
    assert_transcript!(transcript);
}

#[test]
fn patience_counts_from_an_update_on() {
    let project = Project::new();
    let keys = ["valid.every=1", "valid.metric=loss", "valid.patience=2", "train.schedule.learning_rate=0.5"];
    let ends = |run: &str, more: &[&str]| -> u64 {
        let max = ["train.max_updates=40", "train.average_last=0"];
        train(&project, run, &[&keys[..], &max, more].concat());
        project.log(run).pop().unwrap()["update"].as_u64().unwrap()
    };
    let soon = ends("soon", &[]);
    assert!(soon < 10, "{soon}");
    let best = project.logged("soon", "valid").iter().filter(|entry| entry["best"] == true).count() as u64;
    let later = ends("later", &["valid.patience_after=12"]);
    // Those of updates 12 and 13 are the first two that count, if none of them is the best.
    let validations = project.logged("later", "valid");
    let since = validations.iter().rposition(|entry| entry["best"] == true).unwrap() as u64 + 1;
    assert_eq!(later, since.max(11) + 2, "{best}");
    let stale: Vec<u64> = validations.iter().map(|entry| entry["stale"].as_u64().unwrap()).collect();
    assert!(stale[..11].iter().all(|stale| *stale == 0), "{stale:?}");
    // A run that has ended goes on if patience is to count later.
    let more = [&keys[..], &["train.max_updates=40", "train.average_last=0", "valid.patience_after=12"]].concat();
    succeeds(&project.train(&[&["--run-dir", "soon", "--resume"], &sets(&more)[..]].concat()));
    assert_eq!(project.log("soon").pop().unwrap()["update"].as_u64(), Some(later));
}

/// A corpus whose pairs have these weights.
fn weighted(project: &Project, weights: &str) -> String {
    project.write("train.weights", weights);
    "data.train=[{source='train.en', target='train.de', weights='train.weights'}]".to_owned()
}

#[test]
fn a_weight_multiplies_the_loss_of_a_pair() {
    let project = Project::new();
    let keys = ["valid.every=0", "train.average_last=0", "train.max_updates=3", "model.dropout=0"];
    let train = |run: &str, weights: Option<String>, more: &[&str]| {
        let corpus = weights.map(|weights| weighted(&project, &weights));
        train(&project, run, &[&keys[..], &corpus.as_deref().into_iter().collect::<Vec<_>>(), more].concat());
        project.logged(run, "train")
    };
    let plain = train("plain", None, &[]);
    // Weights of 1 change nothing, to the last bit.
    let ones = train("ones", Some("1\n".repeat(120)), &[]);
    assert_eq!(model(&project, "ones"), model(&project, "plain"));
    assert_eq!(ones[2]["loss"], plain[2]["loss"]);
    // Adam's steps do not depend on the scale of gradients, but the loss and the gradient's norm do; the perplexity has
    // no weights.
    let twos = train("twos", Some("2.0\n".repeat(120)), &[]);
    assert_eq!(number(&twos[0], "loss"), 2.0 * number(&plain[0], "loss"));
    assert!(relative(number(&twos[0], "gradient_norm"), 2.0 * number(&plain[0], "gradient_norm")) < 1e-5);
    assert_eq!(twos[0]["perplexity"], plain[0]["perplexity"]);
    // Pairs of weight 0 have no part in the loss, and every second pair is one.
    let halves = train("halves", Some("1\n0\n".repeat(60)), &["train.batch_tokens=100000", "train.max_updates=1"]);
    let all = train("all", None, &["train.batch_tokens=100000", "train.max_updates=1"]);
    let share = number(&halves[0], "loss") / number(&all[0], "loss");
    assert!((share - 0.5).abs() < 0.1, "{share}");
    assert_eq!(
        (&halves[0]["target_tokens"], &halves[0]["perplexity"]),
        (&all[0]["target_tokens"], &all[0]["perplexity"])
    );
}

/// They stay with their pairs where others are dropped, where text is cut anew in each epoch, from the cache, and
/// compressed.
#[test]
fn weights_stay_with_their_pairs() {
    let project = Project::new();
    let line = |i: usize| format!("the cat {}sleeps", "very ".repeat(i % 9));
    let text = |of: &dyn Fn(usize) -> bool| (0..90).filter(|i| of(*i)).map(|i| line(i) + "\n").collect::<String>();
    let weight = |i: usize| format!("{}\n", (i * 7 % 5) as f64 / 2.0);
    let kept = |i: usize| i % 9 < 4;
    let train = |run: &str, of: &dyn Fn(usize) -> bool, more: &[&str]| {
        project.write("train.en", text(of));
        project.write("train.de", text(of));
        let weights = weighted(&project, &(0..90).filter(|i| of(*i)).map(weight).collect::<String>());
        let keys =
            ["data.max_length=16", "valid.every=0", "train.max_updates=6", "tokenizer.path=tokenizer.json", &weights];
        train(&project, run, &[&keys[..], more].concat());
        (project.logged(run, "train").pop().unwrap()["loss"].clone(), model(&project, run))
    };
    train_tokenizer(&project);
    let all = train("all", &|_| true, &[]);
    assert_eq!(train("kept", &kept, &[]), all, "the longer pairs are dropped");
    assert_ne!(train("long", &|_| true, &["data.max_length=100"]), all);
    assert_eq!(train("cached", &|_| true, &["data.cache_above=0"]), all);
    assert_eq!(train("again", &|_| true, &["data.cache_above=0"]), all);
    let weights = "data.train=[{source='train.en', target='train.de', weights='train.weights.gz'}]";
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, &file(&project, "", "train.weights")).unwrap();
    project.write("train.weights.gz", gz.finish().unwrap());
    assert_eq!(train("packed", &|_| true, &[weights]), all);
}

/// A tokenizer that does not depend on the text of a test.
fn train_tokenizer(project: &Project) {
    train(project, "first", &["train.max_updates=1", "valid.every=0"]);
    std::fs::copy(project.path("first/tokenizer.json"), project.path("tokenizer.json")).unwrap();
}

#[test]
fn bad_weights_are_named_with_file_and_line() {
    let project = Project::new();
    let ones = |count: usize| "1\n".repeat(count);
    let mut transcript = Transcript::new(&project);
    for weights in [ones(40) + "NaN\n" + &ones(79), ones(2) + "-1\n" + &ones(117), ones(119), ones(121)] {
        let corpus = weighted(&project, &weights);
        for command in ["train", "check", "prepare"] {
            transcript.messages(&[command, "--config", "small.toml", "--set", &corpus]);
        }
    }
    let corpus = weighted(&project, "1\n");
    std::fs::remove_file(project.path("train.weights")).unwrap();
    for key in [
        &corpus,
        "data.train=[{hub='a/b', split='train', source='en', target='de', weights='train.weights'}]",
        "data.valid={source='valid.en', target='valid.de', weights='train.weights'}",
    ] {
        transcript.train(&["--set", key]);
    }
    assert_transcript!(transcript);
    assert!(!project.path("runs").exists());
}

/// A run that goes on has the weights that it began with.
#[test]
fn weights_may_not_change_before_a_resume() {
    let project = Project::new();
    let corpus = weighted(&project, &"1\n2\n".repeat(60));
    let keys = ["train.max_updates=4", "valid.every=0"];
    train(&project, "run", &[&keys[..], &[&corpus]].concat());
    let resume = |corpus: &[&str]| {
        let keys = [&["train.max_updates=6", "valid.every=0"], corpus].concat();
        project.train(&[&["--run-dir", "run", "--resume"], &sets(&keys)[..]].concat())
    };
    weighted(&project, &"2\n1\n".repeat(60));
    let mut transcript = Transcript::new(&project);
    transcript.note("the weights have changed");
    transcript.record("mt train --run-dir run --resume", &resume(&[&corpus]));
    transcript.note("there are no weights");
    transcript.record("mt train --run-dir run --resume", &resume(&[]));
    assert_transcript!(transcript);
    // The same numbers, written in another way.
    weighted(&project, &"1.0\n 2e0\n".repeat(60));
    succeeds(&resume(&[&corpus]));
}
