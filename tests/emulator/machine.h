// What the parts of the emulator share: the threads of the block that runs, as fibers, and how they take turns.
//
// A machine runs one block at a time, on one thread of the host. The lanes of a warp that have not returned stand in a ring, and so do the warps of
// the block. A lane runs until its next meeting; then the next lane of the ring runs to the same meeting. So the lanes that have arrived are always
// the ones just before the one that runs, and when the last has arrived it simply goes on: a meeting costs one switch a lane. A warp keeps the
// machine until all its lanes have arrived at block_sync or returned; then the next warp of the ring runs.
//
// What lanes give and get in a warp-wide operation lies in one of two sets of slots, used in turn: the lane that goes on first may arrive at the
// next meeting while the others have yet to read the results of this one.
#pragma once
#include "common.cuh"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

constexpr u32 MOST_THREADS = 1024, LANES = 32, MOST_WARPS = MOST_THREADS / LANES;

// One asynchronous copy that was started and not yet made.
struct Copy {
    void* to;
    const void* from;
    u32 bytes, group;
};

// A thread's copies, in the order in which they were started: a ring of a power of two.
struct Copies {
    Copy* ring;
    u32 capacity, first, end;
    u32 group;  // The group that copies started now belong to.
};

struct Slots {
    u64 words[LANES];
    u32 ballot;
    const void* rows[LANES];
    alignas(64) u32 matrices[LANES][4];
    // Fragments of multiply_add, each lane's registers together; of b as the multiplication reads them, see collectives.cpp.
    alignas(64) u32 a[LANES][4];
    alignas(64) u32 b[2][LANES];
    alignas(64) float d[LANES][4];
};

struct Warp;

struct Fiber : Thread {
    Warp* warp;
    Fiber *next, *previous;
    void* stack_pointer;  // Where it was left.
    char* stack;          // nullptr until it is started.
    u32 b_place;          // Where its registers of b go in the slots.
    Copies copies;
};

struct Warp {
    Warp *next, *previous;
    Fiber* first;       // The lane that runs first when the warp gets its turn.
    u32 live, arrived;  // Lanes that have not returned, and those of them that have come to the meeting.
    Slots *now, *then;  // The slots of the next meeting, and of the one after it.
    Meeting meeting;
    Place place;
    u32 thread;  // The first that came, for messages.
    Slots slots[2];
};

struct Machine {
    // The launch.
    const Kernel* kernel;
    void** parameters;
    bool failed;
    void* launcher;  // The stack pointer of whoever called launch.
    const void* launcher_stack;
    size_t launcher_stack_bytes;
    Work work;
    // The block.
    Block block;
    size_t shared_bytes;
    unsigned char* shared_memory;  // Room for the largest, with guards.
    u32 live_warps, waiting_warps;
    Place barrier;
    u32 barrier_thread;
    // Orders of warps and of lanes within a warp, and what they were made for.
    u32 order, warp_order[MOST_WARPS], lane_order[LANES];
    u32 ordered_warps;
    // All stacks that were made, and those of them on which no thread stands.
    char *all_stacks[MOST_THREADS], *free_stacks[MOST_THREADS];
    u32 all_stacks_count, free_stacks_count;
    Fiber fibers[MOST_THREADS];
    Warp warps[MOST_WARPS];
};

extern __thread Machine* machine __attribute__((tls_model("initial-exec")));

// Says what is wrong with the thread that runs and leaves the launch.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
const char* name_of(Meeting meeting);
const char* file_of(Place place);

// ---- fibers.cpp ----

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 128 << 10;
#endif

// Saves what a function must preserve, stores the stack pointer, and goes on where another one was stored.
extern "C" void adaroll_emulator_switch(void** from, void* to);

// Gives a fiber a stack on which it begins its thread.
void begin(Fiber* fiber);
// Runs a block from this thread on, until its last one has returned or one has failed.
void enter(Machine* m, Fiber* first);
// Leaves the block, from within it.
[[noreturn]] void return_to_launcher();
// Makes all stacks free: nobody stands on one between blocks.
void recover_stacks(Machine* m);
void free_stacks(Machine* m);

// ---- faults.cpp ----

// From now on a kernel that touches memory where there is none fails, and the process lives.
void watch_faults();

// ---- emulator.cpp ----

// The running thread has returned. Who goes on; nullptr: it was the last of the block.
Fiber* leave(Machine* m, Fiber* fiber);

inline Fiber* running() { return static_cast<Fiber*>(self); }

// Runs another fiber until one switches back.
inline void switch_to(Fiber* from, Fiber* to) {
    if (__builtin_expect(to->stack == nullptr, 0)) begin(to);
    self = to;
    machine->work.switches++;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to->stack, STACK_BYTES);
#endif
    adaroll_emulator_switch(&from->stack_pointer, to->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

[[noreturn]] void fail_to_meet(Fiber* fiber, Meeting meeting, Place place);

// A lane comes to a meeting of its warp. True: it is the last.
inline bool arrive(Fiber* fiber, Warp* warp, Meeting meeting, Place place) {
    if (warp->arrived == 0) {
        warp->meeting = meeting;
        warp->place = place;
        warp->thread = fiber->index;
    } else if (__builtin_expect(warp->meeting != meeting || warp->place.line != place.line, 0)) {
        fail_to_meet(fiber, meeting, place);
    }
    return ++warp->arrived == warp->live;
}

}  // namespace emulator
