"""Pictures on a terminal, and `top`, on a node of real processes."""

import io
import json
import os
import pwd
import re
import sys
import termios
from collections.abc import Iterator

import attrs
import pytest
from fake_nvml.scenes import GPU, MIB
from rich.console import Console
from support.cli_scene import POD_LONG, Scene, table
from support.command_line import ESCAPES, Terminal, call, interrupt
from support.command_line import start as start_command
from support.containers import needs_namespaces
from support.node_scene import NodeScene
from support.seen_node import MIG, SHARE, entry, seen
from support.wait import PATIENCE_S

from libhamiregion.cli.containers import container_page, container_rows, needs_attention
from libhamiregion.cli.options import DriverChoice, NodeChoice
from libhamiregion.cli.processes import Top, TopKeys, process_page
from libhamiregion.cli.tables import Page
from libhamiregion.cli.terminal import draw_page, fit_page
from libhamiregion.cli.views import NodeView, Replay
from libhamiregion.node import Selector
from libhamiregion.observation.share import Share
from libhamiregion.observation.without_region import explained
from libhamiregion.testing import FakeNode

pytestmark = needs_namespaces


# ---- On a terminal ------------------------------------------------------------------------------


def place_of(scene: Scene) -> NodeChoice:
    return NodeChoice(
        (str(scene.node.root),),
        str(scene.node.pod_logs),
        str(scene.node.pod_logs),
        None,
        None,
        None,
    )


def text_of(page: Page, columns: int, rows: int = 60, *, live: bool = False) -> str:
    screen = Console(file=io.StringIO(), width=columns, height=rows, color_system=None)
    screen.print(fit_page(page, screen)[0] if live else draw_page(page, columns))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_every_width_shows_what_fits(scene):
    """The namespace and whole figures from 80 columns on; the uuids where there is room."""
    place = place_of(scene)
    with DriverChoice(False, str(scene.driver.library)).observe(place) as observer:
        for wide in (False, True):
            view = NodeView(observer, Selector(), place)
            process = process_page(view, "name", wide=wide)
            container = container_page(view, wide=wide)
            for page, last, used in (
                (process, "SM drv", "3 GiB"),
                (container, "processes", "6 GiB"),
            ):
                for columns in (40, 60, 80, 115, 116, 150, 200):
                    text = text_of(page, columns)
                    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
                    if columns >= 80 and not wide:
                        assert "research/" in text
                        assert "train" in text
                        assert last in text
                        assert used in text
                    if columns == 200:
                        assert "research/bert-0/train" in text
                        assert (GPU[:12] in text) == wide


def drawn(scene: Scene, columns: int, *, driver: bool = True, looks: int = 1) -> list[str]:
    """The picture of `top` on a terminal of so many columns, as lines."""
    place = place_of(scene)
    with DriverChoice(not driver, str(scene.driver.library)).observe(place) as observer:
        top = Top(NodeView(observer, Selector(namespace="*"), place))
        for _ in range(looks - 1):
            top.observe()
        page = top.page(TopKeys("memory"))
    return text_of(page, columns, live=True).splitlines()


def bars(line: str) -> list[str]:
    return re.findall("[━╸─┃]{4,}", line)


def test_top_has_a_bar_of_used_against_limit_for_each_container_and_device(scene):
    widths = []
    for columns in (80, 116, 130, 200):
        lines = drawn(scene, columns)
        assert max(len(line.rstrip()) for line in lines) <= columns
        heading = next(at for at, line in enumerate(lines) if "limit" in line)
        first, second = lines[heading + 1], lines[heading + 2]
        assert "bert-0" in first, "a process of it is dead"
        for figure in ("6 GiB", "8 GiB", "41 %", "50 %"):
            assert figure in first, columns
        memory = bars(first)[0]
        width = min(columns // 10, 24)
        full = memory.count("━") + memory.count("╸") / 2
        assert full / width == pytest.approx(6 / 8, abs=0.15)
        assert not bars(second), "nothing is in use"
        assert len(bars(first)) == (2 if columns >= 116 else 1), "the SM's bar, where there is room"
        widths.append(len(memory))
    assert widths[0] >= 4
    assert widths[-1] > widths[0]
    shown = "\n".join(drawn(scene, 200))
    user = pwd.getpwuid(os.getuid()).pw_name
    program = re.escape(sys.executable[:8])
    assert re.search(rf"bert-0/train .* alive .* 43 % +{user} +{program}", shown)


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        pytest.param(seen(entry(1)), "whole GPU", id="whole"),
        pytest.param(seen(entry(1), uuid=MIG), "MIG device", id="MIG"),
        pytest.param(seen(entry(1, share=SHARE)), "a share was", id="share"),
        pytest.param(seen(entry(1, share=Share()), listed=()), "CUDA not used yet", id="idle"),
    ],
)
def test_a_container_without_a_region_has_the_driver_s_figures(observation, reason):
    observation = attrs.evolve(observation, snapshot=explained(observation))
    view = NodeView(Replay(observation), Selector(), NodeChoice((), "", "", None, None, None))
    page = Top(view).page(TopKeys("memory"))
    pictures = [text_of(page, 80, live=True), text_of(container_page(view, wide=False), 80)]
    for picture in pictures:
        assert max(len(line.rstrip()) for line in picture.splitlines()) <= 80
        (line,) = [line for line in picture.splitlines() if reason in line]
        assert ("5 GiB" in line) == bool(observation.sample and observation.sample.pids)
    # As all that is shown, it can be filtered.
    assert reason not in text_of(Top(view).page(TopKeys("sm", filter="nosuch")), 80, live=True)


