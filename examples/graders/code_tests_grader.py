#!/usr/bin/env python3
"""A grader for adaroll that judges Python code by tests, in a sandbox. Linux only; no packages needed.

  python code_tests_grader.py --port 9000

In a request for rollouts, one of:

  "reward": {"kind": "webhook", "url": "http://127.0.0.1:9000/grade", "timeout_s": 60, "data": {
      "tests": ["assert add(1, 2) == 3", "assert abs(mean([1, 2]) - 1.5) < 1e-9"], "setup": "import math"}}
  "reward": {"kind": "webhook", "url": "http://127.0.0.1:9000/grade", "timeout_s": 60, "data": {
      "stdin_tests": [{"input": "1 2\\n", "output": "3\\n"}]}}

The code is the last ```python block of the answer's text, or, where there is none, the last ``` block that names no
language. An answer is correct if it passes every test.

  tests        plain asserts; the answer's process computes values, and they are compared where it never was (see
               code_tests.py). Other statements, imports and helpers may stand between them. HumanEval's
               check(candidate) may be given as it is, followed by "check(name)". Asserts inside loops or try need
               "in_process": true; then the answer's own process judges those, and an answer can forge it.
  stdin_tests  a program: its output is compared here, line by line, without spaces at the ends of lines and without
               empty lines at the end

Verdicts:

  correct, wrong  wrong too where the answer fails, ends its process, or takes more than --item-seconds, --memory-mib or
                  64 KiB of output, unless --over-limit limit says that those are not to be scored
  no_answer       no block of code in the text
  bad_gold        data holds no tests, or tests that cannot be used: nothing to score, and not the answer's fault

Whatever else goes wrong is an {"error": ...}, which the server asks again about: never a zero.

The sandbox needs namespaces of the kernel (network, processes, files). Where the kernel refuses them, the grader says
so and does not start; with --allow-network it starts without: then answers reach the network, and the files and
processes of the user it runs as (as root: of user nobody). It contains mistakes, and models that look for a way around
a task. It is no security boundary against determined attackers: run it on a machine, or in a virtual machine, that has
nothing to lose.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import re
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_tests import VALUE_SETUP, BadTests, BadValue, Plan, plan, settle
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
from sandbox import Ended, Limits, Running, Sandbox, Started, Unusable

# A fenced block: its indentation, its language, its code. The last one may lack its end: the fence may have been the
# stop string.
BLOCK = re.compile(r"^([ \t]*)```[ \t]*([\w+.-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.M | re.S)
PYTHON = frozenset({"python", "py", "python3"})
HARNESS = Path(__file__).with_name("answer_harness.py").read_text(encoding="utf-8")
IN_PROCESS, SPLIT, STDIN = "code_tests:in_process", "code_tests:assert", "code_tests:stdin"

# Tries, inside, what must not work, and prints what did.
PROBE = """
import os, socket
worked = []
def attempt(what, do):
    try:
        do()
        worked.append(what)
    except OSError:
        pass
attempt("reaching the network", lambda: socket.create_connection(("127.0.0.1", PORT), 1))
attempt("reading files outside the sandbox", lambda: open(FILE).read())
attempt("writing to /etc", lambda: open("/etc/grader-probe", "w"))
if PID != os.getpid():
    attempt("signalling other processes", lambda: os.kill(PID, 0))
print("probed:", ", ".join(worked))
"""


@dataclass(frozen=True)
class StdinTest:
    """A program's input and the output that it must have."""

    input: str
    output: str


@dataclass(frozen=True)
class Tests:
    """What `data` holds: one of the two."""

    plan: Plan | None
    stdin: tuple[StdinTest, ...] = ()


class _Wrong(Exception):
    """The answer failed a test."""


class _OverLimit(_Wrong):
    """It did so by taking too much of something."""


