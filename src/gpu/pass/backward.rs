//! The backward pass over joints and stacks.

use super::{Joint, Memory, Pass, Trail};
use crate::error::{Error, Result};
use crate::gpu::cargo::Placed;
use crate::gpu::launch::Side;
use crate::gpu::plan::{Inner, Layers, Positions};
use crate::gpu::queue::Address;
use crate::ops::dropout::Dropout;
use crate::ops::sublayer::NormPlacement;

impl Pass<'_> {
    /// Back over a joint: from the gradients of y and of s (either may be missing), writes that of x to `ds`, and returns
    /// where that of h is: in `dh`, or in `ds` if nothing is dropped and `ds` may be overwritten.
    fn join_back(
        &mut self,
        joint: &Joint,
        dy: Option<Address>,
        stream: Option<Address>,
        ds: Address,
        dh: Address,
        side: &Side,
    ) -> Result<Address> {
        let blocks = self.engine.kernels.norm_blocks(side.rows, self.d);
        let (bias, dropout) = joint.addend.unwrap_or((None, Dropout::OFF));
        let has_own = dropout.is_on() || (joint.addend.is_some() && self.keeps_gradients());
        let dh = if has_own { dh } else { Address::NONE };
        let norm = (self.optional(joint.norm, Self::gradient), 2 * self.d);
        let partial = self.partial_sums(blocks, [norm, (self.optional(bias, Self::gradient), self.d)])?;
        self.engine.kernels.add_norm_backward(
            [ds, dh, partial],
            [dy.unwrap_or(Address::NONE), stream.unwrap_or(Address::NONE), joint.s, joint.statistics],
            self.norm(joint.norm),
            dropout,
            side,
            self.d,
        )?;
        Ok(if has_own { dh } else { ds })
    }

    /// Back over a stack, from the gradient `g` of its output; `g`'s memory is overwritten.
    pub(super) fn backward(
        &mut self,
        layers: &Layers,
        trail: &Trail,
        placed: &Placed,
        memory: Option<Memory>,
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
        let (mut dy, mut stream) = (Some(g), None);
        if pre && trail.joints.last().is_none_or(|joint| joint.norm.is_none()) {
            (dy, stream) = (None, Some(g));
        }
        if !pre && layers.final_norm.is_some() {
            let joint = joints.next().ok_or_else(&mut missing)?;
            self.join_back(joint, dy, None, other, dropped, side)?;
            (dy, other) = (Some(other), g);
        }
        let mut first_look = true;
        for (sublayer, kept) in layers.sublayers.iter().zip(&trail.kept).rev() {
            let joint = joints.next().ok_or_else(&mut missing)?;
            let inner = self.engine.arena.mark();
            let dropped = if self.keeps_gradients() { self.numbers(side.rows, self.d)? } else { dropped };
            // The stream's gradient is updated in place; without a stream, ds overwrites the gradient before last.
            let ds = stream.unwrap_or(other);
            let dh = self.join_back(joint, dy, stream, ds, dropped, side)?;
            let spent = dy.unwrap_or(other);
            let (dx, accumulate) = if pre { (spent, false) } else { (ds, true) };
            match &sublayer.inner {
                Inner::Attention(attention) => {
                    self.attend_back(attention, kept, dh, side, memory, &mut first_look, (dx, accumulate))?;
                }
                Inner::FeedForward(feed_forward) => {
                    self.feed_forward_back(feed_forward, kept, dh, side, (dx, accumulate))?;
                }
            }
            (dy, other) = (Some(dx), spent);
            if pre {
                stream = Some(ds);
            }
            self.release_gradients(inner);
        }
        let mut dx = dy.or(stream).unwrap_or(g);
        if pre {
            let joint = joints.next().ok_or_else(&mut missing)?;
            dx = stream.unwrap_or(other);
            self.join_back(joint, dy, stream, dx, dropped, side)?;
        }
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
