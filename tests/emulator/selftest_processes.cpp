// Self-tests of several processes: memory that they share, and the fake NCCL. A test makes its processes before any of them uses the driver.
#include <dlfcn.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "common.cuh"
#include "selftest.h"

// Adds 1 to each of 64 values.
KERNEL(count_up)(float* x) { x[THREAD] += 1.0f; }
EXPORT(count_up)

// The same many times, which takes a while.
KERNEL(count_up_often)(float* x, u32 rounds) {
    volatile float* const mine = x + THREAD;
    for (u32 round = 0; round < rounds; round++) *mine = *mine + 1.0f;
}
EXPORT(count_up_often)

KERNEL(put_at)(float* x, u64 offset, float value) {
    if (THREAD == 0) x[offset] = value;
}
EXPORT(put_at)

namespace {

enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900 };
constexpr u32 N = 64, LAZY_ENABLE_PEER_ACCESS = 1;
constexpr size_t BYTES = 4 * N;

// ---- processes ----

// The other end of a process: what one sends, the other receives.
struct Process {
    pid_t id;
    int channel;

    template <class T> void send(const T& value) const { EXPECT(write(channel, &value, sizeof value) == sizeof value); }
    template <class T> T receive() const {
        T value;
        EXPECT(read(channel, &value, sizeof value) == sizeof value);
        return value;
    }
    // It came to its end with everything as expected.
    void ended() const {
        int status = 0;
        EXPECT(waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    void kill() const {
        int status = 0;
        EXPECT(::kill(id, SIGKILL) == 0 && waitpid(id, &status, 0) == id);
    }
};

// Runs `work` in a process of its own. A test that hangs ends after a while.
template <class Work> Process start(Work work) {
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    alarm(120);
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child != 0) {
        close(ends[1]);
        return {child, ends[0]};
    }
    close(ends[0]);
    alarm(120);
    work(Process{getppid(), ends[1]});
    _exit(0);
}

// ---- shared memory ----

CUresult count_up(const Session& session, CUdeviceptr at) {
    void* parameters[] = {&at};
    return cuLaunchKernel(session.function("count_up"), 1, 1, 1, N, 1, 1, 0, session.stream, parameters, nullptr);
}

CUresult put_at(const Session& session, CUdeviceptr at, u64 offset) {
    float value = 3.0f;
    void* parameters[] = {&at, &offset, &value};
    return cuLaunchKernel(session.function("put_at"), 1, 1, 1, 32, 1, 1, 0, session.stream, parameters, nullptr);
}

void fill(const Session& session, CUdeviceptr at, u32 count, float value) {
    const std::vector<float> values(count, value);
    EXPECT(cuMemcpyHtoDAsync_v2(at, values.data(), 4 * count, session.stream) == 0 && cuStreamSynchronize(session.stream) == 0);
}

bool holds(const Session& session, CUdeviceptr at, u32 count, float value) {
    std::vector<float> values(count);
    EXPECT(cuMemcpyDtoHAsync_v2(values.data(), at, 4 * count, session.stream) == 0);
    for (float x : values) {
        if (x != value) return false;
    }
    return true;
}

CUipcMemHandle handle_of(CUdeviceptr at) {
    CUipcMemHandle handle;
    EXPECT(cuIpcGetMemHandle(&handle, at) == 0);
    return handle;
}

CUdeviceptr opened(const CUipcMemHandle& handle) {
    CUdeviceptr at = 0;
    EXPECT(cuIpcOpenMemHandle_v2(&at, handle, LAZY_ENABLE_PEER_ACCESS) == 0);
    return at;
}

size_t free_bytes() {
    size_t free = 0, all = 0;
    EXPECT(cuMemGetInfo_v2(&free, &all) == 0);
    return free;
}

// Of sizes: less than a page, some pages and a part, and what is mapped from the file of poison.
constexpr u32 COUNTS[] = {N, 10000, (40 << 18) + 3};

void both_see_what_either_writes() {
    const Process importer = start([](const Process& exporter) {
        const Session s;
        const size_t before = free_bytes();
        for (u32 count : COUNTS) {
            const CUdeviceptr x = opened(exporter.receive<CUipcMemHandle>());
            EXPECT(free_bytes() == before);
            // What was there before it was shared, the poison beside it, and what was written since.
            EXPECT(holds(s, x, N / 2, 1.0f) && holds(s, x + BYTES / 2, N / 2, 2.0f));
            if (count > N) {
                u32 last = 0;
                EXPECT(cuMemcpyDtoH_v2(&last, x + 4 * (count - 1), 4) == 0 && last == 0xffffffffu);
            }
            EXPECT(count_up(s, x) == 0 && cuStreamSynchronize(s.stream) == 0);
            // From an import to the process's own memory, and back.
            const CUdeviceptr own = s.memory(BYTES);
            EXPECT(cuMemcpyDtoDAsync_v2(own, x, BYTES, s.stream) == 0 && count_up(s, own) == 0);
            EXPECT(cuMemcpyDtoDAsync_v2(x + 4 * (count - N), own, BYTES, s.stream) == 0 && cuStreamSynchronize(s.stream) == 0);
            EXPECT(cuMemFree_v2(own) == 0 && cuMemFree_v2(x) == INVALID_VALUE);
            EXPECT(cuIpcCloseMemHandle(x + 4) == INVALID_VALUE && cuIpcCloseMemHandle(x) == 0 && cuIpcCloseMemHandle(x) == INVALID_VALUE);
            EXPECT(cuMemsetD8Async(x, 0, 4, s.stream) == INVALID_VALUE && free_bytes() == before);
            exporter.send(true);
        }
    });
    const Session s;
    for (u32 count : COUNTS) {
        const CUdeviceptr x = s.memory(4 * (size_t)count);
        fill(s, x, N, 1.0f);
        // A handle of any byte is one of the whole.
        const CUipcMemHandle handle = handle_of(x + 4);
        fill(s, x + BYTES / 2, N / 2, 2.0f);
        CUdeviceptr again;
        EXPECT(cuIpcOpenMemHandle_v2(&again, handle, LAZY_ENABLE_PEER_ACCESS) == INVALID_CONTEXT);
        const CUipcMemHandle second = handle_of(x);
        EXPECT(memcmp(&handle, &second, sizeof handle) == 0);
        importer.send(handle);
        EXPECT(importer.receive<bool>());
        if (count == N) {
            EXPECT(holds(s, x, N / 2, 3.0f) && holds(s, x + BYTES / 2, N / 2, 4.0f));
        } else {
            EXPECT(holds(s, x, N / 2, 2.0f) && holds(s, x + BYTES / 2, N / 2, 3.0f));
            EXPECT(holds(s, x + 4 * (count - N), N / 2, 3.0f) && holds(s, x + 4 * (count - N / 2), N / 2, 4.0f));
        }
        EXPECT(cuMemFree_v2(x) == 0);
    }
    importer.ended();
}

void an_import_is_counted() {
    const Process importer = start([](const Process& exporter) {
        const Session s;
        const CUipcMemHandle handle = exporter.receive<CUipcMemHandle>();
        const CUdeviceptr x = opened(handle);
        EXPECT(opened(handle) == x && cuIpcCloseMemHandle(x) == 0 && holds(s, x, N, 1.0f));
        // An import cannot be handed on, and what is no handle opens nothing.
        CUipcMemHandle other;
        CUdeviceptr at;
        EXPECT(cuIpcGetMemHandle(&other, x) == INVALID_VALUE);
        EXPECT(cuIpcOpenMemHandle_v2(&at, handle, 0) == INVALID_VALUE);
        other = handle;
        other.reserved[20] = (char)(other.reserved[20] + 1);
        EXPECT(cuIpcOpenMemHandle_v2(&at, other, LAZY_ENABLE_PEER_ACCESS) == INVALID_VALUE);
        memset(&other, 0, sizeof other);
        EXPECT(cuIpcOpenMemHandle_v2(&at, other, LAZY_ENABLE_PEER_ACCESS) == INVALID_VALUE);
        EXPECT(cuIpcCloseMemHandle(x) == 0 && cuIpcCloseMemHandle(x) == INVALID_VALUE);
        // With the context go its imports.
        EXPECT(opened(handle) != 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
        const Session next;
        EXPECT(holds(next, opened(handle), N, 1.0f));
        exporter.send(true);
    });
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    fill(s, x, N, 1.0f);
    importer.send(handle_of(x));
    EXPECT(importer.receive<bool>());
    importer.ended();
    // What is not of the card, or no longer, has no handle; nor is there one during a capture.
    CUipcMemHandle handle;
    void* graph = nullptr;
    EXPECT(cuIpcGetMemHandle(&handle, (CUdeviceptr)s.pinned<float>(N)) == INVALID_VALUE && cuIpcGetMemHandle(&handle, x + BYTES) == INVALID_VALUE);
    EXPECT(cuStreamBeginCapture_v2(s.stream, 1) == 0 && cuIpcGetMemHandle(&handle, x) == CAPTURE_UNSUPPORTED);
    cuStreamEndCapture(s.stream, &graph);
    EXPECT(cuMemFree_v2(x) == 0 && cuIpcGetMemHandle(&handle, x) == INVALID_VALUE);
    int can = 1;
    EXPECT(cuDeviceCanAccessPeer(&can, 0, 0) == 0 && can == 0 && cuCtxEnablePeerAccess(s.context, 0) == INVALID_CONTEXT);
}

void what_is_not_waited_for_is_not_seen_elsewhere() {
    const Process importer = start([](const Process& exporter) {
        const Session s;
        const CUdeviceptr x = opened(exporter.receive<CUipcMemHandle>());
        EXPECT(holds(s, x, N, 1.0f));
        exporter.send(true);
        EXPECT(exporter.receive<bool>() && holds(s, x, N, 2.0f));
    });
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    fill(s, x, N, 1.0f);
    EXPECT(count_up(s, x) == 0);
    importer.send(handle_of(x));
    EXPECT(importer.receive<bool>() && cuStreamSynchronize(s.stream) == 0);
    importer.send(true);
    importer.ended();
}

void memory_that_is_gone_cannot_be_opened() {
    const Process exporter = start([](const Process& importer) {
        const Session s;
        const CUdeviceptr x = s.memory(BYTES), y = s.memory(BYTES);
        fill(s, y, N, 1.0f);
        importer.send(handle_of(x));
        EXPECT(cuMemFree_v2(x) == 0);
        importer.send(handle_of(y));
        pause();
    });
    const Session s;
    const CUipcMemHandle freed = exporter.receive<CUipcMemHandle>(), lives = exporter.receive<CUipcMemHandle>();
    CUdeviceptr at;
    // Its file has the number of the other one's by now.
    EXPECT(cuIpcOpenMemHandle_v2(&at, freed, LAZY_ENABLE_PEER_ACCESS) == INVALID_VALUE);
    const CUdeviceptr y = opened(lives);
    exporter.kill();
    EXPECT(holds(s, y, N, 1.0f) && cuIpcCloseMemHandle(y) == 0);
    EXPECT(cuIpcOpenMemHandle_v2(&at, lives, LAZY_ENABLE_PEER_ACCESS) == INVALID_VALUE && cuStreamSynchronize(s.stream) == 0);
}

// The importer uses memory that its owner has freed, or that it has itself closed: in a copy, which is told at once or when it runs, and in a kernel.
void use_of_an_import_that_is_gone(bool closes, int how, CUresult expected) {
    const Process exporter = start([](const Process& importer) {
        const Session s;
        const CUdeviceptr x = s.memory(BYTES);
        fill(s, x, N, 1.0f);
        importer.send(handle_of(x));
        if (importer.receive<bool>()) EXPECT(cuMemFree_v2(x) == 0);
        importer.send(true);
    });
    const Session s;
    const CUdeviceptr x = opened(exporter.receive<CUipcMemHandle>());
    if (how == 0) EXPECT(cuMemsetD8Async(x, 0, BYTES, s.stream) == 0);
    if (how == 1) EXPECT(count_up(s, x) == 0);
    if (closes) EXPECT(cuIpcCloseMemHandle(x) == 0);
    exporter.send(!closes);
    EXPECT(exporter.receive<bool>());
    exporter.ended();
    if (!closes && how != 1) EXPECT(cuMemsetD8Async(x, 0, BYTES, s.stream) == INVALID_VALUE);
    EXPECT(cuStreamSynchronize(s.stream) == expected);
}
void a_copy_uses_memory_that_its_owner_has_freed() { use_of_an_import_that_is_gone(false, 0, ILLEGAL_ADDRESS); }
void a_kernel_uses_memory_that_its_owner_has_freed() { use_of_an_import_that_is_gone(false, 1, LAUNCH_FAILED); }
void a_copy_uses_memory_that_was_closed() { use_of_an_import_that_is_gone(true, 0, ILLEGAL_ADDRESS); }
void a_kernel_uses_memory_that_was_closed() { use_of_an_import_that_is_gone(true, 1, LAUNCH_FAILED); }

void a_write_beyond_an_import_is_an_error() {
    const Process exporter = start([](const Process& importer) {
        const Session s;
        const CUdeviceptr x = s.memory(BYTES);
        importer.send(handle_of(x));
        importer.receive<bool>();
    });
    const Session s;
    const CUdeviceptr x = opened(exporter.receive<CUipcMemHandle>());
    EXPECT(put_at(s, x, N) == 0 && cuStreamSynchronize(s.stream) == LAUNCH_FAILED);
    exporter.send(true);
    exporter.ended();
}

void a_write_beyond_shared_memory_is_an_error() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    handle_of(x);
    EXPECT(put_at(s, x, N) == 0 && cuStreamSynchronize(s.stream) == LAUNCH_FAILED);
}

// Memory does not move to its file while a kernel runs: none of its writes is lost.
void memory_that_is_in_use_can_be_shared() {
    const Session s;
    const CUdeviceptr x = s.memory(16 << 20);
    fill(s, x, N, 0.0f);
    std::thread worker([&] {
        CUdeviceptr at = x;
        u32 rounds = 200000;
        void* parameters[] = {&at, &rounds};
        EXPECT(cuCtxSetCurrent(s.context) == 0);
        EXPECT(cuLaunchKernel(s.function("count_up_often"), 1, 1, 1, N, 1, 1, 0, s.stream, parameters, nullptr) == 0);
        EXPECT(cuStreamSynchronize(s.stream) == 0);
    });
    constexpr int LAUNCHES = 0;
    while (adaroll_emulator_count(LAUNCHES) == 0) std::this_thread::yield();
    handle_of(x);
    worker.join();
    EXPECT(holds(s, x, N, 200000.0f));
}

void memory_that_was_shared_leaves_no_file() {
    const rlimit few = {64, 64};
    EXPECT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    const Session s;
    for (int i = 0; i < 500; i++) {
        const CUdeviceptr x = s.memory(BYTES);
        handle_of(x);
        EXPECT(cuMemFree_v2(x) == 0);
    }
    // Other memory needs none.
    for (int i = 0; i < 500; i++) s.memory(BYTES);
}

// ---- NCCL ----

struct UniqueId {
    char internal[128];
};
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6 };
enum { UINT8 = 1, INT32 = 2, FLOAT32 = 7 };
enum { SUM = 0, PRODUCT = 1, MAX = 2 };

