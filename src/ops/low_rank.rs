//! Training by factors of low rank (Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models"): a matrix
//! W [n, m] is W₀ + s·B·A, where W₀ stays as it is, and only A [r, m] and B [n, r] are trained. A begins uniform within
//! ±1/√m, B with zeros, so that training begins with W₀; s = alpha/r.
//!
//! The model computes with W itself. From its gradient G follow those of the factors: ∂A = s·Bᵀ·G and ∂B = s·G·Aᵀ.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};
use rayon::prelude::*;

use super::matmul::{Packed, Precision, transposed_product};
use super::memory::{change_on_host, on_host, with_slice, with_slice_mut};
use super::optimizer::{self, AdamStep};
use super::params::{Entry, Parameters};
use super::profile::{self, Work};
use super::simd::vectorised;
use crate::rng::Stream;

/// Name of the tensor with factor A of a matrix, in a checkpoint.
pub fn name_of_a(name: &str) -> String {
    format!("{name}.low_rank_a")
}

/// Name of the tensor with factor B of a matrix, in a checkpoint.
pub fn name_of_b(name: &str) -> String {
    format!("{name}.low_rank_b")
}

/// The name of a tensor with one number, s, in a checkpoint: of a file of factors.
pub const SCALE: &str = "low_rank.scale";

/// Matrices with their factors.
#[derive(Debug)]
pub struct LowRank {
    parameters: Arc<Parameters>,
    matrices: Vec<Matrix>,
    rank: usize,
    /// alpha / rank
    scale: f32,
    /// W₀ of all matrices.
    base: Tensor,
    /// A and B of all matrices.
    factors: Tensor,
    gradients: Tensor,
}

/// A matrix [rows, columns], and where what belongs to it lies.
#[derive(Debug)]
pub struct Matrix {
    name: String,
    /// n
    pub rows: usize,
    /// m
    pub columns: usize,
    /// Its place among the parameters.
    pub values: Range<usize>,
    /// That of W₀ in [`LowRank::base`].
    pub base: Range<usize>,
    /// That of A, and of B behind it, in [`LowRank::factors`] and [`LowRank::gradients`].
    pub factors: Range<usize>,
}

impl Matrix {
    /// Numbers of A.
    pub fn split(&self, rank: usize) -> usize {
        rank * self.columns
    }

    /// Its part of a flat tensor of all parameters, or of W₀ of all matrices.
    fn of(&self, all: &Tensor, range: &Range<usize>) -> Result<Tensor> {
        all.narrow(0, range.start, range.len())?.reshape((self.rows, self.columns))
    }

    /// A and B.
    fn pair(&self, all: &Tensor, rank: usize) -> Result<(Tensor, Tensor)> {
        let (from, split) = (self.factors.start, self.split(rank));
        let a = all.narrow(0, from, split)?.reshape((rank, self.columns))?;
        let b = all.narrow(0, from + split, self.factors.len() - split)?.reshape((self.rows, rank))?;
        Ok((a, b))
    }
}

/// A factor as a checkpoint stores it.
pub struct Factor<'a> {
    /// [`name_of_a`] or [`name_of_b`].
    pub name: String,
    /// Its shape.
    pub shape: [usize; 2],
    /// Its numbers.
    pub values: &'a [f32],
}

