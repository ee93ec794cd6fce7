//! What a model is: a Hugging Face folder read, checked and named.
//!
//! `config` turns config.json into [`ModelConfig`], which alone decides which tensors a checkpoint must hold; `checkpoint` maps the
//! safetensors files and hands out exactly those tensors. Whatever is not supported is refused in [`ModelError`] with a sentence that
//! says where, what and what to do.

pub mod config;
pub mod error;
pub(crate) mod files;

pub use config::{Architecture, Llama3Scaling, ModelConfig, RopeConfig};
pub use error::ModelError;
