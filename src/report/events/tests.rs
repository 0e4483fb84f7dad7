use super::*;
use serde_json::json;

/// The events of the only file in a directory, read as TensorBoard reads them.
fn events(directory: &Path) -> Vec<Event> {
    let paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
    let bytes = std::fs::read(&paths[0]).unwrap();
    let length: usize = records(&bytes).map(|data| data.len() + 16).sum();
    assert_eq!(length, bytes.len(), "a record is damaged");
    records(&bytes).map(|data| Event::decode(data).unwrap()).collect()
}

#[test]
fn a_run_that_goes_on_has_one_file_that_tells_what_the_log_tells() {
    let folder = tempfile::tempdir().unwrap();
    let train = |update: u64| {
        json!({
            "event": "train", "update": update, "loss": 3.0, "perplexity": 8.0, "learning_rate": 0.001,
            "gradient_norm": 0.5, "tokens_per_second": 100.0, "memory": 3 << 20, "seconds": update,
        })
    };
    let valid = json!({
        "event": "valid", "update": 20, "loss": 2.0, "perplexity": 4.0, "bleu": 30.0, "seconds": 21,
        "samples": ["  source  a\n  output  b\n"],
    });
    let mut log = Events::new(folder.path());
    log.begin(&[]).unwrap();
    log.entry(&train(10)).unwrap();
    log.entry(&train(20)).unwrap();
    log.entry(&json!({"event": "skip", "update": 21})).unwrap();
    let mut again = Events::new(folder.path());
    again.begin(&[train(10)]).unwrap();
    again.entry(&valid).unwrap();

    let events = events(&folder.path().join(DIRECTORY));
    assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
    assert_eq!(events[1].session_log, Some(SessionLog { status: 1 }));
    let values = |event: &Event| -> Vec<(String, f32)> {
        let values = &event.summary.as_ref().unwrap().value;
        values.iter().filter_map(|value| Some((value.tag.clone(), value.simple_value?))).collect()
    };
    assert_eq!((events.len(), events[2].step, events[3].step), (4, 10, 20));
    assert!(values(&events[2]).contains(&("memory/MiB".to_owned(), 3.0)));
    assert!(values(&events[2]).contains(&("train/cross_entropy".to_owned(), 8f64.ln() as f32)));
    assert!(values(&events[3]).contains(&("valid/bleu".to_owned(), 30.0)));
    let of_set = json!({"event": "monitor", "set": "news", "update": 20, "bleu": 9.0, "seconds": 21, "model": null});
    let tags = |entry: &Value| summary(entry).into_iter().map(|value| value.tag).collect::<Vec<_>>();
    assert_eq!(tags(&of_set), ["monitor/news/bleu"]);
    let of_final = json!({"event": "monitor", "set": "news", "update": 20, "bleu": 9.0, "model": "last"});
    assert!(tags(&of_final).is_empty());
    assert!((events[3].wall_time - events[2].wall_time - 11.0).abs() < 1e-6);
    let text = &events[3].summary.as_ref().unwrap().value.last().unwrap().tensor.as_ref().unwrap().string_val;
    assert_eq!(text[..], [b"    source  a\n    output  b\n".to_vec()]);
}

/// Images of updates that will be repeated are dropped; a torn record at the end must not lose the others.
#[test]
fn images_outlive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let explained = [Explanation::default()];
    let samples = |update| Samples { update, is_final: false, explained: &explained };
    let entry = |update: u64| json!({ "event": "valid", "update": update, "loss": 2.0, "seconds": 1 });
    let mut log = Events::new(folder.path());
    log.begin(&[]).unwrap();
    for update in [10, 20] {
        log.samples(samples(update)).unwrap();
        log.entry(&entry(update)).unwrap();
    }
    // This update will be repeated.
    log.samples(Samples { is_final: true, ..samples(10) }).unwrap();
    drop(log);
    let file = std::fs::read_dir(folder.path().join(DIRECTORY)).unwrap().next().unwrap().unwrap().path();
    let torn = [std::fs::read(&file).unwrap(), vec![200, 0, 0]].concat();
    std::fs::write(&file, torn).unwrap();
    let mut again = Events::new(folder.path());
    again.begin(&[entry(10), json!({ "event": "skip", "update": 21 })]).unwrap();
    let images =
        || events(&folder.path().join(DIRECTORY)).into_iter().filter(Event::has_images).map(|event| event.step);
    assert_eq!(images().collect::<Vec<_>>(), [10]);
    again.samples(samples(20)).unwrap();
    assert_eq!(images().collect::<Vec<_>>(), [10, 20]);
    let event = events(&folder.path().join(DIRECTORY)).pop().unwrap();
    let image = event.summary.unwrap().value.remove(0).image.unwrap();
    assert!(image.width > 10 && image.height > 10 && image.encoded_image_string.starts_with(b"\x89PNG"));
}

/// Images are not lost if a start fails, nor duplicated if it is killed before the old file is removed.
#[test]
fn an_old_file_stays_until_the_new_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join(DIRECTORY);
    let explained = [Explanation::default()];
    let entry = json!({ "event": "valid", "update": 10, "loss": 2.0, "seconds": 1 });
    let mut log = Events::new(folder.path());
    log.begin(&[]).unwrap();
    log.samples(Samples { update: 10, is_final: false, explained: &explained }).unwrap();
    drop(log);
    let images = || events(&directory).into_iter().filter(Event::has_images).count();
    assert_eq!(images(), 1);
    // A folder of that name makes the write fail.
    std::fs::create_dir(directory.join(NEW)).unwrap();
    Events::new(folder.path()).begin(std::slice::from_ref(&entry)).unwrap_err();
    std::fs::remove_dir(directory.join(NEW)).unwrap();
    assert_eq!(images(), 1);
    let file = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(&file, directory.join(format!("{}1{}", NAME.0, NAME.1))).unwrap();
    std::fs::write(directory.join(NEW), "half a file").unwrap();
    Events::new(folder.path()).begin(std::slice::from_ref(&entry)).unwrap();
    assert_eq!(images(), 1);
}

#[test]
fn a_removed_file_is_reported_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = Events::new(folder.path());
    let entry = |update: u64| json!({ "event": "train", "update": update, "loss": 3.0 });
    file.begin(&[entry(1)]).unwrap();
    file.entry(&entry(2)).unwrap();
    std::fs::remove_dir_all(folder.path().join(DIRECTORY)).unwrap();
    let error = file.entry(&entry(3)).unwrap_err().to_string();
    assert!(error.contains("were removed"), "{error}");
    // As the log does at the next validation.
    file.begin(&[entry(1), entry(2), entry(3)]).unwrap();
    file.entry(&entry(4)).unwrap();
    let steps: Vec<i64> = events(&folder.path().join(DIRECTORY)).iter().map(|event| event.step).collect();
    assert_eq!(steps, [0, 0, 1, 2, 3, 4]);
}
