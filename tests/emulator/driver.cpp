// The fake driver's card, context, modules and launches: an H200 in everything that a program can ask for, but for its memory.
//
// ADAROLL_EMULATOR_MEMORY      bytes of the card's memory (8 GiB)
// ADAROLL_EMULATOR_NO_DEVICE   1: there is no card
// ADAROLL_EMULATOR_LOSE_AFTER  n: the card is lost after n kernels
// ADAROLL_EMULATOR_LOG         1: every call is said on standard error
#include "driver.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace driver {

Card card;
std::mutex tables;
std::shared_mutex writing;
thread_local void* current_context;

namespace {

constexpr unsigned SHARED_WITHOUT_ASKING = 48 << 10, MOST_SHARED = 227 << 10, SHARED_OF_MULTIPROCESSOR = 228 << 10;
constexpr unsigned THREADS_OF_MULTIPROCESSOR = 2048, MOST_BLOCKS_OF_MULTIPROCESSOR = 32;
const char IMAGE_OF_EMULATOR[] = "ADAROLL-EMULATOR";

int uses_of_context;  // Guarded by `tables`.
char context;         // Its address is the handle.

struct Function {
    const emulator::Kernel* kernel;
    std::atomic<unsigned> most_shared{SHARED_WITHOUT_ASKING};
};
Handles<Function>& functions = *new Handles<Function>;

struct Module {
    std::map<std::string, void*> functions;  // Guarded by `tables`.
};
Handles<Module>& modules = *new Handles<Module>;

uint64_t number_of(const char* variable, uint64_t otherwise) {
    const char* const text = getenv(variable);
    return text != nullptr && *text != 0 ? strtoull(text, nullptr, 10) : otherwise;
}

void log_call(const char* name) {
    if (card.logs) fprintf(stderr, "emulator: %s\n", name);
}

struct Error {
    int number;
    const char *name, *words;
};
const Error ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {MAP_FAILURE, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
};

const Error* error_of(int number) {
    for (const Error& error : ERRORS) {
        if (error.number == number) return &error;
    }
    return nullptr;
}

// For calls that need a card and no context.
CUresult begin_device_call(const char* name) {
    log_call(name);
    return card.initialized ? SUCCESS : NOT_INITIALIZED;
}
#define BEGIN_DEVICE_CALL \
    if (const CUresult refused = begin_device_call(__func__)) return refused

CUresult blocks_of_multiprocessor(int* blocks, const Function& function, int threads, size_t shared) {
    if (threads <= 0 || threads > 1024 || shared > function.most_shared) return INVALID_VALUE;
    // A block takes warps whole, and 1 KB of shared memory beside its own.
    const size_t by_threads = THREADS_OF_MULTIPROCESSOR / ((unsigned)(threads + 31) / 32 * 32);
    const size_t by_shared = SHARED_OF_MULTIPROCESSOR / (shared + 1024);
    size_t most = MOST_BLOCKS_OF_MULTIPROCESSOR;
    if (by_threads < most) most = by_threads;
    if (by_shared < most) most = by_shared;
    *blocks = (int)most;
    return SUCCESS;
}

}  // namespace

void lose(int error) {
    int none = SUCCESS;
    card.error.compare_exchange_strong(none, error);
}

CUresult begin_call(const char* name) {
    log_call(name);
    if (!card.initialized) return NOT_INITIALIZED;
    if (current_context == nullptr) return INVALID_CONTEXT;
    return card.error;
}

}  // namespace driver

using namespace driver;

API cuInit(unsigned) {
    std::lock_guard<std::mutex> lock(tables);
    if (number_of("ADAROLL_EMULATOR_NO_DEVICE", 0) == 1) return NO_DEVICE;
    if (card.initialized) return SUCCESS;
    card.logs = number_of("ADAROLL_EMULATOR_LOG", 0) == 1;
    card.memory = number_of("ADAROLL_EMULATOR_MEMORY", card.memory);
    card.lost_after = number_of("ADAROLL_EMULATOR_LOSE_AFTER", card.lost_after);
    card.initialized = true;
    return SUCCESS;
}
API cuDriverGetVersion(int* version) {
    *version = 13000;
    return SUCCESS;
}
// Tables of functions that NVIDIA's own libraries ask for: NVRTC does, and does without where there are none.
API cuGetExportTable(const void** table, const void*) {
    *table = nullptr;
    return NOT_FOUND;
}
API cuGetErrorName(CUresult error, const char** text) {
    const Error* const known = error_of(error);
    *text = known != nullptr ? known->name : nullptr;
    return known != nullptr ? SUCCESS : INVALID_VALUE;
}
API cuGetErrorString(CUresult error, const char** text) {
    const Error* const known = error_of(error);
    *text = known != nullptr ? known->words : nullptr;
    return known != nullptr ? SUCCESS : INVALID_VALUE;
}

// ---- the card ----

