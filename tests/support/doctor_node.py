"""Nodes for the doctor: directories as HAMi makes them, regions, and real processes inside."""

import itertools
import stat
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from libhamiregion import Layout, create_region, open_region
from libhamiregion.doctor import Finding, FindingKind, Repair, examine, repair
from libhamiregion.node import Node, NvmlSampler, Observer
from support.containers import Container
from support.region_file import RegionFile
from support.wait import eventually

GIB = 1 << 30
GPU = "GPU-00000000-0000-0000-0000-000000000000"
# Long enough to look twice.
SETTLE_S = 0.03

# In order here, and no other test's: what is known of a pod's processes is known by its UID.
_OWN = uuid.uuid4().hex[:8]
_uids = itertools.count(1)


class Place:
    """One container's directory with its region, and the processes started in it."""

    def __init__(self, root: Path, layout: Layout, name: str, **spec: Any) -> None:
        self.pod_uid = f"{_OWN}-27a1-4a1c-8a3c-{next(_uids):012x}"
        self.directory = root / f"{self.pod_uid}_{name}"
        self.directory.mkdir()
        self.directory.chmod(0o777)
        self.path = self.directory / "usage.cache"
        create_region(
            self.path, layout=layout, **{"memory_limits": [8 * GIB], "uuids": [GPU], **spec}
        )
        self.file = RegionFile(self.path, layout)
        self.running: list[Container] = []
        #: Of each live process with a slot, its pid there and on the host.
        self.true_host_pids: dict[int, int] = {}

    def start(
        self,
        depth: int = 1,
        *,
        used: int = GIB,
        host_pid: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Container:
        """A container whose first process uses the region; its host pid is right."""
        inside = self.enter(depth, environment)
        self._attach(inside, inside.host_pid, used, stored=host_pid)
        return inside

    def enter(self, depth: int = 1, environment: Mapping[str, str] | None = None) -> Container:
        """A container whose first process does not use the region; its children do not map it."""
        self.running.append(Container(depth, environment=environment))
        return self.running[-1]

    def spawn(
        self, inside: Container, *, used: int = GIB, last_pid: str = "", host_pid: bool = True
    ) -> tuple[int, int]:
        """One more process of a container that uses the region: its pid inside and outside."""
        pid, outside = inside.child("spawn", last_pid)
        self._attach(inside, outside, used, f"@{pid}", stored=host_pid)
        return pid, outside

    def _attach(
        self, inside: Container, host_pid: int, used: int, *target: str, stored: bool
    ) -> None:
        pid = inside.tell(*target, "attach", self.path)
        self.true_host_pids[pid] = host_pid
        if used:
            inside.tell(*target, "charge", used)
        if stored:
            self.set_host_pid(pid, host_pid)

    def kill(self, inside: Container, pid: int) -> None:
        """End a process that was spawned, and leave its slot."""
        inside.tell("kill", pid)
        self.forget(pid)

    def forget(self, pid: int) -> None:
        """Whoever has that pid does not use the region any more."""
        del self.true_host_pids[pid]

    def set_host_pid(self, pid: int, host_pid: int) -> None:
        with open_region(self.path, writable=True) as region:
            region.set_host_pid(pid, host_pid)

    def host_pids(self) -> dict[int, int | None]:
        """What stands in the slots."""
        with open_region(self.path) as region:
            return {each.pid: each.host_pid for each in region.snapshot().processes}

    def used(self) -> int:
        with open_region(self.path) as region:
            return region.memory_used(0)

    def end(self) -> None:
        for each in self.running:
            each.end()


class DoctorNode:
    """A root with containers, and the doctor's rounds through it."""

    def __init__(self, root: Path, *, outside: bool = False, **options: Any) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        # Other tests run beside this one, with regions of their own.
        self.node = Node(root, outside=outside, **options)
        self.places: list[Place] = []

    def place(self, layout: Layout = Layout.V1_2, name: str = "train", **spec: Any) -> Place:
        self.places.append(Place(self.root, layout, name, **spec))
        return self.places[-1]

    def findings(
        self, *, sampler: NvmlSampler | None = None, **options: Any
    ) -> tuple[Finding, ...]:
        observer = Observer.for_command(self.node, sampler=sampler)
        return examine(observer, **{"settle_s": SETTLE_S, **options})

    def undisturbed_findings(self) -> tuple[Finding, ...]:
        """The findings of a look at which no other test had a process that cannot be read.

        Such a one may be a monitor.
        """
        found: tuple[Finding, ...] = ()

        def is_undisturbed() -> bool:
            nonlocal found
            found = self.findings()
            return not self.node.processes.view.gaps

        eventually(is_undisturbed)
        return found

    def kinds(self, **options: Any) -> list[FindingKind]:
        return kinds(self.findings(**options))

    def repair(self, **options: Any) -> tuple[Repair, ...]:
        return repair(self.node, self.findings(), **options)

    def content(self) -> list[dict[str, bytes | int]]:
        """What lies in the containers' directories: the bytes of a file, the mode of the rest."""
        return [
            {
                path.name: path.read_bytes() if stat.S_ISREG(mode := path.lstat().st_mode) else mode
                for path in sorted(each.directory.iterdir())
            }
            for each in self.places
        ]

    def close(self) -> None:
        self.node.close()
        for each in self.places:
            each.end()


def kinds(findings: Iterable[Finding]) -> list[FindingKind]:
    """The kinds found, sorted by name, each as often as it was found."""
    return sorted((each.kind for each in findings), key=lambda kind: kind.value)
