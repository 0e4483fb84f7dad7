//! Factors of low rank on the device: [`crate::ops::low_rank`].

use std::slice;

use candle_core::Tensor;

use super::Engine;
use super::launch::AdamArgument;
use super::queue::{Epilogue, Matrix, Number, Product};
use crate::error::Result;
use crate::ops::low_rank::LowRank;
use crate::ops::optimizer::AdamStep;

impl Engine {
    /// Computes the gradients of the factors from those of the matrices, which become zero; from now on, they count in
    /// [`Engine::decide`].
    pub fn factor_gradients(&mut self, low_rank: &LowRank) -> Result<()> {
        let rank = low_rank.rank();
        let [factors, gradients] = [low_rank.factors(), low_rank.gradients()].map(|tensor| self.queue.address(tensor));
        let (factors, gradients) = (factors?, gradients?);
        for matrix in low_rank.matrices() {
            let (rows, columns, split) = (matrix.rows, matrix.columns, matrix.split(rank));
            let of_matrix = self.gradients.plus(4 * matrix.values.start);
            let [[a, b], [of_a, of_b]] = [factors, gradients].map(|all| {
                let a = all.plus(4 * matrix.factors.start);
                [Matrix::new(a, columns), Matrix::new(a.plus(4 * split), rank)]
            });
            let g = Matrix::new(of_matrix, columns);
            let product = |[m, n, k]: [usize; 3], a, b, c| Product {
                m,
                n,
                k,
                a,
                b,
                c,
                number: Number::F32,
                result: Number::F32,
                accumulate: false,
                epilogue: Epilogue::None,
            };
            self.kernels.product(&product([rank, columns, rows], b.t(), g, of_a))?;
            self.kernels.product(&product([rows, rank, columns], g, a.t(), of_b))?;
            self.queue.clear(of_matrix, 4 * matrix.values.len())?;
        }
        self.of_factors = (gradients, low_rank.gradients().elem_count());
        self.kernels.scale(gradients, low_rank.scale(), self.of_factors.1)
    }

    /// One Adam update of the factors with their moments, and of the matrices, if it is made.
    pub fn adam_of_factors(&mut self, low_rank: &LowRank, moments: [&Tensor; 2], step: &AdamStep) -> Result<()> {
        let [first, second] = moments.map(|moment| self.queue.address(moment));
        let (factors, base) = (self.queue.address(low_rank.factors())?, self.queue.address(low_rank.base())?);
        let (gradients, count) = self.of_factors;
        let all = 0..count;
        let bounds = self.bounds(slice::from_ref(&all))?;
        let addresses = [factors, gradients, first?, second?];
        self.kernels.adam(addresses, self.decision, AdamArgument(step.constants()), bounds, &all)?;
        for matrix in low_rank.matrices() {
            let a = factors.plus(4 * matrix.factors.start);
            let b = a.plus(4 * matrix.split(low_rank.rank()));
            let [values, base] = [self.values.plus(4 * matrix.values.start), base.plus(4 * matrix.base.start)];
            let sizes = [matrix.rows, matrix.columns, low_rank.rank()];
            self.kernels.merge([values, base, b, a], self.decision, low_rank.scale(), sizes)?;
        }
        Ok(())
    }
}
