"""Files with a region's magic: which layout they have, or what is wrong with them."""

import itertools

import attrs
import pytest
from support.opening import refused
from support.region_file import RegionFile, unchanged

from libhamiregion import (
    AmbiguousLayout,
    Layout,
    NotARegion,
    RegionCorrupt,
    RegionError,
    RegionReadOnly,
    RegionSet,
    identify,
    open_region,
)
from libhamiregion.units import GIB

V1_1, POSTINIT, V1_2 = Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2
OLDEST, UNVERSIONED = Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED
UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"


# ---- counts and texts out of range ----


@pytest.mark.parametrize("layout", [OLDEST, UNVERSIONED, V1_1, V1_2])
@pytest.mark.parametrize(
    ("field", "device", "value", "said"),
    [
        ("device_num", 0, 17, "the number of devices is 17, at most 16 are possible"),
        ("proc_num", 0, -1, "the number of processes is -1, 0 to 1024 are possible"),
        ("proc_num", 0, 1025, "the number of processes is 1025, 0 to 1024 are possible"),
        ("uuids", 7, b"GPU-" + b"x" * 92, "uuid of device 7 is no GPU- or MIG- text"),
        ("uuids", 15, b"GPU-\x1b[2J", "uuid of device 15 is no GPU- or MIG- text"),
    ],
)
def test_one_field_out_of_range_is_named(field, device, value, said, layout, file):
    file.put("device_num", 16)
    file.put(field, value, device=device)
    refused(file, RegionCorrupt, said, f"read as layout {layout.value}")


# ---- versions and sizes ----


@pytest.mark.parametrize("layout", [V1_1, POSTINIT, V1_2])
@pytest.mark.parametrize("version", [(0, 0), (0, 5), (1, 0), (2, 1), (2**32 - 1, 1)])
def test_an_unknown_version_is_never_taken_for_an_unversioned_region(version, layout, file):
    """Without uuids and limits much of it is zeros, which would be plausible in any layout."""
    file.put("major_version", version[0])
    file.put("minor_version", version[1])
    said = f"version {version[0]}.{version[1]} in a file of {layout.size_bytes + 1} bytes"
    refused(file, RegionCorrupt, said, "fits no known layout", "of a newer HAMi")


@pytest.mark.parametrize("layout", [V1_1, POSTINIT, V1_2])
@pytest.mark.parametrize("size", [2_008_951, 1_197_897, OLDEST.size_bytes])
def test_a_versioned_file_that_was_cut_short_is_reported(size, file):
    file.resize(size)
    refused(file, RegionCorrupt, f"the file has {size} bytes", "it was cut short")


def test_an_unversioned_file_cut_to_the_size_of_the_oldest_is_read_as_that(region_file):
    """Both have one header, so its processes and counts are gone, but not its limits."""
    file = region_file(UNVERSIONED, memory_limits=(GIB,), uuids=[UUID])
    file.resize(UNVERSIONED.size_bytes - 1)
    with open_region(file) as region:
        assert region.layout is OLDEST
        assert region.memory_limit(0) == GIB
        assert region.snapshot().processes == ()


@pytest.mark.parametrize("layout", Layout)
def test_the_size_of_the_struct_and_more_is_enough(layout, region_file):
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    for more in (4096, 1, 0):
        file.resize(layout.size_bytes + more)
        assert identify(file) is layout
    file.resize(layout.size_bytes - 1)
    with pytest.raises(RegionError, match=r"bytes|has layout|uuid"):
        open_region(file, layout=layout)


# ---- files that a newer process has lengthened ----


@pytest.mark.parametrize("layout", [OLDEST, UNVERSIONED])
def test_an_unversioned_region_is_itself_whatever_reads_like_a_version(layout, region_file):
    """Where 1.1 and 1.2 have their version it has sm_init_flag and owner_pid."""
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(7, {0: 5})
    for size in (layout.size_bytes, V1_1.size_bytes + 1, POSTINIT.size_bytes + 1):
        file.resize(size)
        for flag, owner in itertools.product((0, 1), (0, 1, 2, 3, 4711, 2**31 - 1)):
            file.put("sm_init_flag", flag)
            file.put("owner_pid", owner)
            with open_region(file) as region:
                assert region.layout is layout
                snapshot = region.snapshot()
            assert snapshot.owner_pid == owner
            assert snapshot.device(0).memory_used_bytes == 5


