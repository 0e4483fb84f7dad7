use std::io;

use super::*;

fn damage(run: &Path, step: u64) {
    flip(&directory_of(run, step).join(MODEL_FILE), 250, 3);
}

/// The located model, and the number of warnings.
fn found(run: &Path, which: Option<Which>) -> (String, usize) {
    let located = locate(run, which).unwrap();
    assert_eq!(located.model, located.directory.join(MODEL_FILE));
    assert!(located.model.is_file());
    (located.what, located.warnings.len())
}

#[test]
fn which_is_parsed_and_shown() {
    for (text, which) in
        [("best", Which::Best), ("last", Which::Last), ("final", Which::Final), ("1500", Which::Step(1500))]
    {
        assert_eq!(text.parse::<Which>().unwrap(), which);
    }
    assert_eq!(Which::Step(1500).to_string(), "update 1500");
    for text in ["", "bset", "-1", "1.5", "99999999999999999999"] {
        let error = text.parse::<Which>().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_says(&error, &["is not a checkpoint", "help: use best"]);
    }
}

#[test]
fn checkpoints_are_listed_by_step() {
    let run = tempfile::tempdir().unwrap();
    assert!(steps(run.path()).is_empty());
    for step in [200, 3, 123_456_789, 1000] {
        save_step(run.path(), step);
    }
    for other in ["step-5", "step-0000000x", "step-00000006.bak", "other", "step-+0000007"] {
        fs::create_dir(run.path().join("checkpoints").join(other)).unwrap();
        fs::write(run.path().join("checkpoints").join(other).join(MANIFEST_FILE), "").unwrap();
    }
    fs::write(run.path().join("checkpoints/step-00000008"), "a file").unwrap();
    assert_eq!(steps(run.path()), [3, 200, 1000, 123_456_789]);
}

/// Somebody may have put any number of them there.
#[test]
fn only_the_first_of_many_damaged_checkpoints_are_named() {
    let run = tempfile::tempdir().unwrap();
    for step in 0..1000 {
        fs::create_dir_all(run.path().join(format!("checkpoints/step-{step:08}"))).unwrap();
    }
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert!(newest.is_none() && warnings.len() < 20, "{}", warnings.len());
    assert!(warnings[0].starts_with("the checkpoint of update 999 cannot be used"), "{}", warnings[0]);
    assert_eq!(warnings.last().unwrap(), "further checkpoints cannot be used and were skipped");
}

/// Neither keeps training from saving.
#[test]
fn links_that_lead_nowhere_are_passed_over() {
    let run = tempfile::tempdir().unwrap();
    save_step(run.path(), 5);
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, run.path().join("checkpoints").join(name)).unwrap();
    };
    link("nowhere", "step-00000006");
    assert_eq!(newest_valid(run.path()).unwrap().1, Vec::<String>::new());
    // A loop.
    link("step-00000007", "step-00000007");
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert_eq!((newest.unwrap().0, warnings.len()), (5, 1));
    save_step(run.path(), 8);
    assert_eq!(steps(run.path()), [5, 8]);
    prune(run.path(), 8, 1, &[]).unwrap();
    assert_eq!(steps(run.path()), [8]);
}

#[test]
fn unreadable_checkpoints_are_not_known_to_be_damaged() {
    let path = Path::new("checkpoints/step-00000007/model.safetensors");
    let of_system = |code| Error::io("read a file of the model", path, io::Error::from_raw_os_error(code));
    for (error, help) in [
        (of_system(libc::EIO), "try again"),
        (of_system(libc::ESTALE), "try again"),
        (of_system(libc::EACCES), "make the checkpoint readable"),
        (of_system(libc::EMFILE), "files"),
        (Error::many(vec![Error::failure("damaged"), of_system(libc::EIO)]), "try again"),
        (Error::failure("written in format 2; update mt").unsupported_version(), "move the checkpoint away"),
    ] {
        assert!(!is_known_damage(&error));
        assert_says(&known_damage(error).unwrap_err(), &[help]);
    }
    for error in [Error::failure("its SHA-256 differs"), of_system(libc::EISDIR)] {
        assert!(is_known_damage(&error));
        known_damage(error).unwrap();
    }
}

