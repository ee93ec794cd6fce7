//! One integration-test binary: a module per promise.
#![allow(clippy::unwrap_used)]

mod assets;
mod bad_models;
mod detokenize;
mod model_folders;
mod templates;
mod text_cases;
mod tiny_model;
mod tiny_tokenizers;
