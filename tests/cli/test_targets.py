"""Containers are named as Kubernetes users name them, and files as files."""

import json
import uuid
from collections.abc import Iterator

import pytest
from support.command_line import asked, call

import libhamiregion as hami
from libhamiregion.testing import FakeNode
from libhamiregion.units import GIB


@pytest.fixture
def fake(tmp_path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path / "node") as node:
        node.add("train", pod="bert-0", namespace="research", processes=0)
        node.add("train", pod="bert-0", namespace="inference", processes=0)
        node.add("serve", pod="whisper-0", namespace="inference", processes=0)
        node.add("main", pod="llama-0", namespace="inference", region=False)
        yield node


def limit(fake: FakeNode, at: int) -> int | None:
    region = fake.containers[at].region
    assert region is not None
    with hami.open_region(region) as opened:
        return opened.memory_limit(0)


def test_a_pod_is_found_by_name_namespace_container_and_uid(fake):
    bert, _, whisper, _ = fake.containers
    for words, container in (
        (("-n", "research", "bert-0"), bert),
        (("-n", "research", "bert-0/train"), bert),
        (("whisper-0",), whisper),
        (("-A", "whisper-0/serve"), whisper),
        ((bert.pod_uid,), bert),
        ((str(bert.region),), bert),
    ):
        code, out, err = asked(fake, "show", *words, "-o", "json")
        assert (code, err) == (0, "")
        assert json.loads(out)["path"] == str(container.region)


def test_several_matches_are_a_list_and_exit_code_2_unless_all_are_meant(fake):
    words = ("limits", "set", "bert-0", "--memory", "6GiB")
    code, out, err = asked(fake, *words)
    assert (code, out) == (2, "")
    assert "  inference/bert-0/train\n  research/bert-0/train\n" in err
    assert limit(fake, 0) == limit(fake, 1) == 8 * GIB
    code, out, _ = asked(fake, *words, "--all")
    assert (code, out.count("8 GiB -> 6 GiB")) == (0, 2)
    assert limit(fake, 0) == limit(fake, 1) == 6 * GIB
    assert limit(fake, 2) == 8 * GIB


def test_verbs_that_read_show_all_containers_without_a_name(fake, tmp_path):
    unnamed = fake.root / f"{uuid.uuid4()}_main"
    unnamed.mkdir()
    hami.create_region(unnamed / "usage.cache", memory_limits=(GIB,))
    regions = {str(each.region) for each in fake.containers if each.region is not None}
    regions.add(str(unnamed / "usage.cache"))
    for verb in (("show",), ("limits", "get"), ("lock", "status")):
        code, out, err = asked(fake, *verb, "--all", "--json")
        answers = [json.loads(line) for line in out.splitlines()]
        assert (code, {each["path"] for each in answers}) == (0, regions), verb
        assert (len(answers), err) == (4, "Note: inference/llama-0/main has no region yet\n")
        one = asked(fake, *verb, "research/bert-0")
        assert asked(fake, *verb, "--all", "-n", "research") == one
        code, out, err = asked(fake, *verb)
        assert (code, out, "Missing TARGET" in err) == (2, "", True)
        code, out, err = asked(fake, *verb, "--all", "-n", "none")
        assert (code, out, "no container in namespace none" in err) == (1, "", True)
    document = tmp_path / "node.json"
    document.write_text(asked(fake, "observe", "--no-driver")[1])
    answer = call("show", "--all", "--json", "--from", str(document))
    shown = {json.loads(line)["path"] for line in answer.stdout.splitlines()}
    assert (answer.returncode, shown) == (0, regions)


def test_verbs_that_edit_need_a_name_beside_all(fake):
    for words in (("limits", "set", "--memory", "6GiB"), ("reap",), ("lock", "recover")):
        code, out, err = asked(fake, *words, "--all")
        assert (code, out, "TARGET" in err) == (2, "", True), words
    assert limit(fake, 0) == 8 * GIB


def test_a_failure_names_the_container_beside_its_file(fake):
    code, out, err = asked(fake, "suspend", "whisper-0", "4000000")
    assert (code, out) == (1, "")
    assert err.startswith("Error: inference/whisper-0/serve: '/")


def test_a_container_without_a_region_among_several_is_a_note(fake):
    fake.add(pod="bert-1", namespace="research", region=False)
    for verb in (("limits", "get"), ("limits", "set", "--sm", "40")):
        answer = asked(fake, *verb, "bert-*", "--all")
        assert (answer[0], answer[2]) == (0, "Note: research/bert-1/main has no region yet\n")
        code, out, err = asked(fake, *verb, "bert-1")
        assert (code, out, "no .cache file" in err) == (1, "", True)


def test_each_of_several_containers_is_named_above_its_table(fake):
    _, out, _ = asked(fake, "limits", "get", "bert-0", "--all")
    first, second = out.split("\n\n")
    assert first.startswith("inference/bert-0/train:\nDEVICE ")
    assert second.startswith("research/bert-0/train:\nDEVICE ")
    assert asked(fake, "limits", "get", "whisper-0", "--all")[1].startswith("DEVICE ")


def test_a_local_file_is_never_taken_for_a_pod(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hami.create_region(tmp_path / "whisper-0", memory_limits=(GIB,))
    hami.create_region(tmp_path / "own.cache", memory_limits=(2 * GIB,))
    for text, expected in (("whisper-0", 8 * GIB), ("own.cache", 2 * GIB)):
        code, out, _ = asked(fake, "limits", "get", text, "--json")
        assert code == 0
        assert json.loads(out)["devices"][0]["memory_limit_bytes"] == expected
