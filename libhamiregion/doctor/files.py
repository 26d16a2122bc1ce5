"""Checks of files: regions that cannot be read, are lost, or have foreign users."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionClosed
from libhamiregion.layouts import mapped_length
from libhamiregion.observation.containers import WITHOUT_FILE, missing_for
from libhamiregion.observation.names import is_pod_uid
from libhamiregion.observation.processes import is_monitor
from libhamiregion.observation.suspicions import WHOLE_BYTES, other_layouts
from libhamiregion.text import count_text, printable

from .findings import FindingKind, command_of, finding, only_or_none, pids_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.observation.containers import Container, MissingRegion
    from libhamiregion.observation.processes import HostProcess

    from .context import DoctorContext, ObservedRegion
    from .findings import Finding

_MESSAGE_LIMIT = 400
_PATH_LIMIT = 300


def unobserved(context: DoctorContext) -> Iterator[Finding]:
    """Directories of containers that cannot be listed, and processes that could not be read."""
    for gap in context.observation.gaps:
        reason = printable(gap.reason, limit=_MESSAGE_LIMIT)
        if gap.kind == "root":
            summary = "a directory of containers cannot be listed"
            yield finding(FindingKind.ROOT_UNREADABLE, summary, reason, cause=reason)
        elif gap.kind == "processes" and gap.container is not None:
            summary = f"{count_text(gap.count, 'process')} of the container could not be read"
            kind = FindingKind.NOT_OBSERVED
            yield finding(kind, summary, reason, container=gap.container)


# ---- regions that cannot be read ----------------------------------------------------------------


def missing_regions(context: DoctorContext) -> Iterator[Finding]:
    """Containers without a region, and processes whose region was deleted or truncated."""
    unreadable = _unreadable(context)
    lost = list(_lost_regions(context, unreadable))
    yield from lost
    explained = {each.container for each in lost}
    for container, missing in unreadable.items():
        if missing.reason in WITHOUT_FILE or container in explained:
            continue
        reason = missing.reason.value
        file = PurePath(container.region_path or "").name
        yield finding(
            FindingKind.REGION_MISSING,
            f"no region: {reason.replace('_', ' ')}{f' ({shown(file)})' if file else ''}",
            printable(missing.message, limit=_MESSAGE_LIMIT),
            container=container,
            cause=reason,
        )


def _unreadable(context: DoctorContext) -> dict[Container, MissingRegion]:
    observation = context.observation
    found = {each: each.missing for each in observation.missing if each.missing is not None}
    for row, container in enumerate(observation.containers):
        error = observation.table.error(row)
        # One that was closed meanwhile is the next observation's.
        if error is not None and not isinstance(error, RegionClosed):
            found[container] = missing_for(error)
    return found


def _lost_regions(
    context: DoctorContext, unreadable: dict[Container, MissingRegion]
) -> Iterator[Finding]:
    """Files that processes map as a region, and that were deleted or truncated."""
    processes = context.processes
    by_pod: defaultdict[str | None, list[Container]] = defaultdict(list)
    for each in context.observation.all_containers:
        if each.directory is not None:
            by_pod[each.pod_uid].append(each)
    outside = {pid: each for each in unreadable if each.directory is None for pid in each.pids}
    for lost in context.evidence.lost_files:
        users = {
            process: mapping
            for process, mapping in processes.mappings(lost.identity)
            # A monitor maps the region of a container that has gone for a while.
            if mapping.writable and process not in context.onlookers and not is_monitor(process)
        }
        size = lost.size_bytes
        cut = any(mapped_length(size) < mapping.length_bytes for mapping in users.values())
        pods = {each.container.pod_uid for each in users if each.container is not None} - {None}
        of_pods = [each for pod in pods for each in by_pod[pod]]
        only = of_pods[0] if len(of_pods) == 1 else outside.get(lost.pid)
        container = lost.container or only
        # Without a container this node does not look at that region.
        if not users or not (lost.deleted or cut) or container is None:
            continue
        state = "/proc shows as deleted" if lost.deleted else f"is {size} bytes long now"
        yield finding(
            FindingKind.REGION_LOST,
            f"the region of {count_text(len(users), 'process')} was"
            f" {'deleted' if lost.deleted else 'cut short'}",
            f"{pids_text([each.pid for each in users])} of the host{command_of(next(iter(users)))}"
            f" mapped {shown(lost.path, _PATH_LIMIT)}, which {state}",
            container=container,
            pid=only_or_none([process.ns_pids[-1] for process in users]),
            cause="deleted" if lost.deleted else "cut_short",
        )


def doubled_regions(context: DoctorContext) -> Iterator[Finding]:
    """Containers whose processes use several regions of their directory."""
    found: defaultdict[tuple[Container, str], list[int]] = defaultdict(list)
    for pid, place in context.join.in_other_files.items():
        found[place].append(pid)
    for (container, name), pids in found.items():
        shown_file = PurePath(container.region_path or "").name
        yield finding(
            FindingKind.REGIONS_DOUBLED,
            f"{count_text(len(pids), 'process')} in a second region of the directory",
            f"{pids_text(pids)} of the host map {shown(name)}; the newest one, which is shown, is"
            f" {shown(shown_file)}",
            container=container,
            cause=shown(name),
        )


# ---- another libvgpu, or another pod ------------------------------------------------------------


def newer_layouts(_: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Regions of a version that is not known yet."""
    newer = used.snapshot.layout_newer
    if newer is not None:
        version = ".".join(map(str, newer))
        yield used.finding(
            FindingKind.LAYOUT_NEWER,
            f"the region has version {version}, which is not known here",
            f"the file says version {version}; it is read as layout {used.snapshot.layout.value}",
            cause=version,
        )


