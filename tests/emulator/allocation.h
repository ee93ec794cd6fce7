// How an allocation lies in this process; what memory.cpp and memory_shared.cpp share.
//
//   | page: guard | bytes, filled with 0xff | guard, at least GUARD bytes, to the end of its page | page that nobody may touch |
#pragma once
#include "driver.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
constexpr bool SANITIZED = true;
#else
#define __asan_poison_memory_region(at, bytes) (void)0
#define __asan_unpoison_memory_region(at, bytes) (void)0
constexpr bool SANITIZED = false;
#endif

namespace driver {

constexpr size_t PAGE = 4096, GUARD = 512;
constexpr unsigned char PATTERN = 0xa5;

struct Allocation {
    unsigned char* begin;
    size_t bytes;
    Where where;
    // Of memory that other processes may open: its file. Of memory that another process made: how often it is open here. Both know it by its key.
    int file = -1;
    unsigned opened = 0;
    uint64_t key = 0;

    unsigned char* end() const { return begin + bytes; }
    // The guard page, and all pages up to the untouchable one.
    unsigned char* mapping() const { return begin - PAGE; }
    size_t accessible() const { return PAGE + (bytes + GUARD + PAGE - 1) / PAGE * PAGE; }
};

// ---- memory.cpp ----

// By first byte. Guarded by `tables`.
extern std::map<const unsigned char*, Allocation>& allocations;
// The allocation that begins at or before an address, or nullptr. `tables` is held.
Allocation* near(const void* at);
// Reserves the address space of an allocation of so many bytes. False: there is none.
bool reserve(Allocation& allocation);
// Tells AddressSanitizer where the guards are.
void mark_guards(const Allocation& allocation);
// Unmaps the memory, which is in no list any more.
void give_back(const Allocation& allocation);
bool guards_hold(const Allocation& allocation, const char* after);

// ---- memory_shared.cpp ----

// No other process can open the memory from now on; those that have it open find that it was freed.
void stop_sharing(const Allocation& allocation);
// Whether the process that made this memory has freed it.
bool freed_by_its_owner(const Allocation& allocation);

}  // namespace driver
