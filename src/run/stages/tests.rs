use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use super::*;

const CONFIG: &str = r#"
[data]
train = [{ source = "train.en", target = "train.de" }]
valid = { source = "valid.en", target = "valid.de" }
[tokenizer]
vocab_size = 300
[model]
d_model = 16
d_ff = 16
heads = 2
encoder_layers = 1
decoder_layers = 1
[train]
batch_tokens = 100
max_updates = 4
save_every = 2
[train.schedule]
kind = "constant"
learning_rate = 0.003
[valid]
every = 2
[runtime]
device = "cpu"
"#;

/// A directory with text and a configuration, and what was told.
struct Bench {
    folder: tempfile::TempDir,
    told: Arc<Mutex<Vec<Notice>>>,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap(), told: Arc::default() };
        for (name, words) in [("en", ["the cat", "a dog", "the dog"]), ("de", ["die Katze", "ein Hund", "der Hund"])] {
            bench.write(&format!("train.{name}"), &(words.join("\n") + "\n").repeat(20));
            bench.write(&format!("valid.{name}"), &(words.join("\n") + "\n"));
        }
        bench.write("a.toml", CONFIG);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn request(&self, sets: &[&str]) -> RunRequest {
        RunRequest {
            files: vec![self.path("a.toml")],
            sets: sets.iter().map(|set| (*set).to_owned()).collect(),
            directory: Some(self.path("run")),
            resume: true,
            ..RunRequest::default()
        }
    }

    fn surroundings<'a>(&self, stop: &'a dyn Stop) -> Surroundings<'a> {
        let told = self.told.clone();
        let tell = Arc::new(move |notice| told.lock().unwrap().push(notice));
        Surroundings { tell, stop, meter: &|_| Box::new(|_| ()), group: None }
    }

    fn opened(&self, request: RunRequest) -> Result<Opened<'static>> {
        Resolved::new(request, None, &|_| ())?.open(self.surroundings(&super::super::Never))
    }

    fn prepared(&self, request: RunRequest) -> Result<Box<Prepared<'static>>> {
        match self.opened(request)?.prepare()? {
            Step::Trains(prepared) => Ok(prepared),
            Step::Over { .. } => panic!("the run is over"),
        }
    }

    fn train(&self, request: RunRequest) -> Result<Outcome> {
        self.prepared(request)?.ready()?.begin()?.train()
    }

    /// All files of the run, by name; without the lock, which is made before anything is known.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut files, mut open) = (BTreeMap::new(), vec![self.path("run")]);
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else if !path.ends_with(".lock") {
                    let contents = fs::read(&path).unwrap();
                    files.insert(path, contents);
                }
            }
        }
        files
    }

    /// A bench with a run that has ended.
    fn trained() -> Self {
        let bench = Self::new();
        let outcome = bench.train(bench.request(&[])).unwrap();
        assert_eq!((outcome.update, outcome.stopped, outcome.why.as_str()), (4, None, UPDATES_REACHED));
        assert!(outcome.model.is_some() && outcome.validation.is_some());
        bench
    }
}

fn says<T>(result: Result<T>, words: &str) {
    let Err(error) = result else { panic!("no error with `{words}`") };
    assert!(error.to_string().contains(words), "`{words}` is missing in: {error}");
}

const MORE: &str = "train.max_updates=6";

#[test]
fn a_run_goes_on_and_then_is_over() {
    let bench = Bench::trained();
    let outcome = bench.train(bench.request(&[MORE])).unwrap();
    assert_eq!(outcome.update, 6);
    assert!(bench.told.lock().unwrap().contains(&Notice::Info("resuming at update 4".to_owned())));
    let before = bench.files();
    match bench.opened(bench.request(&[MORE])).unwrap().prepare().unwrap() {
        Step::Over { ended, run, .. } => assert_eq!((ended.update, run), (Some(6), bench.path("run"))),
        Step::Trains(_) => panic!("there is something left to do"),
    }
    assert_eq!(bench.files(), before);
}

