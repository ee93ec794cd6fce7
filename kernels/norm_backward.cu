// The way back of the norms and of biases. Gradients of rows are bf16; those of weights are f32 and summed over rows in groups of 16: a kernel
// leaves one sum a group and column in `partials`, and add_groups adds the groups to what the gradient holds.
//
// rmsnorm_backward: grid ceil(rows / 16), T(cols) threads (see README.md), 640 bytes of shared memory; partials [group][cols].
// bias_backward: grid (ceil(rows / 16), ceil(cols / 128)), 128 threads, none; partials [group][cols]. dy may start at any column of wider rows.
// qk_norm_backward: grid ceil(rows / 16), 512 threads, 32768 bytes; partials [group][2][dim], query weights first.
// add_groups: grid ceil(cols / 32), 32 threads, none; groups lie group_stride numbers apart.
//
// With s = 1 / sqrt(mean(x^2) + eps) and g = dy * weight, the gradient of a normed row is s (g - x s^2 mean(g x)), and the weight's sums
// dy * (x s) over rows.
//
// Bits: s is the forward's. The sum of g x takes the same way: FMA over a thread's values in the order of the squares, then the same trees. A group
// of 16 rows is an FMA chain over ascending rows from 0 (biases: of additions; heads: within a row an FMA chain over ascending heads from 0,
// then the rows' sums in ascending order). Groups are added to the gradient one by one, ascending: rows cut at multiples of 16 into several calls
// give the bits of one. Rows that are not there are left out.
#include "common.cuh"

static constexpr u32 GROUP = 16;

// Eight columns from `first` on, in pairs; what lies beyond the width is 0 and is not read.
DEV void load_chunk(u32 (&pairs)[4], const bf16* row, u32 first, u32 cols) {
    if (first + 8 <= cols) {
        const Quad q = *(const Quad*)(row + first);
        pairs[0] = q.x, pairs[1] = q.y, pairs[2] = q.z, pairs[3] = q.w;
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 c = first + 2 * i;
        pairs[i] = (c < cols ? (u32)row[c] : 0u) | (c + 1 < cols ? (u32)row[c + 1] << 16 : 0u);
    }
}

DEV void store_chunk(bf16* row, const u32 (&pairs)[4], u32 first, u32 cols) {
    if (first + 8 <= cols) {
        *(Quad*)(row + first) = Quad{pairs[0], pairs[1], pairs[2], pairs[3]};
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 c = first + 2 * i;
        if (c < cols) row[c] = (bf16)pairs[i];
        if (c + 1 < cols) row[c + 1] = (bf16)(pairs[i] >> 16);
    }
}

DEV float add_squares(float sum, u32 x) {
    sum = fma_rn(low_f32(x), low_f32(x), sum);
    return fma_rn(high_f32(x), high_f32(x), sum);
}
DEV float add_products(float sum, u32 x, u32 w, u32 dy) {
    sum = fma_rn(low_f32(dy) * low_f32(w), low_f32(x), sum);
    return fma_rn(high_f32(dy) * high_f32(w), high_f32(x), sum);
}

// What a row's values share: s, and s^2 mean(g x).
struct Scales {
    float scale, mean;
};
DEV Scales scales_of(float squares, float products, float eps, u32 cols) {
    const float scale = div_rn(1.0f, sqrt_rn(div_rn(squares, (float)cols) + eps));
    return Scales{scale, div_rn(products * scale * scale, (float)cols)};
}
DEV float gradient(const Scales& s, float x, float w, float dy) { return s.scale * fma_rn(x, -s.mean, dy * w); }
DEV void add_weight_gradient(float& low, float& high, float scale, u32 x, u32 dy) {
    low = fma_rn(low_f32(dy), low_f32(x) * scale, low);
    high = fma_rn(high_f32(dy), high_f32(x) * scale, high);
}

