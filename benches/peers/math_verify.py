#!/usr/bin/env python3
"""Math-Verify's verdicts per second, their latency and their agreement with labels, in one process on one core.

  pip install 'math-verify[antlr4-13-2]==0.9.0'
  python math_verify.py --make-rows qwen responses.jsonl rows.jsonl          # rows from a file of labelled answers
  python math_verify.py --make-rows gsm8k --limit 800 solutions.jsonl rows.jsonl
  python math_verify.py --rows rows.jsonl [--limit 800] [--seconds 10]

Rows are JSON lines: {"id": "...", "gold": "...", "response": "...", "expected": true}, of which expected may be
missing. A verdict is what a reward function of a user does for one sample: parse the gold, parse the response, verify.
The gold is put into a LaTeX environment, as Math-Verify wants it: --gold-as boxed (\\\\boxed{gold}, what most reward
functions do) or dollars ($gold$); one that has an environment already stays as it is.

Math-Verify's own limits of time are replaced by one alarm around each verdict (--item-seconds), so that parsing and
verifying share one limit; a verdict that it ends counts under timeouts and as disagreeing. With --seconds, passes after
the first find SymPy's caches warm and may be twice as fast: quote a single pass for answers that are all new. Prints
one line of JSON; times are in milliseconds, and of the whole verdict.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import platform
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Which fields of a file hold the gold, the response and the label.
FIELDS = {"qwen": ("answer", "response", "qwen_score"), "gsm8k": ("answer", "response", "label")}
# An alarm that something swallowed comes again after so long, in seconds.
AGAIN_SECONDS = 0.2

Row = dict[str, Any]


class TimedOut(BaseException):
    """The alarm. No `Exception`: SymPy and Math-Verify catch those and go on."""


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def make_rows(kind: str, source: Path, target: Path, limit: int | None, seed: int) -> int:
    """Writes rows from a labelled file; a random sample of `limit` in the file's order, or all. Returns how many."""
    gold, response, label = FIELDS[kind]
    rows = [
        {"id": f"{kind}:{number}", "gold": str(row[gold]), "response": row[response], "expected": bool(row[label])}
        for number, row in enumerate(read_rows(source))
    ]
    if limit is not None and limit < len(rows):
        rows = [rows[number] for number in sorted(random.Random(seed).sample(range(len(rows)), limit))]
    with open(target, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return len(rows)


def in_environment(gold: str, how: str) -> str:
    """A gold as Math-Verify can find it."""
    if "$" in gold.replace("\\$", "") or "\\boxed" in gold or "\\(" in gold or "\\[" in gold:
        return gold
    return f"\\boxed{{{gold}}}" if how == "boxed" else f"${gold}$"


def verifier(gold_as: str) -> Callable[[str, str], str]:
    """What judges a gold and a response: "correct", "wrong", "no_answer" (nothing found in the response) or "bad_gold"
    (nothing found in the gold)."""
    # This file has the package's name, and its folder comes first where Python looks.
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != Path(__file__).resolve().parent]
    from math_verify import parse, verify

    # It warns that its limits are off, and of every expression that takes too long.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    def judge(gold: str, response: str) -> str:
        wanted = parse(in_environment(gold, gold_as), parsing_timeout=None)
        if not wanted:
            return "bad_gold"
        found = parse(response, parsing_timeout=None)
        if not found:
            return "no_answer"
        return "correct" if verify(wanted, found, timeout_seconds=None) else "wrong"

    return judge


