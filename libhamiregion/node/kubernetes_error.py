"""What can go wrong with the Kubernetes API; apart from the client, which loads HTTP and TLS."""

from __future__ import annotations


class KubernetesError(Exception):
    """The Kubernetes API has answered with an error, with what is no answer, or not at all.

    Attributes:
        status: The HTTP status; None where there was none.
        retry_after_s: How long the server asks to be left alone; None where it does not say.
    """

    def __init__(
        self, message: str, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status, retry_after_s)
        self.status = status
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])
