// The rollout loop that a user would write on libllama (llama.cpp), for comparison.
//
// usage: llama_rollout MODEL.gguf PROMPTS.txt PROMPTS SAMPLES NEW_TOKENS THREADS [REPETITIONS]
//
// Reads the first PROMPTS records of PROMPTS.txt (separated by the byte 0x1e), decodes each
// prompt once, copies its KV cache to SAMPLES sequences, and samples NEW_TOKENS tokens per
// sequence at temperature 1. The end token stops nothing, so every run does the same work.
//
// Environment: FASTSAMP=1 replaces libllama's samplers by a plain softmax and scan, which is
// faster at large batches; KVU=1 uses one unified KV buffer for all sequences.
//
// Build: see README.md in this folder.
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using Tokens = std::vector<llama_token>;

constexpr int BATCH_TOKENS = 2048;
constexpr int MICRO_BATCH_TOKENS = 512;

struct Options {
    const char *model;
    const char *prompts;
    int n_prompts;
    int n_samples;
    int n_new;
    int n_threads;
    int repetitions;
    bool fast_sampler;
    bool unified_kv;
};

static double now() {
    auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since_start).count();
}

[[noreturn]] static void fail(const std::string &message) {
    fprintf(stderr, "llama_rollout: %s\n", message.c_str());
    exit(1);
}

static bool enabled(const char *variable) {
    const char *value = getenv(variable);
    return value != nullptr && strcmp(value, "0") != 0;
}

static Options parse(int argc, char **argv) {
    if (argc < 7) {
        fail("usage: llama_rollout MODEL.gguf PROMPTS.txt PROMPTS SAMPLES NEW_TOKENS THREADS [REPETITIONS]");
    }
    Options options;
    options.model = argv[1];
    options.prompts = argv[2];
    options.n_prompts = atoi(argv[3]);
    options.n_samples = atoi(argv[4]);
    options.n_new = atoi(argv[5]);
    options.n_threads = atoi(argv[6]);
    options.repetitions = argc > 7 ? atoi(argv[7]) : 3;
    options.fast_sampler = enabled("FASTSAMP");
    options.unified_kv = enabled("KVU");
    return options;
}

