"""Every shape of /proc/<pid>/cgroup that kubelet and the runtimes write."""

import pytest
from support.wait import PATIENCE_S

from libhamiregion.node.cgroups import budget_key, parse_cgroup
from libhamiregion.observation.names import ContainerId

ID = "4f6c1d0e9b8a7f6e5d4c3b2a190817263544536271809faebdccdbea98765432"
OTHER_ID = "a" * 64
UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
UID_ = UID.replace("-", "_")
OTHER_UID = "11111111-2222-3333-4444-555555555555"
STATIC = "7a1cf0d8e2b34c5696a7b8c9d0e1f203"
POD_SLICE = f"kubepods-burstable-pod{UID_}.slice"
SLICES = f"/kubepods.slice/kubepods-burstable.slice/{POD_SLICE}"
BEST_EFFORT_SLICE = f"kubepods-besteffort-pod{UID_}.slice"
CONTAINERD = f"cri-containerd-{ID}.scope"
CONTAINERD_SERVICE = "/system.slice/containerd.service"
# The cgroup of the container in which a node runs.
NODE = f"/docker/{OTHER_ID}"
NODE_SLICE = f"/system.slice/docker-{OTHER_ID}.scope/kubelet.slice"

OF_PODS = {
    "systemd, containerd": f"{SLICES}/{CONTAINERD}",
    "systemd, containerd, best effort": (
        f"/kubepods.slice/kubepods-besteffort.slice/{BEST_EFFORT_SLICE}/{CONTAINERD}"
    ),
    "systemd, CRI-O": f"{SLICES}/crio-{ID}.scope",
    "systemd, CRI-O, with a cgroup below": f"{SLICES}/crio-{ID}.scope/container",
    "systemd, Docker": f"{SLICES}/docker-{ID}.scope",
    "systemd, Guaranteed": f"/kubepods.slice/kubepods-pod{UID_}.slice/{CONTAINERD}",
    "systemd, below a root of one's own": (
        "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-burstable.slice"
        f"/my_root-{POD_SLICE}/{CONTAINERD}"
    ),
    "cgroupfs": f"/kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs, best effort": f"/kubepods/besteffort/pod{UID}/{ID}",
    "cgroupfs, Guaranteed": f"/kubepods/pod{UID}/{ID}",
    "cgroupfs, CRI-O": f"/kubepods/burstable/pod{UID}/crio-{ID}",
    "containerd, drivers mixed": f"{CONTAINERD_SERVICE}/{POD_SLICE}:cri-containerd:{ID}",
    "containerd, drivers mixed, Guaranteed": (
        f"{CONTAINERD_SERVICE}/kubepods-pod{UID_}.slice:cri-containerd:{ID}"
    ),
    "kind, systemd": (
        f"{NODE_SLICE}/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
        f"/kubelet-{POD_SLICE}/{CONTAINERD}"
    ),
    "kind, systemd, Guaranteed": (
        f"{NODE}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/{CONTAINERD}"
    ),
    "kind, cgroupfs": f"{NODE}/kubelet/kubepods/burstable/pod{UID}/{ID}",
    "k3s in Docker": f"{NODE}/kubepods/besteffort/pod{UID}/{ID}",
    "private namespace, systemd": (
        f"/../../kubepods-besteffort.slice/{BEST_EFFORT_SLICE}/{CONTAINERD}"
    ),
    "private namespace, the pod's slice": f"/../../kubepods-pod{UID_}.slice/crio-{ID}.scope",
    "private namespace, cgroupfs": f"/../../pod{UID}/{ID}",
    "a cgroup that was removed": f"/kubepods/pod{UID}/{ID} (deleted)",
}
OF_STATIC_PODS = {
    "systemd": (
        "/kubepods.slice/kubepods-burstable.slice"
        f"/kubepods-burstable-pod{STATIC}.slice/{CONTAINERD}"
    ),
    "cgroupfs": f"/kubepods/burstable/pod{STATIC}/{ID}",
}
WITHOUT_A_POD = {
    "plain Docker, cgroupfs": f"/docker/{ID}",
    "plain Docker, systemd": f"/system.slice/docker-{ID}.scope",
    "plain Docker, drivers mixed": f"/system.slice/docker.service/system.slice:docker:{ID}",
    "Docker with another parent": f"/batch/{ID}",
    "Podman": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"
    ),
    "Podman, system": f"/machine.slice/libpod-{ID}.scope",
    "nerdctl": f"/system.slice/nerdctl-{ID}.scope",
    "Docker in Docker": f"{NODE}/docker/{ID}",
    "private namespace, the same pod": f"/../{CONTAINERD}",
    "private namespace, the same pod, cgroupfs": f"/../{ID}",
}

