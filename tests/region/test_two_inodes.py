"""One file with two inodes, as below an overlay, and two files with one number."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.actors import Actor, ProcessFactory
from support.namespaces import overlay_mount, own_mounts
from support.wait import eventually

from libhamiregion import LockNotRecoverable, LockTimeout

pytestmark = pytest.mark.root


@pytest.fixture
def overlay(tmp_path) -> Iterator[tuple[ProcessFactory, Path, Path]]:
    """Processes that see an overlay, its directory, and the upper one below it."""
    inside, merged, upper = overlay_mount(tmp_path)
    with contextlib.closing(ProcessFactory(*inside)) as process_factory:
        yield process_factory, merged, upper


@pytest.mark.parametrize("through_it", ["the process", "who looks for it"])
def test_a_process_that_maps_the_file_beside_an_overlay_is_not_taken_for_dead(
    through_it, overlay, region_file, actor
):
    process_factory, merged, upper = overlay
    file = region_file()
    file.path.rename(upper / "usage.cache")
    inside = functools.partial(process_factory.actor, merged / "usage.cache")
    below = functools.partial(actor, upper / "usage.cache")
    start, look = (inside, below) if through_it == "the process" else (below, inside)
    container = start()
    container("attach")
    container("slot.charge", 0, 640)
    reaper = look()
    assert reaper("region.reap") == ()
    with pytest.raises(ValueError, match="not known"):
        reaper("region.reap", [container.pid])
    assert container("region.memory_used", 0) == 640
    container.kill()
    assert len(reaper("region.reap")) == 1


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("by", ["another mount namespace", "a bind mount"])
def test_a_holder_that_came_through_an_overlay_is_not_robbed_from_below(
    by, layout, overlay, region_file, actor
):
    """A lock on a byte of the one inode says nothing about who has locked that of the other."""
    process_factory, merged, upper = overlay
    file = region_file(layout)
    file.path.rename(upper / "usage.cache")
    holder = process_factory.actor(merged / "usage.cache")
    holder("lock")
    with contextlib.ExitStack() as ended:
        if by == "a bind mount":
            bound = upper.parent / "bound"
            bound.mkdir()
            mount = f'mount --bind {upper} {bound} && exec "$@"'
            inside = ("nsenter", "--mount", "--target", str(holder.pid), "sh", "-c", mount, "sh")
            writers = ended.enter_context(contextlib.closing(ProcessFactory(*inside)))
            writer = writers.actor(bound / "usage.cache")
        else:
            writer = actor(upper / "usage.cache")
        assert_not_robbed(holder, writer)


OWNER_LIFE = "answer = region.lock_state().owner_life"


def assert_not_robbed(holder: Actor, writer: Actor) -> None:
    """The holder lives, and maps the file by another inode."""
    with pytest.raises(LockTimeout):
        writer("lock", 0.3)
    assert writer("evaluate", OWNER_LIFE) == "unknown"
    holder("unlock")
    writer("lock")
    writer("unlock")
    holder("lock")
    holder.kill()

    def is_recovered() -> bool:
        # On a busy machine not every process may be looked at in time: then there is no proof.
        with contextlib.suppress(LockNotRecoverable):
            return bool(writer("evaluate", "answer = region.recover_lock(watch_s=0).dead_owner"))
        return False

    eventually(is_recovered)
    writer("lock")
    writer("unlock")


CREATE = """
import os
from libhamiregion import create_region
create_region(path)
answer = os.stat(path).st_ino
"""
FORGE = """
import mmap, os
flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
number = 0
# Those of a new file system count upwards.
while number < inode:
    at = os.open(f"{path}.{number}", flags)
    number = os.fstat(at).st_ino
os.ftruncate(at, 4 << 20)
scene.mapping = mmap.mmap(at, 0)
answer = number
"""


@pytest.fixture
def two_file_systems(tmp_path) -> Iterator[tuple[ProcessFactory, Path, Path]]:
    """Where processes see two new file systems, and their directories."""
    ours, forged = tmp_path / "ours", tmp_path / "forged"
    for directory in (ours, forged):
        directory.mkdir()
    inside = own_mounts(*(f"-t tmpfs tmpfs {each}" for each in (ours, forged)))
    with contextlib.closing(ProcessFactory(*inside)) as process_factory:
        yield process_factory, ours, forged


@pytest.mark.parametrize("attached", [False, True], ids=["with a number", "with its pid"])
def test_a_neighbour_that_forges_the_inode_keeps_no_dead_holders_lock(attached, two_file_systems):
    """It maps a file with the same inode number on a file system of its own."""
    process_factory, ours, forged = two_file_systems
    path = ours / "usage.cache"
    inode = process_factory.actor()("evaluate", CREATE, path=str(path))
    neighbour = process_factory.actor()
    assert neighbour("evaluate", FORGE, path=str(forged / "file"), inode=inode) == inode
    holder, writer = process_factory.actor(path), process_factory.actor(path)
    if attached:
        holder("attach")
    holder("lock")
    with pytest.raises(LockTimeout):
        writer("lock", 0.3)
    holder.kill()
    writer("lock")
    writer("unlock")


def test_beside_an_overlay_a_byte_is_a_proof(overlay, region_file):
    """Also where a name begins as that of its upper directory does."""
    process_factory, _, upper = overlay
    beside = upper.parent / f"{upper.name}-not" / "usage.cache"
    beside.parent.mkdir()
    region_file().path.rename(beside)
    holder, writer = process_factory.actor(beside), process_factory.actor(beside)
    holder("lock")
    assert writer("evaluate", OWNER_LIFE) == "alive"
    holder.kill()
    assert writer("evaluate", OWNER_LIFE) == "dead"
