// A fake cuBLASLt: matrix products of bf16 for the fake driver. It is a library of its own, libcublasLt.so.13, in a folder of its own.
//
// D = alpha op(A) op(B) + beta C in columns, as the real one has it, with sums in f32 and one rounding at the end. It does what cublaslt.rs asks for:
// types bf16 (A, B) and bf16 or f32 (C, D), matrices by columns, memory and leading dimensions on boundaries of 16 bytes. Whatever else is asked is
// refused, and said where it would be a mistake.
//
// A product runs in its stream, as a kernel does, or whenever the graph does that the stream captures; the driver keeps a copy of what it needs.
//
// Its algorithms are its own, one sound and most of them traps. ADAROLL_EMULATOR_CUBLASLT names the ones that it proposes, its favourite first
// ("varying,wrong,split,sound"):
//
// sound       a row has the same bits in any company: eight sums, of every eighth product each, added in pairs at the end
// varying     one sum after the other instead, for some numbers of columns of D
// position    the same for every second column of D
// wrong       forgets the last eight products of a sum
// split       says that two blocks share a sum
// reduction   says that sums are reduced afterwards
// workspace   says that it needs 1024 bytes of workspace
// state       says that it is not supported, where it is proposed
// small       takes at most 100 columns of D
// refusing    says that it takes everything, and then takes nothing
//
// The limits of a preference are for it to read and not to keep: split, reduction and workspace are proposed all the same.
#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

// Opaque to whoever uses the library, but of this size.
struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    int state;
    float wavesCount;
    int reserved[4];
};
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "as in cublasLt.h");

