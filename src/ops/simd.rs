//! Run-time choice of instruction set.
//!
//! A kernel is written once, in plain Rust that the compiler vectorises, inside [`vectorised!`]. The macro compiles the
//! body for AVX-512, for AVX2 and for the build's baseline (NEON on aarch64), and picks one when it is called.
//! Because a body is compiled several times, results may differ in the last bit between *machines*; on one machine
//! they never do.
//!
//! [`instructions`] is the only place that asks what the processor has. The variable [`LIMIT`] keeps newer instructions
//! from being used, so that tests can run everything as an older processor would.

use std::sync::OnceLock;

use crate::choice::choice;
use crate::error::Result;

/// The environment variable that names the newest instructions to use.
pub const LIMIT: &str = "MT_MAX_ISA";

choice! {
    /// Instruction sets, each with all before it: the values of [`LIMIT`].
    pub enum InstructionSet {
        /// Whatever the build's target guarantees.
        Baseline = "baseline",
        /// AVX2 and FMA.
        Avx2 = "avx2",
        /// AVX-512 F, BW, DQ and VL.
        Avx512 = "avx512",
        /// AVX-512's products of 8-bit integers.
        Avx512Vnni = "avx512-vnni",
        /// AVX-512's products of bfloat16.
        Avx512Bf16 = "avx512-bf16",
        /// AMX's products of tiles.
        Amx = "amx",
    }
}

/// The instruction sets a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    /// Whatever the build's target guarantees.
    Baseline,
}

/// The instructions that this process uses: those that the processor and the operating system have, up to [`LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instructions {
    /// The best level.
    pub level: Level,
    /// AVX-512's products of 8-bit integers.
    pub vnni: bool,
    /// AVX-512's products of bfloat16.
    pub bf16: bool,
    /// AMX's products of 8-bit integers and of bfloat16; `bf16` is true, too.
    pub amx: bool,
}

impl Instructions {
    /// What there is, up to a limit.
    pub(crate) fn detect(most: InstructionSet) -> Self {
        let mut found = Self { level: Level::Baseline, vnni: false, bf16: false, amx: false };
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let allows = |set: InstructionSet| most as u8 >= set as u8;
            if allows(InstructionSet::Avx2) && has!("avx2") && has!("fma") {
                found.level = Level::Avx2;
            }
            let has_avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            if allows(InstructionSet::Avx512) && has!("fma") && has_avx512 {
                found.level = Level::Avx512;
                found.vnni = allows(InstructionSet::Avx512Vnni) && has!("avx512vnni");
                found.bf16 = allows(InstructionSet::Avx512Bf16) && has!("avx512bf16");
            }
            found.amx = allows(InstructionSet::Amx) && found.bf16 && has_amx();
        }
        // Elsewhere nothing is chosen at run time.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (most, &mut found);
        found
    }
}

/// The instructions that this process uses.
#[inline]
pub fn instructions() -> Instructions {
    static FOUND: OnceLock<Instructions> = OnceLock::new();
    // A wrong limit is reported by `check_environment`.
    *FOUND.get_or_init(|| Instructions::detect(limit().unwrap_or(InstructionSet::Amx)))
}

/// Whether this process uses an instruction set.
pub fn uses(set: InstructionSet) -> bool {
    let Instructions { level, vnni, bf16, amx } = instructions();
    match set {
        InstructionSet::Baseline => true,
        InstructionSet::Avx2 => level != Level::Baseline,
        InstructionSet::Avx512 => level == Level::Avx512,
        InstructionSet::Avx512Vnni => vnni,
        InstructionSet::Avx512Bf16 => bf16,
        InstructionSet::Amx => amx,
    }
}

/// The best level that this process uses.
#[inline]
pub fn level() -> Level {
    instructions().level
}

/// The newest instructions that may be used.
fn limit() -> Result<InstructionSet> {
    let variable = std::env::var_os(LIMIT).filter(|value| !value.is_empty());
    let Some(value) = variable else { return Ok(InstructionSet::Amx) };
    InstructionSet::from_flag(LIMIT, &value.to_string_lossy())
}

/// Checks the variables that this module reads: once, when the program starts.
///
/// # Errors
/// [`LIMIT`] names no instruction set.
pub fn check_environment() -> Result<()> {
    limit().map(|_| ())
}

/// Whether the processor has AMX for 8-bit integers and bfloat16, with tile registers as large as kernels need, and the
/// operating system lets this process use it. (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
/// chapter 18.)
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx() -> bool {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const ALL: u32 = BF16 | TILE | INT8;
    /// Bits of the processor's state: the configuration of tile registers, and their contents.
    const STATE: u32 = 1 << 17 | 1 << TILE_DATA;
    const TILE_DATA: libc::c_long = 18;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;

    let has_xgetbv = __cpuid(1).ecx & 1 << 27 != 0;
    if __cpuid(0).eax < 0x1d || !has_xgetbv || __cpuid_count(7, 0).edx & ALL != ALL {
        return false;
    }
    // Palette 1: eight registers of 16 rows of 64 bytes.
    let palette = __cpuid_count(0x1d, 1);
    if __cpuid_count(0x1d, 0).eax < 1 || palette.ebx != 8 << 16 | 64 || palette.ecx & 0xffff != 16 {
        return false;
    }
    let enabled: u32;
    // SAFETY: OSXSAVE, seen above, says that the instruction is there. It reads one register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack)) };
    // Linux reserves memory for the contents of tile registers only in processes that ask for it; it does so for all of
    // their threads.
    // SAFETY: the call changes nothing else, and fails where it is unknown.
    enabled & STATE == STATE && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } == 0
}

