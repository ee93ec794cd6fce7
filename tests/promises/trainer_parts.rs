//! Parts of the trainer by hand: the order of the data, adapters, pass@k, the configuration, and files that are cut back.

use std::path::Path;

use adaroll::model::Dtype;
use adaroll::model::params::{Param, Params};
use adaroll::ops::TrainOps;
use adaroll::ops::cpu::CpuOps;
use adaroll::trainer::data::Data;
use adaroll::trainer::evaluate::pass_at_k;
use adaroll::trainer::journal::{Journal, Numbers};
use adaroll::trainer::lora::Lora;
use adaroll::trainer::settings::{self, Settings};

fn data(text: &str, shuffle: bool) -> Result<Data, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    std::fs::write(&path, text).unwrap();
    Data::read(&path, 5, shuffle).map_err(|e| e.to_string())
}

#[test]
fn every_pass_takes_every_line_once_in_an_order_of_its_own() {
    let text: String = (0..50).map(|i| format!("{{\"text\": \"p{i}\", \"reward\": {{\"kind\": \"pull\"}}}}\n")).collect();
    let mut data = data(&text, true).unwrap();
    let mut pass = |first: u64| -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < 50 {
            ids.extend(data.take(first + ids.len() as u64, 7).iter().map(|line| line.id.clone()));
        }
        ids
    };
    let (one, two, again) = (pass(0), pass(50), pass(0));
    assert_eq!(one, again, "a pure function of seed and pass");
    assert_ne!(one, two);
    for mut ids in [one, two] {
        assert_eq!(ids.len(), 50, "no step reaches into the next pass");
        ids.sort_by_key(|id| id.parse::<u32>().unwrap());
        assert!(ids.iter().enumerate().all(|(i, id)| *id == i.to_string()));
    }
}

