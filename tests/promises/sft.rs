//! Fine-tuning does what it says: the loss of the answers alone, the same bytes however the work is cut, and a run that goes on as if it had never
//! stopped.

use std::path::Path;

use adaroll::demo::data::{self, Form, demonstration_line};
use adaroll::demo::task::{Mix, Stream, held_out};
use adaroll::demo::warm;
use adaroll::model::backward::{PackedSequence, TokenScore};
use adaroll::trainer::journal::Numbers;
use adaroll::trainer::policy::Policy;
use adaroll::trainer::run::{Summary, TrainError};
use adaroll::trainer::settings::{EvalKind, Objective, Settings};
use adaroll::trainer::sft;

/// Runs fine-tuning to its end; `stop_after` interrupts it after so many steps.
pub fn train(settings: &Settings, stop_after: Option<u64>) -> Result<(Summary, Vec<Numbers>), TrainError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (interrupt, interrupted) = tokio::sync::oneshot::channel::<()>();
    let (mut interrupt, mut seen) = (Some(interrupt), Vec::new());
    let mut observer = |numbers: &Numbers, state: &adaroll::trainer::checkpoint::State| {
        seen.push(numbers.clone());
        if stop_after == Some(state.step) {
            interrupt.take().map(|interrupt| interrupt.send(()));
        }
    };
    let interrupted = async move {
        if interrupted.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let summary = runtime.block_on(sft::run(settings, &mut observer, interrupted))?;
    Ok((summary, seen))
}

pub fn weights(summary: &Summary) -> Vec<u8> {
    std::fs::read(summary.model.join("model.safetensors")).unwrap()
}

/// Twenty demonstrations of the task and a configuration that trains on ten a step.
pub fn small(dir: &Path) -> Settings {
    warm::write_first(&dir.join("first")).unwrap();
    let mut settings = warm::settings(dir);
    settings.run.steps = 4;
    settings.rollout.prompts_per_step = 10;
    settings.data.path = dir.join("twenty.jsonl");
    settings.eval.every = 0;
    settings.model.threads = 1;
    let stream = Stream::new(3, Mix::TRAIN);
    data::write(&settings.data.path, (0..20).map(|i| demonstration_line(&stream.prompt(i), Form::TokenIds))).unwrap();
    settings
}

#[test]
fn the_objective_is_the_mean_over_the_batch() {
    let scores = [-1.0f32, -2.5, -0.5].map(|logprob| TokenScore { logprob, entropy: 1.0 });
    let (loss, slopes) = sft::objective(&scores, 8);
    assert_eq!(loss, 0.5);
    assert!(slopes.len() == 3 && slopes.iter().all(|s| (s.logprob, s.entropy) == (-0.125, 0.0)));
}

/// The loss falls by |gradient|^2 for each unit of a small step along the gradient: what is stepped on is the loss that is reported. With AdamW's first
/// step every parameter moves by lr against the sign of its gradient, so the loss falls by lr times the sum of |gradient|.
#[test]
fn one_update_lowers_the_loss_as_its_gradient_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = small(dir.path());
    settings.optimizer.clip_norm = 0.0;
    settings.optimizer.weight_decay = 0.0;
    let mut policy = Policy::load(&settings).unwrap();
    let rows: Vec<PackedSequence> = held_out()
        .iter()
        .take(16)
        .map(|p| PackedSequence { token_ids: [p.prompt_ids.as_slice(), &p.answer_ids].concat(), from: p.prompt_ids.len() })
        .collect();
    let lr = 1e-6;
    let before = sft::step(&mut policy, &rows, lr, 0).unwrap();
    let sum: f64 = policy.gradients().unwrap().entries.iter().flat_map(|p| &p.values).map(|g| f64::from(*g).abs()).sum();
    let after = sft::step(&mut policy, &rows, 0.0, 1).unwrap();
    assert_eq!(before.answer_tokens, 96);
    let fell = (before.loss - after.loss) / (lr * sum);
    assert!((fell - 1.0).abs() < 0.05, "the loss fell by {fell} of what the gradient says: {before:?} {after:?}");
}