/// AMX is used only where the way to ask the operating system for it is known.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_amx() -> bool {
    false
}

/// Defines functions whose bodies are compiled for every [`Level`] and chosen at run time.
macro_rules! vectorised {
    ($(
        $(#[$meta:meta])* $vis:vis fn $name:ident $(<const $generic:ident: $kind:ty>)?
        ($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )+) => {$(
        $(#[$meta])*
        $vis fn $name $(<const $generic: $kind>)? ($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body $(<const $generic: $kind>)? ($($arg: $type),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512 $(<const $generic: $kind>)? ($($arg: $type),*) $(-> $ret)? {
                    body $(::<$generic>)? ($($arg),*)
                }
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<const $generic: $kind>)? ($($arg: $type),*) $(-> $ret)? {
                    body $(::<$generic>)? ($($arg),*)
                }
                match $crate::ops::simd::level() {
                    // SAFETY: `level` has just seen that this machine has these features.
                    $crate::ops::simd::Level::Avx512 => return unsafe { avx512 $(::<$generic>)? ($($arg),*) },
                    // SAFETY: as above.
                    $crate::ops::simd::Level::Avx2 => return unsafe { avx2 $(::<$generic>)? ($($arg),*) },
                    $crate::ops::simd::Level::Baseline => {}
                }
            }
            body $(::<$generic>)? ($($arg),*)
        }
    )+};
}
pub(crate) use vectorised;

/// e^x with relative error below 2e-7 for x in [-87, 88]; smaller x give e^-87, about 1.6e-38, and larger ones e^88,
/// about 1.65e38, instead of 0 and ∞. NaN stays NaN.
///
/// Range reduction to 2^n·e^r and a degree-6 polynomial (Cephes `expf` coefficients), free of branches and calls, so
/// that loops over it vectorise.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r + 1.0);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    p * power
}

/// The standard normal distribution's Φ(x) = (1 + erf(x/√2))/2; absolute error below 3e-7.
///
/// Φ(-z) = φ(z)·(b₁t + … + b₅t⁵) with t = 1/(1 + 0.2316419·z) for z ≥ 0 (Abramowitz and Stegun 1964, 26.2.17).
#[inline(always)]
pub fn normal(x: f32) -> f32 {
    let z = x.abs();
    let t = 1.0 / 0.231_641_9_f32.mul_add(z, 1.0);
    let p = 1.330_274_4_f32;
    let p = p.mul_add(t, -1.821_256);
    let p = p.mul_add(t, 1.781_477_9);
    let p = p.mul_add(t, -0.356_563_78);
    let p = p.mul_add(t, 0.319_381_53);
    let tail = 0.398_942_3 * exp(-0.5 * z * z) * p * t;
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Number of independent partial results in the reductions below, so that the compiler can vectorise them.
pub const LANES: usize = 16;

/// Joins lanes pairwise, half by half: four vector steps instead of fifteen scalar ones.
#[inline(always)]
fn join(lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    // Forced through memory: otherwise the compiler adapts the loop that filled the lanes to the narrow steps below.
    let mut lanes = std::hint::black_box(lanes);
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Sum of lanes, in a fixed order.
#[inline(always)]
pub fn sum_lanes(lanes: [f32; LANES]) -> f32 {
    join(lanes, |a, b| a + b)
}

/// Sum of a slice, in a fixed order.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane += v;
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += v;
    }
    sum_lanes(lanes)
}

/// Largest element of a slice; -∞ when empty.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = if *v > *lane { *v } else { *lane };
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = if *v > *lane { *v } else { *lane };
    }
    join(lanes, |a, b| if a > b { a } else { b })
}

