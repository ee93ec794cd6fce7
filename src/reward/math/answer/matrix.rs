//! Matrices, and their products with numbers and with each other.

use super::super::expr::{Expr, TooLarge};
use super::super::lex::{Lexeme, Token};
use super::super::parse::closing;
use super::{Answer, ITEMS, Quantity, Read, opaque, outside, parsed, read, split, symbol, trimmed, word_of};

pub(super) fn matrix(environment: &str, inside: &[Lexeme], depth: usize) -> Read {
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

/// `\frac12 \begin{pmatrix}...\end{pmatrix} \begin{pmatrix}...`: a number and matrices, multiplied.
pub(super) fn matrix_product(tokens: &[Lexeme], depth: usize) -> Result<Option<Answer>, TooLarge> {
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
