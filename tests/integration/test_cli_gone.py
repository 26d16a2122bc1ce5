"""`hamiregion agent --remove-gone` as a process."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_kubernetes.server import FakeApi
from gone_scene import GoneScene, running_pod
from namespaces import needs_first_namespace
from own_cgroups import needs_cgroups
from patience import PATIENCE_S, eventually

from libhamiregion.cli.agent import agent

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


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def end(process: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """Tell it to end; what it has said."""
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def leave_what_root_may_not_touch(directory: Path) -> None:
    """As a container's own user does: closed, and so that only an owner may unlink."""
    for name, mode in (("closed", 0), ("sticky", 0o1777)):
        inner = directory / name / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        for each in (inner / "file", inner, directory / name):
            os.chown(each, 1234, 1234)
            each.chmod(mode)


def test_with_the_rights_of_the_agent_s_pod_it_removes_what_is_gone(scene: GoneScene) -> None:
    """Root with three capabilities; kubelet's directory through the root of another process."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    directory = scene.container()
    (directory / "libvgpu.so").touch()
    leave_what_root_may_not_touch(directory)
    rights = "--bounding-set=-all,+sys_ptrace,+dac_override,+fowner"
    drop = ("setpriv", rights, "--inh-caps=-all")
    # As through that of the first process, which a test may not always look at.
    pods = f"/proc/{os.getpid()}/root{scene.pods}"
    process = start([*drop, *words(scene, "--gone-after", "1s", "--kubelet-pods", pods)])
    try:
        eventually(lambda: not directory.exists() and not scene.claimed())
    finally:
        events = end(process)
    (event,) = (each for each in events if each["event"] == "removed")
    assert event["task"] == "removal"
    assert event["container"] == directory.name.replace("_", "/")
    assert event["detail"]["entries"] == 9
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
        (["--gone-after", "never"], "--gone-after: 'never' is no length of time"),
        (["--gone-after", "5"], "it has no unit"),
        (["--gone-by", "api"], "--gone-by api needs --node-name"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(
    scene: GoneScene, options: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    done = CliRunner().invoke(agent, words(scene, *options)[len(COMMAND) - 2 :])
    assert done.exit_code == 2, done.output
    assert why in done.output.replace("\n", " ")


def test_what_deletes_takes_no_interval_for_another(
    scene: GoneScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter takes 5 minutes where the environment's cannot be read; and alone it goes on."""
    monkeypatch.setenv("HAMI_RESYNC_INTERVAL", "bogus")
    own = words(scene)[len(COMMAND) - 2 :]
    done = CliRunner().invoke(agent, own)
    assert done.exit_code == 2, done.output
    assert "HAMI_RESYNC_INTERVAL: 'bogus' is no length of time" in done.output.replace("\n", " ")
    without = [each for each in own if each != "--remove-gone"]
    done = CliRunner().invoke(agent, [*without, "--repair", "--once"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--gone-after", "5m"], "--gone-after goes with --remove-gone"),
        (["--legacy-metrics"], "--legacy-metrics goes with --listen"),
    ],
)
def test_options_that_would_do_nothing_are_wrong_usage(options: list[str], why: str) -> None:
    done = CliRunner().invoke(agent, ["--repair", "--once", *options])
    assert done.exit_code == 2, done.output
    assert why in done.output


def test_the_component_of_the_manifests_asks_for_it(tmp_path: Path) -> None:
    import test_deploy as deploy

    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    tree = tmp_path / "kustomize"
    shutil.copytree(deploy.KUSTOMIZE, tree)
    own = tree / "overlays" / "own"
    own.mkdir()
    own.joinpath("kustomization.yaml").write_text(
        "resources: [../hami-steered]\ncomponents: [../../components/remove-gone]\n"
    )
    done = run("kubectl", "kustomize", str(own))
    assert done.returncode == 0, done.stderr
    documents = [each for each in deploy.yaml.safe_load_all(done.stdout) if each]
    deploy.check_schemas(documents)
    container = next(
        each
        for spec in deploy.pod_specs(documents)
        for each in spec["containers"]
        if each["name"] == "agent"
    )
    deploy.check_command_line(container["args"])
    assert "--remove-gone" in container["args"]
    added = container["securityContext"]["capabilities"]["add"]
    assert added == ["SYS_PTRACE", "DAC_OVERRIDE", "FOWNER"]
