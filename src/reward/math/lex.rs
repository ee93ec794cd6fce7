//! From an answer's text to tokens: LaTeX, plain text and Unicode come out alike.
//!
//! A token knows whether white space stood before it ("1 1/4" is a mixed number, "0 1 2" is nothing). Thousands separators are gone,
//! spacing commands, `\left`, `\right` and fonts too, `\dfrac` is `\frac`, `\cdot` is `*`. Two texts with equal tokens say the same.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::One;

use super::expr::TooLarge;
use super::units::unit;

/// Longest answer, in bytes.
pub const ANSWER_BYTES: usize = 8192;
/// Most tokens of an answer.
const TOKENS: usize = 4096;
/// Most digits of a number, and the largest exponent of one in scientific notation.
const DIGITS: usize = 1000;
const EXPONENT: i64 = 1000;

/// What a text is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Token {
    /// A number; `places` says how many digits behind the point it was written with, if it had a point.
    Number {
        /// Its exact value.
        value: BigRational,
        /// Digits behind the point.
        places: Option<i32>,
        /// Its digits, as they are written: a numeral of another base may follow from them.
        digits: String,
    },
    /// One letter: a variable.
    Letter(char),
    /// A word: a unit, a name, prose.
    Word(String),
    /// What stands in `\text{...}` and says more than one letter or number.
    Text(String),
    /// A LaTeX command without its backslash, or a function's name in plain text.
    Command(String),
    /// An operator, a relation or punctuation.
    Symbol(char),
    /// `(`, `[`, `{` of a set, and the opening ones of floor, ceiling and angle brackets.
    Open(char),
    /// Their counterparts.
    Close(char),
    /// A brace of LaTeX that groups.
    GroupOpen,
    /// Its counterpart.
    GroupClose,
    /// "and", "or".
    Conjunction,
    /// `\begin{...}`
    Begin(String),
    /// `\end{...}`
    End(String),
    /// `\\`: the next row.
    Row,
}

/// A token and what stood before it.
#[derive(Clone, Debug)]
pub struct Lexeme {
    /// The token.
    pub token: Token,
    /// White space, of LaTeX too, stood before it.
    pub spaced: bool,
}

impl PartialEq for Lexeme {
    fn eq(&self, other: &Self) -> bool {
        self.token == other.token
    }
}

/// How commas between digits are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commas {
    /// As thousands separators where they stand right, else as punctuation.
    Thousands,
    /// As punctuation where they are not of LaTeX (`{,}`).
    Punctuation,
    /// As the decimal point where two digits or more, but not three, follow, or 0 precedes.
    Decimal,
}

/// Cuts a text into tokens.
pub fn lex(text: &str, commas: Commas) -> Result<Vec<Lexeme>, TooLarge> {
    if text.len() > ANSWER_BYTES {
        return Err(TooLarge("the answer is longer than 8192 bytes"));
    }
    let mut lexer = Lexer { rest: text, commas, spaced: false, environments: 0, out: Vec::with_capacity(16), nested: 0 };
    lexer.run()?;
    Ok(lexer.out)
}

struct Lexer<'a> {
    rest: &'a str,
    commas: Commas,
    spaced: bool,
    environments: usize,
    out: Vec<Lexeme>,
    /// How deep this lexer is inside `\text{...}` of others.
    nested: usize,
}

/// Words of less than four letters that are words and not products of variables.
const SHORT_WORDS: [&str; 93] = [
    "cm", "mm", "km", "kg", "mg", "ml", "ft", "lb", "lbs", "oz", "hr", "hrs", "mph", "kph", "yd", "yds", "mi", "sq", "cu", "yes", "no",
    "odd", "am", "pm", "day", "men", "man", "egg", "cup", "per", "the", "is", "to", "of", "for", "if", "all", "one", "two", "six", "ten",
    "red", "he", "she", "it", "we", "box", "car", "cat", "dog", "pen", "toy", "way", "boy", "map", "bag", "can", "row", "bus", "cow",
    "hen", "pig", "usd", "eur", "gbp", "rs", "hz", "mol", "min", "sec", "kw", "kj", "dm", "au", "not", "yen", "yuan", "won", "ton", "gal",
    "pts", "ant", "bee", "fox", "hat", "key", "kid", "pie", "jar", "rod", "bed", "cap", "tie",
];

/// Short names of months and days, as they are written: "May" is no product.
const SHORT_DATES: [&str; 19] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Names that LaTeX sources define with `\operatorname` or write upright, beyond those of [`plain_command`].
const UPRIGHT: [&str; 17] = [
    "tg", "ctg", "cotg", "arctg", "arcctg", "cosec", "sh", "ch", "cis", "arccot", "arcsec", "arccsc", "coth", "Re", "Im", "arsinh",
    "artanh",
];

