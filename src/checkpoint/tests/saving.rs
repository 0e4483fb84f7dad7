use super::*;

#[test]
fn a_checkpoint_comes_back_bit_for_bit() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 1000);
    assert_eq!(directory, run.path().join("checkpoints/step-00001000"));
    assert_eq!(directory, directory_of(run.path(), 1000));
    verify(&directory).unwrap();
    assert_eq!(bits(&load_model(&directory).unwrap()), bits(&values(1000)));
    let mut optimizer = vec![0.0; ELEMENTS];
    load_into(&directory.join(OPTIMIZER_FILE), &layout(), &mut optimizer).unwrap();
    assert_eq!(bits(&optimizer), bits(&values(1001)));
    assert_eq!(read_state(&directory).unwrap(), json!({ "step": 1000 }));
    assert_eq!(names(&directory), ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]);
    assert_eq!(names(&run.path().join("checkpoints")), ["step-00001000"]);
}

/// It has been moved away, and a checkpoint saved here would be missing there.
#[test]
fn a_run_directory_that_is_gone_is_not_made_again() {
    let runs = tempfile::tempdir().unwrap();
    let run = runs.path().join("gone");
    let error = save(&run, 5, &tensors(&values(5)), &[], &json!({})).unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    assert_eq!(names(runs.path()), [""; 0]);
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let run = tempfile::tempdir().unwrap();
    let bytes = fs::read(save_step(run.path(), 1).join(MODEL_FILE)).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(header % 8, 0, "the data is aligned");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), SHAPES.len());
    for tensor in tensors(&values(1)) {
        let view = file.tensor(tensor.name).unwrap();
        assert_eq!(view.shape(), tensor.shape);
        let Elements::F32(data) = tensor.data else { unreachable!("all are floats") };
        let expected: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(view.data(), expected);
    }
}

#[test]
fn the_same_contents_give_the_same_bytes() {
    let run = tempfile::tempdir().unwrap();
    let first = save_step(run.path(), 7);
    let before: Vec<_> = FILES.map(|name| fs::read(first.join(name)).unwrap()).into();
    let second = save_step(run.path(), 7);
    let after: Vec<_> = FILES.map(|name| fs::read(second.join(name)).unwrap()).into();
    assert_eq!(before, after);
}

/// A resumed run must see the numbers it saved; serde_json needs its feature `float_roundtrip` for that.
#[test]
fn numbers_of_the_state_come_back_exactly() {
    let run = tempfile::tempdir().unwrap();
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    let numbers: Vec<f64> = std::iter::repeat_with(|| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from_bits(bits)
    })
    .filter(|value| value.is_finite())
    .take(5000)
    .collect();
    let state = json!({ "numbers": numbers, "seed": u64::MAX });
    let directory = save(run.path(), 1, &[], &[], &state).unwrap();
    assert_eq!(read_state(&directory).unwrap(), state);
}

#[test]
fn saving_over_a_step_replaces_it() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 5);
    fs::write(directory.join("leftover"), "x").unwrap();
    let other = values(99);
    save(run.path(), 5, &tensors(&other), &[], &json!(null)).unwrap();
    verify(&directory).unwrap();
    assert_eq!(bits(&load_model(&directory).unwrap()), bits(&other));
    assert!(!directory.join("leftover").exists());
    assert_eq!(names(&run.path().join("checkpoints")), ["step-00000005"]);
}

#[test]
fn strays_of_crashes_are_gone_after_the_next_save() {
    let run = tempfile::tempdir().unwrap();
    let checkpoints = run.path().join("checkpoints");
    save_step(run.path(), 1);
    for stray in [".tmp-step-00000001", ".tmp-step-00000009", ".old-step-00000001"] {
        fs::create_dir(checkpoints.join(stray)).unwrap();
        fs::write(checkpoints.join(stray).join(MODEL_FILE), "half").unwrap();
    }
    for stray in [".best.tmp", ".last.tmp", ".model.safetensors.tmp", ".manifest.json.tmp"] {
        fs::write(run.path().join(stray), "half").unwrap();
    }
    fs::write(checkpoints.join("notes.txt"), "the user's own").unwrap();
    assert_eq!(steps(run.path()), [1], "none of them counts");
    save_step(run.path(), 2);
    assert_eq!(names(&checkpoints), ["notes.txt", "step-00000001", "step-00000002"]);
    assert_eq!(names(run.path()), ["checkpoints"]);
}

