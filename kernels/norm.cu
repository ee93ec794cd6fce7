// RMSNorm of rows, alone or of a sum: out = w * (x * scale) with scale = 1 / sqrt(mean(x^2) + eps) in f32, rounded to bf16 once.
//
// grid rows, T threads (see README.md), 128 bytes of shared memory; `add`: 128 threads, none. One block does one row and keeps it in registers as
// bf16 pairs. Thread t holds the chunks of 8 columns t, t + T, ...: one chunk where T < 1024, up to four at 1024 threads (32768 columns).
//
// Bits: a thread sums its squares in ascending columns by FMA, then a tree over the lanes of a warp, then the same tree over the warps. T follows
// from the width, so the width alone fixes the order.
#include "common.cuh"

static constexpr u32 CHUNKS = 4;

// Eight columns from `first` on, in pairs; what lies beyond the width is 0 and is not read.
DEV void load_chunk(u32 (&pairs)[4], const bf16* row, u32 first, u32 cols) {
    if (first + 8 <= cols) {
        const Quad q = *(const Quad*)(row + first);
        pairs[0] = q.x, pairs[1] = q.y, pairs[2] = q.z, pairs[3] = q.w;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 c = first + 2 * i;
        pairs[i] = (c < cols ? (u32)row[c] : 0u) | (c + 1 < cols ? (u32)row[c + 1] << 16 : 0u);
    }
}

DEV void store_chunk(bf16* row, const u32 (&pairs)[4], u32 first, u32 cols) {
    if (first + 8 <= cols) {
        *(Quad*)(row + first) = Quad{pairs[0], pairs[1], pairs[2], pairs[3]};
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 c = first + 2 * i;
        if (c < cols) row[c] = (bf16)pairs[i];
        if (c + 1 < cols) row[c + 1] = (bf16)(pairs[i] >> 16);
    }
}

DEV void add_chunk(u32 (&x)[4], const u32 (&delta)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[i] = pack_bf16(low_f32(x[i]) + low_f32(delta[i]), high_f32(x[i]) + high_f32(delta[i]));
}

DEV float block_sum(float x, float* sums) {
    x = warp_sum(x);
    if (LANE == 0) sums[WARP] = x;
    block_sync();
    return warp_sum(LANE < THREADS / 32 ? sums[LANE] : 0.0f);
}

// The norm of x, or of x + delta; the sum replaces x, rounded, and it is the rounded sum whose norm is taken.
template <bool ADDS>
DEV void norm_row(bf16* out, const bf16* x, bf16* sum, const bf16* delta, const bf16* weight, float eps, u32 cols) {
    SHARED_BYTES(memory);

    u32 kept[CHUNKS][4] = {};
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < CHUNKS; j++) {
        const u32 first = 8 * (THREAD + j * THREADS);
        if (first < cols) {
            load_chunk(kept[j], x, first, cols);
            if (ADDS) {
                u32 other[4];
                load_chunk(other, delta, first, cols);
                add_chunk(kept[j], other);
                store_chunk(sum, kept[j], first, cols);
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const float low = low_f32(kept[j][i]), high = high_f32(kept[j][i]);
                squares = fma_rn(low, low, squares);
                squares = fma_rn(high, high, squares);
            }
        }
    }

    const float mean = div_rn(block_sum(squares, (float*)memory), (float)cols);
    const float scale = div_rn(1.0f, sqrt_rn(mean + eps));
#pragma unroll
    for (u32 j = 0; j < CHUNKS; j++) {
        const u32 first = 8 * (THREAD + j * THREADS);
        if (first < cols) {
            u32 w[4];
            load_chunk(w, weight, first, cols);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                w[i] = pack_bf16(low_f32(w[i]) * (low_f32(kept[j][i]) * scale), high_f32(w[i]) * (high_f32(kept[j][i]) * scale));
            }
            store_chunk(out, w, first, cols);
        }
    }
}

KERNEL(rmsnorm)(bf16* out, u32 out_stride, const bf16* x, u32 x_stride, const bf16* weight, float eps, u32 cols) {
    norm_row<false>(out + (u64)BLOCK_X * out_stride, x + (u64)BLOCK_X * x_stride, nullptr, nullptr, weight, eps, cols);
}
EXPORT(rmsnorm)

KERNEL(add_rmsnorm)
(bf16* out, u32 out_stride, bf16* residual, u32 residual_stride, const bf16* delta, u32 delta_stride, const bf16* weight, float eps, u32 cols) {
    bf16* const x = residual + (u64)BLOCK_X * residual_stride;
    norm_row<true>(out + (u64)BLOCK_X * out_stride, x, x, delta + (u64)BLOCK_X * delta_stride, weight, eps, cols);
}
EXPORT(add_rmsnorm)

// x += delta, rounded once.
KERNEL(add)(bf16* x, u32 x_stride, const bf16* delta, u32 delta_stride, u32 cols) {
    bf16* const to = x + (u64)BLOCK_X * x_stride;
    const bf16* const from = delta + (u64)BLOCK_X * delta_stride;
    for (u32 first = 8 * THREAD; first < cols; first += 8 * THREADS) {
        u32 sum[4], other[4];
        load_chunk(sum, to, first, cols);
        load_chunk(other, from, first, cols);
        add_chunk(sum, other);
        store_chunk(to, sum, first, cols);
    }
}
EXPORT(add)
