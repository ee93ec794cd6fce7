//! The page about a run and the one that compares runs: whole, alone, honest, and with the numbers that hand-made curves have.

use std::fs;
use std::path::Path;

use adaroll::trainer::report::compare::{Axis, Curve, Point, compare, grid, mean, mean_curve, reach};
use adaroll::trainer::report::{self, Arm, ReportError, run_page::SECTIONS};
use serde_json::{Value, json};

/// Writes a run's folder.
fn write_run(dir: &Path, metrics: &[Value], timings: &[Value], config: &str) {
    let lines = |values: &[Value]| values.iter().map(|v| format!("{v}\n")).collect::<String>();
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("metrics.jsonl"), lines(metrics)).unwrap();
    fs::write(dir.join("timings.jsonl"), lines(timings)).unwrap();
    fs::write(dir.join("config.toml"), config).unwrap();
}

fn train_line(step: u64, difference: f64) -> Value {
    json!({"step": step, "kind": "train", "critic/score/mean": 0.5, "ada/signal_fraction": 0.25, "ada/samples_per_prompt/mean": 3.5,
        "ada/samples_per_prompt/hist": [4, 2, 0, 1, 0, 0, 0, 0], "ada/samples_total": 512 * step, "ada/staleness": 0, "actor/entropy": 0.7,
        "response_length/mean": 6, "ada/pool_length/mean": 5.5, "training/rollout_probs_diff_max": difference,
        "training/rollout_probs_diff_mean": difference, "training/rollout_logprobs_diff_max": difference, "loss": -0.01, "actor/pg_loss": -0.01,
        "actor/pg_clipfrac": 0, "actor/ppo_kl": 0, "actor/grad_norm": 1.25, "actor/lr": 1e-3, "my/<own> & \"number\"": step})
}

fn eval_line(step: u64, hard: f64) -> Value {
    json!({"step": step, "kind": "eval", "ada/samples_total": 512 * step, "ada/rows_total": 100 * step, "ada/updates_total": step,
        "eval/pass@1": hard, "eval/pass@1/hard": hard, "eval/pass@1/easy": 0.9, "eval/pass@4/hard": hard})
}

fn timing_line(step: u64) -> Value {
    json!({"step": step, "kind": "timing", "timing_s/gen": 1.0, "timing_s/update_actor": 0.5, "timing_s/update_weights": 0.1,
        "timing_s/testing": 2.0, "timing_s/step": 4.0, "perf/throughput": 1000})
}

/// Every element is closed by its own end, and none is left open. Gives the elements' number.
#[track_caller]
fn assert_closed(html: &str) -> usize {
    let (mut open, mut count, mut rest) = (Vec::<String>::new(), 0, html.strip_prefix("<!doctype html>").unwrap());
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').unwrap_or_else(|| panic!("no end: {}", &rest[at..rest.len().min(at + 80)]));
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "before {}", &rest.chars().take(80).collect::<String>());
        } else if !tag.ends_with('/') {
            let name = tag.split_whitespace().next().unwrap().to_owned();
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
            assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
            // What is in these is no markup.
            if name == "script" || name == "style" {
                let close = format!("</{name}>");
                rest = &rest[rest.find(&close).unwrap() + close.len()..];
            } else {
                open.push(name);
            }
            count += 1;
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    count
}

