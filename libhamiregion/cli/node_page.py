"""An answer about a node: what every such answer says of gaps, directories and the driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion import RegionError
from libhamiregion.node import NvmlState, driver_gap
from libhamiregion.node.outside import mapped_regions

from .format import Names, names_of, some
from .output import Page
from .tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, Node, Observation, Observer, Selector
    from libhamiregion.node.observation import GapKind

    from .options import NodeChoice
    from .tables import Block

_GAPS_SHOWN = 3
_INCOMPLETE = (
    "not all of the node's processes can be seen from here, so states may be unknown; run as root"
    " in the host's pid namespace"
)


@attrs.frozen(kw_only=True)
class GapRow(Names):
    """Something that could not be looked at; what it hides is unknown.

    Attributes:
        kind: ``driver``, ``root`` or ``processes``.
        reason: Why, as one sentence.
        count: How many processes were not looked at; 1 for the driver and for a root.
    """

    kind: GapKind
    reason: str
    count: int


def node_page(
    schema: str,
    observation: Observation,
    node: Node,
    node_choice: NodeChoice,
    data: dict[str, Any],
    blocks: Sequence[Block],
    notes: Iterable[str] = (),
    *,
    selector: Selector,
    found: bool,
) -> Page:
    """Make a page about a node, with gaps and notes.

    The page is a failure if no directory of containers can be listed, or no container is selected.

    Args:
        schema: Name and version of the answer.
        observation: What was observed.
        node: The node.
        node_choice: What the node was chosen by.
        data: The answer for --json, without what all pages of a node have.
        blocks: The answer for people.
        notes: What else to know.
        selector: What was selected.
        found: Whether the answer has something that was selected.
    """
    warnings, gaps = node_warnings(node), _gap_rows(node, observation)
    seen = {"complete": node.processes.is_complete, "warnings": warnings, "gaps": gaps}
    is_empty = not any(isinstance(block, Table) and block.records for block in blocks)
    failure = node.root_problem
    if failure is not None and not node_choice.roots:
        failure += "; name it with --root, or look for regions elsewhere with --outside"
    if failure is None and not found:
        failure = selection_failure(node, selector)
    return Page(
        schema,
        {"taken_at_ns": observation.regions_read_at_ns, **seen, **data},
        # A heading without rows before an error reads as an answer.
        () if failure is not None and is_empty else blocks,
        notes=(*_gap_notes(node, gaps), *_outside_notes(node, node_choice), *notes),
        warnings=warnings,
        failure=failure,
    )


def driver_answer(
    observer: Observer, observation: Observation
) -> tuple[dict[str, Any] | None, str | None]:
    """Whether the driver answered, for --json, and why there are no figures of it.

    None and None if it was not asked.
    """
    if not observer.asks_driver:
        return None, None
    gaps = (gap.reason for gap in observation.gaps if gap.kind == "driver")
    message = next(gaps, None) or driver_gap(observation.processes, observation.sample)
    sample = observation.sample
    state, version = NvmlState.TIMEOUT, None
    if sample is not None:
        state, version = sample.state, sample.driver_version
    return {"state": state, "message": message, "version": version}, message


def node_warnings(node: Node) -> tuple[str, ...]:
    """Say which directories could not be listed, and why."""
    return tuple(
        f"{root}: {error.strerror or error}" for root, error in sorted(node.root_errors.items())
    )


def root_failure(node: Node, roots: tuple[str, ...]) -> str | None:
    """Say which directories were given, if none of them can be listed."""
    return node.root_problem if roots else None


def selection_failure(node: Node, selector: Selector) -> str | None:
    """Say that no container is selected, and list what there is; None if one is."""
    chosen = [each for each in node.containers if selector.matches(each)]
    if not chosen and any(attrs.astuple(selector)):
        names = sorted({Names(**names_of(node, each)).words for each in node.containers})
        return f"no container is selected; there is {some(names)}"
    devices = [device for each in chosen for device in _devices_of(each)]
    if selector.device is None or not chosen or any(map(selector.matches_device, devices)):
        return None
    there_is = dict.fromkeys(f"{each.index} ({each.uuid or 'no uuid'})" for each in devices)
    return f"no device {selector.device} in the containers selected; there is {some(there_is)}"


def _devices_of(container: Container) -> tuple[DeviceUsage, ...]:
    with contextlib.suppress(RegionError):
        if container.region is not None:
            return container.region.snapshot().devices
    return ()


def _gap_rows(node: Node, observation: Observation) -> list[GapRow]:
    """What could not be looked at, with the names of the container that it is about."""
    rows = []
    for gap in observation.gaps:
        names: dict[str, Any] = {}
        if gap.container is not None:
            names = names_of(node, gap.container)
        elif gap.container_id is not None:
            names = {"pod_uid": gap.container_id.pod_uid, "container_id": gap.container_id.id}
        # What an observation has left out because of its size, the verbs look at by themselves.
        if gap.kind != "slots":
            rows.append(GapRow(**names, kind=gap.kind, reason=gap.reason, count=gap.count))
    return rows


def _gap_notes(node: Node, gaps: Sequence[GapRow]) -> tuple[str, ...]:
    """Say which processes this user cannot see from here."""
    is_complete = node.processes.is_complete
    # If no process may be read, one sentence says so.
    reasons = [
        f"{each.words}: {each.reason}" if each.path_words else each.reason
        for each in gaps
        if each.kind == "processes" and (is_complete or "may not be read" not in each.reason)
    ]
    more = len(reasons) - _GAPS_SHOWN
    further = (f"{more} more containers have processes that are not known",) if more > 0 else ()
    return (*(() if is_complete else (_INCOMPLETE,)), *reasons[:_GAPS_SHOWN], *further)


def _outside_notes(node: Node, node_choice: NodeChoice) -> tuple[str, ...]:
    """Say that processes map regions elsewhere, if they were not asked for."""
    if node_choice.outside:
        return ()
    known = set()
    for container in node.containers:
        if container.region is not None:
            with contextlib.suppress(RegionError):
                known.add(node.processes.identity(container.region))
    # What is left over of a container that has gone is mapped by monitors for a while.
    elsewhere = mapped_regions(node.processes, without=known)
    if any(each.exclusive or not each.deleted for each in elsewhere):
        return ("processes map regions elsewhere, too; --outside looks there",)
    return ()
