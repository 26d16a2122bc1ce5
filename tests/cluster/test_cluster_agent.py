"""The one process that the chart's agent runs on a node, with the words that the chart gives it."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator

import pytest
from chart import CHART, documents, pod_of
from support.agent_process import Agent
from support.agent_tasks import MONITOR, OtherWriter
from support.node_scene import GIB
from support.plan_scene import plan_scene
from support.scrapers import ask
from support.wait import eventually

pytest.importorskip("jinja2")
pytest.importorskip("ijson", reason="needs the extra kubernetes")

scene = pytest.fixture(plan_scene)
Start = Callable[..., Agent]
PAGE = CHART.parents[2] / "docs" / "in-a-cluster.md"
VALUES = {
    "mode": "agent",
    "hamiMonitor": "absent",
    "agent": {"feedback": True, "annotations": {"enabled": True}, "plan": {"enabled": True}},
}
SIX = "{select: {}, set: {memory_limit: 6GiB}}"


@pytest.fixture
def start(scene, api) -> Iterator[Start]:
    """Starts what the chart runs; of its words only the node's directories are others."""
    (container,) = pod_of(documents(VALUES))["spec"]["containers"]
    here = {
        "--listen": "127.0.0.1:0",
        "--plan": os.fspath(scene.directory / "plan.yaml"),
        "--state": os.fspath(scene.state),
    }
    words = []
    for word in container["args"][1:]:
        option, _, value = word.partition("=")
        words.append(f"{option}={here.pop(option, value)}" if value else option)
    assert not here
    place = (*scene.options, "--kubeconfig", os.fspath(api.kubeconfig(scene.directory)))
    environment = {"NODE_NAME": "node-1"}
    with contextlib.ExitStack() as started:
        yield lambda: started.enter_context(Agent(None, *words, *place, env=environment))


def metrics(agent: Agent) -> str:
    url = agent.wait_for("listening")["detail"]["url"]
    eventually(lambda: ask(url, "/readyz").status == 200)
    return ask(url, "/metrics").body.decode()


def value_of(text: str, family: str, **labels: str) -> float | None:
    found = re.findall(rf"^{family}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    values = [
        float(value)
        for given, value in found
        if all(f'{name}="{wanted}"' in given for name, wanted in labels.items())
    ]
    return values[0] if values else None


def changed_pods(agent: Agent) -> set[str]:
    return {each["detail"]["pod"] for each in agent.events() if each["event"] == "changed"}


def test_one_process_has_figures_repairs_priorities_plan_and_annotations(scene, api, start):
    urgent = scene.container("urgent", pod="now", priority=0)
    low = scene.container("low", pod="later", priority=1)
    urgent.put("recent_kernel", 1_000_000)
    low.add_process(3_999_999, {0: 5 << 20})
    scene.plan_file(SIX)
    api.put("later", low.pod_uid, {"hamiregion.io/sm-limit": "20"})
    agent = start()
    started = agent.wait_for("started")
    assert f"`agent started {started['message']}`" in PAGE.read_text()
    eventually(lambda: low.limits()["memory"][0] == 6 * GIB and low.limits()["sm"][0] == 20)
    blocked = agent.wait_for("blocked")
    # By its names for people, and by what never changes for programs.
    assert blocked["message"].startswith("research/later/low: launches wait")
    assert blocked["container"] == f"{low.pod_uid}/low"
    assert blocked["detail"]["pod"] == "research/later"
    # An edit is told a moment after it is made.
    pods = {"research/now", "research/later"}
    eventually(lambda: changed_pods(agent) == pods)
    # The dead process' slot is freed.
    agent.wait_for("repaired")
    # The metrics of the last scrape may be some seconds old.
    family, device = "hami_vgpu_memory_limit_bytes", {"pod": "later", "vdevice_index": "0"}
    eventually(lambda: value_of(metrics(agent), family, **device) == 6 * GIB)
    assert value_of(metrics(agent), "hamiregion_agent_paused", task="feedback") == 0
    # Names, annotations and the plan come from one list and one watch.
    assert (len(api.lists), len(api.watches)) == (1, 1)
    # As at a change of the chart's mode: what was held is given back, limits stay.
    assert low.get("recent_kernel") == -1
    assert agent.end() == 0, agent.said
    assert low.get("recent_kernel") == 0
    assert low.limits()["memory"][0] == 6 * GIB


@pytest.mark.slow
def test_beside_the_monitor_its_feedback_waits_and_no_figure_is_lost(scene, api, start):
    """A manifest that is applied too early costs nobody the node's metrics."""
    urgent = scene.container("urgent", pod="now", priority=0)
    low = scene.container("low", pod="later", priority=1)
    urgent.put("recent_kernel", 1_000_000)
    api.put("later", low.pod_uid, {})
    before = low.get("recent_kernel"), low.get("utilization_switch")
    scene.plan_file(SIX)
    with OtherWriter(MONITOR, [urgent, low]) as monitor:
        agent = start()
        paused = agent.wait_for("paused")
        assert paused["detail"]["pid"] == monitor.pid
        text = metrics(agent)
        assert value_of(text, "hamiregion_agent_paused", task="feedback") == 1
        assert value_of(text, "hami_vgpu_memory_limit_bytes", pod="later") is not None
        eventually(lambda: low.limits()["memory"][0] == 6 * GIB)
        assert (low.get("recent_kernel"), low.get("utilization_switch")) == before
    agent.wait_for("resumed")
    agent.wait_for("blocked")
    assert low.get("recent_kernel") == -1
    assert agent.end() == 0, agent.said


@pytest.mark.slow
def test_a_second_one_serves_figures_and_takes_over_when_the_first_has_gone(scene, api, start):
    low = scene.container("low", pod="later")
    scene.plan_file(SIX)
    api.put("later", low.pod_uid, {})
    first = start()
    eventually(lambda: low.limits()["memory"][0] == 6 * GIB)
    second = start()
    assert "another agent runs" in second.wait_for("paused")["message"]
    failed = second.wait_for("failed", error="PlanLocked")
    assert failed["task"] == "plan"
    assert value_of(metrics(second), "hamiregion_agent_paused", task="feedback") == 1
    assert first.end() == 0, first.said
    second.wait_for("resumed")
    second.wait_for("plan_loaded")
    low.put("limit", 7 * GIB, device=0)
    eventually(lambda: low.limits()["memory"][0] == 6 * GIB)
    assert second.end() == 0, second.said
