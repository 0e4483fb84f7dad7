//! Translation on a GPU: the encoder once, the decoder one position at a time, and the best continuations of each row,
//! so that nothing but these leaves the device.
//!
//! The queries, keys and values of a step stay where its product wrote them. A hypothesis is a chain of rows through
//! the steps ([`super::launch::Past`]): when a search reorders rows, only row numbers are moved, never keys or values.
//! The source's keys and values are computed once, and shared by the rows of a sentence, which are neighbours.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::DType;

use super::arena::{Arena, Mark};
use super::launch::{Exclusions, Heads, Past, Side};
use super::pass::{Kept, Pass, check_side};
use super::plan::{self, Inner, Plan};
use super::queue::{Address, Epilogue, Number, Product, Queue};
use super::rows::Rows;
use super::upload::Upload;
use super::{Engine, bytes_of, bytes_of_mut};
use crate::error::Result;
use crate::model::pooling::Mixture;
use crate::model::{Sequences, Transformer};
use crate::ops::Mode;

/// A model that translates on a device.
pub struct InferenceEngine {
    /// Held while a session queues its work, but not while it waits for the results, so that another one queues a step
    /// meanwhile.
    engine: Mutex<Engine>,
    queue: Arc<dyn Queue>,
    /// Memory of finished sessions, for new ones.
    spare: Mutex<Vec<Arena>>,
    plan: Arc<Plan>,
}

impl std::fmt::Debug for InferenceEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InferenceEngine").finish_non_exhaustive()
    }
}

/// What rows may not be continued by.
#[derive(Clone, Debug, Default)]
pub struct Excluded {
    /// For each row the only token that it may take, or [`Exclusions::NO_TOKEN`].
    pub forced: Vec<u32>,
    /// Where the tokens of each row begin, and where those of the last row end.
    pub starts: Vec<u32>,
    /// Tokens that rows may not take, row by row.
    pub tokens: Vec<u32>,
    /// Tokens that no row may take.
    pub always: Vec<u32>,
}

