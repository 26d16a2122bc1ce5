"""The limits of a run, one per device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, TypeVar

from libhamiregion.units import (
    memory_limit_percent,
    memory_limit_value,
    sm_limit_or_none,
    sm_limit_value,
)

from .errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .nvml import Gpu
    from .selection import Selection

#: One limit: a number, text in the language of limits, or None for unlimited.
Limit: TypeAlias = "SupportsIndex | str | None"
#: A limit for all devices, or limits by device: index or uuid, and None for all others.
Limits: TypeAlias = "Limit | Mapping[int | str | None, Limit]"

Value = TypeVar("Value")


def check_limits(memory_limit: Limits, sm_limit: Limits) -> None:
    """Check limits without asking the machine.

    Raises:
        ValueError, TypeError: One of them is no limit.
    """
    for limit in _by_device(memory_limit).values():
        if memory_limit_percent(limit) is None:
            memory_limit_value(limit)
    for limit in _by_device(sm_limit).values():
        sm_limit_value(limit)


def memory_limits(limits: Limits, selection: Selection) -> tuple[int | None, ...]:
    """Convert memory limits into bytes, one per device; None if unlimited.

    Args:
        limits: Bytes or text such as "4GiB", "80%" (of the GPU's memory) or "unlimited".
        selection: The GPUs that the program sees.

    Raises:
        ValueError, TypeError: No limit.
        LaunchError: A device that the program does not see.
    """

    def one(limit: Limit, gpu: Gpu) -> int | None:
        percent = memory_limit_percent(limit)
        if percent is not None and gpu.memory_bytes is None:
            raise LaunchError(
                f"GPU {gpu.index} shares the host's memory (unified memory), so {percent}% of its "
                "memory is not known; give a size, such as --memory 4GiB"
            )
        if percent is not None and gpu.memory_bytes is not None:
            return max(1, gpu.memory_bytes * percent // 100)
        return memory_limit_value(limit) or None

    return _each(limits, selection, one)


def sm_limits(limits: Limits, selection: Selection) -> tuple[int | None, ...]:
    """Convert SM limits into percent, one per device; None if unlimited.

    Args:
        limits: 1 to 100, "50%" or "unlimited".
        selection: The GPUs that the program sees.

    Raises:
        ValueError, TypeError: No limit.
        LaunchError: A device that the program does not see, or one whose time cannot be limited.
    """
    found = _each(limits, selection, lambda limit, _: sm_limit_or_none(sm_limit_value(limit)))
    for gpu, limit in zip(selection.gpus, found, strict=True):
        if limit is not None and (gpu.mig or on_wsl()):
            place = f"on {gpu.uuid}, a MIG device whose size is its limit," if gpu.mig else "on WSL"
            raise LaunchError(
                f"{place} the driver does not tell what each process uses, so that no SM limit can "
                "be held; leave out --sm"
            )
    return found


def on_wsl() -> bool:
    """Whether this is Linux inside Windows."""
    return "microsoft" in os.uname().release.lower()


def _by_device(limits: Limits) -> Mapping[int | str | None, Limit]:
    return limits if isinstance(limits, Mapping) else {None: limits}


def _each(
    limits: Limits, selection: Selection, one: Callable[[Limit, Gpu], Value]
) -> tuple[Value | None, ...]:
    gpus, by_device = selection.gpus, _by_device(limits)
    found: list[Value | None] = [one(by_device.get(None), gpu) for gpu in gpus]
    for device, limit in by_device.items():
        if device is not None:
            index = selection.named(device)
            found[index] = one(limit, gpus[index])
    return tuple(found)
