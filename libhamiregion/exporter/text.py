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


@attrs.frozen(eq=False)
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


def text_pieces(series: Iterable[Series]) -> Iterator[bytes]:
    """Write the text, in a piece for each of the series that have samples.

    Args:
        series: Those of one family follow each other.
    """
    begun = None
    for each in series:
        family = each.family
        constant = "".join(f',{name}="{value}"' for name, value in family.constant)
        head, tail = ("{", constant + "}") if family.labels else ("", "")
        head = f"{each.name}{each.suffix}{head}"
        lines = [
            f"{head}{labels}{tail} {value}\n"
            for labels, value in zip(each.labels, each.values, strict=True)
            if value is not None
        ]
        if lines and family is not begun:
            begun = family
            lines.insert(0, f"# HELP {each.name} {family.help}\n# TYPE {each.name} {family.kind}\n")
        yield "".join(lines).encode()
