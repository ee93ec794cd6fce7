//! Transcendental functions of real [`Float`]s, by power series after a reduction of the argument.
//!
//! Each result is off by at most 2^-236 (4 words), 2^-486 (8) or 2^-988 (16): relatively for [`exponential`], absolutely for the others, in
//! each case times what the function says. [`ball`](super::ball) makes a radius of it.

use super::float::{Float, divided_words};

/// Words of the constants: the widest float that these functions compute.
pub const WIDEST: usize = 16;

/// pi / 4.
const QUARTER_TURN: [u64; WIDEST] = [
    0x98da48361c55d39a,
    0xc2007cb8a163bf05,
    0x49286651ece45b3d,
    0xae9f24117c4b1fe6,
    0xee386bfb5a899fa5,
    0x0bff5cb6f406b7ed,
    0xf44c42e9a637ed6b,
    0xe485b576625e7ec6,
    0x4fe1356d6d51c245,
    0x302b0a6df25f1437,
    0xef9519b3cd3a431b,
    0x514a08798e3404dd,
    0x020bbea63b139b22,
    0x29024e088a67cc74,
    0xc4c6628b80dc1cd1,
    0xc90fdaa22168c234,
];

/// The natural logarithm of 2.
const LOGARITHM_OF_TWO: [u64; WIDEST] = [
    0xda2d97c50f3fd5c6,
    0x655fa1872f20e3a2,
    0xf5dfa6bd38303248,
    0x72ce87b19d6548ca,
    0x256fa0ec7657f74b,
    0xb9ea9bc3b136603b,
    0x1acbda11317c387e,
    0x3e96ca16224ae8c5,
    0x27573b291169b825,
    0xed2eae35c1382144,
    0x559552fb4afa1b10,
    0xe7b876206debac98,
    0x8a0d175b8baafa2b,
    0x40f343267298b62d,
    0xc9e3b39803f2f6af,
    0xb17217f7d1cf79ab,
];

/// Terms of the longest series.
const TERMS: usize = 48;

/// 1 / k!
static INVERSE_FACTORIALS: [Float<WIDEST>; TERMS] = inverse_factorials();

const fn inverse_factorials() -> [Float<WIDEST>; TERMS] {
    let mut current = Float { negative: false, exponent: 1, words: [0; WIDEST] };
    current.words[WIDEST - 1] = 1 << 63;
    let mut table = [current; TERMS];
    let mut term = 1;
    while term < TERMS {
        current.words = divided_words(&current.words, term as u64).0;
        while current.words[WIDEST - 1] >> 63 == 0 {
            let mut place = WIDEST;
            while place > 0 {
                place -= 1;
                let next = if place == 0 { 0 } else { current.words[place - 1] };
                current.words[place] = current.words[place] << 1 | next >> 63;
            }
            current.exponent -= 1;
        }
        table[term] = current;
        term += 1;
    }
    table
}

/// How often the argument of a series is halved before, and how many terms of the exponential and of the cosine follow.
const fn plan(words: usize) -> (i64, usize, i64, usize) {
    match words {
        ..=4 => (10, 18, 7, 12),
        5..=8 => (16, 25, 12, 16),
        _ => (26, 33, 20, 21),
    }
}

/// pi.
pub fn pi<const N: usize>() -> Float<N> {
    Float::<WIDEST> { negative: false, exponent: 2, words: QUARTER_TURN }.resized()
}

/// ln 2.
pub fn logarithm_of_two<const N: usize>() -> Float<N> {
    Float::<WIDEST> { negative: false, exponent: 0, words: LOGARITHM_OF_TWO }.resized()
}

/// e^x for |x| < 2^48: relatively off by |x| + 1 times the bound.
pub fn exponential<const N: usize>(x: &Float<N>) -> Float<N> {
    let (halvings, terms, ..) = plan(N);
    let doublings = (x.to_double() / std::f64::consts::LN_2).round() as i64;
    let rest = x.minus(&Float::from_integer(doublings).times(&logarithm_of_two())).scaled(-halvings);
    let mut sum = INVERSE_FACTORIALS[terms].resized();
    for inverse in INVERSE_FACTORIALS[..terms].iter().rev() {
        sum = sum.times(&rest).plus(&inverse.resized());
    }
    for _ in 0..halvings {
        sum = sum.times(&sum);
    }
    sum.scaled(doublings)
}

