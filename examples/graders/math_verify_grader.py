#!/usr/bin/env python3
"""A grader for adaroll that judges mathematics with Math-Verify, in processes that can be killed.

  pip install 'math-verify[antlr4-13-2]'
  python math_verify_grader.py --port 9000

In a request for rollouts:

  "reward": {"kind": "webhook", "url": "http://127.0.0.1:9000/grade", "timeout_s": 30,
             "data": {"gold": "\\\\frac{1}{2}"}}

data.gold is a string or a number, or a list of them of which one must match. Without $...$ or \\\\boxed{...} of its own
a gold is read as the inside of a \\\\boxed{}. Verdicts:

  correct, wrong  what Math-Verify says
  no_answer       it found nothing in the text
  bad_gold        the gold is missing, does not parse, or takes longer than --item-seconds by itself, also only to be
                  compared with a plain number: nothing to score, and not the answer's fault
  limit           the answer took longer than --item-seconds (think of 9^{9^{9^9}}) or more than --memory-mib: its
                  process was killed

A worker that ends for any other reason makes an {"error": ...}, which the server asks again about: never a zero. So
does the deadline of a call.

An item that takes more than --quick-seconds gives its place to the next and goes on beside (--slow), so answers that
hang hold up no others. Keep timeout_s of the reward well above --item-seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import socket
import sys
import time
from typing import Any

from grader_server import (
    Call,
    Grader,
    Item,
    Turn,
    add_slots,
    core_seconds,
    failed,
    log,
    parser,
    positive,
    positive_float,
    serve,
    slots,
    verdict,
)

RULE = "math_verify"
# A worker is replaced after so many answers: SymPy's caches only grow.
ANSWERS_PER_WORKER = 2000
# Niceness of items that took --quick-seconds: others get the cores first, but not all of them.
NICE_ASIDE = 5
# So long a new process may take until it answers for the first time, and a killed one to end, in seconds.
PROCESS_SECONDS = 30.0
# So many golds are remembered: a group of samples must not wait for one to hang again and again.
KEPT_GOLDS = 10_000


class Stopwatch:
    """Tells an answer that takes too long from a machine that is too busy.

    An answer is over its limit once `limit_s` have passed on the clock and its process had a core for at least half of
    that; one that had less is waited for, until the call's deadline. Where the kernel does not tell (no /proc), the
    clock alone decides.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self.pid = pid
        self.limit_s = limit_s
        self.started = time.monotonic()
        self.ran_before = core_seconds(pid)

    def ran(self) -> float | None:
        """Seconds that the process has had a core since."""
        ran = core_seconds(self.pid)
        return None if ran is None or self.ran_before is None else ran - self.ran_before

    def left(self) -> float:
        """Seconds until to look again, 0 once it is over its limit."""
        elapsed = time.monotonic() - self.started
        if elapsed < self.limit_s:
            return self.limit_s - elapsed
        ran = self.ran()
        return 0.0 if ran is None or ran >= self.limit_s / 2 else 0.1


class WorkerDied(Exception):
    """The process ended by itself or by somebody else's hand."""


