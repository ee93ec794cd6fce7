//! What a rollout needs of a model's text side: token ids for a prompt.

use serde_json::Value;

/// Turns prompts into token ids. Errors are sentences that read on from the field's name.
pub trait TextModel: Send + Sync {
    /// Token ids of raw text, special tokens as the model's tokenizer adds them.
    fn encode_text(&self, text: &str) -> Result<Vec<u32>, String>;
    /// Token ids of a conversation, rendered by the model's chat template up to where the assistant begins to answer.
    fn encode_messages(&self, messages: &[Value]) -> Result<Vec<u32>, String>;
    /// Whether there is a tokenizer; without one only `token_ids` prompts can be taken, and no reward that reads text.
    fn has_tokenizer(&self) -> bool;
}

impl TextModel for crate::model::ModelText {
    fn encode_text(&self, text: &str) -> Result<Vec<u32>, String> {
        self.encode_text(text)
    }

    fn encode_messages(&self, messages: &[Value]) -> Result<Vec<u32>, String> {
        self.encode_messages(messages)
    }

    fn has_tokenizer(&self) -> bool {
        self.has_tokenizer()
    }
}
