//! The random stream: generator, counter layout, keys, and the noise made of its words.

use adaroll::engine::StreamKey;
use adaroll::ops::cpu::CpuOps;
use adaroll::ops::philox::{gumbel, philox};

use super::{Spec, sample};
use crate::numbers::Numbers;

/// Philox4x32-10 gives the known answers that its authors published with Random123 (`kat_vectors`).
#[test]
fn philox_gives_the_published_answers() {
    let zero = philox([0; 4], [0; 2]);
    assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
    assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
    assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

/// Philox4x32-10 once more, by the paper's round function on 64-bit products.
fn plain_philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let split = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product / 0x1_0000_0000) as u32, (product % 0x1_0000_0000) as u32)
    };
    let ([mut l0, mut r0, mut l1, mut r1], [mut k0, mut k1]) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            (k0, k1) = (k0.wrapping_add(0x9e37_79b9), k1.wrapping_add(0xbb67_ae85));
        }
        let ((h0, low0), (h1, low1)) = (split(l0, 0xd251_1f53), split(l1, 0xcd9e_8d57));
        (l0, r0, l1, r1) = (h1 ^ r0 ^ k0, low1, h0 ^ r1 ^ k1, low0);
    }
    [l0, r0, l1, r1]
}

/// Uniform and Gumbel noise of a word in f64.
fn exact_gumbel(word: u32) -> f64 {
    let v = (f64::from(word) + 0.5) / 4_294_967_296.0;
    -(-(-v).ln_1p()).ln()
}

/// The noise of token t at generated position p of sample s is word t mod 4 of Philox(key, (t / 4, p, s, 0)): an argmax over noise that is
/// made here from that sentence alone is the token that is drawn. Another layout, shown by the last lines, is not.
#[test]
fn noise_is_laid_out_as_documented() {
    let mut numbers = Numbers(1);
    let mut ops = CpuOps::new(2).unwrap();
    let spec = Spec::plain(1.0);
    let mut other_layouts = [0; 3];
    let mut draws = 0;
    for vocabulary in [1, 2, 3, 4, 5, 63, 64, 65, 511, 512, 513, 1500] {
        for i in 0..60 {
            let w = numbers.word();
            let key = [w as u32, (w >> 32) as u32];
            let (position, index) = match i {
                0 => (0, 0),
                1 => (u32::MAX, 7),
                2 => (7, u32::MAX),
                _ => (numbers.below(4096) as u32, numbers.below(64) as u32),
            };
            let drawn = sample(&mut ops, &[vec![0.25; vocabulary]], &[spec.draw(0, key, position, index)])[0].unwrap();
            let winner = |word: &dyn Fn(u32) -> u32| {
                let noise = (0..vocabulary as u32).map(|t| exact_gumbel(word(t)));
                noise.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0 as u32
            };
            let at = |counter, t: u32| plain_philox(counter, key)[t as usize % 4];
            assert_eq!(drawn.token, winner(&|t| at([t / 4, position, index, 0], t)), "{vocabulary} tokens, draw {i}");
            if vocabulary == 1500 {
                draws += 1;
                other_layouts[0] += usize::from(drawn.token == winner(&|t| at([t / 4, index, position, 0], t)) && position != index);
                other_layouts[1] += usize::from(drawn.token == winner(&|t| plain_philox([t, position, index, 0], key)[0]));
                let swapped = [key[1], key[0]];
                other_layouts[2] +=
                    usize::from(drawn.token == winner(&|t| plain_philox([t / 4, position, index, 0], swapped)[t as usize % 4]));
            }
        }
    }
    assert!(draws == 60 && other_layouts.iter().all(|n| *n < 5), "other layouts draw the same: {other_layouts:?}");
}

/// A key is the first eight bytes of BLAKE3(seed as little-endian u64, then the prompt id in UTF-8), as two little-endian words. The first
/// lines are an official vector of BLAKE3: the bytes 0 to 7 hash to 2351207d04fc16ad...
#[test]
fn stream_keys_are_little_endian_words_of_blake3() {
    assert_eq!(StreamKey::new(0x0706_0504_0302_0100, "").0, [0x7d20_5123, 0xad16_fc04]);
    for (seed, id) in [(0, "0"), (1, "0"), (u64::MAX, "prompt-17"), (42, "naïve ✓")] {
        let mut bytes = Vec::new();
        for i in 0..8 {
            bytes.push((seed >> (8 * i)) as u8);
        }
        bytes.extend_from_slice(id.as_bytes());
        let digest = blake3::hash(&bytes);
        let word = |at: usize| (0..4).fold(0u32, |w, i| w | u32::from(digest.as_bytes()[at + i]) << (8 * i));
        assert_eq!(StreamKey::new(seed, id).0, [word(0), word(4)], "seed {seed}, prompt {id}");
    }
    assert_ne!(StreamKey::new(1, "0"), StreamKey::new(0, "0"));
    assert_ne!(StreamKey::new(1, "0"), StreamKey::new(1, "1"));
}

/// Words of every size: both ends, the seams of f32, and many between.
fn words() -> impl Iterator<Item = u32> {
    let mut numbers = Numbers(2);
    let seams = (0..32).flat_map(|e| (0..64).map(move |d| (1u32 << e).wrapping_add(d).wrapping_sub(32)));
    (0..5000).chain(u32::MAX - 5000..=u32::MAX).chain(seams).chain((0..200_000).map(move |_| numbers.word() as u32))
}