#define NCCL(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))function("nccl" #name)
struct Nccl {
    static void* function(const char* name) {
        static void* const library = dlopen("libnccl.so.2", RTLD_NOW);
        void* const found = library != nullptr ? dlsym(library, name) : nullptr;
        EXPECT(found != nullptr);
        return found;
    }
    NCCL(GetVersion, int*);
    NCCL(GetUniqueId, UniqueId*);
    NCCL(CommInitRank, void**, int, UniqueId, int);
    NCCL(CommInitAll, void**, int, const int*);
    NCCL(CommFinalize, void*);
    NCCL(CommDestroy, void*);
    NCCL(CommAbort, void*);
    NCCL(CommCount, void*, int*);
    NCCL(CommUserRank, void*, int*);
    NCCL(CommCuDevice, void*, int*);
    NCCL(CommGetAsyncError, void*, int*);
    NCCL(GroupStart);
    NCCL(GroupEnd);
    NCCL(AllGather, const void*, void*, size_t, int, void*, void*);
    NCCL(Broadcast, const void*, void*, size_t, int, int, void*, void*);
    NCCL(AllReduce, const void*, void*, size_t, int, int, void*, void*);
    const char* (*GetErrorString)(int) = (const char* (*)(int))function("ncclGetErrorString");
    const char* (*GetLastError)(void*) = (const char* (*)(void*))function("ncclGetLastError");
};

