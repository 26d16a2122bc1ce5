"""Locks on roots: two agents exclude each other, and no one else excludes an agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
from pathlib import Path

import pytest

from libhamiregion.node.node_lock import LockUse, NodeLock, NodeLocked, is_node_locked


@pytest.fixture
def root(tmp_path) -> str:
    (tmp_path / "containers").mkdir()
    return str(tmp_path / "containers")


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HAMIREGION_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_one_process_at_a_time_has_a_root_for_each_use(root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    first, second, plan = (NodeLock(use) for use in (*[LockUse.FEEDBACK] * 2, LockUse.PLAN))
    with contextlib.ExitStack() as stack:
        for each in (first, second, plan):
            stack.callback(each.close)
        assert not is_node_locked([root], LockUse.FEEDBACK)
        first.hold([root])
        first.hold([root, str(link), str(tmp_path / "none")])
        assert is_node_locked([root], LockUse.FEEDBACK)
        assert not is_node_locked([root], LockUse.PLAN)
        plan.hold([root])
        with pytest.raises(NodeLocked, match="another process has it locked") as caught:
            second.hold([str(link)])
        assert pickle.loads(pickle.dumps(caught.value)).root == str(link)
        first.close()
        assert not is_node_locked([root], LockUse.FEEDBACK)
        second.hold([str(link)])
        # A root that is not asked for any more is unlocked.
        second.hold([])
        first.hold([root])


def test_a_container_that_locks_the_root_keeps_no_agent_out(root):
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert not is_node_locked([root], LockUse.FEEDBACK)
        with contextlib.closing(NodeLock(LockUse.FEEDBACK)) as lock:
            lock.hold([root])
    finally:
        os.close(descriptor)


def test_nothing_is_written_into_the_root(root):
    Path(root).chmod(0o555)
    with contextlib.closing(NodeLock(LockUse.PLAN)) as lock:
        lock.hold([root])
    assert list(Path(root).iterdir()) == []


def test_a_lock_that_ends_with_its_process_is_free(root):
    pid = os.fork()
    if pid == 0:
        NodeLock(LockUse.PLAN).hold([root])
        os._exit(0)
    os.waitpid(pid, 0)
    assert not is_node_locked([root], LockUse.PLAN)


def test_only_the_owner_can_open_a_lock(root, locks):
    with contextlib.closing(NodeLock(LockUse.PLAN)) as lock:
        lock.hold([root])
    (file,) = locks.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert locks.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("made_by", ["open to all", "a link", "another user"])
def test_a_directory_of_locks_that_others_can_write_is_refused(root, locks, tmp_path, made_by):
    """In /tmp anyone can make the directory first."""
    if made_by == "a link":
        (tmp_path / "elsewhere").mkdir()
        locks.symlink_to(tmp_path / "elsewhere")
    else:
        locks.mkdir()
        locks.chmod(0o777 if made_by == "open to all" else 0o755)
    if made_by == "another user":
        if os.geteuid():
            pytest.skip("needs root to give a directory away")
        os.chown(locks, 65534, -1)
    with (
        contextlib.closing(NodeLock(LockUse.PLAN)) as lock,
        pytest.raises(PermissionError, match="others can write"),
    ):
        lock.hold([root])
    assert list(locks.iterdir()) == []


def test_a_link_in_the_place_of_a_lock_is_not_followed_and_no_other_root_stays_locked(root, locks):
    status = Path(root).stat()
    locks.mkdir()
    place = locks / f"plan-{status.st_dev:x}-{status.st_ino:x}.lock"
    place.symlink_to(locks / "elsewhere")
    with contextlib.closing(NodeLock(LockUse.PLAN)) as lock:
        with pytest.raises(OSError, match="link"):
            lock.hold([str(locks), root])
        assert not is_node_locked([str(locks)], LockUse.PLAN)
    assert not (locks / "elsewhere").exists()