def test_top_has_the_last_samples_of_each_container(scene):
    (line, *_) = [line for line in drawn(scene, 130, looks=3) if "bert-0" in line]
    assert line.rstrip().endswith("▄▄▄")


def test_top_without_the_driver_has_its_limits_and_no_empty_columns(scene):
    lines = drawn(scene, 130, driver=False)
    text = "\n".join(lines)
    assert "driver" not in text.partition("processes of")[0]
    assert re.search(r"bert-0/train +0 +━+.* 6 GiB +8 GiB", text)
    assert "unlimited" in text


def test_a_device_that_is_chosen_is_the_one_that_has_a_row(scene):
    place = place_of(scene)
    with DriverChoice(False, str(scene.driver.library)).observe(place) as observer:
        observation = observer.observe()
        view = NodeView(observer, Selector(pod="bert-0", device="0"), place)
        (row,) = container_rows(view, observation)
        nothing = NodeView(observer, Selector(pod="nobody"), place)
        assert container_rows(nothing, observation) == []
    (device,) = row.devices
    assert device.usage.index == 0
    assert needs_attention(row), "a process of it is dead"


# ---- Again and again ----------------------------------------------------------------------------


def test_watching_follows_the_node_and_ends_with_ctrl_c(tmp_path):
    """One object per line, in which processes, containers and directories come and go."""
    with NodeScene(tmp_path) as node:
        later = tmp_path / "later"
        pod = node.container(pod="bert-0", uuids=[GPU])
        common = ("--root", str(node.root), "--pod-logs", str(node.pod_logs), "--json")
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


def test_top_in_a_pipe_is_ps_by_memory(scene):
    answer = scene.run("top", "--namespace", "*")
    assert answer.returncode == 0, answer.stderr
    rows = table(answer.stdout)
    assert rows[0]["HOST-PID"] == str(scene.pids["working"])
    assert rows[1]["STATE"] == "dead"
    found = json.loads(scene.run("top", "--namespace", "*", "--json", "--sort", "name").stdout)
    assert found["processes"][0]["pod"] == POD_LONG


def test_top_once_shows_one_picture_without_keys_also_of_a_document(scene, tmp_path):
    """With --watch it would have no meaning."""
    (tmp_path / "node.json").write_text(scene.run("observe").stdout)
    arguments = scene.arguments("top", "--once", "--namespace", "*")
    with Terminal(*arguments, env=scene.driver.environment(), columns=130) as terminal:
        assert terminal.wait() == 0
        assert "NVIDIA H100 80GB HBM3" in terminal.text
    words = ("top", "--once", "--namespace", "*")
    document = str(tmp_path / "node.json")
    for answer in (scene.run(*words), call(*words, "--from", document)):
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith("GPU  NAME ")
        assert table(answer.stdout.split("\n\n")[-1])[0]["HOST-PID"] == str(scene.pids["working"])
        assert "[q] quit" not in answer.stdout
    assert scene.run("top", "--once", "--watch").returncode == 2