class CodeTests(Grader):
    """Code judged by tests; see the program's description."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.slots = slots(arguments)
        self.over_limit = arguments.over_limit
        self.limits = Limits(
            wall_s=arguments.item_seconds,
            quick_s=arguments.quick_seconds,
            memory_bytes=arguments.memory_mib << 20,
            processes=arguments.processes,
        )
        self.sandbox = Sandbox(self.limits, python=arguments.python, isolated=not arguments.allow_network)
        # The samples of a group share their tests: by the JSON of `data`.
        self.known: dict[str, Tests | str] = {}

    async def start(self) -> None:
        # Something to find for the probe: a listener, a file, this process.
        listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        with tempfile.NamedTemporaryFile("w") as file:
            os.chmod(file.name, 0o644)
            known = {"PORT": listener.sockets[0].getsockname()[1], "FILE": file.name, "PID": os.getpid()}
            probe = "".join(f"{name} = {value!r}\n" for name, value in known.items()) + PROBE
            try:
                ended = await self.sandbox.run(probe, HARNESS)
            except Unusable as error:
                hint = "; --allow-network runs answers without it, see --help" if self.sandbox.isolated else ""
                sys.exit(f"the sandbox cannot be built: {error}{hint}")
        listener.close()
        said = ended.output.decode(errors="replace").strip()
        if ended.status != 0 or not said.startswith("probed:"):
            sys.exit(
                f"the sandbox does not run Python ({self.sandbox.python}): "
                f"status {ended.status}, {said} {ended.last_error}"
            )
        open_ways = said.removeprefix("probed:").strip()
        if open_ways and self.sandbox.isolated:
            sys.exit(f"the sandbox is open: {open_ways} works in it")
        walls = (
            f"WITHOUT namespaces; answers can do this: {open_ways or 'nothing that was tried'}"
            if open_ways or not self.sandbox.isolated
            else "closed"
        )
        log(f"the sandbox is {walls}; one run takes {ended.wall_s * 1000:.0f} ms")

    async def stop(self) -> None:
        self.sandbox.close()

    async def grade(self, item: Item, call: Call) -> dict[str, Any]:
        tests = self._tests(item.data)
        if isinstance(tests, str):
            return verdict("bad_gold", why=tests)
        rule = STDIN if tests.plan is None else SPLIT
        if tests.plan is not None and any(step.kind == "trust" for step in tests.plan.steps):
            rule = IN_PROCESS
        code = last_block(item.text)
        if code is None:
            return verdict("no_answer", rule=rule)
        return await self.slots.run(call, lambda turn: self._judge(code, tests, rule, turn))

    async def _judge(self, code: str, tests: Tests, rule: str, turn: Turn) -> dict[str, Any]:
        def started(pid: int) -> None:
            turn.ran = functools.partial(core_seconds, pid)

        try:
            if tests.plan is None:
                await self._judge_program(code, tests.stdin, started)
            else:
                await self._judge_values(code, tests.plan, started)
        except _OverLimit as over:
            return verdict(self.over_limit, extracted=code, rule=rule, why=str(over))
        except _Wrong as wrong:
            return verdict("wrong", extracted=code, rule=rule, why=str(wrong))
        except Unusable as error:
            return failed(f"the sandbox: {error}")
        return verdict("correct", extracted=code, rule=rule)

    def _tests(self, data: Any) -> Tests | str:
        key = json.dumps(data, sort_keys=True)
        if key not in self.known:
            if len(self.known) >= 1000:
                self.known.clear()
            self.known[key] = read_tests(data)
        return self.known[key]

    async def _judge_program(self, code: str, tests: tuple[StdinTest, ...], started: Started) -> None:
        until = time.monotonic() + self.limits.wall_s
        for number, test in enumerate(tests):
            # The limit is for all tests together.
            left_s = max(until - time.monotonic(), 0.1)
            given = test.input.encode("utf-8", "surrogatepass")
            ended = await self.sandbox.run(code, HARNESS, given, wall_s=left_s, started=started)
            where = f"test {number}"
            self._raise_if_over(ended, where)
            if ended.status != 0:
                raise _Wrong(f"{where}: {told_status(ended)}")
            if lines_of(ended.output.decode("utf-8", "replace")) != lines_of(test.output):
                raise _Wrong(f"{where}: another output")

    async def _judge_values(self, code: str, wanted: Plan, started: Started) -> None:
        """Every step, in order, in one process of the answer's; what its values do not settle by themselves then in one
        where it never was."""
        unsettled: list[tuple[str, str]] = []
        wrong: _Wrong | None = None
        async with self.sandbox.talk(code, HARNESS, started=started) as running:
            try:
                await running.ask({"setup": wanted.setup})
                await self._expect_ready(running)
                for step in wanted.steps:
                    where = step.source.partition("\n")[0][:100]
                    if step.kind == "check":
                        values = [await self._reply(running, {"value": unit}, where) for unit in step.units]
                        settled = settle(step, values)
                        if settled is False:
                            raise _Wrong(f"{where}: {', '.join(values)[:100]}")
                        if isinstance(settled, str):
                            unsettled.append((settled, where))
                    else:
                        await self._reply(running, {"run": step.source}, where)
            except BadValue as bad:
                wrong = _Wrong(str(bad))
            except _Wrong as error:
                wrong = error
        assert running.ended is not None
        if wrong is not None:
            self._raise_if_over(running.ended, "the answer")
            raise wrong
        if unsettled:
            await self._judge_apart(unsettled, VALUE_SETUP + wanted.setup)

    async def _judge_apart(self, tests: list[tuple[str, str]], setup: str) -> None:
        wrong: _Wrong | None = None
        async with self.sandbox.talk("", HARNESS) as running:
            try:
                await running.ask({"setup": setup})
                await self._expect_ready(running)
                for source, where in tests:
                    if await self._reply(running, {"truth": source}, where) != "True":
                        raise _Wrong(where)
            except _Wrong as error:
                wrong = error
        assert running.ended is not None
        if wrong is not None:
            self._raise_if_over(running.ended, "comparing the answer's values")
            raise wrong

    async def _expect_ready(self, running: Running) -> None:
        told = await running.told()
        if not isinstance(told, dict):
            raise _Wrong("the code ends its process")
        self._raise_if_raised(told, "the code fails")
        if not told.get("ready"):
            raise _Wrong("the answer broke the protocol")

    async def _reply(self, running: Running, question: dict[str, str], where: str) -> str:
        """The value of an expression, or nothing of statements. A reply counts only with the number that came with its
        question."""
        nonce = secrets.token_hex(8)
        await running.ask({"nonce": nonce, **question})
        told = await running.told()
        if not isinstance(told, dict) or told.get("nonce") != nonce:
            raise _Wrong(f"{where}: the answer ended its process or broke the protocol")
        self._raise_if_raised(told, where)
        value = told.get("value", "")
        if not isinstance(value, str):
            raise _Wrong(f"{where}: the answer broke the protocol")
        return value

    def _raise_if_raised(self, told: dict[str, Any], where: str) -> None:
        if "raised" in told:
            raised = str(told["raised"])
            raise (_OverLimit if raised.startswith("MemoryError") else _Wrong)(f"{where}: {raised}")

    def _raise_if_over(self, ended: Ended, where: str) -> None:
        if ended.over in ("wall", "cpu"):
            raise _OverLimit(f"{where}: over {self.limits.wall_s:g} s (--item-seconds)")
        if ended.over == "output":
            raise _OverLimit(f"{where}: over {self.limits.output_bytes} bytes of output")
        if "MemoryError" in ended.last_error:
            raise _OverLimit(f"{where}: over {self.limits.memory_bytes >> 20} MiB (--memory-mib)")


def told_status(ended: Ended) -> str:
    """How a program failed, for people."""
    how = f"ended by signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
    return f"{how} {ended.last_error}".strip()


def lines_of(text: str) -> list[str]:
    """The lines of a program's output without what nobody sees."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def last_block(text: str) -> str | None:
    """The last block of Python in the text; see the program's description."""
    blocks = BLOCK.findall(text)
    for wanted in (PYTHON, {""}):
        found = [(indent, code) for indent, language, code in blocks if language.lower() in wanted]
        if found:
            indent, code = found[-1]
            # A block inside a list is indented as a whole.
            return "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
    return None


