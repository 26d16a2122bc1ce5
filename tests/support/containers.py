"""Containers of real pid namespaces, and what the kernel's own tree says about their processes."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from libhamiregion import Region, RegionSnapshot, open_region
from libhamiregion.doctor.context import memory_bytes
from libhamiregion.node import Container as NodeContainer
from libhamiregion.node import HostProcess, ProcessTable, RegionProcesses, match_slots
from libhamiregion.node.procfs import file_identity
from support.container_factory import ForkedProcess, factory
from support.process import finished, piped
from support.reaping import reap_in_time
from support.wait import PATIENCE_S

SCRIPT = Path(__file__).with_name("container_process.py")
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not can_unshare(), reason="needs unshare and the right to make pid namespaces"
)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


class Container:
    """A process `depth` pid namespaces below this one, and its children."""

    def __init__(
        self,
        depth: int = 1,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process: subprocess.Popen[str] | ForkedProcess
        if not prefix and not environment:
            self.process = factory().fork(depth)
        else:
            # What /proc shows of an environment is what a program was started with.
            self.process = piped(
                [*prefix, *UNSHARE * depth, sys.executable, str(SCRIPT)],
                env={**os.environ, **(environment or {})},
            )
        self.init_pid: int = self.tell("pid")
        #: The host's pid of the first process, down the tree from the one that was started.
        self.host_pid = self.process.pid
        for _ in range(depth):
            (self.host_pid,) = children_of(self.host_pid)
        # Now: once the one that was started is killed, nothing leads to the first process any more.
        self._first = os.pidfd_open(self.host_pid)

    def tell(self, *words: object) -> Any:
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, f"no answer to {words}"
        return json.loads(self.process.stdout.readline())["answer"]

    def child(self, *words: object) -> tuple[int, int]:
        """Make a child by a command; its pid inside and on the host."""
        before = set(children_of(self.host_pid))
        inside = self.tell(*words)
        (outside,) = set(children_of(self.host_pid)) - before
        return inside, outside

    def end(self) -> None:
        if self._first < 0:
            return
        self.process.kill()
        self.process.wait()
        # The kernel ends it for its parent's sake: a moment later, and not as another user.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)
        assert select.select([self._first], [], [], PATIENCE_S)[0]
        os.close(self._first)
        self._first = -1
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()


Starter = Callable[..., Container]


@contextlib.contextmanager
def containers() -> Iterator[Starter]:
    """Starts containers, by their depth; ends them afterwards."""
    running = []

    def start(depth: int = 1, prefix: tuple[str, ...] = ()) -> Container:
        running.append(Container(depth, prefix))
        return running[-1]

    try:
        yield start
    finally:
        for each in running:
            each.end()


def container_with(region: Region, **options: Any) -> NodeContainer:
    """A container with this region."""
    return NodeContainer(region=region, identity=file_identity(region), **options)


def match(
    table: ProcessTable, region: Region, snapshot: RegionSnapshot, **options: Any
) -> RegionProcesses:
    pids = [process.pid for process in snapshot.processes]
    read_s = time.monotonic() - (time.time_ns() - snapshot.taken_at_ns) / 1e9
    return match_slots(
        table.view,
        container_with(region, **options),
        pids,
        read_s,
    )


def look(
    path: os.PathLike[str], table: ProcessTable | None = None, **options: Any
) -> RegionProcesses:
    """Snapshot, refresh, match: in the order that proves a process dead.

    What is called dead is what reaping would free: there is one proof.
    """
    table = ProcessTable() if table is None else table
    with open_region(path) as opened:
        snapshot = opened.snapshot()
        table.refresh()
        found = match(table, opened, snapshot, **options)
    if os.access(path, os.W_OK):
        counting = {each.pid for each in snapshot.processes if memory_bytes(each)}
        with open_region(path, writable=True) as opened:
            freed = {slot.pid for slot in reap_in_time(opened, proc=table.proc, dry_run=True)}
        assert freed & counting == found.dead & counting
    return found


def libvgpu(directory: Path) -> Path:
    """Something to load that goes by the name of the library, and does nothing."""
    path = directory / "libvgpu.so"
    path.write_bytes(b"\x7fELF")
    return path


def states(found: RegionProcesses) -> dict[int, str]:
    return {slot.pid: slot.state for slot in found.slots}


def pids(processes: tuple[HostProcess, ...]) -> list[int]:
    return [process.pid for process in processes]


class mounted_proc:  # noqa: N801
    """Another mount of /proc, with options."""

    def __init__(self, directory: Path, options: str = "rw") -> None:
        self.path = directory / "host-proc"
        self.options = options

    def __enter__(self) -> Path:
        self.path.mkdir()
        command = ["mount", "-t", "proc", "-o", self.options, "proc", str(self.path)]
        done = finished(command)
        if done.returncode != 0:
            pytest.skip(f"needs the right to mount /proc: {done.stderr.strip()}")
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.path)], check=True)
