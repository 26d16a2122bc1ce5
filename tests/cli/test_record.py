"""`hamiregion record`, through signals and on disks that are full."""

import contextlib
import itertools
import json
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml.driver import STATE
from fake_nvml.scenes import CARD, GPU
from support.answers import check_answer
from support.command_line import call, refused, start
from support.containers import needs_namespaces
from support.node_fixtures import node_scene
from support.node_scene import GIB, NodeScene
from support.own_cgroups import needs_cgroups
from support.process import finished
from support.region_file import RegionFile
from support.wait import PATIENCE_S

from libhamiregion.report import Recording, RecordingWriter
from libhamiregion.units import MIB

SPAN = (0, 2**60)

scene = pytest.fixture(node_scene)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "node.db"


class Recorded(contextlib.AbstractContextManager):
    """`hamiregion record` in a process, and the objects that it writes."""

    def __init__(self, scene: NodeScene, path: Path, *more: str) -> None:
        words = ("record", "--to", str(path), "--root", str(scene.root), "--no-driver")
        self.process: subprocess.Popen[str] = start(*words, "--interval", "0.05", "--json", *more)
        self.seen: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any]:
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
        return self.process.stderr.read()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
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


def test_what_happens_on_the_node_is_in_the_report_whatever_ends_the_recorder(scene, path):
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
            said = refused("record", "--to", str(path), "--root", str(scene.root), "--once", code=1)
            assert said == f"Error: '{path}' is in use by another recorder\n"
            assert recording.end(end) == code
            assert {each["allocations"] for each in recording.seen} == {1}
        # Not before its end: reading must keep up with the looks.
        check_answer(recording.seen[-1])
    assert used_over_time(path) == [GIB, *[3 * GIB, 5 * GIB, 2 * GIB] * 3]
    answer = call("report", "--from", str(path), "--since", "1h", "--json")
    (row,) = json.loads(answer.stdout)["rows"]
    assert (row["memory_peak_bytes"], row["memory_limit_bytes"]) == (5 * GIB, 8 * GIB)


def test_one_look_and_a_dry_run(scene, path):
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


@needs_namespaces
@needs_cgroups
def test_a_node_without_hami_is_recorded_by_the_driver(scene, path, fake_driver, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.roots.DEFAULT_ROOTS", (str(scene.root),))
    monkeypatch.setattr("libhamiregion.node.roots.run_bases", lambda _: [])
    for variable in ("HOOK_PATH", "HAMI_VGPU_CACHE_ROOT", "CONTAINER_VGPU_MOUNT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(STATE, str(fake_driver.state))
    pod = scene.container(region=False)
    pod.move(pod.inside.host_pid)
    shutil.rmtree(scene.root)
    fake_driver.play(CARD, f"process 0 compute {pod.inside.host_pid} {5 * MIB}")
    words = ("record", "--to", str(path), "--library", str(fake_driver.library))
    (reading,) = json.loads(call(*words, "--dry-run", "--json").stdout)["readings"]
    assert (reading["pod_uid"], reading["device_uuid"]) == (pod.pod_uid, GPU)
    answer = call(*words, "--once")
    assert (answer.returncode, answer.stdout.split(" to ")[0]) == (
        0,
        "recording 1 device of containers once",
    )
    rows = json.loads(call("report", "--from", str(path), "--since", "1h", "--json").stdout)["rows"]
    assert [row["memory_peak_bytes"] for row in rows] == [5 * MIB]


def test_a_dry_run_takes_the_files_that_a_run_takes(scene, tmp_path):
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
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("needs mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    done = finished(command)
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_is_told_once_and_recorded_again_when_there_is_room(scene, small_disk):
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
        # A failure is reported at its 1st, 2nd, 4th and 8th time, and its end once.
        events = [json.loads(line) for line in told]
        assert {each["event"] for each in events} == {"failed", "recovered"}
        assert events[-1]["event"] == "recovered"
        failures = sum("error" in each for each in recording.seen)
        assert sum(each["event"] == "failed" for each in events) <= failures.bit_length()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert used_over_time(path)[-1] == 5 * GIB
