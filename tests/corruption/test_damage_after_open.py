"""A region that is damaged, cut or remade while it is open: errors, and the next open works."""

from collections.abc import Iterator

import pytest
from region_calls import EDITS, GIB, READS, Call
from support.region_file import MAGIC, RegionFile, RegionFileFactory

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


@pytest.fixture
def file(layout: Layout, region_file: RegionFileFactory) -> RegionFile:
    made = region_file(layout, memory_limits=(GIB,), sm_limits=(50,), uuids=(UUID,))
    made.add_process(7, {0: 5})
    return made


@pytest.fixture
def region(file: RegionFile) -> Iterator[Region]:
    with open_region(file, writable=True) as opened:
        yield opened


def refused(region: Region, call: Call, error: type[RegionError], match: str) -> None:
    with pytest.raises(error, match=match) as raised:
        call(region)
    assert type(raised.value) is error
    assert raised.value.path == region.path


# ---- counts and texts ----


def test_a_process_count_out_of_range_is_corrupt(region: Region, file: RegionFile) -> None:
    for count in (-1, 1025, 2**31 - 1, -(2**31)):
        file.put("proc_num", count)
        said = f"the number of processes is {count}, 0 to 1024"
        for name in ("snapshot", "memory_used"):
            refused(region, READS[name], RegionCorrupt, said)
        for name in ("set_memory_limit", "set_memory_limit of one", "set_sm_limit"):
            refused(region, EDITS[name], RegionCorrupt, said)
        # What does not depend on it goes on.
        assert region.memory_limit(0) == GIB
        file.put("proc_num", 1)
        assert region.snapshot().device(0).memory_used_bytes == 5


def test_a_device_count_out_of_range_is_corrupt(region: Region, file: RegionFile) -> None:
    for count in (17, 2**32, 2**64 - 1):
        file.put("device_num", count)
        said = f"the number of devices is {count}, at most 16"
        for name in ("snapshot", "device_count", "uuids"):
            refused(region, READS[name], RegionCorrupt, said)
        for name in ("set_memory_limit", "set_sm_limit"):
            refused(region, EDITS[name], RegionCorrupt, said)
        file.put("device_num", 1)
        assert region.snapshot().device_count == 1


@pytest.mark.parametrize("device", [0, 9])
def test_a_uuid_that_is_no_text_is_corrupt(device: int, region: Region, file: RegionFile) -> None:
    if device != 0:
        # Until the container has declared its devices, whatever has a uuid is one.
        file.put("device_num", 0)
    for uuid in (b"\xff" * 96, b"GPU-" + b"x" * 92, b"GPU-\x1b[2J", b"x"):
        file.put("uuids", uuid, device=device)
        said = f"uuid of device {device} is no GPU- or MIG-"
        for name in ("snapshot", "uuids"):
            refused(region, READS[name], RegionCorrupt, said)
        assert region.memory_used(0) == 5
    file.put("uuids", b"GPU-again", device=device)
    assert region.snapshot().device(device).uuid == "GPU-again"


def test_a_set_says_what_is_damaged_and_what_was_remade(region_file: RegionFileFactory) -> None:
    for field, value, error, said in (
        ("proc_num", -1, RegionCorrupt, "number of processes is -1"),
        ("device_num", 17, RegionCorrupt, "number of devices is 17"),
        ("uuids", b"x", RegionCorrupt, "uuid of device 0"),
        ("magic", 0, RegionStale, "remade"),
    ):
        file = region_file(uuids=(UUID,))
        with RegionSet([file]) as region_set:
            assert region_set.read().error(0) is None
            file.put(field, value)
            table = region_set.read()
        assert (len(table), len(table.devices), len(table.processes)) == (1, 0, 0)
        assert table.regions.code[0] < 0
        found = table.error(0)
        assert type(found) is error
        assert said in str(found)
        assert found.path == str(file.path)


def test_refused_edits_change_nothing(region: Region, file: RegionFile) -> None:
    file.put("proc_num", -1)
    before = file.content()
    for name in ("set_memory_limit", "set_memory_limit of one", "set_sm_limit"):
        refused(region, EDITS[name], RegionCorrupt, "number of processes")
    assert file.content() == before
    file.put("proc_num", 1)
    file.put("magic", 0)
    before = file.content()
    for call in EDITS.values():
        refused(region, call, RegionStale, "remade")
    assert file.content() == before


def test_slots_full_of_nonsense_are_only_numbers(region: Region, file: RegionFile) -> None:
    layout = file.layout
    start = layout.offsets["procs"]
    file.put_bytes(start, b"\xff" * (layout.offsets["proc_num"] - start))
    file.put("proc_num", 1024)
    file.put("device_num", 0)
    snapshot = region.snapshot()
    assert len(snapshot.processes) == 1024
    assert snapshot.processes[1023].pid == -1
    assert region.memory_used(0) == 2**64 - 1024
    assert snapshot.device(0).memory_free_bytes == 0
    assert [device.index for device in snapshot.devices] == list(range(16))


