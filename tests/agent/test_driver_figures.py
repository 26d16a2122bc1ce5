"""The driver's figures, written where libvgpu's own watcher does not write them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from support.containers import Container, needs_namespaces
from support.region_file import RegionFile, unchanged

from libhamiregion import Layout, create_region, open_region
from libhamiregion.agent import UsageSync
from libhamiregion.node import Node, NvmlSampler, Observer

Attached: TypeAlias = tuple[RegionFile, Container]

pytestmark = needs_namespaces


class ObservedSync(UsageSync):
    """Observes the node itself for each pass, as the agent's loop does."""

    def __init__(self, node: Node, sampler: NvmlSampler, **options: Any) -> None:
        super().__init__(node, **options)
        self._observer = Observer(node, sampler=sampler)

    def once(self) -> None:
        self.run(self._observer.observe(processes_max_age_s=0.0))


@pytest.fixture
def task(node, nvml_sampler, events) -> ObservedSync:
    return ObservedSync(node, nvml_sampler, emit=events.append)


def plays(driver: FakeDriver, memory: int, sm: int, *processes: Container) -> None:
    pids = [each.host_pid for each in processes]
    driver.play(
        CARD,
        *(f"process 0 compute {pid} {memory}" for pid in pids),
        *(f"sample 0 {pid} 100 {sm} 22 3 4" for pid in pids),
    )


def play_twice(driver: FakeDriver, process: Container, task: ObservedSync) -> None:
    """What stands still is written at the second look."""
    for _ in range(2):
        plays(driver, 300 * MIB, 61, process)
        task.once()


@pytest.fixture
def attach(scene, start) -> Callable[..., Attached]:
    """Makes a container's region, and a process that has its slot in it."""

    def make(name: str, **spec: Any) -> Attached:
        file, process = scene.container(name, **{"uuids": [GPU], **spec}), start()
        process.tell("attach", file.path)
        return file, process

    return make


@pytest.fixture
def attached(attach) -> Attached:
    return attach("a")


def figures(file: RegionFile) -> tuple[int, int]:
    """Driver memory and SM utilisation of the first slot."""
    with open_region(file) as region:
        device = region.snapshot().processes[0].devices[0]
    return device.memory_monitor_bytes, device.sm_util_percent


@pytest.mark.parametrize("layout", [Layout.V1_2, Layout.V1_1])
def test_what_stands_still_is_written_at_the_second_look_and_kept_up(
    attach, task, fake_driver, layout
):
    file, process = attach("a", layout=layout)
    plays(fake_driver, 300 * MIB, 61, process)
    task.once()
    assert figures(file) == (0, 0), "libvgpu may be about to write it"
    task.once()
    assert figures(file) == (300 * MIB, 61 * layout.has_utilization)
    plays(fake_driver, 310 * MIB, 42, process)
    task.once()
    assert figures(file) == (310 * MIB, 42 * layout.has_utilization)
    fake_driver.play(CARD)
    task.once()
    assert figures(file) == (0, 0), "who is not listed uses nothing"
    counters = task.counters()
    assert counters["figures_runs"] == 4
    assert counters["figures_processes"] == 3
    assert counters["figures_errors"] == 0


def test_devices_are_matched_by_uuid_and_what_the_driver_does_not_know_stays(
    attach, task, fake_driver
):
    file, process = attach("a", uuids=[OTHER, GPU])
    for device in range(2):
        file.put("slot_monitorused", 5 * MIB, device=device)
        for part in ("sm", "enc", "dec"):
            file.put(f"slot_util.{part}", 55, device=device)
    fake_driver.play(
        CARD,
        f"process 0 compute {process.host_pid} unavailable",
        f"sample 0 {process.host_pid} 100 61 0 4294967295 0",
        SECOND,
        "error nvmlDeviceGetProcessUtilization 999 1",
    )
    for _ in range(2):
        task.once()
    with open_region(file) as region:
        found = region.snapshot().processes[0].devices
    assert [
        (each.memory_monitor_bytes, each.sm_util_percent, each.enc_util_percent) for each in found
    ] == [(0, 55, 55), (5 * MIB, 61, 55)]


def test_what_moves_by_itself_is_libvgpus(attached, task, fake_driver):
    """The watcher's samples are of other moments than the agent's, and neither is to win."""
    file, process = attached

    def libvgpu_writes(second: int) -> None:
        plays(fake_driver, (300 + second) * MIB, 50 + second, process)
        file.put("slot_monitorused", (299 + second) * MIB)
        for part, percent in (("sm", 40 + second), ("enc", 3), ("dec", 4)):
            file.put(f"slot_util.{part}", percent)

    for second in range(4):
        libvgpu_writes(second)
        task.once()
        assert figures(file) == ((299 + second) * MIB, 40 + second)
    assert task.counters()["figures_writes"] == 0
    play_twice(fake_driver, process, task)
    assert figures(file) == (300 * MIB, 61), "it has stopped"
    written = task.counters()["figures_writes"]
    # As when a host pid has been put right, and its watcher finds the process.
    for second in range(10, 13):
        libvgpu_writes(second)
        task.once()
        assert figures(file) == ((299 + second) * MIB, 40 + second)
    assert task.counters()["figures_writes"] == written
    assert task.pending_cleanup() == ()


