//! Projections, forward and back.

use super::Pass;
use super::sums::only;
use crate::error::Result;
use crate::gpu::arena::Mark;
use crate::gpu::launch::WeightGradient;
use crate::gpu::plan::{Inner, Layers, Linear};
use crate::gpu::queue::{Address, Epilogue, Matrix, Number, Product};

impl Pass<'_> {
    /// y = x·Wᵀ.
    pub(in crate::gpu) fn projection(&self, x: Address, rows: usize, linear: &Linear, y: Address) -> Product {
        Product {
            m: rows,
            n: linear.out,
            k: linear.input,
            a: Matrix::new(x, linear.input),
            b: Matrix::new(self.weight(linear.weight), linear.input).t(),
            c: Matrix::new(y, linear.stride),
            number: self.number,
            result: self.number,
            accumulate: false,
            epilogue: Epilogue::None,
        }
    }

    /// y = x·Wᵀ + bias.
    pub(in crate::gpu) fn project(&self, x: Address, rows: usize, linear: &Linear, y: Address) -> Result<()> {
        self.multiply(&Product { epilogue: self.bias(linear), ..self.projection(x, rows, linear, y) })
    }

    /// Computes a product, and after it what its epilogue would do if the library has none.
    pub(in crate::gpu) fn multiply(&self, product: &Product) -> Result<()> {
        let (kernels, epilogue) = (&self.engine.kernels, product.epilogue);
        if kernels.takes_epilogue(product) {
            match kernels.product(product) {
                // It may be refused as late as this. If that is not why it failed, so will what follows.
                Err(_) if epilogue != Epilogue::None => {}
                outcome => return outcome,
            }
        }
        kernels.product(&Product { epilogue: Epilogue::None, ..*product })?;
        let sizes = [product.m, product.n];
        match epilogue {
            Epilogue::None => Ok(()),
            Epilogue::Bias(bias) => kernels.add_bias(product.c, bias, product.result, sizes, false),
            Epilogue::BiasRelu(bias) => kernels.add_bias(product.c, bias, product.result, sizes, true),
        }
    }

    /// The bias of a projection as an epilogue.
    pub(in crate::gpu) fn bias(&self, linear: &Linear) -> Epilogue {
        linear.bias.map_or(Epilogue::None, |bias| Epilogue::Bias(self.weight(bias)))
    }

    /// dx = g·W, or dx += g·W.
    pub(super) fn project_back(
        &self,
        g: Address,
        rows: usize,
        linear: &Linear,
        dx: Address,
        accumulate: bool,
    ) -> Result<()> {
        self.engine.kernels.product(&self.product_back(g, rows, linear, dx, accumulate))
    }

    /// The product of [`Pass::project_back`], not computed yet.
    pub(super) fn product_back(
        &self,
        g: Address,
        rows: usize,
        linear: &Linear,
        dx: Address,
        accumulate: bool,
    ) -> Product {
        Product {
            m: rows,
            n: linear.input,
            k: linear.out,
            a: Matrix::new(g, linear.stride),
            b: Matrix::new(self.weight(linear.weight), linear.input),
            c: Matrix::new(dx, linear.input),
            number: self.number,
            result: self.number,
            accumulate,
            epilogue: Epilogue::None,
        }
    }

    /// Before the backward passes over stacks: lets their weight gradients wait, if products with so many rows are
    /// small.
    pub(super) fn begin_gradients(&mut self, stacks: [&Layers; 2], rows: usize) {
        let projections =
            stacks.into_iter().flat_map(|layers| &layers.sublayers).flat_map(|sublayer| match &sublayer.inner {
                Inner::Attention(of) => [Some(of.query), of.key_value, Some(of.output)],
                Inner::FeedForward(of) => [Some(of.fc1), Some(of.fc2), None],
            });
        let widths = projections.flatten().map(|linear| (linear.out, linear.input));
        self.waiting = self.engine.kernels.has_small_gradients(rows, widths).then(Vec::new);
    }

    /// Whether gradients of activations are kept until the end of the pass, for the weight gradients that wait.
    pub(super) fn keeps_gradients(&self) -> bool {
        self.waiting.is_some()
    }

    /// Gives back what a sub-layer or a stack took, unless it is kept.
    pub(super) fn release_gradients(&mut self, mark: Mark) {
        if !self.keeps_gradients() {
            self.engine.arena.release(mark);
        }
    }

    /// Adds gᵀ·x to the weight's gradient, and the column sums of g to that of the bias at this place.
    pub(super) fn add_weight_gradient(
        &mut self,
        g: Address,
        x: Address,
        rows: usize,
        linear: &Linear,
        bias: Option<usize>,
    ) -> Result<()> {
        let product = Product {
            m: linear.out,
            n: linear.input,
            k: rows,
            a: Matrix::new(g, linear.stride).t(),
            b: Matrix::new(x, linear.input),
            c: Matrix::new(self.gradient(linear.weight), linear.input),
            number: self.number,
            result: Number::F32,
            accumulate: true,
            epilogue: Epilogue::None,
        };
        let of_bias = self.optional(bias, Self::gradient);
        if let Some(waiting) = &mut self.waiting
            && self.engine.kernels.takes_weight_gradient(&product)
        {
            waiting.push(WeightGradient { product, bias: of_bias });
            return Ok(());
        }
        self.engine.kernels.product(&product)?;
        if of_bias == Address::NONE {
            return Ok(());
        }
        let blocks = self.engine.kernels.column_blocks(rows, linear.out);
        let partial = self.partial_sums(blocks, only((of_bias, linear.out)))?;
        self.engine.kernels.column_sums(partial, g, rows, linear.out, linear.stride)
    }

    /// Notes that the gradients of the parameters from `place` on are complete, if none of them waits.
    pub(super) fn note_complete(&mut self, place: Option<usize>) -> Result<()> {
        match place {
            Some(place) if !self.keeps_gradients() => self.engine.note_complete(place),
            _ => Ok(()),
        }
    }

    /// Adds the weight gradients that have waited. Every weight has one, since none is used twice in the stacks.
    pub(super) fn add_waiting_gradients(&mut self) -> Result<()> {
        let waiting = self.waiting.take().unwrap_or_default();
        self.engine.kernels.add_weight_gradients(&waiting)
    }
}
