"""Which container a process is in, from its ``/proc/<pid>/cgroup``."""

from __future__ import annotations

import re

from libhamiregion.observation.names import ContainerId

# A cgroup path of the kernel has at most 4 KiB; hybrid machines list a dozen hierarchies.
_MAX_TEXT = 1 << 16

_GROUPS = [f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12)]
_DASHED = "-".join(_GROUPS)
_UNDERSCORED = "_".join(_GROUPS)
# Static pods from a file: a hash without dashes.
_HASH = "[0-9a-f]{32}"

_ID_DIGITS = 64
# If no container is named: the components of a path that distinguish services and users, who can
# often make the rest.
_TOP_COMPONENTS = 3

# Names are tried component by component, each anchored at both ends: a match can neither start
# inside a longer name nor reach across a slash.
_CGROUPFS_POD = re.compile(rf"pod(?P<uid>{_DASHED}|{_HASH})\Z")
_SYSTEMD_POD = re.compile(
    rf"(?:[A-Za-z0-9_]+-)*kubepods(?:-(?:burstable|besteffort))?"
    rf"-pod(?P<uid>{_UNDERSCORED}|{_HASH})\.slice\Z"
)
_CONTAINER = re.compile(
    r"(?:(?P<prefix>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?\Z"
)
# containerd with cgroupfs under a kubelet with systemd writes "slice:prefix:name" as one name.
_MIXED = re.compile(r"(?P<slice>[^:]+\.slice):(?P<prefix>[a-z][a-z0-9-]*):(?P<id>[0-9a-f]{64})\Z")


def parse_cgroup(text: str) -> ContainerId | None:
    """Find the container in the text of ``/proc/<pid>/cgroup``, cgroup v1 or v2.

    Matches anywhere in the path, because nested nodes (kind, k3s in Docker) and private cgroup
    namespaces put other things, ``/../..`` too, before it. Where one container is inside another,
    the outermost one that belongs to a pod counts: a container can make cgroups below its own and
    call them what it likes. Without any pod, the innermost counts.

    Args:
        text: The file's text; what comes after 64 KiB is not looked at.

    Returns:
        The container, or None if there is none. The monitor process that CRI-O and Podman keep for
        each container (conmon) is not in it.

    Source: the cgroup names of kubelet, containerd, CRI-O, Docker and Podman.
    """
    best: ContainerId | None = None
    for path in _paths(text):
        found = _in_path(path) if len(path) > _ID_DIGITS else None
        if found is not None and found.pod_uid is not None:
            return found
        best = best or found
    return best


def _paths(text: str) -> dict[str, None]:
    """The paths of all hierarchies, each once, in their order."""
    found: dict[str, None] = {}
    for line in text[:_MAX_TEXT].split("\n"):
        # hierarchy:controllers:path; the path may have colons, the others not.
        _, _, rest = line.partition(":")
        _, colon, path = rest.partition(":")
        if colon:
            found[path.removesuffix(" (deleted)")] = None
    return found


def budget_key(text: str) -> str:
    """Name the budget for reading a process, from the text of ``/proc/<pid>/cgroup``.

    That of the outermost container: cgroups that a container makes below its own have no share of
    their own. Without a container, the upper part of the path.

    Args:
        text: The file's text.
    """
    container = parse_cgroup(text)
    if container is not None and container.pod_uid is not None:
        return container.id
    longest = ""
    for path in _paths(text):
        for component in path.split("/"):
            if (id_ := _container_id(component)) is not None:
                return id_
        longest = max(longest, path, key=len)
    return "/".join(longest.split("/")[: 1 + _TOP_COMPONENTS])


def _in_path(path: str) -> ContainerId | None:
    pod: str | None = None
    innermost: ContainerId | None = None
    for component in path.split("/"):
        mixed = _MIXED.match(component)
        pod = _pod(mixed["slice"] if mixed else component) or pod
        id_ = _container_id(component)
        if id_ is not None:
            innermost = ContainerId(id_, pod)
            if pod is not None:
                return innermost
    return innermost


def _container_id(component: str) -> str | None:
    match = _MIXED.match(component) or _CONTAINER.match(component)
    if match is None or (match["prefix"] or "").endswith("conmon"):
        return None
    return match["id"]


def _pod(component: str) -> str | None:
    match = _SYSTEMD_POD.match(component) or _CGROUPFS_POD.match(component)
    return None if match is None else match["uid"].replace("_", "-")
