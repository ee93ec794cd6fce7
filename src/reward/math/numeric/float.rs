//! Binary floating-point numbers of a fixed number of words.
//!
//! A [`Float`] is `± 0.words · 2^exponent`: the words, lowest first, are the binary fraction behind the point, and the highest bit is
//! set unless the number is zero. Results are truncated, not rounded: a sum is off by less than two units in the last place of its larger
//! operand, a product by one of its own, a reciprocal or a square root by a few. The exponent has 64 bits and is never checked here:
//! [`ball`](super::ball) keeps it far from where it would overflow. There are no infinities, no signed zeros, and nothing depends on the
//! processor or on a mathematical library.
//!
//! Existing libraries compute with any precision and round correctly. At the few hundred bits that are needed here they take 20 to 200
//! microseconds for one sine; this takes about one, which is what a verdict can afford.

use std::cmp::Ordering;

use num_bigint::{BigInt, BigUint, Sign};

/// A number of `N` words of 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Float<const N: usize> {
    /// Below zero.
    pub negative: bool,
    /// The power of two by which the fraction is multiplied.
    pub exponent: i64,
    /// The fraction, lowest word first.
    pub words: [u64; N],
}

impl<const N: usize> Float<N> {
    /// 0.
    pub const ZERO: Self = Self { negative: false, exponent: 0, words: [0; N] };

    /// 1.
    pub fn one() -> Self {
        Self::power_of_two(0)
    }

    /// 2^exponent.
    pub fn power_of_two(exponent: i64) -> Self {
        let mut words = [0; N];
        words[N - 1] = 1 << 63;
        Self { negative: false, exponent: exponent + 1, words }
    }

    /// Whether this is 0.
    pub fn is_zero(&self) -> bool {
        self.words[N - 1] == 0
    }

    /// An integer.
    pub fn from_integer(value: i64) -> Self {
        let mut words = [0; N];
        words[N - 1] = value.unsigned_abs();
        Self { negative: value < 0, exponent: 64, words }.normalised()
    }

    /// A finite double, exactly where `N` > 0 words hold it.
    pub fn from_double(value: f64) -> Self {
        if value == 0.0 || !value.is_finite() {
            return Self::ZERO;
        }
        let bits = value.abs().to_bits();
        let (raised, fraction) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
        let (fraction, raised) = if raised == 0 { (fraction, 1) } else { (fraction | 1 << 52, raised) };
        let mut words = [0; N];
        words[N - 1] = fraction;
        Self { negative: value < 0.0, exponent: raised - 1075 + 64, words }.normalised()
    }

    /// The leading bits of an integer.
    pub fn from_big(value: &BigInt) -> Self {
        let mut words = [0; N];
        let mut count = 0;
        for (place, digit) in value.magnitude().iter_u64_digits().rev().enumerate() {
            if place < N {
                words[N - 1 - place] = digit;
            }
            count += 1;
        }
        let float = Self { negative: value.sign() == Sign::Minus, exponent: 64 * count, words };
        if count as usize <= N || float.words[N - 1] >> 63 == 1 {
            return float.normalised();
        }
        // The leading word has room: the bits below are wanted too.
        let wide = value.magnitude() >> (value.bits() - 64 * N as u64);
        let exact = Self::from_big(&BigInt::from_biguint(value.sign(), wide));
        Self { exponent: value.bits() as i64, ..exact }
    }

    /// The integer that this is, if it is one: what is behind the point is cut off.
    pub fn to_big(self) -> BigInt {
        if self.exponent <= 0 {
            return BigInt::ZERO;
        }
        let digits: Vec<u32> = self.words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect();
        let magnitude = BigUint::new(digits);
        let shift = self.exponent - 64 * N as i64;
        let magnitude = if shift >= 0 { magnitude << shift } else { magnitude >> -shift };
        BigInt::from_biguint(if self.negative { Sign::Minus } else { Sign::Plus }, magnitude)
    }

    /// The nearest double that is not larger in magnitude; 0 where it is too small, infinite where too large.
    pub fn to_double(self) -> f64 {
        if self.is_zero() {
            return 0.0;
        }
        let fraction = (self.words[N - 1] >> 11) as f64;
        let magnitude = match self.exponent {
            ..-1000 => 0.0,
            1000.. => f64::INFINITY,
            exponent => fraction * f64::from_bits(((exponent - 53 + 1023) as u64) << 52),
        };
        if self.negative { -magnitude } else { magnitude }
    }

