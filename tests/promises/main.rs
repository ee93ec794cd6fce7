//! One integration-test binary: a module per promise.

mod assets;
mod templates;
