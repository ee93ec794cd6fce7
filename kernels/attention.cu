// Attention of one step over the paged cache: decode, chunked prefill and scoring are one kernel. A block takes one tile of positions of one sequence
// and one head of keys and values; the query heads that share it are packed into the rows: row r stands for position tile.start + r / group and query
// head kv_head * group + r % group, with group = query_heads / kv_heads. The host sees to it that positions * group <= ROWS.
//
// attention_16_<dim>: ROWS 16, threads 128, shared 32 * (dim + 8) + slots * 128 * (dim + 8) + 2304, slots = 6 (4 for dim 256)
// attention_64_<dim>: ROWS 64, threads 128, shared 128 * (dim + 8) + slots * 128 * (dim + 8), slots = 4 (3 for dim 256)
// dim is 16, 32, 64, 80, 96, 128 or 256; grid (tiles, kv heads).
//
// The sequence is walked in tiles of 64 keys from position 0 on. A ring of slots holds 64 rows each, the keys of a tile, then its values, then the
// keys of the next; while one slot is used the others are on their way. What lies beyond the tile's last position is filled with zeros and never
// read: stale cache memory may hold anything, and the block table ends there. Rows in shared memory are one 16-byte chunk longer than dim, an odd
// number of chunks, so that ldmatrix finds the eight rows of a matrix in different banks.
//
// ROWS = 64 (prefill): each warp has 16 rows of its own, and their weights never leave its registers.
// ROWS = 16 (decode): the four warps share 16 rows. Each scores 16 of the 64 keys, they exchange maxima and weights through shared memory, and each
// takes a part of the value columns. This is memory-bound: what counts is the depth of the ring.
//
// Bits: for one row, both variants and any split into tiles do the same operations in the same order. A score is one chain of multiply_add over dim;
// the maximum is exact; weights are exp2_approx(fma_rn(score, scale * log2(e), -maximum)), rounded to bf16; every value and the sum of the weights
// (against a column of ones) are one chain over all keys from 0 on, in steps of 16, rescaled once per tile. Keys behind a row's position weigh
// exactly 0, and a tile of nothing else multiplies by exactly 1, so it makes no difference whether a tile is masked or left out.
#include "common.cuh"

// `positions` rows of one sequence from batch row `row` on, the first at position `start`; its block table starts at `tables[table]`.
struct Tile {
    u32 row, positions, start, table;
};

static constexpr int KEYS = 64, BLOCK_TOKENS = 16, WARPS = 4;
static constexpr u32 TWO_ONES = 0x3f803f80u;

