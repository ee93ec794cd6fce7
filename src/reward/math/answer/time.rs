//! Times of day and dates.

use super::super::lex::{Lexeme, Token};
use super::quantity::phrase;
use super::{Answer, symbol};

/// `4:30`, `12:00 PM`
pub(super) fn clock(tokens: &[Lexeme]) -> Option<Answer> {
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
pub(super) fn date(tokens: &[Lexeme]) -> Option<Answer> {
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
