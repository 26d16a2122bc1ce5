"""What is no region file is refused, each kind with its own error and a hint."""

import ctypes
import itertools
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked import unprivileged
from poke import RegionFileFactory, truncate

from libhamiregion import (
    Layout,
    NotARegion,
    RegionError,
    RegionNotFound,
    RegionNotReady,
    RegionPermissionDenied,
    RegionSet,
    create_region,
    identify,
    open_region,
)

SMALLEST = Layout.UNVERSIONED_NO_UTIL.size_bytes
MAGIC = (19920718).to_bytes(4, "little")
PATIENCE_S = 20


def open_writable(path: Any) -> object:
    return open_region(path, writable=True)


def open_in_set(path: Any) -> object:
    with RegionSet() as region_set:
        if not region_set.add(path):
            (error,) = region_set.errors.values()
            raise error
        return region_set.paths


ENTRANCES: dict[str, Callable[[Any], object]] = {
    "identify": identify,
    "open": open_region,
    "open writable": open_writable,
    "set": open_in_set,
}


@pytest.fixture(params=ENTRANCES.values(), ids=ENTRANCES)
def enter(request: pytest.FixtureRequest) -> Callable[[Any], object]:
    """Each way to open a region."""
    chosen: Callable[[Any], object] = request.param
    return chosen


def refused(
    enter: Callable[[Any], object], path: Any, error: type[RegionError], *said: str
) -> RegionError:
    """The error, exactly of that class; its message has the path and these words."""
    with pytest.raises(error) as raised:
        enter(path)
    assert type(raised.value) is error
    assert raised.value.path == str(path)
    for words in (repr(str(path)), *said):
        assert words in str(raised.value)
    return raised.value


# ---- names that lead to no regular file ----


def test_a_missing_file(enter: Callable[[Any], object], tmp_path: Path) -> None:
    refused(
        enter,
        tmp_path / "missing.cache",
        RegionNotFound,
        "does not exist",
        "once something in it uses CUDA",
    )


def test_a_missing_directory(enter: Callable[[Any], object], tmp_path: Path) -> None:
    refused(enter, tmp_path / "missing" / "a.cache", RegionNotFound, "does not exist")


