//! From tokens to what kind of answer they are: a quantity, a tuple, a set, an equation, an interval, a matrix, words.
//!
//! Every reading takes all tokens. What no reading takes is [`Answer::Opaque`], equal only to the same tokens.

mod list;
mod matrix;
mod quantity;
mod relation;
mod time;

use num_bigint::BigInt;
use num_traits::{ToPrimitive, Zero};

use super::expr::{Expr, TooLarge};
use super::lex::{Lexeme, Token};
use super::parse::{Failure, closing, expression};
use super::units::unit;

use list::{adjacent, both_signs, braced_lines, list};
use matrix::{matrix, matrix_product};
use quantity::{compound, quantity};
use relation::{letter_set, related, without_domain};
use time::{clock, date};

/// Most items of a list, entries of a matrix, or steps of a chain.
const ITEMS: usize = 200;
/// Most parts of a union.
const UNIONS: usize = 40;
/// Deepest nesting of lists, sets and their like.
const DEPTH: usize = 12;

/// What an answer is.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// An expression, with what stands around a number.
    Quantity(Quantity),
    /// `(a, b)`, `[a, b)`, `⟨a, b⟩`: a tuple or an interval.
    Delimited {
        /// The opening bracket.
        open: char,
        /// The closing bracket.
        close: char,
        /// What stands between commas.
        items: Vec<Answer>,
    },
    /// `\{a, b\}`
    Set(Vec<Answer>),
    /// Bare values: "1, 2 and 3".
    List(Vec<Answer>),
    /// `a = b = c`.
    Equals {
        /// What the first side is, if that is no more than a name: `x`, `f(x)`, `|AB|`, `(x, y)`.
        name: Option<String>,
        /// All sides.
        sides: Vec<Answer>,
    },
    /// `a < b <= c`: one relation fewer than terms.
    Inequality {
        /// The terms.
        terms: Vec<Expr>,
        /// `<`, `>`, `≤`, `≥` or `≠`.
        relations: Vec<char>,
    },
    /// `x \in S`
    Member(Box<Answer>),
    /// `A ∪ B`, `A ∩ B`, `A ∖ B`.
    Combination(char, Box<Answer>, Box<Answer>),
    /// Rows of entries; the flag says that bars stand around it (a determinant).
    Matrix(Vec<Vec<Answer>>, bool),
    /// `a : b`
    Ratio(Vec<Expr>),
    /// A numeral of another base.
    Based {
        /// Its digits.
        digits: String,
        /// The base.
        base: u32,
    },
    /// Hours, minutes, seconds, and whether they are after noon, if it says.
    Clock(Vec<u32>, Option<bool>),
    /// Year if it has one, month, day.
    Date(Option<u32>, u32, u32),
    /// An option's letter with its text: "(B) 12".
    Choice(char, Box<Answer>),
    /// A set with a name: R, Z.
    Named(String),
    /// Words, in lower case and single spaces, and whether they were marked as text.
    Words(String, bool),
    /// Not understood: its tokens.
    Opaque(Vec<Token>),
}

/// A value with what stands around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    /// The value without percent sign and unit.
    pub value: Expr,
    /// It has a percent sign.
    pub percent: bool,
    /// Its unit, or other words behind it.
    pub unit: Option<String>,
}

type Read = Result<Answer, TooLarge>;

/// What the tokens are.
pub fn answer(tokens: &[Lexeme]) -> Read {
    if let Some(option) = named_option(tokens) {
        return Ok(option);
    }
    let tokens = without_introduction(tokens);
    match outward_brackets(tokens) {
        Some(turned) => read(&turned, 0),
        None => read(tokens, 0),
    }
}

/// The words of a token that is one.
fn word_of(lexeme: &Lexeme) -> Option<&str> {
    match &lexeme.token {
        Token::Word(word) | Token::Text(word) => Some(word),
        _ => None,
    }
}

