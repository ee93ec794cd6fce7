// The way back of the gated activation, and a slice of columns brought to where rows start on 16-byte boundaries.
//
// grid rows, 128 threads, no shared memory. Where 16-byte accesses are possible swiglu_backward makes them; other columns go one by one, so that
// nothing beyond the width is touched.
//
// Bits: every value depends on its own gate, up and gradient alone. The output has the bits of `swiglu` in act.cu.
#include "common.cuh"

struct Gated {
    float gate, up, out;
};

// The gradients of gate and up, and the output. With silu(x) = x sigmoid(x), d silu = sigmoid + silu (1 - sigmoid).
DEV Gated gated(float gate, float up, float dy) {
    // The largest value of exp_house is too small for the most negative gates.
    const float e = -gate > 88.3f ? -minus_infinity() : exp_house(-gate);
    const float silu = div_rn(gate, 1.0f + e), sigmoid = div_rn(1.0f, 1.0f + e);
    return Gated{dy * up * fma_rn(silu, 1.0f - sigmoid, sigmoid), dy * silu, silu * up};
}
DEV void gated_pair(u32& gate, u32& up, u32& dact) {
    const Gated low = gated(low_f32(gate), low_f32(up), low_f32(dact)), high = gated(high_f32(gate), high_f32(up), high_f32(dact));
    gate = pack_bf16(low.gate, high.gate);
    up = pack_bf16(low.up, high.up);
    dact = pack_bf16(low.out, high.out);
}

// In place: a row of gate_up, [gate | up] with `cols` values each, becomes its gradient; dact, the gradient of the output, becomes the output.
KERNEL(swiglu_backward)(bf16* gate_up, u32 gate_up_stride, bf16* dact, u32 dact_stride, u32 cols) {
    bf16* const gate = gate_up + (u64)BLOCK_X * gate_up_stride;
    bf16* const up = gate + cols;
    bf16* const act = dact + (u64)BLOCK_X * dact_stride;
    // `up` starts on a 16-byte boundary only where the width is a multiple of 8.
    const u32 whole = cols % 8 == 0 ? cols / 8 : 0;
    for (u32 i = THREAD; i < whole; i += THREADS) {
        Quad g = ((const Quad*)gate)[i], u = ((const Quad*)up)[i], d = ((const Quad*)act)[i];
        gated_pair(g.x, u.x, d.x);
        gated_pair(g.y, u.y, d.y);
        gated_pair(g.z, u.z, d.z);
        gated_pair(g.w, u.w, d.w);
        ((Quad*)gate)[i] = g;
        ((Quad*)up)[i] = u;
        ((Quad*)act)[i] = d;
    }
    for (u32 i = whole * 8 + THREAD; i < cols; i += THREADS) {
        const Gated to = gated(bf16_f32(gate[i]), bf16_f32(up[i]), bf16_f32(act[i]));
        gate[i] = f32_bf16(to.gate);
        up[i] = f32_bf16(to.up);
        act[i] = f32_bf16(to.out);
    }
}
EXPORT(swiglu_backward)

// out[r] = x[r], bit for bit. x may start anywhere within wider rows, so values go one by one.
KERNEL(copy_columns)(bf16* out, u32 out_stride, const bf16* x, u32 x_stride, u32 cols) {
    bf16* const to = out + (u64)BLOCK_X * out_stride;
    const bf16* const from = x + (u64)BLOCK_X * x_stride;
    for (u32 i = THREAD; i < cols; i += THREADS) to[i] = from[i];
}
EXPORT(copy_columns)
