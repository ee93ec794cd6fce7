//! Products of the backward pass, out of the forward's tiles: `dx = dy W` over the packed weights as they are, blocks of them turned round in
//! the first-level cache; and `dw += dy^T x`, whose blocks of `x` are copied there. Every element is one FMA chain in the order that
//! [`crate::ops::TrainOps`] gives, whatever tile, thread and instruction set computes it.

use std::ops::Range;

use crate::ops::cpu::gemm::{Weight, tile_plain};
#[cfg(target_arch = "x86_64")]
use crate::ops::cpu::gemm::{tile_avx2, tile_avx512};
use crate::ops::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::ops::cpu::lanes::{Avx2, Avx512};
use crate::ops::cpu::lanes::{Lanes, Plain};
use crate::ops::cpu::matrix::{Matrix, PANEL, Panels};
use crate::ops::cpu::pool::Pool;
use crate::ops::cpu::tensor::{Shared, Tensor};

/// Length of the chains that one visit of a tile adds: 128 x 2 panels x 64 bytes = 16 KiB, half of a first-level cache.
const BLOCK: usize = 128;

/// A block of up to two panels in the first-level cache.
#[repr(C, align(64))]
struct Block([f32; 2 * BLOCK * PANEL]);

/// Room for one panel of a tile whose columns end within a panel.
#[repr(C, align(64))]
struct Edge([f32; 16 * PANEL]);