def test_a_region_that_is_replaced_gets_figures_again(attach, task, fake_driver):
    """Also where the same processes have the same slots in it."""
    for _ in range(2):
        task.once()  # this process has been read before it maps a region, and is no onlooker
    file, process = attach("a")
    play_twice(fake_driver, process, task)
    file.path.unlink()
    create_region(file.path, uuids=[GPU])
    process.tell("attach", file.path)
    again = RegionFile(file.path, Layout.V1_2)
    assert figures(again) == (0, 0)
    play_twice(fake_driver, process, task)
    assert figures(again) == (300 * MIB, 61)
    assert task.counters()["figures_errors"] == 0


def test_only_a_process_that_is_proved_to_be_the_slots_gets_figures(
    attached, start, task, fake_driver
):
    """Not one that the region names, and not a dead one."""
    (file, _), stranger = attached, start()
    file.put("slot_hostpid", stranger.host_pid)
    file.add_process(4_000_000, host_pid=stranger.host_pid)
    plays(fake_driver, 300 * MIB, 61, stranger)
    for _ in range(3):
        task.once()
    assert figures(file) == (0, 0)
    assert task.counters()["figures_writes"] == 0


def test_a_device_that_a_container_takes_back_harms_nobody(attach, task, fake_driver):
    files, processes = zip(*map(attach, ("hostile", "fine")), strict=True)
    for sm in (61, 61, 62, 63):
        plays(fake_driver, MIB, sm, *processes)
        task.once()
        if sm == 61 and figures(files[0]) == (MIB, 61):
            files[0].put("device_num", 0)
    assert figures(files[1]) == (MIB, 63)
    assert task.counters()["figures_errors"] == 0


def test_a_dry_run_says_what_it_would_write(attached, node, nvml_sampler, fake_driver, events):
    file, process = attached
    plays(fake_driver, 300 * MIB, 61, process)
    with unchanged(file):
        task = ObservedSync(node, nvml_sampler, dry_run=True, emit=events.append)
        for _ in range(2):
            task.once()
    said = {(e.detail["field"], e.detail["before"], e.detail["after"]) for e in events}
    assert ("monitor_used_bytes", 0, 300 * MIB) in said
    assert ("sm_util_percent", 0, 61) in said


def test_without_a_driver_it_says_so_once_and_waits_for_one(attached, task, fake_driver, events):
    file, process = attached
    for _ in range(3):
        task.once()
    assert events.kinds() == ["no_driver"]
    play_twice(fake_driver, process, task)
    assert figures(file) == (300 * MIB, 61)
    fake_driver.unload()
    task.once()
    assert events.kinds() == ["no_driver", "no_driver"]


def test_a_container_that_holds_its_lock_does_not_keep_the_others_waiting(
    attach, task, fake_driver, events
):
    """It costs a timeout, then one in so many passes."""
    files, processes = zip(*map(attach, ("stuck", "fine")), strict=True)
    task.executor.lock_timeout_s = 0.01

    def pass_with(*percents: int) -> None:
        for sm in percents:
            plays(fake_driver, MIB, sm, *processes)
            task.once()

    with open_region(files[0], writable=True) as region, region.lock():
        pass_with(*range(10, 20))
        assert figures(files[1]) == (MIB, 19)
        assert figures(files[0]) == (0, 0)
        # Of passes 2 to 10 it is tried in the 2nd, 4th and 7th.
        assert task.counters()["figures_errors"] == 3
        assert events.kinds("stuck") == ["failed"] * 2
    pass_with(*range(20, 26))
    assert figures(files[0])[0] == MIB
    assert events.kinds("stuck")[2:] == ["recovered"]


def test_figures_that_are_not_kept_up_any_more_become_0(attached, task, fake_driver):
    """At the end, and where the driver or /proc cannot be asked: old ones look like new ones."""
    file, process = attached

    def write() -> None:
        play_twice(fake_driver, process, task)
        assert figures(file) == (300 * MIB, 61)
        (left,) = task.pending_cleanup()
        assert left.startswith("old figures of the driver are in ")
        assert left.endswith("/a")

    write()
    fake_driver.unload()
    task.once()
    assert figures(file) == (0, 0)
    fake_driver.play()
    write()
    proc, task._node.processes.proc = task._node.processes.proc, "/no/such"
    with pytest.raises(OSError, match="No such"):
        task.once()
    assert figures(file) == (0, 0)
    task._node.processes.proc = proc
    write()
    # What somebody else has written since is left as it is.
    file.put("slot_util.sm", 33)
    task.stop()
    assert figures(file) == (0, 33)
    assert task.pending_cleanup() == ()
    plays(fake_driver, 300 * MIB, 61, process)
    for _ in range(3):
        task.once()
    assert figures(file) == (0, 33), "a pass that hung writes nothing after the end"


def test_figures_that_cannot_be_taken_back_are_told(attached, task, fake_driver, events):
    file, process = attached
    play_twice(fake_driver, process, task)
    task.executor.lock_timeout_s = 0.01
    with open_region(file, writable=True) as region, region.lock():
        task.stop()
    assert figures(file) == (300 * MIB, 61)
    assert len(task.pending_cleanup()) == 1
    assert "old figures of the driver stay: " in events.of("failed")[0].message


def test_processes_and_containers_that_come_and_go_leave_nothing_behind(
    attached, task, fake_driver
):
    file, process = attached
    for number in range(4):
        pid, host_pid = process.child("spawn")
        process.tell(f"@{pid}", "attach", file.path)
        fake_driver.play(CARD, f"process 0 compute {host_pid} {number * MIB + MIB}")
        task.once()
        process.tell("kill", pid)
        task.once()
    file.path.unlink()
    task.once()
    assert task._seen == task.executor.kept == {}
    assert task.counters()["figures_errors"] == 0
