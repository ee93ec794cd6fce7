// What a trainer does to flat numbers: f32 masters, gradients and moments in the checkpoint's own layout, rows without padding. AdamW, sums, norms,
// rounding to what serves, adapters, and the hash of what serves.
//
// adamw, scale_values, add_values, sum_parts: any grid of 256 threads, best ceil(n / 1024): four numbers a thread. No shared memory.
// squares: grid ceil(n / 2^14), 256 threads, 64 bytes of shared memory. squares_finish: one block of 256 threads, 64 bytes.
// round_rows: grid rows, 128 threads, none. lora_merge: grid outputs, 128 threads, none.
// lora_da: grid (ceil(inputs / 32), ceil(rank / 8)), 256 threads, 8192 bytes. lora_db: grid ceil(outputs / 8), 256 threads, none.
// hash_rows: any grid of 256 threads, best about 1024 words a block, none.
//
// Flat arrays start on 256-byte boundaries (so do parts of them that count as arrays of their own, on 16 bytes at least); their rows may start
// anywhere. Counts of flat numbers are u64.
//
// Bits: adamw, scale_values, add_values, round_rows and lora_merge have those of src/ops/cpu/backward: every operation is rounded by itself.
// sum_parts adds ascending parts. squares: f64, a thread's numbers ascending, the tree of a warp, the eight warps in order; squares_finish takes
// the pieces the same way. lora_da: eight chains, chain w over outputs w, w + 8, ..., which are added in order. lora_db: a lane's inputs
// ascending, then the tree. hash_rows: sums of integers, which have no order.
#include "common.cuh"

static constexpr u32 VALUES_THREADS = 256, WARPS = VALUES_THREADS / 32;

struct __align__(16) Values {
    float x[4];
};

// Calls `whole` for every four numbers and `one` for each of the last three or fewer: a grid-stride walk over n.
template <class Whole, class One> DEV void walk(u64 n, const Whole& whole, const One& one) {
    const u64 index = (u64)BLOCK_X * THREADS + THREAD, step = (u64)BLOCKS_X * THREADS;
    for (u64 i = index; i < n / 4; i += step) whole(i);
    const u64 rest = n / 4 * 4 + index;
    if (rest < n) one(rest);
}

// An AdamW step's numbers, see AdamwFactors in src/ops/backward.rs; the gradient is multiplied by `factor` first.
struct Step {
    float factor, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, step_size;
};
DEV void step_one(float& p, float g, float& m, float& v, const Step& s) {
    g = g * s.factor;
    m = m + (g - m) * s.one_minus_beta1;
    v = v * s.beta2 + s.one_minus_beta2 * g * g;
    const float root = div_rn(sqrt_rn(v), s.root_correction) + s.eps;
    p = p * s.keep - div_rn(s.step_size * m, root);
}

KERNEL(adamw)
(float* p, const float* g, float* m, float* v, u64 n, float factor, float keep, float one_minus_beta1, float beta2, float one_minus_beta2,
 float root_correction, float eps, float step_size) {
    const Step step = {factor, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, step_size};
    walk(
        n,
        [&](u64 i) {
            Values p4 = ((Values*)p)[i], m4 = ((Values*)m)[i], v4 = ((Values*)v)[i];
            const Values g4 = ((const Values*)g)[i];
#pragma unroll
            for (u32 e = 0; e < 4; e++) step_one(p4.x[e], g4.x[e], m4.x[e], v4.x[e], step);
            ((Values*)p)[i] = p4, ((Values*)m)[i] = m4, ((Values*)v)[i] = v4;
        },
        [&](u64 i) { step_one(p[i], g[i], m[i], v[i], step); });
}
EXPORT(adamw)

KERNEL(scale_values)(float* x, u64 n, float factor) {
    walk(
        n,
        [&](u64 i) {
            Values values = ((Values*)x)[i];
#pragma unroll
            for (u32 e = 0; e < 4; e++) values.x[e] = values.x[e] * factor;
            ((Values*)x)[i] = values;
        },
        [&](u64 i) { x[i] = x[i] * factor; });
}
EXPORT(scale_values)

// to += from.
KERNEL(add_values)(float* to, const float* from, u64 n) {
    walk(
        n,
        [&](u64 i) {
            Values sum = ((Values*)to)[i];
            const Values other = ((const Values*)from)[i];
#pragma unroll
            for (u32 e = 0; e < 4; e++) sum.x[e] = sum.x[e] + other.x[e];
            ((Values*)to)[i] = sum;
        },
        [&](u64 i) { to[i] = to[i] + from[i]; });
}
EXPORT(add_values)

