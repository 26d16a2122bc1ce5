"""Checks: files and directories, and what processes map that is no region any more."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections import Counter, defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING

from libhamiregion.errors import RegionClosed
from libhamiregion.layouts import LAYOUTS, Layout
from libhamiregion.node.cgroups import is_pod_uid
from libhamiregion.node.containers import MissingReason, missing_for
from libhamiregion.node.matching import is_monitor
from libhamiregion.node.outside import mapped_regions, resolve
from libhamiregion.text import printable

from .findings import FindingKind, command_of, count_text, finding, only_or_none, pids_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion.node.containers import Container, MissingRegion
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.outside import MappedRegion
    from libhamiregion.node.views import ContainerView

    from .findings import DoctorContext, Finding, UsedRegion

_PAGE = resource.getpagesize()
# What maps shows for a layout that is mapped as a whole.
_WHOLE = {layout: -(-layout.size_bytes // _PAGE) * _PAGE for layout in LAYOUTS}
_MESSAGE_LIMIT = 400
_PATH_LIMIT = 300
_CUT_SHORT = "it was cut short"
# A process can map any number of files that look like regions.
_LOST_PER_CONTAINER = 16


def unreadable_roots(context: DoctorContext) -> Iterator[Finding]:
    """Directories of containers that cannot be listed."""
    for root, error in context.node.root_errors.items():
        yield finding(
            FindingKind.ROOT_UNREADABLE,
            None,
            f"{shown(root)} cannot be listed",
            printable(error.strerror or str(error), limit=_MESSAGE_LIMIT),
            cause=printable(root, limit=_MESSAGE_LIMIT),
        )


# ---- Containers whose region cannot be read -----------------------------------------------------


def missing_regions(context: DoctorContext) -> Iterator[Finding]:
    """Containers without a region, and files that are gone from under their processes."""
    short = _short_files(context)
    explained: set[int] = set()
    for mapped in _lost_mappings(context, short):
        # Not by the device: on overlay and btrfs maps and stat call it by different numbers.
        own, size = short.get((mapped.inode, mapped.name), (None, None))
        outside = [
            view.container
            for view in context.views
            if view.container.directory is None
            and view.container.region is None
            and set(view.container.pids) & set(mapped.pids)
        ]
        explained.update(id(each) for each in (own, *outside))
        users = _users(context, mapped)
        container = own or _only_one_of_pod(context, users) or next(iter(outside), None)
        # Without one it is of a region that this node does not look at.
        if users and container is not None:
            yield _lost(mapped, users, container, size)
    for view in context.views:
        container, missing = view.container, _missing(view)
        if (
            missing is not None
            and missing.reason is not MissingReason.NO_FILE
            and id(container) not in explained
            and not isinstance(view.error, RegionClosed)
        ):
            reason = missing.reason.value
            file = PurePath(container.region_path or "").name
            yield finding(
                FindingKind.REGION_MISSING,
                container,
                f"no region: {reason.replace('_', ' ')}{f' ({shown(file)})' if file else ''}",
                printable(missing.message, limit=_MESSAGE_LIMIT),
                cause=reason,
            )


def _missing(view: ContainerView) -> MissingRegion | None:
    return view.container.missing if view.error is None else missing_for(view.error)


def _is_cut_short(view: ContainerView) -> bool:
    missing = _missing(view)
    return missing is not None and (
        missing.reason in {MissingReason.NOT_READY, MissingReason.STALE}
        or (missing.reason is MissingReason.UNKNOWN_LAYOUT and _CUT_SHORT in missing.message)
    )


def _short_files(context: DoctorContext) -> dict[tuple[int, str], tuple[Container, int]]:
    """The files of containers that are too short to be a region, with their sizes."""
    found = {}
    for view in context.views:
        path = view.container.region_path
        if view.container.directory is not None and path is not None and _is_cut_short(view):
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    key = status.st_ino, PurePath(path).name
                    found[key] = (view.container, status.st_size)
    return found


def _lost_mappings(
    context: DoctorContext, short: dict[tuple[int, str], tuple[Container, int]]
) -> Iterator[MappedRegion]:
    """What processes map that was a region, and whose file was deleted or cut short."""
    processes = context.node.processes
    failed = {id(view.container) for view in context.views if view.snapshot is None}
    read = set()
    for each in context.node.containers:
        if each.region is not None and id(each) not in failed:
            with contextlib.suppress(RegionClosed):
                read.add(processes.identity(each.region))
    short_outside = {
        view.container.pids
        for view in context.views
        if view.container.directory is None
        and view.container.region is None
        and _is_cut_short(view)
    }
    tried: Counter[str] = Counter()
    for mapped in mapped_regions(processes, without=read):
        tried[mapped.payer] += 1
        if tried[mapped.payer] > _LOST_PER_CONTAINER:
            continue
        now = resolve(processes, mapped)
        if now.deleted or (now.inode, now.name) in short or now.pids in short_outside:
            yield now


def _users(context: DoctorContext, mapped: MappedRegion) -> list[HostProcess]:
    # A monitor goes on mapping the region of a container that has gone.
    bystanders = {process for used in context.used for process in used.processes.onlookers}
    return [
        process
        for process in context.node.processes.mappers(mapped.device, mapped.inode, writable=True)
        if process not in bystanders and not is_monitor(process)
    ]


def _only_one_of_pod(context: DoctorContext, users: Sequence[HostProcess]) -> Container | None:
    """The container of the pod that these processes belong to, if it has one alone."""
    pods = {process.container.pod_uid for process in users if process.container is not None}
    found = [
        view.container
        for view in context.views
        if view.container.directory is not None and view.container.pod_uid in pods
    ]
    return found[0] if len(found) == 1 else None


def _lost(
    mapped: MappedRegion, users: Sequence[HostProcess], container: Container, size: int | None
) -> Finding:
    several = len(users) > 1
    count = count_text(len(users), "process")
    deleted = mapped.deleted
    now = "/proc shows as deleted" if deleted else f"is {size or 0} bytes long now"
    if size is None and not deleted:
        now = "is too short now"
    return finding(
        FindingKind.REGION_LOST,
        container,
        f"{count} {'use' if several else 'uses'} a region that was deleted"
        if deleted
        else f"the region of {count} was cut short",
        f"{pids_text([process.pid for process in users])} of the host{command_of(users[0])}"
        f" {'map' if several else 'maps'} {shown(mapped.path_in_namespace, _PATH_LIMIT)},"
        f" which {now}",
        pid=only_or_none([process.ns_pids[-1] for process in users]),
        cause="deleted" if deleted else "cut_short",
    )


# ---- Another libvgpu, or another pod ------------------------------------------------------------


def newer_layouts(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:  # noqa: ARG001
    """Regions of a version that is not known yet."""
    newer = used.snapshot.layout_newer
    if newer is not None:
        version = ".".join(map(str, newer))
        yield finding(
            FindingKind.LAYOUT_NEWER,
            used.container,
            f"the region has version {version}, which is not known here",
            f"the file says version {version}; it is read as layout {used.snapshot.layout.value}",
            cause=version,
        )


def borrowed_directories(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Regions that processes of another pod use.

    A monitor maps other pods' regions too, and has no libvgpu.
    """
    own = used.container.pod_uid
    if used.container.directory is None or own is None or not is_pod_uid(own):
        return
    by_pod: defaultdict[str, list[HostProcess]] = defaultdict(list)
    for process in used.processes.onlookers:
        pod = None if process.container is None else process.container.pod_uid
        if pod not in (None, own) and context.node.processes.has_libvgpu(process):
            by_pod[pod].append(process)
    if not by_pod:
        return
    pods = [_pod_words(context, pod) for pod in by_pod]
    users = [process for each in by_pod.values() for process in each]
    yield finding(
        FindingKind.DIRECTORY_BORROWED,
        used.container,
        f"{count_text(len(users), 'process')} of {_some(pods)} in this container's region",
        f"{pids_text([process.pid for process in users])} of the host{command_of(users[0])}, with"
        f" libvgpu loaded, in the cgroup of {_some(pods)}; the directory is pod {shown(own)}'s",
    )


