"""`hamiregion observe`, and the verbs that show its document again."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml.scenes import GPU, OTHER
from support.cli_scene import POD_LONG
from support.command_line import COMMAND, call, refused
from support.containers import needs_namespaces
from support.exporter_process import ExporterProcess
from support.process import finished

from libhamiregion.observation.json import MAX_LINES_BYTES, from_lines
from libhamiregion.services.document_socket import VARIABLE

pytestmark = needs_namespaces
#: What names a container, a process or a place of the scene.
SECRETS = (POD_LONG, "bert-0", "research", "train", GPU, OTHER, "/tmp")


@pytest.fixture(scope="module")
def document(scene, tmp_path_factory) -> Path:
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
def test_a_document_shows_what_its_node_showed(scene, document, words):
    verb, *options = words
    live = scene.run(verb, *options)
    assert shown(verb, "--from", str(document), *options) == live.stdout
    again = shown(verb, "--from", str(document), "--json")
    assert without_time(again) == without_time(scene.run(verb, "--json").stdout)


def test_a_document_is_diagnosed_as_its_node(scene, document):
    live = scene.run("doctor")
    answer = call("doctor", "--from", str(document))
    assert answer.returncode == live.returncode == 3
    assert {"dead_process_counted", "process_escapes"} <= set(live.stdout.split())
    assert answer.stdout == live.stdout
    for option in ("--repair", "--watch=1", "--root=/tmp"):
        said = refused("doctor", "--from", str(document), option)
        assert f"{option.partition('=')[0]} needs a node" in said


# About the exporter itself, and how long ago the observation was.
OF_EXPORTER = re.compile(
    r"hamiregion_(collector|scrape|refresh|errors|build|findings_timestamp)_|hami_build_info"
    r"|hami_container_last_kernel_elapsed"
)


def series_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not OF_EXPORTER.search(line)]


@pytest.mark.parametrize("options", [(), ("--hami-version", "2.10")])
def test_a_document_is_exported_as_its_node(scene, document, options):
    live = scene.run("exporter", "--once", *options)
    answer = call("exporter", "--once", "--from", str(document), *options)
    assert (answer.returncode, live.returncode) == (0, 0), answer.stderr
    assert len(series_of(live.stdout)) > 50
    assert series_of(answer.stdout) == series_of(live.stdout)


@pytest.mark.parametrize("name", ["bert-0", POD_LONG])
def test_a_container_of_a_document_is_shown_as_on_its_node(scene, document, name):
    live = call(*scene.arguments("show", name, "-A"))
    answer = call("show", "--from", str(document), name, "-A")
    assert answer.returncode == 0, answer.stderr
    again, then = (
        # Seconds pass.
        [line for line in each.stdout.splitlines() if not line.startswith("last-kernel")]
        for each in (answer, live)
    )
    assert again == then
    file = str(scene.bert.path)
    for words, reason in (
        ((file,), "is a file"),
        (("bert-0", "-A", "--watch=1"), "--watch needs a node"),
        (("bert-0", "-A", "--layout", "1.2"), "--layout needs a node"),
    ):
        assert reason in refused("show", "--from", str(document), *words)


def test_an_exporter_serves_no_document(document):
    assert "--from goes with --once" in refused("exporter", "--from", str(document))
    said = refused("exporter", "--once", "--from", str(document), "--listen", ":9394")
    assert "--listen needs a node" in said


def test_a_selection_holds_for_a_document(document):
    found = json.loads(shown("ps", "--from", str(document), "--pod", "bert-*", "--json"))
    assert {each["pod"] for each in found["processes"]} == {"bert-0"}
    said = refused("containers", "--from", str(document), "--pod", "gpt-*", code=1)
    assert "research/bert-0" in said


def test_a_redacted_document_has_no_names_and_the_same_figures(scene, tmp_path):
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
def test_what_needs_a_node_is_refused_by_name(document, option):
    said = refused("ps", "--from", str(document), option)
    assert f"{option.partition('=')[0]} needs a node" in said


@pytest.mark.parametrize("verb", ["record", "agent"])
def test_a_verb_that_reads_no_document_says_so(document, verb):
    assert "--from" in refused(verb, "--from", str(document))


def test_a_file_that_is_no_document_is_refused(tmp_path):
    path = tmp_path / "node.json"
    for text in ("", "[" * 100_000, '{"schema": "hamiregion/containers/1"}', "NaN"):
        path.write_text(text)
        assert str(path) in refused("ps", "--from", str(path), code=1)
    assert call("ps", "--from", str(tmp_path / "none")).returncode == 1


# ---- several nodes -------------------------------------------------------------------------------


def from_stdin(text: str, verb: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return finished([*COMMAND, verb, "--from", "-", *options], input=text)


def lines_of(**documents: str) -> str:
    return "".join(
        f'{{"node": "{node}", "observation": {document.strip()}}}\n'
        for node, document in documents.items()
    )


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> str:
    """A node without containers."""
    root = tmp_path_factory.mktemp("empty")
    return call("observe", "--no-driver", "--root", str(root)).stdout


@pytest.mark.parametrize("verb", ["ps", "containers"])
def test_documents_of_several_nodes_are_one_table(document, verb):
    text = document.read_text()
    answer = from_stdin(lines_of(a=text, b=text), verb)
    assert answer.returncode == 0, answer.stderr
    one = [block.splitlines() for block in shown(verb, "--from", str(document)).split("\n\n")]
    both = [block.splitlines() for block in answer.stdout.split("\n\n")]
    assert len(both) == len(one)
    for alone, together in zip(one, both, strict=True):
        heading, *rows = [line.split() for line in alone]
        assert [line.split() for line in together] == [
            ["NODE", *heading],
            *(["a", *row] for row in rows),
            *(["b", *row] for row in rows),
        ]
    objects = from_stdin(lines_of(a=text, b=text), verb, "--json").stdout.splitlines()
    assert [json.loads(each)["node"] for each in objects] == ["a", "b"]
    alone = json.loads(shown(verb, "--from", str(document), "--json"))
    assert json.loads(objects[1])["answer"] == alone


def test_top_of_several_nodes_has_their_gpus_and_no_keys(document):
    text = document.read_text()
    answer = from_stdin(lines_of(a=text, b=text), "top")
    tables = [block.splitlines()[0].split()[:2] for block in answer.stdout.split("\n\n")]
    # Containers with a region and without one, and processes.
    assert tables == [["NODE", "GPU"], *[["NODE", "POD"]] * 3]
    assert "[q]" not in answer.stdout


def test_a_selection_is_of_all_nodes_together(document, empty):
    lines = lines_of(a=document.read_text(), b=empty)
    answer = from_stdin(lines, "containers", "--pod", "bert-0")
    assert answer.returncode == 0, answer.stderr
    assert {line.split()[0] for line in answer.stdout.splitlines()} == {"NODE", "a"}
    answer = from_stdin(lines, "containers", "--pod", "gpt-*")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "no container is selected" in answer.stderr


def test_a_node_that_cannot_be_shown_is_named(document, tmp_path):
    text = document.read_text()
    unreadable = call("observe", "--no-driver", "--root", str(tmp_path / "none")).stdout
    answer = from_stdin(lines_of(a=text, b='{"schema": "other"}', c=unreadable), "ps")
    assert answer.returncode == 1
    assert {line.split()[0] for line in answer.stdout.splitlines()} == {"NODE", "a"}
    assert "Warning: b: the schema is 'other'" in answer.stderr
    assert f"c: {tmp_path}/none" in answer.stderr
    for nothing in ("", "[]\n", '{"observation": {}}\n', "no JSON\n"):
        answer = from_stdin(nothing, "ps")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert "Error: stdin" in answer.stderr


def test_documents_that_are_too_long_together_are_named():
    size = MAX_LINES_BYTES // 2
    lines = [b'{"node": "%s", "observation": {}}' % node + b" " * size for node in (b"a", b"b")]
    reasons = [str(error) for _, error in from_lines(lines)]
    assert "the schema is" in reasons[0]
    assert "choose fewer nodes" in reasons[1]


# ---- the service of a pod ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(scene, tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment in the pod of an exporter of the scene."""
    path = tmp_path_factory.mktemp("service") / "observe.sock"
    env = {VARIABLE: str(path), **scene.driver.environment()}
    with ExporterProcess(*scene.arguments("")[1:], env=env) as exporter:
        exporter.wait_until_ready()
        yield env


