"""The directory in which plans keep undo plans, and the values from before a plan.

Only its owner can enter it. Each file is replaced in one step and synced, so that a reader, also
after a crash, finds one of two whole contents.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from libhamiregion.bounded_file import read_bounded
from libhamiregion.errors import RegionError
from libhamiregion.node.containers import MissingReason

from .diff import Baseline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from libhamiregion.errors import PathLike
    from libhamiregion.node.node import Node

    from .diff import ContainerDiff, ValueKey

_READ_LIMIT: Final = 64 << 20
_UNDO_PLANS_KEPT: Final = 20
_BASELINES: Final = "originals.json"
#: The plan that puts back all that a reconciler has changed.
UNDO_NAME: Final = "undo-watch.yaml"


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
    """

    def __init__(self, directory: PathLike | None = None) -> None:
        chosen = default_state_directory() if directory is None else directory
        self.directory = str(Path(chosen).absolute())

    def path(self, name: str) -> str:
        """Name the path of one of its files."""
        return f"{self.directory}/{name}"

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

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none.

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
        # A file with this name is a killed process's.
        Path(temporary).unlink(missing_ok=True)
        write_new(temporary, content)
        try:
            os.replace(temporary, target)  # noqa: PTH105
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_directory(target)
        return target

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
            path = self.path(f"undo-{stamp}.{now_us % 1_000_000:06}Z.yaml")
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

    Raises:
        FileExistsError: The path exists, and is left as it is.
        OSError: It cannot be written.
    """
    target = os.fspath(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with _naming(target):
        descriptor = os.open(target, flags, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _sync_directory(target)
        except BaseException:
            Path(target).unlink(missing_ok=True)
            raise
    return target


@contextlib.contextmanager
def _naming(target: str) -> Iterator[None]:
    """Make errors name the file that was asked for, not a temporary one or its directory."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def _sync_directory(target: str) -> None:
    directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH120
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# ---- the values from before a plan ---------------------------------------------------------------


@attrs.define
class _ContainerValues:
    """A container's baselines, and the file of its region."""

    file_id: tuple[int, int]
    values: dict[ValueKey, Baseline] = attrs.field(factory=dict)


class BaselineStore:
    """Remembers the values from before the first change; it outlives the process.

    A container that is gone, or has another region, is forgotten: its new region has the limits
    that it was given.

    Threads: one at a time.

    Raises:
        OSError: The file cannot be read, or is damaged.
    """

    def __init__(self, state: PlanState) -> None:
        self._state = state
        self._saved = ""
        self._containers = self._load()

    @property
    def by_directory(self) -> Mapping[str, Mapping[ValueKey, Baseline]]:
        """The baselines of each container, for `diff_plan`."""
        return {directory: kept.values for directory, kept in self._containers.items()}

    def note(self, changes: Iterable[ContainerDiff]) -> None:
        """Remember the values that are going to be changed.

        Raises:
            OSError: They cannot be written; then nothing must be changed.
        """
        for change in changes:
            directory = change.container.directory or ""
            kept = self._containers.setdefault(directory, _ContainerValues(change.file_id))
            for edit in change.edits:
                if edit.rule is None:
                    continue
                known = kept.values.get(edit.key, Baseline(edit.before, (edit.before,)))
                # The present value may stay: an edit can fail, or end with its process.
                still = (edit.before,) if edit.before in known.accepted_values else ()
                kept.values[edit.key] = Baseline(known.before, (*still, edit.after))
        self.save()

    def refresh(self, node: Node) -> None:
        """Forget containers that are gone or have another region.

        Args:
            node: The node, as of its last refresh.
        """
        there = {each.directory: each for each in node.containers}
        for directory, kept in list(self._containers.items()):
            container = there.get(directory)
            is_gone = False
            if container is None:
                # A root that cannot be listed now says nothing about its containers.
                is_gone = os.path.dirname(directory) in node.scanned_roots  # noqa: PTH120
            elif container.region is None:
                missing = container.missing
                is_gone = missing is not None and missing.reason is MissingReason.NO_FILE
            else:
                with contextlib.suppress(RegionError):  # another thread may have closed it
                    is_gone = container.region.file_id != kept.file_id
            if is_gone:
                del self._containers[directory]

    def compared(self, diffs: Iterable[ContainerDiff]) -> None:
        """Forget values that no rule sets and that others have set since.

        Args:
            diffs: The changes of a plan, with values that go back.
        """
        for diff in diffs:
            directory = diff.container.directory or ""
            kept = self._containers.get(directory)
            if kept is None:
                continue
            going_back = {edit.key for edit in diff.edits if edit.rule is None}
            for key in kept.values.keys() - diff.governed - going_back:
                del kept.values[key]
            if not kept.values:
                del self._containers[directory]

    def save(self) -> None:
        """Write the changes.

        Raises:
            OSError: They cannot be written.
        """
        saved = [
            [directory, kept.file_id, [[*key, *attrs.astuple(each)] for key, each in values]]
            for directory, kept in self._containers.items()
            if (values := kept.values.items())
        ]
        # ASCII: a directory's name may be no Unicode, and comes back as it was.
        text = json.dumps(saved) + "\n"
        if text != self._saved:
            self._state.write(_BASELINES, text)
            self._saved = text

    def _load(self) -> dict[str, _ContainerValues]:
        raw = self._state.read(_BASELINES)
        try:
            saved = [] if raw is None else json.loads(raw)
            return {
                directory: _ContainerValues(
                    (device, inode),
                    {
                        (field, index): Baseline(before, tuple(accepted))
                        for field, index, before, accepted in values
                    },
                )
                for directory, (device, inode), values in saved
            }
        except (ValueError, TypeError) as error:
            message = f"damaged; move it away ({UNDO_NAME} may still put limits back)"
            raise OSError(errno.EBADMSG, message, self._state.path(_BASELINES)) from error
