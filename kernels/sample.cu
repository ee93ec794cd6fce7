// Draws: filters on a copy of the row of logits, then the argmax of value + Gumbel noise, with both log-probabilities.
//
// filter_rows: grid asks with filters, biases or banned tokens, 1024 threads, 16664 bytes of shared memory.
// draw_tiles:  grid (tiles, asks), 256 threads, 192 bytes; tiles = ceil(vocab / 4096).
// draw_finish: grid asks, 32 threads, none. See softmax.cuh for the data and the order of the sums.
//
// The token is the one that src/ops/cpu/sample.rs draws from the same logits: every value that decides is the same f32 line or an integer.
#include "softmax.cuh"

// ---- filters ----

struct Bias {
    u32 token;
    float value;
};

static constexpr u32 FILTER_WARPS = 32, FILTER_THREADS = 32 * FILTER_WARPS;
static constexpr u32 BINS = 2048, BINS_A_WARP = BINS / FILTER_WARPS;

// The histogram of a digit and what came of it. Counts use the memory of the masses.
struct FilterShared {
    u64 bins[BINS];
    u64 totals[FILTER_WARPS];
    u64 before, at;
    u32 digit, found;
};
static_assert(sizeof(FilterShared) == 16664, "said above and in README.md");

// Orders like the values when compared as integers. Adding zero turns -0 into +0: equal values have equal keys.
DEV u32 rank_key(float value) {
    const u32 bits = f32_bits(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// A token's share in units of 2^-40 of the most likely token's: integers, so that their sum has no order.
DEV u64 mass(float value, float max) {
    const float e = exp_house(value - max);
    return e > 0.0f ? (u64)(e * 1099511627776.0f) : 0;
}

// The smallest integer not below top_p * total, at least 1: one token always stays.
DEV u64 mass_wanted(float top_p, u64 total) {
    const double share = (double)top_p * (double)total;
    if (!(share > 1.0)) return 1;
    const u64 whole = (u64)share;
    return (double)whole < share ? whole + 1 : whole;
}

// What top-k counts: tokens.
struct Counts {
    typedef u32 Weight;
    u32 top_k;
};
DEV u32 weight_of(const Counts&, float) { return 1; }
DEV u32 wanted_of(const Counts& rule, u32) { return rule.top_k; }
// All lanes of the warp call `deposit`.
DEV void deposit(u32* bins, u32 digit, u32 weight) {
    if (weight > 0) add_atomic(&bins[digit], 1u);
}

// What top-p counts: mass. Values whose mass is below one unit count nothing, and are dropped.
struct Masses {
    typedef u64 Weight;
    float top_p, max;
};
DEV u64 weight_of(const Masses& rule, float value) { return mass(value, rule.max); }
DEV u64 wanted_of(const Masses& rule, u64 total) { return mass_wanted(rule.top_p, total); }
// The lanes that agree with the first of those that count send one sum: a flat row would otherwise meet in one counter.
DEV void deposit(u64* bins, u32 digit, u64 weight) {
    const u32 active = warp_ballot(weight > 0);
    if (active == 0) return;
    const u32 first = count_bits((active & (0u - active)) - 1u);
    const bool with_first = digit == warp_from(digit, (int)first);
    const u64 sum = warp_sum(with_first ? weight : (u64)0);
    if (LANE == first) {
        add_atomic(&bins[digit], sum);
    } else if (weight > 0 && !with_first) {
        add_atomic(&bins[digit], weight);
    }
}

// The values that stay: all whose key is above `key`, and of those at `key` the first `ties`.
struct Cut {
    u32 key, ties;
    bool found;
};

// Where the weights, summed over descending values, reach what is wanted: radix select with digits of 11, 11 and 10 bits. Not found where all
// weights are 0. All threads of the block call it.
template <class Rule> DEV Cut select(const float* row, u32 vocab, const Rule& rule, FilterShared* shared) {
    typedef typename Rule::Weight Weight;
    Weight* const bins = (Weight*)shared->bins;
    u32 key = 0;
    Weight wanted = 0;
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
        const u32 width = shift == 0 ? 10 : 11;
        for (u32 i = THREAD; i < BINS; i += FILTER_THREADS) bins[i] = 0;
        block_sync();

        for (u32 first = 0; first < vocab; first += FILTER_THREADS) {
            const u32 id = first + THREAD;
            const float value = id < vocab ? row[id] : 0.0f;
            const u32 mine = rank_key(value);
            // Shifts in two steps: one of 32 bits does nothing.
            const bool counts = id < vocab && (mine >> shift >> width) == (key >> shift >> width);
            deposit(bins, mine >> shift & ((1u << width) - 1u), counts ? weight_of(rule, value) : (Weight)0);
        }
        block_sync();

        const u32 own = WARP * BINS_A_WARP + 2 * LANE;
        const Weight total = warp_sum((Weight)(bins[own] + bins[own + 1]));
        if (LANE == 0) shared->totals[WARP] = total;
        block_sync();

        if (THREAD == 0) {
            Weight all = 0;
            for (u32 w = 0; w < FILTER_WARPS; w++) all += (Weight)shared->totals[w];
            if (shift == 21) wanted = wanted_of(rule, all);
            shared->found = all > 0 && all >= wanted ? 1 : 0;
            if (shared->found) {
                // Down from the largest: over the groups of a warp, then over the bins of the group that reaches what is wanted.
                Weight before = 0;
                u32 group = FILTER_WARPS - 1;
                while (before + (Weight)shared->totals[group] < wanted) before += (Weight)shared->totals[group--];
                u32 bin = (group + 1) * BINS_A_WARP - 1;
                while (before + bins[bin] < wanted) before += bins[bin--];
                shared->digit = bin;
                shared->before = before;
                shared->at = bins[bin];
            }
        }
        block_sync();
        if (!shared->found) return Cut{0, 0, false};
        key |= shared->digit << shift;
        // What is left to find among the values that share these digits.
        if (THREAD == 0) wanted -= (Weight)shared->before;
        block_sync();
    }
    // Equal values have equal weights, so the last bin is as many times the weight as there are ties.
    const float value = bits_f32(key >> 31 ? key & 0x7fffffffu : ~key);
    const Weight one = weight_of(rule, value);
    if (THREAD == 0) shared->at = (wanted + one - 1) / one;
    block_sync();
    return Cut{key, (u32)shared->at, true};
}

// Sets to -inf what lies behind the cut. Each warp owns a run of ids: it counts its ties, learns how many the warps before it have, and walks
// its ids again. All threads of the block call it.
DEV void drop(float* row, u32 vocab, Cut cut, FilterShared* shared) {
    const u32 run = (vocab + FILTER_THREADS - 1) / FILTER_THREADS * 32;
    const u32 start = WARP * run, end = min_of(start + run, vocab);
    u32 ties = 0;
    for (u32 first = start; first < end; first += 32) {
        const u32 id = first + LANE;
        ties += count_bits(warp_ballot(id < end && rank_key(row[min_of(id, end - 1)]) == cut.key));
    }
    if (LANE == 0) shared->totals[WARP] = ties;
    block_sync();

    u32 before = 0;
    for (u32 w = 0; w < WARP; w++) before += (u32)shared->totals[w];
    for (u32 first = start; first < end; first += 32) {
        const u32 id = first + LANE;
        const u32 key = rank_key(row[min_of(id, end - 1)]);
        const bool tie = id < end && key == cut.key;
        const u32 lanes = warp_ballot(tie);
        const bool late = tie && before + count_bits(lanes & ((1u << LANE) - 1u)) >= cut.ties;
        if (id < end && (key < cut.key || late)) row[id] = minus_infinity();
        before += count_bits(lanes);
    }
    block_sync();
}

DEV float block_max(const float* row, u32 vocab, FilterShared* shared) {
    float max = minus_infinity();
    for (u32 id = THREAD; id < vocab; id += FILTER_THREADS) max = row[id] > max ? row[id] : max;
    max = warp_max(max);
    if (LANE == 0) shared->totals[WARP] = f32_bits(max);
    block_sync();
    max = warp_max(bits_f32((u32)shared->totals[LANE]));
    block_sync();
    return max;
}

// Row ask.filtered of scratch = what is drawn from: biases in their order, banned tokens, temperature, top-k, top-p, min-p; what is dropped is -inf.
// At temperature 0 nothing is divided and nothing filtered.
KERNEL(filter_rows)
(float* scratch, u32 scratch_stride, const float* logits, u32 stride, const Ask* asks, const u32* which, const Bias* biases, const u32* banned,
 u32 vocab) {
    SHARED_BYTES(memory);
    FilterShared* const shared = (FilterShared*)memory;
    const Ask& ask = asks[which[BLOCK_X]];
    const float* const row = logits + (u64)ask.row * stride;
    float* const z = scratch + (u64)ask.filtered * scratch_stride;
    const float temperature = ask.temperature;

    for (u32 id = THREAD; id < vocab; id += FILTER_THREADS) z[id] = at_temperature(row[id], temperature);
    block_sync();
    // The first bias of a token adds them all, in their order.
    const Bias* const bias = biases + ask.bias_start;
    for (u32 i = THREAD; i < ask.bias_count; i += FILTER_THREADS) {
        const u32 token = bias[i].token;
        bool first = true;
        for (u32 k = 0; k < i; k++) first = first && bias[k].token != token;
        if (!first) continue;
        float sum = row[token];
        for (u32 k = i; k < ask.bias_count; k++) sum = bias[k].token == token ? sum + bias[k].value : sum;
        z[token] = at_temperature(sum, temperature);
    }
    block_sync();
    for (u32 i = THREAD; i < ask.banned_count; i += FILTER_THREADS) z[banned[ask.banned_start + i]] = minus_infinity();
    block_sync();
    if (temperature == 0.0f) return;

    if (ask.top_k > 0 && ask.top_k < vocab) drop(z, vocab, select(z, vocab, Counts{ask.top_k}, shared), shared);
    if (!(ask.top_p < 1.0f) && !(ask.min_p > 0.0f)) return;
    const float max = block_max(z, vocab, shared);
    if (ask.top_p < 1.0f) {
        // Not found where nothing is left, or where an infinity leaves no masses: then there is no answer either.
        const Cut cut = select(z, vocab, Masses{ask.top_p, max}, shared);
        if (cut.found) drop(z, vocab, cut, shared);
    }
    if (ask.min_p > 0.0f) {
        for (u32 id = THREAD; id < vocab; id += FILTER_THREADS) {
            if (exp_house(z[id] - max) < ask.min_p) z[id] = minus_infinity();
        }
    }
}
EXPORT(filter_rows)

// ---- noise: the lines of src/ops/philox.rs ----

// Philox4x32-10 of the counter (four tokens' index, position, sample, 0): one word for each of the four.
DEV void philox(u32 (&words)[4], u32 four, const Ask& ask) {
    u32 c0 = four, c1 = ask.position, c2 = ask.sample, c3 = 0, k0 = ask.key0, k1 = ask.key1;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high0 = mul_high(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
        const u32 high1 = mul_high(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// v = min((x + 0.5) 2^-32, 1 - 2^-24), E = -ln(1 - v), g = -ln E; finite for every word.
DEV float gumbel(u32 word) {
    const float largest = 1.0f - 1.0f / 16777216.0f;
    const float v = ((float)word + 0.5f) * (1.0f / 4294967296.0f);
    return -ln_house(-ln_1m_house(v < largest ? v : largest));
}

// ---- draws ----

struct Best {
    float value;
    u32 token;
};

// The larger value; of equal ones the lower token. -inf never wins: its token is NONE, the highest.
DEV Best better(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a; }
DEV Best warp_best(Best x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1) x = better(x, Best{warp_xor(x.value, lanes), warp_xor(x.token, lanes)});
    return x;
}

struct DrawShared {
    TileShared tile;
    u32 bad[TILE_WARPS];
    Best best[TILE_WARPS];
};
static_assert(sizeof(DrawShared) == 192, "said above and in README.md");

KERNEL(draw_tiles)
(Part* parts, const float* logits, u32 stride, const float* scratch, u32 scratch_stride, const Ask* asks, u32 vocab) {
    SHARED_BYTES(memory);
    DrawShared* const shared = (DrawShared*)memory;
    const Ask& ask = asks[BLOCK_Y];
    const float temperature = ask.temperature;

    // v holds the untouched logits, then what is drawn from.
    float v[VALUES];
    const bool bad = any_of(load_tile(v, logits + (u64)ask.row * stride, BLOCK_X, vocab), shared->bad);
    const State raw = tile_state(v, &shared->tile);
    State scaled = raw;
    if (ask.filtered != NONE) {
        load_tile(v, scratch + (u64)ask.filtered * scratch_stride, BLOCK_X, vocab);
        if (temperature != 0.0f) scaled = tile_state(v, &shared->tile);
    } else if (temperature != 1.0f && temperature != 0.0f) {
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) v[i] = div_rn(v[i], temperature);
        scaled = tile_state(v, &shared->tile);
    }

    Best best{minus_infinity(), NONE};
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 first = tile_column(BLOCK_X, j);
        u32 words[4];
        if (temperature != 0.0f) philox(words, first / 4, ask);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const float value = temperature != 0.0f ? v[4 * j + e] + gumbel(words[e]) : v[4 * j + e];
            if (value > best.value) best = Best{value, first + e};
        }
    }
    best = warp_best(best);
    if (LANE == 0) shared->best[WARP] = best;
    block_sync();
    if (THREAD > 0) return;
    for (u32 w = 1; w < TILE_WARPS; w++) best = better(best, shared->best[w]);
    parts[(u64)BLOCK_Y * BLOCKS_X + BLOCK_X] = Part{raw, scaled, best.value, best.token, bad ? 1u : 0u, 0};
}
EXPORT(draw_tiles)

