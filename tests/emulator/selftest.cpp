// Self-tests of the emulator: kernels with planted bugs, each beside the same kernel without; `multiply_add` and `load_matrix` against the layouts
// of the PTX manual; and the driver's tests. In every order of warps a bug must be seen (an error, a sanitizer's report, a wrong or missing number)
// and its twin must be clean.
//
//   selftest           all tests; the exit status is 1 if one fails
//   selftest bugs      what is said of each bug, in the first order
//   selftest speed     how long switches, meetings and multiplications take
#include "selftest.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "common.cuh"

// ---- kernels: `out[THREAD]` from `in`, which holds 0, 1, 2, ...; with BUG, with the bug ----

#define TWINS(name)                                                              \
    KERNEL(name##_bug)(float* out, const float* in) { name<true>(out, in); }     \
    EXPORT(name##_bug)                                                           \
    KERNEL(name##_right)(float* out, const float* in) { name<false>(out, in); }  \
    EXPORT(name##_right)

template <bool BUG> DEV void barrier_missing(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    s[THREAD] = in[THREAD];
    if (!BUG) block_sync();
    out[THREAD] = s[THREADS - 1 - THREAD];
}
TWINS(barrier_missing)

template <bool BUG> DEV void barrier_missing_before_reuse(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    float sum = 0;
    for (int round = 0; round < 3; round++) {
        s[THREAD] = in[THREAD] + (float)round;
        block_sync();
        sum += s[(THREAD + 32) % THREADS];
        if (!BUG) block_sync();
    }
    out[THREAD] = sum;
}
TWINS(barrier_missing_before_reuse)

template <bool BUG> DEV void barrier_divergent(float* out, const float* in) {
    if (!BUG || THREAD < 40) block_sync();
    out[THREAD] = in[THREAD];
    block_sync();
}
TWINS(barrier_divergent)

template <bool BUG> DEV void barrier_in_a_warp_that_shuffles(float* out, const float* in) {
    float x = in[THREAD];
    if (BUG && THREAD == 3) block_sync();
    x = warp_xor(x, 1);
    out[THREAD] = x;
}
TWINS(barrier_in_a_warp_that_shuffles)

template <bool BUG> DEV void warp_sync_missing(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    s[THREAD] = in[THREAD];
    if (!BUG) warp_sync();
    out[THREAD] = s[THREAD ^ 31];
}
TWINS(warp_sync_missing)

template <bool BUG> DEV void lane_missing(float* out, const float* in) {
    float x = in[THREAD];
    if (!BUG || LANE != 7) x = warp_xor(x, 1);
    out[THREAD] = x;
}
TWINS(lane_missing)

template <bool BUG> DEV void lane_returned(float* out, const float* in) {
    out[THREAD] = in[THREAD ^ 1];
    if (BUG && THREAD == 37) return;
    out[THREAD] = warp_xor(in[THREAD], 1);
}
TWINS(lane_returned)

template <bool BUG> DEV void lanes_in_different_operations(float* out, const float* in) {
    if (BUG && LANE < 16) {
        warp_sync();
    } else {
        warp_ballot(true);
    }
    out[THREAD] = in[THREAD];
}
TWINS(lanes_in_different_operations)

template <bool BUG> DEV void copy_wait_missing(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    copy_async(s + 4 * THREAD, in + 4 * THREAD, 16);
    copy_commit();
    if (!BUG) copy_wait<0>();
    block_sync();
    out[THREAD] = s[THREAD];
}
TWINS(copy_wait_missing)

template <bool BUG> DEV void copy_waited_for_too_few(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    for (u32 group = 0; group < 2; group++) {
        if (THREAD % 2 == group) copy_async(s + 4 * THREAD, in + 4 * THREAD, 16);
        copy_commit();
    }
    copy_wait<BUG ? 1 : 0>();
    block_sync();
    out[THREAD] = s[THREAD];
}
TWINS(copy_waited_for_too_few)

template <bool BUG> DEV void copy_without_a_barrier(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    copy_async(s + 4 * THREAD, in + 4 * THREAD, 16);
    copy_commit();
    copy_wait<0>();
    if (!BUG) block_sync();
    out[THREAD] = s[4 * (THREADS - 1 - THREAD)];
}
TWINS(copy_without_a_barrier)

template <bool BUG> DEV void copy_misaligned(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    copy_async(s + 4 * THREAD, in + 4 * THREAD - (BUG && THREAD == 9 ? 1 : 0), 16);
    copy_commit();
    copy_wait<0>();
    out[THREAD] = s[4 * THREAD];
}
TWINS(copy_misaligned)

template <bool BUG> DEV void copy_outside_shared_memory(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    copy_async(s + 4 * (THREAD + (BUG ? 1 : 0)), in + 4 * THREAD, 16);
    copy_commit();
    copy_wait<0>();
    out[THREAD] = s[4 * (THREAD + (BUG ? 1 : 0))];
}
TWINS(copy_outside_shared_memory)

// The last chunk of `in` has two values.
template <bool BUG> DEV void copy_reads_too_much(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    copy_async(s + 4 * THREAD, in + 4 * THREAD, !BUG && THREAD == THREADS - 1 ? 8 : 16);
    copy_commit();
    copy_wait<0>();
    out[THREAD] = s[4 * THREAD + 3];
}
TWINS(copy_reads_too_much)

template <bool BUG> DEV void read_outside_memory(float* out, const float* in) {
    out[THREAD] = THREAD < THREADS - 1 || BUG ? in[THREAD + 1] : 0.0f;
}
TWINS(read_outside_memory)

template <bool BUG> DEV void write_outside_memory(float* out, const float* in) {
    out[THREAD] = in[THREAD];
    if (BUG && THREAD == THREADS - 1) out[THREADS] = 1.0f;
}
TWINS(write_outside_memory)

template <bool BUG> DEV void write_before_memory(float* out, const float* in) {
    out[THREAD] = in[THREAD];
    if (BUG && THREAD == 0) *(out - 1) = 1.0f;
}
TWINS(write_before_memory)

template <bool BUG> DEV void read_outside_shared_memory(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    s[THREAD] = in[THREAD];
    block_sync();
    out[THREAD] = THREAD < THREADS - 1 || BUG ? s[THREAD + 1] : 0.0f;
}
TWINS(read_outside_shared_memory)

template <bool BUG> DEV void write_outside_shared_memory(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    s[THREAD + (BUG ? 1 : 0)] = in[THREAD];
    out[THREAD] = s[THREAD + (BUG ? 1 : 0)];
}
TWINS(write_outside_shared_memory)

template <bool BUG> DEV void shared_memory_not_initialised(float* out, const float* in) {
    SHARED_BYTES(memory);
    float* const s = (float*)memory;
    if (!BUG || THREAD > 0) s[THREAD] = 0.0f;
    s[THREAD] += in[THREAD];
    out[THREAD] = s[THREAD];
}
TWINS(shared_memory_not_initialised)

template <bool BUG> DEV void output_not_written(float* out, const float* in) {
    if (!BUG || THREAD != 77) out[THREAD] = in[THREAD];
}
TWINS(output_not_written)

template <bool BUG> DEV void no_memory_there(float* out, const float* in) {
    out[THREAD] = in[THREAD];
    // A small address that the compiler does not know.
    if (BUG && THREAD == 11) *(volatile float*)((size_t)out >> 40 << 4) = 1.0f;
}
TWINS(no_memory_there)

template <bool BUG> DEV void load_misaligned(float* out, const float* in) {
    SHARED_BYTES(memory);
    if (THREAD == 1) *(Quad*)memory = *(const Quad*)(in + (BUG ? 1 : 4));
    out[THREAD] = in[THREAD];
}
TWINS(load_misaligned)

template <bool BUG> DEV void matrix_row_misaligned(float* out, const float* in) {
    SHARED_BYTES(memory);
    ((float*)memory)[THREAD] = in[THREAD];
    block_sync();
    u32 r[4];
    load_matrix(r, memory + 16 * LANE + (BUG && LANE == 4 ? 8 : 0));
    out[THREAD] = in[THREAD];
}
TWINS(matrix_row_misaligned)

// Each block leaves something for the next.
template <bool BUG> DEV void blocks_in_a_chain(float* out, const float* in) {
    const u32 i = BLOCK_X * THREADS + THREAD;
    out[i] = BUG && BLOCK_X > 0 ? out[i - THREADS] + (float)THREADS : in[i];
}
TWINS(blocks_in_a_chain)

struct Bug {
    const char* name;
    u32 blocks, inputs, shared;
    bool in_every_order;  // Otherwise in one of them at least.
    float (*expected)(u32 i, u32 inputs);
};

constexpr u32 THREADS_A_BLOCK = 128;
float same(u32 i, u32) { return (float)i; }
float other(u32 i, u32) { return (float)(i ^ 1); }
const Bug BUGS[] = {
    {"barrier_missing", 1, 128, 512, true, [](u32 i, u32) { return (float)(127 - i); }},
    {"barrier_missing_before_reuse", 1, 128, 512, false, [](u32 i, u32) { return 3.0f * (float)((i + 32) % 128) + 3.0f; }},
    {"barrier_divergent", 1, 128, 0, true, same},
    {"barrier_in_a_warp_that_shuffles", 1, 128, 0, true, other},
    {"warp_sync_missing", 1, 128, 512, true, [](u32 i, u32) { return (float)(i ^ 31); }},
    {"lane_missing", 1, 128, 0, true, other},
    {"lane_returned", 1, 128, 0, true, other},
    {"lanes_in_different_operations", 1, 128, 0, true, same},
    {"copy_wait_missing", 1, 512, 2048, true, same},
    {"copy_waited_for_too_few", 1, 512, 2048, true, same},
    {"copy_without_a_barrier", 1, 512, 2048, true, [](u32 i, u32) { return (float)(4 * (127 - i)); }},
    {"copy_misaligned", 1, 512, 2048, true, [](u32 i, u32) { return (float)(4 * i); }},
    {"copy_outside_shared_memory", 1, 512, 2048, true, [](u32 i, u32) { return (float)(4 * i); }},
    {"copy_reads_too_much", 1, 510, 2048, true, [](u32 i, u32) { return i == 127 ? 0.0f : (float)(4 * i + 3); }},
    {"read_outside_memory", 1, 128, 0, true, [](u32 i, u32) { return i == 127 ? 0.0f : (float)(i + 1); }},
    {"write_outside_memory", 1, 128, 0, true, same},
    {"write_before_memory", 1, 128, 0, true, same},
    {"read_outside_shared_memory", 1, 128, 512, true, [](u32 i, u32) { return i == 127 ? 0.0f : (float)(i + 1); }},
    {"write_outside_shared_memory", 1, 128, 512, true, same},
    {"shared_memory_not_initialised", 1, 128, 512, true, same},
    {"output_not_written", 1, 128, 0, true, same},
    {"no_memory_there", 1, 128, 0, true, same},
    {"load_misaligned", 1, 128, 512, true, same},
    {"matrix_row_misaligned", 1, 128, 512, true, same},
    {"blocks_in_a_chain", 4, 512, 0, false, same},
};

// ---- running a test in a process of its own ----

void failed(const char* file, int line, const char* what) {
    fprintf(stderr, "%s line %d: %s\n", file, line, what);
    _exit(1);
}

// Whether the test came to its end with everything as expected. What it said is kept in `said`.
template <class Test> bool passes(Test test, std::vector<char>& said) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        test();
        _exit(0);
    }
    close(ends[1]);
    said.clear();
    char part[4096];
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) said.insert(said.end(), part, part + n);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Session::Session() {
    EXPECT(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    EXPECT(cuModuleLoadData(&module, "ADAROLL-EMULATOR selftest") == 0 && cuStreamCreate(&stream, 1) == 0);
}
void* Session::function(const char* name) const {
    void* f = nullptr;
    EXPECT(cuModuleGetFunction(&f, module, name) == 0);
    return f;
}
CUdeviceptr Session::memory(size_t bytes) const {
    CUdeviceptr at = 0;
    EXPECT(cuMemAlloc_v2(&at, bytes) == 0);
    return at;
}
void* Session::pinned_bytes(size_t bytes) const {
    void* at = nullptr;
    EXPECT(cuMemHostAlloc(&at, bytes, 0) == 0);
    return at;
}

void run_twin(const Bug& bug, bool with_bug, unsigned order) {
    adaroll_emulator_order(order);
    const Session session;
    const u32 outputs = bug.blocks * THREADS_A_BLOCK;
    std::vector<float> in(bug.inputs), got(outputs);
    for (u32 i = 0; i < bug.inputs; i++) in[i] = (float)i;
    CUdeviceptr to = session.memory(outputs * 4), from = session.memory(bug.inputs * 4);
    EXPECT(cuMemcpyHtoDAsync_v2(from, in.data(), bug.inputs * 4, session.stream) == 0);
    char name[100];
    snprintf(name, sizeof name, "%s_%s", bug.name, with_bug ? "bug" : "right");
    void* parameters[] = {&to, &from};
    EXPECT(cuLaunchKernel(session.function(name), bug.blocks, 1, 1, THREADS_A_BLOCK, 1, 1, bug.shared, session.stream, parameters, nullptr) == 0);
    EXPECT(cuMemcpyDtoHAsync_v2(got.data(), to, outputs * 4, session.stream) == 0);
    for (u32 i = 0; i < outputs; i++) EXPECT(got[i] == bug.expected(i, bug.inputs));
    EXPECT(cuMemFree_v2(to) == 0 && cuMemFree_v2(from) == 0);
}

// ---- layouts ----

// c[16][8] = a[16][16] b[8][16]^T with fragments that each lane takes from memory by the table of the PTX manual.
KERNEL(product_by_the_manual)(float* c, const bf16* a, const bf16* b) {
    const u32 g = LANE / 4, t = LANE % 4;
    const auto pair = [](const bf16* at) { return (u32)at[0] | (u32)at[1] << 16; };
    const u32 fragment[4] = {pair(a + g * 16 + 2 * t), pair(a + (g + 8) * 16 + 2 * t), pair(a + g * 16 + 2 * t + 8), pair(a + (g + 8) * 16 + 2 * t + 8)};
    float d[4] = {1, 2, 3, 4};
    multiply_add(d, fragment, pair(b + g * 16 + 2 * t), pair(b + g * 16 + 2 * t + 8));
    c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1], c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];
}
EXPORT(product_by_the_manual)

// out[lane][8]: what both kinds of load_matrix give of a 32 x 8 matrix that holds 0, 1, 2, ...
KERNEL(matrices)(u32* out) {
    SHARED_BYTES(memory);
    for (u32 i = 0; i < 8; i++) ((bf16*)memory)[LANE * 8 + i] = (bf16)(LANE * 8 + i);
    warp_sync();
    u32 plain[4], transposed[4];
    load_matrix(plain, memory + 16 * LANE);
    load_matrix_transposed(transposed, memory + 16 * LANE);
    for (u32 i = 0; i < 4; i++) out[LANE * 8 + i] = plain[i], out[LANE * 8 + 4 + i] = transposed[i];
}
EXPORT(matrices)

KERNEL(words)(u64* out) {
    out[LANE * 6] = warp_xor((u64)LANE << 40, 5) >> 40;
    out[LANE * 6 + 1] = warp_up(LANE, 3);
    out[LANE * 6 + 2] = warp_from(LANE, 35);
    out[LANE * 6 + 3] = warp_ballot(LANE % 3 == 0);
    out[LANE * 6 + 4] = (u64)warp_xor((double)LANE, 16);
    out[LANE * 6 + 5] = (u64)warp_sum(LANE);
}
EXPORT(words)

void layouts(unsigned order) {
    adaroll_emulator_order(order);
    alignas(16) static bf16 a[256], b[128];
    static float c[128];
    for (u32 i = 0; i < 256; i++) a[i] = f32_bf16((float)((int)(i * 37 % 101) - 50) * 0.37f);
    for (u32 i = 0; i < 128; i++) b[i] = f32_bf16((float)((int)(i * 53 % 89) - 40) * 0.53f);
    float* c_at = c;
    const bf16 *a_at = a, *b_at = b;
    void* product_parameters[] = {&c_at, &a_at, &b_at};
    EXPECT(emulator::launch("product_by_the_manual", {1, 1, 1}, {32, 1, 1}, 0, product_parameters));
    for (u32 row = 0; row < 16; row++) {
        for (u32 col = 0; col < 8; col++) {
            float sum = (float)(1 + col % 2 + row / 8 * 2);
            for (u32 k = 0; k < 16; k++) sum += bf16_f32(a[row * 16 + k]) * bf16_f32(b[col * 16 + k]);
            EXPECT(c[row * 8 + col] == sum);
        }
    }

    static u32 got[256];
    u32* got_at = got;
    void* matrix_parameters[] = {&got_at};
    EXPECT(emulator::launch("matrices", {1, 1, 1}, {32, 1, 1}, 512, matrix_parameters));
    for (u32 lane = 0; lane < 32; lane++) {
        for (u32 j = 0; j < 4; j++) {
            const u32 row = lane / 4, col = 2 * (lane % 4);
            const auto at = [j](u32 r, u32 c) { return (8 * j + r) * 8 + c; };
            EXPECT(got[lane * 8 + j] == (at(row, col) | at(row, col + 1) << 16));
            EXPECT(got[lane * 8 + 4 + j] == (at(col, row) | at(col + 1, row) << 16));
        }
    }

    static u64 words[192];
    u64* words_at = words;
    void* word_parameters[] = {&words_at};
    EXPECT(emulator::launch("words", {1, 1, 1}, {32, 1, 1}, 0, word_parameters));
    for (u32 lane = 0; lane < 32; lane++) {
        const u64* const w = words + lane * 6;
        EXPECT(w[0] == (lane ^ 5) && w[1] == (lane < 3 ? lane : lane - 3) && w[2] == 3);
        EXPECT(w[3] == 0x49249249u && w[4] == (lane ^ 16) && w[5] == 496);
    }
}

// ---- speed ----

KERNEL(many_multiplications)(float* out, u32 rounds) {
    float sums[8][4] = {};
    const u32 a[4] = {0x3f803f80u, 0, 0x3f80u, 0};
    for (u32 round = 0; round < rounds; round++) {
        for (float(&d)[4] : sums) multiply_add(d, a, 0x3f803f80u, 0x3f80u);
    }
    out[THREAD] = sums[0][0] + sums[7][3];
}
EXPORT(many_multiplications)

KERNEL(many_meetings)(float* out, u32 rounds) {
    for (u32 round = 0; round < rounds; round++) warp_sync();
    out[THREAD] = 1.0f;
}
EXPORT(many_meetings)

KERNEL(many_barriers)(float* out, u32 rounds) {
    for (u32 round = 0; round < rounds; round++) block_sync();
    out[THREAD] = 1.0f;
}
EXPORT(many_barriers)

void speed(const char* name, u32 threads, u32 rounds, double each, const char* what) {
    static float out[1024];
    float* at = out;
    void* parameters[] = {&at, &rounds};
    double best = 1e30;
    unsigned long long switches = 0;
    // The fastest of several: other processes take time, and never give any.
    for (int i = 0; i < 5; i++) {
        timespec begin, end;
        const unsigned long long before = emulator::work().switches;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        if (!emulator::launch(name, {1, 1, 1}, {threads, 1, 1}, 0, parameters)) exit(1);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        const double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
        if (seconds < best) best = seconds;
        switches = emulator::work().switches - before;
    }
    printf("%-38s %8.1f ns   %6.1f million switches/s\n", what, best / each * 1e9, (double)switches / best / 1e6);
}

// ---- all ----

// The program's main is in another file: the tests are built into the library, as kernels are, and so run in what programs load.
__attribute__((visibility("default"))) int selftest(int count, char** arguments) {
    if (count == 2 && strcmp(arguments[1], "speed") == 0) {
        speed("many_multiplications", 128, 2500, 8 * 4 * 2500, "a multiplication of a warp");
        speed("many_meetings", 32, 100000, 100000, "a meeting of a warp");
        speed("many_barriers", 256, 10000, 10000, "a barrier of 256 threads");
        return 0;
    }
    constexpr unsigned ORDERS[] = {0, 1, 7};
    u32 bad = 0, tests = 0;
    std::vector<char> said;
    if (count == 2 && strcmp(arguments[1], "bugs") == 0) {
        for (const Bug& bug : BUGS) {
            passes([&] { run_twin(bug, true, ORDERS[0]); }, said);
            printf("---- %s\n%.*s", bug.name, (int)said.size(), said.data());
        }
        return 0;
    }
    const auto complain = [&](const char* name, const char* what) {
        bad++;
        printf("FAILED %s: %s\n%.*s", name, what, (int)said.size(), said.data());
    };

    for (const Bug& bug : BUGS) {
        u32 seen = 0;
        for (unsigned order : ORDERS) {
            tests += 2;
            if (!passes([&] { run_twin(bug, false, order); }, said)) complain(bug.name, "the right twin is not clean");
            if (!passes([&] { run_twin(bug, true, order); }, said)) seen++;
        }
        if (seen < (bug.in_every_order ? 3u : 1u)) complain(bug.name, "the bug was not seen");
    }
    for (unsigned order : ORDERS) {
        tests++;
        if (!passes([&] { layouts(order); }, said)) complain("layouts", "wrong");
    }
    std::vector<DriverTest> all(DRIVER_TESTS, DRIVER_TESTS + DRIVER_TEST_COUNT);
    all.insert(all.end(), PROCESS_TESTS, PROCESS_TESTS + PROCESS_TEST_COUNT);
    all.insert(all.end(), PRODUCT_TESTS, PRODUCT_TESTS + PRODUCT_TEST_COUNT);
    for (const DriverTest& test : all) {
        tests++;
        const bool passed = passes(
            [&] {
                if (test.variable != nullptr) setenv(test.variable, test.value, 1);
                test.run();
            },
            said);
        if (passed == (SANITIZED && test.ends_in_sanitizer)) complain(test.name, passed ? "no sanitizer saw it" : "wrong");
    }
    printf("%u runs, %u failures\n", tests, bad);
    return bad > 0;
}
