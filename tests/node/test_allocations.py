"""kubelet's checkpoint of devices: what each plugin writes there, and what anyone else might."""

import contextlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_checkpoint import answer, checkpoint, entry
from support.stress import scaled

from libhamiregion import create_region
from libhamiregion.node import Node, NodeNames
from libhamiregion.node.allocations import fields, parse_devices
from libhamiregion.node.checkpoint import Checkpoint
from libhamiregion.observation.share import Allocation, Share
from libhamiregion.units import GIB

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
STATIC = "f" * 32
GPU = "GPU-5d9a1b54-3c1c-4e9e-8f24-0e6a0a5c2b11"
MIG = "MIG-11111111-3c1c-4e9e-8f24-0e6a0a5c2b11"
HAMI = {
    "NVIDIA_VISIBLE_DEVICES": GPU,
    "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/2f1e.cache",
}
DIRECTORY = f"/usr/local/vgpu/containers/{UID}_fetch"
MOUNTS = {"/usr/local/vgpu/libvgpu.so": "/opt/libvgpu.so", "/usr/local/vgpu": DIRECTORY}
SHARE = Share((4 * GIB,), 30)
# Any of its replicas: HAMi's ids say nothing.
REPLICA = {"-1": ["GPU-00000000-0000-0000-0000-000000000000::7"]}


def parsed(*entries: dict[str, Any], **more: object) -> tuple[Allocation, ...]:
    return parse_devices(checkpoint(*entries, **more).encode())


def only(resource: str, ids: object, response: bytes | None) -> Allocation:
    (found,) = parsed(entry(UID, "main", resource, ids, response))
    assert (found.pod_uid, found.container, found.resource) == (UID, "main", resource)
    return found


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(["GPU-0::7"], id="kubelet 1.18 and 1.19"),
        pytest.param({"-1": ["GPU-0::7"]}, id="kubelet 1.20 and later"),
        pytest.param({"0": ["GPU-0::7"], "1": None}, id="two NUMA nodes"),
        pytest.param(None, id="no ids"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"BootID": "b"}], ids=["older", "newest"])
def test_every_kubelet_since_1_18(ids, more):
    (found,) = parsed(entry(UID, "main", "nvidia.com/gpu", ids, answer(HAMI)), **more)
    assert (found.uuids, found.share) == ((GPU,), SHARE)


def test_hamis_plugin_names_device_limits_and_directory():
    found = only("nvidia.com/gpu", REPLICA, answer(HAMI, mounts=MOUNTS))
    assert (found.uuids, found.share) == ((GPU,), SHARE)
    assert found.region_directory == DIRECTORY


def test_hamis_plugin_with_cdi():
    variables = {name: value for name, value in HAMI.items() if not name.startswith("NV")}
    cdi = [f"k8s.device-plugin.nvidia.com/gpu={GPU}"]
    found = only("nvidia.com/gpu", REPLICA, answer(variables, cdi=cdi))
    assert (found.uuids, found.share) == ((GPU,), SHARE)
    # Names that are no uuids name no device, and replicas neither.
    by_index = only("nvidia.com/gpu", REPLICA, answer(variables, cdi=["nvidia.com/gpu=0"]))
    assert by_index.uuids == ()


def test_hamis_plugin_in_mig_mode():
    found = only("nvidia.com/gpu", REPLICA, answer({"NVIDIA_VISIBLE_DEVICES": MIG}))
    assert (found.uuids, found.share.is_limited) == ((MIG,), False)


def test_volcanos_plugin():
    directory = f"/tmp/vgpu/containers/{UID}_main"
    variables = {**HAMI, "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/2f1e.cache"}
    mounts = {"/tmp/vgpu": directory}
    ids = {"-1": [f"{GPU}-3"]}
    found = only("volcano.sh/vgpu-number", ids, answer(variables, mounts=mounts))
    assert (found.uuids, found.share, found.region_directory) == ((GPU,), SHARE, directory)


@pytest.mark.parametrize(
    ("resource", "ids", "envs", "uuids", "is_replica"),
    [
        ("nvidia.com/gpu", {"0": [GPU]}, {"NVIDIA_VISIBLE_DEVICES": GPU}, (GPU,), False),
        ("nvidia.com/gpu", {"0": [GPU]}, {"NVIDIA_VISIBLE_DEVICES": "0"}, (GPU,), False),
        ("nvidia.com/gpu", {"0": [GPU]}, {}, (GPU,), False),
        ("nvidia.com/gpu.shared", {"0": [f"{GPU}::3", f"{GPU}::4"]}, {}, (GPU,), True),
        ("nvidia.com/mig-1g.5gb", {"0": [MIG]}, {}, (MIG,), False),
    ],
    ids=["whole", "by index", "by mount or CDI", "time slicing", "MIG"],
)
def test_nvidias_plugin(resource, ids, envs, uuids, is_replica):
    found = only(resource, ids, answer(envs))
    assert (found.uuids, found.is_replica, found.share) == (uuids, is_replica, Share())
    assert found.region_directory is None


