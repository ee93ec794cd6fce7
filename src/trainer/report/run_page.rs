//! The page about one run.

use std::collections::HashSet;

use super::markup::{Table, escape, page, section, significant, thousands};
use super::plot::{Labels, Series, Span, heat, lines, stacked};
use super::read::{Lines, Points, Run, about, number, pass_rates};

/// Bins of samples per prompt, as the trainer counts them.
const BINS: [&str; 8] = ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+"];
/// Parts of a step's time, with what the legend calls them.
const PARTS: [(&str, &str); 4] = [
    ("timing_s/gen", "sampling"),
    ("timing_s/update_actor", "update"),
    ("timing_s/update_weights", "weight push"),
    ("timing_s/testing", "evaluation"),
];
/// Sections, in order; each is there even if a run has nothing for it.
pub const SECTIONS: [&str; 12] = [
    "Reward",
    "Pass rates",
    "Signal",
    "Samples per prompt",
    "Entropy",
    "Lengths",
    "Probability differences",
    "Policy update",
    "Timings",
    "Staleness",
    "Other numbers",
    "Configuration",
];

/// Draws numbers of a run, and remembers which were drawn.
struct Drawer<'a> {
    lines: &'a Lines,
    drawn: HashSet<String>,
}

impl Drawer<'_> {
    /// Several numbers in one figure; those that the run lacks are left out, and nothing is drawn where it lacks all.
    fn plot(&mut self, title: &str, about: &str, y: &str, span: Span, names: &[(&str, &str)]) -> String {
        let mut series = Vec::new();
        for (name, label) in names {
            self.drawn.insert((*name).to_owned());
            let points = self.lines.series(name);
            if !points.is_empty() {
                series.push(Series::new(*label, points));
            }
        }
        match series.is_empty() {
            true => String::new(),
            false => lines(&Labels::over_steps(title, about, y), &series, span, &[]),
        }
    }

    /// One number in a figure of its own.
    fn one(&mut self, name: &str, title: &str, y: &str, span: Span) -> String {
        self.plot(title, &about(name), y, span, &[(name, title)])
    }
}

/// The page.
pub fn run_page(run: &Run) -> String {
    let mut draw = Drawer { lines: &run.metrics, drawn: HashSet::new() };
    let contents = [
        draw.one("critic/score/mean", "Mean reward", "reward", Span::Zero) + &draw.one("ada/pass_rate_first", "First samples right", "share of prompts", Span::Unit),
        held_out(&mut draw),
        draw.one("ada/signal_fraction", "Signal fraction", "share of prompts", Span::Unit)
            + &draw.plot(
                "How groups ended",
                "Resolved met their exit condition; exhausted used every sample they were allowed; failed could not be sampled or judged; dropped were left out of the step.",
                "prompts",
                Span::Zero,
                &[("ada/groups_resolved", "resolved"), ("ada/groups_exhausted", "exhausted"), ("ada/groups_failed", "failed"), ("ada/groups_dropped", "dropped")],
            ),
        samples_per_prompt(&mut draw),
        draw.one("actor/entropy", "Entropy", "nats per token", Span::Zero),
        lengths(&mut draw),
        differences(&mut draw),
        update(&mut draw),
        timings(&run.timings),
        draw.one("ada/staleness", "Staleness", "versions", Span::Zero),
        others(&draw, &run.metrics) + &others(&draw_of_timings(), &run.timings),
        configuration(&run.config),
    ];
    let intros = [
        "",
        "Held-out problems. Exact where every problem has one right answer, otherwise estimated from samples.",
        "Only groups with both successes and failures teach anything.",
        "Where the samples went.",
        "",
        "The answers that were trained on against everything that was drawn: selection by outcome can select by length.",
        "The trainer computes every log-probability itself and compares it with the one the sampler reported.",
        "",
        "What clocks say; evaluations are part of a step here.",
        "",
        "Numbers that have no place above.",
        "",
    ];
    let sections: String = SECTIONS
        .iter()
        .zip(contents)
        .zip(intros)
        .map(|((title, content), intro)| match content.is_empty() {
            true => section(title, intro, "<p class=\"note\">This run has no such numbers.</p>\n"),
            false => section(title, intro, &content),
        })
        .collect();
    let links: String =
        SECTIONS.iter().map(|title| format!("<a href=\"#{}\">{title}</a>\n", title.to_lowercase().replace(' ', "-"))).collect();
    let heading = format!("<h1>{}</h1>\n<p>A training run, drawn by adaroll from its metrics.</p>\n", escape(&run.name));
    page(&format!("{} - adaroll", run.name), &format!("{heading}{}<nav>\n{links}</nav>\n{sections}", tiles(run)))
}

