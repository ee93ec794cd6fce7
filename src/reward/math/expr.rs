//! An expression as it is parsed: numbers are exact, what is not understood keeps its name.

use num_bigint::BigInt;
use num_rational::BigRational;

/// A mathematical expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// An exact number: an integer or what was computed exactly.
    Number(BigRational),
    /// A number written with a decimal point or in scientific notation: its value, and how many digits behind the point it claims
    /// ("0.250" claims 3, "1.5e-7" claims 8, "6.02e23" claims -21).
    Decimal {
        /// The exact value of what is written.
        value: BigRational,
        /// Digits behind the decimal point.
        places: i32,
    },
    /// A variable or another name: `x`, `a_{n}`, `\alpha`, `\triangle ABC`.
    Symbol(String),
    /// A constant.
    Constant(Constant),
    /// Terms added up; a difference adds a product with -1.
    Sum(Vec<Expr>),
    /// Factors; a quotient multiplies with a power of -1.
    Product(Vec<Expr>),
    /// base ^ exponent.
    Power(Box<Expr>, Box<Expr>),
    /// A known function of its arguments.
    Apply(Function, Vec<Expr>),
    /// A function, operator or mark that is only a name here: `f(x)`, `P(A)`, `\angle ABC`, `n'`. Equal names of equal arguments are equal.
    Unknown(String, Vec<Expr>),
}

/// Numbers with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Constant {
    /// The circle's.
    Pi,
    /// The base of the natural logarithm.
    E,
    /// The imaginary unit.
    I,
    /// Positive infinity: only as a bound or alone.
    Infinity,
}

/// Functions that can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Function {
    /// `[x, n]`: the n-th root; of a negative number with odd n the real one.
    Root,
    /// `[x]`, each in radians.
    Sin,
    /// See [`Function::Sin`].
    Cos,
    /// See [`Function::Sin`].
    Tan,
    /// See [`Function::Sin`].
    Cot,
    /// See [`Function::Sin`].
    Sec,
    /// See [`Function::Sin`].
    Csc,
    /// `[x]`
    Arcsin,
    /// `[x]`
    Arccos,
    /// `[x]`
    Arctan,
    /// `[x]`: between 0 and pi.
    Arccot,
    /// `[x]`
    Arcsec,
    /// `[x]`
    Arccsc,
    /// `[x]`
    Sinh,
    /// `[x]`
    Cosh,
    /// `[x]`
    Tanh,
    /// `[x]`
    Coth,
    /// `[x]`
    Arsinh,
    /// `[x]`
    Arcosh,
    /// `[x]`
    Artanh,
    /// `[x]`: the natural logarithm.
    Ln,
    /// `[x, base]`: a logarithm to a base.
    Log,
    /// `[x]`: the absolute value.
    Abs,
    /// `[x]`
    Floor,
    /// `[x]`
    Ceil,
    /// `[n]`
    Factorial,
    /// `[n]`: n!!
    DoubleFactorial,
    /// `[n, k]`: n over k.
    Binomial,
    /// `[a, b, ...]`
    Gcd,
    /// `[a, b, ...]`
    Lcm,
    /// `[a, b, ...]`
    Max,
    /// `[a, b, ...]`
    Min,
    /// `[a, n]`: the remainder, of the sign of n.
    Mod,
    /// `[x]`: the real part.
    Re,
    /// `[x]`: the imaginary part.
    Im,
    /// `[z]`: the complex conjugate.
    Conjugate,
    /// `[x]`: x degrees as radians.
    Degrees,
    /// `[term, index (a Symbol), from, to]`: a finite sum.
    SumOver,
    /// `[term, index (a Symbol), from, to]`: a finite product.
    ProductOver,
}

/// The input exceeds a limit: it is too large to judge, whatever the load of the machine. A short phrase says what was too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge(pub &'static str);

impl Expr {
    /// An integer.
    pub fn integer(value: impl Into<BigInt>) -> Self {
        Expr::Number(BigRational::from_integer(value.into()))
    }

    /// A named variable.
    pub fn symbol(name: impl Into<String>) -> Self {
        Expr::Symbol(name.into())
    }

    /// -x.
    pub fn negated(self) -> Self {
        match self {
            Expr::Number(value) => Expr::Number(-value),
            Expr::Decimal { value, places } => Expr::Decimal { value: -value, places },
            other => Expr::Product(vec![Expr::integer(-1), other]),
        }
    }

    /// 1 / x.
    pub fn inverted(self) -> Self {
        Expr::Power(Box::new(self), Box::new(Expr::integer(-1)))
    }

    /// self ^ exponent.
    pub fn power(self, exponent: Expr) -> Self {
        Expr::Power(Box::new(self), Box::new(exponent))
    }

    /// self / divisor.
    pub fn divided(self, divisor: Expr) -> Self {
        Expr::Product(vec![self, divisor.inverted()])
    }

    /// The number itself, if that is what this is.
    pub fn as_number(&self) -> Option<&BigRational> {
        match self {
            Expr::Number(value) | Expr::Decimal { value, .. } => Some(value),
            _ => None,
        }
    }
}