def test_a_file_in_the_place_of_the_directory(
    enter: Callable[[Any], object], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused(enter, tmp_path / "file" / "a.cache", RegionNotFound, "does not exist")


def test_a_directory(enter: Callable[[Any], object], tmp_path: Path) -> None:
    (tmp_path / "a.cache").mkdir()
    refused(
        enter,
        tmp_path / "a.cache",
        NotARegion,
        "a directory",
        "give the path of the region file itself",
    )


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_of_directories(name: str, enter: Callable[[Any], object], tmp_path: Path) -> None:
    with pytest.raises(NotARegion, match="a directory"):
        enter(f"{tmp_path}/{name}")


def test_the_root(enter: Callable[[Any], object]) -> None:
    refused(enter, "/", NotARegion, "a directory")


def test_a_fifo_is_refused_at_once(enter: Callable[[Any], object], tmp_path: Path) -> None:
    """Opening a FIFO that nobody writes to would block for ever."""
    path = tmp_path / "a.cache"
    os.mkfifo(path)
    done: list[RegionError] = []
    opener = threading.Thread(
        target=lambda: done.append(refused(enter, path, NotARegion, "a FIFO")), daemon=True
    )
    opener.start()
    opener.join(PATIENCE_S)
    assert len(done) == 1, "the FIFO was opened, or the wrong error came"


def test_a_socket(
    enter: Callable[[Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Relative, because the path of a socket may have 107 bytes only.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("a.cache")
        refused(enter, tmp_path / "a.cache", NotARegion, "a socket")


def test_a_symbolic_link_also_to_a_good_region(
    enter: Callable[[Any], object], tmp_path: Path, region_file: RegionFileFactory
) -> None:
    link = tmp_path / "a.cache"
    link.symlink_to(region_file())
    refused(
        enter,
        link,
        NotARegion,
        "a symbolic link, which a container could point anywhere",
        "give the path of the region file itself",
    )


@pytest.mark.parametrize("target", ["nowhere", "a.cache", "/dev/zero", "/proc/self/mem", "."])
def test_a_symbolic_link_to_anything_else(
    target: str, enter: Callable[[Any], object], tmp_path: Path
) -> None:
    link = tmp_path / "a.cache"
    link.symlink_to(target)
    refused(enter, link, NotARegion, "a symbolic link")


def test_a_directory_behind_a_link_is_the_callers_choice(
    tmp_path: Path, region_file: RegionFileFactory
) -> None:
    file = region_file()
    (tmp_path / "linked").symlink_to(file.path.parent)
    with open_region(tmp_path / "linked" / file.path.name) as region:
        assert not region.is_stale()


@pytest.mark.parametrize("node", ["/dev/null", "/dev/zero", "/dev/full"])
def test_a_device_node(node: str, enter: Callable[[Any], object]) -> None:
    assert stat.S_ISCHR(Path(node).stat().st_mode)
    refused(enter, node, NotARegion, "a device node")


def test_a_file_of_proc_is_no_region(enter: Callable[[Any], object]) -> None:
    # Regular, of size 0, readable only.
    with pytest.raises((RegionNotReady, RegionPermissionDenied)):
        enter("/proc/self/maps")


@pytest.mark.parametrize("enter", [identify, open_region, open_writable])
def test_a_name_too_long_is_an_os_error(enter: Callable[[Any], object], tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 256), Path("/" + "x/" * 3000 + "a.cache")):
        with pytest.raises(OSError, match="too long"):
            enter(path)


def test_a_name_too_long_does_not_stop_a_set(
    tmp_path: Path, region_file: RegionFileFactory
) -> None:
    long = str(tmp_path / ("x" * 256))
    with RegionSet([region_file(), long, region_file()]) as region_set:
        assert len(region_set) == 2
        assert isinstance(region_set.errors[long], OSError)


def test_links_that_go_round_in_the_directory_part_are_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        open_region(tmp_path / "round" / "a.cache")


# ---- permission ----


def test_no_permission_for_the_file(enter: Callable[[Any], object], public_directory: Path) -> None:
    path = public_directory / "a.cache"
    create_region(path)
    path.chmod(0o000)

    def attempt() -> str:
        hint = "run as root or as the file's owner"
        return str(refused(enter, path, RegionPermissionDenied, "refused", hint))

    assert "Permission denied" in unprivileged(attempt)
    # It is the file's mode that was in the way.
    path.chmod(0o666)
    assert unprivileged(lambda: enter(path) is not None)


def test_no_permission_for_the_directory(
    enter: Callable[[Any], object], public_directory: Path
) -> None:
    path = public_directory / "a.cache"
    create_region(path)
    public_directory.chmod(0o600)
    unprivileged(lambda: str(refused(enter, path, RegionPermissionDenied, "refused")))
    public_directory.chmod(0o755)
    assert unprivileged(lambda: enter(path) is not None)


def test_permission_to_read_is_enough_to_read_and_not_to_write(public_directory: Path) -> None:
    path = public_directory / "a.cache"
    create_region(path, memory_limits=(5,))
    path.chmod(0o444)

    def attempt() -> int | None:
        refused(open_writable, path, RegionPermissionDenied)
        with open_region(path) as region:
            return region.snapshot().device(0).memory_limit_bytes

    assert unprivileged(attempt) == 5


# ---- regular files that are no regions, or not yet ----


def test_an_empty_file_is_not_ready(enter: Callable[[Any], object], tmp_path: Path) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(b"")
    refused(enter, path, RegionNotReady, "it is empty", "try again in a moment")


@pytest.mark.parametrize("size", [1, 3, 4, 2000, SMALLEST - 1])
@pytest.mark.parametrize("start", [MAGIC, bytes(4)], ids=["magic", "no magic"])
def test_a_short_file_is_not_ready(
    start: bytes, size: int, enter: Callable[[Any], object], tmp_path: Path
) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(start[:size])
    truncate(path, size)
    refused(
        enter,
        path,
        RegionNotReady,
        f"{size} bytes",
        str(SMALLEST),
        "it may be in the making, try again in a moment",
    )


def test_a_file_without_its_magic_is_being_created(
    layout: Layout, enter: Callable[[Any], object], region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.put("magic", 0)
    refused(enter, file.path, RegionNotReady, "magic number is not set yet", "try again")
    file.put("magic", 19920718)
    assert enter(file) is not None


@pytest.mark.parametrize("magic", [1, -1, 19920719, -(2**31)])
def test_another_magic_is_no_region(
    magic: int, layout: Layout, enter: Callable[[Any], object], region_file: RegionFileFactory
) -> None:
    file = region_file(layout)
    file.put("magic", magic)
    refused(
        enter,
        file.path,
        NotARegion,
        "is not a HAMi region",
        f"starts with {magic % 2**32} ",
        ".cache file that libvgpu made",
    )


def test_a_short_file_with_another_magic_is_no_region(
    enter: Callable[[Any], object], tmp_path: Path
) -> None:
    path = tmp_path / "a.cache"
    path.write_bytes(b"#!/bin/sh\n")
    refused(enter, path, NotARegion, "is not a HAMi region")


# ---- names that change hands ----

AT_FDCWD, RENAME_EXCHANGE = -100, 2


@contextmanager
def exchanged_without_pause(first: Path, second: Path) -> Iterator[None]:
    """Another process swaps two names, as often as it can, until the block is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        pytest.skip("this libc has no renameat2()")
    names = os.fsencode(first), os.fsencode(second)
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def make_fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path, _: Path) -> None:
    path.mkdir()


def make_socket(path: Path, _: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o666)


def make_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_link, "a symbolic link"),
        (make_fifo, "a FIFO"),
        (make_directory, "a directory"),
        (make_socket, "a socket"),
    ],
    ids=["link", "fifo", "directory", "socket"],
)
def test_a_name_that_changes_hands_gives_the_region_or_the_error(
    make: Callable[[Path, Path], None], kind: str, region_file: RegionFileFactory
) -> None:
    """The container can swap the file between our look at it and our opening of it."""
    file = region_file(memory_limits=(5,))
    secret = region_file(memory_limits=(666,))
    other = file.path.with_name("other")
    make(other, secret.path)
    opened = 0
    refused_as: list[str] = []
    deadline = time.monotonic() + 30
    with exchanged_without_pause(file.path, other):
        for attempt in itertools.count():
            if attempt >= 6000 and min(opened, len(refused_as)) > 100:
                break
            assert time.monotonic() < deadline, (opened, len(refused_as))
            try:
                with open_region(file, writable=attempt % 2 == 1) as region:
                    # Never what a link points to.
                    assert region.memory_limit(0) == 5
                opened += 1
            except NotARegion as error:
                refused_as.append(str(error))
    assert all(kind in message for message in refused_as)