static void only_errors(ggml_log_level level, const char *text, void *) {
    if (level >= GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static std::vector<std::string> read_records(const char *path) {
    std::ifstream file(path);
    if (!file) {
        fail(std::string("cannot read ") + path);
    }
    std::vector<std::string> records;
    std::string record;
    while (std::getline(file, record, '\x1e')) {
        records.push_back(record);
    }
    return records;
}

// Token ids without a beginning-of-sequence token; the chat markers become single tokens.
static Tokens tokenize(const llama_vocab *vocab, const std::string &text) {
    Tokens tokens(text.size() + 1);
    int n = llama_tokenize(vocab, text.c_str(), text.size(), tokens.data(), tokens.size(), false, true);
    if (n < 0) {
        fail("cannot tokenize a prompt");
    }
    tokens.resize(n);
    return tokens;
}

static llama_context *make_context(llama_model *model, const Options &options, int longest_prompt) {
    int n_sequences = options.n_prompts * options.n_samples;
    int n_ctx = (longest_prompt + options.n_new + 32) * n_sequences;
    auto params = llama_context_default_params();
    params.n_ctx = (n_ctx + 255) / 256 * 256;
    params.n_batch = BATCH_TOKENS;
    params.n_ubatch = MICRO_BATCH_TOKENS;
    params.n_seq_max = n_sequences;
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads;
    params.kv_unified = options.unified_kv;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr) {
        fail("cannot create the context");
    }
    return context;
}

// One random stream per sequence, with libllama's sampler chain or a plain one.
class Samplers {
public:
    Samplers(int n_sequences, int n_vocab, bool fast) : fast_(fast), weights_(n_vocab) {
        for (int s = 0; s < n_sequences; s++) {
            random_.emplace_back(s);
            auto params = llama_sampler_chain_default_params();
            params.no_perf = true;
            llama_sampler *chain = llama_sampler_chain_init(params);
            llama_sampler_chain_add(chain, llama_sampler_init_temp(1.0f));
            llama_sampler_chain_add(chain, llama_sampler_init_dist(1234 + s));
            chains_.push_back(chain);
        }
    }

    // The next token of `sequence`, from the logits of batch entry `entry`.
    llama_token sample(llama_context *context, int sequence, int entry) {
        double start = now();
        llama_token token = fast_ ? scan(llama_get_logits_ith(context, entry), sequence)
                                  : llama_sampler_sample(chains_[sequence], context, entry);
        seconds += now() - start;
        return token;
    }

    double seconds = 0;

private:
    llama_token scan(const float *logits, int sequence) {
        int n_vocab = weights_.size();
        float largest = logits[0];
        for (int k = 1; k < n_vocab; k++) {
            largest = logits[k] > largest ? logits[k] : largest;
        }
        double total = 0;
        for (int k = 0; k < n_vocab; k++) {
            weights_[k] = expf(logits[k] - largest);
            total += weights_[k];
        }
        double rest = std::uniform_real_distribution<double>(0, total)(random_[sequence]);
        for (int k = 0; k < n_vocab - 1; k++) {
            rest -= weights_[k];
            if (rest <= 0) {
                return k;
            }
        }
        return n_vocab - 1;
    }

    bool fast_;
    std::vector<float> weights_;
    std::vector<std::mt19937> random_;
    std::vector<llama_sampler *> chains_;
};

static int add(llama_batch &batch, llama_token token, int position, int sequence, bool wants_logits) {
    if (batch.n_tokens == BATCH_TOKENS) {
        fail("more tokens than a batch holds");
    }
    int entry = batch.n_tokens++;
    batch.token[entry] = token;
    batch.pos[entry] = position;
    batch.n_seq_id[entry] = 1;
    batch.seq_id[entry][0] = sequence;
    batch.logits[entry] = wants_logits;
    return entry;
}

static void decode(llama_context *context, const llama_batch &batch) {
    if (llama_decode(context, batch) != 0) {
        fail("llama_decode failed");
    }
    llama_synchronize(context);
}

static void rollout(llama_context *context, const std::vector<Tokens> &prompts, Samplers &samplers,
                    const Options &options, int repetition) {
    int n_sequences = options.n_prompts * options.n_samples;
    llama_memory_t memory = llama_get_memory(context);
    llama_memory_clear(memory, true);
    samplers.seconds = 0;
    double start = now();

    // Prefill: each prompt once, as the first sequence of its group.
    llama_batch batch = llama_batch_init(BATCH_TOKENS, 0, 1);
    std::vector<int> last_entry;
    int n_prompt_tokens = 0;
    for (int p = 0; p < options.n_prompts; p++) {
        int length = prompts[p].size();
        int entry = 0;
        for (int i = 0; i < length; i++) {
            entry = add(batch, prompts[p][i], i, p * options.n_samples, i == length - 1);
        }
        last_entry.push_back(entry);
        n_prompt_tokens += length;
    }
    decode(context, batch);
    double prefilled = now();

    // The first token of every sample, after copying the prompt to its sequence.
    Tokens next(n_sequences);
    std::vector<int> position(n_sequences);
    for (int p = 0; p < options.n_prompts; p++) {
        for (int g = 0; g < options.n_samples; g++) {
            int s = p * options.n_samples + g;
            if (g > 0) {
                llama_memory_seq_cp(memory, p * options.n_samples, s, -1, -1);
            }
            next[s] = samplers.sample(context, s, last_entry[p]);
            position[s] = prompts[p].size();
        }
    }

    for (int step = 1; step < options.n_new; step++) {
        batch.n_tokens = 0;
        for (int s = 0; s < n_sequences; s++) {
            add(batch, next[s], position[s]++, s, true);
        }
        decode(context, batch);
        for (int s = 0; s < n_sequences; s++) {
            next[s] = samplers.sample(context, s, s);
        }
    }
    double end = now();
    llama_batch_free(batch);

    double n_tokens = double(n_sequences) * options.n_new;
    double n_decoded = double(n_sequences) * (options.n_new - 1);
    printf("rep %d: total %.2f s -> %.1f tok/s | prefill %d tok %.3f s = %.1f tok/s | decode %.1f tok/s | "
           "sampling %.2f s (%.3f ms/token)\n",
           repetition, end - start, n_tokens / (end - start), n_prompt_tokens, prefilled - start,
           n_prompt_tokens / (prefilled - start), n_decoded / (end - prefilled), samplers.seconds,
           samplers.seconds * 1e3 / n_tokens);
    fflush(stdout);
}

static void print_peak_memory() {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line)) {
        if (line.rfind("VmHWM", 0) == 0) {
            printf("%s\n", line.c_str());
        }
    }
}

int main(int argc, char **argv) {
    double start = now();
    Options options = parse(argc, argv);
    llama_log_set(only_errors, nullptr);
    llama_backend_init();

    llama_model *model = llama_model_load_from_file(options.model, llama_model_default_params());
    if (model == nullptr) {
        fail(std::string("cannot load ") + options.model);
    }
    const llama_vocab *vocab = llama_model_get_vocab(model);

    std::vector<std::string> texts = read_records(options.prompts);
    if (int(texts.size()) < options.n_prompts) {
        fail("the prompts file holds fewer prompts than asked for");
    }
    std::vector<Tokens> prompts;
    size_t n_prompt_tokens = 0, longest = 0;
    for (int p = 0; p < options.n_prompts; p++) {
        prompts.push_back(tokenize(vocab, texts[p]));
        n_prompt_tokens += prompts[p].size();
        longest = std::max(longest, prompts[p].size());
    }

    llama_context *context = make_context(model, options, longest);
    int n_sequences = options.n_prompts * options.n_samples;
    Samplers samplers(n_sequences, llama_vocab_n_tokens(vocab), options.fast_sampler);
    printf("startup %.2f s, prompt tokens %zu, n_ctx %u\n", now() - start, n_prompt_tokens, llama_n_ctx(context));

    for (int repetition = 0; repetition < options.repetitions; repetition++) {
        rollout(context, prompts, samplers, options, repetition);
    }
    print_peak_memory();
}
