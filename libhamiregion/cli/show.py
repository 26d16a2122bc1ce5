"""`hamiregion show`: one region, once or again and again."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import attrs

from libhamiregion import (
    RegionCorrupt,
    RegionNotFound,
    RegionNotReady,
    RegionSnapshot,
    RegionStale,
    open_region,
    own_region,
)
from libhamiregion.observation.figures import (
    percents_in_order,
    with_percents,
    without_impossible,
)

from . import options
from .failures import DONE
from .format import age_words, fill_ratio, is_used, lock_word, memory_bar, sm_bar, status_word
from .help import verb
from .output import Answer, as_plain, program
from .tables import CRITICAL, DIM, GOOD, WARN, WIDE, Bar, Block, Column, Facts, Lines, Page, Table
from .targets import Place, Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from libhamiregion import DeviceUsage, ProcessDeviceUsage, ProcessUsage, Region
    from libhamiregion.node import HostProcess, Observation, ProcessTable, ProcessView


@verb("hamiregion show -n research bert-0", "hamiregion show usage.cache --watch 1")
@target_options(reads=True)
@options.from_option
@options.watch_options
def show(targets: Targets, document: str | None, answer: Answer) -> int:
    """Show the devices, limits and processes of a container, or of a region's FILE."""
    if document is not None:
        # A region's file needs none of a node's verbs, and is shown sooner without them.
        from .views import replay

        _show_again(targets, replay(document, "layout").observation, answer)
        return DONE

    def act(region: Region, place: Place) -> None:
        opened = functools.partial(open_region, region.path, layout=targets.layout)
        _show(opened, answer, place, targets.node_choice.proc)

    return targets.for_each(act, only_one=answer.interval_s is not None)


def _show_again(targets: Targets, observation: Observation, answer: Answer) -> None:
    """Show regions of a document."""
    from libhamiregion.observation.evidence import NodeEvidence
    from libhamiregion.observation.rows import Join

    rows = {each.region_path: row for row, each in enumerate(observation.containers)}
    evidence = observation.evidence or NodeEvidence()
    percents = None if observation.states is None else Join(observation).usage_percents
    for place in targets.places_in(observation):
        row = rows[place.path]
        large = evidence.large.get(row)
        snapshot = observation.table.snapshot(row) if large is None else large.table.snapshot(0)
        snapshot = attrs.evolve(without_impossible(snapshot), path=place.path)
        if percents is not None and large is None:
            first, count = observation.table.regions.first_process[row], len(snapshot.devices)
            starts = observation.table.processes.first_usage[first:][: len(snapshot.processes)]
            snapshot = with_percents(snapshot, [percents[at : at + count] for at in starts])
        found = evidence.regions.get(row)
        page = region_page(snapshot, burst=found is not None and found.burst)
        answer.show(attrs.evolve(page, data=place.data | page.data, heading=place.heading))


@verb("hamiregion mine", "hamiregion mine --json --watch 5")
@options.watch_options
def mine(answer: Answer) -> None:
    """Show the region of the container that this runs in, with its processes' commands."""
    _show(own_region, answer, None, "/proc")


def _show(
    opened: Callable[[], Region],
    answer: Answer,
    place: Place | None,
    proc: str,
) -> None:
    """Open and show a region; after the first time, a container that restarts is no failure.

    Its processes are looked for to show commands, and to know the devices that they count.
    """
    is_first = True
    table: ProcessTable | None = None

    def look() -> Page:
        nonlocal is_first, table
        try:
            with opened() as region:
                snapshot = without_impossible(region.snapshot())
                programs: dict[int, HostProcess] = {}
                busy = any(each.sm_util_percent != 0 for each in snapshot.devices)
                if place is None or (busy and len(snapshot.devices) > 1):
                    from libhamiregion.node import ProcessTable

                    table = table or ProcessTable(proc)
                    programs = _programs(table, region, snapshot)
                    snapshot = _under_gpu_at_work(snapshot, programs, table.view)
                named = programs if place is None else None
                page = region_page(snapshot, burst=region.burst, programs=named)
        except (RegionNotFound, RegionNotReady, RegionStale, RegionCorrupt) as error:
            if is_first:
                raise
            data = {"path": error.path, "error": type(error).__name__, "message": str(error)}
            return Page("region-error/1", data, [Lines([(str(error), WARN)])])
        is_first = False
        if place is None:
            return page
        return attrs.evolve(page, data=place.data | page.data, heading=place.heading)

    answer.show_all(look)