def test_top_on_a_terminal_takes_keys_and_leaves_the_terminal_as_it_was(scene):
    arguments = scene.arguments("top", "--namespace", "*")
    with Terminal(*arguments, env=scene.driver.environment(), columns=130) as terminal:
        before = termios.tcgetattr(terminal.master)
        terminal.wait_for(lambda screen: any("counted" in each for each in pictures(screen)))
        assert termios.tcgetattr(terminal.master)[3] & termios.ICANON == 0
        assert "NVIDIA H100 80GB HBM3" in terminal.text
        assert "name or host pid" not in terminal.text
        terminal.type("?")
        terminal.wait_for(lambda screen: "name or host pid" in pictures(screen)[-1])
        terminal.type("\x1b[B\x1b[6~\x1bOF/bert\r")
        terminal.wait_for(lambda screen: "/bert  " in pictures(screen)[-1])
        assert "inference/" not in pictures(terminal.screen)[-1]
        terminal.type("n")
        terminal.wait_for(lambda screen: "sorted by name" in pictures(screen)[-1])
        terminal.type("q")
        assert terminal.wait() == 0
        assert termios.tcgetattr(terminal.master) == before
        assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")


def picture(top: Top, keys: TopKeys, columns: int, rows: int) -> list[str]:
    """The picture of a terminal of that size, as lines."""
    screen = Console(file=io.StringIO(), width=columns, height=rows, color_system=None)
    drawn, keys.offset = fit_page(top.live_page(keys), screen, keys.offset)
    screen.print(drawn)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Iterator[NodeView]:
    """A node with 301 containers; a process of one is dead."""
    directory = tmp_path_factory.mktemp("crowded") / "node"
    with FakeNode(directory, containers=300, shared_processes=True) as fake:
        ill = fake.add("main", pod="ill", processes=2)
        ill.processes[1].kill()
        logs = str(fake.pod_logs)
        place = NodeChoice((str(fake.root),), logs, logs, None, None, None)
        with DriverChoice(True, None).observe(place) as observer:
            yield NodeView(observer, Selector(), place)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (160, 50)])
def test_top_beside_300_containers_scrolls_and_filters(crowded, columns, rows):
    top = Top(crowded)
    keys = TopKeys("name")
    lines = picture(top, keys, columns, rows)
    assert rows - 2 <= len(lines) <= rows
    names = [line.split()[0] for line in lines if line.startswith("default/")]
    assert len(names) >= rows - 10, "most of the picture is rows"
    assert names[0] == "default/ill/main", "its process is dead"
    seen: list[str] = []
    shown, before = lines, -1
    while before < keys.offset < 1000:
        seen += [line.split()[0] for line in shown if line.startswith("default/")]
        before = keys.offset
        keys.press("page down", rows // 2)
        shown = picture(top, keys, columns, rows)
    assert {f"default/pod-{number}/main" for number in range(300)} < set(seen)
    assert not any("below" in line for line in shown), "the last row"
    keys.press("up", rows // 2)
    assert any("1 row below" in line for line in picture(top, keys, columns, rows))
    keys.press("home", rows // 2)
    assert picture(top, keys, columns, rows) == lines
    keys.press("end", rows // 2)
    assert picture(top, keys, columns, rows) == shown

    for key in "/pod-17q\x7f":
        keys.press(key, rows // 2)
    lines = picture(top, keys, columns, rows)
    assert "/pod-17_" in lines[-1]
    assert "11 processes of 11 containers" in lines[-2]
    keys.press("\r", rows // 2)
    keys.press("m", rows // 2)
    assert picture(top, keys, columns, rows)[-1].startswith("sorted by memory     /pod-17 ")
    keys.press("esc", rows // 2)
    assert "302 processes" in picture(top, keys, columns, rows)[-2]


def test_a_picture_has_one_line_for_all_notes(scene):
    place = place_of(scene)
    with DriverChoice(True, None).observe(place) as observer:
        top = Top(NodeView(observer, Selector(), place))
        page = attrs.evolve(
            top.live_page(TopKeys("name")), notes=("a long note " * 20, "two", "three")
        )
        lines = text_of(page, 80, live=True).splitlines()
    assert lines[-1].startswith("a long note")
    assert lines[-1].rstrip().endswith("…")
    assert "[q] quit" in lines[-2]


@pytest.mark.slow
def test_top_shows_what_fits_and_ends_with_ctrl_c(tmp_path):
    with NodeScene(tmp_path) as node:
        for _ in range(3):
            pod = node.container(uuids=[GPU])
            for number in range(10):
                pod.add_process(4_000_000 + number, {0: (number + 1) * MIB})
        arguments = ("--root", str(node.root), "--no-driver")
        with Terminal("top", *arguments, rows=24) as terminal:
            terminal.wait_for(lambda screen: "[q] quit" in screen)
            terminal.type("\x03")
            assert terminal.wait() == 0
        shown = pictures(terminal.screen)[-1]
        assert "30 processes of 3 containers; 165 MiB counted" in shown
        assert len(shown.splitlines()) <= 24
