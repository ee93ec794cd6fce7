//! The parts of an update: where they are cut, that they are summed apart and added in order, and that their number belongs to a run while the place
//! where they are computed does not.

use adaroll::model::backward::{PackedSequence, Recompute};
use adaroll::model::params::Params;
use adaroll::model::{Checkpoint, Dtype, ModelConfig};
use adaroll::ops::TrainOps;
use adaroll::ops::cpu::CpuOps;
use adaroll::trainer::batch::parts;
use adaroll::trainer::learner::{Learn, Learner, Plan};
use adaroll::trainer::lora::Lora;
use adaroll::trainer::optimizer::{Adamw, AdamwSettings};
use adaroll::trainer::part::{self, Objective, Sample};
use adaroll::trainer::run::TrainError;
use adaroll::trainer::settings::{self, Settings};
use proptest::prelude::*;

use crate::sft::{small, train, weights};
use crate::tiny_model::{TinyModel, tiny_model};

#[test]
fn rows_are_cut_where_the_tokens_before_come_nearest_to_a_parts_share() {
    assert_eq!(parts(&[5, 5, 5, 5], 2), [0..2, 2..4]);
    assert_eq!(parts(&[9, 1, 1, 1], 2), [0..1, 1..4]);
    assert_eq!(parts(&[1, 1, 1, 9], 2), [0..3, 3..4]);
    assert_eq!(parts(&[4, 4, 4], 2), [0..1, 1..3], "the earlier of two cuts that are as good");
    assert_eq!(parts(&[100, 1, 1], 3), [0..1, 1..2, 2..3], "every part has a row");
    assert_eq!(parts(&[1, 1, 100], 3), [0..1, 1..2, 2..3]);
    assert_eq!(parts(&[7, 7], 3), [0..1, 1..2, 2..2], "fewer rows than parts");
    assert_eq!(parts(&[], 2), [0..0, 0..0]);
    assert_eq!(parts(&[3, 1, 2], 1), vec![0..3]);
}

proptest! {
    #[test]
    fn every_row_is_in_one_part_and_none_is_far_from_its_share(
        tokens in prop::collection::vec(1usize..200, 0..40),
        count in 1usize..9,
    ) {
        let cuts = parts(&tokens, count);
        prop_assert_eq!(cuts.len(), count);
        let mut next = 0;
        for cut in &cuts {
            prop_assert_eq!(cut.start, next);
            prop_assert!(cut.end >= cut.start && (cut.end > cut.start || tokens.len() < count));
            next = cut.end;
        }
        prop_assert_eq!(next, tokens.len());
        // Where no row is longer than half a share, every part is within one row of its share.
        let (all, most) = (tokens.iter().sum::<usize>(), tokens.iter().max().copied().unwrap_or(0));
        if 2 * most * count <= all {
            for cut in cuts {
                let sum: usize = tokens[cut].iter().sum();
                prop_assert!((sum * count).abs_diff(all) <= most * count, "{} of {}", sum, all);
            }
        }
    }
}

const SETTINGS: AdamwSettings = AdamwSettings { betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 };
const LR: f64 = 1e-2;

fn learner(config: &ModelConfig, base: &Params, rank: usize, parts: usize) -> Learner<CpuOps> {
    let lora = settings::Lora { rank, alpha: 8.0, ..settings::Lora::default() };
    let plan = Plan {
        config,
        dtype: Dtype::F32,
        recompute: Recompute::None,
        optimizer: SETTINGS,
        clip_norm: f64::INFINITY,
        lora: &lora,
        seed: 5,
        rows: 0,
        parts,
    };
    Learner::new(CpuOps::new(2).unwrap(), base, &plan).unwrap()
}

fn bits(params: &Params) -> Vec<u32> {
    params.entries.iter().flat_map(|p| &p.values).map(|v| v.to_bits()).collect()
}

