// The two products of a linear layer's way back; with y = x w^T and dy the gradient of y: bf16 in, f32 accumulation.
//   dx[rows, inputs] = dy[rows, outputs] w[outputs, inputs], rounded once to bf16
//   dw[outputs, inputs] += dy[rows, outputs]^T x[rows, inputs], f32, rows of exactly `inputs` values
//
// gemm_dx_64:  TM 64,  TN 64,  threads 128, shared 92160    2 x 2 warps of 32 x 32, K 64 a stage, 5 stages
// gemm_dx_128: TM 128, TN 128, threads 128, shared 107520   2 x 2 warps of 64 x 64, K 64 a stage, 3 stages
// gemm_dw_64:  TM 64,  TN 64,  threads 128, shared 92160    2 x 2 warps of 32 x 32, K 64 a stage, 5 stages
// gemm_dw_128: TM 128, TN 128, threads 128, shared 104448   2 x 2 warps of 64 x 64, K 64 a stage, 3 stages
// dx: grid (ceil(inputs / TN), ceil(rows / TM)), shared = STAGES * (TM * (TK + 8) + TK * (TN + 8)) * 2 bytes.
// dw: grid (ceil(inputs / TN), ceil(outputs / TM)), shared = STAGES * TK * (TM + TN + 16) * 2 bytes.
//
// Both are a product a b summed over `depth`: outputs in dx, rows in dw. In memory the depth of b goes from row to row, and so does that of
// dy in dw: a stage holds TK such rows, and ldmatrix transposes them. dy in dx lies as x in gemm.cu: a stage holds TM rows of TK values.
// The rows in a stage are one 16-byte chunk longer than their values: an odd number of chunks, so the eight rows of a matrix that ldmatrix
// reads lie in different banks, transposed or not.
//
// dy may be a slice of the columns of wider rows, and dw a slice of rows. What lies beyond the sizes is neither read nor written.
//
// Bits: every element is one chain of multiply_add over ascending depth in steps of 16 from 0, in both variants, whatever the elements
// beside it. In dx the chain starts at 0. In dw it goes on from the value that is there: rows cut at multiples of 16 into several calls
// give the bits of one. A stage that reaches beyond the depth is filled with zeros. Such a step leaves a sum as it is: gradients start at
// +0, so no sum is ever -0.
#include "common.cuh"

struct Shape64 {
    static constexpr int TM = 64, TN = 64, TK = 64, STAGES = 5, WARPS_M = 2, WARPS_N = 2;
};
struct Shape128 {
    static constexpr int TM = 128, TN = 128, TK = 64, STAGES = 3, WARPS_M = 2, WARPS_N = 2;
};

// Blocks run in the order of their index. Row tiles come first, in groups of so many, then columns: the blocks that run together share both
// operands in the L2 cache, instead of walking over all of b once for each row tile.
static constexpr u32 ROW_TILES_TOGETHER = 16;

// One operand's part of a stage: LINES memory rows of WIDTH values. A pass copies some of the lines, one chunk a thread.
template <int LINES_, int WIDTH, int WORKERS> struct Part {
    static constexpr int LINES = LINES_, PITCH = WIDTH + 8, SIZE = LINES * PITCH;
    static constexpr int CHUNKS = WIDTH / 8, LINES_A_PASS = WORKERS / CHUNKS, PASSES = LINES / LINES_A_PASS;
    static_assert(LINES % LINES_A_PASS == 0, "every pass copies as many lines");
};

// Copies a pass of the part that starts at a line and a column of a matrix [lines, width]; zeros for what lies outside.
template <class Part>
DEV void copy_lines(bf16* part, int pass, const bf16* from, u32 stride, u32 first_line, u32 lines, u32 first_column, u32 width) {
    const u32 chunk = THREAD % Part::CHUNKS, part_line = pass * Part::LINES_A_PASS + THREAD / Part::CHUNKS;
    const u32 line = first_line + part_line, column = first_column + chunk * 8;
    const u32 bytes = line < lines && column < width ? 2 * min_of(8u, width - column) : 0;
    copy_async(part + part_line * Part::PITCH + chunk * 8, from + (bytes > 0 ? (u64)line * stride + column : 0), bytes);
}

// What a pair of sums goes on from: in dx nothing, they stay 0. Both columns of a pair lie in the row, or only the first.
DEV void load_pair(const bf16*, float&, float&, bool) {}
DEV void load_pair(const float* at, float& first, float& second, bool both) {
    first = at[0];
    if (both) second = at[1];
}
DEV void store_pair(bf16* at, float first, float second, bool both) {
    if (both) {
        *(u32*)at = pack_bf16(first, second);
    } else {
        *at = f32_bf16(first);
    }
}
// Rows of f32 have no padding: a pair may lie across an 8-byte boundary.
DEV void store_pair(float* at, float first, float second, bool both) {
    at[0] = first;
    if (both) at[1] = second;
}

