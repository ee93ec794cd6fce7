//! The value of an expression at a point, as a [`Ball`].

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive};

use super::super::equal::Budget;
use super::super::equal::seeds::{mixed, text_seed};
use super::super::exact;
use super::super::expr::{Constant, Expr, Function};
use super::ball::{Ball, Failure, Radius, above, less_than_power};
use super::float::Float;
use super::functions::Functions;
use super::point::{Point, VALUE_BITS, Variables};
use super::series;

/// Larger whole exponents are not multiplied out.
const WHOLE_EXPONENT: u64 = 1 << 32;
/// Larger denominators of an exponent are no roots.
const DEGREE: i64 = 1 << 20;
/// What is smaller than this is zero as an argument of a function without a meaning.
const ARGUMENT_EXPONENT: i64 = -80;

/// Where names have values.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The point, and what is known of the variables there; without it, names have no values.
    pub point: Option<(Point, &'a Variables<'a>)>,
}

/// One evaluation with `N` words.
pub struct Evaluation<'a, const N: usize> {
    place: Place<'a>,
    bound: Vec<(&'a str, i64)>,
    functions: Functions<'a>,
    /// The exponent of the largest term that was added to something, or 0: what cancels is of this size.
    pub largest: i64,
}

impl<'a, const N: usize> Evaluation<'a, N> {
    /// An evaluation at this place.
    pub fn new(place: Place<'a>, budget: &'a mut Budget) -> Self {
        Self { place, bound: Vec::new(), functions: Functions { branching: false, budget }, largest: 0 }
    }

    /// Whether a value on the way was one of several.
    pub fn branching(&self) -> bool {
        self.functions.branching
    }

    /// The value of the expression.
    pub fn value(&mut self, expression: &'a Expr) -> Result<Ball<N>, Failure> {
        self.functions.spend::<N>(2)?;
        match expression {
            Expr::Number(value) | Expr::Decimal { value, .. } => self.number(value),
            Expr::Symbol(name) => self.name(name),
            Expr::Constant(constant) => named(*constant),
            Expr::Sum(terms) => self.sum(terms),
            Expr::Product(factors) => self.product(factors),
            Expr::Power(base, exponent) => self.power(base, exponent),
            Expr::Apply(function @ (Function::SumOver | Function::ProductOver), arguments) => self.over(*function, arguments),
            Expr::Apply(function, arguments) => self.applied(*function, arguments),
            Expr::Unknown(name, arguments) => self.unknown(name, arguments),
        }
    }

    // Each kind of node has its own function that is not inlined: the frames of a deep recursion stay small.

