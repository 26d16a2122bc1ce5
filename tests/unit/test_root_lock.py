"""Locks on roots: two agents exclude each other, and nobody else excludes an agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libhamiregion.node.root_lock import RootLock, RootLocked, RootUse, is_root_locked

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "containers").mkdir()
    return str(tmp_path / "containers")


@pytest.fixture(params=["a directory of locks", "none", "one that cannot be made", "a file"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where locks are kept, in each of the ways that there are."""
    kind: str = request.param
    if kind == "none":
        monkeypatch.delenv("HAMIREGION_LOCKS")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        return kind
    where = {"one that cannot be made": "missing/locks"}.get(kind, "locks")
    monkeypatch.setenv("HAMIREGION_LOCKS", str(tmp_path / where))
    if kind == "a file":
        (tmp_path / where).write_text("no directory")
    return kind


@contextlib.contextmanager
def locked_by_a_container(root: str) -> Iterator[None]:
    """Both bytes of the root, as whoever can open it for reading can have them."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        for use in RootUse:
            asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, use, 1, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("place")
def test_one_at_a_time_has_a_root_for_each_use(root: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    first, second, plan = (RootLock(use) for use in (*[RootUse.FEEDBACK] * 2, RootUse.PLAN))
    with contextlib.ExitStack() as stack:
        for each in (first, second, plan):
            stack.callback(each.close)
        first.hold([root])
        first.hold([root, str(link)])
        assert is_root_locked([root], RootUse.FEEDBACK)
        assert not is_root_locked([root], RootUse.PLAN)
        plan.hold([root])
        with pytest.raises(RootLocked, match="another process has it locked"):
            second.hold([str(link)])
        first.close()
        assert not is_root_locked([root], RootUse.FEEDBACK)
        second.hold([str(link)])
        # A root that is not asked for any more is let go.
        second.hold([])
        first.hold([root])


def test_a_container_that_locks_the_root_keeps_no_agent_out(root: str) -> None:
    with locked_by_a_container(root):
        assert not is_root_locked([root], RootUse.FEEDBACK)
        with contextlib.closing(RootLock(RootUse.FEEDBACK)) as lock:
            lock.hold([root])
            assert is_root_locked([root], RootUse.FEEDBACK)
        # Nor while the agent looks, or after another one.
        with contextlib.closing(RootLock(RootUse.FEEDBACK)) as lock:
            lock.hold([root])


def test_an_ordinary_user_gives_way_to_root(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(RootLock(RootUse.PLAN)) as ours:
        ours.hold([root])
        monkeypatch.delenv("HAMIREGION_LOCKS")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert is_root_locked([root], RootUse.PLAN)
        with contextlib.closing(RootLock(RootUse.PLAN)) as user, pytest.raises(RootLocked):
            user.hold([root])


def test_nothing_is_written_into_the_root(root: str) -> None:
    Path(root).chmod(0o555)
    with contextlib.closing(RootLock(RootUse.PLAN)) as lock:
        lock.hold([root])
        assert is_root_locked([root], RootUse.PLAN)
    assert list(Path(root).iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_lies_in_a_lock_s_place_is_not_followed_and_not_waited_for(
    root: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    locks = tmp_path / "locks"
    monkeypatch.setenv("HAMIREGION_LOCKS", str(locks))
    status = Path(root).stat()
    locks.mkdir()
    place = locks / f"{status.st_dev:x}-{status.st_ino:x}.lock"
    if kind == "link":
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    with contextlib.closing(RootLock(RootUse.PLAN)) as lock:
        lock.hold([root])
        lock.hold([root])
    assert caplog.text.count("the roots themselves are locked") == 1
    assert not (tmp_path / "elsewhere").exists()


def test_only_the_owner_can_open_a_lock(root: str, tmp_path: Path) -> None:
    with contextlib.closing(RootLock(RootUse.PLAN)) as lock:
        os.environ["HAMIREGION_LOCKS"], before = str(tmp_path / "l"), os.environ["HAMIREGION_LOCKS"]
        try:
            lock.hold([root])
        finally:
            os.environ["HAMIREGION_LOCKS"] = before
    (file,) = (tmp_path / "l").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
