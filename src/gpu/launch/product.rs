//! Products: the small ones by `kernels/product.cu`, all others by the queue's library.

use std::ffi::c_void;

use super::{Kernels, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Epilogue, Launch, Number, Product};
use crate::ops::matmul::Precision;
use crate::ops::profile::Work;

/// Multiplications of a small product, at most: a library's call takes longer on the host than these do on a large GPU.
pub const MOST_MULTIPLICATIONS: usize = 1 << 28;
/// Terms of the sums of a small product, at most. Few blocks with long sums would leave the device idle, and a library divides
/// the sums.
const MOST_TERMS: usize = 512;
/// The same for weight gradients, whose sums are over the rows of a batch, and of which many are computed at once.
const MOST_ROWS: usize = 1 << 14;
/// The most products of [`Kernels::add_weight_gradients`] in one launch: a kernel's arguments have at most 4,096 bytes.
const MOST_SMALL_PRODUCTS: usize = 56;
/// Rows and columns of the result that a block computes, and how many terms of the sums it holds at a time, in so many stages.
const SIDE: usize = 64;
const DEPTH: usize = 32;
const STAGES: usize = 4;
const THREADS: u32 = 4 * WARP;

/// A product as kernels take it.
#[derive(Clone, Copy)]
#[repr(C)]
struct SmallProduct {
    a: Address,
    b: Address,
    c: Address,
    bias: Address,
    sizes: [u32; 3],
    strides: [u32; 3],
    across: u32,
    /// Number of blocks for this product and all before it.
    end: u32,
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

    /// `before` is the number of blocks for the products before it.
    fn new(p: &Product, bias: Address, before: u32) -> Self {
        let across = p.n.div_ceil(SIDE) as u32;
        Self {
            a: p.a.at,
            b: p.b.at,
            c: p.c.at,
            bias,
            sizes: [p.m, p.n, p.k].map(|size| size as u32),
            strides: [p.a.stride, p.b.stride, p.c.stride].map(|stride| stride as u32),
            across,
            end: before + across * p.m.div_ceil(SIDE) as u32,
        }
    }
}

/// What `multiply_weights` takes.
#[repr(C)]
struct SmallProducts {
    each: [SmallProduct; MOST_SMALL_PRODUCTS],
}

/// A product that adds to the gradient of a weight, and what the sums of its left factor's rows are added to, if anything.
#[derive(Clone, Copy, Debug)]
pub struct WeightGradient {
    /// gᵀ·x, added to float32: its left factor is transposed.
    pub product: Product,
    /// The bias's gradient, in float32, or none.
    pub bias: Address,
}

/// Bytes of shared memory for factors of which so many have the terms of the sums last.
fn shared(terms_last: usize) -> u32 {
    let part = |rows: usize, columns: usize| Number::Bf16.bytes(rows * (columns + 8));
    (STAGES * (terms_last * part(SIDE, DEPTH) + (2 - terms_last) * part(DEPTH, SIDE))) as u32
}

fn work(p: &Product) -> Work {
    Work::product(p.m, p.n, p.k, Precision::Bf16)
}

impl Kernels {
    /// Whether kernels take the product's layout: whole pieces of 16 bytes.
    fn has_small_form(&self, p: &Product) -> bool {
        let is_whole = |n: usize| n.is_multiple_of(8);
        let starts = [p.a.at, p.b.at, p.c.at].iter().all(|at| at.0.is_multiple_of(16));
        let strides = [p.a.stride, p.b.stride, p.c.stride].into_iter().all(is_whole);
        let rows_of_a = if p.a.transposed { p.m } else { p.k };
        let rows_of_b = if p.b.transposed { p.k } else { p.n };
        p.number == Number::Bf16 && starts && strides && [rows_of_a, rows_of_b, p.n].into_iter().all(is_whole)
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
        let (bias, relu) = match p.epilogue {
            Epilogue::None => (Address::NONE, false),
            Epilogue::Bias(bias) => (bias, false),
            Epilogue::BiasRelu(bias) => (bias, true),
        };
        let (kernel, name, flag, terms_last) = match (p.b.transposed, p.result) {
            (true, Number::Bf16) => ("multiply_bf16", "small product", relu, 2),
            (true, Number::F32) => ("multiply_f32", "small product", relu, 2),
            (false, _) => ("multiply_back", "small product, backward", p.accumulate, 1),
        };
        let (product, flag) = (SmallProduct::new(p, bias, 0), u32::from(flag));
        let (grid, threads, shared) = ([product.end, 1, 1], THREADS, shared(terms_last));
        // SAFETY: the types are those of the kernels in product.cu.
        unsafe {
            self.queue.launch(&Launch { kernel, name, grid, threads, shared, work: work(p) }, arguments![product, flag])
        }
    }

    /// c = scale·a·b where the hidden layer of relu, which lies like c, is positive, else 0; for a product that
    /// [has a kernel](Self::has_kernel).
    pub fn product_through_relu(&self, p: &Product, hidden: Address, scale: f32) -> Result<()> {
        let product = SmallProduct::new(p, hidden, 0);
        let (kernel, name, grid) = ("multiply_back_relu", "small product, backward", [product.end, 1, 1]);
        let launch = Launch { kernel, name, grid, threads: THREADS, shared: shared(1), work: work(p) };
        // SAFETY: the types are those of `multiply_back_relu` in product.cu.
        unsafe { self.queue.launch(&launch, arguments![product, scale]) }
    }

    /// Whether the weight gradients of projections between these widths, summed over so many rows, are small products.
    pub fn has_small_gradients(&self, rows: usize, mut widths: impl Iterator<Item = (usize, usize)>) -> bool {
        let is_small = self.number == Number::Bf16 && self.wide && rows <= MOST_ROWS;
        is_small && widths.all(|(out, input)| self.is_small(rows * out * input))
    }

    /// Whether [`Self::add_weight_gradients`] takes the product.
    pub fn takes_weight_gradient(&self, p: &Product) -> bool {
        let has_form = p.a.transposed && !p.b.transposed && p.accumulate && p.result == Number::F32;
        has_form && p.k <= MOST_ROWS && self.is_small(p.m * p.n * p.k) && self.has_small_form(p)
    }

    /// Adds to the gradients of weights, of which none may be there twice.
    pub fn add_weight_gradients(&self, gradients: &[WeightGradient]) -> Result<()> {
        for some in gradients.chunks(MOST_SMALL_PRODUCTS) {
            let mut products = SmallProducts { each: [SmallProduct::NONE; MOST_SMALL_PRODUCTS] };
            let (mut end, mut all) = (0, Work::NONE);
            for (argument, gradient) in products.each.iter_mut().zip(some) {
                *argument = SmallProduct::new(&gradient.product, gradient.bias, end);
                end = argument.end;
                all += work(&gradient.product);
            }
            let (kernel, name, grid) = ("multiply_weights", "small weight gradients", [end, 1, 1]);
            let launch = Launch { kernel, name, grid, threads: THREADS, shared: shared(0), work: all };
            // SAFETY: the type is that of `multiply_weights` in product.cu.
            unsafe { self.queue.launch(&launch, arguments![products]) }?;
        }
        Ok(())
    }
}
