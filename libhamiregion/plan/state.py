"""The directory in which plans keep undo plans.

Only its owner can enter it. Each file is replaced in one step and synced, so that a reader, also
after a crash, finds one of two whole contents.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from libhamiregion.bounded_file import read_bounded
from libhamiregion.node.node_lock import LockUse, is_node_locked

from .plan_file import MAX_BYTES, parse_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.errors import PathLike

    from .plan import LimitPlan

_UNDO_PLANS_KEPT: Final = 20


def default_state_directory() -> str:
    """Name the directory in which plans keep their files.

    ``$HAMIREGION_STATE`` if it is set, ``/var/lib/hamiregion`` for root, else
    ``$XDG_STATE_HOME/hamiregion``.

    Raises:
        FileNotFoundError: This user has no home directory.
    """
    chosen = os.environ.get("HAMIREGION_STATE")
    if chosen:
        return chosen
    if os.geteuid() == 0:
        return "/var/lib/hamiregion"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
    if home.startswith("~"):
        message = "this user has no home directory; name a state directory in HAMIREGION_STATE"
        raise FileNotFoundError(errno.ENOENT, message, home)
    return f"{home}/hamiregion"


class PlanState:
    """The state directory. It is made when first needed.

    Threads: may be shared.

    Args:
        directory: The directory; None means `default_state_directory`, with what it raises.

    Attributes:
        directory: Its path, absolute.
        watch_plan_path: The plan on which a `PlanReconciler` keeps the node.
        watch_undo_path: The plan that puts back all that it has changed.
    """

    def __init__(self, directory: PathLike | None = None) -> None:
        chosen = default_state_directory() if directory is None else directory
        self.directory = str(Path(chosen).absolute())
        self.watch_plan_path = f"{self.directory}/plan-watch.yaml"
        self.watch_undo_path = f"{self.directory}/undo-watch.yaml"

    def make(self) -> None:
        """Make the directory, if it does not exist.

        Raises:
            OSError: It cannot be made, or others can write it.
        """
        Path(self.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(self.directory)
        # These values are written into regions, so no one else may write them.
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            message = "others can write this directory; plans need one of their own"
            raise OSError(errno.EPERM, message, self.directory)

    def read_watch_undo(self) -> bytes | None:
        """Read the undo plan of a watch; None if there is none.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return read_bounded(self.watch_undo_path, MAX_BYTES, follow=False)
        except FileNotFoundError:
            return None

    def write_watch(self, path: str, content: str) -> None:
        """Replace a plan of a watch: `watch_plan_path` or `watch_undo_path`.

        Raises:
            OSError: It cannot be written; the file is as it was.
        """
        self.make()
        with _whole(path, content) as part:
            part.replace(path)

    def kept_plan(self) -> LimitPlan | None:
        """Read the plan on which a running process keeps a node; None if there is none.

        The name of each rule says which rule it is of which file.

        Raises:
            PlanError, OSError: It cannot be read.
        """
        if not is_node_locked([self.directory], LockUse.PLAN):
            return None
        return parse_plan(read_bounded(self.watch_plan_path, MAX_BYTES, follow=False))

    def write_undo(self, content: str) -> str:
        """Write an undo plan under a new name, and keep the newest 20 of them.

        Returns:
            Its path.

        Raises:
            OSError: It cannot be written.
        """
        self.make()
        while True:
            # A name is never reused: another process may be about to remove the file that had it.
            now_us = time.time_ns() // 1000
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_us // 1_000_000))
            path = f"{self.directory}/undo-{stamp}.{now_us % 1_000_000:06}Z.yaml"
            with contextlib.suppress(FileExistsError):
                write_new(path, content)
                break
        # The new one stays, also if a clock was set back.
        others = {str(each) for each in Path(self.directory).glob("undo-[0-9]*.yaml")} - {path}
        for old in sorted(others)[: 1 - _UNDO_PLANS_KEPT]:
            Path(old).unlink(missing_ok=True)
        return path


def write_new(path: PathLike, content: str) -> str:
    """Write a new file, so that it survives a crash; returns its path.

    It gets its name once it is whole: a process that is killed leaves no half of it.

    Raises:
        FileExistsError: The path exists, and is left as it is.
        OSError: It cannot be written.
    """
    target = os.fspath(path)
    with _whole(target, content) as part:
        # Unlike a rename it replaces nothing.
        os.link(part, target)
    return target


@contextlib.contextmanager
def _whole(target: str, content: str) -> Iterator[Path]:
    """Write a file alongside, synced, for the caller to give it its name."""
    part = Path(f"{target}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # A file with this name is of a killed process.
        part.unlink(missing_ok=True)
        try:
            descriptor = os.open(part, flags, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield part
        finally:
            part.unlink(missing_ok=True)
        _sync_directory(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def _sync_directory(target: str) -> None:
    directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH120
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
