"""`hamiregion show`: one region, once or again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from libhamiregion import (
    RegionError,
    RegionNotFound,
    RegionNotReady,
    RegionSnapshot,
    RegionStale,
    open_region,
    own_region,
)

from . import options
from .format import age_words, lock_word, memory_bar, memory_style, sm_bar, status_word
from .help import Verb
from .output import Page, as_plain, show_all, ticks
from .tables import (
    CRITICAL,
    DIM,
    DRAWING,
    GOOD,
    NAME,
    NUMBER,
    PERCENT,
    PERCENT_LIMIT,
    SIZE,
    SIZE_LIMIT,
    UNKNOWN,
    WARN,
    WIDE,
    Bar,
    Column,
    Facts,
    Lines,
    Table,
)
from .targets import Targets, target_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion import DeviceUsage, Layout, ProcessDeviceUsage, ProcessUsage, Region

    from .tables import Block

# What passes when a container restarts: its region is removed, made anew and filled.
PASSING = (RegionNotFound, RegionNotReady, RegionStale)


@click.command(
    cls=Verb,
    examples=["hamiregion show -n research bert-0", "hamiregion show usage.cache --watch 1"],
)
@target_options()
@options.watch_option
@options.layout_option
@options.output_options
def show(
    targets: Targets, interval_s: float | None, layout: Layout | None, as_json: bool
) -> int | None:
    """Show the devices, limits and processes of a container, or of a region's FILE."""
    if interval_s is not None:
        path = targets.only_path()
        _show(lambda: open_region(path, layout=layout), interval_s, as_json)
        return None
    return targets.for_each(
        lambda path: _show(lambda: open_region(path, layout=layout), None, as_json)
    )


@click.command(cls=Verb, examples=["hamiregion mine", "hamiregion mine --json --watch 5"])
@options.watch_option
@options.output_options
def mine(interval_s: float | None, as_json: bool) -> None:
    """Show the region of the container that this runs in: its own budget."""
    _show(own_region, interval_s, as_json)


def _show(opened: Callable[[], Region], interval_s: float | None, as_json: bool) -> None:
    if interval_s is None:
        with opened() as region:
            pages = iter([region_page(region.snapshot(), burst=region.burst)])
    else:
        pages = _pages(opened, interval_s)
    show_all(pages, interval_s, as_json)


def _pages(opened: Callable[[], Region], interval_s: float) -> Iterator[Page]:
    """Yield a page per interval; once there was one, also what passes when the file changes."""
    region = opened()
    try:
        for _ in ticks(interval_s):
            try:
                if region.closed or region.is_stale():
                    region.close()
                    region = opened()
                yield region_page(region.snapshot(), burst=region.burst)
            except PASSING as error:
                yield _error_page(error)
    finally:
        region.close()


def _error_page(error: RegionError) -> Page:
    data = {"path": error.path, "error": type(error).__name__, "message": str(error)}
    return Page("region-error/1", data, [Lines([(str(error), WARN)])])


