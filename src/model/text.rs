//! The text side of a model folder: prompts of every kind become token ids.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::chat::encode_chat;
use super::loaded::LoadError;
use super::template::{ChatTemplate, TemplateError};
use super::tokenizer::Tokenizer;

/// Tokenizer and chat template of a folder, as far as it has them.
pub struct ModelText {
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
}

impl From<TemplateError> for LoadError {
    fn from(e: TemplateError) -> Self {
        LoadError::Template(Box::new(e))
    }
}

impl ModelText {
    /// Reads the chat template of `dir` beside a tokenizer that is loaded already.
    pub fn from_folder(dir: &Path, tokenizer: Option<Arc<Tokenizer>>) -> Result<Self, LoadError> {
        Ok(ModelText { tokenizer, template: ChatTemplate::from_folder(dir)? })
    }

    /// Whether text can be used at all.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    fn tokenizer(&self) -> Result<&Tokenizer, String> {
        self.tokenizer.as_deref().ok_or_else(|| "this model folder has no tokenizer.json; give token_ids".into())
    }

    /// Ids of plain text, with the special tokens that the tokenizer adds.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokenizer()?.encode(text, true).map_err(|e| e.to_string())
    }

    /// Ids of a conversation, rendered by the chat template up to the answer to come.
    pub fn encode_messages(&self, messages: &[Value]) -> Result<Vec<u32>, String> {
        let tokenizer = self.tokenizer()?;
        let template = self.template.as_ref().ok_or("this model folder has no chat template; give text or token_ids")?;
        let prompt = encode_chat(tokenizer, template, messages, true, &Map::new()).map_err(|e| e.to_string())?;
        Ok(prompt.token_ids)
    }
}
