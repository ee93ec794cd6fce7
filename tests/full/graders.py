#!/usr/bin/env python3
"""The graders of examples/graders, each started as a user would and driven over HTTP: what they judge, what hangs, what
attacks, what breaks.

usage: graders.py [server math code user open] [--python PATH]

`server` is the protocol, on the smallest grader; `math` and `code` are the two graders; `user` and `open` run a part of
`code` as an ordinary user and without namespaces. --python names an interpreter that has math-verify; without it, one
is made once under target/. Prints what it checks, with figures, and ends with status 1 at the first failure. Everything
goes over the loopback interface; the attacks are run by the sandbox under test.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
GRADERS = REPOSITORY / "examples" / "graders"
MATH_VERIFY = "0.9.0"
TOWER = "It is $9^{9^{9^9}}$."
# What answers take that others must not wait for, in seconds; a machine that compiles beside may make it this much.
PROMPT_S = 3.0

Result = dict[str, Any]


class Grading:
    """`with Grading("math_verify_grader.py", "--workers", "2") as grader:` runs one on a free port; its log is in
    `grader.log`."""

    def __init__(
        self, script: str | Path, *options: str, python: str = sys.executable, user: int | None = None
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="graders-test-")
        os.chmod(self.folder.name, 0o755)
        self.log_path = Path(self.folder.name) / "log"
        self.command = [python, "-B", str(GRADERS / script), "--port", "0", *options]
        self.user = user

    def __enter__(self) -> Grading:
        environment = {**os.environ, "PYTHONPATH": str(GRADERS)}
        # A way to tell its processes from others, whoever their parent has become.
        environment["GRADERS_TEST"] = self.folder.name
        identity = {"user": self.user, "group": self.user, "extra_groups": []} if self.user is not None else {}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, **identity
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"listening on http://(\S+)", line)
        if not found:
            self.process.wait(30)
            raise AssertionError(f"the grader did not start: {line}{self.log}")
        self.address = found.group(1)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.folder.cleanup()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body, read as JSON where there is one."""
        connection = http.client.HTTPConnection(self.address, timeout=260)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, dict(answer.getheaders()), json.loads(text) if text else None
        finally:
            connection.close()

    def call(self, items: list[Result], deadline_s: float = 60.0) -> dict[str, Result]:
        """The results by id."""
        body = json.dumps({"deadline_s": deadline_s, "items": items}).encode()
        status, _, answer = self.request("POST", "/grade", body, {"Content-Type": "application/json"})
        assert status == 200, (status, answer)
        assert len(answer["items"]) == len(items), "as many results as items"
        return {result["id"]: result for result in answer["items"]}

    def descendants(self) -> list[int]:
        """All processes under the grader's."""
        children: dict[int, list[int]] = {}
        for pid, parent in parents().items():
            children.setdefault(parent, []).append(pid)
        found, todo = [], [self.process.pid]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found

    def marked(self) -> list[int]:
        """All processes with the grader's mark in their environment: also those that lost their parent."""
        mark = f"GRADERS_TEST={self.folder.name}".encode()
        found = []
        for pid in parents():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def say(line: str) -> None:
    print(f"  {line}", flush=True)


def expect(got: Any, wanted: Any, what: str) -> None:
    assert got == wanted, f"{what}: got {got!r}, not {wanted!r}"


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    return do(), time.monotonic() - started


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """How long it took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


@contextlib.contextmanager
def meanwhile(do: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Runs something in a thread; the value is a function that waits for its result."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(do).result


# --- the protocol ---

SMALLEST = """
import asyncio
from grader_server import Grader, main, verdict

class Exact(Grader):
    async def grade(self, item, call):
        if item.text.startswith("sleep"):
            await asyncio.sleep(float(item.text.split()[1]))
        if item.text == "break":
            raise RuntimeError("broken on purpose")
        return verdict("correct" if item.text == item.data["gold"] else "wrong", extracted=item.text, rule="exact")

