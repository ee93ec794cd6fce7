//! `tojson` and `fromjson`, as Python's `json.dumps` and `json.loads`.
//!
//! The transformers library replaces Jinja's own `tojson` by `json.dumps(x, ensure_ascii=False)`: no HTML escapes, a space behind each
//! `,` and `:`, keys in the order they came. Tool definitions reach the model this way, so each byte of it matters.

use minijinja::value::{Kwargs, Rest, Serde, ValueKind};
use minijinja::{Error, Value};

use super::invalid;
use super::python::float_repr;

/// How to print.
struct Style {
    ensure_ascii: bool,
    /// What one level of depth puts in front of a line; `None` keeps everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, arguments by place or by name.
pub(super) fn tojson(value: &Value, places: Rest<Value>, names: Kwargs) -> Result<String, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = names.get(name)?;
        Ok(named.or_else(|| places.get(place).cloned()).filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match argument(1, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(number) => Some(" ".repeat(usize::try_from(i64::try_from(number)?.max(0)).unwrap_or(0))),
    };
    let separators: Option<Vec<String>> = match argument(2, "separators")? {
        None => None,
        Some(pair) => Some(pair.try_iter()?.map(|part| part.to_string()).collect()),
    };
    let [item_separator, key_separator] = match separators {
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
        Some(pair) => pair.try_into().map_err(|_| invalid("tojson: separators must be two strings"))?,
    };
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    names.assert_all_used()?;
    let style = Style { ensure_ascii, indent, item_separator, key_separator, sort_keys };
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

/// The filter `fromjson`.
pub(super) fn fromjson(text: &str) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| invalid(format!("fromjson: not JSON: {error}")))?;
    Ok(Value::from(Serde(&value)))
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.write_items(out, ['[', ']'], items, depth)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    items.push((Some(key_text(&key)?), value.get_item(&key)?));
                }
                if self.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items(out, ['{', '}'], items, depth)?;
            }
            kind => return Err(invalid(format!("tojson: a value of type {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        let count = items.len();
        for (index, (key, value)) in items.into_iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(out, depth + 1);
            if let Some(key) = key {
                self.write_string(out, &key);
                out.push_str(&self.key_separator);
            }
            self.write(out, &value, depth + 1)?;
        }
        if count > 0 {
            new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                ' '..='~' => out.push(c),
                c if self.ensure_ascii || c < ' ' => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A number as Python's `json.dumps` prints it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => match float {
            _ if float.is_nan() => "NaN".into(),
            _ if float.is_infinite() => if float > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            _ => float_repr(float),
        },
        _ => value.to_string(),
    }
}

/// Keys are strings; numbers, booleans and null become strings, as in Python.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(invalid(format!("tojson: a key of type {kind} has no JSON form"))),
    }
}
