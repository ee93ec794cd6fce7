// Backward of causal attention over whole sequences of a training batch: from qkv (after rotation), the forward's out and the gradient dout
// of it to dqkv. A row of qkv and dqkv is [q heads | k heads | v heads], a row of out and dout [q heads]. There is no cache: keys and
// values are those of qkv.
//
// As in attention.cu the query heads that share keys are packed into the rows: packed row r of a sequence stands for its position r / group
// and query head kv_head * group + r % group, group = query_heads / kv_heads (1 to 64). A sequence has at most 2^26 packed rows.
//
// attention_dq_<dim>:   threads 128, shared 512 * (dim + 8), 768 * (dim + 8) for dim 256; a tile is 64 packed rows
// attention_dkdv_<dim>: threads 128, shared 384 * (dim + 8) + 512, 640 * (dim + 8) + 512 for dims 128 and 256; 256 threads for dim 256;
//                       a tile is 64 keys
// dim is 16, 32, 64, 80, 96, 128 or 256; grid (tiles, kv heads). attention_dq comes first: it writes the stats that attention_dkdv reads.
//
// With S = q k^T, P = softmax(scale * S) and dP = dout v^T: dS = P * (dP - D), dq = scale * dS k, dk = scale * dS^T q, dv = P^T dout. D is
// the sum of dout * out over a row. stats[(row * query_heads + query head) * 2] is the log2 of the sum of 2^(scale * log2(e) * S) over the
// row's keys, the next one is D.
//
// attention_dq: 16 packed rows a warp. It walks over the keys that its rows see twice, in tiles of 64: for the sums of the softmax, then,
// with the values, for dq.
// attention_dkdv: 16 keys a warp as the rows of the products, S^T = k q^T and dP^T = v dout^T. It walks over the packed rows from the first
// that sees a key of the tile to the end of the sequence, 32 at a time. For dim 256 warps 4 to 7 make the same scores and sum up the other
// half of the columns: a warp has no registers for more than 128 columns of both results.
//
// P and dS go from the result of one product to the left operand of the next without leaving registers. The block's own 64 rows (q and
// dout, or k and v) stay in registers where they fit; their place in shared memory then belongs to the ring through which the other side
// passes. What lies beyond the sequence is filled with zeros, never read and never written. Rows in shared memory are one 16-byte chunk
// longer than dim, an odd number of chunks, so that ldmatrix finds the eight rows of a matrix in different banks.
//
// Bits: a value depends on its own sequence alone. D: lane t of four sums the chunks of eight t, t + 4, .. in ascending order, then the
// tree of four. The sum of the softmax: f32 weights, each lane its columns in ascending order, rescaled once a tile of 64, then the tree of
// four. P is exp2_approx(fma_rn(S, scale * log2(e), -stats)). P and dS are rounded to bf16. Every value of dq is one chain of multiply_add
// over all keys from 0 on, of dk and dv one over all packed rows, in steps of 16; it is scaled in f32 and rounded once. A pair of a
// position and a later key weighs exactly 0, and so does its dS, so it makes no difference whether a tile of nothing else is masked or left
// out. No atomics: each value has one thread.
#include "common.cuh"

// A sequence with batch rows row .. row + rows, position 0 first; `first` is the tile's first packed row, or its first key: a multiple of
// 64. Padding tiles have rows = 0.
struct BackwardTile {
    u32 row, rows, first, unused;
};

static constexpr int TILE_ROWS = 64, PART_ROWS = 32, WARPS = 4;
static constexpr float LOG2_E = 1.44269504088896340736f;
static constexpr u64 NOWHERE = ~0ull;