// Sums two values over the block, in every thread. Calls take turns with two places in shared memory: a place is written again only behind the
// barrier of the call between, which comes after all reads of it.
DEV void block_sums(float& a, float& b, float* place) {
    a = warp_sum(a), b = warp_sum(b);
    if (LANE == 0) place[WARP] = a, place[32 + WARP] = b;
    block_sync();
    a = warp_sum(LANE < THREADS / 32 ? place[LANE] : 0.0f);
    b = warp_sum(LANE < THREADS / 32 ? place[32 + LANE] : 0.0f);
}

// A group of rows.
struct Rows {
    bf16* dx;
    const bf16 *x, *weight, *dy;
    u32 dx_stride, x_stride, dy_stride, count, cols;
    float eps;
};

// Eight columns of a row.
struct Line {
    u32 x[4], w[4], dy[4], dx[4];
};
DEV void load_line(Line& line, const Rows& rows, u32 r, u32 first) {
    load_chunk(line.x, rows.x + (u64)r * rows.x_stride, first, rows.cols);
    load_chunk(line.w, rows.weight, first, rows.cols);
    load_chunk(line.dy, rows.dy + (u64)r * rows.dy_stride, first, rows.cols);
    load_chunk(line.dx, rows.dx + (u64)r * rows.dx_stride, first, rows.cols);
}
DEV void add_line(float& squares, float& products, const Line& line) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        squares = add_squares(squares, line.x[i]);
        products = add_products(products, line.x[i], line.w[i], line.dy[i]);
    }
}
// Adds to the weight's sums and ends dx.
DEV void end_line(float (&sums)[8], Line& line, const Scales& s, const Rows& rows, u32 r, u32 first) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        add_weight_gradient(sums[2 * i], sums[2 * i + 1], s.scale, line.x[i], line.dy[i]);
        const float low = gradient(s, low_f32(line.x[i]), low_f32(line.w[i]), low_f32(line.dy[i]));
        const float high = gradient(s, high_f32(line.x[i]), high_f32(line.w[i]), high_f32(line.dy[i]));
        line.dx[i] = pack_bf16(low_f32(line.dx[i]) + low, high_f32(line.dx[i]) + high);
    }
    store_chunk(rows.dx + (u64)r * rows.dx_stride, line.dx, first, rows.cols);
}
DEV void store_sums(float* to, const float (&sums)[8], u32 first, u32 cols) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        if (first + i < cols) to[first + i] = sums[i];
    }
}

struct NormShared {
    float places[2][64];
    Scales scales[GROUP];
};
static_assert(sizeof(NormShared) == 640, "said above");

// One chunk a thread: a row is read once.
DEV void narrow_group(float* partials, const Rows& rows, NormShared* shared) {
    const u32 first = 8 * THREAD;
    float sums[8] = {};
    for (u32 r = 0; r < rows.count; r++) {
        Line line = {};
        float squares = 0.0f, products = 0.0f;
        if (first < rows.cols) load_line(line, rows, r, first);
        add_line(squares, products, line);
        block_sums(squares, products, shared->places[r % 2]);
        if (first < rows.cols) end_line(sums, line, scales_of(squares, products, rows.eps, rows.cols), rows, r, first);
    }
    store_sums(partials, sums, first, rows.cols);
}

// Several chunks, whose sums are too many for a thread's registers: first the scales of all rows, then chunk by chunk down the rows.
DEV void wide_group(float* partials, const Rows& rows, NormShared* shared) {
    Line line;
    for (u32 r = 0; r < rows.count; r++) {
        float squares = 0.0f, products = 0.0f;
        for (u32 first = 8 * THREAD; first < rows.cols; first += 8 * THREADS) {
            load_line(line, rows, r, first);
            add_line(squares, products, line);
        }
        block_sums(squares, products, shared->places[r % 2]);
        if (THREAD == 0) shared->scales[r] = scales_of(squares, products, rows.eps, rows.cols);
    }
    block_sync();
    for (u32 first = 8 * THREAD; first < rows.cols; first += 8 * THREADS) {
        float sums[8] = {};
        for (u32 r = 0; r < rows.count; r++) {
            load_line(line, rows, r, first);
            end_line(sums, line, shared->scales[r], rows, r, first);
        }
        store_sums(partials, sums, first, rows.cols);
    }
}

