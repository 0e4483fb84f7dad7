//! What a GPU is asked for: memory, copies, kernels, products, in the order of one queue.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Tensor;

use crate::error::Result;
use crate::ops::profile::Work;

/// An address in the device's memory. Kernels read and write there unchecked, so only a [`Queue`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Address(u64);

impl Address {
    /// No memory: how a kernel is told that an argument is missing.
    pub const NONE: Self = Self(0);

    /// The address that a driver gives as a number.
    ///
    /// # Safety
    /// Whatever is launched with it, or with an address made from it by [`Self::plus`], finds the memory there that it
    /// uses.
    pub const unsafe fn new(number: u64) -> Self {
        Self(number)
    }

    /// As a driver takes it.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The address `bytes` further, which must be in the same memory.
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
    /// Bytes of `count` numbers.
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
    /// Distance from one row to the next, in numbers.
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
    /// Adds a row of biases in the type of the result.
    Bias(Address),
    /// That, and max(0, x).
    BiasRelu(Address),
}

impl Epilogue {
    /// Whether its bias, if it has one, begins at a multiple of 16 bytes: libraries read 16 bytes at a time.
    pub fn is_aligned(self) -> bool {
        match self {
            Self::None => true,
            Self::Bias(bias) | Self::BiasRelu(bias) => bias.0.is_multiple_of(16),
        }
    }
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
    /// What is done with the result; must be none if C is added to.
    pub epilogue: Epilogue,
}

/// A product in the form that column-major libraries take: Cᵀ = Bᵀ·Aᵀ, since a row-major matrix is in memory the same
/// as its transpose in column-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnMajor {
    /// Rows and columns of C as it lies in memory, and how many products each sum has.
    pub sizes: [usize; 3],
    /// Rows and columns of the left factor as it lies in memory, and whether it is transposed.
    pub left: (usize, usize, bool),
    /// The same for the right factor.
    pub right: (usize, usize, bool),
}

impl Product {
    /// The left factor is B, the right one A.
    pub fn column_major(&self) -> ColumnMajor {
        let Self { m, n, k, a, b, .. } = *self;
        // A row-major [rows, columns] matrix is a column-major [columns, rows] one; if it is transposed, [rows,
        // columns].
        let lies = |rows: usize, columns: usize, transposed: bool| {
            if transposed { (rows, columns, true) } else { (columns, rows, false) }
        };
        ColumnMajor { sizes: [n, m, k], left: lies(k, n, b.transposed), right: lies(m, k, a.transposed) }
    }
}

/// One run of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a str,
    /// Its name in profiles, the same for all number types.
    pub name: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// What it has to do at least, for profiles.
    pub work: Work,
}

/// A copy that is under way from the device: see [`Queue::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// A point between two pieces of work: see [`Queue::mark`].
#[derive(Clone)]
pub struct Mark(Arc<dyn Any + Send + Sync>);

impl Mark {
    /// Keeps what a queue knows of the point.
    pub fn new(of: impl Any + Send + Sync) -> Self {
        Self(Arc::new(of))
    }

    /// What the queue that made it has kept.
    pub fn of<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// A stream beside a [`Queue`], of the same device, for libraries: its work and the queue's go on at the same time.
pub trait SideStream {
    /// Lets what is queued from now on begin when the work before a mark of the queue is done.
    fn wait_for(&self, mark: &Mark) -> Result<()>;

    /// Marks the end of the work that has been queued.
    fn mark(&self) -> Result<Mark>;

    /// The stream as CUDA knows it.
    fn stream(&self) -> *mut c_void;
}

/// A GPU, or what stands for one in tests. Work is done in the order of the calls; only [`Queue::download`] and
/// [`Queue::fetched`] wait for it.
pub trait Queue: Send + Sync {
    /// Memory, aligned to 256 bytes, with unspecified contents.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory): there is none left.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Allocations are best multiples of this many bytes: a device is slow to allocate, so pieces should be few and
    /// large. `None`: every piece is allocated by itself and freed at once, for tests that check all accesses to
    /// it.
    fn slab(&self) -> Option<usize> {
        Some(64 << 20)
    }

    /// Frees memory of [`Queue::allocate`], when the work before is done.
    fn free(&self, address: Address, bytes: usize);

    /// Copies to the device; `bytes` may be changed as soon as it returns.
    fn upload(&self, bytes: &[u8], to: Address) -> Result<()>;

