"""What is no region file is refused, each kind with its own error and a hint."""

import ctypes
import fcntl
import itertools
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.forked import meanwhile, unprivileged
from support.opening import ENTRANCES, open_writable, refused
from support.region_file import truncate
from support.wait import PATIENCE_S

from libhamiregion import (
    Layout,
    NotARegion,
    RegionCorrupt,
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


# ---- names that lead to no regular file ----


def test_what_is_not_there(tmp_path):
    hint = "once something in it uses CUDA"
    refused(tmp_path / "missing.cache", RegionNotFound, "does not exist", hint)
    refused(tmp_path / "missing" / "a.cache", RegionNotFound, "does not exist")
    (tmp_path / "file").write_bytes(b"")
    refused(tmp_path / "file" / "a.cache", RegionNotFound, "does not exist")


def test_a_directory(tmp_path):
    hint = "not a region file"
    (tmp_path / "a.cache").mkdir()
    for path in (tmp_path / "a.cache", "/"):
        refused(path, NotARegion, "a directory", hint)
    for name, enter in itertools.product(("", ".", ".."), ENTRANCES):
        with pytest.raises(NotARegion, match="a directory"):
            enter(f"{tmp_path}/{name}")


def test_a_symbolic_link_also_to_a_good_region(tmp_path, region_file):
    said = "a symbolic link, which a container could point anywhere"
    targets = (region_file().path, "nowhere", "a.cache", "/dev/zero", "/proc/self/mem", ".")
    for target in targets:
        link = tmp_path / "a.cache"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        refused(link, NotARegion, said, "give the path of the region file itself")


def test_a_directory_behind_a_link_is_the_callers_choice(tmp_path, region_file):
    file = region_file()
    (tmp_path / "linked").symlink_to(file.path.parent)
    with open_region(tmp_path / "linked" / file.path.name) as region:
        assert not region.is_stale()


def test_a_device_node_and_a_file_of_proc():
    for node in ("/dev/null", "/dev/zero", "/dev/full"):
        assert stat.S_ISCHR(Path(node).stat().st_mode)
        refused(node, NotARegion, "a device node")
    for enter in ENTRANCES:
        # Regular, of size 0, readable only.
        with pytest.raises((RegionNotReady, RegionPermissionDenied)):
            enter("/proc/self/maps")


def test_names_that_the_system_refuses_are_an_os_error_and_do_not_stop_a_set(tmp_path, region_file):
    long = tmp_path / ("x" * 256)
    for path in (long, Path("/" + "x/" * 3000 + "a.cache")):
        for enter in (identify, open_region, open_writable):
            with pytest.raises(OSError, match="too long"):
                enter(path)
    with RegionSet([region_file(), long, region_file()]) as region_set:
        assert len(region_set) == 2
        assert isinstance(region_set.errors[str(long)], OSError)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        open_region(tmp_path / "round" / "a.cache")


# ---- permission ----


def test_no_permission_for_the_file_or_its_directory(public_directory):
    path = public_directory / "a.cache"
    create_region(path)
    hint = "run as root or as the file's owner"

    def opened() -> bool:
        return all(enter(path) is not None for enter in ENTRANCES)

    for closed, mode, meant in ((path, 0o000, 0o666), (public_directory, 0o600, 0o755)):
        closed.chmod(mode)
        unprivileged(lambda: refused(path, RegionPermissionDenied, "Permission denied", hint))
        # It is the mode that was in the way.
        closed.chmod(meant)
        assert unprivileged(opened)


def test_permission_to_read_is_enough_to_read_and_not_to_write(public_directory):
    path = public_directory / "a.cache"
    create_region(path, memory_limits=(5,))
    path.chmod(0o444)

    def attempt() -> int | None:
        with pytest.raises(RegionPermissionDenied):
            open_writable(path)
        with open_region(path) as region:
            return region.snapshot().device(0).memory_limit_bytes

    assert unprivileged(attempt) == 5


# ---- regular files that are no regions, or not yet ----


def test_a_short_file_is_cut_if_it_has_its_magic_and_else_not_ready(tmp_path):
    path = tmp_path / "a.cache"
    path.write_bytes(b"")
    refused(path, RegionNotReady, "0 bytes", "try again in a moment")
    hint = "try again in a moment"
    for start, size in itertools.product((MAGIC, bytes(4)), (1, 3, 4, 2000, SMALLEST - 1)):
        path.write_bytes(start[:size])
        truncate(path, size)
        if start == MAGIC and size >= len(MAGIC):
            refused(path, RegionCorrupt, f"{size} bytes", "cut short")
            with pytest.raises(RegionCorrupt) as raised:
                open_region(path, timeout_s=60)
            assert raised.value.reason == "truncated"
        else:
            refused(path, RegionNotReady, f"{size} bytes", hint)
    path.write_bytes(b"#!/bin/sh\n")
    refused(path, NotARegion, "is not a HAMi region")


def test_a_file_without_its_magic_is_being_created_and_with_another_it_is_no_region(file):
    file.put("magic", 0)
    refused(file.path, RegionNotReady, "no magic number yet", "try again")
    for magic in (1, -1, 19920719, -(2**31)):
        file.put("magic", magic)
        said = (f"starts with {magic % 2**32} ", ".cache file that libvgpu made")
        refused(file.path, NotARegion, "is not a HAMi region", *said)
    file.put("magic", 19920718)
    for enter in ENTRANCES:
        assert enter(file) is not None


@pytest.mark.parametrize("magic", [b"1IMH", b"2IMH"])
def test_a_region_for_amds_gpus_is_refused_by_name(magic, tmp_path):
    path = tmp_path / "a.cache"
    path.write_bytes(magic.ljust(3_000_000, b"\0"))
    refused(path, NotARegion, "is amd-hami-core's region:")


@pytest.mark.parametrize("size", [2_140_032, 2_140_033])
def test_a_region_of_softmig_2_is_refused_and_named(size, tmp_path):
    path = tmp_path / "cudevshr.cache.v2.4711"
    for holder in (0, 128):
        # Its mutex has the holder where an older semaphore has its mark.
        header = MAGIC + bytes([2]).ljust(20, b"\0") + bytes([holder])
        path.write_bytes(header.ljust(size, b"\0"))
        refused(path, RegionCorrupt, "version 2.0 ", "of another program, as SoftMig 2.0,")


# ---- leases ----


@contextmanager
def leased(path: Path, kind: int) -> Iterator[None]:
    """A process holds a lease on a file, and does not give it back when it is asked."""
    ready, written = os.pipe()

    def lease() -> None:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        how = os.O_RDWR if kind == fcntl.F_WRLCK else os.O_RDONLY
        fcntl.fcntl(os.open(path, how), fcntl.F_SETLEASE, kind)
        os.write(written, b"1")
        signal.pause()

    with meanwhile(lease):
        os.close(written)
        if os.read(ready, 1) != b"1":
            pytest.skip("this file system has no leases")
        os.close(ready)
        yield


def test_a_lease_of_a_container_is_named_in_the_error(region_file):
    file = region_file()
    with leased(file.path, fcntl.F_WRLCK):
        for enter in (identify, open_region, open_writable):
            with pytest.raises(BlockingIOError, match="holds a lease on the file") as error:
                enter(file)
            assert error.value.filename == str(file.path)
    with leased(file.path, fcntl.F_RDLCK):
        open_region(file).close()
        with pytest.raises(BlockingIOError, match="holds a lease on the file"):
            open_writable(file)


# ---- names that change hands ----

AT_FDCWD, RENAME_EXCHANGE = -100, 2


def test_a_name_that_changes_hands_gives_the_region_or_the_error(region_file):
    """The container can swap the file for a link between our check of it and our opening of it."""
    file = region_file(memory_limits=(5,))
    secret = region_file(memory_limits=(666,))
    other = file.path.with_name("other")
    other.symlink_to(secret.path)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        pytest.skip("this libc has no renameat2()")
    first, second = os.fsencode(file.path), os.fsencode(other)
    opened = 0
    refused_as: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    with meanwhile(lambda: libc.renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE)):
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
    assert all("a symbolic link" in message for message in refused_as)
