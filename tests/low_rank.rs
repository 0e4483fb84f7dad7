//! `train.low_rank`: fine-tuning by factors of low rank.

mod common;

use std::collections::HashMap;

use common::project::{Project, file, sets, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use safetensors::SafeTensors;

/// A project with a trained model in `runs/small`.
fn trained() -> Project {
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=8", "train.average_last=0"])));
    project
}

const KEYS: [&str; 5] = [
    "train.init=runs/small",
    "train.low_rank={ rank = 4, alpha = 8.0 }",
    "train.average_last=0",
    "train.save_every=2",
    "train.optimizer.weight_decay=0.1",
];

/// Trains the model of [`trained`] further.
fn tune(project: &Project, run: &str, updates: usize, keys: &[&str], more: &[&str]) {
    let updates = format!("train.max_updates={updates}");
    let keys = sets(&[&KEYS[..], &[&updates], keys].concat());
    succeeds(&project.train(&[&["--run-dir", run], &keys[..], more].concat()));
}

/// The tensors of a file, by name.
fn tensors(bytes: &[u8]) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    file.tensors().into_iter().map(|(name, t)| (name, (t.shape().to_vec(), floats(t.data())))).collect()
}

#[test]
fn a_checkpoint_has_the_factors_and_the_final_model_is_whole() {
    let project = trained();
    tune(&project, "tuned", 6, &[], &[]);
    let before = tensors(&file(&project, "runs/small", "model.safetensors"));
    let after = tensors(&file(&project, "tuned", "model.safetensors"));
    let saved = tensors(&file(&project, "tuned", "checkpoints/step-00000006/model.safetensors"));
    assert_eq!(saved["low_rank.scale"].1, [2.0]);
    assert_eq!(tensors(&file(&project, "tuned", "base.safetensors")), before);
    assert_eq!(after.len(), before.len());
    let mut changed = 0;
    for (name, (shape, values)) in &before {
        let now = &after[name].1;
        let Some((_, a)) = saved.get(&format!("{name}.low_rank_a")) else {
            assert_eq!(now, values, "{name}");
            assert!(!name.contains("_proj.weight") || name.starts_with("output"), "{name}");
            continue;
        };
        let (b, columns) = (&saved[&format!("{name}.low_rank_b")].1, shape[1]);
        for (i, (now, before)) in now.iter().zip(values).enumerate() {
            let product: f32 = (0..4).map(|k| b[i / columns * 4 + k] * a[k * columns + i % columns]).sum();
            assert!((now - before - 2.0 * product).abs() < 1e-6, "{name} {i}: {now} {before} {product}");
        }
        assert_ne!(now, values, "{name}");
        changed += 1;
    }
    // Nothing else is in the checkpoint.
    assert!(changed > 10 && saved.len() == 2 * changed + 1, "{changed} {}", saved.len());
    // All of it are models like any other.
    let translate = |more: &[&str]| {
        let args = ["translate", "-q", "--json", "--input", "valid.en"];
        let output = project.mt(&[&args[..], more].concat());
        succeeds(&output);
        stdout(&output)
    };
    let last = translate(&["--model", "tuned", "--checkpoint", "last"]);
    assert_eq!(translate(&["--model", "tuned"]), last);
    assert_ne!(translate(&["--model", "runs/small"]), last);
    succeeds(&project.mt(&["average", "tuned", "--last", "2", "--out", "mean"]));
    let mean = tensors(&file(&project, "mean", "model.safetensors"));
    let other = tensors(&file(&project, "tuned", "checkpoints/step-00000004/model.safetensors"));
    // The mean is that of the matrices, not of their factors.
    let name = "decoder.layers.0.feed_forward.fc1.weight";
    let (shape, base) = &before[name];
    let at = |saved: &HashMap<String, (Vec<usize>, Vec<f32>)>, i: usize| {
        let [a, b] = ["a", "b"].map(|factor| &saved[&format!("{name}.low_rank_{factor}")].1);
        let product: f32 = (0..4).map(|k| b[i / shape[1] * 4 + k] * a[k * shape[1] + i % shape[1]]).sum();
        base[i] + 2.0 * product
    };
    for (i, mean) in mean[name].1.iter().enumerate() {
        assert!((mean - (at(&saved, i) + at(&other, i)) / 2.0).abs() < 1e-6, "{i}");
    }
    succeeds(&project.mt(&["quantize", "tuned", "--checkpoint", "last", "--out", "small"]));
}

