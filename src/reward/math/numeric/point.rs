//! The values at which expressions with variables are compared.
//!
//! A value depends on the name and on the number of the point alone, so both sides see the same. Three rules say which values a variable
//! may have: one that is counted with (under a factorial, in a binomial coefficient, as a bound of a sum, as the exponent of a negative
//! number) is a natural number; one under an even root, a logarithm or a symbolic power is positive, as whoever wrote the answer meant it;
//! any other is also tried below zero.

use num_traits::Signed;

use super::super::exact;
use super::super::expr::{Constant, Expr, Function};

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
    kinds: Vec<(&'a str, Kind)>,
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
    pub fn of(left: &'a Expr, right: &'a Expr) -> Self {
        let mut variables = Self::default();
        let mut bound = Vec::new();
        variables.visit(left, Kind::Any, &mut bound);
        variables.visit(right, Kind::Any, &mut bound);
        variables
    }

    /// Whether there are none, nor a function without a meaning.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && !self.unknown
    }

    /// Whether some may be negative.
    pub fn any_signed(&self) -> bool {
        self.unknown || self.kinds.iter().any(|(_, kind)| *kind == Kind::Any)
    }

    /// Whether some are natural numbers.
    pub fn any_natural(&self) -> bool {
        self.kinds.iter().any(|(_, kind)| *kind == Kind::Natural)
    }

    fn visit(&mut self, expression: &'a Expr, kind: Kind, bound: &mut Vec<&'a str>) {
        match expression {
            Expr::Number(_) | Expr::Decimal { .. } | Expr::Constant(_) => {}
            Expr::Symbol(name) => self.note(name, kind, bound),
            Expr::Sum(parts) | Expr::Product(parts) => parts.iter().for_each(|part| self.visit(part, kind, bound)),
            Expr::Power(base, exponent) => {
                let fixed = exact::constant(exponent);
                let below = if fixed.as_ref().is_some_and(|fixed| fixed.denom().bit(0)) { kind } else { kind.max(Kind::Positive) };
                self.visit(base, below, bound);
                let natural = fixed.is_none() && is_turning(base);
                self.visit(exponent, if natural { Kind::Natural } else { kind }, bound);
            }
            Expr::Unknown(_, arguments) => {
                self.unknown = true;
                arguments.iter().for_each(|argument| self.visit(argument, kind, bound));
            }
            Expr::Apply(Function::SumOver | Function::ProductOver, arguments) => {
                let [term, Expr::Symbol(index), from, to] = arguments.as_slice() else { return };
                self.visit(from, Kind::Natural, bound);
                self.visit(to, Kind::Natural, bound);
                bound.push(index);
                self.visit(term, kind, bound);
                bound.pop();
            }
            Expr::Apply(function, arguments) => {
                let below = kind.max(asked_by(*function, arguments));
                arguments.iter().for_each(|argument| self.visit(argument, below, bound));
            }
        }
    }

    fn note(&mut self, name: &'a str, kind: Kind, bound: &[&'a str]) {
        if bound.contains(&name) {
            return;
        }
        match self.kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = (*known).max(kind),
            None => self.kinds.push((name, kind)),
        }
    }
}

/// What a function means its arguments to be.
fn asked_by(function: Function, arguments: &[Expr]) -> Kind {
    use Function::*;
    match function {
        Factorial | DoubleFactorial | Binomial | Gcd | Lcm | Mod => Kind::Natural,
        Root => {
            let degree = arguments.get(1).and_then(exact::constant);
            if degree.is_some_and(|degree| degree.numer().bit(0)) { Kind::Any } else { Kind::Positive }
        }
        Ln | Log | Arcosh => Kind::Positive,
        _ => Kind::Any,
    }
}

/// Whether powers of this go round: a negative or imaginary number.
fn is_turning(base: &Expr) -> bool {
    match base {
        Expr::Constant(Constant::I) => true,
        Expr::Sum(parts) | Expr::Product(parts) if parts.iter().any(is_turning) => true,
        _ => exact::constant(base).is_some_and(|base| base.is_negative()),
    }
}

impl Point {
    /// The point of this number.
    pub fn new(number: usize) -> Self {
        Self { region: POINTS[number % POINTS.len()], number: number as u64 }
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str, variables: &Variables) -> Value {
        let kind = variables.kinds.iter().find(|(known, _)| *known == name).map_or(Kind::Any, |(_, kind)| *kind);
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

/// A number without a pattern for each seed (SplitMix64).
pub fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The seed of a name.
pub fn text_seed(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |seed, byte| mixed(seed ^ u64::from(byte)))
}
