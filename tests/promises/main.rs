//! One integration-test binary: a module per promise.
#![allow(clippy::unwrap_used)]

mod bad_models;
mod model_folders;
mod tiny_model;
