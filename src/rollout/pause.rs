//! A switch that holds back new samples.
//!
//! While paused, jobs submit nothing more; samples in flight finish, verdicts are taken and groups close. Nothing is lost, and no group
//! depends on it: a pause is only time.

use tokio::sync::watch;

/// The switch. Clones share it.
#[derive(Clone, Debug)]
pub struct Pause(watch::Sender<bool>);

impl Default for Pause {
    fn default() -> Self {
        Pause(watch::channel(false).0)
    }
}

impl Pause {
    /// Whether new samples are held back.
    pub fn is_paused(&self) -> bool {
        *self.0.borrow()
    }

    /// Holds back or lets go; gives whether that changed anything.
    pub fn set(&self, paused: bool) -> bool {
        self.0.send_if_modified(|now| std::mem::replace(now, paused) != paused)
    }

    /// Resolves once the switch stands otherwise than `seen`, which may be at once: a change between looking and waiting is not missed.
    pub async fn changed(&self, seen: bool) {
        // The sender lives in `self`, so this ends by a change alone.
        let _ = self.0.subscribe().wait_for(|paused| *paused != seen).await;
    }
}
