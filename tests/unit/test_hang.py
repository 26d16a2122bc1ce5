"""A test that hangs ends the run with the stacks of its threads, whatever it hangs in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.wait import PATIENCE_S

TESTS = Path(__file__).parents[1]

HANGS_IN_ITS_FIXTURES_END = """
import threading
import pytest

@pytest.fixture
def region():
    yield
    threading.Event().wait()

@pytest.mark.timeout(0.5)
def test_that_waits(region):
    threading.Event().wait()
"""
LEAVES_A_THREAD = """
import threading

def test_that_ends():
    threading.Thread(target=threading.Event().wait).start()
"""


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("test", "stack"),
    [
        (HANGS_IN_ITS_FIXTURES_END, ", line 8 in region"),
        (LEAVES_A_THREAD, "threading.py"),
    ],
)
def test_what_hangs_is_ended_and_shown(tmp_path: Path, test: str, stack: str) -> None:
    (tmp_path / "test_it.py").write_text(test)
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "hang", "--timeout=60", "-c", os.devnull, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "HAMIREGION_TESTS_PATIENCE_S": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert answer.returncode == 1
    assert "Timeout (0:00:01" in answer.stderr
    assert stack in answer.stderr