/// Dot product, in a fixed order.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut lanes = [0f32; LANES];
    let (ca, cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (ra, rb) = (ca.remainder(), cb.remainder());
    for (x, y) in ca.zip(cb) {
        for i in 0..LANES {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    let mut total = sum_lanes(lanes);
    for (x, y) in ra.iter().zip(rb) {
        total = x.mul_add(*y, total);
    }
    total
}

/// Replaces x by e^(x - shift) and returns the sum.
#[inline(always)]
pub fn exp_shifted(x: &mut [f32], shift: f32) -> f32 {
    for v in x.iter_mut() {
        *v = exp(*v - shift);
    }
    sum(x)
}

vectorised! {
    /// target += scale·from.
    pub fn add_scaled(target: &mut [f32], from: &[f32], scale: f32) {
        for (target, from) in target.iter_mut().zip(from) {
            *target = from.mul_add(scale, *target);
        }
    }
}

/// Transposes a 16×16 block, in four rounds of interleaving rows i and i + 8.
#[inline(always)]
fn transpose_block(mut block: [[f32; 16]; 16]) -> [[f32; 16]; 16] {
    for _ in 0..4 {
        let mut next = [[0f32; 16]; 16];
        for i in 0..8 {
            let (a, b) = (block[i], block[i + 8]);
            for j in 0..8 {
                next[2 * i][2 * j] = a[j];
                next[2 * i][2 * j + 1] = b[j];
                next[2 * i + 1][2 * j] = a[j + 8];
                next[2 * i + 1][2 * j + 1] = b[j + 8];
            }
        }
        block = next;
    }
    block
}

vectorised! {
    /// `to[j·to_stride + i]` = `from[i·from_stride + j]` for `rows` rows and `columns` columns. Rows of `to` are whole
    /// vectors of 16; what lies beyond `rows` becomes 0.
    pub fn transpose_padded(
        from: &[f32], from_stride: usize, rows: usize, columns: usize, to: &mut [f32], to_stride: usize,
    ) {
        for first in (0..rows).step_by(16) {
            let count = (rows - first).min(16);
            let mut column = 0;
            while column + 16 <= columns {
                let mut block = [[0f32; 16]; 16];
                for i in 0..count {
                    block[i].copy_from_slice(&from[(first + i) * from_stride + column..][..16]);
                }
                let block = transpose_block(block);
                for j in 0..16 {
                    to[(column + j) * to_stride + first..][..16].copy_from_slice(&block[j]);
                }
                column += 16;
            }
            for j in column..columns {
                let to = &mut to[j * to_stride + first..][..16];
                to[count..].fill(0.0);
                for i in 0..count {
                    to[i] = from[(first + i) * from_stride + j];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_grow_with_the_limit() {
        let found: Vec<Instructions> = InstructionSet::ALL.iter().map(|most| Instructions::detect(*most)).collect();
        assert_eq!(found[0], Instructions { level: Level::Baseline, vnni: false, bf16: false, amx: false });
        assert!(found[1].level != Level::Avx512);
        for (set, Instructions { level, vnni, bf16, amx }) in InstructionSet::ALL.iter().zip(&found) {
            assert!(!vnni || *level == Level::Avx512 && *set as u8 >= InstructionSet::Avx512Vnni as u8);
            assert!(!bf16 || *level == Level::Avx512 && *set as u8 >= InstructionSet::Avx512Bf16 as u8);
            assert!(!amx || *bf16 && *set == InstructionSet::Amx);
        }
        let error = InstructionSet::from_flag(LIMIT, "avx1024").unwrap_err();
        assert!(error.to_string().contains("`avx1024` for MT_MAX_ISA"), "{error}");
    }

    #[test]
    fn exp_is_accurate() {
        for i in -8600..8700 {
            let x = i as f32 * 0.01;
            let want = (x as f64).exp();
            assert!(((exp(x) as f64 - want) / want).abs() < 2e-7, "exp({x})");
        }
        for (far, bound) in [(f32::NEG_INFINITY, -87.0), (-90.0, -87.0), (90.0, 88.0), (f32::INFINITY, 88.0)] {
            assert_eq!(exp(far), exp(bound));
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn normal_is_accurate() {
        // Φ by Simpson's rule over the density, in f64.
        let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        let step = 1e-3;
        let mut want = 0.5;
        for i in 0..8000 {
            let x = i as f64 * step;
            for (got, want) in [(normal(x as f32), want), (normal(-x as f32), 1.0 - want)] {
                assert!((got as f64 - want).abs() < 3e-7, "Φ(±{x}) = {got}, not {want}");
            }
            want += step / 6.0 * (density(x) + 4.0 * density(x + step / 2.0) + density(x + step));
        }
    }

    #[test]
    fn transposes_blocks_and_tails() {
        for (rows, columns) in [(1usize, 1usize), (16, 16), (17, 16), (5, 32), (33, 40), (16, 7)] {
            let stride = columns + 3;
            let from: Vec<f32> = (0..rows * stride).map(|i| i as f32).collect();
            let padded = rows.div_ceil(16) * 16;
            let mut to = vec![f32::NAN; columns * padded];
            transpose_padded(&from, stride, rows, columns, &mut to, padded);
            for j in 0..columns {
                for i in 0..padded {
                    let want = if i < rows { from[i * stride + j] } else { 0.0 };
                    assert_eq!(to[j * padded + i], want, "{rows}x{columns} at {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn reductions_cover_every_element() {
        for n in [0usize, 1, 15, 16, 17, 47] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
            assert_eq!(sum(&x), x.iter().sum::<f32>());
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(dot(&x, &x), x.iter().map(|v| v * v).sum::<f32>());
        }
    }
}
