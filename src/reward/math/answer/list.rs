//! Values side by side: lists, pairs of signs, tuples without commas between them.

use super::super::expr::{Constant, Expr, TooLarge};
use super::super::lex::{Lexeme, Token};
use super::super::parse::closing;
use super::relation::is_domain;
use super::{Answer, ITEMS, Quantity, enclosing, opaque, outside, read, split, trimmed, words};

/// `(1, 2) (3, 4)`: tuples side by side are a list, for they have no product.
pub(super) fn adjacent(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
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
pub(super) fn braced_lines(tokens: &[Lexeme]) -> Option<&[Lexeme]> {
    let [Lexeme { token: Token::Open('{'), .. }, rest @ ..] = tokens else { return None };
    let Token::Begin(environment) = &rest.first()?.token else { return None };
    let lines = ["array", "aligned", "matrix", "align", "gathered"].contains(&environment.as_str());
    (lines && closing(rest, 0)? + 1 == rest.len()).then(|| &rest[1..rest.len() - 1])
}

/// `a ± b` is a + b and a - b; all signs together.
pub(super) fn both_signs(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
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
pub(super) fn list(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
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
