"""One region: opening, snapshots, live values, staleness, closing, threads and fork."""

import gc
import time
from pathlib import Path

import attrs
import pytest
from support.every_layout import every_layout  # noqa: F401 (the fixture layout)
from support.forked import in_child
from support.region_calls import ALL, EDITS, LOCKING
from support.region_file import RegionFile, unchanged

from libhamiregion import (
    Layout,
    NoSuchDevice,
    RegionClosed,
    RegionError,
    RegionReadOnly,
    RegionSet,
    create_region,
    identify,
    open_region,
)
from libhamiregion.units import GIB

UUIDS = (
    "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30",
    "MIG-1c2a60f9-0d5e-4c3b-8a77-1b2f6e5d4c30",
)


def mappings_of(path: Path) -> list[str]:
    """The permissions of each mapping of a file in this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line.split()[1] for line in lines if line.endswith(f" {path}")]


def descriptors_of(path: Path) -> int:
    return sum(1 for fd in Path("/proc/self/fd").iterdir() if fd.exists() and fd.resolve() == path)


# ---- opening ----


def test_a_relative_path_is_made_absolute_at_once(region_file, monkeypatch):
    file = region_file(name="here.cache")
    monkeypatch.chdir(file.path.parent)
    with open_region("here.cache") as region:
        monkeypatch.chdir("/")
        assert region.path == str(file.path)
        assert region.snapshot().path == str(file.path)
        assert not region.is_stale()


def test_read_only_means_a_mapping_that_cannot_be_written(region_file):
    file = region_file()
    with open_region(file):
        assert mappings_of(file.path) == ["r--s"]
    with open_region(file, writable=True):
        assert mappings_of(file.path) == ["rw-s"]


def test_writes_through_a_read_only_region_are_refused_with_a_hint(region_file):
    file = region_file()
    with unchanged(file), open_region(file) as region:
        for call in (*EDITS.values(), *LOCKING.values()):
            with pytest.raises(RegionReadOnly, match="writable=True") as error:
                call(region)
            assert error.value.path == str(file.path)


@pytest.mark.parametrize("writable", [False, True])
def test_closing_leaves_no_mapping_and_no_descriptor(*, writable, region_file):
    file = region_file()
    region = open_region(file, writable=writable)
    assert len(mappings_of(file.path)) == 1
    region.close()
    assert mappings_of(file.path) == []
    assert descriptors_of(file.path) == 0


def test_a_region_that_nobody_holds_is_unmapped(region_file):
    file = region_file()
    region = open_region(file, writable=True)
    del region
    gc.collect()
    assert mappings_of(file.path) == []
    assert descriptors_of(file.path) == 0


@pytest.mark.parametrize("path", [None, 3, b"a.cache", ["a.cache"]])
def test_a_path_is_a_text_or_a_path(path):
    for enter in (open_region, identify, lambda path: RegionSet([path])):
        with pytest.raises(TypeError):
            enter(path)
    with pytest.raises(TypeError):
        RegionSet("a.cache")


def test_a_failed_open_leaves_no_descriptor(region_file):
    file = region_file()
    file.put("magic", 7)
    with pytest.raises(RegionError):
        open_region(file, writable=True)
    assert descriptors_of(file.path) == 0


@pytest.mark.parametrize("layout", [Layout.V1_2])
def test_a_handle_and_its_lock_keep_no_descriptor(file):
    """A child inherits none, and a program that closes all of them keeps its lock."""
    with open_region(file, writable=True) as region:
        assert descriptors_of(file.path) == 0
        with region.lock():
            assert descriptors_of(file.path) == 0
        # The other one keeps the lock on this handle's bytes.
        assert sorted(mappings_of(file.path)) == ["---s", "rw-s"]
    assert mappings_of(file.path) == []


def test_repr_shows_path_layout_and_state(region_file):
    file = region_file()
    region = open_region(file)
    assert repr(region) == f"<Region {str(file.path)!r} layout 1.2, read-only>"
    region.close()
    assert repr(region).endswith("closed>")
    with open_region(file, writable=True) as writable:
        assert repr(writable).endswith("writable>")


# ---- snapshots ----


@pytest.fixture
def busy(region_file, layout) -> RegionFile:
    """Two devices, three processes of which one has exited, and stale bytes behind them."""
    file = region_file(layout, memory_limits=(8 * GIB, None), sm_limits=(50, None), uuids=UUIDS)
    file.add_process(11, {0: GIB, 1: 3}, host_pid=4011)
    file.add_process(12, {0: 2 * GIB}, status=2)
    file.add_process(13, {0: 5, 1: GIB}, status=0, host_pid=4013)
    file.add_process(14, {0: 7 * GIB, 5: 1})
    file.put("proc_num", 3)
    return file


def test_snapshot_is_taken_between_before_and_after(region_file):
    with open_region(region_file()) as region:
        before = time.time_ns()
        taken = region.snapshot().taken_at_ns
        assert before <= taken <= time.time_ns()


def test_a_snapshot_stays_what_it_was(busy):
    region = open_region(busy)
    untouched, compared = region.snapshot(), region.snapshot()
    first = attrs.asdict(compared)
    busy.put("limit", 1, device=0)
    busy.put("slot_used.total", 1)
    busy.put("slot_pid", 99)
    busy.put("priority", 9)
    assert region.snapshot().priority == 9
    region.close()
    busy.path.unlink()
    del region
    gc.collect()
    # Neither the one that was looked at before nor the one first looked at now has changed.
    assert attrs.asdict(untouched) | {"taken_at_ns": 0} == first | {"taken_at_ns": 0}
    assert attrs.asdict(compared) == first


# ---- live values ----


def test_live_values_follow_the_file(layout, region_file):
    file = region_file(layout, memory_limits=(GIB,), sm_limits=(30,))
    with open_region(file) as region:
        assert (region.memory_limit(0), region.sm_limit(0), region.priority) == (GIB, 30, 1)
        with pytest.raises(NoSuchDevice):
            region.memory_limit(2)
        file.put("limit", 5, device=2)
        file.put("sm_limit", 99, device=2)
        file.put("device_num", 3)
        file.put("uuids", b"GPU-third", device=2)
        file.add_process(1, {2: 6})
        assert region.device_count == 3
        assert region.uuids == (None, None, "GPU-third")
        for device in (2, "GPU-third"):
            assert region.memory_limit(device) == 5
            assert region.sm_limit(device) == 99
            assert region.memory_used(device) == 6


# ---- staleness ----


def test_a_region_in_place_is_not_stale(layout, file):
    with open_region(file) as region:
        assert not region.is_stale()
        file.put("limit", 5)
        file.resize(layout.size_bytes + 5000)
        assert not region.is_stale()
        # The byte behind the struct is not needed.
        file.resize(layout.size_bytes)
        assert not region.is_stale()


def make_link(path: Path, other: Path) -> None:
    path.symlink_to(other)


def make_other(path: Path, _: Path) -> None:
    create_region(path, memory_limits=(1,))


@pytest.mark.parametrize("make", [None, make_link, make_other], ids=["nothing", "link", "region"])
def test_a_region_whose_name_leads_elsewhere_is_stale_and_still_readable(make, region_file):
    file = region_file(memory_limits=(GIB,))
    with open_region(file, writable=True) as region:
        moved = file.path.rename(file.path.with_name("moved.cache"))
        if make is not None:
            make(file.path, moved)
        assert region.is_stale()
        assert region.memory_limit(0) == GIB
        region.set_priority(5)
        if make is make_other:
            with open_region(file) as again:
                assert (again.memory_limit(0), again.priority) == (1, 1)


# ---- closing ----


def test_every_call_after_close_raises_region_closed(region_file):
    file = region_file()
    region = open_region(file, writable=True)
    region.close()
    assert region.closed
    for call in ALL.values():
        with pytest.raises(RegionClosed, match="has been closed; open it again") as error:
            call(region)
        assert error.value.path == str(file.path)


# ---- fork ----


def test_a_forked_child_opens_the_file_itself_and_closes_what_it_inherited(region_file):
    file = region_file(memory_limits=(GIB,))
    region = open_region(file, writable=True)

    def child() -> tuple[int | None, int]:
        with open_region(file, writable=True) as own:
            own.set_memory_limit(2 * GIB, device=0)
            limit = own.memory_limit(0)
        region.close()
        assert region.closed
        return limit, len(mappings_of(file.path))

    assert in_child(child) == (2 * GIB, 0)
    assert region.memory_limit(0) == 2 * GIB
    region.close()
