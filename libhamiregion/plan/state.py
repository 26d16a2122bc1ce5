"""The directory in which plans remember what was there before: undo plans, and the originals.

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
from typing import TYPE_CHECKING

from libhamiregion.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.errors import PathLike

_READ_LIMIT = 64 << 20
_UNDO_PLANS_KEPT = 20


def default_state_directory() -> str:
    """Where plans remember things.

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
        message = "this user has no home directory; say in HAMIREGION_STATE where plans keep things"
        raise FileNotFoundError(errno.ENOENT, message, home)
    return f"{home}/hamiregion"


class PlanState:
    """The state directory. It is made when first needed.

    Threads: may be shared.

    Args:
        directory: The directory; None means `default_state_directory`, with what it raises.
    """

    def __init__(self, directory: PathLike | None = None) -> None:
        chosen = default_state_directory() if directory is None else directory
        self.directory = str(Path(chosen).absolute())

    def path(self, name: str) -> str:
        """The path of one of its files."""
        return f"{self.directory}/{name}"

    def make(self) -> None:
        """Make the directory, if it is not there.

        Raises:
            OSError: It cannot be made, or others can write it.
        """
        Path(self.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(self.directory)
        # What is remembered here is written into regions, so nobody else may write it.
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(
                errno.EPERM,
                "others can write this directory; plans need one of their own",
                self.directory,
            )

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return read_bounded(self.path(name), _READ_LIMIT, follow=False, cut=True)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: str) -> str:
        """Replace a file; returns its path.

        Raises:
            OSError: It cannot be written; the file is as it was.
        """
        self.make()
        target = self.path(name)
        temporary = f"{target}.{os.getpid()}.part"
        with _naming(target):
            # One that is there is a killed process's.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108
            try:
                _write_new(temporary, content)
                os.replace(temporary, target)  # noqa: PTH105
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108
                raise
            _sync_directory(target)
        return target

    def write_undo(self, content: str) -> str:
        """Keep an undo plan under a name of its own, and of earlier ones the newest.

        Returns:
            Its path.

        Raises:
            OSError: It cannot be written.
        """
        self.make()
        while True:
            # No name comes back: another process may be about to remove the file that had it.
            now_us = time.time_ns() // 1000
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_us // 1_000_000))
            path = self.path(f"undo-{stamp}.{now_us % 1_000_000:06}Z.yaml")
            with contextlib.suppress(FileExistsError):
                write_new(path, content)
                break
        # The new one stays whatever a clock that was set back says of its age.
        others = []
        for each in Path(self.directory).glob("undo-[0-9]*.yaml"):
            # One that another process has just removed is one less.
            with contextlib.suppress(FileNotFoundError):
                if str(each) != path:
                    others.append((each.lstat().st_mtime_ns, each))
        for _, old in sorted(others)[: 1 - _UNDO_PLANS_KEPT]:
            old.unlink(missing_ok=True)
        return path


def write_new(path: PathLike, content: str) -> None:
    """Write a file that is not there yet, so that it survives a crash.

    Raises:
        FileExistsError: Something is there, which is left as it is.
        OSError: It cannot be written.
    """
    target = os.fspath(path)
    with _naming(target):
        _write_new(target, content)
        _sync_directory(target)


@contextlib.contextmanager
def _naming(target: str) -> Iterator[None]:
    """Have errors name the file that was asked for, not a temporary one or its directory."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def _write_new(path: str, content: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        raise


def _sync_directory(target: str) -> None:
    directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH120
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