/// Nothing is fetched.
#[track_caller]
fn assert_alone(html: &str) {
    for outside in ["http:", "https:", "//cdn", "src=", "@import", "url(", "fetch(", "<link"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn the_page_of_a_run_is_whole_and_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut metrics = vec![eval_line(0, 0.02)];
    for step in 1..=4 {
        metrics.push(train_line(step, 0.0));
    }
    metrics.push(eval_line(4, 0.5));
    let timings: Vec<Value> = (1..=4).map(timing_line).collect();
    write_run(dir.path(), &metrics, &timings, "[run]\nname = \"<b>x</b> & 'y'\"\n[note]\ntext = \"</pre><script>alert(1)</script>\"\n");
    let page = dir.path().join("sub/report.html");
    report::write(dir.path(), &page).unwrap();
    let html = fs::read_to_string(&page).unwrap();
    assert!(assert_closed(&html) > 300);
    assert_alone(&html);
    // Text of files is text.
    assert!(html.contains("<h1>&lt;b&gt;x&lt;/b&gt; &amp; &#39;y&#39;</h1>") && !html.contains("<b>x") && !html.contains("<script>alert"));
    assert!(html.contains("my/&lt;own&gt; &amp; &quot;number&quot;") && html.contains("&lt;/pre&gt;&lt;script&gt;"));
    for section in SECTIONS {
        assert!(html.contains(&format!("<h2>{section}</h2>")), "{section}");
    }
    let others = html.split("<h2>Other numbers</h2>").nth(1).unwrap();
    assert!(others.contains("my/&lt;own&gt;") && !others.contains("actor/grad_norm"));
    assert!(!html.contains("This run has no such numbers"));
    // A figure has a title, a legend where it has several lines, axes with labels, and a table with its numbers.
    let figure = html.split("<figure>").find(|f| f.contains("<h3>pass@1 by slice</h3>")).unwrap();
    for part in [
        "<li>",
        "hard</li>",
        "easy</li>",
        ">pass rate</text>",
        ">step</text>",
        "<path class=\"line\"",
        "<th scope=\"col\">hard</th>",
        "<tr data-x=\"4\"><td>4</td><td>0.5</td><td>0.5</td><td>0.9</td></tr>",
    ] {
        assert!(figure.contains(part), "{part}: {figure}");
    }
    assert_eq!(html.matches("<figure>").count(), html.matches("<details>").count());
    assert_eq!(html.matches("<svg class=\"plot\"").count(), html.matches("<figure>").count());
    // The times that the parts leave are the rest: 4 - 1 - .5 - .1 - 2.
    assert!(html.contains("<tr data-x=\"3\"><td>3</td><td>1</td><td>0.5</td><td>0.1</td><td>2</td><td>0.4</td></tr>"));
    // Bins that no prompt reached are left out: 4, 2, 0 and 1 prompts of 7.
    assert!(html.contains("<td>57.1 %</td><td>28.6 %</td><td>0.0 %</td><td>14.3 %</td></tr>"));
}

#[test]
fn exactly_0_is_said_only_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let page = |differences: &[f64]| {
        let metrics: Vec<Value> = differences.iter().enumerate().map(|(i, d)| train_line(i as u64 + 1, *d)).collect();
        write_run(dir.path(), &metrics, &[], "");
        report::write(dir.path(), &dir.path().join("page.html")).unwrap();
        fs::read_to_string(dir.path().join("page.html")).unwrap()
    };
    let zero = page(&[0.0, 0.0]);
    assert!(zero.contains("exactly 0 at every token of all 2 steps") && zero.contains("<dd>exactly 0</dd>"));
    let some = page(&[0.0, 1e-7, 0.0]);
    assert!(
        some.contains("above 0 in 1 of 3 steps, at most 1e-7")
            && !some.contains("exactly 0 at every token")
            && !some.contains("<dd>exactly 0</dd>")
    );
    // A run without timings or configuration says so where they would be.
    assert_eq!(some.matches("This run has no such numbers").count(), 3, "pass rates, timings, configuration");
    assert_closed(&some);
}

