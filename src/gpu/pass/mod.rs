//! One pass through a model, forward and back.
//!
//! Between two sub-layers is a *joint*: s = x + dropout(h + bias), y = norm(s), where h is what the sub-layer before it
//! computed. With post-norm, y is both the residual stream and the next sub-layer's input. With pre-norm, s is the stream,
//! and y, which uses the norm of the next sub-layer, is that sub-layer's input. So one kernel serves both.
//!
//! A sub-layer leaves its last product to the joint after it, and on the way back the product of its input's gradient to the
//! joint before it: where products are small, one kernel computes product and joint.

mod attention;
mod backward;
mod products;
pub(super) mod sums;

use super::Engine;
use super::cargo::Cargo;
use super::launch::{NormArgument, Side, WeightGradient};
use super::plan::{self, FeedForward, Inner, Layers, Linear, Plan, Positions, Sublayer};
use super::queue::{Address, Epilogue, Number, Product};
use super::rows::Rows;
use crate::error::{Error, Result};
use crate::model::Sequences;
use crate::ops::Mode;
use crate::ops::dropout::Dropout;
use crate::ops::feed_forward::Activation;
use crate::ops::loss::Targets;
use crate::ops::sublayer::NormPlacement;

/// Bytes of logits that are held at once at most: those of a whole batch, if it is not very large. Each chunk adds to all of the
/// projection's gradient, and its products keep a GPU busy only if they are large.
pub(super) const LOGIT_BYTES: usize = 2 << 30;
/// The fewest rows of a chunk of logits, where memory is short.
const FEWEST_LOGIT_ROWS: usize = 256;
/// The label that is none, for rows that cost nothing.
const NO_LABEL: u32 = u32::MAX;

/// Computes an attention sub-layer of [`Pass::walk`].
type Attend<'a> = dyn FnMut(&mut Pass<'_>, usize, &plan::Attention, Address) -> Result<(Kept, Address)> + 'a;

/// What forward keeps of a sub-layer.
pub(super) enum Kept {
    /// Nothing, where there will be no backward.
    Nothing,
    Attention {
        input: Address,
        query: Address,
        key_value: Address,
        context: Address,
        log_sums: Address,
    },
    FeedForward {
        input: Address,
        before: Address,
        hidden: Address,
    },
}

/// What forward keeps of a joint.
struct Joint {
    s: Address,
    statistics: Address,
    /// Place of γ, where it has a norm.
    norm: Option<usize>,
    /// The sub-layer before it, where there is one: its bias and dropout.
    addend: Option<(Option<usize>, Dropout)>,
}

/// What forward keeps of a stack.
pub(super) struct Trail {
    joints: Vec<Joint>,
    kept: Vec<Kept>,
    /// What comes out, [N, D].
    pub(super) output: Address,
}

/// What a decoder looks at: the encoder's output.
pub(super) struct Memory {
    pub(super) states: Address,
    pub(super) side: Side,
    /// Keys and values of each layer that looks at it.
    pub(super) key_values: Vec<Address>,
}

/// A pass: see [`Engine::pass`].
pub fn run(engine: &mut Engine, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
    let plan = engine.plan.clone();
    check(engine, &plan, source, target, targets)?;
    let learned = matches!(plan.encoder.positions, Positions::Learned(_));
    let (source, target_rows) = (Rows::new(source), Rows::new(target));
    if source.len() == 0 || target_rows.len() == 0 {
        return Ok(());
    }
    let labels = target_rows.padded.iter().map(|&row| targets.labels[row as usize]);
    let labels: Vec<u32> = labels.map(|y| if y == targets.padding { NO_LABEL } else { y }).collect();
    let mut cargo = Cargo::default();
    let (source, target) = (cargo.add_side(&source, learned), cargo.add_side(&target_rows, learned));
    let labels = cargo.add(&labels);
    let base = cargo.send(engine)?;
    let (source, target, labels) = (source.moved(base), target.moved(base), base.plus(labels));

    engine.column_sums.begin();
    let mut pass = Pass::new(engine, *mode);
    let encoded = pass.forward(&plan.encoder, &source.side, None)?;
    let projections = plan.decoder.memory_projections();
    let widths = projections.iter().map(|linear| linear.out).sum();
    let key_values = pass.numbers(source.side.rows, widths)?;
    let key_values = pass.project_memory(&projections, encoded.output, source.side.rows, key_values)?;
    let memory = Memory { states: encoded.output, side: source.side, key_values };
    let decoded = pass.forward(&plan.decoder, &target.side, Some(&memory))?;
    let g = pass.loss(&plan.output, decoded.output, &target.side, labels, targets.smoothing)?;
    if !mode.is_training() {
        return Ok(());
    }
    pass.begin_gradients([&plan.encoder, &plan.decoder], source.side.rows.max(target.side.rows));
    let gradient = pass.numbers(source.side.rows, pass.d)?;
    pass.backward(&plan.decoder, &decoded, &target, Some((&memory, gradient)), g)?;
    // A decoder without sub-layers does not read the memory.
    if !plan.decoder.sublayers.is_empty() {
        pass.backward(&plan.encoder, &encoded, &source, None, gradient)?;
    }
    pass.add_waiting_gradients()?;
    engine.column_sums.add_up(&engine.kernels)
}

