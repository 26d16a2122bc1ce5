"""Processes that use a GPU and that no region accounts for."""

import uuid

from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from support.containers import needs_namespaces
from support.exposition import exported
from support.own_cgroups import needs_cgroups

from libhamiregion.exporter.collectors import unaccounted


@needs_namespaces
@needs_cgroups
def test_processes_that_no_region_accounts_for_are_told_with_their_container(
    files, fake_driver, nvml_sampler, bystander
):
    """An escapee of a managed container, one of a container of its own, and one of the host."""
    pod = files.container(pod="bert-0", uuids=[GPU])
    _, inside = pod.attach()
    _, escapee = pod.inside.child("spawn")
    stranger = files.container(pod="plain-0", namespace="other", region=False)
    _, alone = stranger.inside.child("spawn")
    for pid in (inside, escapee):
        pod.move(pid)
    stranger.move(alone)
    fake_driver.play(
        CARD,
        SECOND,
        f"process 0 compute {inside} {10 * MIB}",
        f"process 0 compute {escapee} {20 * MIB}",
        f"process 1 compute {alone} {30 * MIB}",
        f"process 1 graphics {bystander} {40 * MIB}",
        f"sample 1 {alone} 100 50 0 11 7",
    )
    found = exported(files, sampler=nvml_sampler)
    name = "hamiregion_unaccounted_process_memory_driver_bytes"
    assert len(found.series(name)) == 3
    expected = {
        "namespace": "research",
        "pod": "bert-0",
        "container": "train",
        "container_id": pod.id,
        "device_index": "0",
        "device_uuid": GPU,
        "host_pid": str(escapee),
        "state": "escaped",
    }
    assert expected.items() <= found.labels(name, state="escaped").items()
    assert found.labels(name, state="escaped")["process"].startswith("python")
    assert found.value(name, state="escaped") == 20 * MIB
    assert found.value("hamiregion_container_processes", pod="bert-0", state="escaped") == 1
    other = found.labels(name, host_pid=str(alone))
    assert (other["container_id"], other["state"]) == (stranger.id, "unmanaged")
    assert (other["namespace"], other["pod"], other["container"]) == ("other", "plain-0", "train")
    sm = "hamiregion_unaccounted_process_driver_sm_utilization_ratio"
    assert found.value(sm, host_pid=str(alone)) == 0.5
    host = found.labels(name, host_pid=str(bystander))
    assert (host["container_id"], host["process"], host["state"]) == ("", "sleep", "unmanaged")
    assert found.value(name, host_pid=str(bystander)) == 40 * MIB
    assert found.labels("hamiregion_container_info", pod="bert-0")["container_id"] == pod.id


@needs_namespaces
@needs_cgroups
def test_too_many_of_them_are_summed_up_per_gpu(
    files, fake_driver, nvml_sampler, bystander, monkeypatch
):
    stranger = files.container(region=False)
    children = [stranger.inside.child("spawn")[1] for _ in range(4)]
    for pid in children:
        stranger.move(pid)
    lines = [f"process 0 compute {pid} {MIB}" for pid in (*children, bystander)]
    fake_driver.play(CARD, *lines)
    name = "hamiregion_unaccounted_process_memory_driver_bytes"
    monkeypatch.setattr(unaccounted, "MAX_PAIRS", 2)
    found = exported(files, sampler=nvml_sampler)
    assert len(found.series(name)) == 2 + 1 + 1
    assert found.value(name, host_pid="other") == 2 * MIB
    assert found.labels(name, host_pid="other")["device_uuid"] == GPU
    assert found.value(name, host_pid=str(bystander)) == MIB
    assert sum(found.series(name).values()) == 5 * MIB


@needs_namespaces
@needs_cgroups
def test_a_process_with_a_slot_on_another_gpu_than_its_regions_is_told(
    files, fake_driver, nvml_sampler
):
    pod = files.container(pod="bert-0", uuids=[GPU])
    pid, host_pid = pod.attach()
    pod.move(host_pid, id_=uuid.uuid4().hex * 2)
    fake_driver.play(
        CARD,
        SECOND,
        f"process 0 compute {host_pid} {MIB}",
        f"process 1 compute {host_pid} {2 * MIB}",
    )
    found = exported(files, sampler=nvml_sampler)
    name = "hamiregion_unaccounted_process_memory_driver_bytes"
    labels = found.labels(name)
    assert (labels["state"], labels["pod"]) == ("other_device", "bert-0")
    assert (labels["device_uuid"], labels["device_index"]) == (OTHER, "1")
    assert found.value(name) == 2 * MIB
    assert found.value("hamiregion_process_memory_driver_bytes", pid=str(pid)) == MIB
