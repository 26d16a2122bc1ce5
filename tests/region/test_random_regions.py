"""Whatever a region holds: documented errors, or exactly what stands in the file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from support import reference
from support.random_regions import (
    Damage,
    RegionFields,
    bad_regions,
    damages,
    devices,
    good_regions,
    i32,
    layouts,
)
from support.region_file import RegionFile

from libhamiregion import (
    AmbiguousLayout,
    LaunchesWouldStop,
    Layout,
    LimitBelowUsage,
    LimitChange,
    LimitConflict,
    NoSuchDevice,
    NotARegion,
    Region,
    RegionCorrupt,
    RegionError,
    RegionNotReady,
    RegionReadOnly,
    RegionSet,
    RegionSnapshot,
    RegionStale,
    RegionTable,
    create_region,
    identify,
    open_region,
)

OPENING = (NotARegion, RegionNotReady, AmbiguousLayout, RegionCorrupt)
FIGURES = (
    "memory_used_bytes",
    "memory_context_bytes",
    "memory_module_bytes",
    "memory_data_bytes",
    "memory_monitor_bytes",
    "sm_util_percent",
    "enc_util_percent",
    "dec_util_percent",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples' files are made; one at a time."""
    return tmp_path_factory.mktemp("regions") / "random.cache"


def fresh(place: Path, layout: Layout) -> RegionFile:
    place.unlink(missing_ok=True)
    create_region(place, layout=layout)
    return RegionFile(place, layout)


def plain(snapshot: RegionSnapshot) -> dict[str, Any]:
    """A snapshot as the reference writes it."""
    data = attrs.asdict(snapshot)
    for name in ("path", "taken_at_ns", "settled"):
        del data[name]
    for process in data["processes"]:
        del process["settled"]
    return data


def attempt(call: Callable[[], Any]) -> Any:
    """What the call returned, or the error of ours that it raised."""
    try:
        return call()
    except RegionError as error:
        return error


def check_live(region: Region, snapshot: RegionSnapshot) -> None:
    assert region.device_count == snapshot.device_count
    assert region.priority == snapshot.priority
    assert region.utilization_switch == snapshot.utilization_switch
    assert region.recent_kernel == snapshot.recent_kernel
    assert region.last_kernel_time_s == snapshot.last_kernel_time_s
    assert len(region.uuids) == region.device_count
    for device in snapshot.devices:
        assert region.memory_limit(device.index) == device.memory_limit_bytes
        assert region.sm_limit(device.index) == device.sm_limit_percent
        assert region.memory_used(device.index) == device.memory_used_bytes


def check_table(table: RegionTable, snapshot: RegionSnapshot) -> None:
    assert table.error(0) is None
    assert table.devices.device.tolist() == [device.index for device in snapshot.devices]
    assert table.processes.pid.tolist() == [process.pid for process in snapshot.processes]
    for row, device in enumerate(snapshot.devices):
        assert table.devices.uuid(row) == device.uuid
        assert table.devices.memory_limit_bytes[row] == (device.memory_limit_bytes or 0)
        for name in FIGURES:
            assert getattr(table.devices, name)[row] == getattr(device, name)
    usages = [usage for process in snapshot.processes for usage in process.devices]
    for name in FIGURES:
        assert getattr(table.usages, name).tolist() == [getattr(usage, name) for usage in usages]


# ---- fields ----


@given(fields=good_regions())
def test_what_stands_in_the_file_is_what_is_read(fields: RegionFields, place: Path) -> None:
    file = fresh(place, fields.layout)
    fields.store(file)
    with open_region(file) as region, RegionSet([file]) as region_set:
        snapshot = region.snapshot()
        assert plain(snapshot) == reference.snapshot(file.content(), fields.layout)
        settled = (snapshot.settled, *(process.settled for process in snapshot.processes))
        assert settled == reference.settled(file.content(), fields.layout)
        check_live(region, snapshot)
        check_table(region_set.read(), snapshot)


@given(fields=bad_regions())
def test_one_thing_out_of_range_makes_a_region_corrupt(fields: RegionFields, place: Path) -> None:
    file = fresh(place, fields.layout)
    fields.store(file)
    assert not reference.is_plausible(file.content(), fields.layout)
    with pytest.raises(RegionCorrupt) as error:
        open_region(file)
    assert error.value.path == str(place)
    with pytest.raises(RegionCorrupt, match=f"read as layout {fields.layout.value}"):
        open_region(file, layout=fields.layout)


# ---- bytes ----


def check_whatever_opens(region: Region, path: Path) -> None:
    # Nobody writes to the file, so what was found plausible stays so.
    snapshot = region.snapshot()
    repr(snapshot)
    check_live(region, snapshot)
    raw = path.read_bytes()
    assert reference.is_plausible(raw, region.layout)
    assert plain(snapshot) == reference.snapshot(raw, region.layout)
    assert not region.is_stale()


