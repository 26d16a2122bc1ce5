"""Each call of libc fails once, in each public operation and each verb.

What then comes is an error of the documented kind, or an exit code with a sentence; no descriptor
stays open, no file is half written, and the region holds what it held before or what was asked for.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from c_tools import SOURCES
from failing_calls import OPERATIONS
from stress import SHARE

SCRIPT = Path(__file__).with_name("failing_calls.py")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets calls fail, built."""
    made = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-o", str(made), str(SOURCES / "failing_calls.c")]
    subprocess.run(command, check=True)
    return made


def problems(shim: Path, operation: str, *, all_errors: bool) -> tuple[int, list[str]]:
    """How many calls the operation makes, and what was wrong after one of them had failed."""
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), operation, str(int(all_errors))],
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *found, count = ran.stdout.splitlines()
    return int(count), found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_each_failing_call(shim: Path, operation: str) -> None:
    count, found = problems(shim, operation, all_errors=False)
    assert found == []
    # An edit of a region that is open is made in memory.
    assert (count == 0) == (operation == "edit_limits")


@pytest.mark.stress
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_each_failing_call_with_each_error(
    shim: Path, operation: str
) -> None:
    _, found = problems(shim, operation, all_errors=SHARE > 0)
    assert found == []
