// Self-tests of the fake cuBLASLt, against its C interface: it multiplies what it is given, in its stream; it refuses what is wrong; and each of its
// algorithms has the fault that its name says, and no other.
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common.cuh"
#include "selftest.h"

namespace {

enum { INVALID_VALUE = 7, EXECUTION_FAILED = 13, UNSUPPORTED = 15, ILLEGAL_ADDRESS = 700 };
enum { FLOAT32 = 0, FLOAT16 = 2, BFLOAT16 = 14, COMPUTE_FLOAT32 = 68, COMPUTE_FLOAT64 = 70 };
enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, TYPE = 0, ORDER = 1, ROWS = 2, COLS = 3, STRIDE = 4, MAX_WORKSPACE = 1, ALIGNMENT_A = 5 };
enum { SPLITK_NUM = 2, REDUCTION_SCHEME = 3 };
enum { LAUNCHES = 0 };
constexpr unsigned char PATTERN = 0xff;

struct Algorithm {
    u64 data[8];
};
struct Result {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

template <class T> struct Function;
template <class... Types> struct Function<int(Types...)> {
    int (*function)(Types...);
    explicit Function(const char* name) {
        void* const library = dlopen("libcublasLt.so", RTLD_NOW);
        EXPECT(library != nullptr);
        function = (int (*)(Types...))dlsym(library, name);
        EXPECT(function != nullptr);
    }
    int operator()(Types... arguments) const { return function(arguments...); }
};

struct Lt {
    Function<int(void**)> create{"cublasLtCreate"};
    Function<int(void*)> destroy{"cublasLtDestroy"};
    Function<int(void**, int, int)> operation{"cublasLtMatmulDescCreate"};
    Function<int(void*)> destroy_operation{"cublasLtMatmulDescDestroy"};
    Function<int(void*, int, const void*, size_t)> set_operation{"cublasLtMatmulDescSetAttribute"};
    Function<int(void**, int, u64, u64, int64_t)> layout{"cublasLtMatrixLayoutCreate"};
    Function<int(void*)> destroy_layout{"cublasLtMatrixLayoutDestroy"};
    Function<int(void*, int, const void*, size_t)> set_layout{"cublasLtMatrixLayoutSetAttribute"};
    Function<int(void**)> preference{"cublasLtMatmulPreferenceCreate"};
    Function<int(void*)> destroy_preference{"cublasLtMatmulPreferenceDestroy"};
    Function<int(void*, int, const void*, size_t)> set_preference{"cublasLtMatmulPreferenceSetAttribute"};
    Function<int(void*, void*, void*, void*, void*, void*, void*, int, Result*, int*)> heuristic{"cublasLtMatmulAlgoGetHeuristic"};
    Function<int(void*, void*, void*, void*, void*, void*, const Algorithm*, Result*)> check{"cublasLtMatmulAlgoCheck"};
    Function<int(const Algorithm*, int, void*, size_t, size_t*)> config{"cublasLtMatmulAlgoConfigGetAttribute"};
    Function<int(void*, void*, const void*, CUdeviceptr, void*, CUdeviceptr, void*, const void*, CUdeviceptr, void*, CUdeviceptr, void*,
                 const Algorithm*, CUdeviceptr, size_t, void*)>
        matmul{"cublasLtMatmul"};
};

size_t padded(size_t values) { return (values + 7) / 8 * 8; }

// One product of numbers of a seed: D[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C.
struct Product {
    const Session& session;
    Lt lt;
    size_t m, n, k;
    bool transposed_a, transposed_b, wide;
    void *library, *operation, *a, *b, *d, *preference;
    std::vector<bf16> a_values, b_values;
    CUdeviceptr a_at, b_at, d_at;
    float alpha = 1.0f, beta = 0.0f;

    size_t a_rows() const { return transposed_a ? k : m; }
    size_t b_rows() const { return transposed_b ? n : k; }
    size_t a_cols() const { return transposed_a ? m : k; }
    size_t b_cols() const { return transposed_b ? k : n; }
    size_t d_bytes() const { return padded(m) * n * (wide ? 4 : 2); }

