"""An argument that means nothing is an error, never another thing or silence."""

import pytest
from support.forked import in_child
from support.region_file import RegionFile

from libhamiregion import NoSuchDevice, RegionClosed, RegionSet, open_region
from libhamiregion.units import GIB


@pytest.fixture
def file(region_file) -> RegionFile:
    return region_file(memory_limits=["4GiB", "2GiB"], uuids=["GPU-a", "MIG-b"])


@pytest.mark.parametrize("device", [2, 5, 15, 16, -1, "GPU-c"])
@pytest.mark.parametrize(
    "write",
    [
        lambda slot, device: slot.charge(device, 1),
        lambda slot, device: slot.region.set_utilization(slot.pid, device, sm=1),
        lambda slot, device: slot.region.set_monitor_used(slot.pid, device, 1),
        lambda slot, device: slot.region.set_memory_limit(1, device=device),
    ],
)
def test_a_device_that_the_region_has_not_is_refused(write, device, file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        before = file.content()
        with pytest.raises(NoSuchDevice):
            write(slot, device)
        assert file.content() == before


def test_memory_is_charged_by_size_and_uuid_as_limits_are_edited(file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge("MIG-b", "1.5GiB")
        slot.charge(1, "1024")
        assert [region.memory_used(device) for device in (0, 1)] == [0, 3 * GIB // 2 + 1024]
        slot.release("MIG-b", "1.5GiB")
        assert region.memory_used("MIG-b") == 1024
        for wrong in ("50%", "unlimited", "6GB", "-1"):
            with pytest.raises(ValueError, match="is not a size"):
                slot.charge(1, wrong)
            with pytest.raises(ValueError, match="is not a size"):
                slot.release(1, wrong)
        assert region.memory_used(1) == 1024


def test_what_was_charged_is_given_back_whatever_the_container_reports(file):
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(1, 5)
        file.put("device_num", 1)
        slot.release(1, 5)
        with pytest.raises(NoSuchDevice):
            slot.charge(1, 5)


@pytest.mark.parametrize("device", [None, True, False, 0.0])
def test_only_a_number_or_a_text_names_a_device(device, region_file):
    with open_region(region_file(memory_limits=[1, 2])) as region:
        for find in (region.snapshot().device, region.memory_limit, region.memory_used):
            with pytest.raises(TypeError, match="a device is an integer"):
                find(device)


@pytest.mark.parametrize("name", ["memory_limit", "sm_limit", "snapshot", "priority", "limits"])
def test_an_assignment_changes_no_limit_and_hides_no_method(name, file):
    with open_region(file, writable=True) as region:
        with pytest.raises(AttributeError):
            setattr(region, name, 5)
        assert region.memory_limit(0) == 4 * GIB


@pytest.mark.parametrize("row", [-1, 1, 99])
def test_a_row_that_is_not_there_is_an_error(row, file):
    with RegionSet([file]) as regions:
        table = regions.read()
    for ask in (table.error, table.snapshot):
        with pytest.raises(IndexError, match=f"row {row} of 1"):
            ask(row)


def test_a_column_of_names_is_no_text(file, region_file):
    with RegionSet([file, region_file()]) as regions:
        table = regions.read()
    with pytest.raises(TypeError, match="team is a sequence"):
        table.with_identity(team="xy")


def test_a_set_is_not_read_in_a_forked_child(file):
    with RegionSet([file]) as regions:

        def child() -> str:
            with pytest.raises(RegionClosed, match="before fork"):
                regions.read()
            with pytest.raises(RegionClosed, match="before fork"):
                regions.add(file)
            return "refused"

        assert in_child(child) == "refused"
        assert len(regions.read()) == 1
