"""Programs that run for long take one heap for all their threads, as the manifests' limits need."""

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_scene import NodeScene
from wait import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc, which makes a heap for each thread"
)

# What glibc reserves for the heap of another thread than the first, and aligns to its size.
_HEAP_BYTES = 64 << 20


def further_heaps(pid: int) -> int:
    """How many heaps there are of other threads than the first."""
    found = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        place, rights, _, _, inode = line.split()[:5]
        start = int(place.split("-")[0], 16)
        found += inode == "0" and rights.startswith("rw") and start % _HEAP_BYTES == 0
    return found


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.fixture(params=["exporter", "agent", "record", "limits"])
def program(
    request: pytest.FixtureRequest, scene: NodeScene, tmp_path: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A verb that runs for long, with threads of its own."""
    scene.container("train")
    plan = tmp_path / "plan.yaml"
    rules = "rules: [{select: {container: nobody}, set: {sm_limit: 50}}]"
    plan.write_text(f"apiVersion: hamiregion.io/v1\nkind: LimitPlan\n{rules}\n")
    words = {
        "exporter": ["exporter", "--listen", "127.0.0.1:0"],
        "agent": ["agent", "--feedback", "--repair"],
        "record": ["record", "--to", str(tmp_path / "node.db"), "--interval", "1"],
        "limits": ["limits", "apply", str(plan), "--watch", "--state", str(tmp_path / "state")],
    }[request.param]
    with subprocess.Popen(
        [sys.executable, "-m", "libhamiregion", *words, "--root", str(scene.root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_all_threads_of_a_program_that_runs_for_long_share_one_heap(
    program: "subprocess.Popen[bytes]",
) -> None:
    maps = Path(f"/proc/{program.pid}/maps")
    # Its first look, in another thread than the first one, opens the region.
    eventually(lambda: program.poll() is not None or "usage.cache" in maps.read_text())
    assert program.poll() is None, program.communicate()[1]
    assert threads(program.pid) > 1
    assert further_heaps(program.pid) == 0