#[test]
fn a_bad_line_is_named() {
    for (text, says) in [
        ("{\"text\": \"a\"}\nnonsense\n", ":2: is no JSON object"),
        ("{\"id\": \"x\", \"text\": \"a\"}\n\n{\"id\": \"x\", \"text\": \"b\"}\n", ":3: has the id \"x\" of line 1"),
        ("{\"text\": \"a\", \"token_ids\": [1]}\n", ":1: has 2 of `messages`, `text` and `token_ids`"),
        ("{\"token_ids\": \"a\"}\n", ":1: `token_ids` must be a list of token ids"),
        ("\n", "holds no lines"),
    ] {
        let refused = data(text, false).unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn pass_at_k_is_the_share_of_k_subsets_with_a_right_answer() {
    assert_eq!(pass_at_k(4, 0, 1), 0.0);
    assert_eq!(pass_at_k(4, 1, 1), 0.25);
    assert!((pass_at_k(4, 2, 2) - (1.0 - 1.0 / 6.0)).abs() < 1e-12, "one of the six pairs has no right answer");
    assert_eq!(pass_at_k(4, 1, 4), 1.0);
    assert_eq!(pass_at_k(10, 10, 3), 1.0);
}

/// The adapters' gradients are those of `<G, W + s B A>`, by finite differences in f64.
#[test]
fn adapters_merge_and_their_gradients_are_those_of_the_merged_weights() {
    let (outputs, inputs, rank) = (5, 19, 3);
    let value = |i: usize, k: f32| (i as f32 * 0.37 + k).sin() * 0.5;
    let name = "model.layers.0.self_attn.q_proj.weight".to_owned();
    let params = |k: f32| {
        Params::of(vec![Param {
            name: name.clone(),
            shape: vec![outputs, inputs],
            values: (0..outputs * inputs).map(|i| value(i, k)).collect(),
        }])
    };
    let (base, slope) = (params(0.0), params(2.0));
    let settings = settings::Lora { rank, alpha: 6.0, targets: vec!["q_proj".into()] };
    let (lora, mut adapters) = Lora::new(&settings, &base, 9).unwrap();
    let mut ops = CpuOps::new(2).unwrap();
    let merged = ops.rounded(lora.slab(&base, &adapters, 0), inputs, Dtype::F32);
    let bytes: Vec<u8> = base.entries[0].values.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(merged, bytes, "B starts at zero: the model is unchanged");
    adapters.entries[1].values.iter_mut().enumerate().for_each(|(i, v)| *v = value(i, 1.0));
    let mut gradients = adapters.zeros_like();
    lora.gradients(&mut ops, &adapters, &slope, &mut gradients);
    let loss = |adapters: &Params| -> f64 {
        let (a, b) = (&adapters.entries[0].values, &adapters.entries[1].values);
        let mut sum = 0.0;
        for o in 0..outputs {
            for i in 0..inputs {
                let product: f64 = (0..rank).map(|r| f64::from(b[o * rank + r]) * f64::from(a[r * inputs + i])).sum();
                sum += f64::from(slope.entries[0].values[o * inputs + i]) * 2.0 * product;
            }
        }
        sum
    };
    for part in 0..2 {
        for i in 0..adapters.entries[part].values.len() {
            let mut moved = adapters.clone();
            moved.entries[part].values[i] += 0.25;
            let difference = (loss(&moved) - loss(&adapters)) / 0.25;
            let got = f64::from(gradients.entries[part].values[i]);
            assert!((difference - got).abs() < 1e-5, "{} {i}: {got}, {difference}", adapters.entries[part].name);
        }
    }
    let refused = Lora::new(&settings::Lora { targets: vec!["w1".into()], ..settings }, &base, 9).unwrap_err();
    assert!(refused.contains("lora.targets") && refused.contains("q_proj"), "{refused}");
}

#[test]
fn the_shipped_configurations_are_read_and_the_first_lists_every_key() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("server-config/train-gsm8k.toml");
    Settings::load(Some(&path), &[]).unwrap();
    let written: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    let known = toml::Table::try_from(Settings::default()).unwrap();
    for (section, keys) in &known {
        for key in keys.as_table().unwrap().keys() {
            assert!(written.get(section).and_then(|s| s.get(key)).is_some(), "{section}.{key} is not in {}", path.display());
        }
    }
    for (set, says) in [
        ("run.step=3", "step"),
        ("optimizer.lr=fast", "optimizer.lr"),
        ("loss.clip_low=-1", "loss.clip_low"),
        ("rollout.strategy.budget=9", "rollout.strategy.budget"),
        ("checkpoint.every=0", "checkpoint.every"),
        ("lr", "section.key=value"),
    ] {
        let refused = Settings::load(Some(&path), &[set.to_owned()]).unwrap_err().to_string();
        assert!(refused.contains(says), "{set}: {refused}");
    }
    let set =
        Settings::load(Some(&path), &["optimizer.lr=0.5".into(), "run.name=other".into(), "rollout.sampling.max_tokens=7".into()]).unwrap();
    assert_eq!((set.optimizer.lr, set.run.name.as_str(), set.rollout.sampling["max_tokens"].as_u64()), (0.5, "other", Some(7)));
}

#[test]
fn a_log_is_cut_back_and_never_grown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    let mut journal = Journal::open(&path, 0).unwrap();
    let line = |step: u64| {
        let mut numbers = Numbers::new(step, "train");
        numbers.put("a", 0.1);
        numbers.put("nothing", f64::NAN);
        numbers
    };
    journal.append(&line(1)).unwrap();
    let kept = journal.sync().unwrap();
    journal.append(&line(2)).unwrap();
    drop(journal);
    let mut journal = Journal::open(&path, kept).unwrap();
    journal.append(&line(3)).unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "{\"step\":1,\"kind\":\"train\",\"a\":0.1}\n{\"step\":3,\"kind\":\"train\",\"a\":0.1}\n"
    );
    assert!(Journal::open(&path, 1000).unwrap_err().to_string().contains("cut by somebody else"));
}