def check_edits(region: Region) -> None:
    for call in (
        lambda: region.set_memory_limit(12345),
        lambda: region.set_memory_limit(None, device=3, expected=12345, force=True),
        lambda: region.set_sm_limit(17),
    ):
        result = attempt(call)
        assert isinstance(
            result, (tuple, LimitChange, LimitBelowUsage, LimitConflict, LaunchesWouldStop)
        )
    device = region.device_indices[-1]
    region.set_memory_limit(777, device=device, force=True)
    assert region.memory_limit(device) == 777
    region.set_priority(3)
    assert region.priority == 3


A_VERSION_TO_COME = Damage(Layout.V1_2, [(8, b"\x03")], Layout.V1_2.size_bytes)


@given(damage=damages(), writable=st.booleans())
@example(damage=A_VERSION_TO_COME, writable=True)
def test_random_bytes_give_a_documented_error_or_a_region(
    damage: Damage, place: Path, *, writable: bool
) -> None:
    file = fresh(place, damage.layout)
    damage.do(file)
    found = attempt(lambda: identify(file))
    if isinstance(found, RegionError):
        event(type(found).__name__)
        assert type(found) in OPENING
        assert str(found).isprintable()
        again = attempt(lambda: open_region(file, writable=writable))
        assert (type(again), str(again)) == (type(found), str(found))
        with RegionSet([file]) as region_set:
            assert str(region_set.errors[str(place)]) == str(found)
        return
    event(f"found {found.value}")
    region = attempt(lambda: open_region(file, writable=writable))
    if isinstance(region, RegionReadOnly):
        assert writable
        assert "newer than" in str(region)
        region = open_region(file)
    with region, RegionSet([file]) as region_set:
        assert region.layout is found
        check_whatever_opens(region, place)
        check_table(region_set.read(), region.snapshot())
        if region.writable:
            check_edits(region)


@pytest.mark.parametrize("upper", [0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("pid", [0, 1, 2**22, 2**22 + 1, 2**31])
def test_a_signature_of_an_attached_process_is_its_pid(pid: int, upper: int, place: Path) -> None:
    file = fresh(place, Layout.V1_2)
    file.put("owner_pid", upper << 32 | pid)
    with open_region(file) as region:
        check_whatever_opens(region, place)


@given(damage=damages())
def test_random_bytes_under_an_open_region_give_a_documented_error_or_a_picture(
    damage: Damage, place: Path
) -> None:
    file = fresh(place, damage.layout)
    with open_region(file, writable=True) as region, RegionSet([file]) as region_set:
        damage.do(file)
        for call in readings(region):
            result = attempt(call)
            if isinstance(result, RegionError):
                event(type(result).__name__)
                assert type(result) in {NoSuchDevice, RegionCorrupt, RegionStale}
                assert result.path == str(place)
            elif isinstance(result, RegionSnapshot):
                assert all(
                    device.uuid is None or device.uuid.isprintable() for device in result.devices
                )
        table = region_set.read()
        assert len(table) == 1
        assert type(table.error(0)) in {type(None), RegionCorrupt, RegionStale}


def readings(region: Region) -> Iterator[Any]:
    yield region.snapshot
    yield lambda: region.uuids
    yield lambda: region.device_count
    yield lambda: region.last_kernel_time_s
    for device in (0, 7, 15):
        yield lambda device=device: region.memory_used(device)
        yield lambda device=device: region.memory_limit(device)
    yield lambda: region.set_sm_limit(30, force=True)
    yield lambda: region.set_memory_limit(2**62, force=True)


# ---- round trips ----


@given(
    layout=layouts,
    edits=st.lists(
        st.tuples(
            devices,
            st.one_of(st.none(), st.integers(1, 2**63 - 1)),
            st.one_of(st.none(), st.integers(1, 100)),
        ),
        min_size=1,
        max_size=8,
    ),
    numbers=st.tuples(i32.filter(lambda n: n >= 0), i32.filter(lambda n: n >= -1), st.booleans()),
)
def test_what_is_set_is_what_is_got(
    layout: Layout,
    edits: list[tuple[int, int | None, int | None]],
    numbers: tuple[int, int, bool],
    place: Path,
) -> None:
    file = fresh(place, layout)
    limits: dict[int, int | None] = {}
    sm_limits: dict[int, int | None] = {}
    priority, recent_kernel, switch = numbers
    with open_region(file, writable=True) as region:
        for device, limit, percent in edits:
            change = region.set_memory_limit(limit, device=device, force=True)
            assert (change.before, change.after) == (limits.get(device), limit)
            limits[device] = limit
            off = percent in {None, 100}
            sm_change = region.set_sm_limit(percent, device=device, force=True)
            assert (sm_change.before, sm_change.after) == (
                sm_limits.get(device),
                None if off else percent,
            )
            sm_limits[device] = None if off else percent
        region.set_priority(priority)
        region.set_recent_kernel(recent_kernel)
        region.set_utilization_switch(switch)
    with open_region(file) as region:
        for device in region.device_indices:
            assert region.memory_limit(device) == limits.get(device)
            assert region.sm_limit(device) == sm_limits.get(device)
        assert (region.priority, region.recent_kernel, region.utilization_switch) == numbers
