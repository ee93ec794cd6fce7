//! A regular expression matches somewhere in the answer. The engine is linear in the text: no pattern can make it run away.

use regex::{Regex, RegexBuilder};

use super::{Found, Ruling};

/// Longest pattern, in bytes.
const PATTERN_BYTES: usize = 8 * 1024;
/// Largest compiled program and largest cache of one search, in bytes. A search costs at most the program's size times the text's length.
pub(super) const COMPILED_BYTES: usize = 1 << 20;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Says why a pattern cannot be used.
    pub fn new(pattern: &str, ignore_case: bool) -> Result<Self, String> {
        if pattern.is_empty() {
            return Err("is empty, which matches every answer; give a regular expression".into());
        }
        if pattern.len() > PATTERN_BYTES {
            return Err(format!("is {} bytes long; at most {PATTERN_BYTES} are compiled", pattern.len()));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.case_insensitive(ignore_case).size_limit(COMPILED_BYTES).dfa_size_limit(COMPILED_BYTES);
        builder.build().map(Pattern).map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("compiles to more than {limit} bytes; use fewer or smaller repetitions"),
            error => format!("is no regular expression: {error}"),
        })
    }

    /// Whether the pattern matches anywhere in `text`; the first match is what is extracted.
    pub fn judge(&self, text: &str) -> Found {
        let found = self.0.find(text).map(|found| found.as_str());
        Found::new(Ruling::of(found.is_some()), found, "regex")
    }
}
