// Rows picked by index, copied bit for bit: `embed` from the table of embeddings, `gather_rows` from a batch.
//
// grid rows, 128 threads, no shared memory. Rows start on 16-byte boundaries and are copied 16 bytes at a time; the columns behind the last
// whole 16 bytes go one by one, so that nothing beyond the width is touched.
#include "common.cuh"

static constexpr u32 PROMISED = 1u << 31;

DEV void copy_row(bf16* to, const bf16* from, u32 cols) {
    const u32 whole = cols / 8;
    for (u32 i = THREAD; i < whole; i += THREADS) ((Quad*)to)[i] = ((const Quad*)from)[i];
    for (u32 i = whole * 8 + THREAD; i < cols; i += THREADS) to[i] = from[i];
}

// out[r] = table[ids[r]]; an id `PROMISED | i` stands for drawn[i].
KERNEL(embed)(bf16* out, u32 out_stride, const bf16* table, u32 table_stride, const u32* ids, const u32* drawn, u32 cols) {
    const u32 id = ids[BLOCK_X];
    const u32 token = id & PROMISED ? drawn[id & ~PROMISED] : id;
    copy_row(out + (u64)BLOCK_X * out_stride, table + (u64)token * table_stride, cols);
}
EXPORT(embed)

// out[i] = x[rows[i]].
KERNEL(gather_rows)(bf16* out, u32 out_stride, const bf16* x, u32 x_stride, const u32* rows, u32 cols) {
    copy_row(out + (u64)BLOCK_X * out_stride, x + (u64)rows[BLOCK_X] * x_stride, cols);
}
EXPORT(gather_rows)
