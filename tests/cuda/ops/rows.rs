//! Operations on single rows: embedding, norms, bias, activation, rotation, gathering, copies of blocks.

use adaroll::ops::cuda::{CudaOps, KvCache};
use adaroll::ops::{BLOCK_TOKENS, Batch, Heads, Ops, PROMISED, Place, Segment};
use libtest_mimic::Trial;

use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, bf16_bytes, card_tensor, card_wide, combinations, cpu, cpu_tensor, cpu_values, cuda,
    cuda_recording, rounded, trial, trial_in_orders, view,
};

const EPS: f32 = 1e-5;

pub fn trials() -> Vec<Trial> {
    vec![
        trial_in_orders("rows::embed_copies_rows_of_the_table", embed),
        trial_in_orders("rows::gather_rows_copies_rows", gather),
        trial_in_orders("rows::rmsnorm_of_all_widths", rmsnorm),
        trial_in_orders("rows::add_rmsnorm_rounds_the_sum_then_the_norm", add_rmsnorm),
        trial_in_orders("rows::add_and_add_bias", adds),
        trial_in_orders("rows::swiglu_of_all_widths", swiglu),
        trial_in_orders("rows::rope_angles_are_the_cpus", rope_angles),
        trial_in_orders("rows::rope_kv_is_its_three_parts", rope_kv),
        trial_in_orders("rows::rope_kv_writes_keys_and_values_to_their_slots", writes),
        trial_in_orders("rows::copy_blocks_in_order", copy_blocks),
        trial("rows::padding_rows_go_nowhere", padding),
        trial("lists::ten_lists_under_way_keep_their_numbers", lists),
    ]
}

const WIDTHS: [usize; 10] = [1, 7, 8, 63, 96, 320, 448, 1000, 2048, 8200];

fn embed() {
    for (vocab, cols) in [(5, 1), (320, 96), (33, 130), (24, 64)] {
        let mut numbers = Numbers(cols as u64);
        let values = numbers.many(vocab * cols, 3.0);
        let bytes = bf16_bytes(&values);
        let mut ops = cuda();
        let table = ops.matrix(&[view(&bytes, &[vocab, cols])]);
        let ids = [0, vocab as u32 - 1, 2, 2, 1];
        let mut out = ops.tensor(ids.len(), cols);
        ops.embed(&table, &ids, &mut out);
        let want: Vec<f32> = ids.iter().flat_map(|&id| values[id as usize * cols..][..cols].to_vec()).collect();
        assert_same(&|| format!("{vocab} x {cols}"), &ops.read(&out), &want);
        assert_well(&ops);
    }
}

/// The card reads a list when it gets there: lists of later calls must not overtake it in the host's memory.
fn lists() {
    let (vocab, cols) = (40, 16);
    let values = Numbers(31).many(vocab * cols, 3.0);
    let bytes = bf16_bytes(&values);
    let mut ops = cuda();
    let table = ops.matrix(&[view(&bytes, &[vocab, cols])]);
    let mut outs: Vec<_> = (0..10).map(|_| ops.tensor(3, cols)).collect();
    let ids = |i: usize| [i as u32, 39 - i as u32, 2 * i as u32];
    for (i, out) in outs.iter_mut().enumerate() {
        ops.embed(&table, &ids(i), out);
    }
    for (i, out) in outs.iter().enumerate() {
        let want: Vec<f32> = ids(i).iter().flat_map(|&id| values[id as usize * cols..][..cols].to_vec()).collect();
        assert_same(&|| format!("list {i}"), &ops.read(out), &want);
    }
    assert_well(&ops);
}

fn gather() {
    for cols in [1, 9, 96, 130] {
        let values = Numbers(cols as u64).many(6 * cols, 3.0);
        let mut ops = cuda();
        let x = card_tensor(&ops, 6, cols, &values);
        let rows = [5u32, 0, 3, 3];
        let mut out = ops.tensor(4, cols);
        ops.gather_rows(&x, &rows, &mut out);
        let want: Vec<f32> = rows.iter().flat_map(|&r| values[r as usize * cols..][..cols].to_vec()).collect();
        assert_same(&|| format!("{cols}"), &ops.read(&out), &want);
        assert_well(&ops);
    }
}

