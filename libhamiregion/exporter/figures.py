"""The part of a scrape that is read fresh: figures of all regions, from the columns of one read.

Which rows become which series is planned once and kept while containers, devices and processes stay
the same; a scrape then takes whole columns and picks the planned rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import metrics
from .device_plan import DevicePlanner, Rows, picker
from .process_plan import ProcessPlanner
from .rendering import Series

if TYPE_CHECKING:
    from libhamiregion.node import Container, Node, NodeSnapshot
    from libhamiregion.region_set import RegionTable

    from .background import Background
    from .device_plan import DevicePlan, Picker
    from .label_ledger import LabelLedger
    from .process_plan import ProcessPlan

_WRAP = (1 << 64) - 1

_OF_REGIONS = {metrics.PRIORITY, metrics.BLOCKED, metrics.UNSETTLED_READS, metrics.LOCK_HELD}
_OF_PROCESSES = {
    metrics.PROCESS_MEMORY,
    metrics.PROCESS_SM,
    metrics.PROCESS_ENC,
    metrics.PROCESS_DEC,
}


class Figures:
    """Makes the series of one scrape. Not thread-safe by itself.

    Args:
        node: Names containers that no refresh has named yet.
        legacy: Whether to make the series under their former names as well.
        ledger: Bounds what containers may write into labels.
    """

    def __init__(self, node: Node, *, legacy: bool, ledger: LabelLedger) -> None:
        self._legacy = legacy
        self._devices = DevicePlanner(node, legacy=legacy, ledger=ledger)
        self._processes = ProcessPlanner()
        self._unsettled: dict[tuple[str, str, str, str], int] = {}
        self._counted: DevicePlan | None = None
        self._coders: dict[str, set[Container]] = {"enc": set(), "dec": set()}
        self._coder_rows = {"enc": Rows(), "dec": Rows()}

    def series(
        self,
        snapshot: NodeSnapshot,
        background: Background,
        now_s: int,
        wanted: set[metrics.MetricFamily],
    ) -> list[Series]:
        """What the regions hold now.

        Args:
            snapshot: All regions, just read.
            background: What the last refresh found.
            now_s: The time, Unix seconds.
            wanted: What of it is wanted; more may come.
        """
        plan = self._devices.plan_for(snapshot, background)
        table = snapshot.table
        found = [*plan.series, *self._of_devices(plan, table, now_s)]
        if not wanted.isdisjoint(_OF_REGIONS):
            found += self._of_regions(plan, table, background)
        if not wanted.isdisjoint(_OF_PROCESSES):
            processes = self._processes.plan_for(plan, table, background)
            found += self._of_processes(processes, table)
        return found

    @property
    def shown(self) -> int:
        """How many regions the last scrape had figures of."""
        plan = self._devices.plan
        return 0 if plan is None else len(plan.shown)

    @property
    def missing(self) -> dict[str, int]:
        """Why the others had none: reason to number of containers."""
        plan = self._devices.plan
        return {} if plan is None else dict(plan.reasons)

    # ---- devices ---------------------------------------------------------------------------------

    def _of_devices(self, plan: DevicePlan, table: RegionTable, now_s: int) -> list[Series]:
        devices, pick = table.devices, plan.pick
        exited = _exited(table)

        def column(name: str) -> tuple[int, ...]:
            cells: list[int] = getattr(devices, name).tolist()
            if exited:
                usages = getattr(table.usages, name)
                for row, usage in exited:
                    cells[row] = (cells[row] - usages[usage]) & _WRAP
            return pick(cells)

        counted = pick(devices.memory_used_bytes.tolist())
        used = column("memory_used_bytes") if exited else counted
        limit = pick(devices.memory_limit_bytes.tolist())
        context = column("memory_context_bytes")
        module = column("memory_module_bytes")
        data = column("memory_data_bytes")
        sm = column("sm_util_percent")
        if not plan.util.key:
            # The others' layout has none, and 0 would say that they are idle.
            sm = plan.util.pick(sm)
        elapsed = self._elapsed(plan, table, now_s)
        hami = plan.hami
        series = [
            Series(metrics.MEMORY_USED, hami, used),
            Series(metrics.MEMORY_LIMIT, hami, limit),
            Series(metrics.CONTAINER_MEMORY, hami, used),
            Series(metrics.MEMORY_CONTEXT, hami, context),
            Series(metrics.MEMORY_MODULE, hami, module),
            Series(metrics.MEMORY_BUFFER, hami, data),
            Series(metrics.UTILIZATION, plan.util.labels, sm),
            Series(metrics.LAST_KERNEL, plan.kernel.labels, elapsed),
            Series(metrics.MEMORY_COUNTED, plan.own, counted),
            self._sm_limits(plan, pick(devices.sm_limit_percent.tolist())),
        ]
        if self._legacy:
            legacy = plan.legacy
            rest = [
                (total - in_contexts - in_modules - in_buffers) & _WRAP
                for total, in_contexts, in_modules, in_buffers in zip(
                    used, context, module, data, strict=True
                )
            ]
            series += [
                Series(metrics.LEGACY_MEMORY_USED, legacy, used),
                Series(metrics.LEGACY_MEMORY_LIMIT, legacy, limit),
                Series(
                    metrics.LEGACY_MEMORY_PARTS,
                    plan.legacy_parts,
                    used,
                    label_figures=(context, module, data, rest),
                ),
                Series(metrics.LEGACY_UTILIZATION, plan.util.legacy, sm),
                Series(metrics.LEGACY_LAST_KERNEL, plan.kernel.legacy, elapsed),
            ]
        return series

    def _elapsed(self, plan: DevicePlan, table: RegionTable, now_s: int) -> tuple[int, ...]:
        times = table.regions.last_kernel_time_s.tolist()
        launched = bytes(map(bool, times))
        kernel = plan.kernel
        if kernel.key != launched:
            at = [row for row, region in enumerate(plan.region_rows) if launched[region]]
            kernel.labels = [plan.hami[row] for row in at]
            kernel.legacy = [plan.legacy[row] for row in at] if self._legacy else []
            kernel.pick = picker([plan.region_rows[row] for row in at])
            kernel.key = launched
        return kernel.pick([now_s - each if each < now_s else 0 for each in times])

    def _sm_limits(self, plan: DevicePlan, limits: tuple[int, ...]) -> Series:
        rows = plan.sm_limit
        if rows.key != limits:
            limited = [row for row, limit in enumerate(limits) if 0 < limit < 100]
            rows.labels = [plan.own[row] for row in limited]
            rows.pick = picker(limited)
            rows.key = limits
        return Series(metrics.SM_LIMIT, rows.labels, rows.pick(limits))

    def _of_regions(
        self, plan: DevicePlan, table: RegionTable, background: Background
    ) -> list[Series]:
        regions, pick = table.regions, plan.pick_regions
        settled = pick(regions.settled.tolist())
        counts = self._unsettled
        if self._counted is not plan:
            # Of containers that are gone nothing is kept; one that comes again begins anew.
            counts = self._unsettled = {
                known.identity.labels: counts.get(known.identity.labels, 0)
                for _, _, known in plan.shown
            }
            self._counted = plan
        if 0 in settled:
            for (_, _, known), calm in zip(plan.shown, settled, strict=True):
                if not calm:
                    counts[known.identity.labels] += 1
        unsettled = tuple([counts[known.identity.labels] for _, _, known in plan.shown])
        recent = pick(regions.recent_kernel.tolist())
        return [
            Series(metrics.PRIORITY, plan.containers, pick(regions.priority.tolist())),
            Series(metrics.BLOCKED, plan.containers, tuple([int(each < 0) for each in recent])),
            Series(metrics.UNSETTLED_READS, plan.containers, unsettled),
            self._locks(plan, table, background),
        ]

    def _locks(self, plan: DevicePlan, table: RegionTable, background: Background) -> Series:
        held = background.held
        if not held:
            return Series(metrics.LOCK_HELD, plan.containers, plan.no_lock_held, steady=True)
        now = time.monotonic()
        semaphores, owners = table.regions.semaphore, table.regions.owner_pid
        values = []
        for row, container, _ in plan.shown:
            lock = held.get(container)
            same = lock is not None and is_held(semaphores[row]) and owners[row] == lock.owner_pid
            values.append(now - lock.since_s if lock is not None and same else 0.0)
        return Series(metrics.LOCK_HELD, plan.containers, values)

    # ---- processes -------------------------------------------------------------------------------

    def _of_processes(self, plan: ProcessPlan, table: RegionTable) -> list[Series]:
        if not plan.labels:
            return []
        usages = table.usages

        def values(name: str, pick: Picker, folds: list[Picker]) -> tuple[int, ...]:
            cells = getattr(usages, name).tolist()
            return (*pick(cells), *(sum(fold(cells)) for fold in folds))

        memory = values("memory_used_bytes", plan.pick, plan.folds)
        found = [Series(metrics.PROCESS_MEMORY, plan.labels, memory)]
        for name, family in (
            ("sm", metrics.PROCESS_SM),
            ("enc", metrics.PROCESS_ENC),
            ("dec", metrics.PROCESS_DEC),
        ):
            figures = values(f"{name}_util_percent", plan.util_pick, plan.util_folds)
            if name == "sm":
                found.append(Series(family, plan.util_labels, figures))
            else:
                found.append(self._coding(name, family, plan, figures))
        return found

    def _coding(
        self, name: str, family: metrics.MetricFamily, plan: ProcessPlan, figures: tuple[int, ...]
    ) -> Series:
        """Encoder or decoder: of containers where somebody has ever written such a figure."""
        coders, rows = self._coders[name], self._coder_rows[name]
        if any(figures):
            coders.update(
                owner for owner, each in zip(plan.util_owners, figures, strict=True) if each
            )
        key = (plan, len(coders)) if coders else None
        if rows.key != key:
            coders.intersection_update(plan.util_owners)
            at = [row for row, owner in enumerate(plan.util_owners) if owner in coders]
            rows.labels = [plan.util_labels[row] for row in at]
            rows.pick = picker(at)
            rows.key = (plan, len(coders)) if coders else None
        return Series(family, rows.labels, rows.pick(figures))


def is_held(semaphore: int) -> bool:
    """Whether a region's semaphore is taken; the upper half counts who waits."""
    return semaphore & 0xFFFFFFFF == 0


def _exited(table: RegionTable) -> list[tuple[int, int]]:
    """Device row and usage row of what slots of status 0 hold, which HAMi's monitor leaves out."""
    statuses = table.processes.status.tolist()
    if 0 not in statuses:
        return []
    first_device, device_rows = table.regions.first_device, table.regions.device_rows
    regions, first_usage = table.processes.region, table.processes.first_usage
    pairs: list[tuple[int, int]] = []
    for row, status in enumerate(statuses):
        if status == 0:
            region = regions[row]
            pairs += [
                (first_device[region] + device, first_usage[row] + device)
                for device in range(device_rows[region])
            ]
    return pairs
