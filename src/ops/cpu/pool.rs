//! A fixed set of threads that run the tasks of one operation. Which thread runs a task never decides a bit: tasks write disjoint
//! outputs and reduce nothing across tasks.
//!
//! Steps come back to back, so a worker spins for a moment before it sleeps; waking through the kernel for each of the two hundred
//! operations of a step would cost more than a small operation takes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

type Task = dyn Fn(usize, usize) + Sync;

/// What workers read: set before `epoch` grows, untouched until `active` is back at zero.
struct Job {
    task: *const Task,
    count: usize,
}

struct Shared {
    job: std::cell::UnsafeCell<Job>,
    epoch: AtomicUsize,
    next: AtomicUsize,
    active: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `job` is written only by the owner while no worker is active (see `run`), and read by workers only after the release store to
// `epoch` that follows the write.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer is only followed during `run`, which outlives every use.
unsafe impl Send for Shared {}

/// Threads for the operations of one engine. Worker 0 is the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// How often a worker looks before it goes to sleep: some tens of microseconds.
const SPINS: usize = 2_000;

fn idle() {}

impl Pool {
    /// A pool of `threads` threads, the calling one included.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let nothing: &'static Task = &|_, _| idle();
        let shared = Arc::new(Shared {
            job: std::cell::UnsafeCell::new(Job { task: nothing, count: 0 }),
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
        });
        let mut workers = Vec::new();
        for worker in 1..threads.max(1) {
            let shared = shared.clone();
            workers.push(std::thread::Builder::new().name(format!("ops-{worker}")).spawn(move || work(&shared, worker))?);
        }
        Ok(Pool { shared, workers })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i, worker)` for every `i < count`, each once, and returns when all are done. `&mut` keeps two jobs from overlapping.
    pub fn run(&mut self, count: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if self.workers.is_empty() || count <= 1 {
            for i in 0..count {
                task(i, 0);
            }
            return;
        }
        let shared = &*self.shared;
        // SAFETY: the lifetime is erased, but every worker is done with the task before this function returns, also if a task panics.
        let task_ptr: *const Task = unsafe { std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Task>(task) };
        // SAFETY: no worker is active: the last `run` waited for all of them, and they read the job only after the next epoch.
        unsafe { *shared.job.get() = Job { task: task_ptr, count } };
        shared.next.store(0, Ordering::Relaxed);
        shared.active.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if *lock(&shared.sleepers) > 0 {
            shared.wake.notify_all();
        }
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(shared, task, count, 0)));
        let mut spins = 0;
        while shared.active.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a task panicked on a worker thread");
    }
}

fn lock(m: &Mutex<usize>) -> std::sync::MutexGuard<'_, usize> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn claim(shared: &Shared, task: &(dyn Fn(usize, usize) + Sync), count: usize, worker: usize) {
    loop {
        let i = shared.next.fetch_add(1, Ordering::Relaxed);
        if i >= count {
            return;
        }
        task(i, worker);
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let mut sleepers = lock(&shared.sleepers);
            *sleepers += 1;
            while shared.epoch.load(Ordering::SeqCst) == seen {
                sleepers = shared.wake.wait(sleepers).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            *sleepers -= 1;
        }
        seen = seen.wrapping_add(1);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the owner wrote the job before it raised the epoch and leaves it alone until `active` is zero.
        let (task, count) = unsafe {
            let job = &*shared.job.get();
            (&*job.task, job.count)
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(shared, task, count, worker)));
        if result.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.active.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        drop(lock(&self.shared.sleepers));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
