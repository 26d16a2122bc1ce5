"""What the driver says of GPUs, of MIG devices, and of containers without a region."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvml.scenes import CARD, GPU, MIB, MIG, MIG_B, OTHER, SECOND
from support.containers import needs_namespaces
from support.device_checkpoint import answer, checkpoint, entry
from support.exposition import WITHOUT_DOCTOR, exported, exporter_of, parsed
from support.own_cgroups import needs_cgroups
from support.wait import PATIENCE_S, eventually

from libhamiregion.exporter import HAMI_VERSIONS, NodeExporter
from libhamiregion.node import Node, NodeNames, NvmlSample, NvmlSampler, roots

HOST = {
    "node": "worker-1",
    "device_index": "0",
    "device_uuid": GPU,
    "device_type": "NVIDIA H100 80GB HBM3",
    "zone": "vGPU",
}


@pytest.fixture
def sampler(fake_driver) -> Iterator[NvmlSampler]:
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as opened:
        yield opened


def test_each_gpu_has_its_state_also_one_that_cannot_be_asked(files, fake_driver, sampler):
    with files.open() as node:
        for lost in (None, OTHER):
            fake_driver.play(CARD, SECOND, "error nvmlDeviceGetHandleByIndex_v2 15 1")
            found = exported(node, sampler=sampler).series("hamiregion_gpu_state")
            states = {(GPU, "0", "ok"), (lost or "", "1", "gpu_is_lost")}
            keys = [{*zip(("uuid", "index", "state"), each, strict=True)} for each in states]
            assert found == {frozenset(each): 1 for each in keys}
            fake_driver.play(CARD, SECOND)
            exported(node, sampler=sampler)


def test_the_gpus_have_the_monitors_labels_and_the_drivers_figures(files, fake_driver, sampler):
    fake_driver.play(CARD, SECOND, "sensors 0 41 187500 3 1")
    found = exported(files, sampler=sampler, node_name="worker-1", legacy=True)
    legacy = {
        "nodeid": "worker-1",
        "deviceidx": "0",
        "deviceuuid": GPU,
        "devicetype": HOST["device_type"],
        "zone": "vGPU",
    }
    for name, labels, value in (
        ("hami_host_gpu_memory_used_bytes", HOST, 5000 * MIB),
        ("hami_host_gpu_utilization_ratio", HOST, 37),
        ("hami_host_gpu_memory_controller_utilization_ratio", HOST, 12),
        ("hami_host_gpu_temperature_celsius", HOST, 41),
        ("hami_host_gpu_power_usage_watts", HOST, 187.5),
        ("hami_host_gpu_ecc_errors_total", {**HOST, "error_type": "corrected"}, 3),
        ("hami_host_gpu_ecc_errors_total", {**HOST, "error_type": "uncorrected"}, 1),
        ("HostGPUMemoryUsage", legacy, 5000 * MIB),
        ("HostCoreUtilization", legacy, 37),
    ):
        assert found.series(name, **labels) == {frozenset(labels.items()): value}
    second = {"device_uuid": OTHER}
    assert found.value("hami_host_gpu_memory_used_bytes", **second) == 3000 * MIB
    assert found.value("hami_host_gpu_utilization_ratio", **second) == 5
    for name in (
        "hami_host_gpu_temperature_celsius",
        "hami_host_gpu_power_usage_watts",
        "hami_host_gpu_ecc_errors_total",
    ):
        assert found.series(name, **second) == {}, "it has no sensors"
    assert found.value("hamiregion_nvml_up") == 1
    assert found.labels("hamiregion_nvml_info") == {"state": "ok", "driver": "570.0-fake"}


def test_gpus_have_the_families_and_labels_of_hami_210_on_request(files, fake_driver, sampler):
    fake_driver.play(CARD, "sensors 0 41 187500 3 1")
    labels = {**HOST, "device_type": "NVIDIA-NVIDIA H100 80GB HBM3"}
    without_node = {key: value for key, value in labels.items() if key != "node"}
    found = exported(files, sampler=sampler, node_name="worker-1", hami_version=HAMI_VERSIONS[0])
    for name, expected in (
        ("hami_host_gpu_memory_used_bytes", labels),
        ("hami_host_gpu_memory_controller_utilization_ratio", without_node),
    ):
        assert list(found.series(name)) == [frozenset(expected.items())]
    # Its monitor has three families of GPUs.
    assert len({name for name in found.names if name.startswith("hami_host_gpu_")}) == 3


@pytest.mark.parametrize("lacking", [("MemoryInfo", "UtilizationRates"), ("Name",)])
def test_a_gpu_without_figures_or_a_name_has_no_series_and_nothing_fails(
    files, fake_driver, sampler, lacking
):
    fake_driver.play(CARD, *(f"error nvmlDeviceGet{each} 3" for each in lacking))
    found = exported(files, sampler=sampler, legacy=True)
    assert not [name for name in found.names if name.startswith(("hami_host", "Host"))]
    assert found.value("hamiregion_nvml_up") == 1
    assert found.value("hamiregion_errors_total", stage="processes") == 0


def test_a_driver_that_goes_takes_its_series_with_it_and_nothing_else(files, fake_driver, sampler):
    fake_driver.play(CARD)
    files.container(uuids=[GPU])
    with files.open() as node:
        exporter = exporter_of(node, sampler=sampler)
        assert "hami_host_gpu_memory_used_bytes" in parsed(exporter.render()).names
        fake_driver.unload()
        found = parsed(exporter.render())
    assert "hami_host_gpu_memory_used_bytes" not in found.names
    assert found.value("hamiregion_nvml_up") == 0
    assert found.labels("hamiregion_nvml_info")["state"] == "driver_not_loaded"
    assert found.value("hami_vgpu_memory_used_bytes") == 0


class HangingSampler(NvmlSampler):
    """A driver's call that does not return is nothing that the fake library can play."""

    def __init__(self, library: Path) -> None:
        super().__init__(library, host_namespace=True)
        self.answers = threading.Event()
        self.asked = 0

    def sample(self) -> NvmlSample:
        self.asked += 1
        assert self.answers.wait(PATIENCE_S)
        return super().sample()