/// Rejects what would make kernels read outside their memory, on one side.
pub(super) fn check_side(engine: &Engine, layers: &Layers, tokens: &Sequences) -> Result<()> {
    if let Some(id) = tokens.ids.iter().find(|&&id| id as usize >= layers.vocabulary) {
        return Err(Error::failure(format!("token {id} is outside the vocabulary of {}", layers.vocabulary)));
    }
    let most = engine.model.config().max_length;
    if tokens.length > most {
        let what = format!("a sequence of {} tokens is longer than model.max_length = {most}", tokens.length);
        return Err(Error::failure(what));
    }
    Ok(())
}

/// Rejects what would make kernels read outside their memory.
fn check(engine: &Engine, plan: &Plan, source: &Sequences, target: &Sequences, targets: &Targets) -> Result<()> {
    check_side(engine, &plan.encoder, source)?;
    check_side(engine, &plan.decoder, target)?;
    let unknown = |&&y: &&u32| y as usize >= plan.output.out && y != targets.padding;
    if let Some(label) = targets.labels.iter().find(unknown) {
        return Err(Error::failure(format!("label {label} is outside the vocabulary of {}", plan.output.out)));
    }
    if targets.labels.len() != target.ids.len() || source.batch() != target.batch() {
        return Err(Error::failure("a batch whose parts have different sizes"));
    }
    Ok(())
}

pub(super) struct Pass<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) mode: Mode,
    pub(super) number: Number,
    pub(super) d: usize,
    /// Weight gradients that are computed together at the end, where that is faster: see [`Pass::add_weight_gradient`].
    waiting: Option<Vec<WeightGradient>>,
}