#[test]
fn a_spike_in_a_long_run_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (steps, spike) = (5000u64, 3333);
    let metrics: Vec<Value> =
        (1..=steps).map(|step| json!({"step": step, "kind": "train", "actor/grad_norm": if step == spike { 9.0 } else { 1.0 }})).collect();
    write_run(dir.path(), &metrics, &[], "");
    report::write(dir.path(), &dir.path().join("page.html")).unwrap();
    let html = fs::read_to_string(dir.path().join("page.html")).unwrap();
    assert_closed(&html);
    let figure = html.split("<figure>").find(|f| f.contains("<h3>Gradient norm</h3>")).unwrap();
    let path = figure.split("<path class=\"line\"").nth(1).unwrap().split("d=\"M").nth(1).unwrap().split('"').next().unwrap();
    let places: Vec<f64> = path.split('L').map(|p| p.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    let (top, bottom) = places.iter().fold((f64::INFINITY, 0f64), |(a, b), y| (a.min(*y), b.max(*y)));
    // Twin: every n-th step, as many as are drawn, would pass over it.
    let every = steps as usize / places.len();
    assert!(places.len() <= 800 && !(spike as usize - 1).is_multiple_of(every), "{}", places.len());
    assert!(bottom - top > 100.0, "{top} to {bottom}: nothing of it is drawn");
    // The table is short, and says so.
    assert!(figure.matches("<tr data-x").count() <= 202 && figure.contains("one row in 25 of 5000") && figure.contains("data-x=\"5000\""));
}

#[test]
fn a_run_that_is_still_going_is_drawn_and_a_broken_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let missing = report::write(&dir.path().join("nowhere"), &page).unwrap_err();
    assert!(
        matches!(missing, ReportError::Io { .. })
            && missing.to_string().contains("metrics.jsonl")
            && missing.to_string().contains("run.dir")
    );
    let file = dir.path().join("metrics.jsonl");
    fs::write(&file, format!("{}\n{{\"step\": 2, \"ki", train_line(1, 0.0))).unwrap();
    report::write(dir.path(), &page).unwrap();
    assert!(fs::read_to_string(&page).unwrap().contains("<dt>Steps</dt><dd>1</dd>"));
    for broken in ["{\"kind\": \"train\"}", "[1]", "{\"step\": 2, \"ki"] {
        fs::write(&file, format!("{}\n{broken}\n{}\n", train_line(1, 0.0), train_line(3, 0.0))).unwrap();
        let error = report::write(dir.path(), &page).unwrap_err();
        assert!(matches!(error, ReportError::Line { line: 2, .. }), "{broken}: {error}");
    }
    fs::write(&file, "").unwrap();
    report::write(dir.path(), &page).unwrap();
    assert_closed(&fs::read_to_string(&page).unwrap());
}

/// A curve that climbs by `per_sample` a sample, evaluated every 1,000 samples up to 10,000; a step has `rows` rows.
fn climb(arm: &str, seed: u64, per_sample: f64, rows: f64) -> Curve {
    let points = (0..=10).map(|i| {
        let samples = f64::from(i) * 1000.0;
        Point {
            samples,
            rows: rows * f64::from(i),
            updates: f64::from(i),
            seconds: 2.0 * f64::from(i),
            hard: per_sample * samples,
            easy: 0.9 + 0.01 * f64::from(i),
        }
    });
    Curve { arm: arm.into(), seed, lr: 1e-3, points: points.collect() }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9 * b.abs().max(1.0)
}

#[test]
fn a_level_is_reached_on_the_line_between_two_evaluations() {
    let curve = [(0.0, 0.0), (10.0, 0.2), (20.0, 0.6), (30.0, 0.4), (40.0, 0.8)];
    assert!(near(reach(curve, 0.5).unwrap(), 17.5), "the first time");
    assert!(near(reach(curve, 0.7).unwrap(), 37.5));
    assert_eq!((reach(curve, 0.2), reach(curve, 0.9), reach(curve, 0.0)), (Some(10.0), None, Some(0.0)));
    assert_eq!(reach([(0.0, f64::NAN), (4.0, 0.5), (8.0, f64::NAN), (12.0, 1.0)], 0.75), Some(8.0));
    let m = mean(&[1.0, 2.0, 6.0]);
    // Squares 4 + 1 + 9 = 14, variance 7, standard error sqrt(7/3).
    assert!(near(m.mean, 3.0) && near(m.error, (7.0f64 / 3.0).sqrt()) && m.n == 3);
}

