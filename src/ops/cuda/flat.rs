//! Plain f32 numbers, in the checkpoint's layout: gradients, master parameters and moments. Moments may live on the host.

use std::sync::Arc;

use super::device::{Device, Failure};
use super::launch::Queue;
use super::memory::{Buffer, Pinned};

/// So many f32 numbers.
pub struct Flat {
    pub(super) len: usize,
    pub(super) home: Home,
}

/// Where they are.
pub(super) enum Home {
    Card(Buffer),
    /// Pinned, so that the card copies them by itself. Whoever touches them on the host waits for the stream first.
    Host(Pinned),
}

impl Flat {
    pub(super) fn on_card(buffer: Buffer, len: usize) -> Flat {
        Flat { len, home: Home::Card(buffer) }
    }

    /// Zeros on the host.
    pub(super) fn on_host(device: &Arc<Device>, len: usize, failure: &Failure) -> Flat {
        Flat { len, home: Home::Host(Pinned::new(device, 4 * len, failure)) }
    }

    /// Their address on the card.
    pub(super) fn card(&self) -> u64 {
        match &self.home {
            Home::Card(buffer) => buffer.ptr,
            Home::Host(_) => panic!("these numbers are on the host"),
        }
    }

    /// Fills numbers that were just made.
    pub(super) fn write(&self, queue: &Queue, values: &[f32]) {
        assert!(values.len() == self.len, "{} numbers for {}", values.len(), self.len);
        // SAFETY: the buffer has this size.
        unsafe { queue.upload_now(self.card(), bytes_of(values)) };
    }

    /// Replaces them, wherever they are.
    pub(super) fn rewrite(&mut self, queue: &Queue, values: &[f32]) {
        match &mut self.home {
            Home::Card(_) => self.write(queue, values),
            Home::Host(pinned) => {
                queue.wait();
                let to = pinned.bytes_mut();
                // Empty where the card has failed.
                to.copy_from_slice(&bytes_of(values)[..to.len()]);
            }
        }
    }

    /// Copies them to the host.
    pub(super) fn read(&self, queue: &Queue) -> Vec<f32> {
        let mut bytes = vec![0u8; 4 * self.len];
        match &self.home {
            // SAFETY: the buffer has this size.
            Home::Card(buffer) => unsafe { queue.download_now(&mut bytes, buffer.ptr) },
            Home::Host(pinned) => {
                queue.wait();
                let from = pinned.bytes();
                bytes[..from.len()].copy_from_slice(from);
            }
        }
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

fn bytes_of(values: &[f32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "cards are little-endian") };
    // SAFETY: every f32 is four readable bytes, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
