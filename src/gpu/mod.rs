//! The GPU engine, for training and translation: whole passes through a model as kernels and products on one queue.
//!
//! ```text
//! Engine ── pass (forward, backward), decode (translation) ── launch (kernels by parameters) ── Queue ── cuda (driver)
//!             │     └── plan (offsets of parameters)                     └── in tests: kernels run on the processor
//!             ├── rows (batches without padding) · arena (memory of a pass)
//!             └── nccl (sums over the GPUs of several ranks)
//! ```
//!
//! It computes the same as [`crate::model`], and tests compare the two, but it does so in its own way:
//! - A batch is packed: padding is left out before anything is computed, so that all kernels and products work on real
//!   tokens alone. Dropout masks are numbered by places in the padded batch, as everywhere.
//! - No tape: a pass is written out forward and backward, with its memory in one arena that is kept from pass to pass.
//! - The weights that products read, and activations between kernels, are in the type of the precision; the parameters
//!   themselves, gradients, statistics, softmax and loss are float32.
//! - Sums are in a fixed order everywhere: the same seed on the same device gives the same bits.
//! - The host only queues work. Whether an update is made, and how its gradient is clipped, is decided on the device;
//!   the host learns of it while the next update is under way.
//!
//! The kernels are CUDA C++ in `kernels/`, one file per operation of [`crate::ops`]. They are compiled when `mt` is
//! built with CUDA; `tests/gpu_engine` compiles the same files for the processor (`tests/emulator/`), so that they and
//! this module are tested without a GPU.

mod arena;
pub mod ceilings;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod decode;
pub mod launch;
mod low_rank;
pub mod nccl;
mod pass;
pub mod plan;
pub mod queue;
mod rows;
mod upload;

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::model::{PositionKind, Sequences, Stack, Transformer};
use crate::ops::Mode;
use crate::ops::loss::{Sums, Targets};
use crate::ops::optimizer::{AdamStep, Counts, Outcome, Trained, no_outcome};
use crate::ops::relative::Buckets;
use crate::ranks::Communicator;
use arena::Arena;
use launch::{AdamArgument, Kernels};
use nccl::{Nccl, Part};
use pass::sums::Sums as ColumnSums;
use plan::Plan;
use queue::{Address, Mark, Number, Queue, Ticket};

/// The widest heads that the kernels of attention take.
const WIDEST_HEAD: usize = 512;
/// The widest model: backward of a norm needs 16 bytes of shared memory for each of its numbers, and a block has 99 KiB
/// on GPUs of compute capability 8.6, which have the least.
const WIDEST_MODEL: usize = (99 << 10) / 16;

/// The least bytes of gradients that are added up over the ranks at once, if a pass completes more: few enough to begin
/// early, and enough to keep a network busy.
pub const PART_BYTES: usize = 32 << 20;

/// The other ranks of a data-parallel run.
#[derive(Clone)]
pub enum Others {
    /// They are reached from the host.
    Host(Rc<dyn Communicator>),
    /// They are reached from the device, with gradients in this type on their way.
    Device(Rc<Nccl>, Number),
}

impl Others {
    /// Their collective operations.
    pub fn communicator(&self) -> Rc<dyn Communicator> {
        match self {
            Self::Host(others) => others.clone(),
            Self::Device(others, _) => others.clone(),
        }
    }

    /// The same, borrowed.
    pub fn operations(&self) -> &dyn Communicator {
        match self {
            Self::Host(others) => &**others,
            Self::Device(others, _) => &**others,
        }
    }
}

/// Gradients on their way to the other ranks, from GPU to GPU.
struct Exchange {
    /// The type that they travel in.
    number: Number,
    /// Where they are in that type.
    at: Address,
    /// The parts that are added up at once, from the last to the first, as backward completes them.
    parts: Vec<Range<usize>>,
    /// A mark for each of the first parts, which the last pass has completed before its end.
    complete: Vec<Mark>,
}

