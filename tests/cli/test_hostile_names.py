"""Names that containers and processes choose, on a terminal, in a pipe, in JSON and in paths."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from fake_nvml.driver import STATE, FakeDriver
from fake_nvml.scenes import CARD, MIB
from support.command_line import ESCAPES, Terminal, call
from support.node_scene import NodeScene
from support.region_file import RegionFile

from libhamiregion import Layout, create_region

NAMES = {
    "title": "\x1b]0;owned\x07",
    "clear": "\x1b[2J\x1b[1;31m",
    "csi": "\x9b2J",
    "newline": "a\nb\rc\td",
    "quotes": "'\"`$(reboot)`;|&<b>{{x}}%s%n\\",
    "direction": "\u202egpj\u2066",
    "markup": "[bold red]x[bold] :skull:",
    "upwards": "..",
    "undecodable": os.fsdecode(b"\xff\xfe\x80"),
    "long": "\x1b" * 80,
}
UUIDS = ["GPU-\x22'`$(x)<script>%n", "MIG-[red]\\x1b[2J", "GPU-" + "x" * 91]
COMMAND_LINE = "".join(NAMES.values()).replace("\0", "") + "\x1b]2;x\x07" * 800

# All that a terminal may get beside printable text: what rich itself writes, and line ends.
STEERING = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@attrs.define
class Scene:
    node: NodeScene
    driver: FakeDriver
    host_pid: int

    def arguments(self, *more: str) -> tuple[str, ...]:
        given = ("--root", str(self.node.root), "--pod-logs", str(self.node.pod_logs))
        if more[0] == "ps":
            given = (*given, "--library", str(self.driver.library))
        return (*more, *given)


def mapping_process(path: Path) -> "subprocess.Popen[bytes]":
    """A process with a slot in a region, and a command line of its own choice."""
    code = (
        "import sys, libhamiregion\n"
        "region = libhamiregion.open_region(sys.argv[1], writable=True)\n"
        "slot = region.attach()\n"
        "slot.charge(0, 1 << 20)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), os.fsencode(COMMAND_LINE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    return process


@pytest.fixture(scope="module")
def scene(tmp_path_factory, nvml_library) -> Iterator[Scene]:
    """A node where everything that can have a name has a hostile one."""
    directory = tmp_path_factory.mktemp("hostile")
    driver = FakeDriver(nvml_library, directory / "nvml-scene")
    with pytest.MonkeyPatch.context() as patch, NodeScene(directory) as node:
        patch.setenv(STATE, str(driver.state))
        for kind, name in NAMES.items():
            # As pod UID, as container's name, as the region's file, and all that in the logs too.
            place = node.root / f"{name}_{name}"
            place.mkdir()
            (place / f"{name}.cache").write_bytes(b"no region\n" * 100_000)
            create_region(place / f"{name}{kind}.cache", uuids=UUIDS, memory_limits=[8 * MIB])
            (node.pod_logs / f"{name}_{name}_{name}" / f"x{name}").mkdir(parents=True)
        elsewhere = directory / "elsewhere"
        elsewhere.write_text("somebody else's")
        for number, name in enumerate(NAMES.values()):
            (node.root / f"uid{number}_{name}").mkdir()
            target = node.root / f"link{number}_{name}"
            target.mkdir()
            (target / f"{name}.cache").symlink_to(elsewhere)
        path = node.root / f"{NAMES['title']}_{NAMES['title']}" / f"{NAMES['title']}title.cache"
        RegionFile(path, Layout.V1_2).add_process(4_000_000, {0: MIB})
        with mapping_process(path) as process:
            driver.play(
                CARD,
                f"process 0 compute {process.pid} {MIB}",
                f"sample 0 {process.pid} 100 1 1 1 1",
            )
            yield Scene(node, driver, process.pid)
            process.kill()


VIEWS = [("ps",), ("ps", "-o", "wide"), ("containers",), ("containers", "-o", "wide")]


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_pipe_gets_printable_lines(scene, view):
    answer = call(*scene.arguments(*view))
    assert answer.returncode == 0, answer.stderr
    for text in (answer.stdout, answer.stderr):
        assert not STEERING.search(text)
    heading, *rows = answer.stdout.split("\n\n", maxsplit=1)[0].splitlines()
    words = len(heading.split())
    assert rows
    # Only the last column may hold blanks, so no name makes a line or moves a column.
    assert all(len(row.split()) >= words for row in rows)
    if len(view) == 1:
        assert {len(row.split()) for row in rows} == {words}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("view", [("ps", "-o", "wide"), ("containers", "-o", "wide")], ids=" ".join)
def test_a_terminal_gets_nothing_but_our_own_escapes(scene, view, columns):
    with Terminal(
        *scene.arguments(*view), env={STATE: str(scene.driver.state)}, columns=columns
    ) as terminal:
        assert terminal.wait() == 0
        screen = terminal.screen
    assert not STEERING.search(ESCAPES.sub("", screen).replace("\r\n", "\n"))
    # Colours and styles only: nothing moves the cursor, clears, or sets a title.
    assert {escape[-1] for escape in ESCAPES.findall(screen)} <= {"m"}
    if columns == 200:
        assert "owned" in screen


def test_json_is_ascii_and_gives_every_name_back(scene):
    answer = call(*scene.arguments("containers", "--json"))
    assert answer.stdout.isascii()
    assert answer.stdout.count("\n") == 1
    found = json.loads(answer.stdout)["containers"]
    mine = [each for each in found if each["directory"] is not None]
    names = {(each["pod_uid"], each["container"]) for each in mine}
    assert {(name, name) for name in NAMES.values()} <= names
    for each in mine:
        assert os.path.isdir(each["directory"])  # noqa: PTH112 (the name may be anything)
        if each["region_path"] is not None:
            assert os.path.lexists(each["region_path"])
    uuids = {device["uuid"] for each in mine for device in each["devices"]}
    assert uuids == set(UUIDS)

    answer = call(*scene.arguments("ps", "--json", "--sort", "pid"))
    assert answer.stdout.isascii()
    processes = json.loads(answer.stdout)["processes"]
    (each,) = [each for each in processes if each["host_pid"] == scene.host_pid]
    assert each["state"] == "alive"
    assert len(each["command"]) <= 4096
    assert "\x1b]0;owned\x07" in each["command"]


def test_no_name_leads_to_another_file(scene):
    """No pod log is taken for a hostile UID's, and no link in a region's place is followed."""
    found = json.loads(call(*scene.arguments("containers", "--json")).stdout)["containers"]
    mine = [each for each in found if each["directory"] is not None]
    assert {each["pod"] for each in mine} == {None}
    links = [each for each in mine if each["pod_uid"].startswith("link")]
    assert len(links) == len(NAMES)
    assert {each["reason"] for each in links} == {"not_a_region"}
    empty = [each for each in mine if each["pod_uid"].startswith("uid")]
    assert {each["reason"] for each in empty} == {"no_file"}
