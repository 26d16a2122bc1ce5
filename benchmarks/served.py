"""A verb that serves metrics, a process of its own: what it answers, and what it costs a minute."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from exporter_scene import MEMORY
from scene import DEVICES, PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from exporter_scene import BusyNode

PATIENCE_S = 60.0
INTERVAL_S = 15.0
# Maps are read in pieces of this size by those who care for nothing else.
_PIECE = 1 << 16


class Running:
    """A verb of a node that runs for long, and serves nothing."""

    # In its log.
    begun = re.compile(" started ")

    def __init__(self, node: BusyNode, verb: str, arguments: Iterable[str]) -> None:
        command = [sys.executable, "-m", "libhamiregion", verb]
        where = ["--root", str(node.root), "--pod-logs", str(node.logs)]
        self._node = node
        self.process = subprocess.Popen(
            [*command, *where, *arguments],
            env=node.driver.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        begun = None
        while begun is None:
            line = self.process.stderr.readline()
            assert line
            begun = self.begun.search(line)
        self.told = begun

    def cpu_s(self) -> float:
        """Of all its threads, also those that have ended."""
        # The clock of another process, as clock_getcpuclockid() gives it.
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def anonymous_bytes(self) -> int:
        """Its memory without the files that it maps."""
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate()


class Served(Running):
    """`hamiregion exporter` of a node, or another verb that listens."""

    begun = re.compile(r"http://127.0.0.1:(\d+)")

    def __init__(self, node: BusyNode, verb: str, arguments: Iterable[str]) -> None:
        super().__init__(node, verb, ("--listen", "127.0.0.1:0", *arguments))
        self.connection = http.client.HTTPConnection("127.0.0.1", int(self.told[1]), PATIENCE_S)

    def ask(self, path: str = "/metrics") -> tuple[int, bytes]:
        self.connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def scrape(self, *, with_processes: bool, worked_at_s: int | None = None) -> None:
        """Ask for the metrics, which must hold the figures of every container as they are now."""
        began_s = time.time()
        status, body = self.ask()
        ended_s = time.time()
        assert status == 200
        text = gzip.decompress(body)
        containers = len(self._node.regions)
        used = re.findall(rb"^hami_vgpu_memory_used_bytes\{.*\} (\S+)$", text, re.MULTILINE)
        assert [float(each) for each in used] == [PROCESSES * MEMORY] * containers * DEVICES
        elapsed = re.findall(
            rb"^hami_container_last_kernel_elapsed_seconds\{.*\} (\S+)$", text, re.MULTILINE
        )
        assert len(elapsed) >= containers
        if worked_at_s is not None:
            # In whole seconds, both of them.
            then_s = [worked_at_s + float(each) for each in elapsed]
            is_new = began_s - 2 < min(then_s) and max(then_s) < ended_s + 1
            assert is_new, "a page that stands still costs nothing"
        of_processes = re.findall(
            rb"^hamiregion_process_memory_used_bytes\{.*\} (\S+)$", text, re.MULTILINE
        )
        rows = containers * DEVICES * PROCESSES if with_processes else 0
        assert [float(each) for each in of_processes] == [MEMORY] * rows

    def settle(self) -> float:
        """Scrape until the maps of all processes have been read twice; returns the second's us.

        Once in the life of a process: it may map its region a moment after it has been seen.
        """
        cost_us, plain_us = 0.0, plain_pass_us(self._node.pids)
        self.scrape(with_processes=True)
        deadline = time.monotonic() + PATIENCE_S
        while cost_us < plain_us:
            assert time.monotonic() < deadline
            time.sleep(1)
            before_s = self.cpu_s()
            self.scrape(with_processes=True)
            cost_us = (self.cpu_s() - before_s) * 1e6
        return cost_us

    def end(self) -> None:
        self.connection.close()
        super().end()


@contextlib.contextmanager
def serving(node: BusyNode, *arguments: str, verb: str = "exporter") -> Iterator[Served]:
    """The verb, once its metrics are complete."""
    served = Served(node, verb, arguments)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while served.ask("/readyz")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield served
    finally:
        served.end()


@contextlib.contextmanager
def running(node: BusyNode, *arguments: str, verb: str) -> Iterator[Running]:
    """The verb without its metrics."""
    program = Running(node, verb, arguments)
    try:
        yield program
    finally:
        program.end()


@attrs.frozen
class Minute:
    """What a process has cost, by the minute, and what it holds.

    Attributes:
        cpu_us: Its processor time.
        anonymous_bytes: Its anonymous memory at the end.
        plain_pass_us: One reading of all maps of the node's processes by a program that does
            nothing with them, in the same run.
    """

    cpu_us: float
    anonymous_bytes: int
    plain_pass_us: float


def measure(
    node: BusyNode,
    program: Running,
    *,
    minutes: float,
    with_processes: bool = True,
    utilization: bool = True,
    launches: bool = False,
) -> Minute:
    """Let the node work for some minutes; what is served is scraped every 15 s with gzip.

    With `launches` every container launches a kernel each second, as a busy one does.
    """
    began, before = time.monotonic(), program.cpu_s()
    for step in range(int(minutes * 60 / INTERVAL_S)):
        worked_at_s = node.work(step, utilization=utilization)
        scraped_at_s = time.monotonic() + INTERVAL_S
        while (left_s := scraped_at_s - time.monotonic()) > 0:
            if launches:
                node.launch()
            time.sleep(min(left_s, 1.0) if launches else left_s)
        if isinstance(program, Served):
            program.scrape(with_processes=with_processes, worked_at_s=worked_at_s)
    spent_s = program.cpu_s() - before
    per_minute = 60 / (time.monotonic() - began)
    return Minute(spent_s * per_minute * 1e6, program.anonymous_bytes(), plain_pass_us(node.pids))


def plain_pass_us(pids: Iterable[int]) -> float:
    began = time.thread_time()
    for pid in pids:
        descriptor = os.open(f"/proc/{pid}/maps", os.O_RDONLY)
        while os.read(descriptor, _PIECE):
            pass
        os.close(descriptor)
    return (time.thread_time() - began) * 1e6
