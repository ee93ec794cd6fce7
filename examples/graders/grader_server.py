"""What the graders of this folder share: an HTTP/1.1 server that speaks adaroll's webhook protocol, and fair turns for
its items.

A grader is an object with three coroutines, see `Grader`. The smallest one:

    from grader_server import Grader, main, verdict

    class Exact(Grader):
        async def grade(self, item, call):
            answer = item.text.strip()
            return verdict("correct" if answer == item.data["gold"] else "wrong", extracted=answer, rule="exact")

    main(Exact(), "Compares the whole answer with data.gold.")

Everything runs in one thread, on one asyncio loop: whatever takes longer than a few milliseconds belongs in a process
of its own (as in math_verify_grader.py and code_tests_grader.py) or, where it cannot hang, in `asyncio.to_thread`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http
import json
import math
import os
import signal
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

# The verdicts that the protocol knows. The server takes the reward from them where none is given: 1 for correct, 0 for
# wrong and no_answer; the other two say that there is nothing to score.
VERDICTS = ("correct", "wrong", "no_answer", "bad_gold", "limit")

# Used where a call names no deadline, in seconds.
DEFAULT_DEADLINE_S = 30.0
# A longer one is cut to this, in seconds.
MAX_DEADLINE_S = 24 * 3600.0
# Of the head of a request, in bytes.
MAX_HEAD_BYTES = 16 << 10
# A client may leave a connection idle for so long, in seconds: longer than clients keep theirs, so that they close
# first.
IDLE_SECONDS = 120.0
# The head, the body and the answer of a call may each take so long on the wire, in seconds.
WIRE_SECONDS = 30.0
# What a caller is told to wait before it asks again, in seconds.
RETRY_AFTER_S = 1
# How much of an answer's text or of an explanation is sent back, in characters.
SHOWN_CHARS = 200


def verdict(
    name: str, *, extracted: str | None = None, rule: str | None = None, why: str | None = None
) -> dict[str, Any]:
    """What became of one item: one of `VERDICTS`, what was found in the answer, which rule decided, and, for people,
    why."""
    if name not in VERDICTS:
        raise ValueError(f"{name!r} is no verdict; use one of {', '.join(VERDICTS)}")
    told = {"verdict": name, "extracted": extracted, "rule": rule, "why": why}
    return {key: value if key == "verdict" else value[:SHOWN_CHARS] for key, value in told.items() if value is not None}


def failed(why: str) -> dict[str, Any]:
    """The item could not be judged, through no fault of the answer: the server asks again, and never takes it for a
    zero."""
    return {"error": why[:SHOWN_CHARS]}


@dataclass(frozen=True)
class Item:
    """One answer to judge. `data` is what the reward of the request gave, `metadata` what its prompt did; both are any
    JSON."""

    id: str
    text: str
    data: Any = None
    metadata: Any = None
    job_id: str = ""
    prompt_id: str = ""
    index: int = 0


@dataclass(eq=False)
class Call:
    """One POST. `until` is when it must be answered, on the clock of `time.monotonic()`."""

    until: float


class Grader:
    """What a grader is. Only `grade` has to be there."""

    async def start(self) -> None:
        """Called once, before the first connection is taken."""

    async def grade(self, item: Item, call: Call) -> dict[str, Any]:
        """Judges one item: `verdict(...)` or `failed(...)`. Items of a call and calls run side by side. It is cancelled
        at the call's deadline or when the caller is gone, and must then leave nothing running. An exception becomes
        `failed(...)`."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Called once, after the last call, and where `start` failed."""


