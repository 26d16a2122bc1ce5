"""Processes whose CUDA_VISIBLE_DEVICES has CUDA count GPUs otherwise than NVML."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from support.command_line import call, run
from support.exposition import parsed
from support.region_file import RegionFile

from libhamiregion import Layout, create_region
from libhamiregion.doctor import FindingKind, diagnose
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node, Observer, node_processes
from libhamiregion.observation.json import from_json, to_json
from libhamiregion.observation.rows import Join
from libhamiregion.observation.visible import cuda_order
from libhamiregion.units import GIB

POD_UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
UUIDS = ["GPU-aa", "GPU-ab", "MIG-c"]


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        ("0", None),
        ("0,1,2", None),
        ("0,1", None),
        ("1", {0: 1}),
        ("1,0", {0: 1, 1: 0}),
        (" 2 , 0", {0: 2, 1: 0}),
        ("0,2", {0: 0, 1: 2}),
        ("", None),
        ("-1", None),
        ("1,-1,0", {0: 1}),
        ("1,7,0", {0: 1}),
        ("7", None),
        ("1,1", None),
        ("GPU-ab", {0: 1}),
        ("GPU-ab,GPU-aa", {0: 1, 1: 0}),
        ("MIG-c", {0: 2}),
        ("GPU-a", None),  # two begin with it
        ("GPU-unknown", None),
        ("none", None),
        ("1" * 5000, None),
        ("\u0661", None),
    ],
)
def test_the_order_that_a_value_makes(visible, order):
    assert cuda_order(visible, UUIDS) == order


def test_without_uuids_numbers_are_known_and_uuids_are_not():
    assert cuda_order("1", ()) == {0: 1}
    assert cuda_order("0", ()) is None
    assert cuda_order("16", ()) is None
    assert cuda_order("GPU-ab", ()) == {}


HOLD = """
import sys
from libhamiregion import open_region
with open_region(sys.argv[1], writable=True) as region, region.attach() as slot:
    slot.charge(1, 4 << 30)
    print(flush=True)
    sys.stdin.read()
"""
READ = """
import sys
from libhamiregion import open_region
with open_region(sys.argv[1]):
    print(flush=True)
    sys.stdin.read()
