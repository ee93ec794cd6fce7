//! One integration-test binary: a module per promise.
#![allow(clippy::unwrap_used)]

mod assets;
mod bad_models;
mod detokenize;
mod golden;
mod model_folders;
mod naive_ops;
mod sampling_runs;
mod smollm2;
mod templates;
mod text_cases;
mod timing;
mod tiny_model;
mod tiny_tokenizers;