// The packed rows of one sequence and head of keys. A division by the group is a multiplication by its inverse, 2^32 / group rounded up:
// exact for rows below 2^26. Group 1 has none.
struct Packing {
    u32 row, rows, head, group, inverse;
};
DEV Packing packing_of(const BackwardTile& tile, u32 query_heads, u32 kv_heads, u32 kv_head) {
    const u32 group = query_heads / kv_heads;
    return Packing{tile.row, tile.rows * group, kv_head * group, group, 0xffffffffu / group + 1};
}
DEV u32 position_of(const Packing& p, u32 row) { return p.group == 1 ? row : mul_high(row, p.inverse); }
// The batch row, and the query head within it.
DEV u32 batch_row_of(const Packing& p, u32 row) { return p.row + position_of(p, row); }
DEV u32 head_of(const Packing& p, u32 row) { return p.head + row - position_of(p, row) * p.group; }

// Copies ROWS lines of DIM values to shared memory: line i starts at from + line(i), or is zeros where that is NOWHERE.
template <int ROWS, int DIM, int WORKERS, class Line> DEV void copy_lines(bf16* to, const bf16* from, const Line& line) {
    constexpr int CHUNKS = DIM / 8;
#pragma unroll
    for (int pass = 0; pass < (ROWS * CHUNKS + WORKERS - 1) / WORKERS; pass++) {
        const u32 i = pass * WORKERS + THREAD, row = i / CHUNKS, chunk = i % CHUNKS;
        if (ROWS * CHUNKS % WORKERS != 0 && row >= ROWS) continue;
        const u64 at = line(row);
        copy_async(to + row * (DIM + 8) + chunk * 8, from + (at != NOWHERE ? at + chunk * 8 : 0), at != NOWHERE ? 16 : 0);
    }
}

// One step of 16 of a product of 16 rows with 16 * PAIRS lines in shared memory: d += a lines^T.
template <int PAIRS, int PITCH> DEV void multiply_lines(float (&d)[2 * PAIRS][4], const u32 (&a)[4], const bf16* lines) {
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        u32 b[4];
        load_matrix(b, lines + pair * 16 * PITCH);
        multiply_add(d[2 * pair], a, b[0], b[1]);
        multiply_add(d[2 * pair + 1], a, b[2], b[3]);
    }
}
// One step of 16 lines: d += a lines, 16 * PAIRS columns.
template <int PAIRS> DEV void multiply_columns(float (&d)[2 * PAIRS][4], const u32 (&a)[4], const bf16* lines) {
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        u32 b[4];
        load_matrix_transposed(b, lines + pair * 16);
        multiply_add(d[2 * pair], a, b[0], b[1]);
        multiply_add(d[2 * pair + 1], a, b[2], b[3]);
    }
}

// Two results of 8 columns as the left operand of a step of 16.
DEV void pack_operand(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack_bf16(left[0], left[1]);
    a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]);
    a[3] = pack_bf16(right[2], right[3]);
}

DEV float dot_pair(u32 a, u32 b, float sum) { return fma_rn(high_f32(a), high_f32(b), fma_rn(low_f32(a), low_f32(b), sum)); }

// Of 16 rows: one half's columns of a result, scaled and rounded. Adding +0 makes -0 the same zero everywhere.
template <int PAIRS> DEV void store_line(bf16* line, const float (&d)[2 * PAIRS][4], int half, float scale) {
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) {
        *(u32*)(line + i * 8 + LANE % 4 * 2) = pack_bf16(d[i][half * 2] * scale + 0.0f, d[i][half * 2 + 1] * scale + 0.0f);
    }
}

