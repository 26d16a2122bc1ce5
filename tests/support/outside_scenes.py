"""Scenes around regions outside the roots; run in a pid and mount namespace of its own.

    unshare --pid --fork --kill-child --mount-proc python outside_scenes.py SCENE DIRECTORY

There /proc shows the scene's processes and no others, and what is mounted goes with it. The first
process of the namespace is the scene itself, so its mounts are "the host's".
"""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from libhamiregion import Layout, create_region, open_region
from libhamiregion.doctor import examine
from libhamiregion.node import Container, Node, Observer
from libhamiregion.units import GIB
from support import fuse_mount
from support.observing import details

_CLONE_NEWNS = 0x20000
_MS_BIND = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


def in_container(work: Callable[[], object]) -> int:
    """Fork a process with mounts of its own that does its work and waits; return its pid."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        if LIBC.unshare(_CLONE_NEWNS) != 0:
            os._exit(9)
        kept = work()
        os.write(told, b"!")
        threading.Event().wait()
        os._exit(kept is None)
    assert os.read(ready, 1) == b"!"
    return pid


def mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), Layout.V1_2.size_bytes)


def only_region(directory: Path) -> Container:
    empty = directory / "empty"
    empty.mkdir(exist_ok=True)
    with Node(empty, outside=True) as node:
        node.refresh()
        (found,) = node.containers
        if found.region is not None:
            assert found.region.memory_limit(0) == GIB
            with node.open(found) as opened:
                opened.set_memory_limit(2 * GIB)
                with opened.lock():
                    pass
            assert found.region.memory_limit(0) == 2 * GIB
        assert len(details(node)) == 1
        # Nor does anything of these hang.
        node.slots(node.snapshot())
        examine(Observer.for_command(node), settle_s=0.1)
    return found


def dead_fuse_over_the_directory(directory: Path) -> None:
    """A container maps its region, then mounts a FUSE over the directory that nobody serves."""
    path = directory / "private" / "cudevshr.cache"
    path.parent.mkdir()
    create_region(path, memory_limits=(GIB,))

    def work() -> object:
        kept = mapped(path)
        return kept, fuse_mount.mount(path.parent)

    pid = in_container(work)
    looked = ["timeout", "-s", "KILL", "0.3", "stat", f"/proc/{pid}/root{path}"]
    assert subprocess.run(looked, check=False).returncode != 0, "the FUSE is not dead"
    found = only_region(directory)
    assert found.missing is None
    assert found.path_in_namespace == str(path)


def file_on_a_fuse(directory: Path) -> None:
    """A container maps a file that lies on a FUSE whose server has stopped."""
    place = directory / "private"
    place.mkdir()

    def work() -> object:
        descriptor = fuse_mount.mount(place)
        stop = threading.Event()
        serve = threading.Thread(
            target=fuse_mount.serve_one_file,
            args=(descriptor, Layout.V1_2.size_bytes + 1, stop),
            daemon=True,
        )
        serve.start()
        kept = mapped(place / "cudevshr.cache")
        stop.set()
        return kept

    pid = in_container(work)
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="ascii")
    assert "cudevshr.cache" in maps, maps
    found = only_region(directory)
    assert found.region is None
    assert "can hang" in found.missing.message, found.missing
    # Nor does the core, where the file has come there since maps was read.
    (line,) = (line for line in maps.splitlines() if "cudevshr.cache" in line)
    with pytest.raises(OSError, match=os.strerror(errno.EREMOTE)):
        open_region(f"/proc/{pid}/map_files/{line.split()[0]}")


def region_on_an_overlay(directory: Path) -> None:
    """Plain Docker: the host has mounted the overlay that the container's files lie on."""
    lower, upper, work, merged = (directory / name for name in ("lower", "upper", "work", "merged"))
    for each in (lower, upper, work, merged):
        each.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}".encode()
    assert LIBC.mount(b"overlay", os.fsencode(merged), b"overlay", 0, options) == 0
    path = merged / "cudevshr.cache"
    create_region(path, memory_limits=(GIB,))
    in_container(lambda: mapped(path))
    found = only_region(directory)
    assert found.missing is None, found.missing
    assert found.path_in_namespace == str(path)


def mount_of_the_containers_own(directory: Path) -> None:
    """What a container mounts itself is not the host's, of whatever type it is."""
    place = directory / "private"
    place.mkdir()

    def work() -> object:
        assert LIBC.mount(b"none", os.fsencode(place), b"tmpfs", 0, None) == 0
        create_region(place / "cudevshr.cache", memory_limits=(GIB,))
        return mapped(place / "cudevshr.cache")

    in_container(work)
    found = only_region(directory)
    assert found.region is None
    assert "has not mounted" in found.missing.message, found.missing


def more_mounts_than_are_read(directory: Path) -> None:
    """A process can make its own list of mounts as long as it likes."""
    place, named = directory / "private", b"/".join([os.fsencode(directory), *[b" " * 255] * 14])
    for each in (place, directory / "bound"):
        each.mkdir()
    create_region(place / "cudevshr.cache", memory_limits=(GIB,))
    Path(os.fsdecode(named)).mkdir(parents=True)

    def work() -> object:
        for _ in range(700):
            assert LIBC.mount(b"none", named, b"tmpfs", 0, b"size=4k") == 0
        bound = directory / "bound"
        assert LIBC.mount(os.fsencode(place), os.fsencode(bound), None, _MS_BIND, None) == 0
        return mapped(bound / "cudevshr.cache")

    pid = in_container(work)
    assert len(Path(f"/proc/{pid}/mountinfo").read_bytes()) > 9 << 20
    found = only_region(directory)
    assert found.region is None
    assert "has not mounted" in found.missing.message, found.missing


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
