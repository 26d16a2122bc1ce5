"""What the verbs and the doctor say of what could not be looked at; nothing waits for it."""

import json
import os
import uuid
from collections.abc import Iterator

import pytest
from fake_nvml.scenes import CARD
from support.command_line import call
from support.hostile_processes import locked_process
from support.node_fixtures import node_scene
from support.own_cgroups import cgroup_of_pod, needs_cgroups

from libhamiregion.doctor import FindingKind, Severity
from libhamiregion.node import reader

scene = pytest.fixture(node_scene)

NO_ANSWER = "the driver does not answer"


@pytest.fixture
def hung_driver(scene, fake_driver, monkeypatch) -> Iterator[tuple[str, ...]]:
    """A node whose driver answers nobody; the options that choose both."""
    fake_driver.state.unlink(missing_ok=True)
    # Whoever opens it for reading waits until somebody writes.
    os.mkfifo(fake_driver.state)
    monkeypatch.setattr(reader, "_DRIVER_TIMEOUT_S", 0.1)
    scene.container("train", memory_limits=[1 << 30]).add_process(4_000_000, {0: 1 << 20})
    yield ("--root", str(scene.root), "--library", str(fake_driver.library))
    with fake_driver.state.open("w"):
        fake_driver.play(CARD)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("verb", ["ps", "top", "doctor"])
def test_a_verb_does_not_wait_for_a_driver_that_hangs(hung_driver, verb):
    answer = call(verb, *hung_driver, "--json")
    found = json.loads(answer.stdout)
    assert found["driver"] == {"state": "timeout", "message": NO_ANSWER, "version": None}
    (gap,) = (each for each in found["gaps"] if each["kind"] == "driver")
    assert (gap["reason"], gap["count"], gap["container"]) == (NO_ANSWER, 1, None)
    if verb == "doctor":
        # What was looked at is diagnosed all the same.
        assert [each["kind"] for each in found["findings"]] == ["dead_process_counted"]
        assert answer.returncode == 3
    else:
        assert [each["pid"] for each in found["processes"]] == [4_000_000]
        assert answer.returncode == 0


@pytest.mark.slow
@needs_cgroups
def test_a_process_that_cannot_be_looked_at_is_a_finding_of_its_container(doctor_node, tmp_path):
    """One that has locked its own address space for ever, in the cgroup of a pod."""
    place, honest = doctor_node.container(), doctor_node.container(name="honest")
    honest.start()
    identity = uuid.uuid4().hex * 2
    assert doctor_node.findings() == ()
    with (
        cgroup_of_pod(place.pod_uid, identity) as cgroup,
        locked_process(tmp_path / "fuse") as process,
    ):
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        process.lock()
        (found,) = doctor_node.findings()
        assert (found.kind, found.severity) == (FindingKind.NOT_OBSERVED, Severity.WARNING)
        assert found.container.pod_uid == place.pod_uid
        assert found.summary == "1 process of the container could not be read"
        assert "does not end" in found.evidence
        assert not found.repairable
        where = ("--root", str(doctor_node.root))
        for verb in ("ps", "containers", "doctor"):
            driver = () if verb == "containers" else ("--no-driver",)
            answer = call(verb, *where, *driver, "--json")
            (gap,) = (
                each for each in json.loads(answer.stdout)["gaps"] if each["container"] == "train"
            )
            assert (gap["kind"], gap["pod_uid"], gap["count"]) == ("processes", place.pod_uid, 1)
            assert gap["reason"] == found.evidence
            answer = call(verb, *where, *driver)
            assert f"Note: {place.pod_uid}/train: {gap['reason']}\n" in answer.stderr
    assert doctor_node.findings() == ()
