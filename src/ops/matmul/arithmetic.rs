//! What computes a product in this process, and how it wants the operands packed.

use super::Precision;
use super::amx::{self, By, Operands};
#[cfg(target_arch = "x86_64")]
use super::kernel::x86;
use super::kernel::{DEPTH, Function, Order, ROW_STRIDE, TILE_ROWS, Tile, plain};
#[cfg(target_arch = "x86_64")]
use crate::ops::simd::{Level, instructions, level};

/// How kernels want A and B packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of a tile of A.
    pub rows: usize,
    /// Steps that a tile of A holds.
    pub depth: usize,
    /// Distance of a tile's rows, where A is packed by rows.
    pub stride: usize,
    /// A and B have a multiple of so many steps; those beyond the inner dimension are 0.
    pub block: usize,
}

impl Shape {
    /// That of kernels with vectors.
    pub(super) const VECTORS: Self = Self { rows: TILE_ROWS, depth: DEPTH, stride: ROW_STRIDE, block: 1 };

    /// Distance of packed tiles of A.
    pub(super) fn tile_words(self) -> usize {
        self.rows * self.stride
    }
}

/// How the numbers of a product are rounded and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// float32.
    F32,
    /// bfloat16, each element of C one chain.
    Bf16,
    /// bfloat16, summed as AMX does.
    Amx(By),
}

impl Arithmetic {
    /// What this process uses for a precision.
    pub(super) fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 if amx::available(Operands::Bf16) => Self::Amx(By::Processor),
            Precision::Bf16 => Self::Bf16,
        }
    }

    /// What operands are rounded to.
    pub(super) fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 | Self::Amx(_) => Precision::Bf16,
        }
    }

    /// How its kernels want A and B packed.
    pub(super) fn shape(self) -> Shape {
        match self {
            Self::F32 | Self::Bf16 => Shape::VECTORS,
            Self::Amx(_) => amx::SHAPE,
        }
    }
}

/// A micro-kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    /// With vectors; or in plain Rust, with the same shape.
    Vectors(Function),
    /// With AMX, or with a plain function in its place.
    Amx(Operands, By),
}

impl Kernel {
    /// How it wants A and B packed.
    pub(super) fn shape(self) -> Shape {
        match self {
            Self::Vectors(_) => Shape::VECTORS,
            Self::Amx(..) => amx::SHAPE,
        }
    }

    /// Prepares this thread for products of `rows` rows; it must compute nothing else until the end.
    pub(super) fn begin(self, rows: usize) -> Running {
        match self {
            Self::Vectors(function) => Running::Vectors(function),
            Self::Amx(operands, by) => Running::Amx(amx::Session::begin(operands, by, rows)),
        }
    }
}

/// A micro-kernel, ready to run on one thread.
pub(super) enum Running {
    Vectors(Function),
    Amx(amx::Session),
}

impl Running {
    /// Computes a number of rows of a tile.
    ///
    /// # Safety
    /// As for [`Function`], or for [`amx::Session::run`].
    #[inline(always)]
    pub(super) unsafe fn run(&self, rows: usize, tile: Tile) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Vectors(function) => function(rows, tile),
                Self::Amx(session) => session.run(rows, tile),
            }
        }
    }
}

/// The kernel for this machine. The order is that of the packed A, by rows for AMX.
pub(super) fn choose(arithmetic: Arithmetic, order: Order) -> Kernel {
    fn by_order(order: Order, rows: Function, steps: Function) -> Kernel {
        Kernel::Vectors(match order {
            Order::Rows => rows,
            Order::Steps => steps,
        })
    }
    #[cfg(target_arch = "x86_64")]
    match (arithmetic, level()) {
        (Arithmetic::F32, Level::Avx512) => return by_order(order, x86::avx512::<false>, x86::avx512::<true>),
        (Arithmetic::F32, Level::Avx2) => return by_order(order, x86::avx2::<false>, x86::avx2::<true>),
        (Arithmetic::Bf16, _) if instructions().bf16 => {
            return by_order(order, x86::avx512_bf16::<false>, x86::avx512_bf16::<true>);
        }
        _ => {}
    }
    match arithmetic {
        Arithmetic::F32 => by_order(order, plain::kernel::<false, false>, plain::kernel::<false, true>),
        Arithmetic::Bf16 => by_order(order, plain::kernel::<true, false>, plain::kernel::<true, true>),
        Arithmetic::Amx(by) => Kernel::Amx(Operands::Bf16, by),
    }
}

/// How 8-bit integers are multiplied: four per step, with A packed by rows and the sums as 32-bit integers in the bits
/// of C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Integers {
    /// The kernel.
    pub kernel: Kernel,
    /// What must be added to A's integers beforehand: 128 if the kernel takes them as unsigned, else 0.
    pub offset: i32,
}

impl Integers {
    /// How this process multiplies them.
    pub(super) fn choose() -> Self {
        if amx::available(Operands::Int8) { Self::amx(By::Processor) } else { Self::vectors() }
    }

    /// By AMX.
    pub(super) fn amx(by: By) -> Self {
        Self { kernel: Kernel::Amx(Operands::Int8, by), offset: 128 }
    }

    /// By this machine's vectors.
    pub(super) fn vectors() -> Self {
        #[cfg(target_arch = "x86_64")]
        match level() {
            Level::Avx512 if instructions().vnni => {
                return Self { kernel: Kernel::Vectors(x86::avx512_vnni::<false>), offset: 128 };
            }
            Level::Avx512 | Level::Avx2 => return Self { kernel: Kernel::Vectors(x86::avx2_int8), offset: 0 },
            Level::Baseline => {}
        }
        Self { kernel: Kernel::Vectors(plain::int8), offset: 0 }
    }
}
