//! A model's parameters as a trainer holds them: f32, under the checkpoint's names, in its layout (`[outputs, inputs]`) and in the order of
//! [`ModelConfig::tensors`]. Gradients are the same type. What a model runs on is [`Rounded`], a copy rounded once.

use std::collections::HashMap;

use half::bf16;

use super::config::ModelConfig;
use super::error::ModelError;
use super::tensor_view::{Dtype, TensorView};
use super::weights::TensorSource;
#[cfg(doc)]
use crate::ops::TrainOps;

/// One parameter tensor. Its values are numbers of the host, or of a backend ([`TrainOps::Flat`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Param<F = Vec<f32>> {
    /// Hugging Face name.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: F,
}

/// All parameters of a model, or one number for each of them (a gradient, a moment).
#[derive(Clone, Debug, PartialEq)]
pub struct Params<F = Vec<f32>> {
    /// In the order of [`ModelConfig::tensors`].
    pub entries: Vec<Param<F>>,
    by_name: HashMap<String, usize>,
}

impl Params {
    /// Widens every tensor of the model: exact from BF16, F16 and F32.
    pub fn from_source(config: &ModelConfig, source: &dyn TensorSource) -> Result<Params, ModelError> {
        let entry = |(name, shape): (String, Vec<usize>)| {
            let tensor = source.tensor(&name)?;
            if tensor.shape != shape {
                let problem = format!("has shape {:?} where the model has {shape:?}; give the weights of this model", tensor.shape);
                return Err(ModelError::tensor("the parameters", name, problem));
            }
            Ok(Param { values: tensor.to_f32(), name, shape })
        };
        Ok(Params::of(config.tensors().into_iter().map(entry).collect::<Result<_, _>>()?))
    }

    /// Zeros for every tensor of the model.
    pub fn zeros(config: &ModelConfig) -> Params {
        let entry = |(name, shape): (String, Vec<usize>)| Param { values: vec![0.0; shape.iter().product()], name, shape };
        Params::of(config.tensors().into_iter().map(entry).collect())
    }

    /// Zeros of the same shapes.
    pub fn zeros_like(&self) -> Params {
        self.map(|p| vec![0.0; p.values.len()])
    }

    /// Sets every number to zero.
    pub fn clear(&mut self) {
        for entry in &mut self.entries {
            entry.values.fill(0.0);
        }
    }

    /// Numbers in all tensors together.
    pub fn num_elements(&self) -> usize {
        self.entries.iter().map(|p| p.values.len()).sum()
    }

    /// Name and flat index of the first NaN or infinity.
    pub fn first_non_finite(&self) -> Option<(&str, usize)> {
        self.entries.iter().find_map(|p| p.values.iter().position(|v| !v.is_finite()).map(|at| (p.name.as_str(), at)))
    }
}

impl<F> Params<F> {
    /// These tensors, in this order.
    pub fn of(entries: Vec<Param<F>>) -> Params<F> {
        let by_name = entries.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        Params { entries, by_name }
    }

    /// The same names and shapes with other values.
    pub fn map<G>(&self, mut values: impl FnMut(&Param<F>) -> G) -> Params<G> {
        let entry = |p: &Param<F>| Param { name: p.name.clone(), shape: p.shape.clone(), values: values(p) };
        Params { entries: self.entries.iter().map(entry).collect(), by_name: self.by_name.clone() }
    }

    /// Names and shapes alone.
    pub fn shapes(&self) -> Params<()> {
        self.map(|_| ())
    }

    /// Where the tensor of this name stands among the entries.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Param<F>> {
        self.index(name).map(|i| &self.entries[i])
    }

    /// The tensor of this name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Param<F>> {
        self.index(name).map(|i| &mut self.entries[i])
    }
}

impl<F> Param<F> {
    /// Numbers in it.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of a row: all of a vector.
    pub fn row(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// The parameters themselves, in f32: nothing is copied.
impl TensorSource for Params {
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let entry = self.get(name).ok_or_else(|| unknown(name))?;
        Ok(TensorView { name: &entry.name, dtype: Dtype::F32, shape: entry.shape.clone(), bytes: bytes_of(&entry.values) })
    }
}

/// A copy of parameters, each number rounded once (to nearest, ties to even): the weights that the server runs on and the trainer's forward
/// runs on too.
#[derive(Clone, Debug)]
pub struct Rounded {
    dtype: Dtype,
    /// Name, shape, little-endian bytes.
    entries: Vec<(String, Vec<usize>, Vec<u8>)>,
    by_name: HashMap<String, usize>,
}

impl Rounded {
    /// Rounds to F32 (which keeps every bit) or BF16.
    ///
    /// # Panics
    /// On another type.
    pub fn new(params: &Params, dtype: Dtype) -> Rounded {
        let empty = |p: &Param| (p.name.clone(), p.shape.clone(), vec![0; p.values.len() * dtype.size()]);
        let mut rounded = Rounded { dtype, entries: params.entries.iter().map(empty).collect(), by_name: params.by_name.clone() };
        rounded.update(params);
        rounded
    }

    /// Rounds the values that these parameters have now, in the memory that is there.
    ///
    /// # Panics
    /// If the parameters are not of the same model.
    pub fn update(&mut self, params: &Params) {
        assert!(self.entries.len() == params.entries.len(), "parameters of another model");
        for ((name, _, bytes), from) in self.entries.iter_mut().zip(&params.entries) {
            assert!(*name == from.name && bytes.len() == from.values.len() * self.dtype.size(), "parameters of another model");
            match self.dtype {
                Dtype::F32 => bytes.copy_from_slice(bytes_of(&from.values)),
                Dtype::Bf16 => {
                    for (to, v) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(&from.values) {
                        *to = bf16::from_f32(*v).to_le_bytes();
                    }
                }
                other => panic!("serving weights are BF16 or F32, not {other}"),
            }
        }
    }

    /// The type of the numbers.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// All tensors, in the order of [`ModelConfig::tensors`].
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.entries.iter().map(|(name, shape, bytes)| TensorView { name, dtype: self.dtype, shape: shape.clone(), bytes })
    }
}

impl TensorSource for Rounded {
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        let &i = self.by_name.get(name).ok_or_else(|| unknown(name))?;
        let (name, shape, bytes) = &self.entries[i];
        Ok(TensorView { name, dtype: self.dtype, shape: shape.clone(), bytes })
    }
}

fn unknown(name: &str) -> ModelError {
    ModelError::tensor("the parameters", name, "is not part of this model; ModelConfig::tensors lists those that are")
}

/// The bytes of f32 values, little-endian as the machines are that this runs on.
fn bytes_of(values: &[f32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "tensors are little-endian") };
    // SAFETY: every f32 is four readable bytes, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
