//! What a comparison comes to, as numbers: where each run reaches a pass rate, and how arms differ from the baseline in it.
//!
//! Pure: curves in, tables out. Between two evaluations a curve is a straight line. Arms are paired with the baseline by seed and compared
//! within a learning rate; a ratio is the geometric mean over the pairs in which both arrived, its error the standard error of the mean
//! log ratio. A pair in which only one arrived has no ratio but has a winner.

/// What a curve is drawn against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Samples drawn.
    Samples,
    /// Rows trained on.
    Rows,
    /// Optimizer updates.
    Updates,
    /// Seconds, those of the evaluations left out.
    Seconds,
}

impl Axis {
    /// All of them.
    pub const ALL: [Axis; 4] = [Axis::Samples, Axis::Rows, Axis::Updates, Axis::Seconds];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Samples => "samples",
            Axis::Rows => "rows",
            Axis::Updates => "updates",
            Axis::Seconds => "seconds",
        }
    }
}

/// One evaluation of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Samples drawn so far.
    pub samples: f64,
    /// Rows trained on so far.
    pub rows: f64,
    /// Updates so far.
    pub updates: f64,
    /// Seconds so far.
    pub seconds: f64,
    /// Pass rate of the hard slice; NaN where it was not measured.
    pub hard: f64,
    /// Pass rate of the easy slice; NaN where it was not measured.
    pub easy: f64,
}

impl Point {
    /// Its place on an axis.
    pub fn at(&self, axis: Axis) -> f64 {
        match axis {
            Axis::Samples => self.samples,
            Axis::Rows => self.rows,
            Axis::Updates => self.updates,
            Axis::Seconds => self.seconds,
        }
    }
}

/// A run's evaluations, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Its arm.
    pub arm: String,
    /// Its seed.
    pub seed: u64,
    /// Its learning rate.
    pub lr: f64,
    /// The evaluations.
    pub points: Vec<Point>,
}

/// Pass rates that are looked for on the hard slice.
pub const LEVELS: [f64; 2] = [0.5, 0.25];

/// Where a curve first reaches `level`, by a straight line between two points; none where it never does.
pub fn reach(curve: impl IntoIterator<Item = (f64, f64)>, level: f64) -> Option<f64> {
    let mut before: Option<(f64, f64)> = None;
    for (x, y) in curve.into_iter().filter(|(_, y)| !y.is_nan()) {
        if y >= level {
            return Some(match before {
                Some((x0, y0)) => x0 + (level - y0) / (y - y0) * (x - x0),
                None => x,
            });
        }
        before = Some((x, y));
    }
    None
}

/// The value of a curve at `x`, by a straight line between two points; none outside of it.
pub fn value_at(curve: &[(f64, f64)], x: f64) -> Option<f64> {
    let after = curve.iter().position(|p| p.0 >= x)?;
    let (x1, y1) = curve[after];
    if x1 == x {
        return Some(y1);
    }
    let (x0, y0) = *curve.get(after.checked_sub(1)?)?;
    Some(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
}

/// A mean and its standard error (0 of fewer than two values).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean; NaN of no value.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// Values.
    pub n: usize,
}

/// The mean of values.
pub fn mean(values: &[f64]) -> Mean {
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n as f64;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    let error = if n < 2 { 0.0 } else { (squares / (n - 1) as f64 / n as f64).sqrt() };
    Mean { mean, error, n }
}

/// An arm against the baseline, on one axis to one level.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// The baseline's cost over the arm's, of each pair in which both arrived: above 1, the arm needs less.
    pub pairs: Vec<(u64, f64)>,
    /// Pairs in which the arm needs less, or it alone arrived.
    pub wins: usize,
    /// Pairs in which the arm needs more, or the baseline alone arrived.
    pub losses: usize,
    /// Pairs in which the arm alone arrived.
    pub alone: usize,
    /// Pairs in which the baseline alone arrived.
    pub missed: usize,
    /// Seeds that both have.
    pub seeds: usize,
}

impl Ratio {
    /// The geometric mean and the factor of its standard error.
    pub fn mean(&self) -> Option<(f64, f64)> {
        let logs: Vec<f64> = self.pairs.iter().map(|(_, ratio)| ratio.ln()).collect();
        let Mean { mean, error, n } = mean(&logs);
        (n > 0).then(|| (mean.exp(), error.exp()))
    }
}

/// What an arm needs on one axis to one level.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Geometric mean over the runs that arrived.
    pub at: Option<f64>,
    /// Runs that arrived.
    pub arrived: usize,
    /// Against the baseline; none for the baseline itself.
    pub ratio: Option<Ratio>,
}

/// An arm at a learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The arm.
    pub arm: String,
    /// Its runs.
    pub runs: usize,
    /// By [`LEVELS`], then by [`Axis::ALL`].
    pub costs: Vec<Vec<Cost>>,
    /// The hard slice at the last evaluation.
    pub hard: Mean,
    /// The easy slice at the last evaluation.
    pub easy: Mean,
    /// By [`Axis::ALL`]: what the runs used, mean.
    pub used: Vec<f64>,
}

/// A learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The learning rate.
    pub lr: f64,
    /// The arm that the others are compared with.
    pub baseline: String,
    /// Every arm, in the order of the curves.
    pub arms: Vec<Summary>,
}

/// Learning rates, in the order of the curves.
pub fn rates(curves: &[Curve]) -> Vec<f64> {
    unique(curves.iter().map(|c| c.lr))
}

