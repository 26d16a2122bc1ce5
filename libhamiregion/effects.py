"""What an edit changes, whether processes that already run notice, and why it is refused."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from ._core import lib
from .errors import LimitBelowUsage, LimitConflict, region_error
from .layouts import DEVICE_CAPACITY, Layout
from .models import unfrozen
from .text import printable
from .units import UNLIMITED, format_size, sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from .errors import RegionError

LimitKind: TypeAlias = Literal["memory", "sm", "priority"]


class Effect(str, enum.Enum):
    """From when on an edit holds. Equal to its value, a plain string.

    Source: docs, What a region is (What an edit changes, and when).
    """

    #: In running processes too, within a second.
    IMMEDIATE = "immediate"
    #: In processes that start from now on; running ones keep what they read at their start.
    NEW_PROCESSES = "new_processes"
    #: Running processes that started without an SM limit launch once more and then never again,
    #: also when the limit is taken back; the others notice at their next launch.
    STOPS_LAUNCHES = "stops_launches"
    #: Of `Region.suspend`: within a second up to HAMi 2.9. From 2.10 on not at all, as no device
    #: that the container has reported has an SM limit; which HAMi uses it the region does not tell.
    IF_SM_LIMITED = "if_sm_limited"

    def __str__(self) -> str:
        return self.value


class Anything(enum.Enum):
    """What ``expected`` is where it is left out. None there means that unlimited is expected."""

    ANYTHING = "anything"

    def __repr__(self) -> str:
        return self.name


#: Whatever stands there may be replaced.
ANYTHING: Final = Anything.ANYTHING


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    # JSON has lists only.
    first, second = numbers
    return first, second


class _Change:
    """Base of what an edit has changed: how it travels as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them; `from_dict` makes the same change of them again."""
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}  # type: ignore[arg-type]
        return {**fields, "effect": fields["effect"].value, "file_id": list(fields["file_id"])}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Make a change of what `to_dict` returned, also by way of JSON.

        What an earlier version kept may lack a field that has come since.

        Raises:
            ValueError: These are the fields of something else; the message says which.
        """
        known = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
        needed = {name for name, field in known.items() if field.default is attrs.NOTHING}
        if not isinstance(fields, dict) or not needed <= fields.keys() <= known.keys():
            found = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
            raise ValueError(f"a {cls.__name__} has the fields {sorted(known)}, not {found}")
        return cls(**fields)


@attrs.frozen(weakref_slot=False)
class LimitChange(_Change):
    """One device's limit, as it was and as it is now. ``str()`` of it is a sentence.

    A value: it pickles, and travels as JSON by `to_dict` and `from_dict`, so that `undo` can be
    called by another process on another day.

    Attributes:
        device: Index of the device (CUDA ordinal).
        before: Bytes or percent, None if it was unlimited.
        after: Bytes or percent, None if it is unlimited.
        effect: Whether running processes see it.
        kind: ``"memory"`` or ``"sm"``.
        path: The region's file.
        file_id: Device and inode of that file, by which `undo` knows it again.
        stored_before: What stood in the file, for `undo`: an unlimited SM limit is 0, 100 or more
            there. None where that is not known; `undo` stores 100 then.
    """

    device: int
    before: int | None
    after: int | None
    effect: Effect = attrs.field(converter=Effect)
    kind: LimitKind
    path: str = attrs.field(default="", eq=False, repr=False)
    file_id: tuple[int, int] = attrs.field(default=(0, 0), eq=False, repr=False, converter=_pair)
    stored_before: int | None = attrs.field(default=None, eq=False, repr=False)

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.words}"

    @property
    def name(self) -> str:
        """Which limit it is, for people."""
        return f"device {self.device}: {'memory' if self.kind == 'memory' else 'SM'} limit"

    @property
    def words(self) -> str:
        """What has changed, as a sentence without the file."""
        return f"{self.name} {self.value_words(self.before)} -> {self.value_words(self.after)}"

    def value_words(self, value: int | None) -> str:
        """A value of this limit, for people."""
        return _words(value, in_bytes=self.kind == "memory")


_LimitChange = unfrozen(LimitChange)


