//! The backward pass over a stack.

use super::joint::Gradient;
use super::{Memory, Pass, Trail};
use crate::error::{Error, Result};
use crate::gpu::plan::{Inner, Layers, Positions};
use crate::gpu::queue::Address;
use crate::gpu::upload::Placed;
use crate::ops::sublayer::NormPlacement;

impl Pass<'_> {
    /// Back over a stack, from the gradient `g` of its output; `g`'s memory is overwritten. A memory comes with where
    /// its gradient is to be.
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
        self.by_distance = trail.by_distance;
        let distances = self.distances(layers);
        if let Some((distances, _)) = &distances {
            let count = distances.heads * distances.all();
            self.distance_sums = self.floats(count)?;
            self.engine.queue.clear(self.distance_sums, 4 * count)?;
        }
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
        for (i, (sublayer, kept)) in layers.sublayers.iter().zip(&trail.kept).enumerate().rev() {
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
            // With pre-norm, the norm of this sub-layer belongs to the next joint.
            self.note_complete(layers.start(i + 1))?;
        }
        let kernels = &self.engine.kernels;
        if self.keeps_gradients() && kernels.has_sum(&looks) {
            kernels.sum_of_products(&looks)?;
        } else if self.keeps_gradients() {
            looks.iter().try_for_each(|product| kernels.product(product))?;
        }
        let dropout = self.mode.dropout(embedding_dropout, layers.site);
        let (of_sum, of_norm) = layers.embedding_dropouts(dropout);
        let mut dx = if pre {
            let joint = joints.next().ok_or_else(&mut missing)?;
            let ds = stream.unwrap_or(other);
            self.join_back(joint, dy, stream, ds, dropped, side)?
        } else {
            let dy = dy.map_or(Ok(g), |dy| self.computed(dy))?;
            match of_norm.is_on() {
                true => {
                    let joint = joints.next().ok_or_else(&mut missing)?;
                    self.join_back(joint, None, Some(dy), other, dropped, side)?
                }
                false => dy,
            }
        };
        if layers.embedding_norm.is_some() {
            let joint = joints.next().ok_or_else(&mut missing)?;
            let ds = self.numbers(side.rows, self.d)?;
            self.join_back(joint, Some(Gradient::At(dx)), None, ds, dropped, side)?;
            dx = ds;
        }
        let scale = self.engine.model.config().embedding_scale();
        let kernels = &self.engine.kernels;
        let table = self.gradient(layers.table);
        kernels.embed_backward(table, dx, &placed.tokens, side.padded, scale, of_sum, self.d)?;
        if let (Positions::Learned(place), Some(places)) = (layers.positions, &placed.places) {
            kernels.embed_backward(self.gradient(place), dx, places, side.padded, 1.0, of_sum, self.d)?;
        }
        if let Some((distances, place)) = &distances {
            kernels.add_to_buckets(self.gradient(*place), self.distance_sums, distances)?;
        }
        self.release_gradients(mark);
        self.note_complete(layers.start(0))
    }
}