main(Exact(), "a test")
"""


def item(id: str, text: str, data: Any, **more: Any) -> Result:
    return {
        "id": id,
        "job_id": "job",
        "prompt_id": "prompt",
        "index": 0,
        "text": text,
        "metadata": {"level": 1},
        "data": data,
        **more,
    }


def server(_: argparse.Namespace) -> None:
    print("the protocol, on the smallest grader")
    readme = (GRADERS / "README.md").read_text()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "readme.py"
        script.write_text(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0])
        with Grading(script) as grader:
            results = grader.call([item("1", " 42\n", {"gold": "42"}), item("2", "43", {"gold": "42"})])
            expect([results[id]["verdict"] for id in "12"], ["correct", "wrong"], "the grader of README.md")
    say("the grader that README.md shows runs as it stands there")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "exact.py"
        script.write_text(SMALLEST)
        with Grading(
            script, "--max-calls", "4", "--max-body-mib", "1", "--max-connections", "40", "--stop-seconds", "5"
        ) as grader:
            serves_protocol(grader, {"gold": "42"}, right="42", wrong="43", body_mib=1)
            results = grader.call(
                [item("1", "break", {"gold": ""}), item("2", "42", {"gold": "42"}), item("3", "x", None)]
            )
            assert "broken on purpose" in results["1"]["error"] and "reward" not in results["1"]
            assert "error" in results["3"]
            expect(results["2"]["verdict"], "correct", "the item beside one that broke")
            say("an exception in a grader is an error of its item alone")
            stays_alive(grader)
            is_busy(grader)
            is_closed_early(grader)
            stops_gracefully(grader)


def serves_protocol(grader: Grading, data: Any, right: str, wrong: str, body_mib: int) -> None:
    """What every grader does with requests, good and bad."""
    results = grader.call([item("b", wrong, data, new_field=[1]), item("a", right, data, new_field={"deep": None})])
    expect({id: result["verdict"] for id, result in results.items()}, {"a": "correct", "b": "wrong"}, "verdicts")
    assert results["a"]["extracted"] and results["a"]["rule"]
    expect(grader.call([]), {}, "an empty call")
    say("right is correct, wrong is wrong, matched by id; unknown fields are ignored; an empty call is answered")

    good = item("1", right, data)
    for body, wanted in (
        (b"{", "no JSON"),
        (b"[1]", '"items"'),
        (b"[" * 200_000, "no JSON"),
        (json.dumps({"items": {}}).encode(), '"items"'),
        (json.dumps({"items": [1]}).encode(), "items[0] must be an object"),
        (json.dumps({"items": [good, {"id": "2"}]}).encode(), "items[1].text must be a string; it is missing"),
        (json.dumps({"items": [{"id": 1, "text": ""}]}).encode(), "items[0].id must be a string"),
        (json.dumps({"items": [good, good]}).encode(), "more than one item"),
        (json.dumps({"items": [good], "deadline_s": -1}).encode(), "deadline_s"),
        (json.dumps({"items": [good], "deadline_s": "soon"}).encode(), "deadline_s"),
        (b'{"items": [], "deadline_s": NaN}', "deadline_s"),
        (b'{"items": [], "deadline_s": true}', "deadline_s"),
        (b'{"items": [1], "deadline_s": 1' + b"0" * 400 + b"}", "items[0]"),
        (b"\xff\xfe", "no JSON"),
        (b"", "no JSON"),
    ):
        status, _, answer = grader.request("POST", "/grade", body)
        expect(status, 400, f"the status of {body[:60]!r}")
        assert wanted in answer["error"], (body[:60], answer)
    say("15 malformed bodies get 400, and the message says what and where")

    big = json.dumps({"items": [item("1", "x" * (body_mib << 20), data)]}).encode()
    status, _, answer = grader.request("POST", "/grade", big)
    expect(status, 413, "a big body")
    assert "over" in answer["error"]
    connection = http.client.HTTPConnection(grader.address, timeout=30)
    with contextlib.suppress(ConnectionError):
        pieces = (big[at : at + 65536] for at in range(0, len(big), 65536))
        connection.request("POST", "/grade", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    expect(connection.getresponse().status, 413, "a big body in chunks")
    connection.close()
    say(f"a body of {len(big) >> 10} KiB gets 413, with its length and in chunks")

    expect(grader.request("GET", "/health")[0], 200, "GET /health")
    expect(grader.request("GET", "/grade")[0], 404, "GET /grade")
    status, headers, _ = grader.request("PUT", "/grade", b"{}")
    expect((status, "POST" in headers["Allow"]), (405, True), "PUT")
    for raw, wanted_status in (
        (b"hello\r\n\r\n", b"400"),
        (b"POST /grade HTTP/1.1\r\n\r\n", b"411"),
        (b"POST /grade HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST /grade HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
        (b"POST /grade HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST /grade HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n", b"431"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
    ):
        expect(spoken(grader, raw).split(b" ")[1], wanted_status, f"the status of {raw[:60]!r}")
    say("other methods, heads that cannot be read, HTTP/1.0: a status each")

    # One connection, many requests, also after refusals; a body in chunks; Expect: 100-continue.
    connection = http.client.HTTPConnection(grader.address, timeout=30)
    good_body = json.dumps({"items": [good]}).encode()
    for body, status in ((good_body, 200), (b"{", 400), (good_body, 200)):
        connection.request("POST", "/grade", body)
        local = connection.sock.getsockname()
        answer = connection.getresponse()
        answer.read()
        expect(
            (answer.status, connection.sock is not None and connection.sock.getsockname()),
            (status, local),
            "keep-alive",
        )
    connection.request(
        "POST", "/grade", iter([good_body[:7], good_body[7:]]), {"Transfer-Encoding": "chunked"}, encode_chunked=True
    )
    answer = connection.getresponse()
    expect((answer.status, json.loads(answer.read())["items"][0]["verdict"]), (200, "correct"), "a body in chunks")
    connection.close()
    head = b"POST /grade HTTP/1.1\r\nContent-Length: %d\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n" % len(
        good_body
    )
    said = spoken(grader, head + good_body)
    assert said.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 200 OK" in said, said
    say("connections are kept; bodies in chunks and Expect: 100-continue are understood")

    assert re.search(r"POST /grade 200 items=2 correct=1 wrong=1 \d+\.\d+s", grader.log), grader.log
    say("one line in the log per call")


def spoken(grader: Grading, raw: bytes) -> bytes:
    """What comes back for bytes as they are."""
    host, port = grader.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(raw)
        connection.settimeout(3)
        said = b""
        with contextlib.suppress(TimeoutError):
            while piece := connection.recv(65536):
                said += piece
        return said


def stays_alive(grader: Grading) -> None:
    results, seconds = timed(
        lambda: grader.call([item("slow", "sleep 60", {"gold": ""}), item("quick", "1", {"gold": "1"})], deadline_s=2)
    )
    expect((results["slow"].get("error"), results["quick"].get("verdict")), ("deadline", "correct"), "a deadline")
    assert 1.5 < seconds < 2.0, seconds
    say(f"a deadline of 2 s is kept ({seconds:.2f} s), with what was there by then")
    host, port = grader.address.rsplit(":", 1)
    silent = [socket.create_connection((host, int(port))) for _ in range(60)]
    time.sleep(0.2)
    refused = 0
    for connection in silent:
        connection.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            refused += connection.recv(100).startswith(b"HTTP/1.1 503")
        connection.close()
    assert refused >= 20, refused
    wait_until(lambda: grader.request("GET", "/health")[0] == 200, 5, "connections again")
    say(f"60 silent connections where 40 are allowed: {refused} get 503, then it serves again")


def is_busy(grader: Grading) -> None:
    with ThreadPoolExecutor(8) as pool:
        body = json.dumps({"items": [item("1", "sleep 1.5", {"gold": ""})]}).encode()
        answers = list(pool.map(lambda _: grader.request("POST", "/grade", body), range(8)))
    counts = Counter(status for status, _, _ in answers)
    expect(counts, Counter({200: 4, 503: 4}), "8 calls where 4 are allowed")
    assert all(headers["Retry-After"] == "1" for status, headers, _ in answers if status == 503)
    say("8 calls where 4 are allowed: 4 are judged, 4 get 503 with Retry-After")


def is_closed_early(grader: Grading) -> None:
    host, port = grader.address.rsplit(":", 1)
    body = json.dumps({"items": [item("1", "sleep 50", {"gold": ""})]}).encode()
    connection = socket.create_connection((host, int(port)))
    connection.sendall(b"POST /grade HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_until(lambda: grader.request("GET", "/health")[2]["calls"] == 1, 5, "the call runs")
    connection.close()
    took = wait_until(lambda: grader.request("GET", "/health")[2]["calls"] == 0, 5, "the call is dropped")
    say(f"a call whose client went away is dropped ({took:.2f} s)")


def stops_gracefully(grader: Grading) -> None:
    idle = http.client.HTTPConnection(grader.address, timeout=30)
    idle.request("GET", "/health")
    idle.getresponse().read()
    with meanwhile(lambda: grader.call([item("1", "sleep 2", {"gold": ""})])) as result:
        wait_until(lambda: grader.request("GET", "/health")[2]["calls"] == 1, 5, "the call runs")
        grader.process.terminate()
        expect(result()["1"]["verdict"], "wrong", "a call that ran at SIGTERM")
    expect(grader.process.wait(10), 0, "the exit status after SIGTERM")
    idle.close()
    say("SIGTERM: the running call is answered, then it ends with status 0")


# --- Math-Verify ---


def math_python(arguments: argparse.Namespace) -> str:
    """An interpreter that has Math-Verify."""
    if arguments.python:
        return str(arguments.python)
    folder = REPOSITORY / "target" / f"math-verify-{MATH_VERIFY}"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"math-verify[antlr4-13-2]=={MATH_VERIFY}"], check=True)
        (folder / "complete").touch()
    return str(folder / "bin" / "python")


def math(arguments: argparse.Namespace) -> None:
    print("Math-Verify's grader")
    with Grading(
        "math_verify_grader.py",
        "--workers",
        "2",
        "--item-seconds",
        "3",
        "--max-body-mib",
        "1",
        python=math_python(arguments),
    ) as grader:
        serves_protocol(
            grader, {"gold": "42"}, right="So it is $\\boxed{42}$.", wrong="So it is $\\boxed{43}$.", body_mib=1
        )
        judges_mathematics(grader)
        hangs(grader)
        keeps_deadline(grader)
        is_killed(grader)
        carries_load(grader)
        # The grader's own end, the rude way.
        with meanwhile(lambda: call_unanswered(grader)):
            wait_until(lambda: bool(busiest(grader)), 10, "a worker computes")
            pids = grader.descendants()
            grader.process.kill()
            took = wait_until(
                lambda: not any(is_running(pid) for pid in pids), 10, f"the grader's processes end: {pids}"
            )
    say(f"SIGKILL to the grader: its {len(pids)} processes end too ({took:.2f} s), also one that computes forever")


def call_unanswered(grader: Grading) -> None:
    """A call whose grader dies."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        grader.call([item("1", TOWER, {"gold": "1"})])


