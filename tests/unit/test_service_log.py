"""The log of what runs for long: one line per event, bounded, on one stream."""

from __future__ import annotations

import errno
import io
import json
import logging
import sys
from typing import TYPE_CHECKING

import pytest
from support.answers import check_answer
from support.command_line import logging_kept

from libhamiregion.cli.service_log import ServiceLog
from libhamiregion.node.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Logging as a program has it at its start."""
    with logging_kept():
        yield


HOSTILE = ("a" * 400, "\x1b[2J" * 100, "\N{GRINNING FACE}" * 400, "\\" * 400, "")


@pytest.mark.parametrize("as_json", [False, True])
def test_every_event_is_one_line_of_500_characters_at_most(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ServiceLog(as_json=as_json)
    for text in HOSTILE:
        for detail in ({}, {"field": text[:100], "more": text[:100]}):
            log(Event(1.5, "repair", "repaired", text, text[:120], detail))
    written = capsys.readouterr()
    assert written.out == ""
    lines = written.err.splitlines()
    assert len(lines) == 2 * len(HOSTILE) == written.err.count("\n")
    assert max(map(len, lines)) < 500
    assert "\x1b" not in written.err
    for line in lines:
        if as_json:
            fields = json.loads(line)
            check_answer(fields)
        else:
            assert line.startswith("1970-01-01T00:00:01Z repair   repaired ")


@pytest.mark.usefixtures("own_logging")
def test_log_records_are_events_of_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    ServiceLog(as_json=True).capture_logging("info")
    ours = logging.getLogger("libhamiregion.exporter.http")
    ours.info("listening on %s", "http://[::1]:9394")
    ours.debug("not asked for")
    logging.getLogger("urllib3").info("another library's chatter")
    try:
        int("x" * 100_000)
    except ValueError:
        ours.exception("a request\nfailed")
    for number in range(100):
        ours.warning("a client did %s", number)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["task"], each["event"]) for each in events[:2]] == [
        ("exporter", "info"),
        ("exporter", "error"),
    ]
    assert events[0]["message"] == "listening on http://[::1]:9394"
    assert events[1]["message"].startswith(r"a request\nfailed: ValueError: ")
    repeated = [each["message"] for each in events[2:]]
    assert repeated[0] == "a client did 0"
    assert repeated[-1] == "a client did 63 (64 times now)"
    assert len(repeated) == 7


class Stream(io.StringIO):
    """A stream that fails as it is told."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def flush(self) -> None:
        if self.number:
            raise OSError(self.number, "no")


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_log_that_nobody_reads_is_told_once_and_a_full_disk_is_not(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[bool] = []
    stream = Stream(number)
    monkeypatch.setattr(sys, "stdout", stream)
    log = ServiceLog(as_json=False, lost=lambda: lost.append(True), on_stdout=True)
    for _ in range(3):
        log.emit("agent", "started", "feedback")
    full = number in {errno.ENOSPC, errno.EDQUOT}
    assert lost == ([] if full else [True])
    assert log.is_lost is not full
    assert (sys.stdout is None) is not full