/// Names of functions and constants that plain text writes without a backslash, and what LaTeX calls them.
fn plain_command(word: &str) -> Option<&'static str> {
    Some(match word {
        "sin" => "sin",
        "cos" => "cos",
        "tan" => "tan",
        "cot" => "cot",
        "sec" => "sec",
        "csc" => "csc",
        "arcsin" | "asin" => "arcsin",
        "arccos" | "acos" => "arccos",
        "arctan" | "atan" => "arctan",
        "sinh" => "sinh",
        "cosh" => "cosh",
        "tanh" => "tanh",
        "log" => "log",
        "ln" => "ln",
        "lg" => "lg",
        "exp" => "exp",
        "sqrt" => "sqrt",
        "cbrt" => "cbrt",
        "gcd" => "gcd",
        "lcm" => "lcm",
        "max" => "max",
        "min" => "min",
        "mod" => "bmod",
        "abs" => "abs",
        "floor" => "floor",
        "ceil" => "ceil",
        "binom" | "binomial" => "binom",
        "pi" | "Pi" => "pi",
        "alpha" => "alpha",
        "beta" => "beta",
        "theta" => "theta",
        "lambda" => "lambda",
        _ => return None,
    })
}

/// What stands behind a number that counts in order.
const ORDINALS: [&str; 4] = ["th", "st", "nd", "rd"];