/// ln x for x > 0: off by |ln x| + 1 times the bound.
pub fn logarithm<const N: usize>(x: &Float<N>) -> Float<N> {
    // Between 0.7 and 1.4, so that nothing cancels near 1.
    let mut fraction = Float { exponent: 0, ..*x };
    let mut doublings = x.exponent;
    if fraction.to_double() < std::f64::consts::FRAC_1_SQRT_2 {
        fraction.exponent = 1;
        doublings -= 1;
    }
    let guess = Float::from_double(libm::log(fraction.to_double()));
    let rest = fraction.times(&exponential(&guess.negated())).minus(&Float::one());
    let ratio = rest.times(&rest.plus(&Float::from_integer(2)).reciprocal());
    let small = odd_series(&ratio, false).scaled(1);
    Float::from_integer(doublings).times(&logarithm_of_two()).plus(&guess.plus(&small))
}

/// (sin x, cos x) for |x| < 2^62: off by |x| + 1 times the bound.
pub fn sine_and_cosine<const N: usize>(x: &Float<N>) -> (Float<N>, Float<N>) {
    let (_, _, halvings, terms) = plan(N);
    let half_pi = pi::<N>().scaled(-1);
    let turns = if x.exponent < 0 { Float::ZERO } else { x.times(&half_pi.reciprocal()).rounded() };
    let rest = x.minus(&turns.times(&half_pi));
    let quadrant = turns.minus(&turns.scaled(-2).floor().scaled(2)).to_double() as i64;
    // 1 - cos: what is left of a small angle keeps its precision under doubling, 1 - cos 2t = 2 v (2 - v).
    let angle = rest.scaled(-halvings);
    let square = angle.times(&angle);
    let mut sum = Float::ZERO;
    for term in (1..=terms).rev() {
        let inverse: Float<N> = INVERSE_FACTORIALS[2 * term].resized();
        sum = inverse.minus(&sum.times(&square));
    }
    let mut versine = sum.times(&square);
    let two = Float::from_integer(2);
    for _ in 0..halvings {
        versine = versine.times(&two.minus(&versine)).scaled(1);
    }
    let cosine = Float::one().minus(&versine);
    let magnitude = versine.times(&two.minus(&versine)).square_root();
    let sine = if rest.negative { magnitude.negated() } else { magnitude };
    match quadrant {
        0 => (sine, cosine),
        1 => (cosine, sine.negated()),
        2 => (sine.negated(), cosine.negated()),
        _ => (cosine.negated(), sine),
    }
}

/// The angle of the point (x, y) that is not the origin, between -pi and pi: off by the bound.
pub fn angle<const N: usize>(y: &Float<N>, x: &Float<N>) -> Float<N> {
    if y.is_zero() {
        return if x.negative { pi() } else { Float::ZERO };
    }
    let scale = -if x.is_zero() { y.exponent } else { x.exponent.max(y.exponent) };
    let (y, x) = (y.scaled(scale), x.scaled(scale));
    // Turned back by what a double knows of the angle, a small one is left.
    let guess = Float::from_double(libm::atan2(y.to_double(), x.to_double()));
    let (sine, cosine) = sine_and_cosine(&guess);
    let along = x.times(&cosine).plus(&y.times(&sine));
    let across = y.times(&cosine).minus(&x.times(&sine));
    guess.plus(&odd_series(&across.times(&along.reciprocal()), true))
}

/// t ± t^3/3 + t^5/5 ± ... for |t| < 2^-40: the area tangent, or with changing signs the arc tangent.
fn odd_series<const N: usize>(small: &Float<N>, alternating: bool) -> Float<N> {
    if small.is_zero() {
        return Float::ZERO;
    }
    let square = small.times(small);
    let square = if alternating { square.negated() } else { square };
    let terms = (64 * N as i64 / (-2 * small.exponent).max(1)).min(TERMS as i64) as u64;
    let mut sum = Float::ZERO;
    for term in (0..=terms).rev() {
        sum = sum.times(&square).plus(&Float::one().divided_by_small(2 * term + 1));
    }
    sum.times(small)
}
