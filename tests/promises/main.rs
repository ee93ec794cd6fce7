//! One integration-test binary: a module per promise.
