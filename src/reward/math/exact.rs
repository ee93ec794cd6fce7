//! Exact values: what folds to a rational number is computed as one.
//!
//! A value is a fraction in lowest terms of at most [`arithmetic::BITS`] bits above and below. Whatever has no such value, or none that is
//! found by these rules, has none here: `None` never says that a number is irrational. What would be larger is [`TooLarge`].

mod arithmetic;
mod functions;

use std::cmp::Ordering;

use num_integer::Integer;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::equal::Budget;
use super::expr::{Expr, Function, TooLarge};

/// The exact value of an expression, if it folds to one.
pub fn rational(expression: &Expr, budget: &mut Budget) -> Result<Option<BigRational>, TooLarge> {
    Folding { bound: Vec::new(), budget }.value(expression)
}

/// Which of two exact numbers is larger. (The comparison of fractions in general divides on and on where they are close.)
pub fn compare(x: &BigRational, y: &BigRational) -> Ordering {
    (x.numer() * y.denom()).cmp(&(y.numer() * x.denom()))
}

/// |x - y|.
pub fn distance(x: &BigRational, y: &BigRational, budget: &mut Budget) -> Result<BigRational, TooLarge> {
    Ok(arithmetic::sum(x, &-y, budget)?.abs())
}

/// A fold on its way.
pub struct Folding<'a> {
    /// The indexes of sums and products around, with their values.
    bound: Vec<(&'a str, BigRational)>,
    budget: &'a mut Budget,
}

impl<'a> Folding<'a> {
    /// With this value for an index.
    pub fn with_indexes(bound: Vec<(&'a str, BigRational)>, budget: &'a mut Budget) -> Self {
        Self { bound, budget }
    }

    /// The exact value, if there is one.
    pub fn value(&mut self, expression: &'a Expr) -> Result<Option<BigRational>, TooLarge> {
        self.budget.spend(2, "too long an expression")?;
        match expression {
            Expr::Number(value) | Expr::Decimal { value, .. } => {
                arithmetic::limited(value, "a number with too many digits")?;
                Ok(Some(value.clone()))
            }
            Expr::Symbol(name) => Ok(self.bound.iter().rev().find(|(bound, _)| bound == name).map(|(_, value)| value.clone())),
            Expr::Constant(_) | Expr::Unknown(..) => Ok(None),
            Expr::Sum(terms) => self.combined(terms, arithmetic::sum),
            Expr::Product(factors) => self.combined(factors, arithmetic::product),
            Expr::Power(base, exponent) => self.power(base, exponent),
            Expr::Apply(Function::SumOver, arguments) => self.over(arguments, BigRational::zero(), arithmetic::sum),
            Expr::Apply(Function::ProductOver, arguments) => self.over(arguments, BigRational::one(), arithmetic::product),
            Expr::Apply(function, arguments) => self.applied(*function, arguments),
        }
    }

    fn combined(&mut self, parts: &'a [Expr], combine: Combine) -> Result<Option<BigRational>, TooLarge> {
        let mut parts = parts.iter();
        let Some(first) = parts.next() else { return Ok(None) };
        let Some(mut result) = self.value(first)? else { return Ok(None) };
        for part in parts {
            let Some(part) = self.value(part)? else { return Ok(None) };
            result = combine(&result, &part, self.budget)?;
        }
        Ok(Some(result))
    }

    fn power(&mut self, base: &'a Expr, exponent: &'a Expr) -> Result<Option<BigRational>, TooLarge> {
        let Some(exponent) = self.value(exponent)? else { return Ok(None) };
        let Some(base) = self.value(base)? else { return Ok(None) };
        self.power_of(&base, &exponent)
    }

    /// base ^ exponent; the real root of a negative number, where it has one.
    fn power_of(&mut self, base: &BigRational, exponent: &BigRational) -> Result<Option<BigRational>, TooLarge> {
        if exponent.is_zero() || base.is_one() {
            return Ok(Some(BigRational::one()));
        }
        if base.is_zero() {
            return Ok(exponent.is_positive().then(BigRational::zero));
        }
        let root = if exponent.is_integer() {
            base.clone()
        } else {
            let Some(root) = exponent.denom().to_u32().and_then(|degree| arithmetic::root(base, degree, self.budget)) else {
                return Ok(None);
            };
            root
        };
        if (-&root).is_one() {
            return Ok(Some(if exponent.numer().is_even() { BigRational::one() } else { root }));
        }
        let Some(exponent) = exponent.numer().to_i64() else { return Err(TooLarge("an exponent is too large")) };
        arithmetic::power(&root, exponent, self.budget).map(Some)
    }

    fn over(&mut self, arguments: &'a [Expr], empty: BigRational, combine: Combine) -> Result<Option<BigRational>, TooLarge> {
        let [term, Expr::Symbol(index), from, to] = arguments else { return Ok(None) };
        let (Some(from), Some(to)) = (self.value(from)?, self.value(to)?) else { return Ok(None) };
        if !from.is_integer() || !to.is_integer() {
            return Ok(None);
        }
        let mut result = empty;
        let mut current = from;
        while current <= to {
            self.bound.push((index, current.clone()));
            let value = self.value(term);
            self.bound.pop();
            let Some(value) = value? else { return Ok(None) };
            result = combine(&result, &value, self.budget)?;
            current = arithmetic::sum(&current, &BigRational::one(), self.budget)?;
        }
        Ok(Some(result))
    }

    fn applied(&mut self, function: Function, arguments: &'a [Expr]) -> Result<Option<BigRational>, TooLarge> {
        use Function::*;
        if let (Sin | Cos | Tan | Cot | Sec | Csc, [angle]) = (function, arguments) {
            let Some(turns) = self.turns(angle)? else { return Ok(None) };
            return functions::trigonometric(function, &turns, self.budget);
        }
        if let (Ln, [argument]) = (function, arguments)
            && let Some(exponent) = functions::natural_exponent(argument)
        {
            return self.value(exponent);
        }
        if function == Ln && arguments.first().is_some_and(functions::is_natural_base) {
            return Ok(Some(BigRational::one()));
        }
        self.budget.spend(3, "too long an expression")?;
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let Some(value) = self.value(argument)? else { return Ok(None) };
            values.push(value);
        }
        if let (Root, [value, degree]) = (function, values.as_slice()) {
            return if degree.is_zero() { Ok(None) } else { self.power_of(value, &degree.recip()) };
        }
        functions::apply(function, &values, self.budget)
    }

