// Fibers: their stacks, and the switch from one to another.
//
// A thread that begins while another has just returned takes over its stack without a switch: a kernel whose threads never meet runs as a loop.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "machine.h"

namespace emulator {
namespace {

constexpr size_t PAGE = 4096;

char* new_stack() {
    void* const at = mmap(nullptr, PAGE + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at, PAGE, PROT_NONE) != 0) {
        perror("emulator: no memory for the stack of a thread");
        exit(1);
    }
    return (char*)at + PAGE;
}

// Threads use the same few hundred bytes of their stacks; were those at the same place of every page, they would push each other out of the cache.
char* top_of(const Fiber* fiber) { return fiber->stack + STACK_BYTES - fiber->lane * 1088; }

// What a fiber's stack begins with: threads that have not begun yet run here one after the other.
[[noreturn]] void run_threads() {
    Machine* const m = machine;
#if defined(__SANITIZE_ADDRESS__)
    const void* from;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &from, &bytes);
    if (m->launcher_stack == nullptr) m->launcher_stack = from, m->launcher_stack_bytes = bytes;
#endif
    for (;;) {
        Fiber* const fiber = running();
        m->kernel->call(m->kernel->function, m->parameters);
        Fiber* const next = leave(m, fiber);
        if (next == nullptr) return_to_launcher();
        if (next->stack == nullptr) {
            next->stack = fiber->stack;
            self = next;
            continue;
        }
        // Nobody begins on this stack before it is left.
        m->free_stacks[m->free_stacks_count++] = fiber->stack;
        self = next;
        m->work.switches++;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_start_switch_fiber(nullptr, next->stack, STACK_BYTES);
#endif
        adaroll_emulator_switch(&fiber->stack_pointer, next->stack_pointer);
    }
}

// What `adaroll_emulator_switch` takes off a new stack: zeros for the registers that a function preserves, and where to go.
void* first_frame(char* top) {
    top = (char*)((size_t)top & ~(size_t)63);
#if defined(__x86_64__)
    // The stack pointer is 8 off a 16-byte boundary where a function begins, as after a call.
    void** const frame = (void**)top - 8;
    constexpr int RETURN = 6;
#elif defined(__aarch64__)
    void** const frame = (void**)top - 20;
    constexpr int RETURN = 11;
#endif
    memset(frame, 0, (size_t)(top - (char*)frame));
    frame[RETURN] = (void*)run_threads;
    return frame;
}

}  // namespace

#if defined(__x86_64__)
asm(R"(
.text
.globl adaroll_emulator_switch
.hidden adaroll_emulator_switch
.type adaroll_emulator_switch, @function
adaroll_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size adaroll_emulator_switch, . - adaroll_emulator_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl adaroll_emulator_switch
.hidden adaroll_emulator_switch
.type adaroll_emulator_switch, %function
adaroll_emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size adaroll_emulator_switch, . - adaroll_emulator_switch
)");
#else
#error "the emulator knows the fibers of x86-64 and aarch64"
#endif

void begin(Fiber* fiber) {
    Machine* const m = machine;
    if (m->free_stacks_count == 0) {
        m->free_stacks[m->free_stacks_count++] = m->all_stacks[m->all_stacks_count] = new_stack();
        m->all_stacks_count++;
    }
    fiber->stack = m->free_stacks[--m->free_stacks_count];
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber->stack, STACK_BYTES);
#endif
    fiber->stack_pointer = first_frame(top_of(fiber));
}

void enter(Machine* m, Fiber* first) {
    begin(first);
    self = first;
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    m->launcher_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake, first->stack, STACK_BYTES);
#endif
    adaroll_emulator_switch(&m->launcher, first->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    self = nullptr;
}

void return_to_launcher() {
    Machine* const m = machine;
    void* abandoned;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(nullptr, m->launcher_stack, m->launcher_stack_bytes);
#endif
    adaroll_emulator_switch(&abandoned, m->launcher);
    __builtin_unreachable();
}

void recover_stacks(Machine* m) {
    m->free_stacks_count = m->all_stacks_count;
    memcpy(m->free_stacks, m->all_stacks, m->all_stacks_count * sizeof(char*));
}

void free_stacks(Machine* m) {
    for (u32 i = 0; i < m->all_stacks_count; i++) {
#if defined(__SANITIZE_ADDRESS__)
        // Whatever is mapped here next is not the stack of a thread that is gone.
        __asan_unpoison_memory_region(m->all_stacks[i], STACK_BYTES);
#endif
        munmap(m->all_stacks[i] - PAGE, PAGE + STACK_BYTES);
    }
}

}  // namespace emulator
