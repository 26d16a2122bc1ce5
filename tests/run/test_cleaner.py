"""What waits for a program and removes its directory."""

import os
import subprocess
import time

import pytest

from libhamiregion.run import cleaner


def test_where_pidfds_are_missing_the_wait_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when the program does, and takes no processor time until then."""
    monkeypatch.delattr(os, "pidfd_open")
    began_s = time.monotonic()
    with subprocess.Popen(["sleep", "1"]) as program:
        started = cleaner.start_time(program.pid)
        assert started is not None
        busy_s = time.thread_time()
        cleaner.wait_for_end(program.pid, started)
        assert time.monotonic() - began_s > 0.5
        assert time.thread_time() - busy_s < 0.1
        assert cleaner.start_time(program.pid) is None


def test_a_wait_for_a_process_that_is_another_one_by_now_returns() -> None:
    cleaner.wait_for_end(os.getpid(), 1)
