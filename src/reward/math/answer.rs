//! From tokens to what kind of answer they are: a quantity, a tuple, a set, an equation, an interval, a matrix, words.
//!
//! Every reading takes all tokens. What no reading takes is [`Answer::Opaque`], equal only to the same tokens.

use num_bigint::BigInt;
use num_traits::{ToPrimitive, Zero};

use super::expr::{Constant, Expr, Function, TooLarge};
use super::lex::{Lexeme, Token};
use super::parse::{Failure, closing, expression};
use super::units::unit;

/// Most items of a list, entries of a matrix, or steps of a chain.
const ITEMS: usize = 200;
/// Most parts of a union.
const UNIONS: usize = 40;
/// Most words behind a value.
const PHRASE: usize = 16;
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

/// `(1, 2) (3, 4)`: tuples side by side are a list, for they have no product.
fn adjacent(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let mut pairs = Vec::new();
    let mut rest = tokens;
    while let Some(first) = rest.first() {
        if first.token != Token::Open('(') || pairs.len() >= ITEMS {
            return Ok(None);
        }
        let Some(end) = closing(rest, 0) else { return Ok(None) };
        if outside(&rest[1..end], |t| *t == Token::Symbol(',')).is_empty() {
            return Ok(None);
        }
        pairs.push(&rest[..=end]);
        rest = &rest[end + 1..];
    }
    if pairs.len() < 2 {
        return Ok(None);
    }
    Ok(Some(Answer::List(pairs.into_iter().map(|pair| read(pair, depth + 1)).collect::<Result<_, _>>()?)))
}

/// `\left\{\begin{array}{l} ... \end{array}\right.`: lines behind one brace.
fn braced_lines(tokens: &[Lexeme]) -> Option<&[Lexeme]> {
    let [Lexeme { token: Token::Open('{'), .. }, rest @ ..] = tokens else { return None };
    let Token::Begin(environment) = &rest.first()?.token else { return None };
    let lines = ["array", "aligned", "matrix", "align", "gathered"].contains(&environment.as_str());
    (lines && closing(rest, 0)? + 1 == rest.len()).then(|| &rest[1..rest.len() - 1])
}

/// `a ± b` is a + b and a - b; all signs together.
fn both_signs(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let is = |token: &Token| matches!(token, Token::Symbol('±' | '∓'));
    if !tokens.iter().any(|lexeme| is(&lexeme.token)) {
        return Ok(None);
    }
    // A list's items have their own signs.
    if !outside(tokens, |t| matches!(t, Token::Symbol(',' | ';') | Token::Conjunction)).is_empty() || enclosing(tokens).is_some() {
        return Ok(None);
    }
    let with = |upper: char, lower: char| -> Vec<Lexeme> {
        let sign = |lexeme: &Lexeme| match lexeme.token {
            Token::Symbol('±') => Lexeme { token: Token::Symbol(upper), spaced: lexeme.spaced },
            Token::Symbol('∓') => Lexeme { token: Token::Symbol(lower), spaced: lexeme.spaced },
            _ => lexeme.clone(),
        };
        tokens.iter().map(sign).collect()
    };
    let (plus, minus) = (read(&with('+', '-'), depth + 1)?, read(&with('-', '+'), depth + 1)?);
    Ok(Some(Answer::List(vec![plus, minus])))
}

