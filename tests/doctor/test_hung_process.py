"""A process that keeps every reader of its maps waiting keeps no verb and no service."""

import json
import subprocess
import time

import pytest
from support.agent_process import Agent
from support.bound_fifo import behind_fifo, needs_bound_fifo
from support.command_line import COMMAND, environment
from support.containers import needs_namespaces
from support.lock_bytes import hold
from support.node_scene import SceneContainer
from support.process import finished
from support.wait import PATIENCE_S

pytestmark = [needs_namespaces, needs_bound_fifo]
#: A reader is given up after 1 s, /proc and evidence have 2 s each, and a doctor looks twice.
BOUND_S = 25.0


@pytest.fixture
def hung(doctor_node, tmp_path) -> tuple[SceneContainer, tuple[str, ...]]:
    """A region whose lock is held by a process that never answers, and how to be its reader."""
    place, inside = doctor_node.started()
    hold(place, next(iter(place.true_host_pids)))
    other = doctor_node.container(name="other")
    killed = other.start()
    pid, _ = other.spawn(killed)
    other.kill(killed, pid)
    return place, behind_fifo(tmp_path, [inside.host_pid])


def shown(reader: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    began_s = time.monotonic()
    answer = finished([*reader, *COMMAND, *words], env=environment())
    assert answer.returncode != 99, answer.stderr
    assert time.monotonic() - began_s < BOUND_S, words
    return answer


@pytest.mark.parametrize("words", [("ps",), ("exporter", "--once"), ("doctor", "--repair")])
def test_a_verb_about_the_node_ends(doctor_node, hung, words):
    _, reader = hung
    verb, *options = words
    place = ("--root", str(doctor_node.root), "--library", "/none")
    answer = shown(reader, verb, *place, *options)
    assert answer.returncode in {0, 3}, answer.stderr


@pytest.mark.parametrize("words", [("reap",), ("show",)])
def test_a_verb_about_the_region_ends(hung, words):
    place, reader = hung
    shown(reader, *words, str(place.path))


def test_the_lock_of_a_process_that_does_not_answer_is_unknown_and_not_dead(hung):
    place, reader = hung
    answer = json.loads(shown(reader, "lock", "status", str(place.path), "--json").stdout)
    assert (answer["held"], answer["owner_life"]) == (True, "unknown")
    shown(reader, "lock", "recover", "--watch-for", "0", str(place.path))
    assert json.loads(shown((), "lock", "status", str(place.path), "--json").stdout)["held"]


def test_an_agent_repairs_the_others_and_ends_in_order(doctor_node, hung):
    _, reader = hung
    with Agent(doctor_node.root, "--repair", inside=reader) as agent:
        agent.wait_for("repaired", kind="dead_process_counted")
        agent.process.terminate()
        assert agent.process.wait(PATIENCE_S) == 0
