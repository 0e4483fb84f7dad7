//! Micro-kernels with AMX, Intel's products of tiles: 16 rows of 16 steps by 16 steps of 16 columns in one instruction.
//!
//! A tile of C, up to twice [`ROWS`] rows by [`PANEL`] columns, lies in four of the eight tile registers. For each
//! block of [`BLOCK`] steps two registers take the rows of A and two the columns of B, and four instructions multiply
//! them: so each load serves two products. (Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter
//! 20.)
//!
//! Integers are exact. With bfloat16, one instruction has two chains of fused multiply-adds for each element of C, over
//! the first and over the second numbers of the block's pairs. It adds one to the other, and the sum to C. Every
//! operation rounds to nearest, ties to even; whatever is below the normal numbers becomes 0. [`plain`] is the same in
//! plain Rust. It takes the place of the instructions in tests; [`available`] compares the two on the first use.
//! (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.)

mod plain;
#[cfg(test)]
mod tests;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod trap;

use std::marker::PhantomData;
use std::sync::OnceLock;

use super::arithmetic::Shape;
use super::kernel::{PANEL, Tile};
use crate::ops::simd::instructions;

/// Rows of a tile register.
pub(super) const ROWS: usize = 16;
/// Steps of a tile register.
const BLOCK: usize = 16;
/// The most columns of A whose sums over rows one task computes: its tiles of A, a good MiB, stay in the second-level
/// cache.
pub(super) const MOST_COLUMNS: usize = 4 * SHAPE.rows;
/// A tile of A and a piece of a panel of B, 16 KiB each, lie in the first-level cache together. A's rows are an odd
/// number of cache lines apart, so that they do not share cache sets.
pub(super) const SHAPE: Shape = Shape { rows: 2 * ROWS, depth: 128, stride: 128 + 16, block: BLOCK };

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operands {
    /// Pairs of bfloat16; C is float32.
    Bf16,
    /// Fours of 8-bit integers, unsigned in A and signed in B; C is 32-bit integers.
    Int8,
}

/// What computes products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The processor.
    Processor,
    /// A plain function.
    Plain,
}

/// Whether this process multiplies such operands with AMX: the machine has it, and it computes as described here.
pub(super) fn available(operands: Operands) -> bool {
    static AVAILABLE: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
    *AVAILABLE[operands as usize].get_or_init(|| instructions().amx && is_right(operands))
}

/// How tests compute with AMX: always by a plain function; by the instructions, too, where [`trap`] can execute them.
#[cfg(test)]
pub(super) fn ways() -> Vec<By> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if trap::prepare() != trap::Executor::Nothing {
        return vec![By::Plain, By::Processor];
    }
    vec![By::Plain]
}

