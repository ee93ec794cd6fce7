//! The functions of an expression at complex numbers.

use num_bigint::BigInt;
use num_integer::Integer;

use super::super::equal::Budget;
use super::super::expr::{Function, TooLarge};
use super::ball::{self, Ball, Failure};
use super::float::Float;

/// Factors of a factorial or binomial coefficient that are multiplied out.
const FACTORS: i64 = 1_000;
/// Multiplications for which a transcendental function stands.
const SERIES: u64 = 50;
/// Bits of the integers that have a greatest common divisor here.
const DIVISOR_BITS: i64 = 512;

/// Values of functions, and whether a branch was chosen on the way.
pub struct Functions<'a> {
    /// A root, logarithm or inverse function of what is not a positive number was taken: that value is one of several.
    pub branching: bool,
    /// What the verdict may still cost.
    pub budget: &'a mut Budget,
}

impl Functions<'_> {
    /// Takes the work of `operations` multiplications off the budget.
    pub fn spend<const N: usize>(&mut self, operations: u64) -> Result<(), Failure> {
        self.budget.spend(operations * ball::cost(N), "too much computation").map_err(Failure::Spent)
    }

    /// The value of a function other than a sum or product over an index.
    pub fn apply<const N: usize>(&mut self, function: Function, arguments: &[Ball<N>]) -> Result<Ball<N>, Failure> {
        use Function::*;
        match (function, arguments) {
            (Root, [x, degree]) => self.root(x, degree),
            (Log, [x, base]) => Ok(self.logarithm(x)?.times(&self.logarithm(base)?.inverse()?)),
            (Binomial, [n, k]) => self.binomial(n, k),
            (Mod, [a, n]) => modulo(a, n),
            (Gcd | Lcm, [_, ..]) => {
                self.spend::<N>(100 * arguments.len() as u64)?;
                divisor(function, arguments)
            }
            (Max | Min, [_, ..]) => extreme(function, arguments),
            (_, [x]) => self.of_one(function, x),
            _ => Err(Failure::Undefined),
        }
    }

    fn of_one<const N: usize>(&mut self, function: Function, x: &Ball<N>) -> Result<Ball<N>, Failure> {
        use Function::*;
        let operations = match function {
            Abs | Floor | Ceil | Factorial | DoubleFactorial | Re | Im | Conjugate | Degrees => 10,
            _ if x.is_real() => SERIES,
            _ => 3 * SERIES,
        };
        self.spend::<N>(operations)?;
        let sine = || Ok(x.sine_and_cosine()?.0);
        let cosine = || Ok(x.sine_and_cosine()?.1);
        match function {
            Sin => sine(),
            Cos => cosine(),
            Csc => sine()?.inverse(),
            Sec => cosine()?.inverse(),
            Tan => tangent(x),
            Cot => x.sine_and_cosine().and_then(|(sine, cosine)| Ok(cosine.times(&sine.inverse()?))),
            Arcsin => self.arcsine(x),
            Arccos => self.arccosine(x),
            Arctan => self.arctangent(x),
            Arccot => Ok(Ball::pi().scaled(-1).minus(&self.arctangent(x)?)),
            Arcsec => self.arccosine(&x.inverse()?),
            Arccsc => self.arcsine(&x.inverse()?),
            Sinh => hyperbolic(x).map(|(sine, _)| sine),
            Cosh => hyperbolic(x).map(|(_, cosine)| cosine),
            Tanh => hyperbolic(x).and_then(|(sine, cosine)| Ok(sine.times(&cosine.inverse()?))),
            Coth => hyperbolic(x).and_then(|(sine, cosine)| Ok(cosine.times(&sine.inverse()?))),
            Arsinh => {
                let root = self.square_root(&x.times(x).plus(&Ball::integer(1)))?;
                self.logarithm(&x.plus(&root))
            }
            Arcosh => {
                let (above, below) = (x.plus(&Ball::integer(1)), x.minus(&Ball::integer(1)));
                let root = self.square_root(&above)?.times(&self.square_root(&below)?);
                self.logarithm(&x.plus(&root))
            }
            Artanh => {
                let ratio = Ball::integer(1).plus(x).times(&Ball::integer(1).minus(x).inverse()?);
                Ok(self.logarithm(&ratio)?.scaled(-1))
            }
            Ln => self.logarithm(x),
            Abs => Ok(magnitude(x)),
            Floor => floor(x),
            Ceil => Ok(floor(&x.negated())?.negated()),
            Factorial => self.product_of_steps(x, 1),
            DoubleFactorial => self.product_of_steps(x, 2),
            Re => Ok(Ball { imaginary: Float::ZERO, ..*x }),
            Im => Ok(Ball { real: x.imaginary, imaginary: Float::ZERO, ..*x }),
            Conjugate => Ok(x.conjugate()),
            Degrees => Ok(x.times(&Ball::pi()).times(&Ball::integer(180).inverse()?)),
            Max | Min | Gcd | Lcm => Ok(*x),
            Root | Log | Binomial | Mod | SumOver | ProductOver => Err(Failure::Undefined),
        }
    }

    /// x^(numerator / degree) in lowest terms, with degree > 1: the real one of a negative number if the degree is odd.
    pub fn fractional_power<const N: usize>(&mut self, x: &Ball<N>, numerator: i64, degree: i64) -> Result<Ball<N>, Failure> {
        let x = x.as_real().unwrap_or(*x);
        self.spend::<N>(if degree == 2 { 20 } else { 2 * SERIES })?;
        if x.may_be_zero() {
            let root = x.root_near_zero(degree).power(numerator.unsigned_abs())?;
            return if numerator < 0 { root.inverse() } else { Ok(root) };
        }
        if degree == 2 {
            let root = self.square_root(&x)?.power(numerator.unsigned_abs())?;
            return if numerator < 0 { root.inverse() } else { Ok(root) };
        }
        let exponent = Ball::integer(numerator).times(&Ball::integer(degree).inverse()?);
        if x.is_real() && x.real.negative && degree % 2 != 0 {
            let size = x.negated().logarithm()?.times(&exponent).exponential()?;
            return Ok(if numerator % 2 == 0 { size } else { size.negated() });
        }
        self.logarithm(&x)?.times(&exponent).exponential()
    }

    /// The principal logarithm.
    pub fn logarithm<const N: usize>(&mut self, x: &Ball<N>) -> Result<Ball<N>, Failure> {
        self.spend::<N>(if x.is_real() { SERIES } else { 2 * SERIES })?;
        let x = self.chosen(x);
        x.logarithm()
    }

    fn square_root<const N: usize>(&mut self, x: &Ball<N>) -> Result<Ball<N>, Failure> {
        Ok(self.chosen(x).square_root())
    }

    /// Notes whether a function with branches is about to be taken of something other than a positive number. What may lie on the negative
    /// axis lies there.
    fn chosen<const N: usize>(&mut self, x: &Ball<N>) -> Ball<N> {
        let x = x.as_real().unwrap_or(*x);
        self.branching |= !x.may_be_zero() && (!x.is_real() || x.real.negative);
        x
    }

    fn root<const N: usize>(&mut self, x: &Ball<N>, degree: &Ball<N>) -> Result<Ball<N>, Failure> {
        match degree.as_small_integer() {
            Some(0) => Err(Failure::Undefined),
            Some(1) => Ok(*x),
            Some(-1) => x.inverse(),
            Some(degree) => self.fractional_power(x, degree.signum(), degree.abs()),
            None => self.logarithm(x)?.times(&degree.inverse()?).exponential(),
        }
    }

    fn arcsine<const N: usize>(&mut self, x: &Ball<N>) -> Result<Ball<N>, Failure> {
        let x = x.as_real().unwrap_or(*x);
        let root = self.square_root(&complement(&x))?;
        if x.is_real() && root.is_real() {
            return Ball::angle(&x, &root);
        }
        Ok(self.logarithm(&x.turned().plus(&root))?.turned().negated())
    }

    fn arccosine<const N: usize>(&mut self, x: &Ball<N>) -> Result<Ball<N>, Failure> {
        let x = x.as_real().unwrap_or(*x);
        let root = self.square_root(&complement(&x))?;
        if x.is_real() && root.is_real() {
            return Ball::angle(&root, &x);
        }
        Ok(Ball::pi().scaled(-1).minus(&self.arcsine(&x)?))
    }

    fn arctangent<const N: usize>(&mut self, x: &Ball<N>) -> Result<Ball<N>, Failure> {
        let x = x.as_real().unwrap_or(*x);
        if x.is_real() {
            return Ball::angle(&x, &Ball::integer(1));
        }
        // i/2 (ln(1 - iz) - ln(1 + iz))
        let (one, turned) = (Ball::integer(1), x.turned());
        let difference = self.logarithm(&one.minus(&turned))?.minus(&self.logarithm(&one.plus(&turned))?);
        Ok(difference.turned().scaled(-1))
    }

    /// x (x - step) (x - 2 step) ... down to 1 or 2, of a natural number.
    fn product_of_steps<const N: usize>(&mut self, x: &Ball<N>, step: i64) -> Result<Ball<N>, Failure> {
        if x.as_integer().ok_or(Failure::Undefined)?.negative {
            return Err(Failure::Undefined);
        }
        let largest = x.as_small_integer().filter(|largest| *largest <= FACTORS);
        let mut factor = largest.ok_or(Failure::Vast(TooLarge("a factorial is too large")))?;
        self.spend::<N>(factor as u64)?;
        let mut product = Ball::integer(1);
        while factor > 1 {
            product = product.times(&Ball::integer(factor));
            factor -= step;
        }
        product.bounded()
    }

    /// n (n-1) ... (n-k+1) / k!
    fn binomial<const N: usize>(&mut self, n: &Ball<N>, k: &Ball<N>) -> Result<Ball<N>, Failure> {
        let vast = Failure::Vast(TooLarge("a binomial coefficient is too large"));
        if k.as_integer().ok_or(Failure::Undefined)?.negative {
            return Ok(Ball::integer(0));
        }
        let mut lower = k.as_small_integer().ok_or(vast)?;
        if let Some(upper) = n.as_small_integer()
            && upper >= 0
        {
            if lower > upper {
                return Ok(Ball::integer(0));
            }
            lower = lower.min(upper - lower);
        }
        if lower > FACTORS {
            return Err(vast);
        }
        self.spend::<N>(2 * lower as u64)?;
        let (mut above, mut below) = (Ball::integer(1), Ball::integer(1));
        for step in 0..lower {
            above = above.times(&n.minus(&Ball::integer(step)));
            below = below.times(&Ball::integer(step + 1));
        }
        above.times(&below.inverse()?).bounded()
    }
}

