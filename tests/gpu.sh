#!/bin/sh
# Every check that needs a GPU, in one call of at most 8 minutes: tests/gpu.sh OUT
#
# Builds nothing. Before it, on any machine of the same kind:
#     cargo build --release && cargo test --no-run --test cuda
# Parts: the tests of the CUDA path on the real card (kernels, golden logits, promises of the engine), the bench, and, where python3 has
# transformers with CUDA, its samples and its training steps beside ours. Each has its own time limit, and one that fails does not stop the next.
# Ends with a table; the status is 1 if a part failed.
# What it leaves in OUT belongs into benches/results/<date>-<card>/ of the repository.
#
# The same script tests itself on the emulator: put the emulator's folder in LD_LIBRARY_PATH, kernels for it in ADAROLL_KERNELS, and set
#     ADAROLL_GPU_SH_TINY=1     tiny shapes (and ADAROLL_TEST_GPU other than real, or unset)
# Other settings:
#     ADAROLL                   the binary [target/release/adaroll]
#     ADAROLL_CUDA_TESTS        the test binary [the newest target/*/deps/cuda-*]
#     ADAROLL_TEST_GPU          real or emulated, for the tests [real, but for tiny shapes]
#     ADAROLL_GPU_SH_SKIP       parts to leave out: some of "tests bench transformers train"
#     ADAROLL_GPU_SH_PYTHON     a python with torch and transformers [python3]
#     ADAROLL_GPU_SH_SHAPE      the shape whose samples are compared with transformers [1.7b]
#     ADAROLL_GPU_SH_TRAIN_SHAPE  the shape whose training is; the figures of ours are those in OUT/gpu.json, where it is there [0.6b]
#     ADAROLL_KERNELS           a folder of kernels made by `adaroll kernels build`
set -u

fail() {
    echo "gpu.sh: $1" >&2
    exit 2
}

[ $# = 1 ] || fail "usage: tests/gpu.sh OUT"
mkdir -p "$1" || fail "$1 cannot be made"
out=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
tiny=${ADAROLL_GPU_SH_TINY:-0}
skip=" ${ADAROLL_GPU_SH_SKIP:-} "
python=${ADAROLL_GPU_SH_PYTHON:-python3}
adaroll=${ADAROLL:-$root/target/release/adaroll}
if [ "$tiny" = 1 ]; then card=${ADAROLL_TEST_GPU:-emulated}; else card=${ADAROLL_TEST_GPU:-real}; fi

wanted() {
    case "$skip" in *" $1 "*) return 1 ;; *) return 0 ;; esac
}

