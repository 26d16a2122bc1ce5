"""Lengths of time in Go's notation."""

import pytest

from libhamiregion.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("+5m", 300),
        ("+0", 0),
        ("500ms", 0.5),
        ("10us", 1e-5),
        ("10\u00b5s", 1e-5),
        ("7ns", 7e-9),
        ("0", 0),
        ("0s", 0),
        ("1m1m", 120),
        ("1.5d", 129_600),
        ("2w", 1_209_600),
        ("1.h", 3600),
    ],
)
def test_go_s_notation_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", "it has no unit"),
        ("", "no length of time"),
        ("m", "no length of time"),
        (".m", "no length of time"),
        ("+", "no length of time"),
        ("+-5m", "no length of time"),
        ("5 m", "no length of time"),
        ("5y", "no length of time"),
        ("-5m", "is negative"),
        ("5m\n", "no length of time"),
        ("\u0665m", "no length of time"),
        ("9999999999h", "longer than 292 years"),
        ("1" * 10_000, r"\.\.\."),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 150