template <int DIM>
DEV void attention_dq(bf16* dqkv, u32 dqkv_stride, float* stats, const bf16* qkv, u32 qkv_stride, const bf16* out, u32 out_stride,
                      const bf16* dout, u32 dout_stride, const BackwardTile* tiles, u32 query_heads, u32 kv_heads, float scale) {
    constexpr int PITCH = DIM + 8, SLOT = TILE_ROWS * PITCH, SLOTS = 4, WORKERS = 32 * WARPS;
    constexpr int DIM_STEPS = DIM / 16, KEY_PAIRS = TILE_ROWS / 16, PART_PAIRS = PART_ROWS / 16;
    // With 256 columns of dq a warp has no registers left for its queries.
    constexpr bool KEEP = DIM <= 128;

    const BackwardTile tile = tiles[BLOCK_X];
    if (tile.rows == 0) return;
    const u32 kv_head = BLOCK_Y;
    const Packing packing = packing_of(tile, query_heads, kv_heads, kv_head);
    const u32 keys_from = (query_heads + kv_head) * DIM, values_from = (query_heads + kv_heads + kv_head) * DIM;

    SHARED_BYTES(memory);
    bf16* const ring = (bf16*)memory;
    bf16* const queries = ring + (KEEP ? 2 : SLOTS) * SLOT;
    bf16* const grads = queries + SLOT;

    copy_lines<TILE_ROWS, DIM, WORKERS>(queries, qkv, [&](u32 i) {
        const u32 row = tile.first + i;
        return row < packing.rows ? (u64)batch_row_of(packing, row) * qkv_stride + head_of(packing, row) * DIM : NOWHERE;
    });
    copy_lines<TILE_ROWS, DIM, WORKERS>(grads, dout, [&](u32 i) {
        const u32 row = tile.first + i;
        return row < packing.rows ? (u64)batch_row_of(packing, row) * dout_stride + head_of(packing, row) * DIM : NOWHERE;
    });
    copy_commit();

    // Keys that the block's rows see, and those of the warp: none if it has no rows, it then only copies.
    const u32 last_row = packing.rows - 1;
    const u32 visible = position_of(packing, min_of(tile.first + TILE_ROWS - 1, last_row)) + 1;
    const u32 warp_row = tile.first + WARP * 16;
    const u32 warp_visible = warp_row <= last_row ? position_of(packing, min_of(warp_row + 15, last_row)) + 1 : 0;
    // Rows beyond the last see keys beyond the last: zeros.
    const u32 row_low = warp_row + LANE / 4, row_high = row_low + 8;
    const u32 nearest = position_of(packing, warp_row);
    const u32 sees_low = position_of(packing, row_low), sees_high = position_of(packing, row_high);

    auto copy_keys = [&](u32 slot, u32 first_key, u32 part_from) {
        copy_lines<TILE_ROWS, DIM, WORKERS>(ring + slot * SLOT, qkv, [&](u32 i) {
            const u32 key = first_key + i;
            return key < tile.rows ? (u64)(tile.row + key) * qkv_stride + part_from : NOWHERE;
        });
    };
    // Copies that are not wanted are still a group: the waits count groups.
    u32 copy_key = 0;
    auto copy_next_keys = [&]() {
        if (copy_key < visible) copy_keys(copy_key / TILE_ROWS % SLOTS, copy_key, keys_from);
        copy_commit();
        copy_key += TILE_ROWS;
    };
    copy_next_keys();
    copy_next_keys();

    float grad_sums[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = half == 0 ? row_low : row_high;
        float sum = 0.0f;
        if (row <= last_row) {
            const u32 batch_row = batch_row_of(packing, row), column = head_of(packing, row) * DIM;
            const bf16* const out_line = out + (u64)batch_row * out_stride + column;
            const bf16* const dout_line = dout + (u64)batch_row * dout_stride + column;
            for (u32 at = LANE % 4 * 8; at < DIM; at += 32) {
                const Quad a = *(const Quad*)(out_line + at), b = *(const Quad*)(dout_line + at);
                sum = dot_pair(a.w, b.w, dot_pair(a.z, b.z, dot_pair(a.y, b.y, dot_pair(a.x, b.x, sum))));
            }
        }
        sum = sum + warp_xor(sum, 1);
        grad_sums[half] = sum + warp_xor(sum, 2);
    }

    const u32 row_at = (WARP * 16 + LANE % 16) * PITCH + LANE / 16 * 8;
    const u32 key_at = (LANE / 16 * 8 + LANE % 8) * PITCH + LANE / 8 % 2 * 8;
    const u32 column_at = LANE % 16 * PITCH + LANE / 16 * 8;
    u32 query[KEEP ? DIM_STEPS : 1][4], grad[KEEP ? DIM_STEPS : 1][4];
    if constexpr (KEEP) {
        copy_wait<2>();
        block_sync();
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            load_matrix(query[step], queries + row_at + step * 16);
            load_matrix(grad[step], grads + row_at + step * 16);
        }
        block_sync();
    }
    copy_next_keys();

    const float scale_log2 = scale * LOG2_E;
    float max_low = minus_infinity(), max_high = minus_infinity(), sum_low = 0.0f, sum_high = 0.0f;
    for (u32 first_key = 0; first_key < visible; first_key += TILE_ROWS) {
        copy_wait<SLOTS - 2>();
        block_sync();
        copy_next_keys();
        if (first_key >= warp_visible) continue;

        float scores[2 * KEY_PAIRS][4] = {};
        const bf16* const keys = ring + first_key / TILE_ROWS % SLOTS * SLOT + key_at;
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            if constexpr (!KEEP) load_matrix(query[0], queries + row_at + step * 16);
            multiply_lines<KEY_PAIRS, PITCH>(scores, query[KEEP ? step : 0], keys + step * 16);
        }
        if (first_key + TILE_ROWS - 1 > nearest) {
#pragma unroll
            for (int i = 0; i < 2 * KEY_PAIRS; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    if (first_key + i * 8 + LANE % 4 * 2 + j % 2 > (j < 2 ? sees_low : sees_high)) scores[i][j] = minus_infinity();
                }
            }
        }

        float tile_low = scores[0][0], tile_high = scores[0][2];