@pytest.mark.parametrize(
    "words", [("ps",), ("containers",), ("top",), ("ps", "--pod", "bert-*", "-o", "wide")]
)
def test_in_a_pod_verbs_show_what_the_service_sees(scene, service, words, monkeypatch):
    live = scene.run(*words).stdout
    monkeypatch.setenv(VARIABLE, service[VARIABLE])
    assert shown(*words) == live


def test_in_a_pod_an_observation_is_the_services(scene, service, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, service[VARIABLE])
    text = shown("observe")
    assert text.count("\n") == 1
    assert "research" in text
    assert not [each for each in SECRETS if each in shown("observe", "--redact")]
    # An option that chooses a node is heard; without a service the node is read.
    assert "research" not in shown("observe", "--no-driver", "--root", str(tmp_path))
    assert scene.json("ps")["processes"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    assert "research" not in shown("observe", "--no-driver")


def test_a_service_that_has_ended_is_an_error(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "left"))
    for verb in ("observe", "ps"):
        assert "gives no document: Connection refused" in refused(verb, code=1)


def test_a_watched_observation_is_a_line_each_time(service):
    env = {**os.environ, **service}
    with subprocess.Popen(
        [*COMMAND, "observe", "--watch=0.1"], env=env, stdout=subprocess.PIPE, text=True
    ) as watching:
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        assert first["schema"] == second["schema"]
        watching.terminate()
    assert watching.returncode == 0
