"""The web configuration while the server runs: read again when a file of it changes."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from .tls import server_context
from .web_config import WebConfig, WebConfigError, load_web_config

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from libhamiregion.errors import PathLike

_log = logging.getLogger(__name__)

# How often the files are looked at, at most.
_LOOK_INTERVAL_S: Final = 0.2


class LiveWebConfig:
    """The web configuration as it is now.

    A change that cannot be used is logged, and what held before goes on holding: certificates and
    keys are often replaced one after the other, and do not fit each other in between. Nor does a
    change take away TLS or all passwords: a file that is just being written looks like that.

    Args:
        path: The file; None is plain HTTP for everybody.
        clock: Seconds that only grow.

    Attributes:
        config: What holds.
        context: What connections are made with; None is plain HTTP.

    Raises:
        WebConfigError: The configuration cannot be used.
        ModuleNotFoundError: It wants passwords, and bcrypt is not installed.
    """

    def __init__(self, path: PathLike | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.config = WebConfig("")
        self.context: ssl.SSLContext | None = None
        self._watched: tuple[str, ...] = ()
        self._stamps: tuple[object, ...] = ()
        if path is not None:
            self._watched = (os.fspath(path),)
            self._load(self._watched[0])

    def refresh(self) -> None:
        """Look at the files, unless that was just done, and take over what has changed."""
        now = self._clock()
        if not self._watched or now - self._looked_at < _LOOK_INTERVAL_S:
            return
        self._looked_at = now
        if self._now_stamps() == self._stamps:
            return
        try:
            self._load(self.config.path)
        except (WebConfigError, ImportError) as error:
            _log.error("the web configuration stays as it was: %s", error)
        else:
            _log.info("the web configuration has changed and was read again")

    def _load(self, path: str) -> None:
        # Before reading: what changes in between is read once more.
        self._stamps = self._now_stamps()
        config = load_web_config(path)
        if config.files != self._watched:
            # Files that are not good yet are looked at all the same, so as to see them get better.
            self._watched = config.files
            self._stamps = self._now_stamps()
        context = None if config.tls is None else server_context(config.tls)
        if config.users:
            # Missing, it is missed when the program starts and not when somebody logs in.
            import bcrypt  # noqa: F401
        if self.context is not None and context is None:
            raise WebConfigError(f"{path}: no TLS any more; restart to serve without")
        if self.config.users and not config.users:
            raise WebConfigError(f"{path}: no users any more; restart to serve without passwords")
        self.config, self.context = config, context

    def _now_stamps(self) -> tuple[object, ...]:
        return tuple(_stamp(file) for file in self._watched)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)  # noqa: PTH116 (some thousand times a day)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