// dx += the gradient of x, rounded once.
KERNEL(rmsnorm_backward)
__launch_bounds__(1024)(bf16* dx, u32 dx_stride, float* partials, const bf16* x, u32 x_stride, const bf16* weight, const bf16* dy, u32 dy_stride,
                        float eps, u32 rows, u32 cols) {
    SHARED_BYTES(memory);
    const u32 first = BLOCK_X * GROUP;
    const Rows group = {dx + (u64)first * dx_stride, x + (u64)first * x_stride, weight, dy + (u64)first * dy_stride, dx_stride, x_stride,
                        dy_stride, min_of(GROUP, rows - first), cols, eps};
    float* const to = partials + (u64)BLOCK_X * cols;
    if (cols <= 8 * THREADS) {
        narrow_group(to, group, (NormShared*)memory);
    } else {
        wide_group(to, group, (NormShared*)memory);
    }
}
EXPORT(rmsnorm_backward)

KERNEL(bias_backward)(float* partials, const bf16* dy, u32 dy_stride, u32 rows, u32 cols) {
    const u32 column = BLOCK_Y * THREADS + THREAD;
    if (column >= cols) return;
    const u32 first = BLOCK_X * GROUP, count = min_of(GROUP, rows - first);
    const bf16* const from = dy + (u64)first * dy_stride + column;
    bf16 values[GROUP];
#pragma unroll
    for (u32 r = 0; r < GROUP; r++) values[r] = r < count ? from[(u64)r * dy_stride] : (bf16)0;
    float sum = 0.0f;
#pragma unroll
    for (u32 r = 0; r < GROUP; r++) {
        if (r < count) sum = sum + bf16_f32(values[r]);
    }
    partials[(u64)BLOCK_X * cols + column] = sum;
}
EXPORT(bias_backward)

// Values i and i + 1 of a half of a head. Where the half has an odd length its pairs do not lie on 4-byte boundaries and the last has one value.
DEV u32 load_pair(const bf16* from, u32 i, u32 half) {
    if (i >= half) return 0;
    if (half % 2 == 0) return *(const u32*)(from + i);
    return (u32)from[i] | (i + 1 < half ? (u32)from[i + 1] << 16 : 0u);
}
DEV void store_pair(bf16* to, u32 pair, u32 i, u32 half) {
    if (i >= half) return;
    if (half % 2 == 0) {
        *(u32*)(to + i) = pair;
        return;
    }
    to[i] = (bf16)pair;
    if (i + 1 < half) to[i + 1] = (bf16)(pair >> 16);
}

// What a lane holds of a head, in the order in which rope_kv.cu sums the squares: pairs of the first half, of the second half, 64 values further
// on of the first, of the second. Pair p starts at value 64 (p / 2) + 2 lane of its half.
static constexpr u32 PAIRS = 4;
struct Head {
    u32 pairs[PAIRS];
};
DEV u32 pair_start(u32 p) { return p / 2 * 64 + 2 * LANE; }
DEV u32 half_start(u32 p, u32 half) { return p % 2 * half; }
DEV Head load_head(const bf16* from, u32 half) {
    Head h;
#pragma unroll
    for (u32 p = 0; p < PAIRS; p++) h.pairs[p] = load_pair(from + half_start(p, half), pair_start(p), half);
    return h;
}

