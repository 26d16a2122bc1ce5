"""`hamiregion agent` as a process: its events, its end, and what it leaves behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaces import NEW_NAMESPACE, needs_first_namespace, why_no_new_namespace
from node_scene import NodeScene, OtherWriter
from patience import PATIENCE_S, eventually
from poke import RegionFile

COMMAND = (sys.executable, "-m", "libhamiregion", "agent")

pytestmark = needs_first_namespace


class Agent:
    """A running agent; its events are read when they are asked for."""

    def __init__(self, scene: NodeScene, *words: str, log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*COMMAND, "--root", str(scene.root), "--json", *words],
                stdout=stream,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
            )

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def kinds(self) -> list[str]:
        return [each["event"] for each in self.events()]

    def wait_for(self, event: str, **detail: object) -> dict[str, Any]:
        """The first such event with that detail."""

        def found() -> list[dict[str, Any]]:
            named = [each for each in self.events() if each["event"] == event]
            return [each for each in named if detail.items() <= each["detail"].items()]

        eventually(lambda: bool(found()) or self.process.poll() is not None)
        assert found(), f"it ended with {self.wait()}: {self.said}"
        return found()[0]

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process.stderr is not None
        try:
            code = self.process.wait(PATIENCE_S)
            self.said = self.process.stderr.read().decode()
        finally:
            self.process.stderr.close()
        return code


@pytest.fixture
def agents(scene: NodeScene, tmp_path: Path) -> Iterator[Any]:
    started: list[Agent] = []

    def start(*words: str) -> Agent:
        started.append(Agent(scene, *words, log=tmp_path / f"events-{len(started)}"))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        with contextlib.suppress(AttributeError):
            each.process.stderr.close()  # type: ignore[union-attr]


def run(scene: NodeScene, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, "--root", str(scene.root), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def busy_and_waiting(scene: NodeScene) -> tuple[RegionFile, RegionFile]:
    """A more urgent container that launches for ever, and another one."""
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    urgent.put("recent_kernel", 1_000_000)
    return urgent, low


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_told_to_end_it_leaves_no_region_blocked(
    scene: NodeScene, agents: Any, number: int
) -> None:
    _, low = busy_and_waiting(scene)
    agent = agents("--feedback", "--feedback-interval", "0.02")
    blocked = agent.wait_for("blocked")
    assert blocked["container"].endswith("/low")
    assert low.get("recent_kernel") == -1
    assert agent.end(number) == 0, agent.said
    assert (low.get("recent_kernel"), low.get("utilization_switch")) == (0, 1)
    last = agent.events()[-1]
    assert last["event"] == "stopped"
    assert last["detail"]["feedback_blocks"] == 1
    assert last["detail"]["feedback_failures"] == 0
    assert {*last} == {"time_s", "task", "event", "message", "container", "detail"}


def test_a_request_that_comes_twice_does_not_keep_it_from_taking_back(
    scene: NodeScene, agents: Any
) -> None:
    """`timeout` of coreutils signals its child, then the child's whole group."""
    files = [scene.container(f"low-{number}") for number in range(100)]
    scene.container("urgent", priority=0).put("recent_kernel", 1_000_000)
    agent = agents("--feedback", "--feedback-interval", "0.02")
    eventually(lambda: agent.kinds().count("blocked") == len(files))
    agent.process.send_signal(signal.SIGTERM)
    eventually(lambda: any(file.get("recent_kernel") == 0 for file in files))
    assert agent.end(signal.SIGHUP) == 0, agent.said
    assert {file.get("recent_kernel") for file in files} == {0}
    assert agent.kinds()[-1] == "stopped"


def test_killed_it_leaves_a_block_that_the_next_start_lifts(scene: NodeScene, agents: Any) -> None:
    urgent, low = busy_and_waiting(scene)
    first = agents("--feedback", "--feedback-interval", "0.02")
    first.wait_for("blocked")
    second = agents("--feedback")
    assert second.wait() == 3, "there is an agent"
    assert f"another agent runs: process {first.process.pid} has locked" in second.said
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert low.get("recent_kernel") == -1
    urgent.put("recent_kernel", 0)
    third = agents("--feedback", "--feedback-interval", "0.02")
    third.wait_for("unblocked")
    assert low.get("recent_kernel") == 0
    assert third.end() == 0


