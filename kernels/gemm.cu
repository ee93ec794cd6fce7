// out[rows, outputs] = x[rows, inputs] w[outputs, inputs]^T: bf16 in, f32 accumulation, bf16 (rounded once) or f32 out.
//
// gemm_16:  TM 16,  TN 32,  threads 64,  shared 65280    1 x 2 warps of 16 x 16, K 128 a stage, 5 stages
// gemm_64:  TM 64,  TN 64,  threads 128, shared 92160    2 x 2 warps of 32 x 32, K 64 a stage, 5 stages
// gemm_128: TM 128, TN 128, threads 128, shared 110592   2 x 2 warps of 64 x 64, K 64 a stage, 3 stages
// grid (ceil(outputs / TN), ceil(rows / TM)), for _bf16 and _f32 alike; shared = STAGES * (TM + TN) * (TK + 8) * 2 bytes.
//
// gemm_16 streams weights for decode: narrow tiles give many blocks, each with 32 KB of weights in flight. gemm_64 does so for up to 128 rows.
// gemm_128 is for prefill: square warp tiles read the least shared memory for each multiplication, and two blocks fit a card's multiprocessor
// (one on sm_80), so that one computes while the other waits.
//
// A stage holds TM rows of x, then TN rows of w, TK values each. The rows are one 16-byte chunk longer than that: an odd number of chunks, so the
// eight rows of a matrix that ldmatrix reads lie in different banks.
//
// Bits: every output is one chain of multiply_add over ascending k in steps of 16 from 0, in every variant, whatever the rows beside it. A stage
// that reaches beyond the inputs is filled with zeros. Such a step leaves a sum as it is: sums start at +0 and so are never -0.
#include "common.cuh"

struct Gemm16 {
    static constexpr int TM = 16, TN = 32, TK = 128, STAGES = 5, WARPS_M = 1, WARPS_N = 2;
};
struct Gemm64 {
    static constexpr int TM = 64, TN = 64, TK = 64, STAGES = 5, WARPS_M = 2, WARPS_N = 2;
};
struct Gemm128 {
    static constexpr int TM = 128, TN = 128, TK = 64, STAGES = 3, WARPS_M = 2, WARPS_N = 2;
};

// Blocks run in the order of their index. Row tiles come first, in groups of so many, then columns: the blocks that run together share weights and
// rows in the L2 cache, instead of walking over all weights once for each row tile.
static constexpr u32 ROW_TILES_TOGETHER = 16;

// Both columns of a pair lie in the row, or only the first.
DEV void store_pair(bf16* at, float first, float second, bool both) {
    if (both) {
        *(u32*)at = pack_bf16(first, second);
    } else {
        *at = f32_bf16(first);
    }
}
DEV void store_pair(float* at, float first, float second, bool both) {
    at[0] = first;
    if (both) at[1] = second;
}