def is_running(pid: int) -> bool:
    """Whether it is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def judges_mathematics(grader: Grading) -> None:
    cases = [
        ("\\frac{1}{2}", "It is $0.5$.", "correct"),
        ("1/2", "Thus \\boxed{\\dfrac{1}{2}}", "correct"),
        ("$x^2+2x+1$", "Thus $(x+1)^2$", "correct"),
        (["7", "\\sqrt{2}"], "the answer is $2^{1/2}$", "correct"),
        (0.25, "25\\%: $\\frac14$", "correct"),
        ("(1,2)", "$(1, 3)$", "wrong"),
        ("18", "It is 19.", "wrong"),
        ("18", "I do not know.", "no_answer"),
        ("18", "", "no_answer"),
        ("\\frac{", "18", "bad_gold"),
        ("", "18", "bad_gold"),
        (None, "18", "bad_gold"),
        ([], "18", "bad_gold"),
        ({"a": 1}, "18", "bad_gold"),
        (True, "18", "bad_gold"),
    ]
    results = grader.call([item(str(number), text, {"gold": gold}) for number, (gold, text, _) in enumerate(cases)])
    for number, (gold, text, wanted) in enumerate(cases):
        expect(results[str(number)].get("verdict"), wanted, f"gold {gold!r}, answer {text!r}")
    expect(
        grader.call([item("1", "18", "no object"), item("2", "18", {})])["1"]["verdict"],
        "bad_gold",
        "data that is no object",
    )
    say(f"{len(cases)} pairs of gold and answer get the verdict that they should")


def hangs(grader: Grading) -> None:
    plain = [item(f"plain {number}", f"It is ${number}$.", {"gold": "7"}) for number in range(40)]
    towers = [item(f"tower {number}", TOWER, {"gold": "7"}) for number in range(5)]
    # Five hang; what is in the same call is answered with them, what is in other calls at once.
    with meanwhile(lambda: timed(lambda: grader.call(towers + plain))) as hung:
        wait_until(lambda: bool(busiest(grader)), 10, "a tower is being computed")
        others = [timed(lambda: grader.call([item("1", "$7$", {"gold": "7"})])) for _ in range(5)]
        results, seconds = hung()
    expect(
        Counter(result["verdict"] for result in results.values()),
        Counter(limit=5, correct=1, wrong=39),
        "5 towers and 40 plain ones",
    )
    assert all("reward" not in results[tower["id"]] for tower in towers)
    slowest = max(seconds for _, seconds in others)
    assert all(result["1"]["verdict"] == "correct" for result, _ in others) and slowest < PROMPT_S, slowest
    say(
        f"5 towers among 45 items: limit after {seconds:.1f} s, the other 40 judged; "
        f"other calls meanwhile {slowest * 1000:.0f} ms at most"
    )

    # Twenty, more than may run aside, beside a call that wants its turn.
    with meanwhile(
        lambda: timed(lambda: grader.call([item(str(n), TOWER, {"gold": "7"}) for n in range(20)], deadline_s=140))
    ) as hung:
        wait_until(lambda: len(busiest(grader)) >= 2, 10, "towers are being computed")
        other, other_seconds = timed(lambda: grader.call([item(str(n), "$7$", {"gold": "7"}) for n in range(20)]))
        results, seconds = hung()
    expect(
        Counter(result["verdict"] for result in other.values()), Counter(correct=20), "20 plain ones beside 20 towers"
    )
    assert other_seconds < seconds, "a call waited for another's towers"
    expect(
        Counter(result.get("verdict", result.get("error")) for result in results.values()),
        Counter(limit=20),
        "20 towers",
    )
    say(
        f"20 towers in a call: limit after {seconds:.1f} s; "
        f"a call of 20 plain items beside it took {other_seconds:.1f} s"
    )

    results, seconds = timed(lambda: grader.call([item(str(n), f"${n}$", {"gold": "9^{9^{9^9}}"}) for n in range(8)]))
    again = timed(lambda: grader.call([item("1", "$1$", {"gold": "9^{9^{9^9}}"})]))[1]
    expect({result["verdict"] for result in results.values()}, {"bad_gold"}, "a gold that hangs")
    assert again < PROMPT_S / 2, again
    say(
        f"a gold that hangs is bad_gold, for 8 samples after {seconds:.1f} s together, "
        f"from then on at once ({again * 1000:.0f} ms)"
    )


def keeps_deadline(grader: Grading) -> None:
    items = [item(str(n), f"${n}$", {"gold": "7"}) for n in range(20)]
    items += [item(f"tower {n}", TOWER, {"gold": "7"}) for n in range(4)]
    results, seconds = timed(lambda: grader.call(items, deadline_s=2))
    expect({results[f"tower {n}"].get("error") for n in range(4)}, {"deadline"}, "towers under a short deadline")
    expect(Counter(results[str(n)].get("verdict") for n in range(20)), Counter(wrong=19, correct=1), "the others")
    assert seconds < 2, seconds
    say(f"a deadline of 2 s, shorter than the limit: answered after {seconds:.2f} s, 20 verdicts, 4 errors")
    wait_until(lambda: not busiest(grader), 5, "the workers of a call that is over end")
    say("its workers are ended with it")


def busiest(grader: Grading, since_s: float = 0.3) -> list[int]:
    """The processes under the grader that compute right now."""

    def ticks() -> dict[int, int]:
        found = {}
        for pid in grader.descendants():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[pid] = int(fields[11]) + int(fields[12])
        return found

    before = ticks()
    time.sleep(since_s)
    return [pid for pid, now in ticks().items() if now - before.get(pid, now) >= since_s * 100 / 8]


def is_killed(grader: Grading) -> None:
    with meanwhile(
        lambda: grader.call([item("tower", TOWER, {"gold": "7"}), item("plain", "$7$", {"gold": "7"})])
    ) as result:
        wait_until(lambda: bool(busiest(grader)), 10, "a tower is being computed")
        os.kill(busiest(grader, 0.2)[0], signal.SIGKILL)
        results = result()
    assert (
        "signal 9" in results["tower"]["error"]
        and "verdict" not in results["tower"]
        and "reward" not in results["tower"]
    ), results
    expect(results["plain"]["verdict"], "correct", "the other item")
    say(f"a worker killed from outside: {results['tower']['error']!r}, no zero")
    # Idle ones, and the process that makes them.
    for pid in grader.descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    results, seconds = timed(lambda: grader.call([item(str(n), "$7$", {"gold": "7"}) for n in range(8)]))
    after = Counter(result.get("verdict", "error") for result in results.values())
    assert set(after) <= {"correct", "error"}, after
    results = grader.call([item(str(n), "$7$", {"gold": "7"}) for n in range(8)])
    expect(
        Counter(result.get("verdict") for result in results.values()),
        Counter(correct=8),
        "after all processes were killed",
    )
    say(
        f"all its processes killed: the next call comes to {dict(after)} in {seconds:.1f} s, the one after to 8 correct"
    )


def carries_load(grader: Grading) -> None:
    results, seconds = timed(
        lambda: grader.call(
            [item(str(n), f"So $\\boxed{{\\frac{{{n}}}{{7}}}}$", {"gold": "\\frac{3}{7}"}) for n in range(200)]
        )
    )
    expect(Counter(result["verdict"] for result in results.values()), Counter(correct=1, wrong=199), "200 items")
    say(f"200 items in one call: {seconds:.2f} s, {200 / seconds:.0f} per second")
    calls = [[item(str(n), f"${n}$", {"gold": str(number)}) for n in range(25)] for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        answers, seconds = timed(lambda: list(pool.map(grader.call, calls)))
    for number, results in enumerate(answers):
        expect(
            [id for id, result in results.items() if result["verdict"] == "correct"], [str(number)], f"call {number}"
        )
    say(f"16 calls of 25 items side by side: {seconds:.2f} s, {400 / seconds:.0f} per second, none mixed up")


# --- code ---

ADD = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
ADD_TESTS = {"tests": ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]"]}
PRINT_SUM = {"stdin_tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "10 -4\n", "output": "6"}]}


def block(code: str) -> str:
    return f"Thinking.\n```python\n{code}\n```\n"


# Answers that do not solve the task and try to be taken for right ones, or to do harm. Tested against ADD_TESTS (they
# define no working add) and, as programs, against PRINT_SUM.
ATTACKS_TEXT = r"""
## ends with status 0
import os
os._exit(0)
## exits
import sys
sys.exit(0)
## prints what a harness might
print('OK\nPASSED\n{"value": "3"}\n3')
def add(a, b): return None
## an object equal to everything
class Any:
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __hash__(self): return 3
    def __repr__(self): return '3'
    __str__ = __repr__
