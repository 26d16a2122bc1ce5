"""Checks: files and directories, and who maps what."""

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
from libhamiregion.node.outside import mapped_regions
from libhamiregion.text import printable

from .findings import FindingKind, Severity, finding
from .scene import command_of, count_words, is_monitor, pid_words, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.containers import Container, MissingRegion
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.outside import MappedRegion
    from libhamiregion.node.views import ContainerView

    from .findings import Finding
    from .scene import Scene, Used

_PAGE = resource.getpagesize()
# What maps shows for a layout that is mapped as a whole.
_WHOLE = {layout: -(-layout.size_bytes // _PAGE) * _PAGE for layout in LAYOUTS}
_MESSAGE_LIMIT = 400
_MISSING_KINDS = {
    MissingReason.NOT_READY: FindingKind.REGION_NOT_READY,
    MissingReason.NOT_A_REGION: FindingKind.NOT_A_REGION,
    MissingReason.UNKNOWN_LAYOUT: FindingKind.UNKNOWN_LAYOUT,
    MissingReason.NO_PERMISSION: FindingKind.REGION_NO_PERMISSION,
    MissingReason.STALE: FindingKind.REGION_STALE,
    MissingReason.FAILED: FindingKind.REGION_FAILED,
}
_CUT_SHORT = "it was cut short"
# A process can map any number of files that look like regions.
_LOST_PER_CONTAINER = 16
_USERS_LISTED = 8


# ---- Containers whose region cannot be read -----------------------------------------------------


def missing_regions(scene: Scene) -> Iterator[Finding]:
    """Containers without a region, and files that are gone from under their processes."""
    explained: set[int] = set()
    for lost in _lost_mappings(scene):
        container, entries = _whose(scene, lost)
        explained.update(id(each) for each in entries)
        # Without one it is of a region that this node does not look at.
        if lost.users and container is not None:
            yield _lost(lost, container)
    for view in scene.views:
        container = view.container
        missing = container.missing
        if view.error is not None:
            missing = missing_for(view.error)
        if missing is None or id(container) in explained or isinstance(view.error, RegionClosed):
            continue
        kind = _MISSING_KINDS.get(missing.reason)
        if kind is not None:
            yield _missing(kind, container, missing)


def _missing(kind: FindingKind, container: Container, missing: MissingRegion) -> Finding:
    file = "" if container.region_path is None else PurePath(container.region_path).name
    return finding(
        kind,
        container,
        f"no region: {missing.reason.value.replace('_', ' ')}{f' ({shown(file)})' if file else ''}",
        printable(missing.message, limit=_MESSAGE_LIMIT),
        cause=missing.reason.value,
    )


@attrs.frozen
class _Lost:
    """A region that processes map and whose file is not theirs any more.

    Attributes:
        mapped: What they map.
        users: Those of them that use it.
        container: Whose file it is, where that is known.
        size_bytes: How long the file is now; None if it was deleted, or that is not known.
    """

    mapped: MappedRegion
    users: tuple[HostProcess, ...]
    container: Container | None
    size_bytes: int | None


def _lost_mappings(scene: Scene) -> list[_Lost]:
    processes = scene.node.processes
    known = set()
    for used in scene.used:
        with contextlib.suppress(RegionClosed):
            known.add(processes.identity(used.region))
    short = _short_files(scene)
    # A monitor goes on mapping the region of a container that has gone.
    bystanders = {process.pid for used in scene.used for process in used.processes.onlookers}
    lost = []
    tried: Counter[str] = Counter()
    for mapped in mapped_regions(processes, without=known):
        tried[mapped.payer] += 1
        if tried[mapped.payer] > _LOST_PER_CONTAINER:
            continue
        container, size = short.get(_file_of(mapped), (None, None))
        if mapped.deleted or container is not None or _is_short_outside(scene, mapped):
            users = tuple(
                process
                for process in processes.mappers(mapped.device, mapped.inode, writable=True)
                if process.pid not in bystanders and not is_monitor(process)
            )
            lost.append(_Lost(mapped, users, container, size))
    return lost


def _file_of(mapped: MappedRegion) -> tuple[int, str]:
    # Not the device: on overlay and btrfs maps and stat call it by different numbers.
    return mapped.inode, PurePath(mapped.path_in_namespace).name


def _is_cut_short(view: ContainerView) -> bool:
    missing = view.container.missing if view.error is None else missing_for(view.error)
    if missing is None:
        return False
    return missing.reason in {MissingReason.NOT_READY, MissingReason.STALE} or (
        missing.reason is MissingReason.UNKNOWN_LAYOUT and _CUT_SHORT in missing.message
    )


def _short_files(scene: Scene) -> dict[tuple[int, str], tuple[Container, int]]:
    """The files of containers that are too short to be a region, with their sizes."""
    found = {}
    for view in scene.views:
        path = view.container.region_path
        if view.container.directory is None or path is None or not _is_cut_short(view):
            continue
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            name = PurePath(path).name
            found[status.st_ino, name] = (view.container, status.st_size)
    return found


def _is_short_outside(scene: Scene, mapped: MappedRegion) -> bool:
    return any(
        view.container.directory is None
        and view.container.pids == mapped.pids
        and _is_cut_short(view)
        and view.container.region is None
        for view in scene.views
    )


def _whose(scene: Scene, lost: _Lost) -> tuple[Container | None, list[Container]]:
    """The container that a lost mapping is of, and all entries of the node that it explains."""
    entries = [
        view.container
        for view in scene.views
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
        for view in scene.views
        if view.container.directory is not None and view.container.pod_uid in pods
    ]
    if len(of_pod) == 1:
        return of_pod[0], entries
    return (entries[0] if entries else None), entries


def _lost(lost: _Lost, container: Container) -> Finding:
    users = lost.users
    several = len(users) > 1
    pids = pid_words([process.pid for process in users])
    who = (
        f"{pids} of the host{command_of(users[0])} {'map' if several else 'maps'}"
        f" {shown(lost.mapped.path_in_namespace, _MESSAGE_LIMIT)}"
    )
    inside = None if several else users[0].ns_pids[-1]
    count = count_words(len(users), "process")
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


def unreadable_roots(scene: Scene) -> Iterator[Finding]:
    """Directories of containers that cannot be listed."""
    for root, error in scene.node.root_errors.items():
        yield finding(
            FindingKind.ROOT_UNREADABLE,
            None,
            f"{shown(root)} cannot be listed",
            printable(error.strerror or str(error), limit=_MESSAGE_LIMIT),
            cause=printable(root, limit=_MESSAGE_LIMIT),
        )


# ---- The file and its directory -----------------------------------------------------------------


def other_cache_files(scene: Scene) -> Iterator[Finding]:
    """Directories with more than one region."""
    for view in scene.views:
        container = view.container
        if not container.other_files or container.directory is None:
            continue
        in_use = [
            (name, processes)
            for name in container.other_files
            if (processes := _users_of(scene, f"{container.directory}/{name}"))
        ]
        names = ", ".join(shown(name, 64) for name in container.other_files)
        evidence = f"beside the one that counts there is {names}"
        for name, processes in in_use:
            evidence += (
                f"; {pid_words([each.pid for each in processes])} of the host"
                f" {'map' if len(processes) > 1 else 'maps'} {shown(name, 64)}"
            )
        yield finding(
            FindingKind.SEVERAL_CACHE_FILES,
            container,
            f"{len(container.other_files) + 1} .cache files in one directory",
            evidence,
            severity=Severity.WARNING if in_use else Severity.INFO,
            cause="in_use" if in_use else "unused",
        )


def _users_of(scene: Scene, path: str) -> tuple[HostProcess, ...]:
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    if not stat.S_ISREG(status.st_mode):
        return ()
    return scene.node.processes.mappers(status.st_dev, status.st_ino, writable=True)


@attrs.frozen
class _Insiders:
    """The users as whom processes run that a container's region is for.

    Attributes:
        users: uid -> name, of those that can be seen.
        proved: Whether the processes are the container's; else they are its pod's.
    """

    users: dict[int, str]
    proved: bool = True


@attrs.frozen
class _Census:
    """Who runs where on the node."""

    #: Container id -> uid -> name.
    by_container: dict[str, dict[int, str]]
    #: Pod UID -> ids of its containers, without its sandbox.
    by_pod: dict[str, set[str]]
    #: Pod UID -> how many directories it has.
    directories: Counter[str | None]
    #: Ids of the containers whose processes use some region.
    placed: set[str]


def permissions(scene: Scene) -> Iterator[Finding]:
    """Files and directories that keep processes of their own container out."""
    users = {id(used.container): used.users for used in scene.used}
    census = _census(scene)
    for view in scene.views:
        container = view.container
        if container.directory is None:
            continue
        inside = _insiders(container, users.get(id(container), ()), census)
        wanted_of_directory = stat.S_IXOTH
        if container.region is not None and container.region_path is not None:
            yield from _mode(
                container, container.region_path, stat.S_IROTH | stat.S_IWOTH, inside, "file"
            )
        elif container.missing is not None and container.missing.reason is MissingReason.NO_FILE:
            wanted_of_directory |= stat.S_IWOTH
        yield from _mode(container, container.directory, wanted_of_directory, inside, "directory")


def _census(scene: Scene) -> _Census:
    by_container: dict[str, dict[int, str]] = {}
    by_pod: dict[str, set[str]] = {}
    for process in scene.node.processes:
        if process.container is None:
            continue
        by_container.setdefault(process.container.id, {})[process.uid] = process.user
        pod_uid = process.container.pod_uid
        if pod_uid is not None and not _is_sandbox(process):
            by_pod.setdefault(pod_uid, set()).add(process.container.id)
    return _Census(
        by_container,
        by_pod,
        Counter(
            view.container.pod_uid for view in scene.views if view.container.directory is not None
        ),
        {
            process.container.id
            for used in scene.used
            for process in used.users
            if process.container is not None
        },
    )


def _is_sandbox(process: HostProcess) -> bool:
    """Whether a process is called as the one that keeps a pod's namespaces, as a user 65535."""
    return process.command.partition(" ")[0].rpartition("/")[2] == "pause"


def _insiders(
    container: Container, processes: tuple[HostProcess, ...], census: _Census
) -> _Insiders:
    found = {process.uid: process.user for process in processes}
    ids = {process.container.id for process in processes if process.container is not None}
    proved = True
    if not processes and container.pod_uid is not None:
        # Who is kept out maps nothing: only its cgroup tells of it.
        ids = census.by_pod.get(container.pod_uid, set()) - census.placed
        proved = not ids or (census.directories[container.pod_uid] == 1 and len(ids) == 1)
    for each in ids:
        found.update(census.by_container.get(each, {}))
    return _Insiders(found, proved)


def _mode(
    container: Container, path: str, wanted: int, inside: _Insiders, what: str
) -> Iterator[Finding]:
    try:
        status = os.lstat(path)
    except OSError:
        return
    if status.st_mode & wanted == wanted:
        return
    by_group = status.st_mode & wanted << 3 == wanted << 3
    by_owner = status.st_mode & wanted << 6 == wanted << 6
    kept_out: list[str] = []
    perhaps: list[str] = []
    for uid, name in inside.users.items():
        who = f"{printable(name, limit=32)} ({uid})"
        # Who may everything is not kept out.
        if uid == 0 or (uid == status.st_uid and by_owner):
            continue
        # Who is in the file's group is not known. The owner's own bits count for the owner.
        (perhaps if by_group and uid != status.st_uid else kept_out).append(who)
    certain = bool(kept_out) and inside.proved
    concerned = count_words(len(kept_out) or len(perhaps), "user")
    outcome = ""
    if kept_out or perhaps:
        outcome = f", which {'keeps' if certain else 'may keep'} {concerned} out"
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    who_runs = _who_runs(inside, kept_out, perhaps)
    yield finding(
        FindingKind.PERMISSIONS,
        container,
        f"the {what} has mode {mode} and belongs to user {status.st_uid}{outcome}",
        f"{shown(PurePath(path).name)} has mode {mode}; {who_runs}",
        severity=Severity.ERROR if certain else Severity.WARNING,
        cause=what,
    )


def _who_runs(inside: _Insiders, kept_out: list[str], perhaps: list[str]) -> str:
    whole = "container" if inside.proved else "pod"
    if not inside.users:
        return f"no process of the {whole} is seen now"
    if not (kept_out or perhaps):
        return f"no process of the {whole} that can be seen is another user's now"
    parts = []
    if kept_out:
        parts.append(f"processes of the {whole} run as {_listed(kept_out)}")
    if perhaps:
        parts.append(
            f"{'others' if kept_out else f'processes of the {whole}'} run as {_listed(perhaps)},"
            " and whether they are in its group, which may use it, is not known"
        )
    if not inside.proved:
        parts.append("which of the pod's containers this one is, is not known")
    return "; ".join(parts)


def _listed(users: list[str]) -> str:
    rest = len(users) - _USERS_LISTED
    return ", ".join(users[:_USERS_LISTED]) + (f" and {rest} more" if rest > 0 else "")


# ---- One region, two generations of libvgpu -----------------------------------------------------


def mixed_layouts(scene: Scene, used: Used) -> Iterator[Finding]:
    """Regions that several generations of libvgpu work on."""
    layout = used.snapshot.layout
    users = {process.pid: process for process in used.users}
    whole = _WHOLE[layout]
    processes = scene.node.processes
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
                f" {process.pid}{command_of(process)} maps"
                f" {mapping.length_bytes} of it, as layout {other.value} is long",
                pid=process.ns_pids[-1],
                cause="mapped_length",
            )
            return
    if layout is Layout.V1_1 and _file_size(used) >= Layout.V1_1_POSTINIT.size_bytes:
        yield finding(
            FindingKind.LAYOUT_MIXED,
            used.container,
            "a later libvgpu has opened a region of layout 1.1",
            f"the file is {_file_size(used)} bytes long; layout 1.1 needs"
            f" {layout.size_bytes + 1}, and libvgpu 2.8.1 makes it longer when it opens it",
            cause="file_size",
        )
        return
    if scene.thorough:
        yield from _several_libraries(scene, used, users)


def _several_libraries(
    scene: Scene, used: Used, users: dict[int, HostProcess]
) -> Iterator[Finding]:
    loaded: dict[str, list[int]] = {}
    for process in users.values():
        for library in scene.memory.facts.libraries(process) or ():
            loaded.setdefault(library, []).append(process.ns_pids[-1])
    if len(loaded) < 2:
        return
    groups = "; ".join(
        f"{pid_words(pids)} one (inode {library.rpartition(':')[2]})"
        for library, pids in list(loaded.items())[:4]
    )
    yield finding(
        FindingKind.LAYOUT_MIXED,
        used.container,
        f"{len(loaded)} different files libvgpu.so work on one region",
        f"by their maps: {groups}",
        severity=Severity.WARNING,
        consequence=(
            "if they are of different generations they read and overwrite each other's limits,"
            " locks and figures"
        ),
        cause="library",
    )


def _file_size(used: Used) -> int:
    try:
        return os.lstat(used.region.path).st_size
    except OSError:
        return 0
