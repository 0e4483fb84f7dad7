//! AMX's instructions on a processor that lacks them. It then sends an "illegal instruction" signal; the handler here
//! does what the instruction does (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2), so that
//! tests run the kernels themselves. What a processor refuses ends the process, and so does any other illegal
//! instruction.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use crate::ops::simd::{InstructionSet, Instructions, Level};

/// Eight registers of 16 rows of 16 words, and their configuration.
struct Registers {
    is_configured: bool,
    rows: [usize; 8],
    bytes: [usize; 8],
    words: [[[u32; 16]; 16]; 8],
    executed: usize,
}

thread_local! {
    // Without a destructor or a first use that could allocate: a signal handler accesses it.
    static REGISTERS: UnsafeCell<Registers> = const {
        UnsafeCell::new(Registers {
            is_configured: false,
            rows: [0; 8],
            bytes: [0; 8],
            words: [[[0; 16]; 16]; 8],
            executed: 0,
        })
    };
}

/// How many of AMX's instructions the handler has executed on this thread.
pub(super) fn executed() -> usize {
    // SAFETY: nothing else holds a reference now: the handler runs only while an instruction of AMX does.
    REGISTERS.with(|registers| unsafe { (*registers.get()).executed })
}

/// What executes AMX's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executor {
    /// The processor.
    Processor,
    /// This module.
    Trap,
    /// Nothing: this module needs AVX2 and FMA.
    Nothing,
}

/// Sees to it that AMX's instructions can be executed.
pub(super) fn prepare() -> Executor {
    static EXECUTOR: OnceLock<Executor> = OnceLock::new();
    *EXECUTOR.get_or_init(|| {
        // Whatever instructions this process may use otherwise.
        let has = Instructions::detect(InstructionSet::Amx);
        let executor = if has.amx {
            Executor::Processor
        } else if has.level != Level::Baseline {
            // SAFETY: the handler follows the rules for handlers; an action of zeros is a valid one.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_illegal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
            }
            Executor::Trap
        } else {
            Executor::Nothing
        };
        eprintln!("AMX's instructions are executed by: {executor:?}");
        executor
    })
}

extern "C" fn on_illegal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the context of the instruction, and the instruction can be read.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize];
        let done = Instruction::decode(at as *const u8, registers).and_then(|instruction| {
            REGISTERS.with(|state| (*state.get()).execute(instruction.what))?;
            Some(instruction.length)
        });
        match done {
            Some(length) => registers[libc::REG_RIP as usize] = at + length,
            // The instruction is repeated, which ends the process.
            None => {
                libc::signal(libc::SIGILL, libc::SIG_DFL);
            }
        }
    }
}

/// Operands are numbers of registers and addresses.
#[derive(Clone, Copy, Debug)]
enum What {
    Configure(*const u8),
    Release,
    Zero(usize),
    Load { to: usize, from: *const u8, stride: isize },
    Store { from: usize, to: *mut u8, stride: isize },
    MultiplyBf16([usize; 3]),
    MultiplyInt8([usize; 3]),
}

struct Instruction {
    what: What,
    length: i64,
}