#pragma unroll
        for (int i = 0; i < 2 * KEY_PAIRS; i++) {
            tile_low = max_f32(tile_low, max_f32(scores[i][0], scores[i][1]));
            tile_high = max_f32(tile_high, max_f32(scores[i][2], scores[i][3]));
        }
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes <<= 1) {
            tile_low = max_f32(tile_low, warp_xor(tile_low, lanes));
            tile_high = max_f32(tile_high, warp_xor(tile_high, lanes));
        }
        // Every row sees key 0, so the maximum is finite from the first tile on.
        const float new_low = max_f32(max_low, tile_low * scale_log2), new_high = max_f32(max_high, tile_high * scale_log2);
        sum_low = sum_low * exp2_approx(max_low - new_low);
        sum_high = sum_high * exp2_approx(max_high - new_high);
        max_low = new_low;
        max_high = new_high;
#pragma unroll
        for (int i = 0; i < 2 * KEY_PAIRS; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                sum_low = sum_low + exp2_approx(fma_rn(scores[i][j], scale_log2, -max_low));
                sum_high = sum_high + exp2_approx(fma_rn(scores[i][2 + j], scale_log2, -max_high));
            }
        }
    }
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes <<= 1) {
        sum_low = sum_low + warp_xor(sum_low, lanes);
        sum_high = sum_high + warp_xor(sum_high, lanes);
    }
    const float log_low = fma_rn(ln_house(sum_low), LOG2_E, max_low), log_high = fma_rn(ln_house(sum_high), LOG2_E, max_high);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = half == 0 ? row_low : row_high;
        if (row > last_row || LANE % 4 != 0) continue;
        float* const at = stats + ((u64)batch_row_of(packing, row) * query_heads + head_of(packing, row)) * 2;
        at[0] = half == 0 ? log_low : log_high;
        at[1] = grad_sums[half];
    }

    // The keys again, now with their values, two pairs of slots in turns.
    auto copy_pair = [&](u32 first_key) {
        if (first_key < visible) {
            const u32 slot = first_key / TILE_ROWS % 2 * 2;
            copy_keys(slot, first_key, keys_from);
            copy_keys(slot + 1, first_key, values_from);
        }
        copy_commit();
    };
    copy_wait<0>();
    block_sync();
    copy_pair(0);

    float result[2 * DIM_STEPS][4] = {};
    for (u32 first_key = 0; first_key < visible; first_key += TILE_ROWS) {
        copy_wait<0>();
        block_sync();
        copy_pair(first_key + TILE_ROWS);

        const bf16* keys = ring + first_key / TILE_ROWS % 2 * 2 * SLOT;
        const u32 end = min_of(first_key + TILE_ROWS, warp_visible);
        for (u32 key = first_key; key < end; key += PART_ROWS, keys += PART_ROWS * PITCH) {
            float scores[2 * PART_PAIRS][4] = {}, dscores[2 * PART_PAIRS][4] = {};
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
                if constexpr (!KEEP) load_matrix(query[0], queries + row_at + step * 16);
                multiply_lines<PART_PAIRS, PITCH>(scores, query[KEEP ? step : 0], keys + key_at + step * 16);
            }
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
                if constexpr (!KEEP) load_matrix(grad[0], grads + row_at + step * 16);
                multiply_lines<PART_PAIRS, PITCH>(dscores, grad[KEEP ? step : 0], keys + SLOT + key_at + step * 16);
            }
