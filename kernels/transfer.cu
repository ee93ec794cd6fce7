// Weights on their way from one process to another within the card's memory: rows brought to another stride, and a count of the values that are
// not finite.
//
// Rows are bf16 and may start anywhere (parts of joined vectors do), so values go one by one.
#include "common.cuh"

// out[r] = x[r]. grid rows, 128 threads, no shared memory.
KERNEL(copy_rows)(bf16* out, u32 out_stride, const bf16* x, u32 x_stride, u32 cols) {
    bf16* const to = out + (u64)BLOCK_X * out_stride;
    const bf16* const from = x + (u64)BLOCK_X * x_stride;
    for (u32 i = THREAD; i < cols; i += THREADS) to[i] = from[i];
}
EXPORT(copy_rows)

// count += values of x [rows, cols] that are NaN or infinite: whose exponent is all ones. grid rows, 128 threads, no shared memory.
// Bits: a sum of integers, which has no order.
KERNEL(not_finite)(u64* count, const bf16* x, u32 stride, u32 cols) {
    const bf16* const row = x + (u64)BLOCK_X * stride;
    u32 found = 0;
    for (u32 i = THREAD; i < cols; i += THREADS) found += (row[i] & 0x7f80u) == 0x7f80u ? 1u : 0u;
    found = warp_sum(found);
    if (LANE == 0 && found > 0) add_atomic(count, (u64)found);
}
EXPORT(not_finite)
