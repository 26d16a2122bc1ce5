"""Checks: files and directories, and what processes map that is no region any more."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING

import attrs

from libhamiregion.errors import RegionClosed
from libhamiregion.layouts import LAYOUTS, Layout
from libhamiregion.node.containers import MissingReason, missing_for
from libhamiregion.node.outside import mapped_regions, resolve
from libhamiregion.node.writers import is_monitor
from libhamiregion.text import printable

from .examination import command_of, count_text, pids_text, shown
from .findings import FindingKind, Severity, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.outside import MappedRegion
    from libhamiregion.node.views import ContainerView

    from .examination import Examination, UsedRegion
    from .findings import Finding

_PAGE = resource.getpagesize()
# What maps shows for a layout that is mapped as a whole.
_WHOLE = {layout: -(-layout.size_bytes // _PAGE) * _PAGE for layout in LAYOUTS}
_MESSAGE_LIMIT = 400
_PATH_LIMIT = 300
_CUT_SHORT = "it was cut short"
# A process can map any number of files that look like regions.
_LOST_PER_CONTAINER = 16


# ---- Containers whose region cannot be read -----------------------------------------------------


def missing_regions(look: Examination) -> Iterator[Finding]:
    """Containers without a region, and files that are gone from under their processes."""
    explained: set[int] = set()
    for lost in _lost_mappings(look):
        container, entries = _whose(look, lost)
        explained.update(id(each) for each in entries)
        # Without one it is of a region that this node does not look at.
        if lost.users and container is not None:
            yield _lost(lost, container)
    for view in look.views:
        container = view.container
        missing = container.missing if view.error is None else missing_for(view.error)
        if (
            missing is None
            or missing.reason is MissingReason.NO_FILE
            or id(container) in explained
            or isinstance(view.error, RegionClosed)
        ):
            continue
        reason = missing.reason.value
        file = "" if container.region_path is None else PurePath(container.region_path).name
        yield finding(
            FindingKind.REGION_MISSING,
            container,
            f"no region: {reason.replace('_', ' ')}{f' ({shown(file)})' if file else ''}",
            printable(missing.message, limit=_MESSAGE_LIMIT),
            cause=reason,
        )


@attrs.frozen
class _Lost:
    """A region that processes map and whose file is not theirs any more.

    Attributes:
        mapped: What they map.
        users: Those of them that use it.
        container: The container whose file it is, where that is known.
        size_bytes: How long the file is now; None if it was deleted, or that is not known.
    """

    mapped: MappedRegion
    users: tuple[HostProcess, ...]
    container: Container | None
    size_bytes: int | None


def _lost_mappings(look: Examination) -> list[_Lost]:
    processes = look.node.processes
    known = set()
    for each in look.node.containers:
        if each.region is not None:
            with contextlib.suppress(RegionClosed):
                known.add(processes.identity(each.region))
    for view in look.views:
        if view.container.region is not None and view.snapshot is None:
            with contextlib.suppress(RegionClosed):
                known.discard(processes.identity(view.container.region))
    short = _short_files(look)
    # A monitor goes on mapping the region of a container that has gone.
    bystanders = {process.pid for used in look.used for process in used.processes.onlookers}
    lost = []
    tried: Counter[str] = Counter()
    for mapped in mapped_regions(processes, without=known):
        tried[mapped.payer] += 1
        if tried[mapped.payer] > _LOST_PER_CONTAINER:
            continue
        mapped = resolve(mapped)  # noqa: PLW2901
        # Not by the device: on overlay and btrfs maps and stat call it by different numbers.
        container, size = short.get((mapped.inode, mapped.name), (None, None))
        if mapped.deleted or container is not None or _is_short_outside(look, mapped):
            users = tuple(
                process
                for process in processes.mappers(mapped.device, mapped.inode, writable=True)
                if process.pid not in bystanders and not is_monitor(process)
            )
            lost.append(_Lost(mapped, users, container, size))
    return lost


def _is_cut_short(view: ContainerView) -> bool:
    missing = view.container.missing if view.error is None else missing_for(view.error)
    if missing is None:
        return False
    return missing.reason in {MissingReason.NOT_READY, MissingReason.STALE} or (
        missing.reason is MissingReason.UNKNOWN_LAYOUT and _CUT_SHORT in missing.message
    )


def _short_files(look: Examination) -> dict[tuple[int, str], tuple[Container, int]]:
    """The files of containers that are too short to be a region, with their sizes."""
    found = {}
    for view in look.views:
        path = view.container.region_path
        if view.container.directory is None or path is None or not _is_cut_short(view):
            continue
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found[status.st_ino, PurePath(path).name] = (view.container, status.st_size)
    return found


def _is_short_outside(look: Examination, mapped: MappedRegion) -> bool:
    return any(
        view.container.directory is None
        and view.container.pids == mapped.pids
        and _is_cut_short(view)
        and view.container.region is None
        for view in look.views
    )


def _whose(look: Examination, lost: _Lost) -> tuple[Container | None, list[Container]]:
    """The container that a lost mapping is of, and all entries of the node that it explains."""
    entries = [
        view.container
        for view in look.views
        if view.container.directory is None
        and view.container.region is None
        and set(view.container.pids) & set(lost.mapped.pids)
    ]
    if lost.container is not None:
        return lost.container, [*entries, lost.container]
    pods = {
        process.container.pod_uid
        for process in lost.users
        if process.container is not None and process.container.pod_uid is not None
    }
    of_pod = [
        view.container
        for view in look.views
        if view.container.directory is not None and view.container.pod_uid in pods
    ]
    if len(of_pod) == 1:
        return of_pod[0], entries
    return (entries[0] if entries else None), entries


def _lost(lost: _Lost, container: Container) -> Finding:
    users = lost.users
    several = len(users) > 1
    pids = pids_text([process.pid for process in users])
    who = (
        f"{pids} of the host{command_of(users[0])} {'map' if several else 'maps'}"
        f" {shown(lost.mapped.path_in_namespace, _PATH_LIMIT)}"
    )
    inside = None if several else users[0].ns_pids[-1]
    count = count_text(len(users), "process")
    if lost.mapped.deleted:
        return finding(
            FindingKind.REGION_UNLINKED,
            container,
            f"{count} {'use' if several else 'uses'} a region that was deleted",
            f"{who}, which /proc shows as deleted",
            pid=inside,
        )
    size = "too short" if lost.size_bytes is None else f"{lost.size_bytes} bytes long"
    return finding(
        FindingKind.REGION_TRUNCATED,
        container,
        f"the region of {count} was cut short",
        f"{who}, which is {size} now",
        pid=inside,
    )


def unreadable_roots(look: Examination) -> Iterator[Finding]:
    """Directories of containers that cannot be listed."""
    for root, error in look.node.root_errors.items():
        yield finding(
            FindingKind.ROOT_UNREADABLE,
            None,
            f"{shown(root)} cannot be listed",
            printable(error.strerror or str(error), limit=_MESSAGE_LIMIT),
            cause=printable(root, limit=_MESSAGE_LIMIT),
        )


# ---- More than one file, more than one libvgpu --------------------------------------------------


def other_cache_files(look: Examination) -> Iterator[Finding]:
    """Directories with more than one region."""
    for view in look.views:
        container = view.container
        if not container.other_files or container.directory is None:
            continue
        names = ", ".join(shown(name, 32) for name in container.other_files)
        evidence = f"beside the one that counts there is {names}"
        in_use = False
        for name in container.other_files:
            users = _users_of(look, f"{container.directory}/{name}")
            if users:
                in_use = True
                evidence += (
                    f"; {pids_text([each.pid for each in users])} of the host"
                    f" {'map' if len(users) > 1 else 'maps'} {shown(name, 32)}"
                )
        yield finding(
            FindingKind.SEVERAL_CACHE_FILES,
            container,
            f"{len(container.other_files) + 1} .cache files in one directory",
            evidence,
            severity=Severity.WARNING if in_use else Severity.INFO,
            cause="in_use" if in_use else "unused",
        )


def _users_of(look: Examination, path: str) -> tuple[HostProcess, ...]:
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    if not stat.S_ISREG(status.st_mode):
        return ()
    return look.node.processes.mappers(status.st_dev, status.st_ino, writable=True)


def mixed_layouts(look: Examination, used: UsedRegion) -> Iterator[Finding]:
    """Regions that several generations of libvgpu work on."""
    layout = used.snapshot.layout
    users = {process.pid for process in used.users}
    whole = _WHOLE[layout]
    processes = look.node.processes
    for process, mapping in processes.mappings(processes.identity(used.region)):
        if process.pid not in users or not mapping.length_bytes % whole:
            continue
        other = next((each for each in LAYOUTS if _WHOLE[each] == mapping.length_bytes), None)
        if other is not None:
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
    size_bytes = _file_size(used)
    if layout is Layout.V1_1 and size_bytes >= Layout.V1_1_POSTINIT.size_bytes:
        yield finding(
            FindingKind.LAYOUT_MIXED,
            used.container,
            "a later libvgpu has opened a region of layout 1.1",
            f"the file is {size_bytes} bytes long; layout 1.1 needs {layout.size_bytes + 1}, and"
            " libvgpu 2.8.1 makes it longer when it opens it",
            cause="file_size",
        )


def _file_size(used: UsedRegion) -> int:
    try:
        # Of a region outside the roots this is the length of a link.
        return os.lstat(used.region.path).st_size
    except OSError:
        return 0