    #[inline(never)]
    fn applied(&mut self, function: Function, arguments: &'a [Expr]) -> Result<Ball<N>, Failure> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.value(argument)?);
        }
        self.functions.apply(function, &values)?.bounded()
    }

    #[inline(never)]
    fn number(&mut self, value: &BigRational) -> Result<Ball<N>, Failure> {
        self.functions.spend::<N>((value.numer().bits() + value.denom().bits()) / 2_000)?;
        let numerator = whole(value.numer());
        if value.denom().is_one() {
            return Ok(numerator);
        }
        self.functions.spend::<N>(10)?;
        Ok(numerator.times(&whole(value.denom()).inverse()?))
    }

    #[inline(never)]
    fn name(&mut self, name: &str) -> Result<Ball<N>, Failure> {
        if let Some((_, value)) = self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            return Ok(Ball::integer(*value));
        }
        let (point, variables) = self.place.point.ok_or(Failure::Undefined)?;
        self.functions.spend::<N>(2 + name.len() as u64 / 8)?;
        Ok(Ball::integer(point.variable(name, variables).units).scaled(-VALUE_BITS))
    }

    #[inline(never)]
    fn sum(&mut self, terms: &'a [Expr]) -> Result<Ball<N>, Failure> {
        self.functions.spend::<N>(2 * terms.len() as u64)?;
        let mut sum = Ball::integer(0);
        for term in terms {
            let term = self.value(term)?;
            self.add(&mut sum, &term);
        }
        Ok(sum)
    }

    #[inline(never)]
    fn add(&mut self, sum: &mut Ball<N>, term: &Ball<N>) {
        self.largest = self.largest.max(term.real.exponent).max(term.imaginary.exponent);
        *sum = sum.plus(term);
    }

    #[inline(never)]
    fn product(&mut self, factors: &'a [Expr]) -> Result<Ball<N>, Failure> {
        self.functions.spend::<N>(2 * factors.len() as u64)?;
        let mut product = Ball::integer(1);
        for factor in factors {
            let factor = self.value(factor)?;
            product = product.times(&factor).bounded()?;
        }
        Ok(product)
    }

    #[inline(never)]
    fn power(&mut self, base: &'a Expr, exponent: &'a Expr) -> Result<Ball<N>, Failure> {
        if matches!(base, Expr::Constant(Constant::E)) {
            self.functions.spend::<N>(50)?;
            return self.value(exponent)?.exponential();
        }
        let fraction = self.fraction(exponent);
        if let Some((0, _)) = fraction {
            return Ok(Ball::integer(1));
        }
        let base = self.value(base)?;
        match fraction {
            Some((numerator, 1)) => self.whole_power(&base, numerator),
            Some((numerator, degree)) => self.functions.fractional_power(&base, numerator, degree)?.bounded(),
            None => self.any_power(&base, exponent),
        }
    }

    #[inline(never)]
    fn any_power(&mut self, base: &Ball<N>, exponent: &'a Expr) -> Result<Ball<N>, Failure> {
        let exponent = self.value(exponent)?;
        if let Some(whole) = exponent.as_small_integer().filter(|whole| whole.unsigned_abs() < WHOLE_EXPONENT) {
            return self.whole_power(base, whole);
        }
        if base.is_zero() {
            let positive = exponent.is_real() && !exponent.real.negative && !exponent.may_be_zero();
            return if positive { Ok(*base) } else { Err(Failure::Undefined) };
        }
        self.functions.spend::<N>(50)?;
        self.functions.logarithm(base)?.times(&exponent).exponential()
    }

    #[inline(never)]
    fn whole_power(&mut self, base: &Ball<N>, exponent: i64) -> Result<Ball<N>, Failure> {
        self.functions.spend::<N>(2 * u64::from(64 - exponent.leading_zeros()) + 10)?;
        let power = base.power(exponent.unsigned_abs())?;
        if exponent < 0 { power.inverse()?.bounded() } else { Ok(power) }
    }

    /// The exponent as a fraction in lowest terms, if it is one that a whole power or a root can be taken of.
    fn fraction(&mut self, exponent: &Expr) -> Option<(i64, i64)> {
        match exponent {
            Expr::Number(value) | Expr::Decimal { value, .. } => small_fraction(value),
            Expr::Symbol(_) | Expr::Constant(_) => None,
            // What cannot be folded may still have a value, unless nothing is left to compute it.
            other => small_fraction(&exact::rational(other, self.functions.budget).ok()??),
        }
    }

    #[inline(never)]
    fn over(&mut self, function: Function, arguments: &'a [Expr]) -> Result<Ball<N>, Failure> {
        let [term, Expr::Symbol(index), from, to] = arguments else { return Err(Failure::Undefined) };
        let mut bound = |expression| self.value(expression)?.as_small_integer().ok_or(Failure::Undefined);
        let (from, to) = (bound(from)?, bound(to)?);
        let adding = function == Function::SumOver;
        let mut result = Ball::integer(i64::from(!adding));
        for value in from..=to {
            self.functions.spend::<N>(2)?;
            self.bound.push((index, value));
            let term = self.value(term);
            self.bound.pop();
            let term = term?;
            if adding {
                self.add(&mut result, &term);
            } else {
                result = result.times(&term).bounded()?;
            }
        }
        Ok(result)
    }

    #[inline(never)]
    fn unknown(&mut self, name: &str, arguments: &'a [Expr]) -> Result<Ball<N>, Failure> {
        let (point, _) = self.place.point.ok_or(Failure::Undefined)?;
        let mut seed = mixed(text_seed(name) ^ arguments.len() as u64);
        for argument in arguments {
            let value = self.value(argument)?;
            seed = mixed(seed ^ digest(&value.real, &value.radius));
            seed = mixed(seed ^ digest(&value.imaginary, &value.radius));
        }
        Ok(Ball::integer(point.unknown(seed).units).scaled(-VALUE_BITS))
    }
}

/// The value of an expression without variables.
pub fn constant<const N: usize>(expression: &Expr, budget: &mut Budget) -> Result<Ball<N>, Failure> {
    Evaluation::new(Place { point: None }, budget).value(expression)
}

fn named<const N: usize>(constant: Constant) -> Result<Ball<N>, Failure> {
    match constant {
        Constant::Pi => Ok(Ball::pi()),
        Constant::E => Ball::integer(1).exponential(),
        Constant::I => Ok(Ball::imaginary_unit()),
        Constant::Infinity => Err(Failure::Undefined),
    }
}

/// An integer, exactly if its bits fit.
fn whole<const N: usize>(value: &BigInt) -> Ball<N> {
    if let Some(small) = value.to_i64() {
        return Ball::integer(small);
    }
    let ball = Ball::exact(Float::from_big(value));
    let exact = value.bits() <= 64 * N as u64;
    Ball { radius: if exact { Radius::ZERO } else { Radius::power_of_two(ball.real.exponent - 64 * N as i64 + 1) }, ..ball }
}

fn small_fraction(value: &BigRational) -> Option<(i64, i64)> {
    let (numerator, denominator) = (value.numer().to_i64()?, value.denom().to_i64()?);
    (numerator.unsigned_abs() < WHOLE_EXPONENT && denominator <= DEGREE).then_some((numerator, denominator))
}

/// The leading bits of a number: the same for all that equal it, however they were computed.
fn digest<const N: usize>(value: &Float<N>, radius: &Radius) -> u64 {
    let size = above(value);
    if less_than_power(&size, ARGUMENT_EXPONENT) || size.compare_magnitude(radius).is_le() {
        return 0;
    }
    // Times pi, short binary fractions no longer lie where rounding changes.
    let turned = value.times(&series::pi());
    let rounded = turned.plus(&Float::power_of_two(turned.exponent - 64).scaled(-1));
    mixed(mixed(rounded.words[N - 1] ^ u64::from(rounded.negative)) ^ rounded.exponent as u64)
}
