"""The programs of `tests/c`: built by its Makefile, each once, and run."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.namespaces import NEW_NAMESPACE, why_no_new_namespace

SOURCES = Path(__file__).resolve().parents[1] / "c"


def build(tool: str, variant: str = "tools") -> Path:
    """Where `tool` is, made from the sources as they are; skips where that cannot be."""
    for needed in ("make", "cc"):
        if shutil.which(needed) is None:
            pytest.skip(f"needs {needed} for {tool}")
    if not (SOURCES.parents[1] / "csrc").is_dir():
        pytest.skip("needs the C sources beside the tests")
    target = f"build/{variant}/{tool}"
    # Test processes that run at the same time share one directory of built programs.
    with (SOURCES / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        called(["make", "-C", str(SOURCES), target])
    return SOURCES / target


def called(command: list[str]) -> None:
    """Run a command to its end; what it prints comes with the failure."""
    done = subprocess.run(
        command,
        cwd=SOURCES,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout


def alone() -> tuple[str, ...]:
    """A command put behind these words sees no processes but its own, where that can be.

    A search of /proc then costs what these cost, whatever other tests have started.
    """
    return () if why_no_new_namespace() else NEW_NAMESPACE


def run(tool: Path, *arguments: object, inside: tuple[str, ...] = ()) -> dict[str, Any]:
    """What it counted; nothing that it checked may have failed."""
    command = [*inside, str(tool), *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, complaints = process.communicate()
        except BaseException:
            # Its children go with it: each has asked to die when its parent does.
            process.kill()
            raise
    assert process.returncode == 0, f"{' '.join(command)}\n{output}\n{complaints}"
    counted: dict[str, Any] = json.loads(output)
    assert counted["failed"] == 0
    return counted