/// A model's training passes on a device.
pub struct Engine {
    queue: Arc<dyn Queue>,
    kernels: Kernels,
    model: Transformer,
    plan: Arc<Plan>,
    arena: Arena,
    /// Column sums of a backward pass that are not added up yet.
    column_sums: ColumnSums,
    /// Memory that lasts as long as the engine.
    lasting: Arena,
    values: Address,
    gradients: Address,
    /// With other ranks, if they are reached from the device.
    exchange: Option<Exchange>,
    /// The values in the type of products.
    weights: Address,
    /// Fixed positions, or rotary angles.
    table: Address,
    /// With relative positions, the bucket of each distance: of the encoder, then of the decoder.
    buckets: Address,
    /// [`Totals`] since the last [`Engine::begin`].
    totals: Address,
    /// What [`Engine::decide`] has decided: [`Decision`].
    decision: Address,
    /// A word that is not zero once an update was not made: then none is made until [`Engine::forget`].
    stopped: Address,
    /// Parameters, or factors, with weight decay, and where the device has their bounds.
    decayed: Vec<(Vec<Range<usize>>, Address)>,
    /// The gradients of this update's factors, and how many they are.
    of_factors: (Address, usize),
    /// Decisions on their way to the host, oldest first.
    decided: VecDeque<Ticket>,
    /// Bytes of logits that are held at once at most; fewer, once there was no room for them.
    logit_bytes: usize,
}

/// The sums of an update's losses, and [`Counts::to_numbers`]: one collective operation adds them up with the
/// gradients. A struct of kernels/optimizer.cuh.
#[derive(Clone, Copy)]
#[repr(C)]
struct Totals {
    smoothed: f64,
    nll: f64,
    counts: [f64; 3],
}

/// The decision on an update: a struct of kernels/optimizer.cuh.
#[derive(Clone, Copy)]
#[repr(C)]
struct Decision {
    totals: Totals,
    gradient_norm: f64,
    scale: f32,
    is_made: u32,
}

impl Exchange {
    /// Converts a part to the type that it travels in.
    fn convert(&self, part: &Range<usize>, gradients: Address, kernels: &Kernels) -> Result<()> {
        if self.number == Number::F32 {
            return Ok(());
        }
        kernels.to_bf16(self.at.plus(self.number.bytes(part.start)), gradients.plus(4 * part.start), part.len())
    }

    /// Adds up gradients and float64 numbers over all ranks.
    fn sum(&mut self, others: &Nccl, gradients: Address, numbers: (Address, usize), kernels: &Kernels) -> Result<()> {
        let complete: Vec<Mark> = std::mem::take(&mut self.complete);
        for part in &self.parts[complete.len()..] {
            self.convert(part, gradients, kernels)?;
        }
        let marks = complete.into_iter().map(Some).chain(std::iter::repeat(None));
        let place = |part: &Range<usize>| self.at.plus(self.number.bytes(part.start));
        let parts = self.parts.iter().zip(marks);
        let parts = parts.map(|(part, complete)| Part { at: place(part), count: part.len(), complete });
        others.sum_on_device(&parts.collect::<Vec<_>>(), self.number, numbers)?;
        let count = self.parts.first().map_or(0, |part| part.end);
        if self.number == Number::F32 { Ok(()) } else { kernels.to_float(gradients, self.at, count) }
    }
}

