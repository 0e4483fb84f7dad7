//! The backward pass over joints and stacks.

use super::{Joint, Memory, Pass, Trail};
use crate::error::{Error, Result};
use crate::gpu::cargo::Placed;
use crate::gpu::launch::Side;
use crate::gpu::plan::{Inner, Layers, Positions};
use crate::gpu::queue::{Address, Product};
use crate::ops::dropout::Dropout;
use crate::ops::sublayer::NormPlacement;

/// A gradient of activations.
#[derive(Clone, Copy)]
enum Gradient {
    /// It is there.
    At(Address),
    /// It is what the product will be, or add to what is there.
    Of(Product),
}

impl Gradient {
    /// Its memory.
    fn memory(&self) -> Address {
        match self {
            Self::At(address) => *address,
            Self::Of(product) => product.c.at,
        }
    }
}

impl Pass<'_> {
    /// Computes a gradient, if that has not been done; returns where it is.
    fn computed(&self, gradient: Gradient) -> Result<Address> {
        if let Gradient::Of(product) = &gradient {
            self.engine.kernels.product(product)?;
        }
        Ok(gradient.memory())
    }

    /// Back over a joint: from the gradients of y and of s (either may be missing), writes that of x to `ds`, and returns
    /// where that of h is: in `dh`, or in `ds` if nothing is dropped and `ds` may be overwritten.
    fn join_back(
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
        let of_norm = (self.optional(joint.norm, Self::gradient), 2 * self.d);
        let partial = self.partial_sums(blocks, [of_norm, (self.optional(bias, Self::gradient), self.d)])?;
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

    /// Back over a stack, from the gradient `g` of its output; `g`'s memory is overwritten. A memory comes with where its gradient
    /// is to be.
    pub(super) fn backward(
        &mut self,
        layers: &Layers,
        trail: &Trail,
        placed: &Placed,
        memory: Option<(&Memory, Address)>,
        g: Address,
    ) -> Result<()> {
        let side = &placed.side;
        let config = self.engine.model.config();
        let (pre, embedding_dropout) = (config.norm == NormPlacement::Pre, config.embedding_dropout);
        let mark = self.engine.arena.mark();
        let (mut other, dropped) = (self.numbers(side.rows, self.d)?, self.numbers(side.rows, self.d)?);
        let mut joints = trail.joints.iter().rev();
        let mut missing = || Error::failure("a pass without its joints");
        // The gradients of the last joint's y and, with pre-norm, of its s.
        let (mut dy, mut stream) = (Some(Gradient::At(g)), None);
        if pre && trail.joints.last().is_none_or(|joint| joint.norm.is_none()) {
            (dy, stream) = (None, Some(g));
        }
        if !pre && layers.final_norm.is_some() {
            let joint = joints.next().ok_or_else(&mut missing)?;
            self.join_back(joint, dy, None, other, dropped, side)?;
            (dy, other) = (Some(Gradient::At(other)), g);
        }
        let mut looks = Vec::new();
        for (sublayer, kept) in layers.sublayers.iter().zip(&trail.kept).rev() {
            let joint = joints.next().ok_or_else(&mut missing)?;
            let inner = self.engine.arena.mark();
            let dropped = if self.keeps_gradients() { self.numbers(side.rows, self.d)? } else { dropped };
            // The stream's gradient is updated in place; without a stream, ds overwrites the gradient before last.
            let ds = stream.unwrap_or(other);
            let dh = self.join_back(joint, dy, stream, ds, dropped, side)?;
            let spent = dy.map_or(other, |dy| dy.memory());
            let (dx, accumulate) = if pre { (spent, false) } else { (ds, true) };
            let product = match &sublayer.inner {
                Inner::Attention(attention) => {
                    self.attend_back(attention, kept, dh, side, memory, &mut looks, (dx, accumulate))?
                }
                Inner::FeedForward(feed_forward) => {
                    self.feed_forward_back(feed_forward, kept, dh, side, (dx, accumulate))?
                }
            };
            dy = Some(Gradient::Of(product));
            if !self.keeps_gradients() {
                // What the product is of is given back.
                dy = Some(Gradient::At(self.computed(Gradient::Of(product))?));
                self.engine.arena.release(inner);
            }
            other = spent;
            if pre {
                stream = Some(ds);
            }
        }
        let kernels = &self.engine.kernels;
        if self.keeps_gradients() && kernels.has_sum(&looks) {
            kernels.sum_of_products(&looks)?;
        } else if self.keeps_gradients() {
            looks.iter().try_for_each(|product| kernels.product(product))?;
        }
        let dx = if pre {
            let joint = joints.next().ok_or_else(&mut missing)?;
            let dx = stream.unwrap_or(other);
            self.join_back(joint, dy, stream, dx, dropped, side)?;
            dx
        } else {
            dy.map_or(Ok(g), |dy| self.computed(dy))?
        };
        let dropout = self.mode.dropout(embedding_dropout, layers.site);
        let scale = self.engine.model.config().embedding_scale();
        let kernels = &self.engine.kernels;
        let table = self.gradient(layers.table);
        kernels.embed_backward(table, dx, &placed.tokens, side.padded, scale, dropout, self.d)?;
        if let (Positions::Learned(place), Some(places)) = (layers.positions, &placed.places) {
            kernels.embed_backward(self.gradient(place), dx, places, side.padded, 1.0, dropout, self.d)?;
        }
        self.release_gradients(mark);
        Ok(())
    }
}