// A rank of a communicator, with the card that its process has.
struct Rank : Nccl, Session {
    int rank;
    void* comm = nullptr;

    Rank(int rank, int ranks, const UniqueId& id) : rank(rank) { EXPECT(CommInitRank(&comm, ranks, id, rank) == 0); }
    template <class T> CUdeviceptr on_card(const std::vector<T>& values) const {
        const CUdeviceptr at = memory(values.size() * sizeof(T));
        EXPECT(cuMemcpyHtoDAsync_v2(at, values.data(), values.size() * sizeof(T), stream) == 0);
        return at;
    }
    template <class T> std::vector<T> on_host(CUdeviceptr at, size_t count) const {
        std::vector<T> values(count);
        EXPECT(cuMemcpyDtoHAsync_v2(values.data(), at, count * sizeof(T), stream) == 0);
        return values;
    }
    int error() const {
        int result = -1;
        EXPECT(CommGetAsyncError(comm, &result) == 0);
        return result;
    }
    int sum(CUdeviceptr from, CUdeviceptr to, size_t count) const {
        return AllReduce((const void*)from, (void*)to, count, FLOAT32, SUM, comm, stream);
    }
};

// Ranks 1 and above of a communicator in processes of their own, while `work` of rank 0 runs in this one.
template <class Work> void in_ranks(int ranks, Work work) {
    UniqueId id;
    EXPECT(Nccl().GetUniqueId(&id) == 0);
    std::vector<Process> others;
    for (int rank = 1; rank < ranks; rank++) {
        others.push_back(start([&](const Process&) { work(Rank(rank, ranks, id)); }));
    }
    work(Rank(0, ranks, id));
    for (const Process& other : others) other.ended();
}

