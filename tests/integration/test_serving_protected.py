"""TLS and passwords, asked for by a web configuration file, over real connections."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest
from certificates import Authority, needs_openssl
from scrapers import GOOD_REQUEST, Scraper, TextSource, ask, connect, in_threads, read_to_end
from support.wait import PATIENCE_S, eventually

from libhamiregion.exporter import MetricsServer, ServerLimits, WebConfigError, passwords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = needs_openssl

HERE = "127.0.0.1:0"
PASSWORD = "correct horse: battery"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs this module's certificates."""
    return Authority.in_directory(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("server", "IP:127.0.0.1", "DNS:localhost")


@pytest.fixture(scope="module")
def client_certificate(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("prometheus", "DNS:prometheus.monitoring", "IP:10.0.0.7")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., MetricsServer]]:
    """Start a server with a web configuration; its file is tmp_path / web.yml."""
    with contextlib.ExitStack() as stack:

        def start(text: str, **limits: Any) -> MetricsServer:
            write(tmp_path / "web.yml", text)
            server = MetricsServer(
                TextSource(b"up 1\n", "something secret"),
                HERE,
                web_config=tmp_path / "web.yml",
                limits=ServerLimits(**limits),
            )
            return stack.enter_context(server)

        yield start


def write(file: Path, content: str | bytes) -> None:
    """Put a new file in the place of another, as Kubernetes does."""
    new = file.with_suffix(".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.replace(file)


def tls(certificate: tuple[Path, Path], **more: object) -> str:
    fields = {"cert_file": certificate[0], "key_file": certificate[1], **more}
    return "tls_server_config:\n" + "".join(f"  {key}: {value}\n" for key, value in fields.items())


def hashed(password: str = PASSWORD) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_metrics_come_over_tls(
    serve: Callable[..., MetricsServer],
    authority: Authority,
    server_certificate: tuple[Path, Path],
) -> None:
    url = serve(tls(server_certificate)).urls[0]
    assert url.startswith("https://")
    with Scraper(url, authority.client()) as scraper:
        assert scraper.scrape().text == "up 1\n# EOF\n"
        assert isinstance(scraper.connection.sock, ssl.SSLSocket)
        assert scraper.connection.sock.version() == "TLSv1.3"
        assert scraper.scrape().status == 200


def test_plain_http_does_not_come_through_to_a_tls_server(
    serve: Callable[..., MetricsServer], server_certificate: tuple[Path, Path]
) -> None:
    url = serve(tls(server_certificate)).urls[0]
    with connect(url) as connection:
        connection.sendall(GOOD_REQUEST)
        assert b"up 1" not in read_to_end(connection)


@pytest.mark.parametrize("asked", ["RequireAndVerifyClientCert", "VerifyClientCertIfGiven"])
def test_a_stranger_s_certificate_is_sent_away_and_one_that_is_missing_where_it_is_required(
    serve: Callable[..., MetricsServer],
    authority: Authority,
    server_certificate: tuple[Path, Path],
    client_certificate: tuple[Path, Path],
    tmp_path: Path,
    asked: str,
) -> None:
    stranger = Authority.in_directory(tmp_path / "stranger").issue("prometheus")
    config = tls(server_certificate, client_auth_type=asked, client_ca_file=authority.certificate)
    url = serve(config).urls[0]
    refused, welcome = [stranger], [client_certificate]
    (refused if asked.startswith("Require") else welcome).append(None)
    for certificate in refused:
        with pytest.raises((ssl.SSLError, ConnectionError, OSError)):
            ask(url, context=authority.client(certificate))
    for certificate in welcome:
        assert ask(url, context=authority.client(certificate)).status == 200


def test_a_new_certificate_is_used_without_a_restart(
    serve: Callable[..., MetricsServer],
    authority: Authority,
    server_certificate: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    write(certificate, server_certificate[0].read_bytes())
    write(key, server_certificate[1].read_bytes())
    url = serve(tls((certificate, key))).urls[0]

    def served() -> str:
        with Scraper(url, authority.client()) as scraper:
            assert scraper.ask().status == 200
            assert isinstance(scraper.connection.sock, ssl.SSLSocket)
            found = scraper.connection.sock.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    first = served()
    new_certificate, new_key = authority.issue("renewed", "IP:127.0.0.1")
    # In between they do not fit each other; what was good is good until both are there.
    write(certificate, new_certificate.read_bytes())
    eventually(lambda: served() == first and "stays as it was" in caplog.text)
    write(key, new_key.read_bytes())
    eventually(lambda: served() != first)


def test_a_change_never_takes_the_protection_away(
    serve: Callable[..., MetricsServer],
    authority: Authority,
    server_certificate: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = tls(server_certificate) + f"basic_auth_users:\n  alice: {hashed()}\n"
    url = serve(good).urls[0]
    client = authority.client()
    for bad, message in (
        ("", "no TLS any more"),
        (tls(server_certificate), "no users any more"),
        ("tls_server_config: [", "no YAML"),
        (good.replace("cert_file", "cert_fiel"), "'cert_fiel' is not supported"),
    ):
        write(tmp_path / "web.yml", bad)

        def noticed(message: str = message) -> bool:
            assert ask(url, context=client).status == 401
            return message in caplog.text

        eventually(noticed)
    assert ask(url, context=client, authorization=basic("alice", PASSWORD)).status == 200


def test_what_cannot_be_served_is_said_before_anything_listens(
    server_certificate: tuple[Path, Path], client_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    file = tmp_path / "web.yml"
    for text, message in (
        (tls((tmp_path / "none.crt", server_certificate[1])), r"none\.crt: No such file"),
        (tls((server_certificate[0], client_certificate[1])), "key values mismatch"),
        (tls((tmp_path / "empty", server_certificate[1])), "certificate .*empty with key"),
        (
            tls(
                server_certificate,
                client_auth_type="RequireAndVerifyClientCert",
                client_ca_file=tmp_path / "empty",
            ),
            "empty: no certificates in it",
        ),
    ):
        file.write_text(text)
        with pytest.raises(WebConfigError, match=message):
            MetricsServer(TextSource(b""), HERE, web_config=file)


def test_an_unfinished_handshake_is_not_waited_for(
    serve: Callable[..., MetricsServer],
    authority: Authority,
    server_certificate: tuple[Path, Path],
) -> None:
    url = serve(tls(server_certificate), header_timeout_s=0.5, connections=8).urls[0]
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(url)) for _ in range(8)]

        def answered() -> bool:
            with contextlib.suppress(OSError):
                return ask(url, context=authority.client()).status == 200
            return False

        eventually(answered)
        for each in silent:
            assert read_to_end(each) == b""


def test_slow_readers_over_tls_are_cut_off(
    authority: Authority, server_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    write(tmp_path / "web.yml", tls(server_certificate))
    with MetricsServer(
        TextSource(b"x" * 20_000_000),
        HERE,
        web_config=tmp_path / "web.yml",
        limits=ServerLimits(stall_timeout_s=0.5),
    ) as server:
        bare = connect(server.urls[0], 4096)
        with authority.client().wrap_socket(bare, server_hostname="127.0.0.1") as slow:
            slow.sendall(GOOD_REQUEST)
            assert slow.recv(10)
            eventually(lambda: slow.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0)


# ---- passwords -----------------------------------------------------------------------------------


def test_the_right_password_opens_everything_and_nothing_else_does(
    serve: Callable[..., MetricsServer],
) -> None:
    url = serve(f"basic_auth_users:\n  alice: {hashed()}\n  bob: {hashed('b')}\n").urls[0]
    for path in ("/metrics", "/", "/nothing"):
        refused = ask(url, path)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == 'Basic realm="hamiregion", charset="UTF-8"'
    assert ask(url, authorization=basic("alice", PASSWORD)).text == "up 1\n"
    assert ask(url, authorization=basic("bob", "b")).status == 200
    for wrong in (
        basic("alice", "wrong"),
        basic("alice", "b"),
        basic("bob", PASSWORD),
        basic("carol", PASSWORD),
        basic("", ""),
        basic("alice", PASSWORD + "\0"),
        basic("alice", "x" * 10_000),
        "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
        "Basic " + base64.b64encode(b"no-colon").decode(),
        "Basic !!!",
        "Basic",
        "Bearer " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode(),
    ):
        for _ in range(2):
            assert ask(url, authorization=wrong).status == 401


def test_a_password_is_cut_where_bcrypt_cuts_it(serve: Callable[..., MetricsServer]) -> None:
    url = serve(f"basic_auth_users: {{alice: '{hashed('p' * 72)}'}}").urls[0]
    assert ask(url, authorization=basic("alice", "p" * 80)).status == 200
    assert ask(url, authorization=basic("alice", "p" * 71)).status == 401


def test_probes_need_no_password_and_learn_no_reason(
    serve: Callable[..., MetricsServer],
) -> None:
    url = serve(f"basic_auth_users: {{alice: '{hashed()}'}}").urls[0]
    assert ask(url, "/healthz").text == "ok\n"
    assert ask(url, "/readyz").text == "503: not ready\n"
    known = ask(url, "/readyz", authorization=basic("alice", PASSWORD))
    assert known.text == "503: not ready: something secret\n"


def test_a_changed_password_counts_at_once(
    serve: Callable[..., MetricsServer], tmp_path: Path
) -> None:
    url = serve(f"basic_auth_users: {{alice: '{hashed()}'}}").urls[0]
    assert ask(url, authorization=basic("alice", PASSWORD)).status == 200
    write(tmp_path / "web.yml", f"basic_auth_users: {{alice: '{hashed('new')}'}}")
    eventually(lambda: ask(url, authorization=basic("alice", "new")).status == 200)
    assert ask(url, authorization=basic("alice", PASSWORD)).status == 401


def test_a_slow_hash_is_computed_once_and_does_not_hold_up_others(
    serve: Callable[..., MetricsServer],
) -> None:
    slow = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(11)).decode()
    url = serve(f"basic_auth_users: {{alice: '{slow}'}}").urls[0]
    began = time.thread_time()
    bcrypt.checkpw(PASSWORD.encode(), slow.encode())
    once_s = time.thread_time() - began
    used = time.process_time()

    def scrape(_: int) -> None:
        for _ in range(5):
            assert ask(url, authorization=basic("alice", PASSWORD)).status == 200

    with in_threads(20, scrape) as threads:
        # While the hash is computed, in a thread, others are answered.
        assert ask(url, "/healthz").status == 200
    assert threads.failures == []
    # A hundred scrapes, and not a hundred hashes.
    assert time.process_time() - used < 20 * once_s


def test_guesses_are_bounded(
    serve: Callable[..., MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libhamiregion.exporter.check_queue._WAITING_LIMIT", 3)
    slow = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(7)).decode()
    url = serve(f"basic_auth_users: {{alice: '{slow}'}}").urls[0]
    assert ask(url, authorization=basic("alice", PASSWORD)).status == 200
    statuses: list[int] = []

    def guess(number: int) -> None:
        guesses = [basic("alice", f"{number}-{attempt}") for attempt in range(2)]
        statuses.extend(ask(url, authorization=each).status for each in guesses)

    stop = threading.Event()
    with in_threads(50, guess) as threads:
        while not stop.wait(0.01):
            # Who is known does not wait behind guesses.
            assert ask(url, authorization=basic("alice", PASSWORD)).status == 200
            if len(statuses) == 100:
                stop.set()
    assert threads.failures == []
    assert set(statuses) == {401, 503}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that were compared with a hash, as they are."""
    compared: list[bytes] = []
    matches = passwords._matches

    def counted(hash_: str | None, password: bytes, most: int) -> bool:
        compared.append(password)
        return matches(hash_, password, most)

    monkeypatch.setattr(passwords, "_matches", counted)
    return compared


def ask_from(url: str, address: str, password: str) -> int:
    """The status for alice with a password, asked for from another address of this machine."""
    port = int(url.rpartition(":")[2])
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, PATIENCE_S, source_address=(address, 0))
    ) as connection:
        connection.request("GET", "/metrics", headers={"authorization": basic("alice", password)})
        return connection.getresponse().status


@pytest.mark.thorough
def test_guessers_do_not_keep_another_address_from_its_turn(
    serve: Callable[..., MetricsServer], checks: list[bytes]
) -> None:
    slow = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(9)).decode()
    url = serve(f"basic_auth_users: {{alice: '{slow}'}}").urls[0]
    stop = threading.Event()
    statuses: set[int] = set()

    def guess(number: int) -> None:
        for attempt in itertools.count():
            if stop.is_set():
                return
            statuses.add(ask_from(url, f"127.0.0.{2 + number % 2}", f"{number}-{attempt}"))

    with in_threads(80, guess) as threads:
        try:
            # Too many wait already: some are refused.
            eventually(lambda: statuses >= {401, 503})
            before = len(checks)
            assert ask_from(url, "127.0.0.9", PASSWORD) == 200
            # The one under way, one for each of the two others, and those begun until its answer.
            assert checks.index(PASSWORD.encode()) - before <= 3
        finally:
            stop.set()
    assert threads.failures == []


@pytest.mark.thorough
def test_a_check_whose_client_has_gone_is_not_made(
    serve: Callable[..., MetricsServer], checks: list[bytes]
) -> None:
    slow = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(12)).decode()
    url = serve(f"basic_auth_users: {{alice: '{slow}'}}").urls[0]
    for number in range(40):
        with connect(url) as connection:
            head = f"GET / HTTP/1.1\r\nhost: h\r\nauthorization: {basic('alice', str(number))}"
            connection.sendall(head.encode() + b"\r\n\r\n")
    assert ask(url, authorization=basic("alice", PASSWORD)).status == 200
    assert len(checks) < 20


def test_a_user_who_was_removed_is_out_whatever_is_sent(
    serve: Callable[..., MetricsServer], tmp_path: Path
) -> None:
    old = hashed()
    url = serve(f"basic_auth_users: {{a: '{old}', b: '{hashed('other')}'}}\n").urls[0]
    assert ask(url, authorization=basic("a", PASSWORD)).status == 200
    write(tmp_path / "web.yml", f"basic_auth_users: {{b: '{hashed('other')}'}}\n")
    eventually(lambda: ask(url, authorization=basic("a", PASSWORD)).status == 401)
    # The right password is remembered together with its hash.
    for password in (old + PASSWORD, f"{old}\0{PASSWORD}", old, ""):
        assert ask(url, authorization=basic("a", password)).status == 401


def test_no_content_of_the_file_ends_the_watch_over_slow_clients(
    serve: Callable[..., MetricsServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(f"basic_auth_users: {{a: '{hashed()}'}}\n", header_timeout_s=0.2).urls[0]
    write(tmp_path / "web.yml", "!!bool x")
    eventually(lambda: ask(url).status == 401 and "stays as it was" in caplog.text)
    with connect(url) as connection:
        assert read_to_end(connection) == b""
    assert ask(url).status == 401
