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
SLICES = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
BEST_EFFORT = f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice"

# Path and pod.
SHAPES = {
    "systemd, containerd": (f"{SLICES}/cri-containerd-{ID}.scope", UID),
    "systemd, containerd, best effort": (f"{BEST_EFFORT}/cri-containerd-{ID}.scope", UID),
    "systemd, CRI-O": (f"{SLICES}/crio-{ID}.scope", UID),
    "systemd, CRI-O, with a cgroup below": (f"{SLICES}/crio-{ID}.scope/container", UID),
    "systemd, Docker": (f"{SLICES}/docker-{ID}.scope", UID),
    "systemd, Guaranteed": (
        f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope",
        UID,
    ),
    "systemd, static pod": (
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice"
            f"/cri-containerd-{ID}.scope"
        ),
        STATIC,
    ),
    "systemd, below a root of one's own": (
        (
            "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-burstable.slice"
            f"/my_root-kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope"
        ),
        UID,
    ),
    "cgroupfs": (f"/kubepods/burstable/pod{UID}/{ID}", UID),
    "cgroupfs, best effort": (f"/kubepods/besteffort/pod{UID}/{ID}", UID),
    "cgroupfs, Guaranteed": (f"/kubepods/pod{UID}/{ID}", UID),
    "cgroupfs, static pod": (f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC),
    "cgroupfs, CRI-O": (f"/kubepods/burstable/pod{UID}/crio-{ID}", UID),
    "containerd, drivers mixed": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}",
        UID,
    ),
    "containerd, drivers mixed, Guaranteed": (
        f"/system.slice/containerd.service/kubepods-pod{UID_}.slice:cri-containerd:{ID}",
        UID,
    ),
    "plain Docker, cgroupfs": (f"/docker/{ID}", None),
    "plain Docker, systemd": (f"/system.slice/docker-{ID}.scope", None),
    "plain Docker, drivers mixed": (f"/system.slice/docker.service/system.slice:docker:{ID}", None),
    "Docker with another parent": (f"/batch/{ID}", None),
    "Podman": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        None,
    ),
    "Podman, system": (f"/machine.slice/libpod-{ID}.scope", None),
    "nerdctl": (f"/system.slice/nerdctl-{ID}.scope", None),
    "kind, systemd": (
        (
            f"/system.slice/docker-{OTHER_ID}.scope/kubelet.slice/kubelet-kubepods.slice"
            f"/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UID_}.slice"
            f"/cri-containerd-{ID}.scope"
        ),
        UID,
    ),
    "kind, systemd, Guaranteed": (
        (
            f"/docker/{OTHER_ID}/kubelet.slice/kubelet-kubepods.slice"
            f"/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope"
        ),
        UID,
    ),
    "kind, cgroupfs": (f"/docker/{OTHER_ID}/kubelet/kubepods/burstable/pod{UID}/{ID}", UID),
    "k3s in Docker": (f"/docker/{OTHER_ID}/kubepods/besteffort/pod{UID}/{ID}", UID),
    "Docker in Docker": (f"/docker/{OTHER_ID}/docker/{ID}", None),
    "private namespace, systemd": (
        (
            f"/../../kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice"
            f"/cri-containerd-{ID}.scope"
        ),
        UID,
    ),
    "private namespace, the pod's slice": (f"/../../kubepods-pod{UID_}.slice/crio-{ID}.scope", UID),
    "private namespace, cgroupfs": (f"/../../pod{UID}/{ID}", UID),
    "private namespace, the same pod": (f"/../cri-containerd-{ID}.scope", None),
    "private namespace, the same pod, cgroupfs": (f"/../{ID}", None),
    "a cgroup that was removed": (f"/kubepods/pod{UID}/{ID} (deleted)", UID),
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
    for name, (path, pod) in SHAPES.items():
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


FORGED = [
    f"{SLICES}/cri-containerd-{ID}.scope/kubepods/pod{OTHER_UID}/{OTHER_ID}",
    f"{SLICES}/cri-containerd-{ID}.scope/docker/{OTHER_ID}",
    (
        f"{SLICES}/cri-containerd-{ID}.scope/kubepods-pod{OTHER_UID.replace('-', '_')}.slice"
        f"/crio-{OTHER_ID}.scope"
    ),
    (
        f"{SLICES}/cri-containerd-{ID}.scope/kubepods-pod{OTHER_UID.replace('-', '_')}.slice"
        f":cri-containerd:{OTHER_ID}"
    ),
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
