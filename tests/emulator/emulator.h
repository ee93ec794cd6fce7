// The host branch of kernels/common.cuh, which includes this file: the same names, for a kernel that the host's C++ compiler compiles.
//
// A thread of a block is a fiber. It runs until it meets others (a warp-wide operation, block_sync) and goes on when all have come. All 32 lanes
// must come to a warp-wide operation, and to the same one: same operation, same line of the source. What a warp-wide operation does to registers
// is what the PTX manual says of mma.m16n8k16, ldmatrix.x4 and shfl.sync. Asynchronous copies are made as late as the waits allow; until then
// their destination holds NaNs.
//
// Static shared memory (__shared__) is left out on purpose: all shared memory of a kernel comes from SHARED_BYTES, where it can be watched.
#pragma once
#include <cstring>
#include <utility>

#include "launch.h"

#define DEV static inline
#define KERNEL(name) extern "C" void name
#define EXPORT(name) static const bool name##_is_known = emulator::make_known(#name, name);
#define SHARED_BYTES(name) unsigned char* const name = emulator::self->block->shared

#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)

struct alignas(16) Quad {
    u32 x, y, z, w;
};

namespace emulator {

// What a kernel can read of its block and of its thread. `self` is the thread that runs now on this thread of the host.
struct Block {
    u32 x, y, z, blocks_x, threads;
    unsigned char* shared;
};
struct Thread {
    u32 index, lane;
    const Block* block;
};
extern __thread Thread* self __attribute__((tls_model("initial-exec")));

// A line of the kernel's source. As default arguments, and not within braces, the two builtins give the line of the call.
struct Place {
    const char* file;
    int line;
};
#define HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define PLACE \
    emulator::Place { file, line }

enum class Meeting : u32 { WarpXor, WarpUp, WarpFrom, WarpBallot, WarpSync, LoadMatrix, LoadMatrixTransposed, MultiplyAdd, BlockSync };

// All lanes give a word; the word that lane `from` gave.
u64 exchange(u64 word, u32 from, Meeting meeting, Place place);
u32 ballot(bool bit, Place place);
void load_matrix(u32* registers, const void* row, Meeting meeting, Place place);
void multiply_add(float* d, const u32* a, u32 b0, u32 b1, Place place);
void warp_sync(Place place);
void block_sync(Place place);
void copy_async(void* to, const void* from, u32 bytes, Place place);
void copy_commit();
void copy_wait(u32 open_groups);
float exp2_approx(float x);

// Turns an array of pointers into the arguments of a function.
template <class... Types> struct Parameters {
    static constexpr size_t BYTES[sizeof...(Types) + 1] = {sizeof(Types)..., 0};

    template <class T> static T read(const void* from) {
        T value;
        memcpy(&value, from, sizeof value);
        return value;
    }
    template <size_t... I> static void call_with(void (*function)(Types...), void** parameters, std::index_sequence<I...>) {
        function(read<Types>(parameters[I])...);
    }
    static void call(void (*function)(), void** parameters) {
        call_with((void (*)(Types...))function, parameters, std::index_sequence_for<Types...>{});
    }
};

bool make_known(Kernel* kernel);
template <class... Types> bool make_known(const char* name, void (*function)(Types...)) {
    using Those = Parameters<Types...>;
    return make_known(new Kernel{name, Those::call, (void (*)())function, sizeof...(Types), Those::BYTES, nullptr});
}

}  // namespace emulator

DEV u32 f32_bits(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEV float bits_f32(u32 x) {
    float value;
    memcpy(&value, &x, 4);
    return value;
}
DEV float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float sqrt_rn(float x) { return __builtin_sqrtf(x); }
DEV float div_rn(float a, float b) { return a / b; }
DEV u32 mul_high(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEV u32 count_bits(u32 x) { return (u32)__builtin_popcount(x); }
DEV float exp2_approx(float x) { return emulator::exp2_approx(x); }

DEV u64 warp_xor(u64 x, int lanes, HERE) { return emulator::exchange(x, emulator::self->lane ^ (u32)lanes, emulator::Meeting::WarpXor, PLACE); }
DEV u32 warp_xor(u32 x, int lanes, HERE) { return (u32)warp_xor((u64)x, lanes, file, line); }
DEV float warp_xor(float x, int lanes, HERE) { return bits_f32((u32)warp_xor((u64)f32_bits(x), lanes, file, line)); }
DEV double warp_xor(double x, int lanes, HERE) {
    u64 bits;
    memcpy(&bits, &x, 8);
    bits = warp_xor(bits, lanes, file, line);
    memcpy(&x, &bits, 8);
    return x;
}
DEV u32 warp_up(u32 x, u32 lanes, HERE) { return (u32)emulator::exchange(x, emulator::self->lane - lanes, emulator::Meeting::WarpUp, PLACE); }
DEV u32 warp_from(u32 x, int lane, HERE) { return (u32)emulator::exchange(x, (u32)lane & 31u, emulator::Meeting::WarpFrom, PLACE); }
DEV u32 warp_ballot(bool x, HERE) { return emulator::ballot(x, PLACE); }
DEV void warp_sync(HERE) { emulator::warp_sync(PLACE); }
DEV void block_sync(HERE) { emulator::block_sync(PLACE); }

DEV void add_atomic(u32* at, u32 x) { __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }
DEV void add_atomic(u64* at, u64 x) { __atomic_fetch_add(at, x, __ATOMIC_RELAXED); }

DEV void copy_async(void* to, const void* from, u32 bytes, HERE) { emulator::copy_async(to, from, bytes, PLACE); }
DEV void copy_commit() { emulator::copy_commit(); }
template <int N> DEV void copy_wait() { emulator::copy_wait(N); }

DEV void load_matrix(u32 (&r)[4], const void* row, HERE) { emulator::load_matrix(r, row, emulator::Meeting::LoadMatrix, PLACE); }
DEV void load_matrix_transposed(u32 (&r)[4], const void* row, HERE) {
    emulator::load_matrix(r, row, emulator::Meeting::LoadMatrixTransposed, PLACE);
}
DEV void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, HERE) { emulator::multiply_add(d, a, b0, b1, PLACE); }

#define THREAD (emulator::self->index)
#define THREADS (emulator::self->block->threads)
#define BLOCK_X (emulator::self->block->x)
#define BLOCK_Y (emulator::self->block->y)
#define BLOCK_Z (emulator::self->block->z)
#define BLOCKS_X (emulator::self->block->blocks_x)