#[test]
fn without_a_choice_final_comes_before_best_before_last() {
    let run = tempfile::tempdir().unwrap();
    for step in [10, 20, 30] {
        save_step(run.path(), step);
    }
    assert_eq!(found(run.path(), None), ("last, update 30".into(), 0));
    set_pointer(run.path(), LAST, 30).unwrap();
    set_pointer(run.path(), BEST, 20).unwrap();
    assert_eq!(found(run.path(), None), ("best, update 20".into(), 0));
    let model = values(1);
    save_model(run.path(), &tensors(&model), None).unwrap();
    assert_eq!(found(run.path(), None), ("final".into(), 0));
    assert_eq!(found(run.path(), Some(Which::Final)), ("final".into(), 0));
    assert_eq!(found(run.path(), Some(Which::Best)), ("best, update 20".into(), 0));
    assert_eq!(found(run.path(), Some(Which::Last)), ("last, update 30".into(), 0));
    assert_eq!(found(run.path(), Some(Which::Step(10))), ("update 10".into(), 0));
    assert_eq!(locate(run.path(), Some(Which::Best)).unwrap().directory, directory_of(run.path(), 20));
}

#[test]
fn damage_is_reported_and_the_next_in_line_used() {
    let run = tempfile::tempdir().unwrap();
    for step in [10, 20, 30] {
        save_step(run.path(), step);
    }
    set_pointer(run.path(), LAST, 30).unwrap();
    set_pointer(run.path(), BEST, 20).unwrap();
    let model = values(1);
    save_model(run.path(), &tensors(&model), None).unwrap();

    flip(&run.path().join(MODEL_FILE), 100, 0);
    for which in [None, Some(Which::Final)] {
        assert_says(&locate(run.path(), which).unwrap_err(), &["model.safetensors is damaged"]);
    }
    fs::remove_file(run.path().join(MANIFEST_FILE)).unwrap();
    assert_eq!(found(run.path(), None), ("best, update 20".into(), 1));

    damage(run.path(), 20);
    assert_eq!(found(run.path(), None), ("last, update 30".into(), 2));
    assert_says(&locate(run.path(), Some(Which::Best)).unwrap_err(), &["damaged", "step-00000020"]);
    assert_says(&locate(run.path(), Some(Which::Step(20))).unwrap_err(), &["damaged", "step-00000020"]);

    damage(run.path(), 30);
    assert_eq!(found(run.path(), Some(Which::Last)), ("last, update 10".into(), 2));
    let located = locate(run.path(), Some(Which::Last)).unwrap();
    assert!(located.warnings[0].starts_with("the checkpoint of update 30 cannot be used"), "{located:?}");
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert_eq!(newest, Some((10, directory_of(run.path(), 10))));
    assert_eq!(warnings, located.warnings);

    damage(run.path(), 10);
    let error = locate(run.path(), None).unwrap_err();
    assert_says(&error, &["no model in", "nothing in it can be used", "final", "update 30", "update 20", "update 10"]);
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert_eq!((newest, warnings.len()), (None, 3));
}

#[test]
fn an_unfinished_newest_checkpoint_is_reported() {
    let run = tempfile::tempdir().unwrap();
    save_step(run.path(), 1);
    fs::remove_file(save_step(run.path(), 2).join(MANIFEST_FILE)).unwrap();
    let (newest, warnings) = newest_valid(run.path()).unwrap();
    assert_eq!(newest.unwrap().0, 1);
    assert!(warnings[0].contains("update 2") && warnings[0].contains("not complete"), "{warnings:?}");
}

#[test]
fn what_is_not_there_says_what_is() {
    let runs = tempfile::tempdir().unwrap();
    let run = runs.path().join("mine");
    fs::create_dir(&run).unwrap();
    save_step(&run, 500);
    save_step(&run, 1000);
    let no_model = |dir: &Path, which| locate(dir, which).unwrap_err();
    assert_says(&no_model(&run, Some(Which::Step(7))), &["no model in", "no checkpoint of update 7", "1000, 500"]);
    assert_says(&no_model(&run, Some(Which::Best)), &["no model in", "best", "1000, 500"]);
    assert_says(&no_model(&run, Some(Which::Final)), &["no model in", "end of training", "1000, 500"]);
    assert_says(&no_model(runs.path(), None), &["no model in", "no checkpoint yet", "mine"]);
    assert_says(&no_model(&run.join("x"), None), &["no model in", "no such directory"]);
    let empty = tempfile::tempdir().unwrap();
    assert_says(&no_model(empty.path(), None), &["no model in", "mt train"]);
    assert_says(&no_model(empty.path(), Some(Which::Last)), &["no model in"]);
}

