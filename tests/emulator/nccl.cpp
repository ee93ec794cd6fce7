// A fake NCCL: collectives between processes of one machine, for the fake driver. It is a library of its own, libnccl.so.2.
//
// Rank 0 listens on a socket that the unique id names, and every other rank is connected to it. A collective is a request of each rank, an answer
// that lets it go on, the data of those that have some, and the result, the same bytes for all. Requests that differ are an error for everybody,
// where a card would hang. A rank that ends closes its socket: the others fail with ncclRemoteError.
//
// Bits: a sum is added up rank after rank, in an order that is another one for every few values and for every ADAROLL_EMULATOR_NCCL_SEED (0).
//
// A call waits for its stream and for the other ranks, where NCCL only adds to the stream: no rank may wait for something that another one does
// after the same collective. What it received is copied to the card in the stream, and so when somebody waits for that. A capture refuses the
// copies. ADAROLL_EMULATOR_NCCL_WAIT (60) is for how many seconds a communicator waits for its ranks.
#include <dlfcn.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <type_traits>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

struct ncclUniqueId {
    char internal[128];
};

namespace {

// Values of ncclResult_t.
enum Result : int {
    SUCCESS = 0,
    UNHANDLED_CUDA_ERROR = 1,
    SYSTEM_ERROR = 2,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
    IN_PROGRESS = 7,
};
const char* const WORDS[] = {"no error",        "unhandled cuda error", "unhandled system error",
                             "internal error",  "invalid argument",     "invalid usage",
                             "remote process exited or there was a network error", "NCCL operation in progress"};

// Values of ncclDataType_t, by number.
constexpr size_t TYPE_BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
enum Type : uint32_t { INT32 = 2, UINT32 = 3, INT64 = 4, UINT64 = 5, FLOAT32 = 7, FLOAT64 = 8, TYPES = 12 };
// Values of ncclRedOp_t.
enum Reduction : uint32_t { SUM = 0, MAX = 2, MIN = 3 };

constexpr int VERSION = 23000;
const char NAME_OF_SOCKETS[] = "adaroll-nccl-";

thread_local char last_error[512];

// Keeps what went wrong for ncclGetLastError, and says it.
Result fail(Result result, const char* format, ...) __attribute__((format(printf, 2, 3)));
Result fail(Result result, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulator: NCCL: %s\n", last_error);
    return result;
}

uint64_t number_of(const char* variable, uint64_t otherwise) {
    const char* const text = getenv(variable);
    return text != nullptr && *text != 0 ? strtoull(text, nullptr, 10) : otherwise;
}

// ---- the driver ----

struct Driver {
    int (*get_context)(void**);
    int (*set_context)(void*);
    int (*retain)(void**, int);
    int (*release)(int);
    int (*to_host)(void*, uint64_t, size_t, void*);
    int (*to_card)(uint64_t, const void*, size_t, void*);
    bool found = false;

