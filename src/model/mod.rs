//! What a model is, beside its weights: how text becomes token ids and how messages become text.

pub mod chat;
pub mod decoder;
pub mod shield;
pub mod special_tokens;
pub mod stop_tokens;
pub mod template;
pub mod tokenizer;
