"""`hamiregion agent` as a process: its events, its end, and what it leaves behind."""

import json
import os
import shutil
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.agent_process import COMMAND, Agent, agents, busy_and_waiting, once, run
from support.agent_tasks import MONITOR, OtherWriter
from support.lock_bytes import NOBODY
from support.namespaces import NEW_NAMESPACE, why_no_new_namespace
from support.node_fixtures import node_scene
from support.own_cgroups import needs_cgroups
from support.process import finished
from support.stale_scene import StaleScene, running_pod
from support.wait import PATIENCE_S, eventually

from libhamiregion import open_region
from libhamiregion.cli.agent import agent as agent_verb

scene = pytest.fixture(node_scene)


@pytest.fixture
def start(scene) -> Iterator[Callable[..., Agent]]:
    with agents(scene) as starter:
        yield starter


# ---- how it ends ---------------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_told_to_end_it_leaves_no_region_blocked(scene, start, number):
    _, low = busy_and_waiting(scene)
    agent = start("--feedback")
    blocked = agent.wait_for("blocked")
    assert blocked["container"].endswith("/low")
    assert low.get("recent_kernel") == -1
    assert agent.end(number) == 0, agent.said
    assert (low.get("recent_kernel"), low.get("utilization_switch")) == (0, 1)
    assert agent.said == ""
    assert agent.kinds()[0] == "started"
    last = agent.events()[-1]
    assert (last["event"], last["message"]) == ("stopped", "ended in order")
    assert last["schema"] == "hamiregion/event/1"


def test_with_metrics_sighup_reads_the_web_configuration_again(start, tmp_path):
    web = tmp_path / "web.yml"
    web.write_text("")
    agent = start("--repair", "--listen", "127.0.0.1:0", "--web-config", str(web))
    agent.wait_for("started")
    agent.process.send_signal(signal.SIGHUP)
    assert agent.wait_for("info")["message"] == "the web configuration was read again"
    assert agent.process.poll() is None
    assert agent.end() == 0


def test_killed_it_leaves_a_block_that_the_next_start_lifts(scene, start):
    urgent, low = busy_and_waiting(scene)
    first = start("--feedback")
    first.wait_for("blocked")
    second = run(scene.root, "--feedback")
    assert (second.returncode, second.stdout) == (3, "")
    assert f"another agent runs: a process has locked '{scene.root}'" in second.stderr
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert low.get("recent_kernel") == -1
    urgent.put("recent_kernel", 0)
    third = start("--feedback")
    third.wait_for("unblocked")
    assert low.get("recent_kernel") == 0
    assert third.end() == 0


# ---- other writers -------------------------------------------------------------------------------


@pytest.mark.slow
def test_inside_another_pid_namespace_it_does_not_start_unless_told(scene):
    if why_no_new_namespace():
        pytest.skip(why_no_new_namespace())
    file = scene.container("a")
    command = [*NEW_NAMESPACE, *COMMAND, "--root", str(scene.root), "--feedback", "--once"]
    answer = finished(command)
    assert answer.returncode == 3
    assert "does not show all processes" in answer.stderr
    assert file.get("recent_kernel") == 2
    command.append("--assume-alone")
    answer = finished(command)
    assert answer.returncode == 0, answer.stderr
    assert file.get("recent_kernel") == 1


# ---- once, and without writing -------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_may_run_beside_an_agent(scene, start):
    files = busy_and_waiting(scene)
    before = [file.content() for file in files]
    answer = once(scene.root, "--feedback", "--dry-run")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert [file.content() for file in files] == before
    assert "recent_kernel would become -1, from 2" in answer.stdout
    assert "dry run: nothing is written" in answer.stdout
    start("--feedback").wait_for("blocked")
    answer = once(scene.root, "--feedback", "--dry-run", "--json")
    assert answer.returncode == 0
    kinds = [json.loads(line)["event"] for line in answer.stdout.splitlines()]
    # The other agent's regions are mapped for writing, as those of HAMi's monitor are.
    assert {*kinds} == {"started", "paused", "would_write", "stopped"}


def test_once_exits_with_1_where_the_pass_could_not_be_made(tmp_path):
    answer = once(tmp_path / "nowhere", "--repair")
    assert answer.returncode == 1
    assert "none of the directories given can be listed" in answer.stderr


def test_once_exits_with_1_if_a_repair_failed(scene):
    file = scene.container("a")
    file.add_process(NOBODY, {0: 1 << 30})
    with open_region(file.path, writable=True) as region, region.lock():
        answer = once(scene.root, "--repair")
    assert answer.returncode == 1
    assert "repair failed; the events say why" in answer.stderr