constexpr int RANKS = 3;

void collectives_give_all_ranks_the_same() {
    in_ranks(RANKS, [](const Rank& r) {
        int value = 0;
        EXPECT(r.CommCount(r.comm, &value) == 0 && value == RANKS && r.CommUserRank(r.comm, &value) == 0 && value == r.rank);
        EXPECT(r.CommCuDevice(r.comm, &value) == 0 && value == 0 && r.GetVersion(&value) == 0 && value > 22000 && r.error() == 0);
        for (size_t count : {(size_t)1, (size_t)1000, (size_t)300000}) {
            // To other memory, and in place.
            std::vector<float> values(count);
            for (size_t i = 0; i < count; i++) values[i] = (float)(i % 1000) + (float)r.rank * 1000.0f;
            const CUdeviceptr from = r.on_card(values), all = r.memory(RANKS * 4 * count), sums = r.memory(4 * count);
            EXPECT(r.AllGather((void*)from, (void*)all, count, FLOAT32, r.comm, r.stream) == 0 && r.sum(from, sums, count) == 0);
            const std::vector<float> gathered = r.on_host<float>(all, RANKS * count), summed = r.on_host<float>(sums, count);
            for (size_t i = 0; i < count; i++) {
                EXPECT(summed[i] == (float)(3 * (i % 1000) + 3000));
                for (int other = 0; other < RANKS; other++) EXPECT(gathered[(size_t)other * count + i] == (float)(i % 1000) + (float)other * 1000.0f);
            }
            const CUdeviceptr mine = all + 4 * count * (size_t)r.rank;
            EXPECT(cuMemcpyDtoDAsync_v2(mine, sums, 4 * count, r.stream) == 0);
            EXPECT(r.AllGather((void*)mine, (void*)all, count, FLOAT32, r.comm, r.stream) == 0);
            EXPECT(r.on_host<float>(all + 4 * count * ((size_t)r.rank + 1) % (RANKS * 4 * count), count) == summed);
            EXPECT(r.sum(from, from, count) == 0 && r.on_host<float>(from, count) == summed);
        }
        // The bytes of a root that is not the first; other ranks have nothing to send.
        const std::vector<unsigned char> bytes = {7, 8, 9, (unsigned char)r.rank};
        const CUdeviceptr x = r.on_card(bytes);
        EXPECT(r.Broadcast(r.rank == 2 ? (void*)x : nullptr, (void*)x, 4, UINT8, 2, r.comm, r.stream) == 0);
        EXPECT(r.on_host<unsigned char>(x, 4) == std::vector<unsigned char>({7, 8, 9, 2}));
        const CUdeviceptr most = r.on_card(std::vector<int>{r.rank * 10, -r.rank});
        EXPECT(r.AllReduce((void*)most, (void*)most, 2, INT32, MAX, r.comm, r.stream) == 0 && r.on_host<int>(most, 2) == std::vector<int>({20, 0}));
        EXPECT(r.AllReduce((void*)most, (void*)most, 2, INT32, PRODUCT, r.comm, r.stream) == NCCL_INVALID_ARGUMENT);
        // A group runs at its end.
        const CUdeviceptr y = r.on_card(std::vector<float>{1.0f});
        EXPECT(r.GroupStart() == 0 && r.GroupStart() == 0 && r.sum(y, y, 1) == 0 && r.sum(y, y, 1) == 0 && r.GroupEnd() == 0);
        EXPECT(r.on_host<float>(y, 1)[0] == 1.0f && r.GroupEnd() == 0 && r.on_host<float>(y, 1)[0] == 9.0f);
        EXPECT(r.GroupEnd() == NCCL_INVALID_USAGE && r.error() == 0 && r.CommFinalize(r.comm) == 0 && r.CommDestroy(r.comm) == 0);
        EXPECT(r.CommDestroy(r.comm) == NCCL_INVALID_ARGUMENT && r.sum(y, y, 1) == NCCL_INVALID_ARGUMENT);
    });
}

