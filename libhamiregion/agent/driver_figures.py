"""The driver's figures in the regions where libvgpu's own watcher does not write them."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from libhamiregion.errors import ProcessNotInRegion, RegionError, RegionNotFound, RegionStale
from libhamiregion.node.backoff import owner_of
from libhamiregion.node.driver_lists import driver_gap
from libhamiregion.node.events import container_words, silent
from libhamiregion.node.observation import SHARED_AGE_S, Observer
from libhamiregion.node.views import observed_views

from .figure_changes import FIGURE_COLUMNS, MEMORY, FigureChanges
from .tasks import Task, run_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.models import ProcessDeviceUsage, RegionSnapshot
    from libhamiregion.node.containers import Container
    from libhamiregion.node.events import Emit
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.node import Node
    from libhamiregion.node.nvml import NvmlProcess, NvmlSample, NvmlSampler
    from libhamiregion.node.observation import Observation
    from libhamiregion.node.views import ContainerView
    from libhamiregion.region import Region
    from libhamiregion.slot import SlotChange

# A figure of one slot: the slot's pid, the device's index, the field.
_Figure: TypeAlias = "tuple[int, int, str]"
# A process in a region: the file, and pid and start time.
_Process: TypeAlias = "tuple[tuple[str, tuple[int, int]], int, int]"

_PERCENTS = tuple(field for field in FIGURE_COLUMNS if field != MEMORY)
# The agent gives its tasks 5 s to give back.
_GIVE_BACK_S = 4.0


@attrs.define(eq=False)
class _WrittenFigures:
    """The figures that stand in a region as this process has written them.

    Attributes:
        container: The container, as of the last pass.
        figures: The values.
    """

    container: Container
    figures: dict[_Figure, int] = attrs.field(factory=dict)


class DriverFigures(Task):
    """Writes NVML's memory and utilisation into slots whose figures stand still.

    libvgpu's watcher does it itself, every 120 ms, in processes whose container has an SM limit and
    whose host pid it knows. Where it does not, a figure stands still: it is the same at two looks,
    and other than what the driver says at the second. Only then is it written; what moves by
    itself is libvgpu's. Having written a figure, this goes on with it until it moves by itself.

    Figures that cannot be kept up any more, because the task is stopped, the driver does not answer
    or /proc cannot be read, become 0: an old figure would look like a new one.

    One sample of NVML serves all regions. Only processes that are proved to be the slot's get
    anything. A container whose lock is not free is left alone for more and more passes.

    Args:
        node: The node.
        sampler: Asked once per pass.
        dry_run: Write nothing, and report what would be written.
        observer: Observes the node for other tasks as well, and asks the driver in place of
            `sampler`; None makes one.
        emit: Gets the events.
    """

    name = "figures"
    counted = ("runs", "writes", "processes", "errors")
    interval_s = 10.0
    #: How long to wait for a region's lock.
    timeout_s = 0.2

    def __init__(
        self,
        node: Node,
        sampler: NvmlSampler,
        *,
        dry_run: bool = False,
        observer: Observer | None = None,
        emit: Emit = silent,
    ) -> None:
        super().__init__(emit)
        self._node = node
        self._observer = observer or Observer(node, sampler=sampler)
        self._max_age_s = 0.0 if observer is None else min(SHARED_AGE_S, self.interval_s / 2)
        # Of each process the tracker tells when it ends; the rest of /proc changes slowly.
        self._processes_max_age_s = 0.0 if observer is None else self.interval_s
        self._last: Observation | None = None
        self._dry_run = dry_run
        # By owner: whether something may be written in this pass.
        self._turns: dict[str, bool] = {}
        self._changes = FigureChanges()
        # What stood at the last pass in the slots that it has looked at, and has written to.
        self._seen: dict[_Process, dict[_Figure, int]] = {}
        # Regions in which the last pass has left figures that are not kept up any more.
        self._left: set[str] = set()
        self._written: dict[str, _WrittenFigures] = {}
        self._gap: str | None = None
        # Held while something is written, so that nothing is once giving back has begun.
        self._writing = threading.Lock()
        self._ended = False

    def start(self) -> None:
        """Begin."""
        self._ended = False

    def run(self) -> None:
        """Look once at all slots, and write the figures that stand still.

        Raises:
            OSError: /proc cannot be listed.
        """
        try:
            observation = self._observer.observe(
                max_age_s=self._max_age_s, processes_max_age_s=self._processes_max_age_s
            )
            if observation.driver_error is not None:
                raise observation.driver_error
            observation.proved()
        except Exception:
            self._withdraw()
            raise
        if observation is self._last:
            # The same look twice tells nothing of what moves.
            return
        self._last, sample = observation, observation.sample
        gap = "the driver does not answer"
        if sample is not None:
            gap = driver_gap(self._node.processes, sample) or ""
        if gap and gap != self._gap:
            self.events.emit("no_driver", f"no figures of the driver: {gap}")
        self._gap = gap
        if gap or sample is None:
            self._withdraw()
            return
        self.count("runs")
        before, self._seen = self._seen, {}
        containers = [*observation.containers, *observation.missing]
        self.events.retain(containers)
        self.backoff.retain(list(map(owner_of, containers)))
        regions = {each.region.path for each in containers if each.region is not None}
        for path in self._written.keys() - regions:
            del self._written[path]
        self._turns.clear()
        due = self._due(observation)
        for view in observed_views(self._node, observation, due) if due else ():
            try:
                self._look_at(view, sample, before)
            except (RegionError, OSError) as error:
                self.count("errors")
                self._end_turn(owner_of(view.container))
                self.events.failed(
                    "the driver's figures could not be written", error, view.container
                )
        for owner, has_turn in self._turns.items():
            if has_turn:
                self.backoff.recovered(owner)

    def _due(self, observation: Observation) -> set[Container]:
        """The containers that have to be looked at slot by slot."""
        left, self._left = self._left, set()
        found = {
            *self._changes.due(observation, self._written),
            # Their slots stand in no columns.
            *(gap.container for gap in observation.gaps if gap.kind == "slots" and gap.container),
        }
        found.update(each for each in observation.containers if each.region_path in left)
        return found

    def _look_at(
        self, view: ContainerView, sample: NvmlSample, before: Mapping[_Process, dict[_Figure, int]]
    ) -> None:
        region, snapshot, processes = view.container.region, view.snapshot, view.processes
        if region is None or snapshot is None or processes is None:
            return
        if not snapshot.layout.has_lock:
            return
        file = (region.path, region.file_id)
        has_utilization = snapshot.layout.has_utilization
        uuids = {device.index: device.uuid for device in snapshot.devices}
        written = self._written.get(region.path, _WrittenFigures(view.container))
        written.container = view.container
        standing: dict[_Figure, int] = {}
        proved: set[int] = set()
        # What the driver says where it differs, and the slots that have a figure that stands still.
        differs: dict[_Figure, int] = {}
        still: dict[int, HostProcess] = {}
        for usage, slot in zip(snapshot.processes, processes.slots, strict=True):
            process = slot.process
            last: dict[_Figure, int] = {}
            now: dict[_Figure, int] = {}
            if process is not None:
                proved.add(slot.pid)
                key = (file, process.pid, process.start_time_ticks)
                last = before.get(key) or {
                    (slot.pid, *figure): stood
                    for figure, stood in self._changes.stood(region, process).items()
                }
                self._seen[key] = now
            for device in usage.devices:
                uuid = uuids[device.index]
                driver = None
                if uuid is not None and process is not None:
                    driver = sample.process(uuid, process.pid)
                for field, stands, says in _figures(device, driver, has_utilization):
                    figure = (slot.pid, device.index, field)
                    standing[figure] = stands
                    if driver is None or process is None:
                        continue
                    now[figure] = stands
                    if says is not None and says != stands:
                        differs[figure] = says
                        if stands == last.get(figure):
                            still[slot.pid] = process
        # What has moved by itself since is libvgpu's again.
        for figure in [
            each for each in written.figures if standing.get(each) != written.figures[each]
        ]:
            del written.figures[figure]
        lost = [figure for figure in written.figures if figure[0] not in proved]
        owner = owner_of(view.container)
        if lost:
            self._left.add(region.path)
        if (still or lost) and self._has_turn(owner):
            if still:
                wanted = {
                    figure: (standing[figure], says)
                    for figure, says in differs.items()
                    if figure[0] in still
                }
                self._write(view, still, wanted)
            self._set_to_0(written, lost)
            self._left.discard(region.path)
            self.events.recovered(view.container)

    def _has_turn(self, owner: str) -> bool:
        if owner not in self._turns:
            self._turns[owner] = not self.backoff.should_skip(owner)
        return self._turns[owner]

    def _end_turn(self, owner: str) -> None:
        """Write into none of an owner's regions any more: outside the roots one can have many."""
        if self._turns.get(owner, True):
            self._turns[owner] = False
            self.backoff.failed(owner)

    def _write(
        self,
        view: ContainerView,
        still: Mapping[int, HostProcess],
        found: Mapping[_Figure, tuple[int, int]],
    ) -> None:
        """Write the figures of which what stands is what the observation has found."""
        with self._node.open(view.container) as region, self._writing:
            if self._ended:
                return
            standing = _standing(region.snapshot())
            wanted = {
                figure: says
                for figure, (stands, says) in found.items()
                if standing.get(figure) == stands
            }
            if not self._dry_run:
                # Before: some may be written when it fails. What does not stand is forgotten later.
                written = self._written.setdefault(region.path, _WrittenFigures(view.container))
                written.figures.update(wanted)
            slots: defaultdict[tuple[int, int], dict[str, int]] = defaultdict(dict)
            for (pid, device, field), says in wanted.items():
                slots[pid, device][field] = says
            changes = [
                change
                for (pid, device), values in slots.items()
                for change in self._store(region, pid, device, values)
            ]
            file = (region.path, region.file_id)
            if not self._dry_run:
                self.count("writes", len(changes))
                self.count("processes", len({change.pid for change in changes}))
            for change in changes:
                process = still[change.pid]
                if self._dry_run:
                    self.events.emit(
                        "would_write",
                        f"{change.field} of process {change.pid} would become {change.after}, from"
                        f" {change.before}",
                        view.container,
                        distinct=change.field,
                        pid=change.pid,
                        host_pid=process.pid,
                        field=change.field,
                        device=change.device,
                        before=change.before,
                        after=change.after,
                    )
                elif change.device is not None:
                    # If it still stands there at the next look, libvgpu does not write it.
                    figure = (change.pid, change.device, change.field)
                    key = (file, process.pid, process.start_time_ticks)
                    self._seen[key][figure] = change.after

    # ---- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Set the figures to 0 that still stand as they were written."""
        with self._writing:
            self._ended = True
        self._withdraw()

    def pending_cleanup(self) -> tuple[str, ...]:
        """The containers in which figures of the driver stand that nobody keeps up."""
        return tuple(
            f"the driver's figures stand in {container_words(each.container)}"
            for each in self._written.copy().values()
            if any(each.figures.values())
        )

    def _withdraw(self) -> None:
        self._seen.clear()
        self._left.clear()
        self._changes.forget()
        run_each(self._give_back, list(self._written.items()), _GIVE_BACK_S)

    def _give_back(self, entry: tuple[str, _WrittenFigures]) -> None:
        path, written = entry
        try:
            self._set_to_0(written, list(written.figures))
        except (RegionStale, RegionNotFound):
            pass  # the region is gone, and what was written into it with it
        except (RegionError, OSError) as error:
            self.count("errors")
            self.events.failed("the driver's figures stand", error, written.container)
            return
        self._written.pop(path, None)

    def _set_to_0(self, written: _WrittenFigures, figures: list[_Figure]) -> None:
        """Set those of these figures to 0 that still stand as they were written."""
        stale = {figure for figure in figures if written.figures[figure]}
        path = written.container.region_path
        container = next((each for each in self._node.containers if each.region_path == path), None)
        if not stale or container is None or container.region is None:
            return
        with self._node.open(container) as region:
            for process in region.snapshot().processes:
                for device in process.devices:
                    fields = [
                        field
                        for field in FIGURE_COLUMNS
                        if (figure := (process.pid, device.index, field)) in stale
                        and getattr(device, FIGURE_COLUMNS[field][0]) == written.figures[figure]
                    ]
                    self._store(region, process.pid, device.index, dict.fromkeys(fields, 0))
        for figure in figures:
            del written.figures[figure]

    def _store(
        self, region: Region, pid: int, device: int, values: Mapping[str, int]
    ) -> list[SlotChange]:
        """Store figures in a slot; what was changed, or would be."""
        how: dict[str, Any] = {"dry_run": self._dry_run, "timeout_s": self.timeout_s}
        changes: list[SlotChange] = []
        with contextlib.suppress(ProcessNotInRegion):  # it has left since the snapshot
            if MEMORY in values:
                changes.append(region.set_monitor_used(pid, device, values[MEMORY], **how))
            sm, enc, dec = map(values.get, _PERCENTS)
            if (sm, enc, dec) != (None, None, None):
                changes += region.set_utilization(pid, device, sm=sm, enc=enc, dec=dec, **how)
        return [change for change in changes if change.before != change.after]


def _standing(snapshot: RegionSnapshot) -> dict[_Figure, int]:
    return {
        (process.pid, device.index, field): getattr(device, standing)
        for process in snapshot.processes
        for device in process.devices
        for field, (standing, _) in FIGURE_COLUMNS.items()
    }


def _figures(
    device: ProcessDeviceUsage, driver: NvmlProcess | None, has_utilization: bool
) -> list[tuple[str, int, int | None]]:
    """Field, what stands in the region, what the driver says."""
    return [
        (field, getattr(device, standing), None if driver is None else getattr(driver, said))
        for field, (standing, said) in FIGURE_COLUMNS.items()
        if has_utilization or field == MEMORY
    ]
