//! Products: the small ones by `kernels/product.cu`, all others by the queue's library.

use std::ffi::c_void;

use super::{DropoutArgument, Kernels, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Epilogue, Launch, Number, Product};
use crate::ops::dropout::Dropout;
use crate::ops::matmul::Precision;
use crate::ops::profile::Work;

/// Multiplications of a small product, at most: a library's call takes longer on the host than these do on a large GPU.
pub const MOST_MULTIPLICATIONS: usize = 1 << 28;
/// Terms of the sums of a small product, at most. Few blocks with long sums would leave the device idle, and a library
/// divides the sums.
const MOST_TERMS: usize = 512;
/// The same for weight gradients, whose sums are over the rows of a batch, and of which many are computed at once.
const MOST_ROWS: usize = 1 << 14;
/// The most products in one launch: a kernel's arguments have at most 4,096 bytes.
const MOST_SMALL_PRODUCTS: usize = 56;
/// Rows and columns of the result that a block computes.
const SQUARE: [usize; 2] = [64, 64];
/// How many terms of the sums a block holds at a time, and how many times that at most, as its shared memory has room.
const DEPTH: usize = 32;
const MOST_STAGES: usize = 4;
const SHARED_BYTES: usize = 48 << 10;
pub(super) const THREADS: u32 = 8 * WARP;

/// A product as kernels take it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SmallProduct {
    a: Address,
    b: Address,
    c: Address,
    bias: Address,
    sizes: [u32; 3],
    strides: [u32; 3],
    across: u32,
    /// Number of blocks for this product and all before it.
    pub(super) end: u32,
}

impl SmallProduct {
    const NONE: Self = Self {
        a: Address::NONE,
        b: Address::NONE,
        c: Address::NONE,
        bias: Address::NONE,
        sizes: [0; 3],
        strides: [0; 3],
        across: 1,
        // Beyond every grid: kernels look for the first product that ends after a block.
        end: u32::MAX,
    };

    /// `block` is how many rows and columns of the result a block computes, `before` the number of blocks for the
    /// products before it.
    pub(super) fn new(p: &Product, bias: Address, block: [usize; 2], before: u32) -> Self {
        let across = p.n.div_ceil(block[1]) as u32;
        Self {
            a: p.a.at,
            b: p.b.at,
            c: p.c.at,
            bias,
            sizes: [p.m, p.n, p.k].map(|size| size as u32),
            strides: [p.a.stride, p.b.stride, p.c.stride].map(|stride| stride as u32),
            across,
            end: before + across * p.m.div_ceil(block[0]) as u32,
        }
    }
}

/// Products that are computed in one launch.
#[repr(C)]
struct SmallProducts {
    each: [SmallProduct; MOST_SMALL_PRODUCTS],
}

impl SmallProducts {
    /// At most [`MOST_SMALL_PRODUCTS`], each with what kernels take as its bias; also the number of their blocks, and
    /// their work.
    fn new<'a>(products: impl Iterator<Item = (&'a Product, Address)>) -> (Self, u32, Work) {
        let mut all = Self { each: [SmallProduct::NONE; MOST_SMALL_PRODUCTS] };
        let (mut end, mut of_all) = (0, Work::NONE);
        for (argument, (product, bias)) in all.each.iter_mut().zip(products) {
            *argument = SmallProduct::new(product, bias, SQUARE, end);
            end = argument.end;
            of_all += work(product);
        }
        (all, end, of_all)
    }
}

/// A product that adds to the gradient of a weight, and what the sums of its left factor's rows are added to, if
/// anything.
#[derive(Clone, Copy, Debug)]
pub struct WeightGradient {
    /// gᵀ·x, added to float32: its left factor is transposed.
    pub product: Product,
    /// The bias's gradient, in float32, or none.
    pub bias: Address,
}

/// Bytes of shared memory that a block takes; `terms_last` says of both factors whether the terms of the sums are
/// neighbours in memory.
pub(super) fn shared(block: [usize; 2], terms_last: [bool; 2]) -> u32 {
    let part = |lines: usize, terms_last| if terms_last { lines * (DEPTH + 8) } else { DEPTH * (lines + 8) };
    let stage = Number::Bf16.bytes(part(block[0], terms_last[0]) + part(block[1], terms_last[1]));
    ((SHARED_BYTES / stage).min(MOST_STAGES) * stage) as u32
}

