"""Cgroups that are named as kubelet names those of containers, all below the tests' own cgroup."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from libhamiregion import parse_size
from support.wait import eventually

CHART_VALUES = Path(__file__).parents[2] / "deploy/helm/libhamiregion/values.yaml"

# Where version 2 is mounted: beside version 1, and alone.
_MOUNTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))


def _own_cgroup() -> Path | None:
    """This process's cgroup of version 2, if others can be made below it."""
    for mount in _MOUNTS:
        if (mount / "cgroup.procs").exists():
            for line in Path("/proc/self/cgroup").read_text().splitlines():
                if line.startswith("0::/"):
                    own = mount / line.removeprefix("0::/")
                    return own if os.access(own, os.W_OK) else None
    return None


HAS_CGROUPS = _own_cgroup() is not None
needs_cgroups = pytest.mark.skipif(
    not HAS_CGROUPS, reason="needs a cgroup of version 2 that can be written"
)


@contextlib.contextmanager
def cgroup_of_pod(
    pod_uid: str, container_id: str, *host_pids: int, qos: str = ""
) -> Iterator[Path]:
    """A cgroup as kubelet's cgroupfs driver makes it for a container, with these processes.

    It is removed at the end. It does not stand where a kubelet of this machine would look for its
    own. Processes that are left in it go back to the tests' own cgroup.
    """
    own = _own_cgroup()
    if own is None:
        pytest.skip("needs a cgroup of version 2 that can be written")
    top = own / f"hamiregion-tests-{uuid.uuid4().hex[:8]}"
    made = top / "kubepods" / qos / f"pod{pod_uid}" / container_id
    made.mkdir(parents=True)
    for host_pid in host_pids:
        (made / "cgroup.procs").write_text(str(host_pid))

    def is_removed() -> bool:
        for pid in (made / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (own / "cgroup.procs").write_text(pid)
        # A process that is ending right now is in nobody's list and still in the way.
        with contextlib.suppress(OSError):
            made.rmdir()
        return not made.exists()

    try:
        yield made
    finally:
        eventually(is_removed)
        for each in made.parents:
            each.rmdir()
            if each == top:
                break


def _memory_cgroup() -> tuple[Path, str] | None:
    """Where a cgroup that limits memory can be made, and the file that has the limit."""
    own = _own_cgroup()
    if own is not None and "memory" in (own / "cgroup.subtree_control").read_text().split():
        return own, "memory.max"
    mount = Path("/sys/fs/cgroup/memory")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            # In a cgroup namespace the path may be another's.
            found = next((each for each in (mount / path[1:], mount) if each.is_dir()), None)
            if found is not None and os.access(found, os.W_OK):
                return found, "memory.limit_in_bytes"
    return None


def chart_memory_limit_bytes() -> int:
    """The memory limit of exporter and agent, as the chart has it."""
    values = yaml.safe_load(CHART_VALUES.read_text())
    return parse_size(values["resources"]["limits"]["memory"])


def highest_resident_bytes(pid: int) -> int:
    """The most that a process has had in memory so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (each for each in status.splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@contextlib.contextmanager
def container_memory() -> Iterator[tuple[str, ...]]:
    """A cgroup with the memory limit of the chart: beyond it the kernel kills.

    Yields what to put before a command that shall run in it.
    """
    found = _memory_cgroup()
    if found is None:
        pytest.skip("needs a cgroup with a memory controller that can be written")
    own, limit = found
    made = own / f"hamiregion-tests-{uuid.uuid4().hex[:8]}"
    made.mkdir()

    def is_removed() -> bool:
        with contextlib.suppress(OSError):
            made.rmdir()
        return not made.exists()

    try:
        (made / limit).write_text(str(chart_memory_limit_bytes()))
        yield "sh", "-c", 'echo 0 > "$0" && exec "$@"', str(made / "cgroup.procs")
    finally:
        eventually(is_removed)
