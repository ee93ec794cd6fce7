//! The demonstration's task: answers are right, problems are a pure function of (seed, index), the evaluation is held out, and the model's folder says
//! in text exactly what it says in tokens.

use std::collections::{HashMap, HashSet};

use adaroll::demo::data::{self, Form};
use adaroll::demo::task::{ANSWER_TOKENS, DIGITS, EOS, HELD_OUT, Mix, Op, Problem, Stream, held_out};
use adaroll::demo::{init, model, random};
use adaroll::model::params::Params;
use adaroll::model::tokenizer::Tokenizer;
use adaroll::model::{Dtype, Model, ModelConfig, SafetensorsFile, TensorSource, TensorView, write_safetensors};
use adaroll::ops::cpu::CpuOps;
use adaroll::reward::{Spec, Verdict};

#[test]
fn answers_are_those_of_the_definition() {
    let x = [3, 1, 4, 1, 9];
    let by_hand = [
        (Op::Copy, [3, 1, 4, 1, 9]),
        (Op::Comp, [6, 8, 5, 8, 0]),
        (Op::Inc, [4, 2, 5, 2, 0]),
        (Op::Dbl, [6, 2, 8, 2, 8]),
        (Op::Sort, [1, 1, 3, 4, 9]),
        (Op::SortD, [9, 4, 3, 1, 1]),
    ];
    for (op, y) in by_hand {
        assert_eq!(op.answer(x), y, "{}", op.name());
    }
    let problem = Problem::new("p".into(), Op::SortD, [0, 7, 0, 9, 2], Op::SortD.answer([0, 7, 0, 9, 2]));
    assert_eq!(problem.prompt_ids, [20, 0, 7, 0, 9, 2, 10]);
    assert_eq!(problem.prompt_text, "sortd 0 7 0 9 2 >");
    assert_eq!(problem.answer_ids, [9, 7, 2, 0, 0, 11]);
    assert_eq!(problem.answer_text, "9 7 2 0 0");
    assert_eq!(problem.slice, "hard");
    assert_eq!(Op::ALL.map(Op::token), [12, 13, 14, 15, 18, 20]);
}

#[test]
fn a_problem_depends_on_seed_and_index_alone() {
    let stream = Stream::new(7, Mix::TRAIN);
    let forward: Vec<Problem> = (0..300).map(|i| stream.prompt(i)).collect();
    let backward: Vec<Problem> = (0..300).rev().map(|i| Stream::new(7, Mix::TRAIN).prompt(i)).collect();
    assert!(forward.iter().eq(backward.iter().rev()));
    // What was written down once stays: the data of every run of the demonstration is made of it.
    assert_eq!(forward[0].prompt_text, "dbl 1 5 9 6 4 >");
    assert_eq!(stream.prompt(u64::MAX).prompt_text, "inc 6 1 7 6 4 >");
    // And seeds and indices do matter.
    let other = Stream::new(7 + (1 << 32), Mix::TRAIN);
    assert!((0..300).filter(|&i| other.prompt(i).digits == forward[i as usize].digits).count() < 3);
    assert!(forward.windows(2).filter(|two| two[0].digits == two[1].digits).count() < 3);
    assert_eq!(forward.iter().map(|p| &p.id).collect::<HashSet<_>>().len(), 300);
}

