"""Evidence about regions, gathered by the workers: nothing here can wait for a process for long."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from libhamiregion.errors import RegionError
from libhamiregion.evidence import ask_process

from . import procfs
from .processes import ProcessTable
from .slots import other_pod_processes
from .workers import TIMEOUT_S, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libhamiregion.evidence import Evidence, ProcessAnswer
    from libhamiregion.observation.containers import Container
    from libhamiregion.observation.processes import Entry, ProcessView
    from libhamiregion.region import Region

#: All questions about suspects take so long in one observation, or one repair.
EVIDENCE_S = 2.0


def gather(
    table: ProcessTable,
    regions: Mapping[Region, Container | None],
    *,
    until_s: float | None = None,
    only_listed: bool = False,
    everyone: bool = False,
) -> dict[Region, Evidence]:
    """Gather evidence about regions: note their locks and slots, list /proc, ask processes.

    A process that keeps its worker waiting is not known, and so proves nothing dead. What there was
    no time for is `cut_short` in the evidence.

    Args:
        table: The processes; listed again.
        regions: Open regions, each with its container if that is known: processes of other pods
            are left out then.
        until_s: No question begins after it, on the monotonic clock; None means 2 s after /proc was
            listed, which takes another 2 s at most.
        everyone: Ask every process: a start-up semaphore has no owner, and any process may hold it.
        only_listed: Leave the table's maps as they are; for a table that has no other use.

    Returns:
        The evidence of each region that could be read.

    Raises:
        OSError: /proc cannot be listed.
    """
    noted: dict[Region, Evidence] = {}
    for region in regions:
        with contextlib.suppress(RegionError):
            noted[region] = region.evidence()
    if until_s is not None and time.monotonic() >= until_s:
        for evidence in noted.values():
            evidence.add((), found_all=False, cut_short=True)
        return noted
    if not noted:
        return {}
    pids = {each: None if everyone else found.pids for each, found in noted.items()}
    # One of another pod may have mapped the region since its maps were read: that is read again.
    strangers = {pid for each in noted for pid in _strangers(table.view, regions[each], pids[each])}
    table.refresh(strangers, only_wanted=only_listed)
    view = table.view
    until_s = time.monotonic() + EVIDENCE_S if until_s is None else until_s
    wanted: dict[Region, list[int]] = {}
    asked: defaultdict[int, list[Region]] = defaultdict(list)
    for region in noted:
        left_out = strangers & _strangers(view, regions[region], pids[region])
        wanted[region] = [pid for pid in _candidates(view, pids[region]) if pid not in left_out]
        for pid in wanted[region]:
            asked[pid].append(region)
    answers = _ask(table, view, asked, noted, until_s)
    for region, evidence in noted.items():
        found = [answers[pid][region] for pid in wanted[region] if pid in answers]
        is_late = len(found) < len(wanted[region])
        with contextlib.suppress(RegionError):
            evidence.add(
                found,
                found_all=not is_late and _sees_all(view, evidence, found),
                is_all=pids[region] is None and not is_late,
                cut_short=is_late,
            )
    return noted


def _candidates(view: ProcessView, pids: frozenset[int] | None) -> Iterator[int]:
    """The processes with one of these pids in any of their namespaces; None means all."""
    for pid, entry in view.entries.items():
        process = entry.process
        if process is not None and (pids is None or not pids.isdisjoint(process.ns_pids)):
            yield pid


def _strangers(
    view: ProcessView, container: Container | None, pids: frozenset[int] | None
) -> set[int]:
    """Processes with one of these pids that are proved to be of other pods; None means all."""
    if container is None:
        return set()
    asked = view.by_ns_pid if pids is None else pids
    return {pid for pid, _ in other_pod_processes(view, container, asked)}


def _ask(
    table: ProcessTable,
    view: ProcessView,
    asked: Mapping[int, Iterable[Region]],
    noted: Mapping[Region, Evidence],
    until_s: float,
) -> dict[int, dict[Region, ProcessAnswer]]:
    calls: dict[Call, tuple[int, list[Region]]] = {}
    spent_s = table.spent_s
    for gone in spent_s.keys() - {each.budget_key for each in view.entries.values()}:
        del spent_s[gone]
    # Containers that have answered slowly come last, so that they hide only their own regions. A
    # region needs the answers of all its processes: those of a container follow each other.
    for entry in sorted(
        (view.entries[pid] for pid in asked),
        key=lambda each: (spent_s[each.budget_key], each.budget_key),
    ):
        pid, regions = entry.identity[0], list(asked[entry.identity[0]])
        files = [noted[region].file for region in regions]
        work = partial(_question, table, entry, files)
        calls[Call(entry.budget_key, entry.identity, work)] = pid, regions
    found = {}
    for call, made in table.workers.call_all(list(calls), until_s):
        pid, regions = calls[call]
        if made.exception() is None:
            found[pid] = dict(zip(regions, made.result(), strict=True))
    return found


def _question(table: ProcessTable, entry: Entry, files: list[Any]) -> tuple[ProcessAnswer, ...]:
    """Ask one process, in a thread that it may block."""
    key, began_s = entry.budget_key, time.monotonic()
    # Taken back with an answer.
    table.spent_s[key] += TIMEOUT_S
    directory = os.open(table.proc, procfs.DIRECTORY)
    try:
        return ask_process(directory, entry.identity[0], files)
    finally:
        os.close(directory)
        table.spent_s[key] += time.monotonic() - began_s - TIMEOUT_S


def _sees_all(view: ProcessView, evidence: Evidence, found: list[ProcessAnswer]) -> bool:
    """Whether every process of the region is in this /proc."""
    visibility = view.visibility
    if visibility.sees_host:
        return visibility.sees_all_pids
    # Another namespace than the first proves nothing unless the region's processes live in it.
    return not visibility.unreadable and any(
        answer.maps_file
        and answer.has_libvgpu
        and len(answer.pids) == 1
        and (evidence.pids is None or answer.pids[0] in evidence.pids)
        for answer in found
    )


def gather_alone(region: Region, proc: str, *, everyone: bool = False) -> Evidence:
    """Gather evidence about one region, without a node.

    Args:
        region: The region.
        proc: The root of /proc.
        everyone: As of `gather`.

    Raises:
        RegionError: The region cannot be read.
        OSError: /proc cannot be listed.
    """
    found = gather(ProcessTable(proc), {region: None}, only_listed=True, everyone=everyone)
    return found.get(region) or region.evidence()