pub(super) fn work(p: &Product) -> Work {
    Work::product(p.m, p.n, p.k, Precision::Bf16)
}

impl Kernels {
    /// Whether kernels take the product's layout: whole pieces of 16 bytes. Norms joined with it begin at such if all
    /// widths are multiples of eight.
    fn has_small_form(&self, p: &Product) -> bool {
        let is_whole = |n: usize| n.is_multiple_of(8);
        let starts = [p.a.at, p.b.at, p.c.at].iter().all(|at| at.number().is_multiple_of(16));
        let strides = [p.a.stride, p.b.stride, p.c.stride].into_iter().all(is_whole);
        let rows_of_a = if p.a.transposed { p.m } else { p.k };
        let rows_of_b = if p.b.transposed { p.k } else { p.n };
        self.wide
            && p.number == Number::Bf16
            && p.epilogue.is_aligned()
            && starts
            && strides
            && [rows_of_a, rows_of_b, p.n].into_iter().all(is_whole)
    }

    fn is_small(&self, multiplications: usize) -> bool {
        multiplications <= self.most_multiplications
    }

    /// Whether a product that is not a weight gradient is computed by a kernel.
    pub fn has_kernel(&self, p: &Product) -> bool {
        let has_form = match (p.a.transposed, p.b.transposed) {
            (false, true) => !p.accumulate,
            (false, false) => p.result == Number::Bf16 && p.epilogue == Epilogue::None,
            (true, _) => false,
        };
        has_form && p.k <= MOST_TERMS && self.is_small(p.m * p.n * p.k) && self.has_small_form(p)
    }

    /// Whether [`Self::product`] takes the product with its epilogue.
    pub fn takes_epilogue(&self, p: &Product) -> bool {
        self.has_kernel(p) || self.queue.takes_epilogue(p)
    }

    /// Computes a product.
    pub fn product(&self, p: &Product) -> Result<()> {
        if !self.has_kernel(p) {
            return self.queue.product(p);
        }
        if !p.b.transposed {
            let (product, accumulate) = (SmallProduct::new(p, Address::NONE, SQUARE, 0), u32::from(p.accumulate));
            return self.multiply_back("multiply_back", p, product.end, arguments![product, accumulate]);
        }
        self.project(p, Dropout::OFF, Address::NONE)
    }

    /// A product with [`Epilogue::BiasRelu`] that [has a kernel](Self::has_kernel), and dropout: `padded` is
    /// [`Side::padded`].
    ///
    /// [`Side::padded`]: super::Side::padded
    pub fn product_with_dropout(&self, p: &Product, dropout: Dropout, padded: Address) -> Result<()> {
        self.project(p, dropout, padded)
    }

    fn project(&self, p: &Product, dropout: Dropout, padded: Address) -> Result<()> {
        let (bias, relu) = match p.epilogue {
            Epilogue::None => (Address::NONE, 0u32),
            Epilogue::Bias(bias) => (bias, 0),
            Epilogue::BiasRelu(bias) => (bias, 1),
        };
        let kernel = match p.result {
            Number::Bf16 => "multiply_bf16",
            Number::F32 => "multiply_f32",
        };
        let (product, dropout) = (SmallProduct::new(p, bias, SQUARE, 0), DropoutArgument::from(dropout));
        let (grid, shared, work) = ([product.end, 1, 1], shared(SQUARE, [true; 2]), work(p));
        let launch = Launch { kernel, name: "small product", grid, threads: THREADS, shared, work };
        // SAFETY: the types are those of the kernels in product.cu.
        unsafe { self.queue.launch(&launch, arguments![product, relu, dropout, padded]) }
    }

    /// c = scale·a·b where the hidden layer of relu, which lies like c, is positive, else 0; for a product that
    /// [has a kernel](Self::has_kernel).
    pub fn product_through_relu(&self, p: &Product, hidden: Address, scale: f32) -> Result<()> {
        let product = SmallProduct::new(p, hidden, SQUARE, 0);
        self.multiply_back("multiply_back_relu", p, product.end, arguments![product, scale])
    }