/// "a, b; c and d"
fn list(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let conjunctions = outside(tokens, |t| *t == Token::Conjunction);
    let semicolons = outside(tokens, |t| *t == Token::Symbol(';'));
    let commas = outside(tokens, |t| *t == Token::Symbol(','));
    let outer: Vec<usize> = if !semicolons.is_empty() {
        semicolons.clone()
    } else if !conjunctions.is_empty() {
        conjunctions
    } else {
        commas.clone()
    };
    if outer.is_empty() {
        return Ok(None);
    }
    if tokens.len() > ITEMS * 40 || outer.len() >= ITEMS {
        return Err(TooLarge("a list of more than 200 items"));
    }
    let mut items = Vec::new();
    let mut pieces = Vec::new();
    let mut all_lists = true;
    for (at, piece) in split(tokens, &outer).into_iter().enumerate() {
        let piece = trimmed(piece);
        // "x = k pi, k in Z"
        if piece.is_empty() || (at > 0 && is_domain(piece, &tokens[..outer[at - 1]])) {
            continue;
        }
        all_lists &= !outside(piece, |t| *t == Token::Symbol(',')).is_empty();
        pieces.push(read(piece, depth + 1)?);
    }
    // "p = 5, q = 2; p = 7, q = 2": pairs. "1, 2 and 3": one list.
    let grouped = pieces.len() > 1 && all_lists && outer != commas;
    for piece in pieces {
        match piece {
            Answer::List(inner) if grouped => items.push(Answer::Delimited { open: '(', close: ')', items: inner }),
            Answer::List(inner) => items.extend(inner),
            other => items.push(other),
        }
    }
    if items.len() > ITEMS {
        return Err(TooLarge("a list of more than 200 items"));
    }
    match items.len() {
        0 => Ok(Some(opaque(tokens))),
        1 => Ok(items.pop()),
        // "(-inf, -1), (1, inf)": where there are infinite ends the pairs are intervals, and all of them one set.
        _ if items.iter().all(is_pair) && items.iter().any(is_unbounded) && depth == 0 => {
            let united = items.into_iter().reduce(|all, item| Answer::Combination('∪', Box::new(all), Box::new(item)));
            Ok(Some(united.unwrap_or_else(|| opaque(tokens))))
        }
        // Prose with a comma in it is prose.
        _ if items.iter().all(|item| matches!(item, Answer::Words(..))) => Ok(Some(words(tokens).unwrap_or(Answer::List(items)))),
        _ => Ok(Some(Answer::List(items))),
    }
}

fn is_pair(item: &Answer) -> bool {
    matches!(item, Answer::Delimited { open: '(' | '[', close: ')' | ']', items } if items.len() == 2)
}

/// Whether a pair has an infinite end, and so is an interval.
fn is_unbounded(item: &Answer) -> bool {
    let infinite = |item: &Answer| match item {
        Answer::Quantity(Quantity { value: Expr::Constant(Constant::Infinity), .. }) => true,
        Answer::Quantity(Quantity { value: Expr::Product(factors), .. }) => factors.contains(&Expr::Constant(Constant::Infinity)),
        _ => false,
    };
    matches!(item, Answer::Delimited { items, .. } if items.iter().any(infinite))
}

/// Whether it says of a letter that is used `before` that it stands for any integer: `k \in \mathbb{Z}`.
fn is_domain(tokens: &[Lexeme], before: &[Lexeme]) -> bool {
    let tokens = match tokens {
        [open, inside @ .., close] if open.token == Token::Open('(') && close.token == Token::Close(')') => inside,
        [first, rest @ ..] if word_of(first).is_some_and(|word| ["where", "for", "with"].contains(&word.to_lowercase().as_str())) => rest,
        _ => tokens,
    };
    let [Lexeme { token: Token::Letter(letter), .. }, belongs, set] = tokens else { return false };
    let named = Token::Letter(*letter);
    // What is restricted must not be what the answer is about.
    let used = before.iter().skip(1).any(|lexeme| lexeme.token == named) && before.first().is_some_and(|first| first.token != named);
    symbol(belongs, '∈') && letter_set(std::slice::from_ref(set)).as_deref() == Some("Z") && used
}

/// Z, R and their like where a set is meant, in whatever font.
fn letter_set(tokens: &[Lexeme]) -> Option<String> {
    match tokens {
        [Lexeme { token: Token::Letter(letter @ ('Z' | 'R' | 'N' | 'Q' | 'C')), .. }] => Some(letter.to_string()),
        [Lexeme { token: Token::Command(name), .. }] => name.strip_prefix("mathbb ").map(str::to_owned),
        _ => None,
    }
}