/// The numbers that a reader looks for first.
fn tiles(run: &Run) -> String {
    let last = |name: &str| run.metrics.series(name).last().map(|p| p.1);
    let step = run.metrics.of("train").filter_map(|line| number(line, "step")).next_back();
    let mut tiles: Vec<(String, String)> = Vec::new();
    for (title, value) in
        [("Steps", step), ("Samples", last("ada/samples_total")), ("Rows", last("ada/rows_total")), ("Updates", last("ada/updates_total"))]
    {
        tiles.extend(value.map(|v| (title.to_owned(), thousands(v))));
    }
    for (name, slice) in pass_rates(&run.metrics).into_iter().filter(|(k, _)| *k == 1).flat_map(|(_, names)| names) {
        let points = run.metrics.series(&name);
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            let title = if slice.is_empty() { "pass@1".to_owned() } else { format!("pass@1, {slice}") };
            tiles.push((title, format!("{:.3} → {:.3}", first.1, last.1)));
        }
    }
    let worst = run.metrics.series("training/rollout_logprobs_diff_max");
    if !worst.is_empty() {
        let most = worst.iter().map(|p| p.1).fold(0.0, f64::max);
        tiles.push((
            "Trainer against sampler, log-probabilities".to_owned(),
            if most == 0.0 { "exactly 0".to_owned() } else { significant(most, 2) },
        ));
    }
    let tiles: String =
        tiles.iter().map(|(title, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(title), escape(value))).collect();
    format!("<dl class=\"tiles\">\n{tiles}</dl>\n")
}

fn held_out(draw: &mut Drawer) -> String {
    let mut out = String::new();
    for (k, names) in pass_rates(draw.lines) {
        let labelled: Vec<(&str, &str)> =
            names.iter().map(|(name, slice)| (name.as_str(), if slice.is_empty() { "all" } else { slice })).collect();
        let about = about(&format!("eval/pass@{k}"));
        out += &draw.plot(&format!("pass@{k} by slice"), &about, "pass rate", Span::Unit, &labelled);
    }
    out
}

fn samples_per_prompt(draw: &mut Drawer) -> String {
    let mean = draw.one("ada/samples_per_prompt/mean", "Samples per prompt", "samples", Span::Zero)
        + &draw.plot(
            "Samples and prompts",
            "Drawn and taken in a step; failed samples could not be judged.",
            "count",
            Span::Zero,
            &[("ada/samples", "samples"), ("ada/prompts", "prompts"), ("ada/samples_failed", "failed samples")],
        );
    draw.drawn.insert("ada/samples_per_prompt/hist".into());
    let columns = draw.lines.lists("ada/samples_per_prompt/hist");
    if columns.is_empty() {
        return mean;
    }
    // Rows that no prompt ever reached say nothing.
    let used = columns.iter().filter_map(|(_, counts)| counts.iter().rposition(|c| *c > 0.0)).max().unwrap_or(0) + 1;
    let bins: Vec<String> = (0..used).map(|i| BINS.get(i).map_or_else(|| i.to_string(), |bin| (*bin).to_owned())).collect();
    let columns: Vec<(f64, Vec<f64>)> = columns.into_iter().map(|(x, counts)| (x, counts.into_iter().take(used).collect())).collect();
    let labels = Labels::over_steps(
        "Prompts by samples drawn",
        "Each column is a step; the stronger a cell, the larger its share of the step's prompts.",
        "samples drawn for a prompt",
    );
    mean + &heat(&labels, &bins, &columns)
}

fn lengths(draw: &mut Drawer) -> String {
    let mean = draw.plot(
        "Answer length",
        "Kept are the rows trained on; the pool is every sample drawn.",
        "tokens",
        Span::Zero,
        &[("response_length/mean", "kept"), ("ada/pool_length/mean", "pool")],
    );
    let cut = draw.plot(
        "Answers cut at the token limit",
        "Share that ended at the limit instead of at an end of their own.",
        "share",
        Span::Zero,
        &[("response_length/clip_ratio", "kept"), ("ada/pool_clip_ratio", "pool")],
    );
    draw.drawn.extend(["response_length/max".to_owned(), "response_length/min".to_owned()]);
    mean + &cut
}

fn differences(draw: &mut Drawer) -> String {
    const LOG: &str = "training/rollout_logprobs_diff_max";
    let names = ["training/rollout_probs_diff_max", "training/rollout_probs_diff_mean", LOG];
    draw.drawn.insert("training/rollout_probs_diff_std".into());
    let all: Points = names.iter().flat_map(|name| draw.lines.series(name)).collect();
    if all.is_empty() {
        return String::new();
    }
    let current = draw.lines.series(LOG);
    let worst = |points: &Points| points.iter().map(|p| p.1).fold(0.0, f64::max);
    let note = if all.iter().all(|p| p.1 == 0.0) {
        format!(
            "The difference is exactly 0 at every token of all {} steps that have rows: trainer and sampler run the same operations.",
            draw.lines.series(names[0]).len()
        )
    } else if !current.is_empty() && current.iter().all(|p| p.1 == 0.0) {
        format!(
            "On samples of the current version the difference is exactly 0 in all {} steps that have them; what is above 0 below is samples of earlier versions.",
            current.len()
        )
    } else {
        let at = current.iter().filter(|p| p.1 != 0.0).count();
        format!(
            "The difference is not always 0: on samples of the current version it is above 0 in {at} of {} steps, at most {} in log-probability.",
            current.len(),
            significant(worst(&current), 3)
        )
    };
    format!("<p class=\"note\">{}</p>\n", escape(&note))
        + &draw.plot(
            "Trainer against sampler, probabilities",
            "|trainer probability - sampler probability| of a token: largest and mean.",
            "probability",
            Span::Zero,
            &[(names[0], "largest"), (names[1], "mean")],
        )
        + &draw.one(LOG, "Trainer against sampler, log-probabilities", "nats", Span::Zero)
}

