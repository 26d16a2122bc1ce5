"""The names and labels that HAMi's monitor had before: made from the series under its names now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import families
from .labels import LabelRows
from .text import Series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .families import MetricFamily

_WRAP = (1 << 64) - 1
_PARTS = (
    families.MEMORY_USED,
    families.MEMORY_CONTEXT,
    families.MEMORY_MODULE,
    families.MEMORY_BUFFER,
)


def with_sources(wanted: frozenset[MetricFamily]) -> frozenset[MetricFamily]:
    """These families, and those that the former ones among them are made of."""
    sources = {now for now, before in families.FORMER.items() if before in wanted}
    return wanted | sources.union(_PARTS if families.MEMORY_PARTS in wanted else ())


def former_series(series: Iterable[Series]) -> list[Series]:
    """Series under their former names, as far as they had one."""
    by_family = {each.family: each for each in series}
    found = [
        Series(
            before,
            by_family[now].labels.renamed(families.FORMER_LABELS),
            by_family[now].cells,
            by_family[now].rows,
        )
        for now, before in families.FORMER.items()
        if now in by_family
    ]
    if by_family.keys() >= set(_PARTS):
        found.append(_memory_parts(*(by_family[each] for each in _PARTS)))
    return found


def _memory_parts(used: Series, *parts: Series) -> Series:
    """The family that has sizes as the values of labels."""
    texts = []
    assert used.rows is not None  # noqa: S101 (those of devices have rows)
    for labels, row in zip(
        used.labels.renamed(families.FORMER_LABELS).texts, used.rows, strict=True
    ):
        context, module, data = (each.cells[row] for each in parts)
        rest = (used.cells[row] - context - module - data) & _WRAP
        sizes = b',context="%d",module="%d",data="%d",offset="%d"' % (context, module, data, rest)
        texts.append(labels + sizes)
    return Series(families.MEMORY_PARTS, LabelRows(texts), used.cells, used.rows)
