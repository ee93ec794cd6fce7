//! Weights that go from one process to another within the memory of one device, and what they are announced with.
//!
//! Who has them exports the memory ([`Handover::export`]) and sends the [`Exported`]; who takes them opens that memory, copies them and checks
//! what it copied ([`Handover::import`]). The exporter leaves them as they are until it is answered; the hashes show that it did.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Ops;
use crate::field::FieldError;
use crate::model::places::{Place, Placed};
use crate::model::{ModelConfig, ModelError, Weights};

/// Bytes that JSON carries as twice as many hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || de::Error::custom(format!("is not {} hexadecimal digits", 2 * N));
        if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; N];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Hex(bytes))
    }
}

/// A device's UUID.
pub type DeviceId = Hex<16>;

/// A tensor in exported memory: rows of bf16, `[product of the shape / last, last]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedTensor {
    /// Hugging Face name.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Which of the handles.
    pub handle: usize,
    /// Bytes from the beginning of the handle's memory.
    pub offset: u64,
    /// Values from one row to the next.
    pub stride: usize,
    /// The two sums of `hash_rows`, one behind the other, each as a number of 16 digits.
    pub hash: Hex<16>,
}

impl ExportedTensor {
    /// Rows and columns; a vector is one row.
    pub fn rows_cols(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (self.shape.iter().rev().skip(1).product(), cols)
    }

    /// The byte behind the last one, from the beginning of the handle's memory; nothing where no memory is so large.
    pub fn end(&self) -> Option<u64> {
        let (rows, cols) = self.rows_cols();
        let values = rows.checked_sub(1)?.checked_mul(self.stride)?.checked_add(cols)?;
        self.offset.checked_add((values as u64).checked_mul(2)?)
    }
}

/// All weights of a model in a device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exported {
    /// The device.
    pub device: DeviceId,
    /// Of allocations: `CUipcMemHandle`.
    pub handles: Vec<Hex<64>>,
    /// Every tensor of the model.
    pub tensors: Vec<ExportedTensor>,
}

impl Exported {
    /// Names, shapes and hashes as one digest: the same for the same weights wherever they lie.
    pub fn digest(&self) -> String {
        let mut lines: Vec<String> = self.tensors.iter().map(|t| format!("{} {:?} {}\n", t.name, t.shape, t.hash)).collect();
        lines.sort_unstable();
        format!("card:{}", blake3::hash(lines.concat().as_bytes()).to_hex())
    }

    /// The tensors by name, if they are those of the model and each could lie where it is said to.
    pub fn check(&self, config: &ModelConfig) -> Result<HashMap<&str, &ExportedTensor>, ImportError> {
        let mut given = HashMap::new();
        for (i, tensor) in self.tensors.iter().enumerate() {
            let field = |name: &str, problem: String| {
                ImportError::Field(FieldError::new(format!("ipc.tensors[{i}].{name}"), format!("{problem} (`{}`)", tensor.name)))
            };
            let (rows, cols) = tensor.rows_cols();
            if tensor.handle >= self.handles.len() {
                let problem = format!("is {}, and there are {} handles, counted from 0", tensor.handle, self.handles.len());
                return Err(field("handle", problem));
            }
            if tensor.offset % 2 != 0 {
                return Err(field("offset", format!("is {}; values are of two bytes and start at even ones", tensor.offset)));
            }
            if tensor.stride > u32::MAX as usize || (rows > 1 && tensor.stride < cols) {
                return Err(field("stride", format!("is {}; it must be at least a row's {cols} values, and below 2^32", tensor.stride)));
            }
            if given.insert(tensor.name.as_str(), tensor).is_some() {
                return Err(field("name", "is given twice; give every tensor once".into()));
            }
        }
        let expected = config.tensors();
        for (name, shape) in &expected {
            match given.get(name.as_str()) {
                None => return Err(ModelError::tensor("", name, "is missing; a push over ipc holds all tensors of the model").into()),
                Some(tensor) if tensor.shape != *shape => {
                    let problem = format!("has shape {:?}, but this model's has {shape:?}", tensor.shape);
                    return Err(ModelError::tensor("", name, problem).into());
                }
                Some(_) => {}
            }
        }
        if given.len() > expected.len() {
            let known: std::collections::HashSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
            if let Some(tensor) = self.tensors.iter().find(|tensor| !known.contains(tensor.name.as_str())) {
                let problem = "is not part of this model; the names must be those of its checkpoint";
                return Err(ModelError::tensor("", &tensor.name, problem).into());
            }
        }
        Ok(given)
    }
}

/// Why exported weights were not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// This engine cannot reach that memory; another way of pushing will do.
    #[error("{field}: {problem}")]
    Unavailable {
        /// The field that names it.
        field: String,
        /// A sentence.
        problem: String,
    },
    /// A field that cannot be used.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The weights.
    #[error(transparent)]
    Tensor(#[from] ModelError),
}

impl ImportError {
    /// For an engine that takes none.
    pub fn no_device() -> Self {
        ImportError::unavailable("ipc", "this server's engine computes on no CUDA device; push a file or over HTTP")
    }

    pub(crate) fn unavailable(field: impl Into<String>, problem: impl Into<String>) -> Self {
        ImportError::Unavailable { field: field.into(), problem: problem.into() }
    }
}

/// What a backend can do whose device lets another process into its memory.
pub trait Handover<O: Ops> {
    /// The device, where it can be told from others.
    fn device_id(&self) -> Option<DeviceId>;
    /// Announces weights, with the hashes they have now; returns when everything that was started before is done.
    fn export(&self, placed: &[Placed<'_, O>]) -> Result<Exported, String>;
    /// Weights of its own with the values of exported ones. Copies them, and checks hash and numbers of the copy. Where the device fails
    /// [`Ops::failure`] says so, and the answer means nothing.
    fn import(&self, config: &ModelConfig, exported: &Exported) -> Result<Weights<O>, ImportError>;
    /// A tensor as a checkpoint holds it: bf16, row-major, little-endian.
    fn read_place(&self, place: &Place<'_, O>) -> Vec<u8>;
}
