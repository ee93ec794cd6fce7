//! Promise: an engine takes what it can serve and says exactly what it cannot; whatever happens to one request, the others get what they
//! would have got alone, and everything that was taken comes to an end that is told.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::{
    Engine, EngineSettings, Event, FinishReason, LocalEngine, RequestId, Sample, SampleRequest, SampleStream, SamplingParams, ScoreRequest,
    Scores, StopMatch, StreamKey, SubmitError,
};
use adaroll::model::{Dtype, Model};
use adaroll::ops::cpu::CpuOps;

use crate::hooked_ops;
use crate::late_ops::late_engine;
use crate::sampling_runs::{assert_same, bits, idle_stats, scores};
use crate::tiny_model::{RawTensor, TinyModel, read_tensors, tiny_model, write_safetensors};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn tiny(model: &TinyModel) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), model);
    dir
}

pub fn settings(change: impl FnOnce(&mut EngineSettings)) -> EngineSettings {
    let mut settings = EngineSettings { kv_blocks: Some(64), max_batch_tokens: 32, max_sequences: 16, ..EngineSettings::default() };
    change(&mut settings);
    settings
}

/// How an engine over a folder starts.
type Start = fn(&Path, EngineSettings) -> LocalEngine;

/// An engine whose backend answers at once, and one whose backend answers a step late.
const BOTH: [Start; 2] = [engine, |dir, settings| late_engine(dir, &one_thread(settings))];

fn one_thread(settings: EngineSettings) -> EngineOptions {
    EngineOptions { threads: 1, settings, ..EngineOptions::default() }
}

pub fn engine(dir: &Path, settings: EngineSettings) -> LocalEngine {
    open(dir, &one_thread(settings), |_, _| {}).unwrap().engine
}

fn hooked(dir: &Path, settings: &EngineSettings, hook: impl FnMut(&[u32]) + Send + 'static) -> LocalEngine {
    let ops = hooked_ops::hooked(CpuOps::new(1).unwrap(), hook);
    let model = Model::load(&ops, dir, |_, _| {}).unwrap();
    LocalEngine::start(ops, model, settings).unwrap()
}

/// An engine whose steps wait to be let through, one by one; all of them are once `permits` is dropped.
pub struct Gated {
    pub permits: mpsc::Sender<()>,
    at_the_gate: mpsc::Receiver<Vec<u32>>,
    pub engine: LocalEngine,
}

impl Gated {
    fn new(dir: &Path, settings: &EngineSettings) -> Gated {
        Gated::over(|gate| hooked(dir, settings, gate))
    }

    /// An engine that calls the gate before each step.
    pub fn over(start: impl FnOnce(Box<dyn FnMut(&[u32]) + Send>) -> LocalEngine) -> Gated {
        let (arrive, at_the_gate) = mpsc::channel();
        let (permits, permit) = mpsc::channel();
        let gate = move |ids: &[u32]| {
            let _ = arrive.send(ids.to_vec());
            let _ = permit.recv();
        };
        Gated { permits, at_the_gate, engine: start(Box::new(gate)) }
    }

    /// The tokens of the step that waits.
    pub fn step_that_waits(&self) -> Vec<u32> {
        self.at_the_gate.recv_timeout(PATIENCE).unwrap()
    }

    pub fn let_through(&self) {
        self.permits.send(()).unwrap();
    }
}

pub fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams { max_tokens: 20, ignore_eos: true, ..SamplingParams::default() };
    change(&mut params);
    params
}

pub fn request(prompt: &[u32], index: u32, params: SamplingParams) -> SampleRequest {
    SampleRequest { prompt: prompt.into(), params: Arc::new(params), key: StreamKey([7, 9]), index, stream_tokens: true }
}

/// Reads a stream to its end: one event for each token, then the sample, then nothing.
pub fn finished(mut stream: SampleStream) -> Sample {
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    loop {
        match stream.events.blocking_recv().expect("the last event is the finished sample") {
            Event::Token { token_id, logprob, .. } => {
                tokens.push(token_id);
                logprobs.push(logprob);
            }
            Event::Finished(sample) => {
                assert!(stream.events.blocking_recv().is_none());
                assert_eq!((&tokens, bits(&logprobs)), (&sample.token_ids, bits(&sample.logprobs)));
                assert!(sample.logprobs.iter().chain(&sample.logprobs_raw).all(|p| p.is_finite()));
                return *sample;
            }
        }
    }
}