// The heads of one kind in one row, at least one, with the next head's values under way; `sums` are those of the weight.
DEV void norm_heads(float (&sums)[2 * PAIRS], bf16* dqkv, const bf16* raw, const bf16* weight, float eps, u32 heads, u32 dim) {
    const u32 half = dim / 2;
    const Head w = load_head(weight, half);
    Head x = load_head(raw, half), dy = load_head(dqkv, half);
    for (u32 head = 0; head < heads; head++) {
        const bool last = head + 1 == heads;
        const Head next_x = last ? x : load_head(raw + (head + 1) * dim, half);
        const Head next_dy = last ? dy : load_head(dqkv + (head + 1) * dim, half);
        float squares = 0.0f, products = 0.0f;
#pragma unroll
        for (u32 p = 0; p < PAIRS; p++) {
            squares = add_squares(squares, x.pairs[p]);
            products = add_products(products, x.pairs[p], w.pairs[p], dy.pairs[p]);
        }
        const Scales s = scales_of(warp_sum(squares), warp_sum(products), eps, dim);
#pragma unroll
        for (u32 p = 0; p < PAIRS; p++) {
            add_weight_gradient(sums[2 * p], sums[2 * p + 1], s.scale, x.pairs[p], dy.pairs[p]);
            const float low = gradient(s, low_f32(x.pairs[p]), low_f32(w.pairs[p]), low_f32(dy.pairs[p]));
            const float high = gradient(s, high_f32(x.pairs[p]), high_f32(w.pairs[p]), high_f32(dy.pairs[p]));
            store_pair(dqkv + head * dim + half_start(p, half), pack_bf16(low, high), pair_start(p), half);
        }
        x = next_x, dy = next_dy;
    }
}

// In place on the query and key heads of dqkv, a warp a row; `raw` holds the heads before the norm. A row's sums lie in shared memory,
// [row][2][dim], until all rows of the group are there.
KERNEL(qk_norm_backward)
(bf16* dqkv, u32 stride, const bf16* raw, u32 raw_stride, const bf16* q_weight, const bf16* k_weight, float* partials, float eps, u32 rows,
 u32 query_heads, u32 kv_heads, u32 dim) {
    SHARED_BYTES(memory);
    float* const shared = (float*)memory;
    const u32 first = BLOCK_X * GROUP, count = min_of(GROUP, rows - first);
    if (WARP < count) {
        bf16* dy = dqkv + (u64)(first + WARP) * stride;
        const bf16* x = raw + (u64)(first + WARP) * raw_stride;
        for (u32 kind = 0; kind < 2; kind++) {
            const u32 heads = kind == 0 ? query_heads : kv_heads;
            float sums[2 * PAIRS] = {};
            norm_heads(sums, dy, x, kind == 0 ? q_weight : k_weight, eps, heads, dim);
            dy += heads * dim, x += heads * dim;
            float* const own = shared + (WARP * 2 + kind) * dim;
#pragma unroll
            for (u32 p = 0; p < PAIRS; p++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    if (pair_start(p) + e < dim / 2) own[half_start(p, dim / 2) + pair_start(p) + e] = sums[2 * p + e];
                }
            }
        }
    }
    block_sync();
    for (u32 i = THREAD; i < 2 * dim; i += THREADS) {
        float sum = 0.0f;
        for (u32 r = 0; r < count; r++) sum = sum + shared[r * 2 * dim + i];
        partials[(u64)BLOCK_X * 2 * dim + i] = sum;
    }
}
EXPORT(qk_norm_backward)

// to[c] += the groups' sums, one chain. So many are loaded before the chain takes them; blocks are narrow so that there are enough of them.
static constexpr u32 AHEAD = 16;
KERNEL(add_groups)(float* to, const float* partials, u64 group_stride, u32 groups, u32 cols) {
    const u32 column = BLOCK_X * THREADS + THREAD;
    if (column >= cols) return;
    const float* from = partials + column;
    float sum = to[column];
    u32 group = 0;
    for (; group + AHEAD <= groups; group += AHEAD) {
        float values[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) values[i] = from[i * group_stride];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) sum = sum + values[i];
        from += AHEAD * group_stride;
    }
    for (; group < groups; group++) {
        sum = sum + *from;
        from += group_stride;
    }
    to[column] = sum;
}
EXPORT(add_groups)
