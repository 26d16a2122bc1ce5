"""A container puts a link to a file system that never answers in the place of its directory."""

import ctypes
import os
import sys
from pathlib import Path

import pytest
from support import fuse_mount
from support.process import finished
from support.region_file import truncate

from libhamiregion import Layout, RegionStale, create_region
from libhamiregion.region import open_in_container

_CLONE_NEWNS = 0x20000
_MS_PRIVATE, _MS_REC = 1 << 18, 1 << 14


def cut_and_look(directory: Path, layout: Layout) -> None:
    """Run in a process of its own, which may hang."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(_CLONE_NEWNS) == 0
    assert libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
    place, dead = directory / "place", directory / "dead"
    place.mkdir()
    dead.mkdir()
    path = place / "r.cache"
    create_region(path, layout=layout)
    region = open_in_container(str(path), writable=True)
    with region.lock():
        pass
    fuse_mount.mount(dead)
    truncate(path, 0)
    place.rename(directory / "elsewhere")
    place.symlink_to(dead)
    for call in (
        region.snapshot,
        lambda: region.memory_used(0),
        lambda: region.set_memory_limit("1GiB", device=0),
        lambda: region.set_priority(1),
        lambda: region.lock(0).__enter__(),
        region.lock_state,
        region.attach,
    ):
        try:
            call()
        except RegionStale:
            continue
        raise AssertionError(call)
    assert region.is_stale()
    # And nobody keeps the lock that forking needs.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    region.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a FUSE")
@pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs /dev/fuse")
def test_nothing_that_is_asked_of_the_region_waits_for_the_link(layout, tmp_path):
    done = finished(
        [sys.executable, __file__, tmp_path, layout.value],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


if __name__ == "__main__":
    cut_and_look(Path(sys.argv[1]), Layout(sys.argv[2]))
    os._exit(0)
