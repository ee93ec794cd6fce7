//! The page that compares arms, and its tables as text.

use super::Arm;
use super::ReportError;
use super::compare::{Axis, Comparison, Cost, Curve, LEVELS, Mean, Point, arms, compare, grid, mean_curve};
use super::markup::{Table, escape, page, section, significant, thousands};
use super::plot::{Labels, Series, Span, lines};
use super::read::{Lines, Run, number};

const HARD: &str = "eval/pass@1/hard";
const EASY: &str = "eval/pass@1/easy";

/// A run's evaluations as a curve.
pub fn curve(arm: &Arm) -> Result<Curve, ReportError> {
    let run = Run::read(&arm.run_dir)?;
    Ok(Curve { arm: arm.name.clone(), seed: arm.seed, lr: arm.lr, points: points(&run.metrics, &run.timings) })
}

/// The evaluations of a run. Seconds are those of the steps before, without their evaluations.
fn points(metrics: &Lines, timings: &Lines) -> Vec<Point> {
    let seconds: Vec<(f64, f64)> = timings
        .of("timing")
        .filter_map(|line| Some((number(line, "step")?, number(line, "timing_s/step")? - number(line, "timing_s/testing").unwrap_or(0.0))))
        .collect();
    metrics
        .of("eval")
        .filter_map(|line| {
            let step = number(line, "step")?;
            let total = |name: &str| number(line, name).unwrap_or(0.0);
            Some(Point {
                samples: total("ada/samples_total"),
                rows: total("ada/rows_total"),
                updates: total("ada/updates_total"),
                seconds: seconds.iter().filter(|(at, _)| *at <= step).map(|(_, s)| s).sum(),
                hard: number(line, HARD).unwrap_or(f64::NAN),
                easy: number(line, EASY).unwrap_or(f64::NAN),
            })
        })
        .collect()
}

/// A learning rate as people write it.
fn rate(lr: f64) -> String {
    format!("{lr:e}")
}

/// `2.03x fewer (x/÷1.06), 5 of 5 seeds`.
fn against(cost: &Cost) -> String {
    let Some(ratio) = &cost.ratio else { return "the baseline".into() };
    let fewer = ratio.mean().is_none_or(|(mean, _)| mean >= 1.0);
    let count = if fewer { ratio.wins } else { ratio.losses };
    let seeds = format!("{count} of {} seed{}", ratio.seeds, if ratio.seeds == 1 { "" } else { "s" });
    // Pairs without a ratio are no part of the mean: they are told apart.
    let mut one_sided = String::new();
    for (n, who) in [(ratio.missed, "it does not arrive"), (ratio.alone, "only it arrives")] {
        if n > 0 {
            one_sided += &format!("; in {n} {who}");
        }
    }
    match ratio.mean() {
        None if one_sided.is_empty() => "neither arrives".into(),
        None => one_sided.trim_start_matches("; ").to_owned(),
        Some((mean, error)) => {
            let (factor, word) = if fewer { (mean, "fewer") } else { (1.0 / mean, "more") };
            let error = if ratio.pairs.len() > 1 { format!(" (x/÷{error:.2})") } else { String::new() };
            format!("{factor:.2}x {word}{error}, {seeds}{one_sided}")
        }
    }
}

fn with_error(mean: &Mean) -> String {
    match mean.n {
        0 => "-".into(),
        1 => format!("{:.3}", mean.mean),
        _ => format!("{:.3} ± {:.3}", mean.mean, mean.error),
    }
}

fn level_name(level: f64) -> String {
    significant(level, 3)
}

/// What each arm needs, on every axis to every level.
fn costs(comparison: &Comparison) -> Table {
    let mut head = vec!["arm".to_owned(), "axis".to_owned()];
    for level in LEVELS {
        let level = level_name(level);
        head.extend([format!("to {level}"), "arrived".to_owned(), format!("against {}, to {level}", comparison.baseline)]);
    }
    let mut rows = Vec::new();
    for arm in &comparison.arms {
        for (i, axis) in Axis::ALL.iter().enumerate() {
            let mut row = vec![arm.arm.clone(), axis.name().to_owned()];
            for level in &arm.costs {
                let cost = &level[i];
                row.extend([cost.at.map_or("-".into(), thousands), format!("{} of {}", cost.arrived, arm.runs), against(cost)]);
            }
            rows.push(row);
        }
    }
    let caption = format!(
        "Learning rate {}: what an arm needs until the hard slice is right so often, against {}",
        rate(comparison.lr),
        comparison.baseline
    );
    Table { caption, head, rows }
}