def region_page(snapshot: RegionSnapshot, *more: Block, burst: bool = False) -> Page:
    """Show a whole region: facts, devices, processes; `burst` is `Region.burst`."""
    uuids = [(f"{each.index:>3}  {each.uuid}", DIM) for each in snapshot.devices if each.uuid]
    return Page(
        "region/1",
        as_plain(snapshot) | {"burst": burst},
        [
            region_facts(snapshot, burst=burst),
            device_table(snapshot),
            Lines(uuids, on="terminal"),
            process_table(snapshot),
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
    limiting = "on" if snapshot.utilization_switch else "off"
    if burst:
        limiting += ", burst"
    blocked = snapshot.recent_kernel < 0
    facts = (
        ("layout", *_layout_words(snapshot)),
        ("priority", priority, ""),
        ("SM limiting", limiting, ""),
        ("launches", *(("blocked", CRITICAL) if blocked else ("allowed", ""))),
        ("last kernel", last_kernel, ""),
        ("lock", lock_word(snapshot.owner_pid), WARN if snapshot.owner_pid else ""),
        ("settled", *(("yes", "") if snapshot.settled else ("no, it changed meanwhile", WARN))),
    )
    return Facts(snapshot.path, facts)


def _layout_words(snapshot: RegionSnapshot) -> tuple[str, str]:
    layout = snapshot.layout.value
    if snapshot.layout_newer is None:
        return layout, ""
    major, minor = snapshot.layout_newer
    return f"{layout}, of the newer version {major}.{minor}", WARN


# ---- devices -------------------------------------------------------------------------------------


def device_table(snapshot: RegionSnapshot) -> Table:
    """One row per device; the tick in the SM bar is the limit."""
    util = snapshot.layout.has_utilization
    percent = PERCENT if util else UNKNOWN
    columns = (
        Column("DEVICE", "index", NUMBER, title="GPU", style="bold"),
        Column("", memory_bar, DRAWING, title="memory", on="terminal"),
        Column("MEM-USED", "memory_used_bytes", SIZE, title="used", style=memory_style),
        Column("MEM-LIMIT", "memory_limit_bytes", SIZE_LIMIT, title="limit"),
        Column("MEM-FREE", "memory_free_bytes", SIZE, on="pipe"),
        Column("CONTEXT", "memory_context_bytes", SIZE, on="pipe"),
        Column("MODULE", "memory_module_bytes", SIZE, on="pipe"),
        Column("DATA", "memory_data_bytes", SIZE, on="pipe"),
        Column("DRIVER", "memory_monitor_bytes", SIZE, on="pipe"),
        *([Column("", _sm_bar, DRAWING, title="SM", on="terminal")] if util else []),
        Column("SM", "sm_util_percent", percent, title="util"),
        Column("SM-LIMIT", "sm_limit_percent", PERCENT_LIMIT, title="limit"),
        Column("ENC", "enc_util_percent", percent, on="pipe"),
        Column("DEC", "dec_util_percent", percent, on="pipe"),
        Column("UUID", "uuid", NAME, on="pipe"),
    )
    return Table(columns, snapshot.devices)


def _sm_bar(device: DeviceUsage) -> Bar:
    return sm_bar(device.sm_util_percent, device.sm_limit_percent)


# ---- processes -----------------------------------------------------------------------------------

_STATUS_STYLES = {0: DIM, 1: GOOD, 2: WARN}


def process_table(snapshot: RegionSnapshot) -> Table:
    """One row per process and device that it uses."""
    percent = PERCENT if snapshot.layout.has_utilization else UNKNOWN
    columns = (
        Column("PID", "pid", NUMBER, on="pipe"),
        Column("PID", _pid_words, NUMBER, title="PID", style="bold", on="terminal"),
        Column("HOST-PID", "host_pid", NUMBER, title="host PID"),
        Column("STATUS", _status_word, style=_status_style),
        Column("SETTLED", _settled_word, on="pipe"),
        Column("DEVICE", part="index", format=NUMBER, title="GPU"),
        Column("MEM-USED", part="memory_used_bytes", format=SIZE, title="used"),
        Column("CONTEXT", part="memory_context_bytes", format=SIZE, from_width=WIDE),
        Column("MODULE", part="memory_module_bytes", format=SIZE, from_width=WIDE),
        Column("DATA", part="memory_data_bytes", format=SIZE),
        Column("DRIVER", part="memory_monitor_bytes", format=SIZE),
        Column("SM", part="sm_util_percent", format=percent, title="SM"),
        Column("ENC", part="enc_util_percent", format=percent, on="pipe"),
        Column("DEC", part="dec_util_percent", format=percent, on="pipe"),
    )
    return Table(columns, snapshot.processes, _busy_devices, "No process uses this region.")


def _busy_devices(process: ProcessUsage) -> list[ProcessDeviceUsage]:
    """Where the process has or does something."""
    return [
        usage
        for usage in process.devices
        if usage.memory_used_bytes
        or usage.memory_monitor_bytes
        or usage.sm_util_percent
        or usage.enc_util_percent
        or usage.dec_util_percent
    ]


def _pid_words(process: ProcessUsage) -> str:
    return f"{process.pid}{'' if process.settled else '*'}"


def _settled_word(process: ProcessUsage) -> str:
    return "yes" if process.settled else "no"


def _status_word(process: ProcessUsage) -> str:
    return status_word(process.status)


def _status_style(process: ProcessUsage) -> str:
    return _STATUS_STYLES.get(process.status, CRITICAL)
