"""Slots, processes and the driver's figures in one list, with real processes and a fake driver."""

import subprocess
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_B, OTHER, SECOND
from support.containers import needs_namespaces
from support.node_scene import NodeScene
from support.own_cgroups import needs_cgroups

from libhamiregion import Layout, ProcessStatus, create_region
from libhamiregion.node import (
    NodeProcess,
    NvmlSampler,
    NvmlState,
    Observation,
    Observer,
    ProcessDeviceRow,
    driver_gap,
    node_processes,
)
from libhamiregion.observation.containers import WHOLE_GPU
from libhamiregion.observation.pairing import NO_ROW
from libhamiregion.observation.rows import Join

pytestmark = needs_namespaces


@pytest.fixture
def played(files, fake_driver, nvml_sampler) -> Callable[..., tuple[NodeProcess, ...]]:
    """Plays a scene of the driver if one is given, observes the node, and joins."""

    def played(*scene: str, **options: Any) -> tuple[NodeProcess, ...]:
        if scene:
            fake_driver.play(*scene)
        return looked(files, nvml_sampler, **options)

    return played


def looked(node: NodeScene, sampler: NvmlSampler | None, **options: Any) -> tuple[NodeProcess, ...]:
    """Look at the node, and join."""
    with node.open(**options) as opened:
        observation = Observer(opened, sampler=sampler).observe(processes_max_age_s=0.0)
    rows = node_processes(observation)
    if observation.sample is not None:
        check_columns(observation, rows)
    return rows


def check_columns(observation: Observation, rows: tuple[NodeProcess, ...]) -> None:
    """The figures from columns, which daemons use, equal those of the rows."""
    join = Join(observation)
    expected = {
        row.host_pid: (row.state, row.container, row.devices)
        for row in rows
        if row.pid is None and row.host_pid in {each.pid for each in observation.sample.processes}
    }
    told = {row.host_pid: (row.state, row.container, row.devices) for row in join.uncounted}
    assert told == expected
    slots = [(row, device) for row in rows if row.pid is not None for device in row.devices]
    unnamed = {device.uuid for _, device in slots} - set(join.index.uuids)
    for name, field in (
        ("memory_used_bytes", "memory_driver_bytes"),
        ("sm_util_percent", "driver_sm_percent"),
    ):
        figures = join.figures(name)
        known = {
            (join.index.states.processes[slot].pid, join.index.uuids[device]): figures[row]
            for slot, device, row in zip(
                join.index.slots, join.index.devices, join.rows_of_pairs, strict=True
            )
            if row != NO_ROW and figures[row] >= 0
        }
        assert known == {
            (row.host_pid, device.uuid): getattr(device, field)
            for row, device in slots
            if device.uuid not in unnamed and getattr(device, field) is not None
        }


def by_host_pid(rows: tuple[NodeProcess, ...]) -> dict[int | None, NodeProcess]:
    found = {row.host_pid: row for row in rows}
    assert len(found) == len(rows)
    return found


def driver_bytes(row: NodeProcess) -> list[int | None]:
    return [device.memory_driver_bytes for device in row.devices]


# ---- Processes with a slot ----------------------------------------------------------------------


def test_each_slot_has_the_figures_of_its_own_process_and_device(files, fake_driver, nvml_sampler):
    """Two containers with the same pids inside and each other's host pids in their regions."""
    first = files.container("a", uuids=[OTHER, GPU])
    second = files.container("b", uuids=[GPU])
    pids = []
    for each in (first, second):
        pid, host_pid = each.attach()
        each.charge(pid, 5 * MIB)
        pids.append((pid, host_pid))
    (inner, one), (same, two) = pids
    assert inner == same
    first.put("slot_hostpid", two)
    second.put("slot_hostpid", one)
    first.put("slot_util.sm", 44)
    fake_driver.play(
        CARD,
        SECOND,
        f"process 0 compute {one} {300 * MIB}",
        f"sample 0 {one} 100 61 22 3 4",
        f"process 0 compute {two} {700 * MIB}",
    )
    with files.open() as opened:
        seen = Observer(opened, sampler=nvml_sampler).observe()
        rows = by_host_pid(node_processes(seen))
        process = seen.processes.get(one)
        containers = {each.name: each for each in opened.containers}
    assert rows.keys() == {one, two}
    assert rows[one] == NodeProcess(
        container=containers["a"],
        container_id=None,
        pid=inner,
        host_pid=one,
        state="alive",
        process=process,
        status=ProcessStatus.RUNNING,
        devices=(
            # Not listed there: the lists are complete, so it uses nothing.
            ProcessDeviceRow(0, OTHER, 5 * MIB, 0, 44, 0, 0, 0, 0, 1),
            ProcessDeviceRow(1, GPU, 0, 300 * MIB, None, 61, 22, 3, 4, 0),
        ),
    )
    assert rows[two].container is containers["b"]
    assert driver_bytes(rows[two]) == [700 * MIB]


