"""`hamiregion record` on nodes with real regions, processes, signals and disks that are full."""

import contextlib
import itertools
import json
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_B
from support.answers import check_answer
from support.command_line import call, start
from support.containers import needs_namespaces
from support.node_scene import NodeScene
from support.region_file import RegionFile
from support.seen_node import GPU as CARD_UUID
from support.seen_node import POD, entry, seen
from support.wait import PATIENCE_S
from typing_extensions import Self

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

GIB = 1 << 30
SPAN = (0, 2**60)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeScene]:
    with NodeScene(tmp_path) as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


def only(observer: Observer) -> tuple[Allocation, Sample]:
    """The one device that there is, and what is read of it."""
    (found,) = read_samples(observer.observe()).items()
    return found


# ---- what a look sees ----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", list(Layout), ids=lambda each: each.value)
def test_a_reading_has_what_the_region_says(scene: NodeScene, layout: Layout) -> None:
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
    node: NodeScene, fake_driver: FakeDriver, nvml_sampler: NvmlSampler
) -> None:
    """A dead one has nothing to be told of; a sum without a live one would be too low."""
    pod = node.container("train", pod="bert-0", memory_limits=[8 * GIB], uuids=[GPU])
    (pid, first), (_, second) = pod.attach(), pod.attach()
    pod.charge(pid, GIB)
    dead, _ = pod.attach()
    pod.charge(dead, 512 * MIB)
    pod.inside.tell("kill", dead)
    known = f"process 0 compute {first} {1300 * MIB}"
    with node.open() as opened:
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


def test_a_recording_has_the_models_and_memory_of_gpus_and_mig_devices(
    path: Path, scene: NodeScene, fake_driver: FakeDriver
) -> None:
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


def test_a_container_without_a_region_has_the_drivers_figures_and_the_limits_given() -> None:
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


def test_of_two_regions_of_one_container_the_one_with_more_counts(tmp_path: Path) -> None:
    """A container cannot hide what it uses behind an empty region."""
    scenes = [NodeScene(tmp_path / name) for name in "ab"]
    for scene, nbytes in zip(scenes, (5 * GIB, 0), strict=True):
        file = scene.container("train", pod_uid="0b5c", memory_limits=[8 * GIB], uuids=[GPU])
        file.add_process(4_000_000, {0: nbytes})
    roots = [scene.root for scene in scenes]
    for order in (roots, roots[::-1]):
        with Node(order) as opened:
            assert only(Observer(opened))[1].memory_used_bytes == 5 * GIB


def test_sizes_that_no_gpu_has_are_not_recorded(scene: NodeScene) -> None:
    """A container that writes them must not decide what everybody's sums look like."""
    honest = scene.container("honest", memory_limits=[GIB])
    for name, used, limit in (("liar", 2**50, GIB), ("limit", GIB, 2**50)):
        file = scene.container(name, memory_limits=[limit])
        file.add_process(4_000_000, {0: used})
    with Node(scene.root) as opened:
        allocation, _ = only(Observer(opened))
    assert allocation.container == "honest"
    assert honest.layout is Layout.V1_2


def test_a_recorder_looks_until_it_is_told_to_stop(scene: NodeScene, path: Path) -> None:
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


# ---- the command ---------------------------------------------------------------------------------


class Recorded:
    """`hamiregion record` in a process, and the objects that it writes."""

    def __init__(self, scene: NodeScene, path: Path, *more: str) -> None:
        words = ("record", "--to", str(path), "--root", str(scene.root), "--no-driver")
        self.process: subprocess.Popen[str] = start(*words, "--interval", "0.05", "--json", *more)
        self.seen: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors
        self.seen.append(json.loads(line))
        return self.seen[-1]

    def until(self, key: str) -> dict[str, Any]:
        while key not in self.next():
            pass
        return self.seen[-1]

    @property
    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def used_over_time(path: Path) -> list[int]:
    """What was used, one value after the other; a busy machine makes gaps, which repeat them."""
    with Recording(path) as recording:
        values = [
            sample.memory_used_bytes
            for look in recording.intervals(*SPAN)
            for sample in look.changes.values()
            if sample is not None
        ]
    return [value for value, _ in itertools.groupby(values)]


def changing(scene: NodeScene) -> RegionFile:
    file = scene.container("train", memory_limits=[8 * GIB])
    file.add_process(4_000_000, {0: GIB})
    return file