/// `\text{Option B}`: one text that names an option.
fn named_option(tokens: &[Lexeme]) -> Option<Answer> {
    let [Lexeme { token: Token::Text(text), .. }] = tokens else { return None };
    let text = text.trim().trim_end_matches('.');
    let (said, letter) = text.rsplit_once(' ')?;
    let letter = letter.trim_matches(['(', ')']);
    let options = ["option", "choice", "answer", "answer is", "the answer is", "answer:"];
    let one = letter.len() == 1 && letter.starts_with(|c: char| matches!(c, 'A'..='J'));
    (one && options.contains(&said.trim().to_lowercase().as_str()))
        .then(|| Answer::Quantity(Quantity { value: Expr::symbol(letter), percent: false, unit: None }))
}

/// Without "The answer is" or "Option" ahead of the answer.
fn without_introduction(tokens: &[Lexeme]) -> &[Lexeme] {
    let mut said = String::new();
    let mut best = tokens;
    for (at, lexeme) in tokens.iter().enumerate().take(6) {
        let Some(word) = word_of(lexeme) else { break };
        said.push_str(&word.to_lowercase());
        said.push(' ');
        let rest = &tokens[at + 1..];
        let plain = said.trim().trim_end_matches(':').trim_end();
        let plain = plain.strip_prefix("the ").unwrap_or(plain);
        let plain = plain.strip_prefix("final ").or_else(|| plain.strip_prefix("correct ")).unwrap_or(plain);
        let rest = match rest {
            [colon, rest @ ..] if symbol(colon, ':') => rest,
            _ => rest,
        };
        let one_letter = |tokens: &[Lexeme]| {
            let kept: Vec<_> =
                tokens.iter().filter(|l| !matches!(l.token, Token::Open('(') | Token::Close(')') | Token::Symbol('.'))).collect();
            matches!(kept.as_slice(), [Lexeme { token: Token::Letter('A'..='J'), .. }])
        };
        // `\text{Area: } 18`
        let labelled = word.ends_with(':') && !word.contains(|c: char| c.is_ascii_digit());
        if !rest.is_empty() && (labelled || matches!(plain, "answer" | "answer is" | "answer is:" | "result is"))
            || (matches!(plain, "option" | "choice" | "answer is option" | "answer is choice") && one_letter(rest))
        {
            best = rest;
        }
    }
    best
}

/// `]a, b[` as `(a, b)`: brackets that are turned outward are open ends. Nothing where there are none.
fn outward_brackets(tokens: &[Lexeme]) -> Option<Vec<Lexeme>> {
    let between = |lexeme: &Lexeme| matches!(lexeme.token, Token::Symbol('∪' | '∩' | '∖' | '∈' | '='));
    let begins = |at: usize| at == 0 || between(&tokens[at - 1]);
    let ends = |at: usize| tokens.get(at + 1).is_none_or(between);
    let turned = |at: usize| match tokens[at].token {
        Token::Close(']') => begins(at),
        Token::Open('[') => at > 0 && ends(at),
        _ => false,
    };
    let pair = tokens.iter().any(|lexeme| matches!(lexeme.token, Token::Symbol(',' | ';')));
    (pair && (0..tokens.len()).any(turned)).then(|| {
        let mut all = tokens.to_vec();
        for (at, lexeme) in all.iter_mut().enumerate() {
            if turned(at) {
                lexeme.token = if tokens[at].token == Token::Close(']') { Token::Open('(') } else { Token::Close(')') };
            }
        }
        all
    })
}

fn opaque(tokens: &[Lexeme]) -> Answer {
    Answer::Opaque(tokens.iter().map(|lexeme| lexeme.token.clone()).collect())
}

fn symbol(lexeme: &Lexeme, symbol: char) -> bool {
    lexeme.token == Token::Symbol(symbol)
}

/// An expression, or none where the tokens are no mathematics.
fn parsed(tokens: &[Lexeme]) -> Result<Option<Expr>, TooLarge> {
    match expression(tokens) {
        Ok(expression) => Ok(Some(expression)),
        Err(Failure::Limit(limit)) => Err(limit),
        Err(Failure::NotMathematics) => Ok(None),
    }
}

