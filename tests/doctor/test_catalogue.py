"""The catalogue of findings, and the page of the documentation that is made from it."""

from __future__ import annotations

import runpy
from pathlib import Path

import attrs
import pytest

from libhamiregion.doctor import Explanation, Finding, FindingKind, Severity
from libhamiregion.doctor.catalogue import CATALOGUE
from libhamiregion.doctor.findings import finding, pids_text
from libhamiregion.doctor.repairs import ORDER
from libhamiregion.text import count_text

MAKER = Path(__file__).parents[2] / "docs" / "findings_list.py"


def test_every_kind_is_explained():
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


def test_what_repair_has_a_step_for_is_what_the_catalogue_says_it_mends():
    assert set(ORDER) == {kind for kind in FindingKind if kind.explanation.is_repairable}


@pytest.mark.skipif(not MAKER.is_file(), reason="needs the documentation's sources")
def test_the_page_is_made_from_the_catalogue():
    maker = runpy.run_path(str(MAKER))
    assert maker["FILE"].read_text(encoding="utf-8") == maker["text"](), "run make texts"


def test_a_paragraph_has_what_evidence_consequence_and_what_to_do():
    made = finding(FindingKind.DEAD_PROCESS_COUNTED, "2 GiB still count", "pid 7 is dead", pid=7)
    assert isinstance(made, Finding)
    told = made.kind.explanation
    assert made.severity is told.severity is Severity.WARNING
    assert made.paragraph == (
        "2 GiB still count. Evidence: pid 7 is dead."
        f" Consequence: {told.consequence} What to do: {told.advice}."
    )
    assert attrs.evolve(made, advice="a.").paragraph.endswith("What to do: a.")


def test_many_pids_are_a_few_and_a_number():
    assert pids_text([7]) == "pid 7"
    assert pids_text([7, 9]) == "pids 7 and 9"
    assert pids_text(range(10)) == "pids 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert [count_text(count, "process") for count in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]