"""


class Scene:
    """A container with two GPUs whose process works on the second, as libvgpu leaves its region."""

    def __init__(self, directory: Path, visible: str | None, uuids: list[str]) -> None:
        self.root = directory / "containers"
        place = self.root / f"{POD_UID}_serve"
        place.mkdir(parents=True)
        self.file = RegionFile(place / "usage.cache", Layout.V1_2)
        limits = ["6GiB", "20GiB"]
        create_region(self.file, memory_limits=limits, sm_limits=[30, 60], uuids=uuids)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible or ""}
        if visible is None:
            del environment["CUDA_VISIBLE_DEVICES"]
        command = [sys.executable, "-c", HOLD, str(self.file.path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        self.process.stdout.readline()
        self.file.put("slot_hostpid", self.process.pid)
        # CUDA's first device is the second one.
        self.file.put("slot_monitorused", 4 * GIB + 300 * MIB)
        self.file.put("slot_util.sm", 80)

    def play(self, driver: FakeDriver) -> None:
        used = f"process 1 compute {self.process.pid} {4 * GIB + 300 * MIB}"
        driver.play(CARD, SECOND, used, f"sample 1 {self.process.pid} 1000 80 0 0 0")

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def scene(tmp_path, request) -> Iterator[Scene]:
    visible, uuids = request.param
    made = Scene(tmp_path, visible, uuids)
    yield made
    made.end()


@pytest.mark.parametrize("scene", [("1", [GPU, OTHER]), (OTHER, [GPU, OTHER])], indirect=True)
def test_the_figures_are_those_of_the_gpu_at_work(scene, fake_driver, nvml_sampler):
    scene.play(fake_driver)
    with Node(scene.root) as node:
        observation = Observer(node, sampler=nvml_sampler).observe()
        page = parsed(NodeExporter(node, sampler=nvml_sampler, max_age_s=0.0).render())
    for seen in (observation, from_json(to_json(observation))):
        (row,) = (each for each in node_processes(seen) if each.pid is not None)
        assert [each.sm_util_percent for each in row.devices] == [0, 80]
        assert Join(seen).device_percents == [0, 80]
        (found,) = diagnose(seen)
        assert (found.kind, found.cause) == (FindingKind.DEVICES_REORDERED, "environment")
        assert "CUDA device 0 is device 1" in found.evidence
    ours, theirs = "hamiregion_process_sm_utilization_ratio", "hami_container_device_utilization"
    assert page.value(ours, device_uuid=OTHER) == 0.8
    assert page.value(ours, device_uuid=GPU) == 0
    assert page.value(f"{theirs}_ratio", device_uuid=GPU) == 80


@pytest.mark.parametrize("scene", [("1", [GPU, OTHER])], indirect=True)
def test_every_verb_shows_utilisation_under_the_gpu_at_work(
    scene, fake_driver, nvml_sampler, tmp_path
):
    scene.play(fake_driver)
    root, document = ("--root", str(scene.root)), tmp_path / "document.json"
    with Node(scene.root) as node:
        observer = Observer.for_command(node, sampler=nvml_sampler)
        document.write_text(to_json(observer.observe()))
    for source in (root, ("--from", str(document))):
        shown = json.loads(call("show", POD_UID, *source, "--json").stdout)
        assert [each["sm_util_percent"] for each in shown["devices"]] == [0, 80]
        (process,) = shown["processes"]
        assert [each["sm_util_percent"] for each in process["devices"]] == [0, 80]
        listed = json.loads(call("containers", *source, "--json").stdout)
        (container,) = listed["containers"]
        assert [each["sm_util_percent"] for each in container["devices"]] == [0, 80]


@pytest.mark.parametrize("scene", [(None, [GPU, OTHER]), ("0", [GPU, OTHER])], indirect=True)
def test_an_order_that_the_environment_does_not_show_is_seen_by_the_driver(
    scene, fake_driver, nvml_sampler
):
    scene.play(fake_driver)
    with Node(scene.root) as node:
        observer = Observer(node, sampler=nvml_sampler)
        (found,) = diagnose(observer.observe())
        assert (found.kind, found.cause) == (FindingKind.DEVICES_REORDERED, "driver")
        # Figures of another process prove nothing of this one.
        scene.file.put("slot_hostpid", 1)
        kinds = [each.kind for each in diagnose(observer.observe())]
        assert FindingKind.DEVICES_REORDERED not in kinds


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (("1", []), "CUDA device 0 is device 1"),
        ((OTHER, []), "which devices these are is not known"),
    ],
    indirect=["scene"],
)
def test_a_region_that_names_no_devices_yet(scene, words):
    with Node(scene.root) as node:
        found = diagnose(Observer(node).observe())
    (reordered,) = (each for each in found if each.kind is FindingKind.DEVICES_REORDERED)
    assert reordered.evidence.endswith(words)


@pytest.mark.parametrize("scene", [("0", [GPU, OTHER]), ("-1", [GPU, OTHER])], indirect=True)
def test_a_subset_that_keeps_the_numbers_is_no_finding(scene):
    with Node(scene.root) as node:
        assert diagnose(Observer(node).observe()) == ()


@pytest.mark.parametrize("scene", [("1", [GPU, OTHER])], indirect=True)
def test_an_edit_says_which_use_libvgpu_compares_with_the_limit(scene):
    words = ("limits", "set", str(scene.file.path), "--memory", "5GiB", "--dry-run", "--device")
    in_force = (
        "libvgpu compares the limit of device 0 with the use of device 0 up to HAMi-core of"
        " 2026-09-25, and with that of device 1 from then on"
    )
    said = call(*words, "0").stdout
    assert f"note: 1 process with CUDA_VISIBLE_DEVICES=1: {in_force}" in said
    said = call(*words, "1").stdout
    assert f"the limit of device 1 holds for none of its GPUs; {in_force}" in said


@pytest.mark.parametrize("scene", [("0", [GPU, OTHER])], indirect=True)
def test_an_edit_says_nothing_where_devices_are_counted_alike(scene):
    said = call("limits", "set", str(scene.file.path), "--sm", "20", "--device", "0").stdout
    assert "note:" not in said


@pytest.mark.parametrize("scene", [("0", [GPU, OTHER])], indirect=True)
def test_an_edit_says_nothing_about_itself_and_programs_that_only_read(scene):
    path, pipe = str(scene.file.path), subprocess.PIPE
    other = {"CUDA_VISIBLE_DEVICES": "1"}
    command = [sys.executable, "-c", READ, path]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | other) as reader:
        reader.stdout.readline()
        said = run("limits", "set", path, "--sm", "20", "--device", "0", env=other)
        reader.communicate()
    assert (said.returncode, "note:" in said.stdout) == (0, False)
