"""Files cut under their readers by the thousand: errors, never a dead process.

Each run is a process of its own, so that a crash is a failed test and not the end of all tests.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.stress import scaled
from support.wait import PATIENCE_S

PROGRAM = Path(__file__).parents[1] / "support/truncated_reader.py"
# Seconds on a quiet machine; a busy one may take its time.
pytestmark = pytest.mark.timeout(600)


ROUNDS = scaled(10_000, 1_000)


def run(path: Path, *options: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, PROGRAM, path, "--rounds", str(ROUNDS), *options],
        capture_output=True,
        text=True,
        timeout=19 * PATIENCE_S,
        check=False,
    )
    assert done.returncode != -signal.SIGBUS, f"died by SIGBUS:\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, int] = json.loads(done.stdout)
    return outcomes


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("faulthandler", ["never", "before", "after"])
def test_each_of_a_thousand_cuts_is_an_error(faulthandler: str, tmp_path: Path) -> None:
    """Also with faulthandler: before us it stays behind us, after us it is in front."""
    outcomes = run(tmp_path / "a.cache", "--faulthandler", faulthandler)
    cuts = ("cut: truncated", "cut, in a set: RegionStale", "cut: is_stale True", "restored: data")
    assert outcomes == dict.fromkeys(cuts, ROUNDS)


FULL_TMPFS = """
import struct, sys
from libhamiregion import Layout, RegionStale, create_region, open_region

place = sys.argv[1]
path = place + "/a.cache"
PROC_NUM_OF_1_2 = 2_008_896
create_region(path, memory_limits=(2**30,), layout=Layout.V1_2)
with open(path, "rb+") as stream:
    stream.seek(PROC_NUM_OF_1_2)
    stream.write(struct.pack("<i", 9))
with open_region(path, writable=True) as region:
    with open(place + "/rest", "ab", buffering=0) as rest:
        try:
            while True:
                rest.write(bytes(4096))
        except OSError:
            assert not region.is_stale()
    for call in (region.snapshot, lambda: region.memory_used(0)):
        try:
            call()
        except RegionStale as error:
            assert "full" in str(error)
        else:
            raise AssertionError
    with open(place + "/rest", "wb"):
        pass
    assert region.snapshot().slot_count == 9
print("alive")
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode
    != 0,
    reason="cannot make a mount namespace",
)
def test_a_hole_for_which_there_is_no_room_is_survived(tmp_path: Path) -> None:
    """Once there is room again the region is as good as before."""
    mount = 'mount -t tmpfs -o size=256k,mode=700 none "$0" && exec "$@"'
    program = (sys.executable, "-c", FULL_TMPFS, tmp_path)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, tmp_path, *program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alive\n"
