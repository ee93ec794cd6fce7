//! Identities of rational functions, decided in finite fields.
//!
//! An expression is a quotient of two elements in each of four lanes: two prime fields with two points each. Numbers are their residues, a
//! variable is an element drawn by its name, and the imaginary unit is a root of -1 (both primes are 1 modulo 4). Whatever is not built
//! with +, ·, / and whole powers (a root, a function value, pi) is an atom: an element drawn by its kind and by the values of its arguments.
//!
//! Two rational functions that differ in a lane are different: that is a proof. Two that agree in all four are equal, unless four
//! independent draws out of 2^61 elements hit the zeros of their difference; its degree is at most about 2^32 per power. With atoms a
//! difference proves nothing (the roots of 2 and 3 and the root of 6 are three unrelated atoms), unless they cancel from it. Nothing is
//! expanded, so a product of two hundred factors costs two hundred multiplications.

mod field;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive, Zero};

use super::equal::Budget;
use super::equal::seeds::{mixed, text_seed};
use super::exact;
use super::expr::{Constant, Expr, Function, TooLarge};
use field::{Fraction, LANES, Lanes};

/// Larger whole exponents make atoms: the degree of what is compared must stay far below the size of the fields.
const WHOLE_EXPONENT: u64 = 1 << 32;
/// Sums and products over more values of an index make atoms.
const INDEX_VALUES: i64 = 256;

/// What the fields say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// They are equal.
    Equal,
    /// They are not, or not proportional.
    Unequal,
    /// They look different, but that may be for not knowing what the atoms are.
    Open,
}