impl Pass<'_> {
    pub(super) fn new(engine: &mut Engine, mode: Mode) -> Pass<'_> {
        Pass { mode, number: engine.kernels.number, d: engine.plan.output.input, waiting: None, engine }
    }

    /// Memory for a matrix of activations.
    pub(super) fn numbers(&mut self, rows: usize, width: usize) -> Result<Address> {
        self.engine.arena.take(self.number.bytes(rows * width))
    }

    /// Memory for float32.
    pub(super) fn floats(&mut self, count: usize) -> Result<Address> {
        self.engine.arena.take(4 * count)
    }

    /// The address `count` numbers further.
    pub(super) fn after(&self, address: Address, count: usize) -> Address {
        address.plus(self.number.bytes(count))
    }

    /// Memory for partial sums, float32 [blocks, Σ widths], that will be added to their targets.
    fn partial_sums(&mut self, blocks: usize, targets: [(Address, usize); 2]) -> Result<Address> {
        self.engine.column_sums.take(&self.engine.kernels, blocks, targets)
    }

    /// A parameter in float32.
    pub(super) fn master(&self, place: usize) -> Address {
        self.engine.values.plus(4 * place)
    }

    /// A parameter's gradient.
    fn gradient(&self, place: usize) -> Address {
        self.engine.gradients.plus(4 * place)
    }

    /// A parameter in the type of products.
    fn weight(&self, place: usize) -> Address {
        self.after(self.engine.weights, place)
    }

    fn optional(&self, place: Option<usize>, address: impl Fn(&Self, usize) -> Address) -> Address {
        place.map_or(Address::NONE, |place| address(self, place))
    }

    fn norm(&self, place: Option<usize>) -> NormArgument {
        let c = self.engine.model.config();
        let gamma = self.optional(place, Self::master);
        NormArgument::new(gamma, gamma.plus(4 * self.d), c.norm_eps, c.norm_kind)
    }

    /// A joint after a sub-layer, of which the input of its last projection is given; returns s and y as well.
    fn join(
        &mut self,
        x: Address,
        before: Option<(Address, &Sublayer)>,
        norm: Option<usize>,
        side: &Side,
    ) -> Result<(Joint, Address, Address)> {
        let s = if before.is_some() { self.numbers(side.rows, self.d)? } else { x };
        let y = if norm.is_some() { self.numbers(side.rows, self.d)? } else { Address::NONE };
        let statistics = if norm.is_some() { self.floats(2 * side.rows)? } else { Address::NONE };
        let rate = self.engine.model.config().dropout;
        let addend = before.map(|(_, sublayer)| (sublayer.bias, self.mode.dropout(rate, sublayer.site)));
        let (bias, dropout) = addend.unwrap_or((None, Dropout::OFF));
        let (bias, of_norm) = (self.optional(bias, Self::master), self.norm(norm));
        let product = before.map(|(input, sublayer)| self.projection(input, side.rows, sublayer.last(), s));
        let (kernels, mut h) = (&self.engine.kernels, Address::NONE);
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
            None => {}
        }
        kernels.add_norm([y, s, statistics], [x, h, bias], of_norm, dropout, side, self.d)?;
        Ok((Joint { s, statistics, norm, addend }, s, y))
    }

    pub(super) fn forward(&mut self, layers: &Layers, side: &Side, memory: Option<&Memory>) -> Result<Trail> {
        let mut key_values = memory.into_iter().flat_map(|memory| &memory.key_values);
        self.walk(layers, side, &mut |pass, _, attention, input| {
            let looks = memory.filter(|_| attention.key_value.is_some());
            let keys = looks.and_then(|memory| Some((&memory.side, *key_values.next()?)));
            pass.attend(attention, input, side, keys)
        })
    }

    /// Runs a stack forward. `attend` computes an attention sub-layer up to its last projection, whose input it returns: it gets
    /// the sub-layer's number in the stack and its input.
    pub(super) fn walk(&mut self, layers: &Layers, side: &Side, attend: &mut Attend<'_>) -> Result<Trail> {
        let config = self.engine.model.config();
        let (pre, scale) = (config.norm == NormPlacement::Pre, config.embedding_scale());
        let dropout = self.mode.dropout(config.embedding_dropout, layers.site);
        let mut x = self.numbers(side.rows, self.d)?;
        let positions = match layers.positions {
            Positions::None => Address::NONE,
            Positions::Fixed => self.engine.table,
            Positions::Learned(place) => self.master(place),
        };
        self.engine.kernels.embed(x, self.master(layers.table), positions, side, scale, dropout, self.d)?;
        let (mut joints, mut kept) = (Vec::new(), Vec::new());
        let mut input = x;
        let after = |i: usize| layers.sublayers.get(i).map(|next| next.norm).or(layers.final_norm);
        if pre {
            let (joint, _, y) = self.join(x, None, after(0), side)?;
            joints.push(joint);
            input = y;
        }
        for (i, sublayer) in layers.sublayers.iter().enumerate() {
            let (of_sublayer, last) = match &sublayer.inner {
                Inner::Attention(attention) => attend(self, i, attention, input)?,
                Inner::FeedForward(feed_forward) => self.feed_forward(feed_forward, input, side)?,
            };
            kept.push(of_sublayer);
            let norm = if pre { after(i + 1) } else { Some(sublayer.norm) };
            let (joint, s, y) = self.join(x, Some((last, sublayer)), norm, side)?;
            joints.push(joint);
            x = if pre { s } else { y };
            input = y;
        }
        if let (false, Some(norm)) = (pre, layers.final_norm) {
            let (joint, _, y) = self.join(x, None, Some(norm), side)?;
            joints.push(joint);
            input = y;
        }
        // With pre-norm but no final norm, the output is the stream itself.
        let output = if input == Address::NONE { x } else { input };
        Ok(Trail { joints, kept, output })
    }

    /// Up to the last projection, whose input is returned.
    fn feed_forward(&mut self, layer: &FeedForward, input: Address, side: &Side) -> Result<(Kept, Address)> {
        let config = self.engine.model.config();
        let (activation, width) = (config.activation, layer.fc1.out);
        let dropout = self.mode.dropout(config.activation_dropout, layer.site);
        let before = self.numbers(side.rows, width)?;
        let relu = activation == Activation::Relu;
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
            self.engine.kernels.activate(activation, [hidden, before], dropout, side, width)?;
        }
        Ok((kept, hidden))
    }

    /// Up to the product of the input's gradient, which is returned.
    fn feed_forward_back(
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
        let (activation, rows, width) = (config.activation, side.rows, layer.fc1.out);
        let dropout = self.mode.dropout(config.activation_dropout, layer.site);
        self.add_weight_gradient(dh, hidden, rows, &layer.fc2, None)?;
        let g = self.numbers(rows, width)?;
        let product = self.product_back(dh, rows, &layer.fc2, g, false);
        let kernels = &self.engine.kernels;
        if activation == Activation::Relu && kernels.has_kernel(&product) {
            let scale = if dropout.is_on() { dropout.parts().2 } else { 1.0 };
            kernels.product_through_relu(&product, hidden, scale)?;
            self.add_weight_gradient(g, input, rows, &layer.fc1, layer.fc1.bias)?;
            return Ok(self.product_back(g, rows, &layer.fc1, dx, accumulate));
        }
        kernels.product(&product)?;
        let blocks = self.engine.kernels.column_blocks(rows, width);
        let bias = self.optional(layer.fc1.bias, Self::gradient);
        let partial = self.partial_sums(blocks, [(bias, width), (Address::NONE, 0)])?;
        self.engine.kernels.activate_backward(activation, [g, partial, before], dropout, side, width)?;
        self.add_weight_gradient(g, input, rows, &layer.fc1, None)?;
        Ok(self.product_back(g, rows, &layer.fc1, dx, accumulate))
    }

    /// Adds the losses to the sums. In training, also adds to the gradients of the projection; returns that of the states.
    fn loss(
        &mut self,
        output: &Linear,
        states: Address,
        side: &Side,
        labels: Address,
        smoothing: f32,
    ) -> Result<Address> {
        let (rows, training) = (side.rows, self.mode.is_training());
        let dx = if training { self.numbers(rows, self.d)? } else { Address::NONE };
        let mark = self.engine.arena.mark();
        let losses = self.floats(2 * rows)?;
        let (logits, chunk) = self.logits(rows, output.stride)?;
        for start in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - start);
            let x = self.after(states, start * self.d);
            self.project(x, count, output, logits)?;
            let of_chunk = [logits, losses.plus(8 * start), labels.plus(4 * start)];
            let sizes = [count, output.out, output.stride];
            self.engine.kernels.smoothed_loss(of_chunk, smoothing, sizes, training)?;
            if training {
                self.add_weight_gradient(logits, x, count, output, output.bias)?;
                self.project_back(logits, count, output, self.after(dx, start * self.d), false)?;
            }
        }
        self.engine.kernels.add_losses(self.engine.sums, losses, rows)?;
        self.engine.arena.release(mark);
        Ok(dx)
    }

    /// Memory for a chunk of `rows` rows of logits, and how many rows it has: all, or as many as there is room for.
    fn logits(&mut self, rows: usize, stride: usize) -> Result<(Address, usize)> {
        loop {
            let chunk = rows_of_chunks(rows, self.engine.logit_bytes / self.number.bytes(stride));
            let mark = self.engine.arena.mark();
            match self.numbers(chunk, stride) {
                Err(error) if error.is_out_of_memory() && chunk > FEWEST_LOGIT_ROWS => {
                    self.engine.arena.release(mark);
                    self.engine.logit_bytes = self.number.bytes(chunk / 2 * stride);
                }
                taken => return Ok((taken?, chunk)),
            }
        }
    }
}

/// Rows per chunk when `rows` are divided into chunks of about `most`: evenly, since a short chunk would leave the device
/// partly idle, and rounded to a number at which products are fast.
fn rows_of_chunks(rows: usize, most: usize) -> usize {
    let chunks = rows.div_ceil(most.max(1)).max(1);
    rows.div_ceil(chunks).next_multiple_of(256).clamp(1, rows.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_even_and_of_round_sizes() {
        assert_eq!(rows_of_chunks(25_000, 4194), 4352);
        assert_eq!(rows_of_chunks(100, 4194), 100);
        assert_eq!(rows_of_chunks(0, 4194), 1);
        for (rows, most) in [(1, 1), (7, 3), (5000, 1), (5000, 300), (5000, 5000)] {
            let chunk = rows_of_chunks(rows, most);
            assert!(chunk <= rows && chunk < most + 256 && chunk * rows.div_ceil(most) >= rows);
        }
    }
}
