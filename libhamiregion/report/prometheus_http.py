"""Asks a Prometheus over HTTP: range queries, and errors that say what to do."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode, urlsplit

from libhamiregion.bounded_file import read_bounded
from libhamiregion.text import printable

if TYPE_CHECKING:
    from libhamiregion.errors import PathLike

# As Python's objects an answer takes ten times as much.
_ANSWER_LIMIT = 16 << 20
_CA_FILE_LIMIT = 16 << 20
_PIECE = 1 << 20
_SHOWN = 300
# In Unix seconds, tens of thousands of years away: such a number can be reckoned with.
_LATEST_S = 1e12

#: Labels, and (Unix seconds, value) pairs.
Series: TypeAlias = "tuple[dict[str, str], list[tuple[float, str]]]"


class PrometheusError(Exception):
    """A Prometheus cannot be asked, or refuses to answer."""


class AnswerTooLarge(PrometheusError):
    """An answer is larger than what is taken: ask for less."""


class PrometheusServer:
    """One Prometheus, or what has its API (Thanos, Mimir, VictoriaMetrics).

    Redirects are not followed, as they could take the credentials to somebody else. Proxies of the
    environment are used.

    Args:
        url: Its address: what comes before ``/api/v1``.
        authorization: Value of the header; None for none.
        ca_file: Certificates to trust in place of the system's.
        timeout_s: For connecting, and for each answer as a whole.

    Raises:
        ValueError: No http or https address, or one with a password in it.
        OSError: The file of certificates cannot be read.
    """

    def __init__(
        self, url: str, *, authorization: str | None, ca_file: PathLike | None, timeout_s: float
    ) -> None:
        self.url = _checked_url(url)
        self._timeout_s = timeout_s
        self._authorization = authorization
        if ca_file is not None:
            # OpenSSL would wait for a pipe, and read without end.
            read_bounded(ca_file, _CA_FILE_LIMIT)
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirect
        )

    def query_range(
        self, query: str, start_ms: int, end_ms: int, step_ms: int
    ) -> tuple[list[Series], list[str]]:
        """Ask for the values at start, start + step, ... up to the end, at most 11,000.

        Returns:
            The series, and the server's warnings, escaped.

        Raises:
            PrometheusError: No answer, or none that means anything.
        """
        times = {"start": start_ms / 1000, "end": end_ms / 1000, "step": step_ms / 1000}
        parameters = {"query": query, **{name: f"{at:.3f}" for name, at in times.items()}}
        document = self._document(self._get(f"query_range?{urlencode(parameters)}"))
        data = document.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "matrix":
            raise self._error("answers, but not with a matrix as a Prometheus does")
        try:
            series = [
                (
                    {str(name): str(value) for name, value in each["metric"].items()},
                    [(_moment(at), str(value)) for at, value in each["values"]],
                )
                for each in data["result"]
            ]
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise self._error("answers with series that make no sense") from None
        return series, _warnings(document)

    def _error(self, message: str) -> PrometheusError:
        return PrometheusError(f"{printable(self.url, _SHOWN)} {message}")

    def _get(self, what: str) -> bytearray:
        request = urllib.request.Request(  # noqa: S310 (the opener knows http and https only)
            f"{self.url}/api/v1/{what}",
            headers={"Accept": "application/json", "User-Agent": "hamiregion"},
        )
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        deadline = time.monotonic() + self._timeout_s
        body = bytearray()
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                while piece := response.read1(_PIECE):
                    body += piece
                    if len(body) > _ANSWER_LIMIT:
                        raise AnswerTooLarge(
                            f"{printable(self.url, _SHOWN)} sends more than"
                            f" {_ANSWER_LIMIT >> 20} MiB for one step; choose fewer series by"
                            " --match"
                        )
                    if time.monotonic() > deadline:
                        raise TimeoutError
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise self._error(f"does not answer within {self._timeout_s:g} s") from None
            said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise self._error(f"cannot be reached: {printable(said, _SHOWN)}") from None
        return body

    def _document(self, body: bytearray) -> dict[str, Any]:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise self._error("answers, but not as a Prometheus does; is the address right?")
        if document.get("status") != "success":
            raise self._error(f"refuses: {printable(str(document.get('error')), _SHOWN)}")
        return document

    def _refused(self, error: urllib.error.HTTPError) -> PrometheusError:
        if error.code in {401, 403}:
            return self._error(f"wants to be signed in to, or refuses who asks (HTTP {error.code})")
        if 300 <= error.code < 400:
            to = printable(str(error.headers.get("Location")), _SHOWN)
            return self._error(f"redirects to {to}; name that address if it is the right one")
        try:
            said = json.loads(error.read(1 << 16))["error"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            said = error.reason
            if error.code == 404:
                said = "it has no /api/v1; is the address right?"
        return self._error(f"refuses (HTTP {error.code}): {printable(str(said), _SHOWN)}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def authorization(token: str | None, user: str | None, password: str | None) -> str | None:
    """Make the value of ``Authorization``; None without credentials.

    Raises:
        ValueError: Characters that no header can hold.
    """
    if token is not None:
        if not (token.isprintable() and token.isascii()):
            raise ValueError("the token has characters that no header can hold")
        return f"Bearer {token}"
    if user is not None:
        pair = f"{user}:{password or ''}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"
    return None


def _warnings(document: dict[str, Any]) -> list[str]:
    warnings = document.get("warnings")
    said = warnings[:10] if isinstance(warnings, list) else []
    return [printable(str(each), _SHOWN) for each in said]


def _moment(at: Any) -> float:
    seconds = float(at)
    # Also false for NaN.
    if not abs(seconds) < _LATEST_S:
        raise ValueError("no moment")
    return seconds


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    shown = printable(url, _SHOWN)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the address of a Prometheus is part of the report, so it must not hold a password;"
            " give user and password on their own"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{shown!r} is no http:// or https:// address")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown!r} has more than an address: leave out what follows the path")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{shown!r} has characters that no address can have")
    path = parts.path.rstrip("/").removesuffix("/api/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"
