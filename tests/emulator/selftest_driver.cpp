// Self-tests of the fake driver, against its C interface: what is late is late, what is refused is refused, and errors stay.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "common.cuh"
#include "selftest.h"

// x[i] = x[i] * 2 + 1 on 64 values: an order of calls can be told from the result.
KERNEL(step_on)(float* x) { x[THREAD] = x[THREAD] * 2.0f + 1.0f; }
EXPORT(step_on)

KERNEL(write_at)(float* x, u64 offset, float value) {
    if (THREAD == 0) x[offset] = value;
}
EXPORT(write_at)

KERNEL(only_some_shuffle)(float* x) {
    if (THREAD < 5) x[THREAD] = warp_xor(1.0f, 1);
}
EXPORT(only_some_shuffle)

namespace {

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURED_EVENT = 907 };
enum { LAUNCHES = 0, WAITS = 1, GRAPH_LAUNCHES = 2, ALLOCATIONS = 3, CAPTURES = 4 };
constexpr u32 N = 64;
constexpr size_t BYTES = 4 * N;

CUresult launch_step_on(void* function, CUdeviceptr at, void* stream) {
    void* parameters[] = {&at};
    return cuLaunchKernel(function, 1, 1, 1, N, 1, 1, 0, stream, parameters, nullptr);
}

CUresult step_on(const Session& session, CUdeviceptr at, void* stream) { return launch_step_on(session.function("step_on"), at, stream); }

CUresult write_at(const Session& session, CUdeviceptr at, u64 offset) {
    float value = 3.0f;
    void* parameters[] = {&at, &offset, &value};
    return cuLaunchKernel(session.function("write_at"), 1, 1, 1, 32, 1, 1, 0, session.stream, parameters, nullptr);
}

bool all(const float* x, float value) {
    for (u32 i = 0; i < N; i++) {
        if (x[i] != value) return false;
    }
    return true;
}

bool poisoned(const void* x, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char*)x)[i] != 0xff) return false;
    }
    return true;
}

void nothing_runs_before_it_is_waited_for() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    float* const out = s.pinned<float>(N);
    EXPECT(poisoned(out, BYTES));
    EXPECT(cuMemsetD8Async(x, 0, BYTES, s.stream) == 0 && step_on(s, x, s.stream) == 0 && step_on(s, x, s.stream) == 0);
    EXPECT(cuMemcpyDtoHAsync_v2(out, x, BYTES, s.stream) == 0);
    EXPECT(poisoned(out, BYTES) && adaroll_emulator_count(LAUNCHES) == 0);
    EXPECT(cuStreamSynchronize(s.stream) == 0);
    EXPECT(all(out, 3.0f) && adaroll_emulator_count(LAUNCHES) == 2 && adaroll_emulator_count(WAITS) == 1);
}

void parameters_are_those_of_the_call() {
    const Session s;
    CUdeviceptr x = s.memory(BYTES);
    const CUdeviceptr first = x;
    float out[N];
    EXPECT(cuMemsetD8Async(x, 0, BYTES, s.stream) == 0);
    void* parameters[] = {&x};
    EXPECT(cuLaunchKernel(s.function("step_on"), 1, 1, 1, N, 1, 1, 0, s.stream, parameters, nullptr) == 0);
    x = 0;
    EXPECT(cuMemcpyDtoHAsync_v2(out, first, BYTES, s.stream) == 0 && all(out, 1.0f));
}

void pinned_memory_is_read_late_and_pageable_memory_at_once() {
    const Session s;
    const CUdeviceptr a = s.memory(BYTES), b = s.memory(BYTES);
    float* const pinned = s.pinned<float>(N);
    float pageable[N], out[N];
    for (u32 i = 0; i < N; i++) pinned[i] = pageable[i] = 1.0f;
    EXPECT(cuMemcpyHtoDAsync_v2(a, pinned, BYTES, s.stream) == 0 && cuMemcpyHtoDAsync_v2(b, pageable, BYTES, s.stream) == 0);
    for (u32 i = 0; i < N; i++) pinned[i] = pageable[i] = 2.0f;
    EXPECT(cuMemcpyDtoHAsync_v2(out, a, BYTES, s.stream) == 0 && all(out, 2.0f));
    EXPECT(cuMemcpyDtoHAsync_v2(out, b, BYTES, s.stream) == 0 && all(out, 1.0f));
}