    /// The leading words, or the same number with more of them.
    pub fn resized<const M: usize>(self) -> Float<M> {
        let mut words = [0; M];
        let kept = N.min(M);
        words[M - kept..].copy_from_slice(&self.words[N - kept..]);
        Float { negative: self.negative, exponent: self.exponent, words }
    }

    /// -x.
    pub fn negated(self) -> Self {
        Self { negative: !self.negative && !self.is_zero(), ..self }
    }

    /// |x|.
    pub fn absolute(self) -> Self {
        Self { negative: false, ..self }
    }

    /// x · 2^power.
    pub fn scaled(self, power: i64) -> Self {
        if self.is_zero() { self } else { Self { exponent: self.exponent + power, ..self } }
    }

    /// |x| against |y|.
    pub fn compare_magnitude(&self, other: &Self) -> Ordering {
        match (self.is_zero(), other.is_zero()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self.exponent.cmp(&other.exponent).then_with(|| self.words.iter().rev().cmp(other.words.iter().rev())),
        }
    }

    /// x + y.
    pub fn plus(&self, other: &Self) -> Self {
        if other.is_zero() {
            return *self;
        }
        if self.is_zero() {
            return *other;
        }
        let same = self.negative == other.negative;
        let swap = if same { self.exponent < other.exponent } else { self.compare_magnitude(other) == Ordering::Less };
        let (large, small) = if swap { (other, self) } else { (self, other) };
        let apart = large.exponent - small.exponent;
        if apart > 64 * N as i64 {
            return *large;
        }
        let aligned = shifted_right(&small.words, apart as u32);
        let mut result = *large;
        if same {
            let mut carry = false;
            for (word, added) in result.words.iter_mut().zip(aligned) {
                let (sum, first) = word.overflowing_add(added);
                let (sum, second) = sum.overflowing_add(u64::from(carry));
                (*word, carry) = (sum, first | second);
            }
            if carry {
                result.words = shifted_right(&result.words, 1);
                result.words[N - 1] |= 1 << 63;
                result.exponent += 1;
            }
            return result;
        }
        let mut borrow = false;
        for (word, taken) in result.words.iter_mut().zip(aligned) {
            let (difference, first) = word.overflowing_sub(taken);
            let (difference, second) = difference.overflowing_sub(u64::from(borrow));
            (*word, borrow) = (difference, first | second);
        }
        result.normalised()
    }