/// What stands ahead of "for all x in R", "for every real x" or `(k \in \mathbb{Z})`: what holds for all numbers needs no such words.
fn without_domain(tokens: &[Lexeme]) -> &[Lexeme] {
    let variable = |lexeme: &Lexeme| matches!(lexeme.token, Token::Letter(_));
    for at in 1..tokens.len() {
        let rest = &tokens[at..];
        if is_domain(rest, &tokens[..at]) && rest.len() > 3 {
            return &tokens[..at];
        }
        let mut said = String::new();
        let mut length = 0;
        // No such phrase is longer.
        for lexeme in rest.iter().take(5) {
            match &lexeme.token {
                Token::Word(word) | Token::Text(word) => {
                    said.push_str(&word.to_lowercase());
                    said.push(' ');
                }
                Token::Command(name) if name == "forall" && said.is_empty() => said.push_str("for all "),
                _ => break,
            }
            length += 1;
        }
        let said = said.trim().trim_start_matches(['(', ',']).trim();
        let all = ["for all", "for any", "for every", "for each", "for all real", "for any real", "for every real", "for all real numbers"];
        let over_integers = ["for integer", "for any integer", "for all integers", "for integers", "where k is an integer"];
        if !all.contains(&said) && !over_integers.contains(&said) {
            continue;
        }
        let whole = match &rest[length..] {
            [of] => variable(of),
            [of, belongs, set] if !said.contains("integer") => {
                variable(of) && symbol(belongs, '∈') && matches!(letter_set(std::slice::from_ref(set)).as_deref(), Some("R" | "Z"))
            }
            _ => false,
        };
        if whole {
            return trimmed(&tokens[..at]);
        }
    }
    tokens
}

/// Equations, inequalities, membership.
fn related(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let mut tokens = tokens;
    if let Some(last) = outside(tokens, |t| *t == Token::Symbol('⇒')).last() {
        tokens = &tokens[last + 1..];
    }
    // `x \mapsto x^2`, `f : x \mapsto x^2`
    if let Some(arrow) = outside(tokens, |t| *t == Token::Command("mapsto".into())).first().copied() {
        let value = read(&tokens[arrow + 1..], depth + 1)?;
        return Ok(Some(match &tokens[..arrow] {
            [Lexeme { token: Token::Letter(_), .. }] => value,
            [Lexeme { token: Token::Letter(name), .. }, colon, Lexeme { token: Token::Letter(_), .. }] if symbol(colon, ':') => {
                let function = Answer::Quantity(Quantity { value: Expr::symbol(name.to_string()), percent: false, unit: None });
                Answer::Equals { name: Some(name.to_string()), sides: vec![function, value] }
            }
            _ => opaque(tokens),
        }));
    }
    // `f(x) \equiv 0`; a congruence is no equation.
    let congruence =
        tokens.iter().any(|lexeme| matches!(&lexeme.token, Token::Command(name) if name == "pmod" || name == "bmod" || name == "mod"));
    if congruence && let Some(residue) = congruent(tokens)? {
        return Ok(Some(residue));
    }
    let relation = |t: &Token| {
        matches!(t, Token::Symbol('≡')) && !congruence || matches!(t, Token::Symbol('=' | '<' | '>' | '≤' | '≥' | '≠' | '≈' | '∈'))
    };
    let mut at = outside(tokens, relation);
    let is = |at: usize, c: char| symbol(&tokens[at], c);
    // `x = 1/3 ≈ 0.33`: what is exact counts.
    if at.len() > 1
        && let Some(first) = at.iter().position(|at| is(*at, '≈')).filter(|first| *first > 0)
    {
        tokens = &tokens[..at[first]];
        at.truncate(first);
    }
    if at.is_empty() {
        return Ok(if tokens.is_empty() { Some(opaque(tokens)) } else { None });
    }
    if at.len() > ITEMS {
        return Err(TooLarge("a chain of more than 200 relations"));
    }
    let relations: Vec<char> = at
        .iter()
        .map(|at| match tokens[*at].token {
            Token::Symbol(c) => c,
            _ => '=',
        })
        .collect();
    let parts = split(tokens, &at);
    if relations.len() == 1 && relations[0] == '∈' {
        let set = match letter_set(parts[1]) {
            Some(name) => Answer::Named(name),
            None => read(parts[1], depth + 1)?,
        };
        return Ok(Some(Answer::Member(Box::new(set))));
    }
    if relations.iter().all(|c| matches!(c, '=' | '≈' | '≡')) {
        let sides = parts.iter().map(|part| read(part, depth + 1)).collect::<Result<Vec<_>, _>>()?;
        let name = name(&sides[0]);
        return Ok(Some(Answer::Equals { name, sides }));
    }
    let mut terms = Vec::new();
    for part in &parts {
        match parsed(trimmed(part))? {
            Some(term) => terms.push(term),
            None => return Ok(Some(opaque(tokens))),
        }
    }
    if relations.iter().all(|c| matches!(c, '<' | '>' | '≤' | '≥' | '≠')) {
        return Ok(Some(Answer::Inequality { terms, relations }));
    }
    Ok(Some(opaque(tokens)))
}

