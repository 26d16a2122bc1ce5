"""A GPU node made of real parts: roots, pod logs, pid namespaces, cgroups, and the fake driver."""

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from libhamiregion import Layout, create_region
from libhamiregion.node import (
    Node,
    NodeNames,
    NodeProcess,
    NvmlSampler,
    Observation,
    Observer,
    node_processes,
)
from libhamiregion.observation.pairing import NO_ROW
from libhamiregion.observation.rows import Join
from support.containers import Container, containers
from support.own_cgroups import cgroup_of_pod
from support.region_file import RegionFile


def container_id() -> str:
    return uuid.uuid4().hex * 2


class Pod:
    """A container on the node: its directory, its region if it has one, its first process."""

    def __init__(self, directory: Path, pod_uid: str, name: str) -> None:
        self.directory = directory
        self.pod_uid = pod_uid
        self.name = name
        self.id = container_id()
        self.file: RegionFile | None = None
        self.process: Container | None = None

    @property
    def region(self) -> RegionFile:
        assert self.file is not None
        return self.file

    @property
    def inside(self) -> Container:
        assert self.process is not None
        return self.process

    def attach(self) -> tuple[int, int]:
        """A child with a slot: its pid inside and on the host."""
        pid, host_pid = self.inside.child("spawn")
        self.inside.tell(f"@{pid}", "attach", self.region.path)
        return pid, host_pid

    def charge(self, pid: int, nbytes: int) -> None:
        self.inside.tell(f"@{pid}", "charge", nbytes)


class GpuNode:
    """The parts; `root` and `logs` are what --root and --pod-logs take."""

    def __init__(self, directory: Path, start: Callable[..., Container]) -> None:
        self.root = directory / "containers"
        self.logs = directory / "pod-logs"
        self.root.mkdir()
        self.logs.mkdir()
        self._start = start
        self._cgroups: dict[tuple[str, str], Path] = {}
        self._made = contextlib.ExitStack()
        self._numbers = itertools.count(1)

    def add(
        self,
        name: str = "main",
        *,
        pod: str | None = None,
        namespace: str = "research",
        pod_uid: str | None = None,
        layout: Layout = Layout.V1_2,
        file: bool = True,
        process: bool = True,
        **spec: Any,
    ) -> Pod:
        """A container; with a `file` its region, with a `process` a pid namespace of its own."""
        if pod_uid is None:
            pod_uid = str(uuid.uuid4())
        made = Pod(self.root / f"{pod_uid}_{name}", pod_uid, name)
        made.directory.mkdir()
        if pod is not None:
            (self.logs / f"{namespace}_{pod}_{pod_uid}" / name).mkdir(parents=True)
        if file:
            path = made.directory / "usage.cache"
            create_region(path, layout=layout, **spec)
            made.file = RegionFile(path, layout)
        if process:
            made.process = self._start()
        return made

    def move(self, host_pid: int, pod: Pod, *, id_: str | None = None) -> None:
        """Put a process into a container's cgroup, named as kubelet's cgroupfs driver does."""
        key = pod.pod_uid, id_ or pod.id
        if key not in self._cgroups:
            cgroup = cgroup_of_pod(*key, qos="burstable")
            self._cgroups[key] = self._made.enter_context(cgroup)
        (self._cgroups[key] / "cgroup.procs").write_text(str(host_pid))

    def enter(self, environment: Mapping[str, str]) -> Container:
        """A first process with an environment of its own."""
        made = Container(environment=environment)
        self._made.callback(made.end)
        return made

    def open(self, **options: Any) -> Node:
        names = NodeNames(self.logs)
        return Node(self.root, names=names, **options)

    def processes(self, sampler: NvmlSampler | None, **options: Any) -> tuple[NodeProcess, ...]:
        """Look and join."""
        with self.open(**options) as node:
            observation = Observer(node, sampler=sampler).observe(processes_max_age_s=0.0)
            rows = node_processes(observation)
            if observation.sample is not None:
                check_columns(observation, rows)
            return rows

    def sweep(self) -> None:
        """Remove the cgroups."""
        self._made.close()


def check_columns(observation: Observation, rows: tuple[NodeProcess, ...]) -> None:
    """What is told from columns, for programs that look often, is what the rows tell."""
    assert observation.sample is not None
    join = Join(observation)
    expected = {
        row.host_pid: (row.state, row.container, row.devices)
        for row in rows
        if row.pid is None and row.host_pid in {each.pid for each in observation.sample.processes}
    }
    told = {row.host_pid: (row.state, row.container, row.devices) for row in join.uncounted}
    assert told == expected
    slots = [(row, device) for row in rows if row.pid is not None for device in row.devices]
    unnamed = {device.uuid for _, device in slots} - set(join.index.uuids)
    for name, field in (
        ("memory_used_bytes", "memory_driver_bytes"),
        ("sm_util_percent", "driver_sm_percent"),
    ):
        figures = join.figures(name)
        known = {
            (join.index.states.processes[slot].pid, join.index.uuids[device]): figures[row]
            for slot, device, row in zip(
                join.index.slots, join.index.devices, join.rows_of_pairs, strict=True
            )
            if row != NO_ROW and figures[row] >= 0
        }
        assert known == {
            (row.host_pid, device.uuid): getattr(device, field)
            for row, device in slots
            if device.uuid not in unnamed and getattr(device, field) is not None
        }


@contextlib.contextmanager
def gpu_nodes(directory: Path) -> Iterator[GpuNode]:
    """One node, taken down afterwards."""
    with containers() as start:
        node = GpuNode(directory, start)
        try:
            yield node
        finally:
            node.sweep()
