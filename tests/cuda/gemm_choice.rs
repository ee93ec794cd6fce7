//! Which kernels multiply: the decision on given times, the comparison of rows, the sweep's numbers; and the choice on the card at hand, which has
//! cuBLASLt or has not.

use adaroll::ops::cuda::gemm_choice::{
    GemmChoice, Products, Times, Verdict, WeightShape, decide, first_far, first_unlike, merged, period, probe, row_counts,
};
use adaroll::ops::{Ops, TrainOps};
use half::bf16;
use libtest_mimic::Trial;

use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, bf16_bytes, card_tensor, cpu, cpu_tensor, cpu_values, cuda, nmse, rounded, trial, view,
};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("gemm_choice::names_are_read_and_written", names),
        trial("gemm_choice::auto_takes_what_is_exact_and_faster", auto),
        trial("gemm_choice::cublaslt_takes_what_is_exact", cublaslt),
        trial("gemm_choice::times_that_are_none_decide_nothing", no_times),
        trial("gemm_choice::about_as_fast_is_no_reason_to_change", ties),
        trial("gemm_choice::shapes_are_measured_once_at_most_rows", shapes),
        trial("gemm_choice::a_row_that_differs_is_seen", unlike),
        trial("gemm_choice::another_product_is_seen", far),
        trial("gemm_choice::the_probe_shows_another_order_of_adding", orders),
        trial("gemm_choice::own_kernels_are_all_there_is_until_products_are_prepared", own),
        trial("gemm_choice::the_card_chooses_or_says_why_not", on_the_card),
    ]
}

