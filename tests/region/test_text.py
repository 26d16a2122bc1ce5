"""Hostile text, spelled out and bounded."""

import pytest

from libhamiregion.text import printable

HOSTILE = [
    "a\nb",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "\u202egpj.exe",
    "a\u2028b",
    "\x00",
    "\x9b31m",
    "\udcff",
    "\t\r\v",
    "a" * 4096 + "\n",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_the_result_is_printable(text):
    assert printable(text).isprintable()
    assert printable(text, limit=20).isprintable()


def test_the_result_is_never_longer_than_the_limit():
    for text in (*HOSTILE, "", "short", "é" * 40):
        for limit in (3, 4, 20):
            assert len(printable(text, limit)) <= limit


def test_harmless_text_stays_as_it_is():
    assert printable("GPU-0 é 容器") == "GPU-0 é 容器"
    assert printable("exactly", limit=7) == "exactly"


def test_what_is_cut_ends_in_three_dots():
    assert printable("a" * 4096, limit=8) == "aaaaa..."
    assert printable("\x1b" * 4, limit=8) == "\\x1b\\..."