impl Instruction {
    /// # Safety
    /// An instruction can be read there.
    unsafe fn decode(at: *const u8, registers: &[libc::greg_t; 23]) -> Option<Self> {
        // SAFETY: bytes of the instruction, by the contract.
        let byte = |i: usize| unsafe { *at.add(i) };
        // VEX of three bytes: 128 bits, W 0, opcodes of 0F 38. The highest bits of registers are inverted.
        let (first, second) = (byte(1), byte(2));
        if byte(0) != 0xc4 || first & 0x1f != 2 || second & 0x84 != 0 {
            return None;
        }
        let (r, x, b) = (!first & 0x80, usize::from(!first >> 6 & 1), usize::from(!first >> 5 & 1));
        let third = usize::from(!second >> 3 & 15);
        let (prefix, opcode, modrm) = (second & 3, byte(3), byte(4));
        let (mode, register, low) = (modrm >> 6, usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
        if r != 0 {
            return None;
        }
        const NONE: u8 = 0;
        const P66: u8 = 1;
        const PF3: u8 = 2;
        const PF2: u8 = 3;
        if mode == 3 {
            // Without the fourth bits of tile registers, which have only eight numbers.
            let of_three = [register, low, third];
            let what = match (opcode, prefix) {
                (0x49, NONE) if (register, low, third, b) == (0, 0, 0, 0) => What::Release,
                (0x49, PF2) if (low, third, b) == (0, 0, 0) => What::Zero(register),
                (0x5c, PF3) if third < 8 && b == 0 => What::MultiplyBf16(of_three),
                (0x5e, P66) if third < 8 && b == 0 => What::MultiplyInt8(of_three),
                _ => return None,
            };
            return Some(Self { what, length: 5 });
        }
        let value = |number: usize| {
            use libc::*;
            let index = [
                REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10,
                REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
            ][number];
            registers[index as usize]
        };
        // The address: a register, or with a further byte a register and the stride in another; and a distance.
        let has_index = low == 4;
        let mut length = if has_index { 6 } else { 5 };
        let base = if has_index { usize::from(byte(5) & 7) } else { low };
        let (index, scale) = if has_index { (usize::from(byte(5) >> 3 & 7) + 8 * x, byte(5) >> 6) } else { (4, 0) };
        if third != 0 || mode == 0 && base == 5 {
            // Without a register.
            return None;
        }
        let mut address = value(base + 8 * b);
        if mode == 1 {
            address += i64::from(byte(length).cast_signed());
            length += 1;
        } else if mode == 2 {
            address += i64::from(i32::from_le_bytes(std::array::from_fn(|i| byte(length + i))));
            length += 4;
        }
        let stride = if index == 4 { 0 } else { value(index) << scale } as isize;
        let what = match (opcode, prefix) {
            (0x49, NONE) if register == 0 => What::Configure((address + stride as i64) as *const u8),
            (0x4b, PF2) if has_index => What::Load { to: register, from: address as *const u8, stride },
            (0x4b, PF3) if has_index => What::Store { from: register, to: address as *mut u8, stride },
            _ => return None,
        };
        Some(Self { what, length: length as i64 })
    }
}

impl Registers {
    /// `None`: a processor refuses it.
    ///
    /// # Safety
    /// Addresses of operands are those that the program meant.
    unsafe fn execute(&mut self, what: What) -> Option<()> {
        match what {
            // SAFETY: the caller's contract.
            What::Configure(from) => self.configure(unsafe { from.cast::<[u8; 64]>().read_unaligned() })?,
            What::Release => self.release(),
            What::Zero(register) => {
                self.check(register)?;
                self.words[register] = [[0; 16]; 16];
            }
            What::Load { to, from, stride } => {
                self.check(to)?;
                self.words[to] = [[0; 16]; 16];
                for row in 0..self.rows[to] {
                    let words = self.words[to][row].as_mut_ptr().cast::<u8>();
                    // SAFETY: at most 64 bytes, and the caller's contract.
                    unsafe { words.copy_from(from.offset(row as isize * stride), self.bytes[to]) };
                }
            }
            What::Store { from, to, stride } => {
                self.check(from)?;
                for row in 0..self.rows[from] {
                    let words = self.words[from][row].as_ptr().cast::<u8>();
                    // SAFETY: at most 64 bytes, and the caller's contract.
                    unsafe { words.copy_to(to.offset(row as isize * stride), self.bytes[from]) };
                }
            }
            What::MultiplyBf16(registers) => self.multiply(registers, bf16)?,
            What::MultiplyInt8(registers) => self.multiply(registers, int8)?,
        }
        self.executed += 1;
        Some(())
    }

    fn release(&mut self) {
        (self.is_configured, self.rows, self.bytes, self.words) = (false, [0; 8], [0; 8], [[[0; 16]; 16]; 8]);
    }

