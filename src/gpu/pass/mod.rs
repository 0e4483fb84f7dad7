//! One pass through a model, forward and back.
//!
//! Between two sub-layers is a *joint*: s = x + dropout(h + bias), y = norm(s), where h is what the sub-layer before it
//! computed. With post-norm, y is both the residual stream and the next sub-layer's input. With pre-norm, s is the
//! stream, and y, which uses the norm of the next sub-layer, is that sub-layer's input. So one kernel serves both.
//!
//! A sub-layer leaves its last product to the joint after it, and on the way back the product of its input's gradient
//! to the joint before it: where products are small, one kernel computes product and joint.

mod attention;
mod backward;
mod feed_forward;
mod joint;
pub(super) mod loss;
mod products;
pub(super) mod sums;

use super::Engine;
use super::launch::{NO_LABEL, Side, WeightGradient};
use super::plan::{self, Inner, Layers, Plan, Positions};
use super::queue::{Address, Number};
use super::rows::Rows;
use super::upload::Upload;
use crate::error::{Error, Result};
use crate::model::Sequences;
use crate::ops::Mode;
use crate::ops::loss::Targets;
use crate::ops::sublayer::NormPlacement;
use joint::{Before, Joint};

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

/// What forward keeps of a stack, for a backward pass.
pub(super) struct Trail {
    joints: Vec<Joint>,
    kept: Vec<Kept>,
    /// What comes out, [N, D].
    pub(super) output: Address,
    /// [`Pass::by_distance`].
    by_distance: Address,
}

/// What a decoder looks at: the encoder's output.
pub(super) struct Memory {
    pub(super) states: Address,
    pub(super) side: Side,
    /// Keys and values of each layer that looks at it.
    pub(super) key_values: Vec<Address>,
}

/// A pass: see [`Engine::pass`].
pub(super) fn run(
    engine: &mut Engine,
    source: &Sequences,
    target: &Sequences,
    targets: &Targets,
    mode: &Mode,
) -> Result<()> {
    let plan = engine.plan.clone();
    check(engine, &plan, source, target, targets)?;
    let learned = matches!(plan.encoder.positions, Positions::Learned(_));
    let (source, target_rows) = (Rows::new(source), Rows::new(target));
    if source.len() == 0 || target_rows.len() == 0 {
        return Ok(());
    }
    let labels = target_rows.padded.iter().map(|&row| targets.labels[row as usize]);
    let labels: Vec<u32> = labels.map(|y| if y == targets.padding { NO_LABEL } else { y }).collect();
    let has_weights = !targets.weights.is_empty();
    let of_rows = target_rows.padded.iter().filter(|_| has_weights);
    let weights: Vec<u32> = of_rows.map(|&row| targets.weights[row as usize].to_bits()).collect();
    let mut upload = Upload::default();
    let (source, target) = (upload.add_side(&source, learned), upload.add_side(&target_rows, learned));
    let [labels, weights] = [labels, weights].map(|rows| upload.add(&rows));
    let base = upload.send(engine)?;
    let (source, target, labels) = (source.moved(base), target.moved(base), base.plus(labels));
    let weights = if has_weights { base.plus(weights) } else { Address::NONE };

    engine.column_sums.begin();
    let mut pass = Pass::new(engine, *mode);
    let encoded = pass.forward(&plan.encoder, &source.side, None)?;
    let projections = plan.decoder.memory_projections();
    let widths = projections.iter().map(|linear| linear.out).sum();
    let key_values = pass.numbers(source.side.rows, widths)?;
    let key_values = pass.project_memory(&projections, encoded.output, source.side.rows, key_values)?;
    let memory = Memory { states: encoded.output, side: source.side, key_values };
    let decoded = pass.forward(&plan.decoder, &target.side, Some(&memory))?;
    let g = pass.loss(&plan.output, decoded.output, &target.side, [labels, weights], targets)?;
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
    let is_whole = targets.weights.is_empty() || targets.weights.len() == target.ids.len();
    let (first, second) = target.lengths.split_at(target.batch() / 2);
    if !targets.is_paired() || (targets.r_drop > 0.0 && first != second) {
        return Err(Error::failure("the two passes of R-Drop have different targets"));
    }
    if targets.labels.len() != target.ids.len() || !is_whole || source.batch() != target.batch() {
        return Err(Error::failure("a batch whose parts have different sizes"));
    }
    Ok(())
}

