//! Own `exp`, `ln` and `ln(1 - v)`: the same bits on every machine, in every instruction set, one value at a time or sixteen.
//!
//! They are straight-line f32 code (FMA, add, multiply, bit operations, selects), so a compiler may turn loops over them into vectors
//! and cannot change their results. Coefficients: Cephes (Moshier), `expf` and `logf`. NaN goes in, NaN comes out.

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 = LN2_HI + LN2_LO; the high part has few bits, so that multiples of it by a small integer are exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;

/// e^x. Relative error below 2e-7 where the result is normal; below -87.3 it is 0, above 88.3 it stays at its largest value.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let clamped = if x > 88.3 { 88.3 } else { x };
    let clamped = if clamped < -87.3 { -87.3 } else { clamped };
    let shifted = clamped.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HI, clamped);
    let r = n.mul_add(-LN2_LO, r);
    let mut p = 1.987_569_2e-4_f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 5.0e-1);
    let y = p.mul_add(r * r, r) + 1.0;
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    let y = y * scale;
    if x < -87.3 { 0.0 } else { y }
}

/// Natural logarithm of a positive normal number; anything else gives NaN. Absolute error below 1e-7 near 1, relative below 2e-7 elsewhere.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // x = m 2^e with m in [sqrt(1/2), sqrt(2))
    let e = (bits >> 23) as i32 - 126;
    let m = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let small = m < std::f32::consts::FRAC_1_SQRT_2;
    let e = e as f32 - if small { 1.0 } else { 0.0 };
    let m = if small { m + m - 1.0 } else { m - 1.0 };
    let z = m * m;
    let mut p = 7.037_683_6e-2_f32;
    p = p.mul_add(m, -1.151_461e-1);
    p = p.mul_add(m, 1.167_699_9e-1);
    p = p.mul_add(m, -1.242_014_1e-1);
    p = p.mul_add(m, 1.424_932_3e-1);
    p = p.mul_add(m, -1.666_805_8e-1);
    p = p.mul_add(m, 2.000_071_5e-1);
    p = p.mul_add(m, -2.499_999_4e-1);
    p = p.mul_add(m, 3.333_333e-1);
    let y = p * m * z;
    let y = e.mul_add(LN2_LO, y);
    let y = z.mul_add(-0.5, y);
    let y = e.mul_add(LN2_HI, m + y);
    if (f32::MIN_POSITIVE..=f32::MAX).contains(&x) { y } else { f32::NAN }
}

/// ln(1 - v) for 0 < v < 1, accurate for the smallest v: ln of the rounded difference plus a first-order correction of the rounding.
#[inline(always)]
pub fn ln_1m(v: f32) -> f32 {
    let u = 1.0 - v;
    let lost = (1.0 - u) - v;
    ln(u) + lost / u
}

/// Sum of 16 lanes by the house's tree: 8, 4, 2, 1.
#[inline(always)]
pub(crate) fn tree_sum<T: Copy + std::ops::AddAssign>(mut lanes: [T; 16]) -> T {
    for half in [8, 4, 2, 1] {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
    }
    lanes[0]
}