impl Engine {
    /// For a model whose parameters lie on the queue's device, with products in `compute` (float32 or bfloat16).
    pub fn new(model: &Transformer, queue: Arc<dyn Queue>, compute: DType) -> Result<Self> {
        let c = model.config();
        if c.d_k.max(c.d_v) > WIDEST_HEAD {
            let what = format!("heads of {} numbers are wider than the GPU kernels allow", c.d_k.max(c.d_v));
            let help = format!("use model.d_k and model.d_v of at most {WIDEST_HEAD}, more heads, or --device cpu");
            return Err(Error::usage(what).help(help));
        }
        if c.d_model > WIDEST_MODEL {
            let what = format!("a model of {} numbers is wider than the GPU kernels allow", c.d_model);
            let help = format!("use a model.d_model of at most {WIDEST_MODEL}, or --device cpu");
            return Err(Error::usage(what).help(help));
        }
        let number = if compute == DType::BF16 { Number::Bf16 } else { Number::F32 };
        // The two tables of relative positions come before the parameters of all layers.
        let before = if c.positions == PositionKind::Relative { 2 * c.relative_buckets * c.heads } else { 0 };
        let wide = [c.d_model, c.d_ff, c.d_k, c.d_v, before].iter().all(|width| width.is_multiple_of(8));
        let mut lasting = Arena::new(queue.clone());
        let parameters = model.parameters();
        let (values, gradients) = (queue.address(parameters.values())?, queue.address(parameters.gradients())?);
        let weights = match number {
            Number::F32 => values,
            Number::Bf16 => lasting.take(number.bytes(parameters.values().elem_count()))?,
        };
        let table = match model.rotary() {
            Some(rotary) => rotary.table().0,
            None => model.sinusoids(),
        };
        let at = lasting.take(4 * table.len())?;
        if !table.is_empty() {
            queue.upload(bytes_of(table), at)?;
        }
        let of_distances = [Stack::Encoder, Stack::Decoder].map(|stack| model.buckets(stack));
        let buckets: Vec<u32> = of_distances.into_iter().flatten().flat_map(Buckets::all).copied().collect();
        let buckets_at = lasting.take(4 * buckets.len())?;
        if !buckets.is_empty() {
            queue.upload(bytes_of(&buckets), buckets_at)?;
        }
        let stopped = lasting.take(size_of::<u32>())?;
        queue.clear(stopped, size_of::<u32>())?;
        Ok(Self {
            kernels: Kernels::new(queue.clone(), number, wide),
            plan: Arc::new(Plan::new(model)?),
            arena: Arena::new(queue.clone()),
            column_sums: ColumnSums::new(queue.clone()),
            values,
            gradients,
            exchange: None,
            weights,
            table: at,
            buckets: buckets_at,
            totals: lasting.take(size_of::<Totals>())?,
            decision: lasting.take(size_of::<Decision>())?,
            stopped,
            decayed: Vec::new(),
            of_factors: (Address::NONE, 0),
            decided: VecDeque::new(),
            logit_bytes: pass::loss::LOGIT_BYTES,
            lasting,
            model: model.clone(),
            queue,
        })
    }

    /// Prepares for gradients that travel from GPU to GPU, in this type. A part of them that is added up at once has at
    /// least so many bytes of float32, if it is not the last.
    ///
    /// # Errors
    /// There is no memory for gradients in another type.
    pub fn exchange_in(&mut self, number: Number, part_bytes: usize) -> Result<()> {
        let count = self.model.parameters().values().elem_count();
        let at = if number == Number::F32 { self.gradients } else { self.lasting.take(number.bytes(count))? };
        let parts = self.plan.parts(count, part_bytes / 4);
        self.exchange = Some(Exchange { number, at, parts, complete: Vec::new() });
        Ok(())
    }

    /// Leaves all products to the queue's library, for comparisons: otherwise small ones in bfloat16 are computed by
    /// kernels.
    pub fn use_library(&mut self) {
        self.kernels.most_multiplications = 0;
    }

    /// Converts the current parameters to the type of products.
    fn take_weights(&self) -> Result<()> {
        if self.kernels.number == Number::Bf16 {
            let count = self.model.parameters().values().elem_count();
            self.kernels.to_bf16(self.weights, self.values, count)?;
        }
        Ok(())
    }

    /// Calls `f` with `arena` as the memory for passes.
    fn with_arena<R>(&mut self, arena: &mut Arena, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        std::mem::swap(&mut self.arena, arena);
        let result = f(self);
        std::mem::swap(&mut self.arena, arena);
        result
    }

    /// Begins an update: converts the parameters to the type of products, and clears the gradients and the sums of
    /// losses.
    pub fn begin(&mut self) -> Result<()> {
        self.take_weights()?;
        self.forget_complete();
        self.of_factors = (Address::NONE, 0);
        let count = self.model.parameters().values().elem_count();
        self.queue.clear(self.gradients, 4 * count)?;
        self.queue.clear(self.totals, size_of::<Totals>())
    }

