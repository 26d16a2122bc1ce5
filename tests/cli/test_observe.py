"""`hamiregion observe`, and the verbs that show its document again."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_nvml.scenes import GPU, OTHER
from support.command_line import call
from support.containers import needs_namespaces

from cli.cli_scene import POD_LONG, Scene

pytestmark = needs_namespaces
#: What names a container, a process or a place of the scene.
SECRETS = (POD_LONG, "bert-0", "research", "train", GPU, OTHER, "/tmp")


@pytest.fixture(scope="module")
def document(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "node.json"
    written = scene.run("observe")
    assert written.returncode == 0, written.stderr
    path.write_text(written.stdout)
    return path


def shown(*words: str) -> str:
    answer = call(*words)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def without_time(text: str) -> Any:
    answer = json.loads(text)
    del answer["taken_at_ns"]
    return answer


@pytest.mark.parametrize(
    "words", [("ps",), ("ps", "-o", "wide", "--sort", "memory"), ("top",), ("containers",)]
)
def test_a_document_shows_what_its_node_showed(
    scene: Scene, document: Path, words: tuple[str, ...]
) -> None:
    verb, *options = words
    live = scene.run(verb, *options)
    assert shown(verb, "--from", str(document), *options) == live.stdout
    again = shown(verb, "--from", str(document), "--json")
    assert without_time(again) == without_time(scene.run(verb, "--json").stdout)


def test_a_selection_holds_for_a_document(document: Path) -> None:
    found = json.loads(shown("ps", "--from", str(document), "--pod", "bert-*", "--json"))
    assert {each["pod"] for each in found["processes"]} == {"bert-0"}
    answer = call("containers", "--from", str(document), "--pod", "gpt-*")
    assert answer.returncode == 1
    assert "research/bert-0" in answer.stderr


def test_a_redacted_document_has_no_names_and_the_same_figures(
    scene: Scene, tmp_path: Path
) -> None:
    path = tmp_path / "node.json"
    path.write_text(scene.run("observe", "--redact").stdout)
    text = path.read_text()
    uids = [each["pod_uid"] for each in scene.json("containers")["containers"]]
    assert [each for each in (*SECRETS, *filter(None, uids)) if each in text] == []
    found, live = json.loads(shown("ps", "--from", str(path), "--json")), scene.json("ps")
    same = ("state", "status", "pid", "host_pid")
    assert sorted(str([each[name] for name in same]) for each in found["processes"]) == sorted(
        str([each[name] for name in same]) for each in live["processes"]
    )


@pytest.mark.parametrize("option", ["--root=/tmp", "--proc=/proc", "--no-driver", "--watch=1"])
def test_what_needs_a_node_is_refused_by_name(document: Path, option: str) -> None:
    answer = call("ps", "--from", str(document), option)
    assert answer.returncode == 2
    assert f"{option.partition('=')[0]} needs a node" in answer.stderr


@pytest.mark.parametrize("verb", ["doctor", "exporter", "record", "agent"])
def test_a_verb_that_reads_no_document_says_so(document: Path, verb: str) -> None:
    answer = call(verb, "--from", str(document))
    assert answer.returncode == 2
    assert "--from" in answer.stderr


def test_a_file_that_is_no_document_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    for text in ("", "[" * 100_000, '{"schema": "hamiregion/containers/1"}', "NaN"):
        path.write_text(text)
        answer = call("ps", "--from", str(path))
        assert answer.returncode == 1
        assert str(path) in answer.stderr
    assert call("ps", "--from", str(tmp_path / "none")).returncode == 1
