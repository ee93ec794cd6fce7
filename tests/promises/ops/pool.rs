//! The pool runs every task once, and survives one that panics.

use std::sync::atomic::{AtomicUsize, Ordering};

use adaroll::ops::cpu::pool::Pool;

#[test]
fn every_task_runs_once() {
    let mut pool = Pool::new(3).unwrap();
    for count in [0, 1, 2, 7, 100] {
        for _ in 0..50 {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            pool.run(count, &|i, worker| {
                assert!(worker < 3);
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_works_on() {
    let mut pool = Pool::new(2).unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.run(64, &|i, _| assert_ne!(i, 40, "planted"))));
    assert!(result.is_err());
    let ran = AtomicUsize::new(0);
    pool.run(64, &|_, _| {
        ran.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(ran.load(Ordering::Relaxed), 64);
}
