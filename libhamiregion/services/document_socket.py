"""A service's latest observation as a document, over a Unix socket.

In a pod every other program shares the service's memory limit. So `hamiregion observe` asks the
service there, and reads no region and no /proc itself.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from libhamiregion.observation.json import MAX_BYTES, to_json
from libhamiregion.text import error_text, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node.reader import Observer

_log = logging.getLogger(__name__)

#: The environment variable with the socket's path.
VARIABLE: Final = "HAMIREGION_SOCKET"
# Several readers share an observation, and a list of the node's processes.
_AGE_S, _PROCESSES_AGE_S = 1.0, 5.0
# A reader takes its document at once; one that is stopped must not keep the next one waiting.
_SEND_S = 5.0
# An observer that cannot take its turn says so after 30 s.
_ANSWER_S = 40.0
_CHUNK_BYTES: Final = 1 << 16
_CREDENTIALS = struct.Struct("3i")


def serve_documents(path: str, observer: Observer) -> None:
    """Answer each connection with an observation, from now on, in a thread of its own.

    Each answer is one line of JSON; then the connection is closed. Only root and this process's own
    user get one. If the socket cannot be made, a warning is logged and nothing is served.

    Args:
        path: The socket. One that an earlier process has left there is replaced.
        observer: Observes the node.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            _remove_left(Path(path), address)
            listening.bind(address)
        Path(path).chmod(0o600)
        listening.listen()
        thread = threading.Thread(
            target=_serve, args=(listening, observer), name="hami-document", daemon=True
        )
        thread.start()
    except (OSError, RuntimeError) as error:
        listening.close()
        _log.warning("no documents are served: %s: %s", path, error_text(error))


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """Give an address of a socket: the kernel takes no path of more than 107 bytes."""
    directory, name = os.path.split(path)
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _remove_left(path: Path, address: str) -> None:
    """Remove a socket that no process listens on."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_SEND_S)
        # Another one's is left alone, and no socket either: binding to it fails.
        if is_socket and probe.connect_ex(address) == errno.ECONNREFUSED:
            path.unlink()


def _serve(listening: socket.socket, observer: Observer) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError as error:
            # Out of descriptors, or the peer has gone.
            _log.warning("a reader of documents was not accepted: %s", error_text(error))
            time.sleep(_AGE_S)
            continue
        with connection:
            try:
                _answer(connection, observer)
            except Exception as error:  # noqa: BLE001 (the next reader may have more luck)
                _log.warning("a document was not served: %s", printable(error_text(error)))


def _answer(connection: socket.socket, observer: Observer) -> None:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(raw)[1] not in {0, os.geteuid()}:
        return
    observation = observer.observe(max_age_s=_AGE_S, processes_max_age_s=_PROCESSES_AGE_S)
    document = to_json(observation).encode() + b"\n"
    connection.settimeout(_SEND_S)
    connection.sendall(document)


def read_document(path: str) -> bytes:
    """Get a service's latest observation, 1 s old at most: one line of JSON.

    Args:
        path: The service's socket.

    Raises:
        OSError: The service does not answer, or not with a whole document.
    """
    deadline_s = time.monotonic() + _ANSWER_S
    document = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        with _short(path) as address:
            connection.connect(address)
        while chunk := connection.recv(_CHUNK_BYTES):
            document += chunk
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or len(document) > MAX_BYTES:
                raise OSError(errno.EFBIG, "the document is too long, or comes too slowly", path)
            connection.settimeout(left_s)
    if not document.endswith(b"\n"):
        raise OSError(errno.EIO, "the service could not observe its node; its log says why", path)
    return bytes(document)
