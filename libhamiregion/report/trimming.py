"""Keeps a recording within its retention and size, by whole segments from the oldest on."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_HOUR_MS = 3_600_000
# Pages given back to the file system per look: some milliseconds of work.
_VACUUM_PAGES = 1_000
# Less than this share of free pages is used again soon, and not worth the moving.
_FREE_SHARE = 8


class Trimmer:
    """Deletes what is too old or too much; never the segment that is being written.

    Args:
        retention_ms: None keeps everything that there is room for.
        max_size_bytes: None bounds nothing.
    """

    def __init__(self, retention_ms: int | None, max_size_bytes: int | None) -> None:
        self._retention_ms = retention_ms
        self._max_size_bytes = max_size_bytes
        self._connection: sqlite3.Connection | None = None
        self._page_bytes = 0

    def attach(self, connection: sqlite3.Connection) -> None:
        """Work on this connection from now on."""
        self._connection = connection
        self._page_bytes = self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        assert self._connection is not None  # noqa: S101 (attached first)
        value: int = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def size_bytes(self) -> int:
        """Of the file, without its write-ahead log."""
        return self._pragma("page_count") * self._page_bytes

    def run(self, now_ms: int, look: int, *, new_segment: bool) -> bool:
        """Trim, if it is time to; True if something was deleted."""
        deleted = False
        if new_segment and self._retention_ms is not None:
            deleted = self._drop_old(now_ms, self._retention_ms)
        limit = self._max_size_bytes
        if limit is not None and self.size_bytes() > limit - limit // 16:
            deleted |= self._drop_to(limit - limit // 4)
        if deleted:
            self._drop_unused_series()
        free = self._pragma("freelist_count")
        if free * _FREE_SHARE > self._pragma("page_count") and (new_segment or look % 16 == 0):
            # Each step of the statement moves one page, and `execute` makes one step only.
            assert self._connection is not None  # noqa: S101 (attached first)
            self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES});")
        return deleted

    def _segments(self) -> list[tuple[int, int]]:
        assert self._connection is not None  # noqa: S101 (attached first)
        return self._connection.execute(
            "SELECT first_look, at_ms FROM segments JOIN looks ON id = first_look"
            " ORDER BY first_look"
        ).fetchall()

    def _drop_old(self, now_ms: int, retention_ms: int) -> bool:
        segments = self._segments()
        cutoff_ms = now_ms - retention_ms
        # A clock that was set wrong must not empty the file: before anything goes, an hour of what
        # stays has to have been recorded.
        settled_ms = now_ms - min(_HOUR_MS, retention_ms // 2)
        if not any(cutoff_ms <= started_ms <= settled_ms for _, started_ms in segments):
            return False
        keep = None
        for (first, _), (following, ended_ms) in itertools.pairwise(segments):
            if ended_ms >= cutoff_ms:
                keep = first
                break
            keep = following
        return keep is not None and keep != segments[0][0] and self._drop_before(keep)

    def _drop_to(self, target_bytes: int) -> bool:
        deleted = False
        for first, _ in self._segments()[1:]:
            used = (self._pragma("page_count") - self._pragma("freelist_count")) * self._page_bytes
            if used <= target_bytes:
                break
            deleted |= self._drop_before(first)
        return deleted

    def _drop_before(self, look: int) -> bool:
        with self._transaction() as connection:
            for table, column in (
                ("states", "look"),
                ("activity", "look"),
                ("looks", "id"),
                ("segments", "first_look"),
            ):
                connection.execute(f"DELETE FROM {table} WHERE {column} < ?", (look,))  # noqa: S608
        return True

    def _drop_unused_series(self) -> None:
        with self._transaction() as connection:
            # All rows are read for this where `last_look` lets one go. It does not decide alone:
            # what a row names has to stay.
            connection.execute(
                "DELETE FROM series WHERE last_look < (SELECT min(first_look) FROM segments)"
                " AND id NOT IN (SELECT series FROM states)"
                " AND id NOT IN (SELECT series FROM activity)"
            )
            connection.execute(
                "DELETE FROM containers WHERE id NOT IN (SELECT container FROM series)"
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        assert connection is not None  # noqa: S101 (attached first)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
