"""One worker process of math_verify_grader.py: judges one answer at a time with Math-Verify, in its main thread.

Talks over a socket in lines of JSON. Of a task `{"golds": ["42"], "text": "..."}` it says first `{"stage": "answer"}`,
once the gold is known to be usable, and then what became of the answer, `{"verdict": ..., "extracted": ..., "why":
...}`. Whoever kills it in between knows by that which of the two was at fault.

Math-Verify's own time limits are switched off: they are alarms, which only an idle main thread of Python serves (a
power of huge numbers is one long call into C), and an expired one counts there as an answer that is wrong. The process
that started this one holds the watch and kills it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import multiprocessing
import os
import resource
import select
import signal
import socket
from collections import OrderedDict
from typing import Any

import math_verify.grader
import math_verify.parser
from math_verify import parse, verify
from sympy import Integer, Rational

# So many golds are kept parsed: the samples of a group share theirs.
KEPT_GOLDS = 512
# How much of what was found in an answer is told, in characters.
SHOWN_CHARS = 200
# A gold must be comparable with this within the limit of time. It is any plain number.
PROBE = Integer(7)
PR_SET_PDEATHSIG = 1

Parsed = list[Any]

# They warn that their limits are off.
for module in (math_verify.grader, math_verify.parser):
    logging.getLogger(module.__name__).setLevel(logging.CRITICAL)


def judge_forever(connection: socket.socket, memory_bytes: int) -> None:
    """The life of a worker: tasks from the socket until it is closed. `memory_bytes` bounds its address space."""
    end_with_parents()
    # Ctrl-C in a terminal goes to all processes; the parent decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    golds: OrderedDict[str, Parsed | str] = OrderedDict()

    def tell(what: dict[str, Any]) -> None:
        connection.sendall(json.dumps(what).encode() + b"\n")

    with connection.makefile("rb") as tasks:
        for line in tasks:
            task = json.loads(line)
            try:
                gold = known_gold(golds, task["golds"])
            except MemoryError:
                gold = "the gold takes more memory than a worker has"
            if isinstance(gold, str):
                tell({"verdict": "bad_gold", "why": gold})
                continue
            tell({"stage": "answer"})
            try:
                tell(judge(gold, task["text"]))
            except MemoryError:
                # What is left of the heap is not to be trusted with another answer.
                tell({"verdict": "limit", "why": "the answer takes more memory than a worker has", "done": True})
                return


def end_with_parents() -> None:
    """Makes the kernel end this process with the fork server that made it, and with the grader: even one that computes
    forever, in C code."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    grader = multiprocessing.parent_process()
    assert grader is not None
    # A pipe whose other end only the grader has. Its closing raises SIGIO, which ends a process that does not handle
    # it.
    fcntl.fcntl(grader.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(grader.sentinel, fcntl.F_SETFL, fcntl.fcntl(grader.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([grader.sentinel], [], [], 0)[0]:
        os._exit(1)  # It closed before that.


def known_gold(golds: OrderedDict[str, Parsed | str], texts: list[str]) -> Parsed | str:
    """The gold's expressions, or what is wrong with it; parsed once, then remembered."""
    key = json.dumps(texts)
    if key not in golds:
        golds[key] = read_gold(texts)
        if len(golds) > KEPT_GOLDS:
            golds.popitem(last=False)
    golds.move_to_end(key)
    return golds[key]


def read_gold(texts: list[str]) -> Parsed | str:
    """The expressions of all ways to write the gold. Each must parse, and be comparable with a plain number: a tower of
    powers parses well."""
    found: Parsed = []
    for text in texts:
        marked = "$" in text.replace("\\$", "") or "\\boxed" in text or "\\(" in text or "\\[" in text
        parsed = parse(text if marked else f"\\boxed{{{text}}}", parsing_timeout=None)
        # Math-Verify adds the text it found to the expression that it read; text alone means that it could not read it.
        if all(isinstance(one, str) for one in parsed):
            return f"Math-Verify cannot parse the gold {text[:100]!r}"
        found += parsed
    is_same(found, [PROBE])
    return found


def judge(gold: Parsed, text: str) -> dict[str, Any]:
    """What became of an answer."""
    try:
        found = parse(text, parsing_timeout=None, raise_on_error=True)
    except MemoryError:
        raise
    except Exception as error:  # As `parse` itself does unless told to raise: what it cannot read is no answer.
        return {"verdict": "no_answer", "why": f"Math-Verify's parser: {type(error).__name__}"}
    if not found:
        return {"verdict": "no_answer"}
    extracted = next((one for one in found if isinstance(one, str)), None)
    return {
        "verdict": "correct" if is_same(gold, found) else "wrong",
        "extracted": extracted and extracted[:SHOWN_CHARS],
    }


def is_same(gold: Parsed, found: Parsed) -> bool:
    """`verify(gold, found)`, except that running out of memory is told apart from being different."""
    for one in gold:
        for other in found:
            try:
                if verify(one, other, timeout_seconds=None, raise_on_error=True):
                    return True
            except MemoryError:
                raise
            except Exception:  # As `verify` itself does unless told to raise.
                continue
    return False


# Judged once when this is imported, which is before the process is copied: what Math-Verify and SymPy load and compile
# late is then there in every worker.
judge([Rational(1, 2)], "It is $0.25 + 0.25$, thus \\boxed{\\frac{2}{4}}.")
