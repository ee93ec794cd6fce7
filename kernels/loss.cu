// Log-probabilities of tokens that are already there: at the ask's temperature without filters, and of the untouched logits.
//
// token_tiles: grid (tiles, asks), 256 threads, 128 bytes of shared memory; tiles = ceil(vocab / 4096).
// token_finish: grid asks, 32 threads, none. See softmax.cuh for the data and the order of the sums.
#include "softmax.cuh"

struct TokenShared {
    TileShared tile;
    u32 bad[TILE_WARPS];
};
static_assert(sizeof(TokenShared) == 128, "said above and in README.md");

KERNEL(token_tiles)(Part* parts, const float* logits, u32 stride, const Ask* asks, u32 vocab) {
    SHARED_BYTES(memory);
    TokenShared* const shared = (TokenShared*)memory;
    const Ask& ask = asks[BLOCK_Y];
    const float temperature = ask.temperature;

    float v[VALUES];
    const bool bad = any_of(load_tile(v, logits + (u64)ask.row * stride, BLOCK_X, vocab), shared->bad);
    const State raw = tile_state(v, &shared->tile);
    State scaled = raw;
    if (temperature != 1.0f && temperature != 0.0f) {
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) v[i] = div_rn(v[i], temperature);
        scaled = tile_state(v, &shared->tile);
    }
    if (THREAD == 0) parts[(u64)BLOCK_Y * BLOCKS_X + BLOCK_X] = Part{raw, scaled, 0.0f, NONE, bad ? 1u : 0u, 0};
}
EXPORT(token_tiles)

KERNEL(token_finish)(Answer* answers, const Part* parts, u32 tiles, const float* logits, u32 stride, const Ask* asks) {
    const Ask& ask = asks[BLOCK_X];
    const Part* const own = parts + (u64)BLOCK_X * tiles;
    const bool bad = any_bad(own, tiles);
    const Norm raw = merge(own, tiles, &Part::raw), scaled = merge(own, tiles, &Part::scaled);
    if (LANE > 0) return;
    const float logit = logits[(u64)ask.row * stride + ask.token];
    answers[ask.slot] = answer(ask.token, logprob(scaled, at_temperature(logit, ask.temperature)), logprob(raw, logit), bad);
}
EXPORT(token_finish)
