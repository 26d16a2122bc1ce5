"""A region that is damaged, remade or truncated while it is open: errors, and no edit."""

import sys

import pytest
from support.namespaces import own_mounts
from support.process import finished
from support.region_calls import EDITS, GIB, READS, Call
from support.region_file import MAGIC, RegionFile, locate, unchanged

from libhamiregion import (
    Layout,
    Region,
    RegionCorrupt,
    RegionError,
    RegionSet,
    RegionStale,
    open_region,
)

UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
ALL = (*READS, *EDITS)
CALLS = {**READS, **EDITS}
LIMITS = ("set_memory_limit", "set_memory_limit of one", "set_sm_limit")


@pytest.fixture
def file(layout, region_file) -> RegionFile:
    made = region_file(layout, memory_limits=(GIB,), sm_limits=(50,), uuids=(UUID,))
    made.add_process(7, {0: 5})
    return made


def refused(region: Region, call: Call, error: type[RegionError], match: str) -> None:
    with pytest.raises(error, match=match) as raised:
        call(region)
    assert type(raised.value) is error
    assert raised.value.path == region.path


# ---- damaged and remade ----


@pytest.mark.parametrize(
    ("field", "values", "error", "said", "names"),
    [
        *(
            ("proc_num", (count,), RegionCorrupt, f"processes is {count}, 0 to 1024", names)
            for count in (-1, 1025, 2**31 - 1, -(2**31))
            for names in [("snapshot", "memory_used", *LIMITS)]
        ),
        *(
            ("device_num", (count,), RegionCorrupt, f"devices is {count}, at most 16", names)
            for count in (17, 2**32, 2**64 - 1)
            for names in [("snapshot", "device_count", "uuids", *LIMITS[::2])]
        ),
        (
            "uuids",
            (b"\xff" * 96, b"GPU-" + b"x" * 92, b"GPU-\x1b[2J", b"x"),
            RegionCorrupt,
            "uuid of device 0 is no GPU- or MIG-",
            ("snapshot", "uuids"),
        ),
        ("magic", (0, MAGIC + 1, -1), RegionStale, "was remade while it was mapped", ALL),
        ("major_version", (9,), RegionStale, "remade", ALL),
        ("minor_version", (9,), RegionStale, "remade", ALL),
    ],
)
def test_a_field_that_is_damaged_is_an_error_and_no_edit(
    field, values, error, said, names, region, file
):
    before = file.content()
    with RegionSet([file]) as region_set:
        for value in values:
            file.put(field, value)
            with unchanged(file):
                for name in names:
                    refused(region, CALLS[name], error, said)
                table = region_set.read()
                assert (len(table), len(table.devices), len(table.processes)) == (1, 0, 0)
                assert type(table.error(0)) is error
    file.put_bytes(0, before)
    assert region.snapshot().device(0).memory_used_bytes == 5


@pytest.mark.parametrize("layout", [Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED])
def test_an_unversioned_region_is_not_remade_by_its_lock(region, file):
    """Where others have their version it has sm_init_flag and owner_pid."""
    file.put("sm_init_flag", 1)
    file.put("owner_pid", 2)
    assert region.snapshot().owner_pid == 2


# ---- truncated ----


@pytest.mark.parametrize("pages", [0, 1, 2, 100])
def test_the_rest_of_a_truncated_region_can_be_read(pages, region, file):
    file.resize(4096 * pages)
    assert region.is_stale()
    names = ("snapshot", "memory_used", "priority", "set_memory_limit", "set_priority")
    for name in names if pages else ALL:
        refused(region, CALLS[name], RegionStale, "was truncated while it was mapped")
    if pages:
        assert region.memory_limit(0) == GIB


# Within the last page there is no signal: its rest reads as 0 and takes what is stored.


def cut_at(file: RegionFile, field: str) -> bytes:
    """Cut before a field; return what is left."""
    file.resize(locate(file.layout, field)[0])
    return file.content()


def test_a_file_cut_before_the_number_of_slots_is_stale_for_all_that_reads_or_writes(region, file):
    with open_region(file, writable=True) as other, RegionSet([file]) as regions:
        slot = other.attach()
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
            region.attach,
            region.reap,
        ):
            with pytest.raises(RegionStale, match="truncated"):
                call()
        assert isinstance(regions.read().error(0), RegionStale)
        other.close()
        assert file.content() == left


def test_a_file_cut_behind_the_number_of_slots_has_its_processes_and_takes_no_number(region, file):
    left = cut_at(file, "utilization_switch")
    assert region.snapshot().devices[0].memory_used_bytes == 5
    for edit in (lambda: region.set_priority(1), lambda: region.set_utilization_switch(True)):
        with pytest.raises(RegionStale, match="truncated"):
            edit()
    assert file.content() == left


def test_zeros_at_the_end_of_a_whole_file_are_values(region, file):
    for field in ("proc_num", "utilization_switch", "recent_kernel", "priority"):
        file.put(field, 0)
    file.put("last_kernel_time", 0)
    assert region.snapshot().processes == ()
    assert region.priority == 0
    region.set_priority(1)
    assert file.get("priority") == 1


# ---- a page for which there is no room ----

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


def test_a_hole_for_which_there_is_no_room_is_survived(tmp_path):
    """Once there is room again the region is as good as before."""
    inside = own_mounts(f"-t tmpfs -o size=256k,mode=700 none {tmp_path}")
    done = finished([*inside, sys.executable, "-c", FULL_TMPFS, tmp_path])
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
