"""How long-running verbs are told to end, and what a repeated signal does."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.command_line import COMMAND, environment
from support.wait import PATIENCE_S, eventually

from libhamiregion.cli.signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

# Its last work lasts until it is given a line: the time in which a repeat does harm.
PROGRAM = """
import sys
from libhamiregion.cli.signals import stop_signals
with stop_signals() as stop:
    print("ready", flush=True)
    stop.wait()
    print("asked", flush=True)
    print("worked", sys.stdin.readline().strip(), flush=True)
print("left", sys.stdin.readline().strip(), flush=True)
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert line(process) == "ready"
        yield process
        process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def give(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


def test_who_asks_while_it_is_closed_writes_into_no_other_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really_write = os.write
    writes, is_closed = threading.Event(), threading.Event()

    def write(to: int, data: bytes) -> int:
        if to == descriptor:
            writes.set()
            is_closed.wait(0.2)
            assert os.path.samestat(os.fstat(to), pipe)
        return really_write(to, data)

    with concurrent.futures.ThreadPoolExecutor(1) as another, stop_signals() as stop:
        descriptor = stop.wakeup_fd
        pipe = os.fstat(descriptor)
        monkeypatch.setattr(os, "write", write)
        asked = another.submit(stop.ask)
        assert writes.wait(PATIENCE_S)
    is_closed.set()
    asked.result()
    stop.ask()


# The signal interrupts no wait of the main thread, as when it comes just before the wait.
UNINTERRUPTED = """
import signal, threading
from libhamiregion.cli.signals import stop_signals
with stop_signals() as stop:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("ready", flush=True)
    stop.wait()
print("heard")
"""


def test_a_signal_that_interrupts_no_wait_is_heard() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", UNINTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as process:
        assert line(process) == "ready"
        doing = Path(f"/proc/{process.pid}/wchan")
        eventually(lambda: "pipe" in doing.read_text())
        process.terminate()
        try:
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
        assert line(process) == "heard"


def test_what_follows_is_the_same_request(worker: subprocess.Popen[str]) -> None:
    """An agent that gives back what it has written takes seconds, and they are needed."""
    worker.send_signal(signal.SIGTERM)
    assert line(worker) == "asked"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        worker.send_signal(number)
    give(worker, "on")
    assert line(worker) == "worked on"
    # Also when the work is done, and the program about to end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        worker.send_signal(number)
    give(worker, "behind")
    assert line(worker) == "left behind"
    assert worker.wait(PATIENCE_S) == 0


def test_timeout_signals_twice_and_the_recorder_ends_in_order(tmp_path: Path) -> None:
    if shutil.which("timeout") is None:
        pytest.skip("needs timeout of coreutils")
    (tmp_path / "containers").mkdir()
    words = ("record", "--to", str(tmp_path / "a.db"), "--root", str(tmp_path / "containers"))
    with subprocess.Popen(
        ["timeout", "1000", *COMMAND, *words, "--no-driver"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert line(process).startswith("recording ")
        # As when the time is up: to its child, then to the child's group.
        process.terminate()
        assert line(process).startswith("ended after ")
        assert process.wait(PATIENCE_S) == 0