#[test]
fn pointers_come_back_and_garbage_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let path = run.path().join(BEST);
    assert_eq!(pointer(run.path(), BEST).unwrap(), None);
    save_step(run.path(), 20);
    set_pointer(run.path(), BEST, 20).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "step-00000020\n");
    assert_eq!(pointer(run.path(), BEST).unwrap(), Some(20));
    assert_says(&set_pointer(run.path(), BEST, 21).unwrap_err(), &["no such checkpoint"]);
    assert_eq!(names(run.path()), ["best", "checkpoints"]);

    let long = "x".repeat(10_000);
    for text in ["", "20", "step-20", "../step-00000020", "step-00000020/x", "\0\0\0\0", &long] {
        fs::write(&path, text).unwrap();
        assert_says(&pointer(run.path(), BEST).unwrap_err(), &["best"]);
        locate(run.path(), Some(Which::Best)).unwrap_err();
        assert_eq!(found(run.path(), None), ("last, update 20".into(), 1));
    }
    fs::write(&path, b"step-\xff").unwrap();
    pointer(run.path(), BEST).unwrap_err();
    fs::remove_file(&path).unwrap();
    fs::write(run.path().join(LAST), "rubbish").unwrap();
    assert_eq!(found(run.path(), Some(Which::Last)), ("last, update 20".into(), 1));
    fs::write(run.path().join(LAST), "step-00000099").unwrap();
    assert_eq!(found(run.path(), Some(Which::Last)), ("last, update 20".into(), 1));
}

/// The checkpoints of an interval and of the wanted update, but none after it: a resume has passed over some of these.
#[test]
fn regular_checkpoints_end_at_the_update_asked_for() {
    let run = tempfile::tempdir().unwrap();
    for step in 2..=8 {
        let is_regular = [2, 4, 6, 7].contains(&step);
        save(run.path(), step, &[], &[], &json!({ "regular": is_regular })).unwrap();
    }
    let steps = |step| -> Vec<u64> { regular(run.path(), step).unwrap().into_iter().map(|(step, _)| step).collect() };
    assert_eq!(steps(5), [2, 4, 5]);
    assert_eq!(steps(6), [2, 4, 6]);
    assert_eq!(steps(9), [2, 4, 6, 7]);
    assert_eq!(steps(8), [2, 4, 6, 7, 8]);
}

#[test]
fn pruning_keeps_what_is_needed() {
    let run = tempfile::tempdir().unwrap();
    let checkpoints = run.path().join("checkpoints");
    prune(run.path(), 0, 3, &[]).unwrap();
    for step in 1..=8 {
        save_step(run.path(), step);
    }
    set_pointer(run.path(), BEST, 2).unwrap();
    set_pointer(run.path(), LAST, 7).unwrap();
    prune(run.path(), 8, 20, &[]).unwrap();
    assert_eq!(steps(run.path()), [1, 2, 3, 4, 5, 6, 7, 8]);
    prune(run.path(), 8, 3, &[4, 77]).unwrap();
    assert_eq!(steps(run.path()), [2, 4, 6, 7, 8]);
    prune(run.path(), 8, 0, &[]).unwrap();
    assert_eq!(steps(run.path()), [2, 7, 8]);
    assert_eq!(names(&checkpoints), ["step-00000002", "step-00000007", "step-00000008"]);

    fs::write(run.path().join(BEST), "rubbish").unwrap();
    prune(run.path(), 8, 1, &[]).unwrap_err();
    assert_eq!(steps(run.path()), [2, 7, 8]);
}

/// Those that a resume has passed over do not count as the newest, and do not come back.
#[test]
fn pruning_removes_what_comes_after() {
    let run = tempfile::tempdir().unwrap();
    for step in [10, 20, 30, 40, 50, 60] {
        save_step(run.path(), step);
    }
    let checkpoints = run.path().join("checkpoints");
    fs::remove_file(checkpoints.join("step-00000050").join(MANIFEST_FILE)).unwrap();
    save_step(run.path(), 45);
    set_pointer(run.path(), LAST, 45).unwrap();
    prune(run.path(), 45, 3, &[]).unwrap();
    assert_eq!(names(&checkpoints), ["step-00000030", "step-00000040", "step-00000045"]);
}

/// Checkpoints are renamed before they are removed, so a located one is open or gone, never half there.
#[test]
fn a_model_that_was_found_may_be_removed_by_training() {
    let run = tempfile::tempdir().unwrap();
    for step in [1, 2] {
        save_step(run.path(), step);
    }
    let located = locate(run.path(), Some(Which::Step(1))).unwrap();
    let mut flat = vec![0.0; ELEMENTS];
    located.load_into(&layout(), &mut flat).unwrap();
    assert_eq!(bits(&flat), bits(&values(1)));
    prune(run.path(), 2, 1, &[]).unwrap();
    // It is open, so it stays readable, again and again.
    for _ in 0..2 {
        flat.fill(0.0);
        located.load_into(&layout(), &mut flat).unwrap();
        assert_eq!(bits(&flat), bits(&values(1)));
    }
    let gone = ["the checkpoint is gone", "step-00000001", "try again"];
    assert_says(&verify(&located.directory).unwrap_err(), &gone);
}