/// Not a bit differs, whether a run was interrupted or not; and a run goes on from its base if it was stopped before
/// its first checkpoint.
#[test]
fn a_resumed_run_is_the_same_training() {
    let project = trained();
    tune(&project, "whole", 9, &[], &[]);
    tune(&project, "parts", 3, &[], &[]);
    std::fs::remove_dir_all(project.path("parts/checkpoints")).unwrap();
    for name in ["model.safetensors", "manifest.json", "last", "best", "base.safetensors"] {
        let _ = std::fs::remove_file(project.path(&format!("parts/{name}")));
    }
    for updates in [1, 5, 9] {
        tune(&project, "parts", updates, &[], &["--resume"]);
    }
    let step = "checkpoints/step-00000009";
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let name = format!("{step}/{name}");
        assert_eq!(file(&project, "whole", &name), file(&project, "parts", &name), "{name}");
    }
    assert_eq!(file(&project, "whole", "model.safetensors"), file(&project, "parts", "model.safetensors"));
    let losses: Vec<f64> = project.logged("whole", "train").iter().filter_map(|entry| entry["loss"].as_f64()).collect();
    assert!(losses.first() > losses.last(), "{losses:?}");
}

/// Parts may be trained whole, and others not at all.
#[test]
fn factors_are_of_the_parts_that_are_named() {
    let project = trained();
    let also = "[\"decoder.layers.0.feed_forward_norm\", \"source_embedding\"]";
    let low_rank = format!("train.low_rank={{ rank = 2, projections = [\"q_proj\", \"v_proj\"], also = {also} }}");
    let keys = [&low_rank[..], "train.freeze=[\"encoder\"]"];
    tune(&project, "tuned", 3, &keys, &[]);
    let before = tensors(&file(&project, "runs/small", "model.safetensors"));
    let after = tensors(&file(&project, "tuned", "model.safetensors"));
    for (name, (_, values)) in &before {
        let has_factors = ["q_proj.weight", "v_proj.weight"].iter().any(|part| name.ends_with(part));
        let is_whole = name == "source_embedding.weight" || name.starts_with("decoder.layers.0.feed_forward_norm.");
        let is_trained = (has_factors && name.starts_with("decoder.")) || is_whole;
        assert_eq!(after[name].1 != *values, is_trained, "{name}");
    }
    tune(&project, "parts", 1, &keys, &[]);
    tune(&project, "parts", 3, &keys, &["--resume"]);
    assert_eq!(file(&project, "tuned", "model.safetensors"), file(&project, "parts", "model.safetensors"));
}

#[test]
fn what_does_not_fit_together_is_said() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    let plain = "train --config small.toml --run-dir tuned --set train.init=runs/small";
    let base = project.path("tuned/base.safetensors");
    for keys in [
        "train.low_rank.rank=0",
        "train.low_rank.alpha=0",
        "train.low_rank.projections=[\"query\"]",
        "train.low_rank.also=[\"embedding\"]",
        "train.low_rank.projections=[]",
        "train.low_rank={} --set train.exponential_average=0.9",
        "train.low_rank={} --set tokenizer.tags=[\"<2de>\"]",
    ] {
        transcript.run(&format!("{plain} --set {keys}"));
    }
    transcript.run("train --config small.toml --run-dir tuned --set train.low_rank={}");
    tune(&project, "tuned", 2, &[], &[]);
    transcript.note("the rank of a run that has begun");
    let keys = sets(&[&KEYS[..], &["train.max_updates=4", "train.low_rank.rank=8"]].concat());
    let args = ["train", "--config", "small.toml", "--run-dir", "tuned", "--resume", "-q"];
    transcript.messages(&[&args[..], &keys].concat());
    transcript.note("a run goes on without its factors");
    transcript.messages(&[&args[..], &sets(&["train.init=runs/small", "train.max_updates=4"])].concat());
    transcript.note("other parts are frozen");
    let keys = sets(&[&KEYS[..], &["train.max_updates=4", "train.freeze=[\"encoder\"]"]].concat());
    transcript.messages(&[&args[..], &["--force"], &keys].concat());
    let whole = std::fs::read(&base).unwrap();
    std::fs::write(&base, &whole[..whole.len() - 4]).unwrap();
    transcript.note("a damaged base");
    transcript.run("translate --model tuned --checkpoint last cat");
    std::fs::remove_file(&base).unwrap();
    transcript.note("no base");
    transcript.run("translate --model tuned --checkpoint last cat");
    transcript.run("translate --model tuned -q --max-length 2 cat");
    assert_transcript!(transcript);
}
