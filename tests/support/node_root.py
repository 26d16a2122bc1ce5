"""A root with containers' directories, made and changed as a device plugin and containers do."""

import itertools
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from libhamiregion import create_region
from libhamiregion.node import Container, MissingReason, Node, RootsUnreadable
from support.wait import eventually

# Any number of seconds that lies well in the past: a directory is not settled while it is young.
_clock = itertools.count(1_700_000_000)


def pod_uid() -> str:
    return str(uuid.uuid4())


class Root:
    """The directory ``containers`` of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def __fspath__(self) -> str:
        return str(self.path)

    def container(self, name: str = "train", uid: str | None = None) -> Path:
        """A directory as the device plugin makes it: everybody may write it."""
        directory = self.path / f"{uid or pod_uid()}_{name}"
        directory.mkdir()
        directory.chmod(0o777)
        return directory

    def region(self, name: str = "train", file: str = "a.cache", **spec: Any) -> Path:
        """A container with a region; the path of its file."""
        path = self.container(name) / file
        create_region(path, **spec)
        touch(path)
        return path


def touch(path: Path) -> None:
    """Make it newer than all that was touched before."""
    now = next(_clock)
    os.utime(path, (now, now), follow_symlinks=False)


def only(node: Node) -> Container:
    """Its one container."""
    (container,) = node.containers
    return container


def reason(container: Container) -> MissingReason | None:
    return None if container.missing is None else container.missing.reason


def opened(node: Node) -> Container:
    """Its one container, which has a region that can be read."""
    container = only(node)
    assert container.missing is None
    container.region.snapshot()
    return container


def refresh(node: Node) -> bool:
    """Refresh without /proc; whether the containers have changed."""
    before = node.containers
    try:
        has_changed = node.refresh(processes=False)
    except RootsUnreadable:
        assert node.root_problem is not None
        assert node.root_errors
        return node.containers != before
    assert has_changed == (node.containers is not before)
    return has_changed


def refreshed(node: Node) -> Container:
    """Its one container after a refresh, which has a region that can be read."""
    refresh(node)
    return opened(node)


def settle(*directories: Path) -> None:
    """Wait until a change of the directories would show in their times."""
    probe = directories[0].parent / "clock"

    def is_past() -> bool:
        probe.touch()
        now_ns = probe.stat().st_ctime_ns
        newest = max(each.stat().st_ctime_ns for each in directories)
        return now_ns - newest > 110_000_000

    eventually(is_past)
    probe.unlink()


def remove(path: Path) -> None:
    """Whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