def test_nvidias_plugin_with_mps():
    found = only("nvidia.com/gpu", [f"{GPU}::0"], answer({"CUDA_MPS_PIPE_DIRECTORY": "/mps"}))
    assert found.share.uses_mps


def test_other_devices_are_left_out_and_static_pods_are_not():
    hca = entry(UID, "main", "rdma/hca", {"0": ["mlx5_0"]}, answer({"HCA": "mlx5_0"}))
    gpu = entry(STATIC, "main", "nvidia.com/gpu", {"0": [GPU]}, answer())
    assert [each.pod_uid for each in parsed(hca, gpu)] == [STATIC]
    assert parsed() == ()


GOOD = entry(UID, "main", "nvidia.com/gpu", {"0": [GPU]}, answer(HAMI))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"Data": {}}',
        '{"Data": "{}", "Checksum": 1}',
        '{"policyName": "none", "checksum": 1}',
        "[" * 100_000,
        checkpoint({**GOOD, "PodUID": "../.."}),
        checkpoint({**GOOD, "ContainerName": "a/b"}),
        checkpoint({**GOOD, "ContainerName": 1}),
        checkpoint({**GOOD, "DeviceIDs": "GPU"}),
        checkpoint({**GOOD, "DeviceIDs": {"0": "GPU"}}),
        checkpoint({**GOOD, "DeviceIDs": [1]}),
        checkpoint({**GOOD, "AllocResp": "!"}),
        checkpoint({**GOOD, "AllocResp": "CgU="}),
        checkpoint({**GOOD, "AllocResp": None, "ResourceName": None}),
        json.dumps({"Data": {"PodDeviceEntries": [[]]}}),
        json.dumps({"Data": {"PodDeviceEntries": {}}}),
    ],
)
def test_anything_else_is_not_available(text, tmp_path):
    """Never none: a container without an entry was given nothing."""
    with pytest.raises(ValueError, match=r"."):
        parse_devices(text.encode())
    path = tmp_path / "checkpoint"
    (tmp_path / "containers").mkdir()
    path.write_text(text)
    with Node(tmp_path / "containers", allocations=path) as node:
        assert node.allocations is None
        path.unlink()
        assert node.allocations is None


@settings(max_examples=scaled(300), deadline=None)
@given(st.binary(max_size=64), st.integers(0, 400))
def test_any_bytes_are_read_or_refused(noise, at):
    raw = checkpoint(GOOD).encode()
    whole = answer(HAMI, mounts=MOUNTS, cdi=["a=b"])
    for each in (noise, whole[:at] + noise + whole[at + len(noise) :], whole[:at]):
        with contextlib.suppress(ValueError):
            assert all(number >= 0 for number, _ in fields(each))
    with contextlib.suppress(ValueError):
        parse_devices(raw[:at] + noise + raw[at + len(noise) :])


def test_the_checkpoint_is_read_again_when_it_was_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.checkpoint._RECHECK_S", 0.0)
    path, new = tmp_path / "checkpoint", tmp_path / "new"
    (tmp_path / "containers").mkdir()
    path.write_text(checkpoint(GOOD))
    with Node(tmp_path / "containers", allocations=path) as node:
        assert [each.share for each in node.allocations or ()] == [SHARE]
        new.write_text(checkpoint())
        new.replace(path)
        assert node.allocations == ()


def test_a_checkpoint_that_another_thread_reads_just_now_is_not_missing(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_text("x")
    parsing, go_on = threading.Event(), threading.Event()

    def parse(raw: bytes) -> bytes:
        parsing.set()
        assert go_on.wait(10)
        return raw

    read = Checkpoint(os.fspath(path), parse, "lost").read
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read)
        assert parsing.wait(10)
        second = pool.submit(read)
        # Long enough for a wrong answer.
        wait_for([second], 0.2)
        go_on.set()
        assert (first.result(10), second.result(10)) == (b"x", b"x")


@pytest.mark.parametrize("makes_file", [True, False])
def test_a_directory_is_named_after_the_container_that_it_was_given_to(makes_file, tmp_path):
    """HAMi 2.10 can put it under the name of an init container."""
    root = tmp_path / "containers"
    directory = root / f"{UID}_fetch"
    directory.mkdir(parents=True)
    if makes_file:
        create_region(directory / "usage.cache", memory_limits=["4GiB"])
    path = tmp_path / "checkpoint"
    # The host's path, which may be another one here.
    given_to = entry(UID, "train", "nvidia.com/gpu", REPLICA, answer(HAMI, mounts=MOUNTS))
    path.write_text(checkpoint(given_to))
    with Node(root, allocations=path, names=NodeNames(tmp_path / "logs")) as node:
        node.refresh()
        (container,) = node.containers
        assert (container.name, container.directory_name) == ("train", "fetch")
        node.slots(node.snapshot())
        assert [each.name for each in node.containers] == ["train"]
        path.write_text(checkpoint(given_to, {**given_to, "ContainerName": "fetch"}))
    with Node(root, allocations=path, names=NodeNames(tmp_path / "logs")) as node:
        node.refresh()
        assert [each.name for each in node.containers] == ["fetch"]
