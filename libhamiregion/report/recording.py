"""The recording: usage of a node's containers over time, in one SQLite file.

A *look* is one observation of all regions. It adds one row to ``looks``, and one row to ``changes``
for each allocation that has changed since the look before, so an idle node costs one short row. A
value is known from all changes since a look that wrote everything: the first, each 240th, and one
after each gap (``looks.whole``). Such a look and those after it are a *run*. Retention removes
the oldest runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import stat
import struct
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import attrs

from .history import Allocation, Gpu, HistoryFacts, ReportInterval, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

#: "HAMR", which `file` and `sqlite3` show as application id.
APPLICATION_ID: Final = 0x48414D52
SCHEMA_VERSION: Final = 3
# Without the table of devices; written to, it gets one.
_SCHEMA_2: Final = 2

# about: version, interval_s, node and gpus, the latter two if they are known.
# until_ms: the time of the next look, or one interval after this one if none came in time.
# changes: NULL in used_bytes leaves the five memory figures as they were; used_bytes -1 says that
# the allocation is gone. In the other columns NULL is unlimited for the memory limit, and unknown;
# an SM limit of 100 is unlimited. The view has the word for both.
# allocations.last_look: the last look that wrote all of the allocation's figures, so the rows of an
# allocation are never older than the run of this look. No id is used twice (AUTOINCREMENT): rows
# left by one container must never become another one's.
DEVICES: Final = """
CREATE TABLE devices (uuid TEXT PRIMARY KEY, model TEXT, memory_bytes INTEGER) WITHOUT ROWID;
"""
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

#: Device and inode of the files that this process writes to. Closing any descriptor of such a file
#: would drop the locks that SQLite has on it.
OPEN_FOR_WRITING: Final[set[tuple[int, int]]] = set()

#: Start and end of a part of a run, and the first and last look of the run.
_Stretch: TypeAlias = "tuple[int, int, int, int]"


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what two names of one file have in common."""
    return (status.st_dev, status.st_ino)


class RecordingError(Exception):
    """A recording cannot be read or written: another program's file, damaged, or in use."""


class RecordingUnavailable(RecordingError):
    """A recording cannot be opened or written now (no space, no permission, locked); try again."""


def damaged(path: PathLike, what: str) -> RecordingError:
    """Make the error for a file with wrong or missing pages or rows."""
    return RecordingError(
        f"{str(path)!r} is damaged ({what}); move it away, and read what sqlite3's .recover saves"
    )


def from_sqlite(error: sqlite3.Error | UnicodeDecodeError, path: PathLike) -> RecordingError:
    """Turn an error of SQLite into one of those above."""
    # SQLite quotes a damaged schema in its message, and sqlite3 takes that for UTF-8. It has no
    # class of its own for a damaged file; errors that can pass are OperationalErrors.
    if isinstance(error, UnicodeDecodeError) or type(error) is sqlite3.DatabaseError:
        return damaged(path, str(error))
    return RecordingUnavailable(f"{str(path)!r}: {error}")


