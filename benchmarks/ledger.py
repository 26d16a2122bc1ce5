"""What was measured, beside what it may cost: the tables at the end of `make bench`."""

from __future__ import annotations

import attrs

OURS = "libhamiregion"


@attrs.frozen
class Entry:
    """One measured figure; `budget` None is shown for information.

    The least of several decides: another program's turn on the processor is nobody's work.
    """

    work: str
    unit: str
    budget: float | None
    median: float
    least: float | None

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return "-"
        decisive = self.median if self.least is None else self.least
        return "within" if decisive <= self.budget else "over"

    @property
    def row(self) -> tuple[str, ...]:
        return (
            self.work,
            _figure(self.budget, self.unit),
            _figure(self.median, self.unit),
            _figure(self.least, self.unit),
            self.verdict,
        )


@attrs.define
class Ledger:
    entries: list[Entry] = attrs.field(factory=list)
    #: work -> reader -> least time in microseconds
    readers: dict[str, dict[str, float]] = attrs.field(factory=dict)

    def add(
        self,
        work: str,
        unit: str,
        budget: float | None,
        median: float,
        least: float | None = None,
    ) -> None:
        self.entries.append(Entry(work, unit, budget, median, least))

    def compare(self, work: str, reader: str, least_us: float) -> None:
        self.readers.setdefault(work, {})[reader] = least_us

    def budget_lines(self) -> list[str]:
        title = ("work", "budget", "median", "least", "verdict")
        return _aligned([title, *(entry.row for entry in self.entries)])

    def ratio_lines(self) -> list[str]:
        names = dict.fromkeys(name for readers in self.readers.values() for name in readers)
        others = [name for name in names if name != OURS]
        rows = [("work", OURS, *others)]
        for work, readers in self.readers.items():
            ours = readers.get(OURS)
            cells = [work, "-" if ours is None else _figure(ours, "us")]
            for name in others:
                theirs = readers.get(name)
                if theirs is None or ours is None:
                    cells.append("-")
                else:
                    cells.append(f"{_figure(theirs, 'us')} ({_ratio(theirs / ours)} x)")
            rows.append(tuple(cells))
        return _aligned(rows) if len(rows) > 1 else []


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value:,.0f} bytes"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
