"""A recorder that is killed at any moment loses no look that was done, and damages nothing."""

import mmap
import os
import random
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.actors import Actor
from support.recording_victim import T0, samples_of, start_writer
from support.stress import scaled
from support.wait import eventually

from libhamiregion.report import Recording

# What the victim does: look after look, each one's number noted in shared memory when it is done.
VICTIM = f"""
import mmap, struct
from support.recording_victim import samples_of, start_writer
with open(progress, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 16)
writer = start_writer(path)
number = first
while True:
    writer.write(samples_of(number), at_ms={T0} + number * 15_000)
    number += 1
    shared[:8] = struct.pack("<Q", number)
"""


class Progress:
    """How many looks the victim has done: memory that outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 16)

    @property
    def looks(self) -> int:
        number: int = struct.unpack("<Q", self._shared[:8])[0]
        return number


def check(path: Path, done: int) -> int:
    """The file is whole and has every look that was done; returns the number of the next one."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()
    with Recording(path) as recording:
        span = recording.span_ms()
        assert span is not None
        last = -1
        for look in recording.intervals(*span):
            last = (look.start_ms - T0) // 15_000
            # All of a look is there, or nothing of it.
            assert look.changes == samples_of(last)
    assert last + 1 >= done
    # One look can be in the file and not noted yet.
    assert last <= done
    return last + 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_was_done_is_there_after_many_kills(
    actor: Callable[..., Actor], tmp_path: Path
) -> None:
    path, progress = tmp_path / "node.db", Progress(tmp_path / "progress")
    dice = random.Random()
    following = 0
    for _ in range(scaled(300)):
        victim = actor()
        victim.start(
            "evaluate", VICTIM, path=str(path), progress=str(progress.path), first=following
        )
        wanted = progress.looks + dice.randrange(1, 120)
        eventually(
            lambda victim=victim, wanted=wanted: victim.is_done() or progress.looks >= wanted
        )  # type: ignore[misc]
        assert not victim.is_done(), victim.outcome()
        # At any moment of a look, not just at its end.
        for _ in range(dice.randrange(400)):
            os.getppid()
        victim.kill()
        following = check(path, progress.looks)


def test_a_writer_killed_while_it_makes_the_file_leaves_one_that_can_be_continued(
    actor: Callable[..., Actor], tmp_path: Path
) -> None:
    dice = random.Random(3)
    source = "from support.recording_victim import start_writer\nstart_writer(path)"
    for number in range(14):
        path = tmp_path / f"{number}.db"
        victim = actor()
        victim.start("evaluate", source, path=str(path))
        eventually(lambda path=path, victim=victim: path.exists() or victim.is_done())  # type: ignore[misc]
        # Making it takes some milliseconds.
        until = time.perf_counter() + dice.random() * 0.02
        while time.perf_counter() < until:
            pass
        victim.kill()
        with start_writer(str(path)) as writer:
            writer.write(samples_of(0), at_ms=T0)
        assert check(path, 0) == 1
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        connection.close()
