//! Complex numbers that know how far off they may be.
//!
//! A [`Ball`] stands for one number within `radius` of its centre. Every operation widens the radius by what its operands' radii and its
//! own rounding can do to the result, so two balls apart are two different numbers, whatever was cancelled on the way. The imaginary part
//! is exactly zero wherever all is real, and costs nothing there.
//!
//! The exponents of all centres stay within [`EXPONENTS`], so that those of [`Float`] never overflow.

use std::cmp::Ordering;

use super::super::expr::TooLarge;
use super::float::Float;
use super::series;

/// An upper bound; one word is more than enough.
pub type Radius = Float<1>;

/// The exponent of a value stays below this: `9^(9^9)` fits, and no sum of two such exponents overflows.
pub const EXPONENTS: i64 = 1 << 40;

/// Bits of a transcendental function that are not to be relied on.
const fn slack_bits(words: usize) -> i64 {
    match words {
        ..=4 => 20,
        5..=8 => 26,
        _ => 36,
    }
}

/// A radius below this around zero is a zero, where a division by it is asked for.
const ZERO_EXPONENT: i64 = -100;

/// What a multiplication costs in units of a budget.
pub const fn cost(words: usize) -> u64 {
    match words {
        ..=4 => 4,
        5..=8 => 10,
        _ => 40,
    }
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is none at this point: a division by zero, a name without a value.
    Undefined,
    /// With more words there may be one.
    Imprecise,
    /// The value is beyond all bounds here; it may not be elsewhere.
    Vast(TooLarge),
    /// The work of the whole verdict is spent.
    Spent(TooLarge),
}

/// A complex number within `radius` of its centre.
#[derive(Clone, Copy, Debug)]
pub struct Ball<const N: usize> {
    /// The centre's real part.
    pub real: Float<N>,
    /// The centre's imaginary part.
    pub imaginary: Float<N>,
    /// How far off the centre may be.
    pub radius: Radius,
}

impl<const N: usize> Ball<N> {
    /// Exactly this real number.
    pub fn exact(real: Float<N>) -> Self {
        Self { real, imaginary: Float::ZERO, radius: Radius::ZERO }
    }

    /// Exactly this integer.
    pub fn integer(value: i64) -> Self {
        Self::exact(Float::from_integer(value))
    }

    /// i.
    pub fn imaginary_unit() -> Self {
        Self { real: Float::ZERO, imaginary: Float::one(), radius: Radius::ZERO }
    }

    /// pi.
    pub fn pi() -> Self {
        Self::rounded(series::pi(), Float::ZERO, Radius::ZERO)
    }

    /// Whether nothing is imaginary.
    pub fn is_real(&self) -> bool {
        self.imaginary.is_zero()
    }

    /// Whether this is exactly zero.
    pub fn is_zero(&self) -> bool {
        self.real.is_zero() && self.imaginary.is_zero() && self.radius.is_zero()
    }

    /// The same number as a real one, where it can be one.
    pub fn as_real(&self) -> Option<Self> {
        let within = above(&self.imaginary).compare_magnitude(&self.radius) != Ordering::Greater;
        (self.is_real() || within).then_some(Self { imaginary: Float::ZERO, ..*self })
    }

    /// The integer within the radius, exactly, if there is one.
    pub fn as_integer(&self) -> Option<Float<N>> {
        let real = self.as_real()?.real;
        if real.exponent > 64 * N as i64 - slack_bits(N) {
            return None;
        }
        let integer = real.rounded();
        let apart = above(&real.minus(&integer));
        (apart.compare_magnitude(&self.radius) != Ordering::Greater && less_than_power(&self.radius, -8)).then_some(integer)
    }

    /// [`Ball::as_integer`], if it is less than 2^62 in magnitude.
    pub fn as_small_integer(&self) -> Option<i64> {
        let integer = self.as_integer()?;
        if integer.is_zero() {
            return Some(0);
        }
        if !(1..=62).contains(&integer.exponent) {
            return None;
        }
        let magnitude = (integer.words[N - 1] >> (64 - integer.exponent)) as i64;
        Some(if integer.negative { -magnitude } else { magnitude })
    }

    /// An upper bound of the centre's magnitude.
    pub fn above(&self) -> Radius {
        if self.is_real() { above(&self.real) } else { add(&above(&self.real), &above(&self.imaginary)) }
    }

    /// A lower bound of the centre's magnitude.
    pub fn below(&self) -> Radius {
        let (real, imaginary): (Radius, Radius) = (self.real.absolute().resized(), self.imaginary.absolute().resized());
        if real.compare_magnitude(&imaginary) == Ordering::Less { imaginary } else { real }
    }

    /// Whether the number may be zero.
    pub fn may_be_zero(&self) -> bool {
        self.below().compare_magnitude(&self.radius) != Ordering::Greater
    }