def add(a, b): return Any()
print(Any())
## an int that is equal to everything
class Any(int):
    def __eq__(self, o): return True
    def __repr__(self): return '3'
    __hash__ = int.__hash__
def add(a, b): return Any(7)
## a string that says it is an int
class Any(str):
    def __repr__(self): return '3'
    def __str__(self): return '3'
def add(a, b): return Any('x')
## writes replies into every descriptor
import os, threading, time
def spam():
    while True:
        for fd in range(3, 30):
            try: os.write(fd, b'{"nonce": "", "value": "3"}\n')
            except OSError: pass
        time.sleep(0.001)
threading.Thread(target=spam, daemon=True).start()
time.sleep(0.2)
def add(a, b): return None
## reads the harness's frames for what is expected
import sys, gc
seen = []
def add(a, b):
    frame = sys._getframe()
    while frame:
        seen.append(repr({k: v for k, v in frame.f_locals.items() if k != 'seen'})[:2000])
        frame = frame.f_back
    return 3 if any('== 3' in one for one in seen) else None
print('expected' in str(gc.get_objects())[:10])
## replaces what the harness uses
import builtins, json
json.dumps = lambda *a, **k: '{"value": "3"}'
builtins.bool = lambda x: True
builtins.repr = lambda x: '3'
builtins.print = lambda *a: None
def add(a, b): return 4
## sends code for a value
import sys
frame = sys._getframe()
def add(a, b):
    f = sys._getframe(1)
    while f and 'said' not in f.f_locals: f = f.f_back
    import json
    old = json.dumps
    json.dumps = lambda w: old({**w, 'value': "type('E', (), {'__eq__': lambda s, o: True})()"})
    return 4
