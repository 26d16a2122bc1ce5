"""Text from series: the two formats, and numbers as Prometheus takes them."""

import math
import struct
from array import array

from hypothesis import given
from hypothesis import strategies as st

from libhamiregion.exporter import families
from libhamiregion.exporter.families import MetricFamily
from libhamiregion.exporter.labels import NO_LABELS, LabelRows, label_text
from libhamiregion.exporter.text import NO_ROW, Series, TextEncoder

NOW_S = 1_800_000_000


def device(pod: str) -> bytes:
    return label_text(families.DEVICE, "ns", pod, "main", "0", "GPU-%s-%d")


def text(*series: Series) -> bytes:
    return b"".join(TextEncoder().pieces(series, NOW_S))


def numbers(family: MetricFamily, cells: array, rows: array | None = None) -> list[bytes]:  # type: ignore[type-arg]
    """The numbers of a family as they are written, one per label text."""
    count = len(cells if rows is None else rows)
    labels = LabelRows([b'pod="%d"' % number for number in range(count)])
    lines = text(Series(family, labels, cells, rows)).splitlines()[2:]
    return [line.rpartition(b" ")[2] for line in lines]


def test_a_family_has_its_help_its_type_and_a_line_per_series() -> None:
    series = Series.of(families.MEMORY_USED, {device("a"): 2**64 - 1, device("b"): 0})
    rest = 'container="main",vdevice_index="0",device_uuid="GPU-%s-%d",zone="vGPU"}'
    assert text(series).decode().splitlines() == [
        f"# HELP hami_vgpu_memory_used_bytes {families.MEMORY_USED.help}",
        "# TYPE hami_vgpu_memory_used_bytes gauge",
        f'hami_vgpu_memory_used_bytes{{namespace="ns",pod="a",{rest} 18446744073709551615',
        f'hami_vgpu_memory_used_bytes{{namespace="ns",pod="b",{rest} 0',
    ]


def test_a_family_without_samples_is_not_there() -> None:
    assert text(Series.of(families.MEMORY_USED, {})) == b""
    unlimited = Series.of(families.SM_LIMIT, {device("a"): 0, device("b"): 100})
    assert text(unlimited) == b""


def test_one_family_in_two_parts_has_its_help_once_also_where_the_first_is_empty() -> None:
    first = Series.of(families.PROCESS_MEMORY, {b'pid="1"': 7})
    nothing = Series.of(families.PROCESS_MEMORY, {})
    for parts in ((first, first), (nothing, first), (first, nothing)):
        assert text(*parts).count(b"# HELP") == 1
    sums = [
        Series(families.SCRAPE_DURATION, NO_LABELS, array("d", [value]), suffix=suffix)
        for suffix, value in (("_sum", 0.25), ("_count", 3))
    ]
    assert text(*sums).decode().splitlines()[1:] == [
        "# TYPE hamiregion_scrape_duration_seconds summary",
        "hamiregion_scrape_duration_seconds_sum 0.25",
        "hamiregion_scrape_duration_seconds_count 3",
    ]


def test_each_way_to_write_a_cell_gives_its_number_or_none() -> None:
    signed = array("q", [-(2**63), -1, 0, 5])
    for family, cells, expected in (
        (families.PRIORITY, signed, [b"-9223372036854775808", b"-1", b"0", b"5"]),
        (families.BLOCKED, signed, [b"1", b"1", b"0", b"0"]),
        (families.PROCESS_SM, array("Q", [0, 7, 40, 100, 250]), b"0 0.07 0.4 1 2.5".split()),
        (families.SM_LIMIT, array("Q", [0, 1, 99, 100, 2**64 - 1]), [b"0.01", b"0.99"]),
        (families.LAST_KERNEL, array("Q", [0, NOW_S - 5, NOW_S + 5]), [b"5", b"0"]),
        (families.BUILD, array("Q", [7]), [b"1"]),
    ):
        assert numbers(family, cells) == expected
        labels = LabelRows([b"" for _ in cells])
        same = [value for _, value in Series(family, labels, cells).samples(NOW_S)]
        assert [float(each) for each in expected] == same


def test_percents_become_ratios_without_a_rounding_error() -> None:
    cells = array("Q", [*range(1001), 2**40 + 1])
    written = numbers(families.PROCESS_SM, cells)
    assert [float(each) for each in written] == [each / 100 for each in cells]


def test_rows_choose_cells_and_those_without_one_have_no_sample() -> None:
    cells = array("Q", [10, 20, 30])
    rows = array("I", [2, NO_ROW, 0, 3, 2**31])
    assert numbers(families.MEMORY_USED, cells, rows) == [b"30", b"10"]


@given(st.lists(st.floats(), min_size=1))
def test_doubles_read_back_as_they_were(values: list[float]) -> None:
    written = numbers(families.HOST_POWER, array("d", values))
    for value, word in zip(values, written, strict=True):
        back = float(word)
        assert (
            struct.pack("d", back) == struct.pack("d", value)
            or (math.isnan(value) and word == b"NaN")
            or value == back == 0
        )
        assert len(word) <= len("-1.2345678901234567e-308")
