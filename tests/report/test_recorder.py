"""A recorder: what it reads of regions, processes and the driver, and when it looks."""

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_B
from support.containers import needs_namespaces
from support.node_scene import GIB, NodeScene
from support.seen_node import GPU as CARD_UUID
from support.seen_node import POD, entry, seen

from libhamiregion import Layout, limits_from_environment
from libhamiregion.node import Node, NvmlSampler, Observer
from libhamiregion.observation.share import Allocation as Given
from libhamiregion.observation.share import share_of
from libhamiregion.report import (
    Allocation,
    Gpu,
    Recorder,
    Recording,
    RecordingUnavailable,
    RecordingWriter,
    Sample,
)
from libhamiregion.report.recorder import read_samples

if TYPE_CHECKING:
    from libhamiregion.report.writer import Written


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "node.db"


def only(observer: Observer) -> tuple[Allocation, Sample]:
    """The one device that there is, and what is read of it."""
    (found,) = read_samples(observer.observe()).items()
    return found


# ---- what a look sees ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(Layout), ids=lambda each: each.value)
def test_a_reading_has_what_the_region_says(scene, layout):
    file = scene.container(
        "train",
        layout=layout,
        pod_uid="0b5c",
        memory_limits=[8 * GIB, None],
        sm_limits=[50, None],
        uuids=[GPU, "GPU-b"],
    )
    slot = file.add_process(4_000_000, {0: GIB, 1: 2 * GIB})
    if layout.has_utilization:
        file.put("slot_util.sm", 37, slot=slot, device=0)
    names = (None, None, "train", "0b5c")
    with Node(scene.root) as opened:
        found = read_samples(Observer(opened).observe())
    known = layout.has_utilization
    # Whether the process is proved dead depends on who looks.
    assert {of: attrs.evolve(sample, processes=None) for of, sample in found.items()} == {
        Allocation(*names, 0, GPU): Sample(GIB, 8 * GIB, 50, 37 if known else None),
        Allocation(*names, 1, "GPU-b"): Sample(2 * GIB, None, 100, 0 if known else None),
    }


@needs_namespaces
def test_processes_are_those_that_live_and_the_drivers_figures_are_theirs(
    files, fake_driver, nvml_sampler
):
    """A dead one has nothing to be told of; a sum without a live one would be too low."""
    pod = files.container("train", pod="bert-0", memory_limits=[8 * GIB], uuids=[GPU])
    (pid, first), (_, second) = pod.attach(), pod.attach()
    pod.charge(pid, GIB)
    dead, _ = pod.attach()
    pod.charge(dead, 512 * MIB)
    pod.inside.tell("kill", dead)
    known = f"process 0 compute {first} {1300 * MIB}"
    with files.open() as opened:
        observer = Observer(opened, sampler=nvml_sampler)
        for other, driver_bytes in (
            (f"process 0 compute {second} {200 * MIB}", 1500 * MIB),
            (f"process 0 compute {second} unavailable", None),
            (f"sample 0 {first} 1000 44 3 0 0", 1300 * MIB),
        ):
            fake_driver.play(CARD, known, other)
            allocation, sample = only(observer)
            assert (allocation.namespace, allocation.pod) == ("research", "bert-0")
            assert sample.processes == 2
            assert sample.memory_used_bytes == GIB + 512 * MIB
            assert sample.driver_memory_bytes == driver_bytes
        assert sample.driver_sm_percent == 44


def test_a_recording_has_the_models_and_memory_of_gpus_and_mig_devices(path, scene, fake_driver):
    fake_driver.play(CARD, *MIG)
    with (
        Node(scene.root) as opened,
        NvmlSampler(fake_driver.library, host_namespace=True) as sampler,
        RecordingWriter(path) as writer,
    ):
        Recorder(Observer(opened, sampler=sampler), writer).look()
        with Recording(path) as recording:
            found = recording.devices(0, 1)
    assert found[GPU] == Gpu("NVIDIA H100 80GB HBM3", 81920 * MIB)
    assert found[MIG_B] == Gpu("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 19968 * MIB)
    assert len(found) == 4


def test_a_container_without_a_region_has_the_drivers_figures_and_the_limits_given():
    whole = seen(entry(1))
    ((of, sample),) = read_samples(whole).items()
    assert (of.pod_uid, of.container, of.device_uuid) == (POD, "main", CARD_UUID)
    assert sample == Sample(5 * GIB, None, 100, 0, None, 5 * GIB, 0)
    variables = {"CUDA_DEVICE_MEMORY_LIMIT_1": "4g", "CUDA_DEVICE_SM_LIMIT": "30"}
    limits = limits_from_environment(variables)
    uuids = ("GPU-other", CARD_UUID)
    given = Given(POD, "main", "nvidia.com/gpu", uuids, share_of(variables), limits=limits)
    shared = attrs.evolve(whole, allocations=(given,))
    found = {of.device_index: sample for of, sample in read_samples(shared).items()}
    assert found == {1: Sample(5 * GIB, 4 * GIB, 30, 0, None, 5 * GIB, 0)}
    idle = seen(listed=(), allocations=(attrs.evolve(given, limits=None),))
    assert list(read_samples(idle).values()) == [Sample(0, None, 100, 0, None, 0, 0)]


def test_of_two_regions_of_one_container_the_one_with_more_counts(tmp_path):
    """A container cannot hide what it uses behind an empty region."""
    scenes = [NodeScene(tmp_path / name) for name in "ab"]
    for scene, nbytes in zip(scenes, (5 * GIB, 0), strict=True):
        file = scene.container("train", pod_uid="0b5c", memory_limits=[8 * GIB], uuids=[GPU])
        file.add_process(4_000_000, {0: nbytes})
    roots = [scene.root for scene in scenes]
    for order in (roots, roots[::-1]):
        with Node(order) as opened:
            assert only(Observer(opened))[1].memory_used_bytes == 5 * GIB


def test_sizes_that_no_gpu_has_are_not_recorded(scene):
    """A container that writes them must not decide what everybody's sums look like."""
    for name, used, limit in (("liar", 2**50, GIB), ("limit", GIB, 2**50)):
        file = scene.container(name, memory_limits=[limit])
        file.add_process(4_000_000, {0: used})
    with Node(scene.root) as opened:
        allocation, sample = only(Observer(opened))
    assert allocation.container == "limit"
    assert (sample.memory_used_bytes, sample.memory_limit_bytes) == (GIB, None)


def test_a_recorder_looks_until_it_is_told_to_stop(scene, path):
    """What can pass is told and tried again; a region that cannot be read costs nobody else."""
    scene.container("train", memory_limits=[GIB])
    bad = scene.container("bad", memory_limits=[GIB])
    waits: list[float] = []
    seen: list[Written] = []
    failures: list[Exception] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 1:
            path.unlink()
            path.mkdir()
        elif len(waits) == 2:
            path.rmdir()
            bad.resize(100)
        return len(waits) == 3

    with Node(scene.root) as opened, RecordingWriter(path, interval_s=900) as writer:
        Recorder(Observer(opened), writer).run(wait, looked=seen.append, failed=failures.append)
    assert [each.allocations for each in seen] == [2, 1]
    assert [type(each) for each in failures] == [RecordingUnavailable]
    # Nobody waited, so each look came that much earlier than it was due.
    assert [round(seconds / 900) for seconds in waits] == [1, 2, 3]