impl LowRank {
    /// Factors for the parameters `adapted`, which are matrices. Nothing is trained before [`LowRank::begin`], or
    /// before W₀ and the factors have been loaded ([`LowRank::load`]).
    pub fn new<'a>(
        parameters: &Arc<Parameters>,
        adapted: impl Iterator<Item = &'a Entry>,
        rank: usize,
        alpha: f64,
    ) -> Result<Self> {
        let (mut matrices, mut of_base, mut of_factors) = (Vec::new(), 0, 0);
        for entry in adapted {
            let [rows, columns] = entry.shape[..] else { bail!("{} is no matrix", entry.name) };
            let (size, factors) = (rows * columns, rank * (rows + columns));
            matrices.push(Matrix {
                name: entry.name.clone(),
                rows,
                columns,
                values: entry.range(),
                base: of_base..of_base + size,
                factors: of_factors..of_factors + factors,
            });
            (of_base, of_factors) = (of_base + size, of_factors + factors);
        }
        let zeros = |count| Tensor::zeros(count, DType::F32, parameters.device());
        let (base, factors, gradients) = (zeros(of_base)?, zeros(of_factors)?, zeros(of_factors)?);
        let scale = (alpha / rank as f64) as f32;
        Ok(Self { parameters: parameters.clone(), matrices, rank, scale, base, factors, gradients })
    }

    /// The matrices as they are now become W₀, and the factors what they begin with.
    pub fn begin(&self, seed: u64) -> crate::error::Result<()> {
        self.load(|_, base, values| {
            base.copy_from_slice(values);
            Ok(())
        })?;
        change_on_host(&self.factors, |factors| {
            for matrix in &self.matrices {
                let mut stream = Stream::new(seed, &format!("low_rank.{}", matrix.name));
                let bound = 1.0 / (matrix.columns as f64).sqrt();
                let (a, b) = factors[matrix.factors.clone()].split_at_mut(matrix.split(self.rank));
                a.iter_mut().for_each(|value| *value = stream.uniform(-bound, bound) as f32);
                b.fill(0.0);
            }
        })?;
        Ok(())
    }

    /// Fills W₀ of each matrix, of this name: `fill` gets its place, and the parameter as it is now.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn load(
        &self,
        mut fill: impl FnMut(&str, &mut [f32], &[f32]) -> crate::error::Result<()>,
    ) -> crate::error::Result<()> {
        change_on_host(&self.base, |base| {
            on_host(self.parameters.values(), |values| {
                let mut each = self.matrices.iter();
                Ok(each.try_for_each(|m| fill(&m.name, &mut base[m.base.clone()], &values[m.values.clone()])))
            })
        })??
    }

    /// W₀ of all matrices, flat.
    pub fn base(&self) -> &Tensor {
        &self.base
    }

    /// A and B of each matrix, flat.
    pub fn factors(&self) -> &Tensor {
        &self.factors
    }

    /// The gradients of the factors, which lie as they do.
    pub fn gradients(&self) -> &Tensor {
        &self.gradients
    }

    /// The matrices in the order of the parameters.
    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }

    /// r.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// s.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Calls `f` with all factors.
    pub fn with_factors<R>(&self, f: impl FnOnce(Vec<Factor<'_>>) -> R) -> Result<R> {
        on_host(&self.factors, |factors| {
            let of = |matrix: &Matrix| {
                let (a, b) = factors[matrix.factors.clone()].split_at(matrix.split(self.rank));
                [
                    Factor { name: name_of_a(&matrix.name), shape: [self.rank, matrix.columns], values: a },
                    Factor { name: name_of_b(&matrix.name), shape: [matrix.rows, self.rank], values: b },
                ]
            };
            Ok(f(self.matrices.iter().flat_map(of).collect()))
        })
    }

    /// Computes the gradients of the factors from those of the matrices, which become zero; returns their norm.
    pub fn take_gradients(&self) -> Result<f64> {
        let _timer = profile::operation("factors", "gradients", Work::floats(2 * self.base.elem_count()));
        if !self.factors.device().is_cpu() {
            self.take_gradients_reference()?;
            return optimizer::norm(&self.gradients);
        }
        with_slice(&self.factors, |factors| {
            with_slice_mut(&self.gradients, |gradients| {
                change_on_host(self.parameters.gradients(), |all| {
                    for matrix in &self.matrices {
                        let (rows, columns) = (matrix.rows, matrix.columns);
                        let (of_matrix, split) = (&mut all[matrix.values.clone()], matrix.split(self.rank));
                        let (a, b) = factors[matrix.factors.clone()].split_at(split);
                        let (of_a, of_b) = gradients[matrix.factors.clone()].split_at_mut(split);
                        transposed_product(b, of_matrix, rows, of_a, false, Precision::F32);
                        Packed::transposed(a, self.rank, columns, Precision::F32).product(of_matrix, of_b, false);
                        of_matrix.par_chunks_mut(columns).for_each(|row| row.fill(0.0));
                    }
                    gradients.iter_mut().for_each(|g| *g *= self.scale);
                })
            })
        })??;
        optimizer::norm(&self.gradients)
    }

    /// The same in plain Candle operations, on any device.
    fn take_gradients_reference(&self) -> Result<()> {
        let all = self.parameters.gradients();
        for matrix in &self.matrices {
            let (g, (a, b)) = (matrix.of(all, &matrix.values)?, matrix.pair(&self.factors, self.rank)?);
            let scale = f64::from(self.scale);
            let of_a = (b.t()?.matmul(&g)? * scale)?.flatten_all()?;
            let of_b = (g.matmul(&a.t()?)? * scale)?.flatten_all()?;
            self.gradients.slice_set(&of_a, 0, matrix.factors.start)?;
            self.gradients.slice_set(&of_b, 0, matrix.factors.start + matrix.split(self.rank))?;
            all.slice_set(&g.zeros_like()?.flatten_all()?, 0, matrix.values.start)?;
        }
        Ok(())
    }

    /// One Adam update of the factors, and of the matrices.
    pub fn adam(&self, [first, second]: [&Tensor; 2], scale: f64, step: &AdamStep) -> Result<()> {
        optimizer::adam(&self.factors, &self.gradients, first, second, scale, step)?;
        self.merge()
    }

    /// Makes the matrices W₀ + s·B·A.
    pub fn merge(&self) -> Result<()> {
        let _timer = profile::operation("factors", "merge", Work::floats(self.rank * self.base.elem_count()));
        if !self.factors.device().is_cpu() {
            return self.merge_reference();
        }
        with_slice(&self.factors, |factors| {
            with_slice(&self.base, |base| {
                change_on_host(self.parameters.values(), |values| {
                    for matrix in &self.matrices {
                        let (a, b) = factors[matrix.factors.clone()].split_at(matrix.split(self.rank));
                        let values = &mut values[matrix.values.clone()];
                        let base = &base[matrix.base.clone()];
                        let rows = values.par_chunks_mut(matrix.columns).zip(base.par_chunks(matrix.columns));
                        rows.zip(b.par_chunks(self.rank)).for_each(|((row, base), b)| {
                            row.copy_from_slice(base);
                            add_row(row, b, a, matrix.columns, 0, self.scale);
                        });
                    }
                })
            })
        })
    }

    /// The same in plain Candle operations, on any device.
    fn merge_reference(&self) -> Result<()> {
        for matrix in &self.matrices {
            let (a, b) = matrix.pair(&self.factors, self.rank)?;
            let change = (b.matmul(&a)? * f64::from(self.scale))?;
            let values = (matrix.of(&self.base, &matrix.base)? + change)?.flatten_all()?;
            self.parameters.values().slice_set(&values, 0, matrix.values.start)?;
        }
        Ok(())
    }
}

