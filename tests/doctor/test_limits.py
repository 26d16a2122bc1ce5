"""Limits that do not hold, and figures that do not agree with the driver's."""

import contextlib
from collections.abc import Callable, Iterator

import attrs
import pytest
from fake_nvml.scenes import OTHER, SECOND
from support.containers import Container, needs_namespaces
from support.doctor_node import DoctorNode, kinds
from support.node_scene import GIB, GPU, SceneContainer
from support.seen_node import seen

from libhamiregion.doctor import Finding, FindingKind, diagnose
from libhamiregion.doctor.findings import confirmed
from libhamiregion.node import NvmlSample, NvmlState, Observer
from libhamiregion.node.node_lock import LockUse, NodeLock
from libhamiregion.units import MIB

pytestmark = needs_namespaces

CARD = f"device 0 {GPU} {81920 * MIB} {5000 * MIB} 37 12 NVIDIA H100 80GB HBM3"


@pytest.fixture
def monitor() -> Iterator[Container]:
    """A process outside all containers, which can map regions as a monitor does."""
    made = Container(0)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def findings_of(doctor_node, fake_driver, nvml_sampler) -> Callable[..., tuple[Finding, ...]]:
    """Plays a scene of the driver, and diagnoses the node."""

    def findings_of(*scene: str) -> tuple[Finding, ...]:
        fake_driver.play(*scene)
        return doctor_node.findings(sampler=nvml_sampler)

    return findings_of


# ---- The driver ---------------------------------------------------------------------------------


def test_driver_figures_that_agree_are_no_finding(doctor_node, nvml_sampler, findings_of):
    """Within a tenth, or what contexts and modules usually take."""
    place, inside = doctor_node.started()
    pid, second = place.spawn(inside, used=3 * GIB)
    inside.tell(f"@{pid}", "charge", 300 * MIB, "context")
    place.put("slot_util.sm", 40)
    found = findings_of(
        CARD,
        f"process 0 compute {inside.host_pid} {GIB + 500 * MIB}",
        f"process 0 compute {second} {3 * GIB + 500 * MIB}",
        f"sample 0 {inside.host_pid} 100 60 0 0 0",
    )
    assert found == ()
    assert doctor_node.findings(sampler=nvml_sampler, settle_s=0) == ()


@pytest.mark.parametrize("more", [True, False])
def test_driver_memory_far_from_what_is_accounted(more, doctor_node, findings_of):
    _, inside = doctor_node.started(used=4 * GIB)
    driver = 4 * GIB + (1 if more else -1) * 900 * MIB
    (found,) = findings_of(CARD, f"process 0 compute {inside.host_pid} {driver}")
    assert (found.kind, found.device) == (FindingKind.DRIVER_MEMORY_DIFFERS, 0)
    assert found.cause == ("driver_more" if more else "driver_less")
    assert f"900 MiB {'more' if more else 'less'} than accounted" in found.evidence
    assert "up to 768 MiB is usual" in found.evidence


@pytest.mark.parametrize("how", ["variable", "limit", "sum", "unlimited beside a limit"])
def test_memory_beyond_the_driver_s_is_meant_where_the_gpu_is_oversubscribed(
    how, doctor_node, findings_of
):
    limit = {"limit": 90 * GIB, "sum": 60 * GIB}.get(how, 20 * GIB)
    environment = {"CUDA_OVERSUBSCRIBE": "true"} if how == "variable" else {}
    inside = doctor_node.container(memory_limits=[limit]).start(
        used=9 * GIB, environment=environment
    )
    if how in {"sum", "unlimited beside a limit"}:
        doctor_node.container(name="serve", memory_limits=[30 * GIB if how == "sum" else None])
    assert findings_of(CARD, f"process 0 compute {inside.host_pid} {GIB}") == ()
    # More than accounted is a fault there too.
    (found,) = findings_of(CARD, f"process 0 compute {inside.host_pid} {20 * GIB}")
    assert found.cause == "driver_more"


def test_oversubscription_is_what_libvgpu_takes_for_it(doctor_node, findings_of):
    environment = {"CUDA_OVERSUBSCRIBE": "false", "MY_CUDA_OVERSUBSCRIBE": "true"}
    inside = doctor_node.container().start(used=4 * GIB, environment=environment)
    (found,) = findings_of(CARD, f"process 0 compute {inside.host_pid} {GIB}")
    assert found.cause == "driver_less"


@pytest.mark.parametrize(
    ("used", "limits", "is_found"),
    [
        (77_824, ["60GiB", "21GiB"], True),  # 95 % of the card
        (77_823, ["60GiB", "21GiB"], False),
        (81_920, ["60GiB", "20GiB"], False),
        (81_920, [None, "1GiB"], True),
        (81_920, [None], False),
    ],
)
def test_a_card_that_is_nearly_full_and_promised_twice_is_a_note(
    used, limits, is_found, doctor_node, findings_of
):
    for number, limit in enumerate(limits):
        doctor_node.container(name=f"c{number}", memory_limits=[limit])
    found = findings_of(CARD.replace(f" {5000 * MIB} ", f" {used * MIB} "))
    assert kinds(found) == [FindingKind.GPU_OVERCOMMITTED] * is_found
    assert all(each.severity.value == "info" for each in found)