    /// The number itself, unless its exponent leaves the bounds.
    pub fn bounded(self) -> Result<Self, Failure> {
        let outside = |float: &Float<N>| !float.is_zero() && float.exponent.abs() > EXPONENTS;
        if outside(&self.real) || outside(&self.imaginary) || self.radius.exponent.abs() > 2 * EXPONENTS {
            return Err(Failure::Vast(TooLarge("a number's exponent is too large")));
        }
        Ok(self)
    }

    /// -x.
    pub fn negated(&self) -> Self {
        Self { real: self.real.negated(), imaginary: self.imaginary.negated(), ..*self }
    }

    /// The complex conjugate.
    pub fn conjugate(&self) -> Self {
        Self { imaginary: self.imaginary.negated(), ..*self }
    }

    /// x · 2^power.
    pub fn scaled(&self, power: i64) -> Self {
        Self { real: self.real.scaled(power), imaginary: self.imaginary.scaled(power), radius: self.radius.scaled(power) }
    }

    /// x · i.
    pub fn turned(&self) -> Self {
        Self { real: self.imaginary.negated(), imaginary: self.real, ..*self }
    }

    /// x + y.
    pub fn plus(&self, other: &Self) -> Self {
        let rounding = add(&last_place(&self.real, &other.real), &last_place(&self.imaginary, &other.imaginary));
        Self {
            real: self.real.plus(&other.real),
            imaginary: self.imaginary.plus(&other.imaginary),
            radius: add(&add(&self.radius, &other.radius), &rounding),
        }
    }

    /// x - y.
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.negated())
    }

    /// x · y.
    pub fn times(&self, other: &Self) -> Self {
        let (left, right) = (self.above(), other.above());
        let spread = add(&multiply(&left, &other.radius), &multiply(&self.radius, &add(&right, &other.radius)));
        let rounding = multiply(&left, &right).scaled(4 - 64 * N as i64);
        let (real, imaginary) = if self.is_real() && other.is_real() {
            (self.real.times(&other.real), Float::ZERO)
        } else if self.is_real() {
            (self.real.times(&other.real), self.real.times(&other.imaginary))
        } else if other.is_real() {
            (self.real.times(&other.real), self.imaginary.times(&other.real))
        } else {
            let real = self.real.times(&other.real).minus(&self.imaginary.times(&other.imaginary));
            (real, self.real.times(&other.imaginary).plus(&self.imaginary.times(&other.real)))
        };
        Self { real, imaginary, radius: add(&spread, &rounding) }
    }

    /// 1 / x.
    pub fn inverse(&self) -> Result<Self, Failure> {
        let below = self.apart_from_zero()?;
        let (real, imaginary) = if self.is_real() {
            (self.real.reciprocal(), Float::ZERO)
        } else {
            let inverse = self.real.times(&self.real).plus(&self.imaginary.times(&self.imaginary)).reciprocal();
            (self.real.times(&inverse), self.imaginary.times(&inverse).negated())
        };
        // |1/(c+d) - 1/c| <= r / (|c| (|c| - r))
        let spread = quotient(&quotient(&self.radius, &below), &self.below());
        Ok(Self::rounded(real, imaginary, spread))
    }

    /// x^exponent for a natural one.
    pub fn power(&self, exponent: u64) -> Result<Self, Failure> {
        let mut result = Self::integer(1);
        for place in (0..64 - exponent.leading_zeros()).rev() {
            result = result.times(&result).bounded()?;
            if exponent >> place & 1 == 1 {
                result = result.times(self).bounded()?;
            }
        }
        Ok(result)
    }

    /// The principal square root.
    pub fn square_root(&self) -> Self {
        if self.may_be_zero() {
            return self.root_near_zero(2);
        }
        let spread = quotient(&self.radius, &self.below().square_root());
        if self.is_real() {
            let root = self.real.square_root();
            let (real, imaginary) = if self.real.negative { (Float::ZERO, root) } else { (root, Float::ZERO) };
            return Self::rounded(real, imaginary, spread);
        }
        let size = self.real.times(&self.real).plus(&self.imaginary.times(&self.imaginary)).square_root();
        let larger = size.plus(&self.real.absolute()).scaled(-1).square_root();
        let smaller = self.imaginary.absolute().times(&larger.reciprocal()).scaled(-1);
        let (real, imaginary) = if self.real.negative { (smaller, larger) } else { (larger, smaller) };
        Self::rounded(real, if self.imaginary.negative { imaginary.negated() } else { imaginary }, spread)
    }

    /// What any root of a number is that may be zero: something small.
    pub fn root_near_zero(&self, degree: i64) -> Self {
        let largest = add(&self.above(), &self.radius);
        let radius = if largest.is_zero() { largest } else { Radius::power_of_two(largest.exponent.div_euclid(degree) + 1) };
        Self { real: Float::ZERO, imaginary: Float::ZERO, radius }
    }

    /// e^x.
    pub fn exponential(&self) -> Result<Self, Failure> {
        if self.real.exponent > 40 {
            return Err(Failure::Vast(TooLarge("an exponent is too large")));
        }
        if !less_than_power(&self.radius, -2) {
            return Err(Failure::Imprecise);
        }
        let size = Self::exact(series::exponential(&self.real));
        let turn = if self.is_real() { Self::integer(1) } else { Self::unit(&self.imaginary)? };
        let mut result = size.times(&turn);
        let relative = add(&self.radius.scaled(1), &slack::<N>(&self.above()));
        result.radius = add(&result.radius, &multiply(&size.above().scaled(1), &relative));
        result.bounded()
    }

    /// The principal natural logarithm.
    pub fn logarithm(&self) -> Result<Self, Failure> {
        let below = self.apart_from_zero()?;
        let real = if self.is_real() {
            series::logarithm(&self.real.absolute())
        } else {
            series::logarithm(&self.real.times(&self.real).plus(&self.imaginary.times(&self.imaginary))).scaled(-1)
        };
        let imaginary = series::angle(&self.imaginary, &self.real);
        let rounding = slack::<N>(&above(&real));
        Ok(Self { real, imaginary, radius: add(&rounding, &quotient(&self.radius, &below).scaled(1)) })
    }

    /// (sin x, cos x).
    pub fn sine_and_cosine(&self) -> Result<(Self, Self), Failure> {
        if self.is_real() {
            let unit = Self::unit(&self.real)?;
            let radius = add(&unit.radius, &self.radius);
            let part = |real| Self { real, imaginary: Float::ZERO, radius };
            return Ok((part(unit.imaginary), part(unit.real)));
        }
        let forward = self.turned().exponential()?;
        let backward = forward.inverse()?;
        let cosine = forward.plus(&backward).scaled(-1);
        let sine = forward.minus(&backward).scaled(-1).turned().negated();
        Ok((sine, cosine))
    }

    /// The angle of the point (x, y) of two real numbers.
    pub fn angle(y: &Self, x: &Self) -> Result<Self, Failure> {
        let size = Self { real: x.real, imaginary: y.real, radius: add(&x.radius, &y.radius) };
        let below = size.apart_from_zero()?;
        let radius = add(&slack::<N>(&Radius::one()), &quotient(&size.radius, &below).scaled(1));
        Ok(Self { real: series::angle(&y.real, &x.real), imaginary: Float::ZERO, radius })
    }

    /// cos x + i sin x for a real x that is exact.
    fn unit(x: &Float<N>) -> Result<Self, Failure> {
        if x.exponent > 32 * N as i64 {
            return Err(Failure::Imprecise);
        }
        let (sine, cosine) = series::sine_and_cosine(x);
        Ok(Self { real: cosine, imaginary: sine, radius: slack::<N>(&above(x)).scaled(1) })
    }

    /// How far away zero is at least.
    fn apart_from_zero(&self) -> Result<Radius, Failure> {
        let below = self.below();
        if below.compare_magnitude(&self.radius) == Ordering::Greater {
            return Ok(below.minus(&self.radius));
        }
        Err(if less_than_power(&self.radius, ZERO_EXPONENT) { Failure::Undefined } else { Failure::Imprecise })
    }

    /// A centre that was computed with the relative precision of one operation.
    fn rounded(real: Float<N>, imaginary: Float<N>, spread: Radius) -> Self {
        let exact = Self { real, imaginary, radius: Radius::ZERO };
        let radius = add(&spread, &exact.above().scaled(6 - 64 * N as i64));
        Self { radius, ..exact }
    }
}

