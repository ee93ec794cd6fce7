// A kernel that touches memory where there is none, or that is not aligned as its type wants, or that divides by zero: a signal on the host. The
// kernel then fails as after any other error, and the process lives. Signals from elsewhere go to whoever handled them before.
//
// The handler only sends the thread on to a function that fails, at the top of its own stack, which nobody needs any more: in the handler itself
// nothing could be printed. Where sanitizers watch, they handle these signals and say more.
#include <csignal>
#include <mutex>
#include <ucontext.h>

#include "machine.h"

namespace emulator {
#if defined(__SANITIZE_ADDRESS__)

void watch_faults() {}

#else
namespace {

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction before[3];
__thread const void* address;
__thread int signal_number;

[[noreturn]] void land() {
    if (signal_number == SIGFPE) fail("it divides by zero");
    // A misaligned access has no address.
    if (address == nullptr) fail("it touches memory at no address or at one that is not aligned");
    fail("it touches memory at %p, where there is none", address);
}

void handle(int number, siginfo_t* info, void* context) {
    if (self == nullptr) {
        for (int i = 0; i < 3; i++) {
            if (SIGNALS[i] != number) continue;
            if (before[i].sa_flags & SA_SIGINFO) return before[i].sa_sigaction(number, info, context);
            if (before[i].sa_handler != SIG_DFL && before[i].sa_handler != SIG_IGN) return before[i].sa_handler(number);
            // The instruction runs again, and ends the process.
            sigaction(number, &before[i], nullptr);
        }
        return;
    }
    signal_number = number;
    address = info->si_addr;
    // As after a call of `land`; a frame's size away from what the first frames hold.
    char* const top = running()->stack + STACK_BYTES - 64;
    ucontext_t* const interrupted = (ucontext_t*)context;
#if defined(__x86_64__)
    interrupted->uc_mcontext.gregs[REG_RSP] = (greg_t)(top - 8);
    interrupted->uc_mcontext.gregs[REG_RIP] = (greg_t)land;
#elif defined(__aarch64__)
    interrupted->uc_mcontext.sp = (u64)top;
    interrupted->uc_mcontext.pc = (u64)land;
#endif
}

}  // namespace

void watch_faults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (int i = 0; i < 3; i++) sigaction(SIGNALS[i], &action, &before[i]);
    });
}

#endif
}  // namespace emulator
