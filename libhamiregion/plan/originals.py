"""What stood in containers before a node was kept on a plan, so that it can go back."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import attrs

from libhamiregion.errors import RegionError, needs_extra
from libhamiregion.node.containers import MissingReason

from .diff import Original, value_now
from .limit_plan import LimitField, LimitPlan
from .undo import exact_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.node.containers import Container
    from libhamiregion.node.node import Node
    from libhamiregion.region import Region

    from .diff import ContainerDiff, ValueKey
    from .state import PlanState

_NAME: Final = "originals.json"


@attrs.define
class _ContainerValues:
    """A container's originals, and the file that they are of."""

    file_id: tuple[int, int]
    values: dict[ValueKey, Original] = attrs.field(factory=dict)


@attrs.frozen
class _SavedValue:
    field: LimitField
    device: int | None
    original: Original


@attrs.frozen
class _SavedContainer:
    directory: str
    file_id: tuple[int, int]
    values: tuple[_SavedValue, ...]


class Originals:
    """Remembers what stood there before the first change; it outlives the process.

    A container that has another region now, or is gone, is forgotten: its new region has the
    limits that it was given.

    Threads: one at a time.

    Raises:
        OSError: The state directory cannot be read.
    """

    def __init__(self, state: PlanState) -> None:
        self._state = state
        self._changed = False
        # The open regions of the last refresh: while one is open, no other file gets its inode.
        self._regions: dict[str, Region] = {}
        #: Whether what was remembered could not be read, and is lost.
        self.lost = False
        self._containers = self._load()

    @property
    def by_directory(self) -> Mapping[str, Mapping[ValueKey, Original]]:
        """The originals of each container, as `diff_plan` takes them."""
        return {directory: kept.values for directory, kept in self._containers.items()}

    def was_set_to(self, container: Container, key: ValueKey, value: int | None) -> bool:
        """Whether this is for certain what a value was last set to."""
        kept = self._containers.get(container.directory or "")
        return kept is not None and key in kept.values and kept.values[key].ours == (value,)

    def note(self, changes: Iterable[ContainerDiff]) -> None:
        """Remember what is going to be changed, before it is.

        Raises:
            OSError: It cannot be written; then nothing must be changed.
        """
        for change in changes:
            directory = change.container.directory or ""
            kept = self._containers.setdefault(directory, _ContainerValues(change.file_id))
            for edit in change.edits:
                if edit.rule is None:
                    continue
                known = kept.values.get(edit.key, Original(edit.before, (edit.before,)))
                # Until the new value is known to stand there, the one that is there now may stay:
                # an edit can fail, be contested, or end with its process.
                still = (edit.before,) if edit.before in known.ours else ()
                kept.values[edit.key] = Original(known.before, (*still, edit.after))
                self._changed = True
        self.save()

    def applied(self, change: ContainerDiff) -> None:
        """Note that a container's edits hold; what has gone back to what it was is forgotten."""
        kept = self._containers.get(change.container.directory or "")
        values = {} if kept is None else kept.values
        for edit in change.edits:
            known = values.get(edit.key)
            if known is None:
                continue
            self._changed = True
            if edit.rule is None:
                del values[edit.key]
            else:
                values[edit.key] = Original(known.before, (edit.after,))

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

    def _has_another_region(self, container: Container, kept: _ContainerValues) -> bool:
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
            # The same file opened anew, or a new file that has got its inode.
            self._regions[container.directory or ""] = region
            return any(value_now(region, key) not in v.ours for key, v in kept.values.items())
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

    def undo_plan(self, node: Node) -> LimitPlan:
        """The plan that puts back all that was changed and is remembered."""
        there = {each.directory: each for each in node.containers}
        rules = []
        for directory, kept in self._containers.items():
            container = there.get(directory)
            if container is not None:
                values = sorted(kept.values.items(), key=lambda each: each[0][1] or 0)
                rules += exact_rules(container, [(key, each.before) for key, each in values])
        return LimitPlan(tuple(rules), name="undo")

    # ---- the file -------------------------------------------------------------------------------

    def save(self) -> None:
        """Write down what has changed.

        Raises:
            OSError: It cannot be written.
        """
        if not self._changed:
            return
        containers = [
            _SavedContainer(
                directory,
                kept.file_id,
                tuple(_SavedValue(*key, value) for key, value in kept.values.items()),
            )
            for directory, kept in self._containers.items()
            if kept.values
        ]
        # ASCII: a directory's name may be no Unicode, and comes back as it was.
        self._state.write(_NAME, json.dumps([attrs.asdict(each) for each in containers]) + "\n")
        self._changed = False

    def _load(self) -> dict[str, _ContainerValues]:
        with needs_extra("a plan", "plan"):
            import cattrs

        raw = self._state.read(_NAME)
        if raw is None:
            return {}
        try:
            saved = cattrs.structure(json.loads(raw), tuple[_SavedContainer, ...])
        except (ValueError, TypeError, RecursionError, cattrs.BaseValidationError):
            self.lost = self._changed = True
            return {}
        return {
            each.directory: _ContainerValues(
                each.file_id, {(value.field, value.device): value.original for value in each.values}
            )
            for each in saved
        }
