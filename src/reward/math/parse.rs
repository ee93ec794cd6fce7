//! From tokens to an expression.
//!
//! The whole of the tokens or nothing: what is not understood to its end is not mathematics, and is never compared in part. Structure is kept
//! as it is written (2/4 stays a quotient); folding is for those who compare. Depth and size are limited, so that nobody behind this has to
//! fear a deep recursion.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, Zero};

use super::expr::{Constant, Expr, Function, TooLarge};
use super::lex::{Lexeme, Token};

/// Deepest nesting.
const DEPTH: usize = 100;
/// Most nodes of an expression.
const NODES: usize = 4000;
/// Most marks behind one operand, such as exclamation marks.
const MARKS: usize = 8;

/// Why there is no expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is too large to judge.
    Limit(TooLarge),
    /// It is not mathematics that is understood here.
    NotMathematics,
}

impl From<TooLarge> for Failure {
    fn from(too_large: TooLarge) -> Self {
        Failure::Limit(too_large)
    }
}

type Parsed = Result<Expr, Failure>;

/// The expression that `tokens` are.
pub fn expression(tokens: &[Lexeme]) -> Parsed {
    let mut parser = Parser { tokens, at: 0, depth: 0, nodes: 0, bars: 0 };
    // `1 \over 2` without braces around it.
    let expression = parser.quotient(0, tokens.len())?;
    if parser.at == tokens.len() { Ok(expression) } else { Err(Failure::NotMathematics) }
}

