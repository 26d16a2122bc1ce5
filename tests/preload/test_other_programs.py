"""A program that does not use CUDA does the same with the library as without it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from libhamiregion.run.libraries import preloaded_library

NUMPY = "import numpy; print(numpy.arange(10).reshape(2, 5) @ numpy.ones(5))"
CTYPES = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.getpid() > 0, ctypes.CDLL("libm.so.6").abs(-3))
try:
    libc.no_such_function
except AttributeError as error:
    print(error)
try:
    ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(error)
"""
THREADS = """
import os, subprocess, threading
for thread in (threads := [threading.Thread(target=os.getpid) for _ in range(8)]):
    thread.start()
for thread in threads:
    thread.join()
if os.fork() == 0:
    os._exit(0)
print(os.wait()[1], subprocess.run(["true"]).returncode)
"""
C_PROGRAM = "int main(void) { return 7; }"

# A program with a JIT prints no address and no time here; its output is always the same.
PROGRAMS: dict[str, list[str]] = {
    "sh": ["sh", "-c", "echo out; echo err >&2; (exit 3)"],
    "bash": ["bash", "-c", "for i in 1 2 3; do cat <(echo $i); done | tac; exit 4"],
    "ls": ["ls", "-l", "/usr/bin/env"],
    "git": ["git", "--no-pager", "log", "--oneline", "-3"],
    "gcc": ["gcc", "-x", "c", "-S", "-o", "-", "-"],
    "clang": ["clang", "-x", "c", "-S", "-o", "-", "-"],
    "node": ["node", "-e", "console.log([3, 1, 2].sort(), process.argv.length); process.exit(5)"],
    "perl": ["perl", "-MPOSIX", "-e", "print floor(3.7), qq(\\n); exit 6"],
    "java": ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-version"],
    "numpy": [sys.executable, "-c", NUMPY],
    "ctypes": [sys.executable, "-I", "-S", "-c", CTYPES],
    "threads": [sys.executable, "-I", "-S", "-c", THREADS],
    "killed": ["sh", "-c", "kill -TERM $$"],
}


def outcome(command: list[str], environment: dict[str, str]) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command,
        env=environment,
        input=C_PROGRAM.encode(),
        capture_output=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


# A second of the processor each.
SLOW = {"clang", "java", "node"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PROGRAMS],
)
def test_a_program_without_cuda_notices_nothing(name, tmp_path):
    command = PROGRAMS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    plain = {**os.environ, "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region")}
    loaded = {**plain, "LD_PRELOAD": preloaded_library()}
    assert outcome(command, loaded) == outcome(command, plain)
    assert list(tmp_path.iterdir()) == []