def read_tests(data: Any) -> Tests | str:
    """The tests of an item, or what is wrong with its `data`."""
    told = data if isinstance(data, dict) else {}
    tests, programs = told.get("tests"), told.get("stdin_tests")
    if (tests is None) == (programs is None):
        return 'data must hold "tests" or "stdin_tests"'
    if programs is not None:
        usable = isinstance(programs, list) and programs
        if not usable or not all(
            isinstance(one, dict) and isinstance(one.get("input", ""), str) and isinstance(one.get("output"), str)
            for one in programs
        ):
            return 'data.stdin_tests must be a list of {"input": "...", "output": "..."}'
        return Tests(None, tuple(StdinTest(one.get("input", ""), one["output"]) for one in programs))
    if not isinstance(tests, list) or not tests or not all(isinstance(one, str) for one in tests):
        return "data.tests must be a list of strings"
    setup, in_process = told.get("setup", ""), told.get("in_process", False)
    if not isinstance(setup, str) or not isinstance(in_process, bool):
        return "data.setup must be a string, data.in_process true or false"
    try:
        return Tests(plan(tests, setup, in_process))
    except BadTests as error:
        return f"data.tests: {error}"


def main() -> None:
    made = parser(__doc__)
    add_slots(made, quick_seconds=0.5)
    made.add_argument(
        "--item-seconds",
        type=positive_float,
        default=10.0,
        help="how long all tests of one answer may take (%(default)g)",
    )
    made.add_argument(
        "--memory-mib",
        type=positive,
        default=512,
        help="address space of one process of an answer in MiB (%(default)s)",
    )
    made.add_argument(
        "--processes", type=positive, default=32, help="processes and threads of one answer at once (%(default)s)"
    )
    made.add_argument(
        "--over-limit",
        choices=("wrong", "limit"),
        default="wrong",
        help="the verdict on answers that take too much (%(default)s)",
    )
    made.add_argument(
        "--python",
        default=sys.executable,
        help="the interpreter for answers (this one); only its standard library is offered",
    )
    made.add_argument(
        "--allow-network", action="store_true", help="start without the kernel's namespaces; see above what that opens"
    )
    arguments = made.parse_args()
    if not sys.platform.startswith("linux"):
        sys.exit("the sandbox needs Linux")
    try:
        grader = CodeTests(arguments)
    except Unusable as error:
        sys.exit(str(error))
    serve(grader, arguments)


if __name__ == "__main__":
    main()
