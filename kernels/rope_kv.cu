// Rotary angles, and what happens to a row of the fused projection before attention: norm of each query and key head, rotation, and the writing of
// keys and values to the cache.
//
// rope_angles: grid rows, 32 threads. rope_kv: grid (rows, ceil((query_heads + 2 kv_heads) / 4)), 128 threads, a warp a head. No shared memory.
//
// A head has `dim` values (even, 16 to 256) and rotates value i with value i + half, half = dim / 2. A lane keeps two pairs of neighbours of either
// half: values 2 lane, 2 lane + 1 and the same 64 further on, as packed bf16. Norm, rotation and write each read and give packed bf16: one call
// that does all three has the bits of three calls. Missing values are 0 and change no sum.
//
// Bits: the squares of a head are summed by FMA in the order of a lane's values, then by the tree over the warp: `dim` alone fixes it.
#include "common.cuh"

// The steps of `what`.
static constexpr u32 NORM = 1, ROTATE = 2, WRITE = 4;
static constexpr u32 HEADS_A_BLOCK = 4;
static constexpr u32 NOWHERE = 0xffffffffu;

struct Turn {
    double sine, cosine;
};

// Sine and cosine to 1e-15 for |x| up to 2^21 (and to f32 far beyond). The multiple of pi/2 is taken off in three parts: the first two have 30 bits,
// so that their products are exact, and the third has all the bits that are left. Polynomials: fdlibm (Sun Microsystems), for |r| <= pi/4.
DEV Turn turn(double x) {
    // Adding and subtracting 1.5 * 2^52 rounds to the nearest integer.
    const double n = (x * 0.6366197723675814 + 6755399441055744.0) - 6755399441055744.0;
    double r = x - n * 1.570796325802803;
    r = r - n * 9.920935791635221e-10;
    r = r - n * 5.170182981794105e-19;

    const double z = r * r;
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    const double sine = r + r * z * s;

    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    // What the rounding of 1 - z/2 lost is added back.
    const double halved = 0.5 * z, rest = 1.0 - halved;
    const double cosine = rest + ((1.0 - rest - halved) + z * z * c);

    const u32 quarter = (u32)(i32)n & 3u;
    const double a = quarter & 1 ? cosine : sine, b = quarter & 1 ? sine : cosine;
    return Turn{quarter & 2 ? -a : a, quarter == 1 || quarter == 2 ? -b : b};
}

// angles[r] = [cosines | sines] of f32(position) * frequency, the product rounded to f32.
KERNEL(rope_angles)(float* angles, u32 stride, const u32* positions, const float* frequencies, u32 half) {
    float* const row = angles + (u64)BLOCK_X * stride;
    const float position = (float)positions[BLOCK_X];
    for (u32 i = THREAD; i < half; i += THREADS) {
        const Turn t = turn((double)(position * frequencies[i]));
        row[i] = (float)t.cosine;
        row[half + i] = (float)t.sine;
    }
}
EXPORT(rope_angles)

// Values i and i + 1 of a half of a head. Where the half has an odd length its pairs do not lie on 4-byte boundaries and the last has one value.
DEV u32 load_pair(const bf16* from, u32 i, u32 half) {
    if (i >= half) return 0;
    if (half % 2 == 0) return *(const u32*)(from + i);
    return (u32)from[i] | (i + 1 < half ? (u32)from[i + 1] << 16 : 0u);
}
DEV void store_pair(bf16* to, u32 pair, u32 i, u32 half) {
    if (i >= half) return;
    if (half % 2 == 0) {
        *(u32*)(to + i) = pair;
        return;
    }
    to[i] = (bf16)pair;
    if (i + 1 < half) to[i + 1] = (bf16)(pair >> 16);
}

// What a lane holds of a head: pair j of the first half and of the second starts at value 64 j + 2 lane of it.
struct Head {
    u32 first[2], second[2];
};

