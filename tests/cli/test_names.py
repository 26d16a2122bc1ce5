"""Names of containers: what is printed can be typed."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import asked, call

from libhamiregion.cli.names import (
    Names,
    containers_of,
    name_columns,
    name_texts,
    names_of,
    unknown_name,
)
from libhamiregion.cli.tables import Table
from libhamiregion.observation.containers import Container
from libhamiregion.observation.names import ClaimName, ContainerId, PodName
from libhamiregion.testing import FakeNode

UIDS = [f"{digit}" * 8 + "-0000-4000-8000-" + f"{digit}" * 12 for digit in "123"]
# Few, so that they meet; the last ones are as hostile as a directory's name can be.
WORDS = st.sampled_from(["train", "bert-0", "research", "main", "a[b]", "a[b] c", "*", "x\x1b[2J"])
IDS = st.sampled_from(["a" * 64, "b" * 64, "c" * 64])


def container(
    at: int, pod_uid: str | None, name: str, known: PodName | None, id_: str | None, claim: bool
) -> Container:
    holders = ("a", "b")
    named = ClaimName(known.namespace or "", name, holders) if claim and known else None
    return Container(
        pod_uid=None if claim else pod_uid,
        directory_name=None if claim or id_ else name,
        directory=None if id_ else f"/vgpu/{at}",
        region_path=f"/vgpu/{at}/a.cache",
        container_id=ContainerId(id_, pod_uid) if id_ else None,
        claim_uid=f"{at}" * 8 if claim else None,
        pod_name=(named and named.pod_name) if claim else known,
        claim=named,
    )


POD_NAMES = st.none() | st.builds(PodName, WORDS, WORDS, st.none() | WORDS)
NODES = st.lists(
    st.tuples(st.sampled_from(UIDS), WORDS, POD_NAMES, st.none() | IDS, st.booleans()),
    max_size=6,
    unique_by=lambda each: each[:2] if each[3] is None else each[3],
).map(lambda rows: [container(at, *row) for at, row in enumerate(rows)])


@given(NODES)
def test_each_name_that_is_written_is_read_as_its_container(node):
    for each, text in name_texts(node).items():
        if not text.startswith("/"):
            assert containers_of(text, None, node)[0] == [each], text


@given(NODES)
def test_each_name_in_a_pipe_is_read_as_its_container(node):
    rows = [Names(**names_of(each)) for each in node]
    columns = [each for each in name_columns(node) if each.on == "pipe"]
    lines = Table(columns, rows).text().splitlines()[1:]
    for each, line in zip(node, lines, strict=True):
        pod, name = line.split(None, 1)
        found = containers_of(f"{pod}/{name}", None, node)
        assert pod == "-" or any(each in reading for reading in found), line


def test_a_name_tells_pods_of_one_name_claims_and_ids_apart():
    known = PodName("research", "bert-0", "train")
    node = [
        container(1, UIDS[0], "train", known, None, False),
        container(2, UIDS[1], "train", known, None, False),
        container(3, UIDS[2], "side", None, None, False),
        container(4, None, "shared", PodName("research", None, "shared"), None, True),
        container(5, UIDS[2], "", None, "a" * 64, False),
    ]
    assert list(name_texts(node).values()) == [
        f"research/bert-0@{UIDS[0]}/train",
        f"research/bert-0@{UIDS[1]}/train",
        f"{UIDS[2]}/side",
        "claim:44444444",
        f"{UIDS[2]}/id:aaaaaaaaaaaa",
    ]


def test_an_unknown_name_is_answered_with_what_is_near_it():
    node = [
        container(at, UIDS[at % 3], "main", PodName(namespace, pod, "main"), None, False)
        for at, (namespace, pod) in enumerate(
            (("batch", "etl-7"), ("research", "bert-0"), ("research", "bert-1"))
        )
    ]
    assert unknown_name("brt-0", None, node).startswith(
        "there is no brt-0; near it: research/bert-0/main"
    )
    assert unknown_name("brt-0", "batch", node).startswith(
        "there is no brt-0 in namespace batch; `ham"
    )
    assert unknown_name("etl-7", "research", node).endswith("in namespace research; it is in batch")
    assert unknown_name("batch/etl-7/side", None, node) == (
        "batch/etl-7 has no container side; its containers are main"
    )
    assert "hamiregion containers" in unknown_name("zzz", None, node)


def test_a_claim_of_several_pods_is_named_as_tables_show_it():
    claim = container(1, None, "shared", PodName("research", None, "shared"), None, True)
    pod = container(2, UIDS[0], "train", PodName("research", "bert-0", "train"), None, False)
    (shown,) = (
        column.value(Names(**names_of(claim)))
        for column in name_columns([claim, pod])
        if column.on == "terminal" and column.value is not None
    )
    for namespace in (None, "research"):
        assert containers_of(shown, namespace, [claim, pod]) == [[claim]]
    assert containers_of("shared", "batch", [claim, pod]) == []


@pytest.fixture
def fake(tmp_path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path / "node") as node:
        node.add("main", pod="etl-7", namespace="batch", processes=0)
        node.add("etl-7", pod="batch", namespace="other", processes=0)
        node.add("train", pod="bert-0", namespace="research", processes=1)
        yield node


def test_every_name_that_a_table_shows_can_be_typed_into_each_verb(fake):
    _, out, _ = asked(fake, "containers")
    rows = [line.split()[:2] for line in out.splitlines()[1:]]
    assert len(rows) == 3
    for pod, name in rows:
        text = f"{pod}/{name}"
        for verb in (("show",), ("limits", "get"), ("lock", "status")):
            code, said, err = asked(fake, *verb, text, "--json")
            assert (code, err) == (0, "")
            found = json.loads(said)
            assert f"{found['namespace']}/{found['pod']}/{found['container']}" == text
        code, said, _ = asked(fake, "containers", text)
        assert (code, [line.split()[:2] for line in said.splitlines()[1:]]) == (0, [[pod, name]])
        dry_run = ("limits", "set", text, "--memory", "2GiB", "--dry-run")
        assert asked(fake, *dry_run)[0] == 0


def test_two_parts_are_both_readings_to_read_and_a_usage_error_to_write(fake):
    code, out, err = asked(fake, "limits", "get", "batch/etl-7")
    assert (code, err) == (0, "")
    assert "batch/etl-7/main:\n" in out
    assert "other/batch/etl-7:\n" in out
    code, out, err = asked(fake, "limits", "set", "batch/etl-7", "--memory", "2GiB")
    assert (code, out) == (2, "")
    assert "\n  batch/etl-7/main\n  other/batch/etl-7\n" in err
    code, out, _ = asked(fake, "limits", "set", "-n", "batch", "etl-7/main", "--memory", "2GiB")
    assert (code, out.count(" -> ")) == (0, 1)


def test_verbs_about_a_node_take_names_namespaces_and_a_watch_without_a_number(fake):
    for verb in ("ps", "containers", "top", "doctor"):
        code, out, err = asked(fake, verb, "-n", "research", "bert-0", "--json")
        assert code in {0, 3}, err
        assert "etl-7" not in out
        code, _, err = asked(fake, verb, "bert-7", "-A")
        assert (code, "near it: research/bert-0/train" in err) == (1, True)
    for words in (("none.cache", "--watch", "--json"), ("--watch", "none.cache")):
        answer = call("show", *words)
        assert (answer.returncode, "none.cache" in answer.stderr) == (1, True)
    assert "is not in the range" in call("show", "--watch", "0", "none.cache").stderr
