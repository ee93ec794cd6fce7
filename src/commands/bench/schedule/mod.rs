//! `adaroll bench schedule`.

pub mod baselines;
pub mod machine;
pub mod sim_engine;
pub mod world;
