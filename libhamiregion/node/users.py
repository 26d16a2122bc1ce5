"""Names of users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libhamiregion.errors import PathLike


class UserNames:
    """Names of users out of a passwd file; no directory service is asked, which could hang.

    Args:
        path: The file; where it cannot be read, users are numbers.
    """

    def __init__(self, path: PathLike) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int] | None = None
        self._names: dict[int, str] = {}

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return
            text = self._path.read_text(encoding="utf-8", errors="backslashreplace")
        except OSError:
            return
        rows = [line.split(":") for line in text.splitlines()]
        self._names = {int(row[2]): row[0] for row in rows if len(row) > 2 and row[2].isdecimal()}
        self._stamp = stamp

    def name(self, uid: int) -> str:
        """The user's name, else the number."""
        return self._names.get(uid, str(uid))
