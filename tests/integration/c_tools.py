"""The programs of `tests/c`: built by its Makefile, each once, and run."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "c"


def build(tool: str) -> Path:
    """Where `tool` is, made from the sources as they are; skips where that cannot be."""
    target = f"build/tools/{tool}"
    make(target)
    return SOURCES / target


def make(target: str) -> None:
    """Have a target made; what make and the programs say comes with the failure."""
    for needed in ("make", "cc"):
        if shutil.which(needed) is None:
            pytest.skip(f"needs {needed} for {target}")
    if not (SOURCES.parents[1] / "csrc").is_dir():
        pytest.skip("needs the C sources beside the tests")
    done = subprocess.run(
        ["make", "-C", str(SOURCES), target],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout


def run(tool: Path, *arguments: object) -> dict[str, Any]:
    """What it counted; nothing that it checked may have failed."""
    command = [str(tool), "--json", *map(str, arguments)]
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
