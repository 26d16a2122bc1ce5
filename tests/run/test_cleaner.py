"""What waits for a program and removes its directory."""

import os
import subprocess
import time

from libhamiregion.run import cleaner


def test_where_pidfds_are_missing_the_wait_naps(monkeypatch):
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


def test_a_wait_for_a_process_that_is_another_one_by_now_returns():
    cleaner.wait_for_end(os.getpid(), 1)


def test_a_program_that_has_just_been_started_has_its_environment():
    """On one processor this goes on while the kernel is still starting the program."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        for _ in range(100):
            with subprocess.Popen(["sleep", "600"], env={"RUN": "/run/1"}) as program:
                found = cleaner._environment_of(str(program.pid))
                program.kill()
            assert found == b"RUN=/run/1\0"
    finally:
        os.sched_setaffinity(0, processors)
