"""Reads a recording back, also while it is being written."""

from __future__ import annotations

import itertools
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import attrs

from libhamiregion.agent.report.history import (
    Activity,
    Allocation,
    AllocationState,
    HistoryFacts,
    Look,
)

from .recording import CLOCK, NotARecording, RecordingUnavailable, check_kind, recording_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

_Row: TypeAlias = "tuple[Any, ...]"


@attrs.define
class _Segment:
    first_look: int
    last_look: int
    start_ms: int
    #: Of the last look in it.
    last_ms: int
    #: Where the following segment begins, or one interval after the last look.
    end_ms: int
    interval_ms: int
    cause: str


class Recording:
    """A recording, read-only. A context manager.

    Values hold from look to look. Where the next look came later than twice the interval, or after
    the clock was set, a look holds for one interval and then there is a gap. Where the clock was
    set back, the same moments were recorded twice: what was recorded later counts.

    Threads: one at a time. A recorder may write meanwhile; what is read is of one moment each time.

    Args:
        path: The file.

    Attributes:
        path: The file, absolute.

    Raises:
        FileNotFoundError: There is none.
        NotARecording, RecordingDamaged, RecordingUnavailable: It cannot be read.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = str(Path(path).absolute())
        if not os.path.exists(self.path):  # noqa: PTH110
            raise FileNotFoundError(2, "No such file or directory", self.path)
        if os.path.isdir(self.path):  # noqa: PTH112
            raise NotARecording(f"{self.path!r} is a directory, not a recording", path=self.path)
        self._allocations: dict[int, Allocation] = {}
        self._resolution_ms = 0
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        address = f"file:{quote(self.path)}?mode=ro"
        try:
            return self._checked(address)
        except RecordingUnavailable:
            # Readers of a write-ahead log make files beside it. In a directory where that is not
            # allowed, a copy is read as it is, which is right for one that nobody writes to.
            if os.access(os.path.dirname(self.path), os.W_OK) or _has_content(f"{self.path}-wal"):  # noqa: PTH120
                raise
            return self._checked(f"{address}&immutable=1")

    def _checked(self, address: str) -> sqlite3.Connection:
        connection = None
        try:
            connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=5)
            if not check_kind(connection, self.path):
                raise NotARecording(f"{self.path!r} is empty, not a recording", path=self.path)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise recording_error(error, self.path) from error
            raise
        return connection

    def close(self) -> None:
        """Close the file; may be called again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what it says ----------------------------------------------------------------------------

    def span_ms(self) -> tuple[int, int] | None:
        """First and last moment that it tells of, Unix milliseconds; None if of none.

        Raises:
            RecordingDamaged, RecordingUnavailable: It cannot be read.
        """
        segments = self._segments()
        return (segments[0].start_ms, segments[-1].end_ms) if segments else None

    def facts(self) -> HistoryFacts:
        """What there is to say about the source.

        Raises:
            RecordingDamaged, RecordingUnavailable: It cannot be read.
        """
        try:
            about = dict(self._connection.execute("SELECT key, value FROM about"))
        except sqlite3.Error as error:
            raise recording_error(error, self.path) from error
        return HistoryFacts(
            kind="recording",
            source=self.path,
            node=about.get("node"),
            resolution_s=self._resolution_ms / 1000,
            averaged=False,
            knows_sm_limits=True,
        )

    def allocation(self, number: int) -> Allocation:
        """Which allocation a number in a look means.

        Raises:
            LookupError: None that was in a look.
        """
        return self._allocations[number]

    def looks(self, since_ms: int, until_ms: int) -> Iterator[Look]:
        """The looks that hold between two moments, cut to them.

        Raises:
            RecordingDamaged, RecordingUnavailable: It cannot be read.
        """
        try:
            # One transaction: what retention deletes meanwhile stays readable here.
            self._connection.execute("BEGIN")
            try:
                segments = [
                    segment
                    for segment in self._segments()
                    if segment.start_ms < until_ms and segment.end_ms > since_ms
                ]
                self._read_allocations()
                end_ms = None
                for segment in segments:
                    self._resolution_ms = segment.interval_ms
                    for look in self._of_segment(segment, since_ms, until_ms):
                        assert end_ms is None or look.start_ms >= end_ms  # noqa: S101
                        end_ms = look.end_ms
                        yield look
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise recording_error(error, self.path) from error

    def _segments(self) -> list[_Segment]:
        try:
            rows = self._connection.execute(
                "SELECT first_look, interval_ms, cause,"
                " lead(first_look) OVER (ORDER BY first_look) FROM segments ORDER BY first_look"
            ).fetchall()
            found = []
            for first, interval_ms, cause, following in rows:
                start_ms, last, last_ms = self._connection.execute(
                    "SELECT (SELECT at_ms FROM looks WHERE id = ?), id, at_ms FROM looks"
                    " WHERE id < ? ORDER BY id DESC LIMIT 1",
                    (first, following if following is not None else 2**62),
                ).fetchone()
                end_ms = last_ms + interval_ms
                found.append(_Segment(first, last, start_ms, last_ms, end_ms, interval_ms, cause))
        except sqlite3.Error as error:
            raise recording_error(error, self.path) from error
        for segment, following in itertools.pairwise(found):
            passed_ms = following.start_ms - segment.last_ms
            if following.cause != CLOCK and 0 < passed_ms <= 2 * segment.interval_ms:
                segment.end_ms = following.start_ms
        # From the last one on: what was recorded later counts where both tell of the same moment.
        limit_ms = 2**62
        for segment in reversed(found):
            segment.end_ms = min(segment.end_ms, limit_ms)
            limit_ms = min(limit_ms, segment.start_ms)
        return [segment for segment in found if segment.end_ms > segment.start_ms]

    def _read_allocations(self) -> None:
        self._allocations = {
            number: Allocation(
                namespace, pod, name or _short_id(container_id) or place, pod_uid, index, uuid
            )
            for number, index, uuid, pod_uid, name, container_id, place, namespace, pod in (
                self._connection.execute(
                    "SELECT series.id, device_index, device_uuid, pod_uid, name, container_id,"
                    " place, namespace, pod FROM series JOIN containers"
                    " ON containers.id = series.container"
                )
            )
        }

    def _of_segment(self, segment: _Segment, since_ms: int, until_ms: int) -> Iterator[Look]:
        span = (segment.first_look, segment.last_look)
        times = iter(
            self._connection.execute(
                "SELECT id, at_ms FROM looks WHERE id BETWEEN ? AND ? ORDER BY id", span
            )
        )
        states = _Rows(
            self._connection.execute(
                "SELECT look, series, used_bytes, limit_bytes, sm_limit_percent, processes,"
                " driver_bytes FROM states WHERE look BETWEEN ? AND ? ORDER BY look",
                span,
            )
        )
        activity = _Rows(
            self._connection.execute(
                "SELECT look, series, sm_percent, driver_sm_percent FROM activity"
                " WHERE look BETWEEN ? AND ? ORDER BY look",
                span,
            )
        )
        upcoming = next(times, None)
        full = True
        changed: dict[int, AllocationState | None] = {}
        active: dict[int, Activity] = {}
        while upcoming is not None:
            look, at_ms = upcoming
            upcoming = next(times, None)
            end_ms = segment.end_ms if upcoming is None else min(upcoming[1], segment.end_ms)
            for row in states.of(look):
                changed[row[1]] = _state(row)
            for active_row in activity.of(look):
                active[active_row[1]] = (active_row[2], active_row[3])
            # What changed before the report begins is what it begins with.
            if end_ms <= max(at_ms, since_ms):
                continue
            if at_ms >= until_ms:
                return
            yield Look(max(at_ms, since_ms), min(end_ms, until_ms), full, changed, active)
            full, changed, active = False, {}, {}


class _Rows:
    """Rows by look, each handed out once."""

    def __init__(self, rows: Iterator[_Row]) -> None:
        self._rows = rows
        self._upcoming: _Row | None = next(rows, None)

    def of(self, look: int) -> list[_Row]:
        found = []
        row = self._upcoming
        while row is not None and row[0] <= look:
            found.append(row)
            row = next(self._rows, None)
        self._upcoming = row
        return found


def _state(row: _Row) -> AllocationState | None:
    _, _, used, limit, sm_limit, processes, driver = row
    return None if used is None else AllocationState(used, used, limit, sm_limit, processes, driver)


def _short_id(container_id: str | None) -> str | None:
    return None if container_id is None else container_id[:12]


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0  # noqa: PTH116
    except OSError:
        return False