/// 1 - x^2, precise near 1.
fn complement<const N: usize>(x: &Ball<N>) -> Ball<N> {
    let one = Ball::integer(1);
    one.minus(x).times(&one.plus(x))
}

fn tangent<const N: usize>(x: &Ball<N>) -> Result<Ball<N>, Failure> {
    let (sine, cosine) = x.sine_and_cosine()?;
    Ok(sine.times(&cosine.inverse()?))
}

/// (sinh x, cosh x)
fn hyperbolic<const N: usize>(x: &Ball<N>) -> Result<(Ball<N>, Ball<N>), Failure> {
    let forward = x.exponential()?;
    let backward = forward.inverse()?;
    Ok((forward.minus(&backward).scaled(-1), forward.plus(&backward).scaled(-1)))
}

fn magnitude<const N: usize>(x: &Ball<N>) -> Ball<N> {
    if x.is_real() {
        return Ball { real: x.real.absolute(), ..*x };
    }
    // The root of a sum of squares is off by no more than the number itself.
    let squares = x.real.times(&x.real).plus(&x.imaginary.times(&x.imaginary));
    let root = Ball::exact(squares).square_root();
    Ball { radius: ball::add(&x.radius, &root.radius.scaled(1)), ..root }
}

fn floor<const N: usize>(x: &Ball<N>) -> Result<Ball<N>, Failure> {
    let real = x.as_real().ok_or(Failure::Undefined)?;
    if let Some(integer) = real.as_integer() {
        return Ok(Ball::exact(integer));
    }
    if !ball::less_than_power(&real.radius, -8) {
        return Err(Failure::Imprecise);
    }
    Ok(Ball::exact(real.real.floor()))
}

