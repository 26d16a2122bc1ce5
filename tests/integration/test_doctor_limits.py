"""Limits that do not hold, and figures that do not agree with the driver's."""

import contextlib
from collections.abc import Iterator

import pytest
from containers import needs_namespaces
from doctor_node_scenes import GIB, GPU, DoctorNode, OddContainer, Place
from fake_nvml.driver import FakeDriver
from namespaces import needs_first_namespace

from libhamiregion import Layout, open_region
from libhamiregion.node import FindingKind, NvmlSampler, Severity, repair
from libhamiregion.node.root_lock import RootLock, RootUse

pytestmark = [needs_namespaces, needs_first_namespace]

MIB = 1 << 20
CARD = f"device 0 {GPU} {81920 * MIB} {5000 * MIB} 37 12 NVIDIA H100 80GB HBM3"
ALL_LIMITS = {"CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_SM_LIMIT": "50"}


@pytest.fixture
def monitor() -> Iterator[OddContainer]:
    """A process outside all containers, which can map regions as a monitor does."""
    made = OddContainer(0)
    try:
        yield made
    finally:
        made.end()


# ---- Memory -------------------------------------------------------------------------------------


def test_usage_above_the_limit(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    place.start(used=6 * GIB)
    with open_region(place.path, writable=True) as region:
        region.set_memory_limit("4GiB", force=True)
    (found,) = doctor_node.findings()
    assert (found.kind, found.device) == (FindingKind.USAGE_ABOVE_LIMIT, 0)
    assert found.summary == "6 GiB in use on device 0, limit 4 GiB"
    assert not found.repairable


def test_a_counter_that_went_below_zero(doctor_node: DoctorNode) -> None:
    place = doctor_node.place()
    place.start()
    place.file.put("slot_used.total", (1 << 64) - 4096)
    (found,) = doctor_node.findings()
    assert (found.kind, found.pid) == (FindingKind.USAGE_IMPOSSIBLE, 1)
    assert "-4096 as a signed number" in found.evidence


def test_a_region_in_use_that_names_no_device(doctor_node: DoctorNode) -> None:
    place = doctor_node.place(uuids=[])
    place.start(used=0)
    assert doctor_node.findings() == (), "it has not used any yet"
    place.running[0].tell("charge", GIB)
    (found,) = doctor_node.findings()
    assert found.kind is FindingKind.DEVICE_COUNT_ZERO
    assert "1 GiB" in found.evidence


# ---- The driver ---------------------------------------------------------------------------------


def test_driver_figures_that_agree_are_no_finding(
    doctor_node: DoctorNode, fake_driver: FakeDriver, nvml_sampler: NvmlSampler
) -> None:
    """Within a tenth, or what contexts and modules usually take."""
    place = doctor_node.place()
    inside = place.start()
    pid, second = place.spawn(inside, used=3 * GIB)
    inside.tell(f"@{pid}", "charge_on", 0, 300 * MIB, "context")
    place.file.put("slot_util.sm", 40)
    fake_driver.play(
        CARD,
        f"process 0 compute {inside.host_pid} {GIB + 500 * MIB}",
        f"process 0 compute {second} {3 * GIB + 500 * MIB}",
        f"sample 0 {inside.host_pid} 100 60 0 0 0",
        "process 0 compute 4194303 100",
    )
    assert doctor_node.findings(sampler=nvml_sampler) == ()
    assert doctor_node.findings(sampler=nvml_sampler, settle_s=0) == ()


@pytest.mark.parametrize("more", [True, False])
def test_driver_memory_far_from_what_is_accounted(
    more: bool, doctor_node: DoctorNode, fake_driver: FakeDriver, nvml_sampler: NvmlSampler
) -> None:
    place = doctor_node.place()
    inside = place.start(used=4 * GIB)
    driver = 4 * GIB + (1 if more else -1) * 900 * MIB
    fake_driver.play(CARD, f"process 0 compute {inside.host_pid} {driver}")
    (found,) = doctor_node.findings(sampler=nvml_sampler)
    assert (found.kind, found.device) == (FindingKind.DRIVER_MEMORY_DIFFERS, 0)
    assert found.cause == ("driver_more" if more else "driver_less")
    assert f"900 MiB {'more' if more else 'less'} than accounted" in found.evidence
    assert "up to 768 MiB is usual" in found.evidence


def test_a_process_that_escapes_its_region(
    doctor_node: DoctorNode, fake_driver: FakeDriver, nvml_sampler: NvmlSampler
) -> None:
    place = doctor_node.place()
    inside = place.start()
    pid, escaped = inside.child("fork")
    fake_driver.play(CARD, f"process 0 compute {escaped} {2 * GIB}")
    assert doctor_node.kinds(sampler=nvml_sampler) == [
        FindingKind.DRIVER_MEMORY_DIFFERS,
        FindingKind.PROCESS_ESCAPES,
    ]
    fake_driver.add(f"process 0 compute {inside.host_pid} {GIB}")
    (found,) = doctor_node.findings(sampler=nvml_sampler)
    assert (found.kind, found.pid, found.device) == (FindingKind.PROCESS_ESCAPES, pid, 0)
    assert found.cause == "no_library"
    assert found.evidence.endswith("; it has no libvgpu.so loaded")
    assert found.container is not None
    assert found.container.pod_uid == place.pod_uid
    assert "2 GiB" in found.summary


def test_utilisation_that_the_region_does_not_record(
    doctor_node: DoctorNode, fake_driver: FakeDriver, nvml_sampler: NvmlSampler
) -> None:
    place = doctor_node.place()
    inside = place.start()
    fake_driver.play(
        CARD,
        f"process 0 compute {inside.host_pid} {GIB}",
        f"sample 0 {inside.host_pid} 100 87 0 0 0",
    )
    (found,) = doctor_node.findings(sampler=nvml_sampler)
    assert (found.kind, found.pid) == (FindingKind.UTILIZATION_NOT_RECORDED, 1)
    assert "87 %" in found.summary
    # Where the host pid is wrong, that is the reason.
    place.set_host_pid(1, 0)
    assert doctor_node.kinds(sampler=nvml_sampler) == [FindingKind.HOST_PID_WRONG]


# ---- SM limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [layout for layout in Layout if layout.has_utilization],
    ids=lambda layout: layout.value,
)
def test_an_sm_limit_that_holds_is_no_finding(doctor_node: DoctorNode, layout: Layout) -> None:
    doctor_node.place(layout, sm_limits=[50]).start(environment=ALL_LIMITS)
    assert doctor_node.findings() == ()


