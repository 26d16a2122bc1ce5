"""What the driver says of proved processes, as series: columns beside label texts."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from libhamiregion.exporter import families
from libhamiregion.exporter.text import NO_ROW, Series

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion.exporter.state import ProcessLabels
    from libhamiregion.node.join import Join, KnownJoin

_FAMILIES = (
    (families.PROCESS_DRIVER_MEMORY, "memory_used_bytes"),
    (families.PROCESS_DRIVER_SM, "sm_util_percent"),
    (families.PROCESS_DRIVER_ENC, "enc_util_percent"),
    (families.PROCESS_DRIVER_DEC, "dec_util_percent"),
)


@attrs.frozen(eq=False)
class DriverRows:
    """Which of the driver's figures belong to which label text.

    Attributes:
        labels: The label texts.
        known: Which process the driver lists where.
        at: Of each label text with one process its row in `Join.figures`, or `NO_ROW`.
        summed: Label texts that stand for several processes, with the row of each.
    """

    labels: ProcessLabels
    known: KnownJoin
    at: array[int]
    summed: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, labels: ProcessLabels, known: KnownJoin) -> DriverRows:
        """Bring together what changes when a process comes or goes."""
        several = {label for label, pairs in Counter(labels.of_pairs).items() if pairs > 1}
        several.discard(NO_ROW)
        at = array("I", [NO_ROW]) * len(labels.labels)
        summed: list[tuple[int, int]] = []
        for label, row in zip(labels.of_pairs, known.at, strict=True):
            if label in several:
                summed.append((label, row))
            elif label != NO_ROW:
                at[label] = row
        return cls(labels, known, at, summed)


def series_of_processes(join: Join, found: DriverRows) -> Iterator[Series]:
    """The driver's figures of processes; those without series of their own are summed up.

    Args:
        join: The driver's figures.
        found: Whose they are.
    """
    labels, at, summed = found.labels, found.at, found.summed
    for family, name in _FAMILIES:
        figures = join.figures(name)
        rows = at
        if summed or min(figures, default=0) < 0:
            rows = array("I", [NO_ROW if _is_unknown(row, figures) else row for row in at])
            sums: dict[int, int] = {}
            for label, row in summed:
                if not _is_unknown(row, figures):
                    sums[label] = sums.get(label, 0) + figures[row]
            for label, total in sums.items():
                rows[label] = len(figures)
                figures.append(total)
        yield Series(family, labels.labels, figures, rows)


def _is_unknown(row: int, figures: array[int]) -> bool:
    return row == NO_ROW or figures[row] < 0
