#!/usr/bin/env python3
"""The main job, from nothing to groups on the screen.

Builds adaroll, fetches SmolLM2-135M-Instruct, starts the server on a free port, posts GSM8K problems to
POST /v1/rollouts, and prints each balanced group as it arrives. Needs Rust, a C compiler and Python 3.11;
nothing is installed outside the repository.

    python3 python/first_groups.py                     # 8 problems, a positive and a negative answer of each
    python3 python/first_groups.py --exit balance --max-samples 32 --prompts 4
    python3 python/first_groups.py --server http://127.0.0.1:8000 --json     # a server that runs already
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = ROOT / "tests/data/gsm8k_problems.jsonl"
QUESTION = "{problem}\nGive the answer as a number after ####."


def say(text):
    print(text, file=sys.stderr, flush=True)


def start_server():
    """Builds the binary, fetches the model, starts the server; returns (process, address)."""
    say("building adaroll (the first time takes some minutes) ...")
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    fetch = [sys.executable, str(ROOT / "tests/assets/fetch_smollm2.py")]
    model = subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    command = [str(ROOT / "target/release/adaroll"), "serve", "--model", model, "--port", "0", "--store", ":memory:"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        match = re.search(r"http://[0-9.:]+", line)
        if match:
            say(f"serving SmolLM2 on {match.group()}")
            return server, match.group()
        say(line.rstrip())
    sys.exit("the server did not start; its messages are above")


def request_body(arguments):
    problems = [json.loads(line) for line in PROBLEMS.read_text().splitlines()[: arguments.prompts]]
    prompts = [
        {
            "id": problem["id"],
            "messages": [{"role": "user", "content": QUESTION.format(problem=problem["problem"])}],
            "reward": {"kind": "math", "answer": problem["answer"]},
        }
        for problem in problems
    ]
    return {
        "prompts": prompts,
        "strategy": {
            "kind": "sequential",
            "exit": arguments.exit,
            "group_size": arguments.group_size,
            "max_samples": arguments.max_samples,
        },
        "advantage": "ada",
        "sampling": {"temperature": arguments.temperature, "max_tokens": arguments.max_tokens},
        "seed": arguments.seed,
    }


def stream_groups(address, body):
    """Posts the job and yields what the server streams: one JSON object a line."""
    request = urllib.request.Request(
        address + "/v1/rollouts",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/x-ndjson"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            for line in answer:
                if line.strip():
                    yield json.loads(line)
    except urllib.error.HTTPError as error:
        sys.exit(f"the server refused: {error.read().decode()}")


def show(group):
    stats = group["stats"]
    print(
        f"\n{group['prompt_id']}: {group['status']} (exit {group['exit']}) after {stats['seen']} samples: "
        f"{stats['positive']} right, {stats['negative']} wrong, {stats['failed']} failed; "
        f"pass rate {rate(stats['pass_rate'])}, unbiased {rate(stats['pass_rate_unbiased'])}"
    )
    for sample in group["samples"]:
        text = " ".join(sample["text"].split())
        mark = "+" if sample["positive"] else "-"
        print(f"  {mark} sample {sample['index']:>2}, advantage {number(sample['advantage'])}: {shortened(text)}")
    sys.stdout.flush()


def number(value):
    return "none" if value is None else f"{value:+.3f}"


def rate(value):
    return "none" if value is None else f"{value:.3f}"


def shortened(text, width=96):
    return text if len(text) <= width else "... " + text[-width:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of a server that runs already; without it one is started and stopped")
    parser.add_argument("--prompts", type=int, default=8, help="problems (at most 64)")
    parser.add_argument("--exit", default="signal", choices=["positive", "signal", "balance"])
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--max-samples", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the server's lines as they are")
    arguments = parser.parse_args()

    server, address = (None, arguments.server) if arguments.server else start_server()
    started, groups, signal = time.time(), 0, 0
    try:
        for line in stream_groups(address, request_body(arguments)):
            if arguments.json:
                print(json.dumps(line), flush=True)
            if "prompt_id" in line:
                groups += 1
                signal += line["signal"]
                if not arguments.json:
                    show(line)
            elif "error" in line:
                sys.exit(f"the job failed: {line['error']}")
    finally:
        if server:
            server.terminate()
            server.wait()
    say(f"\n{groups} groups, {signal} with a signal, in {time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