    /// x - y.
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.negated())
    }

    /// x · y.
    pub fn times(&self, other: &Self) -> Self {
        if self.is_zero() || other.is_zero() {
            return Self::ZERO;
        }
        let mut words = [0u64; N];
        let mut below = 0;
        // Row by row; after each, the lowest word is complete and leaves at the bottom.
        for left in self.words {
            let mut carry = 0u128;
            let mut row = [0u64; N];
            for (place, right) in other.words.iter().enumerate() {
                let sum = u128::from(left) * u128::from(*right) + u128::from(words[place]) + carry;
                if place == 0 {
                    below = sum as u64
                } else {
                    row[place - 1] = sum as u64
                }
                carry = sum >> 64;
            }
            row[N - 1] = carry as u64;
            words = row;
        }
        let mut exponent = self.exponent + other.exponent;
        if words[N - 1] >> 63 == 0 {
            for place in (0..N).rev() {
                let next = if place == 0 { below } else { words[place - 1] };
                words[place] = words[place] << 1 | next >> 63;
            }
            exponent -= 1;
        }
        Self { negative: self.negative != other.negative, exponent, words }
    }

    /// x / divisor, for a small one that is not 0.
    pub fn divided_by_small(&self, divisor: u64) -> Self {
        let (words, remainder) = divided_words(&self.words, divisor);
        let mut result = Self { words, ..*self };
        let lost = if result.is_zero() { 64 } else { result.words[N - 1].leading_zeros() };
        result = result.normalised();
        // The bits that the shift made room for come out of the remainder.
        if lost > 0 && !result.is_zero() {
            let low = (u128::from(remainder) << 64) / u128::from(divisor);
            result.words[0] |= (low as u64).checked_shr(64 - lost).unwrap_or(0);
        }
        result
    }

    /// 1 / x for x that is not 0.
    pub fn reciprocal(&self) -> Self {
        let mantissa = Self { negative: false, exponent: 0, words: self.words };
        let mut guess = Self::from_double(1.0 / mantissa.to_double());
        let one = Self::one();
        for _ in 0..Self::doublings() {
            let error = one.minus(&mantissa.times(&guess));
            guess = guess.plus(&guess.times(&error));
        }
        Self { negative: self.negative, ..guess.scaled(-self.exponent) }
    }

    /// The square root of |x|.
    pub fn square_root(&self) -> Self {
        if self.is_zero() {
            return Self::ZERO;
        }
        let odd = self.exponent.rem_euclid(2);
        let mantissa = Self { negative: false, exponent: odd, words: self.words };
        let one = Self::one();
        // Newton's steps towards 1 / root, and one more for the root itself.
        let mut guess = Self::from_double(1.0 / mantissa.to_double().sqrt());
        for _ in 0..Self::doublings() {
            let error = one.minus(&mantissa.times(&guess).times(&guess));
            guess = guess.plus(&guess.times(&error).scaled(-1));
        }
        let root = mantissa.times(&guess);
        let error = mantissa.minus(&root.times(&root));
        root.plus(&error.times(&guess).scaled(-1)).scaled((self.exponent - odd) / 2)
    }

    /// The largest integer that is not larger.
    pub fn floor(self) -> Self {
        if self.is_zero() || self.exponent >= 64 * N as i64 {
            return self;
        }
        let whole = if self.exponent <= 0 {
            Self::ZERO
        } else {
            let mut behind = 64 * N as i64 - self.exponent;
            let mut words = self.words;
            for word in words.iter_mut() {
                *word &= if behind >= 64 { 0 } else { u64::MAX << behind.max(0) };
                behind -= 64;
            }
            Self { words, ..self }
        };
        if self.negative && whole.compare_magnitude(&self) != Ordering::Equal { whole.minus(&Self::one()) } else { whole }
    }

    /// The nearest integer, the larger one where two are.
    pub fn rounded(self) -> Self {
        self.plus(&Self::power_of_two(-1)).floor()
    }

    /// Newton's steps from a double to the full width.
    const fn doublings() -> u32 {
        let (mut steps, mut bits) = (0, 50);
        while bits < 64 * N {
            bits *= 2;
            steps += 1;
        }
        steps
    }

    /// The same number with its highest bit set.
    fn normalised(mut self) -> Self {
        let Some(top) = self.words.iter().rposition(|word| *word != 0) else { return Self::ZERO };
        let empty = N - 1 - top;
        if empty > 0 {
            for place in (0..N).rev() {
                self.words[place] = if place >= empty { self.words[place - empty] } else { 0 };
            }
        }
        let zeros = self.words[N - 1].leading_zeros();
        if zeros > 0 {
            for place in (0..N).rev() {
                let next = if place == 0 { 0 } else { self.words[place - 1] };
                self.words[place] = self.words[place] << zeros | next >> (64 - zeros);
            }
        }
        self.exponent -= 64 * empty as i64 + i64::from(zeros);
        self
    }
}

/// `words` / divisor, and the remainder; highest word last.
pub const fn divided_words<const N: usize>(words: &[u64; N], divisor: u64) -> ([u64; N], u64) {
    let (mut quotient, mut remainder, mut place) = ([0; N], 0, N);
    while place > 0 {
        place -= 1;
        let part = (remainder as u128) << 64 | words[place] as u128;
        quotient[place] = (part / divisor as u128) as u64;
        remainder = (part % divisor as u128) as u64;
    }
    (quotient, remainder)
}

/// `words` · 2^-bits, for up to 64 N bits.
fn shifted_right<const N: usize>(words: &[u64; N], bits: u32) -> [u64; N] {
    let (whole, part) = ((bits / 64) as usize, bits % 64);
    let word = |place: usize| words.get(place).copied().unwrap_or(0);
    let mut result = [0; N];
    for (place, target) in result.iter_mut().enumerate() {
        let (low, high) = (word(place + whole), word(place + whole + 1));
        *target = if part == 0 { low } else { low >> part | high << (64 - part) };
    }
    result
}