/// One update of three parts, beside the same by hand: a gradient of each part that starts from zero, sums of two in f32, and AdamW.
#[test]
fn parts_are_summed_apart_and_added_in_order() {
    for rank in [0, 3] {
        let dir = tempfile::tempdir().unwrap();
        let config = tiny_model(dir.path(), &TinyModel::default());
        let base = Params::from_source(&config, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
        let row = |n: u32| {
            let token_ids = (0..n).map(|i| (i * i + 3 * n) % config.vocab_size as u32).collect();
            Sample::demonstration(PackedSequence { token_ids, from: 2 })
        };
        let rows: Vec<Sample> = [9, 14, 7, 11, 12, 5].map(row).to_vec();
        let objective = Objective::Sft { tokens: rows.iter().map(|row| row.sequence.token_ids.len() - 2).sum() };
        let cuts = parts(&part::lengths(&rows), 3);

        let whole = |count: usize| {
            let mut learner = learner(&config, &base, rank, count);
            // What an update leaves behind does not matter to the next one.
            for _ in 0..2 {
                learner.zero_gradients();
                for cut in parts(&part::lengths(&rows), count) {
                    part::train(&mut learner, &rows[cut], &objective, 1.0, 20).unwrap();
                    learner.end_part();
                }
                learner.update(LR).unwrap().unwrap();
            }
            learner.tensors().unwrap()
        };
        let got = whole(3);

        let mut ops = CpuOps::new(1).unwrap();
        let mut one = learner(&config, &base, rank, 1);
        let lora = (rank > 0).then(|| {
            let settings = settings::Lora { rank, alpha: 8.0, ..settings::Lora::default() };
            Lora::new(&settings, &base, 5).unwrap()
        });
        let mut trained = lora.as_ref().map_or_else(|| base.clone(), |(_, values)| values.clone());
        let mut adamw = Adamw::new(&trained, SETTINGS);
        for step in 1..=2 {
            let mut sum: Option<Params> = None;
            for cut in cuts.clone() {
                one.zero_gradients();
                part::train(&mut one, &rows[cut], &objective, 1.0, 1000).unwrap();
                let dense = one.gradients().unwrap();
                let gradients = match &lora {
                    None => dense,
                    Some((lora, _)) => {
                        let mut gradients = trained.zeros_like();
                        lora.gradients(&mut ops, &trained, &dense, &mut gradients);
                        gradients
                    }
                };
                match &mut sum {
                    None => sum = Some(gradients),
                    Some(sum) => {
                        for (to, from) in sum.entries.iter_mut().zip(&gradients.entries) {
                            to.values.iter_mut().zip(&from.values).for_each(|(to, from)| *to += from);
                        }
                    }
                }
            }
            adamw.step(&mut ops, &mut trained, &sum.unwrap(), LR);
            let tensors =
                adaroll::trainer::checkpoint::Tensors { master: trained.clone(), first: adamw.m().clone(), second: adamw.v().clone() };
            one.restore(&tensors, step).unwrap();
        }
        assert!(bits(&got.first) == bits(adamw.m()) && bits(&got.second) == bits(adamw.v()), "rank {rank}: the moments");
        assert!(bits(&got.master) == bits(&trained), "rank {rank}: the parameters");

        // The twin: one chain over all rows, and two parts, have other bits.
        for count in [1, 2] {
            assert!(bits(&whole(count).first) != bits(&got.first), "rank {rank}: {count} parts");
        }
        assert!(ops.sum_of_squares(&got.first.entries[0].values) > 0.0, "something is learned");
    }
}

#[test]
fn the_number_of_parts_belongs_to_a_run_and_cuts_and_threads_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let settings = small(dir.path());
    let run = |name: &str, change: &dyn Fn(&mut Settings)| {
        let mut settings = settings.clone();
        settings.run.dir = dir.path().join(name);
        change(&mut settings);
        train(&settings, None)
    };
    let two = |s: &mut Settings| s.update.parts = 2;
    let (whole, lines) = run("two", &two).unwrap();
    let (one, lines_of_one) = run("one", &|_| {}).unwrap();
    assert_ne!(weights(&whole), weights(&one), "the parts are added apart");
    // The loss is the same but for the order of its sum.
    for (two, one) in lines.iter().zip(&lines_of_one).take(1) {
        let loss = |numbers: &adaroll::trainer::journal::Numbers| numbers.0["loss"].as_f64().unwrap();
        assert!((loss(two) - loss(one)).abs() < 1e-9, "{} {}", loss(two), loss(one));
    }
    let cut = run("cut", &|s| {
        two(s);
        (s.update.micro_batch_tokens, s.model.threads) = (40, 2);
    });
    assert_eq!(weights(&cut.unwrap().0), weights(&whole));

    let refused = run("two", &|s| {
        s.run.steps = 5;
        s.update.parts = 3;
    });
    match refused {
        Err(TrainError::Setting(problem)) => assert!(problem.contains("another update.parts"), "{problem}"),
        other => panic!("{:?}", other.map(|(summary, _)| summary)),
    }
    // Where the parts are computed is free.
    run("two", &|s| {
        two(s);
        s.parallel.gpus = vec![0];
    })
    .unwrap();
}

#[test]
fn ranks_that_cannot_be_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let good = Settings { model: settings::Model { device: "auto".into(), ..small(dir.path()).model }, ..small(dir.path()) };
    let refused = |change: &dyn Fn(&mut Settings)| {
        let mut settings = good.clone();
        change(&mut settings);
        settings.check().unwrap_err().to_string()
    };
    let ranks = |s: &mut Settings| (s.update.parts, s.parallel.ranks) = (2, 2);
    for (change, says) in [
        (&(|s: &mut Settings| s.update.parts = 0) as &dyn Fn(&mut Settings), "update.parts is 0"),
        (&|s| s.parallel.ranks = 2, "parallel.ranks is 2, and update.parts is 1"),
        (&|s| (s.update.parts, s.parallel.ranks) = (4, 2), "parallel.ranks is 2, and update.parts is 4"),
        (&|s| (s.update.parts, s.parallel.ranks) = (2, 0), "parallel.ranks is 0"),
        (
            &|s| {
                ranks(s);
                s.parallel.gpus = vec![0];
            },
            "parallel.gpus lists 1 GPUs for 2 ranks",
        ),
        (
            &|s| {
                ranks(s);
                s.model.device = "cpu".into();
            },
            "parallel.ranks needs GPUs",
        ),
        (
            &|s| {
                ranks(s);
                s.model.device = "cuda:1".into();
            },
            "model.device names one GPU",
        ),
    ] {
        let refused = refused(change);
        assert!(refused.starts_with(says), "{refused}");
    }
    let mut two = good.clone();
    ranks(&mut two);
    two.check().unwrap();
    assert_eq!([0, 1].map(|rank| two.of_rank(rank).model.device), ["cuda:0", "cuda:1"]);
    two.parallel.gpus = vec![3, 1];
    assert_eq!([0, 1].map(|rank| two.of_rank(rank).model.device), ["cuda:3", "cuda:1"]);
    assert_eq!(good.of_rank(0), good, "one rank computes where model.device says");
}