namespace {

// Values of cublasStatus_t.
enum Status : int { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
// Values of cudaDataType_t and cublasComputeType_t.
constexpr int32_t FLOAT32 = 0, BFLOAT16 = 14, COMPUTE_FLOAT32 = 68;
// Values of cublasOperation_t.
constexpr int32_t AS_IT_IS = 0, TRANSPOSED = 1;

constexpr size_t VERSION = 130000, ALIGNMENT = 16, WORKSPACE = 1024;
constexpr uint64_t MOST_COLS_OF_SMALL = 100, FORGOTTEN = 8;

// A mistake of the caller's, said.
Status invalid(const char* format, ...) __attribute__((format(printf, 1, 2)));
Status invalid(const char* format, ...) {
    char words[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    fprintf(stderr, "emulator: cuBLASLt: %s\n", words);
    return INVALID_VALUE;
}

// ---- the driver ----

struct Driver {
    int (*get_context)(void**);
    int (*call)(int (*)(const void*), const void*, size_t, void*);
    int (*holds)(const void*, size_t);
    bool found = false;

    Driver() {
        // The one that the process uses, however it was loaded. Only the emulator's will do.
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        const auto find = [&](auto& function, const char* name) {
            function = library != nullptr ? (std::remove_reference_t<decltype(function)>)dlsym(library, name) : nullptr;
            return function != nullptr;
        };
        found = find(get_context, "cuCtxGetCurrent") && find(call, "adaroll_emulator_call") && find(holds, "adaroll_emulator_holds");
    }
};
const Driver& driver() {
    static const Driver& it = *new Driver;
    return it;
}

// ---- what has handles ----

struct Library {};
struct Operation {
    int32_t compute, scale;
    int32_t a = AS_IT_IS, b = AS_IT_IS;
};
struct Layout {
    uint32_t type;
    uint64_t rows, cols;
    int64_t stride;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t reductions = 0, alignments[4] = {256, 256, 256, 256};
};

std::mutex tables;

// Things by their addresses, which are the handles.
template <class T> struct Handles {
    std::map<void*, T> all;

    Status add(void** out, const T& thing) {
        if (out == nullptr) return invalid("nowhere to put a handle");
        // One byte, whose address nothing else has while it lives.
        void* const handle = malloc(1);
        std::lock_guard<std::mutex> lock(tables);
        all.emplace(handle, thing);
        *out = handle;
        return SUCCESS;
    }
    bool find(void* handle, T& thing) {
        std::lock_guard<std::mutex> lock(tables);
        const auto at = all.find(handle);
        if (at == all.end()) return false;
        thing = at->second;
        return true;
    }
    void set(void* handle, const T& thing) {
        std::lock_guard<std::mutex> lock(tables);
        const auto at = all.find(handle);
        if (at != all.end()) at->second = thing;
    }
    Status remove(void* handle, const char* what) {
        std::lock_guard<std::mutex> lock(tables);
        if (all.erase(handle) == 0) return invalid("there is no such %s to destroy", what);
        free(handle);
        return SUCCESS;
    }
};
// Never destroyed: threads may still call while the process ends.
Handles<Library>& libraries = *new Handles<Library>;
Handles<Operation>& operations = *new Handles<Operation>;
Handles<Layout>& layouts = *new Handles<Layout>;
Handles<Preference>& preferences = *new Handles<Preference>;

// Reads the value of an attribute, which must have its very size.
template <class T> Status read(T& to, const void* from, size_t bytes, const char* what) {
    if (from == nullptr || bytes != sizeof to) return invalid("%s has %zu bytes and not %zu", what, sizeof to, bytes);
    memcpy(&to, from, sizeof to);
    return SUCCESS;
}

// ---- algorithms ----

enum Kind : uint64_t { SOUND, VARYING, POSITION, WRONG, SPLIT, REDUCTION, NEEDS_WORKSPACE, STATE, SMALL, REFUSING, KINDS };
const char* const NAMES[KINDS] = {"sound", "varying", "position", "wrong", "split", "reduction", "workspace", "state", "small", "refusing"};

// The first word of an algorithm that was made here.
constexpr uint64_t MADE_HERE = 0x6c745f6164617231;

// Its bytes are its value, the same whatever it was proposed for.
cublasLtMatmulAlgo_t algorithm_of(Kind kind) { return {{MADE_HERE, kind, 0, 0, 0, 0, 0, ~MADE_HERE}}; }

bool is_known(const cublasLtMatmulAlgo_t* algorithm, Kind& kind) {
    if (algorithm == nullptr || algorithm->data[1] >= KINDS) return false;
    kind = (Kind)algorithm->data[1];
    const cublasLtMatmulAlgo_t same = algorithm_of(kind);
    return memcmp(algorithm, &same, sizeof same) == 0;
}

// The algorithms that are to be proposed, in their order; false where a name is none.
bool candidates(std::vector<Kind>& kinds) {
    const char* const text = getenv("ADAROLL_EMULATOR_CUBLASLT");
    const std::string list = text != nullptr ? text : "varying,wrong,split,sound";
    for (size_t at = 0; at < list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        const std::string name = list.substr(at, end - at);
        uint64_t kind = 0;
        while (kind < KINDS && name != NAMES[kind]) kind++;
        if (kind == KINDS) {
            invalid("ADAROLL_EMULATOR_CUBLASLT names an algorithm \"%s\", which is none", name.c_str());
            return false;
        }
        kinds.push_back((Kind)kind);
        at = end + 1;
    }
    return true;
}

// ---- products ----

// Everything that a product needs while it runs: plain bytes, which the driver copies.
struct Product {
    Kind kind;
    uint64_t rows, cols, inner;  // Of D, and of its sums.
    Layout a, b, c, d;
    bool a_transposed, b_transposed;
    const void *from_a, *from_b, *from_c;
    void* to;
    float alpha, beta;
};

size_t bytes_of(uint32_t type) { return type == FLOAT32 ? 4 : 2; }

// From the first byte of a matrix to its last.
size_t extent(const Layout& m) { return ((size_t)m.stride * (m.cols - 1) + m.rows) * bytes_of(m.type); }

float widened(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// To the nearest bf16, ties to even.
uint16_t rounded(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr uint64_t LANES = 8;
// So many sums at once take little longer than one.
constexpr uint64_t TOGETHER = 4;

// What each sum reads of op(A) or op(B), one value after the other; zeros follow up to a multiple of LANES, and more sums of zeros. `along` is how
// far two values of a sum lie apart, `across` how far two sums do.
std::vector<float> gathered(const void* from, uint64_t sums, uint64_t inner, uint64_t across, uint64_t along) {
    const uint64_t width = (inner + LANES - 1) / LANES * LANES;
    std::vector<float> all((sums + TOGETHER - 1) / TOGETHER * TOGETHER * width);
    for (uint64_t i = 0; i < sums; i++) {
        const uint16_t* const values = (const uint16_t*)from + i * across;
        for (uint64_t l = 0; l < inner; l++) all[i * width + l] = widened(values[l * along]);
    }
    return all;
}

// Sums of TOGETHER rows of `a`, which lie `width` apart, with `b`. A product of two bf16 is exact in f32, so each step here is a fused one.
void add_by_lanes(float* to, const float* a, const float* b, uint64_t width) {
    typedef float Lanes __attribute__((vector_size(4 * LANES)));
    Lanes sums[TOGETHER] = {};
    for (uint64_t l = 0; l < width; l += LANES) {
        Lanes x, y;
        memcpy(&y, b + l, sizeof y);
        for (uint64_t i = 0; i < TOGETHER; i++) {
            memcpy(&x, a + i * width + l, sizeof x);
            sums[i] += x * y;
        }
    }
    for (uint64_t i = 0; i < TOGETHER; i++) {
        const Lanes& s = sums[i];
        to[i] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

float added_in_turn(const float* a, const float* b, uint64_t inner) {
    float sum = 0.0f;
    for (uint64_t l = 0; l < inner; l++) sum += a[l] * b[l];
    return sum;
}

// Whether this algorithm adds this column of D in turn.
bool in_turn(const Product& p, uint64_t col) {
    switch (p.kind) {
    // Some of the numbers that the sweep looks at are of either kind, whatever the largest is.
    case VARYING: return (p.cols > 1 && p.cols <= 16) || p.cols > 128;
    case POSITION: return col % 2 == 1;
    default: return false;
    }
}

// Runs in the stream. Answers an error of the driver.
int compute(const void* argument) {
    constexpr int ILLEGAL_ADDRESS = 700;
    Product p;
    memcpy(&p, argument, sizeof p);
    const auto is_there = [](const void* at, const Layout& m) { return driver().holds(at, extent(m)) != 0; };
    if (!is_there(p.from_a, p.a) || !is_there(p.from_b, p.b) || !is_there(p.to, p.d) || (p.beta != 0.0f && !is_there(p.from_c, p.c))) {
        fprintf(stderr, "emulator: cuBLASLt: a product uses memory that is not the card's, or that has been freed\n");
        return ILLEGAL_ADDRESS;
    }
    const uint64_t inner = p.kind != WRONG ? p.inner : p.inner - std::min(p.inner, FORGOTTEN);
    const uint64_t a_stride = (uint64_t)p.a.stride, b_stride = (uint64_t)p.b.stride;
    const auto a = gathered(p.from_a, p.rows, inner, p.a_transposed ? a_stride : 1, p.a_transposed ? 1 : a_stride);
    const auto b = gathered(p.from_b, p.cols, inner, p.b_transposed ? 1 : b_stride, p.b_transposed ? b_stride : 1);
    const uint64_t width = (inner + LANES - 1) / LANES * LANES;
    std::vector<float> sums(p.rows + TOGETHER);
    for (uint64_t col = 0; col < p.cols; col++) {
        const float* const y = b.data() + col * width;
        if (in_turn(p, col)) {
            for (uint64_t row = 0; row < p.rows; row++) sums[row] = added_in_turn(a.data() + row * width, y, inner);
        } else {
            for (uint64_t row = 0; row < p.rows; row += TOGETHER) add_by_lanes(sums.data() + row, a.data() + row * width, y, width);
        }
        for (uint64_t row = 0; row < p.rows; row++) {
            float value = p.alpha * sums[row];
            if (p.beta != 0.0f) {
                const uint64_t at = col * (uint64_t)p.c.stride + row;
                value += p.beta * (p.c.type == FLOAT32 ? ((const float*)p.from_c)[at] : widened(((const uint16_t*)p.from_c)[at]));
            }
            const uint64_t at = col * (uint64_t)p.d.stride + row;
            if (p.d.type == FLOAT32) {
                ((float*)p.to)[at] = value;
            } else {
                ((uint16_t*)p.to)[at] = rounded(value);
            }
        }
    }
    return 0;
}

// Reads the descriptions of a product; whatever is not as it must be is refused.
Status described(Product& p, void* library, void* operation_handle, void* a, void* b, void* c, void* d) {
    Library known;
    Operation operation;
    if (!libraries.find(library, known)) return invalid("no handle of the library");
    if (!operations.find(operation_handle, operation)) return invalid("no description of an operation");
    const bool laid_out = layouts.find(a, p.a) && layouts.find(b, p.b) && layouts.find(c, p.c) && layouts.find(d, p.d);
    if (!laid_out) return invalid("no layout of a matrix");
    if (operation.compute != COMPUTE_FLOAT32 || operation.scale != FLOAT32) return NOT_SUPPORTED;
    if (p.a.type != BFLOAT16 || p.b.type != BFLOAT16 || p.c.type != p.d.type) return NOT_SUPPORTED;
    if (p.d.type != BFLOAT16 && p.d.type != FLOAT32) return NOT_SUPPORTED;
    const Layout* const all[] = {&p.a, &p.b, &p.c, &p.d};
    for (int i = 0; i < 4; i++) {
        const Layout& m = *all[i];
        if (m.rows == 0 || m.cols == 0) return invalid("matrix %c is empty", 'A' + i);
        if (m.stride < 0 || (uint64_t)m.stride < m.rows) {
            return invalid("columns of %llu values lie %lld apart in matrix %c", (unsigned long long)m.rows, (long long)m.stride, 'A' + i);
        }
        if ((size_t)m.stride * bytes_of(m.type) % ALIGNMENT != 0) return NOT_SUPPORTED;
    }
    p.a_transposed = operation.a == TRANSPOSED;
    p.b_transposed = operation.b == TRANSPOSED;
    p.rows = p.a_transposed ? p.a.cols : p.a.rows;
    p.cols = p.b_transposed ? p.b.rows : p.b.cols;
    p.inner = p.a_transposed ? p.a.rows : p.a.cols;
    const uint64_t inner = p.b_transposed ? p.b.cols : p.b.rows;
    if (inner != p.inner) return invalid("sums of %llu and of %llu products", (unsigned long long)p.inner, (unsigned long long)inner);
    for (const Layout* m : {&p.c, &p.d}) {
        if (m->rows != p.rows || m->cols != p.cols) {
            return invalid("a product of %llu x %llu in a matrix of %llu x %llu", (unsigned long long)p.rows, (unsigned long long)p.cols,
                           (unsigned long long)m->rows, (unsigned long long)m->cols);
        }
    }
    return SUCCESS;
}

cublasLtMatmulHeuristicResult_t result_of(Kind kind) {
    cublasLtMatmulHeuristicResult_t result = {};
    result.algo = algorithm_of(kind);
    result.workspaceSize = kind == NEEDS_WORKSPACE ? WORKSPACE : 0;
    result.state = SUCCESS;
    result.wavesCount = 1.0f;
    return result;
}

Status takes(Kind kind, const Product& p) { return kind == SMALL && p.cols > MOST_COLS_OF_SMALL ? NOT_SUPPORTED : SUCCESS; }

}  // namespace

// ---- what the library gives ----

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return VERSION; }

API cublasLtCreate(void** out) {
    void* context = nullptr;
    if (!driver().found) return NOT_INITIALIZED;
    if (driver().get_context(&context) != 0 || context == nullptr) return NOT_INITIALIZED;
    return libraries.add(out, {});
}
API cublasLtDestroy(void* library) { return libraries.remove(library, "library"); }

API cublasLtMatmulDescCreate(void** out, int compute_type, int scale_type) { return operations.add(out, {compute_type, scale_type}); }
API cublasLtMatmulDescDestroy(void* operation) { return operations.remove(operation, "operation"); }
API cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* from, size_t bytes) {
    Operation operation;
    if (!operations.find(handle, operation)) return invalid("no description of an operation");
    int32_t value = 0;
    // Values of cublasLtMatmulDescAttributes_t; all of these have four bytes. There is one pointer mode: factors are the host's.
    if (attribute < 0 || attribute > 4) return NOT_SUPPORTED;
    if (const Status failed = read(value, from, bytes, "an attribute of an operation")) return failed;
    switch (attribute) {
    case 0: operation.compute = value; break;
    case 1: operation.scale = value; break;
    case 2: return value == 0 ? SUCCESS : NOT_SUPPORTED;
    default:
        if (value != AS_IT_IS && value != TRANSPOSED) return NOT_SUPPORTED;
        (attribute == 3 ? operation.a : operation.b) = value;
    }
    operations.set(handle, operation);
    return SUCCESS;
}

API cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t cols, int64_t stride) {
    return layouts.add(out, {(uint32_t)type, rows, cols, stride});
}
API cublasLtMatrixLayoutDestroy(void* layout) { return layouts.remove(layout, "layout"); }
API cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* from, size_t bytes) {
    Layout layout;
    if (!layouts.find(handle, layout)) return invalid("no layout of a matrix");
    Status failed = NOT_SUPPORTED;
    int32_t order = 0;
    // Values of cublasLtMatrixLayoutAttribute_t.
    switch (attribute) {
    case 0: failed = read(layout.type, from, bytes, "the type of a matrix"); break;
    case 1:
        failed = read(order, from, bytes, "the order of a matrix");
        // Columns alone.
        if (failed == SUCCESS && order != 0) return NOT_SUPPORTED;
        break;
    case 2: failed = read(layout.rows, from, bytes, "the rows of a matrix"); break;
    case 3: failed = read(layout.cols, from, bytes, "the columns of a matrix"); break;
    case 4: failed = read(layout.stride, from, bytes, "the leading dimension of a matrix"); break;
    }
    if (failed == SUCCESS) layouts.set(handle, layout);
    return failed;
}

API cublasLtMatmulPreferenceCreate(void** out) { return preferences.add(out, {}); }
API cublasLtMatmulPreferenceDestroy(void* preference) { return preferences.remove(preference, "preference"); }
API cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* from, size_t bytes) {
    Preference preference;
    if (!preferences.find(handle, preference)) return invalid("no preference");
    Status failed = NOT_SUPPORTED;
    // Values of cublasLtMatmulPreferenceAttributes_t.
    switch (attribute) {
    case 1: failed = read(preference.workspace, from, bytes, "the workspace of a preference"); break;
    case 3: failed = read(preference.reductions, from, bytes, "the reductions of a preference"); break;
    case 5:
    case 6:
    case 7:
    case 8: failed = read(preference.alignments[attribute - 5], from, bytes, "an alignment of a preference"); break;
    }
    if (failed == SUCCESS) preferences.set(handle, preference);
    return failed;
}

API cublasLtMatmulAlgoGetHeuristic(void* library, void* operation, void* a, void* b, void* c, void* d, void* preference_handle, int asked,
                                   cublasLtMatmulHeuristicResult_t* results, int* count) {
    Product product;
    Preference preference;
    std::vector<Kind> kinds;
    if (count == nullptr || results == nullptr || asked < 1) return invalid("nowhere to put algorithms");
    *count = 0;
    if (const Status failed = described(product, library, operation, a, b, c, d)) return failed;
    if (!preferences.find(preference_handle, preference)) return invalid("no preference");
    if (!candidates(kinds)) return INVALID_VALUE;
    for (uint32_t alignment : preference.alignments) {
        if (alignment < ALIGNMENT) return NOT_SUPPORTED;
    }
    for (Kind kind : kinds) {
        if (*count == asked) break;
        if (takes(kind, product) != SUCCESS) continue;
        results[*count] = result_of(kind);
        if (kind == STATE) results[*count].state = NOT_SUPPORTED;
        ++*count;
    }
    return *count > 0 ? SUCCESS : NOT_SUPPORTED;
}

API cublasLtMatmulAlgoCheck(void* library, void* operation, void* a, void* b, void* c, void* d, const cublasLtMatmulAlgo_t* algorithm,
                            cublasLtMatmulHeuristicResult_t* result) {
    Product product;
    Kind kind;
    if (result == nullptr) return invalid("nowhere to put a result");
    if (!is_known(algorithm, kind)) return invalid("an algorithm that was not made here");
    if (const Status failed = described(product, library, operation, a, b, c, d)) return failed;
    if (const Status refused = takes(kind, product)) return refused;
    *result = result_of(kind);
    return SUCCESS;
}

API cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm, int attribute, void* to, size_t bytes, size_t* written) {
    Kind kind;
    if (!is_known(algorithm, kind)) return invalid("an algorithm that was not made here");
    // Values of cublasLtMatmulAlgoConfigAttributes_t: the number, blocks that share a sum, and what reduces them.
    uint32_t value;
    switch (attribute) {
    case 0: value = (uint32_t)kind; break;
    case 2: value = kind == SPLIT ? 2 : 1; break;
    case 3: value = kind == REDUCTION ? 2 : 0; break;
    default: return NOT_SUPPORTED;
    }
    if (to == nullptr || bytes != sizeof value) return invalid("an attribute of an algorithm has 4 bytes and not %zu", bytes);
    memcpy(to, &value, sizeof value);
    if (written != nullptr) *written = sizeof value;
    return SUCCESS;
}

