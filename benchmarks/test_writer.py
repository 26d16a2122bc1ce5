"""What a reader that looks 1,000 times a second takes from a writer."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scene import compiler, copies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger import Ledger

HERE = Path(__file__).parent
CORE = HERE.parent / "csrc"
SLICE_MS = 50
NOBODY, ELSEWHERE, HERE_TOO = -1, 1, 0
# Mirrored, so that a drift of the machine's speed falls on all three alike.
ORDER = (NOBODY, ELSEWHERE, HERE_TOO, HERE_TOO, ELSEWHERE, NOBODY)


class Conversation:
    """A process that answers each line with one."""

    def __init__(self, command: list[str], cpu: int) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(self._process.pid, {cpu})

    def ask(self, line: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def end(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def writer_program(directory: Path) -> Path:
    program = directory / "charging_writer"
    sources = [str(HERE / "charging_writer.c"), str(CORE / "layout.c")]
    subprocess.run(
        [*compiler(), "-std=gnu11", "-O2", f"-I{CORE}", "-o", str(program), *sources], check=True
    )
    return program


@pytest.fixture
def pair(directory: Path, writer_program: Path) -> Iterator[tuple[Conversation, Conversation]]:
    """The writer and the reader, each on a processor of its own."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.skip("one processor only: the reader's own work would be counted")
    (directory / "written").mkdir()
    written, other = copies(directory / "written", 2)
    writer = Conversation([str(writer_program), str(written), "0"], processors[0])
    reader = Conversation(
        [sys.executable, str(HERE / "paced_reader.py"), str(written), str(other)], processors[1]
    )
    yield writer, reader
    writer.end()
    reader.end()


def test_reader_of_1_khz(
    pair: tuple[Conversation, Conversation], benchmark: Any, ledger: Ledger, quick: bool
) -> None:
    writer, reader = pair
    reader.ask(NOBODY)
    writer.ask(SLICE_MS)
    lost_percent: dict[int, list[float]] = {ELSEWHERE: [], HERE_TOO: []}
    best: dict[int, float] = dict.fromkeys((NOBODY, ELSEWHERE, HERE_TOO), 0.0)
    taken_there: dict[int, int] = dict.fromkeys((ELSEWHERE, HERE_TOO), 0)
    settled = 0

    def block() -> None:
        nonlocal settled
        rates: dict[int, float] = dict.fromkeys((NOBODY, ELSEWHERE, HERE_TOO), 0.0)
        for choice in ORDER:
            reader.ask(choice)
            rate = float(writer.ask(SLICE_MS))
            rates[choice] += rate
            best[choice] = max(best[choice], rate)
            answer = reader.ask(NOBODY).split()
            if choice in taken_there:
                taken_there[choice] += int(answer[0])
            if choice == HERE_TOO:
                settled += int(answer[1])
        for choice, lost in lost_percent.items():
            lost.append(100 * (1 - rates[choice] / rates[NOBODY]))

    blocks = 10 if quick else 60
    benchmark.pedantic(block, rounds=blocks)
    # Half of what it is asked for is what a busy machine leaves of it.
    wanted = 2 * blocks * SLICE_MS
    assert min(taken_there.values()) > wanted / 2, "a reader that does not read costs nothing"
    assert settled > 0
    taken = taken_there[HERE_TOO]
    here, elsewhere = (statistics.median(lost_percent[x]) for x in (HERE_TOO, ELSEWHERE))
    benchmark.extra_info.update(
        snapshots_per_second=taken / (2 * blocks * SLICE_MS / 1000), settled=settled / taken
    )
    least = 100 * (1 - best[HERE_TOO] / best[NOBODY])
    ledger.add("a 1 kHz reader costs a writer, in throughput", "%", 1.0, here, least)
    ledger.add("  the same reader of another region", "%", None, elsewhere)
    ledger.add("  snapshots that settled while it never paused", "%", None, 100 * settled / taken)
