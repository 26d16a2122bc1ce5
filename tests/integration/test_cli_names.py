"""Names of pods from the Kubernetes API, for whoever has no file that tells them."""

import json
from pathlib import Path
from typing import Any

import pytest
from called import call
from fake_kubernetes.server import FakeApi
from plan_scene import PlanScene
from unit.cli_process import run

pytest.importorskip("ijson", reason="needs the extra kubernetes")

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """With one pod."""
    api.put("bert-0", UID, {})
    return api


@pytest.fixture
def scene(tmp_path: Path) -> PlanScene:
    """A node with one container, of whose pod no file says the name."""
    scene = PlanScene(tmp_path)
    scene.container(pod_uid=UID, namespace=None)
    return scene


def answer(scene: PlanScene, *words: str, verb: str = "containers") -> dict[str, Any]:
    done = call(verb, *scene.options, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_api_names_what_no_file_tells_if_it_is_to_be_asked(
    scene: PlanScene, api: FakeApi, tmp_path: Path
) -> None:
    there = ("--kubeconfig", str(api.kubeconfig(tmp_path)), "--node", "node-1")
    (container,) = answer(scene, *there)["containers"]
    assert (container["pod"], api.requests) == (None, [])
    found = answer(scene, "--names", "kubernetes", *there)
    (container,) = found["containers"]
    assert (container["namespace"], container["pod"]) == ("research", "bert-0")
    assert found["warnings"] == []
    assert api.lists[0]["fieldSelector"] == "spec.nodeName=node-1"


def test_a_plan_chooses_by_names_of_the_api(scene: PlanScene, api: FakeApi, tmp_path: Path) -> None:
    there = ("--names", "kubernetes", "--kubeconfig", str(api.kubeconfig(tmp_path)))
    plan = scene.plan_file("{select: {pod: bert-0}, set: {memory_limit: 1GiB}}")
    done = call("limits", "diff", str(plan), *scene.options, "--json", *there)
    assert done.returncode == 3, done.stderr
    (change,) = json.loads(done.stdout)["changes"]
    assert change["pod"] == "bert-0"
    rules = json.loads(call("limits", "export", *scene.options, "--json", *there).stdout)["rules"]
    assert rules[0]["select"]["pod_uid"] == UID


def test_an_api_that_gives_no_names_is_a_warning_with_the_reason(
    scene: PlanScene, api: FakeApi, tmp_path: Path
) -> None:
    config = str(api.kubeconfig(tmp_path, token="another"))
    found = answer(scene, "--names", "kubernetes", "--kubeconfig", config)
    said = "names from the Kubernetes API: the API answered 401: Unauthorized"
    assert found["warnings"] == [said]
    assert found["containers"][0]["pod"] is None
    # Once, and by the library's log not again.
    done = run("containers", *scene.options, "--names", "kubernetes", "--kubeconfig", config)
    assert done.stderr == f"Warning: {said}\n"
