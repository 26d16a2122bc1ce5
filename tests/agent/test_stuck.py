"""A file system that never answers: the agent ends in time, gives back what it can, and tells.

The mounts are FUSE that nobody serves, in a mount namespace of the agent and the test's alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent_process import Agent, agents, busy_and_waiting
from support.wait import PATIENCE_S, eventually, on_this_machine_s

# What hangs is waited for as long as a slow pass takes, which here is none.
SOON = {**os.environ, "TEST_LAST_PASS_S": "1"}
UNSHARE = ("unshare", "--mount", "--propagation", "private")

# Maps files, mounts a dead FUSE over a directory of its mount namespace, and keeps both.
MOUNTER = """
import mmap, sys
from support import fuse_mount
files = [open(path, "r+b") for path in sys.argv[2:]]
mapped = [mmap.mmap(file.fileno(), 0) for file in files]
fuse = fuse_mount.mount(sys.argv[1])
print("mounted", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def dead_mount(inside: tuple[str, ...], directory: Path, *mapped: Path) -> Iterator[None]:
    """A process that has files mapped, and a dead file system over a directory."""
    words = [*inside, sys.executable, "-c", MOUNTER, directory, *mapped]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout.readline() != b"mounted\n":
                pytest.skip("needs the right to mount FUSE")
            yield
        finally:
            # A call that waits for the file system fails once no process has it open.
            process.kill()


@pytest.fixture
def namespace() -> Iterator[int]:
    """A process in a mount namespace of its own."""
    process = subprocess.Popen([*UNSHARE, "sleep", "1000"])
    own = os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    eventually(
        lambda: process.poll() is not None or os.readlink(f"/proc/{process.pid}/ns/mnt") != own  # noqa: PTH115
    )
    if process.poll() is not None:
        pytest.skip("needs the right to make mount namespaces")
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def kill_over(namespace) -> Iterator[Callable[[Path], None]]:
    """Mounts a dead file system over a directory, for that namespace only."""
    with contextlib.ExitStack() as mounts:
        yield lambda path: mounts.enter_context(dead_mount(entering(namespace), path))


def entering(namespace: int) -> tuple[str, ...]:
    return ("nsenter", f"--mount=/proc/{namespace}/ns/mnt")


@pytest.fixture
def start(scene) -> Iterator[Callable[..., Agent]]:
    with agents(scene) as starter:
        yield starter


def health(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def stuck_in(reason: str) -> set[str]:
    """The tasks in the text of /healthz, without the driver's figures, which need a driver."""
    return set(reason.strip().rpartition("stuck: ")[2].split(", ")) - {"figures"}


@pytest.mark.slow
def test_stuck_tasks_are_told_and_what_can_be_given_back_is(scene, start, namespace, kill_over):
    """One container's directory never answers again, while two are blocked."""
    pytest.importorskip("jinja2")
    _, low = busy_and_waiting(scene)
    dead = scene.container("dead")
    words = ("--feedback", "--repair", "--listen", "127.0.0.1:0")
    agent = start(
        *words,
        inside=entering(namespace),
        env={**SOON, "TEST_STUCK_AFTER_S": "3", "TEST_INTERVAL_S": "2"},
    )
    url = agent.wait_for("listening")["detail"]["url"]
    eventually(lambda: (low.get("recent_kernel"), dead.get("recent_kernel")) == (-1, -1))
    assert health(url)[0] == 200
    kill_over(dead.path.parent)
    # One task observes and hangs, and the others wait for it.
    eventually(lambda: health(url)[0] == 503 and bool(stuck_in(health(url)[1])))
    # A feedback that is stuck blocks no launches.
    eventually(lambda: low.get("recent_kernel") == 0)
    told = time.monotonic()
    assert agent.end(signal.SIGTERM) == 1
    assert time.monotonic() - told < on_this_machine_s(15)
    assert (low.get("recent_kernel"), dead.get("recent_kernel")) == (0, -1)
    *_, left, last = (each for each in agent.events() if each["task"] in {"feedback", "agent"})
    assert (left["event"], last["message"]) == ("not_given_back", "not in order")
    assert "launches of " in left["message"]
    assert left["message"].endswith("/dead are blocked")
    assert "/low" not in left["message"]
    assert "not ended in order: " in agent.said


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("words", [("--repair",), ("--feedback",), ("--repair", "--once")])
def test_a_root_that_never_answers_does_not_keep_it_from_ending(scene, namespace, kill_over, words):
    """Neither in the middle of the first pass, nor before it, nor with --once."""
    kill_over(scene.root)
    env = {**SOON, "HOOK_PATH": str(scene.root.parent)}
    if "--feedback" in words:
        # Its last pass does not hang, and may take its time on a busy machine.
        del env["TEST_LAST_PASS_S"]
    inside = entering(namespace)
    with Agent(None, *words, inside=inside, env=env) as agent:
        agent.wait_until_it_hears_signals()
        if "--repair" in words and "--once" not in words:
            agent.wait_for("started")
        time.sleep(0.5)
        assert agent.process.poll() is None
        told = time.monotonic()
        assert agent.end(signal.SIGTERM) == (0 if "--feedback" in words else 1), agent.said
        assert time.monotonic() - told < on_this_machine_s(15)