impl Lexer<'_> {
    fn push(&mut self, token: Token) -> Result<(), TooLarge> {
        if self.out.len() >= TOKENS {
            return Err(TooLarge("the answer has more than 4096 parts"));
        }
        self.out.push(Lexeme { token, spaced: self.spaced });
        self.spaced = false;
        self.simplify_raised();
        Ok(())
    }

    /// `^\circ`, `^{\circ}`, `^{\prime}`, `5^{\text{th}}`: what is only printed above the line is no power.
    fn simplify_raised(&mut self) {
        let raised = |token: &Token| match token {
            Token::Symbol('°' | '\'') => true,
            Token::Word(word) | Token::Text(word) => ORDINALS.contains(&word.as_str()),
            _ => false,
        };
        let marks = match self.out.as_slice() {
            [.., up, mark] if up.token == Token::Symbol('^') && raised(&mark.token) => 1,
            [.., up, open, mark, close]
                if up.token == Token::Symbol('^')
                    && open.token == Token::GroupOpen
                    && raised(&mark.token)
                    && close.token == Token::GroupClose =>
            {
                self.out.pop();
                self.out.remove(self.out.len() - 2);
                1
            }
            [.., up, open, first, second, close]
                if up.token == Token::Symbol('^')
                    && open.token == Token::GroupOpen
                    && first.token == Token::Symbol('\'')
                    && second.token == Token::Symbol('\'')
                    && close.token == Token::GroupClose =>
            {
                self.out.pop();
                self.out.remove(self.out.len() - 3);
                2
            }
            _ => return,
        };
        self.out.remove(self.out.len() - 1 - marks);
    }

    fn symbol(&mut self, symbol: char, bytes: usize) -> Result<(), TooLarge> {
        self.rest = &self.rest[bytes..];
        self.push(Token::Symbol(symbol))
    }

    fn run(&mut self) -> Result<(), TooLarge> {
        while let Some(c) = self.rest.chars().next() {
            let width = c.len_utf8();
            match c {
                c if c.is_whitespace() || "\u{200b}\u{feff}\u{2061}\u{2062}~".contains(c) => {
                    self.rest = &self.rest[width..];
                    self.spaced = true;
                }
                '0'..='9' => self.number()?,
                '.' if self.rest.starts_with("...") => self.symbol('…', 3)?,
                '.' | '٫' if self.rest[width..].starts_with(|c: char| c.is_ascii_digit()) => self.number()?,
                '\\' => self.command()?,
                '*' if self.rest.starts_with("**") => self.symbol('^', 2)?,
                '<' if self.rest.starts_with("<=") => self.symbol('≤', 2)?,
                '>' if self.rest.starts_with(">=") => self.symbol('≥', 2)?,
                '=' if self.rest.starts_with("==") => self.symbol('=', 2)?,
                '!' if self.rest.starts_with("!=") && !self.rest.starts_with("!==") => self.symbol('≠', 2)?,
                '-' if self.rest.starts_with("->") => self.symbol('→', 2)?,
                '+' if self.rest.starts_with("+-") || self.rest.starts_with("+/-") => {
                    let bytes = if self.rest.starts_with("+-") { 2 } else { 3 };
                    // "3+-2" adds a negative number; "+/-" is both.
                    if bytes == 3 { self.symbol('±', 3)? } else { self.symbol('+', 1)? }
                }
                '{' => {
                    self.rest = &self.rest[1..];
                    // `{,}` between digits that are no thousands.
                    if let Some(rest) = self.rest.strip_prefix(",}") {
                        self.rest = rest;
                        self.push(Token::Symbol(','))?;
                    } else {
                        self.push(Token::GroupOpen)?;
                    }
                }
                '}' => {
                    self.rest = &self.rest[1..];
                    self.push(Token::GroupClose)?;
                }
                '(' | '[' | '⌊' | '⌈' | '⟨' => {
                    self.rest = &self.rest[width..];
                    self.push(Token::Open(c))?;
                }
                ')' | ']' | '⌋' | '⌉' | '⟩' => {
                    self.rest = &self.rest[width..];
                    self.push(Token::Close(c))?;
                }
                // In a table it ends a cell; in text it is a word.
                '&' if self.environments == 0 && self.spaced && self.rest[1..].starts_with(' ') => {
                    self.rest = &self.rest[1..];
                    self.push(Token::Conjunction)?;
                }
                '$' | '`' | '"' | '“' | '”' | '„' | '«' | '»' => self.rest = &self.rest[width..],
                c if letter(c) => self.letters()?,
                _ => {
                    self.rest = &self.rest[width..];
                    self.other(c)?;
                }
            }
        }
        Ok(())
    }

    fn other(&mut self, c: char) -> Result<(), TooLarge> {
        let plain = match c {
            '−' | '–' | '—' | '﹣' | '－' => '-',
            '＋' => '+',
            '×' | '·' | '⋅' | '∙' | '•' | '∗' | '＊' => '*',
            '÷' | '∕' | '⁄' | '／' => '/',
            '，' | '、' | '،' => ',',
            '；' => ';',
            '：' | '∶' => ':',
            '＝' => '=',
            '⩽' | '≦' => '≤',
            '⩾' | '≧' => '≥',
            '＜' => '<',
            '＞' => '>',
            '∣' | '｜' => '|',
            'º' | '˚' => '°',
            '％' => '%',
            '’' | '′' => '\'',
            '≅' | '∼' => '≈',
            '。' => '.',
            '\\' => '∖',
            other => other,
        };
        if plain == '（' || plain == '［' {
            return self.push(Token::Open(if plain == '（' { '(' } else { '[' }));
        }
        if plain == '）' || plain == '］' {
            return self.push(Token::Close(if plain == '）' { ')' } else { ']' }));
        }
        if let Some(at) = "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|c| c == plain) {
            return self.script('^', at);
        }
        if plain == '⁻' || plain == 'ⁿ' {
            self.push(Token::Symbol('^'))?;
            if plain == 'ⁿ' {
                return self.push(Token::Letter('n'));
            }
            self.push(Token::GroupOpen)?;
            self.push(Token::Symbol('-'))?;
            let digits: String = self
                .rest
                .chars()
                .map_while(|c| "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|s| s == c))
                .filter_map(|d| char::from_digit(d as u32, 10))
                .collect();
            let bytes: usize = self.rest.chars().take(digits.len()).map(char::len_utf8).sum();
            self.rest = &self.rest[bytes..];
            let value = digits.parse::<BigInt>().unwrap_or_else(|_| BigInt::one());
            self.push(Token::Number { value: value.into(), places: None, digits })?;
            return self.push(Token::GroupClose);
        }
        if let Some(at) = "₀₁₂₃₄₅₆₇₈₉".chars().position(|c| c == plain) {
            return self.script('_', at);
        }
        let fraction = match plain {
            '½' => Some((1, 2)),
            '⅓' => Some((1, 3)),
            '⅔' => Some((2, 3)),
            '¼' => Some((1, 4)),
            '¾' => Some((3, 4)),
            '⅕' => Some((1, 5)),
            '⅖' => Some((2, 5)),
            '⅗' => Some((3, 5)),
            '⅘' => Some((4, 5)),
            '⅙' => Some((1, 6)),
            '⅚' => Some((5, 6)),
            '⅛' => Some((1, 8)),
            '⅜' => Some((3, 8)),
            '⅝' => Some((5, 8)),
            '⅞' => Some((7, 8)),
            _ => None,
        };
        if let Some((above, below)) = fraction {
            self.push(Token::Command("frac".into()))?;
            for digit in [above, below] {
                self.push(Token::Number { value: BigRational::from_integer(digit.into()), places: None, digits: digit.to_string() })?;
            }
            return Ok(());
        }
        match plain {
            '√' => self.push(Token::Command("sqrt".into())),
            '∛' => self.push(Token::Command("cbrt".into())),
            '∅' | 'ø' => self.push(Token::Command("emptyset".into())),
            '∑' => self.push(Token::Command("sum".into())),
            '∏' => self.push(Token::Command("prod".into())),
            '∠' => self.push(Token::Command("angle".into())),
            '△' => self.push(Token::Command("triangle".into())),
            'ℝ' | 'ℤ' | 'ℕ' | 'ℚ' | 'ℂ' => {
                let letter = ["R", "Z", "N", "Q", "C"]["ℝℤℕℚℂ".chars().position(|c| c == plain).unwrap_or(0)];
                self.push(Token::Command(format!("mathbb {letter}")))
            }
            other => self.push(Token::Symbol(other)),
        }
    }

    /// A digit above or below the line.
    fn script(&mut self, mark: char, digit: usize) -> Result<(), TooLarge> {
        self.push(Token::Symbol(mark))?;
        let digits = if mark == '^' { "⁰¹²³⁴⁵⁶⁷⁸⁹" } else { "₀₁₂₃₄₅₆₇₈₉" };
        let mut all = digit.to_string();
        while let Some(at) = self.rest.chars().next().and_then(|next| digits.chars().position(|c| c == next)) {
            all.push_str(&at.to_string());
            self.rest = &self.rest[digits.chars().next().map_or(3, |_| self.rest.chars().next().map_or(0, char::len_utf8))..];
            if all.len() > DIGITS {
                return Err(TooLarge("a number has more than 1000 digits"));
            }
        }
        let value = all.parse::<BigInt>().unwrap_or_else(|_| BigInt::one());
        self.push(Token::Number { value: value.into(), places: None, digits: all })
    }

    /// A number in digits, with its thousands separators, its point, and its exponent.
    fn number(&mut self) -> Result<(), TooLarge> {
        let run = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let mut rest = self.rest;
        let first = run(rest);
        let mut whole = rest[..first].to_owned();
        rest = &rest[first..];
        let mut part = None;
        if (1..=3).contains(&first) && (first == 1 || !whole.starts_with('0')) {
            // As many groups of three as there are, all with the same separator.
            let mut separator = None;
            while let Some(length) = thousands(rest, self.commas) {
                let digits = &rest[length..];
                if run(digits) != 3 || separator.is_some_and(|before| before != &rest[..length]) || whole == "0" {
                    break;
                }
                separator = Some(&rest[..length]);
                whole.push_str(&digits[..3]);
                rest = &digits[3..];
            }
        }
        let decimal_comma = self.commas == Commas::Decimal
            && rest.starts_with(',')
            && (run(&rest[1..]) > 3 || run(&rest[1..]) == 2 || (whole == "0" && run(&rest[1..]) > 0));
        if rest.starts_with("{,}") && whole.len() <= 3 && run(&rest[3..]) != 3 && run(&rest[3..]) > 0 {
            // `3{,}14`: LaTeX's way to write a decimal comma.
            let digits = run(&rest[3..]);
            part = Some(rest[3..3 + digits].to_owned());
            rest = &rest[3 + digits..];
        } else if decimal_comma || rest.starts_with('.') || rest.starts_with('٫') {
            let point = if rest.starts_with('٫') { '٫'.len_utf8() } else { 1 };
            let digits = run(&rest[point..]);
            // A point behind an integer without digits is a full stop, unless an expression goes on.
            if digits > 0 {
                part = Some(rest[point..point + digits].to_owned());
                rest = &rest[point + digits..];
            }
        }
        let mut exponent = 0i64;
        if let Some(behind) = rest.strip_prefix(['e', 'E']) {
            let sign = usize::from(behind.starts_with(['+', '-']));
            let digits = run(&behind[sign..]);
            let follows = behind[sign + digits..].chars().next();
            if digits > 0 && !follows.is_some_and(|c| c.is_alphabetic()) {
                exponent = behind[..sign + digits].trim_start_matches('+').parse().map_err(|_| TooLarge("an exponent above 1000"))?;
                rest = &behind[sign + digits..];
            }
        }
        if exponent.abs() > EXPONENT {
            return Err(TooLarge("an exponent above 1000"));
        }
        let digits_behind = part.as_ref().map_or(0, String::len);
        if whole.len() + digits_behind > DIGITS {
            return Err(TooLarge("a number has more than 1000 digits"));
        }
        // `0.\overline{3}`: the digits under the bar repeat for ever.
        let mut repeating = None;
        if let Some(at) = rest.strip_prefix("\\overline{").or_else(|| rest.strip_prefix("\\bar{")) {
            let digits = run(at);
            let ends = self.rest[..self.rest.len() - rest.len()].contains('.') && digits > 0 && at[digits..].starts_with('}');
            if ends && digits <= 50 {
                repeating = Some(at[..digits].to_owned());
                rest = &at[digits + 1..];
                part.get_or_insert_default();
            }
        }
        if repeating.is_none()
            && part.is_none()
            && let Some(at) = [".\\overline{", ".\\bar{", ".("].iter().find_map(|opening| rest.strip_prefix(opening))
        {
            let digits = run(at);
            if digits > 0 && digits <= 50 && at[digits..].starts_with(if rest.starts_with(".(") { ')' } else { '}' }) {
                repeating = Some(at[..digits].to_owned());
                rest = &at[digits + 1..];
            }
        }
        // `0.1\dot{2}3\dot{4}`: dots over the first digit and the last that repeat.
        if repeating.is_none()
            && (part.is_some() || rest.starts_with(".\\dot"))
            && let Some((digits, behind)) = dotted(rest.strip_prefix('.').filter(|_| part.is_none()).unwrap_or(rest))
        {
            repeating = Some(digits);
            rest = behind;
        }
        let shown = match &part {
            Some(part) => format!("{whole}.{part}"),
            None => whole.clone(),
        };
        let mantissa = format!("{whole}{}", part.as_deref().unwrap_or(""));
        let mut value = BigRational::from_integer(if mantissa.is_empty() { BigInt::ZERO } else { parsed(&mantissa) });
        let ten = |power: usize| BigRational::from_integer(BigInt::from(10).pow(power as u32));
        value /= ten(digits_behind);
        let mut places = part.is_some().then_some(digits_behind as i32);
        if let Some(repeating) = repeating {
            let nines = ten(repeating.len()) - BigRational::one();
            value += BigRational::from_integer(parsed(&repeating)) / (nines * ten(digits_behind));
            places = None;
        } else if exponent != 0 || (self.rest.len() > rest.len() && self.rest[..self.rest.len() - rest.len()].contains(['e', 'E'])) {
            value = if exponent > 0 { value * ten(exponent as usize) } else { value / ten(-exponent as usize) };
            places = Some(digits_behind as i32 - exponent as i32);
        }
        self.rest = rest;
        self.push(Token::Number { value, places, digits: shown })
    }

    fn letters(&mut self) -> Result<(), TooLarge> {
        let length: usize = self.rest.chars().take_while(|c| letter(*c)).map(char::len_utf8).sum();
        let (run, rest) = self.rest.split_at(length);
        let after_value = matches!(self.out.last(), Some(Lexeme { token: Token::Number { .. } | Token::Close(_) | Token::GroupClose, .. }));
        // "1orW(x)=-1"
        for glued in ["or", "and"] {
            if let Some(behind) = run.strip_prefix(glued)
                && (behind.is_empty() || (after_value && !self.spaced && behind.chars().count() <= 2))
            {
                self.rest = &self.rest[glued.len()..];
                return self.push(Token::Conjunction);
            }
        }
        self.rest = rest;
        let lower = run.to_lowercase();
        match lower.as_str() {
            "percent" | "pct" => return self.push(Token::Symbol('%')),
            "infinity" | "infty" | "inf" | "oo" => return self.push(Token::Symbol('∞')),
            "union" => return self.push(Token::Symbol('∪')),
            "degree" | "degrees" | "deg" => return self.push(Token::Symbol('°')),
            "pm" if !after_value => return self.push(Token::Symbol('±')),
            "min" | "sec" if after_value && self.spaced => return self.push(Token::Word(lower)),
            "th" | "st" | "nd" | "rd" if after_value && !self.spaced => return self.push(Token::Word(lower)),
            "in" if self.spaced && after_value => return self.push(Token::Word(lower)),
            // "x in [0, 1]"
            "in" if self.spaced
                && rest.starts_with([' ', '\\'])
                && matches!(self.out.last(), Some(Lexeme { token: Token::Letter(_), .. })) =>
            {
                return self.push(Token::Symbol('∈'));
            }
            // "6.02 x 10^23"
            "x" if after_value && rest.trim_start().strip_prefix("10").is_some_and(|power| power.trim_start().starts_with(['^', '*'])) => {
                return self.push(Token::Symbol('*'));
            }
            "frac" | "dfrac" | "tfrac" if rest.starts_with('{') => return self.push(Token::Command("frac".into())),
            _ if SHORT_DATES.contains(&run) => return self.push(Token::Word(run.to_owned())),
            _ => {}
        }
        if let Some(command) = plain_command(run) {
            return self.push(Token::Command(command.into()));
        }
        // "5 m²" in plain text is an area.
        if run == "m" && after_value && rest.starts_with(['²', '³']) {
            return self.push(Token::Word(lower));
        }
        let count = run.chars().count();
        if count >= 4 || SHORT_WORDS.contains(&lower.as_str()) {
            for function in ["arcsin", "arccos", "arctan", "sqrt", "sin", "cos", "tan", "log", "ln"] {
                if let Some(behind) = run.strip_prefix(function)
                    && behind.chars().count() <= 2
                    && count >= 4
                    && (behind.chars().all(|c| "xyzabtn".contains(c)))
                {
                    self.push(Token::Command(function.into()))?;
                    return behind.chars().try_for_each(|c| self.push(Token::Letter(c)));
                }
            }
            return self.push(Token::Word(run.to_owned()));
        }
        run.chars().try_for_each(|c| match c {
            'π' => self.push(Token::Command("pi".into())),
            c if greek(c).is_some() => self.push(Token::Command(greek(c).unwrap_or_default().into())),
            c => self.push(Token::Letter(c)),
        })
    }

    fn command(&mut self) -> Result<(), TooLarge> {
        let behind = &self.rest[1..];
        let length = behind.bytes().take_while(u8::is_ascii_alphabetic).count();
        if length == 0 {
            let Some(c) = behind.chars().next() else {
                self.rest = behind;
                return Ok(());
            };
            // `\\frac` outside of a matrix was escaped once too often.
            if c == '\\' {
                let rest = &behind[1..];
                let escaped = rest.starts_with(|c: char| c.is_ascii_alphabetic())
                    || rest.starts_with(['{', '}', '(', ')', '[', ']', '%', '$', ',', '!']);
                if self.environments == 0 && escaped {
                    self.rest = behind;
                    return Ok(());
                }
                self.rest = without_skip(rest);
                self.spaced = true;
                return self.push(Token::Row);
            }
            self.rest = &behind[c.len_utf8()..];
            return match c {
                '{' => self.push(Token::Open('{')),
                '}' => self.push(Token::Close('}')),
                '%' => self.push(Token::Symbol('%')),
                '|' => self.push(Token::Symbol('‖')),
                '$' => self.push(Token::Symbol('$')),
                '&' | '#' | '_' => self.push(Token::Symbol(c)),
                '!' => Ok(()),
                // Spacing, and `\(...\)`, `\[...\]`.
                '(' | ')' | '[' | ']' => Ok(()),
                ',' | ';' | ':' | ' ' | '>' | '\n' | '\t' | '\'' => {
                    self.spaced = true;
                    Ok(())
                }
                _ => self.push(Token::Symbol(c)),
            };
        }
        // `\quadx_2` has lost a space.
        let length = ["qquad", "quad"].iter().find(|space| behind.starts_with(**space)).map_or(length, |space| space.len());
        let name = &behind[..length];
        self.rest = &behind[length..];
        match name {
            "left" | "right" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr" | "Bigl" | "Bigr" | "biggl" | "biggr" | "Biggl"
            | "Biggr" | "middle" => {
                // `\left.` has no bracket.
                let trimmed = self.rest.trim_start();
                if let Some(rest) = trimmed.strip_prefix('.')
                    && (name == "left" || name == "right")
                {
                    self.rest = rest;
                }
                Ok(())
            }
            "displaystyle" | "textstyle" | "limits" | "nolimits" | "rm" | "bf" | "it" | "scriptstyle" | "tiny" | "small" | "large"
            | "hfill" | "null" | "strut" | "phantom" | "allowbreak" | "nonumber" | "notag" | "scriptscriptstyle" | "normalsize"
            | "Large" | "LARGE" | "huge" | "Huge" | "footnotesize" | "ensuremath" | "checkmark" | "blacksquare" | "square" | "cal"
            | "sf" | "tt" | "mathstrut" | "relax" | "noindent" | "centering" | "bfseries" | "itshape" => Ok(()),
            "quad" | "qquad" | "enspace" | "space" | "thinspace" | "medspace" | "thickspace" | "hspace" | "vspace" => {
                self.spaced = true;
                if name.ends_with("hspace") || name.ends_with("vspace") {
                    self.argument();
                }
                Ok(())
            }
            "text" | "textbf" | "textit" | "textrm" | "textnormal" | "textsf" | "texttt" | "textup" | "emph" | "mbox" | "hbox"
            | "mathrm" | "mathbf" | "mathit" | "mathsf" | "mathtt" | "bm" | "boldsymbol" | "mathnormal" | "operatorname" | "underline"
            | "vec" | "boxed" | "fbox" => self.text(name),
            "dfrac" | "tfrac" | "cfrac" | "frac" | "nicefrac" | "sfrac" | "flatfrac" => self.push(Token::Command("frac".into())),
            "dbinom" | "tbinom" | "binom" => self.push(Token::Command("binom".into())),
            "cdot" | "times" | "ast" | "cdotp" | "bullet" => self.push(Token::Symbol('*')),
            "div" => self.push(Token::Symbol('/')),
            "slash" => self.push(Token::Symbol('/')),
            "minus" => self.push(Token::Symbol('-')),
            "plus" => self.push(Token::Symbol('+')),
            "surd" => self.push(Token::Command("sqrt".into())),
            "imath" => self.push(Token::Letter('i')),
            "textdollar" | "mathdollar" => self.push(Token::Symbol('$')),
            "pounds" | "textsterling" => self.push(Token::Symbol('£')),
            "euro" | "texteuro" => self.push(Token::Symbol('€')),
            "textdegree" => self.push(Token::Symbol('°')),
            "textasciitilde" => Ok(()),
            "pm" => self.push(Token::Symbol('±')),
            "mp" => self.push(Token::Symbol('∓')),
            "le" | "leq" | "leqslant" | "leqq" => self.push(Token::Symbol('≤')),
            "ge" | "geq" | "geqslant" | "geqq" => self.push(Token::Symbol('≥')),
            "lt" => self.push(Token::Symbol('<')),
            "gt" => self.push(Token::Symbol('>')),
            "ne" | "neq" => self.push(Token::Symbol('≠')),
            "not" if self.rest.trim_start().starts_with('=') => {
                self.rest = &self.rest.trim_start()[1..];
                self.push(Token::Symbol('≠'))
            }
            "approx" | "simeq" | "cong" | "sim" => self.push(Token::Symbol('≈')),
            "equiv" => self.push(Token::Symbol('≡')),
            "in" => self.push(Token::Symbol('∈')),
            "cup" | "bigcup" => self.push(Token::Symbol('∪')),
            "cap" | "bigcap" => self.push(Token::Symbol('∩')),
            "setminus" | "backslash" | "smallsetminus" => self.push(Token::Symbol('∖')),
            "infty" => self.push(Token::Symbol('∞')),
            "circ" | "degree" => self.push(Token::Symbol('°')),
            "percent" => self.push(Token::Symbol('%')),
            "mid" | "vert" | "lvert" | "rvert" => self.push(Token::Symbol('|')),
            "Vert" | "lVert" | "rVert" | "parallel" => self.push(Token::Symbol('‖')),
            "lbrace" => self.push(Token::Open('{')),
            "rbrace" => self.push(Token::Close('}')),
            "lbrack" => self.push(Token::Open('[')),
            "rbrack" => self.push(Token::Close(']')),
            "langle" => self.push(Token::Open('⟨')),
            "rangle" => self.push(Token::Close('⟩')),
            "lfloor" => self.push(Token::Open('⌊')),
            "rfloor" => self.push(Token::Close('⌋')),
            "lceil" => self.push(Token::Open('⌈')),
            "rceil" => self.push(Token::Close('⌉')),
            "prime" => self.push(Token::Symbol('\'')),
            "colon" => self.push(Token::Symbol(':')),
            "dots" | "ldots" | "cdots" | "dotsc" | "dotsb" | "dotsm" => self.push(Token::Symbol('…')),
            "to" | "rightarrow" | "longrightarrow" => self.push(Token::Symbol('→')),
            "Rightarrow" | "implies" | "Longrightarrow" => self.push(Token::Symbol('⇒')),
            "land" | "wedge" | "lor" | "vee" => self.push(Token::Conjunction),
            "varnothing" | "emptyset" => self.push(Token::Command("emptyset".into())),
            "mathbb" | "Bbb" => {
                let letter = self.argument().trim().to_owned();
                self.push(Token::Command(format!("mathbb {letter}")))
            }
            "R" | "Z" | "N" | "Q" | "C" => self.push(Token::Command(format!("mathbb {name}"))),
            "varphi" => self.push(Token::Command("phi".into())),
            "varepsilon" => self.push(Token::Command("epsilon".into())),
            "begin" => {
                let environment = self.argument().trim().trim_end_matches('*').to_owned();
                self.environments += 1;
                if environment == "array" {
                    self.argument();
                }
                self.push(Token::Begin(environment))
            }
            "end" => {
                let environment = self.argument().trim().trim_end_matches('*').to_owned();
                self.environments = self.environments.saturating_sub(1);
                self.push(Token::End(environment))
            }
            "newline" | "cr" => self.push(Token::Row),
            "color" | "textcolor" | "colorbox" => {
                self.argument();
                Ok(())
            }
            "hline" | "tag" | "label" => {
                if name != "hline" {
                    self.argument();
                }
                Ok(())
            }
            _ => self.push(Token::Command(name.to_owned())),
        }
    }

    /// The braced argument that comes next, and past it; empty if there is none. An unclosed one ends with the text.
    fn argument(&mut self) -> &str {
        let trimmed = self.rest.trim_start();
        let Some(inside) = trimmed.strip_prefix('{') else { return "" };
        let mut depth = 1usize;
        let mut escaped = false;
        for (at, c) in inside.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.rest = &inside[at + 1..];
                return &inside[..at];
            }
        }
        self.rest = "";
        inside
    }

    /// `\text{...}` and fonts. What says no more than a letter or a number is that letter or number.
    fn text(&mut self, name: &str) -> Result<(), TooLarge> {
        let trimmed = self.rest.trim_start();
        if !trimmed.starts_with('{') {
            // `\mathbf x`, `\text5`
            return Ok(());
        }
        let spaced = self.spaced;
        // `\mathrm{~cm}`
        let content = self.argument().replace('~', " ");
        let lower = content.trim().trim_matches(|c: char| c == ',' || c == '.').trim().to_lowercase();
        // `5 \text{ m}`: behind a value even one letter is a unit.
        let after_value = matches!(self.out.last(), Some(Lexeme { token: Token::Number { .. } | Token::Close(_) | Token::GroupClose, .. }));
        if name == "operatorname" || (name.starts_with("math") && !after_value) {
            let word = content.trim();
            let upright = UPRIGHT.contains(&word).then_some(word);
            if let Some(command) = plain_command(word).or(upright) {
                return self.push(Token::Command(command.into()));
            }
        }
        // `90^{\text{o}}`
        if lower == "o"
            && matches!(self.out.last(), Some(Lexeme { token: Token::Symbol('^'), .. }) | Some(Lexeme { token: Token::GroupOpen, .. }))
        {
            return self.push(Token::Symbol('°'));
        }
        if let Some(before) = before_conjunction(&content) {
            // "1 hour and 30 minutes": what stands ahead of the word is said too.
            if before.contains(char::is_alphanumeric) {
                self.push(Token::Text(before.to_owned()))?;
            }
            return self.push(Token::Conjunction);
        }
        // `\mathbf{R}`, alone or behind a sign of membership
        if name == "mathbf"
            && matches!(content.trim(), "R" | "Z")
            && self.out.last().is_none_or(|last| matches!(last.token, Token::Symbol('∈' | '=' | ':')))
        {
            return self.push(Token::Command(format!("mathbb {}", content.trim())));
        }
        if content.trim().is_empty() {
            self.spaced = true;
            return Ok(());
        }
        let words = content.split(|c: char| !letter(c)).any(|run| run.chars().count() >= 2);
        let structure = content.contains(['\\', '^', '_', '=']) || matches!(name, "boxed" | "fbox" | "underline" | "vec");
        let digits = content.contains(|c: char| c.is_ascii_digit());
        // `5 \mathrm{~N}`: a space inside says as much as a known unit.
        let symbol = (content.starts_with(' ') || (spaced && name == "mathrm"))
            && content.trim().len() == 1
            && content.trim().starts_with(['N', 'J', 'W', 'V', 'K', 'C', 'A', 'T', 'F', 'H', 'L']);
        let short_unit =
            after_value && !matches!(content.trim(), "e" | "i" | "d") && (symbol || unit(&content).is_some()) && !content.contains('\\');
        if short_unit || (words && !structure && !digits) {
            if plain_command(content.trim()) == Some("pi") {
                return self.push(Token::Command("pi".into()));
            }
            if matches!(lower.as_str(), "percent" | "pct") {
                return self.push(Token::Symbol('%'));
            }
            if matches!(lower.as_str(), "degrees" | "degree") {
                return self.push(Token::Symbol('°'));
            }
            return self.push(Token::Text(content.trim().to_owned()));
        }
        if self.nested >= 50 {
            return Err(TooLarge("the answer nests too deep"));
        }
        let mut inner = Lexer {
            rest: &content,
            commas: self.commas,
            spaced,
            environments: self.environments,
            out: Vec::new(),
            nested: self.nested + 1,
        };
        inner.run()?;
        if self.out.len() + inner.out.len() > TOKENS {
            return Err(TooLarge("the answer has more than 4096 parts"));
        }
        self.out.append(&mut inner.out);
        self.spaced = false;
        Ok(())
    }
}

