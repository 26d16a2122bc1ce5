"""Whatever a region holds: documented errors, or exactly what stands in the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from support import reference
from support.random_regions import Damage, damages, good_regions
from support.region_file import RegionFile

from libhamiregion import (
    AmbiguousLayout,
    Layout,
    NotARegion,
    Region,
    RegionCorrupt,
    RegionError,
    RegionNotReady,
    RegionReadOnly,
    RegionSet,
    RegionSnapshot,
    create_region,
    identify,
    open_region,
)

OPENING = (NotARegion, RegionNotReady, AmbiguousLayout, RegionCorrupt)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
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


# ---- fields ----


@given(fields=good_regions())
def test_what_stands_in_the_file_is_what_is_read(fields, place):
    file = fresh(place, fields.layout)
    fields.store(file)
    with open_region(file) as region, RegionSet([file]) as region_set:
        snapshot = region.snapshot()
        assert plain(snapshot) == reference.snapshot(file.content(), fields.layout)
        settled = (snapshot.settled, *(process.settled for process in snapshot.processes))
        assert settled == reference.settled(file.content(), fields.layout)
        check_live(region, snapshot)
        assert plain(region_set.read().snapshot(0)) == plain(snapshot)


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


A_VERSION_TO_COME = Damage(Layout.V1_2, [(8, b"\x03")], Layout.V1_2.size_bytes)


@given(damage=damages(), writable=st.booleans())
@example(damage=A_VERSION_TO_COME, writable=True)
def test_random_bytes_give_a_documented_error_or_a_region(damage, place, *, writable):
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
        assert plain(region_set.read().snapshot(0)) == plain(region.snapshot())


@pytest.mark.parametrize("upper", [0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("pid", [0, 1, 2**22, 2**22 + 1, 2**31])
def test_a_signature_of_an_attached_process_is_its_pid(pid, upper, place):
    file = fresh(place, Layout.V1_2)
    file.put("owner_pid", upper << 32 | pid)
    with open_region(file) as region:
        check_whatever_opens(region, place)