V1 = """12:pids:{path}
11:hugetlb:{path}
5:cpu,cpuacct:{path}
1:name=systemd:{path}
"""
# As systemd mounts it: the limits in v1, the processes in an empty v2.
HYBRID = "3:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/\n"
HYBRID_EARLY = "0::/\n3:cpu,cpuacct:{path}\n"
VERSIONS = {"v2": "0::{path}\n", "v1": V1, "hybrid": HYBRID, "hybrid, v2 first": HYBRID_EARLY}


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_each_shape_is_understood(version):
    for pod, shapes in ((UID, OF_PODS), (STATIC, OF_STATIC_PODS), (None, WITHOUT_A_POD)):
        for name, path in shapes.items():
            assert parse_cgroup(version.format(path=path)) == ContainerId(ID, pod), name


NO_CONTAINER = {
    "CRI-O's monitor": f"{SLICES}/crio-conmon-{ID}.scope",
    "Podman's monitor": f"/machine.slice/libpod-conmon-{ID}.scope",
    "CRI-O's monitor, cgroupfs": f"/kubepods/burstable/pod{UID}/crio-conmon-{ID}",
    "the pod itself": SLICES,
    "the host": "/init.scope",
    "a service": "/system.slice/containerd.service",
    "a login": "/user.slice/user-0.slice/session-1.scope",
    "the root": "/",
    "an id that is too short": f"/docker/{ID[:-1]}",
    "an id that is too long": f"/docker/{ID}0",
    "an id in capitals": f"/docker/{ID.upper()}",
    "an id in the middle of a name": f"/x{ID}.scope",
    "an id with a newline behind": f"/docker/{ID}\n",
    "an id behind a slash that is none": f"/docker\\x2f{ID}",
}


def test_what_is_no_container_is_none():
    for name, path in NO_CONTAINER.items():
        found = parse_cgroup(f"0::{path}\n")
        # A newline ends the line, so that what stands before it is a whole path.
        assert found is None if "\n" not in path else found == ContainerId(ID), name


def test_one_line_of_many_is_enough():
    text = f"9:name=systemd:/\n4:memory:/kubepods/pod{UID}/{ID}\n0::/\n"
    assert parse_cgroup(text) == ContainerId(ID, UID)


def test_a_line_that_names_a_pod_comes_before_one_that_does_not():
    text = f"4:memory:/docker/{OTHER_ID}\n3:cpu:/kubepods/pod{UID}/{ID}\n"
    assert parse_cgroup(text) == ContainerId(ID, UID)


OTHER_SLICE = f"kubepods-pod{OTHER_UID.replace('-', '_')}.slice"
FORGED = [
    f"{SLICES}/{CONTAINERD}/kubepods/pod{OTHER_UID}/{OTHER_ID}",
    f"{SLICES}/{CONTAINERD}{NODE}",
    f"{SLICES}/{CONTAINERD}/{OTHER_SLICE}/crio-{OTHER_ID}.scope",
    f"{SLICES}/{CONTAINERD}/{OTHER_SLICE}:cri-containerd:{OTHER_ID}",
]


@pytest.mark.parametrize("path", FORGED)
def test_a_container_cannot_make_itself_another_pods_by_cgroups_of_its_own(path):
    assert parse_cgroup(f"0::{path}\n") == ContainerId(ID, UID)


HOSTILE = [
    "",
    "\n\n",
    ":",
    "::",
    "0::",
    "0::" + "/" * 4096,
    "0::/" + "pod" * 1365,
    "0::/" + "kubepods-" * 455 + f"pod{UID_}.slice",
    "0::/" + "a-" * 2000 + "b",
    "0::/\x1b[2J/$(reboot)/'\"`;rm -rf /",
    "0::/../../../etc/passwd",
    "0::/\ud800\udcff\x00",
    f"0::/kubepods/pod{UID[:-1]}/" + "g" * 64,
    "x" * 10_000_000,
    "0::/a\n" * 1_000_000,
]


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_no_container_and_costs_little(text):
    assert parse_cgroup(text) is None


def test_a_pod_whose_uid_is_none_is_not_taken_for_one():
    found = parse_cgroup(f"0::/kubepods/burstable/pod{UID}; rm -rf/{ID}\n")
    assert found == ContainerId(ID)


@pytest.mark.parametrize("path", FORGED)
def test_what_a_container_makes_below_its_own_cgroup_is_paid_for_by_itself(path):
    assert budget_key(f"0::{path}\n") == ID


def test_without_a_pod_the_outermost_container_pays():
    assert budget_key(f"0::/docker/{ID}/docker/{OTHER_ID}\n") == ID


def test_outside_of_containers_a_service_pays_with_all_that_it_makes():
    service = "/system.slice/ssh.service/made"
    assert budget_key(f"9:name=systemd:/\n0::{service}/by/it\n") == service
    assert budget_key("0::/\n") == "/"
    assert budget_key("") == ""