@pytest.mark.parametrize("layout", list(Layout))
def test_utilisation_is_unknown_where_the_layout_has_none(files, layout):
    pod = files.container(layout=layout, uuids=[GPU])
    pod.add_process(4_000_000, {0: MIB})
    (row,) = looked(files, None)
    assert row.devices[0].sm_util_percent == (0 if layout.has_utilization else None)
    assert row.devices[0].memory_used_bytes == MIB


def test_the_dead_and_the_unknown_have_no_host_pid_and_no_driver_figures(files, played):
    pod = files.container(uuids=[GPU])
    pid, _ = pod.attach()
    pod.put("slot_status", 2)
    pod.inside.tell("kill", pid)
    (row,) = played(CARD)
    assert (row.pid, row.state, row.host_pid, row.process) == (pid, "dead", None, None)
    assert row.status == ProcessStatus.SUSPENDED
    assert driver_bytes(row) == [None]


def test_a_mig_device_is_matched_by_its_own_uuid(files, played):
    pod = files.container(uuids=[MIG_B])
    _, host_pid = pod.attach()
    (row, *_) = played(CARD, *MIG, f"process 1.2 compute {host_pid} {80 * MIB}")
    (device,) = row.devices
    assert (device.uuid, device.memory_driver_bytes, device.driver_index) == (MIG_B, 80 * MIB, 1)
    assert device.driver_sm_percent is None, "no driver tells it of a MIG device"


def test_a_gpu_that_the_region_does_not_know_is_a_row_of_its_own(files, played):
    pod = files.container(uuids=[GPU])
    _, host_pid = pod.attach()
    (row,) = played(CARD, SECOND, f"process 1 compute {host_pid} {80 * MIB}")
    known, unknown = row.devices
    assert (known.index, known.uuid, known.memory_driver_bytes) == (0, GPU, 0)
    assert (unknown.index, unknown.uuid, unknown.memory_used_bytes) == (None, OTHER, None)
    assert (unknown.memory_driver_bytes, unknown.driver_index) == (80 * MIB, 1)


def test_what_a_region_repeats_is_counted_once(files, played):
    """A thousand slots of one pid, and one uuid twice, do not multiply the driver's figures."""
    pod = files.container(uuids=[GPU, GPU])
    pid, host_pid = pod.attach()
    for slot in range(1, 200):
        pod.put("slot_pid", pid, slot=slot)
        pod.put("slot_status", 1, slot=slot)
    pod.put("proc_num", 200)
    rows = played(CARD, f"process 0 compute {host_pid} {300 * MIB}")
    assert {row.host_pid for row in rows} == {host_pid}
    assert len(rows) == 200
    figures = [each for row in rows for each in driver_bytes(row) if each is not None]
    assert figures == [300 * MIB]


# ---- Processes without a slot -------------------------------------------------------------------


def test_a_forked_child_is_unlisted_until_it_uses_a_gpu_and_has_escaped_then(
    files, played, fake_driver
):
    pod = files.container(uuids=[OTHER, GPU])
    pod.inside.tell("attach", pod.path)
    _, child = pod.inside.child("fork")
    first, second = played(CARD)
    assert (first.state, first.host_pid) == ("alive", pod.inside.host_pid)
    assert (second.state, second.host_pid, second.pid, second.status) == (
        "unlisted",
        child,
        None,
        None,
    )
    assert second.devices == ()
    assert second.container is first.container

    fake_driver.add(f"process 0 compute {child} {300 * MIB}")
    _, second = played()
    assert (second.state, second.host_pid) == ("escaped", child)
    (device,) = second.devices
    assert (device.index, device.uuid, device.memory_used_bytes) == (1, GPU, None)
    assert device.memory_driver_bytes == 300 * MIB