/// Where the bracket or group that opens at `start` closes; round and square ones may close each other, as intervals do.
pub fn closing(tokens: &[Lexeme], start: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, lexeme) in tokens.iter().enumerate().skip(start) {
        match lexeme.token {
            Token::Open(_) | Token::GroupOpen | Token::Begin(_) => depth += 1,
            Token::Close(_) | Token::GroupClose | Token::End(_) => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

struct Parser<'a> {
    tokens: &'a [Lexeme],
    at: usize,
    depth: usize,
    nodes: usize,
    /// Absolute bars that are open.
    bars: usize,
}

/// Letters that stand for functions where a bracket follows at once.
const FUNCTIONS: &str = "fghFGHPQWT";

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at).map(|lexeme| &lexeme.token)
    }

    fn is(&self, symbol: char) -> bool {
        self.peek() == Some(&Token::Symbol(symbol))
    }

    fn take(&mut self, symbol: char) -> bool {
        let is = self.is(symbol);
        self.at += usize::from(is);
        is
    }

    fn enter(&mut self) -> Result<(), Failure> {
        self.depth += 1;
        match self.depth > DEPTH {
            true => Err(TooLarge("the answer nests deeper than 100").into()),
            false => Ok(()),
        }
    }

    fn node(&mut self) -> Result<(), Failure> {
        self.nodes += 1;
        match self.nodes > NODES {
            true => Err(TooLarge("the answer has more than 4000 operands").into()),
            false => Ok(()),
        }
    }

    /// `[+-] term (+- term)*`
    fn sum(&mut self) -> Parsed {
        self.enter()?;
        let mut terms = vec![self.term()?];
        loop {
            if self.take('+') {
                terms.push(self.term()?);
            } else if self.take('-') {
                terms.push(self.term()?.negated());
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(if terms.len() == 1 { terms.swap_remove(0) } else { Expr::Sum(terms) })
    }

    /// Factors, written or not.
    fn term(&mut self) -> Parsed {
        let mut factors = vec![self.signed()?];
        loop {
            match self.peek() {
                Some(Token::Symbol('*')) => {
                    self.at += 1;
                    factors.push(self.signed()?);
                }
                Some(Token::Symbol('/')) => {
                    self.at += 1;
                    factors.push(self.signed()?.inverted());
                }
                Some(Token::Command(name)) if name == "bmod" => {
                    self.at += 1;
                    let dividend = product(std::mem::take(&mut factors));
                    factors.push(Expr::Apply(Function::Mod, vec![dividend, self.signed()?]));
                }
                // "2 3" and "x2" are no products; `3!5!` is one.
                Some(token)
                    if self.begins(token)
                        && (!matches!(token, Token::Number { .. }) || self.between_factorials() || self.behind_power()) =>
                {
                    factors.push(self.factor()?)
                }
                _ => break,
            }
        }
        Ok(product(factors))
    }

    /// Whether here, in `3!5!`, the second factorial begins.
    fn between_factorials(&self) -> bool {
        let mark = |at: usize| self.tokens.get(at).is_some_and(|lexeme| lexeme.token == Token::Symbol('!'));
        self.at > 0 && mark(self.at - 1) && mark(self.at + 1)
    }

    /// Whether here, in `(n-1)2^n` or `2^{5}3^{2}`, a power of a number is the next factor. "(1) 2" numbers an answer.
    fn behind_power(&self) -> bool {
        let token = |at: usize| self.tokens.get(at).map(|lexeme| &lexeme.token);
        let numbered = || {
            self.at >= 3 && matches!(token(self.at - 3), Some(Token::Open(_))) && matches!(token(self.at - 2), Some(Token::Number { .. }))
        };
        token(self.at + 1) == Some(&Token::Symbol('^'))
            && self.at > 0
            && match token(self.at - 1) {
                Some(Token::Close(')')) => !numbered(),
                Some(Token::GroupClose) => true,
                _ => false,
            }
    }

    fn signed(&mut self) -> Parsed {
        if self.take('-') {
            self.enter()?;
            let negated = self.signed()?.negated();
            self.depth -= 1;
            return Ok(negated);
        }
        if self.take('+') {
            self.enter()?;
            let same = self.signed();
            self.depth -= 1;
            return same;
        }
        self.factor()
    }

    /// Whether an operand may begin here.
    fn begins(&self, token: &Token) -> bool {
        match token {
            Token::Number { .. } | Token::Letter(_) | Token::GroupOpen => true,
            Token::Open(bracket) => *bracket != '{' && *bracket != '⟨',
            Token::Command(name) => name != "bmod" && name != "over" && name != "choose" && name != "pmod" && name != "emptyset",
            Token::Symbol('∞') => true,
            Token::Symbol('|' | '‖') => self.bars == 0,
            _ => false,
        }
    }

    /// An operand with what stands behind it: powers, factorials, degrees, primes.
    fn factor(&mut self) -> Parsed {
        let mut base = self.operand()?;
        let mut marks = 0;
        loop {
            match self.peek() {
                Some(Token::Symbol('^')) => {
                    self.at += 1;
                    base = base.power(self.exponent()?);
                }
                Some(Token::Symbol('°')) => {
                    self.at += 1;
                    base = Expr::Apply(Function::Degrees, vec![base]);
                }
                Some(Token::Symbol('!')) => {
                    self.at += 1;
                    let function = if self.take('!') { Function::DoubleFactorial } else { Function::Factorial };
                    base = Expr::Apply(function, vec![base]);
                }
                Some(Token::Symbol('%')) => {
                    self.at += 1;
                    base = base.divided(Expr::integer(100));
                }
                Some(Token::Symbol('\'')) => {
                    self.at += 1;
                    base = Expr::Unknown("prime".into(), vec![base]);
                }
                _ => break,
            }
            marks += 1;
            if marks > MARKS {
                return Err(TooLarge("an operand has more than 8 marks").into());
            }
        }
        Ok(base)
    }

    /// What stands behind `^`: one operand with its sign and its own powers ("2^3^2", "2^-1").
    fn exponent(&mut self) -> Parsed {
        self.enter()?;
        let exponent = if self.take('-') {
            self.exponent()?.negated()
        } else {
            let operand = self.plain_operand()?;
            match self.take('^') {
                true => operand.power(self.exponent()?),
                false => operand,
            }
        };
        self.depth -= 1;
        Ok(exponent)
    }

    /// An operand; an integer with a proper fraction behind it is one mixed number.
    fn operand(&mut self) -> Parsed {
        if let Some(Token::Number { value, places: None, .. }) = self.peek()
            && let Some((fraction, length)) = self.proper_fraction(self.at + 1)
        {
            self.node()?;
            self.at += 1 + length;
            return Ok(Expr::Number(value + fraction));
        }
        self.plain_operand()
    }

    /// `\frac{a}{b}` or, behind a space, `a/b`, in digits and below one; and the number of its tokens.
    fn proper_fraction(&self, at: usize) -> Option<(BigRational, usize)> {
        let number = |at: usize| match self.tokens.get(at).map(|l| &l.token) {
            Some(Token::Number { value, places: None, .. }) => Some(value.clone()),
            _ => None,
        };
        let token = |at: usize, token: &Token| self.tokens.get(at).is_some_and(|l| l.token == *token);
        let grouped = |at: usize| match token(at, &Token::GroupOpen) && token(at + 2, &Token::GroupClose) {
            true => number(at + 1).map(|value| (value, 3)),
            false => number(at).map(|value| (value, 1)),
        };
        // `2{\frac{1}{3}}`
        if token(at, &Token::GroupOpen) {
            return self
                .proper_fraction(at + 1)
                .filter(|(_, length)| token(at + 1 + length, &Token::GroupClose))
                .map(|(fraction, length)| (fraction, length + 2));
        }
        let (above, below, length) = if matches!(self.tokens.get(at).map(|l| &l.token), Some(Token::Command(name)) if name == "frac") {
            match self.tokens.get(at + 1).map(|l| &l.token) {
                // `\frac12`
                Some(Token::Number { digits, places: None, .. }) if digits.len() == 2 => {
                    let digit = |text: &str| text.parse::<BigInt>().ok().map(BigRational::from_integer);
                    (digit(&digits[..1])?, digit(&digits[1..])?, 2)
                }
                _ => {
                    let (above, first) = grouped(at + 1)?;
                    let (below, second) = grouped(at + 1 + first)?;
                    (above, below, 1 + first + second)
                }
            }
        } else if self.tokens.get(at)?.spaced && token(at + 1, &Token::Symbol('/')) {
            (number(at)?, number(at + 2)?, 3)
        } else {
            return None;
        };
        // A power behind it belongs to the fraction's end: then it was no mixed number.
        let powered = token(at + length, &Token::Symbol('^'));
        (above < below && !below.is_zero() && !powered).then(|| (above / below, length))
    }

    fn plain_operand(&mut self) -> Parsed {
        self.node()?;
        let Some(lexeme) = self.tokens.get(self.at) else { return Err(Failure::NotMathematics) };
        match &lexeme.token {
            Token::Number { value, places, .. } => {
                self.at += 1;
                // A numeral of another base is no number of this one.
                if self.is('_') {
                    return Err(Failure::NotMathematics);
                }
                Ok(match places {
                    Some(places) => Expr::Decimal { value: value.clone(), places: *places },
                    None => Expr::Number(value.clone()),
                })
            }
            Token::Letter(letter) => {
                self.at += 1;
                self.letter(*letter)
            }
            Token::Symbol('∞') => {
                self.at += 1;
                Ok(Expr::Constant(Constant::Infinity))
            }
            Token::Symbol(bar @ ('|' | '‖')) => self.bars(*bar),
            Token::GroupOpen => self.group(),
            Token::Open(bracket) => self.bracketed(*bracket),
            Token::Command(name) => {
                self.at += 1;
                self.command(name)
            }
            _ => Err(Failure::NotMathematics),
        }
    }

    fn letter(&mut self, letter: char) -> Parsed {
        let mut name = letter.to_string();
        while self.take('\'') {
            name.push('\'');
            if name.len() > MARKS {
                return Err(TooLarge("an operand has more than 8 marks").into());
            }
        }
        if name == "C"
            && let Some(binomial) = self.combinations()?
        {
            return Ok(binomial);
        }
        if self.is('_') {
            name.push('_');
            name += &self.subscript()?;
            return self.named(name, FUNCTIONS.contains(letter));
        }
        match name.as_str() {
            "e" => Ok(Expr::Constant(Constant::E)),
            "i" => Ok(Expr::Constant(Constant::I)),
            _ => self.named(name, FUNCTIONS.contains(letter)),
        }
    }

    /// Behind a C, `(10, 3)` or `_{10}^{3}`: how many ways there are to choose 3 of 10.
    fn combinations(&mut self) -> Result<Option<Expr>, Failure> {
        let start = self.at;
        let bracket = matches!(self.peek(), Some(Token::Open('('))) && !self.tokens[self.at].spaced;
        if bracket {
            return Ok(match self.arguments() {
                Ok(arguments) if arguments.len() == 2 => Some(Expr::Apply(Function::Binomial, arguments)),
                Err(Failure::Limit(limit)) => return Err(limit.into()),
                _ => {
                    self.at = start;
                    None
                }
            });
        }
        let number = |parser: &mut Self, mark: char| match parser.take(mark) {
            true => parser.braced().ok().and_then(|value| value.as_number().cloned()),
            false => None,
        };
        let (of, chosen) = (number(self, '_'), number(self, '^'));
        // `C_1^2` is a constant's square.
        Ok(match (of, chosen) {
            (Some(of), Some(chosen)) if chosen <= of => Some(Expr::Apply(Function::Binomial, vec![Expr::Number(of), Expr::Number(chosen)])),
            _ => {
                self.at = start;
                None
            }
        })
    }

    /// A variable, or a function of what stands in the bracket behind it.
    fn named(&mut self, name: String, function: bool) -> Parsed {
        let bracket = matches!(self.peek(), Some(Token::Open('('))) && !self.tokens[self.at].spaced;
        match function && bracket {
            true => Ok(Expr::Unknown(name, self.arguments()?)),
            false => Ok(Expr::Symbol(name)),
        }
    }

    /// `_x`, `_{...}`: as text.
    fn subscript(&mut self) -> Result<String, Failure> {
        self.at += 1;
        let end = match self.peek() {
            Some(Token::GroupOpen) => closing(self.tokens, self.at).ok_or(Failure::NotMathematics)?,
            Some(_) => self.at,
            None => return Err(Failure::NotMathematics),
        };
        let inside = &self.tokens[self.at..=end];
        self.at = end + 1;
        let mut text = String::new();
        for lexeme in inside {
            match &lexeme.token {
                Token::Number { digits, .. } => text += digits,
                Token::Letter(letter) => text.push(*letter),
                Token::Word(word) | Token::Text(word) | Token::Command(word) => text += word,
                Token::Symbol(symbol) | Token::Open(symbol) | Token::Close(symbol) => text.push(*symbol),
                Token::GroupOpen | Token::GroupClose => {}
                _ => return Err(Failure::NotMathematics),
            }
        }
        Ok(text)
    }

    /// `|x|`, `‖x‖`
    fn bars(&mut self, bar: char) -> Parsed {
        self.enter()?;
        self.at += 1;
        self.bars += 1;
        let inside = self.sum()?;
        if !self.take(bar) {
            return Err(Failure::NotMathematics);
        }
        self.bars -= 1;
        self.depth -= 1;
        Ok(match bar {
            '|' => Expr::Apply(Function::Abs, vec![inside]),
            _ => Expr::Unknown("norm".into(), vec![inside]),
        })
    }

    /// `{...}`, with `\over` and `\choose`.
    fn group(&mut self) -> Parsed {
        let end = closing(self.tokens, self.at).ok_or(Failure::NotMathematics)?;
        // `{}_{10}C_{3}`
        if end == self.at + 1 {
            return self.chosen(end + 1);
        }
        let result = self.quotient(self.at + 1, end)?;
        self.at = end + 1;
        Ok(result)
    }

    /// `_{10}C_{3}`, `^{10}C_{3}`: a binomial coefficient with both numbers below or beside the letter.
    fn chosen(&mut self, at: usize) -> Parsed {
        self.at = at;
        if !self.take('_') && !self.take('^') {
            return Err(Failure::NotMathematics);
        }
        let from = self.braced()?;
        if self.peek() != Some(&Token::Letter('C')) {
            return Err(Failure::NotMathematics);
        }
        self.at += 1;
        if !self.take('_') {
            return Err(Failure::NotMathematics);
        }
        let chosen = self.braced()?;
        Ok(Expr::Apply(Function::Binomial, vec![from, chosen]))
    }

    /// What the tokens from `start` to `end` are, with `\over` and `\choose` that divide all of them.
    fn quotient(&mut self, start: usize, end: usize) -> Parsed {
        let mut depth = 0usize;
        let divided = (start..end).find(|at| {
            match &self.tokens[*at].token {
                Token::GroupOpen | Token::Open(_) => depth += 1,
                Token::GroupClose | Token::Close(_) => depth = depth.saturating_sub(1),
                Token::Command(name) if depth == 0 && (name == "over" || name == "choose") => return true,
                _ => {}
            }
            false
        });
        let tokens = self.tokens;
        let result = match divided {
            Some(at) => {
                let (above, below) = (self.within(start, at)?, self.within(at + 1, end)?);
                match &tokens[at].token {
                    Token::Command(name) if name == "choose" => Expr::Apply(Function::Binomial, vec![above, below]),
                    _ => above.divided(below),
                }
            }
            None => self.within(start, end)?,
        };
        self.at = end;
        Ok(result)
    }

    /// The expression that exactly the tokens from `start` to `end` are.
    fn within(&mut self, start: usize, end: usize) -> Parsed {
        self.enter()?;
        let mut inner = Parser { tokens: &self.tokens[..end], at: start, depth: self.depth, nodes: self.nodes, bars: 0 };
        let result = inner.sum()?;
        if inner.at != end {
            return Err(Failure::NotMathematics);
        }
        self.nodes = inner.nodes;
        self.depth -= 1;
        Ok(result)
    }

    fn bracketed(&mut self, bracket: char) -> Parsed {
        let end = closing(self.tokens, self.at).ok_or(Failure::NotMathematics)?;
        let closes = match bracket {
            '(' => ')',
            '[' => ']',
            '⌊' => '⌋',
            '⌈' => '⌉',
            _ => return Err(Failure::NotMathematics),
        };
        if self.tokens[end].token != Token::Close(closes) {
            return Err(Failure::NotMathematics);
        }
        let inside = self.within(self.at + 1, end)?;
        self.at = end + 1;
        Ok(match bracket {
            '⌊' => Expr::Apply(Function::Floor, vec![inside]),
            '⌈' => Expr::Apply(Function::Ceil, vec![inside]),
            // "(2)" must not become one with what precedes, but an expression is what it is.
            _ => inside,
        })
    }

    /// `(a, b, ...)`
    fn arguments(&mut self) -> Result<Vec<Expr>, Failure> {
        let end = closing(self.tokens, self.at).ok_or(Failure::NotMathematics)?;
        let mut arguments = Vec::new();
        let mut start = self.at + 1;
        let mut depth = 0usize;
        for at in self.at + 1..=end {
            match self.tokens[at].token {
                Token::Open(_) | Token::GroupOpen => depth += 1,
                Token::Close(_) | Token::GroupClose if at < end => depth = depth.saturating_sub(1),
                _ => {}
            }
            let comma = depth == 0 && matches!(self.tokens[at].token, Token::Symbol(',' | ';'));
            if comma || at == end {
                arguments.push(self.within(start, at)?);
                start = at + 1;
            }
        }
        self.at = end + 1;
        Ok(arguments)
    }

    /// One operand in braces, or the next digit or letter: `\frac12`, `\frac{1}2`.
    fn braced(&mut self) -> Parsed {
        self.enter()?;
        let operand = match self.peek() {
            Some(Token::GroupOpen) => self.group(),
            // LaTeX takes one digit; a longer number is cut.
            Some(Token::Number { .. } | Token::Letter(_) | Token::Command(_)) => self.plain_operand(),
            _ => Err(Failure::NotMathematics),
        };
        self.depth -= 1;
        operand
    }

    fn fraction(&mut self) -> Parsed {
        // `\frac12`: the lexer has made one number of the two digits; `\frac19{4}` is 1/9 times something and means nothing.
        if let Some(Token::Number { digits, places: None, .. }) = self.peek()
            && digits.len() > 1
        {
            let (above, below) = digits.split_at(1);
            let below = BigRational::from_integer(below.parse::<BigInt>().map_err(|_| Failure::NotMathematics)?);
            let above = BigRational::from_integer(above.parse::<BigInt>().map_err(|_| Failure::NotMathematics)?);
            if digits.len() == 2 {
                self.at += 1;
                return Ok(Expr::Number(above).divided(Expr::Number(below)));
            }
            // `\frac112`, or `\frac1{12}` written without braces: the numerator is one digit, and the rest the denominator.
            self.at += 1;
            return Ok(Expr::Number(above).divided(Expr::Number(below)));
        }
        if matches!(self.peek(), Some(Token::Open('('))) {
            return Err(Failure::NotMathematics);
        }
        let above = self.braced()?;
        let below = self.braced()?;
        Ok(above.divided(below))
    }

    fn root(&mut self) -> Parsed {
        let mut degree = Expr::integer(2);
        if matches!(self.peek(), Some(Token::Open('['))) {
            let end = closing(self.tokens, self.at).ok_or(Failure::NotMathematics)?;
            degree = self.within(self.at + 1, end)?;
            self.at = end + 1;
        }
        let radicand = match self.peek() {
            Some(Token::Open('(')) => self.bracketed('(')?,
            _ => self.braced()?,
        };
        Ok(Expr::Apply(Function::Root, vec![radicand, degree]))
    }

    fn command(&mut self, name: &str) -> Parsed {
        use Function as F;
        match name {
            "frac" => self.fraction(),
            "sqrt" => self.root(),
            "cbrt" => {
                let radicand = self.argument()?;
                Ok(Expr::Apply(F::Root, vec![radicand, Expr::integer(3)]))
            }
            "binom" => {
                if matches!(self.peek(), Some(Token::Open('('))) {
                    return self.several(F::Binomial);
                }
                let (above, below) = (self.braced()?, self.braced()?);
                Ok(Expr::Apply(F::Binomial, vec![above, below]))
            }
            "pi" => Ok(Expr::Constant(Constant::Pi)),
            "sin" => self.function(F::Sin),
            "cos" => self.function(F::Cos),
            "tan" | "tg" => self.function(F::Tan),
            "cot" | "ctg" | "cotg" => self.function(F::Cot),
            "sec" => self.function(F::Sec),
            "csc" | "cosec" => self.function(F::Csc),
            "arcsin" => self.function(F::Arcsin),
            "arccos" => self.function(F::Arccos),
            "arctan" | "arctg" => self.function(F::Arctan),
            "arccot" | "arcctg" => self.function(F::Arccot),
            "arcsec" => self.function(F::Arcsec),
            "arccsc" => self.function(F::Arccsc),
            "sinh" | "sh" => self.function(F::Sinh),
            "cosh" | "ch" => self.function(F::Cosh),
            "tanh" => self.function(F::Tanh),
            "coth" => self.function(F::Coth),
            "arsinh" => self.function(F::Arsinh),
            "artanh" => self.function(F::Artanh),
            "cis" => {
                let angle = self.argument()?;
                let sine = Expr::Product(vec![Expr::Constant(Constant::I), Expr::Apply(F::Sin, vec![angle.clone()])]);
                Ok(Expr::Sum(vec![Expr::Apply(F::Cos, vec![angle]), sine]))
            }
            "Re" => self.function(F::Re),
            "Im" => self.function(F::Im),
            "exp" => {
                let exponent = self.argument()?;
                Ok(Expr::Constant(Constant::E).power(exponent))
            }
            "ln" => self.function(F::Ln),
            "lg" => {
                let argument = self.argument()?;
                Ok(Expr::Apply(F::Log, vec![argument, Expr::integer(10)]))
            }
            "log" => self.logarithm(),
            "abs" => self.function(F::Abs),
            "floor" => self.function(F::Floor),
            "ceil" => self.function(F::Ceil),
            "gcd" => self.several(F::Gcd),
            "lcm" | "operatornamelcm" => self.several(F::Lcm),
            "max" => self.several(F::Max),
            "min" => self.several(F::Min),
            "sum" => self.series(F::SumOver),
            "prod" => self.series(F::ProductOver),
            "lim" | "int" | "iint" | "oint" | "limsup" | "liminf" => self.opaque(name),
            "overline" | "bar" | "overrightarrow" | "widehat" | "hat" | "tilde" | "dot" | "ddot" | "overleftrightarrow" | "arc"
            | "overarc" => {
                let inside = self.braced()?;
                // The conjugate of a number; of digits or points it is only a name.
                if matches!(name, "overline" | "bar") && is_complex(&inside) {
                    return Ok(Expr::Apply(F::Conjugate, vec![inside]));
                }
                // A vector from A to B is none from B to A.
                if name == "overrightarrow"
                    && let Expr::Product(points) = &inside
                    && let Some(points) =
                        points.iter().map(|p| if let Expr::Symbol(p) = p { Some(p.as_str()) } else { None }).collect::<Option<Vec<_>>>()
                {
                    return Ok(Expr::Symbol(format!("{name} {}", points.join(" "))));
                }
                Ok(Expr::Unknown(name.to_owned(), vec![inside]))
            }
            "angle" | "measuredangle" | "triangle" | "nabla" | "partial" | "Delta" => {
                let argument = self.implicit_product()?;
                Ok(match argument {
                    Some(argument) => Expr::Unknown(name.to_owned(), vec![argument]),
                    None => Expr::Symbol(name.to_owned()),
                })
            }
            "over" | "choose" | "pmod" | "forall" | "exists" | "because" | "therefore" | "mathbb" | "emptyset" => {
                Err(Failure::NotMathematics)
            }
            _ if name.starts_with("mathbb ") => Err(Failure::NotMathematics),
            _ => {
                let mut name = name.to_owned();
                if self.is('_') {
                    name.push('_');
                    name += &self.subscript()?;
                }
                match self.peek() {
                    Some(Token::GroupOpen) => {
                        let inside = self.group()?;
                        Ok(Expr::Unknown(name, vec![inside]))
                    }
                    _ => {
                        let function = ["phi", "psi", "Gamma", "zeta"].contains(&name.as_str());
                        self.named(name, function)
                    }
                }
            }
        }
    }

    /// `\sin x`, `\sin^2 x`, `\sin(x)`, `\sin^{-1} x`
    fn function(&mut self, function: Function) -> Parsed {
        let mut exponent = None;
        if self.take('^') {
            exponent = Some(self.exponent()?);
        }
        let argument = self.argument()?;
        let inverse = match function {
            Function::Sin => Some(Function::Arcsin),
            Function::Cos => Some(Function::Arccos),
            Function::Tan => Some(Function::Arctan),
            Function::Cot => Some(Function::Arccot),
            _ => None,
        };
        Ok(match (exponent, inverse) {
            (Some(Expr::Number(minus)), Some(inverse)) if minus == -BigRational::one() => Expr::Apply(inverse, vec![argument]),
            (Some(exponent), _) => Expr::Apply(function, vec![argument]).power(exponent),
            (None, _) => Expr::Apply(function, vec![argument]),
        })
    }

    fn logarithm(&mut self) -> Parsed {
        let mut base = None;
        if self.take('_') {
            base = Some(match self.peek() {
                // `\log_28` is the logarithm of 8 to the base 2.
                Some(Token::Number { digits, places: None, .. }) if digits.len() == 2 && !self.begins_at(self.at + 1) => {
                    let (first, second) = digits.split_at(1);
                    self.at += 1;
                    let digit = |text: &str| text.parse::<i64>().map(Expr::integer).map_err(|_| Failure::NotMathematics);
                    return Ok(Expr::Apply(Function::Log, vec![digit(second)?, digit(first)?]));
                }
                _ => self.braced()?,
            });
        }
        let mut exponent = None;
        if self.take('^') {
            exponent = Some(self.exponent()?);
        }
        let argument = self.argument()?;
        // Without a base: in contests ten, in analysis e; "log" alone is the name, and both sides write it.
        let applied = match base {
            Some(base) => Expr::Apply(Function::Log, vec![argument, base]),
            None => Expr::Apply(Function::Log, vec![argument, Expr::integer(10)]),
        };
        Ok(match exponent {
            Some(exponent) => applied.power(exponent),
            None => applied,
        })
    }

    fn begins_at(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|lexeme| self.begins(&lexeme.token))
    }

    /// A function's argument: a bracket, or a product written without signs, up to the next function.
    fn argument(&mut self) -> Parsed {
        self.enter()?;
        let argument = match self.peek() {
            Some(Token::Open('(')) => {
                let inside = self.bracketed('(')?;
                match self.peek() {
                    // `\sin(x)^2` is the power of the sine in print; the argument's power in strict reading. Print wins where a bracket is used.
                    Some(Token::Symbol('°')) => {
                        self.at += 1;
                        Expr::Apply(Function::Degrees, vec![inside])
                    }
                    _ => inside,
                }
            }
            Some(Token::Open('[')) => self.bracketed('[')?,
            Some(Token::Symbol('-')) => {
                self.at += 1;
                self.argument()?.negated()
            }
            _ => self.implicit_product()?.ok_or(Failure::NotMathematics)?,
        };
        self.depth -= 1;
        Ok(argument)
    }

    /// Operands side by side: numbers, letters, fractions, roots; functions end it, unless one comes first.
    fn implicit_product(&mut self) -> Result<Option<Expr>, Failure> {
        self.enter()?;
        let mut factors = Vec::new();
        while let Some(token) = self.peek() {
            let belongs = match token {
                Token::Number { .. } => factors.is_empty(),
                Token::Letter(_) | Token::GroupOpen => true,
                Token::Symbol('|' | '‖') => factors.is_empty() && self.bars == 0,
                Token::Open('⌊' | '⌈') => factors.is_empty(),
                Token::Command(name) => {
                    let function = matches!(
                        name.as_str(),
                        "sin"
                            | "cos"
                            | "tan"
                            | "cot"
                            | "sec"
                            | "csc"
                            | "arcsin"
                            | "arccos"
                            | "arctan"
                            | "ln"
                            | "log"
                            | "lg"
                            | "exp"
                            | "sum"
                            | "prod"
                    );
                    self.begins(token) && (!function || factors.is_empty())
                }
                _ => false,
            };
            if !belongs {
                break;
            }
            factors.push(self.factor()?);
        }
        self.depth -= 1;
        Ok((!factors.is_empty()).then(|| product(factors)))
    }

    /// `\gcd(a, b)`
    fn several(&mut self, function: Function) -> Parsed {
        match self.peek() {
            Some(Token::Open('(' | '{' | '[')) => Ok(Expr::Apply(function, self.arguments()?)),
            _ => Err(Failure::NotMathematics),
        }
    }

    /// `\sum_{k=1}^{n} ...`
    fn series(&mut self, function: Function) -> Parsed {
        if !self.take('_') || self.peek() != Some(&Token::GroupOpen) {
            return Err(Failure::NotMathematics);
        }
        let end = closing(self.tokens, self.at).ok_or(Failure::NotMathematics)?;
        let (index, from) = match &self.tokens[self.at + 1..end] {
            [Lexeme { token: Token::Letter(index), .. }, Lexeme { token: Token::Symbol('='), .. }, ..] => {
                (index.to_string(), self.within(self.at + 3, end)?)
            }
            _ => return Err(Failure::NotMathematics),
        };
        self.at = end + 1;
        if !self.take('^') {
            return Err(Failure::NotMathematics);
        }
        let to = self.exponent()?;
        self.enter()?;
        let term = self.term()?;
        self.depth -= 1;
        // The imaginary unit is a favourite index.
        let term = if index == "i" { with_index(term) } else { term };
        Ok(Expr::Apply(function, vec![term, Expr::Symbol(index), from, to]))
    }

    /// A limit or an integral: its name, its marks, and what it is of.
    fn opaque(&mut self, name: &str) -> Parsed {
        let mut name = name.to_owned();
        for mark in ['_', '^'] {
            if self.is(mark) {
                name.push(mark);
                name += &self.subscript()?;
            }
        }
        self.enter()?;
        let of = self.term()?;
        self.depth -= 1;
        Ok(Expr::Unknown(name, vec![of]))
    }
}