/// How each arm ends.
fn ends(comparison: &Comparison) -> Table {
    let head = ["arm", "runs", "hard", "easy"].into_iter().chain(Axis::ALL.iter().map(|axis| axis.name())).map(str::to_owned).collect();
    let rows = comparison
        .arms
        .iter()
        .map(|arm| {
            let mut row = vec![arm.arm.clone(), arm.runs.to_string(), with_error(&arm.hard), with_error(&arm.easy)];
            row.extend(arm.used.iter().map(|used| if used.is_nan() { "-".to_owned() } else { thousands(*used) }));
            row
        })
        .collect();
    Table {
        caption: format!("Learning rate {}: pass rates at the last evaluation, and what was used until then (means)", rate(comparison.lr)),
        head,
        rows,
    }
}

/// The ratio of every seed.
fn seeds(comparison: &Comparison) -> Table {
    let head = ["arm", "hard to", "axis", "seed: ratio"].map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for arm in &comparison.arms {
        for (level, costs) in LEVELS.iter().zip(&arm.costs) {
            for (axis, cost) in Axis::ALL.iter().zip(costs) {
                let Some(ratio) = &cost.ratio else { continue };
                let pairs: Vec<String> = ratio.pairs.iter().map(|(seed, ratio)| format!("{seed}: {ratio:.2}")).collect();
                rows.push(vec![arm.arm.clone(), level_name(*level), axis.name().to_owned(), pairs.join("   ")]);
            }
        }
    }
    Table {
        caption: format!(
            "Learning rate {}: {} over the arm, seed by seed; above 1 the arm needs less",
            rate(comparison.lr),
            comparison.baseline
        ),
        head,
        rows,
    }
}

/// The plots of a learning rate.
fn plots(curves: &[&Curve], order: &[String]) -> String {
    let mut out = String::new();
    for (slice, levels) in [("hard", LEVELS.as_slice()), ("easy", &[])] {
        let value = |p: &Point| if slice == "hard" { p.hard } else { p.easy };
        for axis in Axis::ALL {
            let grid = grid(curves, axis);
            let series: Vec<Series> = order
                .iter()
                .map(|arm| {
                    let runs: Vec<&Curve> = curves.iter().copied().filter(|c| c.arm == *arm).collect();
                    let mean = mean_curve(&runs, axis, &grid, value);
                    Series {
                        name: arm.clone(),
                        points: mean.iter().map(|(x, y, _)| (*x, *y)).collect(),
                        band: if runs.len() > 1 { mean.iter().map(|(x, y, e)| (*x, y - e, y + e)).collect() } else { Vec::new() },
                    }
                })
                .collect();
            if series.iter().all(|s| s.points.is_empty()) {
                continue;
            }
            let labels = Labels {
                title: format!("{} slice against {}", if slice == "hard" { "Hard" } else { "Easy" }, axis.name()),
                about: "Mean over the seeds as far as all of them go; the band is one standard error on either side.".into(),
                x: axis.name().to_owned(),
                y: "pass@1".to_owned(),
            };
            let span = if slice == "hard" { Span::Unit } else { Span::Data };
            out += &lines(&labels, &series, span, levels);
        }
    }
    out
}

/// The page and the tables as text.
pub fn comparison_page(curves: &[Curve]) -> (String, String) {
    let comparisons = compare(curves);
    let order = arms(curves);
    let (mut body, mut text) = (String::new(), String::new());
    body += "<h1>Arms compared</h1>\n";
    body += &format!(
        "<p>{}</p>\n",
        escape(
            "Every arm trains the same model on the same prompts. Costs are where a run's held-out pass rate of the hard slice first reaches a level, by a straight line between two \
             evaluations; arms are paired with the baseline by seed. A ratio is the geometric mean over the seeds in which both arrive; (x/÷) is the factor of its standard error, from the \
             spread of the seeds' log ratios. Seeds are counted in which the arm needs fewer (or, where the ratio says more, more); a seed in which only one of \
             the two arrives has no ratio: it counts for the one that arrives, and is told apart. A run ends with its budget, most often of samples: an arm that \
             trains on few rows may have had some left. Seconds are those of the steps without their evaluations, and depend on what else the machine did."
        )
    );
    for comparison in &comparisons {
        let here: Vec<&Curve> = curves.iter().filter(|c| c.lr == comparison.lr).collect();
        let tables = [costs(comparison), ends(comparison)];
        for table in &tables {
            text += &table.text();
            text.push('\n');
        }
        let shown: String = tables.iter().map(Table::html).collect();
        let by_seed = format!("<details class=\"wide\"><summary>Seed by seed</summary>\n{}</details>\n", seeds(comparison).html());
        body += &section(&format!("Learning rate {}", rate(comparison.lr)), "", &(shown + &by_seed + &plots(&here, &order)));
    }
    (page("Arms compared - adaroll", &body), text)
}
