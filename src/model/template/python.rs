//! What templates expect of Python: printing, string methods, tests, and the functions that transformers adds.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::{filters, globals, pycompat};

use super::invalid;

/// The message of a template's `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// The message, if an error goes back to `raise_exception`.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        source = error.source();
    }
    None
}

/// Adds functions, filters and tests that the template engine lacks or has otherwise.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(invalid("raise_exception").with_source(Raised(message.to_string())))
    });
    env.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
    env.add_function("joiner", globals::joiner);
    env.add_filter("truncate", filters::truncate);
    env.add_filter("striptags", filters::striptags);
    env.add_filter("filesizeformat", filters::filesizeformat);
    env.add_filter("indent", indent);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    // In Python strings and dictionaries are sequences as well: they have a length and items. So has what is undefined.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    env.add_test("iterable", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable | ValueKind::Undefined)
    });
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

/// Prints a value into the text: floats as Python's `repr`, all else as the template engine does (which is Python's way too).
pub(super) fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Number
        && !value.is_integer()
        && let Ok(float) = f64::try_from(value.clone())
    {
        return out.write_str(&float_repr(float)).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

/// A float as Python's `repr`: the shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if value != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}

/// Methods on values: those of Python's strings, lists and dictionaries.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => match string_method(text, name, args) {
            Err(error) if error.kind() == ErrorKind::UnknownMethod => pycompat::unknown_method_callback(state, value, name, args),
            result => result,
        },
        (ValueKind::Seq, _) if name == "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *wanted);
            at.map(Value::from).ok_or_else(|| invalid(format!("{wanted} is not in the list")))
        }
        (ValueKind::Map, _) if name == "copy" => Ok(value.clone()),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// String methods that the compatibility layer lacks, or has without their keyword arguments.
fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let pair = |parts: Option<(&str, &str)>, separator: &str, rest_first: bool| {
        let parts = match (parts, rest_first) {
            (Some((before, after)), _) => [before, separator, after],
            (None, false) => [text, "", ""],
            (None, true) => ["", "", text],
        };
        Value::from(Tuple::from(parts.map(Value::from)))
    };
    match name {
        "split" | "rsplit" => {
            let (separator, limit, names): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let named: Option<Value> = names.get("sep")?;
            let separator = separator.or(named).filter(|value| !value.is_none());
            let limit = match limit {
                Some(limit) => Some(limit),
                None => names.get("maxsplit")?,
            };
            names.assert_all_used()?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            let separator =
                separator.as_ref().map(|value| value.as_str().ok_or_else(|| invalid("the separator must be a string"))).transpose()?;
            if separator == Some("") {
                return Err(invalid("the separator is empty"));
            }
            Ok(split(text, separator, limit, name == "rsplit").into_iter().map(Value::from).collect())
        }
        "splitlines" => {
            let (keep, names): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(names.get("keepends")?).unwrap_or(false);
            names.assert_all_used()?;
            Ok(text
                .split_inclusive('\n')
                .map(|line| Value::from(if keep { line } else { line.trim_end_matches('\n').trim_end_matches('\r') }))
                .collect())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(pair(text.split_once(separator), separator, false))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(pair(text.rsplit_once(separator), separator, true))
        }
        "index" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = text.find(wanted).map(|at| text[..at].chars().count());
            at.map(Value::from).ok_or_else(|| invalid("substring not found"))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Ok(Value::from(format!("{sign}{digits:0>width$}", width = width.saturating_sub(sign.len()))))
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let padding: String = std::iter::repeat_n(fill.unwrap_or(' '), width.saturating_sub(text.chars().count())).collect();
            Ok(Value::from(if name == "ljust" { format!("{text}{padding}") } else { format!("{padding}{text}") }))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `str.split` and, from the right, `str.rsplit`.
fn split(text: &str, separator: Option<&str>, limit: usize, from_right: bool) -> Vec<String> {
    let owned = |parts: Vec<&str>| parts.into_iter().map(str::to_owned).collect::<Vec<String>>();
    let most = limit.saturating_add(1);
    let Some(separator) = separator else { return split_whitespace(text, limit, from_right) };
    if from_right {
        let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
        parts.reverse();
        owned(parts)
    } else {
        owned(text.splitn(most, separator).collect())
    }
}

/// Split at runs of whitespace, none at the edges. What the limit leaves unsplit keeps the whitespace at its far edge.
fn split_whitespace(text: &str, limit: usize, from_right: bool) -> Vec<String> {
    let near_trim = |text| if from_right { str::trim_end(text) } else { str::trim_start(text) };
    let mut parts = Vec::new();
    let mut rest = near_trim(text);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(at) = cut.filter(|_| parts.len() < limit) else {
            parts.push(rest.to_owned());
            break;
        };
        let (before, after) = rest.split_at(at);
        let (part, remaining) = if from_right { (after.trim_start(), before) } else { (before, after) };
        parts.push(part.to_owned());
        rest = near_trim(remaining);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// The filter `indent(width=4, first=False, blank=False)`: a newline at the end stays.
fn indent(text: &str, width: Option<Value>, first: Option<bool>, blank: Option<bool>, names: Kwargs) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => names.get("width")?,
    };
    let first = first.or(names.get("first")?).unwrap_or(false);
    let blank = blank.or(names.get("blank")?).unwrap_or(false);
    names.assert_all_used()?;
    let indent = match width {
        None => "    ".to_owned(),
        Some(text) if text.as_str().is_some() => text.to_string(),
        Some(number) => " ".repeat(usize::try_from(number)?),
    };
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index > 0 || first) && (blank || !line.is_empty() || index == 0) {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// The filter `escape`, with the entities that Python's markupsafe writes.
fn escape(text: &Value) -> String {
    text.to_string().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}
