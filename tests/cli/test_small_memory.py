"""Programs that run for long take one heap for all their threads, as the manifests' limits need."""

import contextlib
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node_fixtures import node_scene
from support.prometheus_server import free_port
from support.wait import PATIENCE_S, eventually

scene = pytest.fixture(node_scene)

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc, which makes a heap for each thread"
)

# What glibc reserves for the heap of another thread than the first, and aligns to its size.
_HEAP_BYTES = 64 << 20


def further_heaps(maps: str) -> int:
    """How many heaps there are of other threads than the first.

    What is in use of one starts where it does, and the rest of it is reserved: other mappings may
    start at such an address by chance.
    """
    found = 0
    heap: int | None = None
    for line in maps.splitlines():
        place, rights, _, _, inode = line.split()[:5]
        start, end = (int(part, 16) for part in place.split("-"))
        if heap is not None:
            found += rights.startswith("---") and start < heap + _HEAP_BYTES <= end
        is_heap = inode == "0" and rights.startswith("rw") and start % _HEAP_BYTES == 0
        heap = start if is_heap else None
    return found


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def is_scraped(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read())
    except urllib.error.URLError:
        return False


@pytest.fixture(params=["exporter", "agent", "record"])
def program(request, scene, tmp_path) -> Iterator["subprocess.Popen[bytes]"]:
    """A verb that runs for long, with threads of its own."""
    scene.container("train")
    plan = tmp_path / "plan.yaml"
    port = free_port()
    rules = "rules: [{select: {container: nobody}, set: {sm_limit: 50}}]"
    plan.write_text(f"apiVersion: hamiregion.io/v1\nkind: LimitPlan\n{rules}\n")
    words = {
        "exporter": ["exporter", "--listen", f"127.0.0.1:{port}"],
        "agent": [
            *("agent", "--feedback", "--repair", "--plan", str(plan)),
            *("--state", str(tmp_path / "state")),
        ],
        "record": ["record", "--to", str(tmp_path / "node.db"), "--interval", "1"],
    }[request.param]
    with (
        contextlib.ExitStack() as clients,
        subprocess.Popen(
            [sys.executable, "-m", "libhamiregion", *words, "--root", str(scene.root)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        try:
            if request.param == "exporter":
                eventually(lambda: process.poll() is not None or is_scraped(port))
                # A thread waits for the request of this one.
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.slow(keep=2)
def test_all_threads_of_a_program_that_runs_for_long_share_one_heap(program):
    maps = Path(f"/proc/{program.pid}/maps")
    # Its first observation opens the region, and reads /proc in another thread, for milliseconds.
    deadline_s = time.monotonic() + PATIENCE_S
    while program.poll() is None and threads(program.pid) == 1:
        assert time.monotonic() < deadline_s
    eventually(lambda: program.poll() is not None or "usage.cache" in maps.read_text())
    assert program.poll() is None, program.communicate()[1]
    assert further_heaps(maps.read_text()) == 0