/// Positions outside of all brackets whose token `is` says yes to.
fn outside(tokens: &[Lexeme], is: impl Fn(&Token) -> bool) -> Vec<usize> {
    let mut depth = 0usize;
    let mut found = Vec::new();
    for (at, lexeme) in tokens.iter().enumerate() {
        match &lexeme.token {
            Token::Open(_) | Token::GroupOpen | Token::Begin(_) => depth += 1,
            Token::Close(_) | Token::GroupClose | Token::End(_) => depth = depth.saturating_sub(1),
            token if depth == 0 && is(token) => found.push(at),
            _ => {}
        }
    }
    found
}

fn split<'a>(tokens: &'a [Lexeme], at: &[usize]) -> Vec<&'a [Lexeme]> {
    let mut start = 0;
    let mut parts: Vec<_> = at
        .iter()
        .map(|at| {
            let part = &tokens[start..*at];
            start = at + 1;
            part
        })
        .collect();
    parts.push(&tokens[start..]);
    parts
}

/// Without punctuation and empty groups around it.
fn trimmed(mut tokens: &[Lexeme]) -> &[Lexeme] {
    loop {
        match tokens {
            [first, rest @ ..] if matches!(first.token, Token::Symbol('=' | ',' | ';' | '.' | ':' | '≈' | '&' | '⇒') | Token::Row) => {
                tokens = rest
            }
            [rest @ .., last] if matches!(last.token, Token::Symbol(',' | ';' | '.' | ':' | '?' | '&') | Token::Row) => tokens = rest,
            // `{}_{10}C_{3}` has something to say.
            [Lexeme { token: Token::GroupOpen, .. }, Lexeme { token: Token::GroupClose, .. }, rest @ ..]
                if !rest.first().is_some_and(|next| matches!(next.token, Token::Symbol('_' | '^'))) =>
            {
                tokens = rest
            }
            [rest @ .., Lexeme { token: Token::GroupOpen, .. }, Lexeme { token: Token::GroupClose, .. }] => tokens = rest,
            _ => return tokens,
        }
    }
}

fn read(tokens: &[Lexeme], depth: usize) -> Read {
    if depth > DEPTH {
        return Err(TooLarge("the answer nests deeper than 12 lists"));
    }
    let tokens = without_domain(trimmed(tokens));
    if tokens.is_empty() {
        return Ok(opaque(tokens));
    }
    if let Some(special) = clock(tokens).or_else(|| date(tokens)) {
        return Ok(special);
    }
    if let Some(pairs) = adjacent(tokens, depth)? {
        return Ok(pairs);
    }
    if let Some(lines) = braced_lines(tokens) {
        return matrix("cases", lines, depth);
    }
    if let Some(quantity) = compound(tokens) {
        return Ok(Answer::Quantity(quantity));
    }
    if let Some(plus_minus) = both_signs(tokens, depth)? {
        return Ok(plus_minus);
    }
    if let Some(list) = list(tokens, depth)? {
        return Ok(list);
    }
    if let Some(related) = related(tokens, depth)? {
        return Ok(related);
    }
    if let Some(combined) = combined(tokens, depth)? {
        return Ok(combined);
    }
    if let Some(enclosed) = enclosed(tokens, depth)? {
        return Ok(enclosed);
    }
    single(tokens, depth)
}

