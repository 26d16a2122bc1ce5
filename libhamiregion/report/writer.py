"""Writes a recording: what has changed since the last look, in one transaction per look."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from libhamiregion import __version__
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .history import Allocation
from .recording import (
    APPLICATION_ID,
    OPEN_FOR_WRITING,
    SCHEMA,
    SCHEMA_VERSION,
    RecordingError,
    RecordingUnavailable,
    check_header,
    from_sqlite,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

    from .history import Sample

DEFAULT_INTERVAL_S: Final = 15.0
# Two whole months: a report of the last one is complete until its end.
DEFAULT_RETENTION_S: Final = 62 * 86_400.0
DEFAULT_MAX_SIZE_BYTES: Final = 1 << 30
#: Room for a look of a large node, several times over.
SMALLEST_MAX_SIZE_BYTES: Final = 4 << 20

_HOUR_MS: Final = 3_600_000
# What opening a file says of its name or its rights. A disk gets room again, and can be made
# writable again.
_MISTAKES: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ELOOP}
)
# A container can write any uuid into its region, and another one at every look.
_UUIDS_PER_CONTAINER: Final = 64
_NAME_LIMIT: Final = 253
# The most that a cell of SQLite holds; a region can show more.
_MOST: Final = 2**63 - 1
# About the size of a row of `changes`.
_ROW_BYTES: Final = 24
# Pages given back to the file system per look: some milliseconds of work.
_VACUUM_PAGES: Final = 1_000

# used, limit, SM limit, processes, driver's memory; SM, driver's SM
_Cells: TypeAlias = "tuple[int | float | None, ...]"
_MEMORY: Final = slice(0, 5)
# Pod UID, container.
_Holder: TypeAlias = "tuple[str | None, str | None]"
_Device: TypeAlias = "tuple[int, str | None]"
_AS_BEFORE: Final[_Cells] = (None, None, None, None, None)
_GONE: Final[_Cells] = (-1, None, None, None, None, None, None)


@attrs.frozen
class Written:
    """What one look came to.

    Attributes:
        look: Its number.
        allocations: Devices of containers that were seen.
        rows: Rows written for what changed.
        whole: Whether everything was written: at the start, each hour, and after a gap.
        size_bytes: Size of the file, without its write-ahead log.
    """

    look: int
    allocations: int
    rows: int
    whole: bool
    size_bytes: int


class RecordingWriter:
    """Appends looks to a recording and keeps it within its bounds. A context manager.

    Each look is one transaction. What `write` has returned for survives the death of this process
    at any moment; a crash of the whole machine can cost the last minutes, never the file. After an
    error nothing of that look is in the file, and the next `write` opens it anew. A file that was
    removed meanwhile is made anew.

    Threads: may be shared; looks take turns. One writer per file, which holds a lock on it.

    Args:
        path: The file; made if it does not exist.
        interval_s: How often looks are meant to come. A look later than twice that follows a gap.
        retention_s: How much recorded time to keep; None keeps it until there is no room. Time in
            which nothing was recorded does not count, and no clock is asked, so one that was set
            wrong removes nothing and keeps nothing.
        max_size_bytes: Size of the file at most, 4 MiB or more; None bounds it by retention only.
        node: The node's name, for reports.
        must_open: Whether a file that cannot be opened now is an error even if that can pass, such
            as on a full disk. Otherwise `write` tries again.

    Attributes:
        path: The file, absolute.
        interval_s: As given.

    Raises:
        ValueError: A bound that cannot be kept.
        RecordingError: The file is something else, damaged, or in use by another recorder.
        RecordingUnavailable: It cannot be opened now.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        retention_s: float | None = DEFAULT_RETENTION_S,
        max_size_bytes: int | None = DEFAULT_MAX_SIZE_BYTES,
        node: str | None = None,
        must_open: bool = True,
    ) -> None:
        if not 0 < interval_s <= 86_400:
            raise ValueError(f"an interval is above 0 s and a day at most, not {interval_s}")
        if retention_s is not None and not retention_s >= interval_s:
            raise ValueError(f"a retention is one interval or more, not {retention_s} s")
        if max_size_bytes is not None and max_size_bytes < SMALLEST_MAX_SIZE_BYTES:
            raise ValueError(
                f"a recording needs {format_size(SMALLEST_MAX_SIZE_BYTES)} or more, not"
                f" {format_size(max_size_bytes)}"
            )
        self.path = str(Path(path).absolute())
        self.interval_s = interval_s
        self._interval_ms = max(1, round(interval_s * 1000))
        self._retention_ms = None if retention_s is None else retention_s * 1000
        self._max_size_bytes = max_size_bytes
        self._rows_per_run = None if max_size_bytes is None else max_size_bytes // 16 // _ROW_BYTES
        self._node = node
        self._guard = threading.Lock()
        self._closed = False
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._ids: dict[Allocation, int] = {}
        #: Numbers in the file, by pod UID and container, then by device.
        self._known: dict[_Holder, dict[_Device, tuple[int, Allocation]]] = {}
        #: Number and time of the last look in the file.
        self._last: tuple[int, int] | None = None
        #: What the last look saw, by id; None if the next look has to be whole.
        self._seen: dict[int, _Cells] | None = None
        self._run_began_ms = 0
        self._run_rows = 0
        try:
            with self._errors():
                self._open()
        except RecordingUnavailable as error:
            if must_open or _is_mistake(error.__cause__):
                raise

    # ---- opening and closing ---------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        in_use = RecordingError(f"{self.path!r} is in use by another recorder")
        # Closing a descriptor of a file drops the locks that SQLite has on it in this process: so
        # this one is closed after its connection, and none is opened beside it.
        if _named_file(self.path) in OPEN_FOR_WRITING:
            raise in_use
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = fd = os.open(self.path, flags, 0o644)
        check_header(fd, self.path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use from None
        self._file = _identity(os.fstat(fd))
        OPEN_FOR_WRITING.add(self._file)
        self._connection = connection = sqlite3.connect(
            self.path, timeout=5, isolation_level=None, check_same_thread=False
        )
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            # All at once, and before there is a write-ahead log: the file says what it is from its
            # first page on.
            connection.executescript(
                f"BEGIN; PRAGMA auto_vacuum = INCREMENTAL; {SCHEMA}"
                f" PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
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
        self._ids = {}
        self._known = {}
        for number, *fields in connection.execute(
            "SELECT id, namespace, pod, container, pod_uid, device_index, device_uuid"
            " FROM allocations"
        ):
            self._note(number, Allocation(*fields))

    def _note(self, number: int, of: Allocation) -> None:
        devices = self._known.setdefault((of.pod_uid, of.container), {})
        devices[of.device_index, of.device_uuid] = (number, of)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        if self._file is not None:
            OPEN_FOR_WRITING.discard(self._file)
            self._file = None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # What is in memory may name rows that are not in the file: begin anew.
            self._close()
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
                raise from_sqlite(error, self.path) from error
            if isinstance(error, OSError):
                raise RecordingUnavailable(f"{self.path!r}: {error.strerror}") from error
            raise

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._guard:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, samples: Mapping[Allocation, Sample], *, at_ms: int) -> Written:
        """Add what was seen at one moment.

        Args:
            samples: All that there is; what is missing is gone. Names are cut and escaped; of
                several that become the same, the one with most memory used counts.
            at_ms: When, Unix milliseconds.

        Raises:
            RecordingUnavailable: Nothing was written, and the next call tries again.
            RecordingError: The file cannot be written to as it is.
            ValueError: After `close`.
        """
        with self._guard:
            if self._closed:
                raise ValueError("the recording has been closed")
            with self._errors():
                connection = self._checked()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    written = self._write(connection, samples, at_ms)
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
                free = _pragma(connection, "freelist_count")
                if free * 8 > _pragma(connection, "page_count"):
                    # Each step of the statement moves one page, and `execute` makes one step only.
                    connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES});")
                return written

    def _checked(self) -> sqlite3.Connection:
        """Return the connection, of the file that has the name now."""
        if self._file is not None and self._file != _named_file(self.path):
            # Written to a file without a name, everything would be lost.
            self._close()
        return self._connection or self._open()

    def _write(
        self, connection: sqlite3.Connection, samples: Mapping[Allocation, Sample], at_ms: int
    ) -> Written:
        look, follows = 1, False
        if self._last is not None:
            last, last_ms = self._last
            look = last + 1
            follows = 0 < at_ms - last_ms <= 2 * self._interval_ms
            if follows:
                connection.execute("UPDATE looks SET until_ms = ? WHERE id = ?", (at_ms, last))
        before = self._seen
        if not follows or self._run_is_long(at_ms):
            before = None
        connection.execute(
            "INSERT INTO looks VALUES (?, ?, ?, ?)",
            (look, at_ms, at_ms + self._interval_ms, before is None),
        )
        seen = self._numbered(connection, samples, look)
        rows = _changes(before or {}, seen)
        connection.executemany(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(look, number, *cells) for number, cells in rows],
        )
        connection.executemany(
            "UPDATE allocations SET last_look = ? WHERE id = ?",
            [(look, number) for number in seen.keys() - (before or {}).keys()],
        )
        self._run_rows += len(rows)
        if before is None:
            self._run_began_ms, self._run_rows, self._ids = at_ms, len(rows), {}
        self._seen, self._last = seen, (look, at_ms)
        self._trim(connection, whole=before is None)
        size_bytes = _pragma(connection, "page_count") * _pragma(connection, "page_size")
        return Written(look, len(seen), len(rows), before is None, size_bytes)

    def _run_is_long(self, at_ms: int) -> bool:
        return at_ms - self._run_began_ms >= _HOUR_MS or (
            self._rows_per_run is not None and self._run_rows > self._rows_per_run
        )

    def _numbered(
        self, connection: sqlite3.Connection, samples: Mapping[Allocation, Sample], look: int
    ) -> dict[int, _Cells]:
        seen: dict[int, _Cells] = {}
        for allocation, sample in samples.items():
            number = self._ids.get(allocation)
            if number is None:
                number = self._ids[allocation] = self._number(connection, allocation, look)
            cells = (
                _cell(sample.memory_used_bytes),
                _cell(sample.memory_limit_bytes),
                _cell(sample.sm_limit_percent),
                _cell(sample.processes),
                _cell(sample.driver_memory_bytes),
                _cell(sample.sm_percent),
                _cell(sample.driver_sm_percent),
            )
            # A container must not hide what it uses behind a name that is cut to the same text.
            if number not in seen or (seen[number][0] or 0) < (cells[0] or 0):
                seen[number] = cells
        return seen

    def _number(self, connection: sqlite3.Connection, raw: Allocation, look: int) -> int:
        """Find the number of an allocation, or give it one."""
        of = Allocation(
            _shown(raw.namespace),
            _shown(raw.pod),
            _shown(raw.container),
            _shown(raw.pod_uid),
            raw.device_index,
            _shown(raw.device_uuid),
        )
        devices = self._known.get((of.pod_uid, of.container), {})
        known = devices.get((of.device_index, of.device_uuid))
        same_index = [each for (index, _), each in devices.items() if index == of.device_index]
        if known is None and same_index:
            # A device that is not reported, or not yet, is the one that was reported last, and so
            # is one too many.
            was, now = same_index[-1][1].device_uuid, of.device_uuid
            if was is None or now is None or len(devices) >= _UUIDS_PER_CONTAINER:
                known = same_index[-1]
        if known is None:
            number = connection.execute(
                "INSERT INTO allocations VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (*attrs.astuple(of), look),
            ).lastrowid
            assert number is not None  # noqa: S101 (an INSERT has one)
            self._note(number, of)
            return number
        number, before = known
        # What has become known stays known.
        after = attrs.evolve(
            before,
            namespace=of.namespace or before.namespace,
            pod=of.pod or before.pod,
            device_uuid=before.device_uuid or of.device_uuid,
        )
        if after != before:
            connection.execute(
                "UPDATE allocations SET namespace = ?, pod = ?, device_uuid = ? WHERE id = ?",
                (after.namespace, after.pod, after.device_uuid, number),
            )
            del devices[before.device_index, before.device_uuid]
            self._note(number, after)
        return number

    # ---- bounds ----------------------------------------------------------------------------------

    def _trim(self, connection: sqlite3.Connection, *, whole: bool) -> None:
        """Remove the oldest runs of looks; never the one that is being written."""
        keep = None
        if whole and self._retention_ms is not None:
            # Judged by how much was recorded since, whatever the clock said when.
            keep = connection.execute(
                "SELECT id FROM (SELECT id, whole, sum(until_ms - at_ms) OVER (ORDER BY id DESC)"
                " AS recorded_ms FROM looks) WHERE whole AND recorded_ms >= ?"
                " ORDER BY id DESC LIMIT 1",
                (self._retention_ms,),
            ).fetchone()
        removed = keep is not None and _remove_before(connection, keep[0])
        most = self._max_size_bytes
        if most is not None and _used_bytes(connection) > most - most // 16:
            starts = connection.execute("SELECT id FROM looks WHERE whole ORDER BY id").fetchall()
            for (start,) in starts[1:]:
                if _used_bytes(connection) <= most - most // 4:
                    break
                removed |= _remove_before(connection, start)
        if removed:
            connection.execute(
                "DELETE FROM allocations WHERE last_look < (SELECT min(id) FROM looks)"
            )
            self._load(connection)


