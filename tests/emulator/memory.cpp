// The fake driver's memory: the card's and pinned memory of the host are both memory of this process; allocation.h shows an allocation.
//
// Guards are checked after every kernel that was given a pointer into the allocation, at every synchronisation and when it is freed. Freed memory
// is unmapped, so that a kernel that still uses it fails.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "allocation.h"

namespace driver {

std::map<const unsigned char*, Allocation>& allocations = *new std::map<const unsigned char*, Allocation>;

namespace {

// From this size on memory is mapped from a file of 0xff of this size, over and over, and takes room only where it is written.
constexpr size_t LARGE = 32 << 20;

uint64_t used_on_card;

int file_of_poison() {
    static const int file = [] {
        const int f = memfd_create("poison", MFD_CLOEXEC);
        const std::vector<unsigned char> ones(1 << 20, 0xff);
        for (size_t written = 0; written < LARGE; written += ones.size()) {
            if (write(f, ones.data(), ones.size()) != (ssize_t)ones.size()) return -1;
        }
        return f;
    }();
    return file;
}

bool take(size_t bytes, Where where, Allocation& allocation) {
    allocation = {nullptr, bytes, where};
    if (!reserve(allocation)) return false;
    mprotect(allocation.mapping(), allocation.accessible(), PROT_READ | PROT_WRITE);
    size_t poisoned = 0;
    for (; bytes - poisoned >= LARGE && file_of_poison() >= 0; poisoned += LARGE) {
        mmap(allocation.begin + poisoned, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file_of_poison(), 0);
    }
    memset(allocation.begin + poisoned, 0xff, bytes - poisoned);
    memset(allocation.begin - GUARD, PATTERN, GUARD);
    memset(allocation.end(), PATTERN, GUARD);
    mark_guards(allocation);
    return true;
}

CUresult allocate(size_t bytes, Where where, void** out) {
    if (bytes == 0) return INVALID_VALUE;
    if (where == Where::Device) {
        std::lock_guard<std::mutex> lock(tables);
        if (bytes > card.memory - used_on_card) return OUT_OF_MEMORY;
        used_on_card += bytes;
    }
    Allocation allocation;
    const bool taken = take(bytes, where, allocation);
    std::lock_guard<std::mutex> lock(tables);
    if (taken) {
        allocations[allocation.begin] = allocation;
        *out = allocation.begin;
        return SUCCESS;
    }
    if (where == Where::Device) used_on_card -= bytes;
    return OUT_OF_MEMORY;
}

CUresult deallocate(const void* at, Where where, const char* call) {
    Allocation allocation;
    {
        std::lock_guard<std::mutex> lock(tables);
        const auto found = allocations.find((const unsigned char*)at);
        if (found == allocations.end() || found->second.where != where || found->second.opened > 0) return INVALID_VALUE;
    }
    if (const CUresult failed = finish_everything()) return failed;
    {
        std::lock_guard<std::mutex> lock(tables);
        const auto found = allocations.find((const unsigned char*)at);
        if (found == allocations.end()) return INVALID_VALUE;
        allocation = found->second;
        allocations.erase(found);
        if (where == Where::Device) used_on_card -= allocation.bytes;
    }
    const bool well = guards_hold(allocation, call);
    give_back(allocation);
    if (!well) lose(LAUNCH_FAILED);
    return well ? SUCCESS : LAUNCH_FAILED;
}

CUresult copy(void* to, const void* from, size_t bytes, void* stream_handle, bool to_card, bool from_card) {
    if (bytes == 0) return SUCCESS;
    const auto stream = stream_of(stream_handle);
    if (!stream) return INVALID_HANDLE;
    if (to_card && !in_memory(Where::Device, to, bytes)) return INVALID_VALUE;
    if (from_card && !in_memory(Where::Device, from, bytes)) return INVALID_VALUE;
    const bool pageable_source = !from_card && !in_memory(Where::Pinned, from, bytes);
    const bool pageable_destination = !to_card && !in_memory(Where::Pinned, to, bytes);
    if (pageable_source || pageable_destination) {
        if (const CUresult refused = refuse_if_capturing(stream)) return refused;
    }
    if (pageable_destination) {
        if (const CUresult failed = finish(stream)) return failed;
        memcpy(to, from, bytes);
        return SUCCESS;
    }
    Operation operation(Operation::Copy);
    operation.to = to;
    operation.from = from;
    operation.size = bytes;
    if (pageable_source) operation.bytes.assign((const unsigned char*)from, (const unsigned char*)from + bytes);
    return add(stream, std::move(operation));
}

// A copy that is done when the call returns. It waits for the default stream, and so for blocking streams, and for no other.
CUresult copy_now(void* to, const void* from, size_t bytes, bool to_card, bool from_card) {
    if (const CUresult refused = refuse_in_capture()) return refused;
    if (const CUresult failed = copy(to, from, bytes, nullptr, to_card, from_card)) return failed;
    return finish(stream_of(nullptr));
}

CUresult set(CUdeviceptr to, uint32_t value, uint32_t width, size_t count, void* stream_handle) {
    if (count == 0) return SUCCESS;
    const auto stream = stream_of(stream_handle);
    if (!stream) return INVALID_HANDLE;
    if (to % width != 0 || !in_memory(Where::Device, (void*)to, count * width)) return INVALID_VALUE;
    Operation operation(Operation::Set);
    operation.to = (void*)to;
    operation.size = count * width;
    operation.value = value;
    operation.width = width;
    return add(stream, std::move(operation));
}

}  // namespace

bool reserve(Allocation& allocation) {
    const size_t bytes = allocation.accessible() + PAGE;
    void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return false;
    allocation.begin = (unsigned char*)at + PAGE;
    return true;
}

void mark_guards([[maybe_unused]] const Allocation& allocation) {
    __asan_poison_memory_region(allocation.mapping(), PAGE);
    __asan_poison_memory_region(allocation.end(), allocation.accessible() - PAGE - allocation.bytes);
}

void give_back(const Allocation& allocation) {
    stop_sharing(allocation);
    // Otherwise the next mapping at this place would be poisoned.
    __asan_unpoison_memory_region(allocation.mapping(), allocation.accessible());
    munmap(allocation.mapping(), allocation.accessible() + PAGE);
}

bool guards_hold(const Allocation& allocation, const char* after) {
    if (SANITIZED) return true;
    for (const unsigned char* const guard : {allocation.begin - GUARD, allocation.end()}) {
        static const std::vector<unsigned char>& untouched = *new std::vector<unsigned char>(GUARD, PATTERN);
        if (memcmp(guard, untouched.data(), GUARD) == 0) continue;
        const size_t first = (size_t)(std::find_if(guard, guard + GUARD, [](unsigned char c) { return c != PATTERN; }) - guard);
        fprintf(stderr, "emulator: %s: something was written to %s memory %p + %td, of %zu bytes\n", after,
                allocation.where == Where::Device ? "the card's" : "pinned", (const void*)allocation.begin, guard + first - allocation.begin,
                allocation.bytes);
        // Said once.
        memset((void*)guard, PATTERN, GUARD);
        return false;
    }
    return true;
}

Allocation* near(const void* at) {
    const auto next = allocations.upper_bound((const unsigned char*)at);
    return next == allocations.begin() ? nullptr : &std::prev(next)->second;
}

bool in_memory(Where where, const void* at, size_t bytes) {
    std::lock_guard<std::mutex> lock(tables);
    const Allocation* const a = near(at);
    if (a == nullptr || a->where != where || freed_by_its_owner(*a)) return false;
    return (const unsigned char*)at <= a->end() && bytes <= (size_t)(a->end() - (const unsigned char*)at);
}

bool guards_hold_near(const void* at, const char* after) {
    std::lock_guard<std::mutex> lock(tables);
    const Allocation* const a = near(at);
    if (a == nullptr || (const unsigned char*)at >= a->end() + GUARD) return true;
    if (freed_by_its_owner(*a)) {
        fprintf(stderr, "emulator: %s: memory of another process is used that it has freed\n", after);
        return false;
    }
    return guards_hold(*a, after);
}

void check_guards(const char* after) {
    if (SANITIZED) return;
    bool well = true;
    {
        std::lock_guard<std::mutex> lock(tables);
        for (const auto& [begin, allocation] : allocations) well = guards_hold(allocation, after) && well;
    }
    if (!well) lose(LAUNCH_FAILED);
}

void free_everything() {
    std::lock_guard<std::mutex> lock(tables);
    for (const auto& [begin, allocation] : allocations) give_back(allocation);
    allocations.clear();
    used_on_card = 0;
}

}  // namespace driver

