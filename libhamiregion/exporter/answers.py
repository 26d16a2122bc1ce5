"""What is answered to whom: the paths, their texts, and who may see them."""

from __future__ import annotations

import asyncio
import logging
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import parse_qs

import attrs

from libhamiregion.text import printable

from .bodies import Body
from .landing import CONTENT_SECURITY_POLICY, ICON, LandingFacts, landing_page
from .negotiation import (
    OPENMETRICS_CONTENT_TYPE,
    TEXT_CONTENT_TYPE,
    accepts_gzip,
    wants_openmetrics,
)
from .passwords import Passwords, TooManyChecks, credentials
from .scrapes import Scrapes, ScrapeTimeout, Wanted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .connections import Connection
    from .web_config import RateLimit
    from .web_reload import LiveWebConfig
    from .working import Worker

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NO_BODY: Final = Body.of(b"")
_PLAIN: Final = "text/plain; charset=utf-8"
# A probe that takes longer is one that failed.
_PROBE_TIMEOUT_S: Final = 5.0
# In a query; there are not many more metrics.
_MOST_NAMES: Final = 100
# In a row, failed scrapes are logged when they begin, and then this seldom.
_LOG_INTERVAL_S: Final = 60.0


@attrs.frozen
class Answer:
    """A status, a body, and the headers that go with it."""

    status: int
    body: Body
    content_type: str = _PLAIN
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, status: int, text: str, *headers: tuple[str, str]) -> Answer:
        """One line of text."""
        line = f"{text}\n".encode("utf-8", "backslashreplace")
        return cls(status, Body.of(line), headers=headers)