/// Whether the processor computes the same as the plain function: on a few numbers, with every kind of loop.
fn is_right(operands: Operands) -> bool {
    const STEPS: usize = 3 * BLOCK;
    let word = |i: u32| {
        let word = i.wrapping_mul(2_654_435_761).rotate_left(11) ^ i;
        // For bfloat16, numbers near 1 of both signs.
        if operands == Operands::Bf16 { word & 0x80ff_80ff | 0x3f00_3f00 } else { word }
    };
    let a: Vec<u32> = (0..SHAPE.tile_words() as u32).map(word).collect();
    let b: Vec<u32> = (0..(STEPS * PANEL) as u32).map(|i| word(!i)).collect();
    // Rows in all, and of the tile.
    let sizes = [(1, 1), (7, 7), (ROWS, ROWS), (ROWS + 3, 3), (ROWS + 5, ROWS + 5), (2 * ROWS, 2 * ROWS)];
    sizes.into_iter().all(|(all, rows)| {
        let product = |by| {
            let session = Session::begin(operands, by, all);
            let mut c = vec![0f32; rows * PANEL];
            for accumulate in [false, true] {
                let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
                // SAFETY: whole tiles; something executes the instructions.
                unsafe { session.run(rows, Tile { steps: STEPS, a, b, c, ldc: PANEL, accumulate }) };
            }
            c.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        product(By::Processor) == product(By::Plain)
    })
}

/// One thread's use of the tile registers. They are configured when it begins, and released when it is dropped. A
/// thread has one at a time.
pub(super) struct Session {
    operands: Operands,
    by: By,
    /// Rows of the registers for A and C.
    rows: usize,
    /// It stays on its thread.
    thread: PhantomData<*mut ()>,
}

impl Session {
    /// For products of so many rows in all.
    pub(super) fn begin(operands: Operands, by: By, rows: usize) -> Self {
        let session = Self { operands, by, rows: rows.min(ROWS), thread: PhantomData };
        #[cfg(target_arch = "x86_64")]
        if by == By::Processor {
            // SAFETY: `By::Processor` is chosen only where something executes the instructions.
            unsafe { x86::configure(session.rows) };
        }
        session
    }

    /// Computes a number of rows of a tile.
    ///
    /// # Safety
    /// As for [`super::kernel::Function`], but with the rows of [`SHAPE`]; steps are a multiple of [`BLOCK`]; rows are
    /// no more than the session's, and as many if it has fewer than [`ROWS`].
    #[inline(always)]
    pub(super) unsafe fn run(&self, rows: usize, tile: Tile) {
        debug_assert!(rows == self.rows || self.rows == ROWS);
        // SAFETY: the caller's contract.
        unsafe {
            match (self.by, self.operands) {
                #[cfg(target_arch = "x86_64")]
                (By::Processor, _) => self.by_processor(rows, tile),
                (_, Operands::Bf16) => plain::bf16(rows, tile),
                (_, Operands::Int8) => plain::int8(rows, tile),
            }
        }
    }

    /// [`Self::run`] with whole registers: where C has fewer rows, the others go into a buffer. A's tile has memory for
    /// all of them.
    #[cfg(target_arch = "x86_64")]
    unsafe fn by_processor(&self, rows: usize, tile: Tile) {
        let whole = rows.next_multiple_of(self.rows);
        let multiply = match (self.operands, whole > self.rows) {
            (Operands::Bf16, false) => x86::bf16,
            (Operands::Bf16, true) => x86::bf16_twice,
            (Operands::Int8, false) => x86::int8,
            (Operands::Int8, true) => x86::int8_twice,
        };
        if rows == whole {
            // SAFETY: the caller's contract.
            return unsafe { multiply(tile) };
        }
        let mut c = [[0f32; PANEL]; SHAPE.rows];
        let row = |i: usize| {
            // SAFETY: row i of C, by the contract.
            unsafe { std::slice::from_raw_parts_mut(tile.c.add(i * tile.ldc), PANEL) }
        };
        if tile.accumulate {
            c.iter_mut().take(rows).enumerate().for_each(|(i, c)| c.copy_from_slice(row(i)));
        }
        // SAFETY: the buffer has enough rows; the rest is the caller's contract.
        unsafe { multiply(Tile { c: c.as_mut_ptr().cast(), ldc: PANEL, ..tile }) };
        c.iter().take(rows).enumerate().for_each(|(i, c)| row(i).copy_from_slice(c));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.by == By::Processor {
            // SAFETY: the session has begun.
            unsafe { x86::release() };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use super::{BLOCK, PANEL, ROWS, SHAPE, Tile};

    /// The operand of LDTILECFG.
    #[repr(C, align(64))]
    #[derive(Default)]
    pub(super) struct Configuration {
        pub palette: u8,
        pub start_row: u8,
        pub reserved: [u8; 14],
        /// Bytes of each register's rows.
        pub bytes: [u16; 8],
        pub reserved_bytes: [u16; 8],
        /// Rows of each register.
        pub rows: [u8; 8],
        pub reserved_rows: [u8; 8],
    }

    /// Registers 0 to 3 are C's, 4 and 5 A's, 6 and 7 B's.
    ///
    /// # Safety
    /// The machine has AMX. No tile register is in use.
    pub(super) unsafe fn configure(rows: usize) {
        let (rows, steps) = (rows as u8, BLOCK as u8);
        let configuration = Configuration {
            palette: 1,
            bytes: [64; 8],
            rows: [rows, rows, rows, rows, rows, rows, steps, steps],
            ..Configuration::default()
        };
        // SAFETY: by the contract.
        unsafe { load(&configuration) };
    }

    /// # Safety
    /// As for [`configure`].
    pub(super) unsafe fn load(configuration: &Configuration) {
        // SAFETY: by the contract. It reads 64 bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) configuration, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, readonly));
        }
    }

    /// # Safety
    /// The machine has AMX.
    pub(super) unsafe fn release() {
        // SAFETY: by the contract.
        unsafe {
            asm!("tilerelease", out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, nomem));
        }
    }

    /// Defines the kernels of one kind of operands: for the rows of one register, and for those of two.
    macro_rules! kernels {
        ($once:ident, $twice:ident, $multiply:literal) => {
            /// # Safety
            /// As for [`super::Session::run`], of the session that is running here, with the rows of one register.
            pub(super) unsafe fn $once(tile: Tile) {
                let Tile { steps, a, b, c, ldc, accumulate } = tile;
                // SAFETY: all of it inside the tiles, by the contract.
                unsafe {
                    asm!(
                        "test {accumulate:e}, {accumulate:e}",
                        "jnz 2f",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "jmp 3f",
                        "2:",
                        "tileloadd tmm0, [{c} + {of_c}]",
                        "tileloadd tmm1, [{c} + {of_c} + 64]",
                        "3:",
                        "tileloadd tmm4, [{a} + {of_a}]",
                        "tileloadd tmm6, [{b} + {of_b}]",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm7, [{b} + {of_b} + 64]",
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        "add {a}, 64",
                        "add {b}, {block_of_b}",
                        "dec {blocks}",
                        "jnz 3b",
                        "tilestored [{c} + {of_c}], tmm0",
                        "tilestored [{c} + {of_c} + 64], tmm1",
                        a = inout(reg) a => _, of_a = in(reg) 4 * SHAPE.stride,
                        b = inout(reg) b => _, of_b = in(reg) 4 * PANEL, block_of_b = const 4 * PANEL * BLOCK,
                        c = in(reg) c, of_c = in(reg) 4 * ldc,
                        accumulate = in(reg) u32::from(accumulate), blocks = inout(reg) steps / BLOCK => _,
                        out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _, options(nostack),
                    );
                }
            }

            /// # Safety
            /// As for [`super::Session::run`], of the session that is running here, with the rows of two registers.
            pub(super) unsafe fn $twice(tile: Tile) {
                let Tile { steps, a, b, c, ldc, accumulate } = tile;
                // SAFETY: all of it inside the tiles, by the contract.
                unsafe {
                    asm!(
                        "test {accumulate:e}, {accumulate:e}",
                        "jnz 2f",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "jmp 3f",
                        "2:",
                        "tileloadd tmm0, [{c} + {of_c}]",
                        "tileloadd tmm1, [{c} + {of_c} + 64]",
                        "tileloadd tmm2, [{lower_c} + {of_c}]",
                        "tileloadd tmm3, [{lower_c} + {of_c} + 64]",
                        "3:",
                        "tileloadd tmm4, [{a} + {of_a}]",
                        "tileloadd tmm6, [{b} + {of_b}]",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{a} + {of_a} + {lower_a}]",
                        concat!($multiply, " tmm2, tmm5, tmm6"),
                        "tileloadd tmm7, [{b} + {of_b} + 64]",
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        concat!($multiply, " tmm3, tmm5, tmm7"),
                        "add {a}, 64",
                        "add {b}, {block_of_b}",
                        "dec {blocks}",
                        "jnz 3b",
                        "tilestored [{c} + {of_c}], tmm0",
                        "tilestored [{c} + {of_c} + 64], tmm1",
                        "tilestored [{lower_c} + {of_c}], tmm2",
                        "tilestored [{lower_c} + {of_c} + 64], tmm3",
                        a = inout(reg) a => _, of_a = in(reg) 4 * SHAPE.stride, lower_a = const 4 * ROWS * SHAPE.stride,
                        b = inout(reg) b => _, of_b = in(reg) 4 * PANEL, block_of_b = const 4 * PANEL * BLOCK,
                        c = in(reg) c, of_c = in(reg) 4 * ldc, lower_c = in(reg) c.add(ROWS * ldc),
                        accumulate = in(reg) u32::from(accumulate), blocks = inout(reg) steps / BLOCK => _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                        out("tmm6") _, out("tmm7") _, options(nostack),
                    );
                }
            }
        };
    }

    kernels!(bf16, bf16_twice, "tdpbf16ps");
    kernels!(int8, int8_twice, "tdpbusd");
}