fn update(draw: &mut Drawer) -> String {
    let loss = draw.plot(
        "Loss",
        "The loss that is minimised, and its policy-gradient part.",
        "loss",
        Span::Zero,
        &[("loss", "loss"), ("actor/pg_loss", "policy gradient")],
    );
    let clipped = draw.plot(
        "Clipped tokens",
        "Share of tokens whose ratio was clipped, and of those at the dual bound.",
        "share of tokens",
        Span::Zero,
        &[("actor/pg_clipfrac", "clipped"), ("actor/pg_clipfrac_lower", "at the dual bound")],
    );
    let ratio = draw.plot(
        "Ratio",
        "p / p_old of a token; exactly 1 where a step is one update.",
        "ratio",
        Span::Data,
        &[("actor/ratio/mean", "mean"), ("actor/ratio/max", "largest")],
    );
    let advantages = draw.plot(
        "Advantages",
        "Of the rows trained on.",
        "advantage",
        Span::Zero,
        &[("critic/advantages/mean", "mean"), ("critic/advantages/max", "largest"), ("critic/advantages/min", "smallest")],
    );
    let rows = draw.one("ada/rows", "Rows", "rows", Span::Zero);
    loss + &draw.one("actor/grad_norm", "Gradient norm", "norm", Span::Zero)
        + &draw.one("actor/lr", "Learning rate", "learning rate", Span::Zero)
        + &draw.one("actor/ppo_kl", "Policy change in a step", "nats per token", Span::Zero)
        + &draw.one("actor/kl_loss", "Divergence from the first model", "nats per token", Span::Zero)
        + &clipped
        + &ratio
        + &draw.one("actor/masked_tokens", "Masked tokens", "tokens", Span::Zero)
        + &advantages
        + &rows
}

/// The drawn names of timings.jsonl.
fn draw_of_timings() -> Drawer<'static> {
    static NONE: std::sync::LazyLock<Lines> = std::sync::LazyLock::new(Lines::default);
    let drawn =
        PARTS.iter().map(|(name, _)| (*name).to_owned()).chain(["timing_s/step".to_owned(), "perf/throughput".to_owned()]).collect();
    Drawer { lines: &NONE, drawn }
}

fn timings(lines_of: &Lines) -> String {
    let columns: Vec<(f64, Vec<f64>)> = lines_of
        .of("timing")
        .filter_map(|line| {
            let mut parts: Vec<f64> = PARTS.iter().map(|(name, _)| number(line, name).unwrap_or(0.0)).collect();
            let rest = number(line, "timing_s/step").map_or(0.0, |whole| (whole - parts.iter().sum::<f64>()).max(0.0));
            parts.push(rest);
            Some((number(line, "step")?, parts))
        })
        .collect();
    if columns.is_empty() {
        return String::new();
    }
    let names: Vec<String> = PARTS.iter().map(|(_, name)| (*name).to_owned()).chain(["rest".to_owned()]).collect();
    let mut draw = Drawer { lines: lines_of, drawn: HashSet::new() };
    let labels = Labels::over_steps(
        "Seconds of a step",
        "Parts of a step. The rest is bookkeeping and, where sampling runs one step ahead, waiting for it.",
        "seconds",
    );
    stacked(&labels, &names, &columns) + &draw.one("perf/throughput", "Training speed", "tokens per second", Span::Zero)
}

/// Whatever was not drawn.
fn others(draw: &Drawer, lines_of: &Lines) -> String {
    let mut out = String::new();
    let mut table =
        Table { caption: "Lists, at the last step".into(), head: vec!["name".into(), "step".into(), "values".into()], rows: Vec::new() };
    for name in lines_of.names().into_iter().filter(|name| !draw.drawn.contains(*name)) {
        let points = lines_of.series(name);
        if !points.is_empty() {
            out += &lines(&Labels::over_steps(name, &about(name), "value"), &[Series::new(name, points)], Span::Data, &[]);
        } else if let Some((step, values)) = lines_of.lists(name).last() {
            let values: Vec<String> = values.iter().map(|v| significant(*v, 5)).collect();
            table.rows.push(vec![name.to_owned(), significant(*step, 9), values.join(" ")]);
        }
    }
    if table.rows.is_empty() { out } else { out + &table.html() }
}

fn configuration(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("<pre>{}</pre>\n", escape(text)) }
}
