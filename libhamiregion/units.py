"""Numbers, sizes, limits and durations as people write them, and as libvgpu reads them.

Two notations that look alike and are not: `parse_size` is strict and decimal;
`limits_from_environment` repeats what libvgpu does with the same text, down to its octal numbers
and its silence about garbage.
"""

from __future__ import annotations

import re
from operator import index
from typing import TYPE_CHECKING, Final, Literal, SupportsIndex, TypeAlias

import attrs

from .layouts import DEVICE_CAPACITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A signed 64-bit byte count: what every consumer of these numbers can hold.
MAX_SIZE_BYTES: Final = 2**63 - 1

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_EXPONENTS: Final = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}

# [0-9], not \d, which also takes the digits of other scripts.  The bounds keep a text of a megabyte
# from becoming a number of a megabyte; 2**63 has 19 digits.
_SIZE: Final = re.compile(
    r"(?P<whole>[0-9]{1,64})(?:\.(?P<fraction>[0-9]{1,64}))?\s*(?P<unit>b|[kmgt](?:ib?)?|)",
    re.ASCII | re.IGNORECASE,
)

#: Text that means no limit; None means the same.
UNLIMITED: Final = "unlimited"

#: Bytes.
MIB: Final = 2**20
GIB: Final = 2**30

#: What libvgpu stores for "no SM limit"; 0 and whatever is above mean the same to it.
UNLIMITED_SM_PERCENT: Final = 100

# What fits a field of limits.  libvgpu takes -1 from the environment for the largest.
_MAX_BYTES: Final = 2**64 - 1

_ZERO: Final = 'a memory limit of 0 would mean unlimited; say "unlimited" for that'

# No percentage of a limit that anybody means has more digits.
_PERCENT: Final = re.compile(r"(?P<number>[0-9]{1,6})\s*%", re.ASCII)
_SM: Final = re.compile(r"(?P<number>[0-9]{1,3})\s*%?", re.ASCII)


def integer(
    name: str, value: SupportsIndex, low: int | None = None, high: int | None = None
) -> int:
    """Take a whole number: anything with `__index__`, such as numpy's integers, but no bool.

    Args:
        name: The name of the number, for the message.
        value: The number.
        low: The least that it may be; None for no bound.
        high: The most that it may be; None for no bound.

    Raises:
        TypeError: bool, float, Decimal, Fraction, text or anything else that is no integer.
        ValueError: Out of range.
    """
    if type(value) is int:
        number = value
    # By name: numpy need not be there. Its bool of 2.2 has __index__, which only warns.
    elif hasattr(value, "__index__") and type(value).__name__ not in {"bool", "bool_"}:
        number = index(value)
    else:
        raise TypeError(f"{name} is an integer, not {type(value).__name__}")
    if (low is not None and number < low) or (high is not None and number > high):
        shown = number if abs(number) < 10**40 else "that number"
        allowed = f"{low} or above" if high is None else f"{low} to {high}"
        raise ValueError(f"{name} is {allowed}, not {shown}")
    return number


def memory_limit_value(limit: SupportsIndex | str | None) -> int:
    """Turn a memory limit into bytes as a region stores them: 0 if it is unlimited.

    Args:
        limit: Bytes; text as `parse_size` takes it; "unlimited" or None.

    Raises:
        ValueError: No size, or 0, which would mean unlimited.
        TypeError: Neither text nor an integer.
    """
    if limit is None or (isinstance(limit, str) and _says_unlimited(limit)):
        return 0
    if not isinstance(limit, str):
        nbytes = integer('a memory limit in bytes, or text such as "6GiB",', limit, 0, _MAX_BYTES)
    elif memory_limit_percent(limit) is not None:
        raise ValueError(
            f'"{limit.strip()}" of what? There is no limit here yet: give bytes, or "6GiB"'
        )
    else:
        nbytes = parse_size(limit)
    if nbytes == 0:
        raise ValueError(_ZERO)
    return nbytes


def memory_limit_percent(limit: object) -> int | None:
    """Return the number of a memory limit such as "80%" (of the one there is); None if it is none.

    Raises:
        ValueError: 0%.
    """
    match = _PERCENT.fullmatch(limit.strip()) if isinstance(limit, str) else None
    if match is None:
        return None
    percent = int(match["number"])
    if percent == 0:
        raise ValueError(_ZERO)
    return percent


