"""What limits by plan remember on disk: a lock, a journal, what was there before, undo plans.

One directory, which only its owner can enter. All files in it are replaced in one step, so that a
reader, and whoever comes after a crash, finds one of two whole contents.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.errors import PathLike

_READ_LIMIT = 64 << 20
_LOCK_STEP_S = 0.02
_UNDO_PLANS_KEPT = 20


def default_state_directory() -> str:
    """Where plans remember things.

    ``$HAMIREGION_STATE`` if it is set, ``/var/lib/hamiregion`` for root, else
    ``$XDG_STATE_HOME/hamiregion``.
    """
    chosen = os.environ.get("HAMIREGION_STATE")
    if chosen:
        return chosen
    if os.geteuid() == 0:
        return "/var/lib/hamiregion"
    home = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return f"{home}/hamiregion"


class StateBusy(TimeoutError):
    """Another process is changing limits by a plan, or keeps a node on one."""


class PlanState:
    """The directory in which limits by plan remember things. It is made when first needed.

    Threads: may be shared.

    Args:
        directory: The directory; None means `default_state_directory`.

    Attributes:
        directory: The directory, absolute.
    """

    def __init__(self, directory: PathLike | None = None) -> None:
        chosen = default_state_directory() if directory is None else directory
        self.directory = str(Path(chosen).absolute())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}>"

    # ---- locks ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def applying(self, timeout_s: float = 10.0) -> Iterator[None]:
        """Exclude others that apply plans, for as long as it takes to apply one.

        Raises:
            StateBusy: Another process was at it for all of that time.
            OSError: The directory cannot be used.
        """
        with self._locked("lock", timeout_s, "another process is applying a plan"):
            yield

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Exclude others that keep this node on a plan.

        Raises:
            StateBusy: Another process does.
            OSError: The directory cannot be used.
        """
        with self._locked("watch.lock", 0.0, "another process keeps this node on a plan"):
            yield

    def watcher_pid(self) -> int | None:
        """The pid of the process that keeps this node on a plan; None if there is none.

        It is a pid of that process's own namespace, and 0 where it has not written it yet.
        """
        try:
            descriptor = os.open(f"{self.directory}/watch.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(descriptor, 32)
            return int(text) if text.isdigit() else 0
        finally:
            os.close(descriptor)
        return None

    @contextlib.contextmanager
    def _locked(self, name: str, timeout_s: float, busy: str) -> Iterator[None]:
        self._make()
        path = f"{self.directory}/{name}"
        # A lock on an open file: whoever is killed gives it back.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            deadline = time.monotonic() + timeout_s
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        message = f"{busy} (lock file {path})"
                        raise StateBusy(errno.ETIMEDOUT, message) from None
                time.sleep(_LOCK_STEP_S)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d" % os.getpid(), 0)
            yield
        finally:
            os.close(descriptor)

    def _make(self) -> None:
        Path(self.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(self.directory)
        # What stands in the journal is written into regions, so nobody else may write it.
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(
                errno.EPERM,
                "others can write this directory; plans need one of their own",
                self.directory,
            )

    # ---- files ----------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """The path of one of its files."""
        return f"{self.directory}/{name}"

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none.

        Raises:
            OSError: It cannot be read.
        """
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_READ_LIMIT)

    def read_json(self, name: str) -> Any:
        """The content of a JSON file; None if there is none, or it is damaged.

        Raises:
            OSError: It cannot be read.
        """
        raw = self.read(name)
        if raw is None:
            return None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return None

    def write(self, name: str, content: str) -> str:
        """Replace a file, so that it survives a crash; returns its path.

        Raises:
            OSError: It cannot be written.
        """
        self._make()
        path = self.path(name)
        write_whole(path, content)
        return path

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))  # noqa: PTH108 (beside the other calls of os)

    def write_undo(self, content: str) -> str:
        """Keep an undo plan under a name of its own, and of earlier ones the newest.

        Returns:
            Its path.

        Raises:
            OSError: It cannot be written.
        """
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"undo-{stamp}.yaml"
        number = 1
        while os.path.lexists(self.path(name)):
            number += 1
            name = f"undo-{stamp}-{number}.yaml"
        path = self.write(name, content)
        # Of those that are written here: the watch has an undo plan of its own. The new one stays
        # whatever a clock that was set back says of its age.
        others = [
            each for each in Path(self.directory).glob("undo-[0-9]*.yaml") if str(each) != path
        ]
        others.sort(key=lambda each: each.lstat().st_mtime_ns)
        for old in others[: 1 - _UNDO_PLANS_KEPT]:
            old.unlink(missing_ok=True)
        return path


def write_new(path: PathLike, content: str) -> None:
    """Write a file that is not there yet, so that it survives a crash.

    Raises:
        FileExistsError: Something is there, which is left as it is.
        OSError: It cannot be written.
    """
    target = os.fspath(path)
    with _about(target):
        _write_exclusively(target, content)
        _sync_directory(target)


def write_whole(path: PathLike, content: str) -> None:
    """Write a file so that whoever opens it finds all of it, or what was there before.

    Raises:
        OSError: It cannot be written.
    """
    target = os.fspath(path)
    temporary = f"{target}.{os.getpid()}.part"
    with _about(target):
        # One that is there is a killed process's, or a trap: in /tmp anybody can make it.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108
        _write_exclusively(temporary, content)
        try:
            os.replace(temporary, target)  # noqa: PTH105
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise
        _sync_directory(target)


@contextlib.contextmanager
def _about(target: str) -> Iterator[None]:
    """Have errors name the file that was asked for, which a temporary one may stand for."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def _write_exclusively(path: str, content: str) -> None:
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
