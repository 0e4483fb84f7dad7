//! Conditions on a model's positions.

use super::Together;
use crate::error::Error;
use crate::model::{ModelConfig, PositionKind, Sinusoid};

/// Heads times positions: translation makes a table of relative positions four times as large.
const RELATIVE_NUMBERS: usize = 1 << 24;

impl Together<'_> {
    pub(super) fn positions(&mut self, model: &ModelConfig) {
        if model.positions != PositionKind::Sinusoidal && model.first_position > 0 {
            let (first, kind) = (model.first_position, model.positions);
            let what = format!(
                "`model.first_position` = {first} is for sinusoidal positions, but `model.positions` = \"{kind}\""
            );
            let help = "leave `first_position` out";
            self.add(&["model.first_position", "model.positions"], Error::usage(what).help(help));
        }
        let has_none = matches!(model.positions, PositionKind::Learned | PositionKind::Relative);
        if has_none && model.sinusoid != ModelConfig::default().sinusoid {
            let (sinusoid, kind) = (model.sinusoid, model.positions);
            let what = format!(
                "`model.sinusoid` = \"{sinusoid}\" is for sinusoidal positions, but `model.positions` = \"{kind}\""
            );
            let error = Error::usage(what).help("leave `sinusoid` out");
            self.add(&["model.sinusoid", "model.positions"], error);
        }
        if model.positions == PositionKind::Rotary && !model.d_k.is_multiple_of(2) {
            let what = format!(
                "`model.positions` = \"rotary\" rotates pairs of numbers, but `model.d_k` = {} is odd",
                model.d_k
            );
            self.add(&["model.d_k", "model.heads", "model.positions"], Error::usage(what).help("make `d_k` even"));
        }
        if model.positions == PositionKind::Rotary && model.sinusoid == Sinusoid::Tensor2Tensor {
            let what =
                "`model.sinusoid` = \"tensor2tensor\" is for sinusoidal positions, but `model.positions` = \"rotary\"";
            let help = "set `sinusoid` to \"interleaved\" or \"halves\"";
            self.add(&["model.sinusoid", "model.positions"], Error::usage(what).help(help));
        }
    }

    pub(super) fn relative(&mut self, model: &ModelConfig) {
        let (buckets, far, default) = (model.relative_buckets, model.relative_distance, ModelConfig::default());
        let stated = [
            ("relative_buckets", buckets, default.relative_buckets),
            ("relative_distance", far, default.relative_distance),
        ];
        for (key, value, default) in stated {
            if model.positions != PositionKind::Relative && value != default {
                let kind = model.positions;
                let what =
                    format!("`model.{key}` = {value} is for relative positions, but `model.positions` = \"{kind}\"");
                let help = format!("leave `{key}` out, or set `positions = \"relative\"`");
                self.add(&[&format!("model.{key}"), "model.positions"], Error::usage(what).help(help));
            }
        }
        if model.positions == PositionKind::Relative && model.heads.saturating_mul(model.max_length) > RELATIVE_NUMBERS
        {
            let (heads, length) = (model.heads, model.max_length);
            let what = format!(
                "relative positions need a table of `model.heads` = {heads} times `model.max_length` = {length} numbers"
            );
            let help = format!("lower one of them: their product may be {RELATIVE_NUMBERS}");
            self.add(&["model.max_length", "model.heads"], Error::usage(what).help(help));
        }
        if far <= buckets / 2 {
            let what = format!(
                "`model.relative_distance` = {far} must be more than half of `model.relative_buckets` = {buckets}, \
                 half of which have one distance each"
            );
            let help = format!("set `relative_distance` to more than {}, or lower `relative_buckets`", buckets / 2);
            self.add(&["model.relative_buckets", "model.relative_distance"], Error::usage(what).help(help));
        }
    }
}
