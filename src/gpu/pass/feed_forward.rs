//! The feed-forward sub-layer.

use super::sums::only;
use super::{Kept, Pass};
use crate::error::{Error, Result};
use crate::gpu::launch::Side;
use crate::gpu::plan::FeedForward;
use crate::gpu::queue::{Address, Epilogue, Product};
use crate::ops::feed_forward::Activation;

impl Pass<'_> {
    /// Up to the last projection, whose input is returned.
    pub(super) fn feed_forward(&mut self, layer: &FeedForward, input: Address, side: &Side) -> Result<(Kept, Address)> {
        let config = self.engine.model.config();
        let (activation, is_gated, width) = (config.activation, config.gated, layer.fc2.input);
        let dropout = self.mode.dropout(config.activation_dropout, layer.site);
        let before = self.numbers(side.rows, layer.fc1.out)?;
        let relu = activation == Activation::Relu && !is_gated;
        let epilogue = match self.bias(&layer.fc1) {
            Epilogue::Bias(bias) if relu => Epilogue::BiasRelu(bias),
            epilogue => epilogue,
        };
        // With relu, the hidden layer itself shows where its input was positive.
        let hidden = if relu { before } else { self.numbers(side.rows, width)? };
        let kept = Kept::FeedForward { input, before, hidden };
        let product = Product { epilogue, ..self.projection(input, side.rows, &layer.fc1, before) };
        let has_relu = matches!(epilogue, Epilogue::BiasRelu(_));
        if has_relu && dropout.is_on() && self.engine.kernels.has_kernel(&product) {
            self.engine.kernels.product_with_dropout(&product, dropout, side.padded)?;
            return Ok((kept, hidden));
        }
        self.multiply(&product)?;
        if !has_relu || dropout.is_on() {
            self.engine.kernels.activate(activation, is_gated, [hidden, before], dropout, side, width)?;
        }
        Ok((kept, hidden))
    }

    /// Up to the product of the input's gradient, which is returned.
    pub(super) fn feed_forward_back(
        &mut self,
        layer: &FeedForward,
        kept: &Kept,
        dh: Address,
        side: &Side,
        (dx, accumulate): (Address, bool),
    ) -> Result<Product> {
        let Kept::FeedForward { input, before, hidden } = *kept else {
            return Err(Error::failure("a pass whose sub-layers were mixed up"));
        };
        let config = self.engine.model.config();
        let (activation, is_gated, rows, width) = (config.activation, config.gated, side.rows, layer.fc2.input);
        let dropout = self.mode.dropout(config.activation_dropout, layer.site);
        self.add_weight_gradient(dh, hidden, rows, &layer.fc2, None)?;
        let g = self.numbers(rows, width)?;
        let product = self.product_back(dh, rows, &layer.fc2, g, false);
        let kernels = &self.engine.kernels;
        if activation == Activation::Relu && !is_gated && kernels.has_kernel(&product) {
            let scale = if dropout.is_on() { dropout.parts().2 } else { 1.0 };
            kernels.product_through_relu(&product, hidden, scale)?;
            self.add_weight_gradient(g, input, rows, &layer.fc1, layer.fc1.bias)?;
            return Ok(self.product_back(g, rows, &layer.fc1, dx, accumulate));
        }
        kernels.product(&product)?;
        let blocks = kernels.column_blocks(rows, layer.fc1.out);
        let bias = self.optional(layer.fc1.bias, Self::gradient);
        let partial = self.partial_sums(blocks, only((bias, layer.fc1.out)))?;
        let of_input = if is_gated { self.numbers(rows, layer.fc1.out)? } else { g };
        let kernels = &self.engine.kernels;
        match is_gated {
            true => kernels.gate_backward(activation, [of_input, g, partial, before], dropout, side, width)?,
            false => kernels.activate_backward(activation, [g, partial, before], dropout, side, width)?,
        }
        self.add_weight_gradient(of_input, input, rows, &layer.fc1, None)?;
        Ok(self.product_back(of_input, rows, &layer.fc1, dx, accumulate))
    }
}
