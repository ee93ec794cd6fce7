#!/usr/bin/env python3
"""A real Prometheus scrapes a real server with server-config/prometheus.yml, and promtool finds nothing to say about its metrics.

Needs target/release/adaroll, and Debian's prometheus package, which it installs if it is not there and it may (apt-get, as root).
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from server import REPOSITORY, Server

DATA, ADMIN = "data-token-of-the-test", "admin-token-of-the-test"
CONFIG = REPOSITORY / "server-config" / "prometheus.yml"
PROMPTS = 6


def install():
    if shutil.which("prometheus") and shutil.which("promtool"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit("prometheus and promtool are not there; install them (Debian: apt-get install prometheus)")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "prometheus"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, env=environment, stdout=subprocess.DEVNULL).returncode != 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(install, env=environment, check=True, stdout=subprocess.DEVNULL)


def promtool(*arguments, given=None):
    """Exit status and output."""
    ran = subprocess.run(["promtool", *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ran.returncode, ran.stdout.strip()


def is_alias(line):
    return re.match(r"(# (HELP|TYPE) )?vllm:", line) is not None


def check_metrics(text):
    lines = text.splitlines(keepends=True)
    own = "".join(line for line in lines if not is_alias(line))
    status, said = promtool("check", "metrics", given=own)
    assert (status, said) == (0, ""), f"promtool check metrics: {said}"
    families = len(re.findall(r"^# TYPE adaroll_", own, re.M))
    assert families >= 25, families
    print(f"promtool check metrics: {families} adaroll_* families, nothing to say")

    # With the aliases: no complaint is about anything else, and there are some, so the check can fail.
    status, said = promtool("check", "metrics", given=text)
    complaints = said.splitlines()
    assert status != 0 and complaints and all(line.startswith("vllm:") for line in complaints), said
    print(f"with the {len(re.findall('^# TYPE vllm:', text, re.M))} vllm: aliases, {len(complaints)} complaints, all about their names:")
    print("\n".join(f"  {line}" for line in complaints))


def value_of(text, series):
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
    assert found, f"{series} is not in /metrics"
    return float(found.group(1))


def run_job(server, authorized):
    """A job of PROMPTS prompts, some of which the model gets right; returns the groups by status."""
    prompt = lambda i: {"text": f"{i} {i + 1} {i + 2} ", "reward": {"kind": "regex", "pattern": "^[0-5]$"}}
    job = {
        "job_id": "scraped",
        "prompts": [prompt(i) for i in range(PROMPTS)],
        "strategy": {"max_samples": 8, "group_size": 2},
        "sampling": {"max_tokens": 8, "stop": [" ", ",", ".", "\n"]},
        "seed": 1,
    }
    status, _, body = server.request("POST", "/v1/rollouts", job, {**authorized, "Accept": "application/x-ndjson"})
    assert status == 200, body
    events = [json.loads(line) for line in body.splitlines() if line.strip()]
    statuses = [event["status"] for event in events if "status" in event]
    assert len(statuses) == PROMPTS and events[-1]["end"]["state"] == "done", events[-1]
    return {status: statuses.count(status) for status in ("resolved", "exhausted", "failed")}


def configuration(server, folder):
    """The shipped configuration with this server's address and token; and a second job that has no token."""
    shipped = CONFIG.read_text()
    assert promtool("check", "config", str(CONFIG))[0] == 0, promtool("check", "config", str(CONFIG))[1]
    secret = folder / "data-token"
    secret.write_text(DATA)

    def replaced(text, pattern, by):
        changed, times = re.subn(pattern, by, text, flags=re.M)
        assert times, f"{pattern} is not in {CONFIG.name}"
        return changed

    text = replaced(shipped, r"127\.0\.0\.1:8000", server.address)
    text = replaced(text, r"^  scrape_interval: .*$", "  scrape_interval: 1s")
    text = replaced(text, r"^  scrape_timeout: .*$", "  scrape_timeout: 1s")
    without = "  - job_name: without_token\n    static_configs:\n      - targets: [\"" + server.address + "\"]\n"
    text = replaced(text, r"^    #(authorization:|  type: Bearer|  credentials_file: )", r"    \1")
    text = replaced(text, r"credentials_file: .*$", f"credentials_file: {secret}")
    path = folder / "prometheus.yml"
    path.write_text(text + without)
    status, said = promtool("check", "config", str(path))
    assert status == 0, said
    print("promtool check config: server-config/prometheus.yml is valid, as it is and with its token lines")
    return path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Prometheus:
    def __init__(self, config, folder):
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.log"
        self.command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def query(self, expression):
        """The value of the one series that the expression gives; None while there is none."""
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return None
        return float(found[0]["value"][1]) if found else None

    def wait_for(self, expression, value, seconds=60):
        until = time.monotonic() + seconds
        while (seen := self.query(expression)) != value:
            if time.monotonic() > until or self.process.poll() is not None:
                sys.exit(f"{expression} is {seen}, expected {value}\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)
        print(f"  {expression} = {value:g}")


def main():
    install()
    print(subprocess.run(["prometheus", "--version"], capture_output=True, text=True).stdout.splitlines()[0])
    authorized = {"Authorization": f"Bearer {DATA}"}
    with Server(server={"data_token": DATA, "admin_token": ADMIN, "port": 0}) as server, tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        with Prometheus(configuration(server, folder), folder) as prometheus:
            print("Prometheus, by its HTTP API:")
            prometheus.wait_for('up{job="adaroll"}', 1)
            # A twin: what asks for no token is not let in, so the line above says that the token was sent.
            prometheus.wait_for('up{job="without_token"}', 0)
            # Known labels are there before the first group, so that rates are right from the first event on.
            prometheus.wait_for("sum(adaroll_groups_total)", 0)
            groups = run_job(server, authorized)
            for status, count in groups.items():
                prometheus.wait_for(f'adaroll_groups_total{{status="{status}"}}', count)
            prometheus.wait_for("sum(adaroll_groups_total)", PROMPTS)
            prometheus.wait_for("adaroll_pass_rate_count", PROMPTS)
            status, headers, body = server.request("GET", "/metrics", headers=authorized)
            assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), headers
            text = body.decode()
            hits, queries = value_of(text, "vllm:prefix_cache_hits_total"), value_of(text, "vllm:prefix_cache_queries_total")
            assert hits == value_of(text, 'adaroll_tokens_total{kind="cached"}')
            assert queries == hits + value_of(text, 'adaroll_tokens_total{kind="prompt"}')
            assert 0 < hits < queries
            for name in ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"):
                prometheus.wait_for(name, value_of(text, name))
            prometheus.wait_for("vllm:num_requests_running", 0)
        check_metrics(text)


if __name__ == "__main__":
    main()