    /// Copies from the device, when the work before is done.
    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()>;

    /// Begins to copy from the device, when the work before is done.
    fn fetch(&self, from: Address, bytes: usize) -> Result<Ticket>;

    /// Waits for the copy that [`Queue::fetch`] began, of as many `bytes`, but not for work queued after it; others may
    /// use the queue meanwhile. Each copy has to be asked for, since its memory is kept until then.
    ///
    /// # Errors
    /// The ticket has already been used.
    fn fetched(&self, ticket: Ticket, bytes: &mut [u8]) -> Result<()>;

    /// Sets bytes to zero.
    fn clear(&self, at: Address, bytes: usize) -> Result<()>;

    /// Copies within the device.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Runs a kernel of `kernels/`.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel of this name takes, and those that are addresses have
    /// the memory that it uses.
    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &mut [*mut c_void]) -> Result<()>;

    /// Computes a product.
    fn product(&self, product: &Product) -> Result<()>;

    /// Whether a product can be computed with its epilogue.
    fn takes_epilogue(&self, product: &Product) -> bool {
        product.epilogue.is_aligned()
    }

    /// Marks the end of the work that has been queued.
    fn mark(&self) -> Result<Mark>;

    /// The time that passed on the device from one mark to a later one; `None` if the work before them is not done.
    fn between(&self, from: &Mark, to: &Mark) -> Result<Option<Duration>>;

    /// A stream beside this queue.
    fn side_stream(&self) -> Result<Box<dyn SideStream>>;

    /// Lets what is queued from now on begin when the work before a mark of a stream beside this queue is done.
    fn wait_for(&self, mark: &Mark) -> Result<()>;

    /// The queue as CUDA knows it, for libraries that queue work of their own; the calling thread uses its device from
    /// now on.
    fn stream(&self) -> Result<*mut c_void>;

    /// Where the numbers of a contiguous tensor of this device lie.
    fn address(&self, tensor: &Tensor) -> Result<Address>;

    /// Multiprocessors of the device: how many blocks keep it busy.
    fn multiprocessors(&self) -> u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library's product: column-major, with leading dimensions.
    fn column_major(call: &ColumnMajor, left: (&[f32], usize), right: (&[f32], usize), stride: usize) -> Vec<f32> {
        let [rows, columns, sum] = call.sizes;
        let at = |(values, ld): (&[f32], usize), (height, width, transposed), row: usize, column: usize| {
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            assert!(row < height && column < width && ld >= height);
            values[row + column * ld]
        };
        let mut c = vec![0.0; stride * columns];
        for i in 0..rows {
            for j in 0..columns {
                c[i + j * stride] = (0..sum).map(|l| at(left, call.left, i, l) * at(right, call.right, l, j)).sum();
            }
        }
        c
    }

    #[test]
    fn products_are_those_of_column_major_libraries() {
        let (m, n, k) = (3, 4, 5);
        let draw = |count: usize, by: f32| -> Vec<f32> { (0..count).map(|i| (i as f32 * by).sin()).collect() };
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
            // The stride is one more than needed.
            let matrix = |rows: usize, columns: usize, transposed: bool, by: f32| {
                let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
                (draw(rows * (columns + 1), by), Matrix { at: Address::NONE, stride: columns + 1, transposed })
            };
            let ((a, of_a), (b, of_b)) = (matrix(m, k, a_transposed, 0.7), matrix(k, n, b_transposed, 1.3));
            let number = |values: &[f32], matrix: Matrix, row: usize, column: usize| {
                let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
                values[row * matrix.stride + column]
            };
            let c = Matrix::new(Address::NONE, n + 2);
            let (number_type, epilogue) = (Number::F32, Epilogue::None);
            let product = Product {
                m,
                n,
                k,
                a: of_a,
                b: of_b,
                c,
                number: number_type,
                result: number_type,
                accumulate: false,
                epilogue,
            };
            let got = column_major(&product.column_major(), (&b, of_b.stride), (&a, of_a.stride), c.stride);
            for i in 0..m {
                for j in 0..n {
                    let want: f32 = (0..k).map(|l| number(&a, of_a, i, l) * number(&b, of_b, l, j)).sum();
                    assert!((got[i * c.stride + j] - want).abs() < 1e-5);
                }
            }
        }
    }
}
