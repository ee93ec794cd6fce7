//! Weights that another process has in this card's memory, copied within the card and checked where they then lie.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::{Device, describe};
use super::export::Rows;
use super::launch::Arg;
use super::tensor::stride_of;
use super::{CudaOps, Matrix, Vector};
use crate::field::FieldError;
use crate::model::places::{Place, Placed, places};
use crate::model::weights::{Layer, heads};
use crate::model::{Dtype, ModelConfig, ModelError, TensorView, Weights};
use crate::ops::handover::{DeviceId, Exported, ExportedTensor, Handover, Hex, ImportError};

/// Another process's allocation, until this is dropped.
struct Opened {
    device: Arc<Device>,
    at: sys::CUdeviceptr,
    bytes: u64,
}

impl Opened {
    /// The context is bound.
    fn new(device: &Arc<Device>, handle: &Hex<64>) -> Result<Opened, String> {
        let handle = sys::CUipcMemHandle { reserved: handle.0.map(|byte| byte as c_char) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut opened = Opened { device: device.clone(), at: 0, bytes: 0 };
        // SAFETY: the driver refuses what is no handle, and writes the address.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut opened.at, handle, flags) }.result().map_err(describe)?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the address is the driver's own; it writes both numbers.
        unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, opened.at) }.result().map_err(describe)?;
        opened.bytes = bytes as u64 - (opened.at - base);
        Ok(opened)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.at != 0 && self.device.context.bind_to_thread().is_ok() {
            // SAFETY: it was opened once, and whoever copied from it has waited.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.at) }.result();
        }
    }
}

impl CudaOps {
    fn blank_matrix(&self, outputs: usize, inputs: usize) -> Matrix {
        let stride = stride_of(inputs);
        Matrix { buffer: self.weights.take(outputs * stride * 2, &self.queue.failure), outputs, inputs, stride }
    }

    fn blank_vector(&self, len: usize) -> Vector {
        Vector { buffer: self.weights.take(len * 2, &self.queue.failure), len }
    }

    /// Weights of a model with whatever is in their memory.
    fn blank(&self, config: &ModelConfig) -> Weights<CudaOps> {
        let heads = heads(config);
        let (hidden, wide, out) = (config.hidden_size, config.intermediate_size, heads.query * heads.dim);
        let layer = |_| Layer {
            attention_norm: self.blank_vector(hidden),
            qkv: self.blank_matrix(heads.qkv_cols(), hidden),
            qkv_bias: config.qkv_bias.then(|| self.blank_vector(heads.qkv_cols())),
            qk_norm: config.qk_norm.then(|| (self.blank_vector(heads.dim), self.blank_vector(heads.dim))),
            out: self.blank_matrix(hidden, out),
            mlp_norm: self.blank_vector(hidden),
            gate_up: self.blank_matrix(2 * wide, hidden),
            down: self.blank_matrix(hidden, wide),
        };
        Weights {
            layers: (0..config.num_layers).map(layer).collect(),
            embed: self.blank_matrix(config.vocab_size, hidden),
            norm: self.blank_vector(hidden),
            head: (!config.tie_word_embeddings).then(|| self.blank_matrix(config.vocab_size, hidden)),
        }
    }

    /// # Safety
    /// Both are memory of the card of these rows, and stay until the work on this stream is done.
    unsafe fn copy_rows(&self, to: Rows, from: Rows) {
        if to.stride == from.stride || to.rows == 1 {
            // SAFETY: the caller's.
            return unsafe { self.queue.copy(to.at, from.at, from.bytes().min(to.bytes())) };
        }
        let args: [Arg; 5] = [to.at.into(), to.stride.into(), from.at.into(), from.stride.into(), to.cols.into()];
        // SAFETY: the caller's.
        unsafe { self.rows("copy_rows", to.rows, 128, args) };
    }
}

impl Handover<CudaOps> for CudaOps {
    fn device_id(&self) -> Option<DeviceId> {
        self.uuid()
    }