// Sums of the same numbers, which no float holds exactly, with three seeds: as good as each other, and not the same bits.
void the_order_of_a_sum_is_the_seeds() {
    in_ranks(RANKS, [](const Rank& r) {
        constexpr u32 COUNT = 4096;
        std::vector<float> values(COUNT);
        for (u32 i = 0; i < COUNT; i++) values[i] = (float)((i * 2654435761u + (u32)r.rank * 40503u * i) >> 8) * 1.7e-5f;
        const CUdeviceptr from = r.on_card(values), to = r.memory(4 * COUNT);
        std::vector<float> first;
        for (const char* seed : {"0", "0", "1", "7"}) {
            setenv("ADAROLL_EMULATOR_NCCL_SEED", seed, 1);
            EXPECT(r.sum(from, to, COUNT) == 0);
            const std::vector<float> sums = r.on_host<float>(to, COUNT);
            u32 differ = 0;
            for (u32 i = 0; !first.empty() && i < COUNT; i++) {
                differ += sums[i] != first[i];
                EXPECT(sums[i] - first[i] <= first[i] * 2e-7f && first[i] - sums[i] <= first[i] * 2e-7f);
            }
            EXPECT(first.empty() || (strcmp(seed, "0") == 0 ? differ == 0 : differ > 0));
            if (first.empty()) first = sums;
        }
        EXPECT(r.CommAbort(r.comm) == 0);
    });
}

