"""Which region of a container counts: one can make any number of them beside its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from .history import Activity, Allocation, AllocationState, Look

_Names: TypeAlias = "tuple[str | None, ...]"


@attrs.define
class LeftOut:
    """Regions of a container that did not count.

    Attributes:
        allocation: A device of one of them.
        places: Their paths in the container.
        peak_bytes: The most that one of them showed as used of one device.
    """

    allocation: Allocation
    places: set[str]
    peak_bytes: int = 0

    @property
    def words(self) -> str:
        """What there is to say, for a person."""
        of = self.allocation
        place, *others = sorted(self.places)
        more = f" and {len(others):,} more" if others else ""
        return (
            f"container {of.container!r} of pod {of.pod or of.pod_uid!r} has several regions at"
            " once; that of its directory counts, or else one of them, as in the metrics. Left out:"
            f" {place!r}{more}, with up to {format_size(self.peak_bytes)} of a device"
        )


class RegionChoice:
    """Leaves out of looks what is not of the region that counts.

    Of the regions that a container has at one moment, that of its directory counts, as in the
    exporter: libvgpu enforces its limits there. Where there is none, that of the last path.

    Args:
        allocation: Which allocation a number in a look means.

    Attributes:
        left_out: What did not count, by container.
    """

    def __init__(self, allocation: Callable[[int], Allocation]) -> None:
        self._allocation = allocation
        #: Each number's container.
        self._names: dict[int, _Names] = {}
        self._places: dict[_Names, set[str | None]] = {}
        #: Containers of which regions in several places have been seen, and what is there now.
        self._doubtful: set[_Names] = set()
        self._present: dict[_Names, set[int]] = {}
        self._states: dict[int, AllocationState] = {}
        self._activity: dict[int, Activity] = {}
        self._hidden: set[int] = set()
        self.left_out: dict[_Names, LeftOut] = {}

    def chosen(self, look: Look) -> Look:
        """A look without the regions that do not count."""
        if look.full:
            self._states.clear()
            self._present.clear()
            self._activity.clear()
            self._hidden.clear()
        for number in look.states.keys() - self._names.keys():
            self._learn(number)
        for number, state in look.states.items():
            present = self._present.setdefault(self._names[number], set())
            if state is None:
                present.discard(number)
                self._states.pop(number, None)
                self._activity.pop(number, None)
            else:
                present.add(number)
                self._states[number] = state
        activity = {
            number: acting for number, acting in look.activity.items() if number in self._states
        }
        self._activity.update(activity)
        states = dict(look.states)
        if self._doubtful:
            for names in {self._names[number] for number in look.states} & self._doubtful:
                self._choose(names, states, activity)
            for number in self._hidden & activity.keys():
                del activity[number]
        return attrs.evolve(look, states=states, activity=activity)

    def _learn(self, number: int) -> None:
        of = self._allocation(number)
        names = (of.namespace, of.pod or of.pod_uid, of.container)
        self._names[number] = names
        places = self._places.setdefault(names, set())
        places.add(of.place)
        if len(places) > 1:
            self._doubtful.add(names)

    def _choose(
        self,
        names: _Names,
        states: dict[int, AllocationState | None],
        activity: dict[int, Activity],
    ) -> None:
        present = self._present[names]
        places = {self._allocation(number).place for number in present}
        # None, which is its directory, comes before all others.
        counts = None if None in places else max(places, default=None, key=str)
        for number in present:
            allocation, state = self._allocation(number), self._states[number]
            if allocation.place == counts:
                # It may have been left out until now.
                self._hidden.discard(number)
                states[number] = state
                activity[number] = self._activity.get(number, (None, None))
                continue
            self._hidden.add(number)
            states[number] = None
            left_out = self.left_out.setdefault(names, LeftOut(allocation, set()))
            left_out.places.add(str(allocation.place))
            left_out.peak_bytes = max(left_out.peak_bytes, state.memory_peak_bytes)
