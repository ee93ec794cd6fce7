// Small passes over rows: the gated activation, a bias, and whole blocks of the KV cache.
//
// swiglu, add_bias: grid rows, 128 threads. copy_blocks: grid (pairs, layers), 256 threads. No shared memory. Where 16-byte accesses are possible
// they are made; the columns behind the last whole 16 bytes go one by one, so that nothing beyond the width is touched.
#include "common.cuh"

// The largest value of exp_house is too small for the most negative gates.
DEV float silu(float gate) {
    const float e = -gate > 88.3f ? -minus_infinity() : exp_house(-gate);
    return div_rn(gate, 1.0f + e);
}

DEV u32 swiglu_pair(u32 gate, u32 up) { return pack_bf16(silu(low_f32(gate)) * low_f32(up), silu(high_f32(gate)) * high_f32(up)); }
DEV u32 add_pair(u32 a, u32 b) { return pack_bf16(low_f32(a) + low_f32(b), high_f32(a) + high_f32(b)); }

// out = silu(gate) * up in f32, rounded once; a row of gate_up is [gate | up], each of `cols` values.
KERNEL(swiglu)(bf16* out, u32 out_stride, const bf16* gate_up, u32 gate_up_stride, u32 cols) {
    bf16* const to = out + (u64)BLOCK_X * out_stride;
    const bf16* const gate = gate_up + (u64)BLOCK_X * gate_up_stride;
    const bf16* const up = gate + cols;
    // `up` starts on a 16-byte boundary only where the width is a multiple of 8.
    const u32 whole = cols % 8 == 0 ? cols / 8 : 0;
    for (u32 i = THREAD; i < whole; i += THREADS) {
        const Quad g = ((const Quad*)gate)[i], u = ((const Quad*)up)[i];
        ((Quad*)to)[i] = Quad{swiglu_pair(g.x, u.x), swiglu_pair(g.y, u.y), swiglu_pair(g.z, u.z), swiglu_pair(g.w, u.w)};
    }
    for (u32 i = whole * 8 + THREAD; i < cols; i += THREADS) to[i] = f32_bf16(silu(bf16_f32(gate[i])) * bf16_f32(up[i]));
}
EXPORT(swiglu)

// x[r] += bias, rounded once.
KERNEL(add_bias)(bf16* x, u32 x_stride, const bf16* bias, u32 cols) {
    bf16* const row = x + (u64)BLOCK_X * x_stride;
    const u32 whole = cols / 8;
    for (u32 i = THREAD; i < whole; i += THREADS) {
        const Quad a = ((const Quad*)row)[i], b = ((const Quad*)bias)[i];
        ((Quad*)row)[i] = Quad{add_pair(a.x, b.x), add_pair(a.y, b.y), add_pair(a.z, b.z), add_pair(a.w, b.w)};
    }
    for (u32 i = whole * 8 + THREAD; i < cols; i += THREADS) row[i] = f32_bf16(bf16_f32(row[i]) + bf16_f32(bias[i]));
}
EXPORT(add_bias)

// Copies block `from` to block `to` in every layer: pairs is [from, to, from, to, ...]. Layer l starts at l * layer_elements; a block is
// block_elements values in one piece, a multiple of 8. The pairs run at the same time: no block is both read and written, none written twice.
KERNEL(copy_blocks)(bf16* keys, bf16* values, const u32* pairs, u64 layer_elements, u32 block_elements) {
    const u64 layer = BLOCK_Y * layer_elements;
    const u64 from = layer + (u64)pairs[2 * BLOCK_X] * block_elements, to = layer + (u64)pairs[2 * BLOCK_X + 1] * block_elements;
    for (u32 i = THREAD; i < block_elements / 8; i += THREADS) {
        ((Quad*)(keys + to))[i] = ((const Quad*)(keys + from))[i];
        ((Quad*)(values + to))[i] = ((const Quad*)(values + from))[i];
    }
}
EXPORT(copy_blocks)