#[test]
fn a_mix_asks_for_its_shares_and_digits_are_uniform() {
    let n = 40_000;
    let within = |seen: f64, share: f64, n: f64| (seen - share).abs() < 4.5 * (share * (1.0 - share) / n).sqrt();
    for (mix, shares) in [(Mix::TRAIN, [0.22, 0.22, 0.22, 0.215, 0.0625, 0.0625]), (Mix::WARM_UP, [0.125, 0.125, 0.125, 0.125, 0.25, 0.25])]
    {
        let stream = Stream::new(3, mix);
        let problems: Vec<Problem> = (0..n).map(|i| stream.prompt(i)).collect();
        for (op, share) in Op::ALL.into_iter().zip(shares) {
            let seen = problems.iter().filter(|p| p.op == op).count() as f64 / n as f64;
            assert!(within(seen, share, n as f64), "{}: {seen} and not {share}", op.name());
        }
        for place in 0..DIGITS {
            for digit in 0..10 {
                let seen = problems.iter().filter(|p| p.digits[place] == digit).count() as f64 / n as f64;
                assert!(within(seen, 0.1, n as f64), "digit {digit} at {place}: {seen}");
            }
        }
        // Noise keeps a digit right with probability .5 + .5 / 10, and touches hard problems of the warm-up only.
        for slice in ["easy", "hard"] {
            let of_slice: Vec<&Problem> = problems.iter().filter(|p| p.slice == slice).collect();
            let right =
                |p: &&&Problem| p.answer_ids[..DIGITS].iter().zip(p.op.answer(p.digits)).filter(|(a, b)| **a == u32::from(*b)).count();
            let digits = (of_slice.len() * DIGITS) as f64;
            let seen = of_slice.iter().map(|p| right(&p)).sum::<usize>() as f64 / digits;
            match (mix, slice) {
                (Mix::WARM_UP, "hard") => assert!(within(seen, 0.55, digits), "{seen}"),
                _ => assert_eq!(seen, 1.0),
            }
        }
    }
}

#[test]
fn the_evaluation_is_fixed_balanced_and_held_out() {
    let fixed = held_out();
    assert_eq!(fixed, held_out());
    assert_eq!(fixed.len(), HELD_OUT);
    let mut counts: HashMap<Op, usize> = HashMap::new();
    fixed.iter().for_each(|p| *counts.entry(p.op).or_default() += 1);
    assert!(Op::EASY.iter().all(|op| counts[op] == 64) && Op::HARD.iter().all(|op| counts[op] == 128));
    let prompts: HashSet<&[u32]> = fixed.iter().map(|p| p.prompt_ids.as_slice()).collect();
    assert_eq!(prompts.len(), HELD_OUT, "all different");
    // Half of 60,000 problems are hard, of 200,000 that there are: without care they would meet about 36 of the 256 here.
    let stream = Stream::new(0, Mix::WARM_UP);
    let streamed: HashSet<Vec<u32>> = (0..60_000).map(|i| stream.prompt(i).prompt_ids).collect();
    assert!(prompts.iter().all(|prompt| !streamed.contains(*prompt)));
    let unheld = |i: u64| {
        let mut words = random::Words::new(9, random::Purpose::Problem, i);
        let op = Op::HARD[words.below(2) as usize];
        Problem::new(String::new(), op, [0; DIGITS].map(|_: u8| words.below(10) as u8), [0; DIGITS]).prompt_ids
    };
    assert!((0..60_000).any(|i| prompts.contains(unheld(i).as_slice())), "the twin that keeps nothing apart");
}

#[test]
fn lines_of_data_are_what_the_server_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.jsonl");
    let stream = Stream::new(1, Mix::TRAIN);
    let problems: Vec<Problem> = (0..20).map(|i| stream.prompt(i)).collect();
    for form in [Form::Text, Form::TokenIds] {
        data::write(&path, problems.iter().map(|p| data::prompt_line(p, form))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 20);
        for (line, problem) in text.lines().zip(&problems) {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["id"], problem.id);
            assert_eq!(line["slice"], problem.slice);
            assert_eq!(line["answer"], problem.answer_text);
            match form {
                Form::Text => assert_eq!(line["text"], problem.prompt_text),
                Form::TokenIds => assert_eq!(line["token_ids"], serde_json::json!(problem.prompt_ids)),
            }
            let verifier = Spec::read(&line["reward"]).unwrap().compile().unwrap();
            assert_eq!(verifier.judge(&problem.answer_text).verdict, Verdict::Scored(1.0));
            let mut wrong = problem.op.answer(problem.digits);
            wrong[4] = (wrong[4] + 1) % 10;
            let wrong = Problem::new(String::new(), problem.op, problem.digits, wrong).answer_text;
            assert_eq!(verifier.judge(&wrong).verdict, Verdict::Scored(0.0));
        }
    }
    let line = data::demonstration_line(&problems[0], Form::TokenIds);
    assert_eq!(line["answer_ids"], serde_json::json!(problems[0].answer_ids));
    assert_eq!(data::demonstration_line(&problems[0], Form::Text)["answer"], problems[0].answer_text);
    let nowhere = dir.path().join("none/train.jsonl");
    assert!(data::write(&nowhere, []).unwrap_err().to_string().contains("train.jsonl: cannot be written"));
}

