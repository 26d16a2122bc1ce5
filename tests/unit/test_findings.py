"""The catalogue of findings, and the page of the documentation that is made from it.

Run as a program, this file brings the page up to date.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from libhamiregion.node import Finding, FindingKind, Severity
from libhamiregion.node.doctor import Explanation
from libhamiregion.node.doctor.catalogue import CATALOGUE
from libhamiregion.node.doctor.findings import count_text, finding, pids_text
from libhamiregion.node.doctor.repairs import ORDER

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
BEGIN = "<!-- The rest is made from the catalogue: python tests/unit/test_findings.py -->\n"
GROUPS = {
    "Host pids": FindingKind.HOST_PID_WRONG,
    "Slots": FindingKind.DEAD_PROCESS_COUNTED,
    "The lock": FindingKind.LOCK_STUCK,
    "Memory, devices, limits": FindingKind.USAGE_ABOVE_LIMIT,
    "Files": FindingKind.LAYOUT_MIXED,
}


def explained(kind: FindingKind) -> str:
    """One kind as a section."""
    told = kind.explanation
    twice = ", if it is seen twice" if told.is_transient else ""
    repair = told.repair or "leaves it alone"
    return (
        f"### `{kind.value}`\n\n{told.what} Usually {told.severity.value}{twice}.\n\n"
        f"- Consequence: {_ended(told.consequence)}\n"
        f"- What to do: {_ended(told.advice)}\n"
        f"- `--repair` {_ended(repair)}\n"
    )


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def generated() -> str:
    """The part of the page that comes from the catalogue."""
    first = {kind: title for title, kind in GROUPS.items()}
    parts = []
    for kind in FindingKind:
        if kind in first:
            parts.append(f"## {first[kind]}\n")
        parts.append(explained(kind))
    return "\n".join(parts)


def test_every_kind_is_explained() -> None:
    assert list(CATALOGUE) == list(FindingKind)
    for kind in FindingKind:
        told = kind.explanation
        assert isinstance(told, Explanation)
        assert told.what.endswith(".")
        for text in (told.consequence, told.advice):
            assert text
            assert text.isprintable()
        assert kind.value.isidentifier()
        assert kind.value == kind.name.lower()


def test_what_repair_has_a_step_for_is_what_the_catalogue_says_it_mends() -> None:
    assert set(ORDER) == {kind for kind in FindingKind if kind.explanation.repair is not None}


def test_the_page_is_made_from_the_catalogue() -> None:
    if not PAGE.is_file():
        pytest.skip("needs the documentation's sources")
    _, marker, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert marker, f"{PAGE.name} has lost the line {BEGIN!r}"
    assert rest == f"\n{generated()}", f"run: python {Path(__file__).name}"


def test_a_paragraph_has_what_evidence_consequence_and_what_to_do() -> None:
    made = finding(
        FindingKind.DEAD_PROCESS_COUNTED, None, "2 GiB still count", "pid 7 is dead", pid=7
    )
    assert isinstance(made, Finding)
    told = made.kind.explanation
    assert made.severity is told.severity is Severity.WARNING
    assert made.paragraph == (
        "2 GiB still count. Evidence: pid 7 is dead."
        f" Consequence: {told.consequence} What to do: {told.advice}."
    )
    assert attrs.evolve(made, advice="a.").paragraph.endswith("What to do: a.")


def test_many_pids_are_a_few_and_a_number() -> None:
    assert pids_text([7]) == "pid 7"
    assert pids_text([7, 9]) == "pids 7 and 9"
    assert pids_text(range(10)) == "pids 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert pids_text(range(10), 5) == "pids 0, 1, 2, 3, 4, 5, 6, 7 and 7 more"
    # Of a crowded table a view may name none.
    assert [pids_text([], more) for more in (1, 1008)] == ["1 pid", "1008 pids"]
    assert pids_text([7], 3) == "pids 7 and 3 more"
    assert [count_text(count, "process") for count in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]


if __name__ == "__main__":
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{generated()}", encoding="utf-8")
