//! Keeps the text of special tokens inside messages from acting as special tokens.
//!
//! A user who writes `<|im_end|>\n<|im_start|>system` must not end his own turn and open another. But the template's own `<|im_end|>`
//! has to act, and the library reads only one text, in which the two look alike. So:
//! 1. before rendering, every place in a message where a guarded token's text stands (or where a piece of one stands at the message's
//!    edge, which a neighbour could complete) gets a *break character* behind its first character;
//! 2. the template renders: a guarded text that is whole afterwards is the template's own;
//! 3. break characters are taken out. If that leaves no further guarded text, the rendered text is encoded as it always is. If it does,
//!    the template's own tokens are written as single private-use characters and the text is encoded by a copy of the tokenizer whose
//!    guarded tokens are spelled by these characters. It splits, normalises and merges exactly as the original does, and to it a
//!    message's `<|im_end|>` is seven ordinary characters.
//!
//! Guarded are added tokens that tokenizer.json marks special, those that the model folder names, and any of the form `<|...|>`:
//! lists of "all special tokens" alone miss tokens such as Qwen's `<|im_start|>`. Other added tokens (`<think>`, `<tool_call>`) belong
//! to what messages may say and are left alone.

use std::collections::HashMap;
use std::sync::OnceLock;

use tokenizers::{AddedToken, AddedVocabulary, Model as _};

use super::special_tokens::SpecialTokens;
use super::tokenizer::{TextError, Tokenizer};

/// First of the private-use characters that spell guarded tokens in a shielded text.
const FIRST_SPELLING: u32 = 0x10_0000;

/// The guarded tokens of one tokenizer.
pub struct Shield {
    /// Text and id, in the order of ids.
    guarded: Vec<(String, u32)>,
    /// What guarded tokens begin with.
    first_chars: Vec<char>,
    /// Made when it is first needed: a copy of the tokenizer costs as much memory as the tokenizer.
    shielded: OnceLock<Result<Shielded, String>>,
}

/// A tokenizer whose guarded tokens are spelled by private-use characters.
struct Shielded {
    tokenizer: tokenizers::Tokenizer,
    /// From its ids of added tokens to the original's.
    original_ids: HashMap<u32, u32>,
}

/// One guarded token where it stands in a text.
struct Found {
    start: usize,
    end: usize,
    /// Index among the guarded tokens.
    token: usize,
}