/// i as an index.
fn with_index(term: Expr) -> Expr {
    let all = |items: Vec<Expr>| items.into_iter().map(with_index).collect();
    match term {
        Expr::Constant(Constant::I) => Expr::Symbol("i".into()),
        Expr::Sum(items) => Expr::Sum(all(items)),
        Expr::Product(items) => Expr::Product(all(items)),
        Expr::Power(base, exponent) => with_index(*base).power(with_index(*exponent)),
        Expr::Apply(function, items) => Expr::Apply(function, all(items)),
        Expr::Unknown(name, items) => Expr::Unknown(name, all(items)),
        other => other,
    }
}

/// Whether it is a sum with the imaginary unit in it, or a multiple of that.
fn is_complex(expression: &Expr) -> bool {
    let unit = |e: &Expr| match e {
        Expr::Constant(Constant::I) => true,
        Expr::Product(factors) => {
            factors.contains(&Expr::Constant(Constant::I)) && !factors.iter().any(|factor| matches!(factor, Expr::Symbol(_)))
        }
        _ => false,
    };
    match expression {
        Expr::Sum(terms) => terms.iter().any(unit),
        other => unit(other),
    }
}

fn product(mut factors: Vec<Expr>) -> Expr {
    if factors.len() == 1 {
        return factors.swap_remove(0);
    }
    Expr::Product(factors)
}

/// Whether it is a quotient of integers that has a common divisor: 2/4.
pub fn is_unreduced(expression: &Expr) -> bool {
    let integer = |e: &Expr| e.as_number().filter(|n| n.is_integer()).map(|n| n.numer().abs());
    match expression {
        Expr::Product(factors) => match factors.as_slice() {
            [above, Expr::Power(below, exponent)] if exponent.as_number() == Some(&-BigRational::one()) => {
                match (integer(above), integer(below)) {
                    (Some(above), Some(below)) => num_integer::Integer::gcd(&above, &below) > BigInt::one(),
                    _ => false,
                }
            }
            [minus, rest] if minus.as_number().is_some_and(|n| *n == -BigRational::one()) => is_unreduced(rest),
            _ => false,
        },
        _ => false,
    }
}
