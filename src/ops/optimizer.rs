//! Adam, the global gradient norm and clipping, each one pass over the flat buffers.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

use super::loss::Sums;
use super::memory::{with_slice, with_slice_mut};
use super::params::Parameters;
use super::profile::{self, Work};
use super::simd::vectorised;
use crate::error::Error;

/// Elements that one thread takes at a time.
const BLOCK: usize = 1 << 16;

/// What one rank has put into an update, or all ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Real target tokens.
    pub tokens: u64,
    /// Sentence pairs.
    pub pairs: u64,
    /// Ranks that were asked to stop before their share was complete. If there is one, no rank makes the update.
    pub stopping: u64,
}

impl Counts {
    /// As numbers, which a collective operation adds up together with others. They are exact up to 2^53.
    pub fn to_numbers(self) -> [f64; 3] {
        [self.tokens, self.pairs, self.stopping].map(|count| count as f64)
    }

    /// The counts of which these are the numbers.
    pub fn from_numbers(numbers: [f64; 3]) -> Self {
        let [tokens, pairs, stopping] = numbers.map(|number| number as u64);
        Self { tokens, pairs, stopping }
    }
}

/// The result of an update. All ranks get the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The sums of its losses.
    pub sums: Sums,
    /// What it was made of.
    pub counts: Counts,
    /// Euclidean norm of the gradient, before it was clipped.
    pub gradient_norm: f64,
    /// Whether the parameters were changed, which needs a finite loss and a finite norm.
    pub is_made: bool,
}

/// The error for asking for an outcome when no update was queued.
pub(crate) fn no_outcome() -> Error {
    Error::failure("an outcome was asked for, and no update was queued")
}

/// Decides on an update from its summed losses, its counts and the Euclidean norm of its summed gradients. Returns the
/// outcome, and what the gradients are to be multiplied by: 1 / target tokens, and a smaller factor where their norm
/// would then exceed `clip_norm` > 0, so that it becomes `clip_norm`.
///
/// The update is not made, and the factor is `None`, if the loss or the norm is not finite or a rank was asked to stop.
/// NaN and infinity stay what they are in every sum, so no rank has to say that it has met one.
pub fn decide(sums: Sums, counts: Counts, norm: f64, clip_norm: f64) -> (Outcome, Option<f64>) {
    let scale = 1.0 / counts.tokens as f64;
    let gradient_norm = norm * scale;
    let is_made = sums.smoothed.is_finite() && gradient_norm.is_finite() && counts.stopping == 0;
    let is_clipped = clip_norm > 0.0 && gradient_norm > clip_norm;
    let factor = if is_clipped { scale * (clip_norm / gradient_norm) } else { scale };
    (Outcome { sums, counts, gradient_norm, is_made }, is_made.then_some(factor))
}

/// The constants of one Adam update (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019).
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// Learning rate.
    pub learning_rate: f64,
    /// β₁, β₂.
    pub betas: [f64; 2],
    /// ε, added to the root.
    pub eps: f64,
    /// Decoupled weight decay; the parameter shrinks by learning_rate·weight_decay.
    pub weight_decay: f64,
    /// Number of this update, from 1: for the bias corrections.
    pub update: u64,
}

/// The parameters that updates move. The others have no moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trained {
    /// Where they lie, in order.
    pub ranges: Vec<Range<usize>>,
    /// Those with weight decay, in order, each within one of the ranges.
    pub decayed: Vec<Range<usize>>,
}

impl Trained {
    /// How many they are.
    pub fn count(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Each range, and where its moments begin: those of all ranges follow one another.
    pub fn places(&self) -> impl Iterator<Item = (&Range<usize>, usize)> {
        self.ranges.iter().scan(0, |next, range| {
            let place = (range, *next);
            *next += range.len();
            Some(place)
        })
    }

    /// The moments of these parameters from those of `others`; 0 for those that are not among them.
    pub fn moments_from(&self, others: &Self, moments: &[f32]) -> Vec<f32> {
        let mut own = vec![0.0; self.count()];
        for (range, at) in self.places() {
            for (other, other_at) in others.places() {
                let (start, end) = (range.start.max(other.start), range.end.min(other.end));
                if start < end {
                    let from = &moments[other_at + start - other.start..][..end - start];
                    own[at + start - range.start..][..end - start].copy_from_slice(from);
                }
            }
        }
        own
    }
}

/// [`AdamStep::constants`].
pub type AdamConstants = [f32; 9];

impl AdamStep {
    /// 1/(1-β^update) for both moments.
    fn corrections(&self) -> [f64; 2] {
        self.betas.map(|beta| 1.0 / (1.0 - beta.powf(self.update as f64)))
    }