/// What stands ahead of the "and" or "or" that `text` ends with.
fn before_conjunction(text: &str) -> Option<&str> {
    let text = text.trim().trim_end_matches([',', '.', ' ']);
    ["and", "or"].iter().find_map(|word| {
        let (before, last) = text.split_at_checked(text.len().checked_sub(word.len())?)?;
        let apart = before.is_empty() || before.ends_with([' ', ',', '.']);
        (apart && last.eq_ignore_ascii_case(word)).then(|| before.trim())
    })
}

/// The digits from one dot to the next at the start of `text`, and what follows.
fn dotted(text: &str) -> Option<(String, &str)> {
    fn one(text: &str) -> Option<(&str, &str)> {
        let behind = text.strip_prefix("\\dot")?;
        let braced = behind.strip_prefix('{');
        let digits = braced.unwrap_or_else(|| behind.trim_start());
        let (digit, rest) = digits.split_at_checked(1)?;
        digit.starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
        Some((digit, if braced.is_some() { rest.strip_prefix('}')? } else { rest }))
    }
    let (first, rest) = one(text)?;
    let between = rest.bytes().take_while(u8::is_ascii_digit).count().min(50);
    match one(&rest[between..]) {
        Some((last, behind)) => Some((format!("{first}{}{last}", &rest[..between]), behind)),
        None => Some((first.to_owned(), rest)),
    }
}

