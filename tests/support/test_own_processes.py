"""What the suite starts ends with it, however it ends."""

import os
import signal
import subprocess
import sys

import pytest
from namespaces import why_no_new_namespace

from support.wait import PATIENCE_S

# Whatever is left of it keeps its standard output open.
SUITE = """
import subprocess, sys, time
from support.own_processes import move_into_own_processes
move_into_own_processes(is_on_host=sys.argv[1] == "on the host")
subprocess.Popen(["sh", "-c", "sleep 1000 & echo started; sleep 1000"])
if sys.argv[2] == "0":
    sys.exit(3)
time.sleep(1000)
"""
ENDS = {0: 3, signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize(("number", "code"), ENDS.items())
def test_no_program_outlives_the_suite_on_the_host(number: int, code: int) -> None:
    _end("on the host", number, code)


@pytest.mark.skipif(bool(why_no_new_namespace()), reason=why_no_new_namespace())
@pytest.mark.parametrize(("number", "code"), {**ENDS, signal.SIGKILL: -9}.items())
def test_no_program_outlives_the_suite_in_its_namespace(number: int, code: int) -> None:
    _end("apart", number, code)


def _end(place: str, number: int, code: int) -> None:
    env = {
        name: value
        for name, value in os.environ.items()
        if name != "HAMIREGION_INITIAL_PID_NAMESPACE"
    }
    command = [sys.executable, "-c", SUITE, place, str(int(number))]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as suite:
        assert suite.stdout is not None
        if number:
            assert suite.stdout.readline() == b"started\n"
            suite.send_signal(number)
        suite.communicate(timeout=PATIENCE_S)
        assert suite.returncode == code
