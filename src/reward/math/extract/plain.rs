//! Numbers and expressions in plain text, their units, brackets and bold.

use std::borrow::Cow;

use super::{ANSWER_BYTES, MARKS, formula};

/// A line longer than this is looked at from its end only.
const LINE_BYTES: usize = 2048;
/// Words of mathematics: they do not make a sentence.
const FUNCTIONS: [&str; 20] = [
    "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "pi", "arcsin", "arccos", "arctan", "abs", "mod", "max", "min",
    "gcd", "lcm",
];

/// The last formula or number of `text`, with a unit behind it, and which of the two.
pub(super) fn last(text: &str, line_breaks: bool) -> Option<(Cow<'_, str>, &'static str)> {
    let last = formula::last(text, line_breaks);
    let end = last.as_ref().map_or(0, |formula| formula.end);
    if let Some(number) = last_number(&text[end..]) {
        return Some((number, "last_number"));
    }
    let inside = last?.inside?;
    let unit = unit(&text[end..]);
    if unit > 0 && formula::is_number(inside) {
        return Some((format!("{}{}", inside.trim().trim_end_matches(['.', ',']), &text[end..end + unit]).into(), "last_formula"));
    }
    Some((formula::last_row(inside).into(), "last_formula"))
}

/// The last number of `text` with the expression around it.
fn last_number(text: &str) -> Option<Cow<'_, str>> {
    text.rsplit('\n').filter(|line| has_digit(line)).take(4 * MARKS).find_map(|line| {
        let line = shortened_front(line, LINE_BYTES);
        let runs = runs(line);
        let (start, mut end) = *runs.last()?;
        end += unit(&line[end..]);
        // "3, 5 or 7" is no 7.
        let mut list = vec![&line[start..end]];
        let mut first = start;
        for (start, end) in runs.iter().rev().skip(1) {
            let between = line[*end..first].trim();
            let joined = if list.len() == 1 { matches!(between, "and" | "or" | ", and" | ", or") } else { between == "," };
            if !joined {
                break;
            }
            list.push(&line[*start..*end]);
            first = *start;
        }
        list.reverse();
        Some(if list.len() == 1 { list[0].into() } else { list.join(", ").into() })
    })
}

/// A piece of plain text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Piece {
    Number,
    /// A variable or a function.
    Name,
    Operator,
    Open,
    Close,
    Comma,
    /// A sign of a currency or a percent sign.
    Sign,
    /// Any other word or the end of a sentence.
    Break,
}

/// Where the expressions of `line` that hold a number start and end.
fn runs(line: &str) -> Vec<(usize, usize)> {
    let pieces = pieces(line);
    let mut runs = Vec::new();
    let mut from = 0;
    for at in 1..=pieces.len() {
        if at < pieces.len() && !broken(&pieces[from..at], pieces[at], line) {
            continue;
        }
        let mut run = &pieces[from..at];
        from = at;
        // A sign belongs to what it touches; any other operator at the edge is prose.
        while let [(first, start, end), second, ..] = run
            && match first {
                Piece::Number | Piece::Name | Piece::Sign => false,
                Piece::Open => unbalanced(run) > 0,
                Piece::Operator => !("-−+±√".contains(&line[*start..*end]) && second.1 == *end),
                _ => true,
            }
        {
            run = &run[1..];
        }
        while let [.., (last, start, end)] = run
            && match last {
                Piece::Number | Piece::Name | Piece::Sign => false,
                Piece::Close => unbalanced(run) < 0,
                Piece::Operator => line[*start..*end] != *"!",
                _ => true,
            }
        {
            run = &run[..run.len() - 1];
        }
        if let [(_, start, _), .., (_, _, end)] | [(_, start, end)] = run
            && run.iter().any(|(piece, ..)| *piece == Piece::Number)
        {
            runs.push((*start, *end));
        }
    }
    runs
}

/// Opened brackets less closed ones.
fn unbalanced(run: &[(Piece, usize, usize)]) -> isize {
    let count = |kind: Piece| run.iter().filter(|(piece, ..)| *piece == kind).count() as isize;
    count(Piece::Open) - count(Piece::Close)
}

/// Whether `next` does not belong to the expression that `run` is.
fn broken(run: &[(Piece, usize, usize)], next: (Piece, usize, usize), line: &str) -> bool {
    let [.., (last, start, end)] = run else { return false };
    let (next, next_start, next_end) = next;
    if *last == Piece::Break || next == Piece::Break {
        return true;
    }
    let gap = *end < next_start;
    let depth = unbalanced(&run[run.len().saturating_sub(64)..]);
    match (*last, next) {
        (_, Piece::Comma) => depth <= 0 && !run.iter().any(|(_, start, end)| &line[*start..*end] == "="),
        (Piece::Comma, _) => false,
        _ if !gap => false,
        (Piece::Operator | Piece::Open, _) | (_, Piece::Operator | Piece::Close) => false,
        (Piece::Number, Piece::Sign) => false,
        (Piece::Sign, Piece::Number) => &line[*start..*end] == "%",
        (Piece::Number, Piece::Number) => !continues(&line[*start..*end], &line[next_start..next_end], &line[next_end..]),
        _ => true,
    }
}