def _programs(
    table: ProcessTable, region: Region, snapshot: RegionSnapshot
) -> dict[int, HostProcess]:
    """The processes of a region's slots by pid; none if they cannot be listed."""
    from libhamiregion.node.procfs import file_identity

    with contextlib.suppress(OSError):
        table.refresh()
    users = table.view.users_of(file_identity(region))
    by_pid = {each.pid: each.process for each in users}
    return {each.pid: by_pid[each.pid] for each in snapshot.processes if each.pid in by_pid}


def _under_gpu_at_work(
    snapshot: RegionSnapshot, programs: Mapping[int, HostProcess], view: ProcessView
) -> RegionSnapshot:
    """Show the SM utilisation of processes that count devices otherwise where they work."""
    from libhamiregion.observation.visible import cuda_order

    uuids = [each.uuid for each in snapshot.devices]
    percents: list[list[int | None] | None] = []
    for each in snapshot.processes:
        entry = view.entry_of(programs[each.pid]) if each.pid in programs else None
        order = None if entry is None else cuda_order(entry.visible_devices, uuids)
        raw = [usage.sm_util_percent for usage in each.devices]
        percents.append(None if order is None else percents_in_order(raw, order))
    return with_percents(snapshot, percents)


def region_page(
    snapshot: RegionSnapshot,
    *more: Block,
    burst: bool = False,
    programs: Mapping[int, HostProcess] | None = None,
) -> Page:
    """Show a whole region: facts, devices, processes.

    Args:
        snapshot: The region.
        more: What is shown below it.
        burst: As `Region.burst`.
        programs: The processes of its slots by pid; None if they are not looked for.
    """
    data = as_plain(snapshot) | {"burst": burst}
    if programs is not None:
        data["programs"] = [program(each, pid) for pid, each in programs.items()]
    uuids = [(f"{each.index:>3}  {each.uuid}", DIM) for each in snapshot.devices if each.uuid]
    return Page(
        "region/1",
        data,
        [
            region_facts(snapshot, burst=burst),
            device_table(snapshot),
            Lines(uuids, on="terminal"),
            process_table(snapshot, programs),
            *more,
        ],
    )


# ---- the region as a whole -----------------------------------------------------------------------


