"""One node with the regions of everybody who makes them: found, named, and edited as one."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fake_nvml.scenes import CARD, GPU
from support.command_line import call
from support.containers import Container, containers, needs_namespaces
from support.exposition import parsed
from support.kubelet import KubeletFiles, container_id
from support.observing import details
from support.own_cgroups import cgroup_of_pod, needs_cgroups
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import Layout, create_region, open_region
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node, NvmlSampler, Observer, node_processes
from libhamiregion.units import GIB

pytestmark = [needs_namespaces, needs_cgroups]

#: Where each lies below the scene's directory, as it does below / of a node.
HAMI = "usr/local/vgpu/containers"
KAI = "kai/usr/local/vgpu/containers"
VOLCANO = "usr/local/vgpu/vgpu/containers"
VOLCANO_BEFORE = "tmp/vgpu/containers"
DRA = "usr/local/vgpu/claims"
ROOTS = (HAMI, VOLCANO, VOLCANO_BEFORE, KAI, DRA)


def uid() -> str:
    return str(uuid.uuid4())


@attrs.define
class Scene:
    """The node, with kubelet's files."""

    directory: Path
    made: contextlib.ExitStack
    files: dict[str, RegionFile] = attrs.field(factory=dict)
    #: By host pid: the pid inside, which of `files`, and the pod.
    processes: dict[int, tuple[int, str, str]] = attrs.field(factory=dict)

    @property
    def kubelet(self) -> KubeletFiles:
        return KubeletFiles(self.directory / "var")

    @property
    def roots(self) -> list[str]:
        return [str(self.directory / each) for each in ROOTS]

    @property
    def options(self) -> list[str]:
        return [
            *(word for root in self.roots for word in ("--root", root)),
            *("--pod-logs", str(self.kubelet.pods)),
            *("--container-logs", str(self.kubelet.containers)),
            *("--claims", str(self.kubelet.checkpoint)),
        ]

    def node(self, root: list[str] | None = None) -> Node:
        names = self.kubelet.names()
        return Node(self.roots if root is None else root or None, names=names)

    def json(self, *words: str) -> dict[str, Any]:
        done = call(*words, *self.options, "--json")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    def region(self, known_as: str, root: str, name: str, file: str) -> None:
        directory = self.directory / root / name
        directory.mkdir(parents=True)
        directory.chmod(0o777)
        create_region(directory / file, memory_limits=[8 * GIB], uuids=[GPU])
        self.files[known_as] = RegionFile(directory / file, Layout.V1_2)

    def pod(self, name: str, *containers: str) -> str:
        pod_uid = uid()
        self.kubelet.pod(pod_uid, name, *(containers or ("train",)))
        return pod_uid

    def process(self, start: Any, known_as: str, pod: str, pod_uid: str, last_pid: int) -> None:
        """The pod's container, with a process of that pid + 1 that uses the region."""
        inside: Container = start(1)
        id_ = container_id(pod_uid, "train")
        self.kubelet.container(id_, pod, "train")
        own = cgroup_of_pod(pod_uid, id_)
        cgroup = self.made.enter_context(own)
        (cgroup / "cgroup.procs").write_text(str(inside.host_pid))
        pid, host_pid = inside.child("spawn", last_pid)
        path = self.files[known_as].path
        inside.tell(f"@{pid}", "attach", path)
        inside.tell(f"@{pid}", "charge", GIB)
        with open_region(path, writable=True) as region:
            region.set_host_pid(pid, host_pid)
        self.processes[host_pid] = (pid, known_as, pod)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Iterator[Scene]:
    """Tests only look, or put back what they have changed."""
    with contextlib.ExitStack() as made:
        start = made.enter_context(containers())
        scene = Scene(tmp_path_factory.mktemp("node"), made)
        pods = {name: scene.pod(name) for name in ("of-hami", "volcano", "volcano-before", "kai")}
        scene.region("of-hami", HAMI, f"{pods['of-hami']}_train", "usage.cache")
        scene.region("volcano", VOLCANO, f"{pods['volcano']}_train", f"{uid()}.cache")
        before = f"{pods['volcano-before']}_train"
        scene.region("volcano-before", VOLCANO_BEFORE, before, f"{uid()}.cache")
        scene.region("kai", KAI, f"{pods['kai']}_train", "usage.cache")
        (scene.directory / KAI).chmod(0o1777)
        pods["alone"], pods["first"] = scene.pod("alone"), scene.pod("first")
        pods["second"] = scene.pod("second")
        holders = {"own": [pods["alone"]], "shared": [pods["first"], pods["second"]]}
        claims = {}
        for name in ("own", "shared", "unknown"):
            claim = uid()
            scene.region(name, DRA, claim, f"{uid()}.cache")
            if name in holders:
                claims[claim] = name, holders[name]
        scene.kubelet.claims(claims)
        for known_as, pod, last_pid in (
            ("of-hami", "of-hami", 40),
            ("volcano", "volcano", 40),
            ("kai", "kai", 40),
            ("own", "alone", 40),
            ("shared", "first", 40),
            ("shared", "second", 50),
        ):
            scene.process(start, known_as, pod, pods[pod], last_pid)
        yield scene


