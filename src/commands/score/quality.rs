//! How good a model of COMET finds translations, without references.

use std::path::PathBuf;

use serde_json::json;

use super::{Scorer, plain};
use crate::cli::{Common, ScoreArgs};
use crate::comet::{Comet, Found, Hardware};
use crate::commands::shared::model::open_device;
use crate::commands::shared::pairs::Pair;
use crate::console::info;
use crate::decode::rerank::Judge;
use crate::error::{Error, Result};
use crate::escape::harmless_json;
use crate::infer::ComputeType;
use crate::model_dir::Wanted;

/// Writes the estimated quality of each translation.
pub(super) fn run(model: &str, args: &ScoreArgs, common: &Common) -> Result<()> {
    let device = open_device(common)?;
    let precision = match args.precision.as_deref().map(str::parse).transpose()? {
        None => ComputeType::F32,
        Some(Wanted::This(precision)) => precision,
        Some(Wanted::Auto) if device.is_cuda() => ComputeType::Bf16,
        Some(Wanted::Auto) => ComputeType::fastest(),
    };
    let found = Found::without_references("--qe", model, common.offline)?;
    info(format_args!("QE: {}", found.name));
    let model = Comet::load(&found, &Hardware::of(&device, precision)?)?;
    super::write(Quality { model, args, is_json: common.json }, args, common, &found.files())
}

/// A model that estimates quality.
struct Quality<'a> {
    model: Comet,
    args: &'a ScoreArgs,
    is_json: bool,
}

impl Scorer for Quality<'_> {
    const FEATURE: &'static str = "QE";

    fn lines(&mut self, window: &[Pair], _: [&PathBuf; 2]) -> Result<Vec<String>> {
        let pairs: Vec<(&str, &str)> = window.iter().map(|pair| (&*pair.source, &*pair.target)).collect();
        let scores = self.model.qualities(&pairs)?;
        let shown = |(pair, score): (&Pair, f64)| {
            if !self.is_json {
                return plain::<Self>(pair, self.args, Some(score));
            }
            let mut json = json!({ "source": pair.source, "target": pair.target, "qe": score });
            if let Some(entry) = &pair.entry {
                json["number"] = entry.number.into();
            }
            harmless_json(&json.to_string()).into_owned()
        };
        Ok(window.iter().zip(scores).map(shown).collect())
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn finish(self) -> (Vec<String>, Vec<Error>) {
        Default::default()
    }
}