#pragma unroll
            for (int i = 0; i < 2 * PART_PAIRS; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float weight = exp2_approx(fma_rn(scores[i][j], scale_log2, j < 2 ? -log_low : -log_high));
                    dscores[i][j] = weight * (dscores[i][j] - grad_sums[j / 2]);
                }
            }
            if (key + PART_ROWS - 1 > nearest) {
#pragma unroll
                for (int i = 0; i < 2 * PART_PAIRS; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        if (key + i * 8 + LANE % 4 * 2 + j % 2 > (j < 2 ? sees_low : sees_high)) dscores[i][j] = 0.0f;
                    }
                }
            }
#pragma unroll
            for (int step = 0; step < PART_PAIRS; step++) {
                u32 a[4];
                pack_operand(a, dscores[2 * step], dscores[2 * step + 1]);
                multiply_columns<DIM_STEPS>(result, a, keys + column_at + step * 16 * PITCH);
            }
        }
    }
    copy_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = half == 0 ? row_low : row_high;
        if (row > last_row) continue;
        bf16* const line = dqkv + (u64)batch_row_of(packing, row) * dqkv_stride + head_of(packing, row) * DIM;
        store_line<DIM_STEPS>(line, result, half, scale);
    }
}

template <int DIM>
DEV void attention_dkdv(bf16* dqkv, u32 dqkv_stride, const float* stats, const bf16* qkv, u32 qkv_stride, const bf16* dout, u32 dout_stride,
                        const BackwardTile* tiles, u32 query_heads, u32 kv_heads, float scale) {
    constexpr int COLUMN_PARTS = DIM == 256 ? 2 : 1, COLUMNS = DIM / COLUMN_PARTS, WORKERS = 32 * WARPS * COLUMN_PARTS;
    constexpr int PITCH = DIM + 8, STAGES = 3, STAGE = 2 * PART_ROWS * PITCH;
    constexpr int DIM_STEPS = DIM / 16, PART_PAIRS = PART_ROWS / 16, COLUMN_PAIRS = COLUMNS / 16;
    // With more columns of dk and dv a warp has no registers left for its keys and values.
    constexpr bool KEEP = DIM <= 96;
    static_assert(STAGE == TILE_ROWS * PITCH, "the keys, or the values, take as much as a stage");

    const BackwardTile tile = tiles[BLOCK_X];
    if (tile.rows == 0) return;
    const u32 kv_head = BLOCK_Y;
    const Packing packing = packing_of(tile, query_heads, kv_heads, kv_head);
    const u32 keys_from = (query_heads + kv_head) * DIM, values_from = (query_heads + kv_heads + kv_head) * DIM;

    // A stage holds the queries of 32 packed rows, then their gradients. Two parts of stats take turns.
    SHARED_BYTES(memory);
    bf16* const ring = (bf16*)memory;
    bf16* const keys = ring + (KEEP ? 1 : STAGES) * STAGE;
    bf16* const values = keys + STAGE;
    u64* const part_stats = (u64*)(KEEP ? ring + STAGES * STAGE : values + STAGE);

    auto copy_keys = [&](bf16* to, u32 part_from) {
        copy_lines<TILE_ROWS, DIM, WORKERS>(to, qkv, [&](u32 i) {
            const u32 key = tile.first + i;
            return key < tile.rows ? (u64)(tile.row + key) * qkv_stride + part_from : NOWHERE;
        });
    };
    copy_keys(keys, keys_from);
    copy_keys(values, values_from);
    copy_commit();

    // The first row that sees the tile's first key. Copies that are not wanted are still a group: the waits count groups.
    const u32 first_row = tile.first * packing.group;
    u32 copy_row = first_row, copy_stage = 0;
    auto copy_next_rows = [&]() {
        if (copy_row < packing.rows) {
            bf16* const stage = ring + copy_stage * STAGE;
            copy_lines<PART_ROWS, DIM, WORKERS>(stage, qkv, [&](u32 i) {
                const u32 row = copy_row + i;
                return row < packing.rows ? (u64)batch_row_of(packing, row) * qkv_stride + head_of(packing, row) * DIM : NOWHERE;
            });
            copy_lines<PART_ROWS, DIM, WORKERS>(stage + PART_ROWS * PITCH, dout, [&](u32 i) {
                const u32 row = copy_row + i;
                return row < packing.rows ? (u64)batch_row_of(packing, row) * dout_stride + head_of(packing, row) * DIM : NOWHERE;
            });
        }
        copy_commit();
        copy_row += PART_ROWS;
        copy_stage = copy_stage + 1 == STAGES ? 0 : copy_stage + 1;
    };
    copy_next_rows();

    // Rows beyond the last are zeros, and so are their stats: they weigh 1, and add nothing.
    auto stats_of = [&](u32 row) {
        return row < packing.rows ? ((const u64*)stats)[(u64)batch_row_of(packing, row) * query_heads + head_of(packing, row)] : 0;
    };
    if (WARP == 0) part_stats[first_row / PART_ROWS % 2 * PART_ROWS + LANE] = stats_of(first_row + LANE);

    const u32 warp_key = WARP % WARPS * 16, first_column = WARP / WARPS * COLUMNS;
    const u32 key_at = (warp_key + LANE % 16) * PITCH + LANE / 16 * 8;
    const u32 row_at = (LANE / 16 * 8 + LANE % 8) * PITCH + LANE / 8 % 2 * 8;
    const u32 column_at = LANE % 16 * PITCH + LANE / 16 * 8 + first_column;
    u32 key[KEEP ? DIM_STEPS : 1][4], value[KEEP ? DIM_STEPS : 1][4];
    if constexpr (KEEP) {
        copy_wait<1>();
        block_sync();
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            load_matrix(key[step], keys + key_at + step * 16);
            load_matrix(value[step], values + key_at + step * 16);
        }
        block_sync();
    }
    copy_next_rows();

    // The first rows that see a key: of this lane's two, and of the warp's first and last. A warp without keys waits for a row beyond all.
    const u32 key_low = tile.first + warp_key + LANE / 4, key_high = key_low + 8;
    const u32 from_low = key_low * packing.group, from_high = key_high * packing.group;
    const u32 nearest = tile.first + warp_key < tile.rows ? (tile.first + warp_key) * packing.group : packing.rows + PART_ROWS;
    const u32 farthest = (tile.first + warp_key + 15) * packing.group;

    const float scale_log2 = scale * LOG2_E;
    float dkeys[2 * COLUMN_PAIRS][4] = {}, dvalues[2 * COLUMN_PAIRS][4] = {};
    for (u32 row = first_row; row < packing.rows; row += PART_ROWS) {
        copy_wait<STAGES - 2>();
        block_sync();
        copy_next_rows();
        u64 next_stats = 0;
        if (WARP == 0) next_stats = stats_of(row + PART_ROWS + LANE);

        if (row + PART_ROWS > nearest) {
            // The ring is full: the place after the one just asked for is that of these rows.
            const bf16* const queries = ring + copy_stage * STAGE;
            const bf16* const grads = queries + PART_ROWS * PITCH;
            float scores[2 * PART_PAIRS][4] = {}, dscores[2 * PART_PAIRS][4] = {};
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
                if constexpr (!KEEP) load_matrix(key[0], keys + key_at + step * 16);
                multiply_lines<PART_PAIRS, PITCH>(scores, key[KEEP ? step : 0], queries + row_at + step * 16);
            }
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
                if constexpr (!KEEP) load_matrix(value[0], values + key_at + step * 16);
                multiply_lines<PART_PAIRS, PITCH>(dscores, value[KEEP ? step : 0], grads + row_at + step * 16);
            }