fn rmsnorm() {
    for shape in combinations(&[&[1, 3, 17], &WIDTHS]) {
        let (rows, cols) = (shape[0], shape[1]);
        let mut numbers = Numbers((rows * cols) as u64);
        let (x, w) = (numbers.many(rows * cols, 4.0), numbers.many(cols, 2.0));
        let bytes = bf16_bytes(&w);
        let mut exact = cpu();
        let mut want = exact.tensor(rows, cols);
        let weight = exact.vector(&[view(&bytes, &[cols])]);
        exact.rmsnorm(&cpu_tensor(&exact, rows, cols, &x), &weight, EPS, &mut want);
        let mut ops = cuda();
        let weight = ops.vector(&[view(&bytes, &[cols])]);
        let on_card = card_tensor(&ops, rows, cols, &x);
        let mut out = ops.tensor(rows, cols);
        ops.rmsnorm(&on_card, &weight, EPS, &mut out);
        let want = cpu_values(&want);
        let got = ops.read(&out);
        assert_near(&|| format!("{rows} x {cols}"), &got, &want, &rounded(&want));
        // A row alone.
        let one = card_tensor(&ops, 1, cols, &x[(rows - 1) * cols..]);
        let mut out = ops.tensor(1, cols);
        ops.rmsnorm(&one, &weight, EPS, &mut out);
        assert_same(&|| format!("the last of {rows} x {cols}"), &ops.read(&out), &got[(rows - 1) * cols..]);
        assert_well(&ops);
    }
}

fn add_rmsnorm() {
    for shape in combinations(&[&[1, 3, 17], &WIDTHS]) {
        let (rows, cols) = (shape[0], shape[1]);
        let mut numbers = Numbers((rows * cols + 7) as u64);
        let (x, d, w) = (numbers.many(rows * cols, 4.0), numbers.many(rows * cols, 1.0), numbers.many(cols, 2.0));
        let bytes = bf16_bytes(&w);
        let mut ops = cuda();
        let weight = ops.vector(&[view(&bytes, &[cols])]);
        let mut residual = card_tensor(&ops, rows, cols, &x);
        let delta = card_tensor(&ops, rows, cols, &d);
        let mut out = ops.tensor(rows, cols);
        ops.add_rmsnorm(&mut residual, &delta, &weight, EPS, &mut out);
        let sum: Vec<f32> = rounded(&x.iter().zip(&d).map(|(a, b)| a + b).collect::<Vec<f32>>());
        assert_same(&|| format!("sum {rows} x {cols}"), &ops.read(&residual), &sum);
        // The norm is of what was stored.
        let stored = card_tensor(&ops, rows, cols, &sum);
        let mut again = ops.tensor(rows, cols);
        ops.rmsnorm(&stored, &weight, EPS, &mut again);
        assert_same(&|| format!("norm {rows} x {cols}"), &ops.read(&out), &ops.read(&again));
        assert_well(&ops);
    }
}

fn adds() {
    for shape in combinations(&[&[1, 5], &WIDTHS]) {
        let (rows, cols) = (shape[0], shape[1]);
        let mut numbers = Numbers((rows * cols + 9) as u64);
        let (x, d, b) = (numbers.many(rows * cols, 4.0), numbers.many(rows * cols, 1.0), numbers.many(cols, 2.0));
        let bytes = bf16_bytes(&b);
        let mut ops = cuda();
        let delta = card_tensor(&ops, rows, cols, &d);
        let mut sum = card_tensor(&ops, rows, cols, &x);
        ops.add(&mut sum, &delta);
        let want: Vec<f32> = x.iter().zip(&d).map(|(a, b)| a + b).collect();
        assert_same(&|| format!("add {rows} x {cols}"), &ops.read(&sum), &rounded(&want));
        let mut biased = card_tensor(&ops, rows, cols, &x);
        let bias = ops.vector(&[view(&bytes, &[cols])]);
        ops.add_bias(&mut biased, &bias);
        let want: Vec<f32> = x.iter().enumerate().map(|(i, a)| a + b[i % cols]).collect();
        assert_same(&|| format!("bias {rows} x {cols}"), &ops.read(&biased), &rounded(&want));
        assert_well(&ops);
    }
}

