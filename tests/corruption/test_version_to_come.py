"""A file of a newer minor version than any that is known: read, and never written."""

import attrs
import pytest
from golden_regions import GoldenRegion
from support.region_file import RegionFile, RegionFileFactory

from libhamiregion import (
    Layout,
    RegionCorrupt,
    RegionReadOnly,
    RegionSet,
    RegionSnapshot,
    create_region,
    identify,
    open_region,
)

NEWER = (1, 3)
# What a version 1.3 that was proposed has behind the fields of 1.2.
MORE_BYTES = 272
ONE_GIB = 2**30


def forge(file: RegionFile, minor: int = NEWER[1]) -> RegionFile:
    """Let a file of 1.2 say that it is of a newer version."""
    file.put("minor_version", minor)
    return file


def but_for_time(snapshot: RegionSnapshot) -> RegionSnapshot:
    return attrs.evolve(snapshot, taken_at_ns=0, layout_newer=None)


@pytest.mark.parametrize("more", [0, MORE_BYTES])
def test_a_real_region_forged_to_be_newer_reads_the_same(
    golden_regions: list[GoldenRegion], more: int
) -> None:
    for golden in golden_regions:
        if golden.layout is not Layout.V1_2:
            continue
        file = RegionFile(golden.path, golden.layout)
        with open_region(file) as region:
            assert region.layout_newer is None
            before = region.snapshot()
        file.resize(Layout.V1_2.size_bytes + 1 + more)
        forge(file)
        assert identify(file) is Layout.V1_2
        with open_region(file) as region:
            assert region.layout is Layout.V1_2
            assert region.layout_newer == NEWER
            newer = region.snapshot()
        assert newer.layout_newer == NEWER
        assert but_for_time(newer) == but_for_time(before)


def test_a_set_reads_it_beside_others(region_file: RegionFileFactory) -> None:
    files = [forge(region_file(memory_limits=[ONE_GIB])), region_file(memory_limits=[2])]
    with RegionSet(files) as regions:
        table = regions.read()
        assert list(table.devices.memory_limit_bytes) == [ONE_GIB, 2]


def test_opening_it_to_write_is_refused_and_leaves_it_as_it_is(
    region_file: RegionFileFactory,
) -> None:
    file = forge(region_file(memory_limits=[ONE_GIB]))
    before = file.content()
    with pytest.raises(RegionReadOnly, match=r"has version 1\.3, newer than .* can be read, but"):
        open_region(file, writable=True)
    with pytest.raises(RegionReadOnly, match=r"version 1\.3"):
        open_region(file, writable=True, layout=Layout.V1_2)
    with open_region(file) as region, pytest.raises(RegionReadOnly, match="opened for reading"):
        region.set_memory_limit("unlimited", device=0)
    with pytest.raises(FileExistsError):
        create_region(file)
    assert file.content() == before


@pytest.mark.parametrize("older", [Layout.V1_1, Layout.V1_1_POSTINIT])
def test_fields_that_lie_elsewhere_are_refused(
    older: Layout, region_file: RegionFileFactory
) -> None:
    """The older layouts of the same major version, as a layout to come that has moved fields."""
    file = forge(region_file(older, memory_limits=[ONE_GIB]))
    with pytest.raises(RegionCorrupt, match=r"version 1\.3 in a file of .* fits no known layout"):
        open_region(file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sm_limit", 2**21),
        ("proc_num", 1025),
    ],
)
def test_a_field_that_does_not_pass_is_refused(
    field: str, value: int, region_file: RegionFileFactory
) -> None:
    """In a known version most of these would be shown as they stand."""
    file = forge(region_file())
    file.add_process(7, {0: 5})
    with open_region(file) as region:
        assert region.snapshot().device(0).memory_used_bytes == 5
    file.put(field, value)
    with pytest.raises(RegionCorrupt, match=r"version 1\.3 in a file of 2008953 bytes fits no"):
        open_region(file)
