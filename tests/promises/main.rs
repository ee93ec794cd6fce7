//! One integration-test binary: a module per promise.
#![allow(clippy::unwrap_used)]

mod assets;
mod bad_models;
mod model_folders;
mod templates;
mod tiny_model;
