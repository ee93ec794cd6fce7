#!/usr/bin/env python3
"""NVIDIA's own tools look at the kernels that `adaroll kernels build` makes, for four architectures. No GPU is needed.

nvdisasm: attention and gemm multiply with the tensor cores' instruction (HMMA), and no kernel touches local memory (LDL, STL).
ptxas -v, on the PTX that NVRTC makes of the same sources: no kernel spills a register, and its registers, shared memory and stack are what the
manifest says. Needs target/release/adaroll; pip installs NVIDIA's tools in a virtual environment under target/, once.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from server import BINARY, REPOSITORY, TARGET

ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_120"]
FAMILIES = [
    "act", "act_backward", "attention", "attention_backward", "embed", "embed_backward", "gemm", "gemm_backward", "loss", "norm", "norm_backward",
    "optimizer", "rope_backward", "rope_kv", "sample", "score", "transfer",
]
TENSOR_FAMILIES = ["attention", "attention_backward", "gemm", "gemm_backward"]
# One release, that of the tests' NVRTC, so that its ptxas is the one that NVRTC holds; the disassembler exists from 13.2 on.
PACKAGES = [f"nvidia-{name}==13.0.88" for name in ("cuda-nvrtc", "cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime")]
PACKAGES += ["nvidia-cuda-nvdisasm==13.2.86"]


def tools():
    """The folder of NVIDIA's packages, installed if they are not there."""
    folder = TARGET / "cuda-tools"
    complete = folder / "complete"
    if not complete.is_file() or complete.read_text().split() != PACKAGES:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        complete.write_text("\n".join(PACKAGES))
    (found,) = folder.glob("lib/python3*/site-packages/nvidia/cu13")
    return found


def run(*command, **more):
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}:\n{ran.stdout[-4000:]}"
    return ran.stdout


def instructions(nvdisasm, cubin):
    """How often each kernel of a cubin has each instruction, without its modifiers."""
    counts, kernel = {}, None
    for line in run(nvdisasm, "-c", cubin).splitlines():
        section = re.match(r"\.section\s+(\S+?),|\s*\.section\s+(\S+?),", line)
        if section:
            name = section.group(1) or section.group(2)
            kernel = name.removeprefix(".text.") if name.startswith(".text.") else None
        code = re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line)
        if kernel and code:
            of = counts.setdefault(kernel, {})
            of[code.group(1)] = of.get(code.group(1), 0) + 1
    return counts


class Nvrtc:
    """The compiler, asked for PTX with the options that the program gives it."""

    def __init__(self, folder):
        # It looks for the builtins by name: loaded before, they are found.
        ctypes.CDLL(str(folder / "libnvrtc-builtins.so.13.0"))
        self.library = ctypes.CDLL(str(folder / "libnvrtc.so.13"))

    def call(self, name, *arguments):
        result = self.library[f"nvrtc{name}"](*arguments)
        assert result == 0, f"nvrtc{name}: {result}"

    def text(self, what, program):
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", program, text)
        return text.value

    def ptx(self, family, arch):
        strings = lambda texts: (ctypes.c_char_p * len(texts))(*texts)
        headers = sorted((REPOSITORY / "kernels").glob("*.cuh"))
        source = (REPOSITORY / "kernels" / f"{family}.cu").read_bytes()
        options = strings([f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"--fmad=false", b"-default-device"])
        names, texts = strings([header.name.encode() for header in headers]), strings([header.read_bytes() for header in headers])
        program = ctypes.c_void_p()
        self.call("CreateProgram", ctypes.byref(program), source, f"{family}.cu".encode(), len(headers), texts, names)
        assert self.library.nvrtcCompileProgram(program, len(options), options) == 0, self.text("ProgramLog", program).decode()
        ptx = self.text("PTX", program)
        self.call("DestroyProgram", ctypes.byref(program))
        return ptx


