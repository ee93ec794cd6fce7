//! One integration-test binary: a module per promise.
#![allow(clippy::unwrap_used)]

mod assets;
mod bad_models;
mod bad_requests;
mod blocks;
mod detokenize;
mod engine;
mod fake_engine;
mod golden;
mod hooked_ops;
mod identity;
mod main_job;
mod model_folders;
mod naive_ops;
mod numbers;
mod ops;
mod plan;
mod plan_statistics;
mod rollouts;
mod sampler;
mod sampling_runs;
mod schedule;
mod server_kit;
mod smollm2;
mod templates;
mod text_cases;
mod timing;
mod tiny_model;
mod tiny_tokenizers;
mod width;