fn swiglu() {
    for shape in combinations(&[&[1, 5], &WIDTHS]) {
        let (rows, cols) = (shape[0], shape[1]);
        let mut numbers = Numbers((rows * cols + 11) as u64);
        let mut x = numbers.many(rows * 2 * cols, 6.0);
        // The ends: what silu does to very large and very negative gates.
        x[0] = -200.0;
        if cols > 2 {
            (x[1], x[2]) = (200.0, -90.0);
        }
        let mut exact = cpu();
        let mut want = exact.tensor(rows, cols);
        exact.swiglu(&cpu_tensor(&exact, rows, 2 * cols, &x), &mut want);
        let mut ops = cuda();
        let gate_up = card_tensor(&ops, rows, 2 * cols, &x);
        let mut out = ops.tensor(rows, cols);
        ops.swiglu(&gate_up, &mut out);
        // The same lines in f32, rounded once: the same bits.
        assert_same(&|| format!("{rows} x {cols}"), &ops.read(&out), &rounded(&cpu_values(&want)));
        assert_well(&ops);
    }
}

/// Sines and cosines are the CPU's to the last bit, at positions of a context of 128k and at frequencies of every size.
fn rope_angles() {
    for dim in [16, 80, 128, 256] {
        let half = dim / 2;
        let frequencies: Vec<f32> = (0..half).map(|i| (1e6f64.powf(-(2.0 * i as f64) / dim as f64)) as f32).collect();
        let positions = [0u32, 1, 2, 3, 100, 1023, 4096, 40_959, 131_071];
        let mut exact = cpu();
        let mut want = exact.tensor(positions.len(), dim);
        exact.rope_angles(&positions, &frequencies, &mut want);
        let mut ops = cuda();
        let mut angles = ops.wide_tensor(positions.len(), dim);
        ops.rope_angles(&positions, &frequencies, &mut angles);
        assert_same(&|| format!("{dim}"), &ops.read(&angles), &cpu_values(&want));
        assert_well(&ops);
    }
}

const DIMS: [usize; 7] = [16, 32, 64, 80, 96, 128, 256];

fn slot_of(i: usize) -> u32 {
    (3 + 5 * i) as u32
}

/// One call gives the bits of three, and each of the three is near the CPU's.
fn rope_kv() {
    for dim in DIMS {
        let heads = Heads { query: 6, kv: 2, dim };
        let rows = 5;
        let mut numbers = Numbers(dim as u64);
        let x = numbers.many(rows * heads.qkv_cols(), 2.0);
        let (q, k) = (bf16_bytes(&numbers.many(dim, 2.0)), bf16_bytes(&numbers.many(dim, 2.0)));
        let frequencies: Vec<f32> = (0..dim / 2).map(|i| (1e4f64.powf(-(2.0 * i as f64) / dim as f64)) as f32).collect();
        let positions: Vec<u32> = (0..rows as u32).map(|r| 7 * r + 1).collect();
        let slots: Vec<u32> = (0..rows).map(slot_of).collect();

        let mut ops = cuda();
        let (qw, kw) = (ops.vector(&[view(&q, &[dim])]), ops.vector(&[view(&k, &[dim])]));
        let mut angles = ops.wide_tensor(rows, dim);
        ops.rope_angles(&positions, &frequencies, &mut angles);
        let mut cache = ops.kv_cache(2, 4, heads);
        let mut together = card_tensor(&ops, rows, heads.qkv_cols(), &x);
        ops.rope_kv(&mut together, heads, Some((&qw, &kw)), EPS, &angles, 1, &slots, &mut cache);
        let mut apart = card_tensor(&ops, rows, heads.qkv_cols(), &x);
        ops.qk_norm(&mut apart, heads, &qw, &kw, EPS);
        let normed = ops.read(&apart);
        ops.rope(&mut apart, heads, &angles);
        let rotated = ops.read(&apart);
        ops.kv_write(&apart, heads, 0, &slots, &mut cache);
        assert_same(&|| format!("dim {dim}"), &ops.read(&together), &rotated);
        assert_same(&|| format!("dim {dim}: the write changes nothing"), &ops.read(&apart), &rotated);
        assert_same(&|| format!("dim {dim}: cached"), &cached(&ops, 0, &slots, &cache), &cached(&ops, 1, &slots, &cache));

        let mut exact = cpu();
        let mut want = cpu_tensor(&exact, rows, heads.qkv_cols(), &x);
        let (qw, kw) = (exact.vector(&[view(&q, &[dim])]), exact.vector(&[view(&k, &[dim])]));
        exact.qk_norm(&mut want, heads, &qw, &kw, EPS);
        assert_near(&|| format!("norm, dim {dim}"), &normed, &cpu_values(&want), &rounded(&cpu_values(&want)));
        let mut want = cpu_tensor(&exact, rows, heads.qkv_cols(), &normed);
        let mut cpu_angles = exact.tensor(rows, dim);
        exact.rope_angles(&positions, &frequencies, &mut cpu_angles);
        exact.rope(&mut want, heads, &cpu_angles);
        assert_same(&|| format!("rotation, dim {dim}"), &rotated, &rounded(&cpu_values(&want)));
        assert_well(&ops);
    }
}

