"""A lock that somebody holds, or may hold as far as anybody can tell, is never broken."""

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.actors import ProcessFactory
from support.lock_bytes import NOBODY, hold, set_value, value_of
from support.namespaces import why_no_new_namespace
from support.recovering import assert_usable, did, recover
from support.region_file import RegionFile, unchanged
from support.slot_bytes import pids
from support.wait import eventually

from libhamiregion import Layout, LockNotRecoverable, LockTimeout, create_region, open_region


def test_a_lock_that_libvgpu_holds_is_never_broken(file, actor):
    holder = actor(file)
    others = [actor(file), actor(file)]
    hold(file, holder.pid)
    with unchanged(file):
        for _ in range(15):
            for other in others:
                other.start("region.recover_lock", watch_s=0)
            for other in others:
                with pytest.raises(LockNotRecoverable) as caught:
                    other.outcome()
            with open_region(file, writable=True) as region:
                with pytest.raises(LockTimeout), region.lock(0.001):
                    pass
                with pytest.raises(LockTimeout):
                    region.attach(timeout_s=0.001)
    for part in (f"pid {holder.pid_here}", f"signed by pid {holder.pid}", "live", str(file.path)):
        assert part in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.path) == (
        LockNotRecoverable,
        str(caught.value),
        str(file.path),
    )


def test_a_holder_that_is_stopped_lives(file, actor):
    holder = actor(file)
    hold(file, holder.pid)
    os.kill(holder.pid_here, signal.SIGSTOP)
    eventually(lambda: b") T " in Path(f"/proc/{holder.pid_here}/stat").read_bytes())
    with pytest.raises(LockNotRecoverable, match="live"):
        recover(file)
    assert (value_of(file), file.get("owner_pid")) == (0, holder.pid)
    # One that is killed while it is stopped does not.
    holder.kill()
    assert recover(file) == did(dead_owner=True)


@pytest.mark.parametrize("attached", [False, True])
def test_a_lock_that_this_library_holds_is_never_broken(attached, file, actor):
    holder = actor(file)
    if attached:
        holder("attach")
    holder("lock")
    with unchanged(file), pytest.raises(LockNotRecoverable, match="live"):
        recover(file)
    holder("unlock")
    assert_usable(file)


# ---- what cannot be told is left alone ----


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_where_proc_shows_nobody_nothing_is_done(owner, file, tmp_path):
    hold(file, owner)
    nothing = tmp_path / "proc"
    nothing.mkdir()
    with unchanged(file), open_region(file, writable=True) as region:
        with pytest.raises(LockNotRecoverable):
            region.recover_lock(proc=nothing, watch_s=0)
        with pytest.raises(FileNotFoundError):
            region.recover_lock(proc=tmp_path / "missing", watch_s=0)


@pytest.fixture
def hidden(public_directory) -> Iterator[Callable[[int], ProcessFactory]]:
    """Factories with a /proc at ``public_directory / "proc"`` that hides others' processes."""
    reason = why_no_new_namespace()
    if reason:
        pytest.skip(reason)
    place = public_directory / "proc"
    place.mkdir()
    with contextlib.ExitStack() as made:

        def make(hidepid: int) -> ProcessFactory:
            mount = f'mount -t proc -o hidepid={hidepid} proc "$0" && exec "$@"'
            factory = ProcessFactory("unshare", "--mount", "sh", "-c", mount, str(place))
            return made.enter_context(contextlib.closing(factory))

        yield make


# A process that has changed its user may not look at itself until it is dumpable again.
DROP_PRIVILEGES = """
import ctypes, os
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
answer = ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


@pytest.mark.root
@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_holder_that_is_hidden_from_an_unprivileged_user_is_not_taken_for_dead(
    hidepid, public_directory, hidden, actor
):
    create_region(public_directory / "r.cache", layout=Layout.V1_1)
    file = RegionFile(public_directory / "r.cache", Layout.V1_1)
    holder = actor(file, attach=True)
    hold(file, holder.pid)
    nobody = hidden(hidepid).actor(file)
    nobody("evaluate", DROP_PRIVILEGES)
    with unchanged(file):
        proc = str(public_directory / "proc")
        assert nobody("region.lock_state", proc=proc).owner_life == "unknown"
        with pytest.raises(LockNotRecoverable, match="not known"):
            nobody("region.recover_lock", proc=proc, watch_s=0)
    hold(file, 0)
    with pytest.raises(LockNotRecoverable):
        nobody("region.recover_lock", proc=proc, watch_s=0)
    set_value(file, 1)
    assert nobody("region.reap", proc=proc) == ()
    assert holder.pid in pids(file)
