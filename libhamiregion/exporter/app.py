"""ASGI applications: the metrics alone, to be mounted beside others, and the whole site."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from libhamiregion.text import error_text, printable

from . import overview_page
from .check_queue import TooManyChecks
from .clients import has_body
from .log_lines import RepeatedEvents
from .negotiation import accepts_gzip, wants_openmetrics
from .passwords import Passwords, credentials
from .scrapes import Scrapes, ScrapeTimeout, in_thread
from .text import CONTENT_TYPE, OPENMETRICS_CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from .node_exporter import NodeExporter
    from .scrapes import Body, Source
    from .web_config import LiveWebConfig

    Receive = Callable[[], Awaitable[Mapping[str, Any]]]
    # A dict: what a framework's `send` takes is a mapping that it may change.
    Send = Callable[[dict[str, Any]], Awaitable[None]]

_log = logging.getLogger(__name__)

# As email.utils.formatdate(usegmt=True), which takes ten modules.
_DATE: Final = "%a, %d %b %Y %H:%M:%S GMT"
_PLAIN: Final = "text/plain; charset=utf-8"
# A scrape that takes longer is one that hangs, for a readiness probe.
_PROBE_TIMEOUT_S: Final = 5.0
# Of a source that has figures of no node.
_LINKS: Final = (
    b"<!DOCTYPE html>\n<html lang='en'>\n<title>hamiregion exporter</title>\n<ul>\n"
    b"<li><a href='/metrics'>Metrics</a>\n<li><a href='/healthz'>Health</a>\n"
    b"<li><a href='/readyz'>Readiness</a>\n</ul>\n</html>\n"
)
# Clients that ask for the same page within this time share one, and no more are made at once.
_PAGE_AGE_S: Final = 1.0
_PAGES_KEPT: Final = 8
_PAGE_TIMEOUT_S: Final = 30.0


class _Request:
    """What matters of a request."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope.get("query_string", b"")
        # Host and port; not every server says them.
        self.address: str = (scope.get("client") or ("", 0))[0]
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            before = self.headers.get(name)
            self.headers[name] = value if before is None else before + b"," + value
        self.has_body = has_body(scope["headers"])

    def text(self, header: bytes) -> str:
        return self.headers.get(header, b"").decode("latin-1")


async def _answer(
    send: Send,
    request: _Request,
    status: int,
    body: Iterable[bytes],
    content_type: str = _PLAIN,
    headers: Mapping[str, str] | None = None,
) -> None:
    named = {
        "date": time.strftime(_DATE, time.gmtime()),
        "content-type": content_type,
        "x-content-type-options": "nosniff",
        **(headers or {}),
    }
    if request.has_body:
        # It is not read, so nothing after it can be.
        named["connection"] = "close"
    raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    for part in body if request.method != "HEAD" else ():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _say(send: Send, request: _Request, status: int, text: str, **headers: str) -> None:
    """Answer one line of text; `retry_after` in Python is `retry-after` on the wire."""
    line = f"{text}\n".encode("utf-8", "backslashreplace")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["content-length"] = str(len(line))
    await _answer(send, request, status, [line], headers=named)


