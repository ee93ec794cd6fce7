//! A step of 512 x 32 samples x 2,000 tokens costs less than 300 MB while it runs.

use std::time::Instant;

use adaroll::store::blob::pack_bytes;
use adaroll::store::{GroupRow, SampleRow};

use super::{group, in_file, new_job, open};

/// Words as they are used, from real problems.
fn words() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gsm8k_problems.jsonl");
    let file = std::fs::read_to_string(path).unwrap();
    let problems = file.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["problem"].as_str().unwrap().to_owned());
    problems.flat_map(|p| p.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Uniform in (0, 1], always the same sequence (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

const VOCABULARY: u64 = 151_936;
const PROMPTS: u32 = 16;
const SAMPLES: u32 = 32;
const TOKENS: usize = 2000;
const STEP_TOKENS: f64 = 512.0 * 32.0 * 2000.0;

/// Ids by Zipf's law over the vocabulary, their ranks scattered (real ids of frequent tokens are small, which costs less); log-probabilities
/// random in every bit of the mantissa; about four bytes of text a token.
fn realistic(draws: &mut Draws, words: &[String], job: i64, prompt: u32, index: u32) -> SampleRow {
    let token_ids =
        (0..TOKENS).map(|_| (draws.next() * (VOCABULARY as f64).ln()).exp() as u64 * 48_271 % VOCABULARY).map(|id| id as u32).collect();
    let logprobs = (0..TOKENS).map(|_| draws.next().powf(0.7).ln() as f32).collect();
    let mut text = String::new();
    while text.len() < 4 * TOKENS {
        text.push_str(&words[((draws.next() * words.len() as f64) as usize).min(words.len() - 1)]);
        text.push(' ');
    }
    let spans = vec![(7, 0, TOKENS as u32)];
    let finish_reason = "length".into();
    SampleRow { job, prompt, index, token_ids, logprobs, logprobs_raw: None, text, finish_reason, stop_match: None, weight_versions: spans }
}

/// As a group carries it: f32 as shortest round trip.
#[derive(serde::Serialize)]
struct AsJson {
    index: u32,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    text: String,
    reward: f64,
}

fn as_json(s: &SampleRow) -> AsJson {
    AsJson { index: s.index, token_ids: s.token_ids.clone(), logprobs: s.logprobs.clone(), text: s.text.clone(), reward: 1.0 }
}

#[tokio::test]
async fn a_step_costs_less_than_300_mb_while_it_runs() {
    let (_dir, path) = in_file();
    let store = open(&path);
    let job = store.admit(new_job("step")).await.unwrap();
    let words = words();
    let mut draws = Draws(1);
    let wal = path.with_extension("db-wal");
    let size = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let (mut wal_peak, mut packing) = (0, std::time::Duration::ZERO);
    let (mut kept, mut naive) = (Vec::new(), 0);
    // Round by round over all prompts, as samples finish: nothing of a prompt stands together.
    for index in 0..SAMPLES {
        for prompt in 0..PROMPTS {
            let row = realistic(&mut draws, &words, job, prompt, index);
            if prompt == 0 {
                kept.push(as_json(&row));
            }
            naive += 4 * row.token_ids.len() + 4 * row.logprobs.len() + row.text.len();
            let started = Instant::now();
            store.sample(row);
            packing += started.elapsed();
            store.verdict(super::verdict(job, prompt, index, Some(1.0)));
        }
        store.flush().await;
        wal_peak = wal_peak.max(size(&wal));
    }
    let tokens = f64::from(PROMPTS * SAMPLES) * TOKENS as f64;
    let looking = rusqlite::Connection::open_with_flags(&path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let ask = |sql| looking.query_row(sql, (), |r| r.get::<_, i64>(0)).unwrap();
    let pages = || ask("PRAGMA page_count") * ask("PRAGMA page_size");
    let file = pages() as f64;
    let per_token = file / tokens;

    // Groups take the room of the samples they replace; four of 32 are kept, or all of them.
    let all = serde_json::to_string(&kept).unwrap();
    let all_per_token = pack_bytes(all.as_bytes()).len() as f64 / f64::from(SAMPLES) / TOKENS as f64;
    let json = serde_json::to_string(&kept[..4]).unwrap();
    let started = Instant::now();
    let pending = store.group(GroupRow { json: Some(json.clone()), ..group(job, 0, Some(0)) });
    let group_packing = started.elapsed();
    pending.await.unwrap();
    for prompt in 1..PROMPTS {
        store.group(GroupRow { json: Some(json.clone()), ..group(job, prompt, Some(prompt.into())) }).await.unwrap();
        wal_peak = wal_peak.max(size(&wal));
    }
    let grown = pages() as f64 / file;
    let step = (per_token * grown * STEP_TOKENS + wal_peak as f64) / 1e6;
    println!(
        "{per_token:.2} bytes a token in the file, WAL at most {:.1} MB, the file grows by {:.1} % when groups come: a step of 512 x 32 x 2,000 tokens \
         costs {step:.0} MB while it runs. Packing a sample of 2,000 tokens takes {:.2} ms, a group of four {:.1} ms; a group with all its samples \
         packs to {all_per_token:.2} bytes a token.",
        wal_peak as f64 / 1e6,
        100.0 * (grown - 1.0),
        packing.as_secs_f64() * 1e3 / f64::from(PROMPTS * SAMPLES),
        group_packing.as_secs_f64() * 1e3,
    );
    assert!(step < 300.0, "{step} MB");
    // The twin: as they are in memory they would not do.
    let naive = naive as f64 / tokens * STEP_TOKENS / 1e6;
    assert!(naive > 300.0, "{naive} MB");
}
