"""Pictures on a terminal, and `top`, on a node of real processes."""

import io
import json
import os
import pwd
import re
import sys
import termios
from pathlib import Path

import pytest
from cli_scene import POD_LONG, Scene, busy_scene, table
from containers import needs_namespaces
from fake_nvml.scenes import GPU, MIB
from gpu_node import gpu_nodes
from rich.console import Console
from unit.cli_process import (
    COLOUR,
    ESCAPES,
    Terminal,
    interrupt,
)
from unit.cli_process import start as start_command
from wait import PATIENCE_S

from libhamiregion.cli.container_use import container_uses
from libhamiregion.cli.containers import container_page
from libhamiregion.cli.options import DriverChoice, NodeChoice
from libhamiregion.cli.process_page import process_page
from libhamiregion.cli.terminal import draw_page, fit_page
from libhamiregion.node import Selector
from libhamiregion.node.join import Join
from libhamiregion.node.process_rows import process_rows
from libhamiregion.node.views import observed_views

scene = pytest.fixture(scope="module")(busy_scene)
pytestmark = needs_namespaces


# ---- On a terminal ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_terminal_gets_colours_unless_they_are_switched_off(scene: Scene) -> None:
    for verb, words in (("ps", "escaped"), ("containers", "+1 dead")):
        shown = scene.terminal(verb, "--wide", "--namespace", "*", columns=124)
        assert COLOUR.search(shown.screen)
        assert max(len(line) for line in shown.text.splitlines()) <= 124
        assert words in shown.text
    plain = scene.terminal("ps", "--namespace", "*", env={"NO_COLOR": "1"})
    assert "\x1b[" not in plain.screen, "neither colours nor bold"
    assert "bert-0" in plain.text


def test_every_width_shows_what_fits(scene: Scene) -> None:
    """Whole words from 80 columns on; the uuids, pods and namespaces where there is room."""
    place = NodeChoice((str(scene.node.root),), str(scene.node.logs), "files", None, None)
    with DriverChoice(False, str(scene.driver.library)).observe(place) as observer:
        for wide in (False, True):
            process = process_page(observer, Selector(), place, sort="name", wide=wide)
            container = container_page(observer, Selector(), place, wide=wide)
            for page, last, used in (
                (process, "SM drv", "3 GiB"),
                (container, "processes", "6 GiB"),
            ):
                for columns in (40, 60, 89, 90, 107, 108, 124, 200):
                    file = io.StringIO()
                    drawn = draw_page(page, columns)
                    Console(file=file, width=columns, color_system=None).print(drawn)
                    text = file.getvalue()
                    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
                    if columns >= 80 and not wide:
                        assert "bert-0/train" in text or "bert-0  " in text
                        assert last in text
                        assert used in text
                    if columns == 200:
                        assert "research/bert-0" in text
                        assert (GPU[:12] in text) == wide


def drawn(scene: Scene, columns: int, *, driver: bool = True) -> list[str]:
    """The picture of `top` on a terminal of so many columns, as lines."""
    place = NodeChoice((str(scene.node.root),), str(scene.node.logs), "files", None, None)
    with DriverChoice(not driver, str(scene.driver.library)).observe(place) as observer:
        page = process_page(
            observer,
            Selector(namespace="*"),
            place,
            sort="memory",
            wide=False,
            live=True,
        )
    screen = Console(file=io.StringIO(), width=columns, height=60, color_system=None)
    screen.print(fit_page(page, screen))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def bars(line: str) -> list[str]:
    return re.findall("[━╸─┃]{4,}", line)


def test_top_has_a_bar_of_used_against_limit_for_each_container_and_device(scene: Scene) -> None:
    widths = []
    for columns in (80, 100, 130, 200):
        lines = drawn(scene, columns)
        assert max(len(line.rstrip()) for line in lines) <= columns
        heading = next(at for at, line in enumerate(lines) if "memory" in line and "limit" in line)
        first, second = lines[heading + 2], lines[heading + 3]
        for figure in ("6 GiB", "8 GiB", "3.2 GiB", "41 %", "50 %"):
            assert figure in first, columns
        memory = bars(first)[0]
        full = memory.count("━") + memory.count("╸") / 2
        assert full / len(memory) == pytest.approx(6 / 8, abs=0.05)
        assert set(bars(second)[0]) == {"─"}
        assert len(bars(first)) == (2 if columns >= 100 else 1), "the SM's bar, where there is room"
        if columns >= 100:
            assert bars(first)[1].index("┃") == len(bars(first)[1]) // 2, "the mark at 50 %"
            assert "43 %" in first
        widths.append(len(memory))
    assert widths[0] >= 8
    assert widths[-1] > widths[0]
    shown = "\n".join(drawn(scene, 200))
    user = pwd.getpwuid(os.getuid()).pw_name
    program = re.escape(sys.executable[:8])
    assert re.search(rf"bert-0 +train .* alive .* 43 % +{user} +{program}", shown)


def test_top_without_the_driver_has_its_limits_and_no_empty_columns(scene: Scene) -> None:
    lines = drawn(scene, 130, driver=False)
    text = "\n".join(lines)
    assert "driver" not in text.partition("processes of")[0]
    assert re.search(r"bert-0 +train +0 +━+.* 6 GiB +8 GiB", text)
    assert "unlimited" in text