template <class Shape, class Out>
DEV void gemm(Out* out, u32 out_stride, const bf16* x, u32 x_stride, const bf16* w, u32 w_stride, u32 rows, u32 outputs, u32 inputs) {
    constexpr int TM = Shape::TM, TN = Shape::TN, TK = Shape::TK, STAGES = Shape::STAGES;
    constexpr int WORKERS = 32 * Shape::WARPS_M * Shape::WARPS_N;
    constexpr int PITCH = TK + 8, STAGE = (TM + TN) * PITCH;
    constexpr int WARP_M = TM / Shape::WARPS_M, WARP_N = TN / Shape::WARPS_N;
    constexpr int M_TILES = WARP_M / 16, N_TILES = WARP_N / 8;
    // A pass copies ROWS_A_PASS rows, one chunk a thread; the passes of a stage are spread over all steps of 16 but the last.
    constexpr int CHUNKS = TK / 8, ROWS_A_PASS = WORKERS / CHUNKS, PASSES = (TM + TN) / ROWS_A_PASS;
    constexpr int STEPS = TK / 16, PASSES_A_STEP = (PASSES + STEPS - 2) / (STEPS - 1);
    static_assert(TM % ROWS_A_PASS == 0 && TN % ROWS_A_PASS == 0, "a pass copies rows of x or rows of w, not both");
    static_assert(STEPS % 2 == 0 && N_TILES % 2 == 0, "fragments alternate between two buffers and come in pairs of columns");

    SHARED_BYTES(memory);
    bf16* const stages = (bf16*)memory;

    const u32 row_tiles = (rows + TM - 1) / TM;
    const u32 block = BLOCK_Y * BLOCKS_X + BLOCK_X;
    const u32 first_tile = block / (BLOCKS_X * ROW_TILES_TOGETHER) * ROW_TILES_TOGETHER;
    const u32 height = min_of(ROW_TILES_TOGETHER, row_tiles - first_tile);
    const u32 within = block - first_tile * BLOCKS_X;
    const u32 row0 = (first_tile + within % height) * TM;
    const u32 col0 = within / height * TN;

    const u32 chunk = THREAD % CHUNKS, pass_row = THREAD / CHUNKS;
    const u64 x_from = (u64)(row0 + pass_row) * x_stride, w_from = (u64)(col0 + pass_row) * w_stride;
    // Tiles beyond the last are copied too, as zeros: no branch in the loop.
    auto copy = [&](int pass, u32 tile, u32 slot) {
        const u32 k = tile * TK + chunk * 8, row = pass * ROWS_A_PASS + pass_row;
        bf16* const to = stages + slot * STAGE + row * PITCH + chunk * 8;
        const u32 in_row = k < inputs ? 2 * min_of(8u, inputs - k) : 0;
        if (pass * ROWS_A_PASS < TM) {
            const u32 bytes = row0 + row < rows ? in_row : 0;
            copy_async(to, x + (bytes > 0 ? x_from + (u64)x_stride * (pass * ROWS_A_PASS) + k : 0), bytes);
        } else {
            const u32 bytes = col0 + row - TM < outputs ? in_row : 0;
            copy_async(to, w + (bytes > 0 ? w_from + (u64)w_stride * (pass * ROWS_A_PASS - TM) + k : 0), bytes);
        }
    };

    struct Fragments {
        u32 x[M_TILES][4];
        u32 w[N_TILES / 2][4];
    };
    const u32 warp_m = WARP % Shape::WARPS_M, warp_n = WARP / Shape::WARPS_M;
    const u32 x_at = (warp_m * WARP_M + LANE % 16) * PITCH + LANE / 16 * 8;
    const u32 w_at = (TM + warp_n * WARP_N + LANE / 16 * 8 + LANE % 8) * PITCH + LANE / 8 % 2 * 8;
    auto load = [&](Fragments& f, u32 slot, int step) {
        const bf16* const stage = stages + slot * STAGE + step * 16;
#pragma unroll
        for (int i = 0; i < M_TILES; i++) load_matrix(f.x[i], stage + x_at + i * 16 * PITCH);
#pragma unroll
        for (int j = 0; j < N_TILES / 2; j++) load_matrix(f.w[j], stage + w_at + j * 16 * PITCH);
    };

    float sums[M_TILES][N_TILES][4] = {};
    auto multiply = [&](const Fragments& f) {
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
#pragma unroll
            for (int j = 0; j < N_TILES; j++) multiply_add(sums[i][j], f.x[i], f.w[j / 2][j % 2 * 2], f.w[j / 2][j % 2 * 2 + 1]);
        }
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) copy(pass, stage, stage);
        copy_commit();
    }
    copy_wait<STAGES - 2>();
    block_sync();

    Fragments fragments[2];
    load(fragments[0], 0, 0);
    const u32 tiles = (inputs + TK - 1) / TK;
    u32 slot = 0;
    for (u32 tile = 0; tile < tiles; tile++) {
        const u32 next = slot + 1 == STAGES ? 0 : slot + 1;
        // The slot of the tile before: its last fragments were loaded before the barrier that ended it.
        const u32 freed = slot == 0 ? STAGES - 1 : slot - 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                copy_commit();
                copy_wait<STAGES - 2>();
                block_sync();
                load(fragments[0], next, 0);
            } else {
                load(fragments[(step + 1) % 2], slot, step + 1);
#pragma unroll
                for (int pass = step * PASSES_A_STEP; pass < min_of((step + 1) * PASSES_A_STEP, PASSES); pass++) {
                    copy(pass, tile + STAGES - 1, freed);
                }
            }
            multiply(fragments[step % 2]);
        }
        slot = next;
    }
    copy_wait<0>();

#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = row0 + warp_m * WARP_M + i * 16 + half * 8 + LANE / 4;
            if (row >= rows) continue;
            Out* const line = out + (u64)row * out_stride;
#pragma unroll
            for (int j = 0; j < N_TILES; j++) {
                const u32 col = col0 + warp_n * WARP_N + j * 8 + LANE % 4 * 2;
                if (col < outputs) store_pair(line + col, sums[i][j][half * 2], sums[i][j][half * 2 + 1], col + 1 < outputs);
            }
        }
    }
}

#define GEMM(name, Shape, Out)                                                                                                                   \
    KERNEL(name)                                                                                                                                 \
    (void* out, u32 out_stride, const bf16* x, u32 x_stride, const bf16* w, u32 w_stride, u32 rows, u32 outputs, u32 inputs) {                    \
        gemm<Shape>((Out*)out, out_stride, x, x_stride, w, w_stride, rows, outputs, inputs);                                                     \
    }                                                                                                                                            \
    EXPORT(name)

GEMM(gemm_16_bf16, Gemm16, bf16)
GEMM(gemm_16_f32, Gemm16, float)
GEMM(gemm_64_bf16, Gemm64, bf16)
GEMM(gemm_64_f32, Gemm64, float)
GEMM(gemm_128_bf16, Gemm128, bf16)
GEMM(gemm_128_f32, Gemm128, float)
