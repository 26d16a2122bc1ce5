"""The suite's own processes: they end with it, and only its own build believes its namespace."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.namespaces import why_no_new_namespace
from support.wait import PATIENCE_S

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# Whatever is left of it keeps its standard output open.
SUITE = """
import subprocess, sys, time
from support.own_processes import move_into_own_processes
move_into_own_processes(is_on_host=sys.argv[1] == "on the host")
# A Popen that ends here would swallow a KeyboardInterrupt.
kept = subprocess.Popen(["sh", "-c", "sleep 1000 & echo started; sleep 1000"])
if sys.argv[2] == "0":
    sys.exit(3)
time.sleep(1000)
"""
ENDS = {0: 3, signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize(("number", "code"), ENDS.items())
def test_no_program_outlives_the_suite_on_the_host(number, code):
    _end("on the host", number, code)


@pytest.mark.skipif(bool(why_no_new_namespace()), reason=why_no_new_namespace())
@pytest.mark.parametrize(("number", "code"), {**ENDS, signal.SIGKILL: -9}.items())
def test_no_program_outlives_the_suite_in_its_namespace(number, code):
    _end("apart", number, code)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.skipif(not CSRC.is_dir(), reason="needs the C sources beside the tests")
@pytest.mark.parametrize(
    ("macros", "believed"), [([], "pid:[4026531836]"), (["-DHR_TEST_BUILD"], "of tests")]
)
def test_only_a_test_build_takes_the_first_namespace_from_its_environment(
    tmp_path, monkeypatch, macros, believed
):
    monkeypatch.setenv("HAMIREGION_INITIAL_PID_NAMESPACE", "of tests")
    library = tmp_path / "search.so"
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", *macros, "-o", library, CSRC / "search.c"]
    subprocess.run(command, check=True)
    ask = ctypes.CDLL(str(library), os.RTLD_LAZY).hr_initial_pid_namespace
    ask.restype = ctypes.c_char_p
    assert ask() == believed.encode()


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
        if number:
            assert suite.stdout.readline() == b"started\n"
            suite.send_signal(number)
        suite.communicate(timeout=PATIENCE_S)
        assert suite.returncode == code
