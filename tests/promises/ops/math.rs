//! The project's own exponentials and logarithms, beside f64.

use adaroll::ops::cpu::math::{exp, ln, ln_1m};

#[test]
fn exp_is_close_to_f64() {
    let mut worst = 0f64;
    let mut x = -87.2f32;
    while x < 88.2 {
        let want = f64::from(x).exp();
        worst = worst.max((f64::from(exp(x)) - want).abs() / want);
        x += 0.003_7;
    }
    assert!(worst < 2e-7, "worst relative error {worst}");
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(-88.0), 0.0);
    assert!(exp(f32::NAN).is_nan());
    assert!(exp(f32::INFINITY).is_finite());
}

#[test]
fn ln_is_close_to_f64() {
    let mut worst = 0f64;
    let mut x = 1e-30f32;
    while x < 1e30 {
        let want = f64::from(x).ln();
        worst = worst.max((f64::from(ln(x)) - want).abs() / want.abs().max(1.0));
        x *= 1.000_91;
    }
    assert!(worst < 2e-7, "worst error {worst}");
    assert!(ln(0.0).is_nan() && ln(-1.0).is_nan() && ln(f32::NAN).is_nan() && ln(f32::INFINITY).is_nan());
}

#[test]
fn ln_1m_is_relatively_accurate_down_to_the_smallest_uniform() {
    let mut v = 2f32.powi(-33);
    while v < 1.0 - 2f32.powi(-24) {
        let want = (-f64::from(v)).ln_1p();
        let error = (f64::from(ln_1m(v)) - want).abs() / want.abs();
        assert!(error < 6e-7, "v {v}: relative error {error}");
        v *= 1.01;
    }
}