pub fn sample(engine: &LocalEngine, prompt: &[u32], params: SamplingParams) -> Sample {
    finished(engine.submit(request(prompt, 0, params)).unwrap())
}

pub fn score_request(tokens: &[u32], from: usize, temperature: f32) -> ScoreRequest {
    ScoreRequest { token_ids: tokens.into(), from, temperature }
}

#[test]
fn a_cancel_is_answered_when_the_blocks_are_free() {
    let dir = tiny(&TinyModel::default());
    let gated = Gated::new(dir.path(), &settings(|s| s.max_sequences = 2));
    let submit = |prompt: &[u32]| gated.engine.submit(request(prompt, 0, params(|p| p.max_tokens = 80))).unwrap();
    let (long, other) = ([5; 40], [6; 3]);
    let streams = [submit(&long), submit(&long), submit(&other)];
    gated.step_that_waits();
    gated.let_through();
    // In the step that waits now the first goes on with its prompt, for which the second waits, and the third computes its own.
    assert_eq!(gated.step_that_waits(), [[5; 8].as_slice(), &[6; 3]].concat());
    let mut acks: Vec<_> = streams.iter().map(|stream| gated.engine.cancel(stream.id)).collect();
    assert!(gated.engine.stats().blocks_free < 64);
    std::thread::sleep(Duration::from_millis(20));
    assert!(acks.iter_mut().all(|ack| ack.try_recv().is_err()), "nothing is answered while a step runs");
    gated.let_through();
    for (i, ack) in acks.into_iter().enumerate() {
        assert!(ack.blocking_recv().unwrap());
        let stats = gated.engine.stats();
        assert!(stats.cancelled > i as u64);
        if i == 2 {
            assert_eq!((stats.blocks_free, stats.running, stats.waiting), (64, 0, 0), "{stats:?}");
        }
    }
    for stream in streams {
        let id = stream.id;
        assert_eq!(finished(stream).finish_reason, FinishReason::Cancelled);
        assert!(!gated.engine.cancel(id).blocking_recv().unwrap(), "it is gone");
    }
    assert!(!gated.engine.cancel(RequestId(999)).blocking_recv().unwrap());
    assert_eq!(gated.engine.stats().cancelled, 3);
}

#[test]
fn a_full_queue_says_so_and_has_room_again_when_something_ends() {
    let dir = tiny(&TinyModel::default());
    let gated = Gated::new(dir.path(), &settings(|s| s.max_queue = 3));
    let submit = |i| gated.engine.submit(request(&[3, 4], i, params(|p| p.max_tokens = 50)));
    let score = || gated.engine.score(score_request(&[3, 4, 5], 1, 1.0));
    let (first, second) = (submit(0).unwrap(), submit(1).unwrap());
    let scored = score().unwrap();
    for refused in [submit(2).err(), score().err()] {
        assert_eq!(refused, Some(SubmitError::QueueFull(3)));
    }
    let ack = gated.engine.cancel(first.id);
    drop(gated.permits);
    assert!(ack.blocking_recv().unwrap());
    finished(first);
    let third = gated.engine.submit(request(&[3, 4], 2, params(|_| {}))).unwrap();
    scored.blocking_recv().unwrap().unwrap();
    assert_eq!((finished(second).token_ids.len(), finished(third).token_ids.len()), (50, 20));
    for i in 3..8 {
        score().unwrap().blocking_recv().unwrap().unwrap();
        finished(submit(i).unwrap());
    }
    idle_stats(&gated.engine);
}

fn field_of<T>(result: Result<T, SubmitError>) -> String {
    match result.err().expect("it is refused") {
        SubmitError::Field(e) => {
            assert!(e.problem.len() > 15, "{e}");
            e.field
        }
        other => panic!("{other}"),
    }
}

