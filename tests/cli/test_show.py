"""`hamiregion show`, in a pipe, on a terminal, as JSON and again and again."""

from __future__ import annotations

import gzip
import io
import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from rich.console import Console
from support.answers import check_answer
from support.command_line import COLOUR, COMMAND, Terminal, call, interrupt, on_terminal, run, start
from support.process import finished
from support.region_file import RegionFile
from support.wait import PATIENCE_S

import libhamiregion as hami
from libhamiregion.cli.show import region_page
from libhamiregion.cli.terminal import draw_page
from libhamiregion.units import GIB

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_REGIONS = sorted(GOLDEN.glob("*.cache.gz"))
UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
BOX_AND_BARS = set("━╸─┃│╭╮╰╯")
# How long ago a snapshot was taken: two runs of a command are any time apart.
AGE = re.compile(r"just now|\d+ (?:s|min) ago")


@pytest.fixture
def path(tmp_path) -> str:
    made = str(tmp_path / "usage.cache")
    hami.create_region(made, memory_limits=(8 * GIB, None), sm_limits=(50, None), uuids=(UUID,))
    return made


def unpacked(golden: Path, directory: Path) -> str:
    region = directory / golden.name.removesuffix(".gz")
    region.write_bytes(gzip.decompress(golden.read_bytes()))
    return str(region)


# ---- From inside a container --------------------------------------------------------------------


