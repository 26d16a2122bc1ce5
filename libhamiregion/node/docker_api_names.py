"""Names from Docker's API, used only where a program asks for them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from .names import DockerNames

if TYPE_CHECKING:
    from libhamiregion.errors import PathLike

_ANSWER_LIMIT = 4 << 20


class DockerApiNames(DockerNames):
    """Names from the Docker API, one short question per container.

    Threads: may be shared.

    Args:
        path: Docker's unix socket.
        timeout_s: How long to wait each time that the daemon says nothing.

    Attributes:
        last_error: Why the last question had no answer, None if it had, or no such container.

    Shell: ``docker inspect --format '{{.Name}}' ID``.
    """

    def __init__(self, path: PathLike = "/var/run/docker.sock", *, timeout_s: float = 2.0) -> None:
        super().__init__(path)
        self._timeout_s = timeout_s

    def _read(self, container_id: str) -> bytes | None:
        # Here, so that whoever asks no daemon loads no HTTP.
        import http.client

        connection = http.client.HTTPConnection("localhost", timeout=self._timeout_s)
        try:
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(self._timeout_s)
            connection.sock.connect(self._path)
            connection.request(
                "GET", f"/containers/{container_id}/json", headers={"Host": "docker"}
            )
            with connection.getresponse() as response:
                raw = response.read(_ANSWER_LIMIT)
        except http.client.HTTPException as error:
            raise OSError(f"{self._path!r} answered no HTTP: {error}") from error
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise OSError(f"{self._path!r} answered {response.status}")
        return raw
