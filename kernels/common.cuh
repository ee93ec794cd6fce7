// What all kernels share. Device code only, without a single header, so that one text compiles with NVRTC (for cards), with nvcc, and with the
// host's C++ compiler (for the emulator of the tests). Everything that is not plain C++ stands here behind a small function, each with its host
// branch: in the second half of the file, on top of tests/emulator/emulator.h.
//
// Numbers: bf16 is stored as its 16 bits; arithmetic is f32, compiled with --fmad=false, so that a multiply and an add are two roundings unless
// the source says fma_rn. Nothing here is fast-math; where an approximate instruction is used (exp2_approx) its name says so.
#pragma once

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
#define DEV __device__ __forceinline__
#define KERNEL(name) extern "C" __global__ void name
// Kernels are found by name in the module; only the emulator must be told.
#define EXPORT(name)
#define SHARED_BYTES(name) extern __shared__ __align__(128) unsigned char name[]

struct __align__(16) Quad { u32 x, y, z, w; };

DEV u32 f32_bits(float x) { return __float_as_uint(x); }
DEV float bits_f32(u32 x) { return __uint_as_float(x); }
DEV float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEV float sqrt_rn(float x) { return __fsqrt_rn(x); }
DEV float div_rn(float a, float b) { return __fdiv_rn(a, b); }
DEV u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }
DEV u32 count_bits(u32 x) { return __popc(x); }
// 2^x, relative error 2^-22; 2^0 is exactly 1 and 2^-inf exactly 0.
DEV float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEV float warp_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEV u32 warp_xor(u32 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEV u64 warp_xor(u64 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEV double warp_xor(double x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
// The value of lane - lanes; the first lanes keep their own.
DEV u32 warp_up(u32 x, u32 lanes) { return __shfl_up_sync(0xffffffffu, x, lanes); }
DEV u32 warp_from(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEV u32 warp_ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
DEV void warp_sync() { __syncwarp(); }
DEV void block_sync() { __syncthreads(); }
// Counters in shared or global memory; integers only: their sum has no order.
DEV void add_atomic(u32* at, u32 x) { atomicAdd(at, x); }
DEV void add_atomic(u64* at, u64 x) { atomicAdd(at, x); }

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Copies 16 bytes of global memory to shared memory, both on 16-byte boundaries: the first `bytes` (0 to 16) are read, the rest is zero.
DEV void copy_async(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups of this thread's copies are open.
template <int N> DEV void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8x8 matrices of 16-bit values: lane 8j + i gives the address of row i of matrix j and receives, of each, row lane / 4, columns
// 2 (lane % 4) and the next; of the transposed matrices with load_matrix_transposed.
DEV void load_matrix(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEV void load_matrix_transposed(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// d += a b, with a [16][16] and b [16][8] in bf16, d [16][8] in f32; with g = lane / 4 and t = lane % 4, the lane holds
// a: rows g (registers 0, 2) and g + 8 (1, 3), columns 2t, 2t + 1 (0, 1) and 2t + 8, 2t + 9 (2, 3);
// b: column g, rows 2t, 2t + 1 (0) and 2t + 8, 2t + 9 (1); d: row g (0, 1) and g + 8 (2, 3), columns 2t and 2t + 1.
DEV void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#define THREAD ((u32)threadIdx.x)
#define THREADS ((u32)blockDim.x)
#define BLOCK_X ((u32)blockIdx.x)
#define BLOCK_Y ((u32)blockIdx.y)
#define BLOCK_Z ((u32)blockIdx.z)
#define BLOCKS_X ((u32)gridDim.x)
#else
// The emulator defines the same names; see tests/emulator/emulator.h.
#include "emulator.h"
#endif

#define LANE (THREAD & 31u)
#define WARP (THREAD >> 5)

// ---- plain arithmetic, the same text for card and emulator ----

DEV float bf16_f32(bf16 x) { return bits_f32((u32)x << 16); }
// Rounds to nearest, ties to even. NaN stays NaN.
DEV bf16 f32_bf16(float x) {
    u32 bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)0x7fff;
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
// Two values in one register, the first in the lower half. The card has one instruction for both, with the same roundings.
DEV u32 pack_bf16(float low, float high) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return (u32)f32_bf16(low) | ((u32)f32_bf16(high) << 16);
#endif
}
DEV float low_f32(u32 pair) { return bits_f32(pair << 16); }
DEV float high_f32(u32 pair) { return bits_f32(pair & 0xffff0000u); }

DEV float minus_infinity() { return bits_f32(0xff800000u); }
DEV float max_f32(float a, float b) { return a > b ? a : b; }
template <class T> DEV T min_of(T a, T b) { return b < a ? b : a; }
template <class T> DEV T max_of(T a, T b) { return a < b ? b : a; }

// The sum of a value over the warp, in every lane, by one fixed tree.
template <class T> DEV T warp_sum(T x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x = x + warp_xor(x, lanes);
    return x;
}
DEV float warp_max(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x = max_f32(x, warp_xor(x, lanes));
    return x;
}

// The house's own exp, ln and ln(1 - v): the lines of src/ops/cpu/math.rs, so that both backends give the same bits. Cephes' coefficients.
DEV float exp_house(float x) {
    float c = x > 88.3f ? 88.3f : x;
    c = c < -87.3f ? -87.3f : c;
    const float shifted = fma_rn(c, 1.44269504088896340736f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = fma_rn(n, -0.693359375f, c);
    r = fma_rn(n, 2.1219444e-4f, r);
    float p = 1.9875692e-4f;
    p = fma_rn(p, r, 1.3982e-3f);
    p = fma_rn(p, r, 8.333452e-3f);
    p = fma_rn(p, r, 4.1665796e-2f);
    p = fma_rn(p, r, 1.6666665e-1f);
    p = fma_rn(p, r, 5.0e-1f);
    const float y = fma_rn(p, r * r, r) + 1.0f;
    const float scale = bits_f32((f32_bits(shifted) - f32_bits(12582912.0f) + 127u) << 23);
    return x < -87.3f ? 0.0f : y * scale;
}
DEV float ln_house(float x) {
    const u32 bits = f32_bits(x);
    const int exponent = (int)(bits >> 23) - 126;
    const float half = bits_f32((bits & 0x007fffffu) | 0x3f000000u);
    const bool small = half < 0.70710678118654752440f;
    const float e = (float)exponent - (small ? 1.0f : 0.0f);
    const float m = small ? half + half - 1.0f : half - 1.0f;
    const float z = m * m;
    float p = 7.0376836e-2f;
    p = fma_rn(p, m, -1.151461e-1f);
    p = fma_rn(p, m, 1.1676999e-1f);
    p = fma_rn(p, m, -1.2420141e-1f);
    p = fma_rn(p, m, 1.4249323e-1f);
    p = fma_rn(p, m, -1.6668058e-1f);
    p = fma_rn(p, m, 2.0000715e-1f);
    p = fma_rn(p, m, -2.4999994e-1f);
    p = fma_rn(p, m, 3.333333e-1f);
    float y = p * m * z;
    y = fma_rn(e, -2.1219444e-4f, y);
    y = fma_rn(z, -0.5f, y);
    y = fma_rn(e, 0.693359375f, m + y);
    return x >= 1.17549435e-38f && x <= 3.402823466e38f ? y : bits_f32(0x7fc00000u);
}
DEV float ln_1m_house(float v) {
    const float u = 1.0f - v;
    const float lost = (1.0f - u) - v;
    return ln_house(u) + div_rn(lost, u);
}
