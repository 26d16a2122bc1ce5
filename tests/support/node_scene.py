"""A node of a test's own: a FakeNode whose regions can be written field by field."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from libhamiregion import Layout, create_region
from libhamiregion.node import Node, NodeNames
from libhamiregion.testing import FakeNode
from support.region_file import RegionFile

if TYPE_CHECKING:
    from pathlib import Path

    from libhamiregion.testing import FakeContainer

GPUS = (
    "GPU-00000000-0000-0000-0000-000000000000",
    "GPU-11111111-1111-1111-1111-111111111111",
)


class SceneContainer(RegionFile):
    """A container's region file, with the container that it belongs to."""

    def __init__(self, path: Path, layout: Layout, container: FakeContainer) -> None:
        super().__init__(path, layout)
        self.container = container
        self.directory = container.directory
        self.pod_uid = container.pod_uid


class NodeScene:
    """The directories of a node, and the containers in them.

    Attributes:
        fake: The FakeNode, for containers with running processes (`fake.add`).
        root: The directory of the containers, for ``--root``.
        pod_logs: Kubelet's log directories, for ``--pod-logs``.
    """

    def __init__(self, directory: Path) -> None:
        self.fake = FakeNode(directory)
        self.root = self.fake.root
        self.pod_logs = self.fake.pod_logs

    def container(
        self,
        name: str = "main",
        *,
        pod: str | None = None,
        namespace: str | None = "research",
        layout: Layout = Layout.V1_2,
        **spec: Any,
    ) -> SceneContainer:
        """Add a container without processes; `spec` goes to `create_region`.

        With `namespace=None` no directory on the node has the name of the pod.
        """
        made = self.fake.add(name, pod=pod, namespace=namespace or "", region=False)
        if namespace is None:
            shutil.rmtree(self.pod_logs / f"_{made.pod}_{made.pod_uid}")
        path = made.directory / "usage.cache"
        create_region(path, layout=layout, **{"uuids": GPUS[:1], **spec})
        return SceneContainer(path, layout, made)

    def open(self, **options: Any) -> Node:
        """The node as the product sees it; not refreshed."""
        return Node(self.root, names=NodeNames(self.pod_logs), **options)

    @property
    def options(self) -> tuple[str, ...]:
        """What the command line needs to see this node."""
        return "--root", str(self.root), "--pod-logs", str(self.pod_logs)

    def close(self) -> None:
        self.fake.close()