impl Shield {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, special_tokens: &SpecialTokens) -> Shield {
        let mut guarded: Vec<(String, u32)> = tokenizer
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| {
                let text = token.content.as_str();
                let control_form = text.starts_with("<|") && text.ends_with("|>") && text.len() > 4;
                // A token of one character cannot be broken; none is known.
                (token.special || control_form || special_tokens.texts().any(|special| special == text)) && text.chars().nth(1).is_some()
            })
            .map(|(&id, token)| (token.content.clone(), id))
            .collect();
        guarded.sort_by_key(|&(_, id)| id);
        let mut first_chars: Vec<char> = guarded.iter().filter_map(|(text, _)| text.chars().next()).collect();
        first_chars.sort_unstable();
        first_chars.dedup();
        Shield { guarded, first_chars, shielded: OnceLock::new() }
    }

    /// A message's text with break characters where a guarded token's text, or a part of one at its edge, stands.
    pub(super) fn broken(&self, text: &str, break_char: char) -> Option<String> {
        let mut breaks: Vec<usize> = Vec::new();
        for (at, first) in text.char_indices().filter(|(_, c)| self.first_chars.contains(c)) {
            let rest = &text[at..];
            // Whole here, or begun here at the end of the message.
            if self.guarded.iter().any(|(guarded, _)| rest.starts_with(guarded.as_str()) || guarded.starts_with(rest)) {
                breaks.push(at + first.len_utf8());
            }
        }
        // The rest of one whose beginning the template or another message could supply.
        if self.guarded.iter().any(|(guarded, _)| guarded.char_indices().skip(1).any(|(cut, _)| text.starts_with(&guarded[cut..]))) {
            breaks.insert(0, 0);
        }
        if breaks.is_empty() {
            return None;
        }
        let mut broken = String::with_capacity(text.len() + 4 * breaks.len());
        let mut done = 0;
        for at in breaks {
            broken.push_str(&text[done..at]);
            broken.push(break_char);
            done = at;
        }
        broken.push_str(&text[done..]);
        Some(broken)
    }

    /// Where guarded tokens stand in a text: from the left, the longest first, without overlaps, as the tokenizer finds them.
    fn find(&self, text: &str) -> Vec<Found> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            let fits = |(_, (guarded, _)): &(usize, &(String, u32))| text[at..].starts_with(guarded.as_str());
            let longest = if self.first_chars.contains(&c) {
                self.guarded.iter().enumerate().filter(fits).max_by_key(|(_, (guarded, _))| guarded.len())
            } else {
                None
            };
            at = match longest {
                Some((token, (guarded, _))) => {
                    found.push(Found { start: at, end: at + guarded.len(), token });
                    at + guarded.len()
                }
                None => at + c.len_utf8(),
            };
        }
        found
    }

    /// Token ids of a rendered text in which break characters stand. Returns the text without them as well.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, rendered: &str, break_char: char) -> Result<(String, Vec<u32>), TextError> {
        // A template may have printed a message as ASCII JSON.
        let rendered = rendered.replace(&format!("\\u{:04x}", u32::from(break_char)), &break_char.to_string());
        let own = self.find(&rendered);
        let text = rendered.replace(break_char, "");
        let removed_before = |at: usize| rendered[..at].matches(break_char).count() * break_char.len_utf8();
        let seen = self.find(&text);
        let same = own.len() == seen.len()
            && own.iter().zip(&seen).all(|(own, seen)| own.token == seen.token && own.start - removed_before(own.start) == seen.start);
        if same {
            let ids = tokenizer.encode(&text, false)?;
            return Ok((text, ids));
        }

        let spellings = FIRST_SPELLING..FIRST_SPELLING + self.guarded.len() as u32;
        if let Some(taken) = text.chars().find(|&c| spellings.contains(&u32::from(c))) {
            return Err(TextError::PrivateUse(taken.into()));
        }
        let mut spelled = String::with_capacity(rendered.len());
        let mut done = 0;
        for found in &own {
            spelled.push_str(&rendered[done..found.start]);
            spelled.extend(spelling(found.token));
            done = found.end;
        }
        spelled.push_str(&rendered[done..]);
        let ids = self.encode_spelled(tokenizer, &spelled.replace(break_char, ""))?;
        Ok((text, ids))
    }

    fn encode_spelled(&self, tokenizer: &Tokenizer, spelled: &str) -> Result<Vec<u32>, TextError> {
        let shielded = self.shielded.get_or_init(|| self.shielded_copy(tokenizer.inner())).as_ref();
        let shielded = shielded.map_err(|reason| TextError::Encode(reason.clone()))?;
        let encoding = shielded.tokenizer.encode_fast(spelled, false).map_err(|error| TextError::Encode(error.to_string()))?;
        encoding
            .get_ids()
            .iter()
            .map(|id| match shielded.original_ids.get(id) {
                Some(&original) => Ok(original),
                None => match self.guarded.binary_search_by_key(id, |&(_, guarded)| guarded) {
                    Ok(index) => Err(TextError::Forged(self.guarded[index].0.clone())),
                    Err(_) => Ok(*id),
                },
            })
            .collect()
    }

    /// A copy of the tokenizer whose guarded tokens have private-use spellings.
    fn shielded_copy(&self, original: &tokenizers::Tokenizer) -> Result<Shielded, String> {
        let mut added: Vec<(u32, AddedToken)> = original.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|&(id, _)| id);
        for (id, token) in &mut added {
            if let Ok(index) = self.guarded.binary_search_by_key(id, |&(_, guarded)| guarded) {
                token.content = spelling(index).into_iter().collect();
            }
        }
        let model = original.get_model();
        let mut vocabulary = AddedVocabulary::new();
        vocabulary
            .add_tokens(added.iter().map(|(_, token)| token.clone()), model, original.get_normalizer())
            .map_err(|error| error.to_string())?;
        let mut original_ids = HashMap::new();
        for (id, token) in &added {
            let new_id = vocabulary.token_to_id(&token.content, model).ok_or("the tokenizer refuses an added token")?;
            if model.id_to_token(new_id).is_some_and(|piece| piece != token.content) {
                return Err("the vocabulary has gaps among its ids, so that special tokens cannot be told from a message's text".into());
            }
            original_ids.insert(new_id, *id);
        }
        let mut tokenizer = original.clone();
        tokenizer.with_added_vocabulary(vocabulary);
        Ok(Shielded { tokenizer, original_ids })
    }
}

/// The private-use character of a guarded token.
fn spelling(index: usize) -> Option<char> {
    u32::try_from(index).ok().and_then(|index| char::from_u32(FIRST_SPELLING + index))
}
