"""A real server for the parts of the long tier: target/release/adaroll on SmolLM2, on a free port, with a store in a temporary folder."""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = REPOSITORY / "target"
BINARY = TARGET / "release" / "adaroll"

# Of SmolLM2.
VOCABULARY = 49152


def model():
    """The folder of SmolLM2, fetched if it is not there."""
    fetch = [sys.executable, REPOSITORY / "tests" / "assets" / "fetch_smollm2.py"]
    return subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Server:
    """`with Server(limits={"max_prompts": 8}) as server:` runs one; its log is in server.log, its address in server.address.

    Keyword arguments are sections of the configuration, as in server-config/cpu.toml.
    """

    def __init__(self, **sections):
        self.folder = tempfile.TemporaryDirectory(prefix="adaroll-")
        self.log = Path(self.folder.name) / "log"
        sections.setdefault("store", {}).setdefault("path", str(Path(self.folder.name) / "store.db"))
        sections.setdefault("server", {}).setdefault("port", 0)
        lines = []
        for section, values in sections.items():
            lines.append(f"[{section}]")
            # What JSON and TOML write alike: strings, whole numbers, booleans, lists of them.
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config = Path(self.folder.name) / "server.toml"
        self.config.write_text("\n".join(lines) + "\n")

    def __enter__(self):
        if not BINARY.exists():
            sys.exit("target/release/adaroll is not there; run `cargo build --release`")
        command = [BINARY, "serve", "--config", self.config, "--model", model()]
        # The configuration above is all there is: variables of the caller's shell must not reach the server.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ADAROLL_")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder.name, env=environment)
        try:
            self.address = self.wait_for_address()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def wait_for_address(self, seconds=120):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            text = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
            if found := re.search(r"serving .* on http://(\S+)", text):
                return found.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"the server did not start:\n{self.log.read_text(errors='replace')}")

    def is_alive(self):
        return self.process.poll() is None

    def request(self, method, path, body=None, headers=(), timeout=120):
        """Status, headers and body of the answer. A body that is no bytes is sent as JSON."""
        headers = dict(headers)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()
