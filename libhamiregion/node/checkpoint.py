"""A checkpoint of kubelet: a file that it replaces by another one at each change."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from libhamiregion.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_log = logging.getLogger(__name__)

_BYTES_LIMIT = 16 << 20
# How long a result holds before the file is checked.
_RECHECK_S = 1.0


class Checkpoint(Generic[T]):
    """What a checkpoint holds, read again when the file has changed; None if not available.

    Threads: may be read from any.

    Args:
        path: The file.
        parse: Reads its text; raises ValueError for any other file.
        lost: What is lost without it, for the log.
    """

    def __init__(self, path: str, parse: Callable[[bytes], T], lost: str) -> None:
        self._path, self._parse, self._lost = path, parse, lost
        self._checked_s = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._found: T | None = None
        self._logged: str | None = None
        self._lock = threading.Lock()

    def read(self) -> T | None:
        """Return what the file holds; None without a file that can be read."""
        # While one thread parses, others must not take the file for missing.
        with self._lock:
            return self._read()

    def _read(self) -> T | None:
        now_s = time.monotonic()
        if now_s - self._checked_s < _RECHECK_S and self._found:
            return self._found
        self._checked_s = now_s
        try:
            # A file that was replaced has another inode.
            status = os.lstat(self._path)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                self._stamp, self._found = stamp, None
                self._found = self._parse(read_bounded(self._path, _BYTES_LIMIT, follow=False))
            self._logged = None
        except FileNotFoundError:
            self._stamp, self._found = None, None
        except (OSError, ValueError) as error:
            # A lack of descriptors passes without a change of the file; too long it stays.
            if isinstance(error, OSError) and error.errno != errno.EFBIG:
                self._stamp = None
            # A user other than root may not reach it, at any observation.
            level = logging.INFO if isinstance(error, PermissionError) else logging.WARNING
            # It is read for each container, and a log that no one reads can fill up.
            if str(error) != self._logged:
                _log.log(level, "%s: %s: %s", self._path, self._lost, error)
            self._logged = str(error)
        return self._found


def json_object(raw: bytes | str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: The text is no JSON, or no object.
    """
    try:
        document: Any = json.loads(raw)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    return document
