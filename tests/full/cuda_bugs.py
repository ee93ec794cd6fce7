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
    ("barrier missing in a product of the way back", "gemm_backward.cu",
     "                block_sync();\n                load(fragments[0], next, 0);",
     "                load(fragments[0], next, 0);", 0, "backward::products", False),
    ("wait for a copy missing in a product of the way back", "gemm_backward.cu",
     "                copy_wait<STAGES - 2>();\n", "", 0, "backward::products", False),
    ("matrices of a transposed fragment in another order", "gemm_backward.cu",
     "TRANSPOSED ? (LANE / 16 * 8 + LANE % 8) * PartA::PITCH + warp_m * WARP_M + LANE / 8 % 2 * 8",
     "TRANSPOSED ? LANE % 16 * PartA::PITCH + warp_m * WARP_M + LANE / 16 * 8", 0, "backward::products", False),
    ("rows behind a slice read by a gradient of weights", "gemm_backward.cu", "line < lines && column < width", "column < width", 0,
     "backward::products", False),
    ("a gradient of weights that forgets what was there", "gemm_backward.cu", "    first = at[0];\n    if (both) second = at[1];",
     "    first = 0.0f;\n    if (both) second = 0.0f;", 0, "backward::products", False),
    ("bound of the rows written by a product of the way back", "gemm_backward.cu", "                if (row >= rows) continue;\n", "", 0,
     "backward::products", False),
    ("height of the last group of row tiles", "gemm_backward.cu", "min_of(ROW_TILES_TOGETHER, row_tiles - first_tile)", "ROW_TILES_TOGETHER", 0,
     "backward::products", False),
    ("barrier missing between the rows of a gradient of keys", "attention_backward.cu",
     "        copy_wait<STAGES - 2>();\n        block_sync();\n", "        copy_wait<STAGES - 2>();\n", 0, "backward::attention", False),
    ("wait for keys and values missing in a gradient of queries", "attention_backward.cu",
     "        copy_wait<0>();\n        block_sync();\n        copy_pair(first_key + TILE_ROWS);",
     "        block_sync();\n        copy_pair(first_key + TILE_ROWS);", 0, "backward::attention", False),
    ("bound of what a gradient of queries sees", "attention_backward.cu",
     "> (j < 2 ? sees_low : sees_high)) dscores[i][j] = 0.0f", "> (j < 2 ? sees_low : sees_high) + 1) dscores[i][j] = 0.0f", 0,
     "backward::attention", False),
    ("bound of what sees a key", "attention_backward.cu", "< (j < 2 ? from_low : from_high)) scores", "<= (j < 2 ? from_low : from_high)) scores", 0,
     "backward::attention", False),
    ("sum of the products with the output left out", "attention_backward.cu",
     "weight * (dscores[i][j] - grad_sums[j / 2])", "weight * dscores[i][j]", 0,
     "backward::attention", False),
    ("scale left out of a gradient of keys", "attention_backward.cu", "dkeys, half, scale)", "dkeys, half, 1.0f)", 0, "backward::attention", False),
    ("the rows' sums written where they are read", "attention_backward.cu", "part_stats[(row / PART_ROWS + 1) % 2 * PART_ROWS + LANE] = next_stats",
     "part_stats[row / PART_ROWS % 2 * PART_ROWS + LANE] = next_stats", 0, "backward::attention", False),
    ("bound of the keys whose gradient is written", "attention_backward.cu", "        if (key_row >= tile.rows) continue;\n", "", 0,
     "backward::attention", False),
    ("head of a packed row", "attention_backward.cu", "return p.head + row - position_of(p, row) * p.group;",
     "return p.head + row % 4 % p.group;", 0, "backward::attention", False),
    ("barrier missing in the sums of a norm's way back", "norm_backward.cu", "    block_sync();\n    a = warp_sum(LANE", "    a = warp_sum(LANE", 0,
     "backward::rows::rmsnorm", False),
    ("one place for the sums of all rows", "norm_backward.cu", "shared->places[r % 2]", "shared->places[0]", 0, "backward::rows::rmsnorm", False),
    ("sign of what a norm takes from its gradient", "norm_backward.cu", "fma_rn(x, -s.mean, dy * w)", "fma_rn(x, s.mean, dy * w)", 0,
     "backward::rows::rmsnorm", False),
    ("rows of a group that are not there", "norm_backward.cu",
     "dy_stride, min_of(GROUP, rows - first), cols, eps}", "dy_stride, GROUP, cols, eps}", 0,
     "backward::rows::rmsnorm", False),
    ("barrier missing between the rows of heads and their sums", "norm_backward.cu", "    block_sync();\n    for (u32 i = THREAD; i < 2 * dim",
     "    for (u32 i = THREAD; i < 2 * dim", 0, "backward::rows::qk_norm", False),
    ("groups that forget what was there", "norm_backward.cu", "float sum = to[column];", "float sum = 0.0f;", 0, "backward::rows::biases", False),
    ("groups loaded ahead that do not move on", "norm_backward.cu",
     "        from += AHEAD * group_stride;\n", "", 0, "backward::rows::biases", False),
    ("sign of a sine in the rotation back", "rope_backward.cu", "fma_rn(x, cosine, y * sine)", "fma_rn(x, cosine, -(y * sine))", 0,
     "backward::rows::rope", False),
    ("derivative of an activation", "act_backward.cu", "fma_rn(silu, 1.0f - sigmoid, sigmoid)", "fma_rn(silu, sigmoid, sigmoid)", 0,
     "backward::rows::swiglu", False),
    ("up taken for aligned at every width", "act_backward.cu", "cols % 8 == 0 ? cols / 8 : 0", "cols / 8", 0, "backward::rows::swiglu", True),
    ("order of a token's rows", "embed_backward.cu", "bf16_f32(values[j])", "bf16_f32(values[AHEAD - 1 - j])", 0, "backward::rows::embed", False),
    ("barrier missing in a gradient of logits", "score.cu",
     "        block_sync();\n#pragma unroll\n        for (u32 i = 0; i < STEP_VALUES; i++) v[i] = gradient",
     "#pragma unroll\n        for (u32 i = 0; i < STEP_VALUES; i++) v[i] = gradient", 0, "backward::score", False),
    ("barrier missing in an entropy", "score.cu", "    if (LANE == 0) shared->weighted[WARP] = weighted;\n    block_sync();\n",
     "    if (LANE == 0) shared->weighted[WARP] = weighted;\n", 0, "backward::score", False),
    ("temperature left out of a gradient of logits", "score.cu", "(at_temperature(logit, g.temperature) - g.answer.max)", "(logit - g.answer.max)", 0,
     "backward::score", False),
    ("target left out of a gradient of logits", "score.cu", "column == g.target ? all + g.slope.logprob * g.inverse : all", "all", 0,
     "backward::score", False),
    ("an infinity that is not the target", "score.cu", "const bool ok = bad == 0 && ", "const bool ok = ", 0, "backward::score::a_row_that", False),
    ("the last numbers of an update", "optimizer.cu", "    if (rest < n) one(rest);\n", "", 0, "backward::update", False),
    ("order of an update's roundings", "optimizer.cu",
     "div_rn(s.step_size * m, root)", "s.step_size * div_rn(m, root)", 0, "backward::update::adamw", False),
    ("squares in f32", "optimizer.cu", "(double)values.x[e] * (double)values.x[e]", "(double)(values.x[e] * values.x[e])", 0,
     "backward::update::sums", False),
    ("barrier missing in a sum of squares", "optimizer.cu", "    block_sync();\n    double sum = 0.0;", "    double sum = 0.0;", 0,
     "backward::update::sums", False),
    ("scale left out of a merge", "optimizer.cu", "values.x[e] + scale * sums[e]", "values.x[e] + sums[e]", 0, "backward::update::adapters", False),
    ("barrier missing in the gradients of an adapter", "optimizer.cu",
     "    block_sync();\n    // Warp r ends rank r.", "    // Warp r ends rank r.", 0,
     "backward::update::gradients", False),
]

