// What the parts of the fake driver share. The driver is late on purpose: whatever it may do asynchronously it does at the last moment, so that a
// missing synchronisation shows as stale data, every time.
//
// Locks: `tables` guards the lists of everything that has a handle, and is held for look-ups, and while memory moves to a file. Each stream has a
// lock for its queue, which is not held while an operation runs; `busy` keeps a second thread from running the same stream. Kernels of different
// streams can run at the same time on different threads: all that write to the card's memory share `writing`, which is taken before `tables`.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "launch.h"

typedef int CUresult;
typedef uint64_t CUdeviceptr;
#define API extern "C" __attribute__((visibility("default"))) CUresult

namespace driver {

// Values of CUresult.
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    MAP_FAILURE = 205,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
};

// ---- the card (driver.cpp) ----

enum Count { LAUNCHES, WAITS, GRAPH_LAUNCHES, ALLOCATIONS, CAPTURES, COUNTS };

struct Card {
    bool initialized = false, logs = false;
    uint64_t memory = 8ull << 30;
    uint64_t lost_after = UINT64_MAX;  // Kernel launches.
    std::atomic<int> error{SUCCESS};   // The first one of the context, which stays.
    std::atomic<uint64_t> counts[COUNTS] = {};
};
extern Card card;
extern std::mutex tables;
// Shared by operations that run; alone has it who maps memory anew, or unmaps what they may use.
extern std::shared_mutex writing;
extern thread_local void* current_context;

inline void count(Count what) { card.counts[what].fetch_add(1, std::memory_order_relaxed); }
// The context fails, if it has not failed before.
void lose(int error);
// What an entry point that needs a context begins with.
CUresult begin_call(const char* name);
#define BEGIN_CALL \
    if (const CUresult refused = driver::begin_call(__func__)) return refused

// Things with handles, which are their addresses. Those that the driver keeps are never destroyed: threads may still call it while the process ends.
template <class T> struct Handles {
    std::map<void*, std::shared_ptr<T>> all;

    void* add(std::shared_ptr<T> thing) {
        std::lock_guard<std::mutex> lock(tables);
        void* const handle = (void*)thing.get();
        all.emplace(handle, std::move(thing));
        return handle;
    }
    // nullptr where the handle is none, or no longer.
    std::shared_ptr<T> find(void* handle) {
        std::lock_guard<std::mutex> lock(tables);
        const auto at = all.find(handle);
        return at == all.end() ? nullptr : at->second;
    }
    std::shared_ptr<T> remove(void* handle) {
        std::lock_guard<std::mutex> lock(tables);
        const auto at = all.find(handle);
        if (at == all.end()) return nullptr;
        std::shared_ptr<T> thing = at->second;
        all.erase(at);
        return thing;
    }
};

// ---- memory (memory.cpp) ----

enum class Where { Device, Pinned };

// Whether all of these bytes are in one allocation of this kind.
bool in_memory(Where where, const void* at, size_t bytes);
// Checks the guards of the allocations that a value may point to; false, and said, where something was written there.
bool guards_hold_near(const void* at, const char* after);
// Checks all guards. The context fails where one does not hold.
void check_guards(const char* after);
void free_everything();

// ---- streams (streams.cpp) ----

struct Stream;
struct Graph;

// The state of an event that one call of cuEventRecord gives it.
struct Record {
    std::weak_ptr<Stream> stream;
    uint64_t position;
    std::atomic<bool> done{false};
    double milliseconds = 0;
};

struct Operation {
    enum What { Launch, Copy, Set, Record, Wait, Graph, Call } what;
    // Launch: parameters one after the other, each on a 16-byte boundary.
    const emulator::Kernel* kernel = nullptr;
    emulator::Size grid = {}, block = {};
    size_t shared_bytes = 0;
    std::vector<unsigned char> bytes;
    // Copy: from `from`, or from `bytes` where the source was pageable. Set: `value`, so many bytes wide.
    void* to = nullptr;
    const void* from = nullptr;
    size_t size = 0;
    uint32_t value = 0, width = 1;
    // Record and Wait.
    std::shared_ptr<driver::Record> record;
    std::shared_ptr<const driver::Graph> graph;
    // Call: a kernel of another library, with its arguments in `bytes`. It answers an error that the context then has.
    CUresult (*function)(const void* arguments) = nullptr;

    explicit Operation(What what) : what(what) {}
};

struct Graph {
    std::vector<Operation> operations;
};

struct Capture {
    int mode;
    std::thread::id thread;
    bool valid = true;
    Graph graph;
};

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Operation> waiting;
    uint64_t added = 0, done = 0;  // Operations; what is not done waits, or runs.
    bool busy = false, blocking = false;
    std::unique_ptr<Capture> capture;  // Guarded by `tables`.
};

struct Event {
    bool timing;
    std::shared_ptr<Record> last;  // Guarded by `tables`.
    bool captured = false;         // Recorded in a capture: there is nothing to wait for.
};

extern Handles<Stream>& streams;
// The stream of a handle, of the default stream too.
std::shared_ptr<Stream> stream_of(void* handle);
// Adds an operation to a stream, or to the graph that it captures.
CUresult add(const std::shared_ptr<Stream>& stream, Operation&& operation);
// Runs everything that was added before this call.
CUresult finish(const std::shared_ptr<Stream>& stream);
CUresult finish_everything();

// ---- capture (graphs.cpp) ----

// Where a call that is not allowed during a capture begins: it makes captures invalid.
CUresult refuse_in_capture();
// The same for a call that waits for this stream.
CUresult refuse_if_capturing(const std::shared_ptr<Stream>& stream);

}  // namespace driver