def region_facts(snapshot: RegionSnapshot, *, burst: bool = False) -> Facts:
    """What holds for the whole region."""
    priority = {0: "0 (high)", 1: "1 (low)"}.get(snapshot.priority, str(snapshot.priority))
    if snapshot.last_kernel_time_s is None:
        last_kernel = "not recorded by this layout"
    elif snapshot.last_kernel_time_s == 0:
        last_kernel = "never"
    else:
        last_kernel = age_words(snapshot.taken_at_ns // 10**9 - snapshot.last_kernel_time_s)
    layout, newer = snapshot.layout.value, snapshot.layout_newer
    if newer:
        layout += f", of the newer version {newer[0]}.{newer[1]}"
    refusals = None if snapshot.refusals is None else f"{snapshot.refusals} allocations"
    limiting = "on" if snapshot.utilization_switch else "off"
    blocked = snapshot.recent_kernel < 0
    facts = (
        ("layout", layout, WARN if newer else ""),
        ("priority", priority, ""),
        ("SM limiting", f"{limiting}, burst" if burst else limiting, ""),
        ("launches", *(("blocked", CRITICAL) if blocked else ("allowed", ""))),
        ("last kernel", last_kernel, ""),
        *((("refused", refusals, ""),) if refusals is not None else ()),
        ("lock", lock_word(snapshot.owner_pid), WARN if snapshot.owner_pid else ""),
        ("settled", *(("yes", "") if snapshot.settled else ("no, it changed meanwhile", WARN))),
    )
    return Facts(snapshot.path, facts)


# ---- devices -------------------------------------------------------------------------------------


def device_table(snapshot: RegionSnapshot) -> Table:
    """One row per device."""
    has_utilization = snapshot.layout.has_utilization
    percent = "percent" if has_utilization else "unknown"
    columns = (
        Column("DEVICE", "index", "number", title="device", style="bold"),
        Column("", memory_bar, "drawing", title="memory"),
        Column(
            "MEM-USED", "memory_used_bytes", "size", "used", lambda each: memory_bar(each).style
        ),
        Column("MEM-LIMIT", "memory_limit_bytes", "size_limit", title="limit"),
        Column("MEM-FREE", _free_bytes, "size", on="pipe"),
        Column("CONTEXT", "memory_context_bytes", "size", on="pipe"),
        Column("MODULE", "memory_module_bytes", "size", on="pipe"),
        Column("DATA", "memory_data_bytes", "size", on="pipe"),
        Column("DRIVER", "memory_monitor_bytes", "size", on="pipe"),
        *([Column("", _sm_bar, "drawing", title="SM")] if has_utilization else []),
        Column("SM", "sm_util_percent", percent, title="util"),
        Column("SM-LIMIT", "sm_limit_percent", "percent_limit", title="limit"),
        Column("ENC", "enc_util_percent", percent, on="pipe"),
        Column("DEC", "dec_util_percent", percent, on="pipe"),
        Column("UUID", "uuid", "name", on="pipe"),
    )
    return Table(columns, snapshot.devices)


def _free_bytes(device: DeviceUsage) -> int | None:
    return None if fill_ratio(device) is None else device.memory_free_bytes


def _sm_bar(device: DeviceUsage) -> Bar:
    return sm_bar(device.sm_util_percent, device.sm_limit_percent)


# ---- processes -----------------------------------------------------------------------------------

_STATUS_STYLES = {0: DIM, 1: GOOD, 2: WARN}


def process_table(
    snapshot: RegionSnapshot, programs: Mapping[int, HostProcess] | None = None
) -> Table:
    """One row per process and device that it uses; with programs, who runs what."""

    def about(name: str) -> Callable[[ProcessUsage], str | None]:
        return lambda process: getattr((programs or {}).get(process.pid), name, None)

    percent = "percent" if snapshot.layout.has_utilization else "unknown"
    columns = (
        Column("PID", "pid", "number", on="pipe"),
        Column("PID", _pid_words, "number", title="PID", style="bold", on="terminal"),
        Column("HOST-PID", "host_pid", "number", title="host PID"),
        Column("STATUS", lambda each: status_word(each.status), style=_status_style),
        Column("SETTLED", lambda each: "yes" if each.settled else "no", on="pipe"),
        Column("DEVICE", part="index", format="number", title="device"),
        Column("MEM-USED", part="memory_used_bytes", format="size", title="used"),
        Column("CONTEXT", part="memory_context_bytes", format="size", from_width=WIDE),
        Column("MODULE", part="memory_module_bytes", format="size", from_width=WIDE),
        Column("DATA", part="memory_data_bytes", format="size"),
        Column("DRIVER", part="memory_monitor_bytes", format="size"),
        Column("SM", part="sm_util_percent", format=percent, title="SM"),
        Column("ENC", part="enc_util_percent", format=percent, on="pipe"),
        Column("DEC", part="dec_util_percent", format=percent, on="pipe"),
        *(
            Column(name.upper(), about(name), "name")
            for name in (() if programs is None else ("user", "command"))
        ),
    )
    return Table(columns, snapshot.processes, _busy_devices, "No process has a slot.")


def _busy_devices(process: ProcessUsage) -> list[ProcessDeviceUsage]:
    return list(filter(is_used, process.devices))


def _pid_words(process: ProcessUsage) -> str:
    return f"{process.pid}{'' if process.settled else '*'}"


def _status_style(process: ProcessUsage) -> str:
    return _STATUS_STYLES.get(process.status, CRITICAL)
