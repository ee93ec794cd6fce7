// Launching a kernel: its blocks one after the other, the threads of a block as fibers that take turns; see machine.h.
//
// Every block finds its shared memory filled with 0xff, which is NaN in bf16 and in f32, and guards around it that are checked when it ends. A
// thread that does something wrong is left where it is, and so are all the others: the launcher goes on at once.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "machine.h"

namespace emulator {

__thread Thread* self;
__thread Machine* machine;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool SANITIZED = true;
#else
constexpr bool SANITIZED = false;
#endif

namespace {

constexpr size_t GUARD = 1024, MOST_SHARED = 227 << 10;
const Kernel* all_kernels;
__thread u32 chosen_order;

// ---- turns ----

// The next warp that has its turn, now that this one waits or is done: its first lane.
Fiber* next_warp(Warp* warp) { return warp->next->first; }

// A warp whose lanes all wait at the barrier, or the rest of them. True: it was the last, and all go on.
bool warp_waits(Machine* m, Warp* warp) {
    if (m->waiting_warps == 0) {
        m->barrier = warp->place;
        m->barrier_thread = warp->thread;
    } else if (m->barrier.line != warp->place.line) {
        fail("block_sync: it waits at %s line %d while thread %u waits at %s line %d", file_of(warp->place), warp->place.line, m->barrier_thread,
             file_of(m->barrier), m->barrier.line);
    }
    warp->arrived = 0;
    if (++m->waiting_warps < m->live_warps) return false;
    m->waiting_warps = 0;
    return true;
}

// ---- orders ----

struct Numbers {
    u64 state;
    u32 below(u32 n) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (u32)((state >> 33) % n);
    }
};

void put_in_order(u32* list, u32 n, u32 order) {
    Numbers numbers = {order};
    for (u32 i = 0; i < n; i++) list[i] = order == 1 ? n - 1 - i : i;
    for (u32 i = n; order > 1 && i > 1; i--) std::swap(list[i - 1], list[numbers.below(i)]);
}

// Steps through all blocks: up, down, or by a stride that has no divisor in common with their number.
struct BlockWalk {
    u64 at, step, count;
    BlockWalk(u64 count, u32 order) : at(0), step(1), count(count) {
        if (order == 1) at = step = count - 1;
        if (order <= 1) return;
        Numbers numbers = {order};
        at = numbers.below((u32)(count < 0x7fffffff ? count : 0x7fffffff));
        for (step = count / 2 + numbers.below(64) % count; common_divisor(step, count) != 1;) step++;
        step %= count;
    }
    void advance() { at = (at + step) % count; }
    static u64 common_divisor(u64 a, u64 b) {
        while (b != 0) {
            const u64 rest = a % b;
            a = b;
            b = rest;
        }
        return a;
    }
};

// ---- one block ----

// Lays the rings of a block of so many threads in the machine's order.
void prepare_threads(Machine* m, u32 threads) {
    const u32 warps = (threads + LANES - 1) / LANES;
    Warp* last_warp = nullptr;
    for (u32 i = 0; i < warps; i++) {
        const u32 index = m->warp_order[i];
        Warp* const warp = &m->warps[index];
        Fiber* last = nullptr;
        warp->live = warp->arrived = 0;
        warp->now = &warp->slots[0];
        warp->then = &warp->slots[1];
        warp->first = nullptr;
        for (u32 lane : m->lane_order) {
            Fiber* const fiber = &m->fibers[index * LANES + lane];
            if (index * LANES + lane >= threads) continue;
            fiber->stack = nullptr;
            fiber->copies.first = fiber->copies.end = fiber->copies.group = 0;
            fiber->previous = last;
            if (last == nullptr) warp->first = fiber; else last->next = fiber;
            last = fiber;
            warp->live++;
        }
        last->next = warp->first;
        warp->first->previous = last;
        warp->previous = last_warp;
        if (last_warp != nullptr) last_warp->next = warp;
        last_warp = warp;
    }
    Warp* const first_warp = &m->warps[m->warp_order[0]];
    last_warp->next = first_warp;
    first_warp->previous = last_warp;
    m->live_warps = warps;
    m->waiting_warps = 0;
    recover_stacks(m);
}

void prepare_shared(Machine* m) {
    unsigned char *const begin = m->block.shared, *const end = begin + m->shared_bytes;
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(m->shared_memory, MOST_SHARED + 2 * GUARD);
    __asan_unpoison_memory_region(begin, m->shared_bytes);
#else
    memset(begin - GUARD, 0xa5, GUARD);
    memset(end, 0xa5, GUARD);
#endif
    memset(begin, 0xff, (size_t)(end - begin));
}

void check_shared(Machine* m) {
    if (SANITIZED || m->failed) return;
    for (int side = 0; side < 2; side++) {
        const unsigned char* const guard = side == 0 ? m->block.shared - GUARD : m->block.shared + m->shared_bytes;
        for (size_t i = 0; i < GUARD && !m->failed; i++) {
            if (guard[i] == 0xa5) continue;
            fprintf(stderr, "emulator: kernel %s, block %u,%u,%u: a thread wrote to shared memory + %td, of %zu bytes\n", m->kernel->name,
                    m->block.x, m->block.y, m->block.z, guard + i - m->block.shared, m->shared_bytes);
            m->failed = true;
        }
    }
}

void run_block(Machine* m) {
    prepare_threads(m, m->block.threads);
    prepare_shared(m);
    enter(m, m->warps[m->warp_order[0]].first);
    check_shared(m);
}

// ---- a thread's machine ----

// Frees the machine when its thread ends.
struct MachineOwner {
    Machine* mine = nullptr;

