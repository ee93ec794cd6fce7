"""Runs untrusted Python programs, each in processes of its own with bounded time, memory, output and reach. Linux only.

What a program finds inside: its own temporary folder, which is its home, its working folder and gone afterwards; the
system's libraries and Python, read-only; no other files, no other processes, no network, an empty environment, no
privileges. See sandbox_launcher.py for how, and README.md for what this is not: it contains mistakes and models that
look for a way around a task. It is no boundary against a person who has a weakness of the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
# The end of what a program writes on standard error is kept, for people; in bytes.
KEPT_ERROR_BYTES = 2000
# A launcher that was told to end its program gets so long, in seconds.
END_SECONDS = 10.0


# Called with the process above all those of a run.
Started = Callable[[int], None]


class Unusable(Exception):
    """The sandbox could not be built or its launcher died: nothing was learned about the program."""


@dataclass(frozen=True)
class Limits:
    """Of one run. `wall_s` counts all of it (but see `keep_time` in sandbox_launcher.py), `cpu_s` and `memory_bytes`
    (address space) each process. Sizes in bytes, times in seconds."""

    wall_s: float
    # After so long, it runs with lower priority.
    quick_s: float
    memory_bytes: int
    processes: int = 32
    files: int = 128
    # Of one file, and of the temporary folder together.
    scratch_bytes: int = 64 << 20
    output_bytes: int = 64 << 10

    @property
    def cpu_s(self) -> int:
        """A little more than the wall's limit: this one ends what the launcher, for whatever reason, did not."""
        return int(self.wall_s) + 2


@dataclass(frozen=True)
class Ended:
    """How a run ended. `status`: of the program, negative for a signal. `over`: the limit that ended it: "wall", "cpu",
    "output", or "stopped" by the grader."""

    status: int
    over: str | None
    cpu_s: float
    wall_s: float
    output: bytes
    errors: bytes

    @property
    def last_error(self) -> str:
        """The last line on standard error: of a traceback, the exception."""
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


class Running:
    """A program that talks over a channel, line by line. `ended` is there once the context is left."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.ended: Ended | None = None

    async def ask(self, question: dict[str, Any]) -> None:
        """Writes one line. A program that is gone is noticed by `told`."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(json.dumps(question).encode() + b"\n")
            await self.writer.drain()

    async def told(self) -> Any:
        """The next line as JSON; None where the program is gone, or said something else or too much."""
        try:
            line = await self.reader.readline()
            return json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError, ConnectionError):
            return None


