"""Text from series, as Prometheus takes it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from support.exposition import parsed

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text
from libhamiregion.exporter.text import Series, TextWriter

USED = "hami_vgpu_memory_used_bytes"


def device(pod: str) -> str:
    return label_text(families.DEVICE, "ns", pod, "main", "0", "GPU-%s-{}")


def text(*series: Series) -> bytes:
    return b"".join(TextWriter().pieces(series))


def test_a_family_has_its_help_its_type_and_a_line_per_series():
    series = Series.of(USED, {device("a"): 2**64 - 1, device("b"): 0})
    rest = 'container="main",vdevice_index="0",device_uuid="GPU-%s-{}",zone="vGPU"}'
    assert text(series).decode().splitlines() == [
        f"# HELP hami_vgpu_memory_used_bytes {families.BY_NAME[USED].help}",
        "# TYPE hami_vgpu_memory_used_bytes gauge",
        f'hami_vgpu_memory_used_bytes{{namespace="ns",pod="a",{rest} 18446744073709551615',
        f'hami_vgpu_memory_used_bytes{{namespace="ns",pod="b",{rest} 0',
    ]


def test_a_family_without_samples_is_not_there():
    assert text(Series.of(USED, {})) == b""
    assert text(Series.of(USED, {device("a"): None})) == b""


def test_one_family_in_two_parts_has_its_help_once_also_if_the_first_is_empty():
    first, nothing = Series.of(USED, {device("a"): 7}), Series.of(USED, {})
    for parts in ((first, first), (nothing, first), (first, nothing)):
        assert text(*parts).count(b"# HELP") == 1
    name = "hamiregion_scrape_duration_seconds"
    sums = [Series(name, [""], [0.25], "_sum"), Series(name, [""], [3], "_count")]
    assert text(*sums).decode().splitlines()[1:] == [
        f"# TYPE {name} summary",
        f"{name}_sum 0.25",
        f"{name}_count 3",
    ]


@given(st.one_of(st.floats(), st.integers(-(2**53), 2**53)))
def test_numbers_read_back_as_they_were(value):
    series = Series("hamiregion_nvml_up", [""], [value])
    back = parsed(text(series)).value("hamiregion_nvml_up")
    assert back == float(value) or (math.isnan(back) and math.isnan(value))


def test_series_that_are_as_they_were_keep_their_text_and_others_get_a_new_one():
    writer = TextWriter()
    up = Series("hamiregion_nvml_up", [""], [1])

    def written(used: Series) -> list[bytes]:
        return list(writer.pieces([used, Series(USED, [device("b")], [2]), up]))

    first = written(Series(USED, [device("a")], [7]))
    again = written(Series(USED, [device("a")], [7]))
    assert all(one is other for one, other in zip(first, again, strict=True))
    other = written(Series(USED, [device("a")], [8]))
    assert other[0] == first[0].replace(b" 7\n", b" 8\n")
    assert [one is two for one, two in zip(first, other, strict=True)] == [False, True, True]
    # What has begun the family is gone.
    assert written(Series(USED, [], []))[0].startswith(b"# HELP")
