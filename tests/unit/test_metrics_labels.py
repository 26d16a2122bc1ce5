"""What stands in a label is one escaped line, whatever it was, and comes back as it went in."""

import pytest
from exposition import parsed
from hypothesis import given
from hypothesis import strategies as st

from libhamiregion.exporter import Series, metrics
from libhamiregion.exporter.labels import LabelMaker, distinct, read_labels, safe_value
from libhamiregion.exporter.rendering import Sheet

make = LabelMaker(metrics.MEMORY_USED)


def text_of(*labels: bytes) -> bytes:
    series = Series(metrics.MEMORY_USED, list(labels), [1] * len(labels))
    return b"".join(Sheet().render([series]))


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
def test_a_hostile_text_becomes_one_line_and_survives_the_format(raw: str, shown: str) -> None:
    labels = make(safe_value(raw), "pod", "container", "0", "GPU-a")
    assert read_labels(labels)["namespace"] == shown
    text = text_of(labels)
    assert text.count(b"\n") == 3
    assert parsed(text).labels("hami_vgpu_memory_used_bytes")["namespace"] == shown


@given(st.lists(st.text(max_size=40), min_size=5, max_size=5))
def test_any_texts_come_back_from_the_parser(raw: list[str]) -> None:
    values = [safe_value(each) for each in raw]
    found = parsed(text_of(make(*values))).labels("hami_vgpu_memory_used_bytes")
    assert read_labels(make(*values)) == found
    assert found == {**dict(zip(metrics.HAMI_DEVICE, values, strict=True)), "zone": "vGPU"}


def test_a_long_text_is_cut_and_no_name_of_kubernetes_is() -> None:
    assert len(safe_value("x" * 4096)) == 253
    assert safe_value("p" * 253) == "p" * 253


def test_as_many_values_are_wanted_as_there_are_labels() -> None:
    with pytest.raises(ValueError, match="5 values are wanted, not 2"):
        make("a", "b")


def test_of_rows_with_equal_labels_the_first_stays() -> None:
    one, same, other = (make("a", "b", "c", index, "u") for index in ("0", "0", "1"))
    assert distinct([(one, 1), (same, 2), (other, 3)]) == [(one, 1), (other, 3)]