/// A step's rows.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The token each row is extended with.
    pub tokens: &'a [u32],
    /// The row of the last step that each row continues.
    pub parents: &'a [usize],
    /// The sentence of each row, in order.
    pub sentences: &'a [usize],
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InferenceEngine {
    /// For a model with its current parameters, which lie on the queue's device; products are computed in `compute`.
    pub fn new(model: &Transformer, queue: Arc<dyn Queue>, compute: DType) -> Result<Self> {
        let engine = Engine::new(model, queue.clone(), compute)?;
        engine.take_weights()?;
        Ok(Self { plan: engine.plan.clone(), engine: Mutex::new(engine), queue, spare: Mutex::default() })
    }

    /// How many layers the encoder has.
    pub fn layers(&self) -> usize {
        // Each has two sub-layers.
        self.plan.encoder.sublayers.len() / 2
    }

    /// The vector of each sentence, [B, D]. With pre-norm, the states of a layer before the last are those that the
    /// next one reads. Waits for the device.
    ///
    /// # Errors
    /// The device fails or has no memory left; a token is outside the vocabulary, a sentence longer than the model's
    /// positions.
    pub fn vectors(&self, sources: &Sequences, mixture: &Mixture) -> Result<Vec<Vec<f32>>> {
        let mut engine = locked(&self.engine);
        let result = self.mixed(&mut engine, sources, mixture);
        match &result {
            Ok(_) => engine.arena.reset(),
            Err(_) => engine.arena.forget(),
        }
        result
    }

    fn mixed(&self, engine: &mut Engine, sources: &Sequences, mixture: &Mixture) -> Result<Vec<Vec<f32>>> {
        check_side(engine, &self.plan.encoder, sources)?;
        let mut pass = Pass::new(engine, Mode::INFERENCE);
        let (rows, d) = (Rows::new(sources), pass.d);
        let mut upload = Upload::default();
        let side = upload.add_rows(&rows);
        let side = side.moved(upload.send(pass.engine)?);
        let sum = pass.floats(rows.len() * d)?;
        pass.engine.queue.clear(sum, 4 * rows.len() * d)?;
        let mix = |pass: &Pass<'_>, layer: usize, states| match mixture.weights.get(layer) {
            Some(weight) if *weight != 0.0 => {
                pass.engine.kernels.mix(sum, states, &side, *weight, mixture.is_normalised, d)
            }
            _ => Ok(()),
        };
        // Attention is the first of a layer's sub-layers.
        let states = pass.walk(&self.plan.encoder, &side, &mut |pass, number, attention, input| {
            mix(pass, number / 2, input)?;
            pass.attend(attention, input, &side, None)
        })?;
        mix(&pass, self.layers(), states.output)?;
        let mut vectors = vec![0f32; side.sentences * d];
        let at = pass.floats(vectors.len())?;
        pass.engine.kernels.pool(at, sum, &side, mixture.pooling, d)?;
        engine.queue.download(at, bytes_of_mut(&mut vectors))?;
        Ok(vectors.chunks_exact(d).map(<[f32]>::to_vec).collect())
    }

    /// Gives the memory of finished sessions back to the device.
    pub fn release_memory(&self) {
        locked(&self.spare).clear();
    }

    /// Encodes sentences and begins to decode them.
    pub fn begin(&self, sources: &Sequences) -> Result<Session<'_>> {
        let mut engine = locked(&self.engine);
        check_side(&engine, &self.plan.encoder, sources)?;
        let spare = locked(&self.spare).pop();
        let mut session = Session {
            engine: self,
            arena: spare.unwrap_or_else(|| Arena::new(engine.queue.clone())),
            begun: Mark::default(),
            source: Side::NONE,
            cross: Vec::new(),
            steps: Address::NONE,
            ancestors: None,
            position: 0,
            capacity: engine.model.config().max_length,
        };
        engine.with_arena(&mut session.arena, |engine| {
            let mut pass = Pass::new(engine, Mode::INFERENCE);
            let layers = self.plan.decoder.memory_projections();
            session.steps = pass.engine.arena.take(8 * layers.len() * session.capacity)?;
            let rows = Rows::new(sources);
            let widths: usize = layers.iter().map(|linear| linear.out).sum();
            let key_values = pass.numbers(rows.len(), widths)?;
            let mut upload = Upload::default();
            let side = upload.add_rows(&rows);
            session.source = side.moved(upload.send(pass.engine)?);
            let mark = pass.engine.arena.mark();
            let encoded = pass.forward(&self.plan.encoder, &session.source, None)?;
            session.cross = pass.project_memory(&layers, encoded.output, rows.len(), key_values)?;
            pass.engine.arena.release(mark);
            Ok(())
        })?;
        session.begun = session.arena.mark();
        Ok(session)
    }
}

/// Sentences that are being translated.
pub struct Session<'a> {
    engine: &'a InferenceEngine,
    arena: Arena,
    /// What was taken before the first step.
    begun: Mark,
    source: Side,
    /// Keys and values of the source, by layer.
    cross: Vec<Address>,
    /// Addresses of the packed queries, keys and values, [steps, layers].
    steps: Address,
    /// Two tables [rows, steps], used alternately, the last step's first; and the number of rows that they have room
    /// for.
    ancestors: Option<([Address; 2], usize)>,
    position: usize,
    capacity: usize,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let mut arena = self.arena.withdraw();
        arena.reset();
        locked(&self.engine.spare).push(arena);
    }
}