def test_memory_of_a_process_that_is_gone_is_a_finding_of_the_gpu(doctor_node, findings_of):
    inside = doctor_node.container().start()
    gone = f"process 0 compute 4194303 {3 * GIB}"
    (found,) = findings_of(CARD, f"process 0 compute {inside.host_pid} {GIB}", gone)
    assert (found.kind, found.severity.value) == (FindingKind.PROCESS_GONE, "error")
    assert found.summary == "3 GiB on GPU 0 of 1 process that no longer exist"
    assert "pid 4194303 of the host" in found.evidence


def test_a_process_that_escapes_its_region(doctor_node, fake_driver, nvml_sampler):
    place, inside = doctor_node.started()
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
    assert found.container.pod_uid == place.pod_uid
    assert "2 GiB" in found.summary


def test_utilisation_that_the_region_does_not_record(doctor_node, nvml_sampler, findings_of):
    place, inside = doctor_node.started()
    (found,) = findings_of(
        CARD,
        f"process 0 compute {inside.host_pid} {GIB}",
        f"sample 0 {inside.host_pid} 100 87 0 0 0",
    )
    assert (found.kind, found.pid) == (FindingKind.UTILIZATION_NOT_RECORDED, 1)
    assert "87 %" in found.summary
    # Where the host pid is wrong, that is the reason.
    place.set_host_pid(1, 0)
    assert doctor_node.kinds(sampler=nvml_sampler) == [FindingKind.HOST_PID_WRONG]


def test_a_gpu_that_fails_is_one_finding_with_the_containers_that_have_it(doctor_node, findings_of):
    doctor_node.container()
    doctor_node.container(uuids=[OTHER])
    for code, state in ((15, "gpu_is_lost"), (16, "reset_required"), (999, "unknown_error")):
        (found,) = findings_of(CARD, SECOND, f"error nvmlDeviceGetMemoryInfo {code} 1")
        assert (found.kind, found.cause) == (FindingKind.GPU_FAILED, state)
        assert found.summary.startswith("GPU 1 does not work")
        assert found.evidence.endswith(f"{OTHER}, in 1 region")
        # An exporter counts what lasts at once.
        assert found.is_transient == (code == 999)


@pytest.mark.parametrize(("age_s", "is_found"), [(5, False), (599, False), (601, True)])
def test_a_change_of_the_mig_layout_takes_ten_minutes_at_most(age_s, is_found):
    sample = NvmlSample(1, NvmlState.MIG_APPLY, mig_apply_s=age_s)
    found = diagnose(seen(sample=sample))
    assert (FindingKind.MIG_APPLY_STUCK in kinds(found)) == is_found


@pytest.mark.parametrize(
    ("kind", "played"),
    [
        (
            FindingKind.GPU_FAILED,
            (CARD, SECOND, *(f"error nvmlDeviceGetMemoryInfo 999 {index}" for index in (0, 1))),
        ),
        (
            FindingKind.FIGURE_IMPOSSIBLE,
            (CARD.replace(" 37 12 ", " 101 12 "), SECOND.replace(" 5 1 ", " 101 1 ")),
        ),
    ],
)
def test_findings_of_two_gpus_do_not_confirm_each_other(kind, played, findings_of):
    first, second = findings_of(*played)
    assert [(each.kind, each.device) for each in (first, second)] == [(kind, 0), (kind, 1)]
    assert confirmed([first, second], {first.key}) == [first]


def test_a_figure_of_the_driver_that_cannot_be_is_a_note(findings_of):
    (found,) = findings_of(CARD.replace(" 37 12 ", " 101 12 "))
    assert (found.kind, found.cause) == (FindingKind.FIGURE_IMPOSSIBLE, "driver")
    assert (found.severity.value, found.evidence) == ("info", f"gpu_util_percent is 101 on {GPU}")


# ---- SM limits ----------------------------------------------------------------------------------


def test_a_monitor_switches_a_limit_on_while_others_use_the_gpu(doctor_node, monitor):
    first, second = doctor_node.container(sm_limits=[50]), doctor_node.container()
    for place in (first, second):
        place.start()
        monitor.tell("map", place.path)
    first.put("utilization_switch", 0)
    assert doctor_node.findings() == ()


# ---- Blocked launches ---------------------------------------------------------------------------


def blocked(doctor_node: DoctorNode) -> SceneContainer:
    place = doctor_node.container(sm_limits=[50])
    place.start()
    place.put("recent_kernel", -1)
    return place


def test_where_a_monitor_maps_the_regions_they_will_be_unblocked(doctor_node, monitor):
    for place in (blocked(doctor_node), doctor_node.container()):
        monitor.tell("map", place.path)
    assert doctor_node.findings() == ()


def test_a_monitor_may_be_hidden_where_not_all_processes_are_seen(doctor_node):
    blocked(doctor_node)
    doctor_node.undisturbed_findings()
    found = Observer.for_command(doctor_node.node).observe()
    unseen = attrs.evolve(found.processes.visibility, sees_all_pids=False)
    partly = attrs.evolve(found, processes=attrs.evolve(found.processes, visibility=unseen))
    blocks = [FindingKind.LAUNCHES_BLOCKED in kinds(diagnose(each)) for each in (found, partly)]
    assert blocks == [True, False]


def test_where_an_agent_has_the_directories_locked_they_will_be_unblocked(doctor_node):
    blocked(doctor_node)
    with contextlib.closing(NodeLock(LockUse.FEEDBACK)) as lock:
        lock.hold([str(doctor_node.root)])
        assert doctor_node.findings() == ()
    assert kinds(doctor_node.undisturbed_findings()) == [FindingKind.LAUNCHES_BLOCKED]