[ -x "$adaroll" ] || fail "$adaroll is not there: cargo build --release, or name the binary in ADAROLL"
tests=${ADAROLL_CUDA_TESTS:-}
if wanted tests; then
    if [ -z "$tests" ]; then
        # shellcheck disable=SC2012
        tests=$(ls -t "$root"/target/*/deps/cuda-* 2>/dev/null | grep -v '\.d$' | head -n 1)
    fi
    [ -n "$tests" ] && [ -x "$tests" ] || fail "the tests of the CUDA path are not there: cargo test --no-run --test cuda, or name the binary in ADAROLL_CUDA_TESTS"
fi
command -v timeout >/dev/null || fail "timeout (of coreutils) is not there"

# Seconds of the parts, 470 in all.
tests_limit=170
bench_limit=170
bench_seconds=140
transformers_limit=80
train_limit=50

table=""
failed=0
row() {
    table="$table$(printf '%-14s %-8s %5s s  %s' "$1" "$2" "$3" "$4")
"
}

# part NAME LIMIT COMMAND...: its output goes to OUT/NAME.txt.
part() {
    name=$1
    limit=$2
    shift 2
    echo "gpu.sh: $name, at most $limit s" >&2
    began=$(date +%s)
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.log"
    status=$?
    took=$(($(date +%s) - began))
    case $status in
        0) verdict=ok ;;
        124 | 137) verdict=late failed=1 ;;
        *) verdict=FAILED failed=1 ;;
    esac
    # What went wrong is to be seen here too.
    [ "$verdict" = ok ] || tail -n 20 "$out/$name.log" >&2
}

if wanted tests; then
    part tests "$tests_limit" env ADAROLL_TEST_GPU="$card" "$tests" --test-threads=2
    row tests "$verdict" "$took" "$(grep '^test result' "$out/tests.txt" | tail -n 1)"
fi

if wanted bench; then
    if [ "$tiny" = 1 ]; then shapes=tiny; else shapes=0.6b,1.7b,4b,8b; fi
    part gpu "$bench_limit" "$adaroll" bench gpu --shapes "$shapes" --seconds "$bench_seconds" --json "$out/gpu.json"
    cat "$out/gpu.txt"
    reached=$(grep -c ': reached' "$out/gpu.txt")
    missed=$(grep -c ': missed' "$out/gpu.txt")
    row bench "$verdict" "$took" "targets: $reached reached, $missed missed"
fi

if wanted transformers; then
    if [ "$tiny" = 1 ]; then
        shape=tiny sizes="--prompts 4 --prompt-tokens 32 --new-tokens 8"
    else
        shape=${ADAROLL_GPU_SH_SHAPE:-1.7b} sizes="--prompts 64 --prompt-tokens 1024 --new-tokens 128"
    fi
    models=$(mktemp -d)
    # shellcheck disable=SC2086
    part transformers "$transformers_limit" "$python" -B "$root/benches/peers/transformers_batch.py" "$models/model" \
        --shape "$shape" --adaroll "$adaroll" --json "$out/transformers.json" $sizes
    rm -rf "$models"
    finding=$(grep -E '"(skipped|failed|smaller)"' "$out/transformers.txt" | head -n 1 | sed 's/^ *//; s/,$//' | tr -d '"')
    case "$finding" in
        skipped:*) [ "$verdict" != ok ] || verdict=skipped ;;
        smaller:*) finding="times ahead of continuous batching (target 3): ${finding#smaller: }" ;;
    esac
    row transformers "$verdict" "$took" "$finding"
fi

# After the bench, whose figures it compares with.
if wanted train; then
    if [ "$tiny" = 1 ]; then
        shape=tiny sizes="--sequences 2 --length 48"
    else
        shape=${ADAROLL_GPU_SH_TRAIN_SHAPE:-0.6b} sizes="--sequences 4 --length 2048"
    fi
    if [ -f "$out/gpu.json" ]; then figures=$out/gpu.json; else figures=""; fi
    models=$(mktemp -d)
    # shellcheck disable=SC2086
    part train "$train_limit" "$python" -B "$root/benches/peers/transformers_train.py" "$models/model" \
        --shape "$shape" --json "$out/train.json" $sizes ${figures:+--adaroll-json "$figures"}
    rm -rf "$models"
    finding=$(grep -E '"(skipped|smaller)"' "$out/train.txt" | head -n 1 | sed 's/^ *//; s/,$//' | tr -d '"')
    case "$finding" in
        skipped:*) [ "$verdict" != ok ] || verdict=skipped ;;
        smaller:*) finding="times ahead of its training steps: ${finding#smaller: }" ;;
        *) [ "$verdict" != ok ] || finding="no figures of ours beside it" ;;
    esac
    failures=$(grep -c '"failed"' "$out/train.txt")
    if [ "$failures" != 0 ]; then
        # Out of memory, say: what it is in full is in the file.
        why=$(grep '"failed"' "$out/train.txt" | head -n 1 | sed 's/^ *"failed": //; s/,$//' | tr -d '"' | cut -c 1-100)
        finding="${finding:+$finding; }$failures without figures: $why"
    fi
    row train "$verdict" "$took" "$finding"
fi

echo
printf '%s' "$table"
date=$(date +%F)
name=$(sed -n 's/^  "card": "\(.*\)",$/\1/p' "$out/gpu.json" 2>/dev/null | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
echo "the figures are in $out; they belong into benches/results/$date-${name:-card}/"
exit "$failed"
