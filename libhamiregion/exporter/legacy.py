"""The names and labels that HAMi's monitor had before: made from the series under its names now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .families import FORMER, FORMER_LABELS, MEMORY_PARTS
from .labels import label_text, read_labels
from .text import Series

if TYPE_CHECKING:
    from collections.abc import Iterable

_WRAP = (1 << 64) - 1
_USED = "hami_vgpu_memory_used_bytes"
_PARTS = [f"hami_vgpu_memory_{part}_bytes" for part in ("context", "module", "buffer")]


def former_series(series: Iterable[Series]) -> list[Series]:
    """Series under their former names, as far as they had one."""
    by_name = {each.name: each for each in series}
    found = [
        Series.of(before, dict(zip(_renamed(by_name[now]), by_name[now].values, strict=True)))
        for now, before in FORMER.items()
        if now in by_name
    ]
    if _USED in by_name:
        found.append(_memory_parts(by_name[_USED], *(by_name[each] for each in _PARTS)))
    return found


def _renamed(series: Series) -> list[str]:
    """Give labels their former names; those without one are left out."""
    texts = []
    for text in series.labels:
        labels = {FORMER_LABELS.get(name): value for name, value in read_labels(text).items()}
        names = [name for name in labels if name is not None]
        texts.append(label_text(names, *(labels[name] for name in names)))
    return texts


def _memory_parts(used: Series, *parts: Series) -> Series:
    """The family that has sizes as the values of labels."""
    found: dict[str, float | None] = {}
    columns = (used.values, *(each.values for each in parts))
    for labels, total, *sizes in zip(_renamed(used), *columns, strict=True):
        if total is not None:
            shown = (*sizes, (total - sum(sizes)) & _WRAP)
            texts = label_text(("context", "module", "data", "offset"), *map(str, shown))
            found[f"{labels},{texts}"] = total
    return Series.of(MEMORY_PARTS, found)
