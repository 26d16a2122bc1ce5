"""Measure HAMi's monitor and this exporter on the same busy node: processor time of a minute.

    .venv/bin/python tools/hami_monitor.py HAMI [--minutes 5]

HAMI is a checkout of HAMi. Its vGPUmonitor is built, which needs Go and takes minutes the first
time. Both serve the same 256 containers with two devices and four processes each, one after the
other, and are scraped every 15 s with gzip. Five minutes hold everything that the exporter does by
the clock. The monitor gets its pods from a small server here, so that it keeps the directories, and
makes /tmp/hami. Run it as root, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from exporter_scene import BusyNode, busy_node
from served import PATIENCE_S, Served, measure, plain_pass_us, serving

ADDRESS = ("127.0.0.1", 19394)


def pods_of(node: BusyNode) -> list[dict[str, Any]]:
    """A pod for each directory, with the label that HAMi's scheduler gives it."""
    found = []
    for number, region in enumerate(node.regions):
        uid = region.path.parent.name.partition("_")[0]
        marks = {"hami.io/vgpu-node": "node-1"}
        about = {"name": f"train-{number}", "namespace": "team", "uid": uid, "resourceVersion": "1"}
        found.append(
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {**about, "labels": marks},
                "spec": {"nodeName": "node-1", "containers": [{"name": "main"}]},
                "status": {"phase": "Running"},
            }
        )
    return found


def handler_of(pods: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    """Lists these pods, and sends them to watches that begin with a list; nothing changes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            is_watch = "watch=" in self.path
            document = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
            body = json.dumps({**document, "items": pods}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if is_watch:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if not is_watch:
                self.wfile.write(body)
                return
            if "sendInitialEvents=true" in self.path:
                for pod in pods:
                    self.event("ADDED", pod)
                marks = {"k8s.io/initial-events-end": "true"}
                metadata = {"resourceVersion": "1", "annotations": marks}
                self.event("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": metadata})
            threading.Event().wait()

        def event(self, kind: str, pod: dict[str, Any]) -> None:
            self.wfile.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class Monitor(Served):
    """HAMi's monitor, once it answers."""

    def __init__(self, program: Path, node: BusyNode, directory: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(pods_of(node)))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        kubeconfig = directory / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        }
        kubeconfig.write_text(json.dumps(config))
        names = {"HOOK_PATH": str(node.root.parent), "NODE_NAME": "node-1"}
        log = directory / "monitor.log"
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [str(program), f"--metrics-bind-address={ADDRESS[0]}:{ADDRESS[1]}"],
                env={**node.driver.environment(), **names, "KUBECONFIG": str(kubeconfig)},
                stdout=file,
                stderr=file,
            )
        self.connection = http.client.HTTPConnection(*ADDRESS, PATIENCE_S)
        self.series = 0
        deadline = time.monotonic() + PATIENCE_S
        while self.series < len(node.regions):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(1)
            with contextlib.suppress(ConnectionRefusedError):
                self.scrape()

    def scrape(self, **_: Any) -> None:
        """Ask for the metrics, and count their series."""
        status, body = self.ask()
        assert status == 200
        lines = gzip.decompress(body).splitlines()
        self.series = sum(not line.startswith(b"#") for line in lines)

    def end(self) -> None:
        super().end()
        self._server.shutdown()


def measure_monitor(program: Path, node: BusyNode, directory: Path, minutes: float) -> None:
    """Measure and print HAMi's monitor."""
    monitor = Monitor(program, node, directory)
    try:
        cost_us = measure(node, monitor, minutes=minutes).cpu_us
    finally:
        monitor.end()
    print(f"HAMi's monitor   {cost_us / 1e3:6.0f} ms, {monitor.series} series", flush=True)


def main() -> int:
    """Build the monitor, and measure both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("hami", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = directory / "vGPUmonitor"
        build = ["go", "build", "-mod=mod", "-o", str(program), "./cmd/vGPUmonitor"]
        subprocess.run(build, cwd=asked.hami, check=True)
        with busy_node(directory, 256, at_work=True) as node:
            plain_ms = plain_pass_us(node.pids) / 1e3
            print(f"a pass over maps {plain_ms:6.0f} ms; then a minute of", flush=True)
            measure_monitor(program, node, directory, asked.minutes)
            for words in ((), ("--collector", "nvml")):
                with serving(node, *words) as served:
                    if not words:
                        served.settle()
                    found = measure(node, served, minutes=asked.minutes, with_processes=not words)
                what = "HAMi's metrics" if words else "the exporter"
                print(f"{what:16} {found.cpu_us / 1e3:6.0f} ms", flush=True)
            measure_monitor(program, node, directory, asked.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
