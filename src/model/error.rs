//! Why a model folder cannot be used. Every variant says where (file, field or tensor), what is wrong, and what to do about it.

use std::path::{Path, PathBuf};

/// A model folder, configuration or checkpoint that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file is missing, unreadable, or not what its name says.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A field of config.json is wrong or asks for something that is not supported.
    #[error("{}: field `{field}` {problem}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// Path of the field, for example `rope_scaling.factor`.
        field: String,
        /// What is wrong and what to do; continues the sentence after the field's name.
        problem: String,
    },
    /// A tensor is missing, unexpected, misshapen, of a wrong type or at a wrong place.
    #[error("{}: tensor `{tensor}` {problem}", path.display())]
    Tensor {
        /// The safetensors file, or the folder if the tensor is in no file.
        path: PathBuf,
        /// Name as in the file.
        tensor: String,
        /// What is wrong and what to do; continues the sentence after the tensor's name.
        problem: String,
    },
    /// A weight is NaN or infinite.
    #[error(
        "{}: tensor `{tensor}` holds {value} at flat index {index}; weights must be finite, so export the model again or take an earlier checkpoint",
        path.display()
    )]
    NonFinite {
        /// The safetensors file.
        path: PathBuf,
        /// Name as in the file.
        tensor: String,
        /// Index of the first such element in row-major order.
        index: usize,
        /// The element: NaN, inf or -inf.
        value: f64,
    },
}

impl ModelError {
    pub(crate) fn file(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        ModelError::File { path: path.as_ref().to_owned(), problem: problem.into() }
    }

    pub(crate) fn config(path: impl AsRef<Path>, field: impl Into<String>, problem: impl Into<String>) -> Self {
        ModelError::Config { path: path.as_ref().to_owned(), field: field.into(), problem: problem.into() }
    }

    pub(crate) fn tensor(path: impl AsRef<Path>, tensor: impl Into<String>, problem: impl Into<String>) -> Self {
        ModelError::Tensor { path: path.as_ref().to_owned(), tensor: tensor.into(), problem: problem.into() }
    }
}
