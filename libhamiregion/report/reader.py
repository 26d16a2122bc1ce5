"""Reads a recording back, also while it is being written."""

from __future__ import annotations

import itertools
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import attrs

from libhamiregion.report.history import (
    Activity,
    Allocation,
    AllocationState,
    HistoryFacts,
    Look,
)

from .recording import (
    CLOCK,
    NotARecording,
    RecordingUnavailable,
    check_kind,
    damaged,
    recording_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
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


@attrs.frozen
class _Stretch:
    """Time for which a segment counts."""

    segment: _Segment
    start_ms: int
    end_ms: int


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
        stretches = self._stretches()
        return (stretches[0].start_ms, stretches[-1].end_ms) if stretches else None

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
                stretches = self._stretches()
                self._read_allocations()
                for stretch in stretches:
                    start_ms = max(stretch.start_ms, since_ms)
                    end_ms = min(stretch.end_ms, until_ms)
                    if start_ms < end_ms:
                        self._resolution_ms = stretch.segment.interval_ms
                        yield from self._of_segment(stretch.segment, start_ms, end_ms)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise recording_error(error, self.path) from error

    def _stretches(self) -> list[_Stretch]:
        """What counts when, in the order of time: where two tell of a moment, the later record."""
        found: list[_Stretch] = []
        taken: list[tuple[int, int]] = []
        for segment in reversed(self._segments()):
            at_ms = segment.start_ms
            for start_ms, end_ms in (*taken, (segment.end_ms, segment.end_ms)):
                if at_ms < min(start_ms, segment.end_ms):
                    found.append(_Stretch(segment, at_ms, min(start_ms, segment.end_ms)))
                at_ms = max(at_ms, end_ms)
            taken = _joined([*taken, (segment.start_ms, segment.end_ms)])
        return sorted(found, key=lambda stretch: stretch.start_ms)

    def _segments(self) -> list[_Segment]:
        found = []
        try:
            rows = self._connection.execute(
                "SELECT first_look, interval_ms, cause,"
                " lead(first_look) OVER (ORDER BY first_look) FROM segments ORDER BY first_look"
            ).fetchall()
            for first, interval_ms, cause, following in rows:
                start = self._connection.execute(
                    "SELECT at_ms FROM looks WHERE id = ?", (first,)
                ).fetchone()
                if start is None:
                    raise damaged(f"look {first}, which begins a segment, is missing", self.path)
                last, last_ms = self._connection.execute(
                    "SELECT id, at_ms FROM looks WHERE id < ? ORDER BY id DESC LIMIT 1",
                    (following if following is not None else 2**62,),
                ).fetchone()
                if last_ms < start[0]:
                    raise damaged(f"look {last} is earlier than look {first}", self.path)
                end_ms = last_ms + interval_ms
                found.append(_Segment(first, last, start[0], last_ms, end_ms, interval_ms, cause))
        except sqlite3.Error as error:
            raise recording_error(error, self.path) from error
        for segment, following in itertools.pairwise(found):
            passed_ms = following.start_ms - segment.last_ms
            if following.cause != CLOCK and 0 < passed_ms <= 2 * segment.interval_ms:
                segment.end_ms = following.start_ms
        return found

    def _read_allocations(self) -> None:
        rows = self._connection.execute(
            "SELECT series.id, container, device_index, device_uuid, pod_uid, name, container_id,"
            " place, namespace, pod FROM series JOIN containers ON containers.id = series.container"
            " ORDER BY series.id"
        ).fetchall()
        uuids: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for number, container, index, uuid, *_ in rows:
            if uuid is not None:
                uuids.setdefault((container, index), []).append((number, uuid))
        self._allocations = {}
        for number, container, index, uuid, *names in rows:
            pod_uid, name, container_id, place, namespace, pod = names
            self._allocations[number] = Allocation(
                namespace,
                pod,
                name or _short_id(container_id) or place,
                pod_uid,
                index,
                uuid or _told_later(number, uuids.get((container, index), ())),
                place,
            )

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
        before_ms = segment.start_ms
        full = True
        changed: dict[int, AllocationState | None] = {}
        active: dict[int, Activity] = {}
        while upcoming is not None:
            look, at_ms = upcoming
            upcoming = next(times, None)
            if at_ms < before_ms:
                raise damaged(f"look {look} is earlier than the one before", self.path)
            before_ms = at_ms
            end_ms = segment.end_ms if upcoming is None else upcoming[1]
            for row in states.of(look):
                series = self._known(row)
                changed[series] = state = _state(row)
                if state is None:
                    active.pop(series, None)
            for active_row in activity.of(look):
                active[self._known(active_row)] = (active_row[2], active_row[3])
            # What changed before the report begins is what it begins with.
            if end_ms <= max(at_ms, since_ms):
                continue
            if at_ms >= until_ms:
                return
            yield Look(max(at_ms, since_ms), min(end_ms, until_ms), full, changed, active)
            full, changed, active = False, {}, {}

    def _known(self, row: _Row) -> int:
        series: int = row[1]
        if series not in self._allocations:
            raise damaged(f"series {series}, which look {row[0]} has, is missing", self.path)
        return series


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


def _told_later(number: int, uuids: Sequence[tuple[int, str]]) -> str | None:
    """Which device it was before the container told: the next that it told of, or the last."""
    following = [uuid for told, uuid in uuids if told > number]
    return following[0] if following else uuids[-1][1] if uuids else None


def _joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time in as few intervals as can be, in order."""
    found: list[tuple[int, int]] = []
    for start_ms, end_ms in sorted(intervals):
        if found and start_ms <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ms))
        else:
            found.append((start_ms, end_ms))
    return found


def _short_id(container_id: str | None) -> str | None:
    return None if container_id is None else container_id[:12]


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0  # noqa: PTH116
    except OSError:
        return False
