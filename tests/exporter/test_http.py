"""The metrics server: answers, TLS, passwords, and clients that are slow or hostile."""

import base64
import contextlib
import gzip
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.certificates import Authority, needs_openssl
from support.process import piped
from support.scrapers import (
    GOOD_REQUEST,
    Crowd,
    Scraper,
    ask,
    asks_by_halves,
    asks_byte_by_byte,
    connect,
    goes_before_the_answer,
    in_threads,
    never_sends,
    read_to_end,
    resident_bytes,
    sends_a_body,
    sends_a_huge_head,
    sends_garbage,
)
from support.wait import PATIENCE_S, eventually

from libhamiregion.exporter import CONTENT_TYPE, MetricsServer, http
from libhamiregion.exporter.http import CONNECTIONS, DEADLINE_S, CompressedBody, accepts_gzip

HERE = "127.0.0.1:0"
PASSWORD = "a right one"


class TextSource:
    """Serves a fixed text in place of a node; a scrape waits while `gate` is closed."""

    def __init__(self, text: bytes = b"up 1\n", reason: str | None = None) -> None:
        self.text = text
        self.reason = reason
        self.gate = threading.Event()
        self.gate.set()
        self.scrapes = 0

    def pieces(self) -> Iterator[bytes]:
        self.scrapes += 1
        assert self.gate.wait(PATIENCE_S)
        yield from (self.text[at : at + 100_000] for at in range(0, len(self.text), 100_000))

    def not_ready(self) -> str | None:
        return self.reason

    def page(self, _query: str = "") -> bytes:
        raise RuntimeError("no page here")


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., MetricsServer]]:
    """Start a server, with a web configuration if a text is given."""
    with contextlib.ExitStack() as stack:

        def start(
            source: TextSource | None = None, web: str | None = None, **options: Any
        ) -> MetricsServer:
            if web is not None:
                options["web_config"] = tmp_path / "web.yml"
                options["web_config"].write_text(web)
            return stack.enter_context(MetricsServer(source or TextSource(), HERE, **options))

        yield start


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.in_directory(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority) -> tuple[Path, Path]:
    return authority.issue("server", "IP:127.0.0.1", "DNS:localhost")


def tls(certificate: tuple[Path, Path], **more: object) -> str:
    fields = {"cert_file": certificate[0], "key_file": certificate[1], **more}
    return "tls_server_config:\n" + "".join(f"  {key}: {value}\n" for key, value in fields.items())


def users(password: str = PASSWORD) -> str:
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    return f"basic_auth_users: {{me: '{hashed}'}}\n"


def basic(password: str = PASSWORD, user: str = "me") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# ---- answers -------------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_compressed_or_not(serve):
    text = b"".join(b'a{n="%d"} %d\n' % (number, number) for number in range(50_000))
    url = serve(TextSource(text)).urls[0]
    with Scraper(url) as scraper:
        plain = scraper.ask()
        packed = scraper.ask(accept_encoding="gzip")
        assert plain.headers["content-type"] == packed.headers["content-type"] == CONTENT_TYPE
        assert plain.body == packed.body == text
        assert packed.size < len(text) / 3
        assert "content-encoding" not in plain.headers
        assert scraper.ask(method="HEAD").body == b""
        assert scraper.ask().status == 200, "one connection serves all of them"


@given(st.lists(st.lists(st.sampled_from([b"a 1\n", b"b 2\n", b"c 3\n" * 9999])), max_size=4))
def test_a_text_with_parts_of_the_one_before_it_is_compressed_whole(texts):
    body = CompressedBody()
    for pieces in texts:
        body = CompressedBody.of(pieces, body)
        assert gzip.decompress(body.data) == b"".join(pieces)
        assert [piece for piece, _ in body.blocks] == pieces


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("identity", False),
    ],
)
def test_gzip_is_for_those_who_accept_it(header, expected):
    assert accepts_gzip(header) is expected


def test_health_needs_no_scrape_and_readiness_gives_the_reason(serve):
    source = TextSource(reason="no directory yet")
    url = serve(source, healthy=lambda: "stuck: feedback").urls[0]
    assert (ask(url, "/healthz").status, ask(url, "/healthz").text) == (
        503,
        "503: stuck: feedback\n",
    )
    assert (ask(url, "/readyz").status, "no directory yet" in ask(url, "/readyz").text) == (
        503,
        True,
    )
    source.reason = None
    assert ask(url, "/readyz").text == "ready\n"
    assert source.scrapes == 0
    healthy = serve().urls[0]
    assert ask(healthy, "/healthz").text == "ok\n"


def test_other_paths_methods_and_bodies_are_refused(serve):
    url = serve().urls[0]
    assert ask(url, "/else").status == 404
    assert ask(url, "/metrics", "DELETE").status == 501
    with connect(url) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")


def test_a_failure_is_a_500_and_the_next_request_is_answered(serve, caplog):
    url = serve().urls[0]
    assert ask(url, "/").status == 500
    assert "no page here" in caplog.text
    assert ask(url).status == 200


