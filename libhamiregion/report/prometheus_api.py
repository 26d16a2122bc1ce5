"""Asks a Prometheus over HTTP: range queries, and errors that say what to do."""

from __future__ import annotations

import base64
import http.client
import json
import math
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlencode, urlsplit

import attrs

from libhamiregion.text import printable

if TYPE_CHECKING:
    from libhamiregion.errors import PathLike

# A chunk of a large fleet comes to some 20 MiB; a server that sends more is none of ours.
_ANSWER_LIMIT = 256 << 20
_PIECE = 1 << 20
_SHOWN = 300

#: Labels, and (Unix seconds, value) pairs.
Series: TypeAlias = "tuple[dict[str, str], list[tuple[float, str]]]"


class PrometheusError(Exception):
    """A Prometheus cannot be asked, or refuses to answer.

    Attributes:
        url: Its address.
    """

    def __init__(self, message: str, *, url: str) -> None:
        super().__init__(message)
        self.url = url

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (str(self), self.url)


def _rebuilt(message: str, url: str) -> PrometheusError:
    return PrometheusError(message, url=url)


@attrs.frozen
class PrometheusAnswer:
    """What a query came to.

    Attributes:
        series: One entry per series.
        warnings: What the server had to say about it, escaped.
    """

    series: tuple[Series, ...]
    warnings: tuple[str, ...]


@attrs.frozen
class Credentials:
    """How to sign in; at most one of the two ways.

    Attributes:
        token: For ``Authorization: Bearer``.
        user: For basic authentication.
        password: The same.
    """

    token: str | None = attrs.field(default=None, repr=False)
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)

    def header(self) -> str | None:
        """The value of ``Authorization``; None without credentials."""
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.user is not None:
            pair = f"{self.user}:{self.password or ''}".encode()
            return f"Basic {base64.b64encode(pair).decode('ascii')}"
        return None


class PrometheusApi:
    """The HTTP API of a Prometheus, or of what speaks as one (Thanos, Mimir, VictoriaMetrics).

    Redirects are not followed: they could take the credentials to somebody else. Proxies of the
    environment are used.

    Threads: may be shared.

    Args:
        url: Its address, with the prefix that it may have: what comes before ``/api/v1``.
        credentials: How to sign in.
        ca_file: Certificates to trust in place of the system's.
        timeout_s: For connecting, and for each answer as a whole.

    Attributes:
        url: The address without the trailing slash.

    Raises:
        ValueError: No http or https address, or one with a password in it.
        OSError: The file of certificates cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        ca_file: PathLike | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.url = _base(url)
        self._timeout_s = timeout_s
        self._header = None if credentials is None else credentials.header()
        if self._header is not None and not self._header.isprintable():
            raise ValueError("a token or password has characters that no header can hold")
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        # No handler for file:, ftp: and data:, and none that follows redirects.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)

    def query_range(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> PrometheusAnswer:
        """Ask for the values at start, start + step, ... up to the end, at most 11,000.

        Raises:
            PrometheusError: No answer, or none that means anything.
        """
        document = self._get(
            "query_range",
            query=query,
            start=f"{start_ms / 1000:.3f}",
            end=f"{end_ms / 1000:.3f}",
            step=f"{step_ms / 1000:.3f}",
        )
        data = document.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "matrix":
            raise self._error("answers, but not with a matrix as a Prometheus does")
        result = data.get("result")
        if not isinstance(result, list):
            raise self._error("answers, but not with a matrix as a Prometheus does")
        try:
            series = tuple(
                (
                    {str(name): str(value) for name, value in each["metric"].items()},
                    [(_time(at), str(value)) for at, value in each["values"]],
                )
                for each in result
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise self._error("answers with series that make no sense") from None
        warnings = document.get("warnings")
        said = warnings if isinstance(warnings, list) else []
        return PrometheusAnswer(series, tuple(printable(str(each), _SHOWN) for each in said[:10]))

    def _error(self, message: str) -> PrometheusError:
        return PrometheusError(f"{printable(self.url, _SHOWN)} {message}", url=self.url)

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 (the opener knows http and https only)
            f"{self.url}/api/v1/{what}?{urlencode(parameters)}",
            headers={"Accept": "application/json", "User-Agent": "hamiregion"},
        )
        if self._header is not None:
            request.add_unredirected_header("Authorization", self._header)
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body = self._read(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except TimeoutError:
            raise self._error(f"does not answer within {self._timeout_s:g} s") from None
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, TimeoutError):
                raise self._error(f"does not answer within {self._timeout_s:g} s") from None
            text = getattr(reason, "strerror", None) or str(reason)
            raise self._error(f"cannot be reached: {printable(text, _SHOWN)}") from None
        except (OSError, http.client.HTTPException) as error:
            text = printable(str(error) or type(error).__name__, _SHOWN)
            raise self._error(f"broke off: {text}") from None
        return self._document(body)

    def _read(self, response: Any, deadline: float) -> bytes:
        pieces = []
        size = 0
        while piece := response.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > _ANSWER_LIMIT:
                raise self._error(f"sends more than {_ANSWER_LIMIT >> 20} MiB; use a longer step")
            if time.monotonic() > deadline:
                raise TimeoutError
        return b"".join(pieces)

    def _document(self, body: bytes) -> dict[str, Any]:
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
        try:
            body = error.read(1 << 16)
        except (OSError, http.client.HTTPException):
            body = b""
        if error.code in {401, 403}:
            return self._error(f"wants to be signed in to, or refuses who asks (HTTP {error.code})")
        if 300 <= error.code < 400:
            to = printable(str(error.headers.get("Location")), _SHOWN)
            return self._error(f"redirects to {to}; name that address if it is the right one")
        try:
            said = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            if error.code == 404:
                return self._error("has no /api/v1 (HTTP 404); is the address right?")
            said = error.reason
        return self._error(f"refuses (HTTP {error.code}): {printable(str(said), _SHOWN)}")


def _time(at: Any) -> float:
    seconds = float(at)
    if not math.isfinite(seconds):
        raise ValueError("no moment")
    return seconds


def _base(url: str) -> str:
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
        raise ValueError(
            f"{shown!r} has more to it than an address: leave out what follows the path"
        )
    path = parts.path.rstrip("/").removesuffix("/api/v1").rstrip("/")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{shown!r} has characters that no address can have")
    return f"{parts.scheme}://{parts.netloc}{path}"