def test_a_monitor_that_appears_stops_the_writing(scene: NodeScene, agents: Any) -> None:
    files = busy_and_waiting(scene)
    agent = agents("--feedback", "--feedback-interval", "0.02", "--resume-after", "2")
    agent.wait_for("blocked")
    with OtherWriter("vGPUmonitor", files) as monitor:
        paused = agent.wait_for("paused")
        assert paused["detail"]["pid"] == monitor.pid
        before = [file.content() for file in files]
        # A second agent is refused because of both: so the first has looked again meanwhile.
        answer = run(scene, "--feedback", "--once")
        assert answer.returncode == 3
        assert f"process {monitor.pid}" in answer.stderr
        assert answer.stdout == ""
        assert [file.content() for file in files] == before
    agent.wait_for("resumed")
    eventually(lambda: files[0].content() != before[0])
    assert agent.end() == 0


def test_a_dry_run_writes_nothing_and_may_run_beside_an_agent(
    scene: NodeScene, agents: Any
) -> None:
    files = busy_and_waiting(scene)
    before = [file.content() for file in files]
    answer = run(scene, "--feedback", "--once", "--dry-run")
    assert answer.returncode == 0, answer.stderr
    assert [file.content() for file in files] == before
    assert "recent_kernel would become -1, from 2" in answer.stdout
    assert "dry run: nothing is written" in answer.stdout
    agent = agents("--feedback", "--feedback-interval", "60")
    agent.wait_for("blocked")
    answer = run(scene, "--feedback", "--once", "--dry-run", "--json")
    assert answer.returncode == 0
    assert {json.loads(line)["event"] for line in answer.stdout.splitlines()} == {
        "started",
        "would_write",
        "stopped",
    }


def test_once_is_one_pass_and_leaves_nothing_blocked(scene: NodeScene) -> None:
    urgent, low = busy_and_waiting(scene)
    answer = run(scene, "--feedback", "--once")
    assert answer.returncode == 0, answer.stderr
    words = [line.split()[2] for line in answer.stdout.splitlines()]
    assert words[0] == "started"
    assert words[-1] == "stopped"
    assert "blocked" in words
    assert urgent.get("recent_kernel") == 999_999
    assert low.get("recent_kernel") == 0


def test_a_log_that_nobody_reads_ends_it_in_order(scene: NodeScene) -> None:
    urgent, low = busy_and_waiting(scene)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*COMMAND, "--root", str(scene.root), "--feedback", "--feedback-interval", "0.02"],
        stdout=writing,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(writing)
        eventually(lambda: low.get("recent_kernel") == -1)
        os.close(reading)
        urgent.put("recent_kernel", 0)
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert low.get("recent_kernel") == 0


