"""What a metrics server answers, asked through real sockets."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from scrapers import GOOD_REQUEST, PROMETHEUS_ACCEPT, Scraper, ask, connect, read_to_end
from support.wait import PATIENCE_S, eventually

from libhamiregion.exporter import ListenError, MetricsServer, ServerLimits
from libhamiregion.exporter.overview import Overview

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = "127.0.0.1:0"


class Renderer:
    """Renders one metric; can be held, and counts."""

    def __init__(self, lines: int = 1) -> None:
        self.lines = lines
        self.calls: list[bool] = []
        self.at_once = 0
        self.most_at_once = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self.reason: str | None = None

    def not_ready(self) -> str | None:
        return self.reason

    def pieces(self, openmetrics: bool = False) -> Iterator[memoryview]:
        self.calls.append(openmetrics)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.go_on.wait(PATIENCE_S)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        number = len(self.calls)
        lines = "".join(f'calls{{line="{line}"}} {number}\n' for line in range(self.lines))
        text = f"# HELP calls How often.\n# TYPE calls gauge\n{lines}"
        yield memoryview((text + "# EOF\n" * openmetrics).encode())


@pytest.fixture
def renderer() -> Renderer:
    return Renderer()


@pytest.fixture
def serve(renderer: Renderer) -> Iterator[Callable[..., str]]:
    """Start a server; returns its URL."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> str:
            server = stack.enter_context(MetricsServer(renderer, HERE, **options))
            return server.urls[0]

        yield start
        renderer.go_on.set()


def test_a_plain_client_gets_the_text_format(serve: Callable[..., str]) -> None:
    reply = ask(serve())
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "content-encoding" not in reply.headers
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert [family.name for family in parse_text(reply.text)] == ["calls"]