def test_a_driver_that_hangs_holds_nothing_up_but_its_own_figures(files, fake_driver, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.reader._DRIVER_TIMEOUT_S", 0.1)
    fake_driver.play(CARD)
    files.container(pod="first", uuids=[GPU])
    sampler = HangingSampler(fake_driver.library)
    with (
        sampler,
        files.open() as node,
    ):
        exporter = exporter_of(node, sampler=sampler)
        found = parsed(exporter.render())
        assert found.value("hamiregion_nvml_up") == 0
        assert found.labels("hamiregion_nvml_info")["state"] == "no_answer"
        assert exporter.not_ready() is None, "the regions can be read"
        files.container(pod="late", uuids=[GPU])
        assert b'"late"' in exporter.render(names={"hami_vgpu_memory_used_bytes"})
        assert sampler.asked == 1, "nobody asks again while one question is open"
        sampler.answers.set()
        eventually(lambda: parsed(exporter.render()).value("hamiregion_nvml_up") == 1)
        assert parsed(exporter.render()).value("hami_host_gpu_utilization_ratio") == 37


def test_without_a_sampler_nothing_is_said_of_the_driver(files):
    with files.open() as node:
        exporter = NodeExporter(node, collectors=WITHOUT_DOCTOR)
        assert "hamiregion_nvml_up" not in parsed(exporter.render()).names


def test_a_region_on_a_mig_device_is_told_with_its_instances(files, fake_driver, sampler):
    fake_driver.play(CARD, *MIG)
    files.container(uuids=[GPU, MIG_B])
    found = exported(files, sampler=sampler, legacy=True)
    expected = {
        "namespace": "research",
        "pod": "bert-0",
        "container": "train",
        "vdevice_index": "1",
        "device_uuid": OTHER,
        "mig_uuid": MIG_B,
        "profile": "1c.3g.20gb",
        "gpu_instance_id": "3",
        "compute_instance_id": "1",
        "zone": "vGPU",
    }
    assert found.series("hami_mig_device_info") == {frozenset(expected.items()): 1}
    legacy = {
        "podnamespace": "research",
        "podname": "bert-0",
        "ctrname": "train",
        "vdeviceid": "1",
        "deviceuuid": OTHER,
        "instanceid": "3",
        "zone": "vGPU",
    }
    assert found.series("MigInfo") == {frozenset(legacy.items()): 1}


def test_gpus_and_mig_devices_have_their_memory_and_model(files, fake_driver, sampler):
    fake_driver.play(CARD, *MIG)
    found = exported(files, sampler=sampler, hami_version=HAMI_VERSIONS[0])
    devices = sampler.sample().devices
    name = "hamiregion_gpu_memory_total_bytes"
    wanted = {each.uuid: each for one in devices for each in (one, *one.mig_devices)}
    labels = [dict(each) for each in found.series(name)]
    models = {each["device_uuid"]: each["device_type"] for each in labels}
    # Whatever HAMi's version calls them.
    assert models[GPU] == "NVIDIA H100 80GB HBM3"
    assert models[MIG_B].endswith(" MIG 1c.3g.20gb")
    for each in labels:
        size = wanted[each["device_uuid"]].memory_total_bytes
        assert found.value(name, device_uuid=each["device_uuid"]) == size


@needs_namespaces
@needs_cgroups
def test_a_node_without_hami_has_the_drivers_sums_by_container(
    files, fake_driver, sampler, tmp_path, monkeypatch
):
    """Time slicing, an idle whole GPU, and a client of MPS; no directory of containers."""
    monkeypatch.setattr(roots, "DEFAULT_ROOTS", (str(tmp_path / "none"),))
    monkeypatch.setattr(roots, "run_bases", lambda _: [])
    sliced, client, idle = (
        files.container(pod=each, region=False) for each in ("sliced", "client", "idle")
    )
    children = [sliced.inside.child("spawn")[1] for _ in range(2)]
    for pid in children:
        sliced.move(pid)
    client.move(client.inside.host_pid)
    idle.move(idle.inside.host_pid)
    shutil.rmtree(files.root)
    response = {"CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    given = (
        entry(sliced.pod_uid, "train", "nvidia.com/gpu", [f"{GPU}::1"], answer()),
        entry(client.pod_uid, "train", "nvidia.com/gpu", [f"{GPU}::2"], answer(response)),
        entry(idle.pod_uid, "train", "nvidia.com/gpu", [OTHER], answer()),
    )
    path = tmp_path / "checkpoint"
    path.write_text(checkpoint(*given))
    fake_driver.play(
        CARD,
        SECOND,
        *(f"process 0 compute {pid} {10 * MIB}" for pid in children),
        f"process 0 compute {client.inside.host_pid} {5 * MIB}",
        f"sample 0 {children[0]} 100 30 0 0 0",
    )
    links = tmp_path / "links"
    links.mkdir()
    for name, each in (("sliced", sliced), ("client", client), ("idle", idle)):
        (links / f"{name}_research_train-{each.id}.log").touch()
    with Node(names=NodeNames(files.pod_logs, links), allocations=path) as opened:
        exporter = NodeExporter(opened, sampler=sampler)
        found = parsed(exporter.render())
        page = exporter.page("").decode()
        assert exporter.not_ready() is None
    assert "research/sliced train" in page
    assert "GPU 0: 20 MiB, SM 30 %" in page
    assert "GPU 1: 0 B, SM 0 %" in page
    memory = "hamiregion_driver_container_memory_used_bytes"
    sm = "hamiregion_driver_container_sm_utilization_ratio"
    figures = {pod: found.value(memory, pod=pod) for pod in ("sliced", "client", "idle")}
    assert figures == {"sliced": 20 * MIB, "client": 5 * MIB, "idle": 0}
    assert found.labels(memory, pod="idle")["device_uuid"] == OTHER
    assert found.value(sm, pod="sliced") == 0.3
    assert [labels for labels in found.series(sm) if "client" in str(labels)] == []
    reasons = {
        pod: found.labels("hamiregion_container_missing_info", pod=pod)["reason"] for pod in figures
    }
    assert reasons == {"sliced": "shared_gpu", "client": "shared_gpu", "idle": "whole_gpu"}
    assert "hamiregion_root_readable" not in found.names