fn folder() -> (tempfile::TempDir, Tokenizer) {
    let dir = tempfile::tempdir().unwrap();
    model::write_to(&dir.path().join("tiny")).unwrap();
    // Again over the first: the demonstration may be run twice into one folder.
    model::write_to(&dir.path().join("tiny")).unwrap();
    let tokenizer = Tokenizer::from_folder(&dir.path().join("tiny")).unwrap().unwrap();
    (dir, tokenizer)
}

#[test]
fn text_and_tokens_say_the_same() {
    let (_dir, tokenizer) = folder();
    assert_eq!(tokenizer.vocab_size(), 24);
    let stream = Stream::new(5, Mix::TRAIN);
    for problem in (0..200).map(|i| stream.prompt(i)).chain(held_out()) {
        for special in [false, true] {
            assert_eq!(tokenizer.encode(&problem.prompt_text, special).unwrap(), problem.prompt_ids);
        }
        assert_eq!(tokenizer.decode(&problem.prompt_ids, true).unwrap(), problem.prompt_text);
        assert_eq!(tokenizer.decode(&problem.answer_ids, true).unwrap(), problem.answer_text);
        let mut streamed = tokenizer.stream_decoder();
        for piece in problem.answer_ids.iter().filter_map(|&id| tokenizer.visible_piece(id)) {
            assert!(!streamed.push(piece), "no text of this tokenizer is ever taken back");
        }
        assert_eq!(streamed.text(), problem.answer_text);
    }
    assert_eq!(tokenizer.encode("sort 3 1 4 1 5 >", true).unwrap(), [18, 3, 1, 4, 1, 5, 10]);
    assert_eq!(tokenizer.encode("sort 31415>", true).unwrap(), [18, 3, 1, 4, 1, 5, 10], "digits are tokens of their own");
    assert!(tokenizer.encode("reverse 3 1 4 1 5 >", true).is_err(), "words that the model has never seen are refused");
    assert!(tokenizer.is_special(EOS) && tokenizer.token_id("<eos>") == Some(EOS));
}

/// The reward is 1 exactly if all six tokens are right. It reads text: no other six tokens may have the right text.
#[test]
fn only_the_right_tokens_have_the_right_text() {
    let (_dir, tokenizer) = folder();
    for problem in held_out().into_iter().take(8) {
        let verifier = Spec::read(&data::prompt_line(&problem, Form::Text)["reward"]).unwrap().compile().unwrap();
        let judge = |ids: &[u32]| verifier.judge(&tokenizer.decode(ids, true).unwrap()).verdict == Verdict::Scored(1.0);
        assert!(judge(&problem.answer_ids));
        for place in 0..ANSWER_TOKENS {
            for id in (0..24).filter(|&id| id != problem.answer_ids[place]) {
                let mut ids = problem.answer_ids.clone();
                ids[place] = id;
                // A sample ends at the first end token.
                let end = ids.iter().position(|&id| id == EOS).map_or(ids.len(), |at| at + 1);
                assert!(!judge(&ids[..end]), "token {id} at {place}");
            }
        }
    }
    // The twin: a token without text in the end's place is as good as the end.
    let problem = &held_out()[1];
    let ids = &problem.answer_ids[..DIGITS];
    assert_eq!(tokenizer.decode(ids, true).unwrap(), problem.answer_text);
}