@pytest.fixture(scope="module")
def unknown(scene) -> str:
    """The UID of the claim that no file names."""
    return scene.files["unknown"].path.parent.name


def expected(unknown: str) -> set[tuple[str | None, str | None, str]]:
    """Namespace, pod and name of each region."""
    named = ("of-hami", "volcano", "volcano-before", "kai")
    return {
        *(("research", pod, "train") for pod in named),
        ("research", "alone", "own"),
        ("research", None, "shared"),
        (None, None, unknown),
    }


# ---- Found and named ----------------------------------------------------------------------------


def test_ps_proves_the_processes_of_several_pods_in_one_region(scene):
    found: dict[int, dict[str, Any]] = {}

    def are_proved() -> bool:
        found.clear()
        found.update(
            (each["host_pid"], each) for each in scene.json("ps", "--no-driver")["processes"]
        )
        return found.keys() == scene.processes.keys()

    # A busy machine may leave no time for all of them.
    eventually(are_proved)
    for host_pid, (pid, known_as, pod) in scene.processes.items():
        row = found[host_pid]
        assert (row["pid"], row["state"]) == (pid, "alive")
        assert row["region_path"] == str(scene.files[known_as].path)
        # By the process's own cgroup where several pods share the region.
        assert (row["namespace"], row["pod"], row["container"]) == ("research", pod, "train")


def test_the_exporter_has_all_of_them_under_hamis_labels(scene, unknown):
    with scene.node() as node:
        told = parsed(NodeExporter(node).render())
    used = told.series("hami_vgpu_memory_used_bytes")
    assert {frozenset(dict(each)) for each in used} == {
        frozenset({"namespace", "pod", "container", "vdevice_index", "device_uuid", "zone"})
    }
    labels = [dict(each) for each in used]
    assert {(each["namespace"], each["pod"], each["container"]) for each in labels} == {
        tuple(part or "" for part in each) for each in expected(unknown)
    }
    assert told.value("hami_vgpu_memory_used_bytes", container="shared", pod="") == 2 * GIB


def test_the_exporter_lists_who_holds_a_claim(scene, unknown):
    with scene.node() as node:
        exporter = NodeExporter(node)
        told = parsed(exporter.render())
    rows = [dict(each) for each in told.series("hamiregion_claim_info")]
    assert {
        (each["claim"], each["namespace"], each["pod"], each["container"]) for each in rows
    } == {
        ("own", "research", "alone", ""),
        ("shared", "research", "first", ""),
        ("shared", "research", "second", ""),
        (unknown, "", "", ""),
    }


def host_pid_of(scene: Scene, pid: int, known_as: str) -> int:
    with open_region(scene.files[known_as].path) as region:
        (process,) = (each for each in region.snapshot().processes if each.pid == pid)
        return process.host_pid


