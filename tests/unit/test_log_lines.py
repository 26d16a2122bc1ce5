"""Failures that come again and again: how often they are logged, and with what."""

import logging

import pytest

from libhamiregion.exporter.log_lines import LINE_LIMIT, RepeatedEvents

LOG = logging.getLogger("test_log_lines")


def test_a_failure_is_logged_ever_more_seldom_and_anew_after_a_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = RepeatedEvents(LOG)
    for _ in range(9):
        failures.failed("driver", "it does not answer")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"driver: it does not answer{times}"
        for times in ("", " (2 times)", " (4 times)", " (8 times)")
    ]
    assert failures.recovered("driver")
    assert not failures.recovered("driver")
    caplog.clear()
    failures.failed("driver", "\x1b[2J" * 1000)
    (again,) = caplog.messages
    assert LINE_LIMIT - 10 < len(again) <= LINE_LIMIT
    assert again.isprintable()


def test_whoever_wants_debug_messages_gets_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    error = ValueError("why it failed")
    RepeatedEvents(LOG).failed("driver", "it does not answer", error)
    assert "ValueError: why it failed" in caplog.text
