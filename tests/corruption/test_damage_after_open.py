"""A region that is damaged, cut or remade while it is open: errors, and the next open works."""

from collections.abc import Callable, Iterator

import pytest
from poke import MAGIC, RegionFile, RegionFileFactory

from libhamiregion import (
    Layout,
    Region,
    RegionCorrupt,
    RegionError,
    RegionSet,
    RegionStale,
    open_region,
)

GIB = 2**30
UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
Call = Callable[[Region], object]

READS: dict[str, Call] = {
    "memory_limit": lambda region: region.memory_limit(0),
    "sm_limit": lambda region: region.sm_limit(0),
    "memory_used": lambda region: region.memory_used(0),
    "priority": lambda region: region.priority,
    "utilization_switch": lambda region: region.utilization_switch,
    "recent_kernel": lambda region: region.recent_kernel,
    "device_count": lambda region: region.device_count,
    "uuids": lambda region: region.uuids,
    "snapshot": Region.snapshot,
}
EDITS: dict[str, Call] = {
    "set_memory_limit": lambda region: region.set_memory_limit(2 * GIB),
    "set_memory_limit of one": lambda region: region.set_memory_limit(2 * GIB, device=0),
    "set_memory_limit by force": lambda region: region.set_memory_limit(1, device=0, force=True),
    "set_sm_limit": lambda region: region.set_sm_limit(40),
    "set_utilization_switch": lambda region: region.set_utilization_switch(on=False),
    "set_priority": lambda region: region.set_priority(0),
    "set_recent_kernel": lambda region: region.set_recent_kernel(1),
}


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


def read_in_set(file: RegionFile, damage: Callable[[], None]) -> RegionError | None:
    """What a set that had the region open before the damage says of it."""
    with RegionSet([file]) as region_set:
        assert region_set.read().error(0) is None
        damage()
        table = region_set.read()
        assert (len(table), len(table.devices), len(table.processes)) == (1, 0, 0)
        assert table.regions.code[0] < 0
        return table.error(0)


# ---- counts and texts ----


@pytest.mark.parametrize("count", [-1, 1025, 2**31 - 1, -(2**31)])
def test_a_process_count_out_of_range_is_corrupt(
    count: int, region: Region, file: RegionFile
) -> None:
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


@pytest.mark.parametrize("count", [17, 2**32, 2**64 - 1])
def test_a_device_count_out_of_range_is_corrupt(
    count: int, region: Region, file: RegionFile
) -> None:
    file.put("device_num", count)
    said = f"the number of devices is {count}, at most 16"
    for name in ("snapshot", "device_count", "uuids"):
        refused(region, READS[name], RegionCorrupt, said)
    for name in ("set_memory_limit", "set_sm_limit"):
        refused(region, EDITS[name], RegionCorrupt, said)
    assert region.memory_used(0) == 5
    file.put("device_num", 1)
    assert region.snapshot().device_count == 1


@pytest.mark.parametrize("uuid", [b"\xff" * 96, b"GPU-" + b"x" * 92, b"GPU-\x1b[2J", b"x"])
@pytest.mark.parametrize("device", [0, 9])
def test_a_uuid_that_is_no_text_is_corrupt(
    device: int, uuid: bytes, region: Region, file: RegionFile
) -> None:
    if device != 0:
        # Until the container has declared its devices, whatever has a uuid is one.
        file.put("device_num", 0)
    file.put("uuids", uuid, device=device)
    for name in ("snapshot", "uuids"):
        refused(region, READS[name], RegionCorrupt, f"uuid of device {device} is no GPU- or MIG-")
    assert region.memory_used(0) == 5
    file.put("uuids", b"GPU-again", device=device)
    assert region.snapshot().device(device).uuid == "GPU-again"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("proc_num", -1, "number of processes is -1"),
        ("device_num", 17, "number of devices is 17"),
        ("uuids", b"x", "uuid of device 0"),
    ],
)
def test_a_set_tells_the_same(field: str, value: object, said: str, file: RegionFile) -> None:
    error = read_in_set(file, lambda: file.put(field, value))
    assert type(error) is RegionCorrupt
    assert said in str(error)
    assert error.path == str(file.path)


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
    assert region.memory_used(0) == 2**64 - 1
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


def test_a_set_tells_stale_regions(file: RegionFile) -> None:
    error = read_in_set(file, lambda: file.put("magic", 0))
    assert type(error) is RegionStale
    assert "remade" in str(error)


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
        refused(region, call, RegionStale, "was truncated while it was mapped; open it again")
        assert region.is_stale()


@pytest.mark.parametrize("pages", [1, 2, 100])
def test_what_is_left_can_be_read_and_the_rest_is_stale(
    pages: int, region: Region, file: RegionFile
) -> None:
    file.resize(4096 * pages)
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
    with pytest.raises(RegionError, match="empty"):
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
        for turn in range(2, 60):
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