void what_a_collective_gives_is_late() {
    in_ranks(2, [](const Rank& r) {
        void* other = nullptr;
        EXPECT(cuStreamCreate(&other, 1) == 0);
        const CUdeviceptr x = r.on_card(std::vector<float>{1.0f});
        EXPECT(r.sum(x, x, 1) == 0);
        float seen = 0.0f;
        EXPECT(cuMemcpyDtoHAsync_v2(&seen, x, 4, other) == 0 && seen == 1.0f);
        EXPECT(r.on_host<float>(x, 1)[0] == 2.0f);
    });
}

void ranks_that_call_different_things() {
    in_ranks(RANKS, [](const Rank& r) {
        const CUdeviceptr x = r.on_card(std::vector<float>(4, 1.0f));
        EXPECT(r.sum(x, x, 4) == 0 && r.sum(x, x, r.rank == 1 ? 3 : 4) == NCCL_INVALID_USAGE);
        EXPECT(r.error() == NCCL_INVALID_USAGE && r.sum(x, x, 4) == NCCL_INVALID_USAGE && r.CommAbort(r.comm) == 0);
        EXPECT(r.GetLastError(nullptr)[0] != 0 && strcmp(r.GetErrorString(NCCL_INVALID_USAGE), "invalid usage") == 0);
    });
}