KERNEL(draw_finish)
(Answer* answers, u32* drawn, const Part* parts, u32 tiles, const float* logits, u32 stride, const float* scratch, u32 scratch_stride,
 const Ask* asks) {
    const Ask& ask = asks[BLOCK_X];
    const Part* const own = parts + (u64)BLOCK_X * tiles;
    const bool bad = any_bad(own, tiles);
    const Norm raw = merge(own, tiles, &Part::raw), scaled = merge(own, tiles, &Part::scaled);
    Best best{minus_infinity(), NONE};
    for (u32 t = LANE; t < tiles; t += 32) best = better(best, Best{own[t].best, own[t].token});
    best = warp_best(best);
    if (LANE > 0) return;

    Answer a{0, 0.0f, 0.0f, 0};
    if (best.token != NONE) {
        const float logit = logits[(u64)ask.row * stride + best.token];
        // At temperature 0 the state that was drawn from is the raw one, and so is the value, whatever the biases.
        const bool from_scratch = ask.filtered != NONE && ask.temperature != 0.0f;
        const float value =
            from_scratch ? scratch[(u64)ask.filtered * scratch_stride + best.token] : at_temperature(logit, ask.temperature);
        a = answer(best.token, logprob(scaled, value), logprob(raw, logit), bad);
    }
    answers[ask.slot] = a;
    drawn[ask.slot] = a.ok ? a.token : 0;
}
EXPORT(draw_finish)
