//! Weights that another process may open in this card's memory, and the hashes of weights on the card.

use std::collections::HashMap;
use std::ffi::c_char;

use cudarc::driver::sys;

use super::device::describe;
use super::launch::Arg;
use super::memory::{Arena, Purpose};
use super::{CudaOps, Matrix, Vector};
use crate::model::places::{Place, Placed};
use crate::ops::handover::{DeviceId, Exported, ExportedTensor, Hex};

/// Rows of bf16 on the card.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) at: u64,
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Rows {
    pub(super) fn of(place: &Place<'_, CudaOps>) -> Rows {
        match *place {
            Place::Rows { matrix: Matrix { buffer, outputs, inputs, stride }, first, rows } => {
                assert!(first + rows <= *outputs, "rows beyond a matrix");
                Rows { at: buffer.ptr + (first * stride * 2) as u64, stride: *stride, rows, cols: *inputs }
            }
            Place::Part { vector: Vector { buffer, len: all }, first, len } => {
                assert!(first + len <= *all, "a part beyond a vector");
                Rows { at: buffer.ptr + (first * 2) as u64, stride: len, rows: 1, cols: len }
            }
        }
    }

    /// Bytes from the first value to behind the last one.
    pub(super) fn bytes(&self) -> usize {
        2 * (self.rows.saturating_sub(1) * self.stride + self.cols)
    }
}

/// What the card says of some rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    /// Of `hash_rows`.
    pub(super) hash: Hex<16>,
    /// Values that are NaN or infinite.
    pub(super) not_finite: u64,
}

/// Threads of a block of `hash_rows`.
const HASH_THREADS: u32 = 256;
/// Numbers of a [`Sums`].
const WORDS: usize = 3;

impl CudaOps {
    /// Hash and non-finite values of each of these; waits for everything that was started before.
    pub(super) fn sums(&self, all: &[Rows]) -> Vec<Sums> {
        let mut bytes = vec![0u8; all.len() * WORDS * 8];
        // Of its own, so that it goes again.
        let buffer = Arena::new(self.device.clone(), Purpose::Lists, 0).take(bytes.len(), &self.queue.failure);
        // SAFETY: the buffer has this size.
        unsafe { self.queue.clear(buffer.ptr, bytes.len()) };
        for (i, rows) in all.iter().enumerate() {
            let sums = buffer.ptr + (i * WORDS * 8) as u64;
            let hash: [Arg; 5] = [sums.into(), rows.at.into(), rows.stride.into(), rows.rows.into(), rows.cols.into()];
            let finite: [Arg; 4] = [(sums + 16).into(), rows.at.into(), rows.stride.into(), rows.cols.into()];
            // SAFETY: as the kernels take them; the caller's rows are memory of the card.
            unsafe {
                self.queue.launch("hash_rows", (self.hash_blocks(rows), 1, 1), HASH_THREADS, hash);
                self.rows("not_finite", rows.rows, 128, finite);
            }
        }
        // SAFETY: the buffer has this size.
        unsafe { self.queue.download_now(&mut bytes, buffer.ptr) };
        let sums = |words: &[[u8; 8]]| {
            let mut hash = [0; 16];
            for (to, word) in hash.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *to = u64::from_le_bytes(*word).to_be_bytes();
            }
            Sums { hash: Hex(hash), not_finite: u64::from_le_bytes(words[2]) }
        };
        bytes.as_chunks::<8>().0.chunks_exact(WORDS).map(sums).collect()
    }

    /// Blocks of `hash_rows`: each takes its share of the words, whatever their number.
    fn hash_blocks(&self, rows: &Rows) -> usize {
        let words = (rows.rows * rows.cols).div_ceil(2);
        words.div_ceil(4 * HASH_THREADS as usize).clamp(1, 8 * self.device.multiprocessors as usize)
    }

    /// The card's UUID.
    pub(super) fn uuid(&self) -> Option<DeviceId> {
        self.device.context.uuid().ok().map(|uuid| Hex(uuid.bytes.map(|byte| byte as u8)))
    }

    pub(super) fn export_places(&self, placed: &[Placed<'_, CudaOps>]) -> Result<Exported, String> {
        let device = self.uuid().ok_or("the GPU has no UUID")?;
        let all: Vec<Rows> = placed.iter().map(|p| Rows::of(&p.place)).collect();
        let sums = self.sums(&all);
        if self.queue.failure.is_set() {
            return Err("the GPU has failed".into());
        }
        self.device.context.bind_to_thread().map_err(describe)?;
        let (mut handles, mut known) = (Vec::new(), HashMap::new());
        let mut tensors = Vec::with_capacity(placed.len());
        for ((p, rows), sums) in placed.iter().zip(&all).zip(sums) {
            let buffer = match p.place {
                Place::Rows { matrix, .. } => &matrix.buffer,
                Place::Part { vector, .. } => &vector.buffer,
            };
            let base = buffer.allocation().ok_or("the GPU has failed")?;
            let handle = match known.get(&base) {
                Some(&handle) => handle,
                None => {
                    handles.push(handle_of(base)?);
                    known.insert(base, handles.len() - 1);
                    handles.len() - 1
                }
            };
            tensors.push(ExportedTensor {
                name: p.name.clone(),
                shape: p.shape.clone(),
                handle,
                offset: rows.at - base,
                stride: rows.stride,
                hash: sums.hash,
            });
        }
        Ok(Exported { device, handles, tensors })
    }
}

/// A handle of the allocation that begins there. The context is bound.
fn handle_of(base: sys::CUdeviceptr) -> Result<Hex<64>, String> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: it is the beginning of a live allocation; the driver writes the handle.
    let made = unsafe { sys::cuIpcGetMemHandle(&mut handle, base) }.result();
    made.map_err(|e| format!("the GPU's memory cannot be shared with another process: {}", describe(e)))?;
    Ok(Hex(handle.reserved.map(|byte: c_char| byte as u8)))
}
