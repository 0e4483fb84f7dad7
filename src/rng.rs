//! Named, counter-based random numbers.
//!
//! Nothing here keeps hidden state: a number is a pure function of a key and a counter, and a key of a seed, a name
//! and indices. So streams made in any order, on any thread, after any resume, give the same numbers. Two streams with
//! different names or indices have different sequences in practice: a key is a hash of 64 bits, and a name of zero
//! bytes would look like indices of 0.
//!
//! The mixing function is the output function of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom
//! Number Generators", 2014). Good statistics, no cryptographic strength. Values decide what a resumed run
//! draws, so the tests pin them.

/// The golden ratio's fraction in 64 bits: SplitMix64's increment.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes 64 bits: a bijection in which every input bit reaches every output bit. `mix64(s)` is the number that
/// SplitMix64 in state `s` returns.
#[inline]
pub fn mix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[inline]
fn absorb(key: u64, word: u64) -> u64 {
    mix64(key ^ mix64(word))
}

/// The key of the stream called `name`, numbered by `indices` (update, layer, line …), under `seed`.
///
/// `key(seed, name, &[a, b])` is the key of `Stream::new(seed, name).child(a).child(b)`.
pub fn key(seed: u64, name: &str, indices: &[u64]) -> u64 {
    let mut key = mix64(seed);
    for chunk in name.as_bytes().chunks(8) {
        let word = chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        key = absorb(key, word);
    }
    key = absorb(key, name.len() as u64);
    indices.iter().fold(key, |key, &index| absorb(key, index))
}

/// A stream of random numbers, whose whole state is two integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    key: u64,
    counter: u64,
}

impl Stream {
    /// The stream called `name` under `seed`, at its beginning.
    pub fn new(seed: u64, name: &str) -> Self {
        Self::from_key(key(seed, name, &[]))
    }

    /// The stream of a key made by [`key`], at its beginning.
    pub fn from_key(key: u64) -> Self {
        Self { key, counter: 0 }
    }

    /// The stream numbered `index` under this one, at its beginning. How far this stream has been read does not matter.
    pub fn child(&self, index: u64) -> Self {
        Self::from_key(absorb(self.key, index))
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let inner = mix64(self.key.wrapping_add(self.counter.wrapping_mul(GAMMA)));
        self.counter = self.counter.wrapping_add(1);
        // The key goes in twice: with one mixing, every stream would be a stretch of the same SplitMix64 sequence.
        mix64(inner ^ self.key)
    }

    /// Uniform in [0, 1), in steps of 2^-53.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform between `a` and `b`.
    #[inline]
    pub fn uniform(&mut self, a: f64, b: f64) -> f64 {
        a + (b - a) * self.next_f64()
    }

    /// Standard normal (Box and Muller, 1958); uses two numbers and throws the second variate away, so that the state
    /// stays a counter.
    pub fn normal(&mut self) -> f64 {
        // 1 - u is in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - self.next_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next_f64()).cos()
    }

    /// Uniform in 0..n without bias (Lemire, "Fast Random Integer Generation in an Interval", 2019); 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // Accepting low halves below 2^64 mod n would make some results more likely than others: draw again.
        let unfair = if n == 0 { 0 } else { n.wrapping_neg() % n };
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= unfair {
                return (product >> 64) as u64;
            }
        }
    }

    /// Puts `items` into a uniformly random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = self.below(last as u64 + 1) as usize;
            items.swap(last, chosen);
        }
    }
}

/// A keyed permutation of 0..n that needs no memory: any element in any order.
///
/// A Feistel network over the bits that n needs; a result outside 0..n goes through it again (cycle walking: Black and
/// Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): fewer than two passes on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    right_bits: u32,
    left_mask: u64,
    right_mask: u64,
    round_keys: [u64; ROUNDS],
}

/// Four rounds look random on large domains; tiny ones need more to be uniform (tests check n = 5).
const ROUNDS: usize = 8;

