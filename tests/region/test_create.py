"""Creating a region: what libvgpu needs to find in it, and how it appears."""

import errno
import os
import resource
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.every_layout import every_layout  # noqa: F401 (the fixture layout)
from support.forked import in_child, unprivileged
from support.golden_regions import unpack
from support.region_file import RegionFile
from support.wait import PATIENCE_S

from libhamiregion import (
    Layout,
    NotARegion,
    RegionError,
    RegionNotFound,
    RegionPermissionDenied,
    create_region,
    identify,
    open_region,
)


@pytest.fixture
def umask_077() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


# ---- what is in it ----


def test_a_created_region_is_identified_in_its_layout(layout, tmp_path):
    path = tmp_path / "a.cache"
    assert create_region(path, layout=layout) is None
    assert identify(path) is layout
    assert path.stat().st_size == layout.size_bytes + 1, "libvgpu's file has one byte more"
    create_region(tmp_path / "newest.cache")
    assert identify(tmp_path / "newest.cache") is Layout.V1_2
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.cache", "newest.cache"}


@pytest.mark.usefixtures("umask_077")
def test_every_user_may_use_it_whatever_the_umask(layout, tmp_path):
    path = tmp_path / "a.cache"
    create_region(path, layout=layout)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.stat().st_nlink == 1


def test_a_created_region_is_what_libvgpu_made_but_for_its_processes(layout, tmp_path):
    """Byte for byte, the slots and the time of the last launch aside."""
    golden = unpack(f"{layout.value}-one-process", tmp_path)
    create_region(
        tmp_path / "ours.cache",
        layout=layout,
        memory_limits=[limit or None for limit in golden.expected["memory_limit"]],
        sm_limits=golden.expected["sm_limit"],
        priority=golden.expected["priority"],
        uuids=golden.expected["uuids"],
    )
    theirs = RegionFile(golden.path, layout)
    ours = RegionFile(tmp_path / "ours.cache", layout)
    theirs.put("proc_num", 0)
    if layout.offsets["last_kernel_time"] is not None:
        theirs.put("last_kernel_time", ours.get("last_kernel_time"))
    slots = slice(layout.offsets["procs"], layout.offsets["proc_num"])
    expected, found = bytearray(theirs.content()), bytearray(ours.content())
    assert not any(found[slots])
    expected[slots] = found[slots]
    assert found == expected


@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2])
def test_last_kernel_time_is_now(layout, region_file):
    before = int(time.time())
    with open_region(region_file(layout)) as region:
        assert region.last_kernel_time_s is not None
        # time() of the C library may lag a tick behind the clock that Python reads.
        assert before - 1 <= region.last_kernel_time_s <= time.time()


# ---- what is refused ----


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"memory_limits": [1] * 17}, ValueError, "17 entries.*16"),
    ({"sm_limits": [1] * 17}, ValueError, "17 entries.*16"),
    ({"uuids": ["GPU-0"] * 17}, ValueError, "17 entries.*16"),
    ({"memory_limits": "6GiB"}, TypeError, "sequence"),
    ({"uuids": "GPU-0"}, TypeError, "sequence"),
    ({"memory_limits": [0]}, ValueError, "unlimited"),
    ({"memory_limits": ["6GB"]}, ValueError, "6GB"),
    ({"memory_limits": [-1]}, ValueError, "not -1"),
    ({"memory_limits": [2**64]}, ValueError, str(2**64 - 1)),
    ({"memory_limits": ["80%"]}, ValueError, "80%"),
    ({"memory_limits": [1.5]}, TypeError, "float"),
    ({"sm_limits": [0]}, ValueError, "1 to 100"),
    ({"sm_limits": [101]}, ValueError, "1 to 100"),
    ({"sm_limits": ["half"]}, ValueError, "1 to 100"),
    ({"sm_limits": [50.0]}, TypeError, "int"),
    ({"sm_limits": [True]}, TypeError, "int"),
    ({"priority": 2**31}, ValueError, str(2**31)),
    ({"priority": "high"}, TypeError, "priority"),
    ({"uuids": [""]}, ValueError, "uuid"),
    ({"uuids": ["0f1c2a60"]}, ValueError, "uuid"),
    ({"uuids": ["GPU-" + "x" * 92]}, ValueError, "95"),
    ({"uuids": ["GPU-\u00e9"]}, ValueError, "uuid"),
    ({"uuids": ["GPU-\n"]}, ValueError, "uuid"),
    ({"uuids": ["GPU-\0"]}, ValueError, "uuid"),
    ({"layout": "1.2"}, TypeError, "Layout"),
    ({"layout": None}, ValueError, "out of range"),
]