/// Keys and values of these slots.
fn cached(ops: &CudaOps, layer: usize, slots: &[u32], cache: &KvCache) -> Vec<f32> {
    slots.iter().flat_map(|slot| ops.cached_row(cache, layer, *slot).concat()).collect()
}

/// Keys and values land in their slots bit for bit; other slots keep what they had, and slot -1 is none.
fn writes() {
    let heads = Heads { query: 2, kv: 3, dim: 32 };
    let (rows, blocks) = (4, 3);
    let mut numbers = Numbers(3);
    let x = numbers.many(rows * heads.qkv_cols(), 2.0);
    let mut ops = cuda();
    let mut cache = ops.kv_cache(1, blocks, heads);
    // Everything is written once, so that everything can be read.
    let all: Vec<u32> = (0..(blocks * BLOCK_TOKENS) as u32).collect();
    let before = numbers.many(all.len() * heads.qkv_cols(), 2.0);
    let first = card_tensor(&ops, all.len(), heads.qkv_cols(), &before);
    ops.kv_write(&first, heads, 0, &all, &mut cache);
    let qkv = card_tensor(&ops, rows, heads.qkv_cols(), &x);
    let slots = [17u32, u32::MAX, 0, 47];
    ops.kv_write(&qkv, heads, 0, &slots, &mut cache);
    for slot in all {
        let (values, row) = match slots.iter().position(|s| *s == slot) {
            Some(row) => (&x, row),
            None => (&before, slot as usize),
        };
        let row = &values[row * heads.qkv_cols()..][..heads.qkv_cols()];
        let kv = heads.kv * heads.dim;
        let [keys, values] = ops.cached_row(&cache, 0, slot);
        assert_same(&|| format!("keys of slot {slot}"), &keys, &row[heads.query * heads.dim..][..kv]);
        assert_same(&|| format!("values of slot {slot}"), &values, &row[heads.query * heads.dim + kv..][..kv]);
    }
    assert_well(&ops);
}