API cuDeviceGetCount(int* count) {
    BEGIN_DEVICE_CALL;
    *count = 1;
    return SUCCESS;
}
API cuDeviceGet(int* device, int ordinal) {
    BEGIN_DEVICE_CALL;
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceGetName(char* name, int bytes, int device) {
    BEGIN_DEVICE_CALL;
    if (device != 0) return INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "emulated H200");
    return SUCCESS;
}
API cuDeviceGetUuid_v2(char* uuid, int device) {
    BEGIN_DEVICE_CALL;
    if (device != 0) return INVALID_DEVICE;
    memcpy(uuid, "adaroll-emulator", 16);
    return SUCCESS;
}
API cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
// A card is no peer of itself, and there is no other.
API cuDeviceCanAccessPeer(int* can, int device, int peer) {
    BEGIN_DEVICE_CALL;
    *can = 0;
    return device == 0 && peer == 0 ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    BEGIN_DEVICE_CALL;
    if (device != 0) return INVALID_DEVICE;
    *bytes = card.memory;
    return SUCCESS;
}
API cuDeviceGetAttribute(int* value, int attribute, int device) {
    BEGIN_DEVICE_CALL;
    if (device != 0) return INVALID_DEVICE;
    // Values of CUdevice_attribute. What is not here is 0; so are memory pools (115).
    static const struct {
        int attribute, value;
    } values[] = {
        {1, 1024},                                                      // threads of a block
        {2, 1024}, {3, 1024}, {4, 64},                                  // block
        {5, 0x7fffffff}, {6, 65535}, {7, 65535},                        // grid
        {8, SHARED_WITHOUT_ASKING}, {97, MOST_SHARED}, {81, SHARED_OF_MULTIPROCESSOR},
        {10, 32},                                                       // threads of a warp
        {12, 65536}, {82, 65536},                                       // registers of a block, of a multiprocessor
        {13, 1980000},                                                  // clock, kHz
        {16, 132},                                                      // multiprocessors
        {36, 2619000}, {37, 5120},                                      // memory clock, width of the bus
        {38, 50 << 20},                                                 // L2 cache
        {39, THREADS_OF_MULTIPROCESSOR}, {106, MOST_BLOCKS_OF_MULTIPROCESSOR},
        {41, 1},                                                        // unified addresses
        {75, 9}, {76, 0},                                               // compute capability
    };
    *value = 0;
    for (const auto& known : values) {
        if (known.attribute == attribute) *value = known.value;
    }
    return SUCCESS;
}

// ---- the context ----

API cuDevicePrimaryCtxRetain(void** out, int device) {
    BEGIN_DEVICE_CALL;
    if (device != 0) return INVALID_DEVICE;
    std::lock_guard<std::mutex> lock(tables);
    uses_of_context++;
    *out = &context;
    return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN_DEVICE_CALL;
    if (device != 0) return INVALID_DEVICE;
    {
        std::lock_guard<std::mutex> lock(tables);
        if (uses_of_context == 0) return INVALID_CONTEXT;
        if (--uses_of_context > 0) return SUCCESS;
    }
    // With the context goes its memory, and its error unless the card itself is lost.
    finish_everything();
    free_everything();
    if (card.counts[LAUNCHES].load() < card.lost_after) card.error = SUCCESS;
    return SUCCESS;
}
API cuCtxSetCurrent(void* handle) {
    BEGIN_DEVICE_CALL;
    if (handle != nullptr && handle != &context) return INVALID_CONTEXT;
    current_context = handle;
    return SUCCESS;
}
API cuCtxGetCurrent(void** handle) {
    BEGIN_DEVICE_CALL;
    *handle = current_context;
    return SUCCESS;
}
API cuCtxGetDevice(int* device) {
    BEGIN_CALL;
    *device = 0;
    return SUCCESS;
}

// The only context there is cannot be another one's peer.
API cuCtxEnablePeerAccess(void*, unsigned flags) {
    BEGIN_CALL;
    return flags != 0 ? INVALID_VALUE : INVALID_CONTEXT;
}

// ---- modules ----

API cuModuleLoadData(void** out, const void* image) {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    if (image == nullptr) return INVALID_VALUE;
    const bool elf = memcmp(image, "\177ELF", 4) == 0;
    if (!elf && strncmp((const char*)image, IMAGE_OF_EMULATOR, sizeof IMAGE_OF_EMULATOR - 1) != 0) return INVALID_IMAGE;
    *out = modules.add(std::make_shared<Module>());
    return SUCCESS;
}
API cuModuleUnload(void* handle) {
    BEGIN_CALL;
    const auto module = modules.remove(handle);
    if (!module) return INVALID_HANDLE;
    for (const auto& [name, function] : module->functions) functions.remove(function);
    return SUCCESS;
}
API cuModuleGetFunction(void** out, void* handle, const char* name) {
    BEGIN_CALL;
    const auto module = modules.find(handle);
    if (!module) return INVALID_HANDLE;
    {
        std::lock_guard<std::mutex> lock(tables);
        const auto known = module->functions.find(name);
        if (known != module->functions.end()) {
            *out = known->second;
            return SUCCESS;
        }
    }
    const emulator::Kernel* const kernel = emulator::find(name);
    if (kernel == nullptr) return NOT_FOUND;
    auto function = std::make_shared<Function>();
    function->kernel = kernel;
    *out = functions.add(std::move(function));
    std::lock_guard<std::mutex> lock(tables);
    module->functions[name] = *out;
    return SUCCESS;
}

