#!/usr/bin/env python3
"""Planted bugs: each is put into the kernels or into the host code, in turn, and a test of the CUDA path must fail.

A bug in a kernel needs the emulator to be built again (seconds); one in the host code needs the test binary (minutes). The sound sources are run
first, with the same filters: they must pass.

  python3 tests/full/cuda_bugs.py            all of them
  python3 tests/full/cuda_bugs.py barrier    those whose name holds this word
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "planted"

# name, file, text, its replacement, which occurrence (from 0), tests, sanitizers
KERNEL_BUGS = [
    ("barrier missing in a norm", "norm.cu", "    block_sync();\n    return warp_sum(", "    return warp_sum(", 0, "rows::rmsnorm", False),
    ("barrier missing in a product", "gemm.cu", "                block_sync();\n                load(fragments[0], next, 0);",
     "                load(fragments[0], next, 0);", 0, "linear::", False),
    ("barrier missing between the maxima of attention", "attention.cu", "                block_sync();\n#pragma unroll\n                for (int warp",
     "#pragma unroll\n                for (int warp", 0, "attention::contexts", False),
    ("barrier missing in the state of a softmax", "softmax.cuh", "    block_sync();\n#pragma unroll\n    for (u32 w = 0; w < TILE_WARPS; w++) max",
     "#pragma unroll\n    for (u32 w = 0; w < TILE_WARPS; w++) max", 0, "sampling::plain", False),
    ("wait for a copy missing in a product", "gemm.cu", "                copy_wait<STAGES - 2>();\n", "", 0, "linear::", False),
    ("wait for a copy missing in attention", "attention.cu", "        copy_wait<SLOTS - 2>();\n", "", 1, "attention::contexts", False),
    ("wait for the queries missing in attention", "attention.cu", "        copy_wait<SLOTS - 1>();\n        block_sync();\n", "", 0, "attention::contexts", False),
    ("bound of the rows written by a product", "gemm.cu", "            if (row >= rows) continue;\n", "", 0, "linear::products", False),
    ("bound of the rows read by a product", "gemm.cu", "row0 + row < rows ? in_row : 0", "in_row", 0, "linear::products", True),
    ("bound of the columns of an embedding", "embed.cu", "i < cols; i += THREADS) to[i] = from[i];", "i < cols + 1; i += THREADS) to[i] = from[i];", 0,
     "rows::embed", True),
    ("bound of what attention sees", "attention.cu", "> sees_low", "> sees_low + 1", 0, "attention::contexts", False),
    ("arguments swapped in an activation", "act.cu", "KERNEL(swiglu)(bf16* out, u32 out_stride, const bf16* gate_up, u32 gate_up_stride, u32 cols)",
     "KERNEL(swiglu)(bf16* out, u32 out_stride, const bf16* gate_up, u32 cols, u32 gate_up_stride)", 0, "rows::swiglu", False),
    ("fragment index of a product", "gemm.cu", "f.w[j / 2][j % 2 * 2 + 1]", "f.w[j / 2][j % 2 * 2]", 0, "linear::", False),
    ("fragment index of attention", "attention.cu", "multiply_add(result[2 * i + 1], weight, value[2], value[3]);",
     "multiply_add(result[2 * i + 1], weight, value[2], value[1]);", 0, "attention::contexts", False),
    ("the noise of another position", "sample.cu", "c1 = ask.position, c2 = ask.sample", "c1 = ask.sample, c2 = ask.position", 0, "sampling::plain", False),
]

HOST_BUGS = [
    ("wait for the answers missing", "src/ops/cuda/asks.rs",
     'let came = event.and_then(|event| queue.failure.note("answers were waited for", event.synchronize())).is_some();', "let came = event.is_some();", 0,
     "sampling::", False),
    ("arguments swapped in a launch", "src/ops/cuda/mod.rs", "            weight.buffer.ptr.into(),\n            eps.into(),\n            x.cols.into(),",
     "            x.narrow().into(),\n            eps.into(),\n            x.cols.into(),", 0, "rows::rmsnorm", False),
    ("pinned memory written before the card has read it", "src/ops/cuda/lists.rs",
     'queue.failure.note("a list was waited for", event.synchronize());', "drop(event);", 0, "lists", False),
]


def replaced(path, old, new, which):
    text = path.read_text()
    places = [m.start() for m in re.finditer(re.escape(old), text)]
    if which >= len(places):
        sys.exit(f"{path.name} holds {len(places)} times, not {which + 1}: {old!r}; the planted bug must follow the source")
    at = places[which]
    path.write_text(text[:at] + new + text[at + len(old):])


def environment():
    env = dict(os.environ, CARGO_INCREMENTAL="0", CARGO_PROFILE_TEST_DEBUG="false", CARGO_PROFILE_TEST_OPT_LEVEL="0")
    env.pop("ADAROLL_TEST_EMULATOR", None)
    return env


def build(tree, target):
    """Builds the tests of a tree and gives the path of the binary."""
    command = ["cargo", "test", "--test", "cuda", "--no-run", "--message-format=json"]
    built = subprocess.run(command, cwd=tree, env=dict(environment(), CARGO_TARGET_DIR=str(target)), stdout=subprocess.PIPE, text=True)
    found = re.findall(r'"executable":"([^"]*/cuda-[^"]*)"', built.stdout)
    if built.returncode or not found:
        sys.exit("the tests do not compile")
    return found[-1]


def run(binary, tree, tests, sanitize, kernels=None):
    env = environment()
    if kernels:
        env["KERNELS"] = str(kernels)
    if sanitize:
        env["ADAROLL_TEST_SANITIZE"] = "1"
    done = subprocess.run([binary, tests, "--test-threads", "2"], cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ran = re.search(r"running (\d+) tests?", done.stdout)
    if not ran or int(ran.group(1)) == 0 or "the CUDA path are ignored" in done.stdout:
        sys.exit(f"no test ran for {tests}:\n{done.stdout}")
    return done


def why(output):
    """The first line that says what was seen."""
    for pattern in [r"emulator: .*", r"ERROR: AddressSanitizer: .*", r"runtime error: .*", r"test panicked: .*", r"panicked at .*"]:
        found = re.search(pattern, output)
        if found:
            return found.group(0)[:150]
    return output.strip().splitlines()[-1][:150] if output.strip() else "no word"


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    kernel_bugs = [b for b in KERNEL_BUGS if word in b[0]]
    host_bugs = [b for b in HOST_BUGS if word in b[0]]
    WORK.mkdir(parents=True, exist_ok=True)
    binary = build(ROOT, WORK / "sound")
    for tests, sanitize in sorted({(b[5], b[6]) for b in kernel_bugs + host_bugs}):
        done = run(binary, ROOT, tests, sanitize)
        if done.returncode:
            sys.exit(f"the sound sources do not pass {tests}:\n{done.stdout[-3000:]}")
        print(f"sound    {tests}{' with sanitizers' if sanitize else ''}", flush=True)
    missed = []

    def judge(name, done):
        seen = done.returncode != 0
        print(f"{'found' if seen else 'MISSED'}    {name}: {why(done.stdout) if seen else 'every test passed'}", flush=True)
        if not seen:
            missed.append(name)

    for name, file, old, new, which, tests, sanitize in kernel_bugs:
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            kernels = Path(folder) / "kernels"
            shutil.copytree(ROOT / "kernels", kernels)
            replaced(kernels / file, old, new, which)
            judge(name, run(binary, ROOT, tests, sanitize, kernels))
    for name, file, old, new, which, tests, sanitize in host_bugs:
        tree = WORK / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("target", ".git"))
        replaced(tree / file, old, new, which)
        judge(name, run(build(tree, WORK / "host"), tree, tests, sanitize))
    total = len(kernel_bugs) + len(host_bugs)
    print(f"{total - len(missed)} of {total} planted bugs were found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
