//! Places in the engine, shared by the jobs.
//!
//! A job holds a place for each of its samples in flight. When none is free it leaves a bid, and the next place goes to the bid of the
//! highest priority; among equals to a sample that is needed for certain before a speculative one; then to the job that holds the
//! fewest. So an evaluation of lower priority runs in what training leaves free, and two equal jobs share. Which job gets a place
//! depends on timing, and decides only how soon a group closes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A sample at least this likely to be needed counts as certain.
const CERTAIN: f64 = 0.95;

/// The places of one engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Slots {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    capacity: usize,
    /// Places that jobs hold or were granted.
    held: usize,
    next: u64,
    seats: BTreeMap<u64, State>,
}

#[derive(Debug)]
struct State {
    priority: i64,
    held: usize,
    granted: usize,
    /// How likely the sample that waits for a place is needed.
    bid: Option<f64>,
    granted_now: Arc<Notify>,
}

impl Slots {
    /// `capacity` places (at least 1).
    pub fn new(capacity: usize) -> Self {
        let inner = Inner { capacity: capacity.max(1), held: 0, next: 0, seats: BTreeMap::new() };
        Slots { inner: Arc::new(Mutex::new(inner)) }
    }

    /// A job's seat at the table.
    pub fn seat(&self, priority: i64) -> Seat {
        let granted_now = Arc::new(Notify::new());
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        inner.seats.insert(id, State { priority, held: 0, granted: 0, bid: None, granted_now: granted_now.clone() });
        drop(inner);
        Seat { slots: self.clone(), id, granted_now }
    }

    /// Places in all, and those in use.
    pub fn usage(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.capacity, inner.held)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Hands free places to the best bids.
    fn grant(&mut self) {
        while self.held < self.capacity {
            let rank = |state: &State| {
                let bid = state.bid?;
                Some((state.priority, bid >= CERTAIN, std::cmp::Reverse(state.held + state.granted)))
            };
            let best = self.seats.iter().filter_map(|(id, state)| Some((rank(state)?, std::cmp::Reverse(*id)))).max();
            let Some((_, std::cmp::Reverse(id))) = best else { return };
            let Some(state) = self.seats.get_mut(&id) else { return };
            state.bid = None;
            state.granted += 1;
            self.held += 1;
            state.granted_now.notify_one();
        }
    }
}

/// A job's seat. Dropping it gives every place back.
#[derive(Debug)]
pub struct Seat {
    slots: Slots,
    id: u64,
    granted_now: Arc<Notify>,
}

impl Seat {
    /// Takes a place for a sample that is needed with probability `q`, or leaves a bid for one.
    pub fn take(&self, q: f64) -> bool {
        let mut inner = self.slots.lock();
        let inner = &mut *inner;
        let Some(state) = inner.seats.get_mut(&self.id) else { return false };
        if state.granted > 0 {
            state.granted -= 1;
        } else if inner.held < inner.capacity {
            inner.held += 1;
        } else {
            state.bid = Some(q);
            return false;
        }
        state.held += 1;
        true
    }

    /// Gives one place back.
    pub fn give_back(&self) {
        let mut inner = self.slots.lock();
        let inner = &mut *inner;
        let Some(state) = inner.seats.get_mut(&self.id).filter(|state| state.held > 0) else { return };
        state.held -= 1;
        inner.held -= 1;
        inner.grant();
    }

    /// There is nothing to run at present: withdraws the bid and gives back what was granted and not taken.
    pub fn withdraw(&self) {
        let mut inner = self.slots.lock();
        let inner = &mut *inner;
        let Some(state) = inner.seats.get_mut(&self.id) else { return };
        state.bid = None;
        inner.held -= std::mem::take(&mut state.granted);
        inner.grant();
    }

    /// Resolves when a place was granted.
    pub async fn granted(&self) {
        self.granted_now.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.slots.lock();
        let inner = &mut *inner;
        if let Some(state) = inner.seats.remove(&self.id) {
            inner.held -= state.held + state.granted;
            inner.grant();
        }
    }
}
