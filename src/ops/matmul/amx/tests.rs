use super::super::tests::{SIZES, numbers};
use super::super::{Arithmetic, Matrix, Packed, Scratch, transposed_product_by};
use super::*;

/// Bits of a number; those of NaN, which differ between instructions, are always the same.
fn bits(c: &[f32]) -> Vec<u32> {
    c.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

/// A·B by the definition of the arithmetic, from matrices that are not packed. A: [m, k], B: [k, n].
fn by_definition(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let rounded = |x: f32| half(x.to_bits() >> 16, x.to_bits() & 0xffff);
    /// The upper half of a number, rounded to nearest by the lower one, ties to even.
    fn half(upper: u32, lower: u32) -> f32 {
        let up = lower > 0x8000 || lower == 0x8000 && upper & 1 == 1;
        f32::from_bits((upper + u32::from(up)) << 16)
    }
    let mut c = vec![0f32; m * n];
    for i in 0..m {
        for j in 0..n {
            for block in (0..k).step_by(2 * BLOCK) {
                let mut chains = [0f32; 2];
                for p in block..k.min(block + 2 * BLOCK) {
                    chains[p % 2] = rounded(a[i * k + p]).mul_add(rounded(b[p * n + j]), chains[p % 2]);
                }
                c[i * n + j] += chains[0] + chains[1];
            }
        }
    }
    c
}

/// Leaves NaN in buffers of such sizes, which are then used again: words that are read but never written show.
fn spoil(sizes: [usize; 2]) {
    let buffers = sizes.map(|size| [Scratch::new(size), Scratch::new(size)]);
    buffers.into_iter().flatten().for_each(|mut buffer| buffer.fill(f32::NAN));
}

#[test]
fn products_equal_the_definition_bit_for_bit() {
    let tails = (1..=40).chain([63, 65, 255, 256, 511, 512]).map(|k| (3 + k % 40, 1 + k % 37, k));
    for (m, n, k) in SIZES.into_iter().chain(tails) {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let want = by_definition(&a, &b, m, n, k);
        let a_t: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
        for by in ways() {
            let steps = k.div_ceil(2).next_multiple_of(BLOCK);
            let tiles = m.next_multiple_of(SHAPE.rows) * SHAPE.stride * steps.div_ceil(SHAPE.depth);
            spoil([tiles, n.next_multiple_of(PANEL) * steps]);
            let packed = Packed::by(Matrix::new(&b, k, n), Arithmetic::Amx(by));
            let mut c = vec![f32::NAN; m * n];
            packed.product(&a, &mut c, false);
            assert_eq!(bits(&c), bits(&want), "{m}x{n}x{k} {by:?}");
            spoil([tiles, n.next_multiple_of(PANEL) * steps]);
            let mut c = vec![f32::NAN; m * n];
            transposed_product_by(&a_t, &b, k, &mut c, false, Arithmetic::Amx(by));
            assert_eq!(bits(&c), bits(&want), "transposed {m}x{n}x{k} {by:?}");
        }
    }
}

/// Packing and blocking do not depend on the number of threads; nor does it matter which of them uses tile registers.
#[test]
fn threads_do_not_matter() {
    let (m, n, k) = (150, 200, 77);
    let (a, b) = (numbers(k * m, 3), numbers(k * n, 4));
    let run = |threads: usize, by: By| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut sums = vec![1f32; m * n];
            transposed_product_by(&a, &b, k, &mut sums, true, Arithmetic::Amx(by));
            let mut rows = vec![0f32; m * n];
            Packed::by(Matrix::new(&b, k, n), Arithmetic::Amx(by)).product_by_columns(&a, &mut rows);
            (sums, rows)
        })
    };
    let want = run(1, By::Plain);
    for by in ways() {
        for threads in [1, 2, 5] {
            assert!(run(threads, by) == want, "{threads} threads, {by:?}");
        }
    }
}

