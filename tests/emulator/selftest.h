// What the self-tests share. A test runs in a process of its own, because a sanitizer ends the one that it finds at fault, and because a card's
// error stays. It says what came of it with its exit status.
#pragma once
#include <cstddef>
#include <cstdint>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
struct CUipcMemHandle {
    char reserved[64];
};

// The driver's functions that the tests call.
extern "C" {
CUresult cuInit(unsigned flags);
CUresult cuDeviceCanAccessPeer(int* can, int device, int peer);
CUresult cuCtxEnablePeerAccess(void* context, unsigned flags);
CUresult cuDevicePrimaryCtxRetain(void** context, int device);
CUresult cuDevicePrimaryCtxRelease_v2(int device);
CUresult cuCtxSetCurrent(void* context);
CUresult cuCtxSynchronize();
CUresult cuModuleLoadData(void** module, const void* image);
CUresult cuModuleGetFunction(void** function, void* module, const char* name);
CUresult cuFuncSetAttribute(void* function, int attribute, int value);
CUresult cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned shared, void* stream, void** parameters, void** extra);
CUresult cuMemAlloc_v2(CUdeviceptr* at, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr at);
CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void* at);
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* all_bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, void* stream);
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, void* stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void* stream);
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes);
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, void* stream);
CUresult cuStreamCreate(void** stream, unsigned flags);
CUresult cuStreamDestroy_v2(void* stream);
CUresult cuStreamSynchronize(void* stream);
CUresult cuStreamWaitEvent(void* stream, void* event, unsigned flags);
CUresult cuStreamBeginCapture_v2(void* stream, int mode);
CUresult cuStreamEndCapture(void* stream, void** graph);
CUresult cuStreamIsCapturing(void* stream, int* status);
CUresult cuEventCreate(void** event, unsigned flags);
CUresult cuEventRecord(void* event, void* stream);
CUresult cuEventQuery(void* event);
CUresult cuEventSynchronize(void* event);
CUresult cuEventElapsedTime_v2(float* milliseconds, void* begin, void* end);
CUresult cuGraphInstantiateWithFlags(void** instance, void* graph, unsigned long long flags);
CUresult cuGraphLaunch(void* instance, void* stream);
CUresult cuGraphDestroy(void* graph);
CUresult cuGraphExecDestroy(void* instance);
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr at);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* at, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr at);
unsigned long long adaroll_emulator_count(int what);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool SANITIZED = true;
#else
constexpr bool SANITIZED = false;
#endif

// Ends the test's process where something is not as it must be.
#define EXPECT(what) \
    if (!(what)) failed(__FILE__, __LINE__, #what)
[[noreturn]] void failed(const char* file, int line, const char* what);

// A card, a module and a stream that does not wait for the default one.
struct Session {
    void *context, *module, *stream;
    Session();
    void* function(const char* name) const;
    CUdeviceptr memory(size_t bytes) const;
    template <class T> T* pinned(size_t count) const { return (T*)pinned_bytes(count * sizeof(T)); }
    void* pinned_bytes(size_t bytes) const;
};

// The driver's tests, of one process and of several, and cuBLASLt's; selftest_driver.cpp, selftest_processes.cpp and selftest_cublaslt.cpp.
struct DriverTest {
    const char* name;
    void (*run)();
    const char *variable, *value;  // Of the environment; nullptr for none.
    bool ends_in_sanitizer;        // Where one watches, it reports, and the test does not get to its end.
};
extern const DriverTest DRIVER_TESTS[];
extern const size_t DRIVER_TEST_COUNT;
extern const DriverTest PROCESS_TESTS[];
extern const size_t PROCESS_TEST_COUNT;
extern const DriverTest PRODUCT_TESTS[];
extern const size_t PRODUCT_TEST_COUNT;