def set_used(file: RegionFile, nbytes: int) -> None:
    file.put("slot_used.data", nbytes)
    file.put("slot_used.total", nbytes)


def test_what_happens_on_the_node_is_in_the_report_whatever_ends_the_recorder(
    scene: NodeScene, path: Path
) -> None:
    file = changing(scene)
    for end, code in (
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGTERM, 0),
        (signal.SIGINT, 0),
    ):
        with Recorded(scene, path) as recording:
            # All is written at a start.
            assert recording.next()["whole"]
            for gib in (3, 5, 2):
                set_used(file, gib * GIB)
                # The look that is being made, and what it has said that was not read, is of before.
                while used_over_time(path)[-1] != gib * GIB:
                    recording.next()
            # Readers need not be kept out.
            assert call("report", "--from", str(path), "--since", "1h").returncode == 0
            second = call("record", "--to", str(path), "--root", str(scene.root), "--once")
            assert second.returncode == 1
            assert second.stderr == f"Error: '{path}' is in use by another recorder\n"
            assert recording.end(end) == code
            assert {each["allocations"] for each in recording.seen} == {1}
        # Not before its end: reading must keep up with the looks.
        check_answer(recording.seen[-1])
    assert used_over_time(path) == [GIB, *[3 * GIB, 5 * GIB, 2 * GIB] * 3]
    answer = call("report", "--from", str(path), "--since", "1h", "--json")
    (row,) = json.loads(answer.stdout)["rows"]
    assert (row["memory_peak_bytes"], row["memory_limit_bytes"]) == (5 * GIB, 8 * GIB)


def test_one_look_and_a_dry_run(scene: NodeScene, path: Path) -> None:
    scene.container("train", memory_limits=[GIB])
    words = ("record", "--to", str(path), "--root", str(scene.root), "--no-driver")
    answer = call(*words, "--dry-run")
    assert answer.returncode == 0
    assert answer.stdout.startswith("would record 1 device of containers to")
    assert "nothing was written" in answer.stdout
    (reading,) = json.loads(call(*words, "--dry-run", "--json").stdout)["readings"]
    assert reading["memory_limit_bytes"] == GIB
    assert not path.exists()
    answer = call(*words, "--once")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == f"recording 1 device of containers once to {path}\n"
    assert used_over_time(path) == [0]


def test_a_dry_run_takes_the_files_that_a_run_takes(scene: NodeScene, tmp_path: Path) -> None:
    empty, nowhere = tmp_path / "empty.db", tmp_path / "none" / "node.db"
    empty.touch()
    used = RecordingWriter(tmp_path / "used.db")
    for path, code in ((empty, 0), (nowhere, 1), (used.path, 1)):
        words = ("record", "--to", str(path), "--root", str(scene.root), "--no-driver")
        assert call(*words, "--dry-run").returncode == code
        assert empty.stat().st_size == 0 or path != empty
        assert call(*words, "--once").returncode == code
    used.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_is_told_once_and_recorded_again_when_there_is_room(
    scene: NodeScene, small_disk: Path
) -> None:
    file = changing(scene)
    path = small_disk / "node.db"
    with Recorded(scene, path) as recording:
        recording.next()
        used, failed = GIB, 0
        # A look that fails frees the log: the disk is filled until nothing is left to free.
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            while failed < 4:
                with contextlib.suppress(OSError):
                    while filler.write(bytes(4096)):
                        pass
                used += MIB
                set_used(file, used)
                failed = failed + 1 if "error" in recording.next() else 0
        assert recording.seen[-1]["error"] == "RecordingUnavailable"
        assert "full" in recording.seen[-1]["message"]
        (small_disk / "filler").unlink()
        assert recording.until("rows")["whole"]
        set_used(file, 5 * GIB)
        while recording.next()["rows"] == 0:
            pass
        assert recording.end() == 0
        told = recording.errors.splitlines()
        # Each trouble is told at its 1st, 2nd, 4th, 8th time, and its end.
        events = [json.loads(line) for line in told]
        assert {each["event"] for each in events} == {"failed", "recovered"}
        assert events[-1]["event"] == "recovered"
        failures = sum("error" in each for each in recording.seen)
        assert sum(each["event"] == "failed" for each in events) <= failures.bit_length()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert used_over_time(path)[-1] == 5 * GIB
