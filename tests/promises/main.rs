//! One integration-test binary: a module per promise.
#![allow(clippy::unwrap_used)]

mod assets;
mod bad_models;
mod bad_requests;
mod detokenize;
mod fake_engine;
mod model_folders;
mod plan;
mod plan_statistics;
mod reward;
mod rollouts;
mod server_kit;
mod templates;
mod text_cases;
mod tiny_model;
mod tiny_tokenizers;
