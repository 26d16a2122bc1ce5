"""Checks of containers that were given a share of a GPU and have no region."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from libhamiregion.observation.containers import NOT_LIMITED
from libhamiregion.observation.share import Share
from libhamiregion.observation.without_region import allocation_key
from libhamiregion.text import count_text
from libhamiregion.units import format_size

from .findings import FindingKind, command_of, finding, only_or_none, pids_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.rows import NodeProcess

    from .context import DoctorContext
    from .findings import Finding

# While a container starts, it has no region yet.
_NOT_LIMITED_S = 30.0
_LOADED = {
    True: ("no_region", "libvgpu.so is loaded in it, but it maps no region"),
    False: ("no_library", "libvgpu.so is not loaded in it"),
}
_ADVICE = {
    "no_region": "see the container's first lines of output: the directory that"
    " CUDA_DEVICE_MEMORY_SHARED_CACHE names has to be mounted and writable; then restart the pod",
    "no_library": "mount libvgpu.so where the container's /etc/ld.so.preload says, built for its C"
    " library; ld.so prints why it ignores it when a program starts; then restart the pod",
}


def unlimited_shares(context: DoctorContext) -> Iterator[Finding]:
    """Containers that use GPUs, were given a share, and are not limited.

    A reader with a history has seen them so twice, 30 s apart. Without a history the finding is
    transient: `confirmed` compares two observations.
    """
    observation, join = context.observation, context.join
    users: defaultdict[Container, list[NodeProcess]] = defaultdict(list)
    for row in join.uncounted:
        if row.container is not None and row.container.missing == NOT_LIMITED:
            users[row.container].append(row)
    known_s = observation.not_limited_s
    for container, rows in users.items():
        id_ = "" if container.container_id is None else container.container_id.id
        if known_s is not None and known_s.get(id_, 0.0) < _NOT_LIMITED_S:
            continue
        first = rows[0].process
        assert first is not None  # noqa: S101 (its cgroup names the container)
        entry, key = observation.processes.entry_of(first), allocation_key(container)
        given = [each.share for each in observation.allocations or () if each.key == key]
        if entry is not None and entry.share is not None:
            given.append(entry.share)
        driver = sum(each.memory_driver_bytes or 0 for row in rows for each in row.devices)
        cause, why = _LOADED[bool(observation.processes.has_libvgpu(first))]
        pids = [row.host_pid for row in rows if row.host_pid is not None]
        yield finding(
            FindingKind.SHARE_NOT_LIMITED,
            f"{NOT_LIMITED.message}: {count_text(len(rows), 'process')}"
            f" {'use' if len(rows) > 1 else 'uses'} {format_size(driver)}",
            f"the driver lists {pids_text(pids)} of the host{command_of(first)};"
            f" {_given(given[0] if given else Share())}; {why}",
            container=container,
            pid=only_or_none([row.process.ns_pids[-1] for row in rows if row.process is not None]),
            cause=cause,
            advice=_ADVICE[cause],
            is_transient=known_s is None,
        )


def _given(share: Share) -> str:
    """Say what a share is."""
    limits = [f"a memory limit of {format_size(each)}" for each in share.memory_limits_bytes]
    if share.sm_limit_percent:
        limits.append(f"an SM limit of {share.sm_limit_percent} %")
    return f"it was given {' and '.join(limits) or 'a share'}"


CHECKS_OF_NODE = (unlimited_shares,)
