//! Values with what stands around them: signs of money, percent, units, other words.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

use super::super::expr::{Expr, Function, TooLarge};
use super::super::lex::{Lexeme, Token};
use super::super::{units, wording};
use super::{Quantity, outside, parsed, symbol, word_of};

/// Most words behind a value.
const PHRASE: usize = 16;

/// "5 feet 3 inches", "2 hours and 30 minutes", `60^\circ 30'`: the sum, in the first unit.
pub(super) fn compound(tokens: &[Lexeme]) -> Option<Quantity> {
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
        let of = units::unit(word)?;
        let (kind, factor) = first.get_or_insert((of.kind, of.factor())).clone();
        // Smaller and smaller ones; "5 cm and 3 cm" are two.
        if kind != of.kind || larger.as_ref().is_some_and(|larger| *larger <= of.factor() || value * of.factor() >= *larger) {
            return None;
        }
        larger = Some(of.factor());
        total = Some(total.unwrap_or_else(BigRational::zero) + value * of.factor() / factor);
    }
    let (Token::Word(word) | Token::Text(word)) = &tokens[1].token else { return None };
    Some(Quantity { value: Expr::Number(total?), percent: false, unit: Some(word.clone()) })
}

/// `60^\circ 30' 15''`
fn sexagesimal(tokens: &[Lexeme]) -> Option<Quantity> {
    let mut total = BigRational::zero();
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

/// A value with its signs of money, percent sign, unit, or other words behind it.
pub(super) fn quantity(tokens: &[Lexeme]) -> Result<Option<Quantity>, TooLarge> {
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
        if !numeric && units::unit(&behind).is_none() {
            return Ok(None);
        }
        // "$42 million": what multiplies must not be lost.
        if unit.as_ref().is_none_or(|_| wording::multiplier(&behind).is_some()) {
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
pub(super) fn phrase(tokens: &[Lexeme]) -> Option<String> {
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
