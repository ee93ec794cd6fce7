#!/usr/bin/env python3
"""`adaroll verify` beside Math-Verify on the labelled answers of tests/data/verifier, one core, in turn.

Rows: all 800 answers of `qwen_math` and every 6th of `gsm8k_solutions`. Both judge each row with its reference read anew, which is what a
reward function does. Prints verdicts per second, latencies in microseconds and agreement with the labels, and the ratio of the two rates.
Wants a release build; Math-Verify is installed from PyPI into target/ once.
"""

import gzip
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEER = "math-verify[antlr4-13-2]==0.9.0"


def rows() -> list[dict]:
    """Rows `{"id", "gold", "response", "expected"}`."""
    made = []
    for name, every in (("qwen_math", 1), ("gsm8k_solutions", 6)):
        with gzip.open(ROOT / f"tests/data/verifier/{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number % every == 0:
                    row = json.loads(line)
                    made.append({"id": f"{name}:{number}", "gold": row["gold"], "response": row["response"], "expected": row["label"]})
    return made


def ours(path: Path, core: int) -> dict:
    """One pass of `adaroll verify` on one core."""
    command = ["taskset", "-c", str(core), str(ROOT / "target/release/adaroll"), "verify", "--file", str(path), "--threads", "1", "--json"]
    out = subprocess.run(command, check=False, capture_output=True, text=True)
    judged = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
    expected = {row["id"]: row["expected"] for row in map(json.loads, path.read_text().splitlines())}
    times = sorted(row["microseconds"] for row in judged)
    assert len(judged) == len(expected), out.stderr[-2000:]
    agreed = sum((row["verdict"] == "correct") == expected[row["id"]] for row in judged)
    return {
        "verdicts_per_second": len(times) / (sum(times) / 1e6),
        "p50_us": times[len(times) // 2],
        "p99_us": times[len(times) * 99 // 100],
        "max_us": times[-1],
        "agreed": agreed,
        "rows": len(times),
    }


def main() -> None:
    place = ROOT / "target/math-verify-0.9.0"
    if not (place / "complete").exists():
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([place / "bin/pip", "install", "--quiet", PEER], check=True)
        (place / "complete").touch()
    path = ROOT / "target/verifier-rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    core = min(os.sched_getaffinity(0))
    rates = []
    for turn in range(2):
        own = ours(path, core)
        print("adaroll    ", json.dumps(own))
        peer = subprocess.run(
            ["taskset", "-c", str(core), place / "bin/python", ROOT / "benches/peers/math_verify.py", "--rows", path],
            check=True, capture_output=True, text=True,
        )
        print("Math-Verify", peer.stdout.strip().splitlines()[-1])
        peer_rate = json.loads(peer.stdout.strip().splitlines()[-1])["verdicts_per_second"]
        rates.append(own["verdicts_per_second"] / peer_rate)
        print(f"turn {turn + 1}: {rates[-1]:.0f} times as many verdicts per second")
    sys.exit(0)


if __name__ == "__main__":
    main()
