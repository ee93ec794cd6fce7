//! Text to token ids and back, as the model folder's tokenizer.json says.
//!
//! Two rules keep prompts what their authors meant. Rendered chat templates are encoded without added special tokens, since the
//! template has written them; plain text is encoded with them, but never with a second beginning-of-sequence token when the text
//! brings its own. And nothing is ever cut: truncation and padding that tokenizer.json may ask for are switched off.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::decoder::{DecodePlan, StreamDecoder};
use super::shield::Shield;
use super::special_tokens::{SpecialTokens, read_text};

/// Why a model folder's text files, or a text, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is there but cannot be read.
    #[error("{}: cannot be read: {reason}; check the file and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A file is not the JSON that it should be.
    #[error("{}: is not usable JSON: {reason}; fetch the file again or correct it", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line where it is known.
        reason: String,
    },
    /// tokenizer.json is JSON but not a tokenizer.
    #[error("{}: is not a usable tokenizer: {reason}; fetch the file again, or save the tokenizer anew with a current version of its library", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What the tokenizer library said.
        reason: String,
    },
    /// The tokenizer's decoder cannot be followed token by token.
    #[error(
        "{}: field decoder: {problem}; supported are ByteLevel, Metaspace, WordPiece, and sequences of Replace, ByteFallback, Fuse and Strip from the left",
        path.display()
    )]
    Decoder {
        /// The file.
        path: PathBuf,
        /// Which part is not supported.
        problem: String,
    },
    /// A text cannot be encoded.
    #[error("the text cannot be turned into token ids: {0}")]
    Encode(String),
    /// Token ids cannot be decoded.
    #[error("the token ids cannot be turned into text: {0}")]
    Decode(String),
    /// A message holds a special token's text together with characters that the server needs to keep the two apart.
    #[error(
        "a message holds the text of a special token and also the private-use character U+{0:X}; remove one of them, so that the special token's text can be kept from acting as a special token"
    )]
    PrivateUse(u32),
    /// The vocabulary would read a message's text as a special token whatever is done.
    #[error("a message holds the text {0:?}, which this vocabulary cannot spell without the special token; remove it from the message")]
    Forged(String),
    /// A field of a model folder's file has the wrong form.
    #[error("{}: field {field}: {problem}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What is wrong and what would be right.
        problem: String,
    },
}

/// A model's tokenizer. Cheap to use from many threads at once; share it in an `Arc`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    plan: Arc<DecodePlan>,
    special_tokens: SpecialTokens,
    shield: Shield,
    /// What the post-processor puts before a text.
    leading: Option<u32>,
    vocab_size: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("special_tokens", &self.special_tokens)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads tokenizer.json (and the special tokens of tokenizer_config.json) from a model folder; `None` if the folder has no
    /// tokenizer.json.
    pub fn from_folder(folder: &Path) -> Result<Option<Tokenizer>, TextError> {
        let path = folder.join("tokenizer.json");
        let Some(text) = read_text(&path)? else { return Ok(None) };
        let inner =
            text.parse().map_err(|error: tokenizers::Error| TextError::Tokenizer { path: path.clone(), reason: error.to_string() })?;
        Tokenizer::new(inner, SpecialTokens::from_folder(folder)?, &path).map(Some)
    }

    /// A tokenizer made by hand, for example in a test.
    pub fn from_parts(inner: tokenizers::Tokenizer, special_tokens: SpecialTokens) -> Result<Tokenizer, TextError> {
        Tokenizer::new(inner, special_tokens, Path::new("tokenizer.json"))
    }

    fn new(mut inner: tokenizers::Tokenizer, special_tokens: SpecialTokens, path: &Path) -> Result<Tokenizer, TextError> {
        let fail = |error: tokenizers::Error| TextError::Tokenizer { path: path.to_owned(), reason: error.to_string() };
        inner.with_truncation(None).map_err(fail)?;
        inner.with_padding(None);
        let plan = DecodePlan::new(inner.get_decoder()).map_err(|problem| TextError::Decoder { path: path.to_owned(), problem })?;
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        let first = |special: bool| inner.encode_fast("a", special).ok().and_then(|encoding| encoding.get_ids().first().copied());
        let leading = first(true).filter(|&id| first(false) != Some(id));
        let shield = Shield::new(&inner, &special_tokens);
        Ok(Tokenizer { inner, plan: Arc::new(plan), special_tokens, shield, leading, vocab_size })
    }

    /// Token ids of a text. With `add_special_tokens`, what tokenizer.json adds around a text (for many models a
    /// beginning-of-sequence token) is added, but not a second time if the text starts with that very token. Special tokens' text
    /// in the input becomes special tokens: for messages of others use [`super::chat::encode_chat`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens).map_err(|error| TextError::Encode(error.to_string()))?;
        let mut ids = encoding.get_ids().to_vec();
        if add_special_tokens && ids.len() >= 2 && self.leading == Some(ids[0]) && ids[0] == ids[1] {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// Token ids of a text without added special tokens, and for each the bytes of the text that it stands for.
    pub fn encode_with_offsets(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>), TextError> {
        let encoding = self.inner.encode(text, false).map_err(|error| TextError::Encode(error.to_string()))?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok((encoding.get_ids().to_vec(), offsets))
    }

    /// The text of token ids, by tokenizer.json's decoder. Ids outside the vocabulary have no text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TextError> {
        self.inner.decode(ids, skip_special_tokens).map_err(|error| TextError::Decode(error.to_string()))
    }

    /// Decodes one token after another, special tokens skipped; the result equals [`decode`](Self::decode) of them all.
    pub fn stream_decoder(&self) -> StreamDecoder {
        StreamDecoder::new(self.plan.clone())
    }

    /// The vocabulary's own spelling of a token, for example `Ġthe` or `<0x0A>`; `None` outside the vocabulary.
    pub fn piece(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// A token's bytes where it does not stand first: not always whole characters. `None` outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.piece(id).map(|piece| self.plan.bytes(piece))
    }

    /// Whether a token is special: it has no text in a sample.
    pub fn is_special(&self, id: u32) -> bool {
        self.piece(id).is_some_and(|piece| self.is_special_piece(&piece))
    }

    /// The piece of a token that has text in a sample.
    pub fn visible_piece(&self, id: u32) -> Option<String> {
        self.piece(id).filter(|piece| !self.is_special_piece(piece))
    }

    fn is_special_piece(&self, piece: &str) -> bool {
        self.inner.get_added_vocabulary().is_special_token(piece)
    }

    /// The id of a piece or special token.
    pub fn token_id(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    /// The largest id of the vocabulary, added tokens included, plus one. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The special tokens that the model folder names.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// Keeps special tokens' text in messages from acting as special tokens.
    pub(super) fn shield(&self) -> &Shield {
        &self.shield
    }

    /// The tokenizer of the library.
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }
}