#[test]
fn what_cannot_be_served_is_refused_by_field_and_the_engine_serves_on() {
    let dir = tiny(&TinyModel::default());
    let engine = engine(dir.path(), settings(|s| s.kv_blocks = Some(5)));
    let good = sample(&engine, &[3, 4, 5], params(|_| {}));
    let serves_on = || assert_same("serving on", std::slice::from_ref(&good), &[sample(&engine, &[3, 4, 5], params(|_| {}))]);

    let prompts: [(&[u32], &str); 6] = [
        (&[], "prompt"),
        (&[3, 64], "prompt[1]"),
        (&[u32::MAX], "prompt[0]"),
        (&[3; 128], "prompt"),
        (&[3; 200], "prompt"),
        (&[3; 81], "prompt"),
    ];
    for (prompt, field) in prompts {
        assert_eq!(field_of(engine.submit(request(prompt, 0, params(|_| {})))), field);
        serves_on();
    }

    type Change = fn(&mut SamplingParams);
    let changes: [(Change, &str); 25] = [
        (|p| p.max_tokens = 0, "max_tokens"),
        (|p| p.max_tokens = 79, "max_tokens"),
        (|p| p.max_tokens = u32::MAX, "max_tokens"),
        (|p| p.min_tokens = 21, "min_tokens"),
        (|p| p.temperature = -1.0, "temperature"),
        (|p| p.temperature = 1e-9, "temperature"),
        (|p| p.temperature = 1e9, "temperature"),
        (|p| p.temperature = f32::NAN, "temperature"),
        (|p| p.temperature = f32::INFINITY, "temperature"),
        (|p| p.top_p = 0.0, "top_p"),
        (|p| p.top_p = 1.5, "top_p"),
        (|p| p.top_p = f32::NAN, "top_p"),
        (|p| p.min_p = -0.1, "min_p"),
        (|p| p.min_p = 1.1, "min_p"),
        (|p| p.min_p = f32::NAN, "min_p"),
        (|p| p.stop = vec!["a".into()], "stop"),
        (|p| p.stop = vec![String::new()], "stop"),
        (|p| p.stop = vec!["a".into(); 65], "stop"),
        (|p| p.stop = vec!["a".repeat(1025)], "stop"),
        (|p| p.stop_token_ids = vec![3, 64], "stop_token_ids"),
        (|p| p.logit_bias = vec![(64, 1.0)], "logit_bias"),
        (|p| p.logit_bias = vec![(3, f32::NAN)], "logit_bias"),
        (|p| p.logit_bias = vec![(3, f32::INFINITY)], "logit_bias"),
        (|p| p.logit_bias = vec![(3, 1001.0)], "logit_bias"),
        (|p| p.logit_bias = vec![(3, 1.0), (4, 1.0), (3, 2.0)], "logit_bias"),
    ];
    for (change, field) in changes {
        assert_eq!(field_of(engine.submit(request(&[3, 4, 5], 0, params(change)))), field);
        serves_on();
    }
    // 80 positions are there: the last of 78 tokens after 3 is not computed.
    assert_eq!(sample(&engine, &[3, 4, 5], params(|p| p.max_tokens = 78)).token_ids.len(), 78);

    for (tokens, from, temperature, field) in [
        (&[][..], 1, 1.0, "token_ids"),
        (&[3, 64], 1, 1.0, "token_ids[1]"),
        (&[3; 129], 1, 1.0, "token_ids"),
        (&[3; 82], 1, 1.0, "token_ids"),
        (&[3], 1, 1.0, "prompt_len"),
        (&[3, 4, 5], 0, 1.0, "prompt_len"),
        (&[3, 4, 5], 3, 1.0, "prompt_len"),
        (&[3, 4, 5], usize::MAX, 1.0, "prompt_len"),
        (&[3, 4, 5], 1, -1.0, "temperature"),
        (&[3, 4, 5], 1, f32::NAN, "temperature"),
    ] {
        assert_eq!(field_of(engine.score(score_request(tokens, from, temperature))), field);
        serves_on();
    }
    assert_eq!(scores(&engine, &[3; 81], 1, 1.0).0.len(), 80);
    assert_eq!(idle_stats(&engine).blocks_free, 5);
}