HOST_BUGS = [
    ("wait for the answers missing", "src/ops/cuda/asks.rs",
     'let came = event.and_then(|event| queue.failure.note("answers were waited for", event.synchronize())).is_some();', "let came = event.is_some();", 0,
     "sampling::", False),
    ("arguments swapped in a launch", "src/ops/cuda/mod.rs", "            weight.buffer.ptr.into(),\n            eps.into(),\n            x.cols.into(),",
     "            x.narrow().into(),\n            eps.into(),\n            x.cols.into(),", 0, "rows::rmsnorm", False),
    ("pinned memory written before the card has read it", "src/ops/cuda/lists.rs",
     'queue.failure.note("a list was waited for", event.synchronize());', "drop(event);", 0, "lists", False),
    ("columns that do not start on 16 bytes taken where they lie", "src/ops/cuda/backward.rs", "if !columns.start.is_multiple_of(8) {",
     "if columns.start == usize::MAX {", 0, "backward::products", False),
    ("the keys' norm summed from the queries'", "src/ops/cuda/backward.rs", "self.add_groups(dk.card(), partials + 4 * dim as u64,",
     "self.add_groups(dk.card(), partials,", 0, "backward::rows::qk_norm", False),
    ("logits read in f32 after their gradient", "src/ops/cuda/backward.rs", "        logits.narrow_in_place();\n", "", 0, "backward::score", False),
    ("a moment that does not come back to the host", "src/ops/cuda/backward.rs",
     "                self.queue.download(&mut v.bytes_mut()[bytes], v_at);\n", "                let _ = bytes;\n", 0,
     "backward::update::adamw", False),
    ("embeddings' rows counted from the start of the batch", "src/ops/cuda/backward.rs", "words.extend(order.iter().map(|i| first as u32 + i));",
     "words.extend(order.iter());", 0, "backward::rows::embed", False),
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