#[test]
fn ratios_are_geometric_means_over_paired_seeds() {
    // The baseline gets to .5 at 8,000 and 4,000 samples; the arm at 2,000 and 4,000: ratios 4 and 1.
    let curves = [
        climb("ada", 0, 0.5 / 2000.0, 300.0),
        climb("ada", 1, 0.5 / 4000.0, 300.0),
        climb("grpo8", 0, 0.5 / 8000.0, 100.0),
        climb("grpo8", 1, 0.5 / 4000.0, 100.0),
        // Seed 2 has no partner, and seed 3's partner never arrives.
        climb("ada", 2, 0.5 / 1000.0, 300.0),
        climb("ada", 3, 0.5 / 5000.0, 300.0),
        climb("grpo8", 3, 0.2 / 10000.0, 100.0),
        climb("late", 0, 0.3 / 10000.0, 10.0),
    ];
    let comparisons = compare(&curves);
    assert_eq!(comparisons.len(), 1);
    assert_eq!(comparisons[0].baseline, "grpo8", "by name, though it is not the first");
    let arm = |name: &str| comparisons[0].arms.iter().find(|a| a.arm == name).unwrap();
    let cost = |name: &str, axis: Axis| arm(name).costs[0][Axis::ALL.iter().position(|a| *a == axis).unwrap()].clone();
    let ada = cost("ada", Axis::Samples);
    let ratio = ada.ratio.clone().unwrap();
    assert_eq!((ada.arrived, arm("ada").runs), (4, 4));
    assert!(near(ada.at.unwrap(), (2000.0f64 * 4000.0 * 1000.0 * 5000.0).powf(0.25)));
    assert_eq!((ratio.seeds, ratio.wins, ratio.losses, ratio.alone, ratio.missed), (3, 2, 0, 1, 0));
    assert_eq!(ratio.pairs.len(), 2);
    // Logs ln 4 and 0: mean ln 2, standard error ln 2.
    let (geometric, error) = ratio.mean().unwrap();
    assert!(near(geometric, 2.0) && near(error, 2.0), "{geometric} {error}");
    assert!((4.0 + 1.0) / 2.0 - geometric > 0.4, "the twin, an arithmetic mean, is another number");
    // Three times the rows a sample: 4/3 and 1/3.
    let rows = cost("ada", Axis::Rows).ratio.unwrap();
    assert!(near(rows.mean().unwrap().0, 2.0 / 3.0) && (rows.wins, rows.losses) == (2, 1));
    let late = cost("late", Axis::Samples);
    assert_eq!((late.at, late.arrived, late.ratio.clone().unwrap().missed), (None, 0, 1));
    assert_eq!(late.ratio.unwrap().mean(), None);
    assert!(near(arm("late").hard.mean, 0.3) && near(arm("late").easy.mean, 1.0) && near(arm("ada").used[1], 3000.0));
    assert!(cost("grpo8", Axis::Samples).ratio.is_none());
    // The mean curve of the two paired baselines at 3,000 samples.
    let runs = [&curves[2], &curves[3]];
    let curve = mean_curve(&runs, Axis::Samples, &grid(&runs, Axis::Samples), |p| p.hard);
    assert_eq!(curve.len(), 81);
    let (_, value, error) = *curve.iter().find(|p| near(p.0, 3000.0)).unwrap();
    assert!(near(value, (0.1875 + 0.375) / 2.0) && near(error, (0.375 - 0.1875) / 2.0));
    assert!(near(curve[curve.len() - 1].0, 10000.0));
}