## an endless loop
while True: pass
## sleeps until the deadline
import time
time.sleep(600)
## a fork bomb
import os
while True:
    try: os.fork()
    except OSError: pass
## a bomb of threads
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(600,)).start()
    except RuntimeError: pass
## 10 GB
held = bytearray(10 << 30)
for i in range(0, len(held), 4096): held[i] = 1
## memory bit by bit
held = []
while True: held.append(bytes(1 << 20))
## endless output
import sys
while True: sys.stdout.write('x' * 65536)
## endless output on standard error
import sys
while True: sys.stderr.write('x' * 65536)
## fills the disk
held = b'x' * (1 << 20)
n = 0
while True:
    with open(f'f{n}', 'wb') as f:
        for _ in range(1000): f.write(held)
    n += 1
## writes to /etc
open('/etc/owned-by-answer', 'w').write('x')
## writes to /usr
open('/usr/owned-by-answer', 'w').write('x')
## kill(-1)
import os, signal
os.kill(-1, signal.SIGKILL)
os.kill(0, signal.SIGKILL)
## a daemon that survives
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print('x')
## crashes
import ctypes
ctypes.string_at(0)
## recurses
import sys
sys.setrecursionlimit(10 ** 9)
def f(x): return f(x) + 1
f(0)
## a value without end
def add(a, b):
    while True: yield 1
## a huge value
def add(a, b): return 'x' * (1 << 28)
## a value that contains itself
def add(a, b):
    x = []
    x.append(x)
    return x
## a value nested deeply
def add(a, b):
    x = 3
    for _ in range(5000): x = [x]
    return x
## takes privileges
import os
os.setuid(0)
## makes namespaces of its own
import ctypes, os
if ctypes.CDLL(None).unshare(0x30020000): raise SystemExit('refused')
if os.fork() == 0:
    import time
    time.sleep(600)
## not Python
this is no Python
"""
ATTACKS = {
    name: code.strip("\n") + "\n"
    for name, code in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", ATTACKS_TEXT, re.MULTILINE)
}
ATTACKS["no UTF-8"] = "x = '\udcff'\ndef add(a, b): return x"

# Programs that look for a way out and print what they found.
LOOKS_AROUND = """
import os, socket
found = []
def attempt(what, do):
    try:
        do()
        found.append(what)
    except Exception:
        pass
