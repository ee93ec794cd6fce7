//! Expressions as they are typed: `2*x^2 + sqrt(x)/3`, `sum(k^2, k, 1, n)`. A name in front of a bracket is a function, unknown if it has none
//! of the names below.

use adaroll::reward::math::expr::{Constant, Expr, Function};
use num_bigint::BigInt;
use num_rational::BigRational;

/// Reads an expression; the tests write them, so anything wrong panics.
pub fn read(text: &str) -> Expr {
    let mut reader = Reader { rest: text };
    let expression = reader.sum();
    assert!(reader.peek().is_none(), "left over in {text}: {}", reader.rest);
    expression
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn sum(&mut self) -> Expr {
        let mut terms = vec![self.product()];
        loop {
            if self.take('+') {
                terms.push(self.product());
            } else if self.take('-') {
                terms.push(self.product().negated());
            } else {
                return alone(terms, Expr::Sum);
            }
        }
    }

    fn product(&mut self) -> Expr {
        let mut factors = vec![self.signed()];
        loop {
            if self.take('*') {
                factors.push(self.signed());
            } else if self.take('/') {
                factors.push(self.signed().inverted());
            } else {
                return alone(factors, Expr::Product);
            }
        }
    }

    fn signed(&mut self) -> Expr {
        if self.take('-') { self.signed().negated() } else { self.power() }
    }

    fn power(&mut self) -> Expr {
        let base = self.atom();
        if self.take('^') { base.power(self.signed()) } else { base }
    }

    fn atom(&mut self) -> Expr {
        if self.take('(') {
            let inside = self.sum();
            assert!(self.take(')'), "no closing bracket before {}", self.rest);
            return inside;
        }
        let first = self.peek().expect("an operand");
        if first.is_ascii_digit() {
            return number(self.word(|c| c.is_ascii_digit() || c == '.'));
        }
        let name = self.word(|c| c.is_alphanumeric() || c == '_').to_owned();
        assert!(!name.is_empty(), "no operand at {}", self.rest);
        if !self.take('(') {
            return named(name);
        }
        let mut arguments = vec![self.sum()];
        while self.take(',') {
            arguments.push(self.sum());
        }
        assert!(self.take(')'), "no closing bracket before {}", self.rest);
        applied(name, arguments)
    }
}

fn alone(mut parts: Vec<Expr>, many: impl Fn(Vec<Expr>) -> Expr) -> Expr {
    if parts.len() == 1 { parts.remove(0) } else { many(parts) }
}

fn number(text: &str) -> Expr {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits: BigInt = format!("{whole}{part}").parse().expect("digits");
    let value = BigRational::new(digits, BigInt::from(10).pow(part.len() as u32));
    if part.is_empty() { Expr::Number(value) } else { Expr::Decimal { value, places: part.len() as i32 } }
}

fn named(name: String) -> Expr {
    match name.as_str() {
        "pi" => Expr::Constant(Constant::Pi),
        "e" => Expr::Constant(Constant::E),
        "i" => Expr::Constant(Constant::I),
        "oo" => Expr::Constant(Constant::Infinity),
        _ => Expr::Symbol(name),
    }
}

fn applied(name: String, mut arguments: Vec<Expr>) -> Expr {
    use Function::*;
    let function = match name.as_str() {
        "sqrt" => {
            arguments.push(Expr::integer(2));
            Root
        }
        "root" => Root,
        "sin" => Sin,
        "cos" => Cos,
        "tan" => Tan,
        "cot" => Cot,
        "sec" => Sec,
        "csc" => Csc,
        "arcsin" => Arcsin,
        "arccos" => Arccos,
        "arctan" => Arctan,
        "arccot" => Arccot,
        "arcsec" => Arcsec,
        "arccsc" => Arccsc,
        "sinh" => Sinh,
        "cosh" => Cosh,
        "tanh" => Tanh,
        "coth" => Coth,
        "arsinh" => Arsinh,
        "arcosh" => Arcosh,
        "artanh" => Artanh,
        "ln" => Ln,
        "log" => Log,
        "abs" => Abs,
        "floor" => Floor,
        "ceil" => Ceil,
        "fact" => Factorial,
        "dfact" => DoubleFactorial,
        "binom" => Binomial,
        "gcd" => Gcd,
        "lcm" => Lcm,
        "max" => Max,
        "min" => Min,
        "mod" => Mod,
        "re" => Re,
        "im" => Im,
        "conj" => Conjugate,
        "deg" => Degrees,
        "sum" => SumOver,
        "prod" => ProductOver,
        _ => return Expr::Unknown(name, arguments),
    };
    Expr::Apply(function, arguments)
}