// out = ((part 0 + part 1) + part 2) + ..., at least one part, part_stride numbers apart. `out` may be one of the parts.
KERNEL(sum_parts)(float* out, const float* parts, u64 part_stride, u32 parts_count, u64 n) {
    const auto sum_one = [&](u64 i) {
        float sum = parts[i];
        for (u32 part = 1; part < parts_count; part++) sum = sum + parts[part * part_stride + i];
        out[i] = sum;
    };
    const auto sum_four = [&](u64 i) {
        // Other parts than the first start on 16-byte boundaries only where the stride is a multiple of 4.
        if (part_stride % 4 != 0 && parts_count > 1) {
            for (u32 e = 0; e < 4; e++) sum_one(4 * i + e);
            return;
        }
        Values sum = ((const Values*)parts)[i];
        for (u32 part = 1; part < parts_count; part++) {
            const Values other = ((const Values*)(parts + part * part_stride))[i];
#pragma unroll
            for (u32 e = 0; e < 4; e++) sum.x[e] = sum.x[e] + other.x[e];
        }
        ((Values*)out)[i] = sum;
    };
    walk(n, sum_four, sum_one);
}
EXPORT(sum_parts)

// Sums a value over the block's warps, in every thread. Once a kernel.
DEV double block_sum(double x, double* shared) {
    x = warp_sum(x);
    if (LANE == 0) shared[WARP] = x;
    block_sync();
    double sum = 0.0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) sum += shared[w];
    return sum;
}

static constexpr u32 PIECE = 1u << 14;

// sums[i] = the sum of squares of piece i.
KERNEL(squares)(double* sums, const float* x, u64 n) {
    SHARED_BYTES(memory);
    const u64 first = (u64)BLOCK_X * PIECE;
    const float* const piece = x + first;
    const u32 count = n - first < PIECE ? (u32)(n - first) : PIECE;
    double sum = 0.0;
#pragma unroll 4
    for (u32 i = THREAD; i < count / 4; i += VALUES_THREADS) {
        const Values values = ((const Values*)piece)[i];
#pragma unroll
        for (u32 e = 0; e < 4; e++) sum += (double)values.x[e] * (double)values.x[e];
    }
    const u32 rest = count / 4 * 4 + THREAD;
    if (rest < count) sum += (double)piece[rest] * (double)piece[rest];
    sum = block_sum(sum, (double*)memory);
    if (THREAD == 0) sums[BLOCK_X] = sum;
}
EXPORT(squares)

// The sum of n sums, 0 if there are none.
KERNEL(squares_finish)(double* total, const double* sums, u32 n) {
    SHARED_BYTES(memory);
    double sum = 0.0;
    for (u32 i = THREAD; i < n; i += VALUES_THREADS) sum += sums[i];
    sum = block_sum(sum, (double*)memory);
    if (THREAD == 0) *total = sum;
}
EXPORT(squares_finish)

// Row r of x [rows][cols], rounded to nearest, ties to even. `out` may start anywhere: a part of a joined vector does.
KERNEL(round_rows)(bf16* out, u32 out_stride, const float* x, u32 cols) {
    bf16* const to = out + (u64)BLOCK_X * out_stride;
    const float* const from = x + (u64)BLOCK_X * cols;
    const bool aligned = (u64)to % 16 == 0 && (u64)from % 16 == 0;
    const u32 whole = aligned ? cols / 8 : 0;
    for (u32 i = THREAD; i < whole; i += THREADS) {
        const Values a = ((const Values*)from)[2 * i], b = ((const Values*)from)[2 * i + 1];
        ((Quad*)to)[i] =
            Quad{pack_bf16(a.x[0], a.x[1]), pack_bf16(a.x[2], a.x[3]), pack_bf16(b.x[0], b.x[1]), pack_bf16(b.x[2], b.x[3])};
    }
    for (u32 i = whole * 8 + THREAD; i < cols; i += THREADS) to[i] = f32_bf16(from[i]);
}
EXPORT(round_rows)

// Row o of base + scale B A, rounded; A [rank][inputs], B [outputs][rank].
KERNEL(lora_merge)(bf16* out, u32 out_stride, const float* base, const float* a, const float* b, u32 rank, u32 inputs, float scale) {
    bf16* const to = out + (u64)BLOCK_X * out_stride;
    const float* const from = base + (u64)BLOCK_X * inputs;
    const float* const weights = b + (u64)BLOCK_X * rank;
    // Rows of flat arrays start on 16-byte boundaries only where the width is a multiple of 4.
    const u32 whole = inputs % 4 == 0 ? inputs / 4 : 0;
    for (u32 i = THREAD; i < whole; i += THREADS) {
        float sums[4] = {};
#pragma unroll 4
        for (u32 r = 0; r < rank; r++) {
            const Values values = ((const Values*)(a + (u64)r * inputs))[i];
#pragma unroll
            for (u32 e = 0; e < 4; e++) sums[e] = sums[e] + weights[r] * values.x[e];
        }
        const Values values = ((const Values*)from)[i];
#pragma unroll
        for (u32 e = 0; e < 4; e++) sums[e] = values.x[e] + scale * sums[e];
        *(u64*)(to + 4 * i) = (u64)pack_bf16(sums[0], sums[1]) | (u64)pack_bf16(sums[2], sums[3]) << 32;
    }
    for (u32 i = whole * 4 + THREAD; i < inputs; i += THREADS) {
        float sum = 0.0f;
        for (u32 r = 0; r < rank; r++) sum = sum + weights[r] * a[(u64)r * inputs + i];
        to[i] = f32_bf16(from[i] + scale * sum);
    }
}
EXPORT(lora_merge)