/// `A ∪ B`
fn combined(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let letter_u = |at: usize| {
        tokens[at].token == Token::Letter('U')
            && at > 0
            && matches!(tokens[at - 1].token, Token::Close(_))
            && tokens.get(at + 1).is_some_and(|next| matches!(next.token, Token::Open(_)))
    };
    let mut last = outside(tokens, |t| matches!(t, Token::Symbol('∪' | '∩' | '∖'))).pop();
    if last.is_none() {
        last = outside(tokens, |t| *t == Token::Letter('U')).into_iter().rev().find(|at| letter_u(*at));
    }
    // `R - {0}`
    if last.is_none() {
        last = outside(tokens, |t| *t == Token::Symbol('-')).into_iter().rev().find(|at| {
            tokens.get(at + 1).is_some_and(|next| next.token == Token::Open('{'))
                && *at > 0
                && (matches!(tokens[at - 1].token, Token::Close(_))
                    || matches!(&tokens[at - 1].token, Token::Command(c) if c.starts_with("mathbb ")))
        });
    }
    let Some(at) = last else { return Ok(None) };
    // A union of many nests to the left.
    let parts = outside(tokens, |t| matches!(t, Token::Symbol('∪' | '∩' | '∖' | '-') | Token::Letter('U'))).len();
    if parts > UNIONS {
        return Err(TooLarge("a union of more than 40 parts"));
    }
    let operation = match tokens[at].token {
        Token::Symbol('-') => '∖',
        Token::Symbol(c) => c,
        _ => '∪',
    };
    let left = match letter_set(&tokens[..at]).filter(|_| operation == '∖') {
        Some(name) => Answer::Named(name),
        None => read(&tokens[..at], depth)?,
    };
    let right = read(&tokens[at + 1..], depth + 1)?;
    Ok(Some(Answer::Combination(operation, Box::new(left), Box::new(right))))
}

/// The bracket or group that encloses all tokens: where its inside is.
fn enclosing(tokens: &[Lexeme]) -> Option<usize> {
    let opens = matches!(tokens.first()?.token, Token::Open(_) | Token::GroupOpen | Token::Begin(_));
    closing(tokens, 0).filter(|end| opens && *end + 1 == tokens.len())
}

/// Tuples, intervals, sets, matrices, and what is in a bracket for nothing.
fn enclosed(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    // `P(1, 2)`: a point; a C chooses.
    if let [Lexeme { token: Token::Letter(letter), .. }, rest @ ..] = tokens
        && letter.is_ascii_uppercase()
        && *letter != 'C'
        && rest.first().is_some_and(|open| open.token == Token::Open('(') && !open.spaced)
        && enclosing(rest).is_some_and(|end| !outside(&rest[1..end], |t| *t == Token::Symbol(',')).is_empty())
    {
        return enclosed(rest, depth);
    }
    let Some(end) = enclosing(tokens) else { return Ok(None) };
    let inside = &tokens[1..end];
    let commas = outside(inside, |t| matches!(t, Token::Symbol(',' | ';')));
    if commas.len() >= ITEMS {
        return Err(TooLarge("a list of more than 200 items"));
    }
    let items = || -> Result<Vec<Answer>, TooLarge> {
        let semicolons = outside(inside, |t| *t == Token::Symbol(';'));
        let at = if semicolons.is_empty() { &commas } else { &semicolons };
        let mut items = Vec::new();
        for piece in split(inside, at) {
            match read(piece, depth + 1)? {
                // `{1 ± sqrt 5, -2}`
                Answer::List(inner) if matches!(tokens[0].token, Token::Open('{') | Token::GroupOpen) => items.extend(inner),
                item => items.push(item),
            }
        }
        Ok(items)
    };
    match (&tokens[0].token, &tokens[end].token) {
        (Token::Open('{'), Token::Close('}')) => {
            if inside.is_empty() {
                return Ok(Some(Answer::Set(Vec::new())));
            }
            // `{x | x > 3}`
            let bar = outside(inside, |t| matches!(t, Token::Symbol('|' | ':'))).first().copied();
            if let Some(bar) = bar.filter(|bar| (1..=3).contains(bar) && matches!(inside[0].token, Token::Letter(_))) {
                let condition = read(&inside[bar + 1..], depth + 1)?;
                let inequalities =
                    matches!(&condition, Answer::List(items) if items.iter().all(|item| matches!(item, Answer::Inequality { .. })));
                if inequalities || matches!(condition, Answer::Inequality { .. } | Answer::Member(_) | Answer::Equals { .. }) {
                    return Ok(Some(condition));
                }
                return Ok(Some(opaque(tokens)));
            }
            Ok(Some(Answer::Set(items()?)))
        }
        (Token::Open(open), Token::Close(close)) if !commas.is_empty() && "([⟨".contains(*open) => {
            let items = items()?;
            // `[[1, 2], [3, 4]]`
            let row = |item: &Answer| match item {
                Answer::Delimited { open: '[', close: ']', items } => Some(items.clone()),
                _ => None,
            };
            if (*open, *close) == ('[', ']')
                && let Some(rows) = items.iter().map(row).collect::<Option<Vec<_>>>()
            {
                return Ok(Some(Answer::Matrix(rows, false)));
            }
            Ok(Some(Answer::Delimited { open: *open, close: *close, items }))
        }
        (Token::Open('('), Token::Close(')')) | (Token::Open('['), Token::Close(']')) if !inside.is_empty() => {
            // A letter in brackets is an option's, and an expression keeps its brackets for the parser; for the rest they say nothing.
            let read = read(inside, depth + 1)?;
            Ok(if matches!(read, Answer::Opaque(_)) { None } else { Some(read) })
        }
        (Token::GroupOpen, Token::GroupClose)
            if outside(inside, |t| matches!(t, Token::Command(c) if c == "over" || c == "choose")).is_empty() =>
        {
            match commas.is_empty() {
                true => Ok(Some(read(inside, depth + 1)?)),
                false => Ok(Some(Answer::Set(items()?))),
            }
        }
        (Token::Begin(environment), Token::End(_)) => matrix(environment, inside, depth).map(Some),
        _ => Ok(None),
    }
}