/// Whether two expressions are equal.
pub fn compare(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Comparison, TooLarge> {
    let Some((first, second, rational)) = both(left, right, 0, budget)? else { return Ok(Comparison::Open) };
    let difference = first.minus(&second);
    if difference.above.is_zero() {
        return Ok(Comparison::Equal);
    }
    if rational {
        return Ok(Comparison::Unequal);
    }
    // Drawn anew, the atoms change every difference but one that they cancel from.
    let Some((first, second, _)) = both(left, right, 1, budget)? else { return Ok(Comparison::Open) };
    let redrawn = first.minus(&second).minus(&difference);
    Ok(if redrawn.above.is_zero() { Comparison::Unequal } else { Comparison::Open })
}

/// Whether the left one is a constant times the right one, and neither is zero unless both are.
pub fn proportion(left: &Expr, right: &Expr, budget: &mut Budget) -> Result<Comparison, TooLarge> {
    let Some((left, right, rational)) = both(left, right, 0, budget)? else { return Ok(Comparison::Open) };
    match (left.above.is_zero(), right.above.is_zero()) {
        (true, true) => return Ok(Comparison::Equal),
        (false, false) => {}
        _ => return Ok(if rational { Comparison::Unequal } else { Comparison::Open }),
    }
    let Some(inverse) = right.inverse() else { return Ok(Comparison::Open) };
    let ratio = left.times(&inverse);
    Ok(match (ratio.is_constant() && ratio.above.is_unit(), rational) {
        (true, _) => Comparison::Equal,
        (false, true) => Comparison::Unequal,
        (false, false) => Comparison::Open,
    })
}

/// Both values, and whether neither has atoms; these are drawn with `salt`.
fn both(left: &Expr, right: &Expr, salt: u64, budget: &mut Budget) -> Result<Option<(Fraction, Fraction, bool)>, TooLarge> {
    let mut model = Model { indexes: Vec::new(), budget, salt, rational: true };
    let Some(left) = model.value(left)? else { return Ok(None) };
    let Some(right) = model.value(right)? else { return Ok(None) };
    Ok(Some((left, right, model.rational)))
}

/// An evaluation in the fields.
struct Model<'a, 'b> {
    /// The indexes of sums and products around: their values, or none where they stand for all of a range.
    indexes: Vec<(&'a str, Option<i64>)>,
    budget: &'b mut Budget,
    /// Goes into every atom.
    salt: u64,
    /// There was no atom yet.
    rational: bool,
}

/// What kind of atom there is.
enum Atom {
    Named(Constant),
    Power,
    Root,
    Function(Function),
    Unknown(u64),
}

impl<'a> Model<'a, '_> {
    /// The value of an expression, unless it has none.
    fn value(&mut self, expression: &'a Expr) -> Result<Option<Fraction>, TooLarge> {
        self.budget.spend(3, "too long an expression")?;
        match expression {
            Expr::Number(value) | Expr::Decimal { value, .. } => self.number(value),
            Expr::Symbol(name) => {
                self.budget.spend(5 + name.len() as u64 / 4, "too long an expression")?;
                Ok(Some(self.name(name)))
            }
            Expr::Constant(Constant::I) => Ok(Some(Fraction::whole(Lanes::root_of_minus_one()))),
            Expr::Constant(Constant::Infinity) => Ok(None),
            Expr::Constant(constant) => self.atom(&Atom::Named(*constant), &[]),
            Expr::Sum(terms) => self.combined(terms, Fraction::whole(Lanes::ZERO), Fraction::plus),
            Expr::Product(factors) => self.combined(factors, Fraction::whole(Lanes::ONE), Fraction::times),
            Expr::Power(base, exponent) => self.power(base, exponent),
            Expr::Unknown(name, arguments) => self.applied(&Atom::Unknown(text_seed(name)), arguments),
            Expr::Apply(Function::SumOver | Function::ProductOver, arguments) => self.over(expression, arguments),
            Expr::Apply(function, arguments) => {
                if let Some(value) = self.exact(expression)? {
                    return self.number(&value);
                }
                if let (Function::Root, [base, degree]) = (function, arguments.as_slice())
                    && let Some(degree) = self.exact(degree)?
                    && !degree.is_zero()
                {
                    return self.fixed_power(base, &degree.recip());
                }
                self.applied(&Atom::Function(*function), arguments)
            }
        }
    }

    fn combined(
        &mut self,
        parts: &'a [Expr],
        start: Fraction,
        combine: impl Fn(&Fraction, &Fraction) -> Fraction,
    ) -> Result<Option<Fraction>, TooLarge> {
        let mut result = start;
        for part in parts {
            let Some(part) = self.value(part)? else { return Ok(None) };
            result = combine(&result, &part);
        }
        Ok(Some(result))
    }

    fn number(&mut self, value: &BigRational) -> Result<Option<Fraction>, TooLarge> {
        self.budget.spend((value.numer().bits() + value.denom().bits()) / 16, "a number with too many digits")?;
        let above = Lanes::of_integer(value.numer());
        let below = if value.denom().is_one() { Lanes::ONE } else { Lanes::of_integer(value.denom()) };
        Ok(below.is_unit().then_some(Fraction { above, below }))
    }

    fn name(&self, name: &str) -> Fraction {
        let seed = match self.indexes.iter().rposition(|(index, _)| *index == name) {
            None => text_seed(name),
            // The name of an index does not matter, only how deep it stands.
            Some(depth) => match self.indexes[depth].1 {
                Some(value) => return Fraction::whole(Lanes::of_integer(&BigInt::from(value))),
                None => mixed(depth as u64),
            },
        };
        Fraction::whole(Lanes::drawn(seed))
    }

    fn power(&mut self, base: &'a Expr, exponent: &'a Expr) -> Result<Option<Fraction>, TooLarge> {
        if let Some(exponent) = self.exact(exponent)? {
            return self.fixed_power(base, &exponent);
        }
        let (Some(base), Some(exponent)) = (self.value(base)?, self.value(exponent)?) else { return Ok(None) };
        self.atom(&Atom::Power, &[base, exponent])
    }

    fn fixed_power(&mut self, base: &'a Expr, exponent: &BigRational) -> Result<Option<Fraction>, TooLarge> {
        let Some(base) = self.value(base)? else { return Ok(None) };
        let Some(numerator) = exponent.numer().to_i64().filter(|whole| whole.unsigned_abs() <= WHOLE_EXPONENT) else {
            let Some(exponent) = self.number(exponent)? else { return Ok(None) };
            return self.atom(&Atom::Power, &[base, exponent]);
        };
        let base = if exponent.is_integer() {
            base
        } else {
            let degree = Fraction::whole(Lanes::of_integer(exponent.denom()));
            let Some(root) = self.atom(&Atom::Root, &[base, degree])? else { return Ok(None) };
            root
        };
        self.budget.spend(20, "too long an expression")?;
        let base = if numerator >= 0 { Some(base) } else { base.inverse() };
        Ok(base.map(|base| base.power(numerator.unsigned_abs())))
    }

    fn over(&mut self, expression: &'a Expr, arguments: &'a [Expr]) -> Result<Option<Fraction>, TooLarge> {
        let [term, Expr::Symbol(index), from, to] = arguments else { return Ok(None) };
        let Expr::Apply(function, _) = expression else { return Ok(None) };
        let mut bound = |expression| Ok(self.exact(expression)?.filter(BigRational::is_integer).and_then(|bound| bound.numer().to_i64()));
        if let (Some(first), Some(last)) = (bound(from)?, bound(to)?)
            && last.saturating_sub(first) < INDEX_VALUES
        {
            let adding = *function == Function::SumOver;
            let mut result = Fraction::whole(if adding { Lanes::ZERO } else { Lanes::ONE });
            for value in first..=last {
                let Some(term) = self.under(index, Some(value), term)? else { return Ok(None) };
                result = if adding { result.plus(&term) } else { result.times(&term) };
            }
            return Ok(Some(result));
        }
        let (Some(from), Some(to)) = (self.value(from)?, self.value(to)?) else { return Ok(None) };
        let Some(term) = self.under(index, None, term)? else { return Ok(None) };
        self.atom(&Atom::Function(*function), &[term, from, to])
    }

    fn under(&mut self, index: &'a str, value: Option<i64>, term: &'a Expr) -> Result<Option<Fraction>, TooLarge> {
        self.indexes.push((index, value));
        let result = self.value(term);
        self.indexes.pop();
        result
    }

    fn applied(&mut self, atom: &Atom, arguments: &'a [Expr]) -> Result<Option<Fraction>, TooLarge> {
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let Some(value) = self.value(argument)? else { return Ok(None) };
            values.push(value);
        }
        self.atom(atom, &values)
    }

    /// An element that depends on the kind of the atom and on its arguments alone.
    fn atom(&mut self, atom: &Atom, arguments: &[Fraction]) -> Result<Option<Fraction>, TooLarge> {
        self.rational = false;
        let mut seed = mixed(match atom {
            Atom::Named(constant) => 0x100 + *constant as u64,
            Atom::Power => 0x200,
            Atom::Root => 0x300,
            Atom::Function(function) => 0x400 + *function as u64,
            Atom::Unknown(name) => *name,
        });
        seed = mixed(seed ^ self.salt);
        for argument in arguments {
            self.budget.spend(if argument.below == Lanes::ONE { 3 } else { 150 }, "too long an expression")?;
            let value = argument.reduced();
            seed = (0..LANES).fold(seed, |seed, lane| mixed(seed ^ value.element(lane)));
        }
        Ok(Some(Fraction::whole(Lanes::drawn(seed))))
    }

    /// The exact value, where there is one for the current values of the indexes.
    fn exact(&mut self, expression: &'a Expr) -> Result<Option<BigRational>, TooLarge> {
        match expression {
            Expr::Number(value) | Expr::Decimal { value, .. } => return Ok(Some(value.clone())),
            Expr::Constant(_) => return Ok(None),
            Expr::Symbol(_) if self.indexes.is_empty() => return Ok(None),
            _ => {}
        }
        // An index without a value could hide one of the same name that has one.
        let known = self.indexes.iter().map(|(name, value)| Some((*name, BigRational::from_integer((*value)?.into())))).collect();
        let Some(known) = known else { return Ok(None) };
        // What is too large to be exact is an atom or a power.
        let folded = self.budget.part(4, |budget| exact::Folding::with_indexes(known, budget).value(expression));
        Ok(folded.unwrap_or(None))
    }
}
