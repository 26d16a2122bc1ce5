"""A node of a test's own: directories as HAMi and kubelet make them, regions, and processes."""

import contextlib
import functools
import itertools
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libhamiregion import Layout, create_region, open_region
from libhamiregion.node import Node, NodeNames
from libhamiregion.units import GIB
from support.containers import Container
from support.golden_regions import GoldenRegion, unpack
from support.node_root import Root
from support.own_cgroups import cgroup_of_pod
from support.region_file import RegionFile

GPU, OTHER_GPU = (
    "GPU-00000000-0000-0000-0000-000000000000",
    "GPU-11111111-1111-1111-1111-111111111111",
)

# In order here, and no other test's: what is known of a pod's processes is known by its UID.
_OWN = uuid.uuid4().hex[:8]
_uids = itertools.count(1)


class SceneContainer(RegionFile):
    """A container: its directory, its region if it has one, and the processes in it.

    Attributes:
        directory: Below the root of the node.
        pod_uid: Of its pod.
        name: Its own.
        id: By which its cgroup is named.
        running: The first processes of the pid namespaces that were made for it.
        true_host_pids: Of each live process that was given a slot, its pid there and on the host.
    """

    def __init__(self, directory: Path, pod_uid: str, file_name: str, layout: Layout) -> None:
        super().__init__(directory / file_name, layout)
        self.directory = directory
        self.pod_uid = pod_uid
        self.name = directory.name.partition("_")[2]
        self.id = uuid.uuid4().hex * 2
        self.running: list[Container] = []
        self.true_host_pids: dict[int, int] = {}
        self._cgroups: dict[str, Path] = {}
        self._made = contextlib.ExitStack()

    # ---- processes

    def enter(self, depth: int = 1, environment: Mapping[str, str] | None = None) -> Container:
        """A pid namespace whose first process does not use the region."""
        self.running.append(Container(depth, environment=environment))
        return self.running[-1]

    @functools.cached_property
    def inside(self) -> Container:
        """One such process, for all tests that need no other."""
        return self.enter()

    def start(
        self,
        depth: int = 1,
        *,
        used: int = GIB,
        host_pid: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Container:
        """A pid namespace whose first process uses the region; its host pid is right."""
        inside = self.enter(depth, environment)
        self._attach(inside, inside.host_pid, used, stored=host_pid)
        return inside

    def spawn(
        self, inside: Container, *, used: int = GIB, last_pid: str = "", host_pid: bool = True
    ) -> tuple[int, int]:
        """One more process that uses the region: its pid inside and on the host."""
        pid, outside = inside.child("spawn", last_pid)
        self._attach(inside, outside, used, f"@{pid}", stored=host_pid)
        return pid, outside

    def attach(self) -> tuple[int, int]:
        """A child of `inside` with a slot, in which nothing counts yet."""
        return self.spawn(self.inside, used=0, host_pid=False)

    def _attach(
        self, inside: Container, host_pid: int, used: int, *target: str, stored: bool
    ) -> None:
        pid = inside.tell(*target, "attach", self.path)
        self.true_host_pids[pid] = host_pid
        if used:
            inside.tell(*target, "charge", used)
        if stored:
            self.set_host_pid(pid, host_pid)

    def charge(self, pid: int, nbytes: int) -> None:
        self.inside.tell(f"@{pid}", "charge", nbytes)

    def kill(self, inside: Container, pid: int) -> None:
        """End a process that was spawned, and leave its slot."""
        inside.tell("kill", pid)
        self.forget(pid)

    def forget(self, pid: int) -> None:
        """A process with that pid does not use the region any more."""
        del self.true_host_pids[pid]

    def move(self, host_pid: int, *, id_: str | None = None) -> None:
        """Put a process into the container's cgroup, named as kubelet's cgroupfs driver does."""
        id_ = id_ or self.id
        if id_ not in self._cgroups:
            cgroup = cgroup_of_pod(self.pod_uid, id_, qos="burstable")
            self._cgroups[id_] = self._made.enter_context(cgroup)
        (self._cgroups[id_] / "cgroup.procs").write_text(str(host_pid))

    # ---- fields of the region

    def set_host_pid(self, pid: int, host_pid: int) -> None:
        with open_region(self.path, writable=True) as region:
            region.set_host_pid(pid, host_pid)

    def host_pids(self) -> dict[int, int | None]:
        with open_region(self.path) as region:
            return {each.pid: each.host_pid for each in region.snapshot().processes}

    def used(self) -> int:
        with open_region(self.path) as region:
            return region.memory_used(0)

    def limits(self) -> dict[str, Any]:
        """What a plan can change."""
        return {
            "memory": [self.get("limit", device=device) for device in range(16)],
            "sm": [self.get("sm_limit", device=device) for device in range(16)],
            "priority": self.get("priority"),
        }

    def close(self) -> None:
        self._made.close()
        for each in self.running:
            each.end()


class NodeScene(contextlib.AbstractContextManager):
    """The directories of a node, and the containers in them; a context manager.

    Args:
        directory: Where they are made.
        spec: What `create_region` takes, for containers that do not say otherwise.

    Attributes:
        root: The directory of the containers, for ``--root``.
        pod_logs: Kubelet's log directories, which name pods, for ``--pod-logs``.
        containers: Those that were made.
    """

    def __init__(self, directory: Path, **spec: Any) -> None:
        self.directory = directory
        self.root = Root(directory / "containers").path
        self.pod_logs = directory / "pod-logs"
        self.pod_logs.mkdir(exist_ok=True)
        self.containers: list[SceneContainer] = []
        self._spec = spec

    def container(
        self,
        name: str = "train",
        *,
        pod: str | None = "bert-0",
        namespace: str = "research",
        pod_uid: str | None = None,
        layout: Layout = Layout.V1_2,
        file_name: str = "usage.cache",
        region: bool = True,
        **spec: Any,
    ) -> SceneContainer:
        """Add a container without processes, in a pod of its own unless a UID is given.

        Without a `pod` no log directory has its name. `spec` goes to `create_region`; a region that
        is made with ``uuids=()`` has not reported its devices yet.
        """
        uid = pod_uid or f"{_OWN}-27a1-4a1c-8a3c-{next(_uids):012x}"
        if pod is not None:
            self.name_pod(uid, name, pod=pod, namespace=namespace)
        directory = Root(self.root).container(name, uid)
        made = SceneContainer(directory, uid, file_name, layout)
        self.containers.append(made)
        if region:
            given = {**self._spec, **spec}
            create_region(made.path, layout=layout, **given)
            if not given.get("uuids", True):
                made.put("device_num", 0)
        return made

    def name_pod(
        self, uid: str, container: str, *, pod: str = "bert-0", namespace: str = "research"
    ) -> None:
        """Make the log directory of a container."""
        place = self.pod_logs / f"{namespace}_{pod}_{uid}" / container
        place.mkdir(parents=True, exist_ok=True)

    def golden(self, name: str) -> GoldenRegion:
        """A container of a pod called as a golden region, with that region."""
        return unpack(name, self.container(pod=name.replace(".", "-"), region=False).directory)

    def open(self, **options: Any) -> Node:
        """The node as the product sees it; not refreshed."""
        return Node(self.root, names=NodeNames(self.pod_logs), **options)

    @property
    def options(self) -> tuple[str, ...]:
        """What the command line needs to see this node."""
        return "--root", str(self.root), "--pod-logs", str(self.pod_logs)

    def close(self) -> None:
        for each in self.containers:
            each.close()

    def __exit__(self, *_: object) -> None:
        self.close()
