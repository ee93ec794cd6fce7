#!/bin/sh
# Builds the emulator: `sh tests/emulator/build.sh OUT [plain|sanitize]` compiles the kernels and the driver into OUT/libcuda.so.1, and the fake
# NCCL into OUT/libnccl.so.2, with a link libnccl.so to it: cudarc looks for that name, and not for the one that NVIDIA's packages install. The fake
# cuBLASLt goes to OUT/cublaslt/libcublasLt.so.13, with a link libcublasLt.so to it: in a folder of its own, because whoever finds the library uses it.
#
# KERNELS names another folder of kernels, CXX another compiler. `sanitize` adds AddressSanitizer and UndefinedBehaviorSanitizer; a process that
# loads that library must preload libasan, with ASAN_OPTIONS=detect_leaks=0. At most two compilers run at once; exit status 1 says that something
# did not compile, or that there is no compiler.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUT [plain|sanitize]}
kind=${2:-plain}
kernels=${KERNELS:-$here/../../kernels}
cxx=${CXX:-g++}

if ! $cxx --version >/dev/null 2>&1; then
    echo "build.sh: no C++ compiler: $cxx" >&2
    exit 1
fi
flags="-std=c++17 -O2 -g1 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-strict-aliasing -Wall -Wextra -Wno-unknown-pragmas"
# The kernels' fma_rn is then one instruction; without, it is a call.
if [ "$(uname -m)" = x86_64 ] && grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; then
    flags="$flags -mavx2 -mfma"
fi
case $kind in
plain) ;;
sanitize) flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" ;;
*)
    echo "build.sh: plain or sanitize, not $kind" >&2
    exit 1
    ;;
esac
mkdir -p "$out" || exit 1
objects=$(mktemp -d) || exit 1
trap 'rm -rf "$objects"' EXIT

# The slowest first, so that two compilers end at about the same time.
{
    ls -S "$kernels"/*.cu 2>/dev/null
    ls -S "$here"/*.cpp | grep -v /selftest
} | CXX=$cxx FLAGS="$flags -I$here -I$kernels" OBJECTS=$objects xargs -P 2 -I{} sh -c '
    source={}
    object=$OBJECTS/$(basename "$source").o
    if ! $CXX $FLAGS -x c++ -c "$source" -o "$object" 2>"$object.log"; then
        echo "build.sh: $source does not compile: $(grep -m 1 error "$object.log")" >&2
        exit 1
    fi
    # Warnings are worth a look, and no failure.
    cat "$object.log" >&2' || exit 1

link() {
    folder=$1
    library=$2
    shift 2
    if ! $cxx $flags -shared "-Wl,-soname,$library" -o "$folder/$library" "$@" -pthread -ldl 2>"$objects/link.log"; then
        echo "build.sh: $library does not link: $(tail -1 "$objects/link.log")" >&2
        exit 1
    fi
}
# They find the driver when they are used, as NVIDIA's do.
for library in nccl cublaslt; do mv "$objects/$library.cpp.o" "$objects/$library.object" || exit 1; done
link "$out" libnccl.so.2 "$objects/nccl.object"
ln -sf libnccl.so.2 "$out/libnccl.so" || exit 1
mkdir -p "$out/cublaslt" || exit 1
link "$out/cublaslt" libcublasLt.so.13 "$objects/cublaslt.object"
ln -sf libcublasLt.so.13 "$out/cublaslt/libcublasLt.so" || exit 1
link "$out" libcuda.so.1 "$objects"/*.o
