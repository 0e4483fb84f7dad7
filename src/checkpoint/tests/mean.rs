use super::*;

fn mean_of(directories: &[PathBuf]) -> Result<Vec<f32>> {
    let mut flat = vec![7.0; ELEMENTS];
    average(directories, &layout(), &mut flat)?;
    Ok(flat)
}

#[test]
fn the_mean_is_that_of_f64_rounded_once() {
    let run = tempfile::tempdir().unwrap();
    let directories: Vec<PathBuf> = [3, 10, 500].iter().map(|&step| save_step(run.path(), step)).collect();
    let models: Vec<Vec<f32>> = [3, 10, 500].map(values).into();
    let mean = mean_of(&directories).unwrap();
    for (i, mean) in mean.iter().enumerate() {
        let sum: f64 = models.iter().map(|model| f64::from(model[i])).sum();
        assert_eq!(*mean, (sum / 3.0) as f32, "element {i}");
    }
}

#[test]
fn the_mean_of_equal_models_is_that_model_bit_for_bit() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 3);
    for n in [1, 7] {
        assert_eq!(bits(&mean_of(&vec![directory.clone(); n]).unwrap()), bits(&values(3)));
    }
}

#[test]
fn tensors_longer_than_a_chunk_and_slots_in_any_place() {
    let run = tempfile::tempdir().unwrap();
    let n = 40_000;
    let save_scaled = |step: u64| {
        let data: Vec<f32> = (0..n).map(|i| i as f32 * step as f32).collect();
        let tensors = [
            NamedTensor { name: "long", shape: &[n], data: Elements::F32(&data) },
            NamedTensor { name: "short", shape: &[1], data: Elements::F32(&[step as f32]) },
        ];
        save(run.path(), step, &tensors, &[], &json!({})).unwrap()
    };
    let directories = [save_scaled(1), save_scaled(2)];
    let slots = [Slot { name: "short", shape: &[1], offset: n + 2 }, Slot { name: "long", shape: &[n], offset: 1 }];
    let mut flat = vec![-1.0; n + 3];
    average(&directories, &slots, &mut flat).unwrap();
    assert!(flat[1..=n].iter().enumerate().all(|(i, &value)| value == i as f32 * 1.5));
    assert_eq!((flat[0], flat[n + 1], flat[n + 2]), (-1.0, -1.0, 1.5));
    load_into(&directories[1].join(MODEL_FILE), &slots, &mut flat).unwrap();
    assert!(flat[1..=n].iter().enumerate().all(|(i, &value)| value == i as f32 * 2.0));
}

#[test]
fn a_weighted_mean_tells_how_alike_the_models_are() {
    let run = tempfile::tempdir().unwrap();
    let saved = |step: u64, data: [f32; 3]| {
        let tensor = NamedTensor { name: "x", shape: &[3], data: Elements::F32(&data) };
        save(run.path(), step, &[tensor], &[], &json!({})).unwrap()
    };
    let [x, y, long, back] =
        [saved(1, [2.0, 0.0, 0.0]), saved(2, [0.0, 1.0, 0.0]), saved(3, [3.0, 4.0, 0.0]), saved(4, [-1.0, 0.0, 0.0])];
    let slots = [Slot { name: "x", shape: &[3], offset: 0 }];
    let likeness = |directories: &[&PathBuf], weights: &[f64]| {
        let directories: Vec<PathBuf> = directories.iter().map(|&directory| directory.clone()).collect();
        weighted_average(&directories, weights, &slots, &mut [0.0; 3]).unwrap()
    };
    for (directories, weights, expected) in [
        (&[&x][..], &[2.0][..], 1.0),
        (&[&x, &y], &[1.0, 5.0], 0.0),
        (&[&x, &x, &x], &[1.0, 2.0, 0.5], 1.0),
        (&[&x, &back], &[1.0, 3.0], -1.0),
        (&[&x, &long], &[1.0, 0.25], 0.6),
        // Cosines 0, 0.6 and 0.8, of which each counts as much as the product of the norms, 2·1, 2·5 and 1·5.
        (&[&x, &y, &long], &[1.0, 1.0, 1.0], (10.0 * 0.6 + 5.0 * 0.8) / 17.0),
    ] {
        assert!((likeness(directories, weights) - expected).abs() < 1e-12, "{directories:?} {weights:?}");
    }
}

#[test]
fn every_bad_directory_is_named() {
    let run = tempfile::tempdir().unwrap();
    let good = save_step(run.path(), 1);
    let damaged = save_step(run.path(), 2);
    flip(&damaged.join(MODEL_FILE), 200, 1);
    let absent = run.path().join("checkpoints/step-00000003");
    let other = save(run.path(), 4, &[], &[], &json!({})).unwrap();
    let error = mean_of(&[good.clone(), damaged, absent, other.clone()]).unwrap_err();
    assert_says(&error, &["step-00000002", "step-00000003", "step-00000004", "(4 problems)"]);
    assert_says(&error, &["choose others with --checkpoints", "the checkpoint is gone", "`train.keep`"]);
    assert_says(&mean_of(&[good, other]).unwrap_err(), &["step-00000004", "(4 problems)"]);
    assert_says(&mean_of(&[]).unwrap_err(), &["no checkpoint"]);
}
