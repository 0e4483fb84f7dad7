//! What a GPU is asked for: memory, copies, kernels, products, in the order of one queue.

use std::ffi::c_void;

use candle_core::Tensor;

use crate::error::Result;

/// An address in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No memory: what a kernel takes as "there is none".
    pub const NONE: Self = Self(0);

    /// The address `bytes` further.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// The type of numbers in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
}

impl Number {
    /// Bytes of so many numbers.
    pub fn bytes(self, count: usize) -> usize {
        match self {
            Self::F32 => 4 * count,
            Self::Bf16 => 2 * count,
        }
    }
}

/// A matrix in the device's memory, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Its first number.
    pub at: Address,
    /// Numbers between two rows.
    pub stride: usize,
    /// Whether its transpose is meant.
    pub transposed: bool,
}

impl Matrix {
    /// Rows that lie `stride` apart.
    pub fn new(at: Address, stride: usize) -> Self {
        Self { at, stride, transposed: false }
    }

    /// The transpose.
    #[must_use]
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// What a product does before its result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// Adds a row of biases in the type of the factors.
    Bias(Address),
    /// That, and max(0, x).
    BiasRelu(Address),
}

/// C = A·B, or C += A·B: A is [m, k], B [k, n], C [m, n]. Sums are in float32.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// A.
    pub a: Matrix,
    /// B.
    pub b: Matrix,
    /// C.
    pub c: Matrix,
    /// Type of A and B.
    pub number: Number,
    /// Type of C.
    pub result: Number,
    /// Whether C is added to.
    pub accumulate: bool,
    /// What is done with the result; nothing, where C is added to.
    pub epilogue: Epilogue,
}

/// A GPU, or what stands for one in tests. Work is done in the order of the calls; only [`Queue::download`] waits for it.
pub trait Queue {
    /// Memory, aligned to 256 bytes; what is in it is not said.
    ///
    /// # Errors
    /// There is none left; the message has "out of memory".
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives memory back that [`Queue::allocate`] gave, when the work before is done.
    fn free(&self, address: Address, bytes: usize);

    /// Copies to the device; `bytes` may be changed as soon as it returns.
    fn upload(&self, bytes: &[u8], to: Address) -> Result<()>;

    /// Copies from the device, when the work before is done.
    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()>;

    /// Sets bytes to zero.
    fn clear(&self, at: Address, bytes: usize) -> Result<()>;

    /// Runs a kernel of [`super::kernels`] on `grid` blocks of `threads` threads with `shared` bytes of dynamic shared memory.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel of this name takes, and those that are addresses have the
    /// memory that it uses.
    unsafe fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()>;

    /// Computes a product.
    fn product(&self, product: &Product) -> Result<()>;

    /// Where the numbers of a contiguous tensor of this device lie.
    fn address(&self, tensor: &Tensor) -> Result<Address>;

    /// Multiprocessors of the device: how many blocks keep it busy.
    fn multiprocessors(&self) -> u32;
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    fn allocate(&self, bytes: usize) -> Result<Address> {
        (**self).allocate(bytes)
    }

    fn free(&self, address: Address, bytes: usize) {
        (**self).free(address, bytes);
    }

    fn upload(&self, bytes: &[u8], to: Address) -> Result<()> {
        (**self).upload(bytes, to)
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        (**self).download(from, bytes)
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        (**self).clear(at, bytes)
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { (**self).launch(kernel, grid, threads, shared, arguments) }
    }

    fn product(&self, product: &Product) -> Result<()> {
        (**self).product(product)
    }

    fn address(&self, tensor: &Tensor) -> Result<Address> {
        (**self).address(tensor)
    }

    fn multiprocessors(&self) -> u32 {
        (**self).multiprocessors()
    }
}
