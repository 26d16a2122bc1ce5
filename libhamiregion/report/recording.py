"""The recording: what a node's containers held and used over time, in one SQLite file.

The recorder looks at all regions at once, every so many seconds. A *look* writes only what has
changed since the look before: an idle node costs one short row. Values hold from look to look, so a
reader needs all that was written since some moment at which everything was: the first look of a
*segment*. One begins when recording starts, every hour, after a gap, and when the clock was set.
Retention drops whole segments.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from libhamiregion.errors import PathLike

#: "HAMR", which `file` and `sqlite3` show as application id.
APPLICATION_ID: Final = 0x48414D52
SCHEMA_VERSION: Final = 1

#: Why a segment began.
START, GAP, CLOCK, CONTINUED = "start", "gap", "clock", "continued"

# NULL is unlimited for a limit, and not known for a figure. A row of `states` in which used_bytes
# is NULL says that there is nothing to be read from here on. `activity` is apart because it changes
# at nearly every look of a busy container, and the rest hardly ever. A series' `last_look` is the
# last at which all of it was written: at the beginning of a segment, or when it came back. No id is
# used again: what is left of a container must never become another one's.
SCHEMA: Final = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE containers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pod_uid TEXT, name TEXT, container_id TEXT, place TEXT, namespace TEXT, pod TEXT
);
CREATE TABLE series (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    container INTEGER NOT NULL REFERENCES containers (id),
    device_index INTEGER NOT NULL, device_uuid TEXT,
    last_look INTEGER NOT NULL
);
CREATE TABLE segments (
    first_look INTEGER PRIMARY KEY, interval_ms INTEGER NOT NULL, cause TEXT NOT NULL
);
CREATE TABLE looks (id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL);
CREATE TABLE states (
    look INTEGER NOT NULL, series INTEGER NOT NULL,
    used_bytes INTEGER, limit_bytes INTEGER, sm_limit_percent INTEGER,
    processes INTEGER, driver_bytes INTEGER,
    PRIMARY KEY (look, series)
) WITHOUT ROWID;
CREATE TABLE activity (
    look INTEGER NOT NULL, series INTEGER NOT NULL,
    sm_percent INTEGER, driver_sm_percent INTEGER,
    PRIMARY KEY (look, series)
) WITHOUT ROWID;
CREATE VIEW readable_states AS
    SELECT datetime(at_ms / 1000, 'unixepoch') AS at_utc, namespace, pod, name AS container,
        device_index, device_uuid, used_bytes, limit_bytes, sm_limit_percent, processes,
        driver_bytes
    FROM states JOIN looks ON looks.id = look JOIN series ON series.id = series
        JOIN containers ON containers.id = container;
CREATE VIEW readable_activity AS
    SELECT datetime(at_ms / 1000, 'unixepoch') AS at_utc, namespace, pod, name AS container,
        device_index, device_uuid, sm_percent, driver_sm_percent
    FROM activity JOIN looks ON looks.id = look JOIN series ON series.id = series
        JOIN containers ON containers.id = container;
"""


@attrs.frozen
class RecordedContainer:
    """Which container; the first four say so, the others name it for people.

    Attributes:
        pod_uid: UID of its pod.
        name: Its name.
        container_id: Its id, for one that is known by that only.
        place: The region's path inside the container, for one outside the roots.
        namespace: Of the pod.
        pod: The pod's name.
    """

    pod_uid: str | None
    name: str | None
    container_id: str | None = None
    place: str | None = None
    namespace: str | None = None
    pod: str | None = None

    @property
    def identity(self) -> tuple[str | None, ...]:
        """What makes it this one, whatever it is called."""
        return (self.pod_uid, self.name, self.container_id, self.place)


@attrs.frozen
class Reading:
    """What a container holds and uses of one device, at one look.

    Attributes:
        container: Whose.
        device_index: The device's index in its region.
        device_uuid: ``GPU-…`` or ``MIG-…``; None until the container has told.
        memory_used_bytes: What counts against the limit.
        memory_limit_bytes: None if unlimited.
        sm_limit_percent: None if unlimited.
        sm_util_percent: As accounted in the region, the sum over its processes, so it can pass
            100; None where the layout has none.
        processes: Of the container, all with a slot that are not proved dead; None if unknown.
        driver_memory_bytes: What the driver says the container's processes use of the device.
        driver_sm_percent: The same for SM utilisation.
    """

    container: RecordedContainer
    device_index: int
    device_uuid: str | None
    memory_used_bytes: int
    memory_limit_bytes: int | None = None
    sm_limit_percent: int | None = None
    sm_util_percent: int | None = None
    processes: int | None = None
    driver_memory_bytes: int | None = None
    driver_sm_percent: int | None = None


@attrs.frozen
class Written:
    """What one look came to.

    Attributes:
        look: Its number.
        series: Containers' devices that were seen.
        rows: Rows that were written for what changed.
        began: Why a new segment began with it: ``start``, ``gap``, ``clock`` or ``continued``;
            None if none did.
        size_bytes: Of the file, without its write-ahead log.
    """

    look: int
    series: int
    rows: int
    began: str | None
    size_bytes: int


class RecordingError(Exception):
    """A recording cannot be read or written; the root of what follows, never raised itself.

    Attributes:
        path: The file.
    """

    def __init__(self, message: str, *, path: PathLike) -> None:
        super().__init__(message)
        self.path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), str(self), self.path)


class NotARecording(RecordingError, ValueError):
    """The file is something else, or of a version that this one does not know."""


class RecordingDamaged(RecordingError):
    """Pages or rows of the file are wrong or missing: move it away and begin another."""


class RecordingInUse(RecordingError):
    """Another recorder writes to the file."""


class RecordingUnavailable(RecordingError):
    """It cannot be opened or written now: no space, no permission, a lock. It may pass."""


def _rebuilt(cls: type[RecordingError], message: str, path: str) -> RecordingError:
    return cls(message, path=path)


def recording_error(error: sqlite3.Error, path: PathLike) -> RecordingError:
    """What SQLite reports, as one of the classes above."""
    said = str(error)
    shown = repr(str(path))
    if "not a database" in said:
        return NotARecording(f"{shown} is not a recording: {said}", path=path)
    # sqlite3 has no class of its own for a damaged file; what can pass is an OperationalError.
    if isinstance(error, sqlite3.DatabaseError) and type(error) is sqlite3.DatabaseError:
        return damaged(said, path)
    return RecordingUnavailable(f"{shown}: {said}", path=path)


def damaged(said: str, path: PathLike) -> RecordingDamaged:
    """The error for a file of which so much is wrong."""
    return RecordingDamaged(
        f"{str(path)!r} is damaged ({said}); move it away, and what sqlite3's .recover saves of it"
        " can be read again",
        path=path,
    )


def check_kind(connection: sqlite3.Connection, path: PathLike) -> bool:
    """Whether an open file is a recording; False if it holds nothing yet.

    Raises:
        NotARecording: It is something else.
        sqlite3.Error: As SQLite reports it.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        if not application and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return False
        raise NotARecording(
            f"{str(path)!r} is an SQLite file of another program, not a recording", path=path
        )
    if version != SCHEMA_VERSION:
        raise NotARecording(
            f"{str(path)!r} is a recording of version {version}; this program knows version"
            f" {SCHEMA_VERSION}",
            path=path,
        )
    return True
