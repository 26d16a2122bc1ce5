"""`hamiregion show`, in a pipe, on a terminal, as JSON and again and again."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from cli_process import COLOUR, COMMAND, Terminal, interrupt, on_terminal, run, start

import libhamiregion as hami

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_REGIONS = sorted(GOLDEN.glob("*.cache.gz"))
GIB = 2**30
UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
BOX_AND_BARS = set("━╸─┃│╭╮╰╯")


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "usage.cache")
    hami.create_region(made, memory_limits=(8 * GIB, None), sm_limits=(50, None), uuids=(UUID,))
    return made


def unpacked(golden: Path, directory: Path) -> str:
    region = directory / golden.name.removesuffix(".gz")
    region.write_bytes(gzip.decompress(golden.read_bytes()))
    return str(region)


def field_names(cls: type[attrs.AttrsInstance]) -> list[str]:
    return [field.name for field in attrs.fields(cls)]


# ---- In a pipe --------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN_REGIONS, ids=lambda path: path.name)
def test_every_golden_region_is_shown_in_full(golden: Path, tmp_path: Path) -> None:
    """Plain text has one row per device and at least one per process, each as wide as its head."""
    path = unpacked(golden, tmp_path)
    with hami.open_region(path) as region:
        snapshot = region.snapshot()
    answer = run("show", path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    facts, devices, processes = (part.splitlines() for part in answer.stdout.split("\n\n"))
    assert f"path         {path}" in facts
    assert f"layout       {snapshot.layout.value}" in facts
    assert len(devices) == 1 + len(snapshot.devices)
    assert len(processes) > len(snapshot.processes)
    for table in (devices, processes):
        heading, *rows = table
        assert {len(row.split()) for row in rows} == {len(heading.split())}


def test_a_pipe_gets_neither_escapes_nor_drawings(path: str) -> None:
    """Not even where the environment asks for colours."""
    answer = run("show", path, env={"FORCE_COLOR": "1"})
    assert answer.returncode == 0
    assert "\x1b" not in answer.stdout
    assert not BOX_AND_BARS & set(answer.stdout)


def test_a_dumb_terminal_gets_plain_text(path: str) -> None:
    terminal = on_terminal("show", path, env={"TERM": "dumb"})
    assert "\x1b" not in terminal.screen
    assert "MEM-LIMIT" in terminal.screen


def test_unlimited_is_spelled_out(path: str) -> None:
    rows = run("show", path).stdout.split("\n\n")[1].splitlines()
    heading = rows[0].split()
    first = dict(zip(heading, rows[1].split(), strict=True))
    assert (first["MEM-LIMIT"], first["SM-LIMIT"], first["UUID"]) == ("8GiB", "50%", UUID)


def test_no_utilisation_is_claimed_where_the_layout_has_none(tmp_path: Path) -> None:
    path = str(tmp_path / "old.cache")
    hami.create_region(
        path, memory_limits=(GIB,), uuids=(UUID,), layout=hami.Layout.UNVERSIONED_NO_UTIL
    )
    heading, row = run("show", path).stdout.split("\n\n")[1].splitlines()
    assert dict(zip(heading.split(), row.split(), strict=True))["SM"] == "-"


def test_a_held_lock_and_its_owner_are_named(tmp_path: Path) -> None:
    path = unpacked(GOLDEN / "1.2-owner-killed-holding-lock.cache.gz", tmp_path)
    with hami.open_region(path) as region:
        owner = region.snapshot().owner_pid
    assert owner
    answer = run("show", path)
    assert f"lock         held by pid {owner}\n" in answer.stdout
    assert "settled      no, " in answer.stdout


def test_a_full_disk_is_a_failure(path: str) -> None:
    code = f"exec {shlex.join([*COMMAND, 'show', path])} > /dev/full"
    answer = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr == "Error: No space left on device\n"


# ---- JSON -------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDEN_REGIONS, ids=lambda path: path.name)
def test_json_is_the_snapshot_field_by_field(golden: Path, tmp_path: Path) -> None:
    path = unpacked(golden, tmp_path)
    with hami.open_region(path) as region:
        snapshot = region.snapshot()
    answer = run("show", path, "--json")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("\n") == 1
    found = json.loads(answer.stdout)
    assert list(found) == field_names(hami.RegionSnapshot)
    for device in found["devices"]:
        assert list(device) == field_names(hami.DeviceUsage)
    for process in found["processes"]:
        assert list(process) == field_names(hami.ProcessUsage)
        for usage in process["devices"]:
            assert list(usage) == field_names(hami.ProcessDeviceUsage)
    expected = json.loads(json.dumps(attrs.asdict(snapshot) | {"layout": snapshot.layout.value}))
    assert found | {"taken_at_ns": 0} == expected | {"taken_at_ns": 0}


def test_json_on_a_terminal_is_json_too(path: str) -> None:
    terminal = on_terminal("show", path, "--json")
    assert "\x1b" not in terminal.screen
    assert json.loads(terminal.screen)["devices"][0]["memory_limit_bytes"] == 8 * GIB


# ---- On a terminal ----------------------------------------------------------


def test_a_terminal_gets_colours_and_bars(path: str) -> None:
    with hami.open_region(path, writable=True) as region, region.attach() as slot:
        slot.charge(0, 7 * GIB)
        terminal = on_terminal("show", path)
    assert COLOUR.search(terminal.screen)
    assert "━" in terminal.text
    assert "7 GiB" in terminal.text
    assert "88%" in terminal.text
    assert "running" in terminal.text


@pytest.mark.parametrize(
    ("arguments", "env"),
    [(("show",), {"NO_COLOR": "1"})],
)
def test_colours_can_be_switched_off(
    path: str, arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    terminal = on_terminal(*arguments, path, env=env)
    assert not COLOUR.search(terminal.screen)
    assert "╭" in terminal.text


@pytest.mark.parametrize("columns", [40, 60, 80, 123, 124, 200])
def test_no_line_is_longer_than_the_terminal(path: str, columns: int) -> None:
    with hami.open_region(path, writable=True) as region, region.attach() as slot:
        slot.charge(0, 3 * GIB + 123_456_789)
        terminal = on_terminal("show", path, columns=columns)
    assert max(len(line) for line in terminal.text.splitlines()) <= columns
    if columns >= 60:
        assert UUID in terminal.text


def test_an_ascii_terminal_gets_ascii_bars(path: str) -> None:
    terminal = on_terminal("show", path, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert terminal.screen.isascii()


# ---- Hostile names ----------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x1b[31m\n[bold red]x\u202e\x9b2J.cache"


@pytest.mark.parametrize("exists", [True, False], ids=["region", "missing"])
@pytest.mark.parametrize("raw", [b"", b"\xff"], ids=["text", "undecodable"])
def test_a_file_name_cannot_steer_the_terminal(tmp_path: Path, *, exists: bool, raw: bytes) -> None:
    path = os.fsdecode(os.fsencode(tmp_path / HOSTILE) + raw)
    if exists:
        hami.create_region(path, memory_limits=(GIB,))
    with Terminal("show", path, columns=200) as terminal:
        assert terminal.wait() == (0 if exists else 1)
        seen = terminal.screen
    piped = run("show", path)
    for shown in (seen, piped.stdout, piped.stderr):
        assert "\x1b]0" not in shown
        assert "\x07" not in shown
        assert "\x9b" not in shown
        assert "\u202e" not in shown
    assert r"\x1b]0;owned\x07\x1b[31m\n[bold red]x\u202e\x9b2J.cache" in seen
    assert "\x1b" not in piped.stdout + piped.stderr


def test_usage_errors_do_not_quote_names_raw(path: str) -> None:
    """As `hamiregion show *` in a hostile directory would make them."""
    answer = run("show", path, "\x1b]0;owned\x07")
    assert answer.returncode == 2
    assert "\x1b" not in answer.stderr
    assert "\x07" not in answer.stderr


# ---- Broken files -----------------------------------------------------------


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            # A socket's name is bounded; pytest's directories are not.
            listener.bind(path.name)
        finally:
            os.chdir(here)


def _symlink(path: Path) -> None:
    target = path.with_name("target.cache")
    hami.create_region(str(target))
    path.symlink_to(target)


def _empty(path: Path) -> None:
    path.touch()


def _short(path: Path) -> None:
    path.write_bytes((19920718).to_bytes(4, "little") + bytes(1000))


def _text(path: Path) -> None:
    path.write_bytes(b"not a region\n" * 100_000)


def _missing(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (_missing, "does not exist"),
        (_directory, "directory"),
        (_fifo, "FIFO"),
        (_socket, "socket"),
        (_symlink, "symbolic link"),
        (_empty, "empty"),
        (_short, "bytes"),
        (_text, "not a HAMi region"),
    ],
)
def test_a_broken_file_is_one_helpful_line(
    make: Callable[[Path], None], word: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.cache"
    make(path)
    for verb in (("show",), ("limits", "get"), ("limits", "set", "--memory", "1g")):
        answer = run(*verb, str(path))
        assert answer.returncode == 1
        assert answer.stdout == ""
        assert answer.stderr.count("\n") == 1
        assert answer.stderr.startswith("Error: ")
        assert str(path) in answer.stderr
        assert word.lower() in answer.stderr.lower()


def test_an_ambiguous_region_can_be_named(tmp_path: Path) -> None:
    """A file that fits two layouts fails with both options spelled out; either one works."""
    path = tmp_path / "both.cache"
    # As 1.1 it has no devices and no processes; 32 more bytes of zeros make it 1.1-postinit, too.
    hami.create_region(str(path), layout=hami.Layout.V1_1)
    made = bytearray(path.read_bytes() + bytes(64))
    made[24:56] = bytes(32)
    path.write_bytes(made)
    answer = run("show", str(path))
    assert answer.returncode == 1
    assert "can be read as layout 1.1 and 1.1-postinit" in answer.stderr
    for layout in ("1.1", "1.1-postinit"):
        named = run("show", str(path), "--layout", layout, "--json")
        assert named.returncode == 0, named.stderr
        assert json.loads(named.stdout)["layout"] == layout


# ---- Again and again --------------------------------------------------------


def test_watching_as_json_is_one_object_per_line_and_ends_well(path: str) -> None:
    with start("show", path, "--watch", "0.05", "--json") as process:
        assert process.stdout is not None
        ticks = [json.loads(process.stdout.readline()) for _ in range(2)]
        interrupt(process)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""
    assert ticks[0]["taken_at_ns"] < ticks[1]["taken_at_ns"]


def test_watching_in_a_pipe_repeats_plain_text(path: str) -> None:
    with start("show", path, "-i", "0.05") as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            assert "\x1b" not in line
            seen += line.startswith("path ")
            if seen == 3:
                break
        interrupt(process)
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_watching_on_a_terminal_repaints_in_place_until_ctrl_c(path: str) -> None:
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


def test_watching_ends_quietly_when_nobody_reads(path: str) -> None:
    with start("show", path, "--watch", "0.05") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.wait(30)


def test_watching_follows_a_replaced_region(path: str) -> None:
    """While it is gone the lines say so; the new one is shown when it is there."""
    with start("show", path, "--watch", "0.05", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        Path(path).unlink()
        answers = (json.loads(line) for line in process.stdout)
        gone = next(answer for answer in answers if "error" in answer)
        hami.create_region(path, memory_limits=(3 * GIB,))
        back = next(answer for answer in answers if "devices" in answer)
        interrupt(process)
        process.communicate(timeout=30)
    assert process.returncode == 0
    assert first["devices"][0]["memory_limit_bytes"] == 8 * GIB
    assert list(gone) == ["path", "error", "message"]
    assert (gone["path"], gone["error"]) == (path, "RegionNotFound")
    assert back["devices"][0]["memory_limit_bytes"] == 3 * GIB


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_strange_interval_is_wrong_usage(path: str, seconds: str) -> None:
    assert run("show", path, "--watch", seconds).returncode == 2
