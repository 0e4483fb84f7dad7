//! The models that a command line names.

use std::path::{Path, PathBuf};

use candle_core::Device;

use crate::cli::{Common, ModelArgs, ModelsArgs};
use crate::console::tell;
use crate::device;
use crate::error::{Error, Result};
use crate::model_dir::{self, ModelFiles, ModelRequest};

/// The device that `--device` names, or the best one: for what has no configuration.
pub(crate) fn open_device(common: &Common) -> Result<Device> {
    device::open(common.device.as_deref().unwrap_or("auto"))
}

/// Finds the model that the flags name.
pub(crate) fn load(args: &ModelArgs, common: &Common) -> Result<ModelFiles> {
    load_from(args.model.as_deref(), args.checkpoint.as_deref(), common)
}

/// Finds the model in a directory, or the default one if none is named.
pub(crate) fn load_from(model: Option<&Path>, checkpoint: Option<&str>, common: &Common) -> Result<ModelFiles> {
    let request = ModelRequest {
        model: model.map(Path::to_path_buf),
        checkpoint: checkpoint.map(str::to_owned),
        device: common.device.clone(),
        threads: common.threads,
        offline: common.offline,
    };
    model_dir::load(&request, &tell)
}

/// Finds the models that the flags name, at least one.
pub(crate) fn load_all(args: &ModelsArgs, common: &Common) -> Result<(ModelFiles, Vec<ModelFiles>)> {
    check_weights(&args.weights, args.model.len())?;
    let load = |model: Option<&Path>| load_from(model, args.checkpoint.as_deref(), common);
    let first = load(args.model.first().map(PathBuf::as_path))?;
    let others = args.model.iter().skip(1).map(|model| load(Some(model))).collect::<Result<_>>()?;
    Ok((first, others))
}

/// Refuses `--weights` that are not one positive number for each of several models.
pub(crate) fn check_weights(weights: &[f64], models: usize) -> Result<()> {
    if weights.is_empty() {
        return Ok(());
    }
    if weights.len() != models || models < 2 {
        let [s, each] = [weights.len(), models].map(|count| if count == 1 { "" } else { "s" });
        let what = format!("--weights has {} number{s} for {models} model{each}", weights.len());
        return Err(Error::usage(what).help("give several models, and one number for each, in their order"));
    }
    if weights.iter().any(|weight| weight.is_nan() || *weight <= 0.0) || !weights.iter().sum::<f64>().is_finite() {
        let error = Error::usage("--weights are positive numbers with a finite sum");
        return Err(error.help("leave out a model that is not to count"));
    }
    let sum: f64 = weights.iter().sum();
    if let Some(weight) = weights.iter().find(|weight| **weight / sum < f64::MIN_POSITIVE) {
        let error = Error::usage(format!("--weights: beside the others, {weight:e} is nothing"));
        return Err(error.help("leave out a model that is not to count"));
    }
    Ok(())
}
