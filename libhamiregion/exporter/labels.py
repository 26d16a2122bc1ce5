"""Label sets, escaped once and kept: most of what a scrape sends is the same each time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .metrics import MetricFamily

T = TypeVar("T")

#: Stands in a text where a figure comes. No label holds it: `safe_value` spells controls out.
FIGURE = b"\0"

# Names of Kubernetes have 253 characters at most: none of those is cut.
_VALUE_LIMIT = 253


def safe_value(text: str) -> str:
    r"""A label's value from outside: one line of printable characters, not too long.

    >>> safe_value("a\nb")
    'a\\nb'
    """
    return printable(text, _VALUE_LIMIT)


#: The labels of one series as a sample line has them, braces included; `FIGURE` stands where a
#: value is a figure. Nothing else is kept of them: there are thousands.
Labels: TypeAlias = bytes

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def read_labels(labels: Labels) -> dict[str, str]:
    r"""The names and values in such a text.

    >>> read_labels(b'{pod="a\\"b",zone="vGPU"}')
    {'pod': 'a"b', 'zone': 'vGPU'}
    """
    return {
        name: _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        for name, value in _LABEL.findall(labels.decode())
    }


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


class LabelMaker:
    """Makes the labels of one family, or of several with the same names.

    Args:
        family: Whose names and constant labels to use.
        figures: How many of the last names have figures as their values.
    """

    def __init__(self, family: MetricFamily, *, figures: int = 0) -> None:
        self._taken = len(family.labels) - figures
        pieces = [f'{name}="' for name in family.labels[: self._taken]]
        marker = FIGURE.decode()
        rest = [(name, marker) for name in family.labels[self._taken :]] + list(family.constant)
        end = ",".join(f'{name}="{value}"' for name, value in rest)
        self._pieces = ["{" + pieces[0], *('",' + piece for piece in pieces[1:])] if pieces else []
        self._end = ('",' if pieces else "{") + end + "}" if end else '"}' if pieces else ""

    def __call__(self, *values: str) -> Labels:
        """The labels with these values, which have been through `safe_value` if from outside."""
        if len(values) != self._taken:
            raise ValueError(f"{self._taken} values are wanted, not {len(values)}")
        text = "".join(
            piece + _escaped(value) for piece, value in zip(self._pieces, values, strict=True)
        )
        return (text + self._end).encode()


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def distinct(rows: Sequence[tuple[Labels, T]]) -> list[tuple[Labels, T]]:
    """The rows without those whose labels stand there already: Prometheus takes no series twice."""
    seen: set[bytes] = set()
    kept = []
    for row in rows:
        if row[0] not in seen:
            seen.add(row[0])
            kept.append(row)
    return kept
