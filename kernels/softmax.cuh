// The state of a softmax over a row of logits, made tile by tile and merged from left to right. Scorer (loss.cu) and sampler (sample.cu) both go
// through these lines and no others: a scored token's log-probability has the bits of the sampler's.
//
// A row is cut into tiles of 4096 logits, one a block of 256 threads. Thread t takes logits 1024 j + 4 t .. + 4 of its tile for j = 0 .. 3: four
// neighbours are one 16-byte access and share one block of the random stream. A tile's state is (max, sum of exp(value - max)); the sum goes
// over a thread's values in ascending order, the tree of a warp, then the eight warps in order. States merge in ascending tiles. Sums are f64:
// beside the 1 of the most likely token an f32 sum drops whatever is below 2^-24, and a vocabulary of such terms matters.
//
// Rows of logits start on 16-byte boundaries: f32 strides are multiples of 4. Parts are [ask][tile].
#pragma once
#include "common.cuh"

static constexpr u32 TILE = 4096, TILE_THREADS = 256, TILE_WARPS = 8, VALUES = 16;
static constexpr u32 NONE = 0xffffffffu;

// What is wanted of one row: a draw, or the log-probabilities of `token`.
struct Ask {
    u32 row, token;
    float temperature;
    u32 key0, key1, position, sample;
    // Row of the scratch buffer that holds the filtered values, or NONE.
    u32 filtered;
    u32 top_k;
    float top_p, min_p;
    u32 bias_start, bias_count, banned_start, banned_count;
    // Where the answer goes, and the token of a draw.
    u32 slot;
};
static_assert(sizeof(Ask) == 64, "the host's layout");

struct Answer {
    u32 token;
    float logprob, logprob_raw;
    u32 ok;
};
static_assert(sizeof(Answer) == 16, "the host's layout");

// max is -inf and sum 0 where there is nothing.
struct State {
    double sum;
    float max;
    u32 unused;
};

// What a tile says of its logits: their states, untouched and as drawn from; the best token of a draw with its value; whether a NaN or an infinity
// is among the untouched.
struct Part {
    State raw, scaled;
    float best;
    u32 token, bad, unused;
};
static_assert(sizeof(Part) == 48, "the host's layout");

struct Norm {
    float max, ln_sum;
};

DEV bool is_finite(float x) { return (f32_bits(x) & 0x7fffffffu) < 0x7f800000u; }

// A value as the softmax at a temperature sees it; temperature 0 stands for the untouched logits.
DEV float at_temperature(float logit, float temperature) {
    return temperature == 1.0f || temperature == 0.0f ? logit : div_rn(logit, temperature);
}

// First column of this thread's four neighbours j.
DEV u32 tile_column(u32 tile, u32 j) { return tile * TILE + j * (4 * TILE_THREADS) + 4 * THREAD; }

// This thread's values of a tile; -inf beyond the vocabulary, where nothing is read. Returns whether one of those read is a NaN or an infinity.
DEV bool load_tile(float (&v)[VALUES], const float* row, u32 tile, u32 vocab) {
    bool bad = false;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 c = tile_column(tile, j);
        if (c + 4 <= vocab) {
            const Quad q = *(const Quad*)(row + c);
            v[4 * j] = bits_f32(q.x), v[4 * j + 1] = bits_f32(q.y), v[4 * j + 2] = bits_f32(q.z), v[4 * j + 3] = bits_f32(q.w);
#pragma unroll
            for (u32 e = 0; e < 4; e++) bad = bad || !is_finite(v[4 * j + e]);
        } else {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                v[4 * j + e] = c + e < vocab ? row[c + e] : minus_infinity();
                bad = bad || (c + e < vocab && !is_finite(v[4 * j + e]));
            }
        }
    }
    return bad;
}

// Shared memory of tile_state. Maxima and sums take turns: the barrier of one also separates the reads of the other from its next writes.
struct TileShared {
    double sums[TILE_WARPS];
    float maxima[TILE_WARPS];
};

// The state of a tile, in every thread. All threads of the block call it.
DEV State tile_state(const float (&v)[VALUES], TileShared* shared) {
    // Keeps the maximum free of NaN.
    float max = minus_infinity();
#pragma unroll
    for (u32 i = 0; i < VALUES; i++) max = v[i] > max ? v[i] : max;
    max = warp_max(max);
    if (LANE == 0) shared->maxima[WARP] = max;
    block_sync();
#pragma unroll
    for (u32 w = 0; w < TILE_WARPS; w++) max = max_f32(shared->maxima[w], max);

    // Where all is -inf, -inf minus -inf must not make a NaN.
    const float from = max == minus_infinity() ? 0.0f : max;
    double sum = 0.0;
#pragma unroll
    for (u32 i = 0; i < VALUES; i++) sum += (double)exp_house(v[i] - from);
    sum = warp_sum(sum);
    if (LANE == 0) shared->sums[WARP] = sum;
    block_sync();
    sum = 0.0;
#pragma unroll
    for (u32 w = 0; w < TILE_WARPS; w++) sum += shared->sums[w];
    return State{sum, max, 0};
}

// Whether any thread of the block says so. All threads call it, once a kernel.
DEV bool any_of(bool x, u32* shared) {
    const u32 lanes = warp_ballot(x);
    if (LANE == 0) shared[WARP] = lanes;
    block_sync();
    u32 all = 0;
#pragma unroll
    for (u32 w = 0; w < TILE_WARPS; w++) all |= shared[w];
    return all != 0;
}

// Merges the states of a row, in every lane of a warp: the maximum first, then the sums from left to right.
DEV Norm merge(const Part* parts, u32 tiles, State Part::*state) {
    float max = minus_infinity();
    for (u32 t = LANE; t < tiles; t += 32) max = max_f32((parts[t].*state).max, max);
    max = warp_max(max);
    double sum = 0.0;
    for (u32 t = 0; t < tiles; t++) sum += (parts[t].*state).sum * (double)exp_house((parts[t].*state).max - max);
    return Norm{max, ln_house((float)sum)};
}
// Whether one of the row's tiles has a NaN or an infinity, in every lane of a warp.
DEV bool any_bad(const Part* parts, u32 tiles) {
    u32 bad = 0;
    for (u32 t = LANE; t < tiles; t += 32) bad |= parts[t].bad;
    return warp_ballot(bad != 0) != 0;
}

DEV float logprob(Norm norm, float value) { return (value - norm.max) - norm.ln_sum; }

// Finite logits can still lie further apart than f32 reaches, or be pushed over its largest value by a temperature near 0: such answers are not ok.
DEV Answer answer(u32 token, float logprob, float logprob_raw, bool bad) {
    return Answer{token, logprob, logprob_raw, !bad && is_finite(logprob) && is_finite(logprob_raw) ? 1u : 0u};
}
