// The head of a trainer: log-probability and entropy of target tokens, and the gradient of their logits in place. One temperature for all rows;
// 0 reads as 1.
//
// score_tiles: grid (tiles, rows), 256 threads, 320 bytes of shared memory; tiles = ceil(vocab / 4096), parts are [row][tile].
// score_finish: grid rows, 32 threads, none. score_backward: grid rows, 1024 threads, none.
//
// Bits: the log-probability has those of loss.cu, and the rows that are not ok are the same: maxima and sums go through softmax.cuh and merge in its
// order. The entropy is ln_sum - (sum e (z - max)) / (sum e), e = exp(z - max): the products are summed in f64 in the order of the sums of e, beside
// their tile's maximum, and merge from left to right. Where e is 0 a term is 0, however far away z lies. A gradient depends on its own logit
// and on what the row's answer says.
#include "softmax.cuh"

// What a tile says: the sum of e at the temperature, of e (z - max), the maximum of z, that of the untouched logits, and whether a NaN or an infinity
// is among them.
struct ScorePart {
    double sum, weighted;
    float max, raw_max;
    u32 bad, unused;
};
static_assert(sizeof(ScorePart) == 32, "the host's layout");

struct ScoreAnswer {
    float logprob, entropy, max, ln_sum;
    u32 ok, unused[3];
};
static_assert(sizeof(ScoreAnswer) == 32, "the host's layout");

// Derivative of the loss with respect to what a row's answer says.
struct Slope {
    float logprob, entropy;
};
static_assert(sizeof(Slope) == 8, "the host's layout");

struct ScoreShared {
    TileShared tile;
    double weighted[TILE_WARPS];
    float raw_maxima[TILE_WARPS];
    u32 bad[TILE_WARPS];
};
static_assert(sizeof(ScoreShared) <= 320, "said above");

KERNEL(score_tiles)(ScorePart* parts, const float* logits, u32 stride, float temperature, u32 vocab) {
    SHARED_BYTES(memory);
    ScoreShared* const shared = (ScoreShared*)memory;

    float v[VALUES];
    const bool has_bad = load_tile(v, logits + (u64)BLOCK_Y * stride, BLOCK_X, vocab);
    float raw_max = minus_infinity();
#pragma unroll
    for (u32 i = 0; i < VALUES; i++) {
        raw_max = max_f32(v[i], raw_max);
        v[i] = at_temperature(v[i], temperature);
    }
    raw_max = warp_max(raw_max);
    // The barrier of any_of stands between these writes and their reads.
    if (LANE == 0) shared->raw_maxima[WARP] = raw_max;
    const bool bad = any_of(has_bad, shared->bad);
    const State state = tile_state(v, &shared->tile);

    // The exponentials are those of tile_state: the compiler keeps them.
    const float from = state.max == minus_infinity() ? 0.0f : state.max;
    double weighted = 0.0;
#pragma unroll
    for (u32 i = 0; i < VALUES; i++) {
        const float below = v[i] - from, e = exp_house(below);
        weighted += e == 0.0f ? 0.0 : (double)e * (double)below;
    }
    weighted = warp_sum(weighted);
    if (LANE == 0) shared->weighted[WARP] = weighted;
    block_sync();
    if (THREAD > 0) return;
    weighted = 0.0;
#pragma unroll
    for (u32 w = 0; w < TILE_WARPS; w++) {
        weighted += shared->weighted[w];
        raw_max = max_f32(shared->raw_maxima[w], raw_max);
    }
    parts[(u64)BLOCK_Y * BLOCKS_X + BLOCK_X] = ScorePart{state.sum, weighted, state.max, raw_max, bad ? 1u : 0u, 0};
}
EXPORT(score_tiles)

