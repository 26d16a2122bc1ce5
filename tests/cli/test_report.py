"""`hamiregion report` as people run it."""

import datetime as dt
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import call, on_terminal, refused, run
from support.recorded_day import DAY_S, MIDNIGHT_S, record, tenants

from libhamiregion.cli.report import parse_moment, parse_span
from libhamiregion.report import Allocation, RecordingWriter, Sample

SPAN = ("--since", "2026-10-01T00:00:00Z", "--until", "2026-10-02T00:00:00Z")
NOON = dt.datetime(2026, 10, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def day(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("day") / "node.db"
    record(path, tenants(), interval_s=900)
    return str(path)


@pytest.fixture(autouse=True)
def utc(monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def report(source: str, *more: str) -> str:
    answer = call("report", "--from", source, *SPAN, *more)
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout


def test_plain_text_is_a_table_of_words(day):
    head, bill, table = report(day, "--namespace", "research").split("\n\n")
    assert head == "1 Oct 2026, 00:00 to 2 Oct 2026, 00:00 (UTC), 97 % recorded"
    assert [line.split()[0] for line in bill.splitlines()] == ["NAMESPACE", "research", "TOTAL"]
    names, *lines = table.splitlines()
    assert names.split()[:4] == ["NAMESPACE", "POD", "CONTAINER", "DEVICE"]
    assert len(lines) == 6
    assert all(len(line.split()) == len(names.split()) for line in lines)
    by_namespace = report(day, "--by", "namespace").split("\n\n")[2].splitlines()[1:]
    assert [line.split()[0] for line in by_namespace] == [
        "batch", "inference", "notebooks", "research"
    ]  # fmt: skip


def test_a_terminal_gets_bars(day):
    terminal = on_terminal("report", "--from", day, *SPAN, "--by", "namespace", env={"TZ": "UTC"})
    assert "━" in terminal.text
    assert "research" in terminal.text


def test_the_ending_of_the_file_is_its_format(day, tmp_path):
    for name, begins in (
        ("a.html", "<!DOCTYPE html>"),
        ("a.csv", "level,node,namespace,pod,container"),
        ("a.json", '{"schema": "hamiregion/report/2"'),
        ("a.txt", "1 Oct 2026"),
    ):
        path = tmp_path / name
        assert report(day, "--to", str(path)) == ""
        assert path.read_text(encoding="utf-8").startswith(begins)


def test_what_cannot_be_replaced_is_written_to(day, tmp_path):
    """A pipe, as of a shell's >(...)."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    # Open for both, so that neither end waits for the other.
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    assert report(day, "--by", "namespace", "--to", str(pipe)) == ""
    assert os.read(reader, 1 << 16).startswith(b"level,node,namespace,")
    os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_csv_on_stdout_has_its_line_ends(day):
    answer = run("report", "--from", day, *SPAN, "--format", "csv")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.count("\n") == 31
    assert json.loads(report(day, "--json"))["total"]["allocations"] == 29


def test_a_length_of_time_counts_from_the_end_and_suggestions_can_be_steered(day):
    words = ("--since", "6h", "--until", "2026-10-01T12:00Z", "--json", "--pod", "bert-*")
    document = json.loads(call("report", "--from", day, *words, "--headroom", "50").stdout)
    assert document["since_ms"] == (MIDNIGHT_S + DAY_S // 4) * 1000
    assert document["recorded_ratio"] == 1
    assert document["rows"][0]["suggested_limit_bytes"] == int(16.5 * 2**30)


@pytest.fixture
def minute(tmp_path) -> str:
    """Begun a quarter of a minute before the end, as somebody does who tries it."""
    path = tmp_path / "young.db"
    begin_s = MIDNIGHT_S + 12 * 3600
    allocation = Allocation("research", "bert-0", "train", "uid", 0, "GPU-1")
    with RecordingWriter(path, interval_s=1) as writer:
        for second in range(15):
            sample = Sample(2**30, memory_limit_bytes=2**33)
            writer.write({allocation: sample}, at_ms=(begin_s + second) * 1000)
    return str(path)


YOUNG = ("--since", "24h", "--until", "2026-10-01T12:00:15Z")


def test_a_length_of_time_begins_with_the_first_sample_and_a_date_does_not(minute):
    said = json.loads(call("report", "--from", minute, *YOUNG, "--json").stdout)
    assert (said["since_ms"], said["recorded_ratio"]) == ((MIDNIGHT_S + 43_200) * 1000, 1)
    by_date = ("--since", "2026-09-30T12:00:15Z", *YOUNG[2:], "--json")
    said = json.loads(call("report", "--from", minute, *by_date).stdout)
    assert said["since_ms"] == (MIDNIGHT_S - 43_185) * 1000
    assert said["recorded_ratio"] < 0.001


def test_a_report_leaves_nothing_beside_a_closed_recording(minute, tmp_path):
    there = set(tmp_path.iterdir())
    before = Path(minute).read_bytes()
    assert call("report", "--from", minute, *YOUNG).returncode == 0
    assert (set(tmp_path.iterdir()), Path(minute).read_bytes()) == (there, before)
    # The log of one that is being written stays.
    with RecordingWriter(minute, interval_s=1) as writer:
        there = set(tmp_path.iterdir())
        assert len(there) == 3
        assert call("report", "--from", minute, *YOUNG).returncode == 0
        assert set(tmp_path.iterdir()) == there
        writer.write({}, at_ms=(MIDNIGHT_S + 43_260) * 1000)
    assert call("report", "--from", minute, *YOUNG[:3], "2026-10-01T12:02Z").returncode == 0


def test_what_was_seen_for_seconds_is_not_called_well_limited(minute, tmp_path):
    page = tmp_path / "young.html"
    assert call("report", "--from", minute, *YOUNG, "--to", str(page)).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert "No limit needs to change" not in text
    assert "Seen too shortly to say" in text
    assert "seen too shortly to say</span>" in text, "the tile of what could be freed"
    assert 'class="gap"' not in text
    assert "12:00:10" in text, "the axis has seconds"


def test_a_limit_that_fits_and_was_seen_for_long_needs_no_change(tmp_path):
    path, page = tmp_path / "old.db", tmp_path / "old.html"
    old, young = (
        Allocation("research", name, "train", name, 0, "GPU-1") for name in ("old-0", "young-0")
    )
    # What fits: 7 GiB and a tenth, rounded up.
    sample = Sample(7 * 2**30, memory_limit_bytes=31 * 2**28)
    with RecordingWriter(path, interval_s=60) as writer:
        for minutes in range(120):
            there = {old: sample, **({young: sample} if minutes > 110 else {})}
            writer.write(there, at_ms=(MIDNIGHT_S + minutes * 60) * 1000)
    words = ("--since", "24h", "--until", "2026-10-01T02:00Z", "--to", str(page))
    assert call("report", "--from", str(path), *words).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert "No limit of what was seen for an hour needs to change." in text
    assert "1 allocation seen too shortly to say." in text


def test_the_notes_of_a_report_are_in_it_or_on_stderr(tmp_path):
    """Of two recordings, one has a gap."""
    words = []
    of = Allocation("research", "bert\x1b[2J", "train", "uid", 0, "GPU-1")
    for name, seconds in (("a.db", 15), ("b\x1b[2J.db", 10)):
        words += ["--from", str(tmp_path / name)]
        with RecordingWriter(tmp_path / name, interval_s=1, node=name) as writer:
            for second in range(seconds):
                writer.write({of: Sample(2**30)}, at_ms=(MIDNIGHT_S + 43_200 + second) * 1000)
    for form, holds_it in (("text", False), ("csv", False), ("json", True), ("html", True)):
        answer = call("report", *words, *YOUNG, "--format", form)
        assert ("covers 67 % of the time" in answer.stdout) == holds_it, form
        assert ("covers 67 % of the time" in answer.stderr) != holds_it, form
        assert "\x1b" not in answer.stdout + answer.stderr


def test_several_recordings_are_one_report_with_a_column_for_the_node(tmp_path):
    words = []
    for node in ("a", "b"):
        path = tmp_path / f"{node}.db"
        words += ["--from", str(path)]
        record(path, tenants()[:2], interval_s=900, node=f"gpu-{node}")
    by_container = call("report", *words, *SPAN).stdout.split("\n\n")[2].splitlines()
    assert by_container[0].split()[:2] == ["NODE", "NAMESPACE"]
    assert [line.split()[0] for line in by_container[1:]] == ["gpu-a"] * 2 + ["gpu-b"] * 2
    by_node = json.loads(call("report", *words, *SPAN, "--by", "node", "--json").stdout)
    assert [row["node"] for row in by_node["rows"]] == ["gpu-a", "gpu-b"]
    page = call("report", *words, *SPAN, "--by", "node", "--format", "html").stdout
    assert "GPU report: 2 nodes" in page
    assert "research / llm-pretrain-0, gpu-b" in page


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 1, "recorded in that time"),
        (("--since", "2026-10-02", "--until", "2026-10-01"), 2, "--since"),
        (("--since", "tomorrow"), 2, "24h"),
        ((*SPAN, "--namespace", "reserch"), 1, "there are batch, inference, notebooks, research"),
        ((*SPAN, "--price", "A100=cheap"), 2, "no price of a GPU's hour, such as A100=2.10"),
        ((*SPAN, "--price", "=1"), 2, "no price"),
        ((*SPAN, "--price", "A100=-1"), 2, "no price"),
        ((*SPAN, "--price", "/nowhere/prices"), 1, "/nowhere/prices: No such file"),
        (("--format", "csv", "--json"), 2, "contradict"),
        (("--step", "soon"), 2, "no length of time"),
        ((*SPAN, "--pod", "nobody"), 1, "nothing of this"),
        ((*SPAN, "--to", "/nowhere/a.html"), 1, "Error: /nowhere/a.html: No such file or direc"),
        ((*SPAN, "--to", "week.pdf"), 2, "--format"),
        ((*SPAN, "--to", "/dev/null"), 2, "--format"),
        ((*SPAN, "--from", "http://a"), 2, "one Prometheus"),
        (("--match", 'job="hami"'), 2, "--match"),
        (("--step", "60s"), 2, "--step"),
    ],
)
def test_what_goes_wrong_is_said(day, words, code, said):
    assert said in refused("report", "--from", day, *words, code=code)


@pytest.mark.parametrize(
    ("typed", "moment"),
    [
        ("24h", "2026-09-30T12:00:00+00:00"),
        ("2w", "2026-09-17T12:00:00+00:00"),
        ("1d12h", "2026-09-30T00:00:00+00:00"),
        ("2026-09-30T08:00:00Z", "2026-09-30T08:00:00+00:00"),
        ("2026-09-30T08:00:00+02:00", "2026-09-30T06:00:00+00:00"),
        ("2026-09-30", "2026-09-30T00:00:00+00:00"),
    ],
)
def test_moments_are_read_as_people_type_them(typed, moment):
    assert parse_moment(typed, before=NOON).astimezone(dt.timezone.utc).isoformat() == moment


@pytest.mark.parametrize("typed", ["", "h", "24", "-1h", "tomorrow", "2026-13-01", "9999999w"])
def test_what_is_no_moment_is_refused(typed):
    with pytest.raises(ValueError, match="a date"):
        parse_moment(typed, before=NOON)


@pytest.mark.parametrize(
    ("today", "begin", "end"),
    [
        ("2026-01-15T12:00+00:00", "2025-12-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"),
        ("2026-03-31T23:59+00:00", "2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"),
    ],
)
def test_last_month_is_the_whole_month_before(today, begin, end):
    span = parse_span("last-month", None, now=dt.datetime.fromisoformat(today))
    assert [each.astimezone(dt.timezone.utc).isoformat() for each in span] == [begin, end]


def test_days_and_months_have_names():
    for name, begin, end in (
        ("today", "2026-10-01T00:00:00+00:00", NOON.isoformat()),
        ("yesterday", "2026-09-30T00:00:00+00:00", "2026-10-01T00:00:00+00:00"),
        ("this-month", "2026-10-01T00:00:00+00:00", NOON.isoformat()),
    ):
        span = parse_span(name, None, now=NOON)
        assert [each.astimezone(dt.timezone.utc).isoformat() for each in span] == [begin, end]
        assert parse_span(name, "2026-10-01T06:00Z", now=NOON)[1].hour == 6


def test_a_bill_has_shares_and_costs_in_every_form(day, tmp_path):
    prices = tmp_path / "prices"
    prices.write_text("# an hour\nA100 = 3.00\nA100-SXM4-80GB = 2.10  # the longer name counts\n")
    words = ("--price", str(prices), "--by", "pod", "--namespace", "inference")
    document = json.loads(report(day, *words, "--json"))
    assert document["prices"] == [["A100", 3.0], ["A100-SXM4-80GB", 2.1]]
    total = document["total"]
    assert total["cost_allocated"] == pytest.approx(2.1 * total["allocated_gpu_hours"])
    assert total["cost_used"] == pytest.approx(2.1 * total["busy_gpu_hours"])
    assert sum(row["allocated_ratio"] for row in document["bill"]) == pytest.approx(1)
    cost = f"{total['cost_allocated']:,.2f}"
    *_, last = report(day, *words).split("\n\n")[1].splitlines()
    assert (last.split()[0], last.split()[-2]) == ("TOTAL", cost)
    assert f"<td>{cost}</td>" in report(day, *words, "--format", "html")
    assert f",{total['cost_allocated']:.6f}".rstrip("0") in report(day, *words, "--format", "csv")
    # Of one model the last price counts.
    dear = json.loads(report(day, *words, "--price", "A100-SXM4-80GB=4.20", "--json"))
    assert dear["total"]["cost_used"] == pytest.approx(2 * total["cost_used"])


def test_last_month_is_a_month_of_local_time_also_when_the_clocks_change(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    now = dt.datetime.fromisoformat("2026-11-05T12:00+00:00")
    begin, end = parse_span("last-month", None, now=now)
    assert end - begin == dt.timedelta(days=31, hours=1)
