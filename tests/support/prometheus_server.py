"""A real Prometheus of the test's own, on a free port of the loopback."""

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.wait import PATIENCE_S, eventually

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """One server; its API as plain Python values."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The key ``data`` of an answer that is a success."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"{self.url}{path}{query}", timeout=PATIENCE_S) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression gives now."""
        return self.get("/api/v1/query", query=expression)["result"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextlib.contextmanager
def prometheus_server(
    directory: Path, config: str, *, rules: Path | None = None
) -> Iterator[Prometheus]:
    """Start Prometheus with a configuration and a data directory below `directory`."""
    file = directory / "prometheus.yml"
    if rules is not None:
        config += f"rule_files: [{json.dumps(str(rules))}]\n"
    file.write_text(config)
    log = directory / "prometheus.log"
    while True:
        # It does not say which port it has taken, so somebody else may be quicker.
        address = f"127.0.0.1:{free_port()}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={file}",
                    f"--storage.tsdb.path={directory / 'tsdb'}",
                    f"--web.listen-address={address}",
                ],
                stdout=output,
                stderr=output,
            )
        try:
            server = Prometheus(f"http://{address}")
            eventually(lambda: process.poll() is not None or server.is_ready())  # noqa: B023
            if process.poll() is not None and "address already in use" in log.read_text():
                continue
            assert process.poll() is None, log.read_text()
            yield server
            return
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@contextlib.contextmanager
def prometheus_with(directory: Path, samples: str) -> Iterator[Prometheus]:
    """Start Prometheus with what it has scraped: OpenMetrics with time stamps, of the last days."""
    text = directory / "samples.om"
    text.write_text(samples)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    try:
        subprocess.run([*command, text, directory / "tsdb"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs promtool")
    with prometheus_server(directory, "global: {}\n") as server:
        yield server