/// Whether the number `next` goes on with `last`, a space between them: "1 000", "4 4/9".
fn continues(last: &str, next: &str, after: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let group = (1..=3).contains(&last.len()) && digits(last) && next.len() >= 3 && next.as_bytes()[..3].iter().all(u8::is_ascii_digit);
    let group = group && !next.as_bytes().get(3).is_some_and(|b| b.is_ascii_digit());
    let fraction =
        digits(last) && digits(next) && after.strip_prefix('/').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    group || fraction
}

/// Cuts `line` into pieces; spaces are none.
fn pieces(line: &str) -> Vec<(Piece, usize, usize)> {
    let mut pieces: Vec<(Piece, usize, usize)> = Vec::new();
    let mut at = 0;
    while let Some(character) = line[at..].chars().next() {
        let rest = &line[at..];
        let width = character.len_utf8();
        let (piece, length) = match character {
            c if c.is_whitespace() => {
                at += width;
                continue;
            }
            '0'..='9' => number(rest),
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => number(rest),
            '\\' if rest[1..].starts_with(['$', '%']) => (Piece::Sign, 2),
            '\\' if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic()) => {
                (Piece::Name, 1 + rest[1..].bytes().take_while(u8::is_ascii_alphabetic).count())
            }
            '$' | '€' | '£' | '¥' | '₹' | '%' | '°' => (Piece::Sign, width),
            'π' | '∞' => (Piece::Name, width),
            '+' | '-' | '−' | '*' | '×' | '·' | '÷' | '/' | '^' | '=' | '<' | '>' | '≤' | '≥' | '≠' | '±' | '≈' | '√' | '_' => {
                (Piece::Operator, width)
            }
            '!' if rest[1..].starts_with(|c: char| !c.is_whitespace() && c != '!') => (Piece::Operator, width),
            '(' | '[' | '{' => (Piece::Open, width),
            ')' | ']' | '}' => (Piece::Close, width),
            ',' => (Piece::Comma, width),
            c if c.is_alphabetic() => word(rest),
            _ => (Piece::Break, width),
        };
        pieces.push((piece, at, at + length));
        at += length;
    }
    pieces
}

/// The number that `text` starts with and the letters that it is glued to: separators, an exponent, a unit or a variable.
fn number(text: &str) -> (Piece, usize) {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(0);
    while bytes.get(end).is_some_and(|b| matches!(b, b'.' | b',' | b':')) && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    let exponent = text[end..].strip_prefix(['e', 'E']).map_or(0, |rest| 1 + rest.len() - rest.trim_start_matches(['-', '+']).len());
    if exponent > 0 && digits(end + exponent) > 0 {
        end += exponent + digits(end + exponent);
    }
    let letters = text[end..].find(|c: char| !(c.is_alphabetic() || "²³°".contains(c))).unwrap_or(text.len() - end);
    let ordinal = matches!(&text[end..end + letters], "st" | "nd" | "rd" | "th");
    let glued = text[end + letters..].starts_with(|c: char| c.is_ascii_digit());
    (if ordinal || glued { Piece::Break } else { Piece::Number }, end + letters)
}

/// The word that `text` starts with: digits and a hyphen inside belong to it.
fn word(text: &str) -> (Piece, usize) {
    let letters = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let name = &text[..letters];
    let single = name.len() == 1 && !text[1..].starts_with(|c: char| c.is_ascii_digit() || c == '\'' || c == '’');
    if single || FUNCTIONS.contains(&name) {
        return (Piece::Name, letters);
    }
    let inner = |c: char| c.is_alphanumeric() || matches!(c, '-' | '\'' | '’' | '_');
    let end = text.find(|c: char| !inner(c)).unwrap_or(text.len());
    (Piece::Break, end)
}