#[test]
fn a_crash_between_the_two_renames_of_a_replacement_loses_nothing() {
    let run = tempfile::tempdir().unwrap();
    let checkpoints = run.path().join("checkpoints");
    let directory = save_step(run.path(), 4);
    fs::rename(&directory, checkpoints.join(".old-step-00000004")).unwrap();
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert_eq!(newest.map(|(step, _)| step), Some(4));
    assert!(warnings.is_empty());
    assert!(locate(run.path(), Some(Which::Step(4))).is_ok());
    save_step(run.path(), 8);
    assert_eq!(names(&checkpoints), ["step-00000004", "step-00000008"]);
    assert_eq!(bits(&load_model(&directory).unwrap()), bits(&values(4)));
}

#[test]
fn a_failed_save_leaves_the_checkpoints_before_and_no_rubbish() {
    let run = tempfile::tempdir().unwrap();
    let directory = save_step(run.path(), 3);
    let mut bad = values(1);
    bad[20] = f32::NAN;
    let good = values(2);
    for step in [3, 4] {
        let error = save(run.path(), step, &tensors(&good), &tensors(&bad), &json!({})).unwrap_err();
        assert_says(&error, &["not saved: 1 values of `näme", "optimizer.safetensors", "help:"]);
    }
    assert_eq!(names(&run.path().join("checkpoints")), ["step-00000003"]);
    assert_eq!(bits(&load_model(&directory).unwrap()), bits(&values(3)));
    verify(&directory).unwrap();
}

#[test]
fn tensors_that_no_file_can_hold_are_refused() {
    let run = tempfile::tempdir().unwrap();
    let tensor = |name, shape| NamedTensor { name, shape, data: Elements::F32(&[1.0, 2.0]) };
    for tensors in [
        vec![tensor("a", &[3])],
        vec![tensor("a", &[2]), tensor("a", &[2])],
        vec![tensor("__metadata__", &[2])],
        vec![tensor("a", &[usize::MAX, 2])],
    ] {
        save(run.path(), 1, &tensors, &[], &json!({})).unwrap_err();
    }
    assert!(names(&run.path().join("checkpoints")).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_says_where_and_what_to_do() {
    let values = values(1);
    let error = {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let file = disk::HashingFile::new(full, "/dev/full".into());
        super::super::format::write(file, MODEL_FILE, &tensors(&values), &[]).unwrap_err()
    };
    assert_says(&error, &["os error 28", "/dev/full", "free some space"]);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let run = tempfile::tempdir().unwrap();
    let file = run.path().join("file");
    fs::write(&file, "").unwrap();
    assert_says(&save(&file, 1, &[], &[], &json!({})).unwrap_err(), &["cannot write", "/file"]);
    assert_says(&save_model(&file, &[], None).unwrap_err(), &["cannot write", "file"]);
}

#[test]
fn the_final_model_covers_what_lies_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.toml", "tokenizer.src.json", "tokenizer.tgt.json", "log.jsonl", "tokenizer.model"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let (first, second) = (values(1), values(2));
    save_model(dir.path(), &tensors(&first), None).unwrap();
    let manifest = verify(dir.path()).unwrap();
    let listed: Vec<&str> = manifest.files.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(listed, ["config.toml", "tokenizer.src.json", "tokenizer.tgt.json", "model.safetensors"]);
    assert_eq!(bits(&load_model(dir.path()).unwrap()), bits(&first));

    save_model(dir.path(), &tensors(&second), None).unwrap();
    verify(dir.path()).unwrap();
    assert_eq!(bits(&load_model(dir.path()).unwrap()), bits(&second));
    assert!(names(dir.path()).iter().all(|name| !name.starts_with('.')));

    fs::write(dir.path().join("log.jsonl"), "more").unwrap();
    verify(dir.path()).unwrap();
    fs::write(dir.path().join("config.toml"), "CONFIG.toml").unwrap();
    assert_says(&verify(dir.path()).unwrap_err(), &["config.toml is damaged"]);
}

#[test]
fn a_failed_final_model_leaves_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let good = values(1);
    save_model(dir.path(), &tensors(&good), None).unwrap();
    let bad = [f32::INFINITY; ELEMENTS];
    save_model(dir.path(), &tensors(&bad), None).unwrap_err();
    verify(dir.path()).unwrap();
    assert_eq!(bits(&load_model(dir.path()).unwrap()), bits(&good));
    assert_eq!(names(dir.path()), ["manifest.json", "model.safetensors"]);
}