/// The instructions beside the plain functions.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::super::trap::{self, Executor};
    use super::super::{plain, x86};
    use super::*;

    /// Words that look random.
    fn words(n: usize, seed: u32, word: impl Fn(u32) -> u32) -> Vec<u32> {
        let mixed = |i: u32| (i.wrapping_mul(2_654_435_761) ^ seed).wrapping_mul(0x85eb_ca6b).rotate_left(13);
        (0..n as u32).map(|i| word(mixed(mixed(i)))).collect()
    }

    /// What C holds after three products; the last is added. Its rows lie further apart than they are long, and what is
    /// between them must stay.
    fn products(operands: Operands, by: By, [all, rows]: [usize; 2], a: &[u32], b: &[u32], start: &[u32]) -> Vec<u32> {
        const LDC: usize = PANEL + 7;
        let mut c = vec![7f32; rows * LDC];
        for (c, start) in c.chunks_mut(LDC).zip(start.chunks(PANEL)) {
            c.iter_mut().zip(start).for_each(|(c, start)| *c = f32::from_bits(*start));
        }
        let session = Session::begin(operands, by, all);
        let mut seen = Vec::new();
        for accumulate in [true, false, true] {
            let (a, to, steps) = (a.as_ptr(), c.as_mut_ptr(), b.len() / PANEL);
            // SAFETY: whole tiles; something executes the instructions.
            unsafe { session.run(rows, Tile { steps, a, b: b.as_ptr(), c: to, ldc: LDC, accumulate }) };
            match operands {
                Operands::Bf16 => seen.extend(bits(&c)),
                Operands::Int8 => seen.extend(c.iter().map(|x| x.to_bits())),
            }
        }
        seen
    }

    fn compare(operands: Operands, what: &str, word: impl Fn(u32) -> u32 + Copy, start: impl Fn(u32) -> u32) {
        if trap::prepare() == Executor::Nothing {
            return;
        }
        let before = trap::executed();
        let start = words(SHAPE.rows * PANEL, 3, start);
        for blocks in [1, 2, 3, SHAPE.depth / BLOCK] {
            let (a, b) = (words(SHAPE.tile_words(), 1, word), words(blocks * BLOCK * PANEL, 2, word));
            for rows in 1..=SHAPE.rows {
                // A tile of its own, and one after others.
                for all in [rows, 100] {
                    let got = products(operands, By::Processor, [all, rows], &a, &b, &start);
                    let want = products(operands, By::Plain, [all, rows], &a, &b, &start);
                    assert!(got == want, "{what}: {rows} rows of {all}, {blocks} blocks");
                }
            }
        }
        assert_eq!(trap::executed() > before, trap::prepare() == Executor::Trap);
    }

    #[test]
    fn bfloat16_is_the_plain_functions() {
        compare(Operands::Bf16, "near 1", |x| x & 0x80ff_80ff | 0x3f00_3f00, |x| x & 0x80ff_ffff | 0x3f00_0000);
        // All numbers there are, with many infinities and NaN among the sums.
        compare(Operands::Bf16, "any", |x| x, |x| x);
        // Products and sums around the least normal number.
        compare(Operands::Bf16, "small", |x| x & 0x81ff_81ff | 0x2000_2000, |x| x & 0x81ff_ffff);
        let special = |x: u32| match x % 16 {
            0 => 0x0000,
            1 => 0x8000,
            2 => 0x0001,
            3 => 0x807f,
            4 => 0x0080,
            5 => 0x7f7f,
            6 => 0x7f80,
            7 => 0xff80,
            8 => 0x7fc1,
            9 => 0xff81,
            _ => x >> 16 & 0x80ff | 0x3f00,
        };
        // One of the two is special, so that most sums are not NaN.
        compare(Operands::Bf16, "special", |x| special(x) | 0x3f80_0000, |x| special(x >> 3) << 16);
        compare(Operands::Bf16, "rarely special", |x| if x % 97 < 3 { special(x) } else { 0x3f80_c000 }, |x| x);
    }

    #[test]
    fn integers_are_the_plain_functions() {
        compare(Operands::Int8, "any", |x| x, |x| x);
        let extreme =
            |x: u32| u32::from_le_bytes(std::array::from_fn(|i| [0, 1, 0x7f, 0x80, 0xff][(x as usize >> (4 * i)) % 5]));
        compare(Operands::Int8, "extreme", extreme, |_| 0);
        compare(Operands::Int8, "greatest", |_| 0x7f7f_7f7f, |_| i32::MAX as u32);
        compare(Operands::Int8, "least", |_| 0x8080_8080, |_| i32::MIN as u32);
    }

    /// The plain multiply-add is the processor's, if it ignores numbers below the normal ones.
    #[test]
    fn multiply_add_flushes_as_processors_do() {
        if trap::prepare() == Executor::Nothing {
            return;
        }
        let check = |a: [u32; 16], b: [u32; 16], c: [u32; 16]| {
            let mut got = c;
            trap::multiply_add(a, &b, &mut got);
            for i in 0..16 {
                let [a, b, c] = [a[i], b[i], c[i]].map(f32::from_bits);
                let want = plain::multiply_add(a, b, c);
                assert_eq!(bits(&[f32::from_bits(got[i])]), bits(&[want]), "{a:e}·{b:e} + {c:e}");
            }
        };
        // Around the least normal number, where rounding decides: its neighbours and products of 2⁻¹⁴⁷ to 2⁻¹⁵⁴.
        let least = f32::MIN_POSITIVE.to_bits();
        for c in [least, least + 1, least + 2, least - 1, 0, 1] {
            for exponent in 147..155 {
                for factor in 0x80..0x100u32 {
                    let a = (factor & 0x7f) << 16 | (127 - 70) << 23;
                    let b = (127 + 70 - exponent) << 23;
                    let signs: [u32; 16] = std::array::from_fn(|i| (i as u32 & 1) << 31);
                    check(signs.map(|sign| sign | a), [b; 16], std::array::from_fn(|i| c | (i as u32 & 2) << 30));
                }
            }
        }
        for turn in 0..20_000 {
            let random =
                |seed: u32, word: fn(u32) -> u32| -> [u32; 16] { words(16, seed + 3 * turn, word).try_into().unwrap() };
            check(random(1, |x| x & 0xffff_0000), random(2, |x| x & 0xffff_0000), random(3, |x| x));
            let small = |x: u32| x & 0x81ff_0000 | 0x2000_0000;
            check(random(1, small), random(2, small), random(3, |x| x & 0x80ff_ffff));
        }
    }

    #[test]
    fn the_first_use_finds_the_processor_right() {
        if trap::prepare() == Executor::Nothing {
            return;
        }
        assert!(is_right(Operands::Bf16) && is_right(Operands::Int8));
    }

    /// What a processor refuses, and an instruction that is none.
    const MISTAKES: [&str; 14] = [
        "nothing",
        "unconfigured",
        "palette",
        "reserved",
        "rows",
        "bytes",
        "no bytes",
        "absent register",
        "one register",
        "steps",
        "rows of C",
        "columns",
        "released",
        "another instruction",
    ];

    /// # Safety
    /// None: the process may end.
    unsafe fn make(mistake: &str) {
        let mut configuration =
            x86::Configuration { palette: 1, bytes: [64; 8], rows: [16; 8], ..x86::Configuration::default() };
        match mistake {
            "palette" => configuration.palette = 2,
            "reserved" => configuration.reserved[3] = 1,
            "rows" => configuration.rows[5] = 17,
            "bytes" => configuration.bytes[5] = 68,
            "no bytes" => configuration.bytes[5] = 0,
            "absent register" => (configuration.bytes[4], configuration.rows[4]) = (0, 0),
            "steps" => configuration.bytes[4] = 60,
            "rows of C" => configuration.rows[0] = 15,
            "columns" => configuration.bytes[6] = 60,
            _ => {}
        }
        let memory = [0u8; 1024];
        // SAFETY: the caller's.
        unsafe {
            if mistake != "unconfigured" {
                x86::load(&configuration);
            }
            if mistake == "released" {
                x86::release();
            }
            match mistake {
                // tdpbf16ps tmm0, tmm4, tmm4, which assemblers refuse, too.
                "one register" => std::arch::asm!(".byte 0xc4, 0xe2, 0x5a, 0x5c, 0xc4"),
                "another instruction" => std::arch::asm!("ud2"),
                _ => {}
            }
            std::arch::asm!(
                "tileloadd tmm4, [{a} + {stride}]", "tileloadd tmm6, [{a} + {stride}]", "tdpbf16ps tmm0, tmm4, tmm6",
                a = in(reg) &memory, stride = in(reg) 64usize,
            );
            x86::release();
        }
    }

    #[test]
    fn mistakes_end_the_process() {
        const VARIABLE: &str = "MT_TEST_AMX_MISTAKE";
        if trap::prepare() == Executor::Nothing {
            return;
        }
        if let Ok(mistake) = std::env::var(VARIABLE) {
            let nothing = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the process leaves no file of its memory behind, and may end.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &nothing);
                make(&mistake);
            }
            return;
        }
        let name = concat!(module_path!(), "::mistakes_end_the_process");
        let (_, name) = name.split_once("::").unwrap();
        for mistake in MISTAKES {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", name, "--nocapture"]).env(VARIABLE, mistake).output().unwrap();
            let signal = output.status.signal();
            if mistake == "nothing" {
                assert!(output.status.success(), "{output:?}");
                assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
            } else {
                assert!(signal == Some(libc::SIGILL) || signal == Some(libc::SIGSEGV), "{mistake}: {output:?}");
            }
        }
    }
}