attempt("the grader over TCP", lambda: socket.create_connection(("127.0.0.1", {port}), 1))
attempt("an abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\\0{abstract}"))
attempt("the grader's files", lambda: open({file!r}).read())
attempt("a file of the user's", lambda: open({secret!r}).read())
attempt("the password file", lambda: open("/etc/shadow").read())
attempt("the grader's process", lambda: os.kill({pid}, 0) if {pid} != os.getpid() else 1 / 0)
pids = [p for p in os.listdir("/proc") if p.isdigit()]
attempt("environments", lambda: [p for p in pids if b"GRADERS_TEST" in open(f"/proc/{{p}}/environ", "rb").read()][0])
attempt("other processes", lambda: [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()][0])
attempt("variables", lambda: [k for k in os.environ if k not in ("HOME", "TMPDIR", "PATH", "LC_CTYPE")][0])
attempt("something in the temporary folder", lambda: [f for f in os.listdir(".") if f != "answer.py"][0])
attempt("writing beside it", lambda: open("/here", "w"))
attempt("being root", lambda: [1][os.getuid() != 0])
attempt("a core dump", lambda: [1][__import__("resource").getrlimit(4)[1] == 0])
attempt("mounting", lambda: [1][__import__("ctypes").CDLL(None).mount(b"x", b"/tmp", b"tmpfs", 0, None) != 0])
attempt("tracing", lambda: [1][__import__("ctypes").CDLL(None).ptrace(16, {pid}, 0, 0) != 0])
open("left-behind", "w").write("x")
print(found)
"""


def code(_: argparse.Namespace) -> None:
    print("the grader of code")
    options = ["--workers", "2", "--item-seconds", "4", "--max-body-mib", "1"]
    with Grading("code_tests_grader.py", *options) as grader:
        say(re.sub(r"^\S+ ", "", grader.log.strip()))
        serves_protocol(grader, ADD_TESTS, right=ADD, wrong=ADD.replace("a + b", "a - b"), body_mib=1)
        judges_code(grader)
        is_attacked(grader)
        looks_around(grader)
        code_hangs(grader)
        code_is_killed(grader)
        carries_code(grader)
    with Grading("code_tests_grader.py", "--item-seconds", "1", "--over-limit", "limit") as grader:
        results = grader.call(
            [item(what, block(ATTACKS[what]), ADD_TESTS) for what in ("an endless loop", "10 GB", "exits")]
        )
        expect([result["verdict"] for result in results.values()], ["limit", "limit", "wrong"], "--over-limit limit")
        say("--over-limit limit: a loop and 10 GB are limit, a failed test stays wrong")


def judges_code(grader: Grading) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("print(sum(map(int, input().split())))", PRINT_SUM, "correct"),
        ("print(sum(map(int, input().split())), end='  \\n\\n\\n')", PRINT_SUM, "correct"),
        ("if __name__ == '__main__':\n    print(sum(map(int, input().split())))\n    exit()", PRINT_SUM, "correct"),
        ("print(3)", PRINT_SUM, "wrong"),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", PRINT_SUM, "wrong"),
        ("def add(a, b): return a + b\nif __name__ == '__main__': print(add(*input()))", ADD_TESTS, "correct"),
        ("def sub(a, b): return a - b", ADD_TESTS, "wrong"),
        (
            "import math\ndef area(r): return math.pi * r * r",
            {"tests": ["assert math.isclose(area(1), 3.14159265, rel_tol=1e-6)"]},
            "correct",
        ),
        ("def area(r): return 3.1", {"tests": ["assert abs(area(1) - 3.14159) < 1e-3"]}, "wrong"),
        (
            "class Zero(float):\n    def __sub__(self, o): return 0.0\n    def __abs__(self): return 0.0\n"
            "def area(r): return Zero()",
            {"tests": ["assert abs(area(1) - 3.14159) < 1e-3"]},
            "wrong",
        ),
        (
            "import math, builtins\nmath.isclose = lambda *a, **k: True\nbuiltins.abs = lambda x: 0\n"
            "def area(r): return 1.0",
            {"tests": ["assert math.isclose(area(1), 3.14159265)", "assert abs(area(1) - 3.14) < 0.01"]},
            "wrong",
        ),
        (
            "def both(a, b): return set(a) & set(b)",
            {"tests": ["assert both((1, 2), (2, 3)) == {2}", "assert both('', '') == set()"]},
            "correct",
        ),
        (
            "def both(a, b): return tuple(x for x in a if x in b)",
            {"tests": ["assert set(both((1, 2), (2, 3))) == set((2,))"]},
            "correct",
        ),
        (
            "from collections import *\ndef count(s): return Counter(s)",
            {"tests": ["assert count('aab') == {'a': 2, 'b': 1}"]},
            "correct",
        ),
        (
            "def evens(n):\n    for i in range(0, n, 2): yield i",
            {"tests": ["assert list(evens(5)) == [0, 2, 4]"]},
            "correct",
        ),
        (
            "from fractions import Fraction\ndef half(): return Fraction(1, 2)",
            {"tests": ["assert half() == 0.5", "assert half() * 4 == 2"]},
            "correct",
        ),
        ("def nothing(x): pass", {"tests": ["assert nothing(1) is None", "assert not nothing(2)"]}, "correct"),
        (
            "def is_even(n): return n % 2 == 0",
            {"tests": ["assert is_even(2)", "assert not is_even(3)", "assert is_even(4) is True"]},
            "correct",
        ),
        ("def is_even(n): return 1 - n % 2", {"tests": ["assert is_even(4) is True"]}, "wrong"),
        ("def inf(): return float('inf')", {"tests": ["assert inf() == float('inf')", "assert -inf() < 0"]}, "correct"),
        ("def nan(): return float('nan')", {"tests": ["assert math.isnan(nan())"]}, "correct"),
        ("def sort(xs): xs.sort()", {"tests": ["xs = [3, 1]\nsort(xs)\nassert xs == [1, 3]"]}, "correct"),
        ("def sort(xs): pass", {"tests": ["xs = [3, 1]\nsort(xs)\nassert xs == [1, 3]"]}, "wrong"),
        ("def one(): return 1\nimport sys\nwanted = 1", {"tests": ["wanted = 2", "assert one() == wanted"]}, "wrong"),
        ("def max(xs): return 0", {"tests": ["assert max([1, 2]) == 2"]}, "wrong"),
        (
            "class Stack:\n    def __init__(self): self.items = []\n"
            "    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()",
            {"tests": ["s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert len(s.items) == 1"]},
            "correct",
        ),
        (
            "def has(xs, t):\n    return any(abs(a - b) < t for i, a in enumerate(xs) for b in xs[i + 1:])",
            {
                "tests": [
                    "def check(candidate):\n"
                    "    assert candidate([1.0, 2.0], 0.5) == False\n    assert candidate([1.0, 1.1], 0.5)\n",
                    "check(has)",
                ]
            },
            "correct",
        ),
        ("def f(x): return x", {"tests": ["for i in range(3):\n    assert f(i) == i"]}, "bad_gold"),
        ("def f(x): return x", {"tests": ["for i in range(3):\n    assert f(i) == i"], "in_process": True}, "correct"),
        ("def f(x): return 1", {"tests": ["for i in range(3):\n    assert f(i) == i"], "in_process": True}, "wrong"),
        ("def f(x): return x", {"tests": ["assert f(1) =="]}, "bad_gold"),
        ("def f(x): return x", {"tests": ["assert True"]}, "bad_gold"),
        ("def f(x): return x", {"tests": []}, "bad_gold"),
        ("def f(x): return x", {"tests": ["assert f(1) == 1"], "stdin_tests": []}, "bad_gold"),
        ("def f(x): return x", {"stdin_tests": [{"input": "1"}]}, "bad_gold"),
        ("def f(x): return x", None, "bad_gold"),
        ("def f(x): return x", {"tests": ["assert f(1) == 1"], "setup": 3}, "bad_gold"),
    ]
    results = grader.call([item(str(number), block(text), data) for number, (text, data, _) in enumerate(cases)])
    for number, (text, data, wanted) in enumerate(cases):
        assert results[str(number)].get("verdict") == wanted, (
            f"{text!r} by {data!r}: {results[str(number)]}, not {wanted}"
        )
    texts = {
        "no block": ("def add(a, b): return a + b", "no_answer"),
        "another language": ("```js\nfunction add() {}\n```", "no_answer"),
        "no language": ("```\ndef add(a, b): return a + b\n```", "correct"),
        "the last one": (
            "```python\ndef add(a, b): return 0\n```\nBetter:\n"
            "```python\ndef add(a, b): return a + b\n```\n```\n3\n```",
            "correct",
        ),
        "without its end": ("```py\ndef add(a, b): return a + b\n", "correct"),
        "an empty one": ("```python\n```", "wrong"),
        "in a list": ("- so:\n  ```python\n  def add(a, b):\n      return a + b\n  ```", "correct"),
    }
    results = grader.call([item(what, text, ADD_TESTS) for what, (text, _) in texts.items()])
    for what, (_, wanted) in texts.items():
        expect(results[what]["verdict"], wanted, f"a block: {what}")
    say(f"{len(cases)} pairs of code and tests and {len(texts)} ways to write a block get the verdict that they should")


def is_attacked(grader: Grading) -> None:
    """Every attack is wrong, nothing is left of it, and what is beside it in the call is judged."""
    before = set(grader.descendants())
    for data, what in ((ADD_TESTS, "functions"), (PRINT_SUM, "programs")):
        items = [item(name, block(attack), data) for name, attack in ATTACKS.items()]
        honest = ADD if data is ADD_TESTS else block("print(sum(map(int, input().split())))")
        items = [one for n, attack in enumerate(items) for one in (attack, item(f"honest {n}", honest, data))]
        results, seconds = timed(functools.partial(grader.call, items, deadline_s=240))
        for name in ATTACKS:
            assert results[name].get("verdict") == "wrong", f"{name}: {results[name]}"
        counts = Counter(results[f"honest {n}"].get("verdict") for n in range(len(ATTACKS)))
        expect(counts, Counter(correct=len(ATTACKS)), "honest answers beside attacks")
        say(
            f"{len(ATTACKS)} attacks as {what}: all wrong; {len(ATTACKS)} honest answers beside them: all correct; "
            f"{seconds:.1f} s"
        )
    wait_until(lambda: set(grader.descendants()) <= before, 5, "the attacks' processes end")
    for path in ("/etc/owned-by-answer", "/usr/owned-by-answer", "/here"):
        assert not os.path.exists(path), path
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name == "answer.py" or name == "left-behind"]
    if os.geteuid() == 0:
        assert not [pid for pid in parents() if owner(pid) == 65534 and is_running(pid)], (
            "a process of nobody's is left"
        )
    say("no process and no file of theirs is left")


def owner(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def looks_around(grader: Grading) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as secret, socket.socket(socket.AF_UNIX) as abstract:
        os.chmod(secret.name, 0o644)
        name = f"graders-test-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        known = {
            "port": grader.address.rsplit(":", 1)[1],
            "file": str(GRADERS / "code_tests_grader.py"),
            "secret": secret.name,
        }
        text = block(LOOKS_AROUND.format(**known, pid=grader.process.pid, abstract=name))
        for _ in range(2):
            result = grader.call([item("1", text, {"stdin_tests": [{"input": "", "output": "[]"}]})])["1"]
            if result["verdict"] != "correct":
                # Which way was open: asked one by one.
                for line in re.findall(r'^attempt\("([^"]+)"', text, re.M):
                    shown = grader.call([item("1", text, {"stdin_tests": [{"input": "", "output": f"['{line}']"}]})])[
                        "1"
                    ]
                    assert shown["verdict"] != "correct", f"open from inside: {line}"
                raise AssertionError(f"more than one way is open from inside: {result}")
    say(
        f"from inside, none of {len(re.findall('^attempt', LOOKS_AROUND, re.M))} ways out is open, also on a second run"
    )


def code_hangs(grader: Grading) -> None:
    loops = [item(f"loop {n}", block("while True: pass"), ADD_TESTS) for n in range(5)]
    with meanwhile(lambda: timed(lambda: grader.call(loops + [item("honest", ADD, ADD_TESTS)]))) as hung:
        time.sleep(1.5)
        others = [timed(lambda: grader.call([item("1", ADD, ADD_TESTS)])) for _ in range(5)]
        results, seconds = hung()
    expect(
        Counter(result["verdict"] for result in results.values()),
        Counter(wrong=5, correct=1),
        "5 loops and an honest answer",
    )
    slowest = max(seconds for _, seconds in others)
    assert all(result["1"]["verdict"] == "correct" for result, _ in others) and slowest < PROMPT_S, slowest
    say(f"5 loops: wrong after {seconds:.1f} s; other calls meanwhile {slowest * 1000:.0f} ms at most")
    results, seconds = timed(lambda: grader.call(loops + [item("honest", ADD, ADD_TESTS)], deadline_s=3))
    expect(
        [results[f"loop {n}"].get("error") for n in range(5)] + [results["honest"].get("verdict")],
        ["deadline"] * 5 + ["correct"],
        "a deadline",
    )
    assert seconds < 3, seconds
    say(f"a deadline of 3 s, shorter than the limit: answered after {seconds:.2f} s")
    wait_until(lambda: not busiest(grader), 5, "the runs of a call that is over end")


def code_is_killed(grader: Grading) -> None:
    with meanwhile(
        lambda: grader.call([item("1", block("while True: pass"), ADD_TESTS), item("2", ADD, ADD_TESTS)])
    ) as result:
        wait_until(lambda: bool(busiest(grader)), 5, "it runs")
        program = busiest(grader, 0.2)[0]
        launcher = parents()[program]
        os.kill(launcher, signal.SIGKILL)
        results = result()
    assert "error" in results["1"] and "verdict" not in results["1"], results["1"]
    expect(results["2"]["verdict"], "correct", "the other item")
    wait_until(lambda: not is_running(program), 5, "the program of a killed launcher ends")
    say(f"a launcher killed from outside: {results['1']['error']!r}, no zero, and its program ends with it")


def carries_code(grader: Grading) -> None:
    items = [item(str(n), block(f"def add(a, b): return a + b if {n} % 2 else 0"), ADD_TESTS) for n in range(200)]
    results, seconds = timed(lambda: grader.call(items))
    expect(Counter(result["verdict"] for result in results.values()), Counter(correct=100, wrong=100), "200 items")
    say(f"200 items in one call: {seconds:.2f} s, {200 / seconds:.0f} per second")
    calls = [
        [item(str(n), block(f"def one(): return {n}"), {"tests": [f"assert one() == {number}"]}) for n in range(8)]
        for number in range(8)
    ]
    with ThreadPoolExecutor(8) as pool:
        answers, seconds = timed(lambda: list(pool.map(grader.call, calls)))
    for number, results in enumerate(answers):
        expect(
            [id for id, result in results.items() if result["verdict"] == "correct"], [str(number)], f"call {number}"
        )
    say(f"8 calls of 8 items side by side: {seconds:.2f} s, {64 / seconds:.0f} per second, none mixed up")


def user(_: argparse.Namespace) -> None:
    print("the grader of code as an ordinary user")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0:
        return say("skipped: the other parts run as an ordinary user already")
    if (
        python is None
        or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode != 0
    ):
        return say("skipped: no python3 of 3.11 or later that every user can run")
    with Grading("code_tests_grader.py", "--workers", "2", "--item-seconds", "4", python=python, user=12345) as grader:
        say(re.sub(r"^\S+ ", "", grader.log.strip()))
        judges_code(grader)
        is_attacked(grader)
        looks_around(grader)


def open_(_: argparse.Namespace) -> None:
    print("the grader of code without namespaces")
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    with Grading(
        "code_tests_grader.py", "--workers", "1", "--slow", "1", "--item-seconds", "3", "--allow-network", python=python
    ) as grader:
        say(re.sub(r"^\S+ ", "", grader.log.strip()))
        assert "WITHOUT namespaces" in grader.log
        judges_code(grader)
        before = set(grader.descendants())
        for name in (
            "ends with status 0",
            "an endless loop",
            "10 GB",
            "a daemon that survives",
            "endless output",
            "writes to /etc",
        ):
            if name == "writes to /etc" and os.geteuid() != 0:
                continue
            result = grader.call([item(name, block(ATTACKS[name]), ADD_TESTS)])[name]
            expect(result.get("verdict"), "wrong", name)
        wait_until(lambda: set(grader.descendants()) <= before, 5, "the attacks' processes end")
        say("attacks that limits alone contain are wrong, and nothing is left of them")
    if os.geteuid() != 0:
        return say("skipped: taking away a privilege, to see it refuse, needs root")
    # Where the kernel refuses namespaces, as to root in most containers, it must not start by itself. CAP_SYS_ADMIN is
    # dropped here.
    without = (
        "import ctypes, os, sys\nassert ctypes.CDLL(None).prctl(24, 21, 0, 0, 0) == 0\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [python, "-c", without, python, "-B", str(GRADERS / "code_tests_grader.py"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot be built" in done.stderr and "--allow-network" in done.stderr, done
    say(f"where the kernel refuses, it does not start: {done.stderr.strip()!r}")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "server": server,
    "math": math,
    "code": code,
    "user": user,
    "open": open_,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all without")
    parser.add_argument("--python", help="an interpreter that has math-verify")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; use {', '.join(PARTS)}")
    # Whatever happens, this ends.
    watchdog = threading.Timer(1800, lambda: (print("not done within 1800 s", flush=True), os._exit(1)))
    watchdog.daemon = True
    watchdog.start()
    for name, part in PARTS.items():
        if not arguments.parts or name in arguments.parts:
            part(arguments)
    print("all as it should be")


if __name__ == "__main__":
    main()