    /// The rational multiple of pi that an angle is.
    fn turns(&mut self, angle: &'a Expr) -> Result<Option<BigRational>, TooLarge> {
        use super::expr::Constant::Pi;
        self.budget.spend(2, "too long an expression")?;
        match angle {
            Expr::Constant(Pi) => Ok(Some(BigRational::one())),
            Expr::Apply(Function::Degrees, arguments) => {
                let [degrees] = arguments.as_slice() else { return Ok(None) };
                let half_turn = BigRational::from_integer(180.into());
                let Some(degrees) = self.value(degrees)? else { return Ok(None) };
                arithmetic::quotient(&degrees, &half_turn, self.budget).map(Some)
            }
            Expr::Sum(terms) => {
                let mut result = BigRational::zero();
                for term in terms {
                    let Some(turns) = self.turns(term)? else { return Ok(None) };
                    result = arithmetic::sum(&result, &turns, self.budget)?;
                }
                Ok(Some(result))
            }
            Expr::Product(factors) => {
                let Some(place) = factors.iter().position(functions::mentions_angle) else { return self.nothing(angle) };
                let Some(mut result) = self.turns(&factors[place])? else { return Ok(None) };
                for (_, factor) in factors.iter().enumerate().filter(|(other, _)| *other != place) {
                    let Some(factor) = self.value(factor)? else { return Ok(None) };
                    result = arithmetic::product(&result, &factor, self.budget)?;
                }
                Ok(Some(result))
            }
            other => self.nothing(other),
        }
    }

    /// No turns, for what is zero.
    fn nothing(&mut self, angle: &'a Expr) -> Result<Option<BigRational>, TooLarge> {
        Ok(self.value(angle)?.filter(BigRational::is_zero))
    }
}

/// An operation on two exact numbers.
type Combine = fn(&BigRational, &BigRational, &mut Budget) -> Result<BigRational, TooLarge>;
