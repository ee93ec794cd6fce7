//! The numbers of a step's samples, under the names that practitioners know, and ours below `ada/`.

use serde_json::Value;

use super::checkpoint::State;
use super::journal::Numbers;
use super::rollout::Rollout;
use super::server::Group;
use crate::rollout::plan::Status;

/// Samples per prompt are counted in these bins: 1, 2, 3 to 4, 5 to 8, ...; the last holds the rest.
const BINS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, u64::MAX];

/// Puts what a step's samples were; `state` counts the step already, `step` is the one whose weights are trained.
pub fn put_rollout(numbers: &mut Numbers, rollout: &Rollout, state: &State, step: u64) {
    let groups = &rollout.groups;
    let all = rollout.taken.max(1) as f64;
    let count = |status: Status| groups.iter().filter(|group| group.status == status).count() as f64;
    let seen: u64 = groups.iter().map(|group| group.stats.seen).sum();
    let judged = |group: &Group| group.stats.positive + group.stats.negative;
    // Over samples, not over prompts: what the sampler drew.
    let (mut reward, mut weight) = (0.0, 0.0);
    for group in groups {
        if let Some(mean) = group.stats.reward_mean {
            reward += mean * judged(group) as f64;
            weight += judged(group) as f64;
        }
    }
    if weight > 0.0 {
        numbers.put("critic/score/mean", reward / weight);
    }
    let extreme = |f: fn(f64, f64) -> f64, values: &mut dyn Iterator<Item = f64>| values.reduce(f);
    let mut kept = groups.iter().filter(|group| group.signal).flat_map(|group| &group.samples).filter(|s| s.advantage.is_some());
    let kept: Vec<_> = kept.by_ref().collect();
    for (name, f) in [("max", f64::max as fn(f64, f64) -> f64), ("min", f64::min)] {
        if let Some(value) = extreme(f, &mut kept.iter().filter_map(|s| s.reward)) {
            numbers.put(&format!("critic/score/{name}"), value);
        }
        if let Some(value) = extreme(f, &mut kept.iter().filter_map(|s| s.advantage)) {
            numbers.put(&format!("critic/advantages/{name}"), value);
        }
    }
    numbers.put_mean("critic/advantages/mean", kept.iter().filter_map(|s| s.advantage));
    // First samples only: unbiased, and comparable between strategies.
    numbers.put_mean("ada/pass_rate_first", groups.iter().filter_map(|group| group.stats.pass_rate_first));
    numbers.put("ada/signal_fraction", groups.iter().filter(|group| group.signal).count() as f64 / all);
    numbers.put("ada/groups_resolved", count(Status::Resolved));
    numbers.put("ada/groups_exhausted", count(Status::Exhausted));
    numbers.put("ada/groups_failed", count(Status::Failed));
    numbers.put("ada/groups_dropped", rollout.dropped as f64);
    numbers.put("ada/samples_failed", groups.iter().map(|group| group.stats.failed).sum::<u64>() as f64);
    numbers.put("ada/prompts", rollout.taken as f64);
    numbers.put("ada/samples", rollout.samples as f64);
    numbers.put("ada/samples_per_prompt/mean", rollout.samples as f64 / all);
    let mut bins = [0u64; BINS.len()];
    for group in groups {
        if let Some(bin) = BINS.iter().position(|most| group.stats.seen <= *most) {
            bins[bin] += 1;
        }
    }
    numbers.0.insert("ada/samples_per_prompt/hist".into(), Value::from(bins.to_vec()));
    numbers.put("ada/samples_total", state.samples as f64);
    numbers.put("ada/rows_total", state.rows as f64);
    numbers.put("ada/updates_total", state.updates as f64);
    numbers.put("ada/prompts_total", state.cursor as f64);
    numbers.put("ada/staleness", (step - rollout.sampled_at) as f64);
    let lengths: Vec<f64> = kept.iter().map(|s| s.token_ids.len() as f64).collect();
    numbers.put_mean("response_length/mean", lengths.iter().copied());
    for (name, f) in [("max", f64::max as fn(f64, f64) -> f64), ("min", f64::min)] {
        if let Some(value) = extreme(f, &mut lengths.iter().copied()) {
            numbers.put(&format!("response_length/{name}"), value);
        }
    }
    numbers.put_mean("response_length/clip_ratio", kept.iter().map(|s| f64::from(u8::from(s.finish_reason == "length"))));
    if seen > 0 {
        numbers.put("ada/pool_length/mean", groups.iter().map(|group| group.stats.tokens_seen).sum::<u64>() as f64 / seen as f64);
        numbers.put("ada/pool_clip_ratio", groups.iter().map(|group| group.stats.truncated).sum::<u64>() as f64 / seen as f64);
    }
}
