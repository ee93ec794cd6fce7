#!/usr/bin/env python3
"""The HTTP interface against those who do not keep to it: schemathesis over /openapi.json, and bad requests by hand.

Needs target/release/adaroll; installs schemathesis into target/schemathesis with pip.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import venv
from collections import Counter
from pathlib import Path

from server import TARGET, VOCABULARY, Server

SCHEMATHESIS = "schemathesis==4.32.5"
EXAMPLES = 300
SECONDS = 240
# Pausing stops the jobs of every other operation, and /readyz then rightly answers 503: both are tried by hand instead.
LEFT_OUT = ["/v1/pause", "/v1/resume"]
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
]
NDJSON = {"Accept": "application/x-ndjson"}


def install():
    folder = TARGET / "schemathesis"
    python = folder / "bin" / "python"
    has = lambda: python.exists() and SCHEMATHESIS in subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True).stdout.split()
    if not has():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", SCHEMATHESIS], check=True)
    return folder / "bin" / "schemathesis"


def job(**changes):
    body = {
        "prompts": [{"text": "1 2 3", "reward": {"kind": "regex", "pattern": "[0-4]"}}],
        "strategy": {"kind": "uniform", "group_size": 2, "max_samples": 2},
        "sampling": {"max_tokens": 2},
    }
    return {**body, **changes}


def statuses(server):
    """Responses by status, as the server counts them."""
    text = server.request("GET", "/metrics")[2].decode()
    counts = Counter()
    for code, count in re.findall(r'^adaroll_http_request_seconds_count\{.*code="(\d+)".*\} (\d+)$', text, re.M):
        counts[code] += int(count)
    return counts


def routes(server):
    """Requests by route, as the server counts them."""
    text = server.request("GET", "/metrics")[2].decode()
    counts = Counter()
    for route, count in re.findall(r'^adaroll_http_request_seconds_count\{.*route="([^"]+)".*\} (\d+)$', text, re.M):
        counts[route] += int(count)
    return dict(sorted(counts.items()))


def start_known_jobs(server):
    """Two jobs for the fuzzer to find: one that is over, one whose samples wait for scores."""
    status, _, body = server.request("POST", "/v1/rollouts", job(job_id="done"), NDJSON)
    assert status == 200 and b'"end"' in body, body
    # Every token ends its sample: one that is cut at max_tokens is negative without a score.
    stops = {"max_tokens": 2, "stop_token_ids": list(range(VOCABULARY))}
    waiting = job(job_id="waiting", prompts=[{"text": "1 2 3", "reward": {"kind": "pull"}}], sampling=stops)
    assert server.request("POST", "/v1/rollouts", waiting)[0] == 202
    pending = server.request("GET", "/v1/rollouts/waiting/pending?wait_s=30")[2]
    assert json.loads(pending)["samples"], pending


def fuzz(server, schemathesis):
    hooks = Path(__file__).with_name("schemathesis_hooks.py")
    before = statuses(server)
    command = [schemathesis, "run", f"http://{server.address}/openapi.json", "--no-color", "--seed", "1", "--checks", ",".join(CHECKS)]
    command += ["--max-examples", str(EXAMPLES), "--max-time", str(SECONDS), "--continue-on-failure", "--generation-database", "none"]
    command += ["--request-timeout", "60", "--suppress-health-check", "all", "--warnings", "off", "--workers", "1"]
    command += [argument for path in LEFT_OUT for argument in ("--exclude-path", path)]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(hooks), "ADAROLL_JOBS": "done,waiting", "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.monotonic()
    ran = subprocess.run(command, env=environment, cwd=TARGET, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=2 * SECONDS)
    took = time.monotonic() - started
    (TARGET / "schemathesis.log").write_text(ran.stdout)
    counts = statuses(server)
    counts.subtract(before)
    counts = {code: count for code, count in sorted(counts.items()) if count}
    print(f"schemathesis {SCHEMATHESIS.split('==')[1]}, {took:.0f} s; requests by status, as the server counted them: {sum(counts.values())} in all, {counts}")
    print(f"  since the start, by route (methods that it does not have are counted there too): {routes(server)}")
    summary = ran.stdout[ran.stdout.rfind("= SUMMARY ") :] if "= SUMMARY " in ran.stdout else ran.stdout[-3000:]
    print("\n".join(f"  {line}" for line in summary.splitlines()[1:] if line.strip()))
    served_errors = {code: count for code, count in counts.items() if code.startswith("5")}
    assert not served_errors, f"5xx: {served_errors}; see target/schemathesis.log"
    assert ran.returncode == 0, f"{ran.stdout[-6000:]}\nschemathesis found something; see target/schemathesis.log"
    # Enough was tried, and enough of it was taken, for the silence to mean something.
    assert sum(counts.values()) > 5 * EXAMPLES and counts.get("202", 0) > 20, counts
    alive(server)


def alive(server):
    assert server.is_alive(), server.log.read_text(errors="replace")[-3000:]
    log = server.log.read_text(errors="replace")
    assert "panicked" not in log, log[log.index("panicked") - 200 :][:2000]
    status, _, body = server.request("POST", "/v1/rollouts", job(), NDJSON)
    assert status == 200 and json.loads(body.splitlines()[-1])["end"]["state"] == "done", body


def bad_requests():
    """Name, method, path, body, headers, what may be answered, and the field that must be named (None: none; ...: any or none)."""
    text = json.dumps(job())
    put = lambda field, raw: (f"{{{json.dumps(field)}: {raw}, " + text[1:]).encode()
    deep = lambda n: "[" * n + "]" * n
    deep_objects = lambda n: '{"a":' * n + "1" + "}" * n
    ten_400 = "1" + "0" * 400
    prompt = lambda inner: text.replace('"text": "1 2 3"', inner).encode()
    reward = lambda inner: json.dumps(job(prompts=[{"text": "1", "reward": "HERE"}])).replace('"HERE"', inner).encode()
    sampling = lambda inner: json.dumps(job(sampling="HERE")).replace('"HERE"', inner).encode()
    strategy = lambda inner: json.dumps(job(strategy="HERE")).replace('"HERE"', inner).encode()

    start = [
        # Not JSON.
        ("empty body", b"", 400, None),
        ("blank body", b" \n\t ", 400, None),
        ("no body of JSON", b"hello", 400, None),
        ("cut off", text.encode()[:-1], 400, ...),
        ("cut off in a string", text.encode()[:30], 400, ...),
        ("trailing comma", text.encode()[:-1] + b",}", 400, ...),
        ("two values", text.encode() + text.encode(), 400, None),
        ("single quotes", b"{'prompts': []}", 400, None),
        ("comment", b'{"prompts": [] /* none */}', 400, ...),
        ("NaN", put("deadline_s", "NaN"), 400, "deadline_s"),
        ("Infinity", put("deadline_s", "-Infinity"), 400, "deadline_s"),
        ("leading zero", put("seed", "01"), 400, ...),
        ("hexadecimal", put("seed", "0x10"), 400, ...),
        ("control character in a string", b'{"prompts": "a\x00b"}', 400, "prompts"),
        ("lone surrogate", put("namespace", r'"\ud800"'), 400, "namespace"),
        ("byte order mark", b"\xef\xbb\xbf" + text.encode(), 400, None),
        ("UTF-16", text.encode("utf-16"), 400, None),
        ("gzip without saying so", b"\x1f\x8b\x08\x00\x00", 400, None),
        # Not UTF-8.
        ("0xff in a prompt", text.encode().replace(b"1 2 3", b"1 \xff 3"), 400, "prompts[0].text"),
        ("overlong form", text.encode().replace(b"1 2 3", b"\xc0\xaf"), 400, "prompts[0].text"),
        ("surrogate in UTF-8", text.encode().replace(b"1 2 3", b"\xed\xa0\x80"), 400, "prompts[0].text"),
        ("cut within a character", text.encode().replace(b"1 2 3", b"\xe2\x82"), 400, "prompts[0].text"),
        ("0xff in a key", b'{"\xff": 1}', 400, None),
        # Nesting.
        ("100,000 arrays", deep(100_000).encode(), (400, 422), None),
        ("100,000 objects", deep_objects(100_000).encode(), (400, 422), ...),
        ("100,000 open arrays", b"[" * 100_000, (400, 422), None),
        ("100,000 arrays in metadata", prompt('"text": "1", "metadata": {"a": ' + deep(100_000) + "}"), 400, "prompts[0].metadata"),
        ("100,000 arrays in a message", prompt('"messages": [{"role": "user", "content": ' + deep(100_000) + "}]"), 400, "prompts[0].messages"),
        ("100,000 objects in a JSON schema", reward('{"kind": "json", "schema": ' + deep_objects(100_000) + "}"), 400, "prompts[0].reward"),
        ("100,000 arrays in webhook data", reward('{"kind": "webhook", "url": "http://a/", "data": ' + deep(100_000) + "}"), 400, "prompts[0].reward"),
        ("100,000 arrays as the strategy", strategy(deep(100_000)), 400, "strategy"),
        ("100,000 arrays as prompts", b'{"prompts": ' + deep(100_000).encode() + b"}", (400, 422), "prompts[0]"),
        ("100,000 arrays in an unknown field", put("colour", deep(100_000)), (400, 422), "colour"),
        ("100,000 brackets in a pattern", reward('{"kind": "regex", "pattern": "' + "(" * 100_000 + '"}'), 422, "prompts[0].reward.pattern"),
        # Numbers.
        ("seed 1e999", put("seed", "1e999"), 422, "seed"),
        ("seed -1e999", put("seed", "-1e999"), 422, "seed"),
        ("seed 10^400", put("seed", ten_400), 422, "seed"),
        ("seed 2^64", put("seed", str(2**64)), 422, "seed"),
        ("seed -1", put("seed", "-1"), 422, "seed"),
        ("seed 1.5", put("seed", "1.5"), 422, "seed"),
        ("weights 10^400", put("weights", ten_400), 422, "weights"),
        ("weights 1e999", put("weights", "1e999"), 422, "weights"),
        ("weights that are not there", put("weights", "7"), 409, "weights"),
        ("deadline 1e999", put("deadline_s", "1e999"), 422, "deadline_s"),
        ("deadline 10^400", put("deadline_s", ten_400), 422, "deadline_s"),
        ("deadline 1e308", put("deadline_s", "1e308"), 422, "deadline_s"),
        ("deadline 0", put("deadline_s", "0"), 422, "deadline_s"),
        ("priority 10^400", put("priority", ten_400), 422, "priority"),
        ("priority 2^63", put("priority", str(2**63)), 422, "priority"),
        ("temperature 1e999", sampling('{"temperature": 1e999}'), 422, "sampling.temperature"),
        ("temperature 10^400", sampling('{"temperature": ' + ten_400 + "}"), 422, "sampling.temperature"),
        ("temperature 1e39, above f32", sampling('{"temperature": 1e39}'), 422, "sampling.temperature"),
        ("temperature 1e-9", sampling('{"temperature": 1e-9}'), 422, "sampling.temperature"),
        ("top_p 1e-400", sampling('{"top_p": 1e-400}'), 422, "sampling.top_p"),
        ("max_tokens 10^400", sampling('{"max_tokens": ' + ten_400 + "}"), 422, "sampling.max_tokens"),
        ("max_tokens 2^32 - 1", sampling('{"max_tokens": 4294967295}'), 422, "sampling.max_tokens"),
        ("logit_bias 1e999", sampling('{"logit_bias": [[1, 1e999]]}'), 422, "sampling.logit_bias[0][1]"),
        ("token 10^400", prompt('"token_ids": [1, ' + ten_400 + "]"), 422, "prompts[0].token_ids[1]"),
        ("token 2^32", prompt('"token_ids": [4294967296]'), 422, "prompts[0].token_ids[0]"),
        ("token behind the vocabulary", prompt('"token_ids": [1, 2, 4294967295]'), 422, "prompts[0].token_ids[2]"),
        ("token -1", prompt('"token_ids": [-1]'), 422, "prompts[0].token_ids[0]"),
        ("group_size 10^400", strategy('{"group_size": ' + ten_400 + "}"), 422, "strategy.group_size"),
        ("max_samples 2^32", strategy('{"max_samples": 4294967296}'), 422, "strategy.max_samples"),
        ("budget 1e999", strategy('{"budget": 1e999}'), 422, "strategy.budget"),
        ("positive_above 1e999", strategy('{"positive_above": 1e999}'), 422, "strategy.positive_above"),
        ("pull timeout 1e999", reward('{"kind": "pull", "timeout_s": 1e999}'), 422, "prompts[0].reward.timeout_s"),
        ("pull timeout -1", reward('{"kind": "pull", "timeout_s": -1}'), 422, "prompts[0].reward.timeout_s"),
        ("a number of 1 MB", put("seed", "9" * 1_000_000), 422, "seed"),
        ("metadata 1e999", prompt('"text": "1", "metadata": {"a": 1e999}'), 422, "prompts[0].metadata"),
        # Types and shapes.
        ("a list", b"[]", 422, None),
        ("null", b"null", 422, None),
        ("a string", b'"prompts"', 422, None),
        ("no prompts", b"{}", 422, "prompts"),
        ("prompts null", b'{"prompts": null}', 422, "prompts"),
        ("prompts an object", b'{"prompts": {}}', 422, "prompts"),
        ("prompts empty", b'{"prompts": []}', 422, "prompts"),
        ("too many prompts", json.dumps({"prompts": [0] * 100_000}).encode(), 422, "prompts[0]"),
        ("a prompt too many", json.dumps(job(prompts=job()["prompts"] * 5)).encode(), 422, "prompts"),
        ("a prompt that is null", b'{"prompts": [null]}', 422, "prompts[0]"),
        ("unknown field", put("colour", '"red"'), 422, "colour"),
        ("unknown field of a prompt", prompt('"text": "1", "colour": 1'), 422, "prompts[0].colour"),
        ("a field twice", text.encode()[:-1] + b', "prompts": []}', 422, "prompts"),
        ("a key twice in metadata", prompt('"text": "1", "metadata": {"a": 1, "a": 2}'), 422, "prompts[0].metadata"),
        ("text and token_ids", prompt('"text": "1", "token_ids": [1]'), 422, "prompts[0]"),
        ("text a number", prompt('"text": 1'), 422, "prompts[0].text"),
        ("messages of strings", prompt('"messages": ["hello"]'), 422, "prompts[0].messages[0]"),
        ("a message without content", prompt('"messages": [{"role": "user"}]'), 422, "prompts[0].messages"),
        ("an id of 2,000 bytes", prompt('"text": "1", "id": "' + "x" * 2000 + '"'), 422, "prompts[0].id"),
        ("a prompt above the context", prompt('"token_ids": ' + json.dumps([1] * 100_000)), 422, "prompts[0].token_ids"),
        ("seed a string", put("seed", '"7"'), 422, "seed"),
        ("seed true", put("seed", "true"), 422, "seed"),
        ("bad_gold a list", put("bad_gold", "[]"), 422, "bad_gold"),
        ("order a number", put("order", "1"), 422, "order"),
        ("namespace a list", put("namespace", "[]"), 422, "namespace"),
        ("job_id a path", put("job_id", '"../../etc/passwd"'), 422, "job_id"),
        ("job_id with NUL", put("job_id", r'"a\u0000b"'), 422, "job_id"),
        ("sampling a list", sampling("[1.0]"), 422, "sampling"),
        ("max_tokens a string", sampling('{"max_tokens": "2"}'), 422, "sampling.max_tokens"),
        ("stop a string", sampling('{"stop": "x"}'), 422, "sampling.stop"),
        ("strategy unknown", strategy('{"kind": "luck"}'), 422, "strategy.kind"),
        ("reward missing", b'{"prompts": [{"text": "1"}]}', 422, "prompts[0].reward"),
        ("reward unknown", reward('{"kind": "luck"}'), 422, "prompts[0].reward.kind"),
        ("a gold that is a placeholder", reward('{"kind": "math", "answer": "todo"}'), 422, "prompts[0].reward.answer"),
        ("a webhook to a host that is not listed", reward('{"kind": "webhook", "url": "http://127.0.0.1:1/"}'), 422, "prompts[0].reward.url"),
        ("a webhook to a file", reward('{"kind": "webhook", "url": "file:///etc/passwd"}'), 422, "prompts[0].reward.url"),
        ("a schema that is none", reward('{"kind": "json", "schema": {"type": "luck"}}'), 422, "prompts[0].reward.schema"),
        ("a schema from elsewhere", reward('{"kind": "json", "schema": {"$ref": "http://127.0.0.1:1/"}}'), 422, "prompts[0].reward.schema"),
    ]
    rows = [(name, "POST", "/v1/rollouts", body, {}, status, param) for name, body, status, param in start]

    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/octet-stream", "", "\xff", "application/jsonx"]:
        rows.append((f"content type {kind!r}", "POST", "/v1/rollouts", text.encode(), {"Content-Type": kind}, 415, None))
    big = {"Content-Length": str(100 << 20)}
    rows.append(("a header that announces 100 MB", "POST", "/v1/rollouts", None, big, 413, None))
    rows.append(("a header that announces 100 MB, for scores", "POST", "/v1/rollouts/waiting/scores", None, big, 413, None))
    rows.append(("a header that announces 100 MB, to score", "POST", "/v1/score", None, big, 413, None))
    rows.append(("a header that announces 10^30 bytes", "POST", "/v1/rollouts", None, {"Content-Length": "1" + "0" * 30}, (400, 413), ...))

    for cursor in ["x", "-1", "+1", "1.5", "1e999", ten_400, "", "%ff", "%00", "0x1", "18446744073709551616", "%EF%BC%91", "1&cursor=2", "null", "[]"]:
        for page in ["groups", "events"]:
            rows.append((f"{page} with cursor={cursor[:24]}", "GET", f"/v1/rollouts/done/{page}?cursor={cursor}", None, {}, 422, "cursor"))
    for limit in ["0", "1001", "-1", "x", ten_400]:
        for path in ["/v1/rollouts", "/v1/rollouts/done/groups", "/v1/rollouts/waiting/pending"]:
            rows.append((f"{path} with limit={limit[:24]}", "GET", f"{path}?limit={limit}", None, {}, 422, "limit"))
    rows.append(("pending with wait_s=61", "GET", "/v1/rollouts/waiting/pending?wait_s=61", None, {}, 422, "wait_s"))
    rows.append(("an unknown query", "GET", "/v1/rollouts/done/groups?page=1", None, {}, 422, "page"))

    for id in ["none", "%00", "%F0%9F%98%80", "..%2F..%2Fetc", "x" * 8000, "'%20OR%201=1"]:
        for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/groups"), ("GET", "/events"), ("GET", "/pending")]:
            rows.append((f"{method} of job {id[:20]}{path}", method, f"/v1/rollouts/{id}{path}", None, {}, 404, "id"))
    rows.append(("a job id that is not UTF-8", "GET", "/v1/rollouts/%ff", None, {}, 400, "id"))
    rows.append(("no route", "GET", "/v2/rollouts", None, {}, 404, None))
    rows.append(("no method", "PUT", "/v1/rollouts", b"{}", {}, 405, None))

    score = lambda inner: b'{"scores": [' + inner.encode() + b"]}"
    for name, body, param in [
        ("no scores", b"{}", "scores"),
        ("scores an object", b'{"scores": {}}', "scores"),
        ("a score of an unknown prompt", score('{"prompt_id": "9", "index": 0, "reward": 1}'), "scores[0].prompt_id"),
        ("a score of sample 10^400", score('{"prompt_id": "0", "index": ' + ten_400 + ', "reward": 1}'), "scores[0].index"),
        ("a score of sample 2", score('{"prompt_id": "0", "index": 2, "reward": 1}'), "scores[0].index"),
        ("a score of 1e999", score('{"prompt_id": "0", "index": 0, "reward": 1e999}'), "scores[0].reward"),
        ("a score of 10^400", score('{"prompt_id": "0", "index": 0, "reward": ' + ten_400 + "}"), "scores[0].reward"),
        ("a score that is a string", score('{"prompt_id": "0", "index": 0, "reward": "1"}'), "scores[0].reward"),
        ("a score and an error", score('{"prompt_id": "0", "index": 0, "reward": 1, "error": "x"}'), "scores[0].reward"),
        ("neither", score('{"prompt_id": "0", "index": 0}'), "scores[0].reward"),
    ]:
        rows.append((name, "POST", "/v1/rollouts/waiting/scores", body, {}, 422, param))
    rows.append(("a score for a job that is over", "POST", "/v1/rollouts/done/scores", score('{"prompt_id": "0", "index": 0, "reward": 1}'), {}, (409, 422), ...))
    rows.append(("scores nested 100,000 deep", "POST", "/v1/rollouts/waiting/scores", b'{"scores": ' + deep(100_000).encode() + b"}", {}, (400, 422), "scores[0]"))

    sequence = lambda ids, length: ('{"sequences": [{"token_ids": ' + ids + ', "prompt_len": ' + length + "}]}").encode()
    for name, body, param in [
        ("no sequences", b"{}", "sequences"),
        ("sequences empty", b'{"sequences": []}', "sequences"),
        ("a sequence of one token", sequence("[1]", "1"), "sequences[0].prompt_len"),
        ("prompt_len 0", sequence("[1, 2]", "0"), "sequences[0].prompt_len"),
        ("prompt_len 10^400", sequence("[1, 2]", ten_400), "sequences[0].prompt_len"),
        ("a token of 1e999", sequence("[1, 1e999]", "1"), "sequences[0].token_ids[1]"),
        ("a token behind the vocabulary", sequence("[1, 49152]", "1"), "sequences[0].token_ids[1]"),
        ("a sequence above the context", sequence(json.dumps([1] * 9000), "1"), "sequences[0].token_ids"),
        ("more sequences than the limit", json.dumps({"sequences": [{"token_ids": [1, 2], "prompt_len": 1}] * 5000}).encode(), "sequences"),
    ]:
        rows.append((name, "POST", "/v1/score", body, {}, 422, param))
    rows.append(("sequences nested 100,000 deep", "POST", "/v1/score", b'{"sequences": ' + deep(100_000).encode() + b"}", {}, (400, 422), "sequences[0]"))
    return rows


def send_raw(server, method, path, body, headers):
    """As request(), by hand: http.client would refuse some of the headers, or wait for a body that is never sent."""
    head = {"Host": server.address, "Connection": "close", **headers}
    if body is not None:
        head.setdefault("Content-Type", "application/json")
        head.setdefault("Content-Length", str(len(body)))
    text = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in head.items()) + "\r\n"
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(text.encode("latin-1") + (body or b""))
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode("latin-1").lower(), body


def by_hand(server):
    before, problems, seen = statuses(server), [], Counter()
    rows = bad_requests()
    for name, method, path, body, headers, expected, param in rows:
        try:
            status, head, answer = send_raw(server, method, path, body, headers)
        except OSError as error:
            problems.append(f"{name}: {error}")
            continue
        seen[status] += 1
        expected = expected if isinstance(expected, tuple) else (expected,)
        try:
            error = json.loads(answer)["error"]
            message, named = error["message"], error["param"]
            right = set(error) == {"code", "message", "param"} and error["code"] and 15 < len(message) < 700
        except (ValueError, KeyError, TypeError):
            message, named, right = answer[:200], None, status == 400 and not answer and "10^30" in name
        # A deep path may go on below the field.
        if param is not ... and not (named == param or (param and named and re.match(re.escape(param) + r"[.\[]", named))):
            right = False
        if status not in expected or not right:
            problems.append(f"{name}: {status}, param {named!r}, expected {expected} and {param!r}: {message[:300]!r}")
    print(f"{len(rows)} bad requests by hand, by status: {dict(sorted(seen.items()))}")
    assert not problems, "\n".join(problems)
    after = statuses(server)
    assert all(after[code] == before[code] for code in after if code.startswith("5")), after
    alive(server)


def pausing(server):
    """What the fuzzer leaves out."""
    state = lambda id: json.loads(server.request("GET", f"/v1/rollouts/{id}")[2])["state"]
    for _ in range(2):
        status, _, body = server.request("POST", "/v1/pause")
        assert (status, json.loads(body)) == (200, {"paused": True}), body
    status, headers, body = server.request("GET", "/readyz")
    assert status == 503 and headers["Retry-After"] and json.loads(body)["error"]["code"] == "not_ready", body
    assert server.request("GET", "/livez")[0] == 200
    assert server.request("POST", "/v1/rollouts", job(job_id="held"))[0] == 202
    time.sleep(2)
    assert state("held") in ("queued", "running"), state("held")
    assert json.loads(server.request("GET", "/v1/state")[2])["paused"] is True
    assert server.request("GET", "/v1/pause")[0] == 405
    # A body that these routes do not read does no harm, whatever it is.
    for path in LEFT_OUT:
        assert server.request("POST", path, b"\xff" * 1000)[0] in (200, 400, 415, 422)
    for _ in range(2):
        status, _, body = server.request("POST", "/v1/resume")
        assert (status, json.loads(body)) == (200, {"paused": False}), body
    assert server.request("GET", "/readyz")[0] == 200
    stream = server.request("GET", "/v1/rollouts/held/events")[2]
    assert json.loads(stream.splitlines()[-1])["end"]["state"] == "done", stream
    print("pause and resume by hand: a job waits while the server is paused, readyz is 503, and the job ends after resume")


def main():
    schemathesis = install()
    # Small limits, so that the largest request that is allowed takes seconds; they stand in the document, so they are tried too.
    with Server(limits={"max_prompts": 4, "max_samples": 32, "max_score_sequences": 16}, engine={"kv_blocks": 1024}) as server:
        start_known_jobs(server)
        by_hand(server)
        pausing(server)
        fuzz(server, schemathesis)


if __name__ == "__main__":
    main()