    Product(const Session& session, size_t m, size_t n, size_t k, bool wide, bool transposed_a = true, bool transposed_b = false)
        : session(session), m(m), n(n), k(k), transposed_a(transposed_a), transposed_b(transposed_b), wide(wide) {
        EXPECT(lt.create(&library) == 0 && lt.operation(&operation, COMPUTE_FLOAT32, FLOAT32) == 0 && lt.preference(&preference) == 0);
        const int32_t ta = transposed_a, tb = transposed_b;
        EXPECT(lt.set_operation(operation, TRANSA, &ta, 4) == 0 && lt.set_operation(operation, TRANSB, &tb, 4) == 0);
        EXPECT(lt.layout(&a, BFLOAT16, a_rows(), a_cols(), (int64_t)padded(a_rows())) == 0);
        EXPECT(lt.layout(&b, BFLOAT16, b_rows(), b_cols(), (int64_t)padded(b_rows())) == 0);
        EXPECT(lt.layout(&d, wide ? FLOAT32 : BFLOAT16, m, n, (int64_t)padded(m)) == 0);
        u32 state = 1;
        const auto fill = [&](std::vector<bf16>& values, size_t count) {
            values.resize(count);
            for (bf16& value : values) value = f32_bf16((float)((state = state * 1664525 + 1013904223) >> 8) / (float)(1 << 23) - 1.0f);
        };
        fill(a_values, padded(a_rows()) * a_cols());
        fill(b_values, padded(b_rows()) * b_cols());
        a_at = session.memory(2 * a_values.size());
        b_at = session.memory(2 * b_values.size());
        d_at = session.memory(d_bytes());
        EXPECT(cuMemcpyHtoDAsync_v2(a_at, a_values.data(), 2 * a_values.size(), session.stream) == 0);
        EXPECT(cuMemcpyHtoDAsync_v2(b_at, b_values.data(), 2 * b_values.size(), session.stream) == 0);
        EXPECT(cuMemsetD8Async(d_at, PATTERN, d_bytes(), session.stream) == 0 && cuStreamSynchronize(session.stream) == 0);
    }

