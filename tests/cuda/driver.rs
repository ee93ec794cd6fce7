//! The emulated card is as unkind as a real one may be: work is done late, pinned memory is read when the card gets there, and an error stays.

use cudarc::driver::{CudaContext, result};
use libtest_mimic::Trial;

use crate::emulator::{Card, card};
use crate::kit::trial;

pub fn trials() -> Vec<Trial> {
    if card() == Card::Real {
        return Vec::new();
    }
    vec![
        trial("driver::results_are_not_there_before_they_are_waited_for", late),
        trial("driver::pinned_memory_is_read_when_the_card_gets_there", pinned),
        trial("driver::a_stream_waits_for_another_ones_event", two_streams),
    ]
}

/// `n` bytes of pinned memory, which the test leaks.
fn pinned_bytes(n: usize, value: u8) -> &'static mut [u8] {
    // SAFETY: the context is bound; the memory is never freed.
    unsafe {
        let at = result::malloc_host(n, 0).unwrap().cast::<u8>();
        std::ptr::write_bytes(at, value, n);
        std::slice::from_raw_parts_mut(at, n)
    }
}

/// A test beside this one may wait for the whole card in between, and then streams have run early: so once in several tries must do.
fn in_one_of_several_tries(waits: impl Fn() -> bool, otherwise: &str) {
    assert!((0..20).any(|_| waits()), "{otherwise}");
}

fn late() {
    in_one_of_several_tries(late_once, "nothing has been waited for");
}

fn late_once() -> bool {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (from, to) = (pinned_bytes(64, 7), pinned_bytes(64, 1));
    // SAFETY: both ends have 64 bytes and stay.
    unsafe {
        let there = result::malloc_sync(64).unwrap();
        result::memcpy_htod_async(there, from, stream.cu_stream()).unwrap();
        result::memcpy_dtoh_async(to, there, stream.cu_stream()).unwrap();
        let untouched = to.iter().all(|b| *b == 1);
        stream.synchronize().unwrap();
        assert!(to.iter().all(|b| *b == 7));
        result::free_sync(there).unwrap();
        untouched
    }
}

fn pinned() {
    in_one_of_several_tries(pinned_once, "pinned memory is read late");
}

fn pinned_once() -> bool {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (from, to) = (pinned_bytes(64, 7), pinned_bytes(64, 0));
    let pageable = vec![5u8; 64];
    // SAFETY: as above; the pageable bytes are copied at the call.
    unsafe {
        let there = result::malloc_sync(128).unwrap();
        result::memcpy_htod_async(there, from, stream.cu_stream()).unwrap();
        result::memcpy_htod_async(there + 64, &pageable, stream.cu_stream()).unwrap();
        // Too early: the card has not read it yet.
        from.fill(9);
        drop(pageable);
        result::memcpy_dtoh_async(to, there, stream.cu_stream()).unwrap();
        stream.synchronize().unwrap();
        let late = to.iter().all(|b| *b == 9);
        assert!(late || to.iter().all(|b| *b == 7));
        result::memcpy_dtoh_async(to, there + 64, stream.cu_stream()).unwrap();
        stream.synchronize().unwrap();
        assert!(to.iter().all(|b| *b == 5), "other memory is read at the call");
        result::free_sync(there).unwrap();
        late
    }
}

fn two_streams() {
    in_one_of_several_tries(two_streams_once, "memory begins as 0xff, and nobody made the first stream run");
}

fn two_streams_once() -> bool {
    let context = CudaContext::new(0).unwrap();
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let (from, to) = (pinned_bytes(64, 3), pinned_bytes(64, 0));
    // SAFETY: as above.
    unsafe {
        let there = result::malloc_sync(64).unwrap();
        result::memcpy_htod_async(there, from, first.cu_stream()).unwrap();
        let event = first.record_event(None).unwrap();
        // Without the event the second stream finds what was there before.
        result::memcpy_dtoh_async(to, there, second.cu_stream()).unwrap();
        second.synchronize().unwrap();
        let alone = to.iter().all(|b| *b == 0xff);
        second.wait(&event).unwrap();
        result::memcpy_dtoh_async(to, there, second.cu_stream()).unwrap();
        second.synchronize().unwrap();
        assert!(to.iter().all(|b| *b == 3));
        result::free_sync(there).unwrap();
        alone
    }
}
