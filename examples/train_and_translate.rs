//! Trains a model, goes on with it, and translates with it: what `mt train` and `mt translate` do, as a library.
//!
//! cargo run --release --example train_and_translate

use std::path::Path;
use std::sync::Arc;

use mt::decode::translate::{TranslateOptions, Translator};
use mt::error::Result;
use mt::model_dir::{self, ModelRequest};
use mt::notice::Notice;
use mt::run::Never;
use mt::run::request::RunRequest;
use mt::run::stages::{Resolved, Step, Surroundings};

/// Here, all that there is to tell is printed.
fn tell(notice: Notice) {
    eprintln!("{notice}");
}

/// Trains in a directory up to an update, from where a run there has ended.
fn train(directory: &Path, updates: u32) -> Result<u64> {
    let request = RunRequest {
        files: vec!["configs/quickstart.toml".into()],
        sets: vec![
            format!("train.max_updates={updates}"),
            // So small a model that this takes seconds.
            "model={ preset = \"transformer-tiny\", d_model = 32, encoder_layers = 1, decoder_layers = 1 }".to_owned(),
            "train.save_every=4".to_owned(),
            "valid={ every = 4, max_sentences = 8 }".to_owned(),
        ],
        directory: Some(directory.to_path_buf()),
        resume: true,
        ..RunRequest::default()
    };
    let surroundings = Surroundings { tell: Arc::new(tell), stop: &Never, meter: &|_| Box::new(|_| ()), group: None };
    match Resolved::new(request, None, &tell)?.open(surroundings)?.prepare()? {
        Step::Over { ended, .. } => Ok(ended.update.unwrap_or_default()),
        Step::Trains(prepared) => Ok(prepared.ready()?.begin()?.train()?.update),
    }
}

/// Translates lines with the model in a directory.
fn translate(directory: &Path, lines: &[&str]) -> Result<Vec<String>> {
    let request = ModelRequest { model: Some(directory.to_path_buf()), ..ModelRequest::default() };
    let model = model_dir::load(&request, &tell)?;
    let options = TranslateOptions::from_config(&model.config.decode);
    let translator = Translator::new(vec![(model.neural(None, &tell)?, model.reader())]);
    let translations = translator.translate(lines, &[], &options, |_| ())?;
    Ok(translations.into_iter().map(|translation| translation.n_best[0].text.clone()).collect())
}

fn main() -> Result<()> {
    let run = Path::new("runs/example");
    // Later calls go on with the run: after a few minutes of these, translations become good.
    let updates = 8;
    println!("trained for {} updates", train(run, updates)?);
    println!("trained for {} updates", train(run, 2 * updates)?);
    for translation in translate(run, &["the cat sleeps", "a dog runs"])? {
        println!("{translation}");
    }
    Ok(())
}

#[test]
fn a_run_is_trained_resumed_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    assert_eq!(train(&run, 4).unwrap(), 4);
    assert_eq!(train(&run, 8).unwrap(), 8);
    // There is nothing left to do.
    assert_eq!(train(&run, 8).unwrap(), 8);
    let lines = ["the cat sleeps", "a dog runs"];
    let translations = translate(&run, &lines).unwrap();
    assert_eq!(translations.len(), lines.len());
    assert_eq!(translate(&run, &lines).unwrap(), translations);
}