def test_mine_shows_the_region_that_the_environment_names(path, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", path)
    for arguments in ((), ("--json",)):
        own, named = call("mine", *arguments), call("show", path, *arguments)
        taken_at = re.compile(rf'"taken_at_ns": \d+|{AGE.pattern}')
        assert (own.returncode, own.stderr) == (0, "")
        rest = re.sub(r"(?m)(?<=ENC  DEC)$", "  USER  COMMAND", named.stdout)
        rest = rest.replace("}\n", ', "programs": []}\n')
        assert taken_at.sub("", own.stdout) == taken_at.sub("", rest)


def test_mine_says_which_process_is_whose(path, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", path)
    attach = (
        "import sys, libhamiregion as hami\n"
        "with hami.open_region(sys.argv[1], writable=True) as region, region.attach():\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", attach, path, "train.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        row = call("mine").stdout.splitlines()[-1]
        data = json.loads(call("mine", "--json").stdout)
        process.communicate()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert row.split()[0] == str(process.pid)
    assert f"  {user}  {sys.executable} -c import" in row
    assert row.endswith(" train.py")
    (found,) = data["programs"]
    assert (found["pid"], found["user"]) == (process.pid, user)
    assert found["command"].endswith("train.py")


def test_mine_outside_of_a_container_says_what_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", str(tmp_path / "none.cache"))
    answer = call("mine")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "none.cache" in answer.stderr
    assert "CUDA_DEVICE_MEMORY_SHARED_CACHE names it" in answer.stderr


# ---- In a pipe and as JSON ----------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN_REGIONS, ids=lambda path: path.name)
def test_every_golden_region_is_shown_in_full(golden, tmp_path):
    """As text: a row per device and process, as wide as its heading; as JSON: the snapshot."""
    path = unpacked(golden, tmp_path)
    with hami.open_region(path) as region:
        snapshot = region.snapshot()
    answer = call("show", path)
    assert (answer.returncode, answer.stderr) == (0, "")
    facts, devices, processes = (part.splitlines() for part in answer.stdout.split("\n\n"))
    assert f"path         {path}" in facts
    assert f"layout       {snapshot.layout.value}" in facts
    assert len(devices) == 1 + len(snapshot.devices)
    assert len(processes) > len(snapshot.processes)
    for heading, *rows in (devices, processes):
        assert {len(row.split()) for row in rows} <= {len(heading.split())}

    answer = call("show", path, "--json")
    assert answer.stdout.count("\n") == 1
    named = {"schema": "hamiregion/region/1", "layout": snapshot.layout.value, "burst": False}
    expected = json.loads(json.dumps(attrs.asdict(snapshot) | named))
    assert json.loads(answer.stdout) | {"taken_at_ns": 0} == expected | {"taken_at_ns": 0}


def test_a_real_pipe_gets_neither_escapes_nor_drawings_nor_does_a_dumb_terminal(path):
    answer = run("show", path, env={"FORCE_COLOR": ""})
    assert answer.returncode == 0
    heading, row = answer.stdout.split("\n\n")[1].splitlines()
    first = dict(zip(heading.split(), row.split(), strict=True))
    assert (first["MEM-LIMIT"], first["SM-LIMIT"], first["UUID"]) == ("8GiB", "50%", UUID)
    dumb = on_terminal("show", path, env={"TERM": "dumb"}).screen
    for shown in (answer.stdout, dumb):
        assert "MEM-LIMIT" in shown
        assert "\x1b" not in shown
        assert not BOX_AND_BARS & set(shown)


def test_a_pipe_gets_colours_where_they_are_asked_for_and_not_forbidden(path):
    forced = run("show", path, env={"FORCE_COLOR": "1"}).stdout
    assert COLOUR.search(forced)
    assert BOX_AND_BARS & set(forced)
    both = run("show", path, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout
    assert AGE.sub("", both) == AGE.sub("", run("show", path).stdout)
    asked = run("show", path, "--json", env={"FORCE_COLOR": "1"}).stdout
    assert json.loads(asked)["path"] == path


def test_json_on_a_terminal_is_json_too(path):
    terminal = on_terminal("show", path, "--json")
    assert json.loads(terminal.screen)["devices"][0]["memory_limit_bytes"] == 8 * GIB


def test_a_version_to_come_is_named(path):
    RegionFile(Path(path), hami.Layout.V1_2).put("minor_version", 3)
    assert "1.2, of the newer version 1.3" in call("show", path).stdout


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("words", [["show"], ["--help"], ["--version"]])
def test_a_full_disk_is_a_failure(path, words):
    code = f"exec {shlex.join([*COMMAND, *words, *[path] * ('show' in words)])} > /dev/full"
    answer = finished(["sh", "-c", code])
    assert (answer.returncode, answer.stderr) == (1, "Error: No space left on device\n")


# ---- On a terminal ------------------------------------------------------------------------------


def test_a_terminal_gets_colours_and_bars_unless_they_are_switched_off(path):
    with hami.open_region(path, writable=True) as region, region.attach() as slot:
        slot.charge(0, 7 * GIB)
        coloured = on_terminal("show", path)
        plain = on_terminal("show", path, env={"NO_COLOR": "1"})
        ascii_only = on_terminal("show", path, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert COLOUR.search(coloured.screen)
    assert not COLOUR.search(plain.screen)
    for text in (coloured.text, plain.text):
        for words in ("╭", "━", "7 GiB", "running", UUID):
            assert words in text
    assert ascii_only.screen.isascii()


def test_no_line_is_longer_than_the_terminal(path):
    with hami.open_region(path, writable=True) as region, region.attach() as slot:
        slot.charge(0, 3 * GIB + 123_456_789)
        page = region_page(region.snapshot())
    for columns in (40, 60, 80, 123, 124, 200):
        file = io.StringIO()
        Console(file=file, width=columns, color_system=None).print(draw_page(page, columns))
        text = file.getvalue()
        assert max(map(len, text.splitlines())) <= columns
        assert columns < 60 or UUID in text


# ---- Broken files -------------------------------------------------------------------------------


def test_an_ambiguous_region_can_be_named(tmp_path):
    """A file that fits two layouts fails with both options spelled out; either one works."""
    path = tmp_path / "both.cache"
    # As 1.1 it has no devices and no processes; 32 more bytes of zeros make it 1.1-postinit, too.
    hami.create_region(str(path), layout=hami.Layout.V1_1)
    made = bytearray(path.read_bytes() + bytes(64))
    made[24:56] = bytes(32)
    path.write_bytes(made)
    answer = call("show", str(path))
    assert answer.returncode == 1
    assert "can be read as layout 1.1 and 1.1-postinit" in answer.stderr
    for layout in ("1.1", "1.1-postinit"):
        named = call("show", str(path), "--layout", layout, "--json")
        assert json.loads(named.stdout)["layout"] == layout


# ---- Again and again ----------------------------------------------------------------------------


def test_watching_on_a_terminal_repaints_in_place_until_ctrl_c(path):
    with (
        hami.open_region(path, writable=True) as region,
        Terminal("show", path, "--watch", "0.05") as terminal,
    ):
        terminal.wait_for(lambda screen: "8 GiB" in screen)
        region.set_memory_limit("5GiB", device=0)
        terminal.wait_for(lambda screen: "5 GiB" in screen)
        terminal.type("\x03")
        assert terminal.wait() == 0
        # Up and over the last picture, never a cleared screen: that would flicker.
        assert "\x1b[1A" in terminal.screen
        assert "\x1b[2J" not in terminal.screen
        assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")


def test_watching_follows_a_replaced_region(path):
    """While it is gone the lines say so; the new one is shown when it is there."""
    with start("show", path, "--watch", "0.05", "--json") as process:
        first = json.loads(process.stdout.readline())
        Path(path).unlink()
        answers = (json.loads(line) for line in process.stdout)
        gone = next(answer for answer in answers if "error" in answer)
        hami.create_region(path, memory_limits=(3 * GIB,))
        back = next(answer for answer in answers if "devices" in answer)
        interrupt(process)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert first["devices"][0]["memory_limit_bytes"] == 8 * GIB
    check_answer(gone)
    assert (gone["path"], gone["error"]) == (path, "RegionNotFound")
    assert back["devices"][0]["memory_limit_bytes"] == 3 * GIB
