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
from recorded_day import DAY_S, GIB, MIDNIGHT_S, record, tenants

from libhamiregion.report import (
    CHART_POINTS,
    Allocation,
    AllocationState,
    History,
    HistoryFacts,
    Look,
    Reading,
    RecordedContainer,
    Recording,
    RecordingWriter,
    Report,
    Usage,
    make_report,
    parse_moment,
    parse_period,
    report_csv,
    report_html,
    report_json,
)
from libhamiregion.report.tables import JSON_SCHEMA
from libhamiregion.report.words import Times

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
)


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("day") / "node.db"
    record(path, tenants(), interval_s=300)
    return of(path)


def of(path: Path, **more: object) -> Report:
    span = (SINCE_MS, SINCE_MS + DAY_S * 1000)
    with Recording(path) as recording:
        options = {"by": "namespace", "points": CHART_POINTS, **more}
        return make_report(recording, *span, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("hostile") / "node.db"
    readings = [
        Reading(
            RecordedContainer(name, name, None, None, name, name), 0, name, GIB, 2 * GIB, 50, 10, 1
        )
        for name in HOSTILE
    ]
    with RecordingWriter(path, interval_s=60, node=HOSTILE[0]) as writer:
        for minute in range(90):
            writer.write(readings, at_ms=SINCE_MS + minute * 60_000, running_ms=minute * 60_000)
    return of(path)


# ---- CSV -----------------------------------------------------------------------------------------


def test_csv_has_one_line_per_row_and_the_fields_by_name(day: Report) -> None:
    report = attrs.evolve(day, rows=day.allocations)
    text = report_csv(report)
    assert text.count("\r\n") == text.count("\n") == 1 + len(day.allocations)
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    for line, row in zip(lines, day.allocations, strict=True):
        assert (line["namespace"], line["pod"]) == (row.namespace, row.pod)
        assert int(line["memory_peak_bytes"]) == row.memory_peak_bytes
        assert float(line["busy_gpu_hours"]) == pytest.approx(row.busy_gpu_hours, abs=1e-6)
        assert line["peak_at"].endswith("Z")
        assert line["suggestion"] == (row.suggestion.verdict if row.suggestion else "")
    unlimited = next(line for line in lines if line["pod"] == "legacy-etl")
    assert unlimited["memory_limit_bytes"] == ""


def test_no_text_in_csv_is_a_formula_or_steers_a_terminal(hostile: Report) -> None:
    text = report_csv(attrs.evolve(hostile, rows=hostile.allocations))
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(lines) == len(HOSTILE)
    assert all(character.isprintable() or character in "\r\n" for character in text)
    for line in lines:
        for name in ("namespace", "pod", "container", "pod_uid", "device_uuid"):
            assert not line[name].startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize(
    "name",
    [
        "GPU-a;=cmd|'/c calc'!A0;",
        "GPU-a,=1+1",
        'GPU-a;"=1+1',
        'GPU-a; "" +1',
        "GPU-a;;@SUM(1)",
        " =1+1",
        '"=1+1',
        "a;\uff1d1",
    ],
)
def test_no_way_to_divide_a_line_of_csv_makes_a_formula(day: Report, name: str) -> None:
    """Where commas are for decimals, spreadsheets divide at semicolons, and know no quotes then."""
    text = report_csv(attrs.evolve(day, rows=(attrs.evolve(day.allocations[0], device_uuid=name),)))
    cells = re.split(r"[,;\t\r\n]", text)
    assert not [cell for cell in cells if re.match(r'[\s"]*[=+@\uff1d]', cell)]
    (line,) = csv.DictReader(io.StringIO(text, newline=""))
    assert line["device_uuid"].replace("'", "") == name.replace("'", "")


# ---- JSON ----------------------------------------------------------------------------------------


def test_json_has_the_fields_of_the_report(day: Report) -> None:
    document = json.loads(json.dumps(report_json(day)))
    assert document["schema"] == JSON_SCHEMA
    assert set(document) == {
        "schema", "facts", "since_ms", "until_ms", "made_at_ms", "by", "coverage", "policy",
        "total", "rows", "warnings",
    }  # fmt: skip
    assert set(document["rows"][0]) == {field.name for field in attrs.fields(Usage)}
    assert document["rows"][0]["memory_peak_bytes"] == day.rows[0].memory_peak_bytes
    assert len(document["total"]["timeline"]["memory_peak_bytes"]) == CHART_POINTS
    assert document["coverage"]["gap_count"] == 1


def test_json_survives_every_name(hostile: Report) -> None:
    document = json.loads(json.dumps(report_json(hostile)))
    names = {row["namespace"] for row in document["rows"]}
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
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.addresses.update(value or "" for name, value in attrs if name in {"href", "src"})
        if tag not in {"meta", "link", "br", "path"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
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
def test_a_page_has_no_scripts_and_loads_nothing(
    which: str, request: pytest.FixtureRequest
) -> None:
    page = report_html(request.getfixturevalue(which))
    tags = Tags(page)
    assert tags.tags <= ALLOWED
    assert not {name for name in tags.attributes if name.startswith("on") or name == "src"}
    assert all(address.startswith("#") or address == "data:," for address in tags.addresses)
    assert tags.open == []
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page


def test_hostile_names_are_text_on_the_page(hostile: Report) -> None:
    page = report_html(hostile)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&amp;lt;b&amp;gt;" in page
    assert all(
        character.isprintable() or character == "\n" for character in page.replace("\xa0", "")
    )
    assert "a" * 200 not in page


def test_a_page_says_what_it_is_about(day: Report) -> None:
    text = " ".join(Tags(report_html(day, zone=dt.timezone.utc)).text)
    assert "GPU report: gpu-node-07" in text
    assert "1 Oct 2026, 00:00 to 2 Oct 2026, 00:00 (UTC), 24 h" in text
    assert "97 % of the time was recorded" in text
    for heading in (
        "Over time", "Held and not used", "Suggested limits", "Counted for nobody",
        "Memory by container", "Namespaces", "Devices", "How it was measured", "Not recorded",
    ):  # fmt: skip
        assert heading in text


@pytest.mark.parametrize("by", ["namespace", "pod", "container", "device"])
def test_a_page_can_be_divided_by_anything(day: Report, by: str, tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    record(path, tenants()[:6], interval_s=900)
    page = report_html(of(path, by=by))
    assert Tags(page).open == []
    assert all(tenant.pod in page for tenant in tenants()[:6])
    assert day.by == "namespace"


def test_a_report_of_nothing_says_so(day: Report) -> None:
    empty = attrs.evolve(day, total=None, rows=(), allocations=(), namespaces=(), devices=())
    page = report_html(empty)
    assert "Nothing was recorded in this time." in page
    assert Tags(page).open == []


def test_a_page_about_a_large_node_is_bounded_and_says_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    containers = [
        RecordedContainer(
            f"{number:032x}", "main", None, None, f"team-{number % 40:02}", f"p{number}"
        )
        for number in range(256)
    ]
    with RecordingWriter(path, interval_s=600) as writer:
        for minute in range(0, 600, 10):
            readings = [
                Reading(
                    each,
                    device,
                    f"GPU-{number % 8}-{device}",
                    (number % 7 + minute % 5) * GIB,
                    8 * GIB,
                    50,
                    (number + minute) % 100,
                    1,
                )
                for number, each in enumerate(containers)
                for device in range(2)
            ]
            writer.write(readings, at_ms=SINCE_MS + minute * 60_000, running_ms=minute * 60_000)
    page = report_html(of(path))
    assert len(page) < 1_500_000
    text = " ".join(Tags(page).text)
    assert "The 24 of 512 that held most over time." in text
    assert "The 20 of 40 that held most over time" in text
    assert "The first 25 of" in text


class Averaged:
    """A history without a node, without SM limits, and with warnings."""

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        state = AllocationState(GIB, 2 * GIB, 4 * GIB)
        yield Look(since_ms, until_ms, True, {0: state}, {0: (12.5, None)})

    def allocation(self, number: int) -> Allocation:
        return Allocation("research", f"pod-{number}", "train", None, 0, None)

    def facts(self) -> HistoryFacts:
        warnings = tuple(f"warning <{number}>" for number in range(30))
        return HistoryFacts("prometheus", "http://p:9090", None, 60.0, True, False, warnings)


def test_other_sources_are_described_as_what_they_are() -> None:
    """Any history will do for a report."""
    history: History = Averaged()
    report = make_report(history, SINCE_MS, SINCE_MS + 7_200_000, points=24)
    (row,) = report.rows
    assert row.memory_average_bytes == GIB
    assert row.memory_peak_bytes == 2 * GIB
    assert row.allocated_gpu_hours is None
    assert row.busy_gpu_hours == pytest.approx(0.25)
    page = report_html(report)
    assert "warning &lt;0&gt;".capitalize() in page
    assert "and 10 more" in page
    assert "Not told: this source has no SM limits." in page
    assert "GPUs allocated" not in page


# ---- times ---------------------------------------------------------------------------------------


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_times_are_local_also_over_a_change_of_the_clocks(tmp_path: Path) -> None:
    """A week in which the clocks are put back."""
    path = tmp_path / "node.db"
    sunday = dt.datetime(2026, 10, 25, tzinfo=dt.timezone.utc)
    since_ms = round((sunday - dt.timedelta(days=3)).timestamp() * 1000)
    with RecordingWriter(path, interval_s=3600) as writer:
        for hour in range(7 * 24):
            writer.write(
                [Reading(RecordedContainer("0b5c", "train"), 0, None, GIB)],
                at_ms=since_ms + hour * 3_600_000,
                running_ms=hour * 3_600_000,
            )
    with Recording(path) as recording:
        report = make_report(recording, since_ms, since_ms + 7 * DAY_S * 1000, points=240)
    page = report_html(report)
    for day in range(23, 29):
        assert f">{day} Oct<" in page
    assert "22 Oct 2026, 02:00 to 29 Oct 2026, 01:00 (CET, UTC+01:00)" in page
    assert Times().full(since_ms) == "22 Oct 2026, 02:00"


NOON = dt.datetime(2026, 10, 1, 12, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("typed", "moment"),
    [
        ("24h", "2026-09-30T12:00:00+00:00"),
        ("2w", "2026-09-17T12:00:00+00:00"),
        ("1d12h", "2026-09-30T00:00:00+00:00"),
        ("2026-09-30T08:00:00Z", "2026-09-30T08:00:00+00:00"),
        ("2026-09-30T08:00:00+02:00", "2026-09-30T06:00:00+00:00"),
    ],
)
def test_moments_are_read_as_people_type_them(typed: str, moment: str) -> None:
    assert parse_moment(typed, before=NOON).astimezone(dt.timezone.utc).isoformat() == moment


@pytest.mark.usefixtures("berlin")
def test_a_moment_without_an_offset_is_local() -> None:
    assert parse_moment("2026-07-01", before=NOON).isoformat() == "2026-07-01T00:00:00+02:00"


@pytest.mark.parametrize(
    "typed", ["", "h", "24", "-1h", "yesterday", "2026-13-01", "0h", "9999999w"]
)
def test_what_is_no_moment_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"nor a date|century|no time"):
        parse_moment(typed, before=NOON)


@pytest.mark.parametrize("typed", ["", "24", "1y", "1e3h", "101w1w9999999d", "٣h"])
def test_what_is_no_length_of_time_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"no length of time|century"):
        parse_period(typed)