/// How long the unit is that `text`, behind a number, starts with: a percent sign, or a word that ends the sentence.
pub(super) fn unit(text: &str) -> usize {
    let start = text.len() - text.trim_start_matches(' ').len();
    let rest = &text[start..];
    for sign in ["\\%", "%", "°", "percent", "pct", "degrees"] {
        if rest.starts_with(sign) && !rest[sign.len()..].starts_with(char::is_alphanumeric) {
            return start + sign.len();
        }
    }
    let letters = |from: usize| rest[from..].find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len() - from);
    let mut end = letters(0);
    if end == 0 || start == 0 || end > 20 || matches!(&rest[..end], "a" | "I") {
        return 0;
    }
    let power = ["square ", "cubic ", "sq "].iter().find(|power| rest.starts_with(**power));
    if let Some(power) = power {
        end = power.len() + letters(power.len());
    }
    if ["²", "³"].iter().any(|power| rest[end..].starts_with(power)) {
        end += "²".len();
    }
    for per in [" per ", " an ", " a ", "/"] {
        if rest[end..].starts_with(per) && letters(end + per.len()) > 0 {
            end += per.len() + letters(end + per.len());
            break;
        }
    }
    let ends = rest[end..].trim_start_matches(['*', '"', ')']);
    let ends = ends.is_empty()
        || ends.starts_with(['\n', '\r', ',', ';', '!', '?'])
        || ends.strip_prefix('.').is_some_and(|r| !r.starts_with(char::is_alphanumeric));
    if ends { start + end } else { 0 }
}

/// Whether a digit stands in `text`.
pub(super) fn has_digit(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_digit())
}

/// Whether `text` starts with a word of prose: it says something about its numbers.
pub(super) fn is_sentence(text: &str) -> bool {
    let word = &text[..text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len())];
    let prose = word.chars().count() > 2 && word.chars().skip(1).all(char::is_lowercase) && !FUNCTIONS.contains(&word);
    prose || !word.is_empty() && has_sentence(text)
}

/// Whether `text` holds two plain words, those in `\text{...}` and formulas aside.
pub(super) fn has_sentence(text: &str) -> bool {
    let mut words = 0;
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        match character {
            '\\' => {
                let after = &rest[1..];
                let length = after.bytes().take_while(u8::is_ascii_alphabetic).count();
                let command = &after[..length];
                rest = &after[length..];
                if length == 0 {
                    rest = rest.get(rest.chars().next().map_or(0, char::len_utf8)..).unwrap_or("");
                } else if (command.starts_with("text") || matches!(command, "mathrm" | "mbox" | "operatorname" | "begin" | "end"))
                    && rest.starts_with('{')
                {
                    rest = rest.find('}').map_or("", |end| &rest[end..]);
                }
            }
            c if c.is_alphabetic() => {
                let length = rest.find(|c: char| !c.is_alphabetic() && c != '\'').unwrap_or(rest.len());
                let word = &rest[..length];
                let counts = word.chars().nth(1).is_some() && !FUNCTIONS.contains(&word) && !matches!(word, "and" | "or");
                words += usize::from(counts);
                if words > 1 {
                    return true;
                }
                rest = &rest[length..];
            }
            c => rest = &rest[c.len_utf8()..],
        }
    }
    false
}

/// What the last brackets of `text` hold: neither a link's nor LaTeX's.
pub(super) fn last_brackets(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    for (close, _) in text.rmatch_indices(']').take(MARKS) {
        if text[..close].ends_with('\\') || text[close + 1..].starts_with('(') {
            continue;
        }
        let mut depth = 0;
        for at in (close.saturating_sub(ANSWER_BYTES)..=close).rev() {
            match bytes[at] {
                b']' => depth += 1,
                b'[' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                if at > 0 && bytes[at - 1] == b'\\' || bytes[..at].ends_with(b"\\left") {
                    break;
                }
                return Some(&text[at + 1..close]);
            }
        }
    }
    None
}

/// What `**...**` holds in the last line of `text`, if it is no heading. A power written with `**` is none.
pub(super) fn last_bold(text: &str) -> Option<&str> {
    let line = text.trim_end().rsplit('\n').next()?;
    let line = shortened_front(line, LINE_BYTES);
    let close = line.rfind("**")?;
    let open = line[..close].rfind("**")?;
    let inside = &line[open + 2..close];
    let glued = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let emphasis = !line[..open].ends_with(|c: char| glued(c) || c == ')') && !line[close + 2..].starts_with(glued);
    let spaced = inside.starts_with(char::is_whitespace) || inside.ends_with(char::is_whitespace);
    (emphasis && !spaced && !inside.is_empty() && !inside.ends_with([':', '：'])).then_some(inside)
}

/// The first `longest` bytes of `text`, or one character less.
pub(super) fn shortened(text: &str, longest: usize) -> &str {
    &text[..(0..=text.len().min(longest)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)]
}

/// The last `longest` bytes of `text`, or one character less.
fn shortened_front(text: &str, longest: usize) -> &str {
    let from = text.len().saturating_sub(longest);
    &text[(from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0)..]
}