@attrs.frozen
class _Request:
    """What matters of a request."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> _Request:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = b"%b,%b" % (headers[name], value) if name in headers else value
        query = scope["query_string"].decode("latin-1")
        return cls(scope["method"], scope["path"], query, headers)

    @property
    def has_body(self) -> bool:
        length = self.headers.get(b"content-length", b"0")
        return b"transfer-encoding" in self.headers or length.strip(b"0") != b""

    def text(self, header: bytes) -> str:
        return self.headers.get(header, b"").decode("latin-1")


class Answers:
    """Answers requests; the ASGI application behind each connection.

    To be used on one event loop.

    Args:
        scrapes: Where metrics come from.
        web: Who may come in, and headers of the user's.
        landing: Tells what stands on the page at ``/``.
        ready: None if the node can be read, else why not.
        healthy: None if this process works, else why not; does not wait.
        prober: Where these two run.
        passwords: Checks passwords.
    """

    def __init__(
        self,
        scrapes: Scrapes,
        web: LiveWebConfig,
        landing: Callable[[], LandingFacts] | None,
        ready: Callable[[], str | None] | None,
        healthy: Callable[[], str | None] | None,
        prober: Worker,
        passwords: Passwords,
    ) -> None:
        self._scrapes = scrapes
        self._web = web
        self._landing = _Shared(landing or LandingFacts, prober)
        self._ready = _Shared(ready or _always_ready, prober)
        self._healthy = healthy
        self._passwords = passwords
        self._bucket = _Bucket()
        self._failing_since: float | None = None
        self._logged_at = 0.0
        self._pages: dict[str, Callable[[_Request], Awaitable[Answer]]] = {
            "/": self._landing_page,
            "/metrics": self._metrics,
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/favicon.ico": self._icon,
        }

    async def __call__(
        self, connection: Connection, scope: Mapping[str, Any], _: Any, send: Any
    ) -> None:
        """Answer one request; see ASGI."""
        request = _Request.of(scope)
        self._web.refresh()
        try:
            answer = await self._answer(request)
        except Exception:  # noqa: BLE001 (whatever it is, this client gets an answer)
            _log.exception("a request could not be answered")
            answer = Answer.text(500, "500: an error of this exporter's; its log tells more")
        await self._send(connection, request, answer, send)

    async def _send(
        self, connection: Connection, request: _Request, answer: Answer, send: Any
    ) -> None:
        headers = {
            "date": formatdate(usegmt=True),
            "content-type": answer.content_type,
            "x-content-type-options": "nosniff",
        }
        headers.update(answer.headers)
        headers.update({k.lower(): v for k, v in self._web.config.headers.items()})
        if request.method == "HEAD":
            # To know how long it would be, a scrape would have to be made.
            answer = attrs.evolve(answer, body=_NO_BODY)
        else:
            headers["content-length"] = str(answer.body.size)
        if request.has_body:
            # What follows is not read, so nothing after it can be.
            headers["connection"] = "close"
        raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await connection.send_body(send, answer.body)

    async def _answer(self, request: _Request) -> Answer:
        if request.has_body:
            return Answer.text(413, "413: no request here has a body")
        page = self._pages.get(request.path)
        # Probes have no password and are never too many; what they learn is one word.
        if request.path not in ("/healthz", "/readyz"):
            if not self._bucket.take(self._web.config.rate_limit):
                return Answer.text(429, "429: too many requests", ("retry-after", "1"))
            refused = await self._refused(request)
            if refused is not None:
                return refused
        if page is None:
            return Answer.text(404, "404: nothing here; the metrics are at /metrics")
        if request.method not in ("GET", "HEAD"):
            return Answer.text(405, "405: GET and HEAD only", ("allow", "GET, HEAD"))
        return await page(request)

    async def _refused(self, request: _Request) -> Answer | None:
        """Why this client may not see anything; None if it may."""
        users = self._web.config.users
        if not users:
            return None
        given = credentials(request.headers.get(b"authorization", b""))
        if given is not None:
            try:
                if await self._passwords.allows(users, *given):
                    return None
            except TooManyChecks:
                return Answer.text(503, "503: too many passwords to check", ("retry-after", "5"))
        return Answer.text(
            401,
            "401: a user and password are needed",
            ("www-authenticate", 'Basic realm="hamiregion", charset="UTF-8"'),
        )

    # ---- the pages -------------------------------------------------------------------------------

    async def _metrics(self, request: _Request) -> Answer:
        openmetrics = wants_openmetrics(request.text(b"accept"))
        try:
            names = parse_qs(request.query, max_num_fields=_MOST_NAMES).get("name[]")
        except ValueError:
            return Answer.text(400, "400: too many names")
        wanted = Wanted(openmetrics, None if names is None else frozenset(names))
        gzip = accepts_gzip(request.text(b"accept-encoding"))
        content_type = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
        headers = [("vary", "Accept, Accept-Encoding")]
        if gzip:
            headers.append(("content-encoding", "gzip"))
        if request.method == "HEAD":
            return Answer(200, _NO_BODY, content_type, tuple(headers))
        try:
            body = await self._scrapes.get(wanted, gzip=gzip)
        except ScrapeTimeout as timeout:
            self._failed(str(timeout), None)
            return Answer.text(503, f"503: {timeout}")
        except Exception as error:  # noqa: BLE001 (a scrape that fails must not end anything else)
            self._failed("a scrape failed", error)
            return Answer.text(500, "500: the scrape failed; the exporter's log tells why")
        if self._failing_since is not None:
            self._failing_since = None
            _log.info("scrapes succeed again")
        return Answer(200, body, content_type, tuple(headers))

    def _failed(self, what: str, error: Exception | None) -> None:
        now = asyncio.get_running_loop().time()
        if self._failing_since is None or now - self._logged_at > _LOG_INTERVAL_S:
            self._logged_at = now
            _log.error("%s", what, exc_info=error)
        if self._failing_since is None:
            self._failing_since = now

    async def _health(self, _: _Request) -> Answer:
        reason = None if self._healthy is None else self._healthy()
        if reason is not None:
            return Answer.text(503, f"503: {printable(reason, 1000)}")
        return Answer.text(200, "ok")

    async def _readiness(self, request: _Request) -> Answer:
        reason = await self._why_not_ready()
        if reason is None:
            return Answer.text(200, "ready")
        # The reason may name directories and what is wrong with them.
        if await self._refused(request) is not None:
            return Answer.text(503, "503: not ready")
        return Answer.text(503, f"503: not ready: {printable(reason, 1000)}")

    async def _why_not_ready(self) -> str | None:
        if self._scrapes.running_s > _PROBE_TIMEOUT_S:
            return f"a scrape has been under way for {self._scrapes.running_s:.0f} s"
        try:
            return await self._ready.get()
        except asyncio.TimeoutError:
            return "the node does not answer"
        except Exception as error:  # noqa: BLE001 (whatever it is, that is not ready)
            _log.exception("it cannot be told whether the node can be read")
            return f"{type(error).__name__}: {error}"

    async def _landing_page(self, request: _Request) -> Answer:
        facts = LandingFacts()
        if request.method == "GET":
            try:
                facts = await self._landing.get()
            except asyncio.TimeoutError:
                facts = LandingFacts(rows=(("State", "the node does not answer"),))
        return Answer(
            200,
            Body.of(landing_page(facts).encode()),
            "text/html; charset=utf-8",
            (
                ("content-security-policy", CONTENT_SECURITY_POLICY),
                ("referrer-policy", "no-referrer"),
                ("cache-control", "no-store"),
            ),
        )

    async def _icon(self, _: _Request) -> Answer:
        return Answer(200, Body.of(ICON.encode()), "image/svg+xml")


class _Shared(Generic[T]):
    """A question that is put once, however many ask meanwhile."""

    def __init__(self, function: Callable[[], T], worker: Worker) -> None:
        self._function = function
        self._worker = worker
        self._asked: asyncio.Future[T] | None = None

    async def get(self) -> T:
        if self._asked is None or self._asked.done():
            self._asked = self._worker.run(self._function)
            self._asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.wait_for(asyncio.shield(self._asked), _PROBE_TIMEOUT_S)


class _Bucket:
    """A token bucket, full at first."""

    def __init__(self) -> None:
        self._limit: RateLimit | None = None
        self._tokens = 0.0
        self._at = 0.0

    def take(self, limit: RateLimit | None) -> bool:
        """Whether one more request may be answered now."""
        if limit is None:
            return True
        now = asyncio.get_running_loop().time()
        if limit != self._limit:
            self._limit, self._tokens = limit, float(limit.burst)
        else:
            earned = (now - self._at) / limit.interval_s
            self._tokens = min(float(limit.burst), self._tokens + earned)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def _always_ready() -> str | None:
    return None