/// Behind `\\`: `text` without the distance to the next row, as in `[2pt]`.
fn without_skip(text: &str) -> &str {
    let length = |inside: &str| {
        let number = inside.trim_start_matches('-').trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim_start();
        number.len() < inside.len() && ["pt", "em", "ex", "mm", "cm"].contains(&number)
    };
    match text.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
        Some((inside, rest)) if length(inside) => rest,
        _ => text,
    }
}

fn parsed(digits: &str) -> BigInt {
    // Machine words first: they are most numbers.
    match digits.parse::<u64>() {
        Ok(value) => value.into(),
        Err(_) => digits.parse().unwrap_or(BigInt::ZERO),
    }
}

/// The bytes of a thousands separator that `text` starts with.
fn thousands(text: &str, commas: Commas) -> Option<usize> {
    for separator in [",\\!\\!", ",\\! ", ",\\!", "{,}", "\\,", "\\;", "\\:", "\\ ", " ", "~", "\u{a0}", "\u{2009}", "\u{202f}", "'", "’"]
    {
        if text.starts_with(separator) {
            return Some(separator.len());
        }
    }
    (commas != Commas::Punctuation && text.starts_with(',')).then_some(1)
}

fn letter(c: char) -> bool {
    c.is_alphabetic() && !"ⁿºªø".contains(c) && !matches!(c, 'ℝ' | 'ℤ' | 'ℕ' | 'ℚ' | 'ℂ')
}

fn greek(c: char) -> Option<&'static str> {
    Some(match c {
        'α' => "alpha",
        'β' => "beta",
        'γ' => "gamma",
        'δ' => "delta",
        'ε' => "epsilon",
        'θ' => "theta",
        'λ' => "lambda",
        'μ' => "mu",
        'ρ' => "rho",
        'σ' => "sigma",
        'τ' => "tau",
        'φ' | 'ϕ' => "phi",
        'ω' => "omega",
        'Δ' => "Delta",
        'Ω' => "Omega",
        _ => return None,
    })
}