def _remove_before(connection: sqlite3.Connection, look: int) -> bool:
    connection.execute("DELETE FROM changes WHERE look < ?", (look,))
    return connection.execute("DELETE FROM looks WHERE id < ?", (look,)).rowcount > 0


def _changes(before: Mapping[int, _Cells], seen: Mapping[int, _Cells]) -> list[tuple[int, _Cells]]:
    rows = []
    for number, cells in seen.items():
        was = before.get(number)
        if was == cells:
            continue
        # Utilisation changes at nearly every look of a busy container, the rest hardly ever.
        is_memory_same = was is not None and was[_MEMORY] == cells[_MEMORY]
        rows.append((number, (*_AS_BEFORE, *cells[5:]) if is_memory_same else cells))
    return rows + [(number, _GONE) for number in before.keys() - seen.keys()]


def _shown(text: str | None) -> str | None:
    return None if text is None else printable(text, _NAME_LIMIT)


def _cell(value: float | None) -> float | None:
    return None if value is None else min(value, _MOST)


def _is_mistake(cause: BaseException | None) -> bool:
    """Whether a file cannot be opened because of its name or its rights, which do not pass."""
    return isinstance(cause, OSError) and cause.errno in _MISTAKES


def _identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_dev, status.st_ino)


def _named_file(path: str) -> tuple[int, int] | None:
    try:
        return _identity(os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        return None


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")