#[test]
fn the_end_of_the_context_is_an_end_by_length() {
    BOTH.into_iter().for_each(end_of_the_context);
}

fn end_of_the_context(engine: Start) {
    let dir = tiny(&TinyModel { context_length: 32, ..TinyModel::default() });
    let engine = engine(dir.path(), settings(|s| s.kv_blocks = Some(3)));
    for (prompt, max_tokens, drawn) in [(1, 100, 31), (30, 100, 2), (31, u32::MAX, 1), (30, 2, 2), (30, 1, 1), (16, 16, 16)] {
        let sample = sample(&engine, &vec![3; prompt], params(|p| p.max_tokens = max_tokens));
        assert_eq!((sample.token_ids.len(), sample.finish_reason, sample.stop_match), (drawn, FinishReason::Length, None));
    }
    assert_eq!(field_of(engine.submit(request(&[3; 32], 0, params(|_| {})))), "prompt");
    // A whole context can be scored, and no more.
    assert_eq!(field_of(engine.score(score_request(&[3; 33], 1, 1.0))), "token_ids");
    assert_eq!(scores(&engine, &[3; 32], 1, 1.0).0.len(), 31);
}

#[test]
fn stop_tokens_minimum_and_bias_mean_what_they_say() {
    BOTH.into_iter().for_each(stop_tokens_minimum_and_bias);
}

fn stop_tokens_minimum_and_bias(engine: Start) {
    let dir = tiny(&TinyModel::default());
    let engine = engine(dir.path(), settings(|_| {}));
    assert_eq!(engine.info().stop_token_ids, [2]);
    let always = |id: u32| move |p: &mut SamplingParams| (p.logit_bias, p.temperature, p.max_tokens) = (vec![(id, 1000.0)], 0.0, 6);
    let run = |id: u32, change: &dyn Fn(&mut SamplingParams)| {
        sample(
            &engine,
            &[3, 4],
            params(|p| {
                always(id)(p);
                change(p);
            }),
        )
    };
    let ends = |s: &Sample| (s.token_ids.len(), s.finish_reason, s.stop_match.clone());

    let free = run(5, &|_| {});
    assert_eq!((free.token_ids.as_slice(), ends(&free)), (&[5; 6][..], (6, FinishReason::Length, None)));
    // A bias changes what is drawn, not what the model thinks of it.
    assert_eq!(bits(&free.logprobs_raw), bits(&scores(&engine, &[3, 4, 5, 5, 5, 5, 5, 5], 2, 1.0).1));

    let stopped = run(5, &|p| p.stop_token_ids = vec![9, 5]);
    assert_eq!(ends(&stopped), (1, FinishReason::Stop, Some(StopMatch::Token(5))));
    let later = run(5, &|p| (p.stop_token_ids, p.min_tokens) = (vec![9, 5], 3));
    assert_eq!(ends(&later), (4, FinishReason::Stop, Some(StopMatch::Token(5))));
    assert!(later.token_ids[..3].iter().all(|id| ![5, 9].contains(id)));
    let never = run(5, &|p| (p.stop_token_ids, p.min_tokens) = (vec![5], 6));
    assert_eq!(ends(&never), (6, FinishReason::Length, None));

    // The model's own stop token ends a sample unless told otherwise, and is held back by the minimum like any other.
    assert_eq!(ends(&run(2, &|p| p.ignore_eos = false)), (1, FinishReason::Stop, Some(StopMatch::Token(2))));
    let ignored = run(2, &|p| p.min_tokens = 4);
    assert_eq!((ignored.token_ids.as_slice(), ends(&ignored)), (&[2; 6][..], (6, FinishReason::Length, None)));
    let held_back = run(2, &|p| (p.ignore_eos, p.min_tokens) = (false, 2));
    assert_eq!(ends(&held_back), (3, FinishReason::Stop, Some(StopMatch::Token(2))));
    assert!(!held_back.token_ids[..2].contains(&2));
    // The last token that fits may be the stop token, which then is the reason.
    assert_eq!(ends(&run(5, &|p| (p.stop_token_ids, p.max_tokens) = (vec![5], 1))), (1, FinishReason::Stop, Some(StopMatch::Token(5))));

    let banned = sample(&engine, &[3, 4], params(|p| (p.logit_bias, p.max_tokens) = ((0..32).map(|id| (id, -1000.0)).collect(), 100)));
    assert!(banned.token_ids.iter().all(|&id| id >= 32));
    let plain = sample(&engine, &[3, 4], params(|p| p.max_tokens = 100));
    assert!(plain.token_ids.iter().any(|&id| id < 32), "without the bias they are drawn");
}

