"""Files cut under their readers by the thousand: errors, never a dead process.

Each run is a process of its own, so that a crash is a failed test and not the end of all tests.
"""

import collections
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.region_file import RegionFile, locate
from support.stress import scaled
from support.wait import PATIENCE_S

from libhamiregion import RegionSet, RegionStale, open_region

PROGRAM = Path(__file__).parent / "truncated_reader.py"
# Seconds on a quiet machine; a busy one may take its time.
pytestmark = pytest.mark.timeout(600)
FAULTHANDLER = pytest.mark.parametrize("faulthandler", ["never", "before", "after"])
ROUNDS = pytest.mark.parametrize(
    "rounds", [1000, pytest.param(scaled(10_000, 1_000), marks=pytest.mark.slow)]
)


def run(path: Path, *options: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, PROGRAM, path, *options],
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
@FAULTHANDLER
@ROUNDS
def test_each_of_a_thousand_cuts_is_an_error(
    faulthandler: str, rounds: int, tmp_path: Path
) -> None:
    """Also with faulthandler: before us it stays behind us, after us it is in front."""
    outcomes = run(tmp_path / "a.cache", "--rounds", str(rounds), "--faulthandler", faulthandler)
    assert outcomes == {
        "cut: truncated": rounds,
        "cut, in a set: RegionStale": rounds,
        "cut: is_stale True": rounds,
        "restored: data": rounds,
    }


@pytest.mark.slow(keep=1)
@FAULTHANDLER
@ROUNDS
def test_threads_that_race_with_a_thousand_cuts_get_data_or_region_stale(
    faulthandler: str, rounds: int, tmp_path: Path
) -> None:
    options = ("--rounds", str(rounds), "--threads", "3", "--faulthandler", faulthandler)
    to_be_met = {"data", "truncated", "in a set: NoneType", "in a set: RegionStale"}
    outcomes: collections.Counter[str] = collections.Counter()
    races = 0
    # A race that met nothing would prove nothing; on a busy machine one may.
    while races == 0 or (races < 10 and not to_be_met <= outcomes.keys()):
        outcomes.update(run(tmp_path / f"{races}.cache", *options))
        races += 1
    assert to_be_met <= outcomes.keys()
    assert outcomes.pop("at the end: data") == races
    # Timing decides whether these were met; nothing else may have been.
    may_be = {
        "remade",
        "opened: data",
        "opened: truncated",
        "opened: remade",
        "open: RegionNotReady",
        "open: RegionStale",
        "open: RegionCorrupt",
    }
    assert set(outcomes) <= may_be | to_be_met


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
    assert len(region.snapshot().processes) == 9
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


# ---- within the last page: no signal, its rest reads as 0 and takes what is stored ----


def cut_at(file: RegionFile, field: str) -> bytes:
    """Cut where this field stands; return what is left."""
    file.resize(locate(file.layout, field)[0])
    return file.content()


def test_a_file_cut_before_the_number_of_slots_is_stale_for_all_that_reads_or_writes(
    file: RegionFile,
) -> None:
    with (
        open_region(file, writable=True) as region,
        open_region(file, writable=True) as other,
        RegionSet([file]) as regions,
    ):
        slot = region.attach()
        slot.charge(0, 5)
        left = cut_at(file, "proc_num")
        for call in (
            region.snapshot,
            lambda: region.memory_used(0),
            lambda: region.priority,
            lambda: region.set_priority(0),
            lambda: region.set_memory_limit("1GiB", device=0),
            lambda: slot.charge(0, 5),
            slot.detach,
            other.attach,
            other.reap,
        ):
            with pytest.raises(RegionStale, match="truncated"):
                call()
        assert isinstance(regions.read().error(0), RegionStale)
        region.close()
        assert file.content() == left


def test_a_file_cut_behind_the_number_of_slots_has_its_processes_and_takes_no_number(
    file: RegionFile,
) -> None:
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 5)
        left = cut_at(file, "utilization_switch")
        assert region.snapshot().devices[0].memory_used_bytes == 5
        for edit in (
            lambda: region.set_priority(1),
            lambda: region.set_utilization_switch(True),
        ):
            with pytest.raises(RegionStale, match="truncated"):
                edit()
        assert file.content() == left


def test_zeros_at_the_end_of_a_whole_file_are_what_they_are(file: RegionFile) -> None:
    with open_region(file, writable=True) as region:
        for field in ("utilization_switch", "recent_kernel", "priority"):
            file.put(field, 0)
        if file.layout.offsets["last_kernel_time"] is not None:
            file.put("last_kernel_time", 0)
        assert region.snapshot().processes == ()
        assert region.priority == 0
        region.set_priority(1)
        assert file.get("priority") == 1