void a_copy_that_waits_does_not_wait_for_other_streams() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    float out[N];
    EXPECT(cuMemsetD8Async(x, 0, BYTES, s.stream) == 0);
    EXPECT(cuMemcpyDtoH_v2(out, x, BYTES) == 0 && poisoned(out, BYTES));
    void* blocking = nullptr;
    EXPECT(cuStreamCreate(&blocking, 0) == 0 && cuMemsetD8Async(x, 0, BYTES, blocking) == 0);
    EXPECT(cuMemcpyDtoH_v2(out, x, BYTES) == 0 && all(out, 0.0f));
}

void streams_meet_at_events_alone() {
    const Session s;
    void *other = nullptr, *event = nullptr;
    EXPECT(cuStreamCreate(&other, 1) == 0 && cuEventCreate(&event, 2) == 0);
    const CUdeviceptr x = s.memory(BYTES);
    float out[N];
    EXPECT(cuMemsetD8Async(x, 0, BYTES, s.stream) == 0 && step_on(s, x, s.stream) == 0 && cuEventRecord(event, s.stream) == 0);
    EXPECT(step_on(s, x, s.stream) == 0);
    EXPECT(cuMemcpyDtoHAsync_v2(out, x, BYTES, other) == 0 && poisoned(out, BYTES));
    EXPECT(cuStreamWaitEvent(other, event, 0) == 0);
    EXPECT(cuMemcpyDtoHAsync_v2(out, x, BYTES, other) == 0 && all(out, 1.0f));
    EXPECT(cuEventSynchronize(event) == 0 && adaroll_emulator_count(LAUNCHES) == 1);
    EXPECT(cuCtxSynchronize() == 0 && adaroll_emulator_count(LAUNCHES) == 2);
}

void events_that_are_asked_bring_work_on() {
    const Session s;
    void *begin = nullptr, *end = nullptr;
    EXPECT(cuEventCreate(&begin, 0) == 0 && cuEventCreate(&end, 0) == 0);
    const CUdeviceptr x = s.memory(BYTES);
    EXPECT(cuEventRecord(begin, s.stream) == 0);
    for (int i = 0; i < 20; i++) EXPECT(step_on(s, x, s.stream) == 0);
    EXPECT(cuEventRecord(end, s.stream) == 0);
    float milliseconds = -1.0f;
    EXPECT(cuEventElapsedTime_v2(&milliseconds, begin, end) == NOT_READY);
    int asked = 0;
    CUresult answer;
    while ((answer = cuEventQuery(end)) == NOT_READY) asked++;
    EXPECT(answer == 0 && asked >= 3 && adaroll_emulator_count(WAITS) == 0);
    EXPECT(cuEventElapsedTime_v2(&milliseconds, begin, end) == 0 && milliseconds > 0.0f);
}

void two_threads_run_two_streams() {
    const Session s;
    const auto work = [&s](float* result) {
        EXPECT(cuCtxSetCurrent(s.context) == 0);
        void* stream = nullptr;
        EXPECT(cuStreamCreate(&stream, 1) == 0);
        const CUdeviceptr x = s.memory(BYTES);
        float out[N];
        for (int round = 0; round < 50; round++) {
            EXPECT(cuMemsetD8Async(x, 0, BYTES, stream) == 0);
            for (int i = 0; i < 10; i++) EXPECT(step_on(s, x, stream) == 0);
            EXPECT(cuMemcpyDtoHAsync_v2(out, x, BYTES, stream) == 0 && all(out, 1023.0f));
        }
        EXPECT(cuMemFree_v2(x) == 0 && cuStreamDestroy_v2(stream) == 0);
        *result = out[0];
    };
    float first = 0, second = 0;
    std::thread a(work, &first), b(work, &second);
    a.join();
    b.join();
    EXPECT(first == 1023.0f && second == 1023.0f && adaroll_emulator_count(LAUNCHES) == 1000);
}