/// Token 7 makes keys and values overflow from its position on; other tokens do nothing of the kind.
fn poisoned_by_token_7(dir: &Path) {
    let model = TinyModel { dtype: Dtype::F32, ..TinyModel::default() };
    tiny_model(dir, &model);
    let path = dir.join("model.safetensors");
    let mut tensors = read_tensors(&path);
    let mut first_column = |name: &str, value: &dyn Fn(usize) -> f32| {
        let tensor = tensors.iter_mut().find(|t| t.name == name).unwrap();
        let mut numbers: Vec<f32> = tensor.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        numbers.chunks_mut(model.hidden_size).enumerate().for_each(|(row, columns)| columns[0] = value(row));
        *tensor = RawTensor::new(name, Dtype::F32, tensor.shape.clone(), &numbers);
    };
    first_column("model.embed_tokens.weight", &|token| if token == 7 { 4.0 } else { 0.0 });
    first_column("model.layers.0.self_attn.v_proj.weight", &|_| 3e38);
    write_safetensors(&path, &tensors);
}

#[test]
fn numbers_that_are_not_finite_end_their_own_request_and_no_other() {
    BOTH.into_iter().for_each(numbers_that_are_not_finite);
}

fn numbers_that_are_not_finite(engine: Start) {
    let dir = tempfile::tempdir().unwrap();
    poisoned_by_token_7(dir.path());
    let without_7 = || params(|p| p.logit_bias = vec![(7, -1000.0)]);
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| (0..20 + 3 * i).map(|j| 8 + j % (i + 2)).collect()).collect();
    let poison = |prompt: &[u32], at: usize| {
        let mut prompt = prompt.to_vec();
        prompt.insert(at, 7);
        prompt
    };
    let alone: Vec<(Sample, Vec<u32>)> = prompts
        .iter()
        .map(|prompt| {
            let engine = engine(dir.path(), settings(|_| {}));
            (sample(&engine, prompt, without_7()), bits(&scores(&engine, prompt, 1, 1.0).0))
        })
        .collect();

    let few = engine(dir.path(), settings(|s| s.kv_blocks = Some(12)));
    for round in 1..=3 {
        let mut good = Vec::new();
        let mut bad = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            // The poison comes after a prefix that others share, at the end, or in front.
            let poisoned = poison(prompt, [17, prompt.len(), 0][i % 3]);
            let scored = few.score(score_request(&poisoned, 1, 1.0)).unwrap();
            bad.push((few.submit(request(&poisoned, 0, without_7())).unwrap(), scored, poisoned));
            good.push((few.submit(request(prompt, 0, without_7())).unwrap(), few.score(score_request(prompt, 1, 1.0)).unwrap()));
        }
        for ((stream, scored), (expected, expected_scores)) in good.into_iter().zip(&alone) {
            assert_same("beside poison", std::slice::from_ref(expected), &[finished(stream)]);
            assert_eq!(&bits(&scored.blocking_recv().unwrap().unwrap().logprobs), expected_scores);
        }
        for (stream, scored, poisoned) in bad {
            let sample = finished(stream);
            assert_eq!((sample.finish_reason, sample.token_ids.len()), (FinishReason::Numerics, 0));
            let at = poisoned.iter().position(|&id| id == 7).unwrap();
            let expected = if at + 1 < poisoned.len() { Some(SubmitError::Numerics(at + 1)) } else { None };
            assert_eq!(scored.blocking_recv().unwrap().err(), expected, "the first token after the poison has no value");
        }
        assert_eq!(idle_stats(&few).nonfinite, round * (6 + 4));
    }

    // A sample that draws the poison keeps what it drew before.
    let drew = sample(&few, &[8, 9], params(|p| (p.logit_bias, p.temperature) = (vec![(7, 1000.0)], 0.0)));
    assert_eq!((drew.token_ids.as_slice(), drew.finish_reason), (&[7][..], FinishReason::Numerics));
}