impl Permutation {
    /// The permutation of 0..n under `key`.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let left_bits = bits / 2;
        let right_bits = bits - left_bits;
        let mask = |bits: u32| (1u64 << bits) - 1;
        let round_keys = std::array::from_fn(|round| absorb(key, round as u64));
        Self { n, right_bits, left_mask: mask(left_bits), right_mask: mask(right_bits), round_keys }
    }

    /// Where `index` goes. `index` must be less than n.
    pub fn get(&self, index: u64) -> u64 {
        // Started outside 0..n, cycle walking might never get inside.
        assert!(index < self.n, "index {index} of a permutation of {}", self.n);
        let mut x = index;
        loop {
            x = self.encrypt(x);
            if x < self.n {
                return x;
            }
        }
    }

    #[inline]
    fn encrypt(&self, x: u64) -> u64 {
        let mut left = x >> self.right_bits & self.left_mask;
        let mut right = x & self.right_mask;
        for keys in self.round_keys.chunks_exact(2) {
            left ^= mix64(right ^ keys[0]) & self.left_mask;
            right ^= mix64(left ^ keys[1]) & self.right_mask;
        }
        left << self.right_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mix64_is_splitmix64() {
        // The published first outputs for seeds 0 and 1234567.
        assert_eq!(mix64(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix64(GAMMA), 0x6E78_9E6A_A1B9_65F4);
        assert_eq!(mix64(1234567), 6457827717110365317);
        assert_eq!(mix64(1234567u64.wrapping_add(GAMMA)), 3203168211198807973);
    }

    /// Our own values, pinned: a change here changes what every resumed run draws.
    #[test]
    fn values_are_stable() {
        let mut stream = Stream::from_key(key(1, "init", &[3]));
        let drawn: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
        assert_eq!((key(1, "init", &[3]), drawn), (KEY, DRAWN.to_vec()));
        let mut stream = Stream::new(1, "init");
        assert_eq!((stream.below(1000), stream.next_f64()), (BELOW, FLOAT));
        assert!((stream.normal() - NORMAL).abs() < 1e-15);
        let permutation = Permutation::new(10, 7);
        assert_eq!((0..10).map(|i| permutation.get(i)).collect::<Vec<_>>(), PERMUTED);
    }
    const KEY: u64 = 0x7DD2_065C_48A6_1E95;
    const DRAWN: [u64; 3] = [0xA6AF_A8FA_E452_AEEF, 0xE369_C7CC_7D01_6939, 0xF462_9B7C_F2FD_D87E];
    const BELOW: u64 = 823;
    const FLOAT: f64 = 0.29846309691895356;
    const NORMAL: f64 = -0.7397438512726763;
    const PERMUTED: [u64; 10] = [8, 7, 5, 3, 2, 0, 9, 1, 6, 4];

    #[test]
    fn streams_are_named_and_numbered() {
        let keys = [
            key(5, "a", &[]),
            key(6, "a", &[]),
            key(5, "b", &[]),
            key(5, "a", &[0]),
            key(5, "a", &[1]),
            key(5, "a", &[1, 2]),
            key(5, "a", &[2, 1]),
            key(5, "a\0", &[]),
            key(5, "", &[]),
            key(5, "abcdefgh", &[]),
            key(5, "abcdefghi", &[]),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b), "key {i}");
        }
        let mut read = Stream::new(5, "a");
        read.next_u64();
        assert_eq!(read.child(1).child(2), Stream::from_key(key(5, "a", &[1, 2])));
    }

    #[test]
    fn moments_and_bits_are_right() {
        let mut stream = Stream::new(1, "statistics");
        let n = 100_000;
        let (mut sum, mut square, mut normal_sum, mut normal_square) = (0.0, 0.0, 0.0, 0.0);
        let mut ones = [0u32; 64];
        for _ in 0..n {
            let u = stream.uniform(-1.0, 3.0);
            assert!((-1.0..3.0).contains(&u));
            sum += u;
            square += u * u;
            let z = stream.normal();
            normal_sum += z;
            normal_square += z * z;
            let bits = stream.next_u64();
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += (bits >> bit & 1) as u32;
            }
        }
        // Bounds of about five standard errors.
        let n = f64::from(n);
        assert!((sum / n - 1.0).abs() < 0.02, "{}", sum / n);
        assert!((square / n - 7.0 / 3.0).abs() < 0.04, "{}", square / n);
        assert!((normal_sum / n).abs() < 0.016, "{}", normal_sum / n);
        assert!((normal_square / n - 1.0).abs() < 0.023, "{}", normal_square / n);
        assert!(ones.iter().all(|&count| (f64::from(count) / n - 0.5).abs() < 0.008), "{ones:?}");
    }

    #[test]
    fn sibling_streams_are_uncorrelated() {
        // First numbers of neighbouring children: what initialisation and dropout keys look like.
        let draw = |i: u64| Stream::from_key(key(1, "siblings", &[i])).next_f64() - 0.5;
        let n = 50_000;
        let correlation: f64 = (0..n).map(|i| draw(i) * draw(i + 1)).sum::<f64>() / n as f64 * 12.0;
        assert!(correlation.abs() < 0.023, "{correlation}");
    }

    /// The 99.99th percentile of chi-square, roughly (Wilson and Hilferty's cube).
    fn chi_square_bound(degrees: f64) -> f64 {
        let ninth = 2.0 / (9.0 * degrees);
        degrees * (1.0 - ninth + 3.72 * ninth.sqrt()).powi(3)
    }

    #[test]
    fn below_is_uniform() {
        let mut stream = Stream::new(2, "below");
        assert_eq!((stream.below(0), stream.below(1)), (0, 0));
        for n in [3u64, 10, 77] {
            let mut counts = vec![0u32; n as usize];
            let draws = 1000 * n;
            (0..draws).for_each(|_| counts[stream.below(n) as usize] += 1);
            let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0).sum();
            assert!(chi < chi_square_bound(n as f64 - 1.0), "n {n}: {chi}");
        }
        // A range just above 2^63 rejects nearly half of the draws; without that the lower half is twice as likely.
        let n = (1u64 << 63) + 1;
        let low = (0..4000).filter(|_| stream.below(n) < n / 2).count();
        assert!((1840..2160).contains(&low), "{low}");
    }

    #[test]
    fn permutations_are_uniform_over_keys() {
        for n in [2u64, 3, 5, 16, 33] {
            let trials = 2000 * n;
            let mut counts = vec![0u32; (n * n) as usize];
            for trial in 0..trials {
                let permutation = Permutation::new(n, key(3, "trial", &[trial]));
                (0..n).for_each(|i| counts[(i * n + permutation.get(i)) as usize] += 1);
            }
            let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 2000.0).powi(2) / 2000.0).sum();
            assert!(chi < chi_square_bound(((n - 1) * (n - 1)) as f64), "n {n}: {chi}");
        }
    }

    proptest! {
        #[test]
        fn permutation_is_a_bijection(n in 1u64..3000, key in any::<u64>()) {
            let permutation = Permutation::new(n, key);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let j = permutation.get(i) as usize;
                prop_assert!(!std::mem::replace(&mut seen[j], true));
            }
        }

        #[test]
        fn permutation_stays_inside_large_ranges(n in 1u64.., index in any::<u64>(), key in any::<u64>()) {
            prop_assert!(Permutation::new(n, key).get(index % n) < n);
        }
    }

    #[test]
    fn shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..50).collect();
        Stream::new(1, "shuffle").shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
