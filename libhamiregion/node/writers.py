"""HAMi's monitor on a node: a competing controller of launch marks and SM switches."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.text import printable

from .process_reader import is_monitor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .containers import Container
    from .node import Node
    from .procfs import FileIdentity

_COMMAND_LIMIT = 60

Evidence: TypeAlias = Literal["name", "mapping", "lock", "hidden"]


@attrs.frozen
class CompetingController:
    """Another process that writes launch marks and SM switches, or may.

    Attributes:
        evidence: ``"name"``: a program of HAMi's monitor's name maps a region for writing;
            ``"mapping"``: a process outside the containers maps regions of several pods for
            writing; ``"lock"``: another agent of this library; ``"hidden"``: none was found, but
            not all processes of the node can be seen.
        pid: The process in the /proc that was read; None if it is not known.
        message: The evidence as a sentence.
    """

    evidence: Evidence
    pid: int | None
    message: str


def find_monitors(node: Node) -> tuple[CompetingController, ...]:
    """Find programs that do what HAMi's monitor does, by the node's last refresh.

    A monitor maps every region of the roots for writing: a process that maps regions of two pods is
    one, whatever its name; one with the monitor's name is one with a single region. Processes of
    pods that have a region themselves never count, and a container cannot map another pod's region:
    no tenant can stop an agent.

    Args:
        node: The node.
    """
    table, containers = node.processes, node.containers
    tenants = {each.pod_uid for each in containers} - {None}
    candidates = []
    for entry in table.view.entries.values():
        process = entry.process
        if process is None or not entry.uses or process.pod_uid in tenants:
            continue
        files = {user.mapping.identity for user in entry.uses if user.mapping.writable}
        if len(files) > 1 or (files and is_monitor(process)):
            candidates.append((process, files))
    regions = region_files(node, containers) if candidates else {}
    found = []
    for process, files in candidates:
        has_name = is_monitor(process)
        mapped = [regions[each] for each in files & regions.keys()]
        pods = {each.pod_uid for each in mapped if each.directory is not None}
        if process.pid == table.visibility.own_pid or not (len(pods) > 1 or (pods and has_name)):
            continue
        who = f"process {process.pid} ({printable(process.command, _COMMAND_LIMIT)})"
        if has_name:
            message = f"HAMi's monitor runs: {who}"
            found.append(CompetingController("name", process.pid, message))
        else:
            message = f"{who} maps regions of {len(pods)} pods for writing, as HAMi's monitor does"
            found.append(CompetingController("mapping", process.pid, message))
    return tuple(found)


def region_files(node: Node, containers: Iterable[Container]) -> dict[FileIdentity, Container]:
    """Containers by the identity of their region's file; those with an open region."""
    found = {}
    for each in containers:
        with contextlib.suppress(RegionError):
            if each.region is not None:
                found[node.processes.identity(each.region)] = each
    return found