def test_clients_that_wait_share_the_next_scrape(serve):
    source = TextSource()
    url = serve(source).urls[0]
    source.gate.clear()
    with in_threads(20, lambda _: ask(url)):
        eventually(lambda: source.scrapes == 1)
        time.sleep(0.2)
        assert ask(url, "/healthz").status == 200
        source.gate.set()
    assert source.scrapes <= 3


def test_a_stop_wakes_a_server_that_waits_for_clients(serve):
    server = serve()
    assert ask(server.urls[0]).status == 200
    began_s = time.monotonic()
    server.stop()
    assert time.monotonic() - began_s < DEADLINE_S / 2


def test_a_stop_finishes_the_answer_under_way(serve):
    source = TextSource()
    server = serve(source)
    source.gate.clear()
    found: list[int] = []
    with in_threads(1, lambda _: found.append(ask(server.urls[0]).status)):
        eventually(lambda: source.scrapes == 1)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        source.gate.set()
        stopping.join(PATIENCE_S)
    assert found == [200]
    with pytest.raises(OSError, match="refused"):
        connect(server.urls[0])
    server.stop()


# ---- TLS and passwords ---------------------------------------------------------------------------


@needs_openssl
def test_tls_with_and_without_a_client_certificate(serve, authority, certificate):
    url = serve(web=tls(certificate)).urls[0]
    assert url.startswith("https://")
    assert ask(url, context=authority.client()).text == "up 1\n"
    strict = {"client_auth_type": "RequireAndVerifyClientCert"}
    url = serve(web=tls(certificate, client_ca_file=authority.certificate, **strict)).urls[0]
    with pytest.raises(OSError):  # noqa: PT011 (TLS has many)
        ask(url, context=authority.client())
    own = authority.issue("prometheus", "DNS:prometheus")
    assert ask(url, context=authority.client(own)).status == 200


@needs_openssl
def test_a_reload_takes_a_new_certificate_and_never_the_protection_away(
    serve, authority, certificate, tmp_path
):
    server = serve(web=tls(certificate))
    new = authority.issue("new", "DNS:new.example", "IP:127.0.0.1")
    for text in ("", "nonsense: 1", "tls_server_config: {cert_file: none, key_file: none}"):
        (tmp_path / "web.yml").write_text(text)
        server.reload()
        assert ask(server.urls[0], context=authority.client()).status == 200
    (tmp_path / "web.yml").write_text(tls(new))
    server.reload()
    with Scraper(server.urls[0], authority.client()) as scraper:
        scraper.scrape()
        assert isinstance(scraper.connection.sock, ssl.SSLSocket)
        peer: Any = scraper.connection.sock.getpeercert()
    assert ("DNS", "new.example") in peer["subjectAltName"]


@needs_openssl
def test_plain_http_on_a_tls_port_is_answered_with_a_sentence(serve, authority, certificate):
    server = serve(web=tls(certificate) + users())
    plain = server.urls[0].replace("https", "http")
    for path in ("/metrics", "/healthz"):
        reply = ask(plain, path, authorization=basic())
        assert reply.status == 400
        assert reply.text == "400: this port serves HTTPS only: use https:// in the URL\n"
    assert server.source.scrapes == 0  # type: ignore[attr-defined]
    answer = ask(server.urls[0], context=authority.client(), authorization=basic())
    assert answer.status == 200


def test_without_a_web_configuration_a_reload_is_logged_and_changes_nothing(serve, caplog):
    caplog.set_level("INFO", "libhamiregion")
    server = serve()
    server.reload()
    eventually(lambda: "no web configuration to read again" in caplog.text)
    assert ask(server.urls[0]).status == 200


def test_without_room_for_a_thread_the_server_goes_on():
    """Address space for no further stack: the system's own refusal, which passes."""
    program = (
        "import logging, resource, sys, threading; logging.basicConfig()\n"
        "sys.path[:0] = ['tests']\n"
        "from exporter.test_http import TextSource\n"
        "from libhamiregion.exporter import MetricsServer\n"
        f"server = MetricsServer(TextSource(), '{HERE}'); server.start()\n"
        "before = resource.getrlimit(resource.RLIMIT_AS)\n"
        "threading.stack_size(1 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, before[1]))\n"
        "print(server.urls[0], flush=True); sys.stdin.readline()\n"
        "resource.setrlimit(resource.RLIMIT_AS, before)\n"
        "print('room', flush=True); sys.stdin.readline()\n"
        "server.stop(); print('stopped', flush=True)\n"
    )
    with piped([sys.executable, "-c", program], stderr=subprocess.PIPE) as run:
        assert run.stdin is not None
        url = run.stdout.readline().strip()
        with connect(url) as refused:
            refused.sendall(GOOD_REQUEST)
            assert read_to_end(refused) == b""
        print(file=run.stdin, flush=True)
        assert run.stdout.readline() == "room\n"
        assert ask(url).status == 200
        out, err = run.communicate("\n", PATIENCE_S)
        assert out == "stopped\n"
        assert "no new connections for a moment: can't start new thread" in err