/// `n \equiv 1 \pmod{4}`, `1 \pmod{4}`: the residue, as a function of its modulus, named as an equation's first side is.
fn congruent(tokens: &[Lexeme]) -> Result<Option<Answer>, TooLarge> {
    let modulus = |token: &Token| matches!(token, Token::Command(name) if name == "pmod" || name == "bmod" || name == "mod");
    let equivalent = outside(tokens, |t| matches!(t, Token::Symbol('≡'))).first().copied();
    let mut ahead = equivalent.map_or(0, |at| at + 1);
    let left = &tokens[..ahead.saturating_sub(1)];
    let right = &tokens[ahead..];
    // `1 (mod 4)`
    let marks = tokens.iter().rposition(|lexeme| modulus(&lexeme.token));
    let Some(mark) = marks.filter(|mark| *mark > ahead) else { return Ok(None) };
    ahead = mark - ahead;
    let (mut value, mut of) = (&right[..ahead], &right[ahead + 1..]);
    let is_pmod = tokens[mark].token == Token::Command("pmod".into());
    if let ([before @ .., open], [inside @ .., close]) = (value, of)
        && open.token == Token::Open('(')
        && close.token == Token::Close(')')
    {
        (value, of) = (before, inside);
    } else if !is_pmod && equivalent.is_none() {
        // `17 \bmod 5` is a number.
        return Ok(None);
    }
    let (Some(value), Some(of)) = (parsed(value)?, parsed(of)?) else { return Ok(None) };
    let reduced = match (value.as_number(), of.as_number()) {
        (Some(value), Some(of)) if value.is_integer() && of.is_integer() && !of.is_zero() => {
            Expr::integer(num_integer::Integer::mod_floor(value.numer(), of.numer()))
        }
        _ => value,
    };
    let residue = Answer::Quantity(Quantity { value: Expr::Unknown("mod".into(), vec![reduced, of]), percent: false, unit: None });
    if left.is_empty() {
        return Ok(Some(residue));
    }
    let Some(of) = parsed(left)? else { return Ok(None) };
    let first = Answer::Quantity(Quantity { value: of, percent: false, unit: None });
    let name = name(&first);
    Ok(Some(Answer::Equals { name, sides: vec![first, residue] }))
}