pub(super) struct Pass<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) mode: Mode,
    pub(super) number: Number,
    pub(super) d: usize,
    /// With relative positions, what the self-attention of the current stack adds to products, [H, distances].
    pub(super) by_distance: Address,
    /// On the way back, the sums of the gradients of its scores, [H, distances].
    distance_sums: Address,
    /// Weight gradients that are computed together at the end, where that is faster: see
    /// [`Pass::add_weight_gradient`].
    waiting: Option<Vec<WeightGradient>>,
}

impl Pass<'_> {
    pub(super) fn new(engine: &mut Engine, mode: Mode) -> Pass<'_> {
        let (number, d) = (engine.kernels.number, engine.plan.output.input);
        let [by_distance, distance_sums] = [Address::NONE; 2];
        Pass { mode, number, d, by_distance, distance_sums, waiting: None, engine }
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
    fn partial_sums(&mut self, blocks: usize, targets: [(Address, usize); 3]) -> Result<Address> {
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

    pub(super) fn forward(&mut self, layers: &Layers, side: &Side, memory: Option<&Memory>) -> Result<Trail> {
        let mut key_values = memory.into_iter().flat_map(|memory| &memory.key_values);
        self.walk(layers, side, &mut |pass, _, attention, input| {
            let looks = memory.filter(|_| attention.key_value.is_some());
            let keys = looks.and_then(|memory| Some((&memory.side, *key_values.next()?)));
            pass.attend(attention, input, side, keys)
        })
    }

    /// Runs a stack forward. `attend` computes an attention sub-layer up to its last projection, whose input it
    /// returns: it gets the sub-layer's number in the stack and its input. Without a backward pass, the memory that it
    /// takes is given back after the sub-layer.
    pub(super) fn walk(&mut self, layers: &Layers, side: &Side, attend: &mut Attend<'_>) -> Result<Trail> {
        let config = self.engine.model.config();
        let (pre, scale) = (config.norm == NormPlacement::Pre, config.embedding_scale());
        let dropout = self.mode.dropout(config.embedding_dropout, layers.site);
        let mut x = self.numbers(side.rows, self.d)?;
        let positions = match layers.positions {
            Positions::None | Positions::Relative(_) => Address::NONE,
            Positions::Fixed => self.engine.table,
            Positions::Learned(place) => self.master(place),
        };
        self.by_distance = self.spread_by_distance(layers)?;
        let (of_sum, of_norm) = layers.embedding_dropouts(dropout);
        self.engine.kernels.embed(x, self.master(layers.table), positions, side, scale, of_sum, self.d)?;
        let (mut joints, mut kept) = (Vec::new(), Vec::new());
        if layers.embedding_norm.is_some() {
            let (joint, _, y) = self.join(x, Before::Nothing, layers.embedding_norm, side, None)?;
            joints.push(joint);
            x = y;
        }
        let mut input = x;
        let after = |i: usize| layers.sublayers.get(i).map(|next| next.norm).or(layers.final_norm);
        if pre || of_norm.is_on() {
            let norm = if pre { after(0) } else { None };
            let before = if of_norm.is_on() { Before::Embedding(of_norm) } else { Before::Nothing };
            let (joint, s, y) = self.join(x, before, norm, side, None)?;
            joints.push(joint);
            x = s;
            input = if pre { y } else { s };
        }
        // Without a backward pass, nothing is kept but the results of the last joint, which take turns.
        let turns = match self.mode.is_training() {
            true => None,
            false => Some([self.outputs(side)?, self.outputs(side)?]),
        };
        let mark = self.engine.arena.mark();
        for (i, sublayer) in layers.sublayers.iter().enumerate() {
            let (of_sublayer, last) = match &sublayer.inner {
                Inner::Attention(attention) => attend(self, i, attention, input)?,
                Inner::FeedForward(feed_forward) => self.feed_forward(feed_forward, input, side)?,
            };
            let norm = if pre { after(i + 1) } else { Some(sublayer.norm) };
            let outputs = turns.map(|turns| turns[i % 2]);
            let (joint, s, y) = self.join(x, Before::Sublayer(last, sublayer), norm, side, outputs)?;
            if turns.is_some() {
                self.engine.arena.release(mark);
            } else {
                kept.push(of_sublayer);
                joints.push(joint);
            }
            x = if pre { s } else { y };
            input = y;
        }
        if let (false, Some(norm)) = (pre, layers.final_norm) {
            let (joint, _, y) = self.join(x, Before::Nothing, Some(norm), side, None)?;
            joints.push(joint);
            input = y;
        }
        // With pre-norm but no final norm, the output is the stream itself.
        let output = if input == Address::NONE { x } else { input };
        Ok(Trail { joints, kept, output, by_distance: self.by_distance })
    }
}