def test_a_disk_that_is_full_ends_nothing(scene: NodeScene) -> None:
    urgent, low = busy_and_waiting(scene)
    with (
        open("/dev/full", "wb") as full,  # noqa: PTH123
        subprocess.Popen(
            [*COMMAND, "--root", str(scene.root), "--feedback", "--feedback-interval", "0.02"],
            stdout=full,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        eventually(lambda: low.get("recent_kernel") == -1)
        urgent.put("recent_kernel", 0)
        eventually(lambda: low.get("recent_kernel") == 0)
        urgent.put("recent_kernel", 2**30)
        eventually(lambda: low.get("recent_kernel") == -1)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert low.get("recent_kernel") == 0


def test_inside_another_pid_namespace_it_does_not_start_unless_told(scene: NodeScene) -> None:
    if why_no_new_namespace():
        pytest.skip(why_no_new_namespace())
    file = scene.container("a")
    command = [*NEW_NAMESPACE, *COMMAND, "--root", str(scene.root), "--feedback", "--once"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 3
    assert "does not show all processes" in answer.stderr
    assert file.get("recent_kernel") == 2
    answer = subprocess.run(
        [*command, "--assume-alone"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert file.get("recent_kernel") == 1


def test_a_directory_that_cannot_be_listed_is_said_and_so_is_its_return(
    scene: NodeScene, agents: Any
) -> None:
    scene.root.rename(scene.root.with_name("away"))
    agent = agents("--feedback", "--feedback-interval", "0.02")
    assert str(scene.root) in agent.wait_for("unreadable")["message"]
    assert agent.end() == 0
    once = subprocess.run(
        [*COMMAND, "--root", str(scene.root), "--feedback", "--once"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert once.returncode == 1
    assert "none of the directories given could be listed" in once.stderr


def test_wrong_usage_is_code_2(scene: NodeScene) -> None:
    for words in ((), ("--once",), ("--feedback", "--feedback-interval", "nan")):
        answer = run(scene, *words)
        assert answer.returncode == 2
        assert answer.stdout == ""
    assert "name what to do" in run(scene).stderr


def test_names_of_containers_do_not_steer_the_terminal(scene: NodeScene) -> None:
    file = scene.container("evil\x1b[2J\nname")
    file.put("recent_kernel", 2)
    for words in ((), ("--json",)):
        answer = run(scene, "--feedback", "--once", *words)
        assert answer.returncode == 0
        assert "\x1b" not in answer.stdout
        assert len(answer.stdout.splitlines()) == answer.stdout.count("\n")
        if words:
            assert all(json.loads(line) for line in answer.stdout.splitlines())


def test_it_exports_what_it_does_in_the_same_process(scene: NodeScene, agents: Any) -> None:
    pytest.importorskip("uvicorn")
    busy_and_waiting(scene)
    agent = agents("--feedback", "--feedback-interval", "0.02", "--listen", "127.0.0.1:0")
    url = agent.wait_for("listening")["detail"]["url"]
    agent.wait_for("blocked")
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    assert 'hamiregion_agent_events_total{event="feedback_blocks"} 1' in text
    assert 'hamiregion_agent_paused{task="feedback"} 0' in text
    assert "hami_vgpu_memory_limit_bytes" in text
    with OtherWriter("vGPUmonitor"):
        agent.wait_for("paused")
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
            assert b'hamiregion_agent_paused{task="feedback"} 1' in answer.read()
    assert agent.end() == 0
    assert agent.kinds()[-1] == "stopped"


def test_a_port_that_is_taken_is_a_failure_and_leaves_no_lock(scene: NodeScene) -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = run(scene, "--feedback", "--listen", address)
    assert answer.returncode == 1
    assert address in answer.stderr
    assert run(scene, "--feedback", "--once").returncode == 0


def test_it_keeps_limits_on_a_plan_and_priorities_with_them(
    scene: NodeScene, agents: Any, tmp_path: Path
) -> None:
    """A container that makes itself urgent is put back, and waits."""
    pytest.importorskip("cattrs")
    urgent, liar = busy_and_waiting(scene)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
        "- {select: {container: low}, set: {priority: 1, memory_limit: 3GiB}}\n"
    )
    state = str(tmp_path / "state")
    fast = ("--feedback-interval", "0.02", "--plan-interval", "0.02")
    agent = agents("--feedback", "--plan", str(plan), "--state", state, *fast)
    agent.wait_for("blocked")
    # Before that the plan knows no priority of its own, and a wrong one would be no drift.
    agent.wait_for("changed", cause="plan")
    liar.put("priority", 0)
    changed = agent.wait_for("changed", cause="drift")
    assert (changed["task"], changed["detail"]["priority"]) == ("plan", 1)
    eventually(lambda: liar.get("priority") == 1 and liar.get("recent_kernel") == -1)
    assert urgent.get("recent_kernel") > 0
    assert agent.end() == 0
    assert run(scene, "--plan", str(plan), "--dry-run").returncode == 2
    assert run(scene, "--plan", str(tmp_path / "none.yaml"), "--once").returncode == 1


def test_a_bad_plan_keeps_no_other_task_from_starting(
    scene: NodeScene, agents: Any, tmp_path: Path
) -> None:
    """It is reported, and tried again until somebody has corrected it."""
    pytest.importorskip("cattrs")
    busy_and_waiting(scene)
    plan = tmp_path / "plan.yaml"
    plan.write_text("rules: [")
    state = str(tmp_path / "state")
    fast = ("--feedback-interval", "0.02", "--plan-interval", "0.02")
    agent = agents("--feedback", "--repair", "--plan", str(plan), "--state", state, *fast)
    agent.wait_for("blocked")
    assert "plan.yaml:2:" in agent.wait_for("problem", about=str(plan))["message"]
    plan.write_text(
        "apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules:\n"
        "- {select: {container: low}, set: {memory_limit: 3GiB}}\n"
    )
    agent.wait_for("changed", cause="plan")
    assert agent.end() == 0


def test_a_second_keeper_of_plans_is_refused_at_the_start(
    scene: NodeScene, agents: Any, tmp_path: Path
) -> None:
    """Whatever its state directory; and one with other work only may run beside it."""
    pytest.importorskip("cattrs")
    plan = tmp_path / "plan.yaml"
    plan.write_text("apiVersion: hamiregion.io/v1\nkind: LimitPlan\nrules: []\n")
    first = agents("--plan", str(plan), "--state", str(tmp_path / "state"))
    first.wait_for("plan_loaded")
    for state in ("state", "another"):
        second = run(scene, "--repair", "--plan", str(plan), "--state", str(tmp_path / state))
        assert second.returncode == 1, second.stdout
        assert "another process keeps" in second.stderr
    assert run(scene, "--feedback", "--repair", "--once").returncode == 0
    assert first.end() == 0
    assert run(scene, "--plan", str(plan), "--once", "--state", state).returncode == 0
