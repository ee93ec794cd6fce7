#!/usr/bin/env bash
# The long tier: matrices, fuzzing and comparisons that take minutes. Run the parts that cover what you changed and commit the results under
# tests/results/ with date and commit.
#
#   tests/full.sh                  everything
#   tests/full.sh timing fuzz      only these parts: timing blocks sampler weights kills training learning schedule fuzz warmup api prometheus
#                                  kernels cuda verifiers
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
wanted() { [ ${#parts[@]} -eq 0 ] || printf '%s\n' "${parts[@]}" | grep -qx "$1"; }
results="tests/results/$(date -u +%Y-%m-%d)-$(git rev-parse --short HEAD).txt"
mkdir -p tests/results
{
  echo "date    $(date -u +%Y-%m-%dT%H:%MZ)"
  echo "commit  $(git rev-parse HEAD)$(git diff --quiet || echo ' with changes')"
  echo "cpu     $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
} | tee "$results"

python3 tests/assets/fetch_smollm2.py >/dev/null
run() { echo; echo "== $1"; shift; "$@" 2>&1; }

{
  # Promise 1 on the real model: 64 samples x 24 tokens, every way of running them.
  if wanted timing; then run timing cargo test --test promises -- --ignored --nocapture timing::long; fi
  if wanted blocks; then run blocks env PROPTEST_CASES=200000 cargo test --test promises -- --nocapture blocks::; fi
  # All 2^32 words of the Gumbel tail, if the fast tier enumerates only a part.
  if wanted sampler; then run sampler cargo test --test promises -- --ignored --nocapture sampler::; fi
  # 1,000 pushes of weights under load, and what a push costs beside a copy in memory.
  if wanted weights; then run weights cargo test --test promises -- --ignored --nocapture weights::; fi
  # kill -9 at every failpoint and three times each in 40 jobs.
  if wanted kills; then run kills env ADAROLL_TEST_KILLS=40 cargo test --test promises -- --nocapture crash:: store::; fi
  # Trainer and server killed at every failpoint and at random moments of 12 runs; adapters; one step ahead.
  if wanted training; then run training env ADAROLL_TEST_KILLS=12 cargo test --test promises -- --nocapture training::; fi
  # The learning demonstration: every arm, five seeds, two learning rates; then the paper's regime. Half an hour on two cores.
  if wanted learning; then
    cargo build --release
    run learning target/release/adaroll demo --compare --seeds 5 --out target/comparison
    run paper target/release/adaroll demo --compare --paper --seeds 5 --lr 5e-4 --out target/comparison-paper
  fi
  # The scheduling workload with its goals, on more workloads than the default.
  if wanted schedule; then run schedule cargo run --release --quiet -- bench schedule --reps 12; fi
  # Damaged headers and configurations, many more cases than in the fast tier.
  if wanted fuzz; then run fuzz env PROPTEST_CASES=40000 cargo test --test promises -- bad_models:: detokenize::; fi
  # Answers and references from a fuzzer, a minute a target; it wants a nightly compiler and cargo-fuzz (`cargo install cargo-fuzz`).
  if wanted fuzz; then
    for target in extract equivalence parse; do
      run "fuzz $target" sh -c "mkdir -p target/fuzz/$target && cd tests/full/fuzz && cargo +nightly fuzz run --fuzz-dir . $target ../../../target/fuzz/$target corpus/$target -- -max_total_time=60 -timeout=5"
    done
    run "properties of the verifier" env PROPTEST_CASES=20000 cargo test --test promises -- math_properties:: reward_equal:: reward_extract::
  fi
  # Verdicts per second beside Math-Verify; the example graders over HTTP.
  if wanted verifiers; then
    cargo build --release
    run verifiers python3 -B tests/full/verifiers.py
    run graders target/math-verify-0.9.0/bin/python -B tests/full/graders.py
  fi
  # The demonstration's model made again from its seeds: the committed bytes.
  if wanted warmup; then run warmup cargo test --test promises -- --ignored --nocapture demo_warm::long; fi
  # The HTTP interface against schemathesis and bad requests by hand; and scraped by a real Prometheus. Both on a release build.
  if wanted api || wanted prometheus || wanted kernels; then cargo build --release; fi
  if wanted api; then run api python3 -B tests/full/api.py; fi
  if wanted prometheus; then run prometheus python3 -B tests/full/prometheus.py; fi
  # The GPU's kernels under NVIDIA's disassembler and assembler, for four architectures; no GPU is needed.
  if wanted kernels; then run kernels python3 -B tests/full/kernels.py; fi
  # Kernels against the CPU's operations over whole products of shapes; everything under sanitizers; and bugs that are planted, each of which must be
  # found. All on the emulated GPU.
  if wanted cuda; then
    run "the emulator itself" sh tests/emulator/selftest.sh
    run cuda env ADAROLL_TEST_FULL=1 cargo test --test cuda
    run "cuda with sanitizers" env ADAROLL_TEST_SANITIZE=1 cargo test --test cuda -- --skip compile
    run "planted bugs" python3 -B tests/full/cuda_bugs.py
  fi
} | tee -a "$results"
echo "results in $results"