DEV Head load_head(const bf16* from, u32 half) {
    Head h;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        h.first[j] = load_pair(from, 64 * j + 2 * LANE, half);
        h.second[j] = load_pair(from + half, 64 * j + 2 * LANE, half);
    }
    return h;
}
DEV void store_head(bf16* to, const Head& h, u32 half) {
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        store_pair(to, h.first[j], 64 * j + 2 * LANE, half);
        store_pair(to + half, h.second[j], 64 * j + 2 * LANE, half);
    }
}

DEV float add_squares(float sum, u32 pair) {
    sum = fma_rn(low_f32(pair), low_f32(pair), sum);
    return fma_rn(high_f32(pair), high_f32(pair), sum);
}
DEV u32 norm_pair(u32 pair, u32 weight, float scale) {
    return pack_bf16(low_f32(weight) * (low_f32(pair) * scale), high_f32(weight) * (high_f32(pair) * scale));
}
DEV void norm_head(Head& h, const bf16* weight, float eps, u32 half) {
    float squares = 0.0f;
#pragma unroll
    for (u32 j = 0; j < 2; j++) squares = add_squares(add_squares(squares, h.first[j]), h.second[j]);
    const float mean = div_rn(warp_sum(squares), (float)(2 * half));
    const float scale = div_rn(1.0f, sqrt_rn(mean + eps));
    const Head w = load_head(weight, half);
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        h.first[j] = norm_pair(h.first[j], w.first[j], scale);
        h.second[j] = norm_pair(h.second[j], w.second[j], scale);
    }
}

// (x, y) -> (x cos - y sin, y cos + x sin), the second product rounded first.
DEV void rotate(float& x, float& y, float cosine, float sine) {
    const float a = fma_rn(x, cosine, -(y * sine));
    const float b = fma_rn(y, cosine, x * sine);
    x = a, y = b;
}
DEV void rotate_head(Head& h, const float* cosines, const float* sines, u32 half) {
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const u32 i = 64 * j + 2 * LANE;
        float x[2] = {low_f32(h.first[j]), high_f32(h.first[j])};
        float y[2] = {low_f32(h.second[j]), high_f32(h.second[j])};
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            if (i + e < half) rotate(x[e], y[e], cosines[i + e], sines[i + e]);
        }
        h.first[j] = pack_bf16(x[0], x[1]);
        h.second[j] = pack_bf16(y[0], y[1]);
    }
}

// `what` is a sum of NORM, ROTATE (query and key heads, which are also written back to qkv) and WRITE (keys and values go to their slot of the
// layer whose cache is given: [block][kv head][16 tokens][dim]). What a call does not do it takes no argument for.
KERNEL(rope_kv)
(bf16* qkv, u32 stride, const float* angles, u32 angle_stride, const u32* slots, bf16* keys, bf16* values, const bf16* q_weight,
 const bf16* k_weight, float eps, u32 query_heads, u32 kv_heads, u32 dim, u32 what) {
    const u32 head = BLOCK_Y * HEADS_A_BLOCK + WARP;
    if (head >= query_heads + 2 * kv_heads) return;
    const bool is_query = head < query_heads, is_value = head >= query_heads + kv_heads;
    const u32 steps = is_query ? what & ~WRITE : is_value ? what & WRITE : what;
    if (steps == 0) return;

    const u32 half = dim / 2;
    bf16* const at = qkv + (u64)BLOCK_X * stride + head * dim;
    Head h = load_head(at, half);
    if (steps & NORM) norm_head(h, is_query ? q_weight : k_weight, eps, half);
    if (steps & ROTATE) {
        const float* const cosines = angles + (u64)BLOCK_X * angle_stride;
        rotate_head(h, cosines, cosines + half, half);
    }
    if (steps & (NORM | ROTATE)) store_head(at, h, half);
    if (steps & WRITE) {
        const u32 slot = slots[BLOCK_X];
        if (slot == NOWHERE) return;
        const u32 kv_head = head - query_heads - (is_value ? kv_heads : 0);
        const u64 line = ((u64)(slot / 16) * kv_heads + kv_head) * 16 + slot % 16;
        store_head((is_value ? values : keys) + line * dim, h, half);
    }
}
EXPORT(rope_kv)