// Rank `dying` of three ends without a word, while the others wait for it in a collective; but for rank `late`, which comes after all is over.
void a_rank_that_dies(int dying, int late) {
    UniqueId id;
    EXPECT(Nccl().GetUniqueId(&id) == 0);
    std::vector<Process> ranks;
    for (int rank = 0; rank < RANKS; rank++) {
        ranks.push_back(start([&](const Process& test) {
            const Rank r(rank, RANKS, id);
            const CUdeviceptr x = r.on_card(std::vector<float>(4, 1.0f));
            EXPECT(r.sum(x, x, 4) == 0);
            test.send(true);
            if (rank == dying) pause();
            if (rank == late) test.receive<bool>();
            EXPECT(r.sum(x, x, 4) == NCCL_REMOTE_ERROR);
            EXPECT(r.error() == NCCL_REMOTE_ERROR && r.sum(x, x, 4) == NCCL_REMOTE_ERROR);
            EXPECT(r.CommAbort(r.comm) == 0 && cuStreamSynchronize(r.stream) == 0);
        }));
    }
    for (const Process& rank : ranks) rank.receive<bool>();
    usleep(50000);
    const auto begin = std::chrono::steady_clock::now();
    ranks[(size_t)dying].kill();
    for (int rank = 0; rank < RANKS; rank++) {
        if (rank != dying && rank != late) ranks[(size_t)rank].ended();
    }
    if (late >= 0) {
        ranks[(size_t)late].send(true);
        ranks[(size_t)late].ended();
    }
    EXPECT(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}
void the_first_rank_dies() { a_rank_that_dies(0, -1); }
void another_rank_dies() { a_rank_that_dies(2, -1); }
void another_rank_dies_and_one_is_late() { a_rank_that_dies(2, 1); }

// Nobody waits for it, but somebody asks.
void a_rank_that_dies_is_found_when_asked_and_one_that_leaves_is_not() {
    for (const bool dies : {true, false}) {
        for (const int other : {0, 1}) {
            UniqueId id;
            EXPECT(Nccl().GetUniqueId(&id) == 0);
            const Process asks = start([&](const Process& test) {
                const Rank r(1 - other, 2, id);
                EXPECT(r.error() == 0);
                test.send(true);
                EXPECT(test.receive<bool>() && r.error() == (dies ? NCCL_REMOTE_ERROR : 0));
                const CUdeviceptr x = r.on_card(std::vector<float>(4, 1.0f));
                EXPECT(r.sum(x, x, 4) == NCCL_REMOTE_ERROR);
            });
            const Process ends = start([&](const Process& test) {
                const Rank r(other, 2, id);
                test.receive<bool>();
                if (!dies) EXPECT(r.CommDestroy(r.comm) == 0);
                test.send(true);
                pause();
            });
            asks.receive<bool>();
            ends.send(true);
            ends.receive<bool>();
            ends.kill();
            asks.send(true);
            asks.ended();
        }
    }
}

// A thread waits in a collective, and another one ends it.
void a_communicator_is_aborted_while_it_waits() {
    int aborted[2];
    EXPECT(pipe(aborted) == 0);
    in_ranks(2, [&](const Rank& r) {
        const CUdeviceptr x = r.on_card(std::vector<float>(4, 1.0f));
        // The last rank does not come before the other has been aborted.
        if (r.rank == 0) {
            std::thread waits([&] {
                const int result = r.sum(x, x, 4);
                // On a machine that is busy it may begin too late to wait.
                EXPECT(result == NCCL_REMOTE_ERROR || result == NCCL_INVALID_ARGUMENT);
            });
            usleep(200000);
            EXPECT(r.CommAbort(r.comm) == 0 && write(aborted[1], "", 1) == 1);
            waits.join();
        } else {
            char end;
            EXPECT(read(aborted[0], &end, 1) == 1 && r.sum(x, x, 4) == NCCL_REMOTE_ERROR && r.CommAbort(r.comm) == 0);
        }
    });
}

void ranks_that_do_not_fit_or_do_not_come() {
    UniqueId id;
    EXPECT(Nccl().GetUniqueId(&id) == 0);
    const Process first = start([&](const Process&) { const Rank r(0, 3, id); });
    const Process second = start([&](const Process& test) {
        const Rank r(1, 3, id);
        test.receive<bool>();
    });
    // Of another number of ranks; the others go on waiting.
    const Process wrong = start([&](const Process&) {
        const Session s;
        void* comm;
        EXPECT(Nccl().CommInitRank(&comm, 4, id, 2) == NCCL_INVALID_ARGUMENT);
        EXPECT(Nccl().CommInitRank(&comm, 3, id, 3) == NCCL_INVALID_ARGUMENT);
        EXPECT(Nccl().CommInitRank(&comm, 3, UniqueId(), 1) == NCCL_INVALID_ARGUMENT);
    });
    wrong.ended();
    const Process third = start([&](const Process&) { const Rank r(2, 3, id); });
    first.ended();
    third.ended();
    second.send(true);
    second.ended();
    // Nobody else is there.
    setenv("ADAROLL_EMULATOR_NCCL_WAIT", "1", 1);
    const Session s;
    void* comm;
    const Nccl nccl;
    EXPECT(nccl.GetUniqueId(&id) == 0);
    for (int rank : {0, 1}) EXPECT(nccl.CommInitRank(&comm, 2, id, rank) == NCCL_REMOTE_ERROR);
}

// One rank is a communicator too. The thread that uses it need not have a context.
void a_rank_alone() {
    std::thread([] {
        const Nccl nccl;
        void* comm = nullptr;
        EXPECT(cuInit(0) == 0 && nccl.CommInitAll(&comm, 1, nullptr) == 0);
        const Session s;
        EXPECT(cuCtxSetCurrent(s.context) == 0);
        const CUdeviceptr x = s.memory(BYTES);
        fill(s, x, N, 2.0f);
        std::thread([&] { EXPECT(nccl.AllReduce((void*)x, (void*)x, N, FLOAT32, SUM, comm, s.stream) == 0); }).join();
        EXPECT(holds(s, x, N, 2.0f));
        // Memory that is too small is an error of this rank's.
        EXPECT(nccl.AllReduce((void*)x, (void*)x, N + 1, FLOAT32, SUM, comm, s.stream) == NCCL_INVALID_ARGUMENT && nccl.CommAbort(comm) == 0);
    }).join();
}

}  // namespace

