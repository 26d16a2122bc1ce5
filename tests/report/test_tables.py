"""A report as CSV, JSON and HTML: complete, bounded, and harmless whatever names it has."""

import csv
import datetime as dt
import html.parser
import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from support.recorded_day import DAY_S, GIB, MIDNIGHT_S, record, tenants

from libhamiregion.report import (
    Allocation,
    Gpu,
    Recording,
    RecordingWriter,
    Report,
    Sample,
    Usage,
    make_report,
    report_csv,
    report_html,
    report_json,
)
from libhamiregion.report.history import HistoryFacts, ReportInterval
from libhamiregion.report.page import CHART_POINTS
from libhamiregion.report.tables import JSON_SCHEMA

SINCE_MS = MIDNIGHT_S * 1000
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '=HYPERLINK("http://evil")',
    "+1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "-2+3",
    "tab\tnewline\r\nescape\x1b[2J",
    "\u202egnp.exe",
    "a" * 5_000,
    'quote"comma,semicolon;',
    "&lt;b&gt;",
    "</style><style>*{display:none}",
    "{{ 7 * 7 }}{% raw %}",
)


def of(path: Path, **more: object) -> Report:
    with Recording(path) as recording:
        options = {"by": "namespace", "points": CHART_POINTS, **more}
        return make_report([recording], SINCE_MS, SINCE_MS + DAY_S * 1000, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("day") / "node.db"
    record(path, tenants(), interval_s=300)
    return of(path)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("hostile") / "node.db"
    samples = {
        Allocation(name, name, name, name, 0, name): Sample(GIB, 2 * GIB, 50, 10, 1)
        for name in HOSTILE
    }
    with RecordingWriter(path, interval_s=60, node=HOSTILE[0]) as writer:
        for minute in range(90):
            writer.write(samples, at_ms=SINCE_MS + minute * 60_000)
    warnings = tuple(f"{name} {number}" for number, name in enumerate(HOSTILE * 3))
    return attrs.evolve(of(path), warnings=warnings)


# ---- CSV and JSON --------------------------------------------------------------------------------


def test_csv_has_one_line_per_row_and_the_fields_by_name(day):
    text = report_csv(attrs.evolve(day, rows=day.allocations))
    assert text.count("\r\n") == text.count("\n") == 1 + len(day.allocations) + 1
    *lines, total = csv.DictReader(io.StringIO(text, newline=""))
    assert {line["level"] for line in lines} == {day.by}
    assert (total["level"], total["pod"]) == ("total", "")
    assert float(total["allocated_gpu_hours"]) == round(day.total.allocated_gpu_hours or 0, 6)
    for line, row in zip(lines, day.allocations, strict=True):
        assert (line["namespace"], line["pod"]) == (row.namespace, row.pod)
        assert int(line["memory_peak_bytes"]) == row.memory_peak_bytes
        assert float(line["busy_gpu_hours"]) == pytest.approx(row.busy_gpu_hours, abs=1e-6)
        assert line["peak_at"].endswith("Z")
        assert line["advice"] == row.advice
        if row.pod == "legacy-etl":
            assert line["memory_limit_bytes"] == ""


def test_no_text_in_csv_is_a_formula_or_steers_a_terminal(hostile):
    text = report_csv(attrs.evolve(hostile, rows=hostile.allocations))
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(lines) == len(HOSTILE) + 1
    assert all(character.isprintable() or character in "\r\n" for character in text)
    for line in lines:
        for name in ("namespace", "pod", "container", "pod_uid", "device_uuid"):
            assert not line[name].startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize(
    "name",
    ["GPU-a;=cmd|'/c calc'!A0;", "GPU-a,=1+1", 'GPU-a;"=1+1', 'GPU-a; "" +1', "GPU-a;;@SUM(1)",
     " =1+1", '"=1+1', "a;\uff1d1"],
)  # fmt: skip
def test_no_way_to_divide_a_line_of_csv_makes_a_formula(day, name):
    """Where commas are for decimals, spreadsheets divide at semicolons, and know no quotes then."""
    text = report_csv(attrs.evolve(day, rows=(attrs.evolve(day.allocations[0], device_uuid=name),)))
    cells = re.split(r"[,;\t\r\n]", text)
    assert not [cell for cell in cells if re.match(r'[\s"]*[=+@\uff1d]', cell)]
    line, _ = csv.DictReader(io.StringIO(text, newline=""))
    assert line["device_uuid"].replace("'", "") == name.replace("'", "")


def test_json_has_the_fields_of_the_report(day, hostile):
    document = json.loads(json.dumps(report_json(day)))
    assert document["schema"] == JSON_SCHEMA
    assert set(document) == {
        "schema", "kind", "source", "node", "resolution_s", "since_ms", "until_ms", "made_at_ms",
        "by", "recorded_ratio", "gaps", "gap_count", "headroom", "round_to_bytes", "gpus", "total",
        "rows", "warnings", "bill_by", "bill", "unlimited_sm_as", "prices",
    }  # fmt: skip
    assert set(document["rows"][0]) == {field.name for field in attrs.fields(Usage)}
    assert document["rows"][0]["memory_peak_bytes"] == day.rows[0].memory_peak_bytes
    assert len(document["total"]["timeline"]["memory_peak_bytes"]) == CHART_POINTS
    assert document["gap_count"] == 1
    names = {row["namespace"] for row in json.loads(json.dumps(report_json(hostile)))["rows"]}
    assert HOSTILE[0] in names
    assert len(names) == len(HOSTILE)


# ---- HTML ----------------------------------------------------------------------------------------


class Tags(html.parser.HTMLParser):
    """All that a page has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: set[str] = set()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in {"meta", "link", "br", "path"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.addresses.update(value or "" for name, value in attrs if name in {"href", "src"})

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


ALLOWED = {
    "html", "head", "meta", "link", "title", "style", "body", "main", "header", "h1", "h2", "h3",
    "p", "code", "div", "nav", "a", "span", "b", "i", "u", "s", "svg", "path", "section", "table",
    "thead", "tbody", "tr", "th", "td", "small", "strong", "ul", "li", "dl", "dt", "dd", "footer",
    "br",
}  # fmt: skip


@pytest.mark.parametrize("which", ["day", "hostile"])
def test_a_page_has_no_scripts_and_loads_nothing(which, request):
    page = report_html(request.getfixturevalue(which))
    tags = Tags(page)
    assert tags.tags <= ALLOWED
    assert not {name for name in tags.attributes if name.startswith("on") or name == "src"}
    assert all(address.startswith("#") or address == "data:," for address in tags.addresses)
    assert tags.open == []
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page


def test_hostile_texts_are_text_on_the_page_bounded_and_counted(hostile):
    page = report_html(hostile)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&amp;lt;b&amp;gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert all(character.isprintable() or character == "\n" for character in page)
    assert "a" * 401 not in page
    assert "and 19 more" in page


def test_a_page_says_what_it_is_about(day):
    text = " ".join(Tags(report_html(day, zone=dt.timezone.utc)).text)
    assert "GPU report: gpu-node-07" in text
    assert "1 Oct 2026, 00:00 to 2 Oct 2026, 00:00 (UTC), 24 h" in text
    assert "97 % of the time was recorded" in text
    for heading in (
        "Over time", "Held and not used", "Suggested limits", "Left over",
        "Memory by container", "Namespaces", "Devices", "How it was measured", "Not recorded",
    ):  # fmt: skip
        assert heading in text


def test_a_page_can_be_divided_by_anything_and_be_about_nothing(day, tmp_path):
    path = tmp_path / "node.db"
    record(path, tenants()[:6], interval_s=900)
    for by in ("namespace", "pod", "container", "device"):
        for points in (0, 24):
            page = report_html(of(path, by=by, points=points))
            assert Tags(page).open == []
            assert all(tenant.pod in page for tenant in tenants()[:6])
    empty = attrs.evolve(day, total=None, rows=(), allocations=(), devices=())
    assert "Nothing was recorded in this time." in report_html(empty)


@pytest.mark.slow
def test_a_page_about_a_large_node_is_bounded_and_says_what_is_left_out(tmp_path):
    path = tmp_path / "node.db"
    with RecordingWriter(path, interval_s=600) as writer:
        for minute in range(0, 600, 10):
            samples = {
                Allocation(
                    f"team-{number % 40:02}", f"p{number}", "main", f"{number:032x}", device,
                    f"GPU-{number % 8}-{device}",
                ): Sample((number % 7 + minute % 5) * GIB, 8 * GIB, 50, (number + minute) % 100, 1)
                for number in range(256)
                for device in range(2)
            }  # fmt: skip
            writer.write(samples, at_ms=SINCE_MS + minute * 60_000)
    page = report_html(of(path))
    assert len(page) < 1_500_000
    text = " ".join(Tags(page).text)
    assert "The 24 of 512 that held most over time." in text
    assert "The 20 of 40 that held most over time" in text
    assert "The first 25 of" in text


class Averaged:
    """A history without a node and without SM limits: what programs of other people give."""

    def intervals(self, since_ms: int, until_ms: int) -> Iterator[ReportInterval]:
        allocation = Allocation("research", "pod-0", "train", None, 0, None)
        sample = Sample(GIB, 4 * GIB, sm_percent=12.5, memory_peak_bytes=2 * GIB)
        yield ReportInterval(since_ms, until_ms, True, {allocation: sample})

    def devices(self, since_ms: int, until_ms: int) -> dict[str, Gpu]:  # noqa: ARG002
        return {}

    def facts(self) -> HistoryFacts:
        return HistoryFacts("prometheus", "http://p:9090", None, 60.0)


def test_a_report_of_averages_has_peaks_and_no_gpu_hours_that_nobody_told():
    report = make_report([Averaged()], SINCE_MS, SINCE_MS + 7_200_000, points=24)
    (row,) = report.rows
    assert (row.memory_average_bytes, row.memory_peak_bytes) == (GIB, 2 * GIB)
    assert row.allocated_gpu_hours is None
    assert row.busy_gpu_hours == pytest.approx(0.25)
    page = report_html(report)
    assert "From the Prometheus at" in page
    assert "GPUs allocated" not in page


# ---- times ---------------------------------------------------------------------------------------


def test_times_are_local_also_over_a_change_of_the_clocks(tmp_path, monkeypatch):
    """A week in which the clocks are put back."""
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        path = tmp_path / "node.db"
        sunday = dt.datetime(2026, 10, 25, tzinfo=dt.timezone.utc)
        since_ms = round((sunday - dt.timedelta(days=3)).timestamp() * 1000)
        with RecordingWriter(path, interval_s=3600) as writer:
            for hour in range(7 * 24):
                samples = {Allocation(None, None, "train", "0b5c", 0, None): Sample(GIB)}
                writer.write(samples, at_ms=since_ms + hour * 3_600_000)
        with Recording(path) as recording:
            report = make_report([recording], since_ms, since_ms + 7 * DAY_S * 1000, points=240)
        page = report_html(report)
    finally:
        monkeypatch.undo()
        assert os.environ.get("TZ") == before
        time.tzset()
    for day in range(23, 29):
        assert f">{day} Oct<" in page
    assert "22 Oct 2026, 02:00 to 29 Oct 2026, 01:00 (CET, UTC+01:00)" in page
