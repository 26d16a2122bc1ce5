"""The changes of an edit, and when they take effect."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
from attrs import validators

from ._core import lib
from .errors import REGION_FIELDS, signed
from .layouts import DEVICE_CAPACITY, Layout
from .text import printable
from .units import UNLIMITED, format_limit, sm_limit_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from ._handle import Handle

#: The fields of a slot that an edit can change, with the core's number.
SLOT_FIELDS: Final = {
    "host_pid": lib.HR_SLOT_HOST_PID,
    "status": lib.HR_SLOT_STATUS,
    "monitor_used_bytes": lib.HR_SLOT_MONITOR_USED,
    "sm_util_percent": lib.HR_SLOT_SM,
    "enc_util_percent": lib.HR_SLOT_ENC,
    "dec_util_percent": lib.HR_SLOT_DEC,
}

#: The kind of a limit: memory or SM.
LimitKind: TypeAlias = Literal["memory", "sm"]


class Effect(str, enum.Enum):
    """When an edit takes effect. Equal to its value, a plain string.

    Source: docs, What a region is (What an edit changes, and when).
    """

    #: In running processes too, within a second.
    IMMEDIATE = "immediate"
    #: In processes that start from now on; running ones keep the values of their start.
    NEW_PROCESSES = "new_processes"
    #: Running processes that started without an SM limit launch once more and then never again,
    #: also when the limit is taken back; the others notice at their next launch.
    STOPS_LAUNCHES = "stops_launches"
    #: Of `Region.suspend`: within a second up to HAMi 2.9. From 2.10 on not at all, as no device
    #: that the container has reported has an SM limit. The region does not show which HAMi uses it.
    IF_SM_LIMITED = "if_sm_limited"

    def __str__(self) -> str:
        return self.value


class Anything(enum.Enum):
    """The type of `ANYTHING`."""

    ANYTHING = "anything"

    def __repr__(self) -> str:
        return self.name


#: The value of ``expected`` if it is left out: any present value may be replaced.
ANYTHING: Final = Anything.ANYTHING


class _Change:
    """Base of all changes: sentences, and how they travel as JSON."""

    __slots__ = ()

    def __str__(self) -> str:
        change: Any = self
        return f"{printable(change.path)}: {self.words}"

    @property
    def words(self) -> str:
        """The change as a sentence, without the file."""
        change: Any = self
        before, after = self._value_words(change.before), self._value_words(change.after)
        return f"{change.name} {before} -> {after}"

    def _value_words(self, value: int | None) -> str:
        """Return a value of this field for people."""
        return str(value)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them; `from_dict` makes an equal change of them."""
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}  # type: ignore[arg-type]
        effect = fields["effect"] and fields["effect"].value
        return {**fields, "effect": effect, "file_id": list(fields["file_id"])}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Make a change from the result of `to_dict`, also after a round trip through JSON.

        Raises:
            ValueError: Other fields, which the message lists; or a value of another type.
        """
        known = {field.name: field for field in attrs.fields(cls)}  # type: ignore[arg-type]
        needed = {name for name, field in known.items() if field.default is attrs.NOTHING}
        if not isinstance(fields, dict) or not needed <= fields.keys() <= known.keys():
            found = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
            raise ValueError(f"a {cls.__name__} has the fields {sorted(known)}, not {found}")
        # JSON has texts and lists only.
        effect, file_id = fields.get("effect"), fields.get("file_id", (0, 0))
        file_id = tuple(file_id) if isinstance(file_id, list) else file_id
        made = cls(**{**fields, "effect": effect and Effect(effect), "file_id": file_id})
        made.check()
        return made

    def check(self) -> None:
        """Make sure that every field has a value that an edit can have returned.

        Not at each construction: that would cost a third of an edit.

        Raises:
            ValueError: The message names the field.
        """
        kind = type(self)
        for field in attrs.fields(kind):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            is_valid = _VALID.get((kind.__name__, field.name)) or _VALID["", field.name]
            try:
                is_valid(self, field, value)
            except (TypeError, ValueError):
                shown = ascii(value)[:40]
                raise ValueError(f"no {kind.__name__} has {field.name}={shown}") from None


# Treat as read-only. Not frozen, as its siblings: that costs 0.5 us of an edit's 3 us.
@attrs.define(unsafe_hash=True, weakref_slot=False)
class LimitChange(_Change):
    """One device's limit before and after an edit. ``str()`` of it is a sentence.

    A value: it pickles, and travels as JSON by `to_dict` and `from_dict`, so that another process
    can call `undo` on another day.

    Attributes:
        device: Index of the device (CUDA ordinal).
        before: Bytes or percent, None if it was unlimited.
        after: Bytes or percent, None if it is unlimited.
        effect: Whether running processes see it.
        kind: ``"memory"`` or ``"sm"``.
        path: The region's file.
        file_id: Device and inode of that file, by which `undo` recognises it.
        stored_before: The number in the file, for `undo`: an unlimited SM limit is 0, 100 or more
            there. None if it is not known; `undo` stores 100 then.
    """

    device: int
    before: int | None
    after: int | None
    effect: Effect
    kind: LimitKind
    path: str = attrs.field(default="", eq=False, repr=False)
    file_id: tuple[int, int] = attrs.field(default=(0, 0), eq=False, repr=False)
    stored_before: int | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def name(self) -> str:
        """Which limit it is, for people."""
        return f"device {self.device}: {'memory' if self.kind == 'memory' else 'SM'} limit"

    def _value_words(self, value: int | None) -> str:
        """Return a value of this limit for people."""
        if value is None:
            return UNLIMITED
        return format_limit(value) if self.kind == "memory" else f"{value} %"


@attrs.define(unsafe_hash=True, weakref_slot=False)
class ValueChange(_Change):
    """A field of the whole region before and after an edit. ``str()`` of it is a sentence.

    A value, as `LimitChange`.

    Attributes:
        field: ``priority``, ``utilization_switch``, ``recent_kernel`` or ``burst``.
        before: The raw value before; utilization_switch and burst are 0 or 1.
        after: The raw value now.
        effect: Whether running processes see it.
        path: The region's file.
        file_id: Device and inode of that file, by which `undo` recognises it.
    """

    field: str
    before: int
    after: int
    effect: Effect
    path: str = attrs.field(default="", eq=False, repr=False)
    file_id: tuple[int, int] = attrs.field(default=(0, 0), eq=False, repr=False)

    @property
    def name(self) -> str:
        """Which value it is, for people."""
        return self.field

    def _value_words(self, value: int | None) -> str:
        return str(value) if self.field != "burst" else "on" if value else "off"


@attrs.define(unsafe_hash=True, weakref_slot=False)
class SlotChange(_Change):
    """One value of a process slot before and after an edit. ``str()`` of it is a sentence.

    A value, as `LimitChange`.

    Attributes:
        pid: The process, in the container's namespace.
        field: ``host_pid``, ``status``, ``monitor_used_bytes``, or ``sm``, ``enc``, ``dec`` with
            ``_util_percent``.
        device: Index of the device, None if the value is not per device.
        before: The value before.
        after: The value now.
        effect: Of a status: whether the process obeys it. None for other values.
        path: The region's file.
        file_id: Device and inode of that file, by which `undo` recognises it.
    """

    pid: int
    field: str
    device: int | None
    before: int
    after: int
    effect: Effect | None = attrs.field(default=None, eq=False, repr=False)
    path: str = attrs.field(default="", eq=False, repr=False)
    file_id: tuple[int, int] = attrs.field(default=(0, 0), eq=False, repr=False)

    @property
    def name(self) -> str:
        """Which value it is, for people."""
        where = "" if self.device is None else f" on device {self.device}"
        return f"process {self.pid}: {self.field}{where}"


def _number(low: int, high: int) -> Any:
    def check(_: Any, __: Any, value: object) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ValueError

    return check


_LIMIT: Final = validators.optional(_number(1, 2**64 - 1))
_VALUE: Final = _number(-(2**31), 2**64 - 1)
# By class and field; for any class where the class is "".
_VALID: Final[dict[tuple[str, str], Any]] = {
    ("LimitChange", "device"): _number(0, DEVICE_CAPACITY - 1),
    ("LimitChange", "before"): _LIMIT,
    ("LimitChange", "after"): _LIMIT,
    ("SlotChange", "effect"): validators.optional(validators.instance_of(Effect)),
    ("ValueChange", "field"): validators.in_((*REGION_FIELDS.values(), "burst")),
    ("SlotChange", "field"): validators.in_(tuple(SLOT_FIELDS)),
    ("", "device"): validators.optional(_number(0, DEVICE_CAPACITY - 1)),
    ("", "before"): _VALUE,
    ("", "after"): _VALUE,
    ("", "effect"): validators.instance_of(Effect),
    ("", "kind"): validators.in_(("memory", "sm")),
    ("", "path"): validators.instance_of(str),
    ("", "file_id"): validators.and_(
        validators.deep_iterable(_number(0, 2**64 - 1), validators.instance_of(tuple)),
        validators.min_len(2),
        validators.max_len(2),
    ),
    ("", "stored_before"): validators.optional(_number(0, 2**64 - 1)),
    ("", "pid"): _number(1, 2**31 - 1),
}

#: The changes that edits return and `undo` takes.
Change: TypeAlias = LimitChange | ValueChange | SlotChange


def edit_changes(region: Handle, edits: Sequence[Any]) -> tuple[Any, ...]:
    """Return one change for each ``struct hr_edit`` that ``hr_edit`` has filled in."""
    changes: list[LimitChange | ValueChange] = []
    path, id_ = region.path, region.file_id
    for edit in edits:
        kind, device, old, new = edit.kind, edit.device, edit.before, edit.after
        effect = Effect.IMMEDIATE
        if kind == lib.HR_MEMORY:
            before, after = old or None, new or None
            changes.append(LimitChange(device, before, after, effect, "memory", path, id_, old))
        elif kind == lib.HR_SM:
            before, after = sm_limit_or_none(old), sm_limit_or_none(new)
            effect = Effect.NEW_PROCESSES
            if (before is None) != (after is None):
                effect = _launch_gate_effect(region.layout, edits)
            changes.append(LimitChange(device, before, after, effect, "sm", path, id_, old))
        else:
            if kind == lib.HR_SWITCH and region.layout is Layout.V1_1_POSTINIT:
                # 2.8.1 reads the switch at a process's start.
                effect = Effect.NEW_PROCESSES
            name = REGION_FIELDS[kind]
            changes.append(ValueChange(name, signed(old), signed(new), effect, path, id_))
    return tuple(changes)


def _launch_gate_effect(layout: Layout, edits: Sequence[Any]) -> Effect:
    """Return the effect of an edit that gives a device an SM limit, or takes it away.

    Up to HAMi 2.8.0 a running process checks at each launch whether device 0 has a limit, for all
    of its devices; the limit's height it remembers from its start.
    """
    for edit in edits if layout not in (Layout.V1_1_POSTINIT, Layout.V1_2) else ():
        if edit.kind == lib.HR_SM and edit.device == 0:
            limits = sm_limit_or_none(edit.before), sm_limit_or_none(edit.after)
            if limits.count(None) == 1:
                return Effect.STOPS_LAUNCHES if edit.stops_launches else Effect.IMMEDIATE
    return Effect.NEW_PROCESSES
