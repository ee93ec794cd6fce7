//! Where a value comes from, and the reading of files and variables against the keys that there are.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::DeTable;
use toml::{Table, Value};

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// File and line, counted from 1.
    File(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path, line) => write!(f, "{}:{line}", path.display()),
            Source::Variable(name) => write!(f, "environment variable {name}"),
            Source::Flag(name) => f.write_str(name),
        }
    }
}

/// What a source holds: values of known keys, and sentences about everything else.
#[derive(Default)]
pub(super) struct Read {
    pub values: Vec<(String, String, Value, Source)>,
    pub problems: Vec<String>,
}

/// Reads a file's text.
pub(super) fn read_file(path: &Path, text: &str, known: &Table) -> Read {
    let mut read = Read::default();
    let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    let (values, places) = match (text.parse::<Table>(), DeTable::parse(text)) {
        (Ok(values), Ok(places)) => (values, places),
        (Err(error), _) | (_, Err(error)) => {
            let at = error.span().map_or(1, |span| line(span.start));
            read.problems.push(format!("{}:{at}: is not TOML: {}", path.display(), in_words(error.message())));
            return read;
        }
    };
    for (section, inside) in places.get_ref() {
        let (name, at) = (section.get_ref().as_ref(), line(section.span().start));
        let Some(keys) = known.get(name).and_then(Value::as_table) else {
            let sections = known.keys().map(|name| format!("[{name}]")).collect::<Vec<_>>().join(", ");
            read.problems
                .push(format!("{}:{at}: {name} is not known; the sections are {sections}: remove it or correct its name", path.display()));
            continue;
        };
        let (Some(inside), Some(values)) = (inside.get_ref().as_table(), values.get(name).and_then(Value::as_table)) else {
            read.problems.push(format!("{}:{at}: {name} must be a section; write [{name}] and its keys below", path.display()));
            continue;
        };
        for key in inside.keys() {
            let (key, at) = (key.get_ref().as_ref(), line(key.span().start));
            match values.get(key) {
                Some(value) if keys.contains_key(key) => {
                    read.values.push((name.to_owned(), key.to_owned(), value.clone(), Source::File(path.to_owned(), at)));
                }
                _ => read.problems.push(format!("{}:{at}: {}", path.display(), unknown(name, key, keys))),
            }
        }
    }
    read
}

/// Reads variables called `ADAROLL_SECTION_KEY`. Other `ADAROLL_` variables (`ADAROLL_LOG`, `ADAROLL_TOKEN`) are not the configuration's.
pub(super) fn read_environment(variables: impl IntoIterator<Item = (String, String)>, known: &Table) -> Read {
    let mut read = Read::default();
    let mut variables: Vec<(String, String)> = variables.into_iter().collect();
    variables.sort();
    for (variable, text) in variables {
        let Some(rest) = variable.strip_prefix("ADAROLL_").map(str::to_ascii_lowercase) else { continue };
        let Some((section, key)) = rest.split_once('_') else { continue };
        let Some(keys) = known.get(section).and_then(Value::as_table) else { continue };
        let source = Source::Variable(variable.clone());
        match keys.get(key) {
            Some(default) => read.values.push((section.to_owned(), key.to_owned(), value_of(&text, default), source)),
            None => read.problems.push(format!("{source}: {}", unknown(section, key, keys))),
        }
    }
    read
}

fn unknown(section: &str, key: &str, keys: &Table) -> String {
    let names = keys.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!("{section}.{key} is not known; the keys of [{section}] are {names}: remove it or correct its name")
}

/// A variable's text as a value of its key's kind; text that is none stays text and is refused with the key's name.
fn value_of(text: &str, default: &Value) -> Value {
    let text = text.trim();
    let parsed = match default {
        Value::Integer(_) => text.parse().map(Value::Integer).ok(),
        Value::Float(_) => text.parse().map(Value::Float).ok(),
        Value::Boolean(_) => text.parse().map(Value::Boolean).ok(),
        Value::Array(_) => Some(Value::Array(
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| Value::String(item.into())).collect(),
        )),
        _ => None,
    };
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// A reader's complaint, to be read on from the key's name.
pub(super) fn in_words(problem: &str) -> String {
    let problem = problem.replace(['`', '\n'], " ").replace("  ", " ");
    match problem.split_once(": ") {
        Some(("invalid type" | "invalid value", rest)) => format!("is {}", rest.trim()),
        _ => problem.trim().to_owned(),
    }
}

/// What a key's value looks like.
pub(super) fn kind_help(known: &Table, path: &str) -> String {
    let default = path.split_once('.').and_then(|(section, key)| known.get(section)?.get(key));
    match default {
        Some(Value::Integer(n)) => format!("give a whole number, 0 or more, such as {n}"),
        Some(Value::Float(n)) => format!("give a number such as {n}"),
        Some(Value::Boolean(_)) => "give true or false".into(),
        Some(Value::Array(_)) => "give a list of strings such as [\"grader.internal:8080\"]".into(),
        Some(Value::String(text)) if !text.is_empty() => format!("give a string such as {text:?}"),
        _ => "give a string".into(),
    }
}
