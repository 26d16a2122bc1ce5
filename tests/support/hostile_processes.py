"""Processes that are made to be expensive, or impossible, to look at: started and ended."""

import contextlib
import functools
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.process import piped
from support.wait import PATIENCE_S

HERE = Path(__file__).parent
#: One more than the kernel lets a process have, less what a program has anyway.
MOST_MAPPINGS = 65_000
# An actor runs this, with `count` and `directory`.
MAP_DELETED = """
import mmap, os
scene.maps = []
for number in range(count):
    with open(f"{directory}/{number}.cache", "w+b") as file:
        file.truncate(1 << 21)
        scene.maps.append(mmap.mmap(file.fileno(), 1 << 21))
    os.unlink(file.name)
"""


@functools.lru_cache(maxsize=1)
def _storm_program(directory: Path) -> Path:
    program = directory / "mapping_storm"
    source = str(HERE / "mapping_storm.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", str(program), source], check=True)
    return program


class _Program:
    """A program that says a line now and then, and ends with its standard input."""

    def __init__(self, *command: object) -> None:
        self._process = piped(list(map(str, command)))

    def heard(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], 3 * PATIENCE_S)[0], "it says nothing"
        said = self._process.stdout.readline().strip()
        assert said, f"it ended with {self._process.wait()}"
        return said

    def tell(self) -> None:
        """Let it go on."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def _running(*command: object) -> Iterator[_Program]:
    program = _Program(*command)
    try:
        yield program
    finally:
        program.end()


@contextlib.contextmanager
def mapping_storm(
    directory: Path,
    cgroup: Path,
    how: str,
    *,
    processes: int,
    lifetime_ms: int,
    mappings: int,
    file: Path | None = None,
) -> Iterator[None]:
    """Keep processes of many mappings alive in a cgroup, each for so long (mapping_storm.c)."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    words = (how, processes, lifetime_ms, mappings, *([] if file is None else [file]))
    with _running(_storm_program(directory), cgroup / "cgroup.procs", *words) as program:
        assert program.heard() == "ready"
        yield


class LockedProcess:
    """A process whose address space is locked as soon as it is told so (locked_process.py).

    Attributes:
        pid: Its pid.
    """

    def __init__(self, program: _Program) -> None:
        self._program = program
        self.pid = int(program.heard())

    def lock(self) -> None:
        self._program.tell()
        assert int(self._program.heard()) == self.pid


@contextlib.contextmanager
def locked_process(directory: Path, *mapped: Path) -> Iterator[LockedProcess]:
    """A process that can lock its address space, and maps these files before."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    directory.mkdir()
    with _running(sys.executable, HERE / "locked_process.py", directory, *mapped) as program:
        yield LockedProcess(program)


def deep_file(directory: Path, length: int) -> Path:
    """A file whose path has about so many characters."""
    path = directory
    while len(str(path)) < length - 210:
        path /= "d" * 200
    path.mkdir(parents=True, exist_ok=True)
    return path / "file"