API cublasLtMatmul(void* library, void* operation, const void* alpha, const void* from_a, void* a, const void* from_b, void* b, const void* beta,
                   const void* from_c, void* c, void* to, void* d, const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                   void* stream) {
    Product product;
    if (const Status failed = described(product, library, operation, a, b, c, d)) return failed;
    // The library would choose one itself, which nobody here must let it do.
    if (algorithm == nullptr) return NOT_SUPPORTED;
    if (!is_known(algorithm, product.kind)) return invalid("an algorithm that was not made here");
    if (alpha == nullptr || beta == nullptr) return invalid("no factors");
    memcpy(&product.alpha, alpha, sizeof product.alpha);
    memcpy(&product.beta, beta, sizeof product.beta);
    if (product.beta != 0.0f && from_c == nullptr) return invalid("no matrix C");
    const void* const matrices[] = {from_a, from_b, from_c, to};
    for (int i = 0; i < 4; i++) {
        // Nobody reads what is multiplied by zero.
        if (matrices[i] == nullptr && i == 2) continue;
        if (matrices[i] == nullptr || (uintptr_t)matrices[i] % ALIGNMENT != 0) return invalid("matrix %c lies at %p", 'A' + i, matrices[i]);
    }
    if (product.kind == NEEDS_WORKSPACE && (workspace == nullptr || workspace_bytes < WORKSPACE)) return invalid("no workspace");
    if (product.kind == REFUSING) return NOT_SUPPORTED;
    if (const Status refused = takes(product.kind, product)) return refused;
    product.from_a = from_a;
    product.from_b = from_b;
    product.from_c = from_c;
    product.to = to;
    if (const int error = driver().call(compute, &product, sizeof product, stream)) {
        fprintf(stderr, "emulator: cuBLASLt: a product was not started: the driver's error %d\n", error);
        return EXECUTION_FAILED;
    }
    return SUCCESS;
}