/// `c[m][16 p ..] += sum_i a[i][m] * w[p][i]`, chains going on from `c`: the tile for a left factor that lies transposed.
///
/// # Safety
/// `a` has `k` rows of MR values at stride `lda`; `w[p]` has `k` rows of 16 at stride `ldw`; `c` has MR rows of `16 NP` values at stride `ldc`; the
/// machine has the features of `L`.
#[inline(always)]
unsafe fn tile_t<L: Lanes, const MR: usize, const NP: usize>(
    a: *const f32,
    lda: usize,
    w: [*const f32; NP],
    ldw: usize,
    k: usize,
    c: *mut f32,
    ldc: usize,
) {
    // SAFETY: all accesses are within what the caller guarantees.
    unsafe {
        let mut acc = [[L::zero(); NP]; MR];
        for (m, row) in acc.iter_mut().enumerate() {
            for (p, v) in row.iter_mut().enumerate() {
                *v = L::load(c.add(m * ldc + p * PANEL));
            }
        }
        for i in 0..k {
            let b: [L; NP] = std::array::from_fn(|p| L::load(w[p].add(i * ldw)));
            let a = a.add(i * lda);
            for (m, row) in acc.iter_mut().enumerate() {
                let s = *a.add(m);
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

/// A left factor and where the product goes. `a` is `[rows, k]`, or `[k, rows]` where it is used transposed.
#[derive(Clone, Copy)]
pub(super) struct Factor {
    pub(super) a: *const f32,
    pub(super) lda: usize,
    pub(super) rows: usize,
    pub(super) k: usize,
}

/// Panels of a right factor: panel `p` starts at `w + p * panel` and has rows of 16 values at stride `step`.
#[derive(Clone, Copy)]
pub(super) struct Right {
    pub(super) w: *const f32,
    pub(super) panel: usize,
    pub(super) step: usize,
    pub(super) panels: usize,
}

macro_rules! with_rows {
    ($m:expr, [$($n:literal)*], $call:ident) => {
        match $m { $($n => $call!($n),)* _ => unreachable!("a tile holds at most its maximum of rows") }
    };
}

macro_rules! products_for {
    ($product:ident, $product_t:ident, $tile_t:ident, $dx:ident, $dw:ident, $tile:ident, $lanes:ty, $feature:literal,
     max $max:literal, rows [$($rows:literal)*], block $nb:literal) => {
        /// # Safety
        /// As for [`tile_t`].
        #[inline(never)]
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        unsafe fn $tile_t<const MR: usize, const NP: usize>(
            a: *const f32, lda: usize, w: [*const f32; NP], ldw: usize, k: usize, c: *mut f32, ldc: usize,
        ) {
            // SAFETY: the caller guarantees the extents; the features are enabled.
            unsafe { tile_t::<$lanes, MR, NP>(a, lda, w, ldw, k, c, ldc) }
        }

        /// `c (+)= a w` for all rows and panels.
        ///
        /// # Safety
        /// The factors are as described, `right.step` is 16; `c` has `rows` rows of `16 panels` values; the machine has the features.
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        unsafe fn $product(left: Factor, right: Right, c: *mut f32, ldc: usize, fresh: bool) {
            let tiles = left.rows.div_ceil($max);
            let mut p = 0;
            while p < right.panels {
                let np = $nb.min(right.panels - p);
                let mut row = 0;
                for t in 0..tiles {
                    let height = (left.rows - row).div_ceil(tiles - t);
                    // SAFETY: within the extents that the caller guarantees.
                    unsafe {
                        let (a, c) = (left.a.add(row * left.lda), c.add(row * ldc + p * PANEL));
                        let w = |j: usize| right.w.add((p + j) * right.panel);
                        if np == $nb {
                            let w: [*const f32; $nb] = std::array::from_fn(w);
                            macro_rules! call { ($n:literal) => { $tile::<f32, $n, $nb>(a, left.lda, w, left.k, c, ldc, fresh) } }
                            with_rows!(height, [$($rows)*], call);
                        } else {
                            macro_rules! call { ($n:literal) => { $tile::<f32, $n, 1>(a, left.lda, [w(0)], left.k, c, ldc, fresh) } }
                            with_rows!(height, [$($rows)*], call);
                        }
                    }
                    row += height;
                }
                p += np;
            }
        }

        /// `c += a^T w` for all rows and panels.
        ///
        /// # Safety
        /// The factors are as described; `c` has `rows` rows of `16 panels` values; the machine has the features.
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        unsafe fn $product_t(left: Factor, right: Right, c: *mut f32, ldc: usize) {
            let tiles = left.rows.div_ceil($max);
            let mut p = 0;
            while p < right.panels {
                let np = $nb.min(right.panels - p);
                let mut row = 0;
                for t in 0..tiles {
                    let height = (left.rows - row).div_ceil(tiles - t);
                    // SAFETY: within the extents that the caller guarantees.
                    unsafe {
                        let (a, c) = (left.a.add(row), c.add(row * ldc + p * PANEL));
                        let w = |j: usize| right.w.add((p + j) * right.panel);
                        if np == $nb {
                            let w: [*const f32; $nb] = std::array::from_fn(w);
                            macro_rules! call { ($n:literal) => { $tile_t::<$n, $nb>(a, left.lda, w, right.step, left.k, c, ldc) } }
                            with_rows!(height, [$($rows)*], call);
                        } else {
                            macro_rules! call { ($n:literal) => { $tile_t::<$n, 1>(a, left.lda, [w(0)], right.step, left.k, c, ldc) } }
                            with_rows!(height, [$($rows)*], call);
                        }
                    }
                    row += height;
                }
                p += np;
            }
        }

        /// Panels `first..end` of the inputs, all rows of `dy`.
        ///
        /// # Safety
        /// `dy` has `rows` rows of `outputs` values; `w` has the panels of `[outputs, inputs]`; `dx` has rows padded to whole panels, whose columns
        /// `16 first .. 16 end` no other task touches; the machine has the features.
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        unsafe fn $dx<W: Weight>(dy: Factor, w: *const W, inputs: usize, first: usize, end: usize, dx: *mut f32, ldx: usize) {
            let outputs = dy.k;
            let mut block = Block([0.0; 2 * BLOCK * PANEL]);
            let block = block.0.as_mut_ptr();
            let mut p = first;
            while p < end {
                let np = $nb.min(end - p);
                let mut n0 = 0;
                while n0 < outputs {
                    let n = BLOCK.min(outputs - n0);
                    // SAFETY: within the extents that the caller guarantees; a chain's block starts at a multiple of 16 outputs.
                    unsafe {
                        for j in 0..np {
                            let width = PANEL.min(inputs - (p + j) * PANEL);
                            for b in 0..n.div_ceil(PANEL) {
                                let from = w.add(((n0 / PANEL + b) * inputs + (p + j) * PANEL) * PANEL);
                                turn::<$lanes, W>(from, width, block.add((j * BLOCK + b * PANEL) * PANEL));
                            }
                        }
                        let left = Factor { a: dy.a.add(n0), k: n, ..dy };
                        let right = Right { w: block, panel: BLOCK * PANEL, step: PANEL, panels: np };
                        $product(left, right, dx.add(p * PANEL), ldx, n0 == 0);
                    }
                    n0 += n;
                }
                p += np;
            }
        }

        /// Rows `columns` of the gradient, all inputs.
        ///
        /// # Safety
        /// `dy` has `k` rows with the values `columns`; `x` has `k` rows padded to whole panels; no other task touches these rows of `dw`
        /// `[.., inputs]`; the machine has the features.
        #[cfg_attr(target_arch = "x86_64", target_feature(enable = $feature))]
        unsafe fn $dw(dy: Factor, x: *const f32, ldx: usize, inputs: usize, dw: *mut f32) {
            let mut block = Block([0.0; 2 * BLOCK * PANEL]);
            let block = block.0.as_mut_ptr();
            let (whole, tail) = (inputs / PANEL, inputs % PANEL);
            let mut r0 = 0;
            while r0 < dy.k {
                let k = BLOCK.min(dy.k - r0);
                // SAFETY: within the extents that the caller guarantees.
                unsafe {
                    let left = Factor { a: dy.a.add(r0 * dy.lda), k, ..dy };
                    let gather = |p: usize, np: usize| {
                        for j in 0..np {
                            for r in 0..k {
                                let v = <$lanes>::load(x.add((r0 + r) * ldx + (p + j) * PANEL));
                                v.store(block.add((j * BLOCK + r) * PANEL));
                            }
                        }
                        Right { w: block, panel: BLOCK * PANEL, step: PANEL, panels: np }
                    };
                    let mut p = 0;
                    while p < whole {
                        let np = $nb.min(whole - p);
                        $product_t(left, gather(p, np), dw.add(p * PANEL), inputs);
                        p += np;
                    }
                    if tail > 0 {
                        let right = gather(p, 1);
                        let mut edge = Edge([0.0; 16 * PANEL]);
                        let edge = edge.0.as_mut_ptr();
                        let mut row = 0;
                        while row < dy.rows {
                            let rows = $max.min(dy.rows - row);
                            for m in 0..rows {
                                std::ptr::copy_nonoverlapping(dw.add((row + m) * inputs + p * PANEL), edge.add(m * PANEL), tail);
                            }
                            $product_t(Factor { a: left.a.add(row), rows, ..left }, right, edge, PANEL);
                            for m in 0..rows {
                                std::ptr::copy_nonoverlapping(edge.add(m * PANEL), dw.add((row + m) * inputs + p * PANEL), tail);
                            }
                            row += rows;
                        }
                    }
                }
                r0 += k;
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
products_for!(product_avx512, product_t_avx512, tile_t_avx512, dx_avx512, dw_avx512, tile_avx512, Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", max 14, rows [1 2 3 4 5 6 7 8 9 10 11 12 13 14], block 2);
#[cfg(target_arch = "x86_64")]
products_for!(product_avx2, product_t_avx2, tile_t_avx2, dx_avx2, dw_avx2, tile_avx2, Avx2, "avx2,fma", max 6, rows [1 2 3 4 5 6], block 1);
#[cfg(target_arch = "x86_64")]
products_for!(product_plain, product_t_plain, tile_t_plain, dx_plain, dw_plain, tile_plain, Plain, "sse2", max 4, rows [1 2 3 4], block 1);
#[cfg(not(target_arch = "x86_64"))]
products_for!(product_plain, product_t_plain, tile_t_plain, dx_plain, dw_plain, tile_plain, Plain, "", max 4, rows [1 2 3 4], block 1);

/// Turns 16 outputs x `width` inputs of a panel round: `to[i][j] = from[j][i]`, zero for inputs from `width` on.
///
/// # Safety
/// `from` has `16 width` values, `to` 256; the machine has the features of `L`.
#[inline(always)]
unsafe fn turn<L: Lanes, W: Weight>(from: *const W, width: usize, to: *mut f32) {
    let mut wide = [0f32; PANEL * PANEL];
    // SAFETY: within the extents that the caller guarantees.
    unsafe {
        for j in 0..width {
            W::load::<L>(from.add(j * PANEL)).store(wide.as_mut_ptr().add(j * PANEL));
        }
        for i in 0..PANEL {
            for j in 0..PANEL {
                *to.add(i * PANEL + j) = wide[j * PANEL + i];
            }
        }
    }
}

/// `c (+)= left right`. Without `fresh` the chains go on from `c`.
///
/// # Safety
/// The factors are as described, `right.step` is 16; `c` has `rows` rows of `16 panels` values at stride `ldc`; the Isa was detected.
pub(super) unsafe fn product(isa: Isa, left: Factor, right: Right, c: *mut f32, ldc: usize, fresh: bool) {
    debug_assert!(right.step == PANEL);
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => product_avx512(left, right, c, ldc, fresh),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => product_avx2(left, right, c, ldc, fresh),
            _ => product_plain(left, right, c, ldc, fresh),
        }
    }
}

/// `c += left^T right`.
///
/// # Safety
/// The factors are as described; `c` has `rows` rows of `16 panels` values at stride `ldc`; the Isa was detected.
pub(super) unsafe fn product_t(isa: Isa, left: Factor, right: Right, c: *mut f32, ldc: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => product_t_avx512(left, right, c, ldc),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => product_t_avx2(left, right, c, ldc),
            _ => product_t_plain(left, right, c, ldc),
        }
    }
}

/// See [`crate::ops::TrainOps::linear_dx`].
pub(super) fn linear_dx(isa: Isa, pool: &mut Pool, dy: &Tensor, w: &Matrix, dx: &mut Tensor) {
    assert!(dy.cols == w.outputs && dx.cols == w.inputs && dx.rows == dy.rows, "linear_dx: shapes do not fit");
    match &w.panels {
        Panels::Bf16(p) => dx_tasks(isa, pool, dy, p.as_ptr(), w, dx),
        Panels::F32(p) => dx_tasks(isa, pool, dy, p.as_ptr(), w, dx),
    }
}

fn dx_tasks<W: Weight + Send + Sync>(isa: Isa, pool: &mut Pool, dy: &Tensor, weights: *const W, w: &Matrix, dx: &mut Tensor) {
    if dy.rows == 0 {
        return;
    }
    let panels = w.inputs.div_ceil(PANEL);
    let per_task = (panels / (8 * pool.threads())).clamp(2, 16).next_multiple_of(2);
    let (rows, lda, inputs, outputs, ldx) = (dy.rows, dy.stride, w.inputs, w.outputs, dx.stride);
    let (a, b, c) = (Shared(dy.data.as_ptr().cast_mut()), Shared(weights.cast_mut()), Shared(dx.data.as_mut_ptr()));
    pool.run(panels.div_ceil(per_task), &|task, _| {
        let first = task * per_task;
        let end = (first + per_task).min(panels);
        let dy = Factor { a: a.get(), lda, rows, k: outputs };
        // SAFETY: the tensors and the matrix have these extents; each task has its own panels of `dx`; the Isa was detected.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => dx_avx512(dy, b.get().cast_const(), inputs, first, end, c.get(), ldx),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => dx_avx2(dy, b.get().cast_const(), inputs, first, end, c.get(), ldx),
                _ => dx_plain(dy, b.get().cast_const(), inputs, first, end, c.get(), ldx),
            }
        }
    });
}

/// Rows of the gradient that a task takes, at most: eight tiles of AVX-512.
const MOST_GRADIENT_ROWS: usize = 8 * GRADIENT_TILE;
/// Rows of a tile of AVX-512.
const GRADIENT_TILE: usize = 14;

/// See [`crate::ops::TrainOps::linear_dw`].
pub(super) fn linear_dw(
    isa: Isa,
    pool: &mut Pool,
    dy: &Tensor,
    rows: Range<usize>,
    columns: Range<usize>,
    x: &Tensor,
    x_row: usize,
    dw: &mut [f32],
) {
    let (outputs, inputs) = (columns.len(), x.cols);
    assert!(rows.end <= dy.rows && columns.end <= dy.cols && x_row + rows.len() <= x.rows, "linear_dw: shapes do not fit");
    assert!(dw.len() == outputs * inputs, "linear_dw: the gradient does not fit");
    if rows.is_empty() {
        return;
    }
    // As many tasks as threads, or a multiple of that, of nearly equal size.
    let tasks = outputs.div_ceil(MOST_GRADIENT_ROWS).next_multiple_of(pool.threads());
    let per_task = outputs.div_ceil(tasks).next_multiple_of(GRADIENT_TILE).min(MOST_GRADIENT_ROWS);
    let (lda, ldx, k) = (dy.stride, x.stride, rows.len());
    let a = Shared(dy.data[rows.start * lda + columns.start..].as_ptr().cast_mut());
    let b = Shared(x.data[x_row * ldx..].as_ptr().cast_mut());
    let c = Shared(dw.as_mut_ptr());
    pool.run(outputs.div_ceil(per_task), &|task, _| {
        let first = task * per_task;
        let mine = per_task.min(outputs - first);
        // SAFETY: the tensors and the gradient have these extents; each task has its own rows of the gradient; the Isa was detected.
        unsafe {
            let dy = Factor { a: a.get().add(first), lda, rows: mine, k };
            let dw = c.get().add(first * inputs);
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => dw_avx512(dy, b.get(), ldx, inputs, dw),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => dw_avx2(dy, b.get(), ldx, inputs, dw),
                _ => dw_plain(dy, b.get(), ldx, inputs, dw),
            }
        }
    });
}
