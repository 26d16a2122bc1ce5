"""Edits of a region: parsed, made in one call of the core, and returned as changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, SupportsIndex, TypeAlias, overload

import attrs

from ._core import ffi, lib
from ._handle import Handle
from .changes import ANYTHING, Anything, Effect, LimitChange, ValueChange, edit_changes
from .errors import NoSuchDevice, new_error
from .layouts import DEVICE_CAPACITY
from .models import device_indices, take_snapshot
from .units import integer, memory_limit_percent, memory_limit_value, sm_limit_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import TypedDict, Unpack

    CoreEdit = tuple[Any, ...]

    class _Options(TypedDict, total=False):
        expected: Limit | Anything
        force: bool
        dry_run: bool


#: A device by its index (CUDA ordinal) or its uuid.
Device: TypeAlias = "SupportsIndex | str"
#: A limit: bytes or percent, text such as "6GiB", "80%" or "unlimited"; None is unlimited.
Limit: TypeAlias = "SupportsIndex | str | None"

# Room for each value of each device: an edit of every device becomes one of each.
_ROOM: Final[int] = lib.HR_EDITS_MAX
_EDITS: Final = ffi.typeof(f"struct hr_edit[{_ROOM}]")
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
_UINT64_MAX: Final = (1 << 64) - 1


@attrs.frozen(kw_only=True)
class LimitEdit:
    """One edit for `Region.edit_limits`.

    Attributes:
        memory_limit: As `Region.set_memory_limit` takes it. Give one of the first three.
        sm_limit: As `Region.set_sm_limit` takes it.
        priority: As `Region.set_priority` takes it.
        device: Index (CUDA ordinal) or uuid of the device; None is every device of the region. A
            priority has none.
        expected: Change only if this is the present value, in the same language; None is
            unlimited. Left out: any value.

    Raises:
        ValueError, TypeError: As these methods; or not exactly one value.
    """

    memory_limit: int | str | Anything | None = ANYTHING
    sm_limit: int | str | Anything | None = ANYTHING
    priority: int | Anything = ANYTHING
    device: int | str | None = None
    expected: int | str | Anything | None = ANYTHING

    def __attrs_post_init__(self) -> None:
        _parse(self)


def _parse(edit: LimitEdit, region: Handle | None = None) -> CoreEdit:
    if not isinstance(edit, LimitEdit):
        raise TypeError(f"an edit is a LimitEdit, not {type(edit).__name__}")
    given = [edit.memory_limit, edit.sm_limit, edit.priority]
    if given.count(ANYTHING) != len(given) - 1:
        raise ValueError("a LimitEdit has one of memory_limit, sm_limit and priority")
    if edit.priority is ANYTHING:
        kind = lib.HR_MEMORY if edit.sm_limit is ANYTHING else lib.HR_SM
        limit: Any = edit.memory_limit if edit.sm_limit is ANYTHING else edit.sm_limit
        return limit_edit(kind, limit, edit.device, edit.expected, region)
    if edit.device is not None:
        raise ValueError("a priority is the whole region's; name no device")
    number = integer("a priority", edit.priority, 0, INT32_MAX)
    return field_edit(lib.HR_PRIORITY, number, edit.expected)


def limit_edit(
    kind: int,
    limit: Limit,
    device: Device | None,
    expected: Limit | Anything,
    region: Handle | None = None,
) -> CoreEdit:
    """Return the fields of a ``struct hr_edit`` for a limit; `region` is asked for uuids."""
    is_memory = kind == lib.HR_MEMORY
    stored = memory_limit_value if is_memory else sm_limit_value
    flags, compare, index = 0, 0, lib.HR_ALL_DEVICES
    if expected is not ANYTHING:
        flags, compare = lib.HR_EXPECT, stored(expected)
    value = memory_limit_percent(limit) if is_memory and isinstance(limit, str) else None
    if value is None:
        value = stored(limit)
    else:
        flags |= lib.HR_PERCENT
    if isinstance(device, str):
        index = index if region is None else find_device(region, device)
    elif device is not None:
        index = integer("a device", device)
        if not 0 <= index < DEVICE_CAPACITY:
            message = f"a device is 0 to {DEVICE_CAPACITY - 1}, not {device}"
            raise NoSuchDevice(message, device=index)
    return kind, index, flags, 0, value, compare


def field_edit(kind: int, value: int, expected: Any) -> CoreEdit:
    """Return the fields of a ``struct hr_edit`` for 32 bits of the whole region."""
    if expected is ANYTHING:
        return kind, 0, 0, 0, value & _UINT64_MAX, 0
    compare = integer("an expected value", expected, INT32_MIN, INT32_MAX)
    return kind, 0, lib.HR_EXPECT, 0, value & _UINT64_MAX, compare & _UINT64_MAX


def _switch(what: str, on: bool) -> int:
    if not isinstance(on, bool):
        raise TypeError(f"{what} is True or False, not {type(on).__name__}")
    return int(on)


def find_device(region: Handle, device: Device) -> int:
    """Return the index of a device of the region.

    Raises:
        NoSuchDevice: Neither an index nor a uuid of one.
    """
    if not isinstance(device, str):
        device = integer("a device", device)
        if device >= 0 and region._live(lib.HR_VALUE_DEVICES) >> device & 1:
            return device
    # Of a container that has not reported its devices, a snapshot may show more of them.
    return take_snapshot(region).device(device).index


class Edits(Handle):
    """The edits of a region."""

    __slots__ = ()

    @overload
    def set_memory_limit(
        self, limit: Limit, *, device: Device, **options: Unpack[_Options]
    ) -> LimitChange: ...
    @overload
    def set_memory_limit(
        self, limit: Limit, *, device: None = ..., **options: Unpack[_Options]
    ) -> tuple[LimitChange, ...]: ...
    def set_memory_limit(
        self,
        limit: Limit,
        *,
        device: Device | None = None,
        expected: Limit | Anything = ANYTHING,
        force: bool = False,
        dry_run: bool = False,
    ) -> LimitChange | tuple[LimitChange, ...]:
        """Change a memory limit, in running processes too: libvgpu reads it at each allocation.

        Args:
            limit: Bytes; text as `parse_size` takes it; "80%" of the present limit; None or
                "unlimited".
            device: Index or uuid; None means every device of the region (`device_indices`), all
                or none.
            expected: Change only if this is the present limit (compare-and-set); None is
                unlimited. Left out: any limit.
            force: Allow a limit below the memory in use, and any index from 0 to 15.
            dry_run: Check everything, change nothing.

        Returns:
            A `LimitChange` in bytes; without `device` a tuple, one per device.

        Raises:
            NoSuchDevice: The message lists the devices there are.
            LimitConflict: `expected` did not hold.
            LimitBelowUsage: The limit is below the memory in use, and `force` was not given.
            RegionReadOnly: Opened without ``writable=True``.
            ValueError: A limit of 0 (use None), a text that is no size, a percentage of unlimited.
            RegionStale, RegionCorrupt, RegionClosed: As `snapshot`.

        Source: docs, What a region is (What an edit changes, and when).

        Shell: ``hamiregion limits set FILE --memory 6GiB``.
        """
        edit = limit_edit(lib.HR_MEMORY, limit, device, expected, self)
        changes = self._edit([edit], force=force, dry_run=dry_run)
        return changes if device is None else changes[0]

    @overload
    def set_sm_limit(
        self, percent: Limit, *, device: Device, **options: Unpack[_Options]
    ) -> LimitChange: ...
    @overload
    def set_sm_limit(
        self, percent: Limit, *, device: None = ..., **options: Unpack[_Options]
    ) -> tuple[LimitChange, ...]: ...
    def set_sm_limit(
        self,
        percent: Limit,
        *,
        device: Device | None = None,
        expected: Limit | Anything = ANYTHING,
        force: bool = False,
        dry_run: bool = False,
    ) -> LimitChange | tuple[LimitChange, ...]:
        """Change an SM limit. `LimitChange.effect` says whether running processes see it.

        Up to HAMi 2.8.0 a limit on device 0 that had none is refused while processes run: a
        process that started without one may launch once more and then never again.

        Args:
            percent: 1 to 100, or text such as "50%"; None, "unlimited" and 100 are unlimited.
            device: Index or uuid; None means every device of the region (`device_indices`), all
                or none.
            expected: Change only if this is the present limit; None is unlimited. Left out: any
                limit.
            force: Allow a limit that stops running processes, and any index from 0 to 15.
            dry_run: Check everything, change nothing.

        Returns:
            A `LimitChange` in percent; without `device` a tuple, one per device.

        Raises:
            LaunchesWouldStop: The limit would stop running processes, and `force` was not given.
            NoSuchDevice, LimitConflict, RegionReadOnly, ValueError, RegionStale, RegionCorrupt,
            RegionClosed: As `set_memory_limit`.

        Source: docs, What a region is (What an edit changes, and when).

        Shell: ``hamiregion limits set FILE --sm 50``.
        """
        edit = limit_edit(lib.HR_SM, percent, device, expected, self)
        changes = self._edit([edit], force=force, dry_run=dry_run)
        return changes if device is None else changes[0]

    def edit_limits(
        self, edits: Iterable[LimitEdit], *, force: bool = False, dry_run: bool = False
    ) -> tuple[LimitChange | ValueChange, ...]:
        """Change several limits and the priority together: all or nothing.

        One call into the core checks all of them, then stores them in order, each by
        compare-and-swap; if one fails, those before it are put back. A reader may see the first
        without the last for some 100 ns, and that state stays if this process is killed then.

        Args:
            edits: The changes, each value of a device once; one without a device is of every
                device of the region.
            force: Allow all that `set_memory_limit` and `set_sm_limit` allow with it.
            dry_run: Check everything, change nothing.

        Returns:
            The changes in the order of the edits; one per device for an edit of every device.

        Raises:
            ValueError: The same value twice.
            NoSuchDevice, LimitConflict, LimitBelowUsage, LaunchesWouldStop, RegionReadOnly,
            RegionStale, RegionCorrupt, RegionClosed: As `set_memory_limit` and `set_sm_limit`.

        Source: docs, What a region is (What an edit changes, and when).
        """
        return self._edit([_parse(edit, self) for edit in edits], force=force, dry_run=dry_run)

    def _edit(
        self, edits: Sequence[CoreEdit], *, force: bool = False, dry_run: bool = False
    ) -> tuple[Any, ...]:
        """Make edits in one call of the core, all or none: every edit of a region is made here."""
        if len(edits) > _ROOM:
            raise ValueError(f"{self.path!r}: a region has at most {_ROOM} values")
        raw, error = ffi.new(_EDITS, edits), new_error()
        flags = (lib.HR_FORCE if force else 0) | (lib.HR_DRY_RUN if dry_run else 0)
        count = lib.hr_edit(self._handle, raw, len(edits), _ROOM, flags, error)
        if count == lib.HR_ENODEVICE:
            advice = f"; force=True sets any index from 0 to {DEVICE_CAPACITY - 1}"
            there = device_indices(self._live(lib.HR_VALUE_DEVICES))
            raise take_snapshot(self)._no_such_device(error.device, there, advice)
        return edit_changes(self, raw[0 : self._check(count, error)])

    def set_priority(
        self,
        n: SupportsIndex,
        *,
        expected: SupportsIndex | Anything = ANYTHING,
        dry_run: bool = False,
    ) -> ValueChange:
        """Set the region's priority: 0 is high, 1 is low. Read by HAMi's monitor.

        Args:
            n: The priority, a 32-bit number.
            expected: Change only if this is the present value (compare-and-set). Left out: any
                value.
            dry_run: Check everything, change nothing.

        Raises:
            ValueError: Not a 32-bit number, or negative.
            TypeError: Not an integer.
            LimitConflict: `expected` did not hold.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        number = integer("a priority", n, 0, INT32_MAX)
        return self._edit_field(field_edit(lib.HR_PRIORITY, number, expected), dry_run=dry_run)

    def set_utilization_switch(
        self, on: bool, *, expected: bool | Anything = ANYTHING, dry_run: bool = False
    ) -> ValueChange:
        """Switch SM limiting on or off.

        The environment's ``GPU_CORE_UTILIZATION_POLICY`` (force, disable) overrides it in its
        processes. HAMi's monitor sets this field every 5 s.

        Args:
            on: Whether SM limits hold.
            expected: As in `set_priority`.
            dry_run: Check everything, change nothing.

        Raises:
            LimitConflict: `expected` did not hold; a damaged value is neither.
            TypeError: Neither True nor False.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.
        """
        compare = ANYTHING if isinstance(expected, Anything) else _switch("expected", expected)
        edit = field_edit(lib.HR_SWITCH, _switch("the utilisation switch", on), compare)
        return self._edit_field(edit, dry_run=dry_run)

    def set_recent_kernel(
        self,
        n: SupportsIndex,
        *,
        expected: SupportsIndex | Anything = ANYTHING,
        dry_run: bool = False,
    ) -> ValueChange:
        """Set the launch mark: 2 as after a launch, -1 blocks launches of SM-limited processes.

        HAMi's monitor sets this field every 5 s. To count it down, give `expected`, so that no
        launch in between is lost.

        Raises:
            ValueError: Not a 32-bit number, or below -1.
            TypeError, LimitConflict, RegionReadOnly, RegionStale, RegionClosed: As `set_priority`.
        """
        mark = integer("the launch mark", n, -1, INT32_MAX)
        return self._edit_field(field_edit(lib.HR_RECENT_KERNEL, mark, expected), dry_run=dry_run)

    def _edit_field(self, edit: CoreEdit, *, dry_run: bool) -> ValueChange:
        change: ValueChange = self._edit([edit], dry_run=dry_run)[0]
        return change

    def set_burst(self, on: bool, *, dry_run: bool = False) -> ValueChange:
        """Lift the SM limits of programs of `hamiregion run` while no other program wants the GPU.

        Running programs see it within half a second. libvgpu's processes are held to the limits.
        The mark is kept behind the structure that libvgpu maps; setting it
        makes the file some bytes longer.

        Args:
            on: Whether the limits are lifted then.
            dry_run: Check everything, change nothing.

        Raises:
            TypeError: Neither True nor False.
            ValueError: The layout is older than 1.1.
            RegionReadOnly, RegionStale, RegionClosed: As `set_memory_limit`.

        Shell: ``hamiregion limits set FILE --burst``.
        """
        to, error = _switch("burst", on), new_error()
        code = lib.hr_set_burst(self._handle, to, lib.HR_DRY_RUN if dry_run else 0, error)
        if code == lib.HR_EINVAL:
            raise ValueError(f"a region of layout {self.layout.value} has no room for burst")
        before = self._check(code, error)
        return ValueChange("burst", before, to, Effect.IMMEDIATE, self.path, self.file_id)
