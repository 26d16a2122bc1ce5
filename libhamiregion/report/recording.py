"""The recording: what a node's containers held and used over time, in one SQLite file.

A *look* reads all regions at once, every so many seconds. It writes one row into ``looks`` and one
row into ``changes`` for each allocation that has changed since the look before, so an idle node
costs one short row. To read a value one needs all changes since a look that wrote everything: the
first, one each hour, and one after each gap (``looks.whole``). Retention removes the oldest looks,
up to one of those.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import stat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from .history import Allocation, HistoryFacts, Look, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

#: "HAMR", which `file` and `sqlite3` show as application id.
APPLICATION_ID: Final = 0x48414D52
SCHEMA_VERSION: Final = 2

# until_ms: where the next look took over, or one interval after this one if none came in time.
# changes: NULL in used_bytes leaves the five memory figures as they were; used_bytes -1 says that
# the allocation is gone. In the other columns NULL is unlimited for the memory limit, and unknown;
# an SM limit of 100 is unlimited. The view has the word for both.
# allocations.last_look: the last look that wrote all of the allocation's figures, so the rows of an
# allocation are never older than the run that this look is in. No id is used twice (AUTOINCREMENT):
# what is left of one container must never become another one's.
SCHEMA: Final = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE allocations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT, pod TEXT, container TEXT, pod_uid TEXT,
    device_index INTEGER NOT NULL, device_uuid TEXT,
    last_look INTEGER NOT NULL
);
CREATE TABLE looks (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL,
    whole INTEGER NOT NULL
);
CREATE TABLE changes (
    look INTEGER NOT NULL, allocation INTEGER NOT NULL,
    used_bytes INTEGER, limit_bytes INTEGER, sm_limit_percent INTEGER,
    processes INTEGER, driver_bytes INTEGER,
    sm_percent INTEGER, driver_sm_percent INTEGER,
    PRIMARY KEY (look, allocation)
) WITHOUT ROWID;
CREATE VIEW readable AS
    SELECT datetime(at_ms / 1000, 'unixepoch') AS at_utc, namespace, pod, container,
        device_index, device_uuid, used_bytes,
        CASE WHEN used_bytes >= 0 THEN ifnull(limit_bytes, 'unlimited') END AS limit_bytes,
        CASE WHEN sm_limit_percent = 100 THEN 'unlimited' ELSE sm_limit_percent END
            AS sm_limit_percent,
        processes, driver_bytes, sm_percent, driver_sm_percent
    FROM changes JOIN looks ON looks.id = look JOIN allocations ON allocations.id = allocation;
"""

#: Device and inode of the files that this process writes to.
OPEN_FOR_WRITING: Final[set[tuple[int, int]]] = set()

# Far above what the processes of a container come to; sums of such figures stay finite.
_MOST_PERCENT: Final = 2**63

_Stretch: TypeAlias = "tuple[int, int, int, int]"


class RecordingError(Exception):
    """A recording cannot be read or written: another program's file, damaged, or in use."""


class RecordingUnavailable(RecordingError):
    """A recording cannot be opened or written now (no space, no permission, locked); try again."""


def not_a_recording(path: PathLike, what: str) -> RecordingError:
    """Make the error for a file that is something else."""
    return RecordingError(f"{str(path)!r} is not a recording: {what}")


def damaged(path: PathLike, what: str) -> RecordingError:
    """Make the error for a file with wrong or missing pages or rows."""
    return RecordingError(
        f"{str(path)!r} is damaged ({what}); move it away, and what sqlite3's .recover saves of it"
        " can be read again"
    )


def from_sqlite(error: sqlite3.Error | UnicodeDecodeError, path: PathLike) -> RecordingError:
    """Turn what SQLite reports into one of the errors above."""
    if isinstance(error, UnicodeDecodeError):
        # SQLite quotes a damaged schema in its message, and sqlite3 takes that for UTF-8.
        return damaged(path, "its schema is no text")
    said = str(error)
    if "not a database" in said:
        return not_a_recording(path, said)
    # sqlite3 has no class of its own for a damaged file; what can pass is an OperationalError.
    if type(error) is sqlite3.DatabaseError:
        return damaged(path, said)
    return RecordingUnavailable(f"{str(path)!r}: {said}")