/// An upper bound of |x|.
pub fn above<const N: usize>(x: &Float<N>) -> Radius {
    if x.is_zero() { Radius::ZERO } else { upwards(x.absolute().resized()) }
}

/// x + y, not less.
pub fn add(x: &Radius, y: &Radius) -> Radius {
    if x.is_zero() {
        return *y;
    }
    if y.is_zero() { *x } else { upwards(x.plus(y)) }
}

/// x · y, not less.
pub fn multiply(x: &Radius, y: &Radius) -> Radius {
    upwards(x.times(y))
}

/// Whether x < 2^exponent.
pub fn less_than_power(x: &Radius, exponent: i64) -> bool {
    x.is_zero() || x.exponent <= exponent
}

/// x / y, not less.
fn quotient(x: &Radius, y: &Radius) -> Radius {
    if x.is_zero() { *x } else { upwards(x.times(&y.reciprocal())) }
}

/// A little more.
fn upwards(x: Radius) -> Radius {
    if x.is_zero() {
        return x;
    }
    match x.words[0].checked_add(64) {
        Some(word) => Radius { words: [word], ..x },
        None => Radius { words: [1 << 63], exponent: x.exponent + 1, ..x },
    }
}

/// What a sum of two may be off by.
fn last_place<const N: usize>(x: &Float<N>, y: &Float<N>) -> Radius {
    if x.is_zero() || y.is_zero() {
        return Radius::ZERO;
    }
    Radius::power_of_two(x.exponent.max(y.exponent) + 2 - 64 * N as i64)
}

/// What a transcendental function with an argument (or a result) of this size may be off by.
fn slack<const N: usize>(size: &Radius) -> Radius {
    add(size, &Radius::one()).scaled(slack_bits(N) - 64 * N as i64)
}