    fn export(&self, placed: &[Placed<'_, CudaOps>]) -> Result<Exported, String> {
        self.export_places(placed)
    }

    fn import(&self, config: &ModelConfig, exported: &Exported) -> Result<Weights<CudaOps>, ImportError> {
        let own = self.uuid().ok_or_else(|| ImportError::unavailable("ipc", "the engine's GPU has no UUID; push a file or over HTTP"))?;
        if exported.device != own {
            let problem = format!("is GPU {}, and this engine computes on GPU {own}; push a file or over HTTP", exported.device);
            return Err(ImportError::unavailable("ipc.device", problem));
        }
        let given = exported.check(config)?;
        self.device.context.bind_to_thread().map_err(|e| ImportError::unavailable("ipc", format!("the GPU: {}", describe(e))))?;
        let open = |(i, handle)| {
            Opened::new(&self.device, handle).map_err(|reason| {
                let problem = format!(
                    "cannot be opened: {reason}; it must be of memory that another process of this machine holds on the same GPU; push a file \
                     or over HTTP"
                );
                ImportError::unavailable(format!("ipc.handles[{i}]"), problem)
            })
        };
        let opened: Vec<Opened> = exported.handles.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        for (i, tensor) in exported.tensors.iter().enumerate() {
            let there = opened[tensor.handle].bytes;
            if tensor.end().is_none_or(|end| end > there) {
                let problem = format!("is {}: `{}` would end beyond the {there} bytes of its handle's memory", tensor.offset, tensor.name);
                return Err(FieldError::new(format!("ipc.tensors[{i}].offset"), problem).into());
            }
        }
        let weights = self.blank(config);
        let placed = places(config, &weights);
        let announced: Vec<&ExportedTensor> = placed.iter().map(|p| given[p.name.as_str()]).collect();
        let staged: Vec<Rows> = placed.iter().map(|p| Rows::of(&p.place)).collect();
        for (&to, tensor) in staged.iter().zip(&announced) {
            let from = Rows { at: opened[tensor.handle].at + tensor.offset, stride: tensor.stride, ..to };
            // SAFETY: both hold these rows, as was checked; the sums wait, and then the memory is closed.
            unsafe { self.copy_rows(to, from) };
        }
        let sums = self.sums(&staged);
        self.queue.wait();
        drop(opened);
        if self.queue.failure.is_set() {
            return Err(ImportError::unavailable("ipc", "the engine's GPU has failed, and gives no more results; restart the server"));
        }
        for ((p, tensor), sums) in placed.iter().zip(&announced).zip(sums) {
            if sums.hash != tensor.hash {
                let problem = format!(
                    "has hash {} after its copy, and {} was announced: it changed on the way, or was announced before it was written; keep the \
                     weights as they are until the answer, and push again",
                    sums.hash, tensor.hash
                );
                return Err(ModelError::tensor("", &p.name, problem).into());
            }
            if sums.not_finite > 0 {
                return Err(self.name_non_finite(p).into());
            }
        }
        drop(placed);
        Ok(weights)
    }

    fn read_place(&self, place: &Place<'_, CudaOps>) -> Vec<u8> {
        let rows = Rows::of(place);
        let mut bytes = vec![0u8; rows.bytes()];
        // SAFETY: the place lies within its buffer.
        unsafe { self.queue.download_now(&mut bytes, rows.at) };
        if rows.rows > 1 && rows.stride != rows.cols {
            bytes = bytes.chunks(2 * rows.stride).flat_map(|row| &row[..2 * rows.cols]).copied().collect();
        }
        bytes
    }
}

impl CudaOps {
    /// Which value of a tensor is not finite: it is looked for here.
    fn name_non_finite(&self, placed: &Placed<'_, CudaOps>) -> ModelError {
        let bytes = self.read_place(&placed.place);
        let view = TensorView { name: &placed.name, dtype: Dtype::Bf16, shape: placed.shape.clone(), bytes: &bytes };
        let index = view.first_non_finite().unwrap_or_default();
        let value = view.value(index).unwrap_or(f64::NAN);
        ModelError::NonFinite { path: Default::default(), tensor: placed.name.clone(), index, value }
    }
}
