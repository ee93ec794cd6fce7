//! The forward pass in plain f64, written from the papers and nothing else of this project: what gradients are differenced from.

use std::collections::HashMap;

use adaroll::model::backward::Packed;
use adaroll::model::{ModelConfig, Params};

pub type Wide = HashMap<String, Vec<f64>>;

pub fn widen(params: &Params) -> Wide {
    params.entries.iter().map(|p| (p.name.clone(), p.values.iter().map(|&v| f64::from(v)).collect())).collect()
}

/// (log-probability, entropy) of every scored token.
pub fn scores(config: &ModelConfig, params: &Wide, batch: &Packed, temperature: f64) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for sequence in &batch.sequences {
        if sequence.from >= sequence.token_ids.len() {
            continue;
        }
        let logits = logits(config, params, &sequence.token_ids);
        for position in sequence.from..sequence.token_ids.len() {
            let z: Vec<f64> = logits[position - 1].iter().map(|v| v / temperature).collect();
            let max = z.iter().copied().fold(f64::MIN, f64::max);
            let norm = max + z.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
            let entropy = -z.iter().map(|v| (v - norm).exp() * (v - norm)).sum::<f64>();
            out.push((z[sequence.token_ids[position] as usize] - norm, entropy));
        }
    }
    out
}

fn logits(c: &ModelConfig, params: &Wide, ids: &[u32]) -> Vec<Vec<f64>> {
    let get = |name: &str| &params[name][..];
    let embed = get("model.embed_tokens.weight");
    let mut x: Vec<Vec<f64>> = ids.iter().map(|&id| embed[id as usize * c.hidden_size..][..c.hidden_size].to_vec()).collect();
    for layer in 0..c.num_layers {
        let get = |name: &str| get(&format!("model.layers.{layer}.{name}"));
        let norm = |x: &[f64], weight: &[f64]| rmsnorm(x, weight, f64::from(c.rms_norm_eps));
        let heads = |kind: &str, h: &[f64], position: usize| -> Vec<Vec<f64>> {
            let mut row = linear(h, get(&format!("self_attn.{kind}_proj.weight")));
            if c.qkv_bias {
                row.iter_mut().zip(get(&format!("self_attn.{kind}_proj.bias"))).for_each(|(v, b)| *v += b);
            }
            let head = |head: &[f64]| match kind {
                "v" => head.to_vec(),
                _ if c.qk_norm => rotate(&norm(head, get(&format!("self_attn.{kind}_norm.weight"))), position, c.rope.theta),
                _ => rotate(head, position, c.rope.theta),
            };
            row.chunks(c.head_dim).map(head).collect()
        };
        let h: Vec<Vec<f64>> = x.iter().map(|x| norm(x, get("input_layernorm.weight"))).collect();
        let all = |kind: &str| -> Vec<Vec<Vec<f64>>> { h.iter().enumerate().map(|(t, h)| heads(kind, h, t)).collect() };
        let (q, k, v) = (all("q"), all("k"), all("v"));
        for t in 0..ids.len() {
            let mut attended = Vec::new();
            for (head, query) in q[t].iter().enumerate() {
                let kv = head / (c.num_heads / c.num_kv_heads);
                let e: Vec<f64> = (0..=t).map(|s| (dot(query, &k[s][kv]) / (c.head_dim as f64).sqrt()).exp()).collect();
                let sum: f64 = e.iter().sum();
                attended.extend((0..c.head_dim).map(|d| (0..=t).map(|s| e[s] / sum * v[s][kv][d]).sum::<f64>()));
            }
            add(&mut x[t], &linear(&attended, get("self_attn.o_proj.weight")));
            let h = norm(&x[t], get("post_attention_layernorm.weight"));
            let (gate, up) = (linear(&h, get("mlp.gate_proj.weight")), linear(&h, get("mlp.up_proj.weight")));
            let act: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(&mut x[t], &linear(&act, get("mlp.down_proj.weight")));
        }
    }
    let head = params.get("lm_head.weight").map_or(embed, |head| &head[..]);
    x.iter().map(|x| linear(&rmsnorm(x, get("model.norm.weight"), f64::from(c.rms_norm_eps)), head)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn linear(x: &[f64], w: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|w| dot(x, w)).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn rmsnorm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

fn rotate(x: &[f64], position: usize, theta: f64) -> Vec<f64> {
    let half = x.len() / 2;
    let turn = |i: usize| (position as f64 * theta.powf(-((i % half) as f64) / half as f64)).sin_cos();
    (0..x.len())
        .map(|i| match i < half {
            true => x[i] * turn(i).1 - x[i + half] * turn(i).0,
            false => x[i] * turn(i).1 + x[i - half] * turn(i).0,
        })
        .collect()
}
