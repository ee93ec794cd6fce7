//! Decoding one token after another, to exactly the text that decoding them all at once gives.
//!
//! A tokenizer's decoder is a chain of steps over the list of all pieces. Read as a stream, it is: steps on one piece alone, then one
//! way of joining pieces, then perhaps a strip at the very beginning. Three facts make the joined text differ from the sum of its
//! parts, and each is kept as a few bytes of state, so that a token costs the same however long the sample is:
//! - byte-level pieces may end inside a character; the unfinished bytes wait for the next piece;
//! - byte-fallback pieces (`<0xE2>`) are judged as a run: if the whole run is not UTF-8, each of its bytes becomes U+FFFD. The text of
//!   a run is therefore *tentative* until the run ends;
//! - the first piece loses its leading space.

use std::sync::Arc;

use tokenizers::Decoder;
use tokenizers::decoders::DecoderWrapper;

/// What a byte that is no part of a character is shown as.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// A tokenizer's decoder, taken apart for streaming.
#[derive(Clone, Debug)]
pub struct DecodePlan {
    steps: Vec<Step>,
    join: Join,
    /// Remove up to so many of this character from the beginning of the text.
    strip: Option<(char, usize)>,
}

/// Work on one piece alone.
#[derive(Clone, Debug)]
enum Step {
    /// A decoder of the library that looks at one piece, and at whether it is the first.
    Library(DecoderWrapper),
    /// No decoder: pieces are words, a space between them.
    SpaceBetween,
}

/// How pieces become one text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Join {
    Text,
    ByteLevel,
    ByteFallback,
}

impl DecodePlan {
    /// Takes a decoder apart. The error says which part cannot be followed token by token.
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Result<DecodePlan, String> {
        let mut plan = DecodePlan { steps: Vec::new(), join: Join::Text, strip: None };
        let Some(decoder) = decoder else {
            plan.steps.push(Step::SpaceBetween);
            return Ok(plan);
        };
        let mut chain = Vec::new();
        flatten(decoder, &mut chain);
        let mut fused = false;
        for decoder in chain {
            match decoder {
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Strip(strip) if strip.stop > 0 => return Err("Strip removes characters from the end".into()),
                DecoderWrapper::Strip(strip) if fused && plan.strip.is_none() => plan.strip = Some((strip.content, strip.start)),
                _ if fused || plan.join != Join::Text => return Err(format!("{} stands after the pieces are joined", name(decoder))),
                DecoderWrapper::ByteLevel(_) => (plan.join, fused) = (Join::ByteLevel, true),
                DecoderWrapper::ByteFallback(_) => plan.join = Join::ByteFallback,
                DecoderWrapper::Replace(_) | DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) | DecoderWrapper::Strip(_) => {
                    plan.steps.push(Step::Library(decoder.clone()));
                }
                _ => return Err(format!("is of type {}", name(decoder))),
            }
        }
        Ok(plan)
    }

    /// The bytes of a piece that does not stand first.
    pub(super) fn bytes(&self, piece: String) -> Vec<u8> {
        let piece = self.apply_steps(piece, false);
        match self.join {
            Join::Text => piece.into_bytes(),
            Join::ByteLevel => byte_level(&piece),
            Join::ByteFallback => fallback_byte(&piece).map_or_else(|| piece.into_bytes(), |byte| vec![byte]),
        }
    }

    fn apply_steps(&self, mut piece: String, first: bool) -> String {
        for step in &self.steps {
            piece = match step {
                Step::SpaceBetween if first => piece,
                Step::SpaceBetween => format!(" {piece}"),
                Step::Library(decoder) => {
                    let chain = if first { vec![piece.clone()] } else { vec![String::new(), piece.clone()] };
                    // None of the supported steps can fail; a piece that one could not change stays what it is.
                    decoder.decode_chain(chain).ok().and_then(|mut pieces| pieces.pop()).unwrap_or(piece)
                }
            };
        }
        piece
    }
}

/// The decoders of nested sequences, in order.
fn flatten<'a>(decoder: &'a DecoderWrapper, chain: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|decoder| flatten(decoder, chain)),
        decoder => chain.push(decoder),
    }
}

fn name(decoder: &DecoderWrapper) -> &'static str {
    match decoder {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

/// The bytes that a byte-level piece spells; a piece with a character outside that alphabet stands for itself.
fn byte_level(piece: &str) -> Vec<u8> {
    piece.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| piece.as_bytes().to_vec())
}