    Machine* get() {
        if (mine != nullptr) return mine;
        mine = new Machine();
        mine->shared_memory = (unsigned char*)aligned_alloc(1024, MOST_SHARED + 2 * GUARD);
        mine->block.shared = mine->shared_memory + GUARD;
        for (u32 i = 0; i < MOST_THREADS; i++) {
            Fiber* const fiber = &mine->fibers[i];
            const u32 g = i % LANES / 4, t = i % 4;
            fiber->index = i;
            fiber->lane = i % LANES;
            fiber->block = &mine->block;
            fiber->warp = &mine->warps[i / LANES];
            // Of columns 0 1 4 5 2 3 6 7, the place of g; see collectives.cpp.
            fiber->b_place = t * 8 + g % 2 + g / 4 * 2 + g / 2 % 2 * 4;
        }
        return machine = mine;
    }
    ~MachineOwner() {
        if (mine == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(mine->shared_memory, MOST_SHARED + 2 * GUARD);
#endif
        free(mine->shared_memory);
        free_stacks(mine);
        for (Fiber& fiber : mine->fibers) free(fiber.copies.ring);
        delete mine;
        mine = machine = nullptr;
    }
};
thread_local MachineOwner owner;

}  // namespace

// The running thread has returned. Who goes on; nullptr: it was the last of the block.
Fiber* leave(Machine* m, Fiber* fiber) {
    Warp* const warp = fiber->warp;
    if (warp->arrived > 0 && warp->meeting != Meeting::BlockSync) {
        fail("it has returned while thread %u of its warp waits in %s (%s line %d)", warp->thread, name_of(warp->meeting), file_of(warp->place),
             warp->place.line);
    }
    fiber->previous->next = fiber->next;
    fiber->next->previous = fiber->previous;
    if (warp->first == fiber) warp->first = fiber->next;
    if (--warp->live == 0) {
        warp->previous->next = warp->next;
        warp->next->previous = warp->previous;
        if (--m->live_warps == 0) return nullptr;
        // Threads that have returned are not waited for.
        if (m->waiting_warps == m->live_warps) m->waiting_warps = 0;
        return next_warp(warp);
    }
    if (warp->arrived < warp->live) return fiber->next;
    return warp_waits(m, warp) ? warp->first : next_warp(warp);
}

void block_sync(Place place) {
    Machine* const m = machine;
    Fiber* const fiber = running();
    Warp* const warp = fiber->warp;
    if (!arrive(fiber, warp, Meeting::BlockSync, place)) {
        switch_to(fiber, fiber->next);
    } else if (!warp_waits(m, warp)) {
        switch_to(fiber, next_warp(warp));
    }
}

// ---- messages ----

const char* name_of(Meeting meeting) {
    static const char* const names[] = {"warp_xor",    "warp_up",                "warp_from",    "warp_ballot", "warp_sync",
                                        "load_matrix", "load_matrix_transposed", "multiply_add", "block_sync"};
    return names[(u32)meeting];
}

const char* file_of(Place place) {
    const char* const slash = strrchr(place.file, '/');
    return slash != nullptr ? slash + 1 : place.file;
}

void fail(const char* format, ...) {
    Machine* const m = machine;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulator: kernel %s, block %u,%u,%u, thread %u: %s\n", m->kernel->name, m->block.x, m->block.y, m->block.z, self->index, text);
    m->failed = true;
    return_to_launcher();
}

void fail_to_meet(Fiber* fiber, Meeting meeting, Place place) {
    const Warp* const warp = fiber->warp;
    fail("%s (%s line %d) while thread %u of its warp waits in %s (%s line %d)", name_of(meeting), file_of(place), place.line, warp->thread,
         name_of(warp->meeting), file_of(warp->place), warp->place.line);
}

// ---- launching ----

bool make_known(Kernel* kernel) {
    kernel->next = all_kernels;
    all_kernels = kernel;
    return true;
}

const Kernel* find(const char* name) {
    const Kernel* kernel = all_kernels;
    while (kernel != nullptr && strcmp(kernel->name, name) != 0) kernel = kernel->next;
    return kernel;
}

const Work& work() { return owner.get()->work; }

const char* wrong_with(Size grid, Size block, size_t shared_bytes) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return "there is no such grid";
    if (block.x == 0 || block.x > MOST_THREADS || block.y != 1 || block.z != 1) return "a block has 1 to 1024 threads, in x alone";
    return shared_bytes > MOST_SHARED ? "no block has so much shared memory" : nullptr;
}