// Ranks that a block takes.
static constexpr u32 RANKS = 8;
static_assert(WARPS == RANKS, "a warp for each rank");

// da [rank][inputs] = scale B^T dw. A lane takes an input and eight ranks of it, a warp every eighth output.
KERNEL(lora_da)(float* da, const float* b, const float* dw, u32 rank, u32 outputs, u32 inputs, float scale) {
    SHARED_BYTES(memory);
    float* const shared = (float*)memory;
    const u32 input = BLOCK_X * 32 + LANE, first = BLOCK_Y * RANKS, ranks = min_of(RANKS, rank - first);
    float sums[RANKS] = {};
    if (input < inputs) {
#pragma unroll 4
        for (u32 o = WARP; o < outputs; o += WARPS) {
            const float value = dw[(u64)o * inputs + input];
            const float* const weights = b + (u64)o * rank + first;
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) {
                if (r < ranks) sums[r] = fma_rn(weights[r], value, sums[r]);
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < RANKS; r++) shared[(WARP * RANKS + r) * 32 + LANE] = sums[r];
    block_sync();
    // Warp r ends rank r.
    float sum = 0.0f;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) sum = sum + shared[(w * RANKS + WARP) * 32 + LANE];
    if (WARP < ranks && input < inputs) da[(u64)(first + WARP) * inputs + input] = scale * sum;
}
EXPORT(lora_da)

// db [outputs][rank] = scale dw A^T, a warp an output, eight ranks at a time.
KERNEL(lora_db)(float* db, const float* a, const float* dw, u32 rank, u32 outputs, u32 inputs, float scale) {
    const u32 output = BLOCK_X * WARPS + WARP;
    if (output >= outputs) return;
    const float* const row = dw + (u64)output * inputs;
    for (u32 first = 0; first < rank; first += RANKS) {
        const u32 ranks = min_of(RANKS, rank - first);
        float sums[RANKS] = {};
        for (u32 i = LANE; i < inputs; i += 32) {
            const float value = row[i];
            const float* const column = a + (u64)first * inputs + i;
#pragma unroll
            for (u32 r = 0; r < RANKS; r++) {
                if (r < ranks) sums[r] = fma_rn(value, column[(u64)r * inputs], sums[r]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            const float sum = warp_sum(sums[r]);
            if (LANE == r && r < ranks) db[(u64)output * rank + first + r] = scale * sum;
        }
    }
}
EXPORT(lora_db)

// SplitMix64's finalizer (Steele, Lea and Flood 2014).
DEV u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// The two halves of a hash: hash[k] += sum over i of mix(w_i + (i << 32) + seed_k), all modulo 2^64.
struct Hash {
    u64 first, second;
};
DEV void add_word(Hash& hash, u64 i, u32 word) {
    const u64 z = (u64)word + (i << 32);
    hash.first += mix(z + 0x9e3779b97f4a7c15ull);
    hash.second += mix(z + 0xd1b54a32d192ed03ull);
}

// Words of the array [rows][cols] without padding: word i holds element 2i in its lower half and 2i + 1 in its upper, or 0 if that is the end. A word
// counts to the row of its first element; in rows that start at an odd element the first value belongs to the row before. The caller sets the
// two halves to 0 before. x and its stride may be anything: a part of a joined vector starts anywhere.
KERNEL(hash_rows)(u64* hash, const bf16* x, u32 stride, u32 rows, u32 cols) {
    Hash sum = {0, 0};
    for (u32 r = BLOCK_X; r < rows; r += BLOCKS_X) {
        const bf16* const row = x + (u64)r * stride;
        const u64 first = (u64)r * cols;
        const u32 skipped = (u32)first & 1u;
        const u64 first_word = (first + skipped) / 2;
        const u32 whole = skipped == 0 && (u64)row % 16 == 0 ? cols / 8 : 0;
        for (u32 i = THREAD; i < whole; i += THREADS) {
            const Quad q = ((const Quad*)row)[i];
            const u64 word = first_word + 4 * (u64)i;
            add_word(sum, word, q.x);
            add_word(sum, word + 1, q.y);
            add_word(sum, word + 2, q.z);
            add_word(sum, word + 3, q.w);
        }
        const bf16* const next = r + 1 < rows ? row + stride : nullptr;
        for (u32 i = whole * 4 + THREAD; skipped + 2 * i < cols; i += THREADS) {
            const u32 c = skipped + 2 * i;
            const u32 upper = c + 1 < cols ? row[c + 1] : next != nullptr ? *next : 0u;
            add_word(sum, first_word + i, (u32)row[c] | upper << 16);
        }
    }
    sum.first = warp_sum(sum.first), sum.second = warp_sum(sum.second);
    if (LANE > 0) return;
    add_atomic(&hash[0], sum.first);
    add_atomic(&hash[1], sum.second);
}
EXPORT(hash_rows)