def limit_change(
    device: int,
    before: int | None,
    after: int | None,
    effect: Effect,
    kind: LimitKind,
    stored_before: int,
    file: tuple[str, tuple[int, int]],
) -> LimitChange:
    """Make a `LimitChange` in a third of the time that its class takes."""
    change = _LimitChange()
    change.device = device
    change.before = before
    change.after = after
    change.effect = effect
    change.kind = kind
    change.path, change.file_id = file
    change.stored_before = stored_before
    change.__class__ = LimitChange
    return change  # type: ignore[no-any-return]


@attrs.frozen(weakref_slot=False)
class ValueChange(_Change):
    """A field of the whole region, as it was and as it is now. ``str()`` of it is a sentence.

    A value, as `LimitChange`.

    Attributes:
        field: ``priority``, ``utilization_switch``, ``recent_kernel`` or ``burst``.
        before: The raw value before; utilization_switch and burst are 0 or 1.
        after: The raw value now.
        effect: Whether running processes see it.
        path: The region's file.
        file_id: Device and inode of that file, by which `undo` knows it again.
    """

    field: str
    before: int
    after: int
    effect: Effect = attrs.field(converter=Effect)
    path: str = attrs.field(default="", eq=False, repr=False)
    file_id: tuple[int, int] = attrs.field(default=(0, 0), eq=False, repr=False, converter=_pair)

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.words}"

    @property
    def name(self) -> str:
        """Which value it is, for people."""
        return self.field

    @property
    def words(self) -> str:
        """What has changed, as a sentence without the file."""
        return f"{self.field} {self.before} -> {self.after}"

    def value_words(self, value: int) -> str:
        """A value of this field, for people."""
        return str(value)


_ValueChange = unfrozen(ValueChange)


def value_change(
    field: str, before: int, after: int, effect: Effect, file: tuple[str, tuple[int, int]]
) -> ValueChange:
    """Make a `ValueChange` in a third of the time that its class takes."""
    change = _ValueChange()
    change.field = field
    change.before = before
    change.after = after
    change.effect = effect
    change.path, change.file_id = file
    change.__class__ = ValueChange
    return change  # type: ignore[no-any-return]


# Where a running process looks at device 0's SM limit at each launch.
_LOOKS_AT_LAUNCH = {Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED, Layout.V1_1}


def sm_limit_effects(
    layout: Layout, edits: list[tuple[int, int | None, int | None]], *, stops_launches: bool
) -> list[Effect]:
    """Judge SM limit edits of one call, given as (device, before, after) with None = unlimited.

    Up to HAMi 2.8.0 a running process looks at device 0's limit at each launch, for all of its
    devices, but only to see whether there is one; how high it is, it remembers from its start.

    Args:
        layout: That of the region.
        edits: What is changed.
        stops_launches: Whether processes run there that the edit of device 0 stops.
    """
    first = next((edit for edit in edits if edit[0] == 0), None)
    first_crosses = first is not None and (first[1] is None) != (first[2] is None)

    def effect_of(before: int | None, after: int | None) -> Effect:
        crosses = (before is None) != (after is None)
        if not (layout in _LOOKS_AT_LAUNCH and first_crosses and crosses):
            return Effect.NEW_PROCESSES
        return Effect.STOPS_LAUNCHES if stops_launches else Effect.IMMEDIATE

    return [effect_of(before, after) for _, before, after in edits]


def switch_effect(layout: Layout) -> Effect:
    """2.8.1 reads the switch at its start only; 2.8.2, of the newest layout, does too."""
    return Effect.NEW_PROCESSES if layout is Layout.V1_1_POSTINIT else Effect.IMMEDIATE


# ---- Why an edit is refused ---------------------------------------------------------------------

#: The fields of the whole region that an edit can change, by the core's kind.
REGION_FIELDS: Final[dict[int, str]] = {
    lib.HR_PRIORITY: "priority",
    lib.HR_SWITCH: "utilization_switch",
    lib.HR_RECENT_KERNEL: "recent_kernel",
}


def signed(value: int) -> int:
    """What the core has widened to 64 bits without its sign."""
    return value - (1 << 64) if value >= 1 << 63 else value