/// Arms, in the order of the curves.
pub fn arms(curves: &[Curve]) -> Vec<String> {
    unique(curves.iter().map(|c| c.arm.clone()))
}

fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The arm that the others are compared with: `grpo8`, else the first.
pub fn baseline(curves: &[Curve]) -> String {
    let arms = arms(curves);
    arms.iter().find(|arm| *arm == "grpo8").or(arms.first()).cloned().unwrap_or_default()
}

/// Compares all arms at every learning rate.
pub fn compare(curves: &[Curve]) -> Vec<Comparison> {
    rates(curves)
        .into_iter()
        .map(|lr| {
            let here: Vec<&Curve> = curves.iter().filter(|c| c.lr == lr).collect();
            let owned: Vec<Curve> = here.iter().map(|c| (*c).clone()).collect();
            let baseline = baseline(&owned);
            let of = |arm: &str| here.iter().copied().filter(|c| c.arm == arm).collect::<Vec<&Curve>>();
            let base = of(&baseline);
            let arms = arms(&owned).into_iter().map(|arm| summary(&arm, &of(&arm), (arm != baseline).then_some(&base))).collect();
            Comparison { lr, baseline, arms }
        })
        .collect()
}

fn summary(arm: &str, runs: &[&Curve], base: Option<&Vec<&Curve>>) -> Summary {
    let last =
        |f: &dyn Fn(&Point) -> f64| -> Vec<f64> { runs.iter().filter_map(|c| c.points.last()).map(f).filter(|v| !v.is_nan()).collect() };
    let costs = LEVELS.iter().map(|&level| Axis::ALL.iter().map(|&axis| cost(runs, base, axis, level)).collect()).collect();
    Summary {
        arm: arm.to_owned(),
        runs: runs.len(),
        costs,
        hard: mean(&last(&|p| p.hard)),
        easy: mean(&last(&|p| p.easy)),
        used: Axis::ALL.iter().map(|&axis| mean(&last(&|p| p.at(axis))).mean).collect(),
    }
}

/// Where a run reaches a level of the hard slice on an axis.
fn reached(curve: &Curve, axis: Axis, level: f64) -> Option<f64> {
    reach(curve.points.iter().map(|p| (p.at(axis), p.hard)), level)
}

fn cost(runs: &[&Curve], base: Option<&Vec<&Curve>>, axis: Axis, level: f64) -> Cost {
    let places: Vec<f64> = runs.iter().filter_map(|c| reached(c, axis, level)).collect();
    let logs: Vec<f64> = places.iter().map(|x| x.ln()).collect();
    let ratio = base.map(|base| {
        let mut ratio = Ratio { pairs: Vec::new(), wins: 0, losses: 0, alone: 0, missed: 0, seeds: 0 };
        for run in runs {
            let Some(other) = base.iter().find(|c| c.seed == run.seed) else { continue };
            ratio.seeds += 1;
            match (reached(run, axis, level), reached(other, axis, level)) {
                // A level that was there before the first sample says nothing about cost.
                (Some(mine), Some(theirs)) if mine > 0.0 && theirs > 0.0 => {
                    ratio.wins += usize::from(mine < theirs);
                    ratio.losses += usize::from(mine > theirs);
                    ratio.pairs.push((run.seed, theirs / mine));
                }
                (Some(_), None) => (ratio.wins, ratio.alone) = (ratio.wins + 1, ratio.alone + 1),
                (None, Some(_)) => (ratio.losses, ratio.missed) = (ratio.losses + 1, ratio.missed + 1),
                _ => {}
            }
        }
        ratio
    });
    Cost { at: (!logs.is_empty()).then(|| mean(&logs).mean.exp()), arrived: places.len(), ratio }
}

/// Places at which the curves of a plot are compared: equally spaced over what any of them spans.
pub fn grid(curves: &[&Curve], axis: Axis) -> Vec<f64> {
    const STEPS: u32 = 80;
    let places = curves.iter().flat_map(|c| c.points.iter().map(|p| p.at(axis)));
    let (from, to) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
    if from >= to {
        return if from == to { vec![from] } else { Vec::new() };
    }
    (0..=STEPS).map(|i| from + (to - from) * f64::from(i) / f64::from(STEPS)).collect()
}

/// A slice's mean over the seeds of an arm at the places of a grid, and its standard error: (x, mean, error), as far as every seed goes, the
/// end of the shortest included.
pub fn mean_curve(runs: &[&Curve], axis: Axis, grid: &[f64], slice: impl Fn(&Point) -> f64) -> Vec<(f64, f64, f64)> {
    let curves: Vec<Vec<(f64, f64)>> = runs
        .iter()
        .map(|c| c.points.iter().map(|p| (p.at(axis), slice(p))).filter(|p| !p.1.is_nan()).collect::<Vec<_>>())
        .filter(|points| !points.is_empty())
        .collect();
    let from = curves.iter().map(|c| c[0].0).fold(f64::NEG_INFINITY, f64::max);
    let to = curves.iter().map(|c| c[c.len() - 1].0).fold(f64::INFINITY, f64::min);
    if curves.is_empty() || from > to {
        return Vec::new();
    }
    grid.iter()
        .copied()
        .filter(|x| (from..to).contains(x))
        .chain([to])
        .filter_map(|x| {
            let values: Option<Vec<f64>> = curves.iter().map(|c| value_at(c, x)).collect();
            let Mean { mean, error, .. } = mean(&values?);
            Some((x, mean, error))
        })
        .collect()
}
