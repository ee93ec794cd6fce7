//! Rotary position embedding as config.json describes it, in every spelling that transformers has written:
//! `rope_theta` at the top with `rope_scaling {rope_type or type, ...}`, and since transformers 5 `rope_parameters {rope_type, rope_theta, ...}`.

use super::fields::{Fields, quote};
use crate::model::error::ModelError;

/// Rotary position embedding: base and, for Llama 3.1 and later, the scaling of its frequencies.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RopeConfig {
    /// Base of the frequencies: pair `i` of a head turns by `theta^(-2i / head_dim)` per position.
    pub theta: f64,
    /// Llama 3's frequency scaling; `None` leaves the frequencies as they are.
    pub scaling: Option<Llama3Scaling>,
}

/// The `llama3` kind of frequency scaling (Llama 3.1; transformers `_compute_llama3_parameters`). Wavelengths above
/// `original_context / low_freq_factor` are stretched by `factor`, those below `original_context / high_freq_factor` are kept,
/// and those between are interpolated.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Llama3Scaling {
    /// Stretch of the long wavelengths, at least 1.
    pub factor: f64,
    /// Above 0.
    pub low_freq_factor: f64,
    /// Above `low_freq_factor`.
    pub high_freq_factor: f64,
    /// Context length before the stretch, in tokens (`original_max_position_embeddings`).
    pub original_context: usize,
}

/// What transformers assumes for all three architectures.
const DEFAULT_THETA: f64 = 10_000.0;

/// Reads the rope settings of a configuration. Two spellings side by side must agree.
pub(super) fn read(config: &Fields<'_>) -> Result<RopeConfig, ModelError> {
    refuse_partial(config)?;
    let mut theta = read_theta(config)?;
    let mut scaling = None;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(fields) = config.object(key)? else { continue };
        refuse_partial(&fields)?;
        let inner_theta = read_theta(&fields)?;
        if let (Some(a), Some(b)) = (theta, inner_theta)
            && a != b
        {
            return Err(fields.error("rope_theta", format!("is {b}, but the same file also says {a}; remove the wrong one")));
        }
        theta = theta.or(inner_theta);
        let inner = read_scaling(&fields)?;
        if scaling.as_ref().is_some_and(|outer| *outer != inner) {
            return Err(config.error(key, "says something else than `rope_parameters` in the same file; remove the wrong one"));
        }
        scaling = Some(inner);
    }
    Ok(RopeConfig { theta: theta.unwrap_or(DEFAULT_THETA), scaling: scaling.flatten() })
}

fn read_theta(fields: &Fields<'_>) -> Result<Option<f64>, ModelError> {
    fields.number("rope_theta", 1.0, 1e16)
}

fn refuse_partial(fields: &Fields<'_>) -> Result<(), ModelError> {
    match fields.number("partial_rotary_factor", 0.0, 1.0)? {
        Some(factor) if factor != 1.0 => {
            Err(fields.error("partial_rotary_factor", format!("is {factor}; only rotation of the whole head (1.0) is supported")))
        }
        _ => Ok(()),
    }
}

fn read_scaling(fields: &Fields<'_>) -> Result<Option<Llama3Scaling>, ModelError> {
    let mut kind = None;
    for key in ["rope_type", "type"] {
        let Some(name) = fields.text(key)? else { continue };
        if !matches!(name, "default" | "llama3") {
            return Err(fields
                .error(key, format!("is {}; only \"default\" and \"llama3\" are supported, so this model cannot be served", quote(name))));
        }
        if kind.is_some_and(|other| other != name) {
            return Err(fields.error(key, format!("is {}, which contradicts `rope_type` beside it; remove the wrong one", quote(name))));
        }
        kind = Some(name);
    }
    if let Some(key) = fields.nested() {
        return Err(fields.error(key, "is an object; rope settings per kind of layer are not supported, so give one for all layers"));
    }
    if kind.is_none() && fields.get("factor").is_some() {
        return Err(fields.error("rope_type", "is missing beside `factor`; name the kind of scaling (\"llama3\")"));
    }
    if kind != Some("llama3") {
        return Ok(None);
    }
    let number = |key: &str, min: f64| {
        fields.number(key, min, 1e6)?.ok_or_else(|| fields.error(key, "is missing; rope scaling of kind \"llama3\" needs it"))
    };
    let factor = number("factor", 1.0)?;
    let low_freq_factor = number("low_freq_factor", 1e-6)?;
    let high_freq_factor = number("high_freq_factor", 1e-6)?;
    if high_freq_factor <= low_freq_factor {
        return Err(fields.error(
            "high_freq_factor",
            format!("is {high_freq_factor}, not above low_freq_factor {low_freq_factor}; Llama 3 has 4 and 1"),
        ));
    }
    let original_context = fields.required_size("original_max_position_embeddings", 1, super::MAX_CONTEXT)?;
    Ok(Some(Llama3Scaling { factor, low_freq_factor, high_freq_factor, original_context }))
}
