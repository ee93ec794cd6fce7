//! The text of a sample while its tokens are drawn, and the end of it at a stop string.
//!
//! Text leaves here only when it is certain: whole characters, that no further token can change and that cannot be the beginning of a
//! stop string. What has left is never taken back, and all of it together is what decoding the sample's tokens at once gives, special
//! tokens skipped, cut before the stop string if one was met.
//!
//! Stop strings are looked for in the whole text of a sample, whatever it is about (a reasoning part is text like any other), and
//! across token boundaries. The match that is complete first wins, and of several that are complete at the same character the
//! longest: this depends on the text alone and not on how it was cut into tokens.

use std::sync::Arc;

use crate::model::decoder::StreamDecoder;
use crate::model::tokenizer::Tokenizer;

/// What one token brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextStep {
    /// Text that has become certain.
    pub text: String,
    /// The stop string that is now complete. The sample's text is certain and ends before it.
    pub stop: Option<String>,
}

/// The text of one sample, token by token. Each token costs the same, however many came before.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    decoder: StreamDecoder,
    stop: StopMatcher,
    /// State of the matcher where the decoder's text is certain, to go back to when tentative text is replaced.
    certain: MatchState,
    /// State of the matcher at the end of the decoder's text.
    latest: MatchState,
    /// Bytes of the text that have been handed out.
    emitted: usize,
    /// Where the text ends, after a stop string or `finish`.
    end: Option<usize>,
}

impl TextStream {
    /// The empty text of a sample that ends at any of the stop strings. Empty stop strings are ignored.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &[String]) -> TextStream {
        let decoder = tokenizer.stream_decoder();
        let stop = StopMatcher::new(stop);
        let start = stop.start();
        TextStream { tokenizer, decoder, certain: start.clone(), latest: start, stop, emitted: 0, end: None }
    }

    /// Adds a token. With `look_for_stop` false (the sample has not reached `min_tokens` with this token), a stop string that this
    /// token completes is text like any other; one that a later token completes may have begun in it. After a stop string, tokens
    /// bring nothing.
    pub fn push(&mut self, token_id: u32, look_for_stop: bool) -> TextStep {
        if self.end.is_some() {
            return TextStep::default();
        }
        let Some(piece) = self.tokenizer.visible_piece(token_id) else { return TextStep::default() };
        if self.decoder.push(piece) {
            self.latest = self.certain.clone();
        }
        let text = self.decoder.text();
        if let Some(found) = self.stop.advance(&mut self.latest, text, look_for_stop) {
            let end = found.start.max(self.emitted);
            self.end = Some(end);
            return TextStep { text: self.take(end), stop: Some(self.stop.strings[found.string].clone()) };
        }
        let certain = self.decoder.certain();
        if certain == text.len() {
            self.certain = self.latest.clone();
        }
        TextStep { text: self.take(certain - self.certain.held_back()), stop: None }
    }

    /// Ends the sample and returns the rest of its text: what was held back as a possible stop string, and U+FFFD for bytes whose
    /// character was never completed. After a stop string there is no rest.
    pub fn finish(&mut self) -> String {
        if self.end.is_some() {
            return String::new();
        }
        self.decoder.finish();
        let end = self.decoder.text().len();
        self.end = Some(end);
        self.take(end)
    }

    /// The text handed out so far; after a stop string or `finish`, the sample's text.
    pub fn text(&self) -> &str {
        &self.decoder.text()[..self.emitted]
    }

    fn take(&mut self, end: usize) -> String {
        let start = self.emitted.min(end);
        self.emitted = self.emitted.max(end);
        self.decoder.text()[start..end].to_owned()
    }
}

/// Looks for several strings at once in a text that grows, by Knuth, Morris and Pratt's method for each.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    strings: Vec<String>,
    /// For each string and each number of bytes matched, the longest shorter match that the same bytes end with.
    fallback: Vec<Vec<usize>>,
}

/// How far a text has been searched, and how much of each string it ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchState {
    searched: usize,
    matched: Vec<usize>,
}

/// A string that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index of the string.
    pub string: usize,
    /// Byte of the text at which it starts.
    pub start: usize,
}

impl MatchState {
    /// So many bytes at the end of the text could be the beginning of a string.
    pub fn held_back(&self) -> usize {
        self.matched.iter().copied().max().unwrap_or(0)
    }
}

impl StopMatcher {
    /// A matcher for these strings; empty ones are left out.
    pub fn new(strings: &[String]) -> StopMatcher {
        let strings: Vec<String> = strings.iter().filter(|string| !string.is_empty()).cloned().collect();
        let fallback = strings.iter().map(|string| fallback_table(string.as_bytes())).collect();
        StopMatcher { strings, fallback }
    }

    /// The state before any text.
    pub fn start(&self) -> MatchState {
        MatchState { searched: 0, matched: vec![0; self.strings.len()] }
    }

    /// Searches the part of `text` that is new since `state`. With `report` false, matches that end in this part are passed over.
    pub fn advance(&self, state: &mut MatchState, text: &str, report: bool) -> Option<Found> {
        for (at, &byte) in text.as_bytes().iter().enumerate().skip(state.searched) {
            let mut found: Option<usize> = None;
            for (index, string) in self.strings.iter().enumerate() {
                let (string, fallback) = (string.as_bytes(), &self.fallback[index]);
                let matched = &mut state.matched[index];
                while *matched > 0 && string[*matched] != byte {
                    *matched = fallback[*matched];
                }
                if string[*matched] == byte {
                    *matched += 1;
                }
                if *matched == string.len() {
                    *matched = fallback[*matched];
                    found = found.filter(|&other| self.strings[other].len() >= string.len()).or(Some(index));
                }
            }
            if let Some(string) = found.filter(|_| report) {
                state.searched = at + 1;
                return Some(Found { string, start: at + 1 - self.strings[string].len() });
            }
        }
        state.searched = text.len();
        None
    }
}

/// `table[n]`: the length of the longest proper prefix of the string that its first `n` bytes end with.
fn fallback_table(string: &[u8]) -> Vec<usize> {
    let mut table = vec![0; string.len() + 1];
    let mut matched = 0;
    for end in 2..=string.len() {
        while matched > 0 && string[matched] != string[end - 1] {
            matched = table[matched];
        }
        if string[matched] == string[end - 1] {
            matched += 1;
        }
        table[end] = matched;
    }
    table
}