def borrowed_directories(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Regions that processes of another pod use.

    A monitor maps other pods' regions too, and has no libvgpu.
    """
    own = used.container.pod_uid
    if used.container.directory is None or own is None or not is_pod_uid(own):
        return
    by_pod: defaultdict[str, list[HostProcess]] = defaultdict(list)
    for process in used.processes.onlookers:
        pod = None if process.container is None else process.container.pod_uid
        if pod not in (None, own) and context.processes.has_libvgpu(process):
            by_pod[pod].append(process)
    if not by_pod:
        return
    first, *others = [_pod_words(context, each[0]) for each in by_pod.values()]
    pods = f"{first} and {count_text(len(others), 'other')}" if others else first
    users = [process for each in by_pod.values() for process in each]
    yield used.finding(
        FindingKind.DIRECTORY_BORROWED,
        f"{count_text(len(users), 'process')} of {pods} in this container's region",
        f"{pids_text([process.pid for process in users])} of the host{command_of(users[0])}, with"
        f" libvgpu loaded, in the cgroup of {pods}; the directory is pod {shown(own)}'s",
    )


def _pod_words(context: DoctorContext, process: HostProcess) -> str:
    id_ = process.container
    name = None if id_ is None else context.observation.names.get(id_.id)
    known = None if name is None or name.pod is None else f"{name.namespace}/{name.pod}"
    return f"pod {known or process.pod_uid}"


def mixed_layouts(context: DoctorContext, used: ObservedRegion) -> Iterator[Finding]:
    """Regions that several generations of libvgpu use."""
    layout = used.snapshot.layout
    for process, length_bytes, other in other_layouts(context.observation, used.row):
        if process in used.users:
            yield used.finding(
                FindingKind.LAYOUT_MIXED,
                f"process {process.ns_pids[-1]} maps the region as another layout",
                f"the region is of layout {layout.value}, {WHOLE_BYTES[layout]} bytes in pages;"
                f" process {process.pid}{command_of(process)} maps {length_bytes} of it, as layout"
                f" {other.value} is long",
                pid=process.ns_pids[-1],
                cause="mapped_length",
            )
            return
    if used.evidence.size_bytes:
        yield used.finding(
            FindingKind.LAYOUT_MIXED,
            "a later libvgpu has opened a region of layout 1.1",
            f"the file is {used.evidence.size_bytes} bytes long; layout 1.1 needs"
            f" {layout.size_bytes + 1}, and libvgpu 2.8.1 makes it longer when it opens it",
            cause="file_size",
        )


CHECKS_OF_NODE = (unobserved, missing_regions, doubled_regions)
CHECKS = (mixed_layouts, newer_layouts, borrowed_directories)
