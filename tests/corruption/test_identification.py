"""Files with a region's magic: which layout they are, or what exactly is wrong with them."""

import itertools

import pytest
from golden_regions import GoldenRegion
from support.region_file import RegionFile, RegionFileFactory

from libhamiregion import (
    AmbiguousLayout,
    Layout,
    NotARegion,
    RegionCorrupt,
    RegionError,
    RegionSet,
    identify,
    open_region,
)


@pytest.fixture(params=list(Layout))
def layout(request: pytest.FixtureRequest) -> Layout:
    chosen: Layout = request.param
    return chosen


V1_1, POSTINIT, V1_2 = Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2
OLDEST, UNVERSIONED = Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED
VERSIONED = [V1_1, POSTINIT, V1_2]
GIB = 2**30
UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"


def refused(file: RegionFile, error: type[RegionError], *said: str) -> RegionError:
    """Each entrance refuses the file in the same words."""
    messages = set()
    for enter in (identify, open_region, lambda path: open_region(path, writable=True)):
        with pytest.raises(error) as raised:
            enter(file)
        assert type(raised.value) is error
        assert raised.value.path == str(file.path)
        messages.add(str(raised.value))
    with RegionSet([file]) as region_set:
        assert type(region_set.errors[str(file.path)]) is error
        messages.add(str(region_set.errors[str(file.path)]))
    assert len(messages) == 1
    for words in (repr(str(file.path)), *said):
        assert words in messages.copy().pop()
    return raised.value


# ---- counts and texts out of range ----


def test_more_devices_than_there_can_be(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(GIB,))
    for count in (17, 1024, 2**31, 2**32, 2**64 - 1):
        file.put("device_num", count)
        found = refused(file, RegionCorrupt)
        if layout is not POSTINIT:
            # Version 1.1 and this size fit two layouts, and the other one's words are as true.
            assert f"the number of devices is {count}, at most 16 are possible" in str(found)


def test_fewer_or_more_processes_than_there_can_be(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, uuids=[UUID] * 16)
    file.put("proc_num", 1024)
    assert identify(file) is layout
    for count in (-1, 1025, 2**31 - 1, -(2**31)):
        file.put("proc_num", count)
        said = f"the number of processes is {count}, 0 to 1024 are possible"
        refused(file, RegionCorrupt, said, f"read as layout {layout.value}")