/// The run of a curve, as the trainer leaves it: steps of 1,000 samples and 3 seconds, one of them an evaluation's.
fn run_of(dir: &Path, curve: &Curve) -> Arm {
    let metrics: Vec<Value> = (0u64..)
        .zip(&curve.points)
        .map(|(step, p)| {
            json!({"step": step, "kind": "eval", "ada/samples_total": p.samples, "ada/rows_total": p.rows, "ada/updates_total": p.updates,
                "eval/pass@1/hard": p.hard, "eval/pass@1/easy": p.easy})
        })
        .collect();
    let timings: Vec<Value> =
        (1..=10).map(|step| json!({"step": step, "kind": "timing", "timing_s/step": 3.0, "timing_s/testing": 1.0})).collect();
    let run_dir = dir.join(format!("{}-{}-{}", curve.arm, curve.seed, curve.lr));
    write_run(&run_dir, &metrics, &timings, "");
    Arm { name: curve.arm.clone(), seed: curve.seed, lr: curve.lr, run_dir }
}

#[test]
fn the_comparison_shows_every_arm_on_every_axis() {
    let dir = tempfile::tempdir().unwrap();
    let mut arms = Vec::new();
    for lr in [5e-4, 1e-3] {
        for (name, speed, rows) in [("grpo8", [1.0, 1.0], 100.0), ("pos1m1n8", [2.0, 1.5], 140.0), ("bal<ance", [0.5, 0.5], 30.0)] {
            for (seed, speed) in speed.iter().enumerate() {
                let curve = Curve { lr, ..climb(name, seed as u64, speed * 0.5 / 6000.0, rows) };
                arms.push(run_of(dir.path(), &curve));
            }
        }
    }
    let page = dir.path().join("comparison.html");
    let text = report::write_comparison(&arms, &page).unwrap();
    let html = fs::read_to_string(&page).unwrap();
    assert!(assert_closed(&html) > 300);
    assert_alone(&html);
    // sqrt(2 * 1.5) = 1.73 fewer; half of |ln 2 - ln 1.5| is ln 1.15. Seconds follow samples: evaluations are left out.
    let line = |arm: &str, axis: &str| {
        text.lines().find(|l| l.trim_start().starts_with(arm) && l.split_whitespace().nth(1) == Some(axis)).unwrap().to_owned()
    };
    for axis in ["samples", "updates", "seconds"] {
        assert!(line("pos1m1n8", axis).contains("1.73x fewer (x/÷1.15), 2 of 2 seeds"), "{text}");
        // It gets to 5/12: to .25, and not to .5.
        assert!(line("bal<ance", axis).contains("0 of 2") && line("bal<ance", axis).contains("in 2 it does not arrive"), "{text}");
        assert!(line("bal<ance", axis).contains("2.00x more (x/÷1.00), 2 of 2 seeds"), "{text}");
    }
    assert!(line("pos1m1n8", "rows").contains("1.24x fewer (x/÷1.15), 2 of 2 seeds"), "{text}");
    assert!(line("bal<ance", "rows").contains("1.67x fewer (x/÷1.00), 2 of 2 seeds"), "{text}");
    let (samples, seconds) = (line("grpo8", "samples"), line("grpo8", "seconds"));
    assert!(samples.contains("6,000") && samples.contains("the baseline") && seconds.contains(" 12 "), "{samples}\n{seconds}");
    assert!(text.contains("bal<ance  2     0.417 ± 0.000  1.000 ± 0.000  10,000   300    10       20"), "{text}");
    // The page has the same cells, the seeds' own ratios, and a plot of each slice on each axis for each rate.
    for cell in ["1.73x fewer (x/÷1.15), 2 of 2 seeds", "0: 2.00   1: 1.50", "bal&lt;ance", "by a straight line between two"] {
        assert!(html.contains(cell), "{cell}");
    }
    for axis in Axis::ALL {
        for slice in ["Hard", "Easy"] {
            let title = format!("<h3>{slice} slice against {}</h3>", axis.name());
            assert_eq!(html.matches(&title).count(), 2, "{title}");
        }
    }
    let figure = html.split("<figure>").find(|f| f.contains("Hard slice against rows")).unwrap();
    assert_eq!(
        (figure.matches("class=\"line\"").count(), figure.matches("class=\"band\"").count(), figure.matches("class=\"level\"").count()),
        (3, 3, 2)
    );
}
