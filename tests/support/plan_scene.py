"""A node for limits by plan: each container has two GPUs with limits."""

from collections.abc import Iterator
from pathlib import Path

from libhamiregion.node import Node
from libhamiregion.plan import LimitPlan, parse_plan
from support.node_scene import NodeScene

HEAD = "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
GPUS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")


class PlanScene(NodeScene):
    """The node, a plan for it, and what plans remember."""

    def __init__(self, directory: Path) -> None:
        limits = {"memory_limits": ("8GiB", "4GiB"), "sm_limits": (50,)}
        super().__init__(directory, uuids=GPUS, **limits)
        self.state = directory / "state"
        self.allocations = directory / "kubelet_internal_checkpoint"

    def node(self) -> Node:
        """The node, looked at once; the caller closes it."""
        node = self.open(allocations=self.allocations)
        node.refresh(processes=False)
        return node

    def plan_file(self, *rules: str) -> Path:
        path = self.directory / "plan.yaml"
        path.write_text(plan_yaml(*rules))
        return path


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
