"""Shares of GPUs that no libvgpu holds, in real containers."""

import os
from collections.abc import Mapping

from fake_nvml.scenes import CARD, MIB
from support.containers import needs_namespaces
from support.device_checkpoint import answer, checkpoint, entry
from support.node_scene import NodeScene, SceneContainer
from support.own_cgroups import needs_cgroups

from libhamiregion.doctor import Finding, FindingKind, examine
from libhamiregion.node import NvmlSampler, Observer

pytestmark = [needs_namespaces, needs_cgroups]
SETTLE_S = 0.03


SHARE = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_SM_LIMIT": "30"}


def findings(files: NodeScene, sampler: NvmlSampler, **options: object) -> list[Finding]:
    with files.open(**options) as opened:
        found = examine(Observer(opened, sampler=sampler), settle_s=SETTLE_S)
    return [each for each in found if each.kind is FindingKind.SHARE_NOT_LIMITED]


def start(
    files: NodeScene, variables: Mapping[str, str], *, region: bool = False
) -> tuple[SceneContainer, int]:
    """A container whose process has these variables, and that process on the host."""
    pod = files.container(pod="llm-0", region=region, uuids=["GPU-x"])
    inside = pod.enter(environment={**os.environ, **variables})
    pod.move(inside.host_pid)
    return pod, inside.host_pid


def test_a_share_without_a_region_is_an_error(files, fake_driver, nvml_sampler):
    _, host_pid = start(files, SHARE)
    fake_driver.play(CARD, f"process 0 compute {host_pid} {500 * MIB}")
    (found,) = findings(files, nvml_sampler)
    assert (found.severity.value, found.cause, found.pid) == ("error", "no_library", 1)
    assert found.container.pod == "llm-0"
    assert "500 MiB" in found.summary
    assert f"pid {host_pid}" in found.evidence
    assert "a memory limit of 1 GiB and an SM limit of 30 %" in found.evidence


def test_a_whole_gpu_and_an_idle_container_are_no_finding(files, fake_driver, nvml_sampler):
    _, host_pid = start(files, {})
    start(files, SHARE)
    fake_driver.play(CARD, f"process 0 compute {host_pid} {500 * MIB}")
    assert findings(files, nvml_sampler) == []


def test_a_region_that_was_mapped_before_the_gpu_was_used_is_seen(files, fake_driver, nvml_sampler):
    """Maps are kept for minutes: those of a process that is new on the driver's list are not."""
    pod, host_pid = start(files, SHARE, region=True)
    fake_driver.play(CARD)
    with files.open() as opened:
        observer = Observer(opened, sampler=nvml_sampler)
        for _ in range(2):  # one that has just started is read twice
            observer.observe(processes_max_age_s=0.0)
        pod.running[0].tell("attach", pod.path)
        hidden = pod.path.rename(pod.directory.parent / "elsewhere.cache")
        fake_driver.play(CARD, f"process 0 compute {host_pid} {500 * MIB}")
        found = examine(observer, settle_s=SETTLE_S)
        kinds = {each.kind for each in found}
    assert hidden.exists()
    assert FindingKind.SHARE_NOT_LIMITED not in kinds


def test_environments_are_read_once(files, fake_driver, nvml_sampler):
    """A process without a region has /proc listed once, not at every observation."""
    _, host_pid = start(files, SHARE)
    fake_driver.play(CARD, f"process 0 compute {host_pid} {500 * MIB}")
    with files.open() as opened:
        observer = Observer(opened, sampler=nvml_sampler)
        first = observer.observe()
        second = observer.observe()
    entry = first.processes.entries[host_pid]
    assert entry.share.sm_limit_percent == 30
    assert second.processes is first.processes


def test_a_share_that_only_kubelet_has_noted_is_one_too(files, fake_driver, nvml_sampler, tmp_path):
    """A program can be started with an empty environment, as after a login over SSH."""
    pod, host_pid = start(files, {})
    path = tmp_path / "checkpoint"
    response = answer({"CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"})
    path.write_text(checkpoint(entry(pod.pod_uid, pod.name, "nvidia.com/gpu", [], response)))
    fake_driver.play(CARD, f"process 0 compute {host_pid} {500 * MIB}")
    (found,) = findings(files, nvml_sampler, allocations=path)
    assert "a memory limit of 2 GiB" in found.evidence
