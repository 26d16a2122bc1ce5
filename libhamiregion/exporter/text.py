"""From series to Prometheus' text format 0.0.4."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.units import UNLIMITED_SM_PERCENT

from .families import INFO, LIMIT_RATIO, NEGATIVE, REAL, SIGNED, SINCE, WHOLE
from .labels import LabelRows, label_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .families import MetricFamily, WriteAs

#: The content type of `NodeExporter.render`.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: In the rows of a series: no sample.
NO_ROW: Final = 2**32 - 1
_NO_CELLS: Final = array("Q")


@attrs.frozen(eq=False)
class Series:
    """Series of one family at one moment.

    Attributes:
        family: The family.
        labels: One label text per series.
        cells: The numbers, 64 bits each, as `family.write_as` has them.
        rows: The cell of each series, or `NO_ROW` where it has no sample; None means its own
            number.
        suffix: Of the samples' name: ``_sum`` and ``_count`` of a summary.
        write_as: How a cell becomes a number, where that is not the family's way.
    """

    family: MetricFamily
    labels: LabelRows
    cells: Any = _NO_CELLS
    rows: array[int] | None = None
    suffix: str = ""
    write_as: WriteAs | None = None

    @classmethod
    def of(cls, family: MetricFamily, values: Mapping[bytes, float]) -> Series:
        """Series from label text to number; a mapping, since no series may stand there twice."""
        cells = array("d" if family.write_as == REAL else "Q", values.values())
        return cls(family, LabelRows(list(values)), cells)

    def samples(self, now_s: int) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and number of each sample; the mappings are shared and not to be changed."""
        family, cells, count = self.family, self.cells, len(self.cells)
        named = self.labels.named(family)
        if family.write_as == INFO:
            yield from ((labels, 1.0) for labels in named)
            return
        rows = range(len(named)) if self.rows is None else self.rows
        if family.write_as in (WHOLE, SIGNED, REAL):
            found = cells.tolist()
            yield from (
                (labels, found[row]) for labels, row in zip(named, rows, strict=True) if row < count
            )
            return
        for labels, row in zip(named, rows, strict=True):
            number = family.number(cells[row], now_s) if row < count else None
            if number is not None:
                yield labels, number


class TextEncoder:
    """Writes series as text; keeps the comment lines of each family.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._heads: dict[tuple[MetricFamily, str], tuple[bytes, bytes, bytes]] = {}

    def pieces(self, series: Iterable[Series], now_s: int) -> Iterator[bytes]:
        """The text, in a piece for each of the series that have samples.

        Args:
            series: Those of one family follow each other.
            now_s: The time, Unix seconds.
        """
        begun = None
        for each in series:
            before, head, tail = self._head(each.family, each.suffix)
            lines = b"".join(
                [
                    b"%b%b%b%b\n" % (head, labels, tail, number)
                    for labels, number in _cells(each, now_s)
                ]
            )
            if lines:
                yield lines if each.family is begun else before + lines
                begun = each.family

    def _head(self, family: MetricFamily, suffix: str) -> tuple[bytes, bytes, bytes]:
        key = (family, suffix)
        found = self._heads.get(key)
        if found is None:
            name = family.name
            meaning = family.help.replace("\\", r"\\").replace("\n", r"\n")
            before = f"# HELP {name} {meaning}\n# TYPE {name} {family.kind}\n"
            more = dict(family.constant)
            constant = label_text(tuple(more), *more.values()).decode()
            comma = "," if family.labels and more else ""
            has_labels = bool(family.labels or more)
            head = f"{family.name}{suffix}{'{' if has_labels else ' '}"
            tail = f"{comma}{constant}}} " if has_labels else ""
            found = self._heads[key] = before.encode(), head.encode(), tail.encode()
        return found


def _cells(series: Series, now_s: int) -> Iterator[tuple[bytes, bytes]]:
    """Label text and number of each sample."""
    texts, write_as = series.labels.texts, series.write_as or series.family.write_as
    if write_as == INFO:
        yield from ((text, b"1") for text in texts)
        return
    numbers = [_number(write_as, cell, now_s) for cell in series.cells.tolist()]
    rows = range(len(texts)) if series.rows is None else series.rows
    for text, row in zip(texts, rows, strict=True):
        number = numbers[row] if row < len(numbers) else None
        if number is not None:
            yield text, number


def _number(write_as: WriteAs, cell: float, now_s: int) -> bytes | None:
    """The number that the text has for a cell; None if it has no sample."""
    if write_as in (WHOLE, SIGNED):
        return b"%d" % cell
    if write_as == REAL:
        return _real(cell)
    if write_as == SINCE:
        return b"%d" % max(0, now_s - cell) if cell else None
    if write_as == NEGATIVE:
        return b"1" if cell < 0 else b"0"
    if write_as == LIMIT_RATIO and not 0 < cell < UNLIMITED_SM_PERCENT:
        return None
    return _real(cell / 100)


def _real(number: float) -> bytes:
    if not math.isfinite(number):
        return b"NaN" if math.isnan(number) else b"+Inf" if number > 0 else b"-Inf"
    return b"%d" % number if number.is_integer() and abs(number) < 2**53 else repr(number).encode()
