"""`hamiregion agent --remove-gone` as a process."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes.server import FakeApi
from gone_scene import GoneScene, running_pod
from gpu_node import needs_cgroups
from namespaces import needs_first_namespace
from patience import PATIENCE_S, eventually

COMMAND = (sys.executable, "-m", "libhamiregion", "agent", "--remove-gone", "--json")

pytestmark = [needs_first_namespace, needs_cgroups]


@pytest.fixture(scope="module")
def alive() -> Iterator[str]:
    with running_pod() as uid:
        yield uid


@pytest.fixture
def scene(tmp_path: Path, alive: str) -> GoneScene:
    return GoneScene(tmp_path, alive)


def words(scene: GoneScene, *more: str) -> list[str]:
    return [
        *COMMAND,
        *("--root", str(scene.root), "--pod-logs", str(scene.logs)),
        *("--kubelet-pods", str(scene.pods), *more),
    ]


def run(*command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env or None
    )


def end(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """Tell it to end; what it has said."""
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_with_the_rights_of_the_agent_s_pod_it_removes_what_is_gone(scene: GoneScene) -> None:
    """Root with CAP_SYS_PTRACE alone, and kubelet's directory through the host's first process."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    directory = scene.container()
    (directory / "libvgpu.so").touch()
    drop = ("setpriv", "--bounding-set=-all,+sys_ptrace", "--inh-caps=-all")
    pods = f"/proc/1/root{scene.pods}"
    process = start([*drop, *words(scene, "--gone-after", "1s", "--kubelet-pods", pods)])
    eventually(lambda: not directory.exists() and not scene.claimed())
    (event,) = (each for each in end(process) if each["event"] == "removed")
    assert event["task"] == "removal"
    assert event["container"] == directory.name.replace("_", "/")
    assert event["detail"]["entries"] == 3
    assert event["detail"]["bytes"] > 0
    assert (scene.root / f"{scene.alive}_train" / "usage.cache").exists()


def test_a_look_without_removal_tells_which_pods_are_gone(scene: GoneScene) -> None:
    directory = scene.container()
    done = run(*words(scene, "--once", "--dry-run"))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (event,) = (each for each in events if each["event"] == "gone")
    assert event["container"] == directory.name.replace("_", "/")
    assert "would be removed after 300 s" in event["message"]
    assert directory.is_dir()


def test_kubelet_s_directories_that_are_not_mounted_are_said(scene: GoneScene) -> None:
    done = run(*words(scene, "--kubelet-pods", "/no/such", "--once", "--dry-run"))
    assert done.returncode == 0, done.stderr
    assert "nothing is removed: '/no/such' cannot be listed" in done.stdout


def test_the_api_can_be_asked_instead(scene: GoneScene, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    directory, pending = scene.container(), scene.container()
    with FakeApi() as api:
        api.put("bert-0", scene.alive, {})
        api.put("pending", pending.name.partition("_")[0], {})
        kubeconfig = str(api.kubeconfig(tmp_path))
        options = ("--gone-by", "api", "--node-name", "node-1", "--kubeconfig", kubeconfig)
        done = run(*words(scene, *options, "--once", "--dry-run"))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    gone = [each["container"] for each in events if each["event"] == "gone"]
    assert gone == [directory.name.replace("_", "/")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--once"], "one look proves no pod gone"),
        (["--gone-after", "999ms"], "--gone-after (or HAMI_RESYNC_INTERVAL) is 1s or more"),
        (["--gone-after", "never"], "--gone-after (or HAMI_RESYNC_INTERVAL) is 1s or more"),
        (["--gone-after", "5"], "it has no unit"),
        (["--gone-by", "api"], "--gone-by api needs --node-name"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(scene: GoneScene, options: list[str], why: str) -> None:
    done = run(*words(scene, *options), PATH="/usr/bin:/bin")
    assert done.returncode == 2, done.stderr
    assert why in done.stderr.replace("\n", " ")
