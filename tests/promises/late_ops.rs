//! The CPU operations as a device that answers one step late would offer them. What such a device would not have ready, or has no more, is
//! not to be had here either: a promised token outside of the step after the one that drew it, a third open step, an answer at once, weights
//! that change under an open step.

use std::collections::VecDeque;
use std::path::Path;

use adaroll::commands::open::EngineOptions;
use adaroll::engine::{EngineSettings, LocalEngine};
use adaroll::model::Model;
use adaroll::ops::cpu::{CpuOps, Matrix, Tensor};
use adaroll::ops::{Ask, Draw, Drawn, Ops, PROMISED};

use crate::over_ops::{Answers, Hooks, Over};

pub type Delayed = Over<Delay>;

/// Is shown the tokens of a step, promises and all, before the step computes anything.
type OnStep = Box<dyn FnMut(&[u32]) + Send>;

#[derive(Default)]
pub struct Delay {
    on_step: Option<OnStep>,
    /// The twin draws every token but the first at the position of the one before.
    position_too_low: bool,
    /// Answers of the steps that are open, oldest first.
    open: VecDeque<Answers>,
    /// What the asks of the last step drew, until the next step has read it.
    drew: Option<Vec<Option<u32>>>,
    settled: bool,
    steps: u32,
    /// The step that fails, and what is said then.
    fails: Option<(u32, &'static str)>,
}

/// The CPU operations, one step late.
pub fn delayed(ops: CpuOps) -> Delayed {
    Over(ops, Delay::default())
}

impl Hooks for Delay {
    fn failure(&self) -> Option<String> {
        self.fails.filter(|(step, _)| self.steps >= *step).map(|(_, why)| why.to_owned())
    }

    fn embed(&mut self, cpu: &mut CpuOps, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        if let Some(on_step) = &mut self.on_step {
            on_step(ids);
        }
        self.settled = false;
        self.steps += 1;
        let drew = self.drew.take();
        let token = |&id: &u32| match id & PROMISED {
            0 => id,
            _ => drew.as_ref().expect("a promise in a step that follows no asks")[(id & !PROMISED) as usize].expect("a promise of no draw"),
        };
        cpu.embed(table, &ids.iter().map(token).collect::<Vec<_>>(), out);
    }

    fn sample(&mut self, _: &mut CpuOps, _: &Tensor, _: &[Draw<'_>], _: &mut Answers) {
        panic!("it does not answer at once");
    }

    fn logprobs_of(&mut self, _: &mut CpuOps, _: &Tensor, _: &[(usize, u32)], _: f32, _: &mut Answers) {
        panic!("it does not answer at once");
    }

    fn adopts(&mut self) {
        assert!(self.open.is_empty() && self.settled, "the weights change under a step that is open");
    }

    fn settle(&mut self) {
        self.settled = true;
    }

    fn is_late(&self) -> bool {
        true
    }

    fn start(&mut self, cpu: &mut CpuOps, logits: &Tensor, asks: &[Ask<'_>]) {
        assert!(self.open.len() < 2, "two steps are open already");
        assert!(self.drew.is_none(), "no step has run since the last asks");
        let (mut answers, mut one) = (Answers::new(), Answers::new());
        for ask in asks {
            match ask {
                Ask::Draw(draw) => {
                    let position = draw.position - u32::from(self.position_too_low && draw.position > 0);
                    cpu.sample(logits, &[Draw { position, ..draw.clone() }], &mut one);
                }
                Ask::Token { row, token, temperature } => cpu.logprobs_of(logits, &[(*row, *token)], *temperature, &mut one),
            }
            answers.append(&mut one);
        }
        // What is drawn from logits that are not finite is any token.
        let token = |(ask, answer): (&Ask<'_>, &Result<_, _>)| match ask {
            Ask::Draw(_) => Some(answer.map_or(0, |drawn: Drawn| drawn.token)),
            Ask::Token { .. } => None,
        };
        self.drew = Some(asks.iter().zip(&answers).map(token).collect());
        self.open.push_back(answers);
    }

    fn finish(&mut self, out: &mut Answers) {
        *out = self.open.pop_front().expect("no step is open");
        if self.failure().is_some() {
            out.fill(Ok(Drawn { token: 0, logprob: 0.0, logprob_raw: 0.0 }));
        }
    }
}

fn start(dir: &Path, options: &EngineOptions, delay: Delay) -> LocalEngine {
    let ops = Over(CpuOps::with_isa(options.threads, options.isa).unwrap(), delay);
    let packer = delayed(CpuOps::new(1).unwrap());
    let model = Model::load(&ops, dir, |_, _| {}).unwrap();
    LocalEngine::start_with(ops, Some(packer), model, &options.settings).unwrap()
}

/// An engine on it.
pub fn late_engine(dir: &Path, options: &EngineOptions) -> LocalEngine {
    start(dir, options, Delay::default())
}

/// The same, with a look at the tokens of each step before it runs.
pub fn hooked_late_engine(dir: &Path, settings: &EngineSettings, on_step: impl FnMut(&[u32]) + Send + 'static) -> LocalEngine {
    let options = EngineOptions { threads: 1, settings: settings.clone(), ..EngineOptions::default() };
    start(dir, &options, Delay { on_step: Some(Box::new(on_step)), ..Delay::default() })
}

/// The same on a device that fails in this step.
pub fn failing_late_engine(dir: &Path, settings: &EngineSettings, step: u32, why: &'static str) -> LocalEngine {
    let options = EngineOptions { threads: 1, settings: settings.clone(), ..EngineOptions::default() };
    start(dir, &options, Delay { fails: Some((step, why)), ..Delay::default() })
}

/// The twin, which forgets that a token is in flight when it draws the next one.
pub fn forgetful_engine(dir: &Path, options: &EngineOptions) -> LocalEngine {
    start(dir, options, Delay { position_too_low: true, ..Delay::default() })
}
