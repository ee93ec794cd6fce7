//! No block crosses versions. Two engines differ in one call alone: the one that keeps its blocks after the weights have changed finds the
//! old prefix and draws wrong tokens; the one that names prefixes anew draws those of an engine that never had other weights.

use adaroll::engine::RequestId;
use adaroll::engine::blocks::Blocks;
use adaroll::engine::scheduler::{Limits, Outcome, Purpose, Scheduler};
use adaroll::model::forward::Forward;
use adaroll::model::weights::heads;
use adaroll::model::{Checkpoint, Model, Weights};
use adaroll::ops::cpu::{CpuOps, KvCache};
use adaroll::ops::{Batch, Draw, Filters, Ops};

use super::kit::folder;
use crate::tiny_model::TinyModel;

const BLOCKS: usize = 64;

/// The least that draws: a scheduler, a cache and the forward pass.
struct Machine {
    ops: CpuOps,
    model: Model<CpuOps>,
    forward: Forward<CpuOps>,
    cache: KvCache,
    scheduler: Scheduler,
    next: u64,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let dir = folder(&TinyModel { seed, ..TinyModel::default() });
        let ops = CpuOps::new(1).unwrap();
        let model = Model::load(&ops, dir.path(), |_, _| {}).unwrap();
        let forward = Forward::new(&ops, &model.config, 64, 8);
        let cache = ops.kv_cache(model.config.num_layers, BLOCKS, heads(&model.config));
        let scheduler = Scheduler::new(Limits { batch_tokens: 64, sequences: 8 }, Blocks::new(BLOCKS, true));
        Machine { ops, model, forward, cache, scheduler, next: 0 }
    }

    fn load(&mut self, seed: u64) {
        let dir = folder(&TinyModel { seed, ..TinyModel::default() });
        let checkpoint = Checkpoint::open(dir.path(), &self.model.config).unwrap();
        self.model.weights = Weights::load(&self.ops, &self.model.config, &checkpoint, |_, _| {}).unwrap();
    }

    /// The most likely `count` tokens after `prompt`.
    fn greedy(&mut self, prompt: &[u32], count: usize) -> Vec<u32> {
        let id = RequestId(self.next);
        self.next += 1;
        self.scheduler.add(id, prompt.into(), Purpose::Sample);
        self.go_on(id, count)
    }

    fn go_on(&mut self, id: RequestId, count: usize) -> Vec<u32> {
        let tokens = self.steps(id, count);
        self.scheduler.remove(id);
        self.scheduler.audit().unwrap();
        tokens
    }

    fn steps(&mut self, id: RequestId, count: usize) -> Vec<u32> {
        let (mut batch, mut outcomes, mut drawn, mut tokens) = (Batch::default(), Vec::new(), Vec::new(), Vec::new());
        while tokens.len() < count {
            let step = self.scheduler.schedule(&mut batch);
            self.ops.copy_blocks(&mut self.cache, &step.copies);
            let logits = self.forward.run(&mut self.ops, &self.model.weights, &batch, &mut self.cache);
            self.scheduler.complete(&step, &mut outcomes);
            for outcome in &outcomes {
                let Outcome::Draw { logits: row, .. } = outcome else { continue };
                let draw = Draw { row: *row, filters: Filters::plain(0.0), key: [0, 0], position: 0, sample: 0 };
                self.ops.sample(logits, &[draw], &mut drawn);
                let token = drawn[0].unwrap().token;
                self.scheduler.push(id, token);
                tokens.push(token);
            }
        }
        tokens
    }
}

fn prompt() -> Vec<u32> {
    (0..40).map(|i| (i * 11 + 5) % 64).collect()
}

#[test]
fn without_version_keys_a_push_would_leave_wrong_tokens() {
    let right = Machine::new(2).greedy(&prompt(), 24);
    let mut ours = Machine::new(1);
    let mut twin = Machine::new(1);
    let old = ours.greedy(&prompt(), 24);
    assert_eq!(twin.greedy(&prompt(), 24), old);
    assert_ne!(old, right, "the two versions differ on this prompt");
    for machine in [&mut ours, &mut twin] {
        machine.load(2);
    }
    ours.scheduler.new_version();
    let cached = |machine: &Machine| machine.scheduler.counters.prompt_cached;
    let found = cached(&ours);
    assert_eq!(ours.greedy(&prompt(), 24), right, "ours draws as if there had never been other weights");
    assert_eq!(cached(&ours), found, "and finds nothing of the old ones");
    assert_ne!(twin.greedy(&prompt(), 24), right, "the twin goes on from blocks of the old weights");
    assert!(cached(&twin) > found);
    // What is computed under the new weights is found again.
    assert_eq!(ours.greedy(&prompt(), 24), right);
    assert!(cached(&ours) > found);
}

#[test]
fn a_sequence_that_runs_is_computed_again_from_all_its_tokens() {
    let start = |machine: &mut Machine| {
        let id = RequestId(77);
        machine.scheduler.add(id, prompt().into(), Purpose::Sample);
        (id, machine.steps(id, 10))
    };
    let (mut ours, mut twin) = (Machine::new(1), Machine::new(1));
    let ((id, tokens), _) = (start(&mut ours), start(&mut twin));
    ours.load(2);
    ours.scheduler.new_version();
    ours.scheduler.audit().unwrap();
    assert_eq!((ours.scheduler.running(), ours.scheduler.computed_tokens()), (0, 0));
    let rest = ours.go_on(id, 12);
    let all = [prompt(), tokens].concat();
    assert_eq!(rest, Machine::new(2).greedy(&all, 12), "as if the new weights had read every token");
    // The twin changes the weights and keeps what was computed.
    twin.load(2);
    assert_ne!(twin.go_on(id, 12), rest);
}
