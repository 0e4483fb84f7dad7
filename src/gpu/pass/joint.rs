//! Joints: the residual sum and norm between two sub-layers, with the product before them where one kernel computes
//! both.

use super::Pass;
use crate::error::Result;
use crate::gpu::launch::{NormArgument, Side};
use crate::gpu::plan::Sublayer;
use crate::gpu::queue::{Address, Product};
use crate::ops::dropout::Dropout;

/// What forward keeps of a joint.
pub(super) struct Joint {
    /// [N, D].
    s: Address,
    /// Mean and normalising factor of each row, float32 [N, 2].
    statistics: Address,
    /// Offset of γ, where it has a norm.
    pub(super) norm: Option<usize>,
    /// The bias and dropout of what is before it.
    addend: Option<(Option<usize>, Dropout)>,
}

/// Where a joint writes what it computes: s and y, [N, D], and float32 [N, 2].
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    s: Address,
    y: Address,
    statistics: Address,
}

/// What is before a joint.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    /// Nothing: s = x.
    Nothing,
    /// Normalised embeddings, which are x, with their dropout: s = dropout(x).
    Embedding(Dropout),
    /// A sub-layer, and the input of its last projection.
    Sublayer(Address, &'a Sublayer),
}

/// A gradient of activations.
#[derive(Clone, Copy)]
pub(super) enum Gradient {
    /// It is there.
    At(Address),
    /// It is what the product will be, or add to what is there.
    Of(Product),
}

impl Gradient {
    /// Its memory.
    pub(super) fn memory(&self) -> Address {
        match self {
            Self::At(address) => *address,
            Self::Of(product) => product.c.at,
        }
    }
}

impl Pass<'_> {
    /// Where γ and β are, as far as there are any.
    fn norm_places(&self, gamma: Option<usize>) -> [Option<usize>; 2] {
        let is_centred = self.engine.model.config().norm_kind.is_centred();
        [gamma, gamma.filter(|_| is_centred).map(|gamma| gamma + self.d)]
    }

    fn norm(&self, place: Option<usize>) -> NormArgument {
        let c = self.engine.model.config();
        let [gamma, beta] = self.norm_places(place).map(|place| self.optional(place, Self::master));
        NormArgument::new(gamma, beta, c.norm_eps, c.norm_kind)
    }

    /// Memory for what a joint computes.
    pub(super) fn outputs(&mut self, side: &Side) -> Result<Outputs> {
        let [s, y] = [self.numbers(side.rows, self.d)?, self.numbers(side.rows, self.d)?];
        Ok(Outputs { s, y, statistics: self.floats(2 * side.rows)? })
    }

    /// A joint; returns s and y as well. Without `outputs`, it takes memory for what it computes.
    pub(super) fn join(
        &mut self,
        x: Address,
        before: Before<'_>,
        norm: Option<usize>,
        side: &Side,
        outputs: Option<Outputs>,
    ) -> Result<(Joint, Address, Address)> {
        let s = match (before, outputs) {
            (Before::Nothing, _) => x,
            (_, Some(outputs)) => outputs.s,
            (_, None) => self.numbers(side.rows, self.d)?,
        };
        let [y, statistics] = match (norm, outputs) {
            (None, _) => [Address::NONE; 2],
            (_, Some(Outputs { y, statistics, .. })) => [y, statistics],
            (_, None) => [self.numbers(side.rows, self.d)?, self.floats(2 * side.rows)?],
        };
        let rate = self.engine.model.config().dropout;
        let addend = match before {
            Before::Nothing => None,
            Before::Embedding(dropout) => Some((None, dropout)),
            Before::Sublayer(_, sublayer) => Some((sublayer.bias, self.mode.dropout(rate, sublayer.site))),
        };
        let (bias, dropout) = addend.unwrap_or((None, Dropout::OFF));
        let (bias, of_norm) = (self.optional(bias, Self::master), self.norm(norm));
        let product = match before {
            Before::Sublayer(input, sublayer) => Some(self.projection(input, side.rows, sublayer.last(), s)),
            Before::Nothing | Before::Embedding(_) => None,
        };
        let (kernels, mut x, mut h) = (&self.engine.kernels, x, Address::NONE);
        match product {
            Some(product) if kernels.joins_norm(&product) => {
                kernels.product_add_norm(&product, [y, statistics], [x, bias], of_norm, dropout, side)?;
                return Ok((Joint { s, statistics, norm, addend }, s, y));
            }
            // s overwrites h.
            Some(product) => {
                kernels.product(&product)?;
                h = s;
            }
            None if matches!(before, Before::Embedding(_)) => (x, h) = (Address::NONE, x),
            None => {}
        }
        kernels.add_norm([y, s, statistics], [x, h, bias], of_norm, dropout, side, self.d)?;
        Ok((Joint { s, statistics, norm, addend }, s, y))
    }

    /// Computes a gradient, if that has not been done; returns where it is.
    pub(super) fn computed(&self, gradient: Gradient) -> Result<Address> {
        if let Gradient::Of(product) = &gradient {
            self.engine.kernels.product(product)?;
        }
        Ok(gradient.memory())
    }

    /// Back over a joint: from the gradients of y and of s (either may be missing), writes that of x to `ds`, and
    /// returns where that of h is: in `dh`, or in `ds` if nothing is dropped and `ds` may be overwritten.
    pub(super) fn join_back(
        &mut self,
        joint: &Joint,
        dy: Option<Gradient>,
        stream: Option<Address>,
        ds: Address,
        dh: Address,
        side: &Side,
    ) -> Result<Address> {
        let product = match dy {
            Some(Gradient::Of(product)) if self.engine.kernels.joins_norm(&product) => Some(product),
            _ => None,
        };
        let blocks = match product {
            Some(_) => self.engine.kernels.product_norm_blocks(side.rows),
            None => self.engine.kernels.norm_blocks(side.rows, self.d),
        };
        let (bias, dropout) = joint.addend.unwrap_or((None, Dropout::OFF));
        let has_own = dropout.is_on() || (joint.addend.is_some() && self.keeps_gradients());
        let dh = if has_own { dh } else { Address::NONE };
        let [gamma, beta] = self.norm_places(joint.norm);
        let targets = [gamma, beta, bias].map(|place| (self.optional(place, Self::gradient), self.d));
        let partial = self.partial_sums(blocks, targets)?;
        let (norm, addend, results) = (self.norm(joint.norm), stream.unwrap_or(Address::NONE), [ds, dh, partial]);
        let kernels = &self.engine.kernels;
        if let Some(product) = product {
            let given = [addend, joint.s, joint.statistics];
            kernels.product_norm_backward(&product, results, given, norm, dropout, side)?;
        } else {
            let dy = dy.map_or(Ok(Address::NONE), |dy| self.computed(dy))?;
            let given = [dy, addend, joint.s, joint.statistics];
            kernels.add_norm_backward(results, given, norm, dropout, side, self.d)?;
        }
        Ok(if has_own { dh } else { ds })
    }
}