#define TEST(name, ...) {#name, name, __VA_ARGS__}
const DriverTest PROCESS_TESTS[] = {
    TEST(both_see_what_either_writes, nullptr, nullptr, false),
    TEST(an_import_is_counted, nullptr, nullptr, false),
    TEST(what_is_not_waited_for_is_not_seen_elsewhere, nullptr, nullptr, false),
    TEST(memory_that_is_gone_cannot_be_opened, nullptr, nullptr, false),
    TEST(a_copy_uses_memory_that_its_owner_has_freed, nullptr, nullptr, false),
    TEST(a_kernel_uses_memory_that_its_owner_has_freed, nullptr, nullptr, false),
    TEST(a_copy_uses_memory_that_was_closed, nullptr, nullptr, false),
    TEST(a_kernel_uses_memory_that_was_closed, nullptr, nullptr, true),
    TEST(a_write_beyond_an_import_is_an_error, nullptr, nullptr, true),
    TEST(a_write_beyond_shared_memory_is_an_error, nullptr, nullptr, true),
    TEST(memory_that_is_in_use_can_be_shared, nullptr, nullptr, false),
    TEST(memory_that_was_shared_leaves_no_file, nullptr, nullptr, false),
    TEST(collectives_give_all_ranks_the_same, nullptr, nullptr, false),
    TEST(the_order_of_a_sum_is_the_seeds, nullptr, nullptr, false),
    TEST(what_a_collective_gives_is_late, nullptr, nullptr, false),
    TEST(ranks_that_call_different_things, nullptr, nullptr, false),
    TEST(the_first_rank_dies, nullptr, nullptr, false),
    TEST(another_rank_dies, nullptr, nullptr, false),
    TEST(another_rank_dies_and_one_is_late, nullptr, nullptr, false),
    TEST(a_rank_that_dies_is_found_when_asked_and_one_that_leaves_is_not, nullptr, nullptr, false),
    TEST(a_communicator_is_aborted_while_it_waits, nullptr, nullptr, false),
    TEST(ranks_that_do_not_fit_or_do_not_come, nullptr, nullptr, false),
    TEST(a_rank_alone, nullptr, nullptr, false),
};
const size_t PROCESS_TEST_COUNT = sizeof PROCESS_TESTS / sizeof *PROCESS_TESTS;
