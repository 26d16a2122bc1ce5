"""What was measured, with its budget: the table at the end of `make bench`."""

from __future__ import annotations


class Ledger:
    def __init__(self) -> None:
        self._rows = [("work", "budget", "median", "least", "verdict")]

    def add(
        self,
        work: str,
        unit: str,
        budget: float | None,
        median: float,
        least: float | None = None,
    ) -> None:
        """Enter a figure; one without a budget is shown for information.

        The least of several decides: another program's turn on the processor is nobody's work.
        """
        verdict = "-"
        if budget is not None:
            verdict = "within" if (median if least is None else least) <= budget else "over"
        figures = (_figure(each, unit) for each in (budget, median, least))
        self._rows.append((work, *figures, verdict))

    def lines(self) -> list[str]:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in self._rows
        ]


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