class Sandbox:
    """Starts runs. `isolated`: in namespaces of the kernel; without, only limits and, for root, the change to user
    nobody are left."""

    def __init__(self, limits: Limits, *, python: str = sys.executable, isolated: bool = True) -> None:
        self.limits = limits
        self.isolated = isolated
        # A virtual environment's own python would look for files outside the new root.
        script = "import json, sys; print(json.dumps([sys._base_executable, sys.base_prefix, sys.base_exec_prefix]))"
        try:
            said = subprocess.run(
                [python, "-I", "-S", "-c", script], check=True, stdout=subprocess.PIPE, timeout=30
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise Unusable(f"{python} does not run: {error}") from None
        executable, *self.prefixes = (os.path.realpath(path) for path in json.loads(said))
        self.python = executable
        # Where every run mounts its own root, seen by itself alone. It stays empty.
        self.root = tempfile.mkdtemp(prefix="grader-sandbox-")
        os.chmod(self.root, 0o755)

    def close(self) -> None:
        """Removes what was created."""
        shutil.rmtree(self.root, ignore_errors=True)

    async def run(
        self,
        code: str,
        harness: str,
        given: bytes = b"",
        *,
        wall_s: float | None = None,
        started: Started | None = None,
    ) -> Ended:
        """Runs `harness` (it finds `code` in answer.py) to its end with `given` on standard input."""
        async with self._launched(code, harness, None, wall_s) as launched:
            if started is not None:
                started(launched.process.pid)
            feeding = asyncio.ensure_future(_feed(launched.process, given))
            try:
                await launched.process.wait()
            finally:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeding
        return launched.ended()

    @contextlib.asynccontextmanager
    async def talk(self, code: str, harness: str, *, started: Started | None = None) -> AsyncIterator[Running]:
        """Runs `harness` with a channel, whose descriptor is its first argument, and ends it with the context."""
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=self.limits.output_bytes + 4096)
        running = Running(reader, writer)
        try:
            with theirs:
                async with self._launched(code, harness, theirs, None) as launched:
                    theirs.close()
                    if started is not None:
                        started(launched.process.pid)
                    yield running
            running.ended = launched.ended()
        finally:
            theirs.close()
            writer.close()

    @contextlib.asynccontextmanager
    async def _launched(
        self, code: str, harness: str, channel: socket.socket | None, wall_s: float | None
    ) -> AsyncIterator[_Launched]:
        """A launcher at work; it has ended, with everything that it started, when the context is left."""
        limits = self.limits
        folder = self.root if self.isolated else tempfile.mkdtemp(dir=self.root)
        spec = {
            "isolated": self.isolated,
            "root": folder,
            "prefixes": self.prefixes,
            "python": self.python,
            "code": code,
            "harness": harness,
            "channel": channel.fileno() if channel else None,
            "wall_s": wall_s or limits.wall_s,
            "quick_s": limits.quick_s,
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "scratch_bytes": limits.scratch_bytes,
            "file_bytes": limits.scratch_bytes,
            "processes": limits.processes,
            "files": limits.files,
        }
        # A file in memory, not a pipe: writing it never waits for the launcher.
        spec_fd = os.memfd_create("spec")
        report_read, report_write = os.pipe()
        try:
            os.write(spec_fd, marshal.dumps(spec))
            os.lseek(spec_fd, 0, os.SEEK_SET)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(LAUNCHER), str(spec_fd), str(report_write)),
                stdin=subprocess.DEVNULL if channel else subprocess.PIPE,
                stdout=subprocess.DEVNULL if channel else subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[spec_fd, report_write, *([channel.fileno()] if channel else [])],
                start_new_session=True,
                cwd="/",
                env={},
            )
            launched = _Launched(process, report_read, limits)
            try:
                yield launched
            finally:
                await launched.end()
        finally:
            os.close(spec_fd)
            os.close(report_read)
            os.close(report_write)
            if not self.isolated:
                shutil.rmtree(folder, ignore_errors=True)


class _Launched:
    """A launcher and what comes out of its program."""

    def __init__(self, process: asyncio.subprocess.Process, report_fd: int, limits: Limits) -> None:
        self.process = process
        self.report_fd = report_fd
        self.output = bytearray()
        self.errors = bytearray()
        self.too_much = False
        self.report = b""
        self.readers = [asyncio.ensure_future(self._read_errors())]
        if process.stdout is not None:
            self.readers.append(asyncio.ensure_future(self._read_output(process.stdout, limits.output_bytes)))

    async def _read_output(self, stream: asyncio.StreamReader, limit: int) -> None:
        while piece := await stream.read(1 << 16):
            self.output += piece[: limit - len(self.output)]
            if len(piece) > limit - len(self.output) and len(self.output) == limit and not self.too_much:
                self.too_much = True
                self._tell_to_end()

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while piece := await self.process.stderr.read(1 << 16):
            self.errors = (self.errors + piece)[-KEPT_ERROR_BYTES:]

    def _tell_to_end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    async def end(self) -> None:
        """Ends the program if it still runs, and waits until the launcher has reported."""
        if self.process.returncode is None:
            self._tell_to_end()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self.process.wait()
                await asyncio.gather(*self.readers)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        finally:
            for reader in self.readers:
                reader.cancel()
        os.set_blocking(self.report_fd, False)
        with contextlib.suppress(BlockingIOError):
            self.report = os.read(self.report_fd, 1 << 16)

    def ended(self) -> Ended:
        """What the launcher reported."""
        try:
            told = marshal.loads(self.report)
        except (ValueError, EOFError, TypeError):
            error = self.errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise Unusable(f"the launcher ended with {self.process.returncode} and no report {error}".strip()) from None
        if "refused" in told:
            raise Unusable(told["refused"])
        over = told["over"]
        if self.too_much:
            over = "output"
        elif over is None and told["status"] in (-signal.SIGKILL, -signal.SIGXCPU) and told["cpu_s"] > 1:
            over = "cpu"
        return Ended(told["status"], over, told["cpu_s"], told["wall_s"], bytes(self.output), bytes(self.errors))


async def _feed(process: asyncio.subprocess.Process, given: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