def test_arguments_out_of_range_are_refused_and_nothing_is_made(tmp_path):
    for spec, error, match in REFUSED:
        with pytest.raises(error, match=match):
            create_region(tmp_path / "a.cache", **spec)
        assert list(tmp_path.iterdir()) == []


def make_file(path: Path) -> None:
    path.write_bytes(b"mine")


def make_link(path: Path) -> None:
    path.symlink_to("target.cache")


@pytest.mark.parametrize(
    "make", [make_file, Path.mkdir, make_link, os.mkfifo, create_region], ids=lambda f: f.__name__
)
def test_what_is_there_is_never_overwritten_or_followed(make, tmp_path):
    path = tmp_path / "a.cache"
    make(path)
    before = path.lstat()
    with pytest.raises(FileExistsError) as error:
        create_region(path, memory_limits=(5,))
    assert error.value.filename == str(path)
    assert error.value.errno == errno.EEXIST
    assert not isinstance(error.value, RegionError)
    after = path.lstat()
    assert (after.st_ino, after.st_size, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_missing_or_named_itself_is_told(tmp_path):
    path = tmp_path / "missing" / "a.cache"
    with pytest.raises(RegionNotFound) as error:
        create_region(path)
    assert error.value.path == str(path)
    with pytest.raises((NotARegion, FileExistsError)):
        create_region(f"{tmp_path}/")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_permission_is_told(public_directory):
    public_directory.chmod(0o555)
    path = public_directory / "a.cache"

    def create() -> str:
        with pytest.raises(RegionPermissionDenied) as error:
            create_region(path)
        assert error.value.path == str(path)
        return str(error.value)

    assert str(path) in unprivileged(create)
    assert list(public_directory.iterdir()) == []
    public_directory.chmod(0o777)
    assert unprivileged(lambda: create_region(path)) is None
    assert [entry.name for entry in public_directory.iterdir()] == ["a.cache"]


def test_a_file_system_that_refuses_the_size_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.cache"

    def create_within_a_megabyte() -> int | None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        with pytest.raises(OSError, match="large") as error:
            create_region(path)
        return error.value.errno

    assert in_child(create_within_a_megabyte) == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


# ---- how it appears ----


def test_who_opens_it_as_soon_as_its_name_appears_finds_it_complete(tmp_path):
    paths = [tmp_path / f"{number}.cache" for number in range(400)]
    ready, go = os.pipe()

    def watch() -> int:
        os.write(go, b"!")
        for path in paths:
            deadline = time.monotonic() + PATIENCE_S
            while not os.path.lexists(path):
                assert time.monotonic() < deadline
            # RegionNotReady, or a limit that is not there yet, would end this child.
            with open_region(path) as region:
                assert region.memory_limit(15) == 16
                assert region.snapshot().settled
                assert path.stat().st_mode & 0o777 == 0o666
        return len(paths)

    watched: list[int] = []
    watcher = threading.Thread(target=lambda: watched.append(in_child(watch)), daemon=True)
    watcher.start()
    os.read(ready, 1)
    for path in paths:
        create_region(path, memory_limits=range(1, 17))
    watcher.join(PATIENCE_S)
    os.close(ready)
    os.close(go)
    assert watched == [len(paths)]


def test_of_several_creators_one_wins_and_its_region_stays(tmp_path):
    for attempt in range(40):
        path = tmp_path / f"{attempt}.cache"
        start = threading.Barrier(4, timeout=PATIENCE_S)

        def create(number: int, path: Path = path, start: threading.Barrier = start) -> int | None:
            start.wait()
            try:
                create_region(path, memory_limits=(number,))
            except FileExistsError:
                return None
            return number

        with ThreadPoolExecutor(4) as pool:
            winners = [number for number in pool.map(create, [1, 2, 3, 4]) if number]
        assert len(winners) == 1
        with open_region(path) as region:
            assert region.memory_limit(0) == winners[0]
    assert len(list(tmp_path.iterdir())) == 40
