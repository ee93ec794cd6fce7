//! What a model is: a Hugging Face folder read, checked and named.
//!
//! `config` turns config.json into [`ModelConfig`], which alone decides which tensors a checkpoint must hold; `checkpoint` maps the
//! safetensors files and hands out exactly those tensors. Whatever is not supported is refused in [`ModelError`] with a sentence that
//! says where, what and what to do.

pub mod checkpoint;
pub mod config;
pub mod error;
pub(crate) mod files;
pub mod safetensors_file;
pub mod tensor_view;

pub use checkpoint::Checkpoint;
pub use config::{Architecture, Llama3Scaling, ModelConfig, RopeConfig};
pub use error::ModelError;
pub use safetensors_file::SafetensorsFile;
pub use tensor_view::{Dtype, TensorView};
