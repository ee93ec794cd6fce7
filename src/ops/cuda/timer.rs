//! How long the card works: two events around what is started, read when the second has come.

use cudarc::driver::sys::CUevent_flags;

use super::CudaOps;

impl CudaOps {
    /// Seconds that the card took for everything that `work` started on this backend's stream, its waits for the host included. `None` where the
    /// card has failed.
    pub fn timed(&mut self, work: impl FnOnce(&mut Self)) -> Option<f64> {
        let event = |ops: &Self| {
            let recorded = ops.queue.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
            ops.queue.failure.note("an event was recorded", recorded)
        };
        if self.queue.failure.is_set() {
            return None;
        }
        let from = event(self)?;
        work(self);
        if self.queue.failure.is_set() {
            return None;
        }
        let to = event(self)?;
        let milliseconds = self.queue.failure.note("its work was timed", from.elapsed_ms(&to))?;
        Some(f64::from(milliseconds) / 1e3)
    }

    /// Whether decode steps that have been recorded are replayed, or run call by call like all others.
    pub fn replay_steps(&mut self, replay: bool) {
        self.steps.replay = replay;
    }

    /// Starts `times` copies of the first half of `matrix` to its second half, for the card's copy bandwidth; returns the bytes that they read and
    /// write together.
    pub fn copy_halves(&mut self, matrix: &mut super::Matrix, times: usize) -> usize {
        let half = matrix.buffer.bytes / 2;
        for _ in 0..times {
            // SAFETY: both halves lie in the matrix.
            unsafe { self.queue.copy(matrix.buffer.ptr + half as u64, matrix.buffer.ptr, half) };
        }
        2 * half * times
    }
}
