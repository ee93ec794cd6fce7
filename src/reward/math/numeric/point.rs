//! The values at which expressions with variables are compared.
//!
//! A value depends on the name and on the number of the point alone, so both sides see the same. Three rules say which values a variable
//! may have: one that is counted with (under a factorial, in a binomial coefficient, as a bound of a sum, as the exponent of a negative
//! number) is a natural number; one under an even root, a logarithm or a symbolic power is positive, as whoever wrote the answer meant it;
//! any other is also tried below zero.

use std::collections::BTreeMap;

use num_rational::BigRational;
use num_traits::Signed;

use super::super::equal::Budget;
use super::super::equal::seeds::{mixed, text_seed};
use super::super::exact;
use super::super::expr::{Constant, Expr, Function, TooLarge};

/// Which numbers a variable stands for; what asks for more comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Any,
    Positive,
    Natural,
}

/// What is known of the variables of some expressions.
#[derive(Debug, Default)]
pub struct Variables<'a> {
    kinds: BTreeMap<&'a str, Kind>,
    unknown: bool,
}

/// Where the values of a point lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Between 1/2 and 3.
    Middle,
    /// The same, with any signs where they are allowed.
    Signed,
    /// Between 1/16 and 1/2.
    Small,
    /// Between 3 and 20.
    Large,
}

/// Values for all names.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    region: Region,
    number: u64,
}

/// A binary fraction: `units` · 2^-20.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The numerator.
    pub units: i64,
}

/// The denominator's exponent of a [`Value`].
pub const VALUE_BITS: i64 = 20;

/// The points, in the order in which they are tried.
pub const POINTS: [Region; 14] = {
    use Region::*;
    [Middle, Signed, Middle, Middle, Signed, Middle, Small, Large, Middle, Small, Large, Middle, Small, Large]
};

impl<'a> Variables<'a> {
    /// Those of both expressions.
    pub fn of(left: &'a Expr, right: &'a Expr, budget: &mut Budget) -> Result<Self, TooLarge> {
        let mut search = Search { found: Self::default(), bound: Vec::new(), budget };
        search.visit(left, Kind::Any)?;
        search.visit(right, Kind::Any)?;
        Ok(search.found)
    }

    /// Whether there are none, nor a function without a meaning.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && !self.unknown
    }

    /// Whether some may be negative.
    pub fn any_signed(&self) -> bool {
        self.unknown || self.kinds.values().any(|kind| *kind == Kind::Any)
    }

    /// Whether some are natural numbers.
    pub fn any_natural(&self) -> bool {
        self.kinds.values().any(|kind| *kind == Kind::Natural)
    }
}

/// The variables are looked for in one walk.
struct Search<'a, 'b> {
    found: Variables<'a>,
    bound: Vec<&'a str>,
    budget: &'b mut Budget,
}

impl<'a> Search<'a, '_> {
    fn visit(&mut self, expression: &'a Expr, kind: Kind) -> Result<(), TooLarge> {
        self.budget.spend(1, "too long an expression")?;
        match expression {
            Expr::Number(_) | Expr::Decimal { .. } | Expr::Constant(_) => Ok(()),
            Expr::Symbol(name) => {
                self.budget.spend(10, "too long an expression")?;
                self.note(name, kind);
                Ok(())
            }
            Expr::Sum(parts) | Expr::Product(parts) => self.visit_all(parts, kind),
            Expr::Power(base, exponent) => {
                let fixed = self.constant(exponent);
                let whole_or_odd = fixed.as_ref().is_some_and(|fixed| fixed.denom().bit(0));
                self.visit(base, if whole_or_odd { kind } else { kind.max(Kind::Positive) })?;
                let natural = fixed.is_none() && self.is_turning(base);
                self.visit(exponent, if natural { Kind::Natural } else { kind })
            }
            Expr::Unknown(_, arguments) => {
                self.found.unknown = true;
                self.visit_all(arguments, kind)
            }
            Expr::Apply(Function::SumOver | Function::ProductOver, arguments) => {
                let [term, Expr::Symbol(index), from, to] = arguments.as_slice() else { return Ok(()) };
                self.visit(from, Kind::Natural)?;
                self.visit(to, Kind::Natural)?;
                self.bound.push(index);
                let visited = self.visit(term, kind);
                self.bound.pop();
                visited
            }
            Expr::Apply(function, arguments) => {
                let asked = self.asked_by(*function, arguments);
                self.visit_all(arguments, kind.max(asked))
            }
        }
    }

    fn visit_all(&mut self, expressions: &'a [Expr], kind: Kind) -> Result<(), TooLarge> {
        expressions.iter().try_for_each(|expression| self.visit(expression, kind))
    }

    fn note(&mut self, name: &'a str, kind: Kind) {
        if self.bound.contains(&name) {
            return;
        }
        let known = self.found.kinds.entry(name).or_insert(kind);
        *known = kind.max(*known);
    }

    /// What a function means its arguments to be.
    fn asked_by(&mut self, function: Function, arguments: &[Expr]) -> Kind {
        use Function::*;
        match function {
            Factorial | DoubleFactorial | Binomial | Gcd | Lcm | Mod => Kind::Natural,
            Root => {
                let degree = arguments.get(1).and_then(|degree| self.constant(degree));
                if degree.is_some_and(|degree| degree.numer().bit(0)) { Kind::Any } else { Kind::Positive }
            }
            Ln | Log | Arcosh => Kind::Positive,
            _ => Kind::Any,
        }
    }

    /// Whether powers of this go round: a negative or imaginary number.
    fn is_turning(&mut self, base: &Expr) -> bool {
        match base {
            Expr::Constant(Constant::I) => true,
            Expr::Sum(parts) | Expr::Product(parts) if parts.iter().any(|part| self.is_turning(part)) => true,
            _ => self.constant(base).is_some_and(|base| base.is_negative()),
        }
    }

    fn constant(&mut self, expression: &Expr) -> Option<BigRational> {
        exact::rational(expression, self.budget).ok().flatten()
    }
}

impl Point {
    /// The point of this number.
    pub fn new(number: usize) -> Self {
        Self { region: POINTS[number % POINTS.len()], number: number as u64 }
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str, variables: &Variables) -> Value {
        let kind = variables.kinds.get(name).copied().unwrap_or(Kind::Any);
        let seed = mixed(text_seed(name) ^ self.number);
        if kind == Kind::Natural {
            return Value { units: self.natural(seed) << VALUE_BITS };
        }
        self.spread(seed, kind == Kind::Any)
    }

    /// The value of a function without a meaning whose name and arguments have this seed.
    pub fn unknown(&self, seed: u64) -> Value {
        self.spread(mixed(seed ^ self.number), true)
    }

    /// The first two points have an even and an odd number, for what alternates.
    fn natural(&self, seed: u64) -> i64 {
        let (from, count) = match self.region {
            Region::Middle | Region::Signed => (2, 12),
            Region::Small => (1, 6),
            Region::Large => (8, 24),
        };
        let value = from + (seed % count) as i64;
        match self.number {
            0 => value & !1,
            1 => value | 1,
            _ => value,
        }
    }

    fn spread(&self, seed: u64, signed: bool) -> Value {
        let unit = 1 << VALUE_BITS;
        let (from, to) = match self.region {
            Region::Middle | Region::Signed => (unit / 2, 3 * unit),
            Region::Small => (unit / 16, unit / 2),
            Region::Large => (3 * unit, 20 * unit),
        };
        let units = from + (seed >> 8) as i64 % (to - from);
        let negative = signed && self.region == Region::Signed && seed & 1 == 1;
        Value { units: if negative { -units } else { units } }
    }
}