def test_a_large_sm_limit_is_unlimited_and_no_damage(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """libvgpu stores CUDA_DEVICE_SM_LIMIT as it is, and knows no limit from 100 on."""
    for devices in (range(1), range(15, 16), range(16)):
        file = region_file(layout, uuids=[UUID])
        for percent in (101, 1001, 2**31, 2**64 - 1):
            for device in devices:
                file.put("sm_limit", percent, device=device)
            with open_region(file) as region:
                assert region.layout is layout
                assert region.sm_limit(0) is None


NO_UUIDS = (
    bytes(range(160, 256)),
    b"\xff" * 96,
    b"GPU-" + b"x" * 92,
    b"GPU-\x1b[2J",
    b"GPU-\x7f",
    b"GPU-\n",
    b"GPU-\xc3\xa9",
    b"GPU-1\0hidden",
    b"GPU",
    b"gpu-1",
    b"XPU-1",
    b" GPU-1",
    b"\0GPU-1",
)


def test_a_uuid_that_is_no_text_of_a_gpu(layout: Layout, region_file: RegionFileFactory) -> None:
    """Random bytes, a text without its NUL, control characters: none of it reaches a caller."""
    for device, uuid in zip(itertools.cycle((0, 7, 15)), NO_UUIDS, strict=False):
        file = region_file(layout, uuids=[UUID] * 16)
        file.put("uuids", uuid, device=device)
        found = refused(file, RegionCorrupt, "no GPU- or MIG- text")
        assert f"uuid of device {device} " in str(found)
        assert str(found).replace(str(file.path), "").isprintable()


def test_uuids_that_are_fine(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    for uuid in (b"", b"GPU-", b"MIG-", b"MIG-1/2", b"GPU-" + b"~" * 91, b"GPU- !"):
        file.put("uuids", uuid.ljust(96, b"\0"))
        with open_region(file) as region:
            assert region.layout is layout
            assert region.uuids == (uuid.decode() or None,)


def test_everything_wrong_at_once_is_one_error(file: RegionFile) -> None:
    size = file.path.stat().st_size
    file.put_bytes(12, b"\xff" * (size - 12))
    refused(file, RegionCorrupt)


# ---- versions and sizes ----


@pytest.mark.parametrize("layout", VERSIONED)
def test_an_unknown_version_is_told_and_never_taken_for_an_unversioned_region(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """Without uuids and limits much of it is zeros, which would be plausible in any layout."""
    for uuids in ([UUID], []):
        file = region_file(layout, uuids=uuids)
        # One that is newer than 1.2 by its minor number alone: test_version_to_come.py.
        newer = () if layout is V1_2 else ((1, 3), (1, 2**32 - 1))
        for version in ((0, 0), (0, 5), (1, 0), (2, 1), (2, 3), (2**32 - 1, 1), *newer):
            file.put("major_version", version[0])
            file.put("minor_version", version[1])
            said = f"version {version[0]}.{version[1]} in a file of {layout.size_bytes + 1} bytes"
            refused(
                file,
                RegionCorrupt,
                said,
                "fits no known layout",
                "a newer libhamiregion may know it",
            )


def test_a_versioned_file_cut_short_is_told_as_such(region_file: RegionFileFactory) -> None:
    for layout in VERSIONED:
        for size in (2_008_951, 1_197_897, 1_197_895, OLDEST.size_bytes):
            file = region_file(layout, uuids=[UUID])
            file.resize(size)
            refused(file, RegionCorrupt, f"the file has {size} bytes", "it was cut short")


def test_size_of_the_struct_and_more_is_enough(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    for more in (4096, 1, 0):
        file.resize(layout.size_bytes + more)
        assert identify(file) is layout


def test_an_unversioned_file_cut_to_the_size_of_the_oldest_is_told_by_nothing_else(
    region_file: RegionFileFactory,
) -> None:
    """Both have one header, so its processes and counts are gone, but not its limits."""
    file = region_file(UNVERSIONED, memory_limits=(GIB,), uuids=[UUID])
    file.resize(UNVERSIONED.size_bytes - 1)
    with open_region(file) as region:
        assert region.layout is OLDEST
        assert region.memory_limit(0) == GIB
        assert region.snapshot().processes == ()


# ---- version fields that are none ----


@pytest.mark.parametrize("layout", [OLDEST, UNVERSIONED])
def test_the_lock_of_a_containers_first_process_is_no_version(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    """Without version fields, sm_init_flag and owner_pid stand where 1.1 and 1.2 would."""
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(1, {0: 5})
    file.put("sem", 0)
    for flag, owner in itertools.product((0, 1), (0, 1, 2, 3, 4711, 2**31 - 1)):
        file.put("sm_init_flag", flag)
        file.put("owner_pid", owner)
        assert (file.get("major_version"), file.get("minor_version")) == (flag, owner)
        with open_region(file) as region:
            assert region.layout is layout
            snapshot = region.snapshot()
            assert snapshot.owner_pid == owner
            assert snapshot.device(0).memory_used_bytes == 5


# ---- files that a newer process has lengthened ----


@pytest.mark.parametrize("longer", [UNVERSIONED, V1_1, POSTINIT])
def test_the_oldest_layout_lengthened_is_still_itself(
    longer: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(OLDEST, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(7, {0: 5})
    file.resize(longer.size_bytes + 1)
    with open_region(file) as region:
        assert region.layout is OLDEST
        assert region.snapshot().processes[0].pid == 7


@pytest.mark.parametrize("longer", [V1_1, POSTINIT])
def test_an_unversioned_region_lengthened_is_still_itself(
    longer: Layout, region_file: RegionFileFactory
) -> None:
    """Also where sm_init_flag and owner_pid read like a version that such a size has."""
    file = region_file(UNVERSIONED, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(7, {0: 5})
    file.resize(longer.size_bytes + 1)
    for flag, owner in itertools.product((0, 1), range(4)):
        file.put("sm_init_flag", flag)
        file.put("owner_pid", owner)
        with open_region(file) as region:
            assert region.layout is UNVERSIONED
            assert region.snapshot().processes[0].pid == 7


def test_a_lengthened_1_1_region_is_told_by_what_is_plausible(
    region_file: RegionFileFactory,
) -> None:
    used = region_file(V1_1)
    used.add_process(7, {0: GIB})
    for file in (region_file(V1_1, memory_limits=[GIB]), region_file(V1_1, uuids=[UUID]), used):
        file.resize(POSTINIT.size_bytes + 1)
        with open_region(file) as region:
            assert region.layout is V1_1
        with pytest.raises(NotARegion, match=r"has layout 1\.1, not 1\.1-postinit"):
            open_region(file, layout=POSTINIT)


def test_a_fresh_postinit_region_is_told_by_its_second_semaphore(
    region_file: RegionFileFactory,
) -> None:
    """Its value, 1, could be a device count; the mark of a shared semaphore is no uuid."""
    file = region_file(POSTINIT)
    assert identify(file) is POSTINIT
    with pytest.raises(NotARegion, match=r"has layout 1\.1-postinit, not 1\.1;"):
        open_region(file, layout=V1_1)


def test_golden_regions_lengthened_are_still_themselves(
    golden_regions: list[GoldenRegion],
) -> None:
    for golden in golden_regions:
        file = RegionFile(golden.path, golden.layout)
        file.resize(POSTINIT.size_bytes + 4096)
        with open_region(file) as region:
            assert region.layout is golden.layout
            assert len(region.snapshot().processes) == golden.expected["proc_num"]


# ---- ambiguous files ----


@pytest.fixture
def ambiguous(region_file: RegionFileFactory) -> RegionFile:
    """A 1.1 region of a container without limits, devices or processes, made longer."""
    file = region_file(V1_1)
    file.resize(POSTINIT.size_bytes + 1)
    return file


def test_two_plausible_layouts_are_an_error_that_lists_them(ambiguous: RegionFile) -> None:
    found = refused(ambiguous, AmbiguousLayout, "1.1 and 1.1-postinit", "layout=")
    assert isinstance(found, AmbiguousLayout)
    assert found.candidates == (V1_1, POSTINIT)


@pytest.mark.parametrize("layout", [V1_1, POSTINIT])
def test_the_caller_can_name_the_layout(layout: Layout, ambiguous: RegionFile) -> None:
    with open_region(ambiguous, layout=layout, writable=True) as region:
        assert region.layout is layout
        region.set_memory_limit(5, device=0)
        assert region.snapshot().device(0).memory_limit_bytes == 5
    assert RegionFile(ambiguous.path, layout).get("limit") == 5


def test_a_layout_that_is_no_candidate_is_refused_by_name_too(ambiguous: RegionFile) -> None:
    before = ambiguous.content()
    with pytest.raises(AmbiguousLayout, match=r"1\.1 and 1\.1-postinit"):
        open_region(ambiguous, layout=V1_2, writable=True)
    assert ambiguous.content() == before


def test_an_unversioned_file_used_by_both_generations_is_ambiguous(
    region_file: RegionFileFactory,
) -> None:
    file = region_file(OLDEST, memory_limits=(GIB,))
    file.resize(UNVERSIONED.size_bytes + 1)
    RegionFile(file.path, UNVERSIONED).put("utilization_switch", 1)
    found = refused(file, AmbiguousLayout, "unversioned-no-util and unversioned")
    assert isinstance(found, AmbiguousLayout)
    assert found.candidates == (OLDEST, UNVERSIONED)
    for layout in found.candidates:
        with open_region(file, layout=layout) as region:
            assert region.layout is layout


# ---- a layout named by the caller ----


@pytest.mark.parametrize("uuids", [(), (UUID,)], ids=["fresh", "used"])
def test_a_named_layout_must_be_that_of_the_file(
    uuids: tuple[str, ...], layout: Layout, region_file: RegionFileFactory
) -> None:
    """A fresh file is mostly zeros, which read well in any layout."""
    file = region_file(layout, uuids=uuids)
    for named in Layout:
        if named is layout:
            with open_region(file, layout=named, writable=True) as region:
                assert region.layout is named
            continue
        with pytest.raises(NotARegion) as error:
            open_region(file, layout=named, writable=True)
        assert f"has layout {layout.value}, not {named.value};" in str(error.value)
        assert isinstance(error.value, ValueError)


def test_a_named_layout_needs_its_size(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.resize(layout.size_bytes - 1)
    with pytest.raises(RegionError, match=r"bytes|has layout|uuid"):
        open_region(file, layout=layout)