bool launch(const Kernel& kernel, Size grid, Size block, size_t shared_bytes, void** parameters) {
    if (const char* const wrong = wrong_with(grid, block, shared_bytes)) {
        fprintf(stderr, "emulator: kernel %s: %s\n", kernel.name, wrong);
        return false;
    }
    Machine* const m = owner.get();
    watch_faults();
    m->kernel = &kernel;
    m->parameters = parameters;
    m->failed = false;
    m->shared_bytes = shared_bytes;
    m->block.threads = block.x;
    m->block.blocks_x = grid.x;
    const u32 warps = (block.x + LANES - 1) / LANES;
    if (m->order != chosen_order || m->ordered_warps != warps) {
        m->order = chosen_order;
        m->ordered_warps = warps;
        put_in_order(m->warp_order, warps, chosen_order);
        put_in_order(m->lane_order, LANES, chosen_order);
    }
    BlockWalk walk((u64)grid.x * grid.y * grid.z, chosen_order);
    for (u64 i = 0; i < walk.count && !m->failed; i++, walk.advance()) {
        m->block.x = (u32)(walk.at % grid.x);
        m->block.y = (u32)(walk.at / grid.x % grid.y);
        m->block.z = (u32)(walk.at / grid.x / grid.y);
        run_block(m);
    }
    return !m->failed;
}

bool launch(const char* name, Size grid, Size block, size_t shared_bytes, void** parameters) {
    const Kernel* const kernel = find(name);
    if (kernel != nullptr) return launch(*kernel, grid, block, shared_bytes, parameters);
    fprintf(stderr, "emulator: there is no kernel %s\n", name);
    return false;
}

}  // namespace emulator

extern "C" __attribute__((visibility("default"))) void adaroll_emulator_order(unsigned order) { emulator::chosen_order = order; }