class Worker:
    """One process, and the socket on which it is given answers one at a time."""

    def __init__(self, process: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer
        self.answers = 0

    @classmethod
    async def start(cls, context: Any, memory_bytes: int) -> Worker:
        """A copy of a process that has imported Math-Verify already, which takes milliseconds."""
        import math_verify_worker

        ours, theirs = socket.socketpair()
        with theirs:
            process = context.Process(target=math_verify_worker.judge_forever, args=(theirs, memory_bytes), daemon=True)
            process.start()
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    async def ask(self, task: dict[str, Any]) -> None:
        """Gives it a task. It reads at once, unless it is dead."""
        self.answers += 1
        try:
            self.writer.write(json.dumps(task).encode() + b"\n")
            await self.writer.drain()
        except ConnectionError:
            raise WorkerDied from None

    async def told(self) -> dict[str, Any]:
        """The next thing that it says."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):
            raise WorkerDied
        told: dict[str, Any] = json.loads(line)
        return told

    def yield_cores(self) -> None:
        """From now on others go first. Only root could take that back, so it is for a worker's last answer."""
        with contextlib.suppress(OSError):  # It may have ended just now.
            os.setpriority(os.PRIO_PROCESS, self.process.pid, NICE_ASIDE)

    async def kill(self) -> int | None:
        """Ends it; its exit status, negative for a signal."""
        self.process.kill()
        self.writer.close()
        await asyncio.to_thread(self.process.join, PROCESS_SECONDS)
        status: int | None = self.process.exitcode
        return status


class MathVerify(Grader):
    """Answers judged by a pool of workers; see the program's description."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.slots = slots(arguments)
        self.workers = arguments.workers
        self.item_seconds = arguments.item_seconds
        self.memory_bytes = arguments.memory_mib << 20
        self.idle: list[Worker] = []
        # Kills that go on in the background, and workers in use: kept so that none is lost when the program stops.
        self.ending: set[asyncio.Task[Any]] = set()
        self.busy: set[Worker] = set()
        # What is wrong with the golds that were tried, "" for nothing; and the ones that are being tried, with who
        # waits for it.
        self.golds: dict[str, str] = {}
        self.trying: dict[str, asyncio.Event] = {}
        # The fork server imports Math-Verify once and makes workers by copying itself.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["__main__", "math_verify_worker"])

    async def start(self) -> None:
        self.idle = [await Worker.start(self.context, self.memory_bytes) for _ in range(self.workers)]
        # Each has judged once before the first call: what it loads late is loaded, and a broken installation stops the
        # start.
        for worker in self.idle:
            await worker.ask({"golds": ["\\frac{1}{2}"], "text": "It is $0.5$."})
            try:
                async with asyncio.timeout(PROCESS_SECONDS):
                    said = [await worker.told(), await worker.told()]
            except (WorkerDied, TimeoutError):
                sys.exit("a worker process does not answer; its own message, if any, is above")
            if said[1].get("verdict") != "correct":
                sys.exit(f"Math-Verify does not find 1/2 and 0.5 alike: {said[1]}")
        log(
            f"Math-Verify {importlib.metadata.version('math-verify')}: "
            f"{self.workers} workers, {self.item_seconds:g} s per item"
        )

    async def stop(self) -> None:
        for worker in [*self.idle, *self.busy]:
            self._end(worker)
        await asyncio.gather(*self.ending)

    async def grade(self, item: Item, call: Call) -> dict[str, Any]:
        golds = read_golds(item.data)
        if isinstance(golds, str):
            return verdict("bad_gold", rule=RULE, why=golds)
        key = json.dumps(golds)
        while key not in self.golds and key in self.trying:
            await self.trying[key].wait()
        if why := self.golds.get(key):
            return verdict("bad_gold", rule=RULE, why=why)
        trial = None if key in self.golds else self.trying.setdefault(key, asyncio.Event())
        try:
            return await self.slots.run(call, lambda turn: self._judge(golds, key, item.text, turn))
        finally:
            if trial is not None and self.trying.get(key) is trial:
                self._tried(key, None)  # Nothing was found out: another sample tries.

    async def _judge(self, golds: list[str], key: str, text: str, turn: Turn) -> dict[str, Any]:
        """With a worker of its own. Whatever happens, the worker is idle or dead afterwards."""
        worker = await self._take()
        self.busy.add(worker)
        turn.ran = Stopwatch(worker.process.pid, self.item_seconds).ran
        turn.when_slow = worker.yield_cores
        if turn.slow:
            worker.yield_cores()
        reusable = False
        try:
            await worker.ask({"golds": golds, "text": text})
            told = await self._wait(worker)
            if told.get("stage") == "answer":
                self._tried(key, "")
                told = await self._wait(worker, answer=True)
            elif self.golds.get(key) == "":
                return failed(f"a gold that was usable before is not now: {told['why']}")
            else:
                self._tried(key, told["why"])
            reusable = not (told.get("done") or told.get("killed") or turn.slow) and worker.answers < ANSWERS_PER_WORKER
            return verdict(told["verdict"], extracted=told.get("extracted"), rule=RULE, why=told.get("why"))
        except WorkerDied:
            status = await worker.kill()
            how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
            log(f"worker {worker.process.pid} ended with {how}")
            return failed(f"the worker process ended unexpectedly ({how})")
        finally:
            self.busy.discard(worker)
            if reusable:
                self.idle.append(worker)
            else:
                self._end(worker)

    async def _wait(self, worker: Worker, *, answer: bool = False) -> dict[str, Any]:
        """What the worker says next, or what its silence means."""
        watch = Stopwatch(worker.process.pid, self.item_seconds)
        reading = asyncio.ensure_future(worker.told())
        try:
            while pause := watch.left():
                await asyncio.wait([reading], timeout=pause)
                if reading.done():
                    return reading.result()
            what = "answer" if answer else "gold"
            why = f"the {what} takes longer than {self.item_seconds:g} s (--item-seconds)"
            return {"verdict": "limit" if answer else "bad_gold", "why": why, "killed": True}
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, WorkerDied):
                await reading

    async def _take(self) -> Worker:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.is_alive():
                return worker
            log(f"worker {worker.process.pid} died while it was idle")
            self._end(worker)
        return await Worker.start(self.context, self.memory_bytes)

    def _end(self, worker: Worker) -> None:
        ending = asyncio.ensure_future(worker.kill())
        self.ending.add(ending)
        ending.add_done_callback(self.ending.discard)

    def _tried(self, key: str, why: str | None) -> None:
        """Keeps what a gold's trial came to, None for nothing, and lets those go on that wait for it."""
        if why is not None and key not in self.golds:
            if len(self.golds) >= KEPT_GOLDS:
                self.golds.clear()
            self.golds[key] = why
            if why:
                log(f"bad gold {key}: {why}")
        if trial := self.trying.pop(key, None):
            trial.set()


def read_golds(data: Any) -> list[str] | str:
    """The ways to write the gold, or what is wrong with `data`."""
    gold = data.get("gold") if isinstance(data, dict) else None
    if gold is None:
        return 'data must be {"gold": ...}'
    listed = gold if isinstance(gold, list) else [gold]
    if not listed or any(isinstance(one, bool) or not isinstance(one, (str, int, float)) for one in listed):
        return "data.gold must be a string, a number or a list of them"
    return [str(one) for one in listed]


def main() -> None:
    made = parser(__doc__.replace("\\\\", "\\"))
    add_slots(made, quick_seconds=0.25)
    made.add_argument(
        "--item-seconds", type=positive_float, default=5.0, help="how long one answer may take (%(default)g)"
    )
    made.add_argument(
        "--memory-mib", type=positive, default=2048, help="address space of one worker in MiB (%(default)s)"
    )
    arguments = made.parse_args()
    try:
        importlib.metadata.version("math-verify")
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"Math-Verify is not installed for {sys.executable}: pip install 'math-verify[antlr4-13-2]'")
    serve(MathVerify(arguments), arguments)


if __name__ == "__main__":
    main()