impl Session<'_> {
    /// Begins again with the same sentences.
    pub fn restart(&mut self) {
        // The device has done all steps: each of them waited for its results.
        self.arena.release(self.begun);
        self.ancestors = None;
        self.position = 0;
    }

    /// Extends rows; returns the logits of all tokens, a row after the other.
    pub fn logits(&mut self, step: &Step<'_>) -> Result<Vec<f32>> {
        let (rows, output) = (step.tokens.len(), self.engine.plan.output);
        let mut values = self.run(step, &Excluded::default(), |_, logits, _| Ok((logits, rows * output.stride)))?;
        for row in 1..rows {
            let start = row * output.stride;
            values.copy_within(start..start + output.out, row * output.out);
        }
        values.truncate(rows * output.out);
        Ok(values)
    }

    /// Extends rows; returns the tokens of the `k` best continuations of each and their log-probabilities, the best
    /// first, the smaller token first among equals. If there are fewer, the rest have log-probability -∞; a row
    /// whose probabilities are not numbers begins with NaN.
    pub fn best(&mut self, step: &Step<'_>, excluded: &Excluded, k: usize) -> Result<(Vec<u32>, Vec<f32>)> {
        let (rows, output) = (step.tokens.len(), self.engine.plan.output);
        let mut values = self.run(step, excluded, |pass, logits, excluded| {
            let found = pass.floats(2 * rows * k)?;
            let outputs = [found, found.plus(4 * rows * k), logits];
            pass.engine.kernels.best_continuations(outputs, excluded, [rows, output.out, output.stride, k])?;
            Ok((found, 2 * rows * k))
        })?;
        let log_probs = values.split_off(rows * k);
        // The first half are tokens, stored as bits.
        Ok((values.into_iter().map(f32::to_bits).collect(), log_probs))
    }

    /// One step, up to the logits; then `finish`, which tells where the numbers are that are wanted of it, and how
    /// many.
    fn run(
        &mut self,
        step: &Step<'_>,
        excluded: &Excluded,
        finish: impl FnOnce(&mut Pass<'_>, Address, Exclusions) -> Result<(Address, usize)>,
    ) -> Result<Vec<f32>> {
        let mut engine = locked(&self.engine.engine);
        let mut arena = self.arena.withdraw();
        let queued = engine.with_arena(&mut arena, |engine| {
            let mut pass = Pass::new(engine, Mode::INFERENCE);
            let (logits, excluded, mark) = self.forward(&mut pass, step, excluded)?;
            let (at, count) = finish(&mut pass, logits, excluded)?;
            let ticket = pass.engine.queue.fetch(at, 4 * count)?;
            pass.engine.arena.release(mark);
            Ok((ticket, count))
        });
        drop(engine);
        self.arena = arena;
        self.position += 1;
        let (ticket, count) = queued?;
        let mut values = vec![0f32; count];
        self.engine.queue.fetched(ticket, bytes_of_mut(&mut values))?;
        Ok(values)
    }

    fn forward(
        &mut self,
        pass: &mut Pass<'_>,
        step: &Step<'_>,
        excluded: &Excluded,
    ) -> Result<(Address, Exclusions, Mark)> {
        let plan = &self.engine.plan;
        let (rows, layers) = (step.tokens.len(), self.cross.len());
        let widths: Vec<usize> = plan.decoder.sublayers.iter().step_by(3).map(own_width).collect();

        // What the next steps need of this one: keys and values, and the ancestors of its rows.
        let mut at = pass.numbers(rows, widths.iter().sum())?;
        let mut caches = Vec::with_capacity(layers);
        for width in &widths {
            caches.push(at);
            at = pass.after(at, rows * width);
        }
        let addresses: Vec<u64> = caches.iter().map(|cache| cache.number()).collect();
        if !addresses.is_empty() {
            pass.engine.queue.upload(bytes_of(&addresses), self.steps.plus(8 * layers * self.position))?;
        }
        let [before, now] = self.tables(pass, rows)?;
        let mark = pass.engine.arena.mark();

        let (side, parents, exclusions) = self.send(pass, step, excluded)?;
        pass.engine.kernels.advance([now, before, parents], self.position, self.capacity, rows)?;
        let states = pass.walk(&plan.decoder, &side, &mut |pass, number, attention, input| {
            let (layer, query_width) = (number / 3, attention.query.out);
            let context = pass.numbers(rows, attention.output.input)?;
            if attention.key_value.is_none() {
                let query = caches[layer];
                pass.project(input, rows, &attention.query, query)?;
                pass.turn(attention, query, &side, 1.0)?;
                let c = pass.engine.model.config();
                let past = Past {
                    steps: self.steps,
                    ancestors: now,
                    layer,
                    layers,
                    capacity: self.capacity,
                    positions: self.position + 1,
                    rows,
                    stride: query_width,
                    heads: c.heads,
                    d_k: c.d_k,
                    d_v: c.d_v,
                    by_distance: pass.by_distance,
                    reach: c.max_length - 1,
                };
                pass.engine.kernels.attend_past(context, query, &past)?;
            } else {
                let query = pass.numbers(rows, query_width)?;
                pass.project(input, rows, &attention.query, query)?;
                let sizes = pass.sizes(attention, &side, &self.source);
                let log_sums = pass.floats(sizes.heads * rows)?;
                let Heads { k, v, .. } = pass.heads(query, self.cross[layer]);
                pass.engine.kernels.attend([context, log_sums], Heads { q: query, k, v }, &sizes)?;
            }
            Ok((Kept::Nothing, context))
        })?;
        let logits = pass.floats(rows * plan.output.stride)?;
        let epilogue = plan.output.bias.map_or(Epilogue::None, |bias| Epilogue::Bias(pass.master(bias)));
        let product = pass.projection(states.output, rows, &plan.output, logits);
        pass.multiply(&Product { result: Number::F32, epilogue, ..product })?;
        Ok((logits, exclusions, mark))
    }

    /// A step's rows, their parents and what they may not take, on the device.
    fn send(&self, pass: &mut Pass<'_>, step: &Step<'_>, excluded: &Excluded) -> Result<(Side, Address, Exclusions)> {
        let (rows, sentences) = (step.tokens.len(), self.source.sentences);
        let mut upload = Upload::default();
        let words = |values: &[usize]| -> Vec<u32> { values.iter().map(|&value| value as u32).collect() };
        let starts: Vec<usize> = (0..=sentences).map(|s| step.sentences.partition_point(|&of| of < s)).collect();
        let [tokens, places, parents, starts_at] = [
            upload.add(step.tokens),
            upload.add(&vec![self.position as u32; rows]),
            upload.add(&words(step.parents)),
            upload.add(&words(&starts)),
        ];
        let [forced, of_rows, excluded_tokens, always] =
            [&excluded.forced, &excluded.starts, &excluded.tokens, &excluded.always].map(|list| upload.add(list));
        let base = upload.send(pass.engine)?;
        let [tokens, places, parents, starts_at] = [tokens, places, parents, starts_at].map(|place| base.plus(place));
        let exclusions = Exclusions {
            forced: base.plus(forced),
            starts: base.plus(of_rows),
            tokens: base.plus(excluded_tokens),
            always: base.plus(always),
            always_count: excluded.always.len() as u32,
        };
        let side = Side {
            ids: tokens,
            places,
            // Only read for dropout, of which there is none.
            padded: places,
            starts: starts_at,
            rows,
            sentences,
            longest: starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
        };
        Ok((side, parents, exclusions))
    }

    /// The tables of ancestors: the last step's, and the one to be written.
    fn tables(&mut self, pass: &mut Pass<'_>, rows: usize) -> Result<[Address; 2]> {
        let ([last, spare], room) = match self.ancestors {
            Some((tables, room)) if room >= rows => (tables, room),
            known => {
                let table = 4 * rows * self.capacity;
                let (first, second) = (pass.engine.arena.take(table)?, pass.engine.arena.take(table)?);
                // `first` becomes the next step's spare table, so it is as large as this step's.
                let last = known.map_or(first, |([last, _], _)| last);
                self.ancestors = Some(([second, first], rows));
                return Ok([last, second]);
            }
        };
        self.ancestors = Some(([spare, last], room));
        Ok([last, spare])
    }
}

/// Width of the packed queries, keys and values of a decoder's self-attention.
fn own_width(sublayer: &plan::Sublayer) -> usize {
    match &sublayer.inner {
        Inner::Attention(attention) => attention.query.out,
        Inner::FeedForward(_) => 0,
    }
}