#pragma unroll
            for (int i = 0; i < 2 * PART_PAIRS; i++) {
                // The logarithm and D of two rows.
                const Quad of_rows = *(const Quad*)(part_stats + row / PART_ROWS % 2 * PART_ROWS + i * 8 + LANE % 4 * 2);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float log = bits_f32(j % 2 == 0 ? of_rows.x : of_rows.z), grad_sum = bits_f32(j % 2 == 0 ? of_rows.y : of_rows.w);
                    scores[i][j] = exp2_approx(fma_rn(scores[i][j], scale_log2, -log));
                    dscores[i][j] = scores[i][j] * (dscores[i][j] - grad_sum);
                }
            }
            if (row < farthest) {
#pragma unroll
                for (int i = 0; i < 2 * PART_PAIRS; i++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        if (row + i * 8 + LANE % 4 * 2 + j % 2 < (j < 2 ? from_low : from_high)) scores[i][j] = dscores[i][j] = 0.0f;
                    }
                }
            }
#pragma unroll
            for (int step = 0; step < PART_PAIRS; step++) {
                u32 a[4];
                pack_operand(a, scores[2 * step], scores[2 * step + 1]);
                multiply_columns<COLUMN_PAIRS>(dvalues, a, grads + column_at + step * 16 * PITCH);
                pack_operand(a, dscores[2 * step], dscores[2 * step + 1]);
                multiply_columns<COLUMN_PAIRS>(dkeys, a, queries + column_at + step * 16 * PITCH);
            }
        }
        // The part that was read before the last barrier.
        if (WARP == 0) part_stats[(row / PART_ROWS + 1) % 2 * PART_ROWS + LANE] = next_stats;
    }
    copy_wait<0>();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 key_row = half == 0 ? key_low : key_high;
        if (key_row >= tile.rows) continue;
        bf16* const line = dqkv + (u64)(tile.row + key_row) * dqkv_stride + first_column;
        store_line<COLUMN_PAIRS>(line + keys_from, dkeys, half, scale);
        store_line<COLUMN_PAIRS>(line + values_from, dvalues, half, 1.0f);
    }
}

