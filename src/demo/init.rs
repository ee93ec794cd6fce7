//! A model's first parameters: the embedding N(0, 1), projections and the head N(0, 1 / inputs), those that write into the residual stream
//! (`o_proj`, `down_proj`) divided by sqrt(2 layers), norms 1, biases 0.
//!
//! Each tensor has a random stream of its own, by its place in [`ModelConfig::tensors`]; numbers are drawn in f64 and rounded once.

use super::random::{Purpose, Words};
use crate::model::ModelConfig;
use crate::model::params::{Param, Params};

/// The parameters that a seed gives.
pub fn initial(config: &ModelConfig, seed: u64) -> Params {
    let param = |(i, (name, shape)): (usize, (String, Vec<usize>))| {
        let count: usize = shape.iter().product();
        let values = match kind(&name, &shape, config) {
            Kind::Constant(x) => vec![x; count],
            Kind::Normal(spread) => normals(seed, i, spread, count).collect(),
        };
        Param { name, shape, values }
    };
    Params::of(config.tensors().into_iter().enumerate().map(param).collect())
}

enum Kind {
    Constant(f32),
    /// Standard deviation.
    Normal(f64),
}

fn kind(name: &str, shape: &[usize], config: &ModelConfig) -> Kind {
    let inputs = shape.last().copied().unwrap_or(1) as f64;
    match name {
        "model.embed_tokens.weight" => Kind::Normal(1.0),
        _ if name.ends_with("norm.weight") => Kind::Constant(1.0),
        _ if name.ends_with(".bias") => Kind::Constant(0.0),
        _ if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") => {
            Kind::Normal(1.0 / libm::sqrt(inputs * 2.0 * config.num_layers as f64))
        }
        _ => Kind::Normal(1.0 / libm::sqrt(inputs)),
    }
}

fn normals(seed: u64, tensor: usize, spread: f64, count: usize) -> impl Iterator<Item = f32> {
    let mut words = Words::new(seed, Purpose::Parameters, tensor as u64);
    std::iter::repeat_with(move || words.normals()).flatten().map(move |x| (spread * x) as f32).take(count)
}
