"""What the driver says of proved processes, as series: columns beside label texts."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

from libhamiregion.exporter import families
from libhamiregion.exporter.text import NO_ROW, Series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.exporter.state import ProcessLabels
    from libhamiregion.node.join import Join

_FAMILIES = (
    (families.PROCESS_DRIVER_MEMORY, "memory_used_bytes"),
    (families.PROCESS_DRIVER_SM, "sm_util_percent"),
    (families.PROCESS_DRIVER_ENC, "enc_util_percent"),
    (families.PROCESS_DRIVER_DEC, "dec_util_percent"),
)


def series_of_processes(join: Join, labels: ProcessLabels) -> Iterator[Series]:
    """The driver's figures of processes; those without series of their own are summed up.

    Args:
        join: Which process the driver lists where.
        labels: The label texts of these processes.
    """
    shared = {label for label, pairs in Counter(labels.of_pairs).items() if pairs > 1} - {NO_ROW}
    at = array("I", [NO_ROW]) * len(labels.labels)
    summed: list[tuple[int, int]] = []
    for label, row in zip(labels.of_pairs, join.rows_of_pairs, strict=True):
        if label in shared:
            summed.append((label, row))
        elif label != NO_ROW:
            at[label] = row
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