/// Noise follows the formula: to a few units in the last place of its own f32 uniform everywhere, and of the exact uniform where noise is
/// positive, which is where winners come from.
#[test]
fn gumbel_noise_follows_its_formula() {
    let (mut worst, mut worst_exact) = (0f64, 0f64);
    for word in words() {
        let got = f64::from(gumbel(word));
        let v = ((word as f32 + 0.5) / 4_294_967_296.0).min(1.0 - 1.0 / 16_777_216.0);
        let want = -(-(-f64::from(v)).ln_1p()).ln();
        // A unit in the last place at |g|, and at 1 for smaller ones.
        let ulp = 2f64.powf(want.abs().max(1.0).log2().floor() - 23.0);
        worst = worst.max((got - want).abs() / ulp);
        if got > 0.0 {
            worst_exact = worst_exact.max((got - exact_gumbel(word)).abs() / ulp);
        }
    }
    assert!(worst < 4.0, "{worst} units from the formula over its uniform");
    assert!(worst_exact < 4.0, "{worst_exact} units from the exact formula");
}

/// Range and number of non-finite values of the noise of some words.
#[derive(Clone, Copy, Debug)]
struct Survey {
    least: f32,
    most: f32,
    not_finite: u64,
}

impl Survey {
    fn join(self, other: Survey) -> Survey {
        Survey { least: self.least.min(other.least), most: self.most.max(other.most), not_finite: self.not_finite + other.not_finite }
    }

    #[track_caller]
    fn assert_finite_and_in_range(self) {
        assert_eq!(self.not_finite, 0);
        assert!(self.least > -2.83 && self.least < -2.81 && self.most > 22.87 && self.most < 22.9, "{self:?}");
    }
}

/// Words whose noise is made together, and lanes: the compiler makes vectors of them.
const BLOCK: u32 = 256;
const LANES: usize = 16;

/// `count` words, a multiple of the block, from `first` on, `step` apart. Arithmetic wraps: a check for overflow in the loop would leave it
/// without vectors.
#[inline(always)]
fn survey_body(first: u32, step: u32, count: u64) -> Survey {
    let (mut least, mut most, mut bad) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let mut noise = [0f32; BLOCK as usize];
    assert_eq!(count % u64::from(BLOCK), 0);
    for block in 0..count / u64::from(BLOCK) {
        let base = first.wrapping_add((block as u32).wrapping_mul(BLOCK).wrapping_mul(step));
        for (j, g) in noise.iter_mut().enumerate() {
            *g = gumbel(base.wrapping_add((j as u32).wrapping_mul(step)));
        }
        for chunk in noise.as_chunks::<LANES>().0 {
            for j in 0..LANES {
                least[j] = if chunk[j] < least[j] { chunk[j] } else { least[j] };
                most[j] = if chunk[j] > most[j] { chunk[j] } else { most[j] };
                bad[j] = bad[j].wrapping_add(u32::from(!chunk[j].is_finite()));
            }
        }
    }
    let fold = |values: [f32; LANES], f: fn(f32, f32) -> f32| values.into_iter().reduce(f).unwrap();
    Survey { least: fold(least, f32::min), most: fold(most, f32::max), not_finite: bad.iter().map(|&n| u64::from(n)).sum() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn survey_avx512(first: u32, step: u32, count: u64) -> Survey {
    survey_body(first, step, count)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn survey_avx2(first: u32, step: u32, count: u64) -> Survey {
    survey_body(first, step, count)
}

fn survey(first: u32, step: u32, count: u64) -> Survey {
    #[cfg(target_arch = "x86_64")]
    {
        use adaroll::ops::cpu::Isa;
        match Isa::detect() {
            // SAFETY: the features were detected.
            Isa::Avx512 => return unsafe { survey_avx512(first, step, count) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { survey_avx2(first, step, count) },
            Isa::Scalar => {}
        }
    }
    survey_body(first, step, count)
}

/// The tail: every f32 that a word can become, and every word halfway between two of them, gives finite noise within the range. Noise
/// reads a word through its f32 alone; that even this need not be believed is the long test's part.
#[test]
fn no_rounded_word_gives_noise_that_is_not_finite() {
    // From 2^e to 2^(e+1), f32 steps by 2^(e-23).
    let binades = (24..32).map(|e| survey(1 << e, 1 << (e - 24), 1 << 24));
    binades.fold(survey(0, 1, 1 << 24), Survey::join).assert_finite_and_in_range();
}

/// The tail, all of it: none of the 2^32 words gives noise that is not finite. A minute or less; the fast test above covers every value.
#[test]
#[ignore = "long: part of tests/full.sh"]
fn no_word_gives_noise_that_is_not_finite() {
    const HALF: u64 = 1 << 31;
    std::thread::scope(|scope| {
        let upper = scope.spawn(|| survey(1 << 31, 1, HALF));
        survey(0, 1, HALF).join(upper.join().unwrap()).assert_finite_and_in_range();
    });
}

/// The twin: noise as it is usually written, -ln(-ln u) in f32, is infinite for words at the ends: a token that can never be drawn, or one
/// that always wins. The survey would see it.
#[test]
fn the_usual_formula_would_give_infinities() {
    let usual = |u: f32| -(-u.ln()).ln();
    let of_24_bits = |word: u32| usual((word >> 8) as f32 / 16_777_216.0);
    let of_32_bits = |word: u32| usual(word as f32 / 4_294_967_296.0);
    assert_eq!((of_24_bits(0), of_24_bits(255)), (f32::NEG_INFINITY, f32::NEG_INFINITY));
    assert_eq!((of_32_bits(0), of_32_bits(u32::MAX)), (f32::NEG_INFINITY, f32::INFINITY));
    let infinite = (u32::MAX - 100_000..=u32::MAX).filter(|&w| !of_32_bits(w).is_finite()).count();
    // One word in 2^25: about once in 680 steps at a vocabulary of 49k.
    assert_eq!(infinite, 128);
    assert!(gumbel(0).is_finite() && gumbel(255).is_finite() && gumbel(u32::MAX).is_finite());
}
