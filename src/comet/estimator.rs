//! The layers that turn vectors into a score.

use super::checkpoint::Checkpoint;
use super::settings::{Activation, Settings};
use crate::error::{Error, Result};
use crate::ops::matmul::{Packed, Precision};

/// A feed-forward network with one output.
#[derive(Debug)]
pub(super) struct Estimator {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// [out, in].
    weight: Packed,
    bias: Vec<f32>,
    activation: Option<Activation>,
}

impl Estimator {
    /// From vectors of `input` numbers.
    ///
    /// # Errors
    /// A tensor is missing, or their shapes do not fit together.
    pub(super) fn new(checkpoint: &Checkpoint, settings: &Settings, input: usize) -> Result<Self> {
        // Between two projections are an activation and a dropout.
        let name = |number: usize, part: &str| format!("estimator.ff.{}.{part}", 3 * number);
        let count = (0..).take_while(|number| checkpoint.shape(&name(*number, "weight")).is_some()).count();
        let (mut layers, mut width) = (Vec::new(), input);
        for number in 0..count {
            let names = ["weight", "bias"].map(|part| name(number, part));
            let [weight, bias] = names.each_ref().map(|name| checkpoint.shape(name).unwrap_or_default());
            let fits =
                matches!((weight, bias), ([out, within], [biases]) if *within == width && out == biases && *out > 0);
            if !fits {
                let what = format!("the tensor {} is {weight:?}, where {width} numbers come in", names[0]);
                return Err(Error::failure(what));
            }
            let out = weight[0];
            let weight = Packed::transposed(&checkpoint.floats(&names[0])?, out, width, Precision::F32);
            let activation = if number + 1 < count { Some(settings.activation) } else { settings.last };
            layers.push(Layer { weight, bias: checkpoint.floats(&names[1])?, activation });
            width = out;
        }
        match width == 1 && count > 0 {
            true => Ok(Self { layers }),
            false => Err(Error::failure(format!("its estimator has {count} layers and {width} outputs, not one"))),
        }
    }

    /// The score of each row. rows: [n, input].
    pub(super) fn scores(&self, rows: Vec<f32>, count: usize) -> Vec<f32> {
        let mut values = rows;
        for Layer { weight, bias, activation } in &self.layers {
            let mut next = vec![0.0; count * bias.len()];
            weight.product(&values, &mut next, false);
            for row in next.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            if let Some(activation) = activation {
                activation.apply(&mut next);
            }
            values = next;
        }
        values
    }
}