def assembled(cu13, nvrtc, family, arch, folder):
    """What ptxas says of each kernel: registers, static shared memory, stack, stores and loads of spilled registers."""
    ptx = folder / f"{family}-{arch}.ptx"
    ptx.write_bytes(nvrtc.ptx(family, arch))
    said = run(cu13 / "bin" / "ptxas", "-v", f"-arch={arch}", "-fmad=false", ptx, "-o", os.devnull)
    found = {}
    for part in said.split("Compiling entry function '")[1:]:
        number = lambda pattern: int((re.search(pattern, part) or [0, 0])[1])
        found[part[: part.index("'")]] = {
            "registers": number(r"Used (\d+) registers"),
            "shared": number(r"(\d+) bytes smem"),
            "stack": number(r"(\d+) bytes stack frame"),
            "spills": number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        }
    return found


def check(cu13, nvrtc, out, arch, folder):
    """Checks one architecture; returns its rows of the table."""
    manifest = json.loads((out / arch / "manifest.json").read_text())
    assert manifest["architecture"] == arch and sorted(manifest["families"]) == FAMILIES, manifest
    rows = {}
    for family in FAMILIES:
        kernels = manifest["families"][family]["kernels"]
        code = instructions(cu13 / "bin" / "nvdisasm", out / arch / f"{family}.cubin")
        by_ptxas = assembled(cu13, nvrtc, family, arch, folder)
        assert kernels and sorted(code) == sorted(kernels) == sorted(by_ptxas), (sorted(kernels), sorted(code), sorted(by_ptxas))
        for kernel, takes in kernels.items():
            has, said, what = code[kernel], by_ptxas[kernel], f"{kernel} for {arch}"
            assert has.get("EXIT"), f"{what}: the disassembly was not understood: {has}"
            local = {name: count for name, count in has.items() if name in ("LDL", "STL")}
            assert not local, f"{what}: touches local memory: {local}"
            assert said["spills"] == 0, f"{what}: ptxas spills {said['spills']} bytes"
            told = {"registers": takes["registers"], "shared": takes["shared_bytes"], "stack": takes["local_bytes"], "spills": 0}
            assert told == said, f"{what}: the manifest says {told}, ptxas {said}"
            assert family not in TENSOR_FAMILIES or has.get("HMMA"), f"{what}: has no HMMA"
            rows[family, kernel] = (takes["registers"], takes["shared_bytes"], has.get("HMMA", 0))
    return rows


def main():
    cu13 = tools()
    release = lambda tool: re.search(r"V(\d+\.\d+\.\d+)", run(cu13 / "bin" / tool, "--version"))[1]
    print(f"ptxas {release('ptxas')}, nvdisasm {release('nvdisasm')}", flush=True)
    nvrtc = Nvrtc(cu13 / "lib")
    with tempfile.TemporaryDirectory(prefix="adaroll-") as folder:
        folder = Path(folder)
        out = folder / "kernels"
        archs = [word for arch in ARCHITECTURES for word in ("--arch", arch)]
        # A cache of its own: everything is compiled.
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        run(BINARY, "kernels", "build", *archs, "--nvrtc", cu13 / "lib" / "libnvrtc.so.13", "-o", out, env=environment)
        tables = {arch: check(cu13, nvrtc, out, arch, folder) for arch in ARCHITECTURES}

    print(f"{'registers, static shared bytes, HMMA':38}" + "".join(f"{arch:>18}" for arch in ARCHITECTURES))
    for family, kernel in tables[ARCHITECTURES[0]]:
        cells = (tables[arch][family, kernel] for arch in ARCHITECTURES)
        print(f"{family:11}{kernel:27}" + "".join(f"{registers:>9}{shared:>5}{hmma:>4}" for registers, shared, hmma in cells))
    print(f"{len(ARCHITECTURES)} architectures, {len(tables[ARCHITECTURES[0]])} kernels each: no local memory, no spills, HMMA in all of {' and '.join(TENSOR_FAMILIES)}")


if __name__ == "__main__":
    sys.exit(main())