def check_header(fd: int, path: PathLike) -> bool:
    """Check the kind of a file before SQLite opens it, and makes files alongside.

    Returns:
        Whether it is a recording; False if it is empty.

    Raises:
        RecordingError: The file is something else.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise RecordingError(f"{str(path)!r} is not a recording: it is no regular file")
    # https://sqlite.org/fileformat.html
    header = os.pread(fd, 100, 0)
    found = struct.unpack(">I4xI", header[60:72]) if len(header) == 100 else None
    if header and found not in {(each, APPLICATION_ID) for each in (_SCHEMA_2, SCHEMA_VERSION)}:
        raise RecordingError(f"{str(path)!r} is not a recording of version 2 or {SCHEMA_VERSION}")
    return bool(header)


class Recording:
    """A recording, opened for reading. A context manager.

    If the clock was set back, the same time was recorded twice: the first record counts.

    Threads: one at a time. A recorder may write meanwhile.

    Args:
        path: The file.

    Attributes:
        path: The file, absolute.

    Raises:
        OSError: The file does not exist, or must not be read.
        RecordingError: The file cannot be read.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = str(Path(path).absolute())
        if identity(os.stat(self.path)) not in OPEN_FOR_WRITING:  # noqa: PTH116
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(self.path, flags)
            try:
                if not check_header(fd, self.path):
                    raise RecordingError(f"{self.path!r} is not a recording: it is empty")
            finally:
                os.close(fd)
        # The last one that can write removes SQLite's files alongside.
        address = f"file:{quote(self.path)}?mode=rw"
        with self._errors():
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=5)
            self._connection.execute("PRAGMA query_only = 1")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise from_sqlite(error, self.path) from error
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, f"a row makes no sense: {error}") from error

    def close(self) -> None:
        """Close the file; may be called again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def span_ms(self) -> tuple[int, int] | None:
        """Return the first and last moment recorded, Unix milliseconds; None if there is none.

        Raises:
            RecordingError: The file cannot be read.
        """
        with self._errors():
            stretches = self._stretches()
        return (stretches[0][0], stretches[-1][1]) if stretches else None

    def facts(self) -> HistoryFacts:
        """Describe the recording.

        Raises:
            RecordingError: The file cannot be read.
        """
        with self._errors():
            about = dict(self._connection.execute("SELECT key, value FROM about"))
            interval_s, gpus = float(about.get("interval_s", 0)), int(about.get("gpus", 0))
        return HistoryFacts("recording", self.path, about.get("node"), interval_s, gpus or None)

    def devices(self, since_ms: int, until_ms: int) -> dict[str, Gpu]:  # noqa: ARG002 (of all time)
        """Describe the GPUs that the driver has listed; none in a recording of version 2.

        Raises:
            RecordingError: The file cannot be read.
        """
        found: dict[str, Gpu] = {}
        with self._errors():
            if self._connection.execute("PRAGMA user_version").fetchone()[0] == _SCHEMA_2:
                return found
            for uuid, model, size in self._connection.execute("SELECT * FROM devices"):
                if not (isinstance(uuid, str) and isinstance(model, str | None)):
                    raise TypeError(f"{uuid!a} is no uuid, or {model!a} no model")
                found[uuid] = Gpu(model, None if size is None else int(size))
        return found

    def intervals(self, since_ms: int, until_ms: int) -> Iterator[ReportInterval]:
        """Yield what was recorded between two moments, cut to them.

        Raises:
            RecordingError: The file cannot be read.
        """
        node = self.facts().node
        with self._errors():
            # One transaction: rows that retention removes meanwhile stay readable here.
            self._connection.execute("BEGIN")
            try:
                allocations = self._allocations(node)
                for from_ms, to_ms, first, last in self._stretches():
                    start_ms, end_ms = max(from_ms, since_ms), min(to_ms, until_ms)
                    if start_ms < end_ms:
                        yield from self._run(first, last, start_ms, end_ms, allocations)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _allocations(self, node: str | None) -> dict[int, Allocation]:
        found = {}
        for number, index, *names in self._connection.execute(
            "SELECT id, device_index, device_uuid, namespace, pod, container, pod_uid"
            " FROM allocations"
        ):
            for text in names:
                if not isinstance(text, str | None):
                    raise TypeError(f"{text!a} is no name")
            uuid, namespace, pod, container, pod_uid = names
            found[number] = Allocation(namespace, pod, container, pod_uid, int(index), uuid, node)
        return found

    def _stretches(self) -> list[_Stretch]:
        """List which run counts when, in the order of time."""
        runs = self._connection.execute(
            "SELECT at_ms,"
            " (SELECT max(until_ms) FROM looks WHERE id >= run.id AND id < run.next), id, next - 1"
            " FROM (SELECT *, lead(id, 1, 1 << 62) OVER (ORDER BY id) AS next FROM looks"
            " WHERE whole) AS run ORDER BY at_ms, id"
        )
        found: list[_Stretch] = []
        covered_ms = 0
        for at_ms, end_ms, first, last in runs:
            if end_ms > covered_ms:
                found.append((max(at_ms, covered_ms), end_ms, first, last))
                covered_ms = end_ms
        return found

    def _run(
        self,
        first: int,
        last: int,
        start_ms: int,
        end_ms: int,
        allocations: Mapping[int, Allocation],
    ) -> Iterator[ReportInterval]:
        rows = self._connection.execute(
            "SELECT id, at_ms, until_ms, allocation, used_bytes, limit_bytes, sm_limit_percent,"
            " sm_percent, processes, driver_bytes, driver_sm_percent"
            " FROM looks LEFT JOIN changes ON look = id WHERE id BETWEEN ? AND ? ORDER BY id",
            (first, last),
        )
        current: dict[int, Sample | None] = {}
        # Changes from before the report are its first interval.
        changes: dict[Allocation, Sample | None] = {}
        whole = True
        before_ms = 0
        for (look, at_ms, until_ms), group in itertools.groupby(rows, itemgetter(0, 1, 2)):
            if not before_ms <= at_ms < until_ms:
                raise ValueError(f"look {look} is not after the one before")
            before_ms = until_ms
            for row in group:
                number = row[3]
                # None: nothing has changed.
                if number is not None:
                    sample = current[number] = _sample(row[4:], current.get(number))
                    changes[allocations[number]] = sample
            if until_ms <= start_ms:
                continue
            if at_ms >= end_ms:
                return
            yield ReportInterval(max(at_ms, start_ms), min(until_ms, end_ms), whole, changes)
            whole, changes = False, {}


def _sample(figures: tuple[Any, ...], before: Sample | None) -> Sample | None:
    """Read a row of ``changes``, in the order of `Sample`."""
    for each in figures:
        if each is not None and not -1 <= each < 2**63:
            raise ValueError(f"{each} is no figure")
    used, _, _, sm, _, _, driver_sm = figures
    if used is None:
        return before and attrs.evolve(before, sm_percent=sm, driver_sm_percent=driver_sm)
    return None if used < 0 else Sample(*figures)