#[test]
fn the_folder_is_a_model() {
    let (dir, tokenizer) = folder();
    let folder = dir.path().join("tiny");
    let config = ModelConfig::from_folder(&folder).unwrap();
    assert_eq!(config, ModelConfig::from_json(model::CONFIG).unwrap());
    assert_eq!(config.num_parameters(), 103_744);
    assert_eq!((config.rms_norm_eps, config.rope.theta, config.bos_token_id), (1e-6, 10_000.0, None));
    let ops = CpuOps::new(1).unwrap();
    let loaded = Model::load(&ops, &folder, |_, _| {}).unwrap();
    assert_eq!(loaded.stop_token_ids, [EOS]);
    assert_eq!(loaded.tokenizer.unwrap().vocab_size(), tokenizer.vocab_size());
    let file = SafetensorsFile::open(&folder.join("model.safetensors")).unwrap();
    assert!(file.tensors().all(|t| t.dtype == Dtype::F32));
    assert!(std::fs::read_dir(&folder).unwrap().count() == model::FILES.len(), "nothing is left over");
}

#[test]
fn first_parameters_have_their_spread_and_their_bytes() {
    let config = ModelConfig::from_json(model::CONFIG).unwrap();
    let initial = init::initial(&config, 0);
    for tensor in &initial.entries {
        let numbers = &tensor.values;
        let n = numbers.len() as f64;
        let mean = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = numbers.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        let expected = match tensor.name.as_str() {
            "model.embed_tokens.weight" => 1.0,
            name if name.ends_with("norm.weight") => {
                assert!(numbers.iter().all(|&x| x == 1.0));
                continue;
            }
            name if name.contains("o_proj") => 1.0 / 64.0 / 4.0,
            name if name.contains("down_proj") => 1.0 / 176.0 / 4.0,
            _ => 1.0 / 64.0,
        };
        assert!(mean.abs() < 4.0 * (expected / n).sqrt(), "{}: mean {mean}", tensor.name);
        // The variance of a variance of normal numbers is 2 / n.
        assert!((variance / expected - 1.0).abs() < 4.0 * (2.0 / n).sqrt(), "{}: variance {variance}", tensor.name);
    }
    assert_eq!(digest(&initial), "ce96eb31379ccefcb6d7213da87624ee");
    assert_ne!(digest(&init::initial(&config, 1)), digest(&initial));
}

fn views(params: &Params) -> Vec<TensorView<'_>> {
    params.entries.iter().map(|param| params.tensor(&param.name).unwrap()).collect()
}

/// The first half of BLAKE3 of the parameters as a safetensors file.
fn digest(initial: &Params) -> String {
    let mut bytes = Vec::new();
    write_safetensors(&mut bytes, &views(initial)).unwrap();
    blake3::hash(&bytes).to_hex()[..32].to_owned()
}

#[test]
fn what_is_written_as_safetensors_is_read_back() {
    let config = ModelConfig::from_json(model::CONFIG).unwrap();
    let initial = init::initial(&config, 2);
    let tensors = views(&initial);
    let mut bytes = Vec::new();
    write_safetensors(&mut bytes, &tensors).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(length % 8, 0, "the data is aligned");
    // By the format's own library, and by the project's reader.
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), tensors.len());
    for tensor in &tensors {
        let theirs = read.tensor(tensor.name).unwrap();
        assert_eq!((theirs.shape(), theirs.data(), theirs.dtype()), (tensor.shape.as_slice(), tensor.bytes, safetensors::Dtype::F32));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    for (ours, tensor) in file.tensors().zip(&tensors) {
        assert_eq!((ours.name, ours.bytes), (tensor.name, tensor.bytes));
    }
}
