"""Labels that containers and processes choose: one escaped line each, and a bounded number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exposition import parsed

from libhamiregion.exporter import families
from libhamiregion.exporter.labels import label_text, read_labels, safe_value
from libhamiregion.exporter.legacy import former_series
from libhamiregion.exporter.text import Series, TextWriter


def text_of(*values: str) -> bytes:
    labels = label_text(families.DEVICE, *values)
    series = [Series.of("hami_vgpu_memory_used_bytes", {labels: 1})]
    return b"".join(TextWriter().pieces(series))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ('a"b', 'a"b'),
        ("a\\b", "a\\b"),
        ("a\nb", "a\\nb"),
        ("a\x00b\x1b[2J", "a\\x00b\\x1b[2J"),
        ("100%d", "100%d"),
        ("\udcff", "\\udcff"),
        ("名", "名"),
        ("", ""),
    ],
)
def test_a_hostile_text_becomes_one_line_and_survives_the_format(raw, shown):
    text = text_of(safe_value(raw), "pod", "container", "0", "GPU-a")
    assert text.count(b"\n") == 3
    assert parsed(text).labels("hami_vgpu_memory_used_bytes")["namespace"] == shown


@given(
    st.lists(
        st.one_of(st.text(max_size=40), st.sampled_from([',pod="', "pod=", "\\", 'a",podname="b'])),
        min_size=5,
        max_size=5,
    )
)
def test_any_texts_come_back_from_the_parser_also_under_former_names(raw):
    values = [safe_value(each) for each in raw]
    found = parsed(text_of(*values)).labels("hami_vgpu_memory_used_bytes")
    named = dict(zip(families.DEVICE, values, strict=True))
    assert found == {**named, "zone": "vGPU"}
    labels = label_text(families.DEVICE, *values)
    assert read_labels(labels) == named
    limits = Series.of("hami_vgpu_memory_limit_bytes", {labels: 1})
    ((former, _),) = former_series([limits])[0].samples()
    assert former == dict(zip(families.former_labels(families.DEVICE), values, strict=True)) | {
        "zone": "vGPU"
    }


def test_a_long_text_is_cut_and_no_name_of_kubernetes_is():
    assert len(safe_value("x" * 4096)) == 253
    assert safe_value("p" * 253) == "p" * 253