    fn configure(&mut self, from: [u8; 64]) -> Option<()> {
        self.release();
        if from[0] == 0 {
            return Some(());
        }
        // The palette, the row to continue with, and bytes that have no meaning.
        let is_known = from[0] == 1 && from[1..16].iter().all(|byte| *byte == 0);
        if !is_known || from[32..48].iter().chain(&from[56..]).any(|byte| *byte != 0) {
            return None;
        }
        for register in 0..8 {
            let bytes = usize::from(u16::from_le_bytes([from[16 + 2 * register], from[17 + 2 * register]]));
            let rows = usize::from(from[48 + register]);
            if bytes > 64 || rows > 16 || (bytes == 0) != (rows == 0) {
                return None;
            }
            (self.bytes[register], self.rows[register]) = (bytes, rows);
        }
        self.is_configured = true;
        Some(())
    }

    fn check(&self, register: usize) -> Option<()> {
        (self.is_configured && self.rows[register] > 0 && self.bytes[register].is_multiple_of(4)).then_some(())
    }

    /// C = C + A·B, row by row. The function gets a row of C, the words of a row of A, and the rows of B.
    fn multiply(&mut self, [c, a, b]: [usize; 3], row: fn(&mut [u32; 16], &[u32], &[[u32; 16]])) -> Option<()> {
        for register in [c, a, b] {
            self.check(register)?;
        }
        let steps = self.bytes[a] / 4;
        let fits = self.rows[c] == self.rows[a] && steps == self.rows[b] && self.bytes[c] == self.bytes[b];
        if c == a || c == b || a == b || !fits {
            return None;
        }
        let (rows_of_a, rows_of_b) = (self.words[a], self.words[b]);
        for m in 0..self.rows[c] {
            // Beyond the columns of B there are zeros, so that these columns of C stay 0.
            row(&mut self.words[c][m], &rows_of_a[m][..steps], &rows_of_b[..steps]);
        }
        Some(())
    }
}

fn int8(c: &mut [u32; 16], a: &[u32], b: &[[u32; 16]]) {
    for (a, b) in a.iter().zip(b) {
        for (c, b) in c.iter_mut().zip(b) {
            let product = |i: u32| i32::from((a >> (8 * i)) as u8) * i32::from((b >> (8 * i)) as u8 as i8);
            *c = c.wrapping_add((product(0) + product(1) + product(2) + product(3)) as u32);
        }
    }
}

fn bf16(c: &mut [u32; 16], a: &[u32], b: &[[u32; 16]]) {
    let (mut even, mut odd) = ([0u32; 16], [0u32; 16]);
    const ONE: [u32; 16] = [0x3f80_0000; 16];
    for (a, b) in a.iter().zip(b) {
        let lower: [u32; 16] = std::array::from_fn(|i| b[i] << 16);
        let upper: [u32; 16] = std::array::from_fn(|i| b[i] & 0xffff_0000);
        multiply_add([a << 16; 16], &lower, &mut even);
        multiply_add([a & 0xffff_0000; 16], &upper, &mut odd);
    }
    // Even + odd, and C + that: products with one are exact.
    multiply_add(ONE, &even, &mut odd);
    multiply_add(ONE, &odd, c);
}

/// sums + a·b in the processor's own arithmetic, set to ignore numbers below the normal ones and to round to nearest:
/// not the plain function, which is to be tested.
pub(super) fn multiply_add(a: [u32; 16], b: &[u32; 16], sums: &mut [u32; 16]) {
    // Denormals-are-zero, no exceptions, flush-to-zero.
    const CONTROL: u32 = 1 << 6 | 0x1f80 | 1 << 15;
    let (control, mut before) = (CONTROL, 0u32);
    // SAFETY: `prepare` has seen AVX2 and FMA. The control register is the same afterwards.
    unsafe {
        std::arch::asm!(
            "stmxcsr [{before}]",
            "ldmxcsr [{control}]",
            "vmovups ymm0, [{sums}]",
            "vmovups ymm1, [{sums} + 32]",
            "vmovups ymm2, [{a}]",
            "vmovups ymm3, [{a} + 32]",
            "vfmadd231ps ymm0, ymm2, [{b}]",
            "vfmadd231ps ymm1, ymm3, [{b} + 32]",
            "vmovups [{sums}], ymm0",
            "vmovups [{sums} + 32], ymm1",
            "vzeroupper",
            "ldmxcsr [{before}]",
            before = in(reg) &mut before, control = in(reg) &control, sums = in(reg) sums, a = in(reg) &a,
            b = in(reg) b, out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack),
        );
    }
}
