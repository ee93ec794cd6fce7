// The way back of the rotation: query and key heads of a gradient are rotated back in place, by the transposed rotation.
//
// rope_backward: grid (rows, ceil((query_heads + kv_heads) / 4)), 128 threads, a warp a head. No shared memory. A row of dqkv is
// [queries | keys | values]; values stay. A row of angles is [cosines | sines], dim / 2 each, as rope_kv.cu makes them.
//
// A head has `dim` values (even, 16 to 256): a lane takes pairs of neighbours 2 lane, 2 lane + 1 of either half, and the same 64 further on.
//
// Bits: every value depends on its pair and its angle alone.
#include "common.cuh"

static constexpr u32 HEADS_A_BLOCK = 4;

// Values i and i + 1 of a half of a head. Where the half has an odd length its pairs do not lie on 4-byte boundaries and the last has one value.
DEV u32 load_pair(const bf16* from, u32 i, u32 half) {
    if (half % 2 == 0) return *(const u32*)(from + i);
    return (u32)from[i] | (i + 1 < half ? (u32)from[i + 1] << 16 : 0u);
}
DEV void store_pair(bf16* to, u32 pair, u32 i, u32 half) {
    if (half % 2 == 0) {
        *(u32*)(to + i) = pair;
        return;
    }
    to[i] = (bf16)pair;
    if (i + 1 < half) to[i + 1] = (bf16)(pair >> 16);
}

// (x, y) -> (x cos + y sin, y cos - x sin), the second product rounded first.
DEV void rotate_back(float& x, float& y, float cosine, float sine) {
    const float a = fma_rn(x, cosine, y * sine);
    const float b = fma_rn(y, cosine, -(x * sine));
    x = a, y = b;
}

KERNEL(rope_backward)(bf16* dqkv, u32 stride, const float* angles, u32 angle_stride, u32 query_heads, u32 kv_heads, u32 dim) {
    const u32 head = BLOCK_Y * HEADS_A_BLOCK + WARP;
    if (head >= query_heads + kv_heads) return;
    const u32 half = dim / 2;
    bf16* const first = dqkv + (u64)BLOCK_X * stride + head * dim;
    bf16* const second = first + half;
    const float* const cosines = angles + (u64)BLOCK_X * angle_stride;
    const float* const sines = cosines + half;
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const u32 i = 64 * j + 2 * LANE;
        if (i < half) {
            const u32 a = load_pair(first, i, half), b = load_pair(second, i, half);
            float x[2] = {low_f32(a), high_f32(a)};
            float y[2] = {low_f32(b), high_f32(b)};
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                if (i + e < half) rotate_back(x[e], y[e], cosines[i + e], sines[i + e]);
            }
            store_pair(first, pack_bf16(x[0], x[1]), i, half);
            store_pair(second, pack_bf16(y[0], y[1]), i, half);
        }
    }
}
EXPORT(rope_backward)