def test_once_is_one_pass_and_leaves_nothing_blocked(scene):
    urgent, low = busy_and_waiting(scene)
    answer = once(scene.root, "--feedback")
    assert (answer.returncode, answer.stderr) == (0, "")
    kinds = [line.split()[2] for line in answer.stdout.splitlines()]
    assert (kinds[0], kinds[-1]) == ("started", "stopped")
    assert "blocked" in kinds
    assert urgent.get("recent_kernel") == 999_999
    assert low.get("recent_kernel") == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--once",), "name what to do"),
        (("--feedback", "--listen", ":0", "--once"), "--listen go with neither --once nor"),
        (("--metrics", "--dry-run"), "--metrics and --listen go with neither --once nor"),
        (("--plan", "plan.yaml", "--dry-run"), "use `hamiregion limits diff`"),
        (("--remove-gone", "--once"), "use it without --once"),
        (("--remove-gone", "--resync-interval", "999ms"), "--resync-interval is 1s or more"),
        (("--remove-gone", "--resync-interval", "never"), "--resync-interval is 1s or more"),
        (("--remove-gone", "--resync-interval", "5"), "no length of time"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(words, why):
    done = CliRunner().invoke(agent_verb, words)
    assert done.exit_code == 2, done.output
    assert why in " ".join(done.output.split())


# ---- metrics, and a plan -------------------------------------------------------------------------


def test_it_exports_what_it_does_in_the_same_process(scene, start):
    files = busy_and_waiting(scene)
    agent = start("--feedback", "--listen", "127.0.0.1:0")
    url = agent.wait_for("listening")["detail"]["url"]
    agent.wait_for("blocked")

    def answer(path: str) -> str:
        with urllib.request.urlopen(f"{url}{path}", timeout=PATIENCE_S) as response:
            return str(response.read().decode())

    text = answer("/metrics")
    assert 'hamiregion_agent_events_total{event="feedback_blocks"} 1' in text
    assert 'hamiregion_agent_paused{task="feedback"} 0' in text
    assert "hami_vgpu_memory_limit_bytes" in text
    assert answer("/healthz").strip() == "ok"
    assert agent.end() == 0
    assert agent.kinds()[-1] == "stopped"
    with OtherWriter(MONITOR, files):
        agent = start("--feedback", "--listen", "127.0.0.1:0")
        url = agent.wait_for("listening")["detail"]["url"]
        agent.wait_for("paused")
        assert 'paused{task="feedback"} 1' in answer("/metrics")
        assert agent.end() == 0


def test_a_port_that_is_taken_is_a_failure_and_leaves_no_lock(scene):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = run(scene.root, "--feedback", "--listen", address)
    assert answer.returncode == 1
    assert address in answer.stderr
    assert once(scene.root, "--feedback").returncode == 0


PLAN = """\
apiVersion: hamiregion.io/v1
kind: LimitPlan
rules:
- {select: {container: low}, set: {priority: 1, memory_limit: 3GiB}}
"""


@pytest.mark.slow
def test_it_keeps_limits_on_a_plan_and_priorities_with_them(scene, start, tmp_path):
    """A container that makes itself urgent is put back, and waits."""
    urgent, liar = busy_and_waiting(scene)
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    words = ("--plan", str(plan), "--state", str(tmp_path / "state"))
    agent = start("--feedback", *words)
    agent.wait_for("blocked")
    # Before that the plan knows no priority of its own, and a wrong one would be no drift.
    agent.wait_for("changed", cause="plan")
    liar.put("priority", 0)
    changed = agent.wait_for("changed", cause="drift")
    assert (changed["task"], changed["detail"]["priority"]) == ("plan", 1)
    eventually(lambda: liar.get("priority") == 1 and liar.get("recent_kernel") == -1)
    assert urgent.get("recent_kernel") > 0
    # One per node, whatever its state directory.
    second = run(scene.root, "--repair", *words[:2], "--state", str(tmp_path / "other"))
    assert (second.returncode, second.stdout) == (1, "")
    assert "another process keeps containers on a plan" in second.stderr
    assert agent.end() == 0


# ---- directories of pods that are gone -----------------------------------------------------------


@pytest.fixture(scope="module")
def alive() -> Iterator[str]:
    with running_pod() as uid:
        yield uid


def removal(scene: StaleScene, *more: str) -> tuple[str, ...]:
    return ("--remove-gone", "--pod-logs", str(scene.pod_logs), *more)


def leave_what_root_may_not_touch(directory: Path) -> None:
    """As a container's own user does: closed, and so that only an owner may unlink."""
    for name in ("closed", "sticky"):
        (directory / name).touch(0)
        os.chown(directory / name, 1234, 1234)
    (directory / "empty").mkdir(0)
    os.chown(directory, 1234, 1234)
    directory.chmod(0o1777)


@pytest.mark.slow
@needs_cgroups
def test_with_the_rights_of_the_agent_s_pod_it_removes_what_is_gone(tmp_path, alive):
    """Root with three capabilities; kubelet's directory through the root of another process."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    scene = StaleScene(tmp_path, alive)
    directory = scene.leave()
    (directory / "libvgpu.so").touch()
    leave_what_root_may_not_touch(directory)
    rights = "--bounding-set=-all,+sys_ptrace,+dac_override,+fowner"
    # As through that of the first process, which a test may not always look at.
    pods = f"/proc/{os.getpid()}/root{scene.pods}"
    words = removal(scene, "--resync-interval", "1s", "--kubelet-pods", pods)
    inside = ("setpriv", rights, "--inh-caps=-all")
    with Agent(scene.root, *words, inside=inside) as agent:
        eventually(lambda: not directory.exists() and not scene.quarantined())
        assert agent.end() == 0
        (event,) = (each for each in agent.events() if each["event"] == "removed")
    assert event["task"] == "removal"
    assert event["container"] == directory.name.replace("_", "/")
    assert (scene.root / f"{scene.alive}_train" / "usage.cache").exists()