def _pod_words(context: DoctorContext, pod_uid: str) -> str:
    name = context.node.names.resolve(pod_uid)
    return f"pod {pod_uid if name is None or name.pod is None else f'{name.namespace}/{name.pod}'}"


def _some(pods: Sequence[str]) -> str:
    return pods[0] if len(pods) == 1 else f"{pods[0]} and {count_text(len(pods) - 1, 'other')}"


def mixed_layouts(context: DoctorContext, used: UsedRegion) -> Iterator[Finding]:
    """Regions that several generations of libvgpu work on."""
    layout = used.snapshot.layout
    whole = _WHOLE[layout]
    others = {length: each for each, length in _WHOLE.items() if length % whole}
    processes = context.node.processes
    for process, mapping in processes.mappings(processes.identity(used.region)):
        other = others.get(mapping.length_bytes)
        if other is not None and process in used.users:
            yield finding(
                FindingKind.LAYOUT_MIXED,
                used.container,
                f"process {process.ns_pids[-1]} maps the region as another layout",
                f"the region is of layout {layout.value}, {whole} bytes in pages; process"
                f" {process.pid}{command_of(process)} maps {mapping.length_bytes} of it, as layout"
                f" {other.value} is long",
                pid=process.ns_pids[-1],
                cause="mapped_length",
            )
            return
    # Of a region outside the roots this is the length of a link.
    size_bytes = os.lstat(used.region.path).st_size
    if layout is Layout.V1_1 and size_bytes >= Layout.V1_1_POSTINIT.size_bytes:
        yield finding(
            FindingKind.LAYOUT_MIXED,
            used.container,
            "a later libvgpu has opened a region of layout 1.1",
            f"the file is {size_bytes} bytes long; layout 1.1 needs {layout.size_bytes + 1}, and"
            " libvgpu 2.8.1 makes it longer when it opens it",
            cause="file_size",
        )
