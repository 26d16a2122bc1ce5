"""A region under another container's name is named by the one whose processes use it.

HAMi 2.10 can put a pod's region under its init container's name although another one uses it.
"""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.containers import containers, needs_namespaces
from support.exposition import exporter_of, parsed
from support.kubelet import container_id
from support.node_scene import NodeScene
from support.own_cgroups import cgroup_of_pod, needs_cgroups

from libhamiregion import create_region, parse_size
from libhamiregion.node import Node, NodeNames, Observer
from libhamiregion.plan import apply_diff, diff_plan, load_plan, parse_plan
from libhamiregion.units import GIB

pytestmark = [needs_namespaces, needs_cgroups]
LIMIT = "hami_vgpu_memory_limit_bytes"


class Scene:
    """A pod of three containers, and one region, under the name of its init container."""

    def __init__(self, directory: Path, made: contextlib.ExitStack) -> None:
        self.made = made
        self.files = NodeScene(directory)
        self.links = directory / "container-logs"
        self.links.mkdir()
        self.pod_uid = str(uuid.uuid4())
        place = self.files.container(
            "fetch", pod="bert-0", pod_uid=self.pod_uid, region=False
        ).directory
        self.files.name_pod(self.pod_uid, "train")
        self.region = place / "usage.cache"
        create_region(self.region, memory_limits=["8GiB"], uuids=["GPU-1"])
        # What runs in the pod.
        self.running = made.enter_context(contextlib.ExitStack())
        self.last_pid = 0
        self.start = self.running.enter_context(containers())

    def process(self, container: str, pod_uid: str = "") -> None:
        """A container of the pod, with a process that uses the region."""
        uid = pod_uid or self.pod_uid
        id_ = container_id(uid, container)
        inside = self.start(1)
        cgroup = self.running.enter_context(cgroup_of_pod(uid, id_))
        (cgroup / "cgroup.procs").write_text(str(inside.host_pid))
        # Two of one pid cannot share a region.
        self.last_pid += 10
        pid = inside.child("spawn", self.last_pid)[0]
        inside.tell(f"@{pid}", "attach", self.region)
        inside.tell(f"@{pid}", "charge", GIB)

    def logs(self, container: str) -> None:
        """What kubelet makes for a container of the pod that has logs."""
        id_ = container_id(self.pod_uid, container)
        (self.links / f"bert-0_research_{container}-{id_}.log").touch()

    def node(self) -> Node:
        names = NodeNames(self.files.pod_logs, self.links)
        return self.made.enter_context(Node(self.files.root, names=names))


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    with contextlib.ExitStack() as made:
        yield Scene(tmp_path, made)


def seen(node: Node) -> tuple[str | None, str | None, str | None]:
    """The one container's names, as an observation has them."""
    (container,) = Observer(node).observe().containers
    assert node.containers == (container,)
    name = container.pod_name
    assert container.name == name.container
    return name.namespace, name.pod, name.container


def test_its_metrics_and_rows_are_the_main_containers(scene):
    scene.logs("train")
    node = scene.node()
    assert seen(node) == ("research", "bert-0", "fetch")
    scene.process("train")
    assert seen(node) == ("research", "bert-0", "train")
    (container,) = node.containers
    assert (container.directory_name, container.used_by) == ("fetch", "train")
    found = parsed(exporter_of(scene.node()).render())
    (key,) = (each for each in found.samples if each[0] == LIMIT)
    assert dict(key[1])["container"] == "train"
    assert seen(scene.node()) == ("research", "bert-0", "train")


def test_without_a_log_of_that_id_the_directory_names_it(scene):
    scene.process("train")
    assert seen(scene.node()) == ("research", "bert-0", "fetch")


def test_the_name_stays_while_the_region_has_no_process(scene):
    scene.logs("train")
    node = scene.node()
    scene.process("train")
    assert seen(node)[2] == "train"
    scene.running.close()
    assert seen(node)[2] == "train"
    assert seen(scene.node())[2] == "fetch"


def test_two_containers_that_use_it_and_one_of_another_pod_name_nothing(scene):
    for each in ("train", "sidecar"):
        scene.logs(each)
    node = scene.node()
    scene.process("train", pod_uid=str(uuid.uuid4()))
    assert seen(node)[2] == "fetch"
    scene.process("train")
    assert seen(node)[2] == "train"
    scene.process("sidecar")
    assert seen(node)[2] == "fetch"


def test_a_plan_means_it_by_either_name_and_its_undo_by_the_directorys(scene):
    scene.logs("train")
    scene.process("train")
    node = scene.node()
    assert seen(node)[2] == "train"
    for name, limit in (("train", "6GiB"), ("fetch", "5GiB")):
        text = (
            "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
            f"  - {{select: {{container: {name}}}, set: {{memory_limit: {limit}}}}}\n"
        )
        diff = diff_plan(node, parse_plan(text))
        assert [each.container.directory_name for each in diff.changes] == ["fetch"]
        done = apply_diff(node, diff, state=scene.files.root.parent / "state")
        assert done.undo_path is not None
        assert {rule.select.container for rule in load_plan(done.undo_path).rules} == {"fetch"}
        (container,) = node.containers
        assert container.region.memory_limit(0) == parse_size(limit)