    fn multiply_back(&self, kernel: &str, p: &Product, blocks: u32, arguments: &mut [*mut c_void]) -> Result<()> {
        let (name, grid, shared) = ("small product, backward", [blocks, 1, 1], shared(SQUARE, [true, false]));
        let launch = Launch { kernel, name, grid, threads: THREADS, shared, work: work(p) };
        // SAFETY: the types are those of the kernels in product.cu: a product, and what it is to do besides.
        unsafe { self.queue.launch(&launch, arguments) }
    }

    /// Whether [`Self::products`] takes the product.
    pub fn is_one_of_many(&self, p: &Product) -> bool {
        let has_form = p.b.transposed && p.result == Number::Bf16 && !matches!(p.epilogue, Epilogue::BiasRelu(_));
        has_form && self.has_kernel(p)
    }

    /// Computes products of which none needs another's result.
    pub fn products(&self, products: &[Product]) -> Result<()> {
        let bias = |p: &Product| match p.epilogue {
            Epilogue::Bias(bias) => bias,
            _ => Address::NONE,
        };
        for some in products.chunks(MOST_SMALL_PRODUCTS) {
            let (products, end, work) = SmallProducts::new(some.iter().map(|p| (p, bias(p))));
            let (kernel, name, shared) = ("multiply_all", "small product", shared(SQUARE, [true; 2]));
            let launch = Launch { kernel, name, grid: [end, 1, 1], threads: THREADS, shared, work };
            // SAFETY: the type is that of `multiply_all` in product.cu.
            unsafe { self.queue.launch(&launch, arguments![products]) }?;
        }
        Ok(())
    }

    /// Whether [`Self::sum_of_products`] takes these.
    pub fn has_sum(&self, products: &[Product]) -> bool {
        let is_like = |p: &Product, first: &Product| (p.m, p.n, p.c.at) == (first.m, first.n, first.c.at);
        let is_back = |p: &Product| !p.b.transposed && self.has_kernel(p);
        let alike = products.first().is_some_and(|first| products.iter().all(|p| is_like(p, first) && is_back(p)));
        alike && products.len() <= MOST_SMALL_PRODUCTS
    }

    /// c = Σ a·b of products with the same result, whether they add to it or not.
    pub fn sum_of_products(&self, products: &[Product]) -> Result<()> {
        let (all, _, work) = SmallProducts::new(products.iter().map(|p| (p, Address::NONE)));
        let (end, count) = (all.each[0].end, products.len() as u32);
        let (name, grid, shared) = ("small product, backward", [end, 1, 1], shared(SQUARE, [true, false]));
        let launch = Launch { kernel: "multiply_back_sum", name, grid, threads: THREADS, shared, work };
        // SAFETY: the types are those of `multiply_back_sum` in product.cu.
        unsafe { self.queue.launch(&launch, arguments![all, count]) }
    }

    /// Whether the weight gradients of projections between these widths, summed over so many rows, are small products.
    pub fn has_small_gradients(&self, rows: usize, mut widths: impl Iterator<Item = (usize, usize)>) -> bool {
        self.number == Number::Bf16 && self.wide && widths.all(|sizes| self.is_small_gradient(rows, sizes))
    }

    fn is_small_gradient(&self, rows: usize, (out, input): (usize, usize)) -> bool {
        rows <= MOST_ROWS && self.is_small(rows * out * input)
    }

    /// Whether [`Self::add_weight_gradients`] takes the product.
    pub fn takes_weight_gradient(&self, p: &Product) -> bool {
        let has_form = p.a.transposed && !p.b.transposed && p.accumulate && p.result == Number::F32;
        has_form && self.is_small_gradient(p.k, (p.m, p.n)) && self.has_small_form(p)
    }

    /// Adds to the gradients of weights, of which none may be there twice.
    pub fn add_weight_gradients(&self, gradients: &[WeightGradient]) -> Result<()> {
        for some in gradients.chunks(MOST_SMALL_PRODUCTS) {
            let (products, end, work) = SmallProducts::new(some.iter().map(|of| (&of.product, of.bias)));
            let (kernel, name) = ("multiply_weights", "small weight gradients");
            let (grid, shared) = ([end, 1, 1], shared(SQUARE, [false; 2]));
            let launch = Launch { kernel, name, grid, threads: THREADS, shared, work };
            // SAFETY: the type is that of `multiply_weights` in product.cu.
            unsafe { self.queue.launch(&launch, arguments![products]) }?;
        }
        Ok(())
    }
}
