"""What whoever may create pods on a node can cost its exporter and its agent in memory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from exporter_process import environment, exporter_process
from fake_kubernetes.server import FakeApi
from plan_scene import PlanScene
from scrapers import ask
from wait import PATIENCE_S, eventually

pytest.importorskip("ijson", reason="needs the extra kubernetes")

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b%02x"
WITH_NAMES_MIB = 60


def peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def attack(api: FakeApi, pods: int) -> None:
    """Pods with 12,000 names of variables each, which the API lists twice: 0.7 MiB each."""
    names = [f"E{number:05}" for number in range(12_000)]
    for number in range(pods):
        api.put(f"evil-{number}", UID % (number + 1), {})
        pod = api.pods[UID % (number + 1)]
        pod["spec"]["containers"][0]["env"] = [{"name": name} for name in names]
        owned = {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}} for name in names}
        pod["metadata"]["managedFields"] = [{"fieldsV1": {"f:env": owned}}]
    assert len(json.dumps(list(api.pods.values()))) > pods * (700 << 10)


# How many pods, and what the attacked process may have. A list of 24 has 17 MiB.
attacks = pytest.mark.parametrize(
    ("pods", "attacked_mib"), [(2, 60), pytest.param(24, 100, marks=pytest.mark.stress)]
)


@pytest.mark.thorough
@attacks
def test_an_exporter_with_names_stays_small_and_does_so_under_large_pods(
    api: FakeApi, tmp_path: Path, pods: int, attacked_mib: int
) -> None:
    scene = PlanScene(tmp_path)
    scene.container(pod_uid=UID % 0, namespace=None)
    api.put("bert-0", UID % 0, {})
    words = ("--interval", "0.5", "--names", "kubernetes", "--node", "node-1")
    there = (*scene.options, "--kubeconfig", api.kubeconfig(tmp_path))
    with exporter_process(*words, *there) as exporter:
        exporter.wait_until_ready()
        eventually(lambda: api.open_watches, 60)
        assert peak_mib(exporter.pid) < WITH_NAMES_MIB
        attack(api, pods)
        # The list is read once more, and every pod changes once more.
        api.restart()
        eventually(lambda: len(api.lists) == 2 and api.open_watches, 60)
        for number in range(1, pods + 1):
            pod = api.pods[UID % number]
            with api.changed:
                api.version += 1
                api.events.append((api.version, "MODIFIED", pod))
                api.changed.notify_all()
        api.put("late", UID % 99, {})
        scene.container(pod_uid=UID % 99, namespace=None)
        eventually(lambda: 'pod="late"' in ask(exporter.url).body.decode(), 60)
        assert peak_mib(exporter.pid) < attacked_mib


@attacks
def test_an_agent_as_the_manifests_run_it_stays_small_under_large_pods(
    api: FakeApi, tmp_path: Path, pods: int, attacked_mib: int
) -> None:
    scene = PlanScene(tmp_path)
    region = scene.container(pod_uid=UID % 0)
    attack(api, pods)
    api.put("bert-0", UID % 0, {"hamiregion.io/memory-limit": "1GiB"})
    command = [sys.executable, "-m", "libhamiregion", "agent", "--metrics", "--repair"]
    words = ["--listen", "127.0.0.1:0", "--from-annotations", "--names", "kubernetes"]
    words += ["--node", "node-1", "--kubeconfig", str(api.kubeconfig(tmp_path))]
    process = subprocess.Popen(
        [*command, *words, "--state", str(scene.state), *scene.options],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: region.get("limit") == 1 << 30)
        assert peak_mib(process.pid) < attacked_mib
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