KERNEL(score_finish)
(ScoreAnswer* answers, const ScorePart* parts, u32 tiles, const float* logits, u32 stride, const u32* targets, float temperature) {
    const ScorePart* const own = parts + (u64)BLOCK_X * tiles;
    float max = minus_infinity(), raw_max = minus_infinity();
    u32 bad = 0;
    for (u32 t = LANE; t < tiles; t += 32) {
        max = max_f32(own[t].max, max);
        raw_max = max_f32(own[t].raw_max, raw_max);
        bad |= own[t].bad;
    }
    max = warp_max(max), raw_max = warp_max(raw_max);
    bad = warp_ballot(bad != 0);
    if (LANE > 0) return;

    // As `merge` in softmax.cuh. z - max is z - the tile's maximum, plus that less the row's.
    double sum = 0.0, weighted = 0.0;
    for (u32 t = 0; t < tiles; t++) {
        const float below = own[t].max - max, e = exp_house(below);
        sum += own[t].sum * (double)e;
        weighted += e == 0.0f ? 0.0 : (double)e * (own[t].weighted + own[t].sum * (double)below);
    }
    const Norm norm = {max, ln_house((float)sum)};
    const float logit = logits[(u64)BLOCK_X * stride + targets[BLOCK_X]];
    const float scored = logprob(norm, at_temperature(logit, temperature));
    const float entropy = norm.ln_sum - (float)(weighted / sum);
    // loss.cu also refuses where the untouched logits have no finite answer: their ln_sum is small, so it is this distance that decides.
    const bool ok = bad == 0 && is_finite(scored) && is_finite(logit - raw_max);
    answers[BLOCK_X] = ScoreAnswer{scored, entropy, norm.max, norm.ln_sum, ok ? 1u : 0u, {0, 0, 0}};
}
EXPORT(score_finish)

// A thread takes eight neighbours of the 8192 columns of a step.
static constexpr u32 STEP_VALUES = 8, STEP_THREADS = 1024, STEP = STEP_VALUES * STEP_THREADS;

// Eight logits from column c on; 0 beyond the vocabulary, where nothing is read.
DEV void load_step(float (&v)[STEP_VALUES], const float* row, u32 c, u32 vocab) {
    if (c + STEP_VALUES <= vocab) {
        const Quad a = *(const Quad*)(row + c), b = *(const Quad*)(row + c + 4);
        v[0] = bits_f32(a.x), v[1] = bits_f32(a.y), v[2] = bits_f32(a.z), v[3] = bits_f32(a.w);
        v[4] = bits_f32(b.x), v[5] = bits_f32(b.y), v[6] = bits_f32(b.z), v[7] = bits_f32(b.w);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < STEP_VALUES; i++) v[i] = c + i < vocab ? row[c + i] : 0.0f;
}

struct Gradient {
    ScoreAnswer answer;
    Slope slope;
    float temperature, inverse;
    u32 target, vocab;
};

// (slope.logprob (onehot - p) - slope.entropy p (ln p + H)) / T; 0 beyond the vocabulary. Where p is 0 so is its part, however low ln p lies.
DEV float gradient(const Gradient& g, float logit, u32 column) {
    if (column >= g.vocab) return 0.0f;
    const float ln_p = (at_temperature(logit, g.temperature) - g.answer.max) - g.answer.ln_sum;
    const float p = exp_house(ln_p);
    const float slope = fma_rn(g.slope.entropy, ln_p + g.answer.entropy, g.slope.logprob);
    const float all = p == 0.0f ? 0.0f : -(p * slope) * g.inverse;
    return column == g.target ? all + g.slope.logprob * g.inverse : all;
}

// A row of f32 logits becomes its gradient in bf16, in the first half of the row's memory: column c at byte 2c, zeros from the vocabulary to the next
// multiple of 8. What a step writes lies within the bytes of itself and of steps before it, which all threads have read at the barrier; the step
// behind it is already under way. A row whose slopes are 0 is not read: its gradient is +0 whatever its logits are.
KERNEL(score_backward)
__launch_bounds__(1024)(float* logits, u32 stride, const u32* targets, const Slope* slopes, const ScoreAnswer* answers, float temperature,
                        u32 vocab) {
    float* const row = logits + (u64)BLOCK_X * stride;
    bf16* const to = (bf16*)row;
    const float divisor = temperature == 0.0f ? 1.0f : temperature;
    const Gradient g = {answers[BLOCK_X], slopes[BLOCK_X], divisor, div_rn(1.0f, divisor), targets[BLOCK_X], vocab};
    if (g.slope.logprob == 0.0f && g.slope.entropy == 0.0f) {
        for (u32 c = STEP_VALUES * THREAD; c < vocab; c += STEP) *(Quad*)(to + c) = Quad{0, 0, 0, 0};
        return;
    }

    const u32 own = STEP_VALUES * THREAD;
    float v[STEP_VALUES], next[STEP_VALUES];
    load_step(v, row, own, vocab);
    for (u32 first = 0; first < vocab; first += STEP) {
        const u32 c = first + own;
        load_step(next, row, c + STEP, vocab);
        block_sync();
#pragma unroll
        for (u32 i = 0; i < STEP_VALUES; i++) v[i] = gradient(g, v[i], c + i);
        if (c < vocab) *(Quad*)(to + c) = Quad{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
#pragma unroll
        for (u32 i = 0; i < STEP_VALUES; i++) v[i] = next[i];
    }
}
EXPORT(score_backward)