/// The name that an equation's first side is, if it is no more than that. What a function is of does not belong to its name.
fn name(side: &Answer) -> Option<String> {
    fn expression_name(expression: &Expr) -> Option<String> {
        match expression {
            Expr::Symbol(name) => Some(name.clone()),
            Expr::Unknown(name, _) => Some(name.clone()),
            Expr::Constant(_) => Some("constant".into()),
            Expr::Apply(Function::Abs, items) => expression_name(&items[0]).map(|name| format!("|{name}|")),
            Expr::Product(items) => {
                let names: Option<Vec<_>> = items
                    .iter()
                    .map(|item| match item {
                        Expr::Power(base, exponent) if exponent.as_number().is_some_and(|n| *n == (-BigInt::from(1)).into()) => {
                            expression_name(base).map(|name| format!("/{name}"))
                        }
                        other => expression_name(other),
                    })
                    .collect();
                names.map(|names| names.concat())
            }
            // `\cos A`, `\log_a b`, `f^{-1}(2)` and their powers: values that are asked for.
            Expr::Apply(
                Function::Sin
                | Function::Cos
                | Function::Tan
                | Function::Cot
                | Function::Sec
                | Function::Csc
                | Function::Ln
                | Function::Log
                | Function::SumOver
                | Function::ProductOver,
                _,
            ) => Some(format!("{expression:?}")),
            Expr::Power(base, exponent) if exponent.as_number().is_some() && matches!(**base, Expr::Apply(..)) => {
                expression_name(base).map(|name| format!("{name}^{exponent:?}"))
            }
            _ => None,
        }
    }
    match side {
        // "e = 5" would be a name too; pi is none.
        Answer::Quantity(quantity) if !quantity.percent => match &quantity.value {
            Expr::Constant(Constant::Pi | Constant::Infinity) => None,
            value => expression_name(value),
        },
        Answer::Delimited { items, .. } | Answer::List(items) => {
            let names: Option<Vec<_>> = items.iter().map(name).collect();
            names.map(|names| names.join(","))
        }
        Answer::Ratio(items) => {
            let names: Option<Vec<_>> = items.iter().map(expression_name).collect();
            names.map(|names| names.join(":"))
        }
        Answer::Words(words, _) => Some(words.clone()),
        Answer::Combination(operation, left, right) => Some(format!("{}{operation}{}", name(left)?, name(right)?)),
        _ => None,
    }
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

fn matrix(environment: &str, inside: &[Lexeme], depth: usize) -> Read {
    let rows = outside(inside, |t| *t == Token::Row);
    let mut entries = Vec::new();
    let mut count = 0;
    for row in split(inside, &rows) {
        if row.is_empty() {
            continue;
        }
        let cells = outside(row, |t| *t == Token::Symbol('&'));
        count += cells.len() + 1;
        if count > ITEMS {
            return Err(TooLarge("a matrix of more than 200 entries"));
        }
        let cells = split(row, &cells).into_iter().map(|cell| match trimmed(cell) {
            // `x & \text{if } x > 0`
            [first, rest @ ..]
                if environment == "cases"
                    && !rest.is_empty()
                    && word_of(first).is_some_and(|word| ["if", "for", "when"].contains(&word.to_lowercase().as_str())) =>
            {
                read(rest, depth + 1)
            }
            cell => read(cell, depth + 1),
        });
        entries.push(cells.collect::<Result<Vec<_>, _>>()?);
    }
    // A system of equations lists its unknowns.
    if environment == "cases" && entries.len() > 1 && entries.iter().all(|row| matches!(row.as_slice(), [Answer::Equals { .. }])) {
        return Ok(Answer::List(entries.concat()));
    }
    Ok(match environment {
        "pmatrix" | "bmatrix" | "matrix" | "Bmatrix" | "smallmatrix" | "array" | "psmallmatrix" | "cases" => Answer::Matrix(entries, false),
        "vmatrix" => Answer::Matrix(entries, true),
        // Lines of a text: the last one is what it comes to.
        "aligned" | "align" | "gathered" | "split" | "equation" | "gather" => {
            let cell = entries.pop().and_then(|row| row.into_iter().next_back());
            cell.unwrap_or_else(|| opaque(inside))
        }
        _ => opaque(inside),
    })
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

/// `\frac12 \begin{pmatrix}...\end{pmatrix} \begin{pmatrix}...`: a number and matrices, multiplied.
fn matrix_product(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
    let Some(first) = tokens.iter().position(|lexeme| matches!(lexeme.token, Token::Begin(_))) else { return Ok(None) };
    let mut scalar = None;
    let mut ahead = &tokens[..first];
    if let [rest @ .., Lexeme { token: Token::Symbol('*'), .. }] = ahead {
        ahead = rest;
    }
    match ahead {
        [] => {}
        [Lexeme { token: Token::Symbol('-'), .. }] => scalar = Some(Expr::integer(-1)),
        _ => match parsed(ahead)? {
            Some(expression) => scalar = Some(expression),
            None => return Ok(None),
        },
    }
    let mut rest = &tokens[first..];
    let mut result: Option<Vec<Vec<Expr>>> = None;
    while !rest.is_empty() {
        if symbol(&rest[0], '*') {
            rest = &rest[1..];
            continue;
        }
        let (Some(end), Token::Begin(environment)) = (closing(rest, 0), &rest[0].token) else { return Ok(None) };
        let Answer::Matrix(rows, false) = matrix(environment, &rest[1..end], depth)? else { return Ok(None) };
        let value = |entry: Answer| match entry {
            Answer::Quantity(Quantity { value, percent: false, unit: None }) => Some(value),
            _ => None,
        };
        let Some(rows) = rows.into_iter().map(|row| row.into_iter().map(value).collect()).collect::<Option<Vec<Vec<Expr>>>>() else {
            return Ok(None);
        };
        result = match result {
            None => Some(rows),
            Some(left) => multiplied(&left, &rows),
        };
        if result.is_none() {
            return Ok(None);
        }
        rest = &rest[end + 1..];
    }
    let scaled = |entry: Expr| match &scalar {
        Some(scalar) => Expr::Product(vec![scalar.clone(), entry]),
        None => entry,
    };
    let entry = |value: Expr| Answer::Quantity(Quantity { value: scaled(value), percent: false, unit: None });
    Ok(result.map(|rows| Answer::Matrix(rows.into_iter().map(|row| row.into_iter().map(entry).collect()).collect(), false)))
}

/// The product of two small matrices; nothing if they do not fit.
fn multiplied(left: &[Vec<Expr>], right: &[Vec<Expr>]) -> Option<Vec<Vec<Expr>>> {
    const SIDE: usize = 6;
    let columns = right.first()?.len();
    let fits = left.iter().all(|row| row.len() == right.len()) && right.iter().all(|row| row.len() == columns);
    // Entries of products of products grow with every factor.
    let small = |rows: &[Vec<Expr>]| rows.iter().flatten().all(|entry| entry.as_number().is_some() || matches!(entry, Expr::Symbol(_)));
    if !fits || left.len() > SIDE || right.len() > SIDE || columns > SIDE || !small(left) || !small(right) {
        return None;
    }
    let entry = |row: &[Expr], column: usize| {
        let terms = row.iter().zip(right).map(|(a, b)| Expr::Product(vec![a.clone(), b[column].clone()]));
        Expr::Sum(terms.collect())
    };
    Some(left.iter().map(|row| (0..columns).map(|column| entry(row, column)).collect()).collect())
}

/// "5 feet 3 inches", "2 hours and 30 minutes", `60^\circ 30'`: the sum, in the first unit.
fn compound(tokens: &[Lexeme]) -> Option<Quantity> {
    const PARTS: usize = 9;
    if tokens.len() > PARTS || tokens.len() < 4 {
        return None;
    }
    if symbol(&tokens[1], '°') {
        return sexagesimal(tokens);
    }
    let tokens: Vec<Lexeme> = tokens.iter().filter(|l| !matches!(l.token, Token::Conjunction | Token::Symbol(','))).cloned().collect();
    if !tokens.len().is_multiple_of(2) || tokens.len() < 4 {
        return None;
    }
    let mut total = None;
    let mut first = None;
    let mut larger: Option<num_rational::BigRational> = None;
    for pair in tokens.chunks(2) {
        let [Lexeme { token: Token::Number { value, .. }, .. }, Lexeme { token: Token::Word(word) | Token::Text(word), .. }] = pair else {
            return None;
        };
        let of = unit(word)?;
        let (kind, factor) = first.get_or_insert((of.kind, of.factor())).clone();
        // Smaller and smaller ones; "5 cm and 3 cm" are two.
        if kind != of.kind || larger.as_ref().is_some_and(|larger| *larger <= of.factor() || value * of.factor() >= *larger) {
            return None;
        }
        larger = Some(of.factor());
        total = Some(total.unwrap_or_else(num_rational::BigRational::zero) + value * of.factor() / factor);
    }
    let (Token::Word(word) | Token::Text(word)) = &tokens[1].token else { return None };
    Some(Quantity { value: Expr::Number(total?), percent: false, unit: Some(word.clone()) })
}

/// `60^\circ 30' 15''`
fn sexagesimal(tokens: &[Lexeme]) -> Option<Quantity> {
    let mut total = num_rational::BigRational::zero();
    let mut rest = tokens;
    for (place, mark) in [(1, "°"), (60, "'"), (3600, "''")] {
        let [Lexeme { token: Token::Number { value, .. }, .. }, behind @ ..] = rest else { break };
        let marks = mark.chars().count();
        let marked = behind.len() >= marks && behind.iter().zip(mark.chars()).all(|(lexeme, mark)| symbol(lexeme, mark));
        if !marked || (place > 1 && *value >= BigInt::from(60).into()) {
            return None;
        }
        total += value / BigInt::from(place);
        rest = &behind[marks..];
    }
    rest.is_empty().then(|| Quantity { value: Expr::Number(total), percent: false, unit: Some("°".into()) })
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

/// A value with its signs of money, percent sign, unit, or other words behind it.
fn quantity(tokens: &[Lexeme]) -> Result<Option<Quantity>, TooLarge> {
    let money = |token: &Token| matches!(token, Token::Symbol('$' | '€' | '£' | '¥' | '₹' | '¢'));
    let mut unit = None;
    let kept: Vec<Lexeme>;
    let mut tokens = tokens;
    if tokens.iter().any(|lexeme| money(&lexeme.token)) {
        if let Some(Lexeme { token: Token::Symbol(sign), .. }) = tokens.iter().find(|lexeme| money(&lexeme.token)) {
            unit = Some(sign.to_string());
        }
        kept = tokens.iter().filter(|lexeme| !money(&lexeme.token)).cloned().collect();
        tokens = &kept;
    }
    const AHEAD: [&str; 15] = [
        "about",
        "approximately",
        "approx",
        "approx.",
        "exactly",
        "roughly",
        "only",
        "just",
        "almost",
        "around",
        "usd",
        "eur",
        "gbp",
        "rs",
        "rs.",
    ];
    while let [first, rest @ ..] = tokens
        && let Some(word) = word_of(first)
        && AHEAD.contains(&word.to_lowercase().as_str())
        && matches!(rest.first(), Some(Lexeme { token: Token::Number { .. } | Token::Command(_) | Token::Symbol('-' | '.'), .. }))
    {
        tokens = match rest {
            [dot, rest @ ..] if symbol(dot, '.') => rest,
            _ => rest,
        };
    }
    // The first word that stands behind a value begins the unit.
    let wordlike = |token: &Token| matches!(token, Token::Word(_) | Token::Text(_));
    let begins = outside(tokens, wordlike).first().copied().unwrap_or(tokens.len());
    let (mut front, back) = tokens.split_at(begins);
    if begins == 0 {
        return Ok(None);
    }
    // "I think it is 42" is no quantity of I: words stand behind a number, or they are a unit.
    let numeric = tokens[..begins].iter().any(|lexeme| matches!(lexeme.token, Token::Number { .. } | Token::Command(_)));
    let behind = phrase(back);
    if !back.is_empty() {
        let Some(behind) = behind else { return Ok(None) };
        if !numeric && super::units::unit(&behind).is_none() {
            return Ok(None);
        }
        // "$42 million": what multiplies must not be lost.
        if unit.as_ref().is_none_or(|_| super::compare::multiplies(&behind)) {
            unit = Some(behind);
        }
    }
    let mut percent = false;
    // `10\%`, "28 %", `28^\circ C`
    loop {
        match front {
            [rest @ .., Lexeme { token: Token::Symbol('%'), .. }] if !percent && !rest.is_empty() => {
                percent = true;
                front = rest;
            }
            [rest @ .., Lexeme { token: Token::Symbol('.' | ','), .. }] if !rest.is_empty() => front = rest,
            [rest @ .., Lexeme { token: Token::Symbol('°'), .. }, Lexeme { token: Token::Letter(letter @ ('C' | 'F')), .. }]
                if !rest.is_empty() =>
            {
                unit = Some(format!("°{letter}"));
                front = rest;
            }
            _ => break,
        }
    }
    let Some(value) = parsed(front)? else { return Ok(None) };
    let (value, degrees) = match value {
        Expr::Apply(Function::Degrees, mut items) => (items.swap_remove(0), true),
        Expr::Product(mut items)
            if items.len() == 2 && items[0] == Expr::integer(-1) && matches!(&items[1], Expr::Apply(Function::Degrees, _)) =>
        {
            match items.swap_remove(1) {
                Expr::Apply(_, mut inner) => (inner.swap_remove(0).negated(), true),
                other => (other.negated(), false),
            }
        }
        other => (other, false),
    };
    if degrees {
        unit.get_or_insert("°".into());
    }
    Ok(Some(Quantity { value, percent, unit }))
}

/// Words behind a value as text, with the powers and slashes of units; none if there is other mathematics among them.
fn phrase(tokens: &[Lexeme]) -> Option<String> {
    if tokens.len() > PHRASE {
        return None;
    }
    let mut text = String::new();
    for (at, lexeme) in tokens.iter().enumerate() {
        if lexeme.spaced && !text.is_empty() {
            text.push(' ');
        }
        match &lexeme.token {
            Token::Word(word) | Token::Text(word) => text += word,
            Token::Letter(letter) => text.push(*letter),
            // "5 feet 3 inches" has two values.
            Token::Number { digits, .. } if at > 0 && matches!(tokens[at - 1].token, Token::Symbol('^') | Token::GroupOpen) => {
                text += digits
            }
            Token::Symbol(c @ ('^' | '/' | '.' | ',' | '\'' | '-' | '°' | '!' | '$')) => text.push(*c),
            Token::GroupOpen | Token::GroupClose | Token::Open('(') | Token::Close(')') => {}
            Token::Conjunction => text += " and ",
            _ => return None,
        }
    }
    Some(text.replace(" ^", "^"))
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

/// `4:30`, `12:00 PM`
fn clock(tokens: &[Lexeme]) -> Option<Answer> {
    // "10 AM"
    if let [Lexeme { token: Token::Number { digits, places: None, .. }, .. }, rest @ ..] = tokens
        && !rest.is_empty()
        && rest.len() < 5
        && let Some(half) = half_of_day(rest)
    {
        return digits.parse().ok().filter(|hour| (1..=12).contains(hour)).map(|hour| Answer::Clock(vec![hour, 0], Some(half)));
    }
    if tokens.len() < 3 || !symbol(&tokens[1], ':') {
        return None;
    }
    let mut parts = Vec::new();
    let mut at = 0;
    while let Some(Lexeme { token: Token::Number { digits, places: None, .. }, .. }) = tokens.get(at) {
        let value: u32 = digits.parse().ok()?;
        if at > 0 && (digits.len() != 2 || value > 59) || value > 99 {
            return None;
        }
        parts.push(value);
        at += 1;
        match tokens.get(at) {
            Some(lexeme) if symbol(lexeme, ':') && parts.len() < 3 => at += 1,
            _ => break,
        }
    }
    if parts.len() < 2 {
        return None;
    }
    match &tokens[at..] {
        [] => Some(Answer::Clock(parts, None)),
        rest => half_of_day(rest).map(|half| Answer::Clock(parts, Some(half))),
    }
}

/// "a.m.", "PM": whether it is after noon.
fn half_of_day(tokens: &[Lexeme]) -> Option<bool> {
    let said: String = phrase(tokens)?.to_lowercase().chars().filter(|c| c.is_alphabetic()).collect();
    match said.as_str() {
        "am" => Some(false),
        "pm" => Some(true),
        _ => None,
    }
}

/// `2020-03-04`, "March 4, 2020", "4 March"
fn date(tokens: &[Lexeme]) -> Option<Answer> {
    let number = |lexeme: &Lexeme| match &lexeme.token {
        Token::Number { digits, places: None, .. } => digits.parse::<u32>().ok().map(|value| (value, digits.len())),
        _ => None,
    };
    let month = |lexeme: &Lexeme| match &lexeme.token {
        Token::Word(word) | Token::Text(word) => {
            let word = word.to_lowercase();
            let names =
                ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"];
            names
                .iter()
                .position(|name| {
                    *name == word
                        || (word.len() >= 3
                            && word.len() <= 4
                            && name.starts_with(&word[..3])
                            && name.starts_with(word.trim_end_matches('.')))
                })
                .map(|at| at as u32 + 1)
        }
        _ => None,
    };
    let day = |value: u32| (1..=31).contains(&value);
    let without: Vec<&Lexeme> = tokens
        .iter()
        .filter(|l| !symbol(l, ',') && !matches!(&l.token, Token::Word(w) if ["th", "st", "nd", "rd", "of"].contains(&w.as_str())))
        .collect();
    match without.as_slice() {
        [y, a, m, b, d] if symbol(a, '-') && symbol(b, '-') && !a.spaced && !m.spaced => match (number(y)?, number(m)?, number(d)?) {
            ((year, 4), (month, 2), (day_of, 2)) if (1..=12).contains(&month) && day(day_of) => {
                Some(Answer::Date(Some(year), month, day_of))
            }
            _ => None,
        },
        [m, d, y] if month(m).is_some() => {
            Some(Answer::Date(Some(number(y)?.0), month(m)?, number(d)?.0)).filter(|_| number(d).is_some_and(|d| day(d.0)))
        }
        [d, m, y] if month(m).is_some() => {
            Some(Answer::Date(Some(number(y)?.0), month(m)?, number(d)?.0)).filter(|_| number(d).is_some_and(|d| day(d.0)))
        }
        [m, d] if month(m).is_some() => number(d).filter(|d| day(d.0)).map(|d| Answer::Date(None, month(m).unwrap_or(0), d.0)),
        [d, m] if month(m).is_some() => number(d).filter(|d| day(d.0)).map(|d| Answer::Date(None, month(m).unwrap_or(0), d.0)),
        _ => None,
    }
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