fn names() {
    for choice in [GemmChoice::Auto, GemmChoice::Own, GemmChoice::Cublaslt] {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    assert_eq!("cublas".parse::<GemmChoice>(), Err("give auto, own or cublaslt".into()));
    assert_eq!(GemmChoice::default(), GemmChoice::Auto);
}

const OWN: Times = Times { few: 1.0, many: 10.0 };

fn times(few: f32, many: f32) -> Option<Times> {
    Some(Times { few, many })
}

fn auto() {
    let auto = |candidates: &[Option<Times>]| decide(GemmChoice::Auto, OWN, candidates);
    assert_eq!(auto(&[]), Verdict::Inexact);
    assert_eq!(auto(&[None, None]), Verdict::Inexact);
    assert_eq!(auto(&[times(1.0, 5.0)]), Verdict::Fast(0));
    // Faster by 4 %, by 6 %.
    assert_eq!(auto(&[times(1.0, 10.0 / 1.04)]), Verdict::Slower);
    assert_eq!(auto(&[times(1.0, 10.0 / 1.06)]), Verdict::Fast(0));
    // Slower at few rows by 24 %, by 26 %.
    assert_eq!(auto(&[times(1.24, 5.0)]), Verdict::Fast(0));
    assert_eq!(auto(&[times(1.26, 5.0)]), Verdict::Slower);
    // The fastest one is not exact, the next one loses at few rows.
    assert_eq!(auto(&[None, times(2.0, 3.0), times(1.0, 6.0)]), Verdict::Fast(2));
}

fn cublaslt() {
    let must = |candidates: &[Option<Times>]| decide(GemmChoice::Cublaslt, OWN, candidates);
    assert_eq!(must(&[None]), Verdict::Inexact);
    assert_eq!(must(&[None, times(9.0, 90.0)]), Verdict::Fast(1));
    assert_eq!(must(&[None, times(9.0, 90.0), times(9.0, 45.0)]), Verdict::Fast(2));
    assert_eq!(decide(GemmChoice::Own, OWN, &[times(0.1, 0.1)]), Verdict::Asked);
}

fn no_times() {
    let nothing = Times { few: f32::NAN, many: f32::NAN };
    assert_eq!(decide(GemmChoice::Auto, OWN, &[Some(nothing)]), Verdict::Slower);
    assert_eq!(decide(GemmChoice::Auto, nothing, &[times(0.1, 0.1)]), Verdict::Slower);
    assert_eq!(decide(GemmChoice::Auto, OWN, &[times(0.0, 0.0)]), Verdict::Slower);
    assert_eq!(decide(GemmChoice::Cublaslt, nothing, &[Some(nothing)]), Verdict::Fast(0));
}

fn ties() {
    for choice in [GemmChoice::Auto, GemmChoice::Cublaslt] {
        assert_eq!(decide(choice, OWN, &[times(1.0, 5.1), times(1.0, 5.0)]), Verdict::Fast(0));
        assert_eq!(decide(choice, OWN, &[times(1.0, 5.4), times(1.0, 5.0)]), Verdict::Fast(1));
    }
}

fn shapes() {
    assert_eq!(row_counts(8192), [1, 2, 17, 64, 257, 1024, 8192]);
    assert_eq!(row_counts(64), [1, 2, 17, 64]);
    assert_eq!(row_counts(1), [1]);
    assert_eq!(row_counts(0), [1]);
    // Every row has a twin, and twins come to stand at every place of a tile.
    assert_eq!([1, 2, 5, 6, 64, 128, 513, 514, 8192].map(period), [1, 1, 1, 3, 31, 61, 127, 257, 257]);
    let products = |outputs, wide, most_rows| Products { shape: WeightShape { outputs, inputs: 64, wide, back: false }, most_rows };
    let all = merged(&[products(96, false, 10), products(64, false, 10), products(96, true, 5), products(96, false, 20)]);
    assert_eq!(all, [products(96, false, 20), products(64, false, 10), products(96, true, 5)]);
}

/// Rows of 6 bytes, 8 apart; the reference repeats after 5 rows.
fn unlike() {
    let (stride, width, period, rows) = (8, 6, 5, 13);
    let mut numbers = Numbers(3);
    let reference: Vec<u8> = (0..period * stride).map(|_| numbers.next() as u8).collect();
    let whole: Vec<u8> = (0..rows * stride).map(|i| reference[i % reference.len()]).collect();
    assert_eq!(first_unlike(&reference, &whole, 0, stride, width), None);
    for first in 0..rows {
        assert_eq!(first_unlike(&reference, &whole[first * stride..], first, stride, width), None);
    }
    for row in 0..rows {
        for byte in 0..stride {
            let mut twin = whole.clone();
            twin[row * stride + byte] ^= 1;
            // Padding has no bits that matter.
            let want = (byte < width).then_some(row);
            assert_eq!(first_unlike(&reference, &twin, 0, stride, width), want);
        }
    }
    // Rows that stand one further down are other rows.
    assert_eq!(first_unlike(&reference, &whole, 1, stride, width), Some(1));
}

fn far() {
    let own: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin() * 10.0).collect();
    assert_eq!(first_far(&own, &own, 1024), None);
    let rounded: Vec<f32> = own.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    assert_eq!(first_far(&own, &rounded, 1024), None);
    let mut twin = own.clone();
    twin[70] += 2.0;
    assert_eq!(first_far(&own, &twin, 1024), Some(70));
    twin[30] = f32::NAN;
    assert_eq!(first_far(&own, &twin, 1024), Some(30));
}

/// One chain, and four chains that are added at the end.
fn orders() {
    let (rows, inputs) = (4, 512);
    let values = |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect() };
    let x = values(&probe(2, rows, inputs, |_| true, -1.0));
    let w = values(&probe(1, 64, inputs, |row| row % 2 == 1, 1.0));
    assert!(x.iter().chain(&w).all(|v| v.abs() <= 1.0));
    let chain = |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w);
    let split = |x: &[f32], w: &[f32]| x.chunks(inputs / 4).zip(w.chunks(inputs / 4)).fold(0.0, |sum, (x, w)| sum + chain(x, w));
    let (mut seen, mut ordinary) = (0, 0);
    for x in x.chunks(inputs) {
        for (row, w) in w.chunks(inputs).enumerate() {
            let [a, b] = [chain(x, w), split(x, w)].map(|v| bf16::from_f32(v).to_bits());
            match row % 2 {
                1 => seen += usize::from(a != b),
                _ => ordinary += usize::from(a != b),
            }
        }
    }
    assert!(seen > 64, "{seen} of 128 sums show their order");
    assert!(ordinary < 10, "{ordinary} of 128 ordinary sums do too, which is more than a rounding explains");
}