/// Whatever fails, and whenever, the files of the run are as they were, and it can go on.
#[test]
fn a_stage_that_fails_leaves_the_run_as_it_was() {
    let bench = Bench::trained();
    let before = bench.files();
    let is_as_before = |what: &str| assert!(bench.files() == before, "{what}");
    // While the request is resolved.
    says(Resolved::new(bench.request(&["model.heads=3"]), None, &|_| ()).map(drop), "heads");
    says(Resolved::new(bench.request(&["data.train=[{source=\"no\",target=\"no\"}]"]), None, &|_| ()).map(drop), "no");
    says(Resolved::new(bench.request(&["runtime.device=\"tpu\""]), None, &|_| ()).map(drop), "tpu");
    is_as_before("resolving");
    // While the run is opened: it exists, it may not be continued with other parameters, or is another's.
    says(bench.opened(RunRequest { resume: false, ..bench.request(&[]) }).map(drop), "already exists");
    says(bench.opened(bench.request(&["model.d_ff=32"])).map(drop), "d_ff");
    let held = bench.opened(bench.request(&[MORE])).unwrap();
    says(bench.opened(bench.request(&[MORE])).map(drop), "is training in this run directory");
    drop(held);
    is_as_before("opening");
    // While it is prepared: the text cannot be read, or the tokenizer is damaged.
    let text = fs::read(bench.path("train.de")).unwrap();
    bench.write("train.de", "a line too few\n");
    says(bench.prepared(bench.request(&[MORE])).map(drop), "train.de");
    fs::write(bench.path("train.de"), &text).unwrap();
    is_as_before("preparing");
    // While it gets ready: the text is another one, or nothing can be written.
    bench.write("train.de", &String::from_utf8(text.clone()).unwrap().replace("Hund", "Hunde"));
    let prepared = bench.prepared(bench.request(&[MORE])).unwrap();
    says(prepared.ready().map(drop), "training text");
    fs::write(bench.path("train.de"), &text).unwrap();
    is_as_before("another text");
    let prepared = bench.prepared(bench.request(&[MORE])).unwrap();
    let model = bench.path("run/model.safetensors");
    let weights = fs::read(&model).unwrap();
    fs::remove_file(&model).unwrap();
    fs::create_dir(&model).unwrap();
    says(prepared.ready().map(drop), "model.safetensors");
    fs::remove_dir(&model).unwrap();
    fs::write(&model, weights).unwrap();
    is_as_before("writing");
    // What is ready, but does not begin, leaves nothing either.
    drop(bench.prepared(bench.request(&[MORE])).unwrap().ready().unwrap());
    is_as_before("being ready");
    assert_eq!(bench.train(bench.request(&[MORE])).unwrap().update, 6);
}

/// Says stop after having been asked so many times.
struct After(Cell<u32>);

impl Stop for After {
    fn stop(&self) -> Option<StopReason> {
        self.0.set(self.0.get().saturating_sub(1));
        (self.0.get() == 0).then_some(StopReason::Terminated)
    }

    fn allow_immediate_end(&self, _: bool) {}
}

/// Whenever it is stopped, a run that has begun can go on, and one that has not is as it was.
#[test]
fn a_run_can_be_stopped_at_any_time() {
    let bench = Bench::trained();
    let before = bench.files();
    let mut began = false;
    for times in 1..20 {
        let stop = After(Cell::new(times));
        let trained = (|| {
            let opened = Resolved::new(bench.request(&["train.max_updates=10000"]), None, &|_| ())?;
            match opened.open(bench.surroundings(&stop))?.prepare()? {
                Step::Trains(prepared) => prepared.ready()?.begin()?.train(),
                Step::Over { .. } => panic!("the run is over"),
            }
        })();
        match trained {
            Ok(outcome) => {
                began = true;
                assert_eq!((outcome.stopped, outcome.model), (Some(StopReason::Terminated), None));
            }
            Err(error) => {
                assert_eq!(error.kind(), crate::error::ErrorKind::Terminated, "{error}");
                assert!(!began && bench.files() == before, "stopped at {times}");
            }
        }
    }
    assert!(began, "it was always stopped before it began");
    let state = restore::newest(&bench.path("run"), &|_| ()).unwrap().unwrap().0;
    assert!((5..10_000).contains(&state.step), "{}", state.step);
}

/// Where memory has no room for a copy, checkpoints hold the same.
#[test]
fn checkpoints_are_alike_with_and_without_a_copy() {
    let tensors = |copies: bool| {
        let bench = Bench::new();
        let sets = ["train.exponential_average=0.9", "train.save_every=1", "runtime.threads=1"];
        let mut ready = bench.prepared(bench.request(&sets)).unwrap().ready().unwrap();
        assert!(ready.parts.copies_checkpoints, "so small a model has room");
        ready.parts.copies_checkpoints = copies;
        ready.begin().unwrap().train().unwrap();
        let run = bench.path("run");
        let files = bench.files().into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "safetensors"));
        files.map(|(path, bytes)| (path.strip_prefix(&run).unwrap().to_owned(), bytes)).collect::<Vec<_>>()
    };
    let (copied, in_place) = (tensors(true), tensors(false));
    assert!(copied.len() >= 9, "a model and an optimizer at each of four updates, and the final model");
    assert!(copied == in_place);
}