def test_a_device_that_is_chosen_is_the_one_that_has_a_bar(scene: Scene) -> None:
    place = NodeChoice((str(scene.node.root),), str(scene.node.logs), "files", None, None)
    with place.open() as node:
        views = node.view()
        uses = container_uses(node, views, (), Selector(pod="bert-*", device="1"))
        assert [[each.usage.index for each in use.devices] for use in uses] == [[1]]
        assert container_uses(node, views, (), Selector(pod="nobody")) == []
    assert (uses[0].devices[0].memory_ratio, uses[0].devices[0].memory_driver_bytes) == (0, None)


def test_one_process_is_enough_for_a_containers_figures_of_the_driver(scene: Scene) -> None:
    place = NodeChoice((str(scene.node.root),), str(scene.node.logs), "files", None, None)
    with DriverChoice(False, str(scene.driver.library)).observe(place) as observer:
        observation = observer.observe()
        views = observed_views(observer.node, observation)
        processes = process_rows(Join(observation), views)
        working = [each for each in processes if each.host_pid == scene.pids["working"]]
        (use,) = container_uses(observer.node, views, working, Selector(pod="bert-0", device="0"))
    (device,) = use.devices
    figures = (device.driver_index, device.memory_driver_bytes, device.driver_sm_percent)
    assert figures == (0, 3300 * MIB, 43)


# ---- Again and again ----------------------------------------------------------------------------


def test_watching_follows_the_node_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """One object per line, in which processes, containers and directories come and go."""
    with gpu_nodes(tmp_path) as node:
        later = tmp_path / "later"
        pod = node.add(pod="bert-0", uuids=[GPU])
        common = ("--root", str(node.root), "--pod-logs", str(node.logs), "--json")
        roots = ("--root", str(later), "--watch", "0.05")
        with (
            start_command("ps", *common, "--no-driver", *roots) as ps,
            start_command("containers", *common, *roots) as containers,
        ):
            assert ps.stdout is not None
            assert containers.stdout is not None
            objects = (json.loads(line) for line in ps.stdout)
            assert next(objects)["processes"] == []
            pid, host_pid = pod.attach()
            grown = next(each for each in objects if each["processes"])
            assert [each["host_pid"] for each in grown["processes"]] == [host_pid]
            pod.inside.tell("kill", pid)
            assert next(each for each in objects if each["processes"][0]["state"] == "dead")
            told = (json.loads(line) for line in containers.stdout)
            first = next(told)
            assert [each["pod"] for each in first["containers"]] == ["bert-0"]
            assert first["warnings"] == [f"{later}: No such file or directory"]
            (later / "uid_main").mkdir(parents=True)
            found = next(each for each in told if not each["warnings"])["containers"]
            assert [each["reason"] for each in found] == [None, "no_file"]
            for process in (ps, containers):
                interrupt(process)
                process.communicate(timeout=PATIENCE_S)
                assert process.returncode == 0


# ---- top ----------------------------------------------------------------------------------------


def pictures(screen: str) -> list[str]:
    """The whole pictures on a terminal, without escapes."""
    return ESCAPES.sub("", screen).split("[q] quit")[:-1]


def in_memory_order(picture: str) -> bool:
    return picture.index("dead") < picture.index("escaped")


def test_top_in_a_pipe_is_ps_by_memory(scene: Scene) -> None:
    answer = scene.run("top", "--namespace", "*")
    assert answer.returncode == 0, answer.stderr
    rows = table(answer.stdout)
    assert rows[0]["HOST-PID"] == str(scene.pids["working"])
    assert rows[1]["STATE"] == "dead"
    found = json.loads(scene.run("top", "--namespace", "*", "--json", "--sort", "name").stdout)
    assert found["processes"][0]["pod"] == POD_LONG


def test_top_on_a_terminal_takes_keys_and_leaves_the_terminal_as_it_was(scene: Scene) -> None:
    arguments = scene.arguments("top", "--namespace", "*")
    with Terminal(*arguments, env=scene.driver.environment(), columns=130) as terminal:
        before = termios.tcgetattr(terminal.master)
        terminal.wait_for(lambda screen: any("by the driver" in each for each in pictures(screen)))
        assert termios.tcgetattr(terminal.master)[3] & termios.ICANON == 0
        assert "NVIDIA H100 80GB HBM3" in terminal.text
        assert in_memory_order(pictures(terminal.screen)[0])
        terminal.type("\x1b[A")
        terminal.type("n")
        terminal.wait_for(lambda screen: not in_memory_order(pictures(screen)[-1]))
        terminal.type("q")
        assert terminal.wait() == 0
        assert termios.tcgetattr(terminal.master) == before
        assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")


@pytest.mark.thorough
def test_top_shows_what_fits_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with gpu_nodes(tmp_path) as node:
        for _ in range(3):
            pod = node.add(uuids=[GPU], process=False)
            for number in range(10):
                pod.region.add_process(4_000_000 + number, {0: (number + 1) * MIB})
        arguments = ("--root", str(node.root), "--no-driver")
        with Terminal("top", *arguments, rows=24) as terminal:
            terminal.wait_for(lambda screen: "[q] quit" in screen)
            terminal.type("\x03")
            assert terminal.wait() == 0
        shown = pictures(terminal.screen)[-1]
        assert "30 processes of 3 containers; 165 MiB counted" in shown
        hidden = int(shown.split(" more")[0].split("and ")[-1])
        assert shown.count("dead") + hidden == 30
        assert len(shown.splitlines()) <= 24