void a_graph_is_captured_once_and_replayed() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES), y = s.memory(BYTES);
    float* const in = s.pinned<float>(N);
    float out[N];
    EXPECT(cuStreamBeginCapture_v2(s.stream, 1) == 0);
    int status = 0;
    EXPECT(cuStreamIsCapturing(s.stream, &status) == 0 && status == 1);
    EXPECT(cuMemcpyHtoDAsync_v2(x, in, BYTES, s.stream) == 0 && step_on(s, x, s.stream) == 0 && cuMemsetD8Async(y, 0, BYTES, s.stream) == 0);
    EXPECT(step_on(s, y, s.stream) == 0);
    void *graph = nullptr, *instance = nullptr;
    EXPECT(cuStreamEndCapture(s.stream, &graph) == 0 && graph != nullptr && cuGraphInstantiateWithFlags(&instance, graph, 0) == 0);
    EXPECT(cuGraphDestroy(graph) == 0 && cuStreamSynchronize(s.stream) == 0 && adaroll_emulator_count(LAUNCHES) == 0);
    for (float value : {1.0f, 5.0f}) {
        for (u32 i = 0; i < N; i++) in[i] = value;
        EXPECT(cuGraphLaunch(instance, s.stream) == 0);
        EXPECT(cuMemcpyDtoHAsync_v2(out, x, BYTES, s.stream) == 0 && all(out, 2.0f * value + 1.0f));
        EXPECT(cuMemcpyDtoHAsync_v2(out, y, BYTES, s.stream) == 0 && all(out, 1.0f));
    }
    EXPECT(cuGraphExecDestroy(instance) == 0 && cuGraphLaunch(instance, s.stream) == INVALID_HANDLE);
    EXPECT(adaroll_emulator_count(GRAPH_LAUNCHES) == 2 && adaroll_emulator_count(CAPTURES) == 1 && adaroll_emulator_count(LAUNCHES) == 4);
}

void a_capture_does_not_survive_what_waits_or_takes_memory() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    float pageable[N] = {};
    void *event = nullptr, *graph = nullptr;
    EXPECT(cuEventCreate(&event, 2) == 0);
    for (int what = 0; what < 6; what++) {
        EXPECT(cuStreamBeginCapture_v2(s.stream, 1) == 0);
        CUdeviceptr more;
        const CUresult refused = what == 0   ? cuStreamSynchronize(s.stream)
                                 : what == 1 ? cuMemAlloc_v2(&more, BYTES)
                                 : what == 2 ? cuMemcpyHtoDAsync_v2(x, pageable, BYTES, s.stream)
                                 : what == 3 ? cuMemcpyDtoHAsync_v2(pageable, x, BYTES, s.stream)
                                 : what == 4 ? cuCtxSynchronize()
                                             : cuMemFree_v2(x);
        EXPECT(refused == CAPTURE_UNSUPPORTED);
        EXPECT(step_on(s, x, s.stream) == CAPTURE_INVALIDATED);
        EXPECT(cuStreamEndCapture(s.stream, &graph) == CAPTURE_INVALIDATED && graph == nullptr);
    }
    EXPECT(cuStreamBeginCapture_v2(s.stream, 1) == 0 && cuEventRecord(event, s.stream) == 0 && cuEventSynchronize(event) == CAPTURED_EVENT);
    EXPECT(cuStreamEndCapture(s.stream, &graph) == 0);
    // Another thread may do all that during a capture of this mode, and not during a global one.
    for (int mode : {1, 0}) {
        EXPECT(cuStreamBeginCapture_v2(s.stream, mode) == 0);
        std::thread([&] {
            CUdeviceptr more;
            EXPECT(cuCtxSetCurrent(s.context) == 0 && cuMemAlloc_v2(&more, BYTES) == (mode == 1 ? 0 : CAPTURE_UNSUPPORTED));
        }).join();
        EXPECT(cuStreamEndCapture(s.stream, &graph) == (mode == 1 ? 0 : CAPTURE_INVALIDATED));
    }
    EXPECT(cuStreamSynchronize(s.stream) == 0);
}