#[test]
fn cuts_and_threads_change_no_bit_and_a_stopped_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let settings = small(dir.path());
    let (whole, lines) = train(&settings, None).unwrap();
    assert_eq!((whole.state.step, whole.state.rows, whole.resumed_at), (4, 40, 0));
    let losses: Vec<f64> = lines.iter().map(|line| line.0["loss"].as_f64().unwrap()).collect();
    assert!(losses.len() == 4 && losses[2] < losses[0] && losses[3] < losses[1], "the same lines twice: {losses:?}");

    let mut cut = settings.clone();
    (cut.run.dir, cut.update.micro_batch_tokens, cut.model.threads) = (dir.path().join("cut"), 40, 2);
    assert_eq!(weights(&train(&cut, None).unwrap().0), weights(&whole));

    let mut stopped = settings.clone();
    stopped.run.dir = dir.path().join("stopped");
    assert!(matches!(train(&stopped, Some(2)), Err(TrainError::Interrupted(2))));
    let (resumed, _) = train(&stopped, None).unwrap();
    assert_eq!((resumed.resumed_at, resumed.state.step), (2, 4));
    assert_eq!(weights(&resumed), weights(&whole));
    let metrics = |settings: &Settings| std::fs::read_to_string(settings.run.dir.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics(&stopped), metrics(&settings));

    // The twin: one line less is another model.
    let mut other = settings.clone();
    (other.run.dir, other.rollout.prompts_per_step) = (dir.path().join("other"), 9);
    assert_ne!(weights(&train(&other, None).unwrap().0), weights(&whole));
}

#[test]
fn text_is_as_good_as_token_ids() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = small(dir.path());
    let (by_ids, _) = train(&settings, None).unwrap();
    let stream = Stream::new(3, Mix::TRAIN);
    (settings.data.path, settings.run.dir) = (dir.path().join("text.jsonl"), dir.path().join("by-text"));
    data::write(&settings.data.path, (0..20).map(|i| demonstration_line(&stream.prompt(i), Form::Text))).unwrap();
    let (by_text, _) = train(&settings, None).unwrap();
    assert_eq!(weights(&by_text), weights(&by_ids));
}

#[test]
fn refusals_say_where_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let good = small(dir.path());
    let rows = [
        (r#"{"token_ids": [12, 1], "id": "a"}"#, "line \"a\" has neither `answer_ids` nor `answer`"),
        (r#"{"messages": [], "answer_ids": [1]}"#, "line \"0\" has neither `token_ids` nor `text`"),
        (r#"{"token_ids": [], "answer_ids": [1]}"#, "line \"0\" has an empty prompt or answer"),
        (r#"{"text": "reverse 1", "answer": "1"}"#, "line \"0\" cannot be encoded"),
        (r#"{"token_ids": [1], "text": "copy", "answer_ids": [1]}"#, "has 2 of `messages`, `text` and `token_ids`"),
    ];
    for (i, (line, expected)) in rows.into_iter().enumerate() {
        let mut settings = good.clone();
        (settings.data.path, settings.run.dir) = (dir.path().join("bad.jsonl"), dir.path().join(format!("bad-{i}")));
        std::fs::write(&settings.data.path, line).unwrap();
        let error = train(&settings, None).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("bad.jsonl"), "{error}");
    }
    let mut long = good.clone();
    (long.data.path, long.run.dir) = (dir.path().join("long.jsonl"), dir.path().join("long"));
    data::write(&long.data.path, [serde_json::json!({"token_ids": vec![1; 60], "answer_ids": vec![1; 5]})]).unwrap();
    assert!(train(&long, None).unwrap_err().to_string().contains("has 65 tokens, and the model's context is 64"));

    good.check().unwrap();
    let refused = |change: fn(&mut Settings), expected: &str| {
        let mut settings = good.clone();
        change(&mut settings);
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        settings.run.objective = Objective::Rl;
        settings.check().is_ok()
    };
    refused(|s| s.rollout.prompts_per_step = 0, "rollout.prompts_per_step is 0");
    assert!(refused(|s| (s.eval.every, s.eval.kind) = (1, EvalKind::Sampled), "eval.kind must be \"exact\""), "with a server it is right");
    refused(|s| (s.run.steps, s.run.samples) = (0, 5), "run.steps is 0");
}