def test_golden_regions_lengthened_are_still_themselves(golden_regions):
    for golden in golden_regions:
        file = RegionFile(golden.path, golden.layout)
        file.resize(POSTINIT.size_bytes + 4096)
        with open_region(file) as region:
            assert region.layout is golden.layout
            assert len(region.snapshot().processes) == golden.expected["proc_num"]


def test_a_fresh_postinit_region_is_recognised_by_its_second_semaphore(region_file):
    """Its value, 1, could be a device count; the mark of a shared semaphore is no uuid."""
    file = region_file(POSTINIT)
    assert identify(file) is POSTINIT
    with pytest.raises(NotARegion, match=r"has layout 1\.1-postinit, not 1\.1;"):
        open_region(file, layout=V1_1)


# ---- two layouts that fit ----


@pytest.mark.parametrize("candidates", [(V1_1, POSTINIT), (OLDEST, UNVERSIONED)])
def test_two_plausible_layouts_are_an_error_and_the_caller_can_name_one(candidates, region_file):
    """A region of a container without limits, devices or processes, made longer."""
    shorter, longer = candidates
    file = region_file(shorter)
    file.resize(longer.size_bytes + 1)
    if longer is UNVERSIONED:
        RegionFile(file.path, longer).put("utilization_switch", 1)
    names = f"{shorter.value} and {longer.value}"
    found = refused(file, AmbiguousLayout, names, "layout=")
    assert isinstance(found, AmbiguousLayout)
    assert found.candidates == candidates
    before = file.content()
    with pytest.raises(AmbiguousLayout, match=names):
        open_region(file, layout=V1_2, writable=True)
    assert file.content() == before
    for layout in candidates:
        with open_region(file, layout=layout, writable=True) as region:
            assert region.layout is layout
            region.set_memory_limit(5, device=0)
        assert RegionFile(file.path, layout).get("limit") == 5
        file.put_bytes(0, before)


@pytest.mark.parametrize("layout", Layout)
def test_a_named_layout_must_be_that_of_the_file(layout, file):
    """A fresh file is mostly zeros, which read well in any layout."""
    for named in Layout:
        if named is layout:
            with open_region(file, layout=named, writable=True) as region:
                assert region.layout is named
            continue
        with pytest.raises(NotARegion) as error:
            open_region(file, layout=named, writable=True)
        assert f"has layout {layout.value}, not {named.value};" in str(error.value)
        assert isinstance(error.value, ValueError)


# ---- a newer minor version than any known one ----

NEWER = (1, 3)


@pytest.mark.parametrize("more_bytes", [0, 272])
def test_a_newer_minor_version_reads_like_the_newest_known_one(golden_regions, more_bytes):
    for golden in golden_regions:
        if golden.layout is not V1_2:
            continue
        file = RegionFile(golden.path, golden.layout)
        with open_region(file) as region:
            assert region.layout_newer is None
            before = region.snapshot()
        file.resize(V1_2.size_bytes + 1 + more_bytes)
        file.put("minor_version", NEWER[1])
        assert identify(file) is V1_2
        with open_region(file) as region, RegionSet([file]) as regions:
            assert region.layout is V1_2
            assert region.layout_newer == NEWER
            after = region.snapshot()
            table = regions.read()
        assert after == attrs.evolve(before, taken_at_ns=after.taken_at_ns, layout_newer=NEWER)
        assert attrs.evolve(table.snapshot(0), taken_at_ns=after.taken_at_ns) == after


def test_a_newer_minor_version_is_never_written(region_file):
    file = region_file(memory_limits=[GIB])
    file.put("minor_version", NEWER[1])
    with unchanged(file):
        for named in (None, V1_2):
            with pytest.raises(RegionReadOnly, match=r"version 1\.3, newer than .* can be read"):
                open_region(file, writable=True, layout=named)
        with open_region(file) as region, pytest.raises(RegionReadOnly, match="opened for reading"):
            region.set_memory_limit("unlimited", device=0)


@pytest.mark.parametrize(
    ("layout", "field", "value"),
    [
        # Older layouts of the same major version: as a layout to come that has moved fields.
        *((older, "minor_version", NEWER[1]) for older in (V1_1, POSTINIT)),
        # In a known version this would be shown as it is.
        (V1_2, "sm_limit", 2**21),
        (V1_2, "proc_num", 1025),
    ],
)
def test_a_newer_minor_version_whose_fields_do_not_pass_is_refused(
    layout, field, value, region_file
):
    file = region_file(layout, memory_limits=[GIB])
    file.put("minor_version", NEWER[1])
    file.put(field, value)
    with pytest.raises(RegionCorrupt, match=r"version 1\.3 in a file of \d+ bytes fits no known"):
        open_region(file)
