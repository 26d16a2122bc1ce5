"""What a plan has changed while a node was kept on it: as it was before, and as it was set."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.errors import RegionError
from libhamiregion.node.containers import MissingReason

from .journal import value_now
from .limit_plan import LimitField, LimitPlan
from .undo import exact_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .diff import ContainerDiff
    from .state import PlanState
    from .values import KeptValue, ValueKey

_NAME: Final = "kept.json"
_VERSION: Final = 1


@attrs.define
class _Kept:
    file_id: tuple[int, int]
    values: dict[ValueKey, KeptValue]


class KeptValues:
    """Remembers what was there, so that it can go back when a plan names it no longer.

    It outlives the process. A container that has another region now, or is gone, is forgotten: its
    new region has the limits that it was given.

    Threads: one at a time.
    """

    def __init__(self, state: PlanState) -> None:
        self._state = state
        self._containers = _read(state)
        self._changed = False
        # The open regions of the last refresh: while one is open, its file keeps its number.
        self._regions: dict[str, Region] = {}

    @property
    def by_directory(self) -> Mapping[str, Mapping[ValueKey, KeptValue]]:
        """The values of each container, as `diff_plan` takes them."""
        return {directory: kept.values for directory, kept in self._containers.items()}

    def was_set_to(self, container: Container, key: ValueKey, value: int | None) -> bool:
        """Whether this is for certain what a value was last set to."""
        kept = self._containers.get(container.directory or "")
        return kept is not None and key in kept.values and kept.values[key][1] == (value,)

    def note(self, changes: Iterable[ContainerDiff]) -> None:
        """Remember what is going to be changed, before it is.

        Raises:
            OSError: It cannot be written; then nothing must be changed.
        """
        for change in changes:
            directory = change.container.directory or ""
            kept = self._containers.setdefault(directory, _Kept(change.file_id, {}))
            for edit in change.edits:
                if edit.rule is None:
                    continue
                before, ours = kept.values.get(edit.key, (edit.before, (edit.before,)))
                # Until the new value is known to stand there, the one that is there now may stay:
                # an edit can fail, be contested, or end with its process.
                still = (edit.before,) if edit.before in ours else ()
                self._remember(kept, edit.key, (before, (*still, edit.after)))
        self.save()

    def applied(self, change: ContainerDiff) -> None:
        """Note that a container's edits hold; what has gone back to what it was is forgotten."""
        kept = self._containers.get(change.container.directory or "")
        if kept is None:
            return
        for edit in change.edits:
            known = kept.values.get(edit.key)
            if known is None:
                continue
            if edit.rule is None:
                del kept.values[edit.key]
                self._changed = True
            else:
                self._remember(kept, edit.key, (known[0], (edit.after,)))

    def _remember(self, kept: _Kept, key: ValueKey, value: KeptValue) -> None:
        if kept.values.get(key) != value:
            kept.values[key] = value
            self._changed = True

    def refresh(self, node: Node) -> None:
        """Forget containers that are gone or have another region.

        Args:
            node: As it was at its last refresh.
        """
        there = {each.directory: each for each in node.containers}
        for directory, kept in list(self._containers.items()):
            container = there.get(directory)
            if container is None:
                # A root that cannot be listed just now says nothing about its containers.
                gone = os.path.dirname(directory) in node.scanned_roots  # noqa: PTH120
            else:
                gone = self._has_another_region(container, kept)
            if gone:
                del self._containers[directory]
                self._regions.pop(directory, None)
                self._changed = True

    def _has_another_region(self, container: Container, kept: _Kept) -> bool:
        region = container.region
        if region is None:
            missing = container.missing
            return missing is not None and missing.reason is MissingReason.NO_FILE
        try:
            if region.file_id != kept.file_id:
                return True
            before = self._regions.setdefault(container.directory or "", region)
            if before is region:
                return False
            # The same file again, or a new one that has got its number.
            self._regions[container.directory or ""] = region
            return any(
                value_now(region, *key) not in ours for key, (_, ours) in kept.values.items()
            )
        except RegionError:
            # Another thread has refreshed the node, or the file has just gone: next time.
            return False

    def compared(self, diffs: Iterable[ContainerDiff]) -> None:
        """Forget values that no rule sets and that are somebody else's by now.

        Args:
            diffs: What a plan would change, what goes back included.
        """
        for diff in diffs:
            directory = diff.container.directory or ""
            kept = self._containers.get(directory)
            if kept is None:
                continue
            going_back = {edit.key for edit in diff.edits if edit.rule is None}
            for key in kept.values.keys() - diff.governed - going_back:
                del kept.values[key]
                self._changed = True
            if not kept.values:
                del self._containers[directory]

    def save(self) -> None:
        """Write down what has changed.

        Raises:
            OSError: It cannot be written.
        """
        if not self._changed:
            return
        document = {
            "version": _VERSION,
            "containers": [
                {
                    "directory": os.fsencode(directory).hex(),
                    "file_id": list(kept.file_id),
                    "values": [
                        [field.value, device, before, *ours]
                        for (field, device), (before, ours) in kept.values.items()
                    ],
                }
                for directory, kept in self._containers.items()
                if kept.values
            ],
        }
        self._state.write(_NAME, json.dumps(document) + "\n")
        self._changed = False

    def undo_plan(self, node: Node) -> LimitPlan:
        """The plan that puts back all that was changed and is remembered."""
        there = {each.directory: each for each in node.containers}
        rules = []
        for directory, kept in self._containers.items():
            container = there.get(directory)
            if container is not None:
                rules += exact_rules(
                    container,
                    [
                        (*key, before)
                        for key, (before, _) in sorted(kept.values.items(), key=_order)
                    ],
                )
        return LimitPlan(tuple(rules), name="undo")


def _order(item: tuple[ValueKey, object]) -> tuple[str, int]:
    field, device = item[0]
    return field.value, -1 if device is None else device


def _read(state: PlanState) -> dict[str, _Kept]:
    document: Any = state.read_json(_NAME)
    try:
        if document is None or document["version"] != _VERSION:
            return {}
        return {
            os.fsdecode(bytes.fromhex(each["directory"])): _Kept(
                (int(each["file_id"][0]), int(each["file_id"][1])),
                {
                    (LimitField(field), device): (before, tuple(ours))
                    for field, device, before, *ours in each["values"]
                },
            )
            for each in document["containers"]
        }
    except (ValueError, KeyError, TypeError, IndexError):
        return {}