# ---- remade ----


def test_a_region_without_its_magic_is_stale(region: Region, file: RegionFile) -> None:
    for magic in (0, MAGIC + 1, -1):
        file.put("magic", magic)
        for call in (*READS.values(), *EDITS.values()):
            refused(region, call, RegionStale, "was remade while it was mapped; open it again")


@pytest.mark.parametrize("field", ["major_version", "minor_version"])
@pytest.mark.parametrize(
    "layout", [Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2], ids=lambda layout: layout.value
)
def test_a_region_of_another_version_is_stale(field: str, region: Region, file: RegionFile) -> None:
    before = file.get(field)
    file.put(field, 9)
    for call in (*READS.values(), *EDITS.values()):
        refused(region, call, RegionStale, "remade")
    file.put(field, before)
    assert region.snapshot().settled


def test_version_fields_that_are_none_may_change(region_file: RegionFileFactory) -> None:
    """In unversioned regions sm_init_flag and owner_pid stand there."""
    for layout in (Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED):
        file = region_file(layout)
        with open_region(file) as region:
            file.put("sm_init_flag", 1)
            file.put("owner_pid", 2)
            assert region.snapshot().owner_pid == 2


def test_a_region_remade_in_place_is_opened_again(region: Region, file: RegionFile) -> None:
    whole = file.content()
    file.put("magic", 0)
    with pytest.raises(RegionStale):
        region.snapshot()
    file.put_bytes(4, whole[4:])
    file.put("magic", MAGIC)
    with open_region(file) as again:
        assert again.snapshot().device(0).memory_used_bytes == 5
    assert region.snapshot().device(0).memory_used_bytes == 5


# ---- cut ----


def test_an_emptied_region_is_stale(region: Region, file: RegionFile) -> None:
    file.resize(0)
    for call in (*READS.values(), *EDITS.values()):
        refused(region, call, RegionStale, "was truncated while it was mapped")
        assert region.is_stale()


def test_what_is_left_can_be_read_and_the_rest_is_stale(region: Region, file: RegionFile) -> None:
    for pages in (100, 2, 1):
        file.resize(4096 * pages)
        assert region.is_stale()
        assert region.memory_limit(0) == GIB
        for name in ("snapshot", "memory_used", "priority"):
            refused(region, READS[name], RegionStale, "truncated")
        for name in ("set_memory_limit", "set_priority"):
            refused(region, EDITS[name], RegionStale, "truncated")


def test_a_set_tells_cut_regions_and_reads_the_others(
    file: RegionFile, region_file: RegionFileFactory
) -> None:
    others = [region_file(memory_limits=(GIB,)) for _ in range(3)]
    with RegionSet([others[0], file, *others[1:]]) as region_set:
        assert list(region_set.read().regions.code) == [0] * 4
        file.resize(8192)
        table = region_set.read()
        assert [type(table.error(row)) for row in range(4)] == [
            type(None),
            RegionStale,
            type(None),
            type(None),
        ]
        assert "truncated" in str(table.error(1))
        assert list(table.devices.region) == [0, 2, 3]


def test_a_region_cut_and_restored_is_opened_again(region: Region, file: RegionFile) -> None:
    whole = file.content()
    file.resize(0)
    with pytest.raises(RegionStale):
        region.snapshot()
    with pytest.raises(RegionError, match="0 bytes"):
        open_region(file)
    file.put_bytes(0, whole)
    assert not region.is_stale()
    with open_region(file) as again:
        assert again.snapshot().device(0).memory_used_bytes == 5


def test_closing_a_cut_region_is_fine(region: Region, file: RegionFile) -> None:
    file.resize(0)
    region.close()
    assert region.closed


# ---- replaced ----


def test_a_container_that_restarts_again_and_again_is_followed(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """Replaced under its readers: they notice, and what they open next is the new one."""
    file = region_file(layout, memory_limits=(1,))
    region = open_region(file, writable=True)
    with RegionSet([file]) as region_set:
        for turn in range(2, 20):
            new = region_file(layout, memory_limits=(turn,))
            assert not region.is_stale()
            new.path.replace(file.path)
            assert region.is_stale()
            # Old data, and a write that reaches nobody, but no error and no crash.
            assert region.memory_limit(0) == turn - 1
            region.set_priority(5)
            region.close()
            region = open_region(file, writable=True)
            assert region.memory_limit(0) == turn
            assert region.priority == 1
            assert region_set.add(file)
            assert region_set.read().devices.memory_limit_bytes.tolist() == [turn]
    region.close()


def test_a_region_replaced_by_another_layout_is_opened_as_that(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    for other in Layout:
        file = region_file(layout)
        with open_region(file) as region:
            region_file(other).path.replace(file.path)
            assert region.is_stale()
            assert region.layout is layout
        with open_region(file) as again:
            assert again.layout is other
