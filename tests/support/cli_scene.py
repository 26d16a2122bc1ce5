"""A node of real processes and a fake driver, and what the command line says of it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from fake_nvml.driver import STATE, FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND

from libhamiregion import Layout
from libhamiregion.units import GIB
from support.command_line import Terminal, call, on_terminal
from support.node_scene import NodeScene, SceneContainer

POD_LONG = "a-rather-long-name-of-a-deployment-7d9f8b6c5-x2x4z"


@attrs.define
class Scene:
    """One node with everything on it; tests only look."""

    node: NodeScene
    driver: FakeDriver
    bert: SceneContainer
    pids: dict[str, int]

    def arguments(self, verb: str, *more: str) -> tuple[str, ...]:
        return (verb, "--root", str(self.node.root), "--pod-logs", str(self.node.pod_logs), *more)

    def run(self, verb: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return call(*self.arguments(verb, "--library", str(self.driver.library), *more))

    def json(self, verb: str, *more: str) -> dict[str, Any]:
        answer = self.run(verb, "--json", *more)
        assert answer.returncode == 0, answer.stderr
        assert answer.stderr == ""
        assert answer.stdout.count("\n") == 1
        return json.loads(answer.stdout)

    def terminal(self, verb: str, *more: str, **options: Any) -> Terminal:
        options["env"] = {**self.driver.environment(), **options.get("env", {})}
        return on_terminal(*self.arguments(verb, *more), **options)

    def known(self, processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without what others do on this machine."""
        mine = set(self.pids.values())
        return [each for each in processes if each["pod_uid"] or each["host_pid"] in mine]


def busy_scene(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Scene]:
    """A node with processes of each kind, for a fixture of a module."""
    directory = tmp_path_factory.mktemp("node")
    driver = FakeDriver(nvml_library, directory / "nvml-scene")
    driver.play(CARD)
    with (
        pytest.MonkeyPatch.context() as patch,
        NodeScene(directory) as node,
        subprocess.Popen(["sleep", "600"]) as stranger,
    ):
        patch.setenv(STATE, str(driver.state))
        bert = node.container(
            "train",
            pod="bert-0",
            memory_limits=["8GiB", "4GiB"],
            sm_limits=[50, None],
            uuids=[GPU, OTHER],
        )
        working, working_host = bert.attach()
        bert.charge(working, 3 * GIB)
        bert.put("slot_util.sm", 41)
        held, held_host = bert.attach()
        bert.charge(held, GIB)
        bert.put("slot_status", 2, slot=1)
        dead, _ = bert.attach()
        bert.charge(dead, 2 * GIB)
        bert.inside.tell("kill", dead)
        serve = node.container(
            "serve", pod=POD_LONG, namespace="inference", layout=Layout.V1_1, uuids=[OTHER]
        )
        serve.inside.tell("attach", serve.path)
        _, idle = serve.inside.child("fork")
        _, escaped = serve.inside.child("fork")
        node.container("main", pod="whole-gpu", region=False)
        strange = node.container("main", pod=None)
        strange.resize(5)
        driver.play(
            CARD,
            SECOND,
            f"process 0 compute {working_host} {3300 * MIB}",
            f"sample 0 {working_host} 100 43 22 1 2",
            f"process 1 compute {serve.inside.host_pid} {500 * MIB}",
            f"process 1 compute {escaped} {700 * MIB}",
            f"process 0 graphics {stranger.pid} {20 * MIB}",
            f"sample 0 {stranger.pid} 200000 7 3 0 0",
        )
        pids = {
            "working": working_host,
            "held": held_host,
            "serving": serve.inside.host_pid,
            "idle": idle,
            "escaped": escaped,
            "stranger": stranger.pid,
        }
        yield Scene(node, driver, bert, pids)
        stranger.kill()


def table(text: str) -> list[dict[str, str]]:
    """The rows of a plain table by its heading; each splits into as many words."""
    heading, *rows = text.splitlines()
    return [dict(zip(heading.split(), row.split(), strict=True)) for row in rows]