def test_a_layout_without_utilisation_cannot_show_whether_it_holds(doctor_node: DoctorNode) -> None:
    doctor_node.place(Layout.UNVERSIONED_NO_UTIL, sm_limits=[50]).start()
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.SM_LIMIT_OFF, "no_utilization")
    assert found.severity is Severity.INFO


def test_the_switch_is_off_and_nobody_competes(doctor_node: DoctorNode) -> None:
    """What HAMi's monitor does on its own: a note and no warning."""
    place = doctor_node.place(sm_limits=[50])
    place.start()
    place.file.put("utilization_switch", 0)
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.SM_LIMIT_OFF, "switch")
    assert found.severity is Severity.INFO
    assert not found.repairable
    assert "50 % on device 0" in found.evidence


def test_the_switch_is_off_others_use_the_gpu_and_nobody_runs_who_would_switch_it_on(
    doctor_node: DoctorNode, monitor: OddContainer
) -> None:
    first, second = doctor_node.place(sm_limits=[50]), doctor_node.place()
    for place in (first, second):
        place.start()
    first.file.put("utilization_switch", 0)
    (found,) = doctor_node.findings()
    assert (found.cause, found.severity) == ("switch", Severity.WARNING)
    assert "others use the same GPU, and no monitor and no agent runs" in found.evidence
    # A monitor has it so while nobody launches.
    monitor.tell("map", first.path)
    (found,) = doctor_node.findings()
    assert (found.cause, found.severity) == ("switch", Severity.INFO)


@pytest.mark.parametrize("word", ["force", "FORCE"])
def test_a_forced_process_does_not_care_about_the_switch(
    doctor_node: DoctorNode, word: str
) -> None:
    place = doctor_node.place(sm_limits=[50])
    place.start(environment={"GPU_CORE_UTILIZATION_POLICY": word})
    place.file.put("utilization_switch", 0)
    assert doctor_node.findings() == ()


def test_the_environment_switches_the_limit_off(doctor_node: DoctorNode) -> None:
    place = doctor_node.place(sm_limits=[50])
    place.start(environment={"GPU_CORE_UTILIZATION_POLICY": "disable"})
    (found,) = doctor_node.findings()
    assert (found.kind, found.cause) == (FindingKind.SM_LIMIT_OFF, "policy")
    assert "GPU_CORE_UTILIZATION_POLICY" in found.summary


def test_a_missing_host_pid_switches_the_limit_off_and_storing_it_on(
    doctor_node: DoctorNode,
) -> None:
    place = doctor_node.place(sm_limits=[50])
    inside = place.start(host_pid=False)
    (found,) = doctor_node.findings()
    assert found.kind is FindingKind.HOST_PID_WRONG
    assert "its SM limit is off" in found.consequence
    (done,) = repair(doctor_node.node, [found])
    assert done.done
    assert place.host_pids() == {1: inside.host_pid}
    assert doctor_node.findings() == ()


@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2])
def test_a_limit_on_device_1_alone_is_off_before_2_8_2(
    doctor_node: DoctorNode, layout: Layout
) -> None:
    other = GPU.replace("0000", "1111")
    place = doctor_node.place(layout, uuids=[GPU, other], sm_limits=[None, 50])
    place.start()
    if layout is Layout.V1_2:
        assert doctor_node.findings() == ()
    else:
        (found,) = doctor_node.findings()
        assert (found.kind, found.cause) == (FindingKind.SM_LIMIT_OFF, "device_0")
        assert found.device == 1


# ---- Blocked launches ---------------------------------------------------------------------------


def blocked(doctor_node: DoctorNode) -> Place:
    place = doctor_node.place(sm_limits=[50])
    place.start()
    place.file.put("recent_kernel", -1)
    return place


def test_blocked_launches_that_nobody_will_unblock(doctor_node: DoctorNode) -> None:
    blocked(doctor_node)
    (found,) = doctor_node.findings()
    assert (found.kind, found.severity) == (FindingKind.LAUNCHES_BLOCKED, Severity.ERROR)
    assert not found.repairable


def test_where_a_monitor_maps_the_regions_they_will_be_unblocked(doctor_node: DoctorNode) -> None:
    place = blocked(doctor_node)
    monitor = OddContainer(0)
    try:
        monitor.tell("map", place.path)
        assert doctor_node.findings() == ()
    finally:
        monitor.end()


def test_where_an_agent_has_the_directories_locked_they_will_be_unblocked(
    doctor_node: DoctorNode,
) -> None:
    blocked(doctor_node)
    with contextlib.closing(RootLock(RootUse.FEEDBACK)) as lock:
        lock.hold([str(doctor_node.root)])
        assert doctor_node.findings() == ()
    assert doctor_node.kinds() == [FindingKind.LAUNCHES_BLOCKED]