class MetricsApp:
    """Answers every request with the metrics; see `metrics_app`.

    To be used on one event loop.

    Args:
        source: A `NodeExporter`, or anything with its `pieces`.
        render_timeout_s: For a scrape to be made; then it is a 503.
        answers_bytes: Of answers that are being sent, compressed. With more, those that have been
            under way for longest are ended before a new scrape is made.
    """

    def __init__(
        self,
        source: Source,
        *,
        render_timeout_s: float = 30.0,
        answers_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self._source = source
        self._limits = render_timeout_s, answers_bytes
        self._scrapes: Scrapes | None = None
        self._failures = RepeatedEvents(_log)

    @property
    def running_s(self) -> float:
        """How long the scrape that is being made has been so; 0 without one."""
        return 0.0 if self._scrapes is None else self._scrapes.running_s

    async def __call__(self, scope: Mapping[str, Any], _receive: Any, send: Send) -> None:
        """Answer one request; see ASGI."""
        if scope["type"] != "http":
            raise ValueError(f"no {scope['type']} here, only http")
        await self.answer(_Request(scope), send)

    async def answer(self, request: _Request, send: Send) -> None:
        """Answer one request with the metrics."""
        if request.has_body:
            return await _say(send, request, 413, "413: no request here has a body")
        if request.method not in ("GET", "HEAD"):
            return await _say(send, request, 405, "405: GET and HEAD only", allow="GET, HEAD")
        openmetrics = wants_openmetrics(request.text(b"accept"))
        gzip = accepts_gzip(request.text(b"accept-encoding"))
        content_type = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
        headers = {"vary": "Accept, Accept-Encoding"}
        if gzip:
            headers["content-encoding"] = "gzip"
        if request.method == "HEAD":
            # To know how long it would be, a scrape would have to be made.
            return await _answer(send, request, 200, (), content_type, headers)
        if self._scrapes is None:
            # Here: it belongs to the loop on which it is used.
            self._scrapes = Scrapes(self._source, *self._limits)
        try:
            body = await self._scrapes.get(openmetrics=openmetrics)
        except ScrapeTimeout as timeout:
            self._failures.failed("scrape", str(timeout))
            return await _say(send, request, 503, f"503: {timeout}")
        except Exception as error:  # noqa: BLE001 (a scrape that fails must not end anything else)
            self._failures.failed("scrape", f"{type(error).__name__}: {error_text(error)}", error)
            return await _say(
                send, request, 500, "500: the scrape failed; the exporter's log tells why"
            )
        if self._failures.recovered("scrape"):
            _log.info("scrapes succeed again")
        headers["content-length"] = str(body.size if gzip else body.text_size)
        return await self._send(request, send, body, content_type, headers)

    async def _send(
        self,
        request: _Request,
        send: Send,
        body: Body,
        content_type: str,
        headers: Mapping[str, str],
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (this coroutine runs in one)
        assert self._scrapes is not None  # noqa: S101 (made above)
        sending = self._scrapes.sending
        sending[task] = body
        parts = body.parts if "content-encoding" in headers else body.text()
        try:
            await _answer(send, request, 200, parts, content_type, headers)
        finally:
            sending.pop(task, None)


class _PageApp:
    """Answers with the page for people; to be used on one event loop.

    One page is made at a time, in a thread, and shared by all who ask for it meanwhile.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._page_lock = asyncio.Lock()
        #: By query, when it was made and what it is.
        self._made: dict[bytes, tuple[float, bytes]] = {}
        self._failures = RepeatedEvents(_log)

    async def answer(self, request: _Request, send: Send) -> None:
        """Answer one request with the page."""
        kind = "text/html; charset=utf-8"
        if request.method == "HEAD":
            # To know how long it would be, it would have to be made.
            return await _answer(send, request, 200, (), kind, overview_page.HEADERS)
        if not hasattr(self._source, "overview"):
            return await _answer(send, request, 200, [_LINKS], kind, overview_page.HEADERS)
        try:
            page = await asyncio.wait_for(self._page(request.query), _PAGE_TIMEOUT_S)
        except asyncio.TimeoutError:
            return await _say(send, request, 503, "503: the page was not made in time")
        except Exception as error:  # noqa: BLE001 (a page that fails must not end anything else)
            self._failures.failed("page", f"{type(error).__name__}: {error_text(error)}", error)
            return await _say(
                send, request, 500, "500: the page failed; the exporter's log tells why"
            )
        self._failures.recovered("page")
        headers = {**overview_page.HEADERS, "content-length": str(len(page))}
        return await _answer(send, request, 200, [page], kind, headers)

    async def _page(self, query: bytes) -> bytes:
        key = b"%d %a" % overview_page.asked_for(query)
        loop = asyncio.get_running_loop()
        async with self._page_lock:
            made_s, page = self._made.pop(key, (float("-inf"), b""))
            if loop.time() - made_s > _PAGE_AGE_S:
                page = await in_thread(lambda: overview_page.page_bytes(self._source, query))
                made_s = loop.time()
            self._made[key] = made_s, page
            while len(self._made) > _PAGES_KEPT:
                del self._made[next(iter(self._made))]
            return page


class Site:
    """The application of `MetricsServer`: ``/metrics``, ``/healthz``, ``/readyz`` and ``/``.

    To be used on one event loop.

    Args:
        source: Where metrics come from, and whether they are complete.
        web: Who may come in.
        metrics: Answers with the metrics.
        healthy: None if this process works, else why not; it must not wait.
    """

    def __init__(
        self,
        source: Source,
        web: LiveWebConfig,
        metrics: MetricsApp,
        healthy: Callable[[], str | None] | None = None,
    ) -> None:
        self._source = source
        self._healthy = healthy
        self._metrics = metrics
        self._web = web
        self._passwords = Passwords()
        self._page = _PageApp(source)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request; see ASGI."""
        request = _Request(scope)
        # Probes have no password; what they learn is one word.
        if request.path == "/healthz":
            reason = None if self._healthy is None else self._healthy()
            if reason is None:
                return await _say(send, request, 200, "ok")
            return await _say(send, request, 503, f"503: {printable(reason, 1000)}")
        if request.path == "/readyz":
            return await self._readiness(request, receive, send)
        refused = await self._refused(request, receive)
        if refused == 503:
            return await _say(
                send, request, 503, "503: too many passwords to check", retry_after="5"
            )
        if refused is not None:
            return await _say(
                send,
                request,
                401,
                "401: a user and password are needed",
                www_authenticate='Basic realm="hamiregion", charset="UTF-8"',
            )
        if request.path == "/metrics":
            return await self._metrics.answer(request, send)
        if request.path != "/":
            return await _say(send, request, 404, "404: nothing here; the metrics are at /metrics")
        if request.method not in ("GET", "HEAD"):
            return await _say(send, request, 405, "405: GET and HEAD only", allow="GET, HEAD")
        return await self._page.answer(request, send)

    async def _refused(self, request: _Request, receive: Receive) -> int | None:
        """The status for a client that may not see anything; None if it may."""
        users = self._web.config.users
        if not users:
            return None
        given = credentials(request.headers.get(b"authorization", b""))
        try:
            if given is not None and await self._passwords.allows(
                users, *given, address=request.address, gone=receive
            ):
                return None
        except TooManyChecks:
            return 503
        return 401

    async def _readiness(self, request: _Request, receive: Receive, send: Send) -> None:
        if self._metrics.running_s > _PROBE_TIMEOUT_S:
            reason: str | None = f"a scrape has been under way for {self._metrics.running_s:.0f} s"
        else:
            reason = self._source.not_ready()
        if reason is None:
            return await _say(send, request, 200, "ready")
        # The reason may name directories and what is wrong with them.
        if await self._refused(request, receive) is not None:
            return await _say(send, request, 503, "503: not ready")
        return await _say(send, request, 503, f"503: not ready: {reason}")


def metrics_app(exporter: NodeExporter) -> MetricsApp:
    """Make an ASGI application that answers every request with an exporter's metrics.

        app.mount("/hami/metrics", metrics_app(exporter))     # Starlette, FastAPI

    Text or OpenMetrics, compressed or not, as the client accepts. Scrapes are made one at a time in
    a thread; clients that ask meanwhile share the next one. Whom to let in is the business of what
    it is mounted in. To be used on one event loop.

    Args:
        exporter: Where the figures come from; start it, or let scrapes do its work.
    """
    return MetricsApp(exporter)