/// The byte that a character of the byte-level alphabet stands for (GPT-2's `bytes_to_unicode`, backwards): printable Latin-1 is
/// itself, and the 68 other bytes follow in order from U+0100.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),        // 00..=20
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(), // 7F..=A0
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The byte of a byte-fallback piece, `<0x0A>` for example.
fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A run of byte-fallback pieces that is still UTF-8 as far as it goes.
#[derive(Clone, Debug)]
enum Run {
    /// No byte-fallback piece came last.
    None,
    /// The run may still turn out to be UTF-8.
    Open {
        /// Length of the text before the run.
        start: usize,
        /// Bytes in the run.
        bytes: usize,
    },
    /// It is not; each further byte of it is U+FFFD.
    Broken,
}

/// The state of one stream of tokens.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    plan: Arc<DecodePlan>,
    text: String,
    /// Bytes of a character that is not complete yet, at most 3.
    pending: Vec<u8>,
    run: Run,
    strip_left: usize,
    first: bool,
}

impl StreamDecoder {
    pub(super) fn new(plan: Arc<DecodePlan>) -> StreamDecoder {
        let strip_left = plan.strip.map_or(0, |(_, count)| count);
        StreamDecoder { plan, text: String::new(), pending: Vec::new(), run: Run::None, strip_left, first: true }
    }

    /// Adds a piece of the vocabulary. Returns `true` if tentative text was replaced: everything from [`certain`](Self::certain), as
    /// it was before this call, is new.
    pub fn push(&mut self, piece: String) -> bool {
        let piece = self.plan.apply_steps(piece, self.first);
        self.first = false;
        match self.plan.join {
            Join::Text => {
                self.add_text(&piece);
                false
            }
            Join::ByteLevel => {
                self.pending.extend(byte_level(&piece));
                self.take_pending();
                false
            }
            Join::ByteFallback => match fallback_byte(&piece) {
                Some(byte) => self.push_run_byte(byte),
                None => {
                    let replaced = self.end_run();
                    self.add_text(&piece);
                    replaced
                }
            },
        }
    }

    /// Ends the stream: bytes that still waited for the rest of their character become U+FFFD. Returns what `push` does.
    pub fn finish(&mut self) -> bool {
        match self.plan.join {
            Join::Text => false,
            Join::ByteFallback => self.end_run(),
            Join::ByteLevel => {
                if !self.pending.is_empty() {
                    self.pending.clear();
                    self.add_char(REPLACEMENT);
                }
                false
            }
        }
    }

    /// The text so far, whole characters only, tentative text included.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// So many bytes of the text can no longer change.
    pub fn certain(&self) -> usize {
        match self.run {
            Run::Open { start, .. } => start,
            _ => self.text.len(),
        }
    }

    fn push_run_byte(&mut self, byte: u8) -> bool {
        match &mut self.run {
            Run::Broken => {
                self.add_char(REPLACEMENT);
                return false;
            }
            Run::Open { bytes, .. } => *bytes += 1,
            Run::None => self.run = Run::Open { start: self.text.len(), bytes: 1 },
        }
        self.pending.push(byte);
        match std::str::from_utf8(&self.pending) {
            Ok(_) => {
                self.take_pending();
                false
            }
            Err(error) if error.error_len().is_none() => false,
            Err(_) => self.break_run(),
        }
    }

    /// A run that ends inside a character is not UTF-8.
    fn end_run(&mut self) -> bool {
        let replaced = !self.pending.is_empty() && self.break_run();
        self.run = Run::None;
        replaced
    }

    fn break_run(&mut self) -> bool {
        if let Run::Open { start, bytes } = self.run {
            self.text.truncate(start);
            self.pending.clear();
            (0..bytes).for_each(|_| self.add_char(REPLACEMENT));
        }
        self.run = Run::Broken;
        true
    }

    /// Moves whole characters from the pending bytes to the text, and invalid bytes as U+FFFD, just as a lossy conversion of all
    /// bytes at once would.
    fn take_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.add_text(text);
                    return;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.add_text(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        self.pending = after.to_vec();
                        return;
                    };
                    self.add_char(REPLACEMENT);
                    rest = &after[invalid..];
                }
            }
        }
    }

    fn add_text(&mut self, text: &str) {
        if self.strip_left == 0 {
            self.text.push_str(text);
        } else {
            text.chars().for_each(|c| self.add_char(c));
        }
    }

    fn add_char(&mut self, c: char) {
        if self.strip_left > 0 {
            if self.plan.strip.is_some_and(|(content, _)| content == c) {
                self.strip_left -= 1;
                return;
            }
            self.strip_left = 0;
        }
        self.text.push(c);
    }
}
