"""`limits_from_environment`: libvgpu's own reading of the limit variables."""

from typing import Any

import pytest

from libhamiregion import limits_from_environment

MEMORY = "CUDA_DEVICE_MEMORY_LIMIT"
SM = "CUDA_DEVICE_SM_LIMIT"
KIB, MIB, GIB = 2**10, 2**20, 2**30


def memory_limit(value: str, hami_version: Any = "2.10") -> int | None:
    found = limits_from_environment({MEMORY: value}, hami_version=hami_version)
    return found.memory_limits_bytes[0]


def sm_limit(value: str, hami_version: Any = "2.10") -> int | None:
    found = limits_from_environment({SM: value}, hami_version=hami_version)
    return found.sm_limits_percent[0]


def test_the_variable_without_an_index_rules_every_device():
    limits = limits_from_environment({MEMORY: "3000m", SM: "30"})
    assert limits.memory_limits_bytes == (3000 * MIB,) * 16
    assert limits.sm_limits_percent == (30,) * 16


def test_the_variable_with_an_index_wins_for_its_device_only():
    limits = limits_from_environment(
        {MEMORY: "1g", f"{MEMORY}_0": "2g", f"{MEMORY}_15": "3g", SM: "30", f"{SM}_10": "50"}
    )
    assert limits.memory_limits_bytes == (2 * GIB, *(GIB,) * 14, 3 * GIB)
    assert limits.sm_limits_percent == (*(30,) * 10, 50, *(30,) * 5)


def test_a_device_whose_own_value_comes_to_nothing_gets_the_general_one():
    nothings = ["", "0", "0g", "g", "abc", "-", "0x", "09", "17179869184g"]
    for nothing, version in [
        *((each, "2.10") for each in nothings),
        ("abc", "2.11"),
        ("abc", None),
    ]:
        limits = limits_from_environment(
            {MEMORY: "1g", f"{MEMORY}_1": nothing, SM: "30", f"{SM}_1": nothing},
            hami_version=version,
        )
        assert limits.memory_limits_bytes[1] == GIB
        assert limits.sm_limits_percent[1] == 30


def test_a_value_is_what_strtoul_reads_times_the_last_letter():
    for value, nbytes in [
        ("7k", 7 * KIB),
        ("7K", 7 * KIB),
        ("3000M", 3000 * MIB),
        ("6g", 6 * GIB),
        ("6G", 6 * GIB),
        (" \t\n\v\f\r6g", 6 * GIB),
        ("+6g", 6 * GIB),
        ("6 g", 6 * GIB),
        ("6.9g", 6 * GIB),
        ("6,9xyzg", 6 * GIB),
        ("010k", 8 * KIB),
        ("019", 1),
        ("0x10", 16),
        ("0X1Fm", 31 * MIB),
        ("1_000", 1),
        ("1e3", 1),
        ("17179869183g", 17179869183 * GIB),
        ("18446744073709551615", 2**64 - 1),
        ("99999999999999999999999", 2**64 - 1),
        ("-18446744073709551615", 1),
        ("-99999999999999999999999", 2**64 - 1),
        ("0" * 5000 + "7", 7),
        ("9" * 5000, 2**64 - 1),
    ]:
        assert memory_limit(value) == nbytes


UNLIMITED = (
    "", " ", "0", "0g", "0x", "0xg", "08", "g", "-", "+", "+-5", "--5", "- 5", "abc", "six g",
    "\u00a05", "\x1c5", "٦g", "-0", "-1k", "17179869184g", "18446744073709551615k",
    "9" * 30 + "m",
)  # fmt: skip


def test_zero_garbage_and_overflow_mean_unlimited():
    for value in UNLIMITED:
        assert memory_limit(value) is None
        assert sm_limit(value) is None


def test_an_sm_limit_of_100_or_more_is_unlimited():
    for value, percent in [
        ("1", 1),
        ("50", 50),
        ("99", 99),
        ("100", None),
        ("101", None),
        ("1k", None),
        ("-1", None),
    ]:
        assert sm_limit(value) == percent


def test_an_unlimited_device_is_told_apart_from_one_without_a_value():
    """100 for one device lifts the general limit there, 0 does not."""
    limits = limits_from_environment({SM: "30", f"{SM}_0": "100", f"{SM}_1": "0"})
    assert limits.sm_limits_percent[:3] == (None, 30, 30)


def test_a_value_ends_at_a_nul_as_in_c():
    assert memory_limit("6g\x00k") == 6 * GIB


# ---- HAMi 2.11 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        ("6.5g", 6 * GIB, 13 * GIB // 2),
        ("6 GiB", 6, 6 * GIB),
        ("6GiB", 6, 6 * GIB),
        ("6Gi", 6, 6 * GIB),
        ("1gb", 1, GIB),
        ("\t 7 KB", 7, 7 * KIB),
        ("010", 8, 10),
        ("0x10g", 16 * GIB, None),
        ("50%", 50, None),
        ("6.5", 6, None),
        ("6t", 6, None),
        ("6g ", 6, None),
        ("-1", 2**64 - 1, None),
        ("6\u212a", 6, None),
        ("17179869184g", None, None),
        ("3000m", 3000 * MIB, 3000 * MIB),
        ("1024", 1024, 1024),
        ("6b", 6, 6),
        ("0", None, None),
        ("six", None, None),
    ],
)
def test_memory_is_read_as_each_release_reads_it(value, before, after):
    assert (memory_limit(value), memory_limit(value, "2.11")) == (before, after)
    if before == after:
        assert memory_limit(value, None) == before
    else:
        with pytest.raises(ValueError, match=r"up to HAMi 2\.10 .* from 2\.11 on") as caught:
            memory_limit(value, None)
        for limit in (before, after):
            assert (f"{limit} bytes" if limit else "unlimited") in str(caught.value)


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [("50%", 50, 50), ("50.5", 50, 50), ("50.5%", 50, 50), ("062", 50, 62), ("0x32", 50, None)],
)
def test_an_sm_limit_is_read_as_each_release_reads_it(value, before, after):
    assert (sm_limit(value), sm_limit(value, "2.11")) == (before, after)
    if before == after:
        assert sm_limit(value, None) == before
    else:
        with pytest.raises(ValueError, match=f"device 0 gets {before}% up to HAMi 2.10"):
            sm_limit(value, None)


def test_readings_that_differ_name_the_device_and_its_variable():
    with pytest.raises(ValueError, match=f"device 3 .*{MEMORY}_3='1gb', {MEMORY}='2g'"):
        limits_from_environment({MEMORY: "2g", f"{MEMORY}_3": "1gb"})


def test_a_release_that_is_not_known_is_an_error():
    with pytest.raises(ValueError, match=r"2\.10 or 2\.11, not '2\.9'"):
        memory_limit("1g", "2.9")