/// One value.
fn single(tokens: &[Lexeme], depth: usize) -> Read {
    if let Some(set) = named_set(tokens) {
        return Ok(set);
    }
    if let Some(based) = based(tokens) {
        return Ok(based);
    }
    if let Some(choice) = choice(tokens, depth)? {
        return Ok(choice);
    }
    if let Some(matrix) = matrix_product(tokens, depth)? {
        return Ok(matrix);
    }
    if let Some(quantity) = quantity(tokens)? {
        return Ok(Answer::Quantity(quantity));
    }
    if let Some(ratio) = ratio(tokens)? {
        return Ok(ratio);
    }
    Ok(words(tokens).unwrap_or_else(|| opaque(tokens)))
}

fn named_set(tokens: &[Lexeme]) -> Option<Answer> {
    match tokens {
        [Lexeme { token: Token::Command(name), .. }] if name == "emptyset" => Some(Answer::Set(Vec::new())),
        [Lexeme { token: Token::Command(name), .. }, rest @ ..] => {
            let mut name = name.strip_prefix("mathbb ")?.to_owned();
            // `R_+` is `R^+`; `Z_2` is no power.
            let signed = rest.iter().any(|lexeme| matches!(lexeme.token, Token::Symbol('+' | '-')));
            for lexeme in rest {
                match &lexeme.token {
                    Token::Symbol('_') => name.push(if signed { '^' } else { '_' }),
                    Token::Symbol(c @ ('^' | '+' | '-' | '*')) => name.push(*c),
                    Token::Number { digits, .. } => name += digits,
                    Token::GroupOpen | Token::GroupClose => {}
                    _ => return None,
                }
            }
            Some(Answer::Named(name))
        }
        _ => None,
    }
}

