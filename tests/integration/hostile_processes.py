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
from wait import PATIENCE_S

HERE = Path(__file__).parent
#: One more than the kernel lets a process have, less what a program has anyway.
MOST_MAPPINGS = 65_000


@functools.lru_cache(maxsize=1)
def _storm_program(directory: Path) -> Path:
    program = directory / "mapping_storm"
    source = str(HERE / "mapping_storm.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", str(program), source], check=True)
    return program


@contextlib.contextmanager
def _running(*command: object) -> Iterator[str]:
    """Run a program until the end; what it says first."""
    with subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 3 * PATIENCE_S)[0], "it says nothing"
            said = process.stdout.readline().strip()
            assert said, f"it ended with {process.wait()}"
            yield said
        finally:
            process.kill()


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
    with _running(_storm_program(directory), cgroup / "cgroup.procs", *words):
        yield


@contextlib.contextmanager
def locked_process(directory: Path, *mapped: Path) -> Iterator[int]:
    """A process whose address space is locked; its pid."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    directory.mkdir()
    with _running(sys.executable, HERE / "locked_process.py", directory, *mapped) as said:
        yield int(said)


def deep_file(directory: Path, length: int) -> Path:
    """A file whose path has about so many characters."""
    path = directory
    while len(str(path)) < length - 210:
        path /= "d" * 200
    path.mkdir(parents=True, exist_ok=True)
    return path / "file"