def test_prometheus_gets_openmetrics_compressed(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    renderer.lines = 5000
    with Scraper(serve()) as scraper:
        reply = scraper.scrape()
    assert reply.headers["content-type"] == (
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert reply.headers["vary"] == "Accept, Accept-Encoding"
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.size < len(reply.body) / 5
    (family,) = parse_openmetrics(reply.text)
    assert len(family.samples) == 5000


def test_compressed_and_plain_answers_are_the_same(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    renderer.lines = 20_000
    url = serve()
    plain, compressed = ask(url), ask(url, accept_encoding="gzip")
    assert compressed.size < plain.size == len(plain.body) == int(plain.headers["content-length"])
    assert compressed.text == plain.text.replace("} 1\n", "} 2\n")


def test_one_connection_serves_many_scrapes(serve: Callable[..., str]) -> None:
    with Scraper(serve()) as scraper:
        for number in range(1, 50):
            assert scraper.ask().text.endswith(f" {number}\n")
        assert scraper.connection.sock is not None


def test_head_has_the_headers_of_get_and_costs_no_scrape(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    url = serve()
    for path in ("/", "/metrics", "/healthz", "/readyz"):
        got, headed = ask(url, path), ask(url, path, "HEAD")
        assert (headed.status, headed.body) == (200, b"")
        assert headed.headers["content-type"] == got.headers["content-type"]
    assert len(renderer.calls) == 1
    with Scraper(url) as scraper:
        for path in ("/metrics", "/healthz", "/", "/metrics"):
            assert scraper.ask(path, "HEAD").status == 200
            # The connection goes on, and what follows is no part of the answer before.
            assert scraper.ask("/healthz").text == "ok\n"
    assert (
        ask(url, "/metrics", "HEAD", accept=PROMETHEUS_ACCEPT)
        .headers["content-type"]
        .startswith("application/openmetrics-text")
    )


def test_other_paths_and_methods_are_refused_in_a_few_words(serve: Callable[..., str]) -> None:
    with Scraper(serve()) as scraper:
        for path in (
            "/nothing",
            "/metrics/",
            "/metrics/x",
            "//metrics",
            "/%6detrics/..",
        ):
            reply = scraper.ask(path)
            assert (reply.status, reply.text) == (
                404,
                "404: nothing here; the metrics are at /metrics\n",
            )
        for path in ("/metrics", "/"):
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "NONSENSE"):
                reply = scraper.ask(path, method)
                assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert scraper.ask("/metrics?any=x").status == 200


def test_a_request_with_a_body_is_refused_without_reading_it(serve: Callable[..., str]) -> None:
    url = serve()
    for head in (b"Content-Length: 1000000000", b"Transfer-Encoding: chunked"):
        with connect(url) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
            answer = read_to_end(connection)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer
    assert ask(url, content_length="0").status == 200


def test_healthz_answers_while_a_scrape_hangs(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    url = serve()
    renderer.go_on.clear()
    with connect(url) as hanging:
        hanging.sendall(GOOD_REQUEST)
        eventually(lambda: renderer.at_once == 1)
        assert ask(url, "/healthz").text == "ok\n"
        assert ask(url, "/").status == 200


def test_readyz_tells_why_it_is_not_ready(serve: Callable[..., str], renderer: Renderer) -> None:
    renderer.reason = "the first look at the node is under way"
    reply = ask(serve(), "/readyz")
    assert reply.status == 503
    assert reply.text == "503: not ready: the first look at the node is under way\n"
    renderer.reason = None
    assert ask(serve(), "/readyz").text == "ready\n"


def test_every_answer_has_a_date_and_forbids_guessing_its_type(serve: Callable[..., str]) -> None:
    url = serve()
    for path in ("/", "/metrics", "/healthz", "/nothing"):
        headers = ask(url, path).headers
        assert headers["date"].endswith(" GMT")
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_a_scrape_that_fails_is_a_500_and_the_log_tells_why(
    serve: Callable[..., str], renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "libhamiregion")
    renderer.error = RuntimeError("the cat ate it")
    with Scraper(serve()) as scraper:
        for _ in range(5):
            reply = scraper.ask()
            assert reply.status == 500
            assert "cat" not in reply.text
        renderer.error = None
        assert scraper.ask().status == 200
    # Five failures are told at the 1st, 2nd and 4th time.
    assert caplog.text.count("RuntimeError: the cat ate it") == 3
    assert "scrapes succeed again" in caplog.text


def test_a_scrape_that_hangs_is_a_503_and_those_after_it_do_not_wait(
    serve: Callable[..., str], renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libhamiregion.exporter.app._PROBE_TIMEOUT_S", 0.1)
    url = serve(limits=ServerLimits(render_timeout_s=0.3))
    assert ask(url, "/readyz").status == 200
    renderer.go_on.clear()
    reply = ask(url)
    assert reply.status == 503
    assert "a scrape has been under way for" in reply.text
    eventually(lambda: ask(url).status == 503)
    assert len(renderer.calls) == 1
    assert ask(url, "/healthz").text == "ok\n"
    assert "a scrape has been under way for" in ask(url, "/readyz").text
    renderer.go_on.set()
    eventually(lambda: ask(url).status == 200)


AGES_S = {"regions": None, "processes": None, "driver": None, "doctor": None}


class PageRenderer(Renderer):
    """Has a page as well, which fails or hangs."""

    def overview(self, first: int, opened: str | None) -> NoReturn:
        assert (first, opened) == (0, None)
        assert self.go_on.wait(PATIENCE_S)
        raise ZeroDivisionError("the dog ate it")


def test_a_page_that_fails_is_a_500_and_the_scrapes_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "libhamiregion")
    with MetricsServer(PageRenderer(), HERE) as server:
        for _ in range(2):
            reply = ask(server.urls[0], "/")
            assert (reply.status, "dog" in reply.text) == (500, False)
            assert "the exporter's log tells why" in reply.text
        assert ask(server.urls[0]).status == 200
    assert caplog.text.count("ZeroDivisionError: the dog ate it") == 2


def test_a_page_that_hangs_is_a_503_and_the_scrapes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libhamiregion.exporter.app._PAGE_TIMEOUT_S", 0.1)
    renderer = PageRenderer()
    with MetricsServer(renderer, HERE) as server:
        renderer.go_on.clear()
        try:
            for _ in range(2):
                reply = ask(server.urls[0], "/")
                assert (reply.status, reply.text) == (503, "503: the page was not made in time\n")
            assert ask(server.urls[0], "/healthz").text == "ok\n"
        finally:
            renderer.go_on.set()
        assert ask(server.urls[0]).status == 200


class AskedPages(Renderer):
    """Writes down which pages are made."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def overview(self, first: int, opened: str | None) -> Overview:
        assert opened is None
        self.asked.append(first)
        return Overview("node-1", (), 0, first, (), (), 0, (), 0, (), AGES_S)


def test_pages_are_kept_for_a_moment_and_no_more_than_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many addresses are asked for."""
    monkeypatch.setattr("libhamiregion.exporter.app._PAGE_AGE_S", PATIENCE_S)
    renderer = AskedPages()
    with MetricsServer(renderer, HERE) as server, Scraper(server.urls[0]) as scraper:
        for first in (0, 0, *range(1, 21), 20, 0):
            assert scraper.ask(f"/?from={first}").status == 200
    assert renderer.asked == [*range(21), 0]


def test_scrapes_are_made_one_at_a_time_and_shared_only_by_those_who_asked_before(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    url = serve()
    renderer.go_on.clear()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(url))
        first.sendall(GOOD_REQUEST)
        eventually(lambda: len(renderer.calls) == 1)
        others = [stack.enter_context(connect(url)) for _ in range(20)]
        for other in others:
            other.sendall(GOOD_REQUEST.replace(b"Host", b"Connection: close\r\nHost"))
        # The server takes connections in their order: when it answers the last, it has read all.
        assert ask(url, "/healthz").status == 200
        assert ask(url, "/healthz").status == 200
        renderer.go_on.set()
        answers = [read_to_end(other) for other in others]
    # Twenty who asked while the first was made share one that began after they asked.
    assert {answer.rpartition(b" ")[2] for answer in answers} == {b"2\n"}
    assert len(renderer.calls) == 2
    assert renderer.most_at_once == 1


def test_text_and_openmetrics_asked_for_together_are_each_made(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    url = serve()
    answers: dict[bool, str] = {}

    def scrape(openmetrics: bool) -> None:
        accept = PROMETHEUS_ACCEPT if openmetrics else "*/*"
        answers[openmetrics] = ask(url, accept=accept, accept_encoding="gzip").text

    renderer.go_on.clear()
    threads = [
        threading.Thread(target=scrape, args=(value,), daemon=True) for value in (True, False)
    ]
    for thread in threads:
        thread.start()
    renderer.go_on.set()
    for thread in threads:
        thread.join()
    assert answers[True].endswith("# EOF\n")
    assert "# EOF" not in answers[False]
    assert sorted(renderer.calls) == [False, True]


def test_a_client_that_ends_its_side_after_asking_gets_its_answer(
    serve: Callable[..., str], renderer: Renderer
) -> None:
    renderer.lines = 20_000
    with connect(serve()) as connection:
        connection.sendall(GOOD_REQUEST)
        connection.shutdown(socket.SHUT_WR)
        answer = read_to_end(connection)
    assert answer.endswith(b'calls{line="19999"} 1\n')


def test_pipelined_requests_are_answered_in_order(serve: Callable[..., str]) -> None:
    with connect(serve()) as connection:
        last = GOOD_REQUEST.replace(b"Host", b"Connection: close\r\nHost")
        connection.sendall(GOOD_REQUEST * 9 + last)
        answer = read_to_end(connection)
    values = [line.split()[1] for line in answer.splitlines() if line.startswith(b"calls{")]
    assert values == [b"%d" % number for number in range(1, 11)]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://exporter:9394/metrics", b"200"),
        (b"HTTPS://[::1]:9394/metrics?collect[]=nvml", b"200"),
        (b"http://exporter:9394", b"200"),
        (b"http://exporter?metrics", b"200"),
        (b"http://exporter/nothing", b"404"),
        (b"ftp://exporter/metrics", b"404"),
    ],
)
def test_an_address_as_a_target_means_its_path(
    serve: Callable[..., str], target: bytes, status: bytes
) -> None:
    """As RFC 9112 (3.2.2) wants it of every server: some proxies ask so."""
    with connect(serve()) as connection:
        connection.sendall(b"GET " + target + b" HTTP/1.0\r\n\r\n")
        answer = read_to_end(connection)
    assert answer.split(None, 2)[1] == status


def test_http_1_0_is_spoken_too(serve: Callable[..., str]) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b" 1\n")


def test_it_listens_on_several_addresses(renderer: Renderer) -> None:
    with MetricsServer(renderer, [HERE, HERE]) as server:
        assert len(set(server.urls)) == 2
        for url in server.urls:
            assert ask(url).status == 200


def test_a_port_in_use_is_said_when_the_server_is_made(renderer: Renderer) -> None:
    with MetricsServer(renderer, HERE) as server:
        taken = server.urls[0].removeprefix("http://")
        with pytest.raises(ListenError, match="the port is in use"):
            MetricsServer(renderer, [HERE, taken])


def test_a_stop_finishes_the_scrape_under_way_and_takes_no_new_one(renderer: Renderer) -> None:
    renderer.lines = 20_000
    renderer.go_on.clear()
    server = MetricsServer(renderer, HERE)
    server.start()
    url = server.urls[0]
    with connect(url) as idle, connect(url) as scraping:
        scraping.sendall(GOOD_REQUEST)
        eventually(lambda: renderer.at_once == 1)
        stopping = threading.Thread(target=server.stop, daemon=True)
        stopping.start()
        # Those who have asked nothing are sent away; nobody new is let in.
        assert read_to_end(idle) == b""
        with pytest.raises(OSError, match=r"refused|reset"):
            ask(url)
        renderer.go_on.set()
        answer = read_to_end(scraping)
        stopping.join(PATIENCE_S)
        assert not stopping.is_alive()
    assert answer.endswith(b'calls{line="19999"} 1\n')


def test_a_stop_does_not_wait_for_ever(renderer: Renderer) -> None:
    renderer.go_on.clear()
    server = MetricsServer(renderer, HERE, limits=ServerLimits(stop_timeout_s=0.2))
    server.start()
    with connect(server.urls[0]) as scraping:
        scraping.sendall(GOOD_REQUEST)
        eventually(lambda: renderer.at_once == 1)
        server.stop()
        assert read_to_end(scraping) == b""
    renderer.go_on.set()


def test_a_server_can_be_stopped_before_it_runs_and_more_than_once(renderer: Renderer) -> None:
    server = MetricsServer(renderer, HERE)
    server.stop()
    with MetricsServer(renderer, server.urls[0].removeprefix("http://")) as again:
        assert ask(again.urls[0]).status == 200
    again.stop()


def test_threads_end_with_the_server(renderer: Renderer) -> None:
    before = set(threading.enumerate())
    for _ in range(5):
        with MetricsServer(renderer, HERE) as server:
            ask(server.urls[0])
            ask(server.urls[0], "/readyz")
    # Those of an earlier test may end meanwhile, and are none of these.
    eventually(lambda: set(threading.enumerate()) <= before)
