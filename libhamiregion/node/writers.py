"""HAMi's monitor on a node: a competing controller of launch marks and SM switches."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.text import printable

from .process_reader import is_monitor

if TYPE_CHECKING:
    from .node import Node
    from .process_reader import HostProcess

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
    mapped: defaultdict[HostProcess, set[str | None]] = defaultdict(set)
    for container in containers:
        if container.region is None or container.directory is None:
            continue
        with contextlib.suppress(RegionError):
            for process in table.mappers(table.identity(container.region), writable=True):
                mapped[process].add(container.pod_uid)
    found = []
    for process, pods in mapped.items():
        has_name = is_monitor(process)
        is_known = process.pod_uid in tenants or process.pid == table.visibility.own_pid
        if is_known or not (has_name or len(pods) > 1):
            continue
        who = f"process {process.pid} ({printable(process.command, _COMMAND_LIMIT)})"
        if has_name:
            message = f"HAMi's monitor runs: {who}"
            found.append(CompetingController("name", process.pid, message))
        else:
            message = f"{who} maps regions of {len(pods)} pods for writing, as HAMi's monitor does"
            found.append(CompetingController("mapping", process.pid, message))
    return tuple(found)