    Driver() {
        // The one that the process uses, however it was loaded.
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        const auto find = [&](auto& function, const char* name) {
            function = library != nullptr ? (std::remove_reference_t<decltype(function)>)dlsym(library, name) : nullptr;
            return function != nullptr;
        };
        found = find(get_context, "cuCtxGetCurrent") && find(set_context, "cuCtxSetCurrent") && find(retain, "cuDevicePrimaryCtxRetain") &&
                find(release, "cuDevicePrimaryCtxRelease_v2") && find(to_host, "cuMemcpyDtoHAsync_v2") && find(to_card, "cuMemcpyHtoDAsync_v2");
    }
};
const Driver& driver() {
    static const Driver& it = *new Driver;
    return it;
}

// The context of a communicator is current while this lives, whatever the thread's own is.
struct Current {
    void* before = nullptr;
    explicit Current(void* context) {
        driver().get_context(&before);
        driver().set_context(context);
    }
    ~Current() { driver().set_context(before); }
};

// ---- messages ----

struct Hello {
    int32_t rank, ranks;
};

enum Kind : uint32_t { ALL_GATHER, BROADCAST, ALL_REDUCE, LEAVING };
const char* const KIND_NAMES[] = {"ncclAllGather", "ncclBroadcast", "ncclAllReduce", "the end of the communicator"};

struct Request {
    uint32_t kind, type, reduction, root;
    uint64_t count, number;  // Values; collectives of this communicator so far.
};

// What rank 0 answers: an error, or SUCCESS, or LEFT.
typedef int32_t Answer;
constexpr Answer LEFT = -1;

using Bytes = std::vector<unsigned char>;

bool send_all(int socket, const void* from, size_t bytes) {
    for (const char* next = (const char*)from; bytes > 0;) {
        const ssize_t sent = send(socket, next, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        next += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

bool receive_all(int socket, void* to, size_t bytes) {
    for (char* next = (char*)to; bytes > 0;) {
        const ssize_t received = recv(socket, next, bytes, 0);
        if (received < 0 && errno == EINTR) continue;
        if (received <= 0) return false;
        next += received;
        bytes -= (size_t)received;
    }
    return true;
}

bool has_ended(const pollfd& polled) { return (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0; }

// ---- communicators ----

struct Communicator {
    int rank = 0, ranks = 1;
    void* context = nullptr;
    bool retained = false;     // The context; for a thread that had none.
    std::vector<int> sockets;  // Of rank 0: those of ranks 1, 2, ...; of the others: rank 0's.
    std::mutex lock;           // Held during a collective.
    std::atomic<int> error{SUCCESS};
    uint64_t number = 0;

    ~Communicator() {
        for (int socket : sockets) close(socket);
        if (retained) driver().release(0);
    }
    // Whoever waits for this rank, here or elsewhere, waits no longer.
    void hang_up() {
        for (int socket : sockets) shutdown(socket, SHUT_RDWR);
    }
    // Nothing can be done with this communicator any more.
    Result end_with(Result result) {
        error = result;
        hang_up();
        return result;
    }
    Result gone(int other) {
        return fail(REMOTE_ERROR, "rank %d of %d: rank %d has gone, or its communicator has", rank, ranks, other);
    }
};

std::mutex tables;
std::map<void*, std::shared_ptr<Communicator>>& communicators = *new std::map<void*, std::shared_ptr<Communicator>>;

std::shared_ptr<Communicator> find(void* handle) {
    std::lock_guard<std::mutex> lock(tables);
    const auto at = communicators.find(handle);
    return at == communicators.end() ? nullptr : at->second;
}

using Clock = std::chrono::steady_clock;

Clock::time_point deadline_of_start() { return Clock::now() + std::chrono::seconds(number_of("ADAROLL_EMULATOR_NCCL_WAIT", 60)); }

socklen_t address_of(const ncclUniqueId& id, sockaddr_un& address) {
    address = {};
    address.sun_family = AF_UNIX;
    // An abstract name, which begins with 0: it ends with the socket.
    const size_t length = strnlen(id.internal, sizeof address.sun_path - 1);
    memcpy(address.sun_path + 1, id.internal, length);
    return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Takes in one rank that has connected. What is no rank of this communicator is told so, and is nobody's loss.
void take_in(Communicator& c, int listener, uint32_t& missing) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const timeval patience = {5, 0}, none = {};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    Hello hello = {};
    const bool said = receive_all(socket, &hello, sizeof hello);
    if (said && hello.ranks == c.ranks && hello.rank > 0 && hello.rank < c.ranks && c.sockets[(size_t)hello.rank - 1] < 0) {
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
        c.sockets[(size_t)hello.rank - 1] = socket;
        missing--;
        return;
    }
    const Answer refused = INVALID_ARGUMENT;
    send_all(socket, &refused, sizeof refused);
    close(socket);
}

// Rank 0: waits until all others have come, and lets them go on.
Result gather(Communicator& c, const ncclUniqueId& id) {
    sockaddr_un address;
    const socklen_t length = address_of(id, address);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (const sockaddr*)&address, length) != 0 || listen(listener, 128) != 0) {
        const bool taken = errno == EADDRINUSE;
        if (listener >= 0) close(listener);
        return taken ? fail(INVALID_USAGE, "two ranks 0 have the same unique id") : fail(SYSTEM_ERROR, "no socket: %s", strerror(errno));
    }
    c.sockets.assign((size_t)c.ranks - 1, -1);
    Result result = SUCCESS;
    const auto deadline = deadline_of_start();
    for (uint32_t missing = (uint32_t)c.ranks - 1; missing > 0 && result == SUCCESS;) {
        std::vector<pollfd> polled = {{listener, POLLIN, 0}};
        for (int socket : c.sockets) polled.push_back({socket, POLLRDHUP, 0});
        poll(polled.data(), polled.size(), 100);
        for (size_t i = 1; i < polled.size(); i++) {
            if (has_ended(polled[i])) result = c.gone((int)i);
        }
        if (result == SUCCESS && (polled[0].revents & POLLIN)) take_in(c, listener, missing);
        if (missing > 0 && result == SUCCESS && Clock::now() > deadline) {
            result = fail(REMOTE_ERROR, "%u of %d ranks did not come", missing, c.ranks);
        }
    }
    close(listener);
    if (result == SUCCESS) {
        const Answer welcome = SUCCESS;
        for (size_t i = 0; i < c.sockets.size(); i++) {
            if (!send_all(c.sockets[i], &welcome, sizeof welcome)) result = c.gone((int)i + 1);
        }
    }
    // Of those that did not come there is nothing to close.
    if (result != SUCCESS) c.sockets.erase(std::remove(c.sockets.begin(), c.sockets.end(), -1), c.sockets.end());
    return result;
}

// The other ranks: finds rank 0, and waits until it has found everybody.
Result join(Communicator& c, const ncclUniqueId& id) {
    sockaddr_un address;
    const socklen_t length = address_of(id, address);
    const int to_first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to_first < 0) return fail(SYSTEM_ERROR, "no socket: %s", strerror(errno));
    c.sockets = {to_first};
    const auto deadline = deadline_of_start();
    while (connect(to_first, (const sockaddr*)&address, length) != 0) {
        if (Clock::now() > deadline) return fail(REMOTE_ERROR, "rank %d of %d: rank 0 did not come", c.rank, c.ranks);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const Hello hello = {c.rank, c.ranks};
    Answer answer = SUCCESS;
    if (!send_all(to_first, &hello, sizeof hello) || !receive_all(to_first, &answer, sizeof answer)) return c.gone(0);
    if (answer == SUCCESS) return SUCCESS;
    return fail((Result)answer, "rank %d of %d: rank 0 has this rank already, or another number of ranks", c.rank, c.ranks);
}

// ---- sums ----

// The order in which the ranks' values of a chunk are added.
constexpr size_t CHUNK = 64;
void shuffle(std::vector<uint32_t>& order, uint64_t seed, uint64_t chunk) {
    std::iota(order.begin(), order.end(), 0u);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + chunk + 1;
    for (size_t i = order.size(); i > 1; i--) {
        // splitmix64
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        std::swap(order[i - 1], order[(z ^ (z >> 31)) % i]);
    }
}

template <class T> T reduced(T a, T b, uint32_t reduction) {
    if (reduction == MAX) return a < b ? b : a;
    if (reduction == MIN) return b < a ? b : a;
    if constexpr (std::is_integral_v<T>) {
        T sum;
        // Wraps around.
        (void)__builtin_add_overflow(a, b, &sum);
        return sum;
    } else {
        return a + b;
    }
}

template <class T> void reduce_as(const std::vector<Bytes>& parts, uint32_t reduction, size_t count, Bytes& result) {
    const uint64_t seed = number_of("ADAROLL_EMULATOR_NCCL_SEED", 0);
    std::vector<uint32_t> order(parts.size());
    result.resize(count * sizeof(T));
    T* const out = (T*)result.data();
    for (size_t first = 0; first < count; first += CHUNK) {
        shuffle(order, seed, first / CHUNK);
        for (size_t i = first; i < std::min(count, first + CHUNK); i++) {
            out[i] = ((const T*)parts[order[0]].data())[i];
            for (size_t k = 1; k < order.size(); k++) out[i] = reduced(out[i], ((const T*)parts[order[k]].data())[i], reduction);
        }
    }
}

bool can_reduce(uint32_t type, uint32_t reduction) {
    const bool known = type == FLOAT32 || type == FLOAT64 || (type >= INT32 && type <= UINT64);
    return known && (reduction == SUM || reduction == MAX || reduction == MIN);
}

void reduce(const std::vector<Bytes>& parts, const Request& request, Bytes& result) {
    const auto as = [&](auto type) { reduce_as<decltype(type)>(parts, request.reduction, request.count, result); };
    switch (request.type) {
    case INT32: return as(int32_t());
    case UINT32: return as(uint32_t());
    case INT64: return as(int64_t());
    case UINT64: return as(uint64_t());
    case FLOAT64: return as(double());
    default: return as(float());
    }
}

// ---- collectives ----

bool has_data(const Request& request, int rank) { return request.kind != BROADCAST || request.root == (uint32_t)rank; }
size_t part_bytes(const Request& request) { return request.count * TYPE_BYTES[request.type]; }
size_t result_bytes(const Request& request, int ranks) { return part_bytes(request) * (request.kind == ALL_GATHER ? (size_t)ranks : 1); }

// Rank 0: what one other rank sends, unless any of them ends meanwhile.
Result receive_from(Communicator& c, size_t other, void* to, size_t bytes) {
    for (char* next = (char*)to; bytes > 0;) {
        std::vector<pollfd> polled;
        for (size_t i = 0; i < c.sockets.size(); i++) polled.push_back({c.sockets[i], (short)(POLLRDHUP | (i == other ? POLLIN : 0)), 0});
        poll(polled.data(), polled.size(), -1);
        for (size_t i = 0; i < polled.size(); i++) {
            if (has_ended(polled[i])) return c.gone((int)i + 1);
        }
        if (!(polled[other].revents & POLLIN)) continue;
        const ssize_t received = recv(c.sockets[other], next, bytes, 0);
        if (received < 0 && errno == EINTR) continue;
        if (received <= 0) return c.gone((int)other + 1);
        next += received;
        bytes -= (size_t)received;
    }
    return SUCCESS;
}

Result exchange_as_first(Communicator& c, const Request& request, Bytes& mine, Bytes& result) {
    Answer answer = SUCCESS;
    for (size_t i = 0; i < c.sockets.size(); i++) {
        Request other;
        if (const Result failed = receive_from(c, i, &other, sizeof other)) return failed;
        if (other.kind == LEAVING) return c.gone((int)i + 1);
        if (memcmp(&other, &request, sizeof other) == 0) continue;
        answer = fail(INVALID_USAGE, "rank 0 is at collective %llu, %s of %llu values of type %u (operation %u, root %u), and rank %zu at %llu, "
                      "%s of %llu values of type %u (operation %u, root %u)", (unsigned long long)request.number, KIND_NAMES[request.kind],
                      (unsigned long long)request.count, request.type, request.reduction, request.root, i + 1, (unsigned long long)other.number,
                      KIND_NAMES[other.kind], (unsigned long long)other.count, other.type, other.reduction, other.root);
    }
    for (size_t i = 0; i < c.sockets.size(); i++) {
        if (!send_all(c.sockets[i], &answer, sizeof answer)) return c.gone((int)i + 1);
    }
    if (answer != SUCCESS) return (Result)answer;

    std::vector<Bytes> parts((size_t)c.ranks);
    parts[0] = std::move(mine);
    for (size_t i = 0; i < c.sockets.size(); i++) {
        if (!has_data(request, (int)i + 1)) continue;
        parts[i + 1].resize(part_bytes(request));
        if (const Result failed = receive_from(c, i, parts[i + 1].data(), parts[i + 1].size())) return failed;
    }
    if (request.kind == ALL_REDUCE) {
        reduce(parts, request, result);
    } else {
        for (const Bytes& part : parts) result.insert(result.end(), part.begin(), part.end());
    }
    for (size_t i = 0; i < c.sockets.size(); i++) {
        if (!send_all(c.sockets[i], result.data(), result.size())) return c.gone((int)i + 1);
    }
    return SUCCESS;
}

Result exchange_with_first(Communicator& c, const Request& request, const Bytes& mine, Bytes& result) {
    const int first = c.sockets[0];
    Answer answer = SUCCESS;
    if (!send_all(first, &request, sizeof request) || !receive_all(first, &answer, sizeof answer) || answer == LEFT) return c.gone(0);
    if (answer != SUCCESS) return fail((Result)answer, "rank %d of %d: the ranks' collectives differ", c.rank, c.ranks);
    result.resize(result_bytes(request, c.ranks));
    if (!send_all(first, mine.data(), mine.size()) || !receive_all(first, result.data(), result.size())) return c.gone(0);
    return SUCCESS;
}

Result run(Communicator& c, Request request, const void* from, void* to, void* stream) {
    constexpr int CUDA_INVALID_VALUE = 1;
    const auto cuda_failed = [&](int error, const char* what) {
        return c.end_with(fail(error == CUDA_INVALID_VALUE ? INVALID_ARGUMENT : UNHANDLED_CUDA_ERROR, "rank %d of %d: %s: the driver's error %d",
                               c.rank, c.ranks, what, error));
    };
    std::lock_guard<std::mutex> one(c.lock);
    if (c.error != SUCCESS) return fail((Result)c.error.load(), "rank %d of %d: the communicator has failed before", c.rank, c.ranks);
    const Current current(c.context);
    request.number = c.number++;
    Bytes mine, result;
    if (has_data(request, c.rank)) {
        mine.resize(part_bytes(request));
        // To memory that is not pinned: it waits for the stream.
        if (const int error = driver().to_host(mine.data(), (uint64_t)from, mine.size(), stream)) return cuda_failed(error, "what it sends");
    }
    const Result failed = c.rank == 0 ? exchange_as_first(c, request, mine, result) : exchange_with_first(c, request, mine, result);
    if (failed != SUCCESS) return c.end_with(failed);
    // From memory that is not pinned: the stream keeps the bytes.
    if (const int error = driver().to_card((uint64_t)to, result.data(), result.size(), stream)) return cuda_failed(error, "what it receives");
    return SUCCESS;
}

// Collectives between ncclGroupStart and the ncclGroupEnd that ends the outermost group begin there, in the order of the calls.
thread_local int group_depth;
thread_local std::vector<std::function<Result()>>* group;

int begin(void* handle, const Request& request, const void* from, void* to, void* stream) {
    const auto c = find(handle);
    if (!c) return fail(INVALID_ARGUMENT, "no communicator");
    if (request.type >= TYPES || (request.kind == BROADCAST && request.root >= (uint32_t)c->ranks)) {
        return fail(INVALID_ARGUMENT, "%s: no such type or root", KIND_NAMES[request.kind]);
    }
    if (request.kind == ALL_REDUCE && !can_reduce(request.type, request.reduction)) {
        return fail(INVALID_ARGUMENT, "the emulator has no operation %u on type %u", request.reduction, request.type);
    }
    auto work = [c, request, from, to, stream] { return run(*c, request, from, to, stream); };
    if (group_depth == 0) return work();
    if (group == nullptr) group = new std::vector<std::function<Result()>>;
    group->push_back(std::move(work));
    return SUCCESS;
}

int start(void** out, int ranks, const ncclUniqueId& id, int rank) {
    if (out == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return fail(INVALID_ARGUMENT, "no rank %d of %d", rank, ranks);
    if (strncmp(id.internal, NAME_OF_SOCKETS, sizeof NAME_OF_SOCKETS - 1) != 0) return fail(INVALID_ARGUMENT, "no unique id");
    if (!driver().found) return fail(SYSTEM_ERROR, "no libcuda.so.1, or an unknown one");
    const auto c = std::make_shared<Communicator>();
    c->rank = rank;
    c->ranks = ranks;
    driver().get_context(&c->context);
    if (c->context == nullptr) {
        if (const int error = driver().retain(&c->context, 0)) return fail(UNHANDLED_CUDA_ERROR, "no context: the driver's error %d", error);
        c->retained = true;
    }
    if (ranks > 1) {
        if (const Result failed = rank == 0 ? gather(*c, id) : join(*c, id)) return failed;
    }
    std::lock_guard<std::mutex> lock(tables);
    communicators[c.get()] = c;
    *out = c.get();
    return SUCCESS;
}

int end(void* handle) {
    std::shared_ptr<Communicator> c;
    {
        std::lock_guard<std::mutex> lock(tables);
        const auto at = communicators.find(handle);
        if (at == communicators.end()) return INVALID_ARGUMENT;
        c = at->second;
        communicators.erase(at);
    }
    // A rank that says goodbye is no error for those that do not wait for it. One that leaves in the middle of a collective does not say it.
    if (c->lock.try_lock()) {
        const Request leaving = {LEAVING, 0, 0, 0, 0, c->number};
        const Answer left = LEFT;
        for (int socket : c->sockets) {
            send(socket, c->rank == 0 ? (const void*)&left : &leaving, c->rank == 0 ? sizeof left : sizeof leaving, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        c->lock.unlock();
    }
    c->hang_up();
    return SUCCESS;
}

// Whether the rank at the other end of a socket, which has ended, had said goodbye.
bool said_goodbye(const Communicator& c, int socket) {
    if (c.rank == 0) {
        Request last = {};
        return recv(socket, &last, sizeof last, MSG_PEEK | MSG_DONTWAIT) == sizeof last && last.kind == LEAVING;
    }
    Answer last = SUCCESS;
    return recv(socket, &last, sizeof last, MSG_PEEK | MSG_DONTWAIT) == sizeof last && last == LEFT;
}

}  // namespace

// ---- what the library gives ----

API ncclGetVersion(int* version) {
    *version = VERSION;
    return SUCCESS;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int result) {
    return result >= 0 && result <= IN_PROGRESS ? WORDS[result] : "unknown result code";
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(void*) { return last_error; }

API ncclGetUniqueId(ncclUniqueId* id) {
    *id = {};
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != sizeof random) return fail(SYSTEM_ERROR, "no random numbers");
    size_t at = (size_t)snprintf(id->internal, sizeof id->internal, "%s", NAME_OF_SOCKETS);
    for (unsigned char byte : random) at += (size_t)snprintf(id->internal + at, sizeof id->internal - at, "%02x", byte);
    return SUCCESS;
}
API ncclCommInitRank(void** out, int ranks, ncclUniqueId id, int rank) { return start(out, ranks, id, rank); }
// Of a configuration the emulator needs nothing.
API ncclCommInitRankConfig(void** out, int ranks, ncclUniqueId id, int rank, void*) { return start(out, ranks, id, rank); }
// There is one card.
API ncclCommInitAll(void** out, int devices, const int* list) {
    if (devices != 1 || (list != nullptr && list[0] != 0)) return fail(INVALID_ARGUMENT, "the emulator has one device");
    ncclUniqueId id;
    const int failed = ncclGetUniqueId(&id);
    return failed ? failed : start(out, 1, id, 0);
}
// Collectives are done when their calls return.
API ncclCommFinalize(void* handle) { return find(handle) ? SUCCESS : INVALID_ARGUMENT; }
API ncclCommDestroy(void* handle) { return end(handle); }
API ncclCommAbort(void* handle) { return end(handle); }

API ncclCommCount(void* handle, int* count) {
    const auto c = find(handle);
    if (!c) return INVALID_ARGUMENT;
    *count = c->ranks;
    return SUCCESS;
}
API ncclCommUserRank(void* handle, int* rank) {
    const auto c = find(handle);
    if (!c) return INVALID_ARGUMENT;
    *rank = c->rank;
    return SUCCESS;
}
API ncclCommCuDevice(void* handle, int* device) {
    if (!find(handle)) return INVALID_ARGUMENT;
    *device = 0;
    return SUCCESS;
}
API ncclCommGetAsyncError(void* handle, int* error) {
    const auto c = find(handle);
    if (!c) return INVALID_ARGUMENT;
    *error = c->error;
    for (size_t i = 0; i < c->sockets.size() && *error == SUCCESS; i++) {
        pollfd polled = {c->sockets[i], POLLRDHUP, 0};
        if (poll(&polled, 1, 0) == 1 && has_ended(polled) && !said_goodbye(*c, c->sockets[i])) *error = REMOTE_ERROR;
    }
    return SUCCESS;
}

API ncclGroupStart() {
    group_depth++;
    return SUCCESS;
}
API ncclGroupEnd() {
    if (group_depth == 0) return fail(INVALID_USAGE, "the end of a group that was not begun");
    if (--group_depth > 0 || group == nullptr) return SUCCESS;
    std::vector<std::function<Result()>> all;
    all.swap(*group);
    int first = SUCCESS;
    for (const auto& work : all) {
        const int result = work();
        if (first == SUCCESS) first = result;
    }
    return first;
}

API ncclAllGather(const void* from, void* to, size_t count, int type, void* handle, void* stream) {
    return begin(handle, {ALL_GATHER, (uint32_t)type, 0, 0, count, 0}, from, to, stream);
}
API ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* handle, void* stream) {
    return begin(handle, {BROADCAST, (uint32_t)type, 0, (uint32_t)root, count, 0}, from, to, stream);
}
API ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, void* handle, void* stream) {
    return begin(handle, {ALL_REDUCE, (uint32_t)type, (uint32_t)reduction, 0, count, 0}, from, to, stream);
}
