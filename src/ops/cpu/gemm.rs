//! `out = x W^T` over packed panels. Every element is one chain of FMA over ascending inputs that starts at +0, whatever the number of
//! rows, the tile it falls in, the thread and the instruction set.
//!
//! Few rows (up to one tile): weights stream from memory once and are widened in registers. Many rows: a block of a panel is widened into
//! the first-level cache and reused by all tiles of rows; a chain goes on through `out`, which holds it exactly.

use super::isa::Isa;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Plain};
use super::matrix::{Matrix, PANEL, Panels};
use super::pool::Pool;
use super::tensor::{Shared, Tensor};

/// Inputs of a widened block: 128 inputs x 2 panels x 64 bytes = 16 KiB, half of a first-level cache.
const BLOCK: usize = 128;

/// A weight as it is stored.
pub(super) trait Weight: Copy {
    unsafe fn load<L: Lanes>(p: *const Self) -> L;
}
impl Weight for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const f32) -> L {
        // SAFETY: the caller guarantees 16 readable values and the features of L.
        unsafe { L::load(p) }
    }
}
impl Weight for u16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u16) -> L {
        // SAFETY: the caller guarantees 16 readable values and the features of L.
        unsafe { L::load_bf16(p) }
    }
}

/// `c[m][16 p ..] (+)= sum_i a[m][i] * w[p][i]` for MR rows and NP panels. With `fresh` the chains start at +0, else at `c`.
///
/// # Safety
/// `a` has MR rows of `k` values at stride `lda`; `w[p]` has `16 k` values; `c` has MR rows of `16 NP` values at stride `ldc`; the machine has
/// the features of `L`.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, W: Weight, const MR: usize, const NP: usize>(
    a: *const f32,
    lda: usize,
    w: [*const W; NP],
    k: usize,
    c: *mut f32,
    ldc: usize,
    fresh: bool,
) {
    // SAFETY: all accesses are within what the caller guarantees.
    unsafe {
        let mut acc = [[L::zero(); NP]; MR];
        if !fresh {
            for (m, row) in acc.iter_mut().enumerate() {
                for (p, v) in row.iter_mut().enumerate() {
                    *v = L::load(c.add(m * ldc + p * PANEL));
                }
            }
        }
        for i in 0..k {
            let b: [L; NP] = std::array::from_fn(|p| W::load(w[p].add(i * PANEL)));
            for (m, row) in acc.iter_mut().enumerate() {
                let s = *a.add(m * lda + i);
                for (v, bp) in row.iter_mut().zip(b) {
                    *v = v.fma(s, bp);
                }
            }
        }
        for (m, row) in acc.iter().enumerate() {
            for (p, v) in row.iter().enumerate() {
                v.store(c.add(m * ldc + p * PANEL));
            }
        }
    }
}

/// Calls `$f::<.., MR, NP>` with MR = `$m`, for the row counts listed.
macro_rules! with_rows {
    ($m:expr, [$($n:literal)*], $call:ident) => {
        match $m { $($n => $call!($n),)* _ => unreachable!("a tile holds at most its maximum of rows") }
    };
}

