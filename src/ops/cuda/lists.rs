//! Lists of numbers on their way to the card: the rows of a step, what it asks, blocks to copy.
//!
//! The host writes them to pinned memory, which the card reads when it gets there; so there are a few pinned buffers, used in turn, each with an
//! event that says when it may be written again. On the card there is one buffer: the stream keeps the lists of two steps apart.

use std::sync::Arc;

use cudarc::driver::CudaEvent;

use super::device::Device;
use super::launch::Queue;
use super::memory::{Arena, Buffer, Pinned, Purpose};

/// Steps whose lists may be under way: the one that runs, the one that waits, and the one being written.
const IN_TURN: usize = 3;

struct Slot {
    pinned: Pinned,
    copied: Option<CudaEvent>,
}

/// One kind of lists.
pub(super) struct Lists {
    device: Arc<Device>,
    arena: Arena,
    on_card: Option<Buffer>,
    slots: Vec<Slot>,
    next: usize,
}

impl Lists {
    pub(super) fn new(device: &Arc<Device>) -> Lists {
        // One buffer, which a larger one replaces.
        let arena = Arena::new(device.clone(), Purpose::Lists, 0);
        Lists { device: device.clone(), arena, on_card: None, slots: Vec::new(), next: 0 }
    }

    /// Makes room for `words` numbers; `true` if the lists have moved.
    pub(super) fn reserve(&mut self, queue: &Queue, words: usize) -> bool {
        let bytes = words * 4;
        if self.on_card.as_ref().is_some_and(|b| b.bytes >= bytes) || queue.failure.is_set() {
            return false;
        }
        // Twice what is needed: lists that grow by a block a step seldom move.
        let room = (2 * bytes).max(1 << 16);
        queue.wait();
        self.slots = (0..IN_TURN).map(|_| Slot { pinned: Pinned::new(&self.device, room, &queue.failure), copied: None }).collect();
        self.on_card = Some(self.arena.take(room, &queue.failure));
        true
    }

    /// Has `fill` write `words` numbers, which [`Lists::reserve`] made room for, and starts them on their way; returns where they will be.
    pub(super) fn send(&mut self, queue: &Queue, words: usize, fill: impl FnOnce(&mut [u32])) -> u64 {
        let Some(on_card) = &self.on_card else { return 0 };
        if queue.failure.is_set() || words == 0 {
            return on_card.ptr;
        }
        self.next = (self.next + 1) % IN_TURN;
        let slot = &mut self.slots[self.next];
        if let Some(event) = slot.copied.take() {
            queue.failure.note("a list was waited for", event.synchronize());
        }
        // Pinned memory starts on a page; the words are valid for any bits.
        let (before, all, _) = {
            // SAFETY: every four bytes are a u32.
            unsafe { slot.pinned.bytes_mut().align_to_mut::<u32>() }
        };
        if !before.is_empty() || all.len() < words {
            queue.failure.set(|| "the host has no pinned memory for the lists of a step".into());
            return on_card.ptr;
        }
        fill(&mut all[..words]);
        // SAFETY: the slot is not written before its event has come; the buffer has room for as many words.
        unsafe { queue.upload(on_card.ptr, &slot.pinned.bytes()[..words * 4]) };
        slot.copied = queue.failure.note("an event was recorded", queue.stream.record_event(None));
        on_card.ptr
    }

    /// [`Lists::reserve`] and [`Lists::send`] of numbers that are there.
    pub(super) fn put(&mut self, queue: &Queue, words: &[u32]) -> u64 {
        self.reserve(queue, words.len());
        self.send(queue, words.len(), |to| to.copy_from_slice(words))
    }
}