    std::vector<Result> proposed(int asked = 16) const {
        std::vector<Result> results((size_t)asked);
        int count = -1;
        EXPECT(lt.heuristic(library, operation, a, b, d, d, preference, asked, results.data(), &count) == 0 && count >= 0 && count <= asked);
        results.resize((size_t)count);
        return results;
    }
    Algorithm only() const {
        const auto all = proposed();
        EXPECT(all.size() == 1);
        return all[0].algorithm;
    }
    int check(const Algorithm& algorithm) const {
        Result result;
        return lt.check(library, operation, a, b, d, d, &algorithm, &result);
    }
    int start(const Algorithm& algorithm) const {
        return lt.matmul(library, operation, &alpha, a_at, a, b_at, b, &beta, d_at, d, d_at, d, &algorithm, 0, 0, session.stream);
    }
    void set_cols(u64 cols) {
        EXPECT(lt.set_layout(b, COLS, &cols, 8) == 0 && lt.set_layout(d, COLS, &cols, 8) == 0);
        n = cols;
    }
    std::vector<unsigned char> bytes() const {
        std::vector<unsigned char> got(d_bytes());
        EXPECT(cuMemcpyDtoHAsync_v2(got.data(), d_at, got.size(), session.stream) == 0);
        return got;
    }
    // A value of D.
    float value(const std::vector<unsigned char>& bytes, size_t row, size_t col) const {
        const size_t at = col * padded(m) + row;
        return wide ? ((const float*)bytes.data())[at] : bf16_f32(((const bf16*)bytes.data())[at]);
    }
    double exact(size_t row, size_t col) const {
        double sum = 0;
        for (size_t l = 0; l < k; l++) {
            const size_t at_a = transposed_a ? row * padded(k) + l : l * padded(m) + row;
            const size_t at_b = transposed_b ? l * padded(n) + col : col * padded(k) + l;
            sum += (double)bf16_f32(a_values[at_a]) * (double)bf16_f32(b_values[at_b]);
        }
        return sum;
    }
    // Whether these bytes are the product, with nothing written between its columns.
    bool is_right(const std::vector<unsigned char>& bytes) const {
        for (size_t col = 0; col < n; col++) {
            for (size_t row = 0; row < m; row++) {
                const double want = exact(row, col), far = std::fabs((double)value(bytes, row, col) - want);
                if (!(far <= 1e-5 * (double)k + (wide ? 0.0 : std::fabs(want) / 256))) return false;
            }
            for (size_t at = (col * padded(m) + m) * (wide ? 4 : 2); at < (col + 1) * padded(m) * (wide ? 4 : 2); at++) {
                if (bytes[at] != PATTERN) return false;
            }
        }
        return true;
    }
    // The bits of a column when D has so many of them.
    std::vector<unsigned char> column(const Algorithm& algorithm, u64 cols, size_t col) {
        set_cols(cols);
        EXPECT(start(algorithm) == 0);
        const size_t width = padded(m) * (wide ? 4 : 2);
        const auto all = bytes();
        return std::vector<unsigned char>(all.begin() + (long)(col * width), all.begin() + (long)((col + 1) * width));
    }
};

struct Sizes {
    size_t m, n, k;
};

void products_are_right_and_late() {
    const Session s;
    unsigned long long started = 0;
    for (bool wide : {false, true}) {
        for (bool transposed_a : {false, true}) {
            for (bool transposed_b : {false, true}) {
                for (const auto& [m, n, k] : {Sizes{7, 5, 17}, {64, 3, 8}, {1, 1, 1}, {33, 70, 130}}) {
                    const Product p(s, m, n, k, wide, transposed_a, transposed_b);
                    EXPECT(p.start(p.only()) == 0 && adaroll_emulator_count(LAUNCHES) == started);
                    EXPECT(p.is_right(p.bytes()) && adaroll_emulator_count(LAUNCHES) == ++started);
                }
            }
        }
    }
}

void factors_are_those_of_the_call() {
    const Session s;
    Product p(s, 9, 6, 24, true);
    const Algorithm sound = p.only();
    EXPECT(p.start(sound) == 0);
    const auto once = p.bytes();
    p.alpha = 2.0f;
    p.beta = 3.0f;
    EXPECT(p.start(sound) == 0);
    p.alpha = p.beta = 0.0f;
    const auto again = p.bytes();
    for (size_t row = 0; row < p.m; row++) EXPECT(std::fabs(p.value(again, row, 2) - 5.0f * p.value(once, row, 2)) < 1e-4f);
}

void a_captured_product_is_part_of_the_graph() {
    const Session s;
    Product p(s, 9, 6, 24, false);
    const Algorithm sound = p.only();
    void *graph = nullptr, *instance = nullptr;
    EXPECT(cuStreamBeginCapture_v2(s.stream, 1) == 0 && p.start(sound) == 0 && cuStreamEndCapture(s.stream, &graph) == 0);
    EXPECT(cuGraphInstantiateWithFlags(&instance, graph, 0) == 0 && cuGraphDestroy(graph) == 0);
    EXPECT(adaroll_emulator_count(LAUNCHES) == 0 && !p.is_right(p.bytes()));
    // The graph keeps what it needs; the values are those of the card when it runs.
    EXPECT(p.lt.destroy_layout(p.a) == 0 && cuGraphLaunch(instance, s.stream) == 0 && p.is_right(p.bytes()));
    for (bf16& value : p.b_values) value ^= 0x8000;
    EXPECT(cuMemcpyHtoDAsync_v2(p.b_at, p.b_values.data(), 2 * p.b_values.size(), s.stream) == 0 && !p.is_right(p.bytes()));
    EXPECT(cuGraphLaunch(instance, s.stream) == 0 && p.is_right(p.bytes()) && adaroll_emulator_count(LAUNCHES) == 2);
}

void what_is_wrong_is_refused() {
    const Session s;
    Product p(s, 16, 8, 32, false);
    const Lt& lt = p.lt;
    const Algorithm sound = p.only();
    const auto refused = [&](int status) { return p.start(sound) == status && p.check(sound) == status; };
    const auto with = [&](void* layout, int attribute, int64_t value, int64_t before, int status) {
        const size_t bytes = attribute == TYPE || attribute == ORDER ? 4 : 8;
        return lt.set_layout(layout, attribute, &value, bytes) == 0 && refused(status) && lt.set_layout(layout, attribute, &before, bytes) == 0;
    };
    EXPECT(with(p.a, ROWS, 31, 32, INVALID_VALUE) && with(p.b, COLS, 7, 8, INVALID_VALUE) && with(p.d, COLS, 9, 8, INVALID_VALUE));
    EXPECT(with(p.a, STRIDE, 31, 32, INVALID_VALUE) && with(p.d, STRIDE, 8, 16, INVALID_VALUE) && with(p.b, COLS, 0, 8, INVALID_VALUE));
    EXPECT(with(p.b, STRIDE, 33, 32, UNSUPPORTED));
    EXPECT(with(p.a, TYPE, FLOAT16, BFLOAT16, UNSUPPORTED) && with(p.d, TYPE, FLOAT16, BFLOAT16, UNSUPPORTED));
    const int32_t by_rows = 1, conjugated = 2, columns = 8, compute = COMPUTE_FLOAT64, before = COMPUTE_FLOAT32;
    EXPECT(lt.set_layout(p.a, ORDER, &by_rows, 4) == UNSUPPORTED && lt.set_layout(p.a, COLS, &columns, 4) == INVALID_VALUE);
    EXPECT(lt.set_operation(p.operation, TRANSA, &conjugated, 4) == UNSUPPORTED);
    EXPECT(lt.set_operation(p.operation, EPILOGUE, &columns, 4) == UNSUPPORTED);
    EXPECT(lt.set_operation(p.operation, 0, &compute, 4) == 0 && refused(UNSUPPORTED) && lt.set_operation(p.operation, 0, &before, 4) == 0);
    const u32 small = 8;
    Result result;
    int count = -1;
    const auto heuristic = [&] { return lt.heuristic(p.library, p.operation, p.a, p.b, p.d, p.d, p.preference, 1, &result, &count); };
    EXPECT(heuristic() == 0 && count == 1);
    EXPECT(lt.set_preference(p.preference, ALIGNMENT_A, &small, 4) == 0 && heuristic() == UNSUPPORTED && count == 0);

    Algorithm other = sound;
    other.data[3] ^= 1;
    EXPECT(p.start(other) == INVALID_VALUE && p.check(other) == INVALID_VALUE);
    const CUdeviceptr d_at = p.d_at, a_at = p.a_at;
    p.d_at += 2;
    EXPECT(p.start(sound) == INVALID_VALUE);
    p.d_at = d_at;
    p.a_at = 0;
    EXPECT(p.start(sound) == INVALID_VALUE);
    p.a_at = a_at;
    EXPECT(lt.matmul(p.library, p.operation, &p.alpha, p.a_at, p.a, p.b_at, p.b, &p.beta, p.d_at, p.d, p.d_at, p.d, nullptr, 0, 0, s.stream) ==
           UNSUPPORTED);
    EXPECT(adaroll_emulator_count(LAUNCHES) == 0 && p.start(sound) == 0 && p.is_right(p.bytes()));
    EXPECT(lt.destroy_layout(p.a) == 0 && lt.destroy_layout(p.a) == INVALID_VALUE && refused(INVALID_VALUE));
    EXPECT(lt.destroy_operation(p.operation) == 0 && lt.destroy_preference(p.preference) == 0 && lt.destroy(p.library) == 0);
    EXPECT(p.start(sound) == INVALID_VALUE);
}

void memory_that_is_none_of_the_cards_is_an_error_of_the_card() {
    const Session s;
    Product p(s, 16, 8, 32, false);
    const Algorithm sound = p.only();
    // The last column lies beyond its memory.
    p.set_cols(9);
    EXPECT(p.start(sound) == 0 && cuStreamSynchronize(s.stream) == ILLEGAL_ADDRESS && p.start(sound) == EXECUTION_FAILED);
}

void a_lost_card_multiplies_no_more() {
    setenv("ADAROLL_EMULATOR_CUBLASLT", "sound", 1);
    const Session s;
    const Product p(s, 16, 8, 32, false);
    const Algorithm sound = p.only();
    EXPECT(p.start(sound) == 0 && p.is_right(p.bytes()));
    EXPECT(p.start(sound) == 0 && cuStreamSynchronize(s.stream) == ILLEGAL_ADDRESS && p.start(sound) == EXECUTION_FAILED);
}

void algorithms_have_the_faults_of_their_names() {
    const Session s;
    enum { VARYING, POSITION, WRONG, SPLIT, REDUCTION, NEEDS_WORKSPACE, STATE, SMALL, REFUSING, SOUND, ALL };
    Product p(s, 40, 100, 136, true);
    const auto all = p.proposed();
    EXPECT(all.size() == ALL);
    EXPECT(p.proposed(3).size() == 3 && memcmp(&all[2].algorithm, &p.proposed(3)[2].algorithm, sizeof(Algorithm)) == 0);
    for (int i = 0; i < ALL; i++) {
        const Algorithm& algorithm = all[(size_t)i].algorithm;
        u32 blocks = 0, scheme = 9;
        size_t written = 0;
        EXPECT(p.lt.config(&algorithm, SPLITK_NUM, &blocks, 4, &written) == 0 && written == 4 && blocks == (i == SPLIT ? 2u : 1u));
        EXPECT(p.lt.config(&algorithm, REDUCTION_SCHEME, &scheme, 4, &written) == 0 && (scheme != 0) == (i == REDUCTION));
        EXPECT((all[(size_t)i].workspace > 0) == (i == NEEDS_WORKSPACE) && (all[(size_t)i].state != 0) == (i == STATE));
        EXPECT(p.check(algorithm) == 0);
        const int status = p.start(algorithm);
        EXPECT(status == (i == REFUSING ? UNSUPPORTED : i == NEEDS_WORKSPACE ? INVALID_VALUE : 0));
        if (status == 0) EXPECT(p.is_right(p.bytes()) == (i != WRONG));
    }
    const auto bits = [&](int i, u64 cols, size_t col) { return p.column(all[(size_t)i].algorithm, cols, col); };
    for (size_t col : {0, 1, 15}) {
        const auto sound = bits(SOUND, 100, col), other = bits(VARYING, 16, col);
        for (u64 cols : {16, 64, 99}) EXPECT(bits(SOUND, cols, col) == sound);
        EXPECT(other != sound && bits(VARYING, 17, col) == sound && bits(VARYING, 100, col) == sound);
        for (u64 cols : {16, 100}) EXPECT(bits(POSITION, cols, col) == (col % 2 == 1 ? other : sound));
    }
    Product large(s, 8, 101, 16, true);
    const Algorithm& small = all[SMALL].algorithm;
    EXPECT(large.proposed().size() == ALL - 1 && large.check(small) == UNSUPPORTED && large.start(small) == UNSUPPORTED);
    setenv("ADAROLL_EMULATOR_CUBLASLT", "sound,quick", 1);
    Result result;
    int count = -1;
    EXPECT(p.lt.heuristic(p.library, p.operation, p.a, p.b, p.d, p.d, p.preference, 1, &result, &count) == INVALID_VALUE && count == 0);
}

}  // namespace

#define TEST(name, ...) {#name, name, __VA_ARGS__}
#define SOUND_TEST(name) TEST(name, "ADAROLL_EMULATOR_CUBLASLT", "sound", false)
const DriverTest PRODUCT_TESTS[] = {
    SOUND_TEST(products_are_right_and_late),
    SOUND_TEST(factors_are_those_of_the_call),
    SOUND_TEST(a_captured_product_is_part_of_the_graph),
    SOUND_TEST(what_is_wrong_is_refused),
    SOUND_TEST(memory_that_is_none_of_the_cards_is_an_error_of_the_card),
    TEST(a_lost_card_multiplies_no_more, "ADAROLL_EMULATOR_LOSE_AFTER", "1", false),
    TEST(algorithms_have_the_faults_of_their_names, "ADAROLL_EMULATOR_CUBLASLT",
         "varying,position,wrong,split,reduction,workspace,state,small,refusing,sound", false),
};
const size_t PRODUCT_TEST_COUNT = sizeof PRODUCT_TESTS / sizeof *PRODUCT_TESTS;