/// Verifies the newest checkpoint of each look; returns the result and the number of looks. During the first `unlucky`
/// looks, training replaces the checkpoint before it is verified.
fn looked(unlucky: u64) -> (Result<bool>, u64) {
    let run = tempfile::tempdir().unwrap();
    let replace = |step| {
        save_step(run.path(), step);
        set_pointer(run.path(), LAST, step).unwrap();
        prune(run.path(), step, 1, &[]).unwrap();
    };
    replace(1);
    let mut looks = 0;
    let look = || {
        looks += 1;
        let (step, newest) = list(run.path())?.pop().unwrap();
        if looks <= unlucky {
            replace(step + 1);
        }
        verify(&newest).map(|_| step == looks)
    };
    let found = look_again(run.path(), |is_newest| *is_newest, look);
    (found, looks)
}

#[test]
fn a_run_is_looked_into_again_if_training_has_changed_it_meanwhile() {
    assert!(matches!(looked(0), (Ok(true), 1)));
    assert!(matches!(looked(2), (Ok(true), 3)));
    assert!(matches!(looked(9), (Ok(true), 10)));
    let (found, looks) = looked(99);
    assert_eq!(looks, 20);
    assert_says(&found.unwrap_err(), &["the checkpoint is gone", "step-00000020", "`train.keep`", "try again"]);
}

/// Whichever checkpoint a reader asks for, while another thread saves and prunes as fast as it can.
#[test]
fn checkpoints_are_read_beside_training_that_removes_them() {
    let run = tempfile::tempdir().unwrap();
    let save = |step| {
        save_step(run.path(), step);
        set_pointer(run.path(), LAST, step).unwrap();
        set_pointer(run.path(), BEST, step).unwrap();
        prune(run.path(), step, 1, &[]).unwrap();
    };
    save(1);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| (2..).take_while(|_| !is_done.load(std::sync::atomic::Ordering::Relaxed)).for_each(save));
        let read = |which: Option<Which>| -> Result<()> {
            let mut flat = vec![0.0; ELEMENTS];
            let located = locate(run.path(), which)?;
            located.load_into(&layout(), &mut flat)?;
            let average = || {
                let newest = list(run.path())?.into_iter().map(|(_, directory)| directory).collect::<Vec<_>>();
                average(&newest, &layout(), &mut flat)
            };
            look_again(run.path(), |()| true, average)
        };
        let all = (0..100).try_for_each(|i| read([None, Some(Which::Best), Some(Which::Last)][i % 3]));
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        all.unwrap();
    });
}

/// Training may keep a link instead of the directory only if the user allows it, and never a link to a file.
#[test]
fn nothing_is_saved_or_removed_through_links() {
    let (run, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, run.path().join(name)).unwrap();
    let victim = elsewhere.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let disk = elsewhere.path().join("disk");
    fs::create_dir(&disk).unwrap();
    link(&disk, "checkpoints");
    let says = ["checkpoints is a link, which is not followed here"];
    let state = json!({});
    assert_says(&save(run.path(), 1, &[], &[], &state).unwrap_err(), &says);
    let allowed = RunPath::following_links(run.path(), true);
    for step in [1, 2, 3] {
        save(allowed, step, &[], &[], &state).unwrap();
    }
    for name in [".last.tmp", ".best.tmp", "last", "best"] {
        link(&victim, name);
    }
    set_pointer(run.path(), BEST, 3).unwrap();
    fs::remove_file(run.path().join(LAST)).unwrap();
    link(&victim, "checkpoints/.tmp-step-00000004");
    link(elsewhere.path(), "checkpoints/.old-step-00000001");
    link(elsewhere.path(), "checkpoints/step-00000009");
    assert_says(&prune(run.path(), 3, 1, &[]).unwrap_err(), &says);
    prune(allowed, 3, 1, &[]).unwrap();
    assert_says(&remove_after(run.path(), 2, None).unwrap_err(), &["there is no such checkpoint"]);
    save(allowed, 4, &[], &[], &state).unwrap();
    assert_says(&remove_after(run.path(), 3, None).unwrap_err(), &says);
    remove_after(allowed, 3, None).unwrap();
    // The apparent leftover of a crash has its name back, but is still a link.
    assert_eq!(names(&disk), ["step-00000001", "step-00000003"]);
    assert_eq!(names(elsewhere.path()), ["disk", "victim"]);
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}

#[test]
fn what_does_not_change_is_looked_at_once() {
    let run = tempfile::tempdir().unwrap();
    save_step(run.path(), 1);
    let mut looks = 0;
    let damaged: Result<()> = look_again(
        run.path(),
        |()| true,
        || {
            looks += 1;
            Err(Error::failure("damaged"))
        },
    );
    assert_eq!((damaged.unwrap_err().to_string().as_str(), looks), ("damaged", 1));
    // Something may be found that is not sound, such as an older checkpoint.
    let older = look_again(run.path(), |is_newest| *is_newest, || Ok(false));
    assert!(!older.unwrap());
}