def core_seconds(pid: int) -> float | None:
    """How long a process's main thread, and those of its descendants, have had a core; None where the kernel does not
    tell."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            ran = int(file.read().split()[0]) / 1e9
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return ran + sum(core_seconds(int(child)) or 0.0 for child in file.read().split())
    except (OSError, ValueError, IndexError):
        return None


@dataclass
class Turn:
    """What `Slots` and a job tell each other. The job may set `ran`, which says how many seconds it has had a core, and
    `when_slow`, which is called when it is found to be slow. `slow`: it is."""

    slow: bool
    ran: Callable[[], float | None] | None = None
    when_slow: Callable[[], None] | None = None

    def is_slow(self, elapsed: float, quick_seconds: float) -> bool:
        """Whether a job that has taken `elapsed` seconds is; on a busy machine it may have spent them waiting for a
        core."""
        if elapsed < quick_seconds:
            return False
        ran = self.ran() if self.ran is not None else None
        return ran is None or ran >= quick_seconds / 2 or elapsed >= 4 * quick_seconds


class _Places:
    """A number of places, given to the calls that wait in turn."""

    def __init__(self, count: int) -> None:
        self.free = count
        # For each call its items that wait; the call whose turn is next comes first.
        self.waiting: OrderedDict[Call, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, call: Call) -> None:
        if self.take_now():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(call, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back()
            raise

    def take_now(self) -> bool:
        """Takes a place if one is free. Nobody is passed over: places are free only when nobody waits."""
        if not self.free:
            return False
        self.free -= 1
        return True

    def give_back(self) -> None:
        while self.waiting:
            call, places = self.waiting.popitem(last=False)
            while places and places[0].done():  # Cancelled while it waited.
                places.popleft()
            if places:
                places.popleft().set_result(None)
                if places:
                    self.waiting[call] = places
                return
        self.free += 1


class Slots:
    """At most `quick` jobs run at once, and calls take turns, so that a call of 200 items does not hold up one of 2.

    A job that has run for `quick_seconds` (see `Turn.is_slow`) is slow, and gives its place to the next. It goes on
    aside if fewer than `slow` jobs are there; otherwise it is cancelled, waits for a place there, and starts again.
    Answers that hang, however many, therefore hold up only each other, and no more than `quick + slow` jobs run at
    once.
    """

    def __init__(self, quick: int, slow: int, quick_seconds: float) -> None:
        self.quick = _Places(quick)
        self.slow = _Places(slow)
        self.quick_seconds = quick_seconds

    async def run(self, call: Call, job: Callable[[Turn], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
        """The job's result. A cancelled job must clean up behind itself, and it may be started a second time."""
        await self.quick.take(call)
        places: _Places | None = self.quick
        turn = Turn(slow=False)
        running = asyncio.ensure_future(job(turn))
        try:
            started = time.monotonic()
            while not running.done() and not turn.is_slow(time.monotonic() - started, self.quick_seconds):
                left = started + self.quick_seconds - time.monotonic()
                await asyncio.wait([running], timeout=max(left, self.quick_seconds / 4))
            if not running.done():
                if self.slow.take_now():
                    self.quick.give_back()
                    places, turn.slow = self.slow, True
                    if turn.when_slow is not None:
                        turn.when_slow()
                else:
                    await _cancelled(running)
                    self.quick.give_back()
                    places = None
                    await self.slow.take(call)
                    places = self.slow
                    running = asyncio.ensure_future(job(Turn(slow=True)))
            return await running
        finally:
            await _cancelled(running)
            if places is not None:
                places.give_back()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.wait([task])


class _Refused(Exception):
    """A request that gets no 200. `close`: what else is on the connection cannot be told apart."""

    def __init__(
        self, status: int, why: str, *, close: bool = False, retry_after_s: int | None = None, allow: str | None = None
    ) -> None:
        super().__init__(why)
        self.status, self.why, self.close = status, why, close
        self.headers: list[tuple[str, str]] = []
        if retry_after_s is not None:
            self.headers.append(("Retry-After", str(retry_after_s)))
        if allow is not None:
            self.headers.append(("Allow", allow))


class _Gone(Exception):
    """The client closed the connection or left it idle."""


@dataclass(frozen=True)
class Settings:
    """What the command line says about serving; sizes in bytes, times in seconds."""

    host: str
    port: int
    max_calls: int
    max_connections: int
    max_body_bytes: int
    stop_seconds: float


