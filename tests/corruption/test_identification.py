"""Files with a region's magic: which layout they are, or what exactly is wrong with them."""

from collections.abc import Callable

import pytest
from golden_regions import GoldenRegion
from poke import RegionFile, RegionFileFactory

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


@pytest.mark.parametrize("count", [17, 18, 1024, 2**31, 2**32, 2**63, 2**64 - 1])
def test_more_devices_than_there_can_be(
    count: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(GIB,))
    file.put("device_num", count)
    found = refused(file, RegionCorrupt)
    if layout is not POSTINIT:
        # Version 1.1 and this size fit two layouts, and the other one's words are as true.
        assert f"the number of devices is {count}, at most 16 are possible" in str(found)


@pytest.mark.parametrize("count", [-1, 1025, 2**31 - 1, -(2**31)])
def test_fewer_or_more_processes_than_there_can_be(
    count: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.put("proc_num", count)
    refused(
        file,
        RegionCorrupt,
        f"the number of processes is {count}, 0 to 1024 are possible",
        f"read as layout {layout.value}",
    )


def test_full_counts_are_fine(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, uuids=[UUID] * 16)
    file.put("proc_num", 1024)
    assert identify(file) is layout


@pytest.mark.parametrize("devices", [range(1), range(15, 16), range(16)], ids=str)
def test_a_large_sm_limit_is_unlimited_and_no_damage(
    devices: range, layout: Layout, region_file: RegionFileFactory
) -> None:
    """libvgpu stores CUDA_DEVICE_SM_LIMIT as it is, and knows no limit from 100 on."""
    file = region_file(layout, uuids=[UUID])
    for percent in (101, 1001, 100_000, 2**31, 2**63, 2**64 - 1):
        for device in devices:
            file.put("sm_limit", percent, device=device)
        with open_region(file) as region:
            assert region.layout is layout
            assert all(region.sm_limit(device) is None for device in devices)


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


@pytest.mark.parametrize("device", [0, 7, 15])
def test_a_uuid_that_is_no_text_of_a_gpu(
    device: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    """Random bytes, a text without its NUL, control characters: none of it reaches a caller."""
    for uuid in NO_UUIDS:
        file = region_file(layout, uuids=[UUID] * 16)
        file.put("uuids", uuid, device=device)
        found = refused(file, RegionCorrupt, "no GPU- or MIG- text")
        assert f"uuid of device {device} " in str(found)
        assert str(found).replace(str(file.path), "").isprintable()


@pytest.mark.parametrize(
    "uuid", [b"", b"GPU-", b"MIG-", b"MIG-1/2", b"GPU-" + b"~" * 91, b"GPU- !"]
)
def test_uuids_that_are_fine(uuid: bytes, layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.put("uuids", uuid)
    with open_region(file) as region:
        assert region.layout is layout
        assert region.uuids == (uuid.decode() or None,)


def test_everything_wrong_at_once_is_one_error(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    size = file.path.stat().st_size
    file.put_bytes(12, b"\xff" * (size - 12))
    refused(file, RegionCorrupt)


# ---- versions and sizes ----


@pytest.mark.parametrize(
    "version", [(1, 0), (1, 3), (2, 0), (2, 1), (0xFFFFFFFF, 1), (1, 0xFFFFFFFF)]
)
def test_an_unknown_version_is_told_with_its_number(
    version: tuple[int, int], region_file: RegionFileFactory
) -> None:
    for layout in VERSIONED:
        file = region_file(layout, uuids=[UUID])
        file.put("major_version", version[0])
        file.put("minor_version", version[1])
        refused(
            file,
            RegionCorrupt,
            f"version {version[0]}.{version[1]} in a file of {layout.size_bytes + 1} bytes",
            "fits no known layout",
            "a newer libhamiregion may know it",
        )


@pytest.mark.parametrize("version", [(0, 0), (0, 5), (1, 0), (2, 0), (2, 1), (3, 7)])
@pytest.mark.parametrize("layout", VERSIONED, ids=lambda layout: layout.value)
def test_a_newer_region_in_little_use_is_never_taken_for_an_unversioned_one(
    layout: Layout, version: tuple[int, int], region_file: RegionFileFactory
) -> None:
    """Without uuids and limits much of it is zeros, which would be plausible in any layout."""
    file = region_file(layout)
    file.put("major_version", version[0])
    file.put("minor_version", version[1])
    refused(file, RegionCorrupt, f"version {version[0]}.{version[1]} ")


@pytest.mark.parametrize("size", [OLDEST.size_bytes, 1_197_895, 1_197_897, 2_008_951])
def test_a_versioned_file_cut_short_is_told_as_such(
    size: int, region_file: RegionFileFactory
) -> None:
    for layout in VERSIONED:
        file = region_file(layout, uuids=[UUID])
        file.resize(size)
        refused(file, RegionCorrupt, f"the file has {size} bytes", "it was cut short")


@pytest.mark.parametrize("missing", [0, -1, -4096])
def test_size_of_the_struct_and_more_is_enough(
    missing: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.resize(layout.size_bytes - missing)
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


@pytest.mark.parametrize("owner_pid", [1, 2])
@pytest.mark.parametrize("layout", [OLDEST, UNVERSIONED], ids=lambda layout: layout.value)
def test_the_lock_of_a_containers_first_process_is_no_version(
    owner_pid: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    """Without version fields, sm_init_flag and owner_pid stand where 1.1 and 1.2 would."""
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(owner_pid, {0: 5})
    file.put("sm_init_flag", 1)
    file.put("owner_pid", owner_pid)
    file.put("sem", 0)
    assert (file.get("major_version"), file.get("minor_version")) == (1, owner_pid)
    with open_region(file) as region:
        assert region.layout is layout
        snapshot = region.snapshot()
        assert snapshot.owner_pid == owner_pid
        assert snapshot.device(0).memory_used_bytes == 5


@pytest.mark.parametrize("owner_pid", [0, 3, 4711, 2**22, 2**31 - 1])
@pytest.mark.parametrize("sm_init_flag", [0, 1])
@pytest.mark.parametrize("layout", [OLDEST, UNVERSIONED], ids=lambda layout: layout.value)
def test_any_owner_of_an_unversioned_region_leaves_it_identified(
    sm_init_flag: int, owner_pid: int, layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.put("sm_init_flag", sm_init_flag)
    file.put("owner_pid", owner_pid)
    assert identify(file) is layout


# ---- files that a newer process has lengthened ----


@pytest.mark.parametrize("longer", [UNVERSIONED, V1_1, POSTINIT], ids=lambda layout: layout.value)
def test_the_oldest_layout_lengthened_is_still_itself(
    longer: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(OLDEST, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(7, {0: 5})
    file.resize(longer.size_bytes + 1)
    with open_region(file) as region:
        assert region.layout is OLDEST
        assert region.snapshot().processes[0].pid == 7


@pytest.mark.parametrize("owner_pid", [0, 1, 2, 3])
@pytest.mark.parametrize("sm_init_flag", [0, 1])
@pytest.mark.parametrize("longer", [V1_1, POSTINIT], ids=lambda layout: layout.value)
def test_an_unversioned_region_lengthened_is_still_itself(
    longer: Layout, sm_init_flag: int, owner_pid: int, region_file: RegionFileFactory
) -> None:
    """Also where sm_init_flag and owner_pid read like a version that such a size has."""
    file = region_file(UNVERSIONED, memory_limits=(GIB,), uuids=[UUID])
    file.add_process(7, {0: 5})
    file.put("sm_init_flag", sm_init_flag)
    file.put("owner_pid", owner_pid)
    file.resize(longer.size_bytes + 1)
    with open_region(file) as region:
        assert region.layout is UNVERSIONED
        assert region.snapshot().processes[0].pid == 7


def one_limit(file: RegionFile) -> None:
    file.put("limit", GIB)


def one_process(file: RegionFile) -> None:
    file.add_process(7, {0: GIB})


def one_uuid(file: RegionFile) -> None:
    file.put("uuids", UUID.encode())
    file.put("device_num", 1)


@pytest.mark.parametrize("use", [one_limit, one_process, one_uuid], ids=lambda use: use.__name__)
def test_a_lengthened_1_1_region_is_told_by_what_is_plausible(
    use: Callable[[RegionFile], None], region_file: RegionFileFactory
) -> None:
    file = region_file(V1_1)
    use(file)
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


@pytest.mark.parametrize("lengthened", [False, True])
def test_golden_regions_lengthened_are_still_themselves(
    golden: GoldenRegion, *, lengthened: bool
) -> None:
    file = RegionFile(golden.path, golden.layout)
    if lengthened:
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


@pytest.mark.parametrize("layout", [V1_1, POSTINIT], ids=lambda layout: layout.value)
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


@pytest.mark.parametrize("named", list(Layout), ids=lambda layout: f"as {layout.value}")
@pytest.mark.parametrize("fresh", [False, True])
def test_a_named_layout_must_be_that_of_the_file(
    named: Layout, layout: Layout, region_file: RegionFileFactory, *, fresh: bool
) -> None:
    """A fresh file is mostly zeros, which read well in any layout."""
    file = region_file(layout) if fresh else region_file(layout, uuids=[UUID])
    if layout is named:
        with open_region(file, layout=named, writable=True) as region:
            assert region.layout is named
        return
    with pytest.raises(NotARegion) as error:
        open_region(file, layout=named, writable=True)
    assert f"has layout {layout.value}, not {named.value};" in str(error.value)
    assert isinstance(error.value, ValueError)


def test_a_named_layout_needs_its_size(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(GIB,), uuids=[UUID])
    file.resize(layout.size_bytes - 1)
    with pytest.raises(RegionError, match=r"bytes|has layout|uuid"):
        open_region(file, layout=layout)
