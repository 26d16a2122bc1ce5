"""In which containers figures of the driver are due: found by columns, not slot by slot."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from libhamiregion.node.join import NO_ROW, Join

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Collection, Mapping, Sequence

    from libhamiregion.node.containers import Container
    from libhamiregion.node.join import KnownJoin
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.observation import Observation
    from libhamiregion.node.pairs import Pairs
    from libhamiregion.region import Region

    # Cells of a column, one per pair of process and device; None where there was no such pair.
    Cells: TypeAlias = tuple[int | None, ...]
    Pick: TypeAlias = Callable[[Any], Cells]

#: A field of a slot to its column of `RegionTable.usages`, and to that of `ProcessColumns`.
FIGURE_COLUMNS: Final = {
    "monitor_used_bytes": ("memory_monitor_bytes", "memory_used_bytes"),
    "sm_util_percent": ("sm_util_percent", "sm_util_percent"),
    "enc_util_percent": ("enc_util_percent", "enc_util_percent"),
    "dec_util_percent": ("dec_util_percent", "dec_util_percent"),
}
MEMORY: Final = "monitor_used_bytes"
_UNKNOWN = -1


@attrs.frozen(eq=False)
class _Places:
    """Where the figures of an observation's pairs of process and device stand.

    Attributes:
        pairs: The pairs.
        keys: Of each pair region, pid, start time and device index: what it is known by later.
        regions: Of each pair the row of its region.
        stands: Takes the pairs' cells out of a column of ``table.usages``.
        measured: The pairs of regions whose layout has utilisation.
        apart: Rows of regions with processes or devices that stand in no pair.
        proofs: Path of a region to whose its slots are, and to the number of its devices.
    """

    pairs: Pairs
    keys: Sequence[tuple[Region | None, int, int, int]]
    regions: Sequence[int]
    stands: Pick
    measured: Sequence[bool]
    apart: frozenset[int]
    proofs: Mapping[str, tuple[object, int]]

    @classmethod
    def of(cls, observation: Observation, pairs: Pairs) -> _Places:
        table, states = observation.table, pairs.states
        regions, devices, processes = table.regions, table.devices, table.processes
        of_slots, firsts = processes.region, processes.first_usage
        opened = [each.region for each in observation.containers]
        has_utilization = [each is not None and each.layout.has_utilization for each in opened]
        rows = [of_slots[slot] for slot in pairs.slots]
        keys = [
            (opened[row], process.pid, process.start_time_ticks, devices.index[device])
            for row, slot, device in zip(rows, pairs.slots, pairs.devices, strict=True)
            for process in (states.processes[slot],)
        ]
        usages = [
            firsts[slot] + device - regions.first_device[row]
            for row, slot, device in zip(rows, pairs.slots, pairs.devices, strict=True)
        ]
        # A process can have slots in two regions, and a region can name one device twice.
        apart = {
            of_slots[slot]
            for slot, process in states.processes.items()
            if pairs.slot_of[process.pid] != slot
        }
        apart.update(
            devices.region[row]
            for row, uuid in enumerate(pairs.uuids)
            if not uuid and row not in pairs.unnamed
        )
        return cls(
            pairs,
            keys,
            rows,
            _picker(usages),
            [has_utilization[row] for row in rows],
            frozenset(apart),
            {
                region.path: (states.proved.get(row), regions.device_rows[row])
                for row, region in enumerate(opened)
                if region is not None
            },
        )


class FigureChanges:
    """Tells in which containers a figure stands still that is not what the driver says.

    Each observation is compared with the one before. Only the containers that are told are worth
    being looked at slot by slot; all others cost a comparison of numbers.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self._known: KnownJoin | None = None
        self._places: _Places | None = None
        # Of the last observation, and of the one before it.
        self._stands: Mapping[str, Cells] = {}
        self._before: tuple[_Places, Mapping[str, Cells]] | None = None
        self._before_at: dict[tuple[Region | None, int, int], list[int]] | None = None
        # What takes the pairs' figures out of the driver's columns.
        self._says: tuple[KnownJoin, Pick, Pick] | None = None
        # The cells that were taken out of columns, by what they are of: a column that is as it was
        # gives the same object, and three that are the same are not compared again.
        self._picked: dict[object, tuple[Pick, bytes, Cells]] = {}
        self._standing_still: dict[str, tuple[Cells, Cells, Cells, frozenset[int]]] = {}

    def forget(self) -> None:
        """Begin anew: what stood at earlier observations does not count."""
        self._known = self._places = self._before = self._before_at = self._says = None
        self._stands = {}
        self._picked.clear()
        self._standing_still.clear()

    def due(self, observation: Observation, written: Collection[str]) -> frozenset[Container]:
        """Take the next observation; the containers that have to be looked at slot by slot.

        Args:
            observation: With the slots, and with a sample that can be used.
            written: Paths of regions in which figures of the driver stand: these are also due when
                one of their figures or processes has changed.

        Raises:
            OSError: /proc could not be listed.
        """
        join = Join(observation, self._known)
        self._known = join.known
        before, self._before_at = self._places, None
        self._before = None if before is None else (before, self._stands)
        places = before
        if places is None or places.pairs is not join.pairs:
            places = _Places.of(observation, join.pairs)
        self._places = places
        usages = observation.table.usages
        self._stands = {
            field: self._pick(("stands", field), places.stands, getattr(usages, column))
            for field, (column, _) in FIGURE_COLUMNS.items()
        }
        rows = set(places.apart)
        if before is not None and self._before is not None:
            stood = self._before[1]
            if before is not places:
                stood = _aligned(before, stood, places)
            rows |= self._changed(join, places, stood, written)
            rows.update(
                row
                for row, container in enumerate(observation.containers)
                if before is not places
                and (path := container.region_path or "") in written
                and places.proofs.get(path) != before.proofs.get(path)
            )
        return frozenset(observation.containers[row] for row in rows)

    def _changed(
        self, join: Join, places: _Places, stood: Mapping[str, Cells], written: Collection[str]
    ) -> set[int]:
        """Rows of regions with figures that stand still, and of written ones with others."""
        found: set[int] = set()
        regions = places.regions
        for field, stands in self._stands.items():
            was, says = stood[field], self._said(join, places, field)
            known = self._standing_still.get(field)
            if known is None or not (known[0] is says and known[1] is stands and known[2] is was):
                rows = frozenset(
                    region
                    for region, said, value, old in zip(regions, says, stands, was, strict=True)
                    if said != value == old and said != _UNKNOWN
                )
                known = self._standing_still[field] = says, stands, was, rows
            found |= known[3]
            if written and was != stands:
                moved = {
                    region
                    for region, value, old in zip(regions, stands, was, strict=True)
                    if value != old
                }
                containers = join.observation.containers
                found.update(row for row in moved if containers[row].region_path in written)
        return found

    def _said(self, join: Join, places: _Places, field: str) -> Cells:
        """What the driver says of each pair."""
        if self._says is None or self._says[0] is not join.known:
            at = join.rows_of_pairs
            # -1 stands behind the last figure.
            every = [_UNKNOWN if row == NO_ROW else row for row in at]
            measured = [
                row if has else _UNKNOWN for row, has in zip(every, places.measured, strict=True)
            ]
            self._says = join.known, _picker(every), _picker(measured)
        _, every_pair, measured_pairs = self._says
        figures = join.figures(FIGURE_COLUMNS[field][1])
        figures.append(_UNKNOWN)
        pick = every_pair if field == MEMORY else measured_pairs
        return self._pick(("says", field), pick, figures)

    def _pick(self, what: object, pick: Pick, column: memoryview | array[int]) -> Cells:
        """Take cells out of a column; the same object as last time if the column is the same."""
        raw = column.tobytes()
        known = self._picked.get(what)
        if known is None or known[0] is not pick or known[1] != raw:
            known = self._picked[what] = pick, raw, pick(column.tolist())
        return known[2]

    def stood(self, region: Region, process: HostProcess) -> dict[tuple[int, str], int]:
        """What stood in the slot of a process at the observation before the last one.

        Args:
            region: The region that it has the slot in.
            process: The process.

        Returns:
            Device index and field to the figure; empty for a process that had no slot then.
        """
        if self._before is None:
            return {}
        places, stood = self._before
        if self._before_at is None:
            self._before_at = {}
            for pair, (its_region, pid, start, _) in enumerate(places.keys):
                self._before_at.setdefault((its_region, pid, start), []).append(pair)
        return {
            (places.keys[pair][-1], field): figure
            for pair in self._before_at.get((region, process.pid, process.start_time_ticks), ())
            for field, cells in stood.items()
            if (figure := cells[pair]) is not None
        }


def _picker(rows: Sequence[int]) -> Pick:
    """Return what takes the cells of some rows out of a column."""
    if len(rows) > 1:
        return itemgetter(*rows)
    # That one gives a cell alone for one row.
    return lambda column: tuple(column[row] for row in rows)


def _aligned(before: _Places, stood: Mapping[str, Cells], places: _Places) -> dict[str, Cells]:
    """What stood in the pairs of an observation at the one before; None where none was."""
    at = {key: pair for pair, key in enumerate(before.keys)}
    order = [at.get(key) for key in places.keys]
    return {
        field: tuple(None if pair is None else cells[pair] for pair in order)
        for field, cells in stood.items()
    }