void memory_ends() {
    const Session s;
    CUdeviceptr a = 0, b = 0;
    EXPECT(cuMemAlloc_v2(&a, 600000) == 0 && cuMemAlloc_v2(&b, 400001) == OUT_OF_MEMORY && cuMemAlloc_v2(&b, 400000) == 0);
    size_t free_bytes = 1, all_bytes = 0;
    EXPECT(cuMemGetInfo_v2(&free_bytes, &all_bytes) == 0 && free_bytes == 0 && all_bytes == 1000000);
    EXPECT(cuMemFree_v2(a) == 0 && cuMemFree_v2(a) == INVALID_VALUE && cuMemAlloc_v2(&a, 600000) == 0 && adaroll_emulator_count(ALLOCATIONS) == 4);
}

void large_memory_is_poisoned_too() {
    const Session s;
    constexpr size_t LARGE = (100 << 20) + 12;
    const CUdeviceptr x = s.memory(LARGE);
    static unsigned char out[1 << 20];
    for (size_t at : {(size_t)0, (size_t)50 << 20, LARGE - sizeof out}) {
        EXPECT(cuMemcpyDtoH_v2(out, x + at, sizeof out) == 0 && poisoned(out, sizeof out));
    }
    EXPECT(cuMemFree_v2(x) == 0);
}

void copies_stay_within_an_allocation() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    float out[2 * N];
    EXPECT(cuMemcpyDtoH_v2(out, x + 4, BYTES) == INVALID_VALUE && cuMemcpyHtoDAsync_v2(x, out, BYTES + 1, s.stream) == INVALID_VALUE);
    EXPECT(cuMemsetD8Async(x + 1, 0, BYTES, s.stream) == INVALID_VALUE && cuMemcpyHtoDAsync_v2((CUdeviceptr)out, out, 4, s.stream) == INVALID_VALUE);
}

void an_error_stays() {
    const Session s;
    CUdeviceptr x = s.memory(BYTES), more;
    void* const f = s.function("step_on");
    void* parameters[] = {&x};
    EXPECT(cuLaunchKernel(s.function("only_some_shuffle"), 1, 1, 1, 32, 1, 1, 0, s.stream, parameters, nullptr) == 0);
    EXPECT(cuStreamSynchronize(s.stream) == LAUNCH_FAILED);
    EXPECT(cuMemAlloc_v2(&more, 4) == LAUNCH_FAILED && cuCtxSynchronize() == LAUNCH_FAILED && cuMemFree_v2(x) == LAUNCH_FAILED);
    EXPECT(launch_step_on(f, x, s.stream) == LAUNCH_FAILED && cuStreamDestroy_v2(s.stream) == LAUNCH_FAILED);
    // A new context has forgotten it.
    EXPECT(cuDevicePrimaryCtxRelease_v2(0) == 0);
    const Session next;
    const CUdeviceptr y = next.memory(BYTES);
    float out[N];
    EXPECT(cuMemsetD8Async(y, 0, BYTES, next.stream) == 0 && step_on(next, y, next.stream) == 0);
    EXPECT(cuMemcpyDtoHAsync_v2(out, y, BYTES, next.stream) == 0 && all(out, 1.0f));
}

void a_write_beyond_memory_is_an_error() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    EXPECT(write_at(s, x, N) == 0 && cuStreamSynchronize(s.stream) == LAUNCH_FAILED);
}

void freed_memory_is_gone() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    EXPECT(cuMemFree_v2(x) == 0 && write_at(s, x, 0) == 0 && cuStreamSynchronize(s.stream) == LAUNCH_FAILED);
}

void the_host_writes_beyond_pinned_memory() {
    const Session s;
    char* const pinned = s.pinned<char>(100);
    memset(pinned, 0, 101);
    EXPECT(cuMemFreeHost(pinned) == LAUNCH_FAILED);
}