#define ATTENTION_BACKWARD(dim)                                                                                                            \
    KERNEL(attention_dq_##dim)                                                                                                             \
    (bf16* dqkv, u32 dqkv_stride, float* stats, const bf16* qkv, u32 qkv_stride, const bf16* out, u32 out_stride, const bf16* dout,        \
     u32 dout_stride, const BackwardTile* tiles, u32 query_heads, u32 kv_heads, float scale) {                                             \
        attention_dq<dim>(dqkv, dqkv_stride, stats, qkv, qkv_stride, out, out_stride, dout, dout_stride, tiles, query_heads, kv_heads,     \
                          scale);                                                                                                          \
    }                                                                                                                                      \
    EXPORT(attention_dq_##dim)                                                                                                             \
    KERNEL(attention_dkdv_##dim)                                                                                                           \
    (bf16* dqkv, u32 dqkv_stride, const float* stats, const bf16* qkv, u32 qkv_stride, const bf16* dout, u32 dout_stride,                  \
     const BackwardTile* tiles, u32 query_heads, u32 kv_heads, float scale) {                                                              \
        attention_dkdv<dim>(dqkv, dqkv_stride, stats, qkv, qkv_stride, dout, dout_stride, tiles, query_heads, kv_heads, scale);            \
    }                                                                                                                                      \
    EXPORT(attention_dkdv_##dim)

ATTENTION_BACKWARD(16)
ATTENTION_BACKWARD(32)
ATTENTION_BACKWARD(64)
ATTENTION_BACKWARD(80)
ATTENTION_BACKWARD(96)
ATTENTION_BACKWARD(128)
ATTENTION_BACKWARD(256)