template <int ROWS, int DIM>
DEV void attention(bf16* out, u32 out_stride, const bf16* qkv, u32 qkv_stride, const bf16* keys, const bf16* values, const Tile* tiles,
                   const u32* tables, u32 query_heads, u32 kv_heads, float scale) {
    constexpr bool SHARED_ROWS = ROWS == 16;
    constexpr int SLOTS = SHARED_ROWS ? (DIM == 256 ? 4 : 6) : (DIM == 256 ? 3 : 4);
    constexpr int PITCH = DIM + 8, SLOT = KEYS * PITCH, CHUNKS = DIM / 8, WORKERS = 32 * WARPS;
    constexpr int DIM_STEPS = DIM / 16, KEY_STEPS = KEYS / 16;
    // Of the keys, in pairs of 8, and of the value columns, in pairs of 8, what one warp takes.
    constexpr int KEY_PAIRS = SHARED_ROWS ? 1 : KEY_STEPS;
    constexpr int VALUE_PAIRS = SHARED_ROWS ? (DIM / 16 + WARPS - 1) / WARPS : DIM / 16;
    // With many value columns a warp has no registers left to keep its queries.
    constexpr bool KEEP_QUERIES = SHARED_ROWS || DIM <= 128;

    const Tile tile = tiles[BLOCK_X];
    if (tile.positions == 0) return;
    const u32 kv_head = BLOCK_Y, group = query_heads / kv_heads, rows = tile.positions * group;
    const u32 last = tile.start + tile.positions - 1;

    SHARED_BYTES(memory);
    bf16* const queries = (bf16*)memory;
    bf16* const ring = queries + ROWS * PITCH;
    Quad* const warp_weights = (Quad*)(ring + SLOTS * SLOT);
    float* const warp_maxima = (float*)(warp_weights + WARPS * 32);

    // Rows beyond the last are zero queries: finite, and written nowhere.
    for (u32 i = THREAD; i < ROWS * CHUNKS; i += WORKERS) {
        const u32 row = i / CHUNKS, chunk = i % CHUNKS, position = row / group;
        const bool real = row < rows;
        const u64 offset = (u64)(tile.row + position) * qkv_stride + (kv_head * group + row - position * group) * DIM + chunk * 8;
        copy_async(queries + row * PITCH + chunk * 8, qkv + (real ? offset : 0), real ? 16 : 0);
    }
    copy_commit();

    // Lane i holds the block of tokens i % 4 of the tile of keys that is copied next, looked up one tile ahead.
    const u32* const table = tables + tile.table;
    auto look_up = [&](u32 first_key) {
        const u32 entry = first_key / BLOCK_TOKENS + LANE % (KEYS / BLOCK_TOKENS);
        return entry <= last / BLOCK_TOKENS ? table[entry] : 0;
    };
    u32 copy_key = 0, copy_slot = 0;
    u32 blocks = look_up(0), next_blocks = look_up(KEYS);
    auto copy = [&](const bf16* cache) {
        if (copy_key <= last) {
            bf16* const slot = ring + copy_slot * SLOT;
#pragma unroll
            for (int pass = 0; pass < KEYS * CHUNKS / WORKERS; pass++) {
                const u32 i = pass * WORKERS + THREAD, key = i / CHUNKS, chunk = i % CHUNKS;
                const u32 block = warp_from(blocks, (int)(key / BLOCK_TOKENS));
                const u64 line = ((u64)block * kv_heads + kv_head) * BLOCK_TOKENS + key % BLOCK_TOKENS;
                copy_async(slot + key * PITCH + chunk * 8, cache + line * DIM + chunk * 8, copy_key + key <= last ? 16 : 0);
            }
        }
        copy_commit();
        copy_slot = copy_slot + 1 == SLOTS ? 0 : copy_slot + 1;
    };
    auto copy_keys = [&]() { copy(keys); };
    auto copy_values = [&]() {
        copy(values);
        copy_key += KEYS;
        blocks = next_blocks;
        next_blocks = look_up(copy_key + KEYS);
    };
#pragma unroll
    for (int i = 0; i < SLOTS - 1; i++) {
        if (i % 2 == 0) {
            copy_keys();
        } else {
            copy_values();
        }
    }

    const u32 warp_row = SHARED_ROWS ? 0 : WARP * 16;
    const u32 row_low = warp_row + LANE / 4, row_high = row_low + 8;
    // What a row sees: rows beyond the last see all, so that they need no mask.
    const u32 sees_low = row_low < rows ? tile.start + row_low / group : last, sees_high = row_high < rows ? tile.start + row_high / group : last;
    // Over the rows of the warp: the nearest position, and how many keys the farthest sees. A warp without rows sees none and only copies.
    const bool any_rows = warp_row < rows;
    const u32 nearest = tile.start + warp_row / group;
    const u32 visible = any_rows ? tile.start + min_of(warp_row + 15, rows - 1) / group + 1 : 0;

    const bf16* const query_at = queries + (warp_row + LANE % 16) * PITCH + LANE / 16 * 8;
    const u32 key_at = ((SHARED_ROWS ? WARP * 16 : 0) + LANE / 16 * 8 + LANE % 8) * PITCH + LANE / 8 % 2 * 8;
    const u32 value_at = LANE % 16 * PITCH + LANE / 16 * 8;
    u32 query[KEEP_QUERIES ? DIM_STEPS : 1][4];
    if constexpr (KEEP_QUERIES) {
        copy_wait<SLOTS - 1>();
        block_sync();
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) load_matrix(query[step], query_at + step * 16);
    }

    const float scale_log2 = scale * 1.44269504088896340736f;
    float max_low = minus_infinity(), max_high = minus_infinity();
    float sums[4] = {};
    float result[2 * VALUE_PAIRS][4] = {};
    u32 slot = 0;

    for (u32 first_key = 0; first_key <= last; first_key += KEYS) {
        const bool live = first_key < visible;

        copy_wait<SLOTS - 2>();
        block_sync();
        // The slot before this one is free since the barrier; its place in the ring asks for values if this is keys and SLOTS is even.
        if constexpr (SLOTS % 2 == 0) {
            copy_values();
        } else {
            copy_keys();
        }

        u32 weights[KEY_PAIRS][4];
        float rescale_low = 1.0f, rescale_high = 1.0f;
        if (live) {
            float scores[2 * KEY_PAIRS][4] = {};
            const bf16* const at = ring + slot * SLOT + key_at;
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
                if constexpr (!KEEP_QUERIES) load_matrix(query[0], query_at + step * 16);
#pragma unroll
                for (int pair = 0; pair < KEY_PAIRS; pair++) {
                    u32 key[4];
                    load_matrix(key, at + pair * 16 * PITCH + step * 16);
                    multiply_add(scores[2 * pair], query[KEEP_QUERIES ? step : 0], key[0], key[1]);
                    multiply_add(scores[2 * pair + 1], query[KEEP_QUERIES ? step : 0], key[2], key[3]);
                }
            }

            if (first_key + KEYS - 1 > nearest) {
                const u32 lane_key = first_key + (SHARED_ROWS ? WARP * 16 : 0) + LANE % 4 * 2;
#pragma unroll
                for (int i = 0; i < 2 * KEY_PAIRS; i++) {
#pragma unroll
                    for (int column = 0; column < 2; column++) {
                        if (lane_key + i * 8 + column > sees_low) scores[i][column] = minus_infinity();
                        if (lane_key + i * 8 + column > sees_high) scores[i][2 + column] = minus_infinity();
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
            if constexpr (SHARED_ROWS) {
                if (LANE % 4 == 0) {
                    warp_maxima[WARP * 16 + row_low] = tile_low;
                    warp_maxima[WARP * 16 + row_high] = tile_high;
                }
                block_sync();
#pragma unroll
                for (int warp = 0; warp < WARPS; warp++) {
                    tile_low = max_f32(tile_low, warp_maxima[warp * 16 + row_low]);
                    tile_high = max_f32(tile_high, warp_maxima[warp * 16 + row_high]);
                }
            }
            const float new_low = max_f32(max_low, tile_low * scale_log2), new_high = max_f32(max_high, tile_high * scale_log2);
            rescale_low = exp2_approx(max_low - new_low);
            rescale_high = exp2_approx(max_high - new_high);
            max_low = new_low;
            max_high = new_high;
            // As the left operand of the next product: two columns of 8 keys are one step of 16.
#pragma unroll
            for (int i = 0; i < 2 * KEY_PAIRS; i++) {
                float weight[4];
#pragma unroll
                for (int j = 0; j < 4; j++) weight[j] = exp2_approx(fma_rn(scores[i][j], scale_log2, j < 2 ? -max_low : -max_high));
                weights[i / 2][i % 2 * 2] = pack_bf16(weight[0], weight[1]);
                weights[i / 2][i % 2 * 2 + 1] = pack_bf16(weight[2], weight[3]);
            }
            if constexpr (SHARED_ROWS) warp_weights[WARP * 32 + LANE] = Quad{weights[0][0], weights[0][1], weights[0][2], weights[0][3]};
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;

        // The barrier is also that of the exchanged weights.
        copy_wait<SLOTS - 2>();
        block_sync();
        if constexpr (SLOTS % 2 == 0) {
            copy_keys();
        } else {
            copy_values();
        }

        if (live) {
            sums[0] = sums[0] * rescale_low;
            sums[1] = sums[1] * rescale_low;
            sums[2] = sums[2] * rescale_high;
            sums[3] = sums[3] * rescale_high;
#pragma unroll
            for (int i = 0; i < 2 * VALUE_PAIRS; i++) {
                result[i][0] = result[i][0] * rescale_low;
                result[i][1] = result[i][1] * rescale_low;
                result[i][2] = result[i][2] * rescale_high;
                result[i][3] = result[i][3] * rescale_high;
            }
            const bf16* const at = ring + slot * SLOT + value_at;
#pragma unroll
            for (int step = 0; step < KEY_STEPS; step++) {
                u32 shared[4];
                if constexpr (SHARED_ROWS) {
                    const Quad quad = warp_weights[step * 32 + LANE];
                    shared[0] = quad.x;
                    shared[1] = quad.y;
                    shared[2] = quad.z;
                    shared[3] = quad.w;
                }
                const u32(&weight)[4] = SHARED_ROWS ? shared : weights[step % KEY_PAIRS];
                multiply_add(sums, weight, TWO_ONES, TWO_ONES);
#pragma unroll
                for (int i = 0; i < VALUE_PAIRS; i++) {
                    const u32 pair = SHARED_ROWS ? WARP + i * WARPS : i;
                    if (pair < DIM / 16) {
                        u32 value[4];
                        load_matrix_transposed(value, at + step * 16 * PITCH + pair * 16);
                        multiply_add(result[2 * i], weight, value[0], value[1]);
                        multiply_add(result[2 * i + 1], weight, value[2], value[3]);
                    }
                }
            }
        }
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
    copy_wait<0>();

    // Adding +0 makes -0 the same zero everywhere.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 row = half == 0 ? row_low : row_high;
        if (row >= rows) continue;
        const u32 position = row / group;
        bf16* const line = out + (u64)(tile.row + position) * out_stride + (kv_head * group + row - position * group) * DIM;
#pragma unroll
        for (int i = 0; i < 2 * VALUE_PAIRS; i++) {
            const u32 pair = SHARED_ROWS ? WARP + i / 2 * WARPS : i / 2;
            if (pair >= DIM / 16) continue;
            const float first = div_rn(result[i][half * 2], sums[half * 2]) + 0.0f, second = div_rn(result[i][half * 2 + 1], sums[half * 2]) + 0.0f;
            *(u32*)(line + pair * 16 + i % 2 * 8 + LANE % 4 * 2) = pack_bf16(first, second);
        }
    }
}

#define ATTENTION(rows, dim)                                                                                                                     \
    KERNEL(attention_##rows##_##dim)                                                                                                             \
    (bf16* out, u32 out_stride, const bf16* qkv, u32 qkv_stride, const bf16* keys, const bf16* values, const Tile* tiles, const u32* tables,      \
     u32 query_heads, u32 kv_heads, float scale) {                                                                                               \
        attention<rows, dim>(out, out_stride, qkv, qkv_stride, keys, values, tiles, tables, query_heads, kv_heads, scale);                       \
    }                                                                                                                                            \
    EXPORT(attention_##rows##_##dim)

#define ATTENTION_OF_DIM(dim) \
    ATTENTION(16, dim)        \
    ATTENTION(64, dim)

ATTENTION_OF_DIM(16)
ATTENTION_OF_DIM(32)
ATTENTION_OF_DIM(64)
ATTENTION_OF_DIM(80)
ATTENTION_OF_DIM(96)
ATTENTION_OF_DIM(128)
ATTENTION_OF_DIM(256)
