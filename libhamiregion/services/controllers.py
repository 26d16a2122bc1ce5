"""HAMi's monitor on a node: a competing controller of launch marks and SM switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from libhamiregion.observation.containers import MADE_BY_CONTAINER
from libhamiregion.observation.processes import is_monitor
from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.processes import FileIdentity, HostProcess, ProcessView

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


def find_monitors(
    view: ProcessView, containers: Sequence[Container]
) -> tuple[CompetingController, ...]:
    """Find programs that do what HAMi's monitor does.

    A monitor maps every region of the roots for writing: a process that maps regions of two pods is
    one, whatever its name; one with the monitor's name is one with a single region. Processes of
    pods that have a region, or hold a claim that has one, never count, and a container cannot map
    another pod's region: no tenant can stop an agent. What may be the process's own region proves
    nothing: that of a claim whose holders are not known and, if containers can make directories in
    the root, one that no process of its pod maps.

    Args:
        view: The node's processes.
        containers: Its containers.
    """
    claims = [each.claim for each in containers if each.claim_uid is not None]
    holders = (each.pod_uids for each in claims if each is not None)
    tenants = {each.pod_uid for each in containers}.union(*holders) - {None}
    candidates = [each for each in view.possible_monitors if each[0].pod_uid not in tenants]
    regions = region_files(containers) if candidates else {}
    # Here containers make their own directories, in any pod's name.
    shared = any((each.region_path or "").endswith(MADE_BY_CONTAINER) for each in regions.values())
    found = []
    for process, files in candidates:
        owners = {
            regions[file].pod_uid or regions[file].claim_uid
            for file in files & regions.keys()
            if _is_of_others(view, process, file, regions[file], shared)
        }
        has_name = is_monitor(process)
        is_writer = len(owners) > 1 or (owners and has_name)
        if process.pid == view.visibility.own_pid or not is_writer:
            continue
        who = f"process {process.pid} ({printable(process.command, _COMMAND_LIMIT)})"
        if has_name:
            message = f"HAMi's monitor runs: {who}"
            found.append(CompetingController("name", process.pid, message))
        else:
            mapped = f"maps regions of {len(owners)} pods for writing, as HAMi's monitor does"
            found.append(CompetingController("mapping", process.pid, f"{who} {mapped}"))
    return tuple(found)


def _is_of_others(
    view: ProcessView, process: HostProcess, file: FileIdentity, of: Container, shared: bool
) -> bool:
    """Whether a region below a root is proved to be none that a process's own pod was given."""
    if of.directory is None or process.pod_uid is None:
        return of.directory is not None
    if of.claim_uid is not None:
        return of.claim is not None
    return not shared or any(user.pod_uid == of.pod_uid for user in view.mappers(file))


def region_files(containers: Iterable[Container]) -> dict[FileIdentity, Container]:
    """Containers by the identity of their region's file."""
    return {each.identity: each for each in containers if each.identity is not None}
