//! Who gets a free place among the samples in flight.

use adaroll::rollout::Slots;

#[test]
fn a_place_goes_to_priority_then_certainty_then_the_poorer_job() {
    let slots = Slots::new(2);
    let (low, high, even) = (slots.seat(-1), slots.seat(5), slots.seat(5));
    assert!(low.take(1.0) && low.take(1.0));
    assert!(!low.take(1.0) && !even.take(0.4) && !high.take(1.0));
    // One place free: the certain sample of high priority comes before the speculative one, and both before the low job.
    low.give_back();
    assert!(!even.take(0.4) && high.take(1.0));
    low.give_back();
    assert!(even.take(0.4));
    // Equal bids: the job that holds fewer.
    assert!(!high.take(1.0) && !even.take(1.0) && !low.take(1.0));
    drop(even);
    assert!(high.take(1.0));
    assert_eq!(slots.usage(), (2, 2));
    drop(high);
    assert!(low.take(1.0) && low.take(1.0));
}

#[test]
fn a_withdrawn_grant_goes_to_the_next() {
    let slots = Slots::new(1);
    let (first, second) = (slots.seat(1), slots.seat(0));
    assert!(second.take(1.0) && !first.take(1.0));
    second.give_back();
    assert!(!second.take(1.0));
    first.withdraw();
    assert!(second.take(1.0));
    assert_eq!(slots.usage(), (1, 1));
}