void launches_that_a_card_refuses() {
    const Session s;
    CUdeviceptr x = s.memory(BYTES);
    void* const f = s.function("step_on");
    void* parameters[] = {&x};
    const auto launch = [&](u32 blocks, u32 rows, u32 threads, u32 shared) {
        return cuLaunchKernel(f, blocks, rows, 1, threads, 1, 1, shared, s.stream, parameters, nullptr);
    };
    EXPECT(launch(0, 1, 64, 0) == INVALID_VALUE && launch(1, 65536, 64, 0) == INVALID_VALUE && launch(1, 1, 1025, 0) == INVALID_VALUE);
    constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
    EXPECT(launch(1, 1, 64, 49152) == 0 && launch(1, 1, 64, 49153) == INVALID_VALUE);
    EXPECT(cuFuncSetAttribute(f, MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449) == INVALID_VALUE);
    EXPECT(cuFuncSetAttribute(f, MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448) == 0 && launch(1, 1, 64, 232448) == 0);
    EXPECT(cuStreamSynchronize(s.stream) == 0);
}

void images_and_names() {
    const Session s;
    void *module = nullptr, *function = nullptr;
    EXPECT(cuModuleLoadData(&module, "\177ELF and so on") == 0 && cuModuleGetFunction(&function, module, "step_on") == 0);
    EXPECT(cuModuleGetFunction(&function, module, "no_such_kernel") == NOT_FOUND);
    EXPECT(cuModuleLoadData(&module, "//\n// a text\n.version 8.0") == INVALID_IMAGE);
    EXPECT(cuStreamSynchronize((void*)&module) == INVALID_HANDLE);
}

void calls_need_a_context() {
    const Session s;
    std::thread([] {
        CUdeviceptr x;
        EXPECT(cuMemAlloc_v2(&x, 4) == INVALID_CONTEXT);
    }).join();
}

void a_machine_without_a_card() { EXPECT(cuInit(0) == NO_DEVICE); }

void a_card_that_is_lost() {
    const Session s;
    const CUdeviceptr x = s.memory(BYTES);
    void* const f = s.function("step_on");
    for (int i = 0; i < 3; i++) EXPECT(launch_step_on(f, x, s.stream) == 0);
    EXPECT(cuStreamSynchronize(s.stream) == 0 && step_on(s, x, s.stream) == 0 && cuStreamSynchronize(s.stream) == ILLEGAL_ADDRESS);
    EXPECT(launch_step_on(f, x, s.stream) == ILLEGAL_ADDRESS && cuMemFree_v2(x) == ILLEGAL_ADDRESS);
}

}  // namespace

#define TEST(name, ...) {#name, name, __VA_ARGS__}
const DriverTest DRIVER_TESTS[] = {
    TEST(nothing_runs_before_it_is_waited_for, nullptr, nullptr, false),
    TEST(parameters_are_those_of_the_call, nullptr, nullptr, false),
    TEST(pinned_memory_is_read_late_and_pageable_memory_at_once, nullptr, nullptr, false),
    TEST(a_copy_that_waits_does_not_wait_for_other_streams, nullptr, nullptr, false),
    TEST(streams_meet_at_events_alone, nullptr, nullptr, false),
    TEST(events_that_are_asked_bring_work_on, nullptr, nullptr, false),
    TEST(two_threads_run_two_streams, nullptr, nullptr, false),
    TEST(a_graph_is_captured_once_and_replayed, nullptr, nullptr, false),
    TEST(a_capture_does_not_survive_what_waits_or_takes_memory, nullptr, nullptr, false),
    TEST(memory_ends, "ADAROLL_EMULATOR_MEMORY", "1000000", false),
    TEST(large_memory_is_poisoned_too, nullptr, nullptr, false),
    TEST(copies_stay_within_an_allocation, nullptr, nullptr, false),
    TEST(an_error_stays, nullptr, nullptr, false),
    TEST(a_write_beyond_memory_is_an_error, nullptr, nullptr, true),
    TEST(freed_memory_is_gone, nullptr, nullptr, true),
    TEST(the_host_writes_beyond_pinned_memory, nullptr, nullptr, true),
    TEST(launches_that_a_card_refuses, nullptr, nullptr, false),
    TEST(images_and_names, nullptr, nullptr, false),
    TEST(calls_need_a_context, nullptr, nullptr, false),
    TEST(a_machine_without_a_card, "ADAROLL_EMULATOR_NO_DEVICE", "1", false),
    TEST(a_card_that_is_lost, "ADAROLL_EMULATOR_LOSE_AFTER", "3", false),
};
const size_t DRIVER_TEST_COUNT = sizeof DRIVER_TESTS / sizeof *DRIVER_TESTS;