@needs_cgroups
def test_a_process_that_does_not_even_map_the_region_has_escaped_by_its_cgroup(files, played):
    """As a shell over SSH has, or what became another program."""
    pod, other = files.container("a", uuids=[GPU]), files.container("b", uuids=[GPU])
    _, inside = pod.attach()
    _, shell = pod.inside.child("spawn")
    execed, became = pod.attach()
    for host_pid in (inside, shell, became):
        pod.move(host_pid)
    _, elsewhere = other.attach()
    other.move(elsewhere)
    pod.inside.tell(f"@{execed}", "execute")
    rows = played(CARD, *(f"process 0 compute {pid} {MIB}" for pid in (inside, shell, became)))
    found = by_host_pid(tuple(row for row in rows if row.host_pid is not None))
    assert {pid: row.state for pid, row in found.items()} == {
        inside: "alive",
        shell: "escaped",
        became: "escaped",
        elsewhere: "alive",
    }
    assert [row.pid for row in rows if row.state == "dead"] == [execed]
    for pid in (shell, became):
        row = found[pid]
        assert (row.container.pod_uid, row.container.name) == (pod.pod_uid, "a")
        assert row.container_id.id == pod.id
        assert row.owner is row.container
        assert [device.index for device in row.devices] == [0]


@needs_cgroups
def test_a_region_of_ones_own_making_does_not_hide_an_escape(files, played, region_file):
    """A slot in a second region, outside the roots, limits nothing."""
    pod = files.container("a", uuids=[GPU])
    _, inside = pod.attach()
    pod.move(inside)
    own = region_file(uuids=[GPU])
    pid, host_pid = pod.inside.child("spawn")
    pod.inside.tell(f"@{pid}", "attach", own.path)
    pod.move(host_pid)
    rows = played(CARD, f"process 0 compute {host_pid} {MIB}", outside=True)
    row = by_host_pid(tuple(row for row in rows if row.host_pid in {inside, host_pid}))[host_pid]
    assert (row.state, row.pid) == ("escaped", pid)
    assert row.container.directory is None
    # Before the container has anybody in its own region, its pod tells.
    pod.inside.tell("kill", 2)
    rows = played(outside=True)
    assert [row.state for row in rows if row.host_pid == host_pid] == ["escaped"]
    # Without one inside the roots, it is its region.
    pod.path.unlink()
    rows = played(outside=True)
    assert [row.state for row in rows if row.host_pid == host_pid] == ["alive"]


@needs_cgroups
def test_a_region_of_ones_own_making_that_was_found_first_takes_no_figures(
    files, fake_driver, nvml_sampler, region_file
):
    pod = files.container("a", region=False)
    own, inside = region_file(uuids=[GPU]), pod.directory / "usage.cache"
    (pid, both), (other_pid, astray) = pod.inside.child("spawn"), pod.inside.child("spawn")
    for each, host_pid in ((pid, both), (other_pid, astray)):
        pod.inside.tell(f"@{each}", "attach", own.path)
        pod.move(host_pid)
    fake_driver.play(CARD, *(f"process 0 compute {each} {MIB}" for each in (both, astray)))
    with files.open(outside=True) as opened:
        observer = Observer(opened, sampler=nvml_sampler)

        def rows() -> set[tuple[int | None, bool, str, tuple[int | None, ...]]]:
            return {
                (row.host_pid, row.owner.name == "a", row.state, (*driver_bytes(row),))
                for row in node_processes(observer.observe(processes_max_age_s=0.0))
                if row.host_pid in {both, astray}
            }

        assert rows() == {(each, False, "alive", (MIB,)) for each in (both, astray)}
        create_region(inside, uuids=[GPU])
        pod.inside.tell(f"@{pid}", "attach", inside)
        assert rows() == {
            (both, True, "alive", (MIB,)),
            (both, False, "alive", (None,)),
            (astray, False, "escaped", (MIB,)),
        }


@needs_cgroups
def test_without_any_slot_alive_the_pod_tells_the_container(files, played, bystander):
    pod = files.container("a", uuids=[GPU])
    pod.move(bystander)
    (row,) = played(CARD, f"process 0 compute {bystander} {MIB}")
    assert (row.state, row.host_pid) == ("escaped", bystander)
    assert row.container.name == "a"

    # Two that it can be: it has escaped from one of them.
    second = files.container("b", uuids=[GPU], pod_uid=pod.pod_uid)
    (row,) = played()
    assert (row.state, row.container) == ("escaped", None)
    assert (row.owner.pod_uid, row.owner.name) == (pod.pod_uid, None)

    # One of the two is proved to be another container, by the cgroup of its own processes.
    _, inside = second.attach()
    second.move(inside)
    found = by_host_pid(played())
    assert found[bystander].container.name == "a"
    assert found[inside].state == "alive"


@needs_cgroups
def test_a_container_without_a_region_is_not_managed_and_one_that_cannot_be_read_is_unknown(
    files, played, bystander
):
    pod = files.container("whole-gpu", region=False)
    pod.move(bystander)
    (row,) = played(CARD, f"process 0 compute {bystander} {MIB}")
    assert row.state == "unmanaged"
    assert row.container.name == "whole-gpu"

    (pod.directory / "usage.cache").write_bytes(b"no region at all" * 100_000)
    (row,) = played()
    assert row.state == "unknown"


