// Operations of a whole warp, asynchronous copies, and the approximate instruction: what they do to values.
//
// In each operation a lane first puts what it gives into the warp's slots, then meets the others. The last one computes for all, if there is
// something to compute; each then reads its own results.
#include <cfloat>
#include <cmath>
#include <cstdlib>

#include "machine.h"

namespace emulator {
namespace {

// A lane has put its values into the slots. True: it is the last of 32, and the others wait for what it computes; false: all is computed.
inline bool meet(Fiber* fiber, Warp* warp, Meeting meeting, Place place) {
    if (__builtin_expect(warp->live != LANES, 0)) {
        fail("%s (%s line %d) needs 32 lanes, and %u of this warp have returned or never were", name_of(meeting), file_of(place), place.line,
             LANES - warp->live);
    }
    if (arrive(fiber, warp, meeting, place)) {
        warp->arrived = 0;
        std::swap(warp->now, warp->then);
        return true;
    }
    switch_to(fiber, fiber->next);
    return false;
}

typedef u32 Words __attribute__((vector_size(16)));
typedef u32 Pairs __attribute__((vector_size(32)));
typedef float Row __attribute__((vector_size(32)));

template <class Vector> inline Vector read(const void* from) {
    Vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

// ---- ldmatrix: register j of lane l holds two values of matrix j, at row l / 4, columns 2 (l % 4) and the next ----

void load(Slots& slots) {
    for (u32 g = 0; g < 8; g++) {
        const Words m0 = read<Words>(slots.rows[g]), m1 = read<Words>(slots.rows[8 + g]);
        const Words m2 = read<Words>(slots.rows[16 + g]), m3 = read<Words>(slots.rows[24 + g]);
        const Words low01 = __builtin_shufflevector(m0, m1, 0, 4, 1, 5), high01 = __builtin_shufflevector(m0, m1, 2, 6, 3, 7);
        const Words low23 = __builtin_shufflevector(m2, m3, 0, 4, 1, 5), high23 = __builtin_shufflevector(m2, m3, 2, 6, 3, 7);
        const Words lanes[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                                __builtin_shufflevector(high01, high23, 0, 1, 4, 5), __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
        memcpy(slots.matrices[4 * g], lanes, sizeof lanes);
    }
}

void load_transposed(Slots& slots) {
    for (u32 matrix = 0; matrix < 4; matrix++) {
        for (u32 t = 0; t < 4; t++) {
            bf16 even[8], odd[8];
            memcpy(even, slots.rows[matrix * 8 + 2 * t], 16);
            memcpy(odd, slots.rows[matrix * 8 + 2 * t + 1], 16);
            for (u32 g = 0; g < 8; g++) slots.matrices[4 * g + t][matrix] = (u32)even[g] | (u32)odd[g] << 16;
        }
    }
}

// ---- mma.m16n8k16 ----
//
// Rows of eight f32 are vectors of the host, with columns in the order 0 1 4 5 2 3 6 7, in which d's rows g and g + 8 come out of the registers of
// lanes 4 g to 4 g + 3 by one shuffle each. The lanes put b there in that order: row t of slots.b[h] holds, of b's rows 2 t + 8 h (low halves) and
// 2 t + 8 h + 1 (high halves), all columns.

inline Row low_halves(Pairs pairs) { return (Row)(pairs << 16); }
inline Row high_halves(Pairs pairs) { return (Row)(pairs & 0xffff0000u); }

void multiply(Slots& slots) {
    alignas(32) float a[2][LANES][4];  // The lower and the upper value of each register.
    Row b[16];
    for (u32 lane = 0; lane < LANES; lane += 2) {
        const Pairs pairs = read<Pairs>(slots.a[lane]);
        const Row low = low_halves(pairs), high = high_halves(pairs);
        memcpy(a[0][lane], &low, sizeof low);
        memcpy(a[1][lane], &high, sizeof high);
    }
    for (u32 k = 0; k < 16; k += 2) {
        const Pairs pairs = read<Pairs>(&slots.b[k / 8][k % 8 * 4]);
        b[k] = low_halves(pairs);
        b[k + 1] = high_halves(pairs);
    }
    // Eight rows at a time stay in registers; every sum is one chain over ascending k.
    for (u32 g0 = 0; g0 < 8; g0 += 4) {
        Row low[4], high[4];  // Rows g and g + 8.
        for (u32 g = 0; g < 4; g++) {
            const Row left = read<Row>(slots.d[4 * (g0 + g)]), right = read<Row>(slots.d[4 * (g0 + g) + 2]);
            low[g] = __builtin_shufflevector(left, right, 0, 1, 8, 9, 4, 5, 12, 13);
            high[g] = __builtin_shufflevector(left, right, 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 16
        for (u32 k = 0; k < 16; k++) {
#pragma GCC unroll 4
            for (u32 g = 0; g < 4; g++) {
                const float* const registers = a[k % 2][4 * (g0 + g) + k % 8 / 2];
                low[g] += registers[k / 8 * 2] * b[k];
                high[g] += registers[k / 8 * 2 + 1] * b[k];
            }
        }
        for (u32 g = 0; g < 4; g++) {
            const Row left = __builtin_shufflevector(low[g], high[g], 0, 1, 8, 9, 4, 5, 12, 13);
            const Row right = __builtin_shufflevector(low[g], high[g], 2, 3, 10, 11, 6, 7, 14, 15);
            memcpy(slots.d[4 * (g0 + g)], &left, sizeof left);
            memcpy(slots.d[4 * (g0 + g) + 2], &right, sizeof right);
        }
    }
}

// ---- asynchronous copies ----

bool in_shared(const void* at, size_t bytes) {
    const unsigned char *const p = (const unsigned char*)at, *const begin = machine->block.shared;
    return p >= begin && p + bytes <= begin + machine->shared_bytes;
}

void grow(Copies& copies) {
    const u32 capacity = copies.capacity ? 2 * copies.capacity : 32;
    Copy* const ring = (Copy*)malloc(capacity * sizeof(Copy));
    const u32 count = copies.end - copies.first;
    for (u32 i = 0; i < count; i++) ring[i] = copies.ring[(copies.first + i) & (copies.capacity - 1)];
    free(copies.ring);
    copies.ring = ring;
    copies.capacity = capacity;
    copies.first = 0;
    copies.end = count;
}

void make(const Copy& copy) {
    unsigned char value[16] = {};
    memcpy(value, copy.from, copy.bytes);
    memcpy(copy.to, value, 16);
}

}  // namespace

u64 exchange(u64 word, u32 from, Meeting meeting, Place place) {
    Fiber* const fiber = running();
    Warp* const warp = fiber->warp;
    Slots& slots = *warp->now;
    slots.words[fiber->lane] = word;
    meet(fiber, warp, meeting, place);
    // A lane outside the warp: the value stays.
    return from < LANES ? slots.words[from] : word;
}

u32 ballot(bool bit, Place place) {
    Fiber* const fiber = running();
    Warp* const warp = fiber->warp;
    Slots& slots = *warp->now;
    if (warp->arrived == 0) slots.ballot = 0;
    slots.ballot |= (u32)bit << fiber->lane;
    meet(fiber, warp, Meeting::WarpBallot, place);
    return slots.ballot;
}

void warp_sync(Place place) {
    Fiber* const fiber = running();
    meet(fiber, fiber->warp, Meeting::WarpSync, place);
}

void load_matrix(u32* registers, const void* row, Meeting meeting, Place place) {
    Fiber* const fiber = running();
    Warp* const warp = fiber->warp;
    Slots& slots = *warp->now;
    if (__builtin_expect((size_t)row % 16 != 0 || !in_shared(row, 16), 0)) {
        fail("%s (%s line %d): the row at shared memory + %td is %s", name_of(meeting), file_of(place), place.line,
             (const unsigned char*)row - machine->block.shared, (size_t)row % 16 != 0 ? "not on a 16-byte boundary" : "outside shared memory");
    }
    slots.rows[fiber->lane] = row;
    if (meet(fiber, warp, meeting, place)) meeting == Meeting::LoadMatrix ? load(slots) : load_transposed(slots);
    memcpy(registers, slots.matrices[fiber->lane], 16);
}

void multiply_add(float* d, const u32* a, u32 b0, u32 b1, Place place) {
    Fiber* const fiber = running();
    Warp* const warp = fiber->warp;
    Slots& slots = *warp->now;
    float* const mine = slots.d[fiber->lane];
    memcpy(slots.a[fiber->lane], a, 16);
    memcpy(mine, d, 16);
    slots.b[0][fiber->b_place] = b0;
    slots.b[1][fiber->b_place] = b1;
    if (meet(fiber, warp, Meeting::MultiplyAdd, place)) {
        machine->work.multiplications++;
        multiply(slots);
    }
    memcpy(d, mine, 16);
}

void copy_async(void* to, const void* from, u32 bytes, Place place) {
    Copies& copies = running()->copies;
    if (__builtin_expect(((size_t)to | (size_t)from) % 16 != 0 || bytes > 16 || !in_shared(to, 16), 0)) {
        fail("copy_async (%s line %d) of %u bytes from %p to shared memory + %td: %s", file_of(place), place.line, bytes, from,
             (unsigned char*)to - machine->block.shared,
             bytes > 16           ? "more than 16 bytes"
             : !in_shared(to, 16) ? "the destination is outside shared memory"
                                  : "not on 16-byte boundaries");
    }
#if defined(__SANITIZE_ADDRESS__)
    // What cannot be read is better said here than at the wait.
    if (bytes > 0 && __asan_region_is_poisoned((void*)from, bytes)) make({to, from, bytes, 0});
#endif
    memset(to, 0xff, 16);
    if (copies.end - copies.first == copies.capacity) grow(copies);
    copies.ring[copies.end++ & (copies.capacity - 1)] = {to, from, bytes, copies.group};
}

void copy_commit() { running()->copies.group++; }

void copy_wait(u32 open_groups) {
    Copies& copies = running()->copies;
    for (; copies.first != copies.end; copies.first++) {
        const Copy& copy = copies.ring[copies.first & (copies.capacity - 1)];
        if (copy.group + open_groups >= copies.group) return;
        make(copy);
    }
}

float exp2_approx(float x) {
    const float y = exp2f(x);
    return y < FLT_MIN ? 0.0f : y;
}

}  // namespace emulator
