"""Edits that are the same on several devices, as one, and in words."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import attrs

from libhamiregion.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .diff import PlannedEdit
    from .limit_plan import LimitField

_NAMES = {"memory_limit": "memory limit", "sm_limit": "SM limit", "priority": "priority"}


@attrs.frozen
class EqualEdits:
    """Edits of neighbouring devices that are the same but for the device."""

    edits: tuple[PlannedEdit, ...]

    @property
    def first(self) -> PlannedEdit:
        """The edit of the first device."""
        return self.edits[0]

    @property
    def devices(self) -> str | None:
        """``0``, or ``0-15``; None for the whole container."""
        first, last = self.first.device, self.edits[-1].device
        if first is None:
            return None
        return str(first) if first == last else f"{first}-{last}"

    @property
    def before(self) -> str:
        """The value as it is, for people."""
        return value_words(self.first.field, self.first.before)

    @property
    def after(self) -> str:
        """The value as the plan says, for people."""
        return value_words(self.first.field, self.first.after)

    @property
    def words(self) -> str:
        """The change as a sentence."""
        some = (
            "" if self.devices is None else f"device{'s' * (len(self.edits) > 1)} {self.devices}: "
        )
        return f"{some}{value_name(self.first.field)} {self.before} -> {self.after}"


def equal_edits(edits: Iterable[PlannedEdit]) -> Iterator[EqualEdits]:
    """Put edits of neighbouring devices together that are the same."""

    def same(numbered: tuple[int, PlannedEdit]) -> object:
        number, edit = numbered
        step = None if edit.device is None else edit.device - number
        return attrs.evolve(edit, device=None), step

    for _, group in itertools.groupby(enumerate(edits), key=same):
        yield EqualEdits(tuple(edit for _, edit in group))


def value_name(field: LimitField) -> str:
    """A field for people."""
    return _NAMES[field]


def value_words(field: LimitField, value: int | None) -> str:
    """A value with its unit, for people."""
    if value is None:
        return "unlimited"
    if field == "memory_limit":
        return format_size(value)
    return f"{value} %" if field == "sm_limit" else str(value)
