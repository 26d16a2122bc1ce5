"""`hamiregion demo`: it tells its story, ends by itself and leaves nothing behind."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_process import COLOUR, Terminal, run, start

if TYPE_CHECKING:
    import subprocess

STORY = (
    "Two GPUs",
    "Four processes",
    "Refused: ",
    "The same with --force",
    "allocations refused",
    "Back to 8 GiB",
    "allocations granted",
    "kill -9",
    "still count",
    "hamiregion reap",
    "for the others again",
)


def mentions(directory: Path) -> list[int]:
    """Processes whose command line names the directory: the demo's workers do."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str(directory).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                # Gone in the meantime.
                continue
    return found


def nothing_left(directory: Path) -> bool:
    return not mentions(directory) and not list(directory.iterdir())


def told(text: str) -> list[str]:
    """The sentences of the story in the order in which they were told."""
    where = {sentence: text.find(sentence) for sentence in STORY}
    return sorted((s for s in STORY if where[s] >= 0), key=where.__getitem__)


def test_without_a_terminal_it_ends_in_time_and_cleans_up(tmp_path: Path) -> None:
    started = time.monotonic()
    answer = run("demo", env={"TMPDIR": str(tmp_path)})
    assert time.monotonic() - started < 20
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    assert "\x1b" not in answer.stdout
    assert told(answer.stdout) == list(STORY)
    assert nothing_left(tmp_path)


def test_on_a_terminal_it_is_live_and_coloured(tmp_path: Path) -> None:
    with Terminal("demo", "--seconds", "4", env={"TMPDIR": str(tmp_path)}) as terminal:
        assert terminal.wait() == 0, terminal.text
    assert COLOUR.search(terminal.screen)
    assert "━" in terminal.text
    assert "dead, still counted" in terminal.text
    # Long sentences are wrapped.
    assert told(re.sub(r"\s+", " ", terminal.text)) == list(STORY)
    assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")
    assert nothing_left(tmp_path)


def test_as_json_the_numbers_bear_the_story_out(tmp_path: Path) -> None:
    answer = run("demo", "--seconds", "4", "--json", env={"TMPDIR": str(tmp_path)})
    assert answer.returncode == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    part = ""
    seen: dict[str, list[dict]] = {}
    for line in lines:
        if "say" in line:
            part = line["say"] if line["heading"] else part
        else:
            seen.setdefault(part, []).append(line)
    (low,) = (pictures for part, pictures in seen.items() if part.startswith("The same"))
    (back,) = (pictures for part, pictures in seen.items() if part.startswith("Back"))
    (killed,) = (pictures for part, pictures in seen.items() if part.startswith("kill -9"))
    (reaped,) = (pictures for part, pictures in seen.items() if part.startswith("hamiregion reap"))
    device = low[0]["snapshot"]["devices"][0]
    assert device["memory_used_bytes"] > device["memory_limit_bytes"] == 2 * 2**30
    assert _refused(low[-1]) > _refused(low[0])
    assert _granted(back[-1]) > _granted(back[0])
    victim = killed[0]["workers"][0]
    assert not victim["alive"]
    for picture in killed:
        assert _counted(picture, victim["pid"]) > 0
    for picture in reaped:
        assert _counted(picture, victim["pid"]) == 0


def _refused(picture: dict) -> int:
    return sum(worker["refused"] for worker in picture["workers"])


def _granted(picture: dict) -> int:
    return sum(worker["granted"] for worker in picture["workers"] if worker["device"] == 0)


def _counted(picture: dict, pid: int) -> int:
    return sum(
        usage["memory_used_bytes"]
        for process in picture["snapshot"]["processes"]
        if process["pid"] == pid
        for usage in process["devices"]
    )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupted_it_cleans_up_as_well(number: int, code: int, tmp_path: Path) -> None:
    with start("demo", env={"TMPDIR": str(tmp_path)}) as process:
        _wait_for_workers(process, tmp_path)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert nothing_left(tmp_path)


def test_ctrl_c_on_a_terminal_gives_the_terminal_back(tmp_path: Path) -> None:
    with Terminal("demo", env={"TMPDIR": str(tmp_path)}) as terminal:
        terminal.wait_for(lambda screen: screen.count("running") >= 4)
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")
    assert nothing_left(tmp_path)


def test_killed_it_leaves_no_process(tmp_path: Path) -> None:
    """Nobody can clean up after SIGKILL, but the workers notice that the demo is gone."""
    with start("demo", env={"TMPDIR": str(tmp_path)}) as process:
        _wait_for_workers(process, tmp_path)
        process.kill()
        process.communicate(timeout=30)
    deadline = time.monotonic() + 15
    while mentions(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    with start("demo", env={"TMPDIR": str(tmp_path)}) as process:
        _wait_for_workers(process, tmp_path)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.wait(30)
    assert nothing_left(tmp_path)


def _wait_for_workers(process: subprocess.Popen[str], directory: Path) -> None:
    deadline = time.monotonic() + 15
    while len(mentions(directory)) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
