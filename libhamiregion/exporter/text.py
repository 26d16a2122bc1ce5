"""From series to text: the formats of Prometheus (0.0.4) and OpenMetrics (1.0).

The core writes the lines, piece by piece; see csrc/samples.h.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion._core import ffi, lib

from .families import INFO, REAL, SIGNED, WHOLE
from .labels import LabelRows, label_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .families import MetricFamily

#: The content type of `NodeExporter.render`.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: The content type of ``NodeExporter.render(openmetrics=True)``.
OPENMETRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

NO_ROW: Final[int] = lib.HR_NO_ROW
#: Large enough for any line, small enough to stay in a processor's cache.
PIECE_BYTES: Final = 128 * 1024
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
    write_as: int | None = None

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

    Args:
        constant: What every sample of a family has beside its labels.
    """

    def __init__(
        self, constant: Callable[[MetricFamily], Mapping[str, str]] = lambda _: {}
    ) -> None:
        self._constant = constant
        self._heads: dict[tuple[MetricFamily, str, bool], tuple[Any, Any, Any]] = {}

    def pieces(
        self, series: Iterable[Series], now_s: int, *, openmetrics: bool = False
    ) -> Iterator[memoryview]:
        """The text in pieces, which share one buffer: use each before you ask for the next.

        Families without a sample are left out.

        Args:
            series: Those of one family stand together.
            now_s: The time, Unix seconds.
            openmetrics: Which of the two formats.
        """
        given = list(series)
        native = ffi.new("struct hr_samples[]", len(given))
        # What the pointers lead to has to live until the text is written.
        kept = [self._fill(native[i], each, now_s, openmetrics) for i, each in enumerate(given)]
        place = ffi.new("struct hr_place_in_text *")
        buffer = bytearray(PIECE_BYTES)
        out, view = ffi.from_buffer(buffer), memoryview(buffer)
        while place.samples < len(given):
            size = lib.hr_write_samples(native, len(given), place, out, PIECE_BYTES)
            if size:
                yield view[:size]
            elif place.samples < len(given):
                raise ValueError(f"a line of {given[place.samples].family.name} is too long")
        if openmetrics:
            yield memoryview(b"# EOF\n")
        del kept

    def _fill(self, native: Any, series: Series, now_s: int, openmetrics: bool) -> object:
        family, labels, rows = series.family, series.labels, series.rows
        before, head, tail = self._head(family, series.suffix, openmetrics)
        text, ends = ffi.from_buffer(labels.text), ffi.from_buffer("uint32_t[]", labels.ends)
        cells = ffi.from_buffer(series.cells)
        at = ffi.NULL if rows is None else ffi.from_buffer("uint32_t[]", rows)
        native.before, native.before_bytes = before, len(before)
        native.head, native.head_bytes = head, len(head)
        native.tail, native.tail_bytes = tail, len(tail)
        native.labels, native.ends, native.count = text, ends, len(labels)
        native.rows, native.cells = at, ffi.cast("void *", cells)
        native.cell_count = len(cells) // 8
        native.write_as = family.write_as if series.write_as is None else series.write_as
        native.now = now_s
        return text, ends, cells, at

    def _head(self, family: MetricFamily, suffix: str, openmetrics: bool) -> tuple[Any, Any, Any]:
        key = (family, suffix, openmetrics)
        found = self._heads.get(key)
        if found is None:
            name = family.base_name if openmetrics else family.name
            meaning = family.help.replace("\\", r"\\").replace("\n", r"\n")
            if openmetrics:
                meaning = meaning.replace('"', r"\"")
            before = ffi.from_buffer(
                f"# HELP {name} {meaning}\n# TYPE {name} {family.kind}\n".encode()
            )
            if suffix:
                # The same lines of all its parts are known by their address.
                before = self._head(family, "", openmetrics)[0]
            more = {**dict(family.constant), **self._constant(family)}
            constant = label_text(tuple(more), *more.values()).decode()
            comma = "," if family.labels and more else ""
            has_labels = bool(family.labels or more)
            head = f"{family.name}{suffix}{'{' if has_labels else ' '}"
            tail = f"{comma}{constant}}} " if has_labels else ""
            found = before, ffi.from_buffer(head.encode()), ffi.from_buffer(tail.encode())
            self._heads[key] = found
        return found