fn own() {
    let mut ops = cuda();
    assert!(ops.numerics_id().ends_with("-own"), "{}", ops.numerics_id());
    let shape = WeightShape { outputs: 64, inputs: 64, wide: false, back: false };
    ops.prepare_products(GemmChoice::Own, &[Products { shape, most_rows: 64 }]).unwrap();
    assert!(ops.numerics_id().ends_with("-own"), "{}", ops.numerics_id());
    assert_well(&ops);
}

/// Where there is cuBLASLt, its products are right, and a row has the bits that it has alone; where there is none, this is said in a sentence.
fn on_the_card() {
    let shapes = [(128, 64, false), (256, 136, false), (1000, 64, true), (7, 17, false)];
    let rows = 300;
    let forward = shapes.map(|(outputs, inputs, wide)| WeightShape { outputs, inputs, wide, back: false });
    // Fewer than the rows that come: a product is then several.
    let most_rows = 280;
    let products: Vec<Products> =
        forward.into_iter().flat_map(|shape| [shape, shape.backwards()]).map(|shape| Products { shape, most_rows }).collect();
    let mut ops = cuda();
    ops.prepare_products(GemmChoice::Auto, &products).unwrap_or_else(|e| panic!("{e}"));
    assert_well(&ops);
    match ops.prepare_products(GemmChoice::Cublaslt, &products) {
        Ok(()) => assert!(ops.numerics_id().contains("-lt-") || ops.numerics_id().ends_with("-own"), "{}", ops.numerics_id()),
        Err(reason) => {
            assert!(reason.to_string().contains("cuBLASLt"), "{reason}");
            assert!(ops.numerics_id().ends_with("-own"), "{}", ops.numerics_id());
        }
    }
    let mut numbers = Numbers(11);
    for (outputs, inputs, wide) in shapes {
        let (x, w) = (numbers.many(rows * inputs, 1.5), bf16_bytes(&numbers.many(outputs * inputs, 1.0)));
        let matrix = ops.matrix(&[view(&w, &[outputs, inputs])]);
        let mut product = |x: &[f32]| {
            let rows = x.len() / inputs;
            let mut out = if wide { ops.wide_tensor(rows, outputs) } else { ops.tensor(rows, outputs) };
            let x = card_tensor(&ops, rows, inputs, x);
            ops.linear(&x, &matrix, &mut out);
            ops.read(&out)
        };
        let together = product(&x);
        let what = || format!("[{outputs}, {inputs}]");
        for row in [0, 16, rows - 1] {
            assert_same(&what, &product(&x[row * inputs..][..inputs]), &together[row * outputs..][..outputs]);
        }
        let mut exact = cpu();
        let mut want = exact.tensor(rows, outputs);
        exact.linear(&cpu_tensor(&exact, rows, inputs, &x), &exact.matrix(&[view(&w, &[outputs, inputs])]), &mut want);
        let want = cpu_values(&want);
        match wide {
            true => assert!(nmse(&together, &want) < 1e-12, "{}: {:.2e}", what(), nmse(&together, &want)),
            false => assert_near(&what, &together, &want, &rounded(&want)),
        }
        // And back, from gradients of the same size.
        let dy = numbers.many(rows * outputs, 1.5);
        let mut product = |dy: &[f32]| {
            let rows = dy.len() / outputs;
            let mut dx = ops.tensor(rows, inputs);
            let dy = card_tensor(&ops, rows, outputs, dy);
            ops.linear_dx(&dy, &matrix, &mut dx);
            ops.read(&dx)
        };
        let together = product(&dy);
        for row in [0, 16, rows - 1] {
            assert_same(&what, &product(&dy[row * outputs..][..outputs]), &together[row * inputs..][..inputs]);
        }
        let mut want = exact.tensor(rows, inputs);
        exact.linear_dx(&cpu_tensor(&exact, rows, outputs, &dy), &exact.matrix(&[view(&w, &[outputs, inputs])]), &mut want);
        let want = cpu_values(&want);
        assert_near(&what, &together, &want, &rounded(&want));
    }
    assert_well(&ops);
}
