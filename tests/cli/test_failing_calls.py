"""Each call of libc fails once, in each public operation and each verb.

What then comes is an error of the documented kind, or an exit code with a sentence; no descriptor
stays open, no file is half written, and the region holds what it held before or what was asked for.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import failing_calls
from support.c_tools import SOURCES
from support.failing_calls import OPERATIONS
from support.namespaces import NEW_NAMESPACE, why_no_new_namespace
from support.process import finished
from support.stress import SHARE

SCRIPT = Path(failing_calls.__file__)


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> Path:
    """The library that lets calls fail, built."""
    made = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-o", str(made), str(SOURCES / "failing_calls.c")]
    subprocess.run(command, check=True)
    return made


# Those of a group have one interpreter.
GROUPS = {
    "library": [name for name in OPERATIONS if " " not in name],
    "verbs": [name for name in OPERATIONS if " " in name],
}


def problems(shim: Path, *operations: str, all_errors: bool) -> dict[str, tuple[int, list[str]]]:
    """How many calls each makes, and what was wrong after one of them had failed."""
    # Another test's process that never shows its maps keeps the descriptors of who reads them.
    alone = () if why_no_new_namespace() else NEW_NAMESPACE
    ran = finished(
        [*alone, sys.executable, str(SCRIPT), str(int(all_errors)), *operations],
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, tuple[int, list[str]]] = json.loads(ran.stdout)
    assert list(found) == list(operations)
    return found


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("group", GROUPS)
def test_an_operation_survives_each_failing_call(shim, group):
    answer = problems(shim, *GROUPS[group], all_errors=False)
    assert {name: wrong for name, (_, wrong) in answer.items() if wrong} == {}
    # An edit of a region that is open is made in memory.
    silent = {name for name, (count, _) in answer.items() if count == 0}
    assert silent == {"edit_limits"} & set(answer)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_each_failing_call_with_each_error(shim, operation):
    answer = problems(shim, operation, all_errors=SHARE > 0)
    assert answer[operation][1] == []