def sm_limit_value(percent: SupportsIndex | str | None) -> int:
    """Turn an SM limit into percent as a region stores it: 100 if it is unlimited.

    Args:
        percent: 1 to 100; text such as "50%"; "unlimited" or None.

    Raises:
        ValueError: Not 1 to 100.
        TypeError: Neither text nor an integer.
    """
    if percent is None or (isinstance(percent, str) and _says_unlimited(percent)):
        return UNLIMITED_SM_PERCENT
    if isinstance(percent, str):
        match = _SM.fullmatch(percent.strip())
        number = int(match["number"]) if match else 0
    else:
        number = integer('an SM limit in percent, or text such as "50%",', percent)
    if not 1 <= number <= UNLIMITED_SM_PERCENT:
        shown = ascii(percent)[:40]
        raise ValueError(f'an SM limit is 1 to 100 percent, or "unlimited", not {shown}')
    return number


def sm_limit_or_none(percent: int) -> int | None:
    """A stored SM limit in percent; None if it is unlimited."""
    return percent if 0 < percent < UNLIMITED_SM_PERCENT else None


def _says_unlimited(limit: str) -> bool:
    return limit.strip().lower() == UNLIMITED


def parse_size(size: str | SupportsIndex) -> int:
    """Turn a size such as "6GiB" into bytes.

    Units are binary in either case: `k`, `m`, `g`, `t`, as HAMi writes them, and the same with `i`
    or `iB`; no unit, or `B`, means bytes.  `3000m` is 3000 MiB, never a thousandth of something.  A
    decimal fraction of a unit is taken down to a whole byte.  `GB` is refused: it means 10**9 to
    some and 2**30 to others.

    Args:
        size: Text, or a number of bytes.

    Returns:
        Bytes, from 0 to 2**63 - 1.

    Raises:
        ValueError: Not a size, negative, too large, or a fraction of a byte.
        TypeError: Neither text nor an integer; `bool` and `float` are neither.

    >>> parse_size("6GiB"), parse_size("3000m"), parse_size("1.5 Gi"), parse_size(12345)
    (6442450944, 3145728000, 1610612736, 12345)
    >>> parse_size("6GB")
    Traceback (most recent call last):
    ...
    ValueError: "6GB" is not a size: write bytes, or a number with a unit, such as "6GiB" or \
"3000m" ("GB" may mean powers of 1000 or of 1024)
    """
    if not isinstance(size, str):
        return integer('a size that is no text such as "6GiB"', size, 0, MAX_SIZE_BYTES)
    text = size
    # Sizes arrive from files and command lines of others; a message must not carry all of it.
    shown = ascii(text if len(text) <= 40 else text[:40] + "...").replace("'", '"')
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped)
    if match is None:
        raise ValueError(
            f'{shown} is not a size: write bytes, or a number with a unit, such as "6GiB" or '
            '"3000m" ("GB" may mean powers of 1000 or of 1024)'
        )
    unit = 1024 ** _EXPONENTS[match["unit"][:1].lower()]
    fraction = match["fraction"] or ""
    # Integers throughout: a float would round sizes beyond 2**53.
    scaled = int(match["whole"] + fraction) * unit
    nbytes: int
    nbytes, rest = divmod(scaled, 10 ** len(fraction))
    if rest and unit == 1:
        raise ValueError(f"{shown} is not a whole number of bytes: give a unit")
    if nbytes > MAX_SIZE_BYTES:
        raise ValueError(f"{shown} is too large for a size: the most is 2**63 - 1 bytes")
    return nbytes