#[test]
fn the_first_that_is_done_makes_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let [out, killed, held] =
        ["out", ".out.4294967295.tmp", ".out.4294967294.tmp"].map(|name| folder.path().join(name));
    for directory in [&killed, &held] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("file"), "half of it").unwrap();
    }
    let at_work = fs::File::open(&held).unwrap();
    at_work.try_lock().unwrap();
    let write = |directory: &Path, text: &str| fs::write(directory.join("file"), text).unwrap();
    let error = whole_directory(&out, |directory| {
        write(directory, "second");
        fs::create_dir(&out).unwrap();
        write(&out, "first");
        Ok(())
    });
    assert_eq!(error.unwrap_err().what(), "the output directory already exists");
    assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "first");
    let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.sort();
    assert_eq!(left, [held, out]);
}

#[test]
fn a_process_of_the_same_number_elsewhere_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join(format!(".out.{}.tmp", std::process::id()));
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("file"), "half of it").unwrap();
    let at_work = fs::File::open(&theirs).unwrap();
    at_work.try_lock().unwrap();
    let out = folder.path().join("out");
    let error = whole_directory(&out, |_| Ok(())).unwrap_err();
    assert_eq!(error.what(), "another process is making this directory");
    assert!(theirs.join("file").exists() && !out.exists());
    drop(at_work);
    whole_directory(&out, |_| Ok(())).unwrap();
    assert!(!theirs.exists() && out.exists());
}

/// Whenever another process looks for what killed ones left.
#[test]
fn a_directory_that_is_being_made_is_not_taken_for_a_leftover() {
    let folder = tempfile::tempdir().unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let parent = crate::file::Folder::open(folder.path()).unwrap();
    let made = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                disk::remove_left_by_kills(&parent, "out");
            }
        });
        let out = folder.path().join("out");
        let fill = |directory: &Path| {
            fs::write(directory.join("file"), "whole").map_err(|error| Error::io("write", directory, error))
        };
        let make = |_| whole_directory(&out, fill).map(|()| fs::remove_dir_all(&out).is_ok());
        let made: Result<Vec<bool>> = (0..100).map(make).collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        made
    });
    assert!(made.unwrap().into_iter().all(|is_removed| is_removed));
}

/// Some file systems cannot sync a directory, and return an error.
#[test]
fn a_directory_that_cannot_be_synced_is_no_failure() {
    for (number, is_fine) in [
        (libc::EINVAL, true),
        (libc::EBADF, true),
        (libc::ENOTSUP, true),
        (libc::ENOSYS, true),
        (libc::EIO, false),
        (libc::ENOSPC, false),
    ] {
        let synced = disk::unless_unsupported(Err(std::io::Error::from_raw_os_error(number)));
        assert_eq!(synced.is_ok(), is_fine, "{number}");
    }
}
