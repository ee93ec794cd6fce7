//! What a model is: a Hugging Face folder read, checked and named; its text side; its one forward pass, and the way back.
//!
//! `config` turns config.json into [`ModelConfig`], which alone decides which tensors a checkpoint must hold; `checkpoint` maps the
//! safetensors files and hands out exactly those tensors; `weights` packs them for a backend and `forward` runs them. A trainer holds them as
//! `params` and gets their gradients from `backward`; `places` says where a tensor lies among them. Text becomes token ids
//! in `chat`, `template` and `tokenizer`. Whatever is not supported is refused with a sentence that says where, what and what to do.

pub mod backward;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod error;
pub(crate) mod files;
pub mod forward;
pub mod loaded;
pub mod params;
pub mod places;
pub mod safetensors_file;
pub mod safetensors_writer;
pub mod shield;
pub mod special_tokens;
pub mod stop_tokens;
pub mod template;
pub mod tensor_set;
pub mod tensor_view;
pub mod text;
pub mod tokenizer;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use config::{Architecture, Llama3Scaling, ModelConfig, RopeConfig};
pub use error::ModelError;
pub use loaded::{LoadError, Model};
pub use params::{Param, Params, Rounded};
pub use safetensors_file::SafetensorsFile;
pub use safetensors_writer::write_safetensors;
pub use tensor_set::{Digests, Layout, TensorSet};
pub use tensor_view::{Dtype, TensorView};
pub use text::ModelText;
pub use weights::{TensorSource, Weights};
