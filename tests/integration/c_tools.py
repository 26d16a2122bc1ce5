"""The programs of `tests/c` that judge by themselves: built here and now, and run."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "c"


def build(tool: str) -> Path:
    """Where `tool` is, made from the sources as they are; skips where that cannot be."""
    for needed in ("make", "cc"):
        if shutil.which(needed) is None:
            pytest.skip(f"needs {needed} to build {tool}")
    if not (SOURCES.parents[1] / "csrc").is_dir():
        pytest.skip("needs the C sources beside the tests")
    target = f"build/tools/{tool}"
    subprocess.run(["make", "-C", str(SOURCES), target], check=True, stdout=subprocess.DEVNULL)
    return SOURCES / target


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