// ---- functions ----

// Values of CUfunction_attribute.
enum { MAX_THREADS_PER_BLOCK = 0, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, PREFERRED_SHARED_CARVEOUT = 9 };

API cuFuncSetAttribute(void* handle, int attribute, int value) {
    BEGIN_CALL;
    const auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    if (attribute == PREFERRED_SHARED_CARVEOUT) return SUCCESS;
    if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > (int)MOST_SHARED) return INVALID_VALUE;
    function->most_shared = (unsigned)value;
    return SUCCESS;
}
API cuFuncGetAttribute(int* value, int attribute, void* handle) {
    BEGIN_CALL;
    const auto function = functions.find(handle);
    if (!function) return INVALID_HANDLE;
    *value = attribute == MAX_THREADS_PER_BLOCK           ? 1024
             : attribute == BINARY_VERSION                ? 90
             : attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES ? (int)function->most_shared
                                                          : 0;
    return SUCCESS;
}
API cuFuncSetCacheConfig(void* handle, int) {
    BEGIN_CALL;
    return functions.find(handle) ? SUCCESS : INVALID_HANDLE;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads, size_t shared) {
    BEGIN_CALL;
    const auto function = functions.find(handle);
    return function ? blocks_of_multiprocessor(blocks, *function, threads, shared) : (CUresult)INVALID_HANDLE;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* handle, int threads, size_t shared, unsigned) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, shared);
}
API cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, void* stream_handle, void** parameters, void** extra) {
    BEGIN_CALL;
    const auto function = functions.find(handle);
    const auto stream = stream_of(stream_handle);
    if (!function || !stream) return INVALID_HANDLE;
    const emulator::Kernel& kernel = *function->kernel;
    if (extra != nullptr || (parameters == nullptr && kernel.parameters > 0)) return INVALID_VALUE;
    Operation operation(Operation::Launch);
    operation.kernel = &kernel;
    operation.grid = {grid_x, grid_y, grid_z};
    operation.block = {block_x, block_y, block_z};
    operation.shared_bytes = shared;
    const char* const wrong = shared > function->most_shared ? "more shared memory than was asked for with cuFuncSetAttribute"
                                                             : emulator::wrong_with(operation.grid, operation.block, shared);
    if (wrong != nullptr) {
        fprintf(stderr, "emulator: kernel %s with grid %u,%u,%u, block %u,%u,%u, %u bytes of shared memory: %s\n", kernel.name, grid_x, grid_y,
                grid_z, block_x, block_y, block_z, shared, wrong);
        return INVALID_VALUE;
    }
    if (card.logs) fprintf(stderr, "emulator: %s of %u,%u,%u blocks of %u threads\n", kernel.name, grid_x, grid_y, grid_z, block_x);
    for (unsigned i = 0; i < kernel.parameters; i++) {
        const size_t at = operation.bytes.size();
        operation.bytes.resize(at + (kernel.parameter_bytes[i] + 15) / 16 * 16);
        memcpy(operation.bytes.data() + at, parameters[i], kernel.parameter_bytes[i]);
    }
    return add(stream, std::move(operation));
}

// ---- for other libraries of the emulator ----

// Starts a function that computes on the card's memory: what a library's kernel is to the driver. It runs in the stream's order, or whenever the
// graph does that the stream captures, with a copy of these arguments, and answers 0 or the error that the context then has. It counts as a kernel.
API adaroll_emulator_call(CUresult (*function)(const void*), const void* arguments, size_t bytes, void* stream_handle) {
    BEGIN_CALL;
    const auto stream = stream_of(stream_handle);
    if (!stream) return INVALID_HANDLE;
    Operation operation(Operation::Call);
    operation.function = function;
    operation.bytes.assign((const unsigned char*)arguments, (const unsigned char*)arguments + bytes);
    return add(stream, std::move(operation));
}
// What such a function asks before it touches memory: whether all of these bytes are in one allocation of the card's.
API adaroll_emulator_holds(const void* at, size_t bytes) { return in_memory(Where::Device, at, bytes); }

// ---- for tests ----

// 0 kernels that ran, 1 calls that had to wait, 2 graph launches, 3 calls of cuMemAlloc, 4 captures.
extern "C" __attribute__((visibility("default"))) unsigned long long adaroll_emulator_count(int what) {
    return what >= 0 && what < COUNTS ? card.counts[what].load() : 0;
}