// out[rows, cols] = a b with b[depth, cols] and a[rows, depth], or a[depth, rows] if TRANSPOSED.
template <class Shape, bool TRANSPOSED, class Out>
DEV void product(Out* out, u32 out_stride, const bf16* a, u32 a_stride, const bf16* b, u32 b_stride, u32 rows, u32 cols, u32 depth) {
    constexpr int TM = Shape::TM, TN = Shape::TN, TK = Shape::TK, STAGES = Shape::STAGES;
    constexpr int WORKERS = 32 * Shape::WARPS_M * Shape::WARPS_N;
    using PartA = Part<TRANSPOSED ? TK : TM, TRANSPOSED ? TM : TK, WORKERS>;
    using PartB = Part<TK, TN, WORKERS>;
    constexpr int STAGE = PartA::SIZE + PartB::SIZE;
    constexpr int WARP_M = TM / Shape::WARPS_M, WARP_N = TN / Shape::WARPS_N;
    constexpr int M_TILES = WARP_M / 16, N_TILES = WARP_N / 8;
    // The passes of a stage are spread over all steps of 16 but the last.
    constexpr int PASSES = PartA::PASSES + PartB::PASSES;
    constexpr int STEPS = TK / 16, PASSES_A_STEP = (PASSES + STEPS - 2) / (STEPS - 1);
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

    // Tiles beyond the last are copied too, as zeros: no branch in the loop.
    auto copy = [&](int pass, u32 tile, u32 slot) {
        bf16* const stage = stages + slot * STAGE;
        const u32 k = tile * TK;
        if (pass >= PartA::PASSES) {
            copy_lines<PartB>(stage + PartA::SIZE, pass - PartA::PASSES, b, b_stride, k, depth, col0, cols);
        } else if (TRANSPOSED) {
            copy_lines<PartA>(stage, pass, a, a_stride, k, depth, row0, rows);
        } else {
            copy_lines<PartA>(stage, pass, a, a_stride, row0, rows, k, depth);
        }
    };

    struct Fragments {
        u32 a[M_TILES][4];
        u32 b[N_TILES / 2][4];
    };
    const u32 warp_m = WARP % Shape::WARPS_M, warp_n = WARP / Shape::WARPS_M;
    // The four matrices of a fragment of a, in the order of its registers: rows 0 and 8 at depth 0, then both at depth 8. Where the depth
    // goes from line to line, the second matrix is beside the first and the third below it. Those of b: depth 0 and 8 of column 0, then
    // both of column 8.
    const u32 a_at = TRANSPOSED ? (LANE / 16 * 8 + LANE % 8) * PartA::PITCH + warp_m * WARP_M + LANE / 8 % 2 * 8
                                : (warp_m * WARP_M + LANE % 16) * PartA::PITCH + LANE / 16 * 8;
    constexpr int A_STEP = TRANSPOSED ? 16 * PartA::PITCH : 16, A_TILE = TRANSPOSED ? 16 : 16 * PartA::PITCH;
    const u32 b_at = PartA::SIZE + LANE % 16 * PartB::PITCH + warp_n * WARP_N + LANE / 16 * 8;
    auto load = [&](Fragments& f, u32 slot, int step) {
        const bf16* const stage = stages + slot * STAGE;
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
            if constexpr (TRANSPOSED) {
                load_matrix_transposed(f.a[i], stage + a_at + step * A_STEP + i * A_TILE);
            } else {
                load_matrix(f.a[i], stage + a_at + step * A_STEP + i * A_TILE);
            }
        }
#pragma unroll
        for (int j = 0; j < N_TILES / 2; j++) load_matrix_transposed(f.b[j], stage + b_at + step * 16 * PartB::PITCH + j * 16);
    };

    float sums[M_TILES][N_TILES][4] = {};
    auto multiply = [&](const Fragments& f) {
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
#pragma unroll
            for (int j = 0; j < N_TILES; j++) multiply_add(sums[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
        }
    };
    // Hands over every pair of sums that lies in out: its place, both sums, and whether the second lies there too. The shuffle gives every
    // lane its own number, which the compiler cannot know: otherwise it keeps the places that it loads from in registers until it stores.
    auto for_pairs = [&](auto&& use) {
        const u32 lane = warp_from(LANE, (int)LANE);
#pragma unroll
        for (int i = 0; i < M_TILES; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = row0 + warp_m * WARP_M + i * 16 + half * 8 + lane / 4;
                if (row >= rows) continue;
                Out* const line = out + (u64)row * out_stride;
#pragma unroll
                for (int j = 0; j < N_TILES; j++) {
                    const u32 col = col0 + warp_n * WARP_N + j * 8 + lane % 4 * 2;
                    if (col < cols) use(line + col, sums[i][j][half * 2], sums[i][j][half * 2 + 1], col + 1 < cols);
                }
            }
        }
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) copy(pass, stage, stage);
        copy_commit();
    }
    // While the first stages are on their way.
    for_pairs([](const Out* at, float& first, float& second, bool both) { load_pair(at, first, second, both); });
    copy_wait<STAGES - 2>();
    block_sync();

    Fragments fragments[2];
    load(fragments[0], 0, 0);
    const u32 tiles = (depth + TK - 1) / TK;
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

    for_pairs([](Out* at, float first, float second, bool both) { store_pair(at, first, second, both); });
}

#define GEMM_BACKWARD(size)                                                                                                               \
    KERNEL(gemm_dx_##size)                                                                                                                \
    (bf16* dx, u32 dx_stride, const bf16* dy, u32 dy_stride, const bf16* w, u32 w_stride, u32 rows, u32 outputs, u32 inputs) {            \
        product<Shape##size, false>(dx, dx_stride, dy, dy_stride, w, w_stride, rows, inputs, outputs);                                    \
    }                                                                                                                                     \
    EXPORT(gemm_dx_##size)                                                                                                                \
    KERNEL(gemm_dw_##size)                                                                                                                \
    (float* dw, const bf16* dy, u32 dy_stride, const bf16* x, u32 x_stride, u32 rows, u32 outputs, u32 inputs) {                          \
        product<Shape##size, true>(dw, inputs, dy, dy_stride, x, x_stride, outputs, inputs, rows);                                        \
    }                                                                                                                                     \
    EXPORT(gemm_dw_##size)

GEMM_BACKWARD(64)
GEMM_BACKWARD(128)