    /// Runs a batch forward and adds its losses to the sums; in training also backward, adding to the gradients.
    pub fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
        self.forget_complete();
        let result = pass::run(self, source, target, targets, mode);
        match result {
            Ok(()) => self.arena.reset(),
            // If memory ran out, smaller parts come next, which should not get as much memory as the larger ones took.
            Err(_) => {
                self.arena.forget();
                self.column_sums.release_memory();
            }
        }
        result
    }

    /// Gives the memory of passes back until the next one.
    pub fn release_memory(&mut self) {
        self.arena.clear();
        self.column_sums.release_memory();
    }

    /// The sums of the losses since [`Engine::begin`]. Waits for the device.
    pub fn sums(&self) -> Result<Sums> {
        let mut bytes = [0; 16];
        self.queue.download(self.totals, &mut bytes)?;
        let [smoothed, nll] = [0, 8].map(|at| float64(&bytes[at..]));
        Ok(Sums { smoothed, nll })
    }

    /// Clears the gradients of some parameters.
    pub fn clear_gradients(&self, of: &[Range<usize>]) -> Result<()> {
        of.iter().try_for_each(|range| self.queue.clear(self.gradients.plus(4 * range.start), 4 * range.len()))
    }

    /// Forgets which gradients an earlier pass has completed: they change again.
    fn forget_complete(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.complete.clear();
        }
    }

    /// Notes that the gradients from `place` on are complete, but for column sums that wait. If they travel from GPU to
    /// GPU, each part that lies there is converted to the type that it travels in, and marked.
    fn note_complete(&mut self, place: usize) -> Result<()> {
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        // The last part is complete only at the end.
        while let Some(part) = exchange.parts.get(exchange.complete.len())
            && part.start >= place.max(1)
        {
            self.column_sums.add_up(&self.kernels)?;
            exchange.convert(part, self.gradients, &self.kernels)?;
            let mark = self.queue.mark()?;
            exchange.complete.push(mark);
        }
        Ok(())
    }

    /// Adds the counts of this rank's share to the totals. Where there are other ranks, adds up the gradients and
    /// totals of all: on the device, or else on the host, which waits for the device and for them.
    pub fn reduce(&mut self, counts: Counts, others: Option<&Others>) -> Result<()> {
        const NUMBERS: usize = size_of::<Totals>() / size_of::<f64>();
        let at = self.totals.plus(std::mem::offset_of!(Totals, counts));
        self.queue.upload(bytes_of(&counts.to_numbers()), at)?;
        let count = self.model.parameters().values().elem_count();
        let others = match (others, &mut self.exchange) {
            (None, _) => return Ok(()),
            (Some(Others::Device(others, _)), Some(exchange)) => {
                return exchange.sum(others, self.gradients, (self.totals, NUMBERS), &self.kernels);
            }
            (Some(others), _) => others.operations(),
        };
        let mut totals = [0f64; NUMBERS];
        self.queue.download(self.totals, bytes_of_mut(&mut totals))?;
        let mut gradients = vec![0f32; count];
        self.queue.download(self.gradients, bytes_of_mut(&mut gradients))?;
        others.sum(&mut gradients, &mut totals)?;
        self.queue.upload(bytes_of(&gradients), self.gradients)?;
        self.queue.upload(bytes_of(&totals), self.totals)
    }

    /// Decides whether the update is made, and what the gradients are multiplied by, as
    /// [`crate::ops::optimizer::decide`] does; but after an update that was not made, none is made until
    /// [`Engine::forget`].
    pub fn decide(&mut self, clip_norm: f64) -> Result<()> {
        let all = [(self.gradients, self.model.parameters().values().elem_count()), self.of_factors];
        let mark = self.arena.mark();
        let blocks = all.map(|(_, count)| self.kernels.square_blocks(count));
        let blocks: usize = blocks.iter().sum();
        let partial = self.arena.take(8 * blocks)?;
        let mut at = partial;
        for (gradients, count) in all {
            self.kernels.squares(at, gradients, count)?;
            at = at.plus(8 * self.kernels.square_blocks(count));
        }
        let [decision, stopped] = [self.decision, self.stopped];
        self.kernels.decide([decision, stopped], partial, self.totals, clip_norm, blocks)?;
        self.arena.release(mark);
        self.decided.push_back(self.queue.fetch(decision, size_of::<Decision>())?);
        Ok(())
    }

    /// Whether every number of these tensors is finite. Waits for the device.
    pub fn is_finite(&mut self, tensors: &[&Tensor]) -> Result<bool> {
        let mark = self.arena.mark();
        let blocks: Vec<usize> = tensors.iter().map(|t| self.kernels.square_blocks(t.elem_count())).collect();
        let mut bytes = vec![0; 8 * blocks.iter().sum::<usize>()];
        let partial = self.arena.take(bytes.len())?;
        let mut at = partial;
        for (tensor, blocks) in tensors.iter().zip(blocks) {
            // Squares of finite float32 numbers are finite in float64.
            self.kernels.squares(at, self.queue.address(tensor)?, tensor.elem_count())?;
            at = at.plus(8 * blocks);
        }
        self.queue.download(partial, &mut bytes)?;
        self.arena.release(mark);
        Ok(bytes.chunks_exact(8).all(|sum| float64(sum).is_finite()))
    }

    /// One Adam update of the parameters that are trained, if it is made.
    pub fn adam(&mut self, [first, second]: [&Tensor; 2], step: &AdamStep, trained: &Trained) -> Result<()> {
        let (constants, bounds) = (step.constants(), self.bounds(&trained.decayed)?);
        let moments = [self.queue.address(first)?, self.queue.address(second)?];
        for (range, at) in trained.places() {
            let [first, second] = moments.map(|moment| moment.plus(4 * at));
            let addresses = [self.values, self.gradients, first, second];
            self.kernels.adam(addresses, self.decision, AdamArgument(constants), bounds, range)?;
        }
        Ok(())
    }

    /// Where the device has the bounds of what has weight decay, and how many they are.
    fn bounds(&mut self, decayed: &[Range<usize>]) -> Result<(Address, usize)> {
        let count = 2 * decayed.len();
        if count == 0 {
            return Ok((Address::NONE, 0));
        }
        if let Some((_, at)) = self.decayed.iter().find(|(known, _)| known == decayed) {
            return Ok((*at, count));
        }
        let bounds: Vec<u64> = decayed.iter().flat_map(|range| [range.start as u64, range.end as u64]).collect();
        let at = self.lasting.take(size_of_val(&bounds[..]))?;
        self.queue.upload(bytes_of(&bounds), at)?;
        self.decayed.push((decayed.to_vec(), at));
        Ok((at, count))
    }

    /// Moves an average towards the parameters, if the update is made.
    pub fn average(&self, average: &Tensor, decay: f64) -> Result<()> {
        let count = self.model.parameters().values().elem_count();
        self.kernels.average(self.queue.address(average)?, self.values, self.decision, decay, count)
    }

    /// The outcome of the oldest update that was decided and not asked for. Waits for it, but not for work queued after
    /// it.
    pub fn outcome(&mut self) -> Result<Outcome> {
        let ticket = self.decided.pop_front().ok_or_else(no_outcome)?;
        let mut bytes = [0; size_of::<Decision>()];
        self.queue.fetched(ticket, &mut bytes)?;
        // SAFETY: a decision has as many bytes, and every bit pattern of them is one.
        let decision: Decision = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        let Decision { totals: Totals { smoothed, nll, counts }, gradient_norm, is_made, .. } = decision;
        let (sums, counts) = (Sums { smoothed, nll }, Counts::from_numbers(counts));
        Ok(Outcome { sums, counts, gradient_norm, is_made: is_made != 0 })
    }

    /// Forgets the updates that were not asked for; if one was not made, later updates are made again.
    pub fn forget(&mut self) -> Result<()> {
        while !self.decided.is_empty() {
            self.outcome()?;
        }
        self.queue.clear(self.stopped, size_of::<u32>())
    }
}

fn float64(bytes: &[u8]) -> f64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[..8]);
    f64::from_le_bytes(eight)
}

/// The bytes of numbers, to be written to.
fn bytes_of_mut<T: Copy>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: it is only called with floats, and every bit pattern is one.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), std::mem::size_of_val(values)) }
}

/// Numbers or words as bytes.
fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: it is only called with numbers, of which every byte is set.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}
