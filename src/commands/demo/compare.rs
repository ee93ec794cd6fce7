//! `--compare`: every arm, seed and learning rate, as many runs at a time as there are cores, and one page about all of them.

use std::path::PathBuf;
use std::time::Instant;

use super::arms::Arm;
use super::run::{Live, Plan};
use super::{DemoArgs, DemoError, GLANCE};
use crate::commands::device::DeviceChoice;
use crate::commands::open::default_threads;
use crate::demo::task::Mix;
use crate::trainer::report;

/// The runs of a comparison, those of one seed together: a comparison that is ended early has whole seeds.
fn plans(args: &DemoArgs, threads: usize) -> Vec<Plan> {
    let arms: Vec<Arm> = match (args.arm.is_empty(), args.paper) {
        (false, _) => args.arm.clone(),
        (true, false) => Arm::COMPARED.to_vec(),
        (true, true) => vec![Arm::Grpo4, Arm::Balance],
    };
    let rates = if args.lr.is_empty() { vec![5e-4, 1e-3] } else { args.lr.clone() };
    let mut plans = Vec::new();
    for seed in 0..args.seeds {
        for &lr in &rates {
            for &arm in &arms {
                let steps = if args.paper { args.steps.unwrap_or(80) } else { args.steps.unwrap_or(0) };
                plans.push(Plan {
                    arm,
                    seed,
                    lr,
                    steps,
                    samples: if steps > 0 { 0 } else { args.samples },
                    samples_per_step: if args.paper { 0 } else { 512 },
                    prompts_per_step: if args.paper { 64 } else { 0 },
                    eval_every: 2,
                    mix: if args.paper { Mix::HARD } else { Mix::TRAIN },
                    dir: args.out.join("runs").join(format!("{arm}-lr{lr:e}-seed{seed}")),
                    port: 0,
                    threads,
                    device: DeviceChoice::Cpu,
                });
            }
        }
    }
    plans
}

/// Runs the comparison.
pub fn run(args: &DemoArgs, interrupted: &dyn Fn() -> bool) -> Result<String, DemoError> {
    let cores = default_threads();
    let parallel = args.parallel.map_or(cores, usize::from).max(1);
    let plans = plans(args, (cores / parallel).max(1));
    let started = Instant::now();
    let mut waiting: std::collections::VecDeque<&Plan> = plans.iter().collect();
    let mut live: Vec<(&Plan, Live)> = Vec::new();
    let mut done = 0;
    while done < plans.len() {
        while live.len() < parallel
            && let Some(plan) = waiting.pop_front()
        {
            live.push((plan, Live::start(plan)?));
        }
        let mut going = Vec::with_capacity(live.len());
        for (plan, mut run) in live {
            if !run.poll()? {
                going.push((plan, run));
                continue;
            }
            done += 1;
            let last = super::run::metrics(&plan.run_dir())?.into_iter().rfind(|line| line["kind"] == "eval").unwrap_or_default();
            let value = |name: &str| last.get(name).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
            eprintln!(
                "{done:>3} of {}  {:<9} lr {:<6e} seed {}  hard {:.3}  easy {:.3}  samples {:.0}  rows {:.0}  updates {:.0}  {:.0} s ({:.0} s in all)",
                plans.len(),
                plan.arm.name(),
                plan.lr,
                plan.seed,
                value("eval/pass@1/hard"),
                value("eval/pass@1/easy"),
                value("ada/samples_total"),
                value("ada/rows_total"),
                value("ada/updates_total"),
                run.elapsed().as_secs_f64(),
                started.elapsed().as_secs_f64(),
            );
        }
        live = going;
        if interrupted() {
            return Err(DemoError::Interrupted);
        }
        std::thread::sleep(GLANCE);
    }
    let runs: Vec<report::Arm> = plans
        .iter()
        .map(|plan| report::Arm { name: plan.arm.name().to_owned(), seed: plan.seed, lr: plan.lr, run_dir: plan.run_dir() })
        .collect();
    let page: PathBuf = args.out.join("comparison.html");
    let table = report::write_comparison(&runs, &page).map_err(|e| DemoError::Report(e.to_string()))?;
    Ok(format!("{table}\nThe page: {}", page.display()))
}
