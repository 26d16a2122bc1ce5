"""The driver's figures in the regions where libvgpu's own watcher does not write them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from libhamiregion.errors import RegionError
from libhamiregion.node.backoff import Backoff, owner_of
from libhamiregion.node.events import Emit, Voice, silent
from libhamiregion.node.usage import driver_gap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.models import ProcessDeviceUsage
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlProcess, NvmlSample, NvmlSampler
    from libhamiregion.node.views import ContainerView

FIGURES_INTERVAL_S = 5.0

# The value that stood there at the last look, by device and field.
_Seen: TypeAlias = "dict[tuple[int, str], int]"
# A process in a region: the file, and pid and start time.
_Key: TypeAlias = "tuple[tuple[str, tuple[int, int]], int, int]"

_COUNTERS = ("figures_runs", "figures_writes", "figures_processes", "figures_errors")
_SM_FIELDS = ("sm_util_percent", "enc_util_percent", "dec_util_percent")


class DriverFigures:
    """Writes NVML's memory and utilisation into slots whose figures stand still; a `Task`.

    libvgpu's watcher does it itself, every 120 ms, in processes whose container has an SM limit and
    whose host pid it knows. Where it does not, a figure stands still: it is the same at two looks,
    and other than what the driver says at the second. Only then is it written; what moves by
    itself is libvgpu's. Having written a figure, this goes on with it until it moves by itself.

    One sample of NVML serves all regions. Only processes that are proved to be the slot's get
    anything.

    Args:
        node: The node.
        sampler: Asked once per pass.
        interval_s: Seconds between two passes.
        dry_run: Write nothing, and say what would be written.
        timeout_s: How long to wait for a region's lock. A container whose lock is not free is left
            alone for more and more passes.
        emit: Gets the events.

    Threads: `counters` may be read from any; the rest one at a time.
    """

    name = "figures"

    def __init__(
        self,
        node: Node,
        sampler: NvmlSampler,
        *,
        interval_s: float = FIGURES_INTERVAL_S,
        dry_run: bool = False,
        timeout_s: float = 0.2,
        emit: Emit = silent,
    ) -> None:
        self.interval_s = interval_s
        self._node = node
        self._sampler = sampler
        self._dry_run = dry_run
        self._timeout_s = timeout_s
        self._voice = Voice(self.name, emit)
        self._backoff = Backoff()
        # By owner: whether something may be written in this pass.
        self._turns: dict[str, bool] = {}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._counting = threading.Lock()
        self._seen: dict[_Key, _Seen] = {}
        self._gap: str | None = None

    def counters(self) -> Mapping[str, int]:
        """How often what has happened; the names end in what is counted."""
        with self._counting:
            return dict(self._counts)

    def _count(self, what: str, number: int = 1) -> None:
        with self._counting:
            self._counts[f"figures_{what}"] += number

    def run(self) -> None:
        """Look once at all slots, and write the figures that stand still.

        Raises:
            OSError: /proc cannot be listed.
        """
        # The sample first: who uses a GPU in it has its slot in the views, if it has one.
        sample = self._sampler.sample()
        views = self._node.view()
        gap = driver_gap(self._node.processes, sample)
        if gap != self._gap:
            self._gap = gap
            if gap is not None:
                self._voice.say("no_driver", f"no figures of the driver: {gap}")
        if gap is not None:
            self._seen.clear()
            return
        self._count("runs")
        before, self._seen = self._seen, {}
        self._voice.keep(frozenset(view.container.region_path or "" for view in views))
        self._backoff.keep(frozenset(owner_of(view.container) for view in views))
        self._turns.clear()
        for view in views:
            try:
                self._look_at(view, sample, before)
            except (RegionError, OSError) as error:
                self._count("errors")
                self._end_turn(owner_of(view.container))
                self._voice.failed(
                    "the driver's figures could not be written", error, view.container
                )
        for owner, has_turn in self._turns.items():
            if has_turn:
                self._backoff.well(owner)

    def stop(self) -> None:
        """Nothing has to be taken back: the figures were true when they were written."""

    def _look_at(
        self, view: ContainerView, sample: NvmlSample, before: Mapping[_Key, _Seen]
    ) -> None:
        region, snapshot, processes = view.container.region, view.snapshot, view.processes
        if region is None or snapshot is None or processes is None:
            return
        file = (region.path, region.file_id)
        has_utilization = snapshot.layout.has_utilization
        uuids = {device.index: device.uuid for device in snapshot.devices}
        still: dict[int, HostProcess] = {}
        for usage, slot in zip(snapshot.processes, processes.slots, strict=True):
            process = slot.process
            if process is None:
                continue
            key = (file, process.pid, process.start_time_ticks)
            last = before.get(key, {})
            now = self._seen[key] = {}
            for device in usage.devices:
                uuid = uuids[device.index]
                driver = None if uuid is None else sample.process(uuid, process.pid)
                if driver is None:
                    continue
                for field, stands, says in _figures(device, driver, has_utilization):
                    now[device.index, field] = stands
                    if says is not None and says != stands == last.get((device.index, field)):
                        still[slot.pid] = process
        if still:
            if not self._has_turn(owner_of(view.container)):
                return
            self._write(view, sample, still)
        self._voice.well(view.container)

    def _has_turn(self, owner: str) -> bool:
        if owner not in self._turns:
            self._turns[owner] = not self._backoff.waits(owner)
        return self._turns[owner]

    def _end_turn(self, owner: str) -> None:
        """Write into none of an owner's regions any more: outside the roots one can have many."""
        if self._turns.get(owner, True):
            self._turns[owner] = False
            self._backoff.failed(owner)

    def _write(
        self, view: ContainerView, sample: NvmlSample, still: Mapping[int, HostProcess]
    ) -> None:
        with self._node.open(view.container) as region:
            changes = self._sampler.write(
                region,
                {pid: process.pid for pid, process in still.items()},
                sample=sample,
                dry_run=self._dry_run,
                timeout_s=self._timeout_s,
            )
            file = (region.path, region.file_id)
        for change in changes:
            process = still[change.pid]
            if self._dry_run:
                self._voice.say(
                    "would_write",
                    f"{change.field} of process {change.pid} would become {change.after}, from"
                    f" {change.before}",
                    view.container,
                    pid=change.pid,
                    host_pid=process.pid,
                    field=change.field,
                    device=change.device,
                    before=change.before,
                    after=change.after,
                )
            elif change.device is not None:
                # If it still stands there at the next look, libvgpu does not write it.
                key = (file, process.pid, process.start_time_ticks)
                self._seen[key][change.device, change.field] = change.after
        if not self._dry_run:
            self._count("writes", len(changes))
            self._count("processes", len({change.pid for change in changes}))


def _figures(
    device: ProcessDeviceUsage, driver: NvmlProcess, has_utilization: bool
) -> list[tuple[str, int, int | None]]:
    """Field, what stands in the region, what the driver says."""
    figures = [("monitor_used_bytes", device.memory_monitor_bytes, driver.memory_used_bytes)]
    if has_utilization:
        figures += [(name, getattr(device, name), getattr(driver, name)) for name in _SM_FIELDS]
    return figures