/// One task: some neighbouring panels, all rows.
///
/// # Safety
/// The rows `m` of `x` and `out` and the panels exist; other tasks touch other panels; the machine has the features.
macro_rules! task_for {
    ($name:ident, $tile:ident, $lanes:ty, $feature:literal, max $max:literal, rows [$($rows:literal)*], wide [$($wide:literal)*] x $np:literal, block $nb:literal) => {
        /// One instance of [`tile`], compiled on its own: inlined into its callers it would be repeated many times.
        ///
        /// # Safety
        /// As for [`tile`].
        #[inline(never)]
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        pub(super) unsafe fn $tile<W: Weight, const MR: usize, const NP: usize>(
            a: *const f32, lda: usize, w: [*const W; NP], k: usize, c: *mut f32, ldc: usize, fresh: bool,
        ) {
            // SAFETY: the caller guarantees the extents; the features are enabled.
            unsafe { tile::<$lanes, W, MR, NP>(a, lda, w, k, c, ldc, fresh) }
        }

        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        unsafe fn $name<W: Weight>(x: *const f32, lda: usize, rows: usize, w: *const W, k: usize, first: usize, end: usize, out: *mut f32, ldc: usize) {
            // SAFETY: the caller guarantees the extents; tiles stay within them.
            unsafe {
                let panel = |p: usize| w.add(p * k * PANEL);
                if rows <= $max {
                    let mut p = first;
                    $(
                        if rows == $wide {
                            while end - p >= $np {
                                let panels: [*const W; $np] = std::array::from_fn(|i| panel(p + i));
                                $tile::<W, $wide, $np>(x, lda, panels, k, out.add(p * PANEL), ldc, true);
                                p += $np;
                            }
                        }
                    )*
                    while end - p >= $nb {
                        let panels: [*const W; $nb] = std::array::from_fn(|i| panel(p + i));
                        macro_rules! call { ($n:literal) => { $tile::<W, $n, $nb>(x, lda, panels, k, out.add(p * PANEL), ldc, true) } }
                        with_rows!(rows, [$($rows)*], call);
                        p += $nb;
                    }
                    while p < end {
                        macro_rules! call { ($n:literal) => { $tile::<W, $n, 1>(x, lda, [panel(p)], k, out.add(p * PANEL), ldc, true) } }
                        with_rows!(rows, [$($rows)*], call);
                        p += 1;
                    }
                    return;
                }
                let tiles = rows.div_ceil($max);
                let mut widened = Widened([0.0; 2 * BLOCK * PANEL]);
                let mut p = first;
                while p < end {
                    let np = $nb.min(end - p);
                    let mut k0 = 0;
                    while k0 < k {
                        let kb = BLOCK.min(k - k0);
                        let block = widened.0.as_mut_ptr();
                        for j in 0..np {
                            let from = panel(p + j).add(k0 * PANEL);
                            for i in 0..kb {
                                W::load::<$lanes>(from.add(i * PANEL)).store(block.add((j * BLOCK + i) * PANEL));
                            }
                        }
                        let mut row = 0;
                        for t in 0..tiles {
                            // Tiles of nearly equal height.
                            let height = (rows - row).div_ceil(tiles - t);
                            let (a, c) = (x.add(row * lda + k0), out.add(row * ldc + p * PANEL));
                            if np == $nb {
                                let panels: [*const f32; $nb] = std::array::from_fn(|j| block.add(j * BLOCK * PANEL).cast_const());
                                macro_rules! call { ($n:literal) => { $tile::<f32, $n, $nb>(a, lda, panels, kb, c, ldc, k0 == 0) } }
                                with_rows!(height, [$($rows)*], call);
                            } else {
                                macro_rules! call { ($n:literal) => { $tile::<f32, $n, 1>(a, lda, [block.cast_const()], kb, c, ldc, k0 == 0) } }
                                with_rows!(height, [$($rows)*], call);
                            }
                            row += height;
                        }
                        k0 += kb;
                    }
                    p += np;
                }
            }
        }
    };
}

/// A widened block of up to two panels.
#[repr(C, align(64))]
struct Widened([f32; 2 * BLOCK * PANEL]);

#[cfg(target_arch = "x86_64")]
task_for!(task_avx512, tile_avx512, Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", max 14, rows [1 2 3 4 5 6 7 8 9 10 11 12 13 14], wide [1 2 3 4] x 4, block 2);
#[cfg(target_arch = "x86_64")]
task_for!(task_avx2, tile_avx2, Avx2, "avx2,fma", max 6, rows [1 2 3 4 5 6], wide [1] x 4, block 1);
#[cfg(target_arch = "x86_64")]
task_for!(task_plain, tile_plain, Plain, "sse2", max 4, rows [1 2 3 4], wide [] x 1, block 1);
#[cfg(not(target_arch = "x86_64"))]
task_for!(task_plain, tile_plain, Plain, "", max 4, rows [1 2 3 4], wide [] x 1, block 1);

/// `out = x W^T`, `x` `[rows, inputs]`, `out` `[rows, outputs]`.
pub(super) fn linear(isa: Isa, pool: &mut Pool, x: &Tensor, w: &Matrix, out: &mut Tensor) {
    assert!(x.cols == w.inputs && out.cols == w.outputs && out.rows == x.rows, "linear: shapes do not fit");
    match &w.panels {
        Panels::Bf16(p) => run(isa, pool, x, p.as_ptr(), w, out),
        Panels::F32(p) => run(isa, pool, x, p.as_ptr(), w, out),
    }
}

fn run<W: Weight + Send + Sync>(isa: Isa, pool: &mut Pool, x: &Tensor, weights: *const W, w: &Matrix, out: &mut Tensor) {
    let panels = w.outputs.div_ceil(PANEL);
    let per_task = (panels / (8 * pool.threads())).clamp(2, 16).next_multiple_of(2);
    let (rows, k, lda, ldc) = (x.rows, w.inputs, x.stride, out.stride);
    if rows == 0 {
        return;
    }
    let a = Shared(x.data.as_ptr().cast_mut());
    let b = Shared(weights.cast_mut());
    let c = Shared(out.data.as_mut_ptr());
    pool.run(panels.div_ceil(per_task), &|task, _| {
        let first = task * per_task;
        let end = (first + per_task).min(panels);
        // SAFETY: x has `rows` rows of `k` values, the matrix has `panels` panels of `16 k` values, `out` has rows padded to whole panels; the
        // task writes only columns 16 first .. 16 end; the Isa was detected.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => task_avx512(a.get(), lda, rows, b.get().cast_const(), k, first, end, c.get(), ldc),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => task_avx2(a.get(), lda, rows, b.get().cast_const(), k, first, end, c.get(), ldc),
                _ => task_plain(a.get(), lda, rows, b.get().cast_const(), k, first, end, c.get(), ldc),
            }
        }
    });
}