vectorised! {
    /// Adds s·b·A to the part of a row of W that begins at the column `from`. b: the row's of B [r], a: A [r, columns].
    ///
    /// Each number is a sum in one order, whatever part of a row it is computed in: a checkpoint that is read has the
    /// same bits as the model that was trained.
    pub fn add_row(row: &mut [f32], b: &[f32], a: &[f32], columns: usize, from: usize, scale: f32) {
        let n = row.len();
        for k in 0..b.len() {
            let factor = scale * b[k];
            let a = &a[k * columns + from..][..n];
            for j in 0..n {
                row[j] += factor * a[j];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::params::{Kind, ParameterLayout};

    const RANK: usize = 3;
    const ALPHA: f64 = 1.5;

    /// Two matrices with factors, and a vector between them.
    fn parameters() -> Arc<Parameters> {
        let mut layout = ParameterLayout::default();
        layout.add("a.weight", &[7, 5], Kind::Weight);
        layout.add("a.bias", &[7], Kind::Vector);
        layout.add("b.weight", &[4, 9], Kind::Weight);
        let parameters = layout.allocate(&Device::Cpu, DType::F32).unwrap();
        let mut stream = Stream::new(1, "values");
        for tensor in [parameters.values(), parameters.gradients()] {
            with_slice_mut(tensor, |values| values.iter_mut().for_each(|value| *value = stream.normal() as f32))
                .unwrap();
        }
        parameters
    }

    fn low_rank(parameters: &Arc<Parameters>) -> LowRank {
        let matrices = parameters.entries().iter().filter(|entry| entry.kind == Kind::Weight);
        let low_rank = LowRank::new(parameters, matrices, RANK, ALPHA).unwrap();
        low_rank.begin(7).unwrap();
        low_rank
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec1().unwrap()
    }

    /// The change of the loss Σ G·W where one number of the factors changes, by W = W₀ + s·B·A in float64.
    #[test]
    fn gradients_of_factors_are_those_of_the_product() {
        let parameters = parameters();
        let low_rank = low_rank(&parameters);
        let mut stream = Stream::new(2, "factors");
        with_slice_mut(&low_rank.factors, |f| f.iter_mut().for_each(|x| *x = stream.normal() as f32)).unwrap();
        let (g, factors) = (numbers(parameters.gradients()), numbers(&low_rank.factors));
        let norm = low_rank.take_gradients().unwrap();
        let found = numbers(&low_rank.gradients);
        let loss = |factors: &[f64]| -> f64 {
            let of = |matrix: &Matrix| {
                let (a, b) = factors[matrix.factors.clone()].split_at(matrix.split(RANK));
                let cell = |i: usize| {
                    let (row, column) = (i / matrix.columns, i % matrix.columns);
                    (0..RANK).map(|k| b[row * RANK + k] * a[k * matrix.columns + column]).sum::<f64>()
                };
                let g = &g[matrix.values.clone()];
                g.iter().enumerate().map(|(i, g)| f64::from(*g) * cell(i) * ALPHA / RANK as f64).sum::<f64>()
            };
            low_rank.matrices.iter().map(of).sum()
        };
        let factors: Vec<f64> = factors.into_iter().map(f64::from).collect();
        for (i, found) in found.iter().enumerate() {
            // The loss is linear in each number.
            let mut other = factors.clone();
            other[i] += 1.0;
            let want = loss(&other) - loss(&factors);
            assert!((f64::from(*found) - want).abs() < 1e-5 * (1.0 + want.abs()), "{i}: {found}, not {want}");
        }
        let squares: f64 = found.iter().map(|g| f64::from(*g).powi(2)).sum();
        assert!((norm / squares.sqrt() - 1.0).abs() < 1e-9);
        let left = numbers(parameters.gradients());
        for entry in parameters.entries() {
            let is_taken = left[entry.range()].iter().all(|g| *g == 0.0);
            assert_eq!(is_taken, entry.kind == Kind::Weight, "{}", entry.name);
        }
    }

    #[test]
    fn plain_operations_compute_the_same() {
        let run = |is_plain: bool| {
            let parameters = parameters();
            let low_rank = low_rank(&parameters);
            let mut stream = Stream::new(2, "factors");
            with_slice_mut(&low_rank.factors, |f| f.iter_mut().for_each(|x| *x = stream.normal() as f32)).unwrap();
            if is_plain {
                low_rank.take_gradients_reference().unwrap();
                low_rank.merge_reference().unwrap();
            } else {
                low_rank.take_gradients().unwrap();
                low_rank.merge().unwrap();
            }
            [&low_rank.gradients, parameters.gradients(), parameters.values()].map(numbers)
        };
        for (got, want) in run(true).into_iter().flatten().zip(run(false).into_iter().flatten()) {
            assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "{got}, not {want}");
        }
    }

    #[test]
    fn training_begins_with_the_matrices_and_moves_them_by_their_factors() {
        let parameters = parameters();
        let before = numbers(parameters.values());
        let low_rank = low_rank(&parameters);
        low_rank.merge().unwrap();
        assert_eq!(numbers(parameters.values()), before);
        let moments = [(); 2].map(|()| low_rank.factors.zeros_like().unwrap());
        let step = AdamStep { learning_rate: 0.1, betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.0, update: 1 };
        low_rank.take_gradients().unwrap();
        low_rank.adam([&moments[0], &moments[1]], 1.0, &step).unwrap();
        let (after, factors) = (numbers(parameters.values()), numbers(&low_rank.factors));
        for matrix in &low_rank.matrices {
            let (a, b) = factors[matrix.factors.clone()].split_at(matrix.split(RANK));
            assert!(b.iter().all(|b| *b != 0.0), "B has moved");
            for (i, at) in matrix.values.clone().enumerate() {
                let (row, column) = (i / matrix.columns, i % matrix.columns);
                let change: f32 = (0..RANK).map(|k| b[row * RANK + k] * a[k * matrix.columns + column] * 0.5).sum();
                assert!((after[at] - before[at] - change).abs() < 1e-6, "{} {i}", matrix.name);
            }
        }
        let bias = parameters.entry("a.bias").unwrap().range();
        assert_eq!(after[bias.clone()], before[bias]);
    }
}
