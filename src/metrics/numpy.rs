//! The random numbers of NumPy, so that resampling draws the very samples that others draw: sacrebleu with
//! `default_rng(seed)`, and `comet-compare` with `seed(seed)`.
//!
//! `SeedSequence` turns the seed into 256 bits (M. E. O'Neill, "Developing a seed_seq Alternative", 2015), which seed
//! PCG64, the XSL-RR generator of 128 bits of state (M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
//! Statistically Good Algorithms for Random Number Generation", 2014). Bounded integers are drawn by multiplication
//! with rejection (D. Lemire, "Fast Random Integer Generation in an Interval", 2019).

/// Multiplier of PCG's generators of 128 bits.
const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;
/// Words of the entropy pool.
const POOL: usize = 4;

/// `numpy.random.default_rng(seed)`.
#[derive(Clone, Debug)]
pub struct Generator {
    state: u128,
    increment: u128,
    /// The upper half of the last 64 bits, if only the lower half has been used.
    half: Option<u32>,
}

impl Generator {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        let [state, state_low, stream, stream_low] = seed_sequence(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut generator = Self { state: 0, increment: wide(stream, stream_low) << 1 | 1, half: None };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(state, state_low));
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        ((self.state >> 64) as u64 ^ self.state as u64).rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let both = self.next_u64();
        self.half = Some((both >> 32) as u32);
        both as u32
    }

    /// A number below `bound`, as `integers(bound)` and `choice(bound)` draw it. `bound` is at least 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound <= 1 {
            return 0;
        }
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }

    /// Words of 32 coin flips each, the first in the lowest bit: what `integers(2, dtype=bool)` consumes.
    pub fn flips(&mut self) -> impl FnMut() -> bool {
        let (mut word, mut left) = (0, 0);
        move || {
            if left == 0 {
                (word, left) = (self.next_u32(), 32);
            }
            let flip = word & 1 == 1;
            (word, left) = (word >> 1, left - 1);
            flip
        }
    }
}

/// Words of the state of the Mersenne Twister, and how far apart those are that are mixed.
const WORDS: usize = 624;
const APART: usize = 397;

/// `numpy.random.seed(seed)`: the Mersenne Twister (M. Matsumoto and T. Nishimura, "Mersenne Twister: A
/// 623-dimensionally equidistributed uniform pseudorandom number generator", 1998).
#[derive(Clone, Debug)]
pub struct Legacy {
    state: [u32; WORDS],
    next: usize,
}

impl Legacy {
    /// The generator of a seed.
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; WORDS];
        for index in 1..WORDS {
            let last = state[index - 1];
            state[index] = 1_812_433_253u32.wrapping_mul(last ^ last >> 30).wrapping_add(index as u32);
        }
        Self { state, next: WORDS }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == WORDS {
            for index in 0..WORDS {
                let joined = self.state[index] & 0x8000_0000 | self.state[(index + 1) % WORDS] & 0x7FFF_FFFF;
                let odd = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
                self.state[index] = self.state[(index + APART) % WORDS] ^ joined >> 1 ^ odd;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9D2C_5680;
        word ^= word << 15 & 0xEFC6_0000;
        word ^ word >> 18
    }

    /// A number below `bound`, as `randint(bound)` and `choice(bound)` draw it: of as few bits as it needs, until one
    /// is small enough. `bound` is at least 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        let most = bound.saturating_sub(1);
        if most == 0 {
            return 0;
        }
        let mask = u32::MAX >> most.leading_zeros();
        loop {
            let number = self.next_u32() & mask;
            if number <= most {
                return number;
            }
        }
    }
}

/// `SeedSequence(seed).generate_state(4, numpy.uint64)`.
fn seed_sequence(seed: u64) -> [u64; 4] {
    let mut entropy = vec![seed as u32];
    if seed >> 32 > 0 {
        entropy.push((seed >> 32) as u32);
    }
    let mut hash = Hash { constant: 0x43b0_d7e5, multiplier: 0x931e_8875 };
    let mut pool: [u32; POOL] = std::array::from_fn(|i| hash.hash(entropy.get(i).copied().unwrap_or(0)));
    for from in 0..POOL {
        for to in (0..POOL).filter(|to| *to != from) {
            pool[to] = mix(pool[to], hash.hash(pool[from]));
        }
    }
    let mut hash = Hash { constant: 0x8b51_f9dd, multiplier: 0x58f3_8ded };
    let words: [u32; 8] = std::array::from_fn(|i| hash.hash(pool[i % POOL]));
    std::array::from_fn(|i| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32)
}

/// A hash whose constant changes with every use.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn hash(&mut self, value: u32) -> u32 {
        let value = value ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let value = value.wrapping_mul(self.constant);
        value ^ value >> 16
    }
}

fn mix(x: u32, y: u32) -> u32 {
    let mixed = 0xca01_f9ddu32.wrapping_mul(x).wrapping_sub(0x4973_f715u32.wrapping_mul(y));
    mixed ^ mixed >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are from NumPy 2.
    #[test]
    fn draws_what_numpy_draws() {
        for (seed, choices, flips, large) in [
            (
                12345,
                [2100, 682, 2369, 951, 613, 2395, 1930, 2031],
                "1011000011011110110100001011111100010110",
                [1802651562, 1218704084, 457721137, 1444732610],
            ),
            (
                (1 << 40) + 7,
                [620, 2492, 1830, 766, 51, 461, 1516, 2026],
                "0001011000001101110110010100011110101010",
                [202923124, 1052257149, 1447333169, 80041024],
            ),
        ] {
            let mut generator = Generator::new(seed);
            assert_eq!(choices.map(|_| generator.below(3004)), choices);
            let mut flip = generator.flips();
            assert_eq!((0..40).map(|_| if flip() { '1' } else { '0' }).collect::<String>(), flips);
            drop(flip);
            assert_eq!(large.map(|_| generator.below((1 << 31) + 11)), large);
        }
        let mut generator = Generator::new(12345);
        let all: Vec<u64> = (0..100_000).map(|_| u64::from(generator.below(1000))).collect();
        let weighted: u64 = all.iter().zip((0..1000).cycle()).map(|(n, i)| n * i).sum();
        assert_eq!((all.iter().sum::<u64>(), weighted), (49_904_896, 24_907_483_375));
    }

    /// `numpy.random.seed(1)`, then `randint(0, 1000, 5)`; and another one, for `choice(50, 8)`.
    #[test]
    fn the_mersenne_twister_draws_as_numpy_does() {
        let draw = |bound: u32, count: usize| {
            let mut random = Legacy::new(1);
            (0..count).map(|_| random.below(bound)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1000, 5), [37, 235, 908, 72, 767]);
        assert_eq!(draw(50, 8), [37, 43, 12, 8, 9, 11, 5, 15]);
        assert_eq!(draw(1, 3), [0; 3]);
    }
}