@pytest.mark.parametrize("text", ["", "basic_auth_users: {}", "basic_auth_users:"])
def test_a_reload_to_no_users_keeps_the_passwords(serve, tmp_path, text):
    server = serve(web=users())
    (tmp_path / "web.yml").write_text(text)
    server.reload()
    assert ask(server.urls[0]).status == 401
    assert ask(server.urls[0], authorization=basic()).status == 200


def test_a_program_of_its_own_reloads_on_sighup_and_ends_on_sigterm(tmp_path):
    web = tmp_path / "web.yml"
    web.write_text(users())
    program = (
        "import sys; sys.path[:0] = ['tests']\n"
        "from exporter.test_http import TextSource\n"
        "from libhamiregion.exporter import MetricsServer\n"
        f"server = MetricsServer(TextSource(), '{HERE}', web_config={str(web)!r})\n"
        "print(server.urls[0], flush=True); server.run()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as run:
        url = run.stdout.readline().strip()
        assert ask(url, authorization=basic()).status == 200
        web.write_text(users("another"))
        os.kill(run.pid, signal.SIGHUP)
        eventually(lambda: ask(url, authorization=basic("another")).status == 200)
        assert ask(url, authorization=basic()).status == 401
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait(PATIENCE_S) == 0


def test_only_the_right_password_opens_and_probes_need_none(serve):
    url = serve(TextSource(reason="a secret directory"), web=users()).urls[0]
    assert ask(url, authorization=basic()).status == 200
    for wrong in ("", "Bearer x", "Basic !", basic("wrong"), basic("x" * 100), basic(user="you")):
        for path in ("/", "/metrics", "/else"):
            reply = ask(url, path, authorization=wrong)
            assert (reply.status, reply.headers["www-authenticate"][:5]) == (401, "Basic")
    assert ask(url, "/healthz").text == "ok\n"
    assert ask(url, "/readyz").text == "503: not ready\n"
    assert "secret" in ask(url, "/readyz", authorization=basic()).text


# ---- bad clients ---------------------------------------------------------------------------------


@pytest.fixture
def deadline_s(monkeypatch) -> float:
    """A shorter one than clients have."""
    monkeypatch.setattr(http, "DEADLINE_S", 1.0)
    monkeypatch.setattr(http, "_CHECK_INTERVAL_S", 0.2)
    return 1.0


def _answers(url: str, **headers: str) -> bool:
    with contextlib.suppress(OSError):
        return ask(url, accept_encoding="gzip", **headers).status == 200
    return False


@pytest.mark.parametrize("client", [never_sends, asks_by_halves, asks_byte_by_byte])
def test_who_does_not_ask_in_time_is_ended(serve, client, deadline_s):
    url = serve().urls[0]
    began_s = time.monotonic()
    client(url, threading.Event())
    assert 0.8 * deadline_s < time.monotonic() - began_s < PATIENCE_S / 2


@needs_openssl
@pytest.mark.usefixtures("deadline_s")
def test_an_unfinished_handshake_is_ended_and_holds_nobody_up(serve, authority, certificate):
    url = serve(web=tls(certificate)).urls[0]
    with connect(url) as silent:
        assert ask(url, context=authority.client()).status == 200
        assert read_to_end(silent) == b""


@pytest.mark.usefixtures("deadline_s")
def test_who_reads_too_slowly_is_cut_off(serve):
    url = serve(TextSource(os.urandom(8 << 20))).urls[0]
    with connect(url, 4096) as connection:
        connection.sendall(GOOD_REQUEST)
        began_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while connection.recv(1000):
                time.sleep(0.1)
    assert time.monotonic() - began_s < PATIENCE_S / 2


def test_a_crowd_of_every_kind_leaves_threads_and_memory_bounded(serve):
    kinds = (sends_garbage, sends_a_huge_head, sends_a_body, goes_before_the_answer, never_sends)
    server = serve(TextSource(os.urandom(1 << 20)))
    before = resident_bytes(os.getpid())
    with Crowd(server.urls[0], kinds, each=4):
        for _ in range(5):
            assert _answers(server.urls[0])
            time.sleep(0.2)
        names = [each.name for each in threading.enumerate()]
        assert names.count("hamiregion-client") <= 2 * CONNECTIONS
    assert resident_bytes(os.getpid()) - before < 64 << 20


def test_a_head_of_16_kib_is_refused_before_it_ends(serve):
    begun = b"GET /metrics HTTP/1.1\r\nX: "
    with connect(serve().urls[0]) as client:
        client.sendall(begun.ljust(16 * 1024, b"a"))
        assert read_to_end(client).startswith(b"HTTP/1.1 431 ")


def test_the_oldest_connection_makes_way_when_there_are_too_many(serve):
    url = serve().urls[0]
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(url)) for _ in range(CONNECTIONS)]
        assert ask(url).status == 200
        assert read_to_end(waiting[0]) == b""
        waiting[-1].sendall(GOOD_REQUEST)
        assert waiting[-1].recv(12) == b"HTTP/1.1 200"
