"""Labels that containers and processes choose: one escaped line each, and a bounded number."""

from __future__ import annotations

import attrs
import pytest
from exposition import parsed
from hypothesis import given
from hypothesis import strategies as st

from libhamiregion.exporter import families
from libhamiregion.exporter.collectors.processes import _container_id
from libhamiregion.exporter.identity import identity_from
from libhamiregion.exporter.labels import (
    OTHER,
    CardinalityLimiter,
    LabelRows,
    label_text,
    read_labels,
    safe_value,
)
from libhamiregion.exporter.text import Series, TextEncoder
from libhamiregion.node import Container, HostProcess
from libhamiregion.node.cgroups import ContainerId
from libhamiregion.node.names import ClaimName

ONE, TWO = (("team-a", pod, "main", pod) for pod in ("one", "two"))


def text_of(*values: str) -> bytes:
    labels = label_text(families.DEVICE, *values)
    series = Series.of(families.MEMORY_USED, {labels: 1})
    return b"".join(map(bytes, TextEncoder().pieces([series], 0)))


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
def test_any_texts_come_back_from_the_parser_also_under_former_names(raw: list[str]) -> None:
    values = [safe_value(each) for each in raw]
    found = parsed(text_of(*values)).labels("hami_vgpu_memory_used_bytes")
    named = dict(zip(families.DEVICE, values, strict=True))
    assert found == {**named, "zone": "vGPU"}
    labels = label_text(families.DEVICE, *values)
    assert read_labels(labels) == named
    (former,) = LabelRows([labels]).renamed(families.FORMER_LABELS).texts
    assert former == label_text([families.FORMER_LABELS[each] for each in named], *values)


def test_a_long_text_is_cut_and_no_name_of_kubernetes_is() -> None:
    assert len(safe_value("x" * 4096)) == 253
    assert safe_value("p" * 253) == "p" * 253


def process(command: str, start_time_ticks: int = 5, **more: object) -> HostProcess:
    fields = {
        field.name: None for field in attrs.fields(HostProcess) if field.default is attrs.NOTHING
    }
    known = {"pid": 7, "start_time_ticks": start_time_ticks, "command": command, "ns_pids": (7,)}
    return HostProcess(**{**fields, **known, **more})  # type: ignore[arg-type]


def test_a_container_has_64_uuids_and_the_rest_is_other() -> None:
    limiter = CardinalityLimiter()
    told = [limiter.uuid(ONE, 0, f"GPU-{number}") for number in range(70)]
    assert told == [f"GPU-{number}" for number in range(64)] + [OTHER] * 6
    assert limiter.uuid(ONE, 0, "GPU-3") == "GPU-3"
    assert limiter.uuid(TWO, 0, "GPU-69") == "GPU-69"


def test_it_has_no_others_when_it_comes_again() -> None:
    """A region outside the roots is there while its owner maps it, again and again."""
    limiter = CardinalityLimiter()
    told = set()
    for number in range(70):
        told.add(limiter.uuid(ONE, 0, f"GPU-{number}"))
        limiter.keep_containers([ONE])
        limiter.keep_containers([])
    assert len(told) == 65
    assert OTHER in told


def test_of_containers_that_are_gone_the_longest_gone_is_forgotten() -> None:
    limiter = CardinalityLimiter()
    for number in range(64):
        limiter.uuid(ONE, 0, f"GPU-{number}")
        limiter.uuid(TWO, 0, f"GPU-{number}")
    for number in range(2000):
        one_more = ("team-a", f"pod-{number}", "main", "uid")
        limiter.uuid(one_more, 0, "GPU-0")
        # The second one is there all the time.
        limiter.keep_containers([TWO, one_more])
    limiter.keep_containers([TWO])
    assert limiter.uuid(ONE, 0, "GPU-64") == "GPU-64"
    assert limiter.uuid(TWO, 0, "GPU-64") == OTHER
    assert len(limiter._uuids) <= 1024 + 2


def test_paths_that_anybody_can_make_are_bounded() -> None:
    limiter = CardinalityLimiter()
    told = [limiter.path(f"/tmp/{number}.cache") for number in range(300)]
    assert told == [f"/tmp/{number}.cache" for number in range(256)] + [OTHER] * 44
    assert limiter.path("/tmp/7.cache") == "/tmp/7.cache"


def test_a_process_keeps_the_name_that_it_was_first_seen_under() -> None:
    limiter = CardinalityLimiter()
    first = process("/usr/bin/python3 train.py --token secret")
    assert limiter.program(first) == "python3"
    assert limiter.program(process("renamed")) == "python3"
    assert limiter.program(process("another\x1b[2J", 6)) == r"another\x1b[2J"
    assert limiter.program(None) == ""
    limiter.keep_programs([first])
    assert limiter.program(process("renamed")) == "python3"
    limiter.keep_programs([])
    assert limiter.program(process("renamed")) == "renamed"


def test_processes_of_a_claim_have_its_container_id_where_they_have_one() -> None:
    """A claim's region may be several containers', a container's is its own."""
    of_one, of_two = (
        process("train", container=ContainerId(digit * 64, "pod")) for digit in ("1", "2")
    )
    alone = [(0, of_one), (1, process("sh"))]
    for container in (Container("pod", "train"), Container(claim_uid="claim")):
        assert _container_id(container, alone, [of_one]) == "1" * 64
        assert _container_id(container, [(1, process("sh"))], []) == ""
    assert _container_id(Container(claim_uid="claim"), alone, [of_two]) == ""
    assert _container_id(Container("pod", "train"), alone, [of_two]) == "1" * 64


def test_a_claim_is_listed_with_each_of_its_pods() -> None:
    container, limiter = Container(claim_uid="9b", directory="/claims/9b"), CardinalityLimiter()
    holders = "bert-0", None
    claims = None, ClaimName("research", "own", ()), ClaimName("research", "shared", holders)
    assert [identity_from(container, None, limiter, claim).claim for claim in claims] == [
        (("9b", "", "", ""),),
        (("own", "research", "", ""),),
        (("shared", "research", "bert-0", ""), ("shared", "research", "", "")),
    ]