def edit_error(code: int, path: str, detail: Any) -> Exception:
    """The error for an edit that the core has refused, but for a device that is not there.

    Args:
        code: The negative code of ``hr_edit``.
        path: The region's file.
        detail: The core's ``struct hr_error *``.
    """
    if code == lib.HR_ECONFLICT:
        return _conflict(path, detail)
    if code == lib.HR_EBELOWUSE:
        return _below_usage(path, detail)
    if code == lib.HR_EUNWATCHED:
        return _stops_launches(path, detail)
    if code == lib.HR_EINVAL and detail.device >= 0 and detail.wanted:
        return ValueError(
            f"{path!r}: the memory limit of device {detail.device} is "
            f"{_limit_text(detail.found or None, in_bytes=True)}, and {detail.wanted}% of that is "
            "no limit; nothing was changed"
        )
    if code == lib.HR_EINVAL and detail.device >= 0:
        return ValueError(f"the same limit of device {detail.device} stands twice among the edits")
    return region_error(code, path, detail)


def no_such_device(
    path: str, device: int | str, devices: dict[int, str | None], *, reported: bool
) -> ValueError:
    """The error for a device that the region does not have.

    Args:
        path: The region's file.
        device: What was named.
        devices: Those that there are, with their uuids.
        reported: Whether the container has reported its devices; else these are only those that
            have left traces.
    """
    listed = ", ".join(
        f"{number} ({uuid})" if uuid else str(number) for number, uuid in devices.items()
    )
    why = (
        ""
        if reported
        else (": its container has not reported its devices, and no limit or use speaks of another")
    )
    return ValueError(
        f"{path!r} has no device {device!r}, only {listed}{why}; nothing was changed; force=True "
        f"sets any index from 0 to {DEVICE_CAPACITY - 1}"
    )


def _words(limit: int | None, *, in_bytes: bool) -> str:
    if limit is None:
        return UNLIMITED
    return format_size(limit) if in_bytes else f"{limit} %"


def _limit_text(limit: int | None, *, in_bytes: bool) -> str:
    if limit is None:
        return UNLIMITED
    return f"{format_size(limit)} ({limit} bytes)" if in_bytes else f"{limit}%"


def _conflict(path: str, detail: Any) -> RegionError:
    found: int | None
    expected: int | None
    field = REGION_FIELDS.get(detail.kind)
    if field is not None:
        device, what = None, field
        found, expected = signed(detail.found), signed(detail.wanted)
        texts = str(found), str(expected)
    else:
        in_bytes, device = detail.kind == lib.HR_MEMORY, detail.device
        what = f"the {'memory' if in_bytes else 'SM'} limit of device {device}"
        found, expected = (
            (value or None) if in_bytes else sm_limit_or_none(value)
            for value in (detail.found, detail.wanted)
        )
        texts = _limit_text(found, in_bytes=in_bytes), _limit_text(expected, in_bytes=in_bytes)
    error = LimitConflict(
        f"{path!r}: {what} is {texts[0]}, not {texts[1]} as expected; nothing was changed",
        path=path,
    )
    error.device, error.found, error.expected = device, found, expected
    return error


def _below_usage(path: str, detail: Any) -> RegionError:
    used = _limit_text(detail.found, in_bytes=True)
    wanted = _limit_text(detail.wanted, in_bytes=True)
    error = LimitBelowUsage(
        f"{path!r}: device {detail.device} uses {used}, more than the limit asked for, {wanted}; "
        "its programs would see an enormous amount of free memory (up to HAMi 2.9). Nothing was "
        "changed; "
        "force=True sets it all the same",
        path=path,
    )
    error.device = detail.device
    error.used_bytes, error.requested_bytes = detail.found, detail.wanted
    return error


def _stops_launches(path: str, detail: Any) -> RegionError:
    processes = f"{detail.found} process{'' if detail.found == 1 else 'es'}"
    error = LimitBelowUsage(
        f"{path!r}: {processes} may have started without an SM limit, and an SM limit of "
        f"{detail.wanted}% would let each launch once more and then never again, also after it "
        "is taken back: libvgpu of that generation starts what lets launches through only where "
        "it finds a limit. Set it while nothing runs there. Nothing was changed; force=True sets "
        "it all the same",
        path=path,
    )
    error.device = detail.device
    return error