def test_the_agent_repairs_in_all_of_them(scene):
    """Each process's host pid is put right where it is wrong, in a claim's region as in others."""
    for host_pid, (pid, known_as, _) in scene.processes.items():
        with open_region(scene.files[known_as].path, writable=True) as region:
            region.set_host_pid(pid, host_pid + 1)
    roots = [word for root in scene.roots for word in ("--root", root)]

    def are_repaired() -> bool:
        done = call("agent", "--repair", "--once", *roots)
        return done.returncode == 0 and all(
            host_pid_of(scene, pid, known_as) == host_pid
            for host_pid, (pid, known_as, _) in scene.processes.items()
        )

    # One pass on a busy machine may have no time for all processes.
    eventually(are_repaired)


def test_a_healthy_node_of_all_places_has_no_finding(scene):
    def is_healthy() -> bool:
        done = call("doctor", "--no-driver", *scene.options, "--json")
        kinds = {each["kind"] for each in json.loads(done.stdout)["findings"]}
        # A busy machine may leave no time for all processes, which is told.
        assert kinds <= {"not_observed", "processes_unknown"}
        return not kinds

    eventually(is_healthy)


# ---- Edited -------------------------------------------------------------------------------------


def limits_of(scene: Scene) -> dict[str, int]:
    return {name: file.get("limit") for name, file in scene.files.items()}


def test_a_plan_reaches_them_all_and_is_undone(scene, tmp_path):
    before = limits_of(scene)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
        "  - {select: {}, set: {memory_limit: 6GiB}}\n"
        "  - {select: {namespace: research, container: shared}, set: {memory_limit: 5GiB}}\n"
    )
    done = call("limits", "apply", str(plan), *scene.options, "--state", str(tmp_path / "state"))
    assert done.returncode == 0, done.stderr
    assert limits_of(scene) == {**dict.fromkeys(before, 6 * GIB), "shared": 5 * GIB}
    (undo,) = (tmp_path / "state").glob("*undo*")
    done = call("limits", "apply", str(undo), *scene.options, "--state", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert limits_of(scene) == before


# ---- One region for several containers ----------------------------------------------------------


def test_who_escapes_a_claims_limit_is_told_in_each_of_its_containers(tmp_path, fake_driver):
    directory = tmp_path / "claims" / uid()
    directory.mkdir(parents=True)
    path = directory / f"{uid()}.cache"
    create_region(path, memory_limits=[8 * GIB], uuids=[GPU])
    escaped = set()
    with (
        contextlib.ExitStack() as made,
        containers() as start,
        Node(tmp_path / "claims") as node,
        NvmlSampler(fake_driver.library) as sampler,
    ):
        for last_pid in (40, 50):
            inside = start(1)
            cgroup = made.enter_context(cgroup_of_pod(uid(), uuid.uuid4().hex * 2))
            (cgroup / "cgroup.procs").write_text(str(inside.host_pid))
            escaped.add(inside.child("fork")[1])
            pid, _ = inside.child("spawn", last_pid)
            inside.tell(f"@{pid}", "attach", path)
        fake_driver.play(CARD, *(f"process 0 compute {pid} {GIB}" for pid in escaped))
        rows = node_processes(Observer(node, sampler=sampler).observe())
        found = {row.host_pid: row for row in rows if row.state == "escaped"}
        assert found.keys() == escaped
        for row in found.values():
            assert row.container is node.containers[0]
            assert row.owner.container_id == row.process.container
        names = {row.container_id for row in rows}
        assert len(names) == 2


def test_a_pid_that_two_containers_of_a_claim_have_is_neithers(tmp_path):
    directory = tmp_path / "claims" / uid()
    directory.mkdir(parents=True)
    path = directory / f"{uid()}.cache"
    create_region(path, memory_limits=[8 * GIB], uuids=[GPU])
    with containers() as start, Node(tmp_path / "claims") as node:
        first, second = start(1), start(1)
        pid, host_pid = first.child("spawn", 40)
        first.tell(f"@{pid}", "attach", path)
        (view,) = details(node)
        assert view.processes.host_pids == {pid: host_pid}
        same, _ = second.child("spawn", 40)
        assert same == pid
        second.tell(f"@{pid}", "map", path)
        (view,) = details(node)
        assert [each.state for each in view.processes.slots] == ["unknown"]
        # The one that is left has that pid: what it counts is not taken from it.
        first.tell("kill", pid)
        (view,) = details(node)
        assert not view.processes.dead