/// a - n floor(a / n)
fn modulo<const N: usize>(a: &Ball<N>, n: &Ball<N>) -> Result<Ball<N>, Failure> {
    let whole = floor(&a.times(&n.inverse()?))?;
    Ok(a.minus(&n.times(&whole)))
}

fn divisor<const N: usize>(function: Function, arguments: &[Ball<N>]) -> Result<Ball<N>, Failure> {
    let mut result: Option<BigInt> = None;
    for argument in arguments {
        let integer = argument.as_integer().ok_or(Failure::Undefined)?;
        if integer.exponent > DIVISOR_BITS {
            return Err(Failure::Vast(TooLarge("a common divisor of large numbers")));
        }
        let integer = integer.to_big();
        result = Some(match result {
            None => integer,
            Some(other) if function == Function::Gcd => other.gcd(&integer),
            Some(other) => other.lcm(&integer),
        });
    }
    let result = result.ok_or(Failure::Undefined)?;
    Ball::exact(Float::from_big(&BigInt::from(result.magnitude().clone()))).bounded()
}

fn extreme<const N: usize>(function: Function, arguments: &[Ball<N>]) -> Result<Ball<N>, Failure> {
    let mut result: Option<Ball<N>> = None;
    for argument in arguments {
        let argument = argument.as_real().ok_or(Failure::Undefined)?;
        let better = result.is_none_or(|best| argument.real.minus(&best.real).negative == (function == Function::Min));
        if better {
            result = Some(argument);
        }
    }
    result.ok_or(Failure::Undefined)
}
