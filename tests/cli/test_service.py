"""The log of long-running verbs, and how they are told to end."""

import errno
import io
import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.answers import check_answer
from support.command_line import COMMAND, environment, logging_kept
from support.process import piped
from support.wait import PATIENCE_S, eventually

from libhamiregion.cli.service import ServiceLog
from libhamiregion.services.events import Event


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Logging as a program has it at its start."""
    with logging_kept():
        yield


HOSTILE = ("a" * 400, "\x1b[2J" * 100, "\N{GRINNING FACE}" * 400, "\\" * 400, "")


@pytest.mark.parametrize("as_json", [False, True])
def test_every_event_is_one_line_of_500_characters_at_most(as_json, capsys):
    log = ServiceLog(as_json=as_json)
    for text in HOSTILE:
        for detail in ({}, {"field": text[:100], "more": text[:100]}):
            log(Event(1.5, "repair", "repaired", text, text[:120], detail))
    written = capsys.readouterr()
    assert written.out == ""
    lines = written.err.splitlines()
    assert len(lines) == 2 * len(HOSTILE) == written.err.count("\n")
    assert max(map(len, lines)) < 500
    assert "\x1b" not in written.err
    for line in lines:
        if as_json:
            fields = json.loads(line)
            check_answer(fields)
        else:
            assert line.startswith("1970-01-01T00:00:01Z repair   repaired ")


@pytest.mark.usefixtures("own_logging")
def test_log_records_are_events_of_the_same_form(capsys):
    ServiceLog(as_json=True).capture_logging("info")
    ours = logging.getLogger("libhamiregion.exporter.http")
    ours.info("listening on %s", "http://[::1]:9394")
    ours.debug("not asked for")
    logging.getLogger("urllib3").info("another library's chatter")
    try:
        int("x" * 100_000)
    except ValueError:
        ours.exception("a request\nfailed")
    for number in range(100):
        ours.warning("a client did %s", number)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["task"], each["event"]) for each in events[:2]] == [
        ("exporter", "info"),
        ("exporter", "error"),
    ]
    assert events[0]["message"] == "listening on http://[::1]:9394"
    assert events[1]["message"].startswith(r"a request\nfailed: ValueError: ")
    repeated = [each["message"] for each in events[2:]]
    assert repeated[0] == "a client did 0"
    assert repeated[-1] == "a client did 63 (64 times now)"
    assert len(repeated) == 7


class Stream(io.StringIO):
    """A stream that fails."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "no")


def test_lines_that_cannot_be_written_are_dropped(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    log = ServiceLog(as_json=False, on_stdout=True)
    for _ in range(3):
        log.emit("agent", "started", "feedback")
    assert stream.getvalue().count("\n") == 3


# ---- the end ----------------------------------------------------------------------------

# Its last work lasts until it is given a line: the time in which a repeat does harm.
PROGRAM = """
import sys
from libhamiregion.cli.service import stop_signals
with stop_signals() as stop:
    print("ready", flush=True)
    stop.wait()
    print("asked", flush=True)
    print("worked", sys.stdin.readline().strip(), flush=True)
print("left", sys.stdin.readline().strip(), flush=True)
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    with piped([sys.executable, "-c", PROGRAM], stderr=subprocess.DEVNULL) as process:
        assert line(process) == "ready"
        yield process
        process.kill()


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def give(process: subprocess.Popen[str], words: str) -> None:
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


# The signal interrupts no wait of the main thread, as when it comes just before the wait.
UNINTERRUPTED = """
import signal, threading
from libhamiregion.cli.service import stop_signals
with stop_signals() as stop:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("ready", flush=True)
    stop.wait()
print("heard")
"""


def test_a_signal_that_interrupts_no_wait_is_heard():
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


def test_what_follows_is_the_same_request(worker):
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


def test_timeout_signals_twice_and_the_recorder_ends_in_order(tmp_path):
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
        assert process.wait(PATIENCE_S) == 0