    /// In the order of the kernels: β₁, β₂, what these are short of 1, their corrections, ε, the learning rate, the
    /// share of a parameter that weight decay takes.
    ///
    /// Differences are rounded only when they are made: of β₂ = 0.9999 in float32, the difference from 1 would be off
    /// by 2e-4.
    pub fn constants(&self) -> AdamConstants {
        let [correction1, correction2] = self.corrections();
        let share = self.learning_rate * self.weight_decay;
        let [beta1, beta2] = self.betas;
        let rests = [1.0 - beta1, 1.0 - beta2];
        [beta1, beta2, rests[0], rests[1], correction1, correction2, self.eps, self.learning_rate, share]
            .map(|c| c as f32)
    }
}

vectorised! {
    fn sum_of_squares(x: &[f32]) -> f64 {
        let mut lanes = [0f64; 8];
        let chunks = x.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..8 {
                let v = chunk[i] as f64;
                lanes[i] += v * v;
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|v| *v as f64 * *v as f64).sum::<f64>()
    }

    fn average_block(average: &mut [f32], values: &[f32], share: f32) {
        let n = average.len();
        let values = &values[..n];
        for i in 0..n {
            average[i] += share * (values[i] - average[i]);
        }
    }

    fn adam_block(
        values: &mut [f32],
        gradients: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        scale: f32,
        constants: AdamConstants,
    ) {
        let [beta1, beta2, rest1, rest2, correction1, correction2, eps, rate, share] = constants;
        let n = values.len();
        let (gradients, first, second) = (&gradients[..n], &mut first[..n], &mut second[..n]);
        for i in 0..n {
            let g = gradients[i] * scale;
            let m = beta1 * first[i] + rest1 * g;
            let v = beta2 * second[i] + rest2 * g * g;
            first[i] = m;
            second[i] = v;
            let step = m * correction1 / ((v * correction2).sqrt() + eps);
            // A factor of 1 - share would be 1 for a share below 3e-8.
            values[i] -= rate * step + share * values[i];
        }
    }
}

/// Euclidean norm of a flat tensor, summed in one order whatever the number of threads.
pub fn norm(x: &Tensor) -> Result<f64> {
    let _timer = profile::operation("gradient norm", "", Work::floats(x.elem_count()));
    if !x.device().is_cpu() || x.dtype() != DType::F32 {
        let sum = x.sqr()?.sum_all()?;
        return Ok(
            if sum.dtype() == DType::F64 { sum.to_scalar::<f64>()? } else { sum.to_scalar::<f32>()? as f64 }.sqrt()
        );
    }
    with_slice(x, |x| {
        let parts: Vec<f64> = x.par_chunks(BLOCK).map(sum_of_squares).collect();
        Ok(parts.iter().sum::<f64>().sqrt())
    })
}

/// One Adam update of flat tensors of equal length. The gradient is multiplied by `scale`: 1/tokens, times the clipping
/// factor.
pub fn adam(
    values: &Tensor,
    gradients: &Tensor,
    first: &Tensor,
    second: &Tensor,
    scale: f64,
    step: &AdamStep,
) -> Result<()> {
    let _timer = profile::operation("adam", "", Work::floats(7 * values.elem_count()));
    if !values.device().is_cpu() || values.dtype() != DType::F32 {
        return reference(values, gradients, first, second, scale, step);
    }
    let constants = step.constants();
    with_slice(gradients, |g| {
        with_slice_mut(values, |values| {
            with_slice_mut(first, |first| {
                with_slice_mut(second, |second| {
                    values
                        .par_chunks_mut(BLOCK)
                        .zip(g.par_chunks(BLOCK))
                        .zip(first.par_chunks_mut(BLOCK).zip(second.par_chunks_mut(BLOCK)))
                        .for_each(|((values, g), (first, second))| {
                            adam_block(values, g, first, second, scale as f32, constants)
                        });
                })
            })
        })
    })???;
    Ok(())
}

/// One Adam update of those of a model's parameters that are trained.
pub fn adam_of(
    parameters: &Parameters,
    trained: &Trained,
    [first, second]: [&Tensor; 2],
    scale: f64,
    step: &AdamStep,
) -> Result<()> {
    let plain = AdamStep { weight_decay: 0.0, ..*step };
    for (range, at) in trained.places() {
        let part = |part: Range<usize>, step: &AdamStep| {
            let of_parameters = [parameters.values(), parameters.gradients()];
            let [values, gradients] = of_parameters.map(|t| t.narrow(0, part.start, part.len()));
            let [first, second] = [first, second].map(|t| t.narrow(0, at + part.start - range.start, part.len()));
            adam(&values?, &gradients?, &first?, &second?, scale, step)
        };
        let mut next = range.start;
        for decayed in trained.decayed.iter().filter(|decayed| range.contains(&decayed.start)) {
            if next < decayed.start {
                part(next..decayed.start, &plain)?;
            }
            part(decayed.clone(), step)?;
            next = decayed.end;
        }
        if next < range.end {
            part(next..range.end, &plain)?;
        }
    }
    Ok(())
}

/// [`adam`] in plain Candle operations, on any device.
pub fn reference(
    values: &Tensor,
    gradients: &Tensor,
    first: &Tensor,
    second: &Tensor,
    scale: f64,
    step: &AdamStep,
) -> Result<()> {
    let [beta1, beta2] = step.betas;
    let [correction1, correction2] = step.corrections();
    let g = (gradients * scale)?;
    let m = ((first * beta1)? + (&g * (1.0 - beta1))?)?;
    let v = ((second * beta2)? + (g.sqr()? * (1.0 - beta2))?)?;
    let change = ((&m * correction1)? / ((&v * correction2)?.sqrt()? + step.eps)?)?;
    let share = step.learning_rate * step.weight_decay;
    let updated = (values - ((change * step.learning_rate)? + (values * share)?)?)?;
    values.slice_set(&updated, 0, 0)?;
    first.slice_set(&m, 0, 0)?;
    second.slice_set(&v, 0, 0)
}

/// average = decay · average + (1 - decay) · values, so that a parameter that stays the same is its own average.
pub fn average(average: &Tensor, values: &Tensor, decay: f64) -> Result<()> {
    let _timer = profile::operation("average", "", Work::floats(3 * values.elem_count()));
    if !values.device().is_cpu() || values.dtype() != DType::F32 {
        return average_reference(average, values, decay);
    }
    with_slice(values, |values| {
        with_slice_mut(average, |average| {
            let blocks = average.par_chunks_mut(BLOCK).zip(values.par_chunks(BLOCK));
            blocks.for_each(|(average, values)| average_block(average, values, (1.0 - decay) as f32));
        })
    })?;
    Ok(())
}

/// The same in plain Candle operations, on any device.
pub fn average_reference(average: &Tensor, values: &Tensor, decay: f64) -> Result<()> {
    let mixed = (average + ((values - average)? * (1.0 - decay))?)?;
    average.slice_set(&mixed, 0, 0)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::rng::Stream;

    /// More than one block, and an odd rest.
    const MANY: usize = 2 * BLOCK + 37;

    fn tensor(numbers: &[f32]) -> Tensor {
        Tensor::new(numbers, &Device::Cpu).unwrap()
    }

    fn normal(stream: &mut Stream) -> Vec<f32> {
        (0..MANY).map(|_| stream.normal() as f32).collect()
    }

    type Update = fn(&Tensor, &Tensor, &Tensor, &Tensor, f64, &AdamStep) -> Result<()>;

    /// The numbers were computed in Python's float64 from algorithm 1 of Kingma and Ba, with θ ← θ − α·λ·θ before each
    /// update, as PyTorch's AdamW does. ε is so large that its position in the formula matters.
    #[test]
    fn two_updates_follow_the_paper() {
        let gradients = [([0.4, -0.2, 1.0], 0.5), ([-0.6, 0.8, 0.2], 0.25)];
        let plain = [[0.904_761_9, -1.909_090_9, 0.401_960_8], [0.896_296_9, -1.943_431, 0.329_575_85]];
        let decayed = [[0.894_761_9, -1.889_090_9, 0.396_960_78], [0.877_349_3, -1.904_540_1, 0.320_606_24]];
        let moments =
            [[[0.02, -0.01, 0.05], [0.0008, 0.0002, 0.005]], [[0.003, 0.011, 0.05], [0.001_234, 0.000_996, 0.004_95]]];
        // A few roundings of float32, and of the numbers here.
        let near = |got: &Tensor, want: [f32; 3]| {
            let got = got.to_vec1::<f32>().unwrap();
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 5e-7 * b.abs()), "{got:?}, not {want:?}");
        };
        for adam in [adam as Update, reference] {
            for (weight_decay, wanted) in [(0.0, plain), (0.1, decayed)] {
                let [values, first, second] = [[1.0, -2.0, 0.5], [0.0; 3], [0.0; 3]].map(|numbers| tensor(&numbers));
                for (i, (gradient, scale)) in gradients.into_iter().enumerate() {
                    let update = i as u64 + 1;
                    let step = AdamStep { learning_rate: 0.1, betas: [0.9, 0.98], eps: 0.01, weight_decay, update };
                    adam(&values, &tensor(&gradient), &first, &second, scale, &step).unwrap();
                    near(&values, wanted[i]);
                    near(&first, moments[i][0]);
                    near(&second, moments[i][1]);
                }
            }
        }
    }

    /// β₂ so near to 1 that the difference needs care; a parameter that only decays, by less than a float32 can be
    /// short of 1.
    #[test]
    fn small_constants_keep_their_accuracy() {
        for adam in [adam as Update, reference] {
            let [values, first, second] = [[1.0], [0.0], [0.0]].map(|numbers| tensor(&numbers));
            let step =
                AdamStep { learning_rate: 0.0, betas: [0.9, 0.999_999], eps: 1e-9, weight_decay: 0.0, update: 1 };
            adam(&values, &tensor(&[2.0]), &first, &second, 1.0, &step).unwrap();
            let moment = second.to_vec1::<f32>().unwrap()[0];
            assert!((moment / 4e-6 - 1.0).abs() < 1e-6, "{moment}");

            // Each update also moves it by its learning rate, up or down.
            let [values, first, second] = [[1e-3], [0.0], [0.0]].map(|numbers| tensor(&numbers));
            let (mut stream, mut exact) = (Stream::new(1, "decay"), 1e-3f64);
            for update in 1..=4000 {
                let learning_rate = stream.uniform(0.5e-6, 1.5e-6);
                let gradient = if update % 2 == 0 { 1.0 } else { -1.0 };
                let step = AdamStep { learning_rate, betas: [0.0, 0.0], eps: 0.0, weight_decay: 0.02, update };
                adam(&values, &tensor(&[gradient]), &first, &second, 1.0, &step).unwrap();
                exact -= learning_rate * (f64::from(gradient) + 0.02 * exact);
            }
            let left = f64::from(values.to_vec1::<f32>().unwrap()[0]);
            // Decay alone takes 8e-8; a rounding is at most 6e-11, in either direction.
            assert!((left - exact).abs() < 1e-8, "{left}, not {exact}");
        }
    }

    #[test]
    fn updates_are_the_reference_s() {
        let mut stream = Stream::new(1, "adam");
        let [values, gradients, first, mut second] = [(); 4].map(|()| normal(&mut stream));
        second.iter_mut().for_each(|v| *v = 1.0 + *v * *v);
        let step = AdamStep { learning_rate: 0.1, betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.01, update: 3 };
        let run = |adam: Update| {
            let state = [&values, &first, &second].map(|numbers| tensor(numbers));
            adam(&state[0], &tensor(&gradients), &state[1], &state[2], 0.3, &step).unwrap();
            state.map(|state| state.to_vec1::<f32>().unwrap())
        };
        for (fused, plain) in run(adam).into_iter().zip(run(reference)) {
            assert_eq!(fused.len(), MANY);
            assert!(fused.iter().zip(&plain).all(|(a, b)| (a - b).abs() <= 3e-6 * (1.0 + b.abs())));
        }
    }

    #[test]
    fn moments_follow_their_parameters() {
        let of = |ranges: &[Range<usize>]| Trained { ranges: ranges.to_vec(), decayed: Vec::new() };
        let (old, new) = (of(&[2..5, 7..9]), of(&[0..3, 4..8]));
        assert_eq!(new.moments_from(&old, &[2.0, 3.0, 4.0, 7.0, 8.0]), [0.0, 0.0, 2.0, 4.0, 0.0, 0.0, 7.0]);
        assert_eq!(old.moments_from(&old, &[2.0, 3.0, 4.0, 7.0, 8.0]), [2.0, 3.0, 4.0, 7.0, 8.0]);
    }

    #[test]
    fn the_norm_is_that_of_all_blocks() {
        let numbers = normal(&mut Stream::new(1, "norm"));
        let want = numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        // Sums in float64, in another order.
        assert!((norm(&tensor(&numbers)).unwrap() / want - 1.0).abs() < 1e-12);
        assert!((norm(&tensor(&numbers).to_dtype(DType::F64).unwrap()).unwrap() / want - 1.0).abs() < 1e-12);
        assert_eq!(norm(&tensor(&[3.0, -4.0])).unwrap(), 5.0);
        assert!(norm(&tensor(&[1.0, f32::NAN])).unwrap().is_nan());
    }

    #[test]
    fn gradients_are_clipped_above_the_limit_and_no_update_is_made_of_what_is_not_finite() {
        let (nan, infinity) = (f64::NAN, f64::INFINITY);
        // Of two tokens: the norm of the gradient is half that of the sum.
        for (smoothed, norm, clip_norm, stopping, factor) in [
            (7.0, 6.0, 0.0, 0, Some(0.5)),
            (7.0, 6.0, 4.0, 0, Some(0.5)),
            (7.0, 8.0, 4.0, 0, Some(0.5)),
            (7.0, 16.0, 4.0, 0, Some(0.25)),
            (7.0, 0.0, 4.0, 0, Some(0.5)),
            (nan, 6.0, 4.0, 0, None),
            (infinity, 6.0, 0.0, 0, None),
            (7.0, nan, 0.0, 0, None),
            (7.0, infinity, 4.0, 0, None),
            (7.0, 6.0, 0.0, 1, None),
        ] {
            let (sums, counts) = (Sums { smoothed, nll: 1.0 }, Counts { tokens: 2, pairs: 1, stopping });
            let (outcome, found) = decide(sums, counts, norm, clip_norm);
            let case = format!("{smoothed} {norm} {clip_norm} {stopping}");
            assert_eq!((found, outcome.is_made, outcome.counts), (factor, factor.is_some(), counts), "{case}");
            assert!(norm.is_nan() || outcome.gradient_norm == norm / 2.0, "{case}");
        }
    }

    #[test]
    fn averages_are_the_reference_s() {
        let mut stream = Stream::new(1, "average");
        let mut random = || tensor(&normal(&mut stream));
        let (fused, values) = (random(), random());
        let plain = fused.copy().unwrap();
        average(&fused, &values, 0.999).unwrap();
        average_reference(&plain, &values, 0.999).unwrap();
        assert_eq!(fused.to_vec1::<f32>().unwrap(), plain.to_vec1::<f32>().unwrap());
        average(&fused, &fused.copy().unwrap(), 0.999).unwrap();
        assert_eq!(fused.to_vec1::<f32>().unwrap(), plain.to_vec1::<f32>().unwrap(), "its own average");
    }
}