/// `52_8`, `4210_{5}`, `(101)_2`
fn based(tokens: &[Lexeme]) -> Option<Answer> {
    // `52 \text{ (base 8)}`, "52 in base 8"
    if let [Lexeme { token: Token::Number { digits, places: None, .. }, .. }, rest @ ..] = tokens {
        let rest: Vec<&Lexeme> = rest
            .iter()
            .filter(|l| !matches!(l.token, Token::Open('(') | Token::Close(')')) && word_of(l).is_none_or(|word| word != "in"))
            .collect();
        if let [base, Lexeme { token: Token::Number { value, places: None, .. }, .. }] = rest.as_slice()
            && word_of(base).is_some_and(|word| ["base", "in base", "(base"].contains(&word.to_lowercase().as_str()))
        {
            let base = value.to_integer().to_u32().filter(|base| (2..=36).contains(base))?;
            return Some(Answer::Based { digits: digits.clone(), base });
        }
    }
    let under = tokens.iter().position(|lexeme| symbol(lexeme, '_'))?;
    let mut digits = String::new();
    for lexeme in &tokens[..under] {
        match &lexeme.token {
            Token::Number { digits: more, .. } => digits += more,
            Token::Letter(letter) if letter.is_ascii_uppercase() && *letter <= 'F' => digits.push(*letter),
            Token::Text(word) if word.chars().all(|c| matches!(c, 'A'..='F')) => digits += word,
            Token::Open('(') | Token::Close(')') | Token::GroupOpen | Token::GroupClose => {}
            _ => return None,
        }
    }
    let base: Vec<_> = tokens[under + 1..]
        .iter()
        .filter(|l| !matches!(l.token, Token::GroupOpen | Token::GroupClose | Token::Open('(') | Token::Close(')')))
        .collect();
    let base = match base.as_slice() {
        [Lexeme { token: Token::Number { value, places: None, .. }, .. }] => value.to_integer().to_u32()?,
        [Lexeme { token: Token::Word(word) | Token::Text(word), .. }] => match word.to_lowercase().as_str() {
            "two" => 2,
            "three" => 3,
            "four" => 4,
            "five" => 5,
            "six" => 6,
            "seven" => 7,
            "eight" => 8,
            "nine" => 9,
            "ten" => 10,
            _ => return None,
        },
        _ => return None,
    };
    // `B_{12}` is a number of a sequence.
    let starts = digits.starts_with(|c: char| c.is_ascii_digit()) || (digits.len() > 1 && base > 10);
    ((2..=36).contains(&base) && starts).then_some(Answer::Based { digits, base })
}

/// "(B) 12", "B. Paris", "\textbf{(B)}\ 12": an option's letter and its text.
fn choice(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let (letter, rest) = match tokens {
        [
            Lexeme { token: Token::Open('('), .. },
            Lexeme { token: Token::Letter(letter @ 'A'..='J'), .. },
            Lexeme { token: Token::Close(')'), .. },
            rest @ ..,
        ] if rest.first().is_some_and(|next| next.spaced || matches!(next.token, Token::Text(_) | Token::Symbol(':' | '.'))) => {
            (*letter, rest)
        }
        [
            Lexeme { token: Token::Letter(letter @ 'A'..='J'), .. },
            Lexeme { token: Token::Symbol('.' | ':') | Token::Close(')'), .. },
            rest @ ..,
        ] if !rest.is_empty() => (*letter, rest),
        [letter @ Lexeme { token: Token::Letter('A'..='J'), .. }, Lexeme { token: Token::Close(')'), .. }] => {
            return read(std::slice::from_ref(letter), depth + 1).map(Some);
        }
        _ => return Ok(None),
    };
    Ok(Some(Answer::Choice(letter, Box::new(read(rest, depth + 1)?))))
}

fn ratio(tokens: &[Lexeme]) -> Result<Option<Answer>, TooLarge> {
    let to = |t: &Token| matches!(t, Token::Word(word) | Token::Text(word) if word == "to");
    let colons = outside(tokens, |t| *t == Token::Symbol(':') || to(t));
    if colons.is_empty() || colons.len() > 10 {
        return Ok(None);
    }
    let parts = split(tokens, &colons).into_iter().map(parsed).collect::<Result<Option<Vec<_>>, _>>()?;
    Ok(parts.map(Answer::Ratio))
}

