//! The attention sub-layer.

use super::{Kept, Memory, Pass};
use crate::error::{Error, Result};
use crate::gpu::launch::{AttentionSizes, Distances, Heads, Side, scale};
use crate::gpu::plan::{self, Layers, Positions};
use crate::gpu::queue::{Address, Product};
use crate::model::Stack;

impl Pass<'_> {
    /// The distances of a stack with relative positions, and the place of its table.
    pub(super) fn distances(&self, layers: &Layers) -> Option<(Distances, usize)> {
        let Positions::Relative(place) = layers.positions else { return None };
        let c = self.engine.model.config();
        let (reach, heads, count) = (c.max_length - 1, c.heads, c.relative_buckets);
        let of_encoder = Distances { buckets: self.engine.buckets, count, reach, heads };
        let buckets = match layers.stack {
            Stack::Encoder => of_encoder.buckets,
            Stack::Decoder => of_encoder.buckets.plus(4 * of_encoder.all()),
        };
        Some((Distances { buckets, ..of_encoder }, place))
    }

    /// What the self-attention of a stack adds to products, if it has relative positions.
    pub(super) fn spread_by_distance(&mut self, layers: &Layers) -> Result<Address> {
        let Some((distances, place)) = self.distances(layers) else { return Ok(Address::NONE) };
        let out = self.floats(distances.heads * distances.all())?;
        let scale = scale(self.engine.model.config().d_k);
        self.engine.kernels.spread_by_distance(out, self.master(place), &distances, scale)?;
        Ok(out)
    }

    /// The sizes, strides and masks that the attention kernels take; `keys` is the side that is looked at.
    pub(in crate::gpu) fn sizes(&self, attention: &plan::Attention, side: &Side, keys: &Side) -> AttentionSizes {
        let c = self.engine.model.config();
        AttentionSizes {
            queries: *side,
            keys: *keys,
            q_stride: attention.query.out,
            k_stride: attention.key_value.map_or(attention.query.out, |key_value| key_value.out),
            heads: c.heads,
            d_k: c.d_k,
            d_v: c.d_v,
            causal: attention.causal,
            dropout: self.mode.dropout(c.attention_dropout, attention.site),
            by_distance: if attention.key_value.is_none() { self.by_distance } else { Address::NONE },
            reach: c.max_length - 1,
        }
    }

    /// Where q, k and v begin in packed rows.
    pub(in crate::gpu) fn heads(&self, query: Address, key_value: Address) -> Heads {
        let c = self.engine.model.config();
        let keys = c.heads * c.d_k;
        let k = if key_value == Address::NONE { self.after(query, keys) } else { key_value };
        Heads { q: query, k, v: self.after(k, keys) }
    }

    /// Turns the queries and keys of self-attention, with rotary positions; `sign` -1 turns back.
    pub(in crate::gpu) fn turn(
        &self,
        attention: &plan::Attention,
        rows: Address,
        side: &Side,
        sign: f32,
    ) -> Result<()> {
        let (c, rotary) = (self.engine.model.config(), self.engine.model.rotary());
        let (None, Some(rotary)) = (attention.key_value, rotary) else { return Ok(()) };
        let (heads, stride) = ([2 * c.heads, c.d_k], attention.query.out);
        self.engine.kernels.turn(rows, self.engine.table, side, stride, heads, sign, rotary.table().1)
    }

    /// Keys and values of the memory for each of these projections, one after the other from `at` on; returns where
    /// each begins.
    pub(in crate::gpu) fn project_memory(
        &self,
        projections: &[plan::Linear],
        states: Address,
        rows: usize,
        at: Address,
    ) -> Result<Vec<Address>> {
        let mut next = at;
        let products = projections.iter().map(|linear| {
            let at = next;
            next = self.after(at, rows * linear.out);
            Product { epilogue: self.bias(linear), ..self.projection(states, rows, linear, at) }
        });
        let products: Vec<Product> = products.collect();
        if products.iter().all(|product| self.engine.kernels.is_one_of_many(product)) {
            self.engine.kernels.products(&products)?;
        } else {
            products.iter().try_for_each(|product| self.multiply(product))?;
        }
        Ok(products.iter().map(|product| product.c.at).collect())
    }

    /// Up to the last projection, whose input is returned. `memory` are a memory's side and its keys and values;
    /// without it, the rows look at each other.
    pub(in crate::gpu) fn attend(
        &mut self,
        attention: &plan::Attention,
        input: Address,
        side: &Side,
        memory: Option<(&Side, Address)>,
    ) -> Result<(Kept, Address)> {
        let query = self.numbers(side.rows, attention.query.out)?;
        self.project(input, side.rows, &attention.query, query)?;
        self.turn(attention, query, side, 1.0)?;
        let context = self.numbers(side.rows, attention.output.input)?;
        let (keys, key_value) = memory.unwrap_or((side, Address::NONE));
        let sizes = self.sizes(attention, side, keys);
        let log_sums = self.floats(sizes.heads * side.rows)?;
        self.engine.kernels.attend([context, log_sums], self.heads(query, key_value), &sizes)?;
        Ok((Kept::Attention { input, query, key_value, context, log_sums }, context))
    }

    /// Up to the product of the input's gradient, which is returned. That of the memory's gradient is added to `looks`,
    /// and computed unless gradients are kept.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn attend_back(
        &mut self,
        attention: &plan::Attention,
        kept: &Kept,
        dh: Address,
        side: &Side,
        memory: Option<(&Memory, Address)>,
        looks: &mut Vec<Product>,
        (dx, accumulate): (Address, bool),
    ) -> Result<Product> {
        let Kept::Attention { input, query, key_value, context, log_sums } = *kept else {
            return Err(Error::failure("a pass whose sub-layers were mixed up"));
        };
        let rows = side.rows;
        self.add_weight_gradient(dh, context, rows, &attention.output, None)?;
        let d_context = self.numbers(rows, attention.output.input)?;
        self.project_back(dh, rows, &attention.output, d_context, false)?;
        let d_query = self.numbers(rows, attention.query.out)?;
        let look = attention.key_value.zip(memory);
        let d_key_value = match look {
            Some((linear, (memory, _))) => self.numbers(memory.side.rows, linear.out)?,
            None => Address::NONE,
        };
        let sizes = self.sizes(attention, side, look.map_or(side, |(_, (memory, _))| &memory.side));
        let deltas = self.floats(sizes.heads * rows)?;
        let (gradients, heads) = (self.heads(d_query, d_key_value), self.heads(query, key_value));
        self.engine.kernels.attend_backward(gradients, [d_context, context, log_sums, deltas], heads, &sizes)?;
        if sizes.by_distance != Address::NONE {
            self.engine.kernels.sum_by_distance(self.distance_sums, [d_context, context, log_sums], heads, &sizes)?;
        }
        self.turn(attention, d_query, side, -1.0)?;
        if let Some((linear, (memory, gradient))) = look {
            let rows = memory.side.rows;
            self.add_weight_gradient(d_key_value, memory.states, rows, &linear, linear.bias)?;
            let product = self.product_back(d_key_value, rows, &linear, gradient, !looks.is_empty());
            if !self.keeps_gradients() {
                self.engine.kernels.product(&product)?;
            }
            looks.push(product);
        }
        self.add_weight_gradient(d_query, input, rows, &attention.query, attention.query.bias)?;
        Ok(self.product_back(d_query, rows, &attention.query, dx, accumulate))
    }
}