def format_size(nbytes: SupportsIndex) -> str:
    """Show a number of bytes to people.

    An exact multiple of its unit has no fraction, so "6 GiB" is exact and "6.0 GiB" is near it.
    `parse_size` reads the exact ones back.

    Args:
        nbytes: Bytes, not negative.

    Raises:
        ValueError: The number is negative.
        TypeError: It is not an integer.

    >>> format_size(6 * 2**30), format_size(6 * 2**30 + 1), format_size(1500), format_size(0)
    ('6 GiB', '6.0 GiB', '1.5 KiB', '0 B')
    """
    number = integer("a number of bytes", nbytes, 0)
    unit = 1
    for name in _UNITS:
        whole, rest = divmod(number, unit)
        tenths = (10 * number + unit // 2) // unit
        # 1023.96 MiB would round to "1024.0 MiB", which is not a usual size.
        if tenths < 10240 or name == _UNITS[-1]:
            break
        unit *= 1024
    return f"{tenths // 10}.{tenths % 10} {name}" if rest else f"{whole} {name}"


def format_limit(nbytes: SupportsIndex) -> str:
    """Show a memory limit so that `parse_size` reads exactly this number.

    Args:
        nbytes: Bytes, not negative.

    Raises:
        ValueError: The number is negative.
        TypeError: It is not an integer.

    >>> format_limit(6 * 2**30), format_limit(parse_size("4.2GiB")), format_limit(6 * 2**30 + 1)
    ('6 GiB', '4.2 GiB', '6442450945 B')
    """
    number = integer("a number of bytes", nbytes, 0)
    for exponent in range(len(_UNITS) - 1, 0, -1):
        unit = 1024**exponent
        # A fraction only in the unit that `format_size` takes.
        for digits in range(number >= unit and (4 if number < unit * 1024 else 1)):
            # Rounded up, since `parse_size` rounds down.
            scaled = -(-number * 10**digits // unit)
            if scaled * unit // 10**digits == number:
                text = f"{scaled:0{digits + 1}}"
                whole, fraction = text[: len(text) - digits], text[len(text) - digits :]
                return f"{whole}{'.' if fraction else ''}{fraction} {_UNITS[exponent]}"
    return f"{number} B"


#: A memory limit below is a mistake, such as 6 KiB where 6 GiB was meant, unless it is forced.
MIN_MEMORY_LIMIT_BYTES: Final = 16 << 20


def typed_memory_limit(limit: str, force: str | None = None) -> str:
    """Check a memory limit that a person has typed, and return it.

    Args:
        limit: As `parse_size` takes it, but with a unit: plain numbers are MiB in HAMi, bytes here.
        force: How a limit below 16 MiB can be forced, for the message; None if it may be as low.

    Raises:
        ValueError: It has no unit, or is too low.
    """
    text = limit.strip()
    # 0 has an error of its own. Longer numbers, as of damaged regions, are no MiB.
    if re.fullmatch(r"[0-9.]{1,18}", text, re.ASCII) and text.strip("0."):
        raise ValueError(f"{ascii(text)[:40]} is no memory limit: give a unit: 6GiB, 6000MiB")
    match = _SIZE.fullmatch(text)
    has_unit = match is not None and match["unit"]
    if has_unit and force is not None and 0 < parse_size(text) < MIN_MEMORY_LIMIT_BYTES:
        raise ValueError(f"{ascii(text)[:40]} is below 16 MiB, less than CUDA needs{force}")
    return limit


_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|[smhdw])", re.ASCII)


def parse_duration(text: str) -> float:
    """Turn a length of time such as "5m" into seconds.

    One or more numbers, each with its unit: ``ms``, ``s``, ``m``, ``h``, ``d`` (24 hours) or ``w``,
    as in Go and Prometheus. A number without a unit is refused, except ``0``.

    Raises:
        ValueError: Not a length of time, or negative.

    >>> parse_duration("5m"), parse_duration("1h30m"), parse_duration("1.5s"), parse_duration("7d")
    (300.0, 5400.0, 1.5, 604800.0)
    >>> parse_duration("5")
    Traceback (most recent call last):
    ...
    ValueError: '5' is no length of time such as 30s, 5m or 1h30m
    """
    parts = _DURATION_PART.findall(text)
    if text != "0" and (not parts or "".join(map("".join, parts)) != text):
        shown = ascii(text if len(text) <= 40 else text[:40] + "...")
        raise ValueError(f"{shown} is no length of time such as 30s, 5m or 1h30m")
    return sum((float(number) * _UNITS_S[unit] for number, unit in parts), 0.0)


@attrs.frozen
class EnvironmentLimits:
    """The limits that libvgpu reads from an environment when it creates a region.

    Attributes:
        memory_limits_bytes: 16 entries, one per CUDA ordinal; None where unlimited.
        sm_limits_percent: 16 entries as well, 1 to 99; None where unlimited (0, 100 and above).
    """

    memory_limits_bytes: tuple[int | None, ...]
    sm_limits_percent: tuple[int | None, ...]


#: The releases of HAMi whose readings of the variables differ: up to 2.10, and from 2.11 on.
HamiVersion: TypeAlias = Literal["2.10", "2.11"]
_MEMORY_VARIABLE: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_SM_VARIABLE: Final = "CUDA_DEVICE_SM_LIMIT"


def limits_from_environment(
    env: Mapping[str, str], *, hami_version: HamiVersion | None = None
) -> EnvironmentLimits:
    """Read the limits that an environment gives to a container, by libvgpu's own rules.

    For device i `CUDA_DEVICE_MEMORY_LIMIT_<i>` counts, where it is missing or comes to 0
    `CUDA_DEVICE_MEMORY_LIMIT`, else there is no limit; `CUDA_DEVICE_SM_LIMIT` works alike. There
    are two readings of a value, and garbage is 0 in both, never an error:

    - HAMi 2.4.0 to 2.10: what `strtoul` with base 0 reads from its beginning, so `010` is 8, `0x10`
      is 16 and `6.5g` is 6 GiB, times 2**10, 2**20 or 2**30 where the value *ends* in k, m or g of
      either case: `6GiB` is 6 bytes.
    - From 2.11 on: decimal digits, for memory with a unit K, M or G, also as `Ki` or `KiB`, and
      with a fraction before it: `6.5g` is 6.5 GiB, `6GiB` 6 GiB, `010` 10 and `0x10` garbage. An SM
      limit may end in `%`, and loses its fraction.

    A region keeps the limits of its creator.  Processes that start later with another environment
    do not change them.

    Args:
        env: `os.environ`, or the environment of a container.
        hami_version: Which reading: ``"2.10"`` or ``"2.11"``. None means either, if they agree.

    Raises:
        ValueError: The readings differ, and `hami_version` is None; the message has both. Or it is
            another version.

    Source: docs, What a region is (What decides what).

    Shell: `env | grep '^CUDA_DEVICE_.*_LIMIT'`.

    >>> limits = limits_from_environment(
    ...     {"CUDA_DEVICE_MEMORY_LIMIT": "3000m", "CUDA_DEVICE_SM_LIMIT_1": "50"}
    ... )
    >>> limits.memory_limits_bytes[:2], limits.sm_limits_percent[:3]
    ((3145728000, 3145728000), (None, 50, None))
    """
    if hami_version is not None:
        if hami_version not in _READINGS:
            raise ValueError(f"hami_version is {' or '.join(_READINGS)}, not {hami_version!r}")
        memory, sm = _READINGS[hami_version]
        return EnvironmentLimits(
            tuple(limit or None for limit in _per_device(env, _MEMORY_VARIABLE, memory)),
            tuple(sm_limit_or_none(limit) for limit in _per_device(env, _SM_VARIABLE, sm)),
        )
    old, new = (limits_from_environment(env, hami_version=each) for each in _READINGS)
    for name, unit, before, after in (
        (_MEMORY_VARIABLE, " bytes", old.memory_limits_bytes, new.memory_limits_bytes),
        (_SM_VARIABLE, "%", old.sm_limits_percent, new.sm_limits_percent),
    ):
        for device, both in enumerate(zip(before, after, strict=True)):
            if both[0] != both[1]:
                own = f"{name}_{device}"
                first, second = (UNLIMITED if each is None else f"{each}{unit}" for each in both)
                shown = ", ".join(
                    f"{each}={env[each]!a:.40}" for each in (own, name) if each in env
                )
                raise ValueError(
                    f"device {device} gets {first} up to HAMi 2.10 and {second} from 2.11 on"
                    f" ({shown}): hami_version says which of them creates the region"
                )
    return old


def _per_device(env: Mapping[str, str], name: str, read: Callable[[str], int]) -> list[int]:
    def value_of(variable: str) -> int:
        # An environment cannot hold a NUL; C would stop there if somebody's mapping does.
        found = read(env.get(variable, "").partition("\0")[0])
        return found if found < 2**64 else 0

    fallback = value_of(name)
    return [value_of(f"{name}_{device}") or fallback for device in range(DEVICE_CAPACITY)]


# In both cases: lower() would make a k of the Kelvin sign.
_SCALARS: Final = {"k": 2**10, "K": 2**10, "m": 2**20, "M": 2**20, "g": 2**30, "G": 2**30}
# isspace() of C, and no digits of other scripts.
_MEMORY_2_11: Final = re.compile(
    r"[ \t-\r]*([0-9]{1,64})(?:(?:\.([0-9]{1,64}))?[ \t-\r]*([kmg])i?b?|[ \t-\r]*b?)",
    re.ASCII | re.IGNORECASE,
)
_SM_2_11: Final = re.compile(r"[ \t-\r]*([0-9]{1,64})(?:\.[0-9]*)?%?")


def _value_2_10(value: str) -> int:
    return _strtoul(value) * _SCALARS.get(value[-1:], 1)


def _memory_2_11(value: str) -> int:
    match = _MEMORY_2_11.fullmatch(value)
    if match is None:
        return 0
    whole, fraction, unit = match.groups(default="")
    scaled = int(whole + fraction) * _SCALARS.get(unit, 1)
    return scaled // int("1" + "0" * len(fraction))


def _sm_2_11(value: str) -> int:
    match = _SM_2_11.fullmatch(value)
    return 0 if match is None else int(match[1])


# How each release reads a memory limit and an SM limit.
_READINGS: Final[dict[HamiVersion, tuple[Callable[[str], int], Callable[[str], int]]]] = {
    "2.10": (_value_2_10, _value_2_10),
    "2.11": (_memory_2_11, _sm_2_11),
}


def _strtoul(text: str) -> int:
    """Convert as C's `strtoul(text, NULL, 0)`, by which libvgpu reads the variables."""
    import ctypes

    strtoul = ctypes.CDLL(None).strtoul
    strtoul.restype = ctypes.c_ulong
    strtoul.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]
    number: int = strtoul(text.encode("utf-8", "surrogateescape"), None, 0)
    return number
