#!/bin/sh
# Self-tests of the emulator: `sh tests/emulator/selftest.sh [plain|sanitize]`; without an argument both, and the speed. The exit status is 1 if a
# test fails or does not compile.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cxx=${CXX:-g++}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0
for kind in ${1:-plain sanitize}; do
    # In place of the product's kernels stand those of the tests; they need what the kernels include.
    mkdir "$work/$kind"
    cp "$here"/../../kernels/*.cuh "$work/$kind"
    for test in "$here"/selftest*.cpp; do cp "$test" "$work/$kind/$(basename "$test" .cpp).cu"; done
    KERNELS=$work/$kind sh "$here/build.sh" "$work/$kind" "$kind" || exit 1
    # The tests' main lies in the library.
    $cxx -x c++ - -o "$work/$kind/selftest" -L"$work/$kind" -l:libcuda.so.1 2>"$work/link.log" <<'C' || { cat "$work/link.log" >&2; exit 1; }
int selftest(int, char**);
int main(int count, char** arguments) { return selftest(count, arguments); }
C
    preload=
    if [ "$kind" = sanitize ]; then preload=$($cxx -print-file-name=libasan.so); fi
    echo "$kind:"
    LD_LIBRARY_PATH=$work/$kind:$work/$kind/cublaslt LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 "$work/$kind/selftest" || bad=1
    if [ "$kind" = plain ]; then LD_LIBRARY_PATH=$work/$kind "$work/$kind/selftest" speed; fi
done
exit $bad
