"""Writes a recording: what has changed since the last look, in one transaction per look."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from libhamiregion import __version__
from libhamiregion.text import printable
from libhamiregion.units import format_size

from .recording import (
    APPLICATION_ID,
    CLOCK,
    CONTINUED,
    GAP,
    SCHEMA,
    SCHEMA_VERSION,
    START,
    Reading,
    RecordedContainer,
    RecordingError,
    RecordingInUse,
    RecordingUnavailable,
    Written,
    check_kind,
    recording_error,
)
from .trimming import Trimmer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

DEFAULT_INTERVAL_S = 15.0
DEFAULT_RETENTION_S = 30 * 86_400.0
DEFAULT_MAX_SIZE_BYTES = 1 << 30
#: Room for a look of a large node, several times over.
SMALLEST_MAX_SIZE_BYTES = 4 << 20

_SEGMENT_MS = 3_600_000
# More than a clock is slewed by between two looks.
_CLOCK_STEP_MS = 1_000
# A container can write any uuid into its region, and another one at every look.
_SERIES_PER_CONTAINER = 64
# What a cell of SQLite can hold; a region can say more.
_MOST = 2**63 - 1
# About what a row of `states` or `activity` takes, to end segments before they get large.
_ROW_BYTES = 24
_SMALLEST_WAL_LIMIT = 64 << 20
_NAME_LIMIT = 253


_State: TypeAlias = "tuple[int | None, ...]"
_NOTHING: _State = (None, None, None, None, None)
_SeriesKey: TypeAlias = "tuple[int, int, str | None]"


class RecordingWriter:
    """Appends looks to a recording, and keeps it within its bounds.

    After an error of the system nothing of that look is in the file, and the next `write` opens it
    anew: what could not be written is a gap. A file that was removed or replaced meanwhile is made
    anew as well.

    Each look is one transaction. What `write` has returned for survives the death of this process
    at any moment; a crash of the whole machine can cost the last minutes, never the file.

    Threads: may be shared; looks take turns. One writer per file: it holds a lock on
    ``<path>.lock`` for as long as it lives.

    Args:
        path: The file; made if it does not exist.
        interval_s: How often looks are meant to come. A look later than twice that is a gap.
        retention_s: How long to keep what was recorded; None keeps it until there is no room.
        max_size_bytes: Size of the file at most, 4 MiB or more; None bounds it by retention only.
        node: The node's name, for reports.

    Attributes:
        path: The file, absolute.
        interval_s: As given.

    Raises:
        ValueError: A bound that cannot be kept.
        RecordingInUse: Another writer has the file.
        NotARecording, RecordingDamaged, RecordingUnavailable: It cannot be written to.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        retention_s: float | None = DEFAULT_RETENTION_S,
        max_size_bytes: int | None = DEFAULT_MAX_SIZE_BYTES,
        node: str | None = None,
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
        self._node = node
        self._wal_limit = max(_SMALLEST_WAL_LIMIT, (max_size_bytes or 0) // 4)
        self._segment_rows = None if max_size_bytes is None else max_size_bytes // 16 // _ROW_BYTES
        self._trimmer = Trimmer(
            None if retention_s is None else round(retention_s * 1000), max_size_bytes
        )
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._began: str | None = START
        #: Of the last look that was written: wall clock, running clock, number.
        self._last: tuple[int, int, int] | None = None
        self._segment_started_ms = 0
        self._rows_in_segment = 0
        self._containers: dict[tuple[str | None, ...], tuple[int, RecordedContainer]] = {}
        self._series: dict[_SeriesKey, int] = {}
        self._states: dict[int, _State] = {}
        self._activity: dict[int, tuple[int | None, int | None]] = {}
        self._lock_fd: int | None = self._take_lock()
        try:
            with self._errors():
                self._open()
        except BaseException:
            self.close()
            raise

    # ---- opening and closing ---------------------------------------------------------------------

    def _take_lock(self) -> int:
        path = f"{self.path}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o644)
        except OSError as error:
            raise RecordingUnavailable(f"{path!r}: {error.strerror}", path=self.path) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            who = f"process {printable(holder)}" if holder else "another process"
            raise RecordingInUse(
                f"{who} records to {self.path!r} already", path=self.path
            ) from None
        # For that message only: a disk without room for it is no reason to stop.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        return fd

    def _open(self) -> None:
        connection = sqlite3.connect(
            self.path, timeout=5, isolation_level=None, check_same_thread=False
        )
        self._connection = connection
        # Reading comes first: a file of somebody else's is left as it is.
        if not check_kind(connection, self.path):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(
                f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {4 << 20}")
        facts = {"version": __version__, "node": self._node}
        connection.executemany(
            "INSERT OR REPLACE INTO about VALUES (?, ?)",
            [fact for fact in facts.items() if fact[1] is not None],
        )
        status = os.stat(self.path)  # noqa: PTH116
        self._file = (status.st_dev, status.st_ino)
        self._trimmer.attach(connection)
        self._load()
        self._began = self._began or CONTINUED

    def _load(self) -> None:
        """Learn what the file calls which container."""
        assert self._connection is not None  # noqa: S101 (called with it open only)
        self._containers = {
            container.identity: (number, container)
            for number, container in (
                (row[0], RecordedContainer(*row[1:]))
                for row in self._connection.execute(
                    "SELECT id, pod_uid, name, container_id, place, namespace, pod FROM containers"
                )
            )
        }
        self._series = {
            (container, index, uuid): number
            for number, container, index, uuid in self._connection.execute(
                "SELECT id, container, device_index, device_uuid FROM series"
            )
        }

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, RecordingError, OSError) as error:
            # What the cache says may not be in the file.
            self._drop_connection()
            if isinstance(error, sqlite3.Error):
                raise recording_error(error, self.path) from error
            if isinstance(error, OSError):
                raise RecordingUnavailable(
                    f"{self.path!r}: {error.strerror}", path=self.path
                ) from error
            raise

    def close(self) -> None:
        """Bring everything into the one file and give it free; may be called again."""
        with self._guard:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._drop_connection()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---- writing ---------------------------------------------------------------------------------

    def write(self, readings: Iterable[Reading], *, at_ms: int, running_ms: int) -> Written:
        """Add one look.

        Args:
            readings: All that there is; what is missing is gone. Of several for the same device of
                a container the one with most memory used counts.
            at_ms: When, Unix milliseconds.
            running_ms: The same moment by a clock that nobody sets, such as ``CLOCK_BOOTTIME``:
                what tells a gap from a clock that was set.

        Raises:
            RecordingUnavailable: No space, no permission, locked; nothing was written, and the next
                call tries again.
            RecordingDamaged, NotARecording: The file cannot be written to as it is.
            ValueError: After `close`.
        """
        with self._guard:
            if self._lock_fd is None:
                raise ValueError("the recording has been closed")
            with self._errors():
                self._check_file()
                return self._write(readings, at_ms, running_ms)

    def _check_file(self) -> None:
        if self._connection is not None:
            try:
                status = os.stat(self.path)  # noqa: PTH116
            except FileNotFoundError:
                status = None
            if status is None or (status.st_dev, status.st_ino) != self._file:
                # Written to a file without a name, everything would be lost.
                self._drop_connection()
        if self._connection is None:
            self._open()
        try:
            log_bytes = os.stat(f"{self.path}-wal").st_size  # noqa: PTH116
        except FileNotFoundError:
            return
        if log_bytes > self._wal_limit:
            assert self._connection is not None  # noqa: S101 (opened above)
            ((busy, _, _),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if busy:
                raise RecordingUnavailable(
                    f"{self.path!r}: a reader that does not end keeps {format_size(log_bytes)} from"
                    " being taken into the file",
                    path=self.path,
                )

    def _why_new_segment(self, at_ms: int, running_ms: int) -> str | None:
        if self._last is None:
            return START
        wall_ms, clock_ms, _ = self._last
        passed_ms = running_ms - clock_ms
        if at_ms <= wall_ms or abs(at_ms - wall_ms - passed_ms) > max(
            _CLOCK_STEP_MS, self._interval_ms // 2
        ):
            return CLOCK
        if passed_ms > 2 * self._interval_ms:
            return GAP
        if self._began is not None or not 0 <= at_ms - self._segment_started_ms < _SEGMENT_MS:
            return CONTINUED
        if self._segment_rows is not None and self._rows_in_segment > self._segment_rows:
            return CONTINUED
        return None

    def _write(self, readings: Iterable[Reading], at_ms: int, running_ms: int) -> Written:
        connection = self._connection
        assert connection is not None  # noqa: S101 (`_check_file` has opened it)
        began = self._why_new_segment(at_ms, running_ms)
        states = {} if began else self._states
        activity = {} if began else self._activity
        connection.execute("BEGIN IMMEDIATE")
        try:
            look = self._next_look(connection)
            connection.execute("INSERT INTO looks VALUES (?, ?)", (look, at_ms))
            seen = self._seen(connection, readings, look)
            changed_states = [
                (look, series, *state)
                for series, (state, _) in seen.items()
                if states.get(series) != state
            ]
            changed_states += [(look, gone, *_NOTHING) for gone in states.keys() - seen.keys()]
            changed_activity = [
                (look, series, *now)
                for series, (_, now) in seen.items()
                if activity.get(series) != now
            ]
            connection.executemany("INSERT INTO states VALUES (?,?,?,?,?,?,?)", changed_states)
            connection.executemany("INSERT INTO activity VALUES (?,?,?,?)", changed_activity)
            if began:
                connection.execute(
                    "INSERT INTO segments VALUES (?, ?, ?)", (look, self._interval_ms, began)
                )
            connection.executemany(
                "UPDATE series SET last_look = ? WHERE id = ?",
                [(look, came) for came in seen.keys() - states.keys()],
            )
            connection.execute("COMMIT")
        except BaseException:
            # The cache may name rows that are not there: only a new connection is right.
            self._drop_connection()
            raise
        self._states = {series: state for series, (state, _) in seen.items()}
        self._activity = {series: now for series, (_, now) in seen.items()}
        self._last = (at_ms, running_ms, look)
        rows = len(changed_states) + len(changed_activity)
        self._rows_in_segment += rows
        if began:
            self._began = None
            self._segment_started_ms = at_ms
            self._rows_in_segment = rows
        if self._trimmer.run(at_ms, look, new_segment=bool(began)):
            self._load()
        return Written(look, len(seen), rows, began, self._trimmer.size_bytes())

    def _next_look(self, connection: sqlite3.Connection) -> int:
        if self._last is not None and self._began is None:
            return self._last[2] + 1
        (last,) = connection.execute("SELECT max(id) FROM looks").fetchone()
        return (last or 0) + 1

    def _seen(
        self, connection: sqlite3.Connection, readings: Iterable[Reading], look: int
    ) -> dict[int, tuple[_State, tuple[int | None, int | None]]]:
        seen: dict[int, tuple[_State, tuple[int | None, int | None]]] = {}
        for each in readings:
            series = self._series_of(connection, each, look)
            state = (
                min(each.memory_used_bytes, _MOST),
                _cell(each.memory_limit_bytes),
                _cell(each.sm_limit_percent),
                _cell(each.processes),
                _cell(each.driver_memory_bytes),
            )
            # A container that makes a second region must not hide behind it what it uses.
            if series in seen and (seen[series][0][0] or 0) > each.memory_used_bytes:
                continue
            seen[series] = (state, (_cell(each.sm_util_percent), _cell(each.driver_sm_percent)))
        return seen

    def _series_of(self, connection: sqlite3.Connection, reading: Reading, look: int) -> int:
        container = self._container_of(connection, reading.container)
        uuid = reading.device_uuid
        if uuid is not None:
            uuid = printable(uuid, _NAME_LIMIT)
        key = (container, reading.device_index, uuid)
        series = self._series.get(key)
        if series is not None:
            return series
        siblings = [each for each in self._series if each[0] == container]
        if len(siblings) >= _SERIES_PER_CONTAINER:
            for sibling in reversed(siblings):
                if sibling[1] == reading.device_index:
                    return self._series[sibling]
        added = connection.execute(
            "INSERT INTO series (container, device_index, device_uuid, last_look)"
            " VALUES (?, ?, ?, ?)",
            (container, reading.device_index, uuid, look),
        ).lastrowid
        assert added is not None  # noqa: S101 (an INSERT has one)
        self._series[key] = added
        return added

    def _container_of(self, connection: sqlite3.Connection, container: RecordedContainer) -> int:
        known = self._containers.get(container.identity)
        if known is not None and known[1] is container:
            return known[0]
        cells = tuple(
            None if cell is None else printable(cell, _NAME_LIMIT)
            for cell in attrs.astuple(container)
        )
        identity = cells[:4]
        known = self._containers.get(identity)
        if known is None:
            number = connection.execute(
                "INSERT INTO containers (pod_uid, name, container_id, place, namespace, pod)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                cells,
            ).lastrowid
            assert number is not None  # noqa: S101 (an INSERT has one)
        else:
            number, before = known
            # A name that has become known stays known.
            named = (container.namespace, container.pod)
            if named != (before.namespace, before.pod) and named != (None, None):
                connection.execute(
                    "UPDATE containers SET namespace = ?, pod = ? WHERE id = ?",
                    (*cells[4:], number),
                )
            elif named == (None, None):
                container = attrs.evolve(container, namespace=before.namespace, pod=before.pod)
        self._containers[identity] = (number, container)
        if identity != container.identity:
            self._containers[container.identity] = (number, container)
        return number


def _cell(value: int | None) -> int | None:
    return None if value is None else min(value, _MOST)
