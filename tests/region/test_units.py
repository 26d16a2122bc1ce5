"""Sizes and lengths of time: what the parsers take, what they refuse, and why."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libhamiregion import format_size, parse_size
from libhamiregion.units import (
    MIN_MEMORY_LIMIT_BYTES,
    format_limit,
    parse_duration,
    typed_memory_limit,
)

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


def test_text_becomes_bytes():
    for text, nbytes in [
        ("0", 0),
        ("12345", 12345),
        ("12345 B", 12345),
        ("6GiB", 6 * GIB),
        ("6Gi", 6 * GIB),
        ("6g", 6 * GIB),
        ("6G", 6 * GIB),
        ("3000m", 3000 * MIB),
        ("512MiB", 512 * MIB),
        ("7K", 7 * KIB),
        ("7 KiB", 7 * KIB),
        ("2t", 2 * TIB),
        ("2TiB", 2 * TIB),
        (" 6 GiB\n", 6 * GIB),
        ("1.5GiB", 3 * GIB // 2),
        ("0.5k", 512),
        ("1.0", 1),
        ("010", 10),
        ("9223372036854775807", 2**63 - 1),
        ("8388607.99999904632568359375 TiB", 2**63 - 2**20),
    ]:
        assert parse_size(text) == nbytes


def test_an_integer_is_bytes_already():
    for number in [0, 12345, 2**63 - 1, np.int64(7), np.uint8(255)]:
        assert parse_size(number) == int(number)
        assert type(parse_size(number)) is int


NO_SIZES = (
    "", " ", "G", "GiB", "six", "NaN", "inf", "1e3", "+5", "0x10", "1.", ".5", "1.2.3", "1_000",
    "6 G i B", "6GiBs", "6Gib/s", "1,5g", "٦", "6\u00a0GiB!", "1\x00", "9" * 65,
)  # fmt: skip


def test_what_is_no_size_is_refused_with_examples():
    for text in (*NO_SIZES, "-1", "-6GiB", "6GB", "6 gb", "1.5MB"):
        with pytest.raises(ValueError, match="is not a size: write bytes"):
            parse_size(text)


def test_a_size_beyond_63_bits_is_refused():
    for size in [2**63, 10**400, "9223372036854775808", "8388608T", "9" * 64, "9" * 60 + ".0TiB"]:
        with pytest.raises(ValueError, match=r"too large for a size|is 0 to"):
            parse_size(size)


def test_a_fraction_of_a_byte_is_refused():
    for text in ["1.5", "0.1", "1.5B"]:
        with pytest.raises(ValueError, match="not a whole number of bytes: give a unit"):
            parse_size(text)


def test_a_fraction_of_a_unit_is_rounded_down_to_a_byte():
    assert parse_size("4.2GiB") == int(4.2 * GIB)
    assert (parse_size("1.0001k"), parse_size("0.1GiB")) == (1024, GIB // 10)


@given(
    st.integers(0, 2**63 - 1)
    | st.integers(0, 9999).map(lambda thousandths: thousandths * GIB // 1000)
)
def test_a_limit_that_is_shown_is_read_back_exactly(nbytes):
    assert parse_size(format_limit(nbytes)) == nbytes
    if nbytes >= MIN_MEMORY_LIMIT_BYTES:
        assert typed_memory_limit(format_limit(nbytes), force="") == format_limit(nbytes)


def test_limits_are_shown_in_few_digits():
    for text in ("4.2 GiB", "8152 MiB", "7.96 GiB", "1.5 KiB", "3000 MiB", "0 B", "1023 MiB"):
        assert format_limit(parse_size(text)) == text
    assert format_limit(8 * GIB - 1) == f"{8 * GIB - 1} B"


def test_a_limit_that_is_typed_needs_a_unit():
    for text in ("6", " 8000 ", "1.5", "8589934592"):
        with pytest.raises(ValueError, match="give a unit: 6GiB, 6000MiB"):
            typed_memory_limit(text)
    for text in ("80%", "unlimited", "6g", "8589934592B"):
        assert typed_memory_limit(text, force="") == text
    assert typed_memory_limit("6KiB") == "6KiB"
    with pytest.raises(ValueError, match="below 16 MiB"):
        typed_memory_limit("6KiB", force="")


def test_other_types_are_a_type_error_that_names_them():
    for size in [True, False, 1.0, None, b"6GiB", [6]]:
        with pytest.raises(TypeError, match=rf"not {type(size).__name__}$"):
            parse_size(size)  # type: ignore[arg-type]


def test_a_message_carries_no_raw_and_no_endless_text():
    """Sizes come from files of others: escape sequences and megabytes stay out of messages."""
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size("\x1b[2J" + "x" * 1_000_000)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_bytes_become_text_that_is_exact_or_has_a_fraction():
    for nbytes, text in [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (1500, "1.5 KiB"),
        (6 * GIB, "6 GiB"),
        (6 * GIB + 1, "6.0 GiB"),
        (6 * GIB - 1, "6.0 GiB"),
        (3000 * MIB, "2.9 GiB"),
        (1024 * MIB - 1, "1.0 GiB"),
        (1024 * GIB - 1, "1.0 TiB"),
        (TIB, "1 TiB"),
        (2**64 - 1, "16777216.0 TiB"),
        (np.uint64(GIB), "1 GiB"),
    ]:
        assert format_size(nbytes) == text


def test_format_size_refuses_negative_numbers_and_other_types():
    with pytest.raises(ValueError, match="a number of bytes is 0 or above, not -1"):
        format_size(-1)
    with pytest.raises(TypeError):
        format_size(1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        format_size(True)


@given(st.integers(0, 2**63 - 1))
def test_what_format_size_shows_with_a_fraction_is_within_half_a_tenth(nbytes):
    number, unit = format_size(nbytes).split(" ")
    scale = parse_size(f"1 {unit}")
    assert abs(round(float(number) * 10) * scale - 10 * nbytes) <= scale // 2
    assert float(number) < 1024 or unit == "TiB"


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        nbytes = parse_size(text)
    except ValueError:
        return
    assert 0 <= nbytes < 2**63


# ---- lengths of time ----


def test_lengths_of_time_are_read():
    for text, seconds in [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("0", 0),
        ("0s", 0),
        ("1m1m", 120),
        ("7d", 7 * 86_400),
        ("2w1d", 15 * 86_400),
    ]:
        assert parse_duration(text) == pytest.approx(seconds)


def test_anything_else_is_refused():
    texts = (
        "5",
        "",
        "m",
        ".m",
        "+",
        "5 m",
        "5y",
        "-5m",
        "5m\n",
        "\u0665m",
        "9999999999h",
        "1" * 10_000,
    )
    for text in texts:
        with pytest.raises(ValueError, match="no length of time") as caught:
            parse_duration(text)
        assert len(str(caught.value)) < 150
