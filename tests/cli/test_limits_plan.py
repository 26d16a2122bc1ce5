"""`hamiregion limits diff` and `apply`: plans on a node, as people run them."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.command_line import COMMAND, Terminal, call, environment, refused, start
from support.node_scene import GIB
from support.plan_scene import PlanScene, plan_yaml
from support.process import finished
from support.region_file import unchanged
from support.wait import PATIENCE_S

from libhamiregion import create_region
from libhamiregion.plan import apply_diff

SIX = "{select: {namespace: research}, set: {memory_limit: 6GiB}}"
KEPT = "memory limit kept by rules[0] of"
UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
DIFF = """\
POD              CONTAINER  DEVICE  LIMIT         BEFORE     AFTER  EFFECT         RULE
research/bert-0  train      0       memory_limit  8GiB       6GiB   immediate      rules[0]
research/bert-0  train      1       memory_limit  4GiB       6GiB   immediate      rules[0]
research/bert-0  train      1       sm_limit      unlimited  50%    new_processes  rules[1]
research/bert-0  train      -       priority      1          0      immediate      rules[1]

no region yet: sales/gpt/empty
some rules choose no container of this node (rules[2])
"""


@pytest.fixture
def scene(tmp_path, monkeypatch) -> PlanScene:
    scene = PlanScene(tmp_path)
    monkeypatch.setenv("HAMIREGION_STATE", os.fspath(scene.state))
    monkeypatch.delenv("NODE_NAME", raising=False)
    return scene


@pytest.fixture
def full_scene(scene) -> PlanScene:
    """A container with a region and one without; a plan with a rule that chooses neither."""
    scene.container()
    (scene.root / f"{UID}_empty").mkdir()
    scene.plan_file(
        SIX,
        "{select: {}, set: {sm_limit: 50, priority: 0}}",
        "{select: {container: nobody}, set: {sm_limit: 1}}",
    )
    (scene.pod_logs / f"sales_gpt_{UID}").mkdir()
    return scene


def words_of(verb: str, scene: PlanScene, *arguments: str) -> tuple[str, ...]:
    return ("limits", verb, str(scene.directory / "plan.yaml"), *scene.options, *arguments)


def limits(verb: str, scene: PlanScene, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call(*words_of(verb, scene, *arguments))


def answer_of(verb: str, scene: PlanScene, *arguments: str) -> Any:
    return json.loads(limits(verb, scene, *arguments, "--json").stdout)


# ---- diff -------------------------------------------------------------------------------


def test_diff_and_a_dry_run_show_what_would_change_and_write_nothing(full_scene):
    before = {path: path.read_bytes() for path in full_scene.root.rglob("*.cache")}
    shown, dry = limits("diff", full_scene), limits("apply", full_scene, "--dry-run")
    assert (shown.returncode, shown.stdout) == (3, DIFF), shown.stderr
    assert (dry.returncode, dry.stdout) == (0, DIFF + "\ndry run: nothing was written\n")
    assert answer_of("apply", full_scene, "--dry-run")["dry_run"] is True
    with Terminal(*words_of("diff", full_scene), columns=140) as terminal:
        assert terminal.wait() == 3
        lines = [line.split() for line in terminal.text.splitlines()]
    assert lines[2][:3] == ["research/bert-0/train", "0", "memory_limit"]
    assert any(line[:4] == ["no", "region", "yet:", "sales/gpt/empty"] for line in lines)
    assert {path: path.read_bytes() for path in before} == before
    assert not full_scene.state.exists()
    full_scene.plan_file("{select: {container: train}, set: {memory_limit: 6GiB}}")
    assert limits("apply", full_scene, "--dry-run").returncode == 0


def test_diff_as_json(full_scene):
    answer = answer_of("diff", full_scene)
    (change,) = answer["changes"]
    names = ("namespace", "pod", "container", "refused")
    assert [change[name] for name in names] == ["research", "bert-0", "train", False]
    assert change["edits"][2] == {
        "field": "sm_limit",
        "device": 1,
        "before": None,
        "after": 50,
        "effect": "new_processes",
        "rule": 1,
    }
    (skip,) = answer["skipped"]
    assert (skip["reason"], skip["missing"], skip["rules"]) == ("no_region", "no_file", [1])
    assert (answer["unused_rules"], answer["problems"]) == ([2], {})


def test_a_node_on_the_plan_needs_no_change_and_equal_devices_share_a_line(scene):
    scene.container(memory_limits=("8GiB",) * 16, uuids=())
    scene.plan_file("{select: {}, set: {priority: 1}}")
    answer = limits("diff", scene)
    assert (answer.returncode, answer.stdout) == (0, "nothing is to be changed\n")
    piped = finished(
        [*COMMAND, "limits", "diff", "-", *scene.options], input=plan_yaml(SIX), env=environment()
    )
    assert piped.returncode == 3, piped.stderr
    (_, row) = piped.stdout.splitlines()
    assert row.split()[2:6] == ["0-15", "memory_limit", "8GiB", "6GiB"]


# ---- what is wrong --------------------------------------------------------------------------


def test_a_wrong_plan_is_wrong_usage_with_the_place_of_the_mistake(scene):
    region = scene.container()
    with unchanged(region):
        path = scene.plan_file("{select: {pod: no}, set: {memory_limit: 6GB, sm_limit: 0}}")
        for verb in (("diff",), ("apply",), ("apply", "--dry-run")):
            answer = limits(verb[0], scene, *verb[1:])
            assert answer.returncode == 2, answer.stdout
            first, memory = answer.stderr.splitlines()
            assert first == "Error: the plan cannot be used"
            assert memory.startswith(f'{path}:4:45: rules[0].set.memory_limit: "6GB"')


def test_what_cannot_be_done_is_said(scene):
    path = str(scene.plan_file(SIX))
    nowhere = "/nowhere/plan.yaml"
    for words, code, said in (
        (("apply",), 2, "Say which plan: a FILE, --from-annotations, or both."),
        (("apply", "--from-annotations"), 2, "name it with --node-name or NODE_NAME"),
        (("diff", nowhere), 1, f"{nowhere}: No such file or directory"),
        (("apply", "/dev"), 1, "/dev: not a regular file"),
        (("apply", path, "--root", "/nowhere"), 1, "none of the directories given can be"),
        (("diff", path, "--root", "/nowhere"), 1, "none of the directories"),
    ):
        place = () if "--root" in words else scene.options
        assert said in refused("limits", *words, *place, code=code), words


# ---- apply ----------------------------------------------------------------------------------


def test_apply_makes_the_diff_true_and_says_how_to_undo_it(full_scene, tmp_path):
    (path,) = full_scene.root.rglob("*.cache")
    before = path.read_bytes()
    undo = tmp_path / "undo.yaml"
    answer = limits("apply", full_scene, "--undo", str(undo))
    assert answer.returncode == 0, answer.stdout
    assert answer.stdout == DIFF + f"\nchanged 1 of 1 container\nundo plan: {undo}\n"
    assert limits("diff", full_scene).stdout.startswith("nothing is to be changed\n")
    assert path.read_bytes() != before
    undone = call("limits", "apply", str(undo), *full_scene.options)
    assert undone.returncode == 0, undone.stdout
    assert path.read_bytes() == before
    again = answer_of("apply", full_scene)
    (outcome,) = again["outcomes"]
    assert (outcome["pod"], outcome["status"], outcome["message"]) == ("bert-0", "applied", None)
    assert Path(again["undo"]).parent == full_scene.state
    assert (again["dry_run"], len(again["changes"])) == (False, 1)


def test_a_limit_below_use_is_refused_unless_forced(scene):
    region = scene.container()
    region.add_process(1, {0: 7 * GIB})
    scene.plan_file(SIX)
    answer = limits("apply", scene)
    assert answer.returncode == 3
    assert "left as it is: research/bert-0/train: device 0 uses 7 GiB" in answer.stdout
    rows = [line.split() for line in answer.stdout.splitlines() if "memory_limit" in line]
    assert [row[6:] for row in rows] == [["refused:below_usage", "rules[0]"]] * 2
    assert "changed 0 of 1 container\n" in answer.stdout
    assert region.limits()["memory"][:2] == [8 * GIB, 4 * GIB]
    assert limits("apply", scene, "--force").returncode == 0
    assert region.limits()["memory"][:2] == [6 * GIB, 6 * GIB]


def test_a_container_that_changes_before_it_is_applied_is_a_problem_that_remains(
    scene, monkeypatch
):
    region = scene.container()
    scene.plan_file(SIX)

    def late(node, diff, **options):
        region.put("limit", 7 * GIB, device=1)
        return apply_diff(node, diff, **options)

    monkeypatch.setattr("libhamiregion.cli.limits_plan.apply_diff", late)
    answer = limits("apply", scene)
    assert answer.returncode == 3
    assert "left as it was (conflict): research/bert-0/train: " in answer.stdout
    assert "changed 0 of 1 container\n" in answer.stdout


# ---- agent, and annotations -------------------------------------------------------------


def events(process: subprocess.Popen[str], until: str) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["event"] != until:
        seen.append(json.loads(process.stderr.readline()))
    return seen


def test_a_limit_that_an_agent_keeps_is_named_with_its_rule(scene):
    region = scene.container()
    path = scene.plan_file(SIX)
    process = start("agent", "--plan", str(path), *scene.options, "--json")
    try:
        changed = events(process, "changed")[-1]
        assert (changed["task"], changed["detail"]["memory_limit.0"]) == ("plan", 6 * GIB)
        assert "another process keeps this node on a plan" in limits("diff", scene).stderr
        for name in ("research/bert-0", os.fspath(region.path)):
            target = (name, *scene.options)
            assert f"device 1: {KEPT} {path}\n" in call("limits", "get", *target).stdout
            edit = ("limits", "set", *target, "--device", "1", "--memory")
            dry = call(*edit, "7GiB", "--dry-run").stdout
            assert f"device 1: {KEPT} {path}: it will be set back\n" in dry
            assert "set back" not in call(*edit, "6GiB", "--dry-run").stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
    assert region.limits()["memory"][:2] == [6 * GIB, 6 * GIB]
    assert "kept" not in call("limits", "get", "research/bert-0", *scene.options).stdout


def test_limits_set_writes_a_plan_that_undoes_it(scene, tmp_path):
    region, undo = scene.container(), tmp_path / "undo.yaml"
    before = region.content()
    edit = ("limits", "set", "bert-0", *scene.options, "--memory", "50%", "--sm", "30")
    assert call(*edit, "--undo-file", str(undo)).returncode == 0
    assert region.limits()["memory"][:2] == [4 * GIB, 2 * GIB]
    changed = region.content()
    again = call(*edit, "--undo-file", str(undo))
    assert (again.returncode, "File exists" in again.stderr) == (1, True)
    assert region.content() == changed, "nothing is changed without the file"
    assert call("limits", "apply", str(undo), *scene.options).returncode == 0
    assert region.content() == before

    for wrong, code in ((("--sm", "40", "--if-equals", "99"), 3), (("--memory", "6GiB"), 2)):
        refused = ("limits", "set", "bert-0", *scene.options, *wrong)
        answer = call(*refused, "--undo-file", str(tmp_path / "no.yaml"))
        assert (answer.returncode, answer.stdout) == (code, ""), answer.stderr
        assert not (tmp_path / "no.yaml").exists()
    create_region(alone := tmp_path / "alone.cache", memory_limits=("8GiB",))
    options = (*scene.options, "--memory", "4GiB", "--undo-file", str(tmp_path / "no.yaml"))
    answer = call("limits", "set", str(alone), *options)
    assert (answer.returncode, "leave --undo-file out" in answer.stderr) == (2, True)
    assert not (tmp_path / "no.yaml").exists()
    assert call("limits", "set", "bert-0", *options, "--dry-run").returncode == 2


def test_annotations_of_pods_are_a_plan(scene, api, tmp_path):
    region = scene.container(pod_uid=UID)
    api.put("bert-0", UID, {"hamiregion.io/memory-limit": "6GiB"})
    api.put("bert-1", "8" * 32, {"hamiregion.io/sm-limit": "none"})
    asked = (*scene.options, "--from-annotations", "--node-name", "node-1")
    config = ("--kubeconfig", str(api.kubeconfig(tmp_path)))
    answer = call("limits", "apply", *asked, *config)
    assert answer.returncode == 3, "one pod has a bad annotation"
    assert "Warning: research/bert-1: hamiregion.io/sm-limit: an SM limit is 1 to" in answer.stderr
    # Device 1 had 4 GiB, the most that an annotation may ask for.
    assert "4 GiB" in answer.stdout
    assert region.limits()["memory"][:2] == [6 * GIB, 4 * GIB]
    answer = call("limits", "apply", *asked, *config, "--annotations-maximum", "unlimited")
    assert region.limits()["memory"][:2] == [6 * GIB, 6 * GIB]
    for wrong in ("0%", "half", "80"):
        answer = call("limits", "diff", *asked, *config, "--annotations-maximum", wrong)
        assert answer.returncode == 2
    api.refusals.append(403)
    said = refused("limits", "diff", *asked, *config, code=1)
    assert "the pods of this node cannot be listed: the API answered 403" in said
