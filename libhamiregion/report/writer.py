"""Writes a recording: changes since the last look, in one transaction per look."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from libhamiregion import __version__
from libhamiregion.text import printable

from . import recording
from .recording import OPEN_FOR_WRITING, RecordingError, RecordingUnavailable, identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

    from .history import Allocation, Gpu, Sample

DEFAULT_INTERVAL_S: Final = 15.0
# Two whole months: a report of the last one is complete until its end.
DEFAULT_RETENTION_S: Final = 62 * 86_400.0
DEFAULT_MAX_SIZE_BYTES: Final = 1 << 30

# A container can write any uuid into its region, and another one at every look.
_UUIDS_PER_DEVICE: Final = 64
_NAME_LIMIT: Final = 253
# The most that a cell of SQLite holds; a region can show more.
_MOST: Final = 2**63 - 1
# An hour at the default interval. Whole runs are removed, so one is a small part of the file.
_LOOKS_PER_RUN: Final = 240

# The first fields of a sample have columns in `changes`.
_FIGURES: Final = 7
_Cells: TypeAlias = "tuple[int | float | None, ...]"
_GONE: Final[_Cells] = (-1, None, None, None, None, None, None)


@attrs.frozen
class Written:
    """Result of writing one look.

    Attributes:
        look: Its number.
        allocations: Devices of containers that were seen.
        rows: Rows written for what changed.
        whole: Whether everything was written: at the start, at each 240th look, and after a gap.
        size_bytes: Size of the file, without its write-ahead log.
    """

    look: int
    allocations: int
    rows: int
    whole: bool
    size_bytes: int


class RecordingWriter:
    """Appends looks to a recording and keeps it within its bounds. A context manager.

    Each look is one transaction. A look that `write` has returned for survives the death of this
    process at any moment; a crash of the whole machine can cost the last minutes, never the file.
    After an error nothing of that look is in the file, and the next `write` opens it again, as it
    does if the file cannot be opened at first. A file that was removed is created again.

    Threads: one at a time. One writer per file, which holds a lock on it.

    Args:
        path: The file; created if it does not exist.
        interval_s: Expected sampling interval. A look later than twice that follows a gap.
        retention_s: How much recorded time to keep; None keeps it until there is no room. Gaps do
            not count, and the clock is not used, so a wrong clock removes nothing and keeps
            nothing.
        max_size_bytes: Maximum size of the file, 16 MiB or more; None bounds it by retention only.
        node: The node's name, for reports.
        dry_run: Only check whether the file can be written to; `write` is not to be called.

    Attributes:
        path: The file, absolute.
        interval_s: As given.

    Raises:
        ValueError: A bound that cannot be kept.
        RecordingError: The file is something else, damaged, or in use by another recorder.
        RecordingUnavailable: The directory does not exist.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        retention_s: float | None = DEFAULT_RETENTION_S,
        max_size_bytes: int | None = DEFAULT_MAX_SIZE_BYTES,
        node: str | None = None,
        dry_run: bool = False,
    ) -> None:
        if not 0 < interval_s <= 86_400:
            raise ValueError(f"an interval is above 0 s and a day at most, not {interval_s}")
        if retention_s is not None and not retention_s >= interval_s:
            raise ValueError(f"a retention is one interval or more, not {retention_s} s")
        # Room for four runs of a node with 700 busy devices.
        if max_size_bytes is not None and max_size_bytes < 16 << 20:
            raise ValueError(f"a recording needs 16 MiB or more, not {max_size_bytes} bytes")
        self.path = str(Path(path).absolute())
        self.interval_s = interval_s
        self._interval_ms = max(1, round(interval_s * 1000))
        self._retention_ms = None if retention_s is None else retention_s * 1000
        self._max_size_bytes = max_size_bytes
        self._looks_per_run = _LOOKS_PER_RUN
        self._node = node
        #: Closes all that is open.
        self._opened = contextlib.ExitStack()
        self._fd: int | None = None
        self._connection: sqlite3.Connection | None = None
        #: Ids of the allocations of this run.
        self._ids: dict[Allocation, int] = {}
        #: All ids in the file: by pod UID, container and device index, then by uuid.
        self._known: dict[tuple[str | None, str | None, int], dict[str | None, int]] = {}
        #: Number and time of the last look in the file.
        self._last: tuple[int, int] | None = None
        #: The last look by id; None if the next look has to be whole.
        self._seen: dict[int, _Cells] | None = None
        self._run_began = 0
        try:
            with self._errors():
                if dry_run:
                    self._lock(create=False)
                    self.close()
                else:
                    self._open()
        except RecordingUnavailable:
            if not Path(self.path).parent.is_dir():
                raise

    # ---- opening and closing ---------------------------------------------------------------------

    def _lock(self, *, create: bool) -> None:
        in_use = RecordingError(f"{self.path!r} is in use by another recorder")
        path = Path(self.path)
        if path.exists() and identity(path.stat()) in OPEN_FOR_WRITING:
            raise in_use
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        # Closed after the connection.
        self._fd = fd = os.open(path, flags, 0o644)
        self._opened.callback(os.close, fd)
        recording.check_header(fd, self.path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use from None
        file = identity(os.fstat(fd))
        OPEN_FOR_WRITING.add(file)
        self._opened.callback(OPEN_FOR_WRITING.discard, file)

    def _open(self) -> sqlite3.Connection:
        self._lock(create=True)
        self._connection = connection = sqlite3.connect(
            self.path, timeout=5, isolation_level=None, check_same_thread=False
        )
        self._opened.callback(connection.close)
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            # All at once, and before there is a write-ahead log: the file is a recording from its
            # first page on.
            connection.executescript(
                f"BEGIN; PRAGMA auto_vacuum = INCREMENTAL; {recording.SCHEMA} {recording.DEVICES}"
                f" PRAGMA application_id = {recording.APPLICATION_ID};"
                f" PRAGMA user_version = {recording.SCHEMA_VERSION}; COMMIT;"
            )
        elif _pragma(connection, "user_version") < recording.SCHEMA_VERSION:
            connection.executescript(
                f"BEGIN; {recording.DEVICES}"
                f" PRAGMA user_version = {recording.SCHEMA_VERSION}; COMMIT;"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {4 << 20}")
        about = {"version": __version__, "interval_s": f"{self.interval_s:g}", "node": self._node}
        connection.executemany(
            "INSERT OR REPLACE INTO about VALUES (?, ?)",
            [(key, printable(value, _NAME_LIMIT)) for key, value in about.items() if value],
        )
        self._last = connection.execute(
            "SELECT id, at_ms FROM looks ORDER BY id DESC LIMIT 1"
        ).fetchone()
        self._load(connection)
        self._seen = None
        return connection

    def _load(self, connection: sqlite3.Connection) -> None:
        self._ids, self._known = {}, {}
        for number, pod_uid, container, index, uuid in connection.execute(
            "SELECT id, pod_uid, container, device_index, device_uuid FROM allocations ORDER BY id"
        ):
            self._known.setdefault((pod_uid, container, index), {})[uuid] = number

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # Ids in memory may not be in the file: load them again.
            self.close()
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
                raise recording.from_sqlite(error, self.path) from error
            if isinstance(error, OSError):
                raise RecordingUnavailable(f"{self.path!r}: {error.strerror}") from error
            raise

    def close(self) -> None:
        """Close the file; the next `write` would open it again."""
        self._connection = self._fd = None
        with contextlib.suppress(sqlite3.Error):
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ---------------------------------------------------------------------------------

    def write(
        self,
        samples: Mapping[Allocation, Sample],
        *,
        at_ms: int,
        gpus: int | None = None,
        devices: Mapping[str, Gpu] | None = None,
    ) -> Written:
        """Add the samples of one moment.

        Args:
            samples: All that there are; an allocation that is missing is gone. Names are cut and
                escaped; of several that become the same, the one with most memory used counts.
            at_ms: When, Unix milliseconds.
            gpus: How many GPUs the node has; noted by whole looks.
            devices: These GPUs by uuid; noted by whole looks.

        Raises:
            RecordingUnavailable: Nothing was written, and the next call tries again.
            RecordingError: The file cannot be written to as it is.
        """
        with self._errors():
            if self._fd is not None and not os.fstat(self._fd).st_nlink:
                # The file was removed: everything written to it would be lost.
                self.close()
            connection = self._connection or self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                written = self._write(connection, samples, at_ms)
                if gpus is not None and written.whole:
                    about = "INSERT OR REPLACE INTO about VALUES ('gpus', ?)"
                    connection.execute(about, (str(gpus),))
                rows = [(uuid, *attrs.astuple(gpu)) for uuid, gpu in (devices or {}).items()]
                if written.whole:
                    connection.executemany("INSERT OR REPLACE INTO devices VALUES (?, ?, ?)", rows)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            return written

    def _write(
        self, connection: sqlite3.Connection, samples: Mapping[Allocation, Sample], at_ms: int
    ) -> Written:
        last, last_ms = self._last or (0, 0)
        look = last + 1
        follows = 0 < at_ms - last_ms <= 2 * self._interval_ms
        if follows:
            connection.execute("UPDATE looks SET until_ms = ? WHERE id = ?", (at_ms, last))
        whole = not follows or self._seen is None or look - self._run_began >= self._looks_per_run
        before = {} if whole or self._seen is None else self._seen
        if whole:
            self._run_began, self._ids = look, {}
        connection.execute(
            "INSERT INTO looks VALUES (?, ?, ?, ?)",
            (look, at_ms, at_ms + self._interval_ms, whole),
        )
        seen = self._cells(connection, samples, look)
        rows = _changes(before, seen)
        connection.executemany(
            "INSERT INTO changes (look, allocation, used_bytes, limit_bytes, sm_limit_percent,"
            " sm_percent, processes, driver_bytes, driver_sm_percent)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(look, number, *cells) for number, cells in rows],
        )
        connection.executemany(
            "UPDATE allocations SET last_look = ? WHERE id = ?",
            [(look, number) for number in seen.keys() - before.keys()],
        )
        self._seen, self._last = seen, (look, at_ms)
        if whole:
            self._trim(connection)
        size_bytes = _pragma(connection, "page_count") * _pragma(connection, "page_size")
        return Written(look, len(seen), len(rows), whole, size_bytes)

    def _cells(
        self, connection: sqlite3.Connection, samples: Mapping[Allocation, Sample], look: int
    ) -> dict[int, _Cells]:
        seen: dict[int, _Cells] = {}
        for allocation, sample in samples.items():
            number = self._ids.get(allocation)
            if number is None:
                number = self._ids[allocation] = self._number(connection, allocation, look)
            figures = attrs.astuple(sample, recurse=False)[:_FIGURES]
            cells = tuple([None if each is None else min(each, _MOST) for each in figures])
            # A container must not hide what it uses behind a name that is cut to the same text.
            if number not in seen or (seen[number][0] or 0) < (cells[0] or 0):
                seen[number] = cells
        return seen

    def _number(self, connection: sqlite3.Connection, of: Allocation, look: int) -> int:
        """Find the id of an allocation, or give it one. A name that is known stays known."""
        namespace, pod, container, pod_uid, uuid = (
            None if text is None else printable(text, _NAME_LIMIT)
            for text in (of.namespace, of.pod, of.container, of.pod_uid, of.device_uuid)
        )
        known = self._known.setdefault((pod_uid, container, of.device_index), {})
        number = known.get(uuid)
        if (
            number is None
            and known
            and (uuid is None or None in known or len(known) >= _UUIDS_PER_DEVICE)
        ):
            # A device that is not reported, or not yet, is the one that was reported last, and so
            # is one too many.
            last = next(reversed(known))
            number = known[last]
            if last is None:
                known[uuid] = known.pop(last)
        if number is None:
            number = connection.execute(
                "INSERT INTO allocations VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (namespace, pod, container, pod_uid, of.device_index, uuid, look),
            ).lastrowid
            assert number is not None  # noqa: S101 (an INSERT has one)
            known[uuid] = number
        else:
            connection.execute(
                "UPDATE allocations SET namespace = coalesce(?, namespace), pod = coalesce(?, pod),"
                " device_uuid = coalesce(device_uuid, ?) WHERE id = ?",
                (namespace, pod, uuid, number),
            )
        return number

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest runs; never the one that is being written."""
        # Retention counts the time that was recorded since, independent of the clock.
        runs = connection.execute(
            "SELECT id, recorded_ms FROM (SELECT id, whole, sum(until_ms - at_ms)"
            " OVER (ORDER BY id DESC) AS recorded_ms FROM looks) WHERE whole ORDER BY id"
        ).fetchall()
        removed = False
        is_full = self._is_full(connection, 4)
        for _, (start, recorded_ms) in itertools.pairwise(runs):
            is_old = self._retention_ms is not None and recorded_ms >= self._retention_ms
            if not is_old and not (is_full and self._is_full(connection, 2)):
                break
            connection.execute("DELETE FROM changes WHERE look < ?", (start,))
            connection.execute("DELETE FROM looks WHERE id < ?", (start,))
            removed = True
        if removed:
            connection.execute(
                "DELETE FROM allocations WHERE last_look < (SELECT min(id) FROM looks)"
            )
            self._load(connection)

    def _is_full(self, connection: sqlite3.Connection, parts: int) -> bool:
        """Whether the rows take more than the maximum less one of so many parts."""
        most = self._max_size_bytes
        pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
        used_bytes = pages * _pragma(connection, "page_size")
        return most is not None and used_bytes > most - most // parts


def _changes(before: Mapping[int, _Cells], seen: Mapping[int, _Cells]) -> list[tuple[int, _Cells]]:
    rows = [(number, _GONE) for number in before.keys() - seen.keys()]
    for number, cells in seen.items():
        was = before.get(number)
        # Utilisation changes at nearly every look of a busy container, the rest hardly ever.
        if was is not None and was[:3] == cells[:3] and was[4:6] == cells[4:6]:
            if was != cells:
                rows.append((number, (None, None, None, cells[3], None, None, cells[6])))
        else:
            rows.append((number, cells))
    return rows


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