#[test]
fn a_dropped_engine_ends_every_stream() {
    let dir = tiny(&TinyModel::default());
    let Gated { permits, at_the_gate, engine } = Gated::new(dir.path(), &settings(|s| s.max_sequences = 2));
    let mut streams: Vec<_> = (0..5).map(|i| engine.submit(request(&[3 + i / 3, 4], i, params(|p| p.max_tokens = 100))).unwrap()).collect();
    let scored = engine.score(score_request(&[3; 100], 1, 1.0)).unwrap();
    at_the_gate.recv_timeout(PATIENCE).unwrap();
    let dropping = std::thread::spawn(move || drop(engine));
    for _ in 0..60 {
        if dropping.is_finished() {
            break;
        }
        let _ = permits.send(());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(permits);
    dropping.join().unwrap();
    for stream in streams.drain(..) {
        let sample = finished(stream);
        assert_eq!(sample.finish_reason, FinishReason::Cancelled);
        assert!(sample.token_ids.len() < 100);
    }
    assert!(scored.blocking_recv().is_err(), "nobody scores it now");
}

#[test]
fn a_loop_that_fails_ends_every_stream_and_says_why() {
    let dir = tiny(&TinyModel::default());
    let mut steps = 0;
    let engine = hooked(dir.path(), &settings(|s| s.max_queue = 3), move |_| {
        steps += 1;
        assert!(steps < 4, "planted");
    });
    let mut streams: Vec<_> = (0..2).map(|i| engine.submit(request(&[3, 4], i, params(|_| {}))).unwrap()).collect();
    let scored = engine.score(score_request(&[3; 100], 1, 1.0)).unwrap();
    for stream in &mut streams {
        while let Some(event) = stream.events.blocking_recv() {
            assert!(matches!(event, Event::Token { .. }), "it has not finished: {event:?}");
        }
    }
    assert!(scored.blocking_recv().is_err());
    let why = "the engine has stopped: its loop failed: planted";
    let start = Instant::now();
    // The queue was full, but that is not what is wrong now.
    while engine.submit(request(&[3], 0, params(|_| {}))).err().map(|e| e.to_string()).as_deref() != Some(why) {
        assert!(start.elapsed() < PATIENCE, "{:?}", engine.submit(request(&[3], 0, params(|_| {}))).err());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(engine.score(score_request(&[3, 4], 1, 1.0)).err().map(|e| e.to_string()).as_deref(), Some(why));
    assert!(engine.cancel(streams[0].id).blocking_recv().is_err());
    let before = engine.stats();
    std::thread::sleep(Duration::from_millis(20));
    assert!(engine.stats().heartbeat_us >= before.heartbeat_us + 20_000, "the heart has stopped");
    assert_eq!(before.steps, 3);
}

#[test]
fn the_heart_beats_while_the_loop_goes_round_and_stops_with_it() {
    let dir = tiny(&TinyModel::default());
    let gated = Gated::new(dir.path(), &settings(|_| {}));
    let beats = |below: u64| {
        let start = Instant::now();
        while gated.engine.stats().heartbeat_us >= below {
            assert!(start.elapsed() < PATIENCE, "no heartbeat");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::sleep(Duration::from_millis(300));
    beats(250_000);
    let stream = gated.engine.submit(request(&[3, 4], 0, params(|_| {}))).unwrap();
    gated.step_that_waits();
    std::thread::sleep(Duration::from_millis(300));
    assert!(gated.engine.stats().heartbeat_us >= 300_000);
    drop(gated.permits);
    beats(250_000);
    finished(stream);
}

#[test]
fn five_hundred_requests_from_many_threads_all_get_what_is_theirs() {
    BOTH.into_iter().for_each(five_hundred_requests);
}

fn five_hundred_requests(engine: Start) {
    let dir = tiny(&TinyModel::default());
    let engine = engine(dir.path(), settings(|s| s.kv_blocks = Some(40)));
    let all = |order: u32| -> Vec<Sample> {
        let of = |k: u32| (k * (2 * order + 1) + order) % 100;
        let mut streams: Vec<_> = (0..100)
            .map(|k| {
                let (prompt, index) = (of(k) / 10, of(k) % 10);
                let tokens: Vec<u32> = (0..3 + 4 * prompt).map(|i| 3 + (i * i + prompt / 3) % 50).collect();
                (of(k), engine.submit(request(&tokens, index, params(|p| p.max_tokens = 2 + index))).unwrap())
            })
            .collect();
        streams.sort_by_key(|(k, _)| *k);
        streams.into_iter().map(|(_, stream)| finished(stream)).collect()
    };
    // Odd multipliers other than multiples of 5 visit every request once.
    let orders = [0, 1, 3, 4, 5];
    let results: Vec<Vec<Sample>> = std::thread::scope(|scope| {
        let threads: Vec<_> = orders.iter().map(|&order| scope.spawn(move || all(order))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for other in &results[1..] {
        assert_same("another thread", &results[0], other);
    }
    assert!(results[0].iter().enumerate().all(|(k, s)| s.index == k as u32 % 10 && s.token_ids.len() == 2 + k % 10));
    let beginnings: Vec<&[u32]> = results[0][95..].iter().map(|s| &s.token_ids[..7]).collect();
    assert!(beginnings.windows(2).all(|pair| pair[0] != pair[1]), "samples of a prompt are draws of their own");
    let stats = idle_stats(&engine);
    assert_eq!(stats.generated_tokens, 5 * results[0].iter().map(|s| s.token_ids.len() as u64).sum::<u64>());
}

#[test]
fn a_score_is_the_sampled_log_probability_bit_for_bit_also_after_a_preemption() {
    let dir = tiny(&TinyModel::default());
    for temperature in [1.0, 0.7, 0.0] {
        let roomy = engine(dir.path(), settings(|_| {}));
        let prompt: Vec<u32> = (3..23).collect();
        let drawn = sample(&roomy, &prompt, params(|p| (p.temperature, p.max_tokens) = (temperature, 60)));
        let tokens = [prompt.as_slice(), &drawn.token_ids].concat();
        let check = |s: &Scores| {
            assert_eq!(bits(&s.logprobs), bits(&drawn.logprobs), "temperature {temperature}");
            assert_eq!(bits(&s.logprobs_raw), bits(&drawn.logprobs_raw), "temperature {temperature}");
        };
        let (logprobs, logprobs_raw) = scores(&roomy, &tokens, prompt.len(), temperature);
        check(&Scores { logprobs, logprobs_raw, weights_version: 0 });

        // One value a step beside an older sample, which takes the blocks of the score when it needs them.
        let tight = Gated::new(dir.path(), &settings(|s| (s.kv_blocks, s.max_sequences, s.prefix_cache) = (Some(8), 2, false)));
        let older = tight.engine.submit(request(&[3; 30], 0, params(|p| p.max_tokens = 98))).unwrap();
        tight.step_that_waits();
        let reply = tight.engine.score(score_request(&tokens, prompt.len(), temperature)).unwrap();
        drop(tight.permits);
        check(&reply.blocking_recv().unwrap().unwrap());
        assert_eq!(finished(older).token_ids.len(), 98);
        let stats = idle_stats(&tight.engine);
        assert!(stats.preemptions > 0 && stats.recomputed_tokens > 0, "{stats:?}");
    }
}

#[test]
fn a_score_that_nobody_waits_for_ends() {
    let dir = tiny(&TinyModel::default());
    // A value a step.
    let gated = Gated::new(dir.path(), &settings(|s| s.max_sequences = 1));
    let reply = gated.engine.score(score_request(&[3; 100], 1, 1.0)).unwrap();
    gated.step_that_waits();
    drop(reply);
    drop(gated.permits);
    let stats = {
        let start = Instant::now();
        while gated.engine.stats().steps == 0 {
            assert!(start.elapsed() < PATIENCE);
        }
        idle_stats(&gated.engine)
    };
    assert_eq!((stats.steps, stats.blocks_free), (1, 64));
}