def check_header(fd: int, path: PathLike) -> bool:
    """Read what a file is, before SQLite, which makes files beside it.

    Returns:
        Whether it is a recording; False if it is empty.

    Raises:
        RecordingError: It is something else.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise not_a_recording(path, "it is no regular file")
    header = os.pread(fd, 100, 0)
    if not header:
        return False
    # https://sqlite.org/fileformat.html
    application_id, version = header[68:72], int.from_bytes(header[60:64], "big")
    if not header.startswith(b"SQLite format 3\0"):
        raise not_a_recording(path, "it is no SQLite file")
    if application_id != APPLICATION_ID.to_bytes(4, "big"):
        raise not_a_recording(path, "it is an SQLite file of another program")
    if version != SCHEMA_VERSION:
        raise not_a_recording(
            path, f"it has version {version}, and this program knows version {SCHEMA_VERSION}"
        )
    return True


class Recording:
    """A recording, read-only. A context manager.

    Where the clock was set back, the same time was recorded twice: the later record counts.

    Threads: one at a time. A recorder may write meanwhile.

    Args:
        path: The file.

    Attributes:
        path: The file, absolute.

    Raises:
        FileNotFoundError: There is none.
        RecordingError: It cannot be read.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = str(Path(path).absolute())
        self._check()
        #: Whether a writer closed it in order: its files are gone, and shall be after this.
        self._was_closed = not os.path.lexists(f"{self.path}-wal")
        address = f"file:{quote(self.path)}?mode=ro"
        try:
            self._connection = self._connect(address)
        except RecordingUnavailable:
            # Readers of a write-ahead log make files beside it. In a directory where that is not
            # allowed, a copy that nobody writes to is read as it is.
            if os.access(os.path.dirname(self.path), os.W_OK) or _has_content(f"{self.path}-wal"):  # noqa: PTH120
                raise
            self._connection = self._connect(f"{address}&immutable=1")

    def _check(self) -> None:
        status = os.stat(self.path)  # noqa: PTH116
        # Closing a descriptor of a file drops the locks that SQLite has on it in this process.
        if (status.st_dev, status.st_ino) in OPEN_FOR_WRITING:
            return
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RecordingUnavailable(f"{self.path!r}: {error.strerror}") from error
        try:
            if not check_header(fd, self.path):
                raise not_a_recording(self.path, "it is empty")
        finally:
            os.close(fd)

    def _connect(self, address: str) -> sqlite3.Connection:
        with self._errors():
            connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=5)
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            except BaseException:
                connection.close()
                raise
        return connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise from_sqlite(error, self.path) from error

    def close(self) -> None:
        """Close the file; may be called again."""
        self._connection.close()
        if self._was_closed:
            self._was_closed = False
            self._remove_log()

    def _remove_log(self) -> None:
        """Have SQLite remove the files beside a closed recording that reading it has made.

        A reader may not. The last one to close a database that it could write to does, and knows
        whether it is the last.
        """
        with contextlib.suppress(sqlite3.Error):
            writable = sqlite3.connect(f"file:{quote(self.path)}?mode=rw", uri=True, timeout=0)
            try:
                writable.execute("SELECT 1 FROM sqlite_master").fetchone()
            finally:
                writable.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def span_ms(self) -> tuple[int, int] | None:
        """Return the first and last moment recorded, Unix milliseconds; None if there is none.

        Raises:
            RecordingError: It cannot be read.
        """
        with self._errors():
            stretches = self._stretches()
        return (stretches[0][0], stretches[-1][1]) if stretches else None

    def facts(self) -> HistoryFacts:
        """Describe the recording.

        Raises:
            RecordingError: It cannot be read.
        """
        with self._errors():
            about = dict(self._connection.execute("SELECT key, value FROM about"))
        try:
            interval_s = float(about.get("interval_s", 0))
        except (TypeError, ValueError):
            raise damaged(self.path, "its interval is no number") from None
        return HistoryFacts("recording", self.path, about.get("node"), interval_s)

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        """Yield the looks between two moments, cut to them.

        Raises:
            RecordingError: It cannot be read.
        """
        with self._errors():
            # One transaction: what retention removes meanwhile stays readable here.
            self._connection.execute("BEGIN")
            try:
                allocations = self._allocations()
                for from_ms, to_ms, first, last in self._stretches():
                    start_ms, end_ms = max(from_ms, since_ms), min(to_ms, until_ms)
                    if start_ms < end_ms:
                        yield from self._run(first, last, start_ms, end_ms, allocations)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _stretches(self) -> list[_Stretch]:
        """List what counts when: start and end, first and last look, in the order of time."""
        runs = self._connection.execute(
            "SELECT id, at_ms, next - 1,"
            " (SELECT max(until_ms) FROM looks WHERE id >= run.id AND id < run.next)"
            " FROM (SELECT *, lead(id, 1, 1 << 62) OVER (ORDER BY id) AS next FROM looks"
            " WHERE whole) AS run ORDER BY id DESC"
        ).fetchall()
        for number in itertools.chain.from_iterable(runs):
            if not isinstance(number, int):
                raise damaged(self.path, "its table of looks has a cell that is no number")
        found: list[_Stretch] = []
        taken: list[tuple[int, int]] = []
        # The latest record first: an earlier one counts for what is left of its time.
        for first, at_ms, last, end_ms in runs:
            start_ms = at_ms
            for taken_from_ms, taken_to_ms in (*taken, (end_ms, end_ms)):
                if start_ms < min(taken_from_ms, end_ms):
                    found.append((start_ms, min(taken_from_ms, end_ms), first, last))
                start_ms = max(start_ms, taken_to_ms)
            taken = _joined([*taken, (at_ms, end_ms)])
        return sorted(found)

    def _run(
        self,
        first: int,
        last: int,
        start_ms: int,
        end_ms: int,
        allocations: Mapping[int, Allocation],
    ) -> Iterator[Look]:
        rows = self._connection.execute(
            "SELECT id, at_ms, until_ms, allocation, used_bytes, limit_bytes, sm_limit_percent,"
            " processes, driver_bytes, sm_percent, driver_sm_percent"
            " FROM looks LEFT JOIN changes ON look = id WHERE id BETWEEN ? AND ? ORDER BY id",
            (first, last),
        )
        current: dict[int, Sample | None] = {}
        # What changed before the report begins is what it begins with.
        changes: dict[Allocation, Sample | None] = {}
        whole = True
        before_ms = 0
        for (look, at_ms, until_ms), group in itertools.groupby(rows, itemgetter(0, 1, 2)):
            is_number = isinstance(at_ms, int) and isinstance(until_ms, int)
            if not (is_number and before_ms <= at_ms < until_ms):
                raise damaged(self.path, f"look {look} is not after the one before")
            before_ms = until_ms
            for row in group:
                number = row[3]
                if number is None:
                    continue  # nothing has changed
                if number not in allocations:
                    raise damaged(self.path, f"allocation {number} of look {look} is missing")
                if not _is_valid(row[4:]):
                    raise damaged(self.path, f"look {look} has a figure that is none")
                sample = current[number] = _sample(row, current.get(number))
                changes[allocations[number]] = sample
            if until_ms <= start_ms:
                continue
            if at_ms >= end_ms:
                return
            yield Look(max(at_ms, start_ms), min(until_ms, end_ms), whole, changes)
            whole, changes = False, {}

    def _allocations(self) -> dict[int, Allocation]:
        rows = self._connection.execute(
            "SELECT id, namespace, pod, container, pod_uid, device_index, device_uuid"
            " FROM allocations"
        )
        found = {}
        for number, *fields in rows:
            *names, index, uuid = fields
            is_text = all(each is None or isinstance(each, str) for each in (*names, uuid))
            if not (is_text and isinstance(index, int)):
                raise damaged(self.path, f"allocation {number} has a cell of another kind")
            found[number] = Allocation(*fields)
        return found


def _sample(row: tuple[Any, ...], before: Sample | None) -> Sample | None:
    used, limit, sm_limit, processes, driver, sm, driver_sm = row[4:]
    if used is None:
        if before is None:
            return None
        return Sample(
            before.memory_used_bytes,
            before.memory_limit_bytes,
            before.sm_limit_percent,
            sm,
            before.processes,
            before.driver_memory_bytes,
            driver_sm,
        )
    if used < 0:
        return None
    return Sample(used, limit, sm_limit, sm, processes, driver, driver_sm)


def _is_valid(cells: tuple[Any, ...]) -> bool:
    """Whether the figures of a row of `changes` are such as a writer makes."""
    *memory, sm, driver_sm = cells
    return all(each is None or (isinstance(each, int) and each >= -1) for each in memory) and all(
        each is None or (isinstance(each, int | float) and 0 <= each < _MOST_PERCENT)
        for each in (sm, driver_sm)
    )


def _joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge intervals that overlap or touch, in order."""
    found: list[tuple[int, int]] = []
    for start_ms, end_ms in sorted(intervals):
        if found and start_ms <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ms))
        else:
            found.append((start_ms, end_ms))
    return found


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0  # noqa: PTH116
    except OSError:
        return False
