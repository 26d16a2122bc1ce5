"""A node for limits by plan: containers with regions, the log directories that name their pods."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from libhamiregion import Layout, create_region
from libhamiregion.node import Node, NodeNames
from libhamiregion.plan import LimitPlan, parse_plan
from support.region_file import RegionFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIB = 1 << 30
HEAD = "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
GPUS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")


class PlannedRegion(RegionFile):
    """A region with the UID of its pod."""

    def __init__(self, path: Path, layout: Layout, pod_uid: str) -> None:
        super().__init__(path, layout)
        self.pod_uid = pod_uid

    def limits(self) -> dict[str, Any]:
        """What a plan can change, as it stands in the file."""
        return {
            "memory": [self.get("limit", device=device) for device in range(16)],
            "sm": [self.get("sm_limit", device=device) for device in range(16)],
            "priority": self.get("priority"),
        }


class PlanScene:
    """What stands below a root, and what is put there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "containers"
        self.logs = directory / "pods"
        self.state = directory / "state"
        self.allocations = directory / "kubelet_internal_checkpoint"
        self.root.mkdir()
        self.logs.mkdir()

    def container(
        self,
        name: str = "train",
        *,
        namespace: str | None = "research",
        pod: str = "bert-0",
        pod_uid: str | None = None,
        layout: Layout = Layout.V1_2,
        **spec: Any,
    ) -> PlannedRegion:
        """A container with a region on two GPUs; with no namespace, nobody knows its pod's name."""
        uid = pod_uid or str(uuid.uuid4())
        self.name_pod(uid, namespace, pod, name)
        directory = self.root / f"{uid}_{name}"
        directory.mkdir()
        given = {"memory_limits": ("8GiB", "4GiB"), "sm_limits": (50,), "uuids": GPUS, **spec}
        create_region(directory / "usage.cache", layout=layout, **given)
        if not given.get("uuids"):
            RegionFile(directory / "usage.cache", layout).put("device_num", 0)
        return PlannedRegion(directory / "usage.cache", layout, uid)

    def name_pod(self, uid: str, namespace: str | None, pod: str, container: str = "train") -> None:
        if namespace is not None:
            (self.logs / f"{namespace}_{pod}_{uid}" / container).mkdir(parents=True, exist_ok=True)

    def node(self) -> Node:
        """The node, looked at once; the caller closes it."""
        node = Node(self.root, names=NodeNames(self.logs), allocations=self.allocations)
        node.refresh(processes=False)
        return node

    def plan_file(self, *rules: str) -> Path:
        path = self.directory / "plan.yaml"
        path.write_text(plan_yaml(*rules))
        return path

    @property
    def options(self) -> tuple[str, ...]:
        """What the command line needs to see this node."""
        return (
            *("--root", os.fspath(self.root)),
            *("--pod-logs", os.fspath(self.logs)),
        )


def plan_yaml(*rules: str) -> str:
    return HEAD + "".join(f"  - {rule}\n" for rule in rules) if rules else HEAD.rstrip() + " []\n"


def plan(*rules: str) -> LimitPlan:
    return parse_plan(plan_yaml(*rules))


def plan_scene(tmp_path: Path) -> PlanScene:
    """For a fixture: a scene of the test's own."""
    return PlanScene(tmp_path)


def plan_nodes(scene: PlanScene) -> Iterator[Node]:
    """For a fixture: the scene's node, to be refreshed."""
    with scene.node() as node:
        yield node