/// Words, if there is nothing else.
fn words(tokens: &[Lexeme]) -> Option<Answer> {
    let mut text = String::new();
    let mut marked = true;
    let mut any = false;
    for lexeme in tokens {
        if lexeme.spaced && !text.is_empty() {
            text.push(' ');
        }
        match &lexeme.token {
            Token::Text(word) => {
                text += word;
                any = true;
            }
            Token::Word(word) => {
                marked = false;
                any = true;
                text += word;
            }
            Token::Letter(letter) => text.push(*letter),
            Token::Command(word) => text += word,
            Token::Number { digits, .. } => text += digits,
            Token::Conjunction => text += " and ",
            Token::Symbol(c @ ('.' | ',' | ';' | ':' | '\'' | '-' | '!' | '?' | '/' | '%' | '&')) => text.push(*c),
            Token::Open('(') => text.push('('),
            Token::Close(')') => text.push(')'),
            Token::GroupOpen | Token::GroupClose => {}
            _ => return None,
        }
    }
    let normal = normal_words(&text);
    match normal.to_lowercase().as_str() {
        "all real numbers" | "all reals" | "any real number" | "the set of all real numbers" | "real numbers" => {
            return Some(Answer::Named("R".into()));
        }
        "all integers" | "any integer" | "the set of all integers" | "integers" => return Some(Answer::Named("Z".into())),
        "empty set"
        | "the empty set"
        | "no solution"
        | "no solutions"
        | "no real solution"
        | "no real solutions"
        | "there is no solution"
        | "there are no solutions"
        | "no solution exists"
        | "no solutions exist" => return Some(Answer::Set(Vec::new())),
        _ => {}
    }
    (any && !normal.is_empty()).then_some(Answer::Words(normal, marked))
}

/// Lower case, single spaces, no punctuation around words.
pub fn normal_words(text: &str) -> String {
    let word = |word: &str| word.trim_matches(|c: char| c.is_ascii_punctuation()).to_owned();
    let words: Vec<_> = text.split_whitespace().map(word).filter(|word| !word.is_empty()).collect();
    let words = match words.as_slice() {
        [article, rest @ ..] if !rest.is_empty() && ["a", "an", "the"].contains(&article.to_lowercase().as_str()) => rest,
        words => words,
    };
    match words.join(" ") {
        short if short == "DNE" => "does not exist".to_owned(),
        words => words,
    }
}

impl Answer {
    /// Whether all of it reads as an answer: there is nothing in it that is not understood, and no prose.
    pub fn is_read(&self) -> bool {
        match self {
            Answer::Opaque(_) | Answer::Words(_, false) => false,
            Answer::Delimited { items, .. } | Answer::Set(items) | Answer::List(items) => items.iter().all(Answer::is_read),
            Answer::Equals { sides, .. } => sides.last().is_some_and(Answer::is_read),
            Answer::Member(set) => set.is_read(),
            Answer::Combination(_, left, right) => left.is_read() && right.is_read(),
            _ => true,
        }
    }
}

impl Answer {
    /// Whether there is prose in it: words that are not marked as text, with or without mathematics among them.
    pub fn is_prose(&self) -> bool {
        match self {
            Answer::Words(_, marked) => !marked,
            Answer::Opaque(tokens) => tokens.is_empty() || tokens.iter().any(|token| matches!(token, Token::Word(_))),
            Answer::Delimited { items, .. } | Answer::Set(items) | Answer::List(items) => items.iter().any(Answer::is_prose),
            Answer::Equals { sides, .. } => sides.last().is_some_and(Answer::is_prose),
            Answer::Member(set) => set.is_prose(),
            Answer::Combination(_, left, right) => left.is_prose() || right.is_prose(),
            _ => false,
        }
    }
}

impl Quantity {
    /// Its unit, where that is one that can be converted.
    pub fn known_unit(&self) -> Option<super::units::Unit> {
        unit(self.unit.as_deref()?)
    }

    /// Whether its value is written as a plain number.
    pub fn is_number(&self) -> bool {
        self.value.as_number().is_some()
    }
}

/// The value of a numeral, if its digits are of its base.
pub fn numeral(digits: &str, base: u32) -> Option<BigInt> {
    let mut value = BigInt::zero();
    for digit in digits.chars() {
        value = value * base + digit.to_digit(base)?;
    }
    Some(value)
}
