// The fake driver's memory that several processes share: CUDA IPC.
//
// Memory is private until somebody asks for its handle. Then its pages move to a file without a name, at the same address, which another process
// of the same user opens through /proc; nothing remains when the process ends, however it ends. The file is what allocation.h shows, up to the
// untouchable page, guards included: a write beyond the memory is seen by both processes. It begins with a header, in the first guard page.
//
// As on a card, a handle is one of a whole allocation; memory is not counted as the importer's; and nobody waits for anybody: an operation that
// still waits in a stream when the memory is closed has none. Memory that is freed while another process has it open is undefined on a card, and
// an error here as soon as it is used.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "allocation.h"

namespace driver {
namespace {

const char NAME_OF_FILES[] = "adaroll-emulator";
const char SIGN[8] = {'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};

struct Header {
    uint64_t key, bytes;
    std::atomic<uint32_t> freed;
};
static_assert(sizeof(Header) <= PAGE - GUARD, "the header lies before the guard");

// What a handle holds. The key tells the memory from another one whose file has the same number.
struct Handle {
    char sign[8];
    int32_t process, file;
    uint64_t key, bytes;
    char unused[32];
};
static_assert(sizeof(Handle) == 64, "the size of CUipcMemHandle");

std::mutex opening;  // Held while a handle is opened or closed; before the other locks.

bool write_all(int file, const void* from, size_t bytes, size_t at) {
    for (const unsigned char* next = (const unsigned char*)from; bytes > 0;) {
        const ssize_t written = pwrite(file, next, bytes, (off_t)at);
        if (written <= 0) return false;
        next += written;
        at += (size_t)written;
        bytes -= (size_t)written;
    }
    return true;
}

// Moves an allocation's pages to a file. Nobody writes to them meanwhile: `writing` and `tables` are held.
bool move_to_file(Allocation& allocation) {
    const int file = memfd_create(NAME_OF_FILES, MFD_CLOEXEC);
    if (file < 0) return false;
    Header header = {0, allocation.bytes, {0}};
    const std::vector<unsigned char> guard(allocation.accessible() - PAGE - allocation.bytes, PATTERN);
    const bool written = getrandom(&header.key, sizeof header.key, 0) == sizeof header.key &&
                         ftruncate(file, (off_t)allocation.accessible()) == 0 && write_all(file, &header, sizeof header, 0) &&
                         write_all(file, guard.data(), GUARD, PAGE - GUARD) && write_all(file, allocation.begin, allocation.bytes, PAGE) &&
                         write_all(file, guard.data(), guard.size(), PAGE + allocation.bytes);
    const auto map = [&] {
        return mmap(allocation.mapping(), allocation.accessible(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    };
    if (!written || !map()) {
        close(file);
        return false;
    }
    mark_guards(allocation);
    allocation.file = file;
    allocation.key = header.key;
    return true;
}

// The file that a handle names; -1 where its process has freed the memory or has ended.
int file_of(const Handle& handle) {
    char path[64], target[64] = {};
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
    // The number may be another file's by now, and not all files like to be opened.
    if (readlink(path, target, sizeof target - 1) < 0 || strstr(target, NAME_OF_FILES) == nullptr) return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

bool file_holds(int file, const Handle& handle, const Allocation& allocation) {
    Header header = {};
    struct stat status = {};
    return pread(file, &header, sizeof header, 0) == sizeof header && header.key == handle.key && header.bytes == handle.bytes &&
           header.freed == 0 && fstat(file, &status) == 0 && (size_t)status.st_size == allocation.accessible();
}

// Maps another process's memory into this one.
CUresult import(const Handle& handle, Allocation& allocation) {
    allocation = {nullptr, handle.bytes, Where::Device, -1, 1, handle.key};
    const int file = file_of(handle);
    if (file < 0) return INVALID_VALUE;
    CUresult result = SUCCESS;
    if (!file_holds(file, handle, allocation)) {
        result = INVALID_VALUE;
    } else if (!reserve(allocation)) {
        result = MAP_FAILURE;
    } else if (mmap(allocation.mapping(), allocation.accessible(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        munmap(allocation.mapping(), allocation.accessible() + PAGE);
        result = MAP_FAILURE;
    } else {
        mark_guards(allocation);
        __asan_unpoison_memory_region(allocation.mapping(), sizeof(Header));
    }
    close(file);
    return result;
}

}  // namespace

void stop_sharing(const Allocation& allocation) {
    if (allocation.file < 0) return;
    __asan_unpoison_memory_region(allocation.mapping(), sizeof(Header));
    ((Header*)allocation.mapping())->freed = 1;
    close(allocation.file);
}

bool freed_by_its_owner(const Allocation& allocation) { return allocation.opened > 0 && ((const Header*)allocation.mapping())->freed != 0; }

}  // namespace driver

using namespace driver;

struct CUipcMemHandle {
    char reserved[64];
};

API cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr at) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    std::lock_guard<std::shared_mutex> alone(writing);
    std::lock_guard<std::mutex> lock(tables);
    Allocation* const a = near((const void*)at);
    if (a == nullptr || (const unsigned char*)at >= a->end() || a->where != Where::Device || a->opened > 0) return INVALID_VALUE;
    if (a->file < 0 && !move_to_file(*a)) return OUT_OF_MEMORY;
    Handle handle = {{}, getpid(), a->file, a->key, a->bytes, {}};
    memcpy(handle.sign, SIGN, sizeof SIGN);
    memcpy(out, &handle, sizeof handle);
    return SUCCESS;
}
API cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle closed, unsigned flags) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    constexpr unsigned LAZY_ENABLE_PEER_ACCESS = 1;
    Handle handle;
    memcpy(&handle, &closed, sizeof handle);
    if (flags != LAZY_ENABLE_PEER_ACCESS || memcmp(handle.sign, SIGN, sizeof SIGN) != 0) return INVALID_VALUE;
    if (handle.process == getpid()) return INVALID_CONTEXT;
    std::lock_guard<std::mutex> one(opening);
    {
        std::lock_guard<std::mutex> lock(tables);
        for (auto& [begin, allocation] : allocations) {
            if (allocation.opened == 0 || allocation.key != handle.key || freed_by_its_owner(allocation)) continue;
            allocation.opened++;
            *out = (CUdeviceptr)begin;
            return SUCCESS;
        }
    }
    Allocation allocation;
    if (const CUresult failed = import(handle, allocation)) return failed;
    std::lock_guard<std::mutex> lock(tables);
    allocations[allocation.begin] = allocation;
    *out = (CUdeviceptr)allocation.begin;
    return SUCCESS;
}
API cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) { return cuIpcOpenMemHandle_v2(out, handle, flags); }
API cuIpcCloseMemHandle(CUdeviceptr at) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    std::lock_guard<std::mutex> one(opening);
    std::lock_guard<std::shared_mutex> alone(writing);
    Allocation allocation;
    {
        std::lock_guard<std::mutex> lock(tables);
        const auto found = allocations.find((const unsigned char*)at);
        if (found == allocations.end() || found->second.opened == 0) return INVALID_VALUE;
        if (--found->second.opened > 0) return SUCCESS;
        allocation = found->second;
        allocations.erase(found);
    }
    const bool well = guards_hold(allocation, __func__);
    give_back(allocation);
    if (!well) lose(LAUNCH_FAILED);
    return well ? SUCCESS : LAUNCH_FAILED;
}

API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
    BEGIN_CALL;
    std::lock_guard<std::mutex> lock(tables);
    const Allocation* const a = near((const void*)at);
    if (a == nullptr || (const unsigned char*)at >= a->end() || a->where != Where::Device) return INVALID_VALUE;
    *base = (CUdeviceptr)a->begin;
    *bytes = a->bytes;
    return SUCCESS;
}
