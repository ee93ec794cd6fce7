//! Equations, inequalities, membership and congruences, and what they name.

use num_bigint::BigInt;
use num_traits::Zero;

use super::super::expr::{Constant, Expr, Function, TooLarge};
use super::super::lex::{Lexeme, Token};
use super::{Answer, ITEMS, Quantity, opaque, outside, parsed, read, split, symbol, trimmed, word_of};

/// Whether it says of a letter that is used `before` that it stands for any integer: `k \in \mathbb{Z}`.
pub(super) fn is_domain(tokens: &[Lexeme], before: &[Lexeme]) -> bool {
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
pub(super) fn letter_set(tokens: &[Lexeme]) -> Option<String> {
    match tokens {
        [Lexeme { token: Token::Letter(letter @ ('Z' | 'R' | 'N' | 'Q' | 'C')), .. }] => Some(letter.to_string()),
        [Lexeme { token: Token::Command(name), .. }] => name.strip_prefix("mathbb ").map(str::to_owned),
        _ => None,
    }
}

/// What stands ahead of "for all x in R", "for every real x" or `(k \in \mathbb{Z})`: what holds for all numbers needs no such words.
pub(super) fn without_domain(tokens: &[Lexeme]) -> &[Lexeme] {
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
pub(super) fn related(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
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
pub(super) fn name(side: &Answer) -> Option<String> {
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