/// Copies that depend on each other happen in their order, in every layer.
fn copy_blocks() {
    let heads = Heads { query: 2, kv: 2, dim: 16 };
    let (layers, blocks) = (3, 6);
    let mut numbers = Numbers(4);
    let mut ops = cuda();
    let mut cache = ops.kv_cache(layers, blocks, heads);
    let all: Vec<u32> = (0..(blocks * BLOCK_TOKENS) as u32).collect();
    for layer in 0..layers {
        let qkv = card_tensor(&ops, all.len(), heads.qkv_cols(), &numbers.many(all.len() * heads.qkv_cols(), 2.0));
        ops.kv_write(&qkv, heads, layer, &all, &mut cache);
    }
    let slot_row = |ops: &CudaOps, cache: &KvCache, layer: usize, block: usize| -> Vec<f32> {
        (0..BLOCK_TOKENS).flat_map(|t| ops.cached_row(cache, layer, (block * BLOCK_TOKENS + t) as u32).concat()).collect()
    };
    let mut model: Vec<Vec<Vec<f32>>> = (0..layers).map(|l| (0..blocks).map(|b| slot_row(&ops, &cache, l, b)).collect()).collect();
    // A chain, a block that is read and then written, one that is written twice.
    let pairs = [(0, 1), (1, 2), (3, 4), (5, 3), (0, 5), (2, 5)];
    for (from, to) in pairs {
        model.iter_mut().for_each(|layer| layer[to as usize] = layer[from as usize].clone());
    }
    ops.copy_blocks(&mut cache, &pairs);
    for (layer, blocks) in model.iter().enumerate() {
        for (block, want) in blocks.iter().enumerate() {
            assert_same(&|| format!("layer {layer}, block {block}"), &slot_row(&ops, &cache, layer, block), want);
        }
    }
    assert_well(&ops);
}

/// A decode step of 3 rows runs as one of 4: the fourth row writes to no slot, and a promised token is the one drawn before.
fn padding() {
    let heads = Heads { query: 2, kv: 1, dim: 16 };
    let mut numbers = Numbers(5);
    let bytes = bf16_bytes(&numbers.many(8 * 24, 1.0));
    let mut ops = cuda_recording();
    let table = ops.matrix(&[view(&bytes, &[8, 24])]);
    let mut x = ops.tensor(16, 24);
    let mut cache = ops.kv_cache(1, 4, heads);
    let mut qkv = card_tensor(&ops, 16, heads.qkv_cols(), &numbers.many(16 * heads.qkv_cols(), 1.0));
    let mut angles = ops.wide_tensor(16, 16);
    let place = Place { forward: 0, memory: 0, heads };

    // The draw that the promise is about: row 1 can only give token 6.
    let mut logits = vec![-50.0f32; 2 * 8];
    (logits[3], logits[8 + 6]) = (50.0, 50.0);
    let logits = card_wide(&ops, 2, 8, &logits);
    let asks: Vec<adaroll::ops::Ask<'_>> = (0..2)
        .map(|row| {
            let filters = adaroll::ops::Filters::plain(1.0);
            adaroll::ops::Ask::Draw(adaroll::ops::Draw { row, filters, key: [1, 2], position: 0, sample: 0 })
        })
        .collect();
    ops.late().unwrap().start(&logits, &asks);

    let batch = Batch {
        tokens: vec![5, PROMISED | 1, 0],
        positions: vec![3, 4, 5],
        slots: vec![3, 20, 37],
        segments: (0..3).map(|row| Segment { row, rows: 1, start: 3 + row, table: row }).collect(),
        tables: vec![0, 1, 2],
        logit_rows: vec![0, 1, 2],
    };
    let mut ran = 0;
    for _ in 0..3 {
        ops.step(place, &batch, &mut |ops, rows| {
            ran = rows;
            ops.set_rows(&mut x, rows);
            ops.set_rows(&mut qkv, rows);
            ops.set_rows(&mut angles, rows);
            ops.rope_angles(&batch.positions, &[1.0; 8], &mut angles);
            ops.embed(&table, &batch.tokens, &mut x);
            ops.rope_kv(&mut qkv, heads, None, EPS, &angles, 0, &batch.slots, &mut cache);
        });
    }
    assert_eq!(ran, 4, "3 rows run as 4");
    let row = |id: usize| -> Vec<f32> {
        bytes.as_chunks::<2>().0[id * 24..][..24].iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()
    };
    let want = [row(5), row(6), row(0), row(0)].concat();
    assert_same(&|| "embedded".into(), &ops.read(&x), &want);
    let mut drawn = Vec::new();
    ops.late().unwrap().finish(&mut drawn);
    assert_eq!(drawn.iter().map(|d| d.unwrap().token).collect::<Vec<_>>(), [3, 6]);
    assert_well(&ops);
}
