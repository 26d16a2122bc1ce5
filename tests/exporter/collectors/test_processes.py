"""The driver's figures of processes with a slot, and those of their regions."""

import pytest
from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from support.containers import needs_namespaces
from support.exposition import exported, exporter_of
from support.own_cgroups import needs_cgroups

from libhamiregion.exporter.collectors import processes
from libhamiregion.observation.processes import ProcessView


@needs_namespaces
def test_the_drivers_memory_stands_beside_what_is_accounted(files, fake_driver, nvml_sampler):
    pod = files.container(pod="bert-0", uuids=[GPU, OTHER])
    pid, host_pid = pod.attach()
    other_pid, other_host_pid = pod.attach()
    pod.charge(pid, 100 * MIB)
    fake_driver.play(
        CARD,
        SECOND,
        f"process 0 compute {host_pid} {140 * MIB}",
        f"process 0 compute {other_host_pid} {60 * MIB}",
        f"sample 0 {host_pid} 100 61 22 3 4",
    )
    found = exported(files, sampler=nvml_sampler)
    at = {"vdevice_index": "0", "device_uuid": GPU, "pod": "bert-0"}
    own = {**at, "pid": str(pid), "host_pid": str(host_pid)}
    assert found.value("hamiregion_process_memory_used_bytes", **own) == 100 * MIB
    assert found.value("hamiregion_process_memory_driver_bytes", **own) == 140 * MIB
    assert found.labels("hamiregion_process_memory_driver_bytes", **own) == found.labels(
        "hamiregion_process_memory_used_bytes", **own
    ), "so that the two can be divided"
    assert found.value("hamiregion_process_driver_sm_utilization_ratio", **own) == 0.61
    other = {**at, "pid": str(other_pid)}
    assert found.value("hamiregion_process_memory_driver_bytes", **other) == 60 * MIB
    assert found.value("hamiregion_device_memory_driver_bytes", **at) == 200 * MIB
    assert found.value("hami_vgpu_memory_used_bytes", **at) == 100 * MIB
    second = {"vdevice_index": "1", "device_uuid": OTHER}
    assert found.value("hamiregion_device_memory_driver_bytes", **second) == 0
    assert "hamiregion_unaccounted_process_memory_driver_bytes" not in found.names


@needs_namespaces
def test_the_page_has_the_drivers_memory_of_each_device_where_it_is_known(
    files, fake_driver, nvml_sampler
):
    pod = files.container(pod="bert-0", uuids=[GPU, OTHER])
    (_, host_pid), (_, unknown) = pod.attach(), pod.attach()
    fake_driver.play(
        CARD,
        SECOND,
        f"process 0 compute {host_pid} {140 * MIB}",
        f"process 1 compute {unknown} unavailable",
    )
    with files.open() as opened:
        page = exporter_of(opened, sampler=nvml_sampler).page().decode()
    assert page.count(">driver 140 MiB<") == page.count(">driver ") == 1


@needs_namespaces
def test_the_drivers_figures_of_processes_without_series_of_their_own_are_summed_up(
    files, fake_driver, nvml_sampler, monkeypatch
):
    monkeypatch.setattr(processes, "MAX_PAIRS", 2)
    pod = files.container(pod="bert-0", uuids=[GPU, OTHER])
    host_pids = [pod.attach()[1] for _ in range(4)]
    memory = [f"process 0 compute {pid} {MIB << at}" for at, pid in enumerate(host_pids)]
    memory[3] = f"process 0 compute {host_pids[3]} unavailable"
    samples = [f"sample 0 {pid} 100 {10 + at} 0 0 0" for at, pid in enumerate(host_pids[:3])]
    fake_driver.play(CARD, SECOND, *memory, *samples)
    found = exported(files, sampler=nvml_sampler)
    name = "hamiregion_process_memory_driver_bytes"
    assert found.value(name, host_pid=str(host_pids[0]), device_uuid=GPU) == MIB
    # What the driver does not tell of one of them is not in the sum, and takes nothing from it.
    assert found.value(name, pid="other", device_uuid=GPU) == 2 * MIB + 4 * MIB
    assert found.labels(name, pid="other", device_uuid=GPU) == found.labels(
        "hamiregion_process_memory_used_bytes", pid="other", device_uuid=GPU
    )
    assert len(found.series(name, device_uuid=GPU)) == 2
    utilization = "hamiregion_process_driver_sm_utilization_ratio"
    by_process = found.series(utilization, device_uuid=GPU)
    assert sorted(by_process.values()) == pytest.approx([0.1, 0.11 + 0.12])
    assert found.value(utilization, pid="other", device_uuid=GPU) == pytest.approx(0.11 + 0.12)


@needs_namespaces
def test_what_the_driver_does_not_tell_of_one_process_leaves_the_sum_out(
    files, fake_driver, nvml_sampler
):
    pod = files.container(uuids=[GPU])
    (_, known), (_, unknown) = pod.attach(), pod.attach()
    fake_driver.play(
        CARD, f"process 0 compute {known} {MIB}", f"process 0 compute {unknown} unavailable"
    )
    found = exported(files, sampler=nvml_sampler)
    assert len(found.series("hamiregion_process_memory_driver_bytes")) == 1
    assert "hamiregion_device_memory_driver_bytes" not in found.names


@needs_namespaces
@needs_cgroups
def test_a_process_that_may_be_of_either_container_of_a_pod_leaves_both_sums_out(
    files, fake_driver, nvml_sampler, bystander
):
    one = files.container("one", pod="two-0", uuids=[GPU, OTHER])
    files.container("other", pod="two-0", pod_uid=one.pod_uid, uuids=[GPU, OTHER])
    files.container(pod="bert-0", uuids=[GPU, OTHER])
    one.move(bystander)
    fake_driver.play(CARD, SECOND, f"process 0 compute {bystander} {700 * MIB}")
    found = exported(files, sampler=nvml_sampler)
    name = "hamiregion_device_memory_driver_bytes"
    assert found.series(name, pod="two-0", device_uuid=GPU) == {}
    assert found.value(name, pod="bert-0", device_uuid=GPU) == 0
    assert list(found.series(name, pod="two-0", device_uuid=OTHER).values()) == [0, 0]


def test_one_that_proc_does_not_show_is_of_nobody_only_where_everybody_is_shown(
    files, fake_driver, nvml_sampler, monkeypatch
):
    """It has ended since the driver was asked; or it is hidden, and may be of any container."""
    fake_driver.play(CARD, f"process 0 compute {2**22} {700 * MIB}")
    files.container(uuids=[GPU])
    name = "hamiregion_device_memory_driver_bytes"
    with files.open() as node:
        assert exported(node, sampler=nvml_sampler).value(name) == 0
        monkeypatch.setattr(ProcessView, "is_complete", False)
        assert name not in exported(node, sampler=nvml_sampler).names