using namespace driver;

API cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    count(ALLOCATIONS);
    return allocate(bytes, Where::Device, (void**)out);
}
API cuMemFree_v2(CUdeviceptr at) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    return at == 0 ? SUCCESS : deallocate((void*)at, Where::Device, __func__);
}
API cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    return allocate(bytes, Where::Pinned, out);
}
API cuMemFreeHost(void* at) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    return deallocate(at, Where::Pinned, __func__);
}
API cuMemGetInfo_v2(size_t* free_bytes, size_t* all_bytes) {
    BEGIN_CALL;
    std::lock_guard<std::mutex> lock(tables);
    *all_bytes = card.memory;
    *free_bytes = card.memory - used_on_card;
    return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, void* stream) {
    BEGIN_CALL;
    return copy((void*)to, from, bytes, stream, true, false);
}
API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, void* stream) {
    BEGIN_CALL;
    return copy(to, (const void*)from, bytes, stream, false, true);
}
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void* stream) {
    BEGIN_CALL;
    return copy((void*)to, (const void*)from, bytes, stream, true, true);
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    BEGIN_CALL;
    return copy_now((void*)to, from, bytes, true, false);
}
API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    BEGIN_CALL;
    return copy_now(to, (const void*)from, bytes, false, true);
}
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    BEGIN_CALL;
    return copy((void*)to, (const void*)from, bytes, nullptr, true, true);
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, void* stream) {
    BEGIN_CALL;
    return set(to, value, 1, count, stream);
}
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, void* stream) {
    BEGIN_CALL;
    return set(to, value, 4, count, stream);
}
API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    BEGIN_CALL;
    return set(to, value, 1, count, nullptr);
}
