//! Sharing a budget in proportion to weights, in whole samples, between limits.

/// `total` in shares proportional to `weights`, each between `min` and `max`: the real shares are `clip(c * weight)` with the one `c` that
/// spends the total (water-filling), and the samples left after rounding down go to the largest remainders, ties in request order.
/// `total` must lie between `min` and `max` for everyone.
pub fn shares(weights: &[f64], min: u32, max: u32, total: u64) -> Vec<u32> {
    let (low, high) = (f64::from(min), f64::from(max));
    let spent = |c: f64| weights.iter().map(|w| (c * w).clamp(low, high)).sum::<f64>();
    // What is spent grows with c and bends only where a share leaves a limit.
    let mut bends: Vec<f64> = weights.iter().flat_map(|w| [low / w, high / w]).collect();
    bends.sort_by(f64::total_cmp);
    let after = bends.partition_point(|c| spent(*c) < total as f64);
    let middle = match (after.checked_sub(1).and_then(|i| bends.get(i)), bends.get(after)) {
        (Some(a), Some(b)) => 0.5 * (a + b),
        (Some(c), None) | (None, Some(c)) => *c,
        (None, None) => return Vec::new(),
    };
    let (mut free, mut left) = (0.0, total as f64);
    for w in weights {
        if middle * w <= low {
            left -= low;
        } else if middle * w >= high {
            left -= high;
        } else {
            free += w;
        }
    }
    let c = if free > 0.0 { left / free } else { middle };
    let real: Vec<f64> = weights.iter().map(|w| (c * w).clamp(low, high)).collect();
    let mut whole: Vec<u32> = real.iter().map(|x| x.floor() as u32).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| real[*b].fract().total_cmp(&real[*a].fract()));
    let mut over = total.saturating_sub(whole.iter().map(|n| u64::from(*n)).sum());
    while over > 0 && whole.iter().any(|n| *n < max) {
        for i in &order {
            if over > 0 && whole[*i] < max {
                whole[*i] += 1;
                over -= 1;
            }
        }
    }
    whole
}
