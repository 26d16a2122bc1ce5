"""Several interpreters in one process, as mod_wsgi makes them: each ends by itself."""

import subprocess
import sys

import pytest
from lock_bytes import is_free
from region_bytes import RegionFile
from slot_bytes import pids, used
from wait import PATIENCE_S

# The core is one for all of them: a legacy interpreter, as those with a GIL of their own refuse an
# extension of the stable ABI.
INTERPRETERS = """
import sys
try:
    import _interpreters as interpreters
    inner = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    inner = interpreters.create(isolated=False)

def run(text):
    error = interpreters.run_string(inner, text)
    assert error is None, error

from libhamiregion import open_region
path = sys.argv[1]
"""

OUTER_IS_ATTACHED = """
region = open_region(path, writable=True)
slot = region.attach()
slot.charge(0, 5 << 30)
with region.lock():
    run("from libhamiregion import open_region, Slot")
    interpreters.destroy(inner)
assert region.memory_used(0) == 5 << 30, region.memory_used(0)
slot.charge(0, 1)
"""

INNER_IS_ATTACHED = """
run(f'''
from libhamiregion import open_region
region = open_region({path!r}, writable=True)
slot = region.attach()
slot.charge(0, 5 << 30)
held = open_region({path!r}, writable=True)
held.lock().__enter__()
''')
region = open_region(path, writable=True)
assert region.memory_used(0) == 5 << 30
interpreters.destroy(inner)
assert region.memory_used(0) == 0
with region.lock(0):
    pass
region.attach().charge(0, 1)
"""


@pytest.mark.representatives(1)
@pytest.mark.parametrize("text", [OUTER_IS_ATTACHED, INNER_IS_ATTACHED], ids=["outer", "inner"])
def test_an_interpreter_that_ends_leaves_its_own_slots_and_locks_and_no_others(
    text: str, file: RegionFile
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERPRETERS + text, str(file.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if "No module named '_xxsubinterpreters'" in ended.stderr:
        pytest.skip("this Python cannot make interpreters")
    assert (ended.returncode, ended.stderr) == (0, "")
    # And the first one leaves at its own end.
    assert pids(file) == []
    assert used(file) == 0
    assert is_free(file)