@needs_cgroups
def test_another_container_of_the_pod_is_not_managed(files, played, bystander):
    pod = files.container("a", uuids=[GPU])
    _, inside = pod.attach()
    pod.move(inside)
    sidecar = uuid.uuid4().hex * 2
    pod.move(bystander, id_=sidecar)
    row = by_host_pid(played(CARD, f"process 0 compute {bystander} {MIB}"))[bystander]
    assert row.state == "unmanaged"
    assert row.container.missing == WHOLE_GPU
    assert (row.container_id.id, row.owner.pod_uid) == (sidecar, pod.pod_uid)


def test_who_uses_a_gpu_outside_all_containers_comes_last_and_is_not_managed(
    files, played, bystander
):
    pod = files.container(uuids=[GPU])
    _, inside = pod.attach()
    gone = subprocess.Popen(["true"])
    gone.wait()
    first, *rest = played(
        CARD,
        f"process 0 graphics {bystander} {20 * MIB}",
        f"process 0 compute {gone.pid} {10 * MIB}",
    )
    assert first.host_pid == inside
    assert [row.host_pid for row in rest] == sorted([bystander, gone.pid])
    found = by_host_pid(tuple(rest))
    row = found[bystander]
    assert (row.state, row.container, row.pid, row.status) == ("unmanaged", None, None, None)
    assert row.process.command == "sleep 600"
    assert [(d.index, d.uuid, d.memory_driver_bytes) for d in row.devices] == [
        (None, GPU, 20 * MIB)
    ]
    assert row.owner.pod_uid is None
    # /proc shows all processes, and not this one.
    row = found[gone.pid]
    assert (row.state, row.process, driver_bytes(row)) == ("gone", None, [10 * MIB])


def test_who_may_stand_in_a_slot_has_not_escaped(files, played):
    """Two processes fit one slot; which of them it is stays open, and so does what they are."""
    users, strangers = files.container("a", uuids=[GPU]), files.container("b", uuids=[GPU])
    users.inside.tell("attach", users.path)
    strangers.inside.tell("map", users.path)
    pids = sorted([users.inside.host_pid, strangers.inside.host_pid])
    slot, *rest = played(CARD, *(f"process 0 compute {pid} {MIB}" for pid in pids))
    assert (slot.pid, slot.state, slot.host_pid) == (1, "unknown", None)
    assert [(row.host_pid, row.state) for row in rest] == [(pid, "unknown") for pid in pids]
    assert all(row.container is slot.container for row in rest)


# ---- Where the driver's pids prove nothing ------------------------------------------------------


def test_without_a_driver_everything_else_is_there(files, fake_driver, nvml_sampler):
    pod = files.container(uuids=[GPU])
    _, host_pid = pod.attach()
    fake_driver.unload()
    with files.open() as opened:
        seen = Observer(opened).observe()
        for sample in (None, nvml_sampler.sample()):
            (row,) = node_processes(attrs.evolve(seen, sample=sample))
            assert (row.state, row.host_pid, driver_bytes(row)) == ("alive", host_pid, [None])
            assert driver_gap(opened.processes, sample)
        assert sample.state is NvmlState.DRIVER_NOT_LOADED
        assert driver_gap(opened.processes, None) == "the driver was not asked"


def test_figures_for_pids_of_another_namespace_are_not_taken(files, fake_driver):
    """Neither if the driver translates pids for us, nor if the /proc is a container's."""
    pod = files.container(uuids=[GPU])
    pid, host_pid = pod.attach()
    listed = (f"process 0 compute {each} {MIB}" for each in (pid, host_pid))
    fake_driver.play(CARD, *listed)
    with NvmlSampler(fake_driver.library, host_namespace=False) as sampler:
        (row,) = looked(files, sampler)
        assert driver_bytes(row) == [None]
    inner_proc = f"/proc/{pod.inside.host_pid}/root/proc"
    with (
        NvmlSampler(fake_driver.library, host_namespace=True) as sampler,
        files.open(proc=inner_proc) as opened,
    ):
        seen = Observer(opened, sampler=sampler).observe()
        (row,) = node_processes(seen)
        assert (row.state, row.host_pid) == ("alive", pid)
        assert driver_bytes(row) == [None]
        gap = driver_gap(seen.processes, seen.sample)
        assert gap is not None
        assert inner_proc in gap