def read_call(body: bytes, received: float) -> tuple[Call, list[Item]]:
    """Reads a call's body. Unknown fields are ignored; what cannot be read is a 400 that says where and why."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(told, dict) or not isinstance(told.get("items"), list):
        raise _Refused(
            400,
            'the body must be an object with "items", a list; '
            'for example {"deadline_s": 30, "items": [{"id": "1", "text": "42"}]}',
        )
    deadline_s = told.get("deadline_s", DEFAULT_DEADLINE_S)
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, (int, float)) or not (0 < deadline_s < math.inf):
        raise _Refused(400, "deadline_s must be a number of seconds above 0")
    items = [_read_item(index, item) for index, item in enumerate(told["items"])]
    twice = [id for id, count in Counter(item.id for item in items).items() if count > 1]
    if twice:
        raise _Refused(400, f"the id {twice[0]!r} is given to more than one item; answers are matched by it")
    deadline_s = min(deadline_s, MAX_DEADLINE_S)
    # Something is left for the way back: an answer that comes after the deadline is no answer.
    margin_s = min(1.0, 0.1 * deadline_s)
    return Call(until=received + deadline_s - margin_s), items


def _read_item(index: int, item: Any) -> Item:
    where = f"items[{index}]"
    if not isinstance(item, dict):
        raise _Refused(400, f"{where} must be an object")
    for name in ("id", "text"):
        if not isinstance(item.get(name), str):
            raise _Refused(400, f"{where}.{name} must be a string" + ("" if name in item else "; it is missing"))
    index_in_group = item.get("index", 0)

    def text_or_empty(name: str) -> str:
        return item[name] if isinstance(item.get(name), str) else ""

    return Item(
        id=item["id"],
        text=item["text"],
        data=item.get("data"),
        metadata=item.get("metadata"),
        job_id=text_or_empty("job_id"),
        prompt_id=text_or_empty("prompt_id"),
        index=index_in_group if isinstance(index_in_group, int) else 0,
    )


@dataclass
class _Request:
    method: str
    target: str
    headers: dict[str, str]
    keep_alive: bool
    received: float


class Server:
    """Serves one grader. `run` returns after SIGTERM or SIGINT, when the calls that were running have been answered or
    `stop_seconds` have passed."""

    def __init__(self, grader: Grader, settings: Settings) -> None:
        self.grader = grader
        self.settings = settings
        self.calls = 0
        self.connections: dict[asyncio.Task[None], bool] = {}  # True while it is busy with a request.
        self.stopping = False

    async def run(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await self.grader.start()
            listener = await asyncio.start_server(
                self._connected, self.settings.host, self.settings.port, backlog=512, limit=MAX_HEAD_BYTES
            )
            host, port = listener.sockets[0].getsockname()[:2]
            print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
            await stop.wait()
            log("stopping: no new calls; waiting for those that run")
            self.stopping = True
            listener.close()
            for connection, busy in self.connections.items():
                if not busy:
                    connection.cancel()
            if self.connections:
                await asyncio.wait(self.connections, timeout=self.settings.stop_seconds)
            for connection in self.connections:
                connection.cancel()
            await asyncio.gather(*self.connections, return_exceptions=True)
        finally:
            await self.grader.stop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        crowded = len(self.connections) >= self.settings.max_connections
        self.connections[task] = False
        peer = writer.get_extra_info("peername") or ("?", 0)
        try:
            if crowded:
                busy = _Refused(503, "too many connections", close=True, retry_after_s=RETRY_AFTER_S)
                await self._answer(writer, 503, _error(busy), busy.headers, close=True)
                return
            while await self._exchange(task, reader, writer, f"{peer[0]}:{peer[1]}"):
                pass
        except (_Gone, ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # Cancelled only by `run`, when it stops.
        finally:
            del self.connections[task]
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> bool:
        """One request and its answer; says whether the connection can be used again."""
        self.connections[task] = False
        counted, what = "", "?"
        started = time.monotonic()
        try:
            request = await self._head(task, reader)
            started = request.received
            keep_alive, what = request.keep_alive, f"{request.method} {request.target[:SHOWN_CHARS]}"
            try:
                status, answer, headers, counted = await self._serve(request, reader, writer)
            except _Refused as refused:
                status, answer, headers, counted = refused.status, _error(refused), refused.headers, f" {refused.why}"
                keep_alive = keep_alive and not refused.close
            except (_Gone, ConnectionError):
                raise
            except Exception as error:  # A mistake here is no reason to let the caller wait.
                log(f"{peer} {what}: {type(error).__name__}: {error}")
                failure = _Refused(500, f"the grader failed: {type(error).__name__}")
                status, answer, headers, keep_alive = 500, _error(failure), [], False
        except _Refused as refused:
            status, answer, headers, counted, keep_alive = (
                refused.status,
                _error(refused),
                refused.headers,
                f" {refused.why}",
                False,
            )
        keep_alive = keep_alive and not self.stopping
        # The line is written before the answer, so that who has the answer finds the line.
        log(f"{peer} {what} {status}{counted} {time.monotonic() - started:.3f}s")
        await self._answer(writer, status, answer, headers, close=not keep_alive)
        if not keep_alive and status >= 400:
            await _linger(reader, writer)
        return keep_alive

    async def _head(self, task: asyncio.Task[None], reader: asyncio.StreamReader) -> _Request:
        try:
            # The first byte may take its time, what follows may not.
            first = await asyncio.wait_for(reader.read(1), IDLE_SECONDS)
            if not first:
                raise _Gone
            self.connections[task] = True
            received = time.monotonic()
            rest = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WIRE_SECONDS)
        except asyncio.IncompleteReadError:
            raise _Gone from None
        except asyncio.LimitOverrunError:
            raise _Refused(431, f"the head of the request is over {MAX_HEAD_BYTES} bytes", close=True) from None
        lines = (first + rest).decode("latin-1").strip("\r\n").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise _Refused(400, "no HTTP/1.1 request", close=True)
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            name, value = name.lower(), value.strip()
            if not colon or not name or name != name.strip():
                raise _Refused(400, "a header that cannot be read", close=True)
            if headers.get(name, value) != value and name in ("content-length", "transfer-encoding"):
                raise _Refused(400, f"{name} is given twice", close=True)
            headers[name] = value
        connection = headers.get("connection", "").lower()
        keep_alive = "close" not in connection if words[2] == "HTTP/1.1" else "keep-alive" in connection
        return _Request(words[0], words[1], headers, keep_alive, received)

    async def _serve(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes, list[tuple[str, str]], str]:
        """Status, body, headers and what the log says of the call."""
        path = request.target.partition("?")[0]
        busy = self.stopping or self.calls >= self.settings.max_calls
        if request.method != "POST" or busy:
            # The body is read and thrown away: the connection stays usable, and a busy grader holds no bodies.
            await self._body(request, reader, writer, keep=False)
        if request.method in ("GET", "HEAD"):
            if path not in ("/health", "/healthz"):
                raise _Refused(404, "POST calls here; GET /health says whether the grader runs")
            answer = json.dumps({"status": "stopping" if self.stopping else "ok", "calls": self.calls}).encode()
            return 200, b"" if request.method == "HEAD" else answer, [], ""
        if request.method != "POST":
            raise _Refused(405, "use POST", allow="POST, GET, HEAD")
        if busy:
            why = (
                "the grader is stopping"
                if self.stopping
                else f"{self.settings.max_calls} calls are being judged already"
            )
            raise _Refused(503, why, retry_after_s=RETRY_AFTER_S)
        self.calls += 1
        try:
            body = await self._body(request, reader, writer, keep=True)
            call, items = read_call(body, request.received)
            results = await self._judge(call, items, reader)
        finally:
            self.calls -= 1
        counts = Counter("error" if "error" in result else result.get("verdict", "scored") for result in results)
        counted = f" items={len(items)} " + " ".join(f"{name}={count}" for name, count in sorted(counts.items()))
        return 200, json.dumps({"items": results}).encode(), [], counted.rstrip()

    async def _body(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool
    ) -> bytes:
        """The body of the request, or nothing where it is not kept."""
        limit = self.settings.max_body_bytes
        too_big = _Refused(
            413, f"the body is over {limit} bytes (--max-body-mib); send fewer items per call", close=True
        )
        length, coding = request.headers.get("content-length"), request.headers.get("transfer-encoding")
        if coding is not None and (coding.lower() != "chunked" or length is not None):
            raise _Refused(
                400 if length is not None else 501,
                "only Transfer-Encoding: chunked, without Content-Length, is read",
                close=True,
            )
        if length is not None and not (length.isascii() and length.isdigit()):
            raise _Refused(400, "Content-Length is no number", close=True)
        if coding is None and length is None:
            if request.method == "POST":
                raise _Refused(411, "give Content-Length", close=True)
            return b""
        if length is not None and (len(length) > 18 or int(length) > limit):
            raise too_big
        if request.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(WIRE_SECONDS):
                taken = 0
                async for part in _chunks(reader) if length is None else _pieces(reader, int(length)):
                    taken += len(part)
                    if taken > limit:
                        raise too_big
                    if keep:
                        parts.append(part)
        except TimeoutError:
            raise _Refused(408, f"the body did not come within {WIRE_SECONDS:g} s", close=True) from None
        except asyncio.IncompleteReadError:
            raise _Gone from None
        return b"".join(parts)

    async def _judge(self, call: Call, items: list[Item], reader: asyncio.StreamReader) -> list[dict[str, Any]]:
        """One result per item, before the call's deadline."""
        tasks = [asyncio.create_task(self._judge_one(item, call)) for item in items]
        pending: set[asyncio.Task[dict[str, Any]]] = set(tasks)
        try:
            while pending and (left := call.until - time.monotonic()) > 0:
                _, pending = await asyncio.wait(pending, timeout=min(left, 0.5), return_when=asyncio.ALL_COMPLETED)
                if pending and reader.at_eof():
                    raise _Gone  # Nobody waits for the answer any more.
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        return [
            {"id": item.id, **(task.result() if task not in pending else failed("deadline"))}
            for item, task in zip(items, tasks, strict=True)
        ]

    async def _judge_one(self, item: Item, call: Call) -> dict[str, Any]:
        try:
            return await self.grader.grade(item, call)
        except Exception as error:
            log(f"item {item.id!r}: {type(error).__name__}: {error}")
            return failed(f"the grader failed: {type(error).__name__}: {error}")

    async def _answer(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, headers: list[tuple[str, str]], *, close: bool
    ) -> None:
        head = [
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        head += [f"{name}: {value}" for name, value in headers] + (["Connection: close"] if close else [])
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await asyncio.wait_for(writer.drain(), WIRE_SECONDS)


def _error(refused: _Refused) -> bytes:
    return json.dumps({"error": refused.why}).encode()


async def _pieces(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    while length:
        piece = await reader.read(min(length, 1 << 16))
        if not piece:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(piece)
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    bad = _Refused(400, "a chunk that cannot be read", close=True)
    try:
        while True:
            size = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
            if not size or len(size) > 8 or size.strip(b"0123456789abcdefABCDEF"):
                raise bad
            left = int(size, 16)
            if left == 0:
                while await reader.readuntil(b"\r\n") != b"\r\n":  # Trailers, which say nothing here.
                    pass
                return
            async for piece in _pieces(reader, left):
                yield piece
            if await reader.readexactly(2) != b"\r\n":
                raise bad
    except asyncio.LimitOverrunError:
        raise bad from None


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float = 2.0) -> None:
    """Reads on for a moment after a refusal. A connection closed while the client still sends would be reset, and the
    answer lost."""
    with contextlib.suppress(OSError, TimeoutError):
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(seconds):
            while await reader.read(1 << 16):
                pass


def log(line: str) -> None:
    """One line on standard error, with the time in UTC. Control characters of what clients sent are shown."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
    print(
        stamp,
        "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line),
        file=sys.stderr,
        flush=True,
    )


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every grader has. `description` teaches what this one judges and what it wants in `data`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (%(default)s: this machine alone; there is no password)",
    )
    made.add_argument(
        "--port",
        type=int,
        default=9000,
        help="port, 0 for a free one, which the first line of output names (%(default)s)",
    )
    made.add_argument(
        "--max-calls",
        type=positive,
        default=64,
        help="calls judged at once; more get 503 with Retry-After (%(default)s)",
    )
    made.add_argument(
        "--max-connections", type=positive, default=512, help="connections at once; more get 503 (%(default)s)"
    )
    made.add_argument(
        "--max-body-mib",
        type=positive_float,
        default=32.0,
        help="largest body of a call in MiB; larger ones get 413 (%(default)g)",
    )
    made.add_argument(
        "--stop-seconds",
        type=positive_float,
        default=20.0,
        help="after SIGTERM, how long calls may go on (%(default)g)",
    )
    return made


def add_slots(made: argparse.ArgumentParser, quick_seconds: float) -> None:
    """The options of graders that judge in processes. `quick_seconds`: what nearly all answers take less than."""
    made.add_argument("--workers", type=positive, default=cores(), help="items judged at once (%(default)s: the cores)")
    made.add_argument(
        "--slow",
        type=positive,
        help="how many more may go on beside them after --quick-seconds (twice --workers, at least 4)",
    )
    taught = "when an item gives its place to the next and goes on aside (%(default)g)"
    made.add_argument("--quick-seconds", type=positive_float, default=quick_seconds, help=taught)


def slots(arguments: argparse.Namespace) -> Slots:
    """What `add_slots` read."""
    return Slots(arguments.workers, arguments.slow or max(4, 2 * arguments.workers), arguments.quick_seconds)


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def positive_float(text: str) -> float:
    """A finite number above 0, for argparse."""
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def settings(arguments: argparse.Namespace) -> Settings:
    """What `parser` read about serving."""
    return Settings(
        host=arguments.host,
        port=arguments.port,
        max_calls=arguments.max_calls,
        max_connections=arguments.max_connections,
        max_body_bytes=int(arguments.max_body_mib * (1 << 20)),
        stop_seconds=arguments.stop_seconds,
    )


def serve(grader: Grader, arguments: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT. A port that is taken, or a grader that cannot start, ends the program with a
    message."""
    try:
        asyncio.run(Server(grader, settings(arguments)).run())
    except OSError as error:
        sys.exit(f"cannot serve: {error}")


def main(grader: Grader, description: str) -> None:
    """A whole program for a grader without options of its own."""
    serve(grader, parser(description).parse_args())
