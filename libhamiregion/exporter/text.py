"""From series to Prometheus' text format 0.0.4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from .families import BY_NAME
from .labels import label_text, read_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .families import MetricFamily

#: The content type of `NodeExporter.render`.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@attrs.frozen
class Series:
    """Series of one family at one moment.

    Attributes:
        name: The family's name.
        labels: One label text per series.
        values: The number of each series; None if it has no sample.
        suffix: Of the samples' name: ``_sum`` and ``_count`` of a summary.
    """

    name: str
    labels: Sequence[str]
    values: Sequence[float | None]
    suffix: str = ""

    @property
    def family(self) -> MetricFamily:
        """The family."""
        return BY_NAME[self.name]

    @classmethod
    def of(cls, name: str, values: Mapping[str, float | None]) -> Series:
        """Make series from label text to number."""
        return cls(name, list(values), list(values.values()))

    @classmethod
    def by_label(cls, name: str, values: Mapping[str, float | None]) -> Series:
        """Make series of a family with a single label, from its value to number."""
        names = BY_NAME[name].labels
        return cls.of(name, {label_text(names, each): value for each, value in values.items()})

    def samples(self) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and number of each sample."""
        constant = dict(self.family.constant)
        for text, value in zip(self.labels, self.values, strict=True):
            if value is not None:
                yield {**read_labels(text), **constant}, value


class TextWriter:
    """Writes series as text; a series that has not changed keeps its text.

    Threads: may be shared.
    """

    def __init__(self) -> None:
        self._last: list[tuple[Series, bool, bytes]] = []

    def pieces(self, series: Iterable[Series]) -> Iterator[bytes]:
        """Write the text, in a piece for each of the series that have samples.

        Args:
            series: Those of one family follow each other.
        """
        before, self._last = iter(self._last), []
        begun = None
        for each in series:
            wanted = each, each.family is not begun
            last = next(before, None)
            written = last if last and last[:2] == wanted else (*wanted, _text(*wanted))
            self._last.append(written)
            if written[2]:
                begun = each.family
                yield written[2]


def _text(series: Series, is_first: bool) -> bytes:
    family = series.family
    constant = "".join(f',{name}="{value}"' for name, value in family.constant)
    head, tail = ("{", constant + "}") if family.labels else ("", "")
    head = f"{series.name}{series.suffix}{head}"
    lines = [
        f"{head}{labels}{tail} {value}\n"
        for labels, value in zip(series.labels, series.values, strict=True)
        if value is not None
    ]
    if lines and is_first:
        lines.insert(0, f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")
    return "".join(lines).encode()
