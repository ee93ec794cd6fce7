// The way back of rows that were picked by index: embed_backward of `embed`, scatter_rows of `gather_rows` (embed.cu).
//
// embed_backward: grid (buckets, ceil(cols / 128)), 128 threads, a column a thread. scatter_rows: grid rows, 128 threads. No shared memory.
//
// Bits: an element of the table is one chain of additions over the rows of its token as the bucket lists them, ascending, that goes on from what is
// there: rows cut anywhere into several calls give the bits of one. No token has two buckets.
#include "common.cuh"

// The rows of a token: `count` entries of `rows` from `first` on.
struct Bucket {
    u32 token, first, count;
};
static_assert(sizeof(Bucket) == 12, "the host's layout");

// So many values are loaded before the chain takes them.
static constexpr u32 AHEAD = 16;

// dtable [vocab][cols], without padding.
KERNEL(embed_backward)(float* dtable, const bf16* dx, u32 dx_stride, const Bucket* buckets, const u32* rows, u32 cols) {
    const u32 column = BLOCK_Y * THREADS + THREAD;
    if (column >= cols) return;
    const Bucket bucket = buckets[BLOCK_X];
    const u32* const list = rows + bucket.first;
    float* const to = dtable + (u64)bucket.token * cols + column;
    float sum = *to;
    u32 i = 0;
    for (; i + AHEAD <= bucket.count; i += AHEAD) {
        bf16 values[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) values[j] = dx[(u64)list[i + j] * dx_stride + column];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) sum = sum + bf16_f32(values[j]);
    }
    for (; i < bucket.count; i++) sum = sum + bf16_f32(dx[(u64)list[i] * dx_stride + column]);
    *to = sum;
}
EXPORT(embed_backward)

// out[rows[i]] = x[i], bit for bit; the rows are distinct. Rows start on 16-byte boundaries and are copied 16 bytes at a time; the columns behind the
// last whole 16 bytes go one by one, so that nothing beyond the width is touched.
KERNEL(scatter_rows)(bf16* out, u32 out_stride, const bf16* x, u32 x_stride, const u32* rows, u32 cols) {
    bf16* const to = out + (u64)rows[BLOCK_X] * out_stride;
    const bf16* const from = x + (u64)BLOCK_X * x_stride;
    const u32 whole = cols / 8;
    for (u32 i = THREAD; i < whole; i += THREADS) ((Quad*)to)[i] = ((const Quad*)from)[i];
    for (u32 i = whole * 8 + THREAD; i < cols; i += THREADS) to[i] = from[i];
}
EXPORT(scatter_rows)
