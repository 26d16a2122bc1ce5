"""Where a server listens."""

from __future__ import annotations

import socket

import pytest
from support.wait import PATIENCE_S

from libhamiregion.exporter import ListenError
from libhamiregion.exporter.listening import listen_on, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9394", "", 9394),
        ("127.0.0.1:9394", "127.0.0.1", 9394),
        ("localhost:0", "localhost", 0),
        ("[::1]:9394", "::1", 9394),
        ("[::]:9394", "", 9394),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
    ],
)
def test_addresses_as_exporters_take_them(text, host, port):
    assert parse_listen(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9394",
        "host",
        "host:",
        ":65536",
        ":-1",
        "::1:9394",
        "[::1]",
        "[x]:1",
        "a:b:1",
        ":1\n",
        "http://a:1",
        "unix:/tmp/socket",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="is no"):
        parse_listen(text)


def test_one_port_serves_ipv4_and_ipv6():
    (listener,) = listen_on([":0"])
    with listener:
        port = listener.getsockname()[1]
        for host in ["127.0.0.1"] + ["::1"] * socket.has_dualstack_ipv6():
            socket.create_connection((host, port), timeout=PATIENCE_S).close()


def test_a_port_in_use_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for text in (f"127.0.0.1:{port}", f":{port}"):
            with pytest.raises(
                ListenError, match=f"^cannot listen on .*:{port}: Address already in use"
            ):
                listen_on([text])


def test_an_address_of_another_machine_is_one_clear_line():
    with pytest.raises(ListenError, match="Cannot assign requested address"):
        listen_on(["192.0.2.1:9394"])


def test_a_name_that_there_is_not_is_one_clear_line():
    with pytest.raises(ListenError, match=r"^cannot listen on no-such-host\.invalid:9394: "):
        listen_on(["no-such-host.invalid:9394"])