def guarded(judge: Callable[[str, str], str], gold: str, response: str, seconds: float) -> str:
    """The verdict, or "timeout" after so many seconds."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
        try:
            return judge(gold, response)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimedOut:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return "timeout"


def measure(rows: list[Row], gold_as: str, seconds: float, item_seconds: float) -> dict[str, Any]:
    """Judges all rows, again and again until `seconds` have passed, at least once. Labels are compared on the first
    pass."""

    def expire(*_: object) -> None:
        raise TimedOut

    signal.signal(signal.SIGALRM, expire)
    judge = verifier(gold_as)
    # What is imported, compiled and cached at first use is no part of a verdict.
    judge("\\frac{1}{2}", "It is $0.25 + 0.25$, thus \\boxed{\\frac{2}{4}}.")

    latencies: list[float] = []
    verdicts: list[str] = []
    passes = 0
    started = time.perf_counter()
    while passes == 0 or time.perf_counter() - started < seconds:
        for row in rows:
            before = time.perf_counter()
            verdict = guarded(judge, row["gold"], row["response"], item_seconds)
            latencies.append(time.perf_counter() - before)
            if passes == 0:
                verdicts.append(verdict)
        passes += 1
    took = time.perf_counter() - started

    latencies.sort()

    def at(share: float) -> float:
        return round(1000 * latencies[min(len(latencies) - 1, int(share * len(latencies)))], 3)

    labelled = [(row, verdict) for row, verdict in zip(rows, verdicts, strict=True) if "expected" in row]
    apart = [
        (row, verdict) for row, verdict in labelled if verdict == "timeout" or (verdict == "correct") != row["expected"]
    ]
    agreeing = len(labelled) - len(apart)
    return {
        "rows": len(rows),
        "passes": passes,
        "seconds": round(took, 3),
        "verdicts_per_second": round(len(latencies) / took, 1),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": round(1000 * latencies[-1], 3),
        "verdicts": {name: verdicts.count(name) for name in ("correct", "wrong", "no_answer", "bad_gold", "timeout")},
        "timeouts": verdicts.count("timeout"),
        "labelled": len(labelled),
        "agreeing": agreeing,
        "agreement": round(agreeing / len(labelled), 5) if labelled else None,
        "labelled_wrong_but_not": sum(not row["expected"] for row, _ in apart),
        "labelled_correct_but_not": sum(row["expected"] for row, _ in apart),
        "disagreeing_ids": [row["id"] for row, _ in apart],
    }


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.replace("\\\\", "\\"), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, help="the file of rows to judge")
    parser.add_argument(
        "--limit", type=positive, help="only so many rows: the first of --rows, a random sample for --make-rows"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="go over the rows until so long has passed (once)")
    parser.add_argument("--item-seconds", type=float, default=5.0, help="limit of one verdict (%(default)g)")
    parser.add_argument(
        "--gold-as", choices=("boxed", "dollars"), default="boxed", help="environment of golds (%(default)s)"
    )
    parser.add_argument("--core", type=int, help="the core to run on (the first that may be used)")
    parser.add_argument("--ids", action="store_true", help="also print the ids of rows that disagree with their label")
    parser.add_argument(
        "--make-rows", choices=tuple(FIELDS), metavar="KIND", help=f"make a file of rows: {' or '.join(FIELDS)}"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample of --make-rows (%(default)s)")
    parser.add_argument("files", nargs="*", type=Path, help="for --make-rows: the labelled file, and the file to write")
    arguments = parser.parse_args()
    if arguments.make_rows:
        if len(arguments.files) != 2 or arguments.rows:
            parser.error("--make-rows takes two files: the labelled one, and the one to write")
        source, target = arguments.files
        count = make_rows(arguments.make_rows, source, target, arguments.limit, arguments.seed)
        print(f"{count} rows in {target}")
        return
    if not arguments.rows or arguments.files:
        parser.error("give --rows FILE, or --make-rows KIND with two files")

    core = arguments.core
    if hasattr(os, "sched_setaffinity"):
        core = min(os.sched_getaffinity(0)) if core is None else core
        os.sched_setaffinity(0, {core})
    rows = list(read_rows(arguments.rows))[: arguments.limit]
    if not rows:
        parser.error(f"{arguments.rows} holds no rows")
    try:
        version = importlib.metadata.version("math-verify")
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"Math-Verify is not installed for {sys.executable}: pip install 'math-verify[antlr4-13-2]'")
    figures = measure(rows, arguments.gold_as, arguments.seconds, arguments.item_seconds)
    if not arguments.ids:
        del figures["disagreeing_ids"]
    about = {"tool": "math-verify", "version": version, "python": platform.python_version(), "core": core}
    print(json.dumps({**about, "gold_as": arguments.gold_as, **figures}))


if __name__ == "__main__":
    main()
