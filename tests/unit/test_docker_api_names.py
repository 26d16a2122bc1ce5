"""Names of containers that a real server tells: Docker's API."""

import http.server
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pod_names import HOSTILE, ID, UID

from libhamiregion.node import DockerApiNames, PodName

# ---- The Docker API, a real server on a unix socket ---------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with what the test has put into `server.answer`."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        server.answer(self)

    def reply(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "test"


class Server:
    """A threaded HTTP server, its requests, and what it answers."""

    def __init__(self, server: Any) -> None:
        self.server = server
        server.daemon_threads = True
        # Clients that give up are what some tests are about.
        server.handle_error = lambda *_: None
        server.asked = []
        server.answer = lambda handler: handler.reply(b"{}", 404)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def asked(self) -> list[str]:
        asked: list[str] = self.server.asked
        return asked

    def answers(self, answer: Callable[[Any], None]) -> None:
        self.server.answer = answer

    def answers_json(self, document: object, status: int = 200) -> None:
        self.answers(lambda handler: handler.reply(json.dumps(document).encode(), status))

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """An HTTP server on a unix socket."""


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    path = tmp_path / "docker.sock"
    server = Server(UnixServer(str(path), Handler))
    yield server, path
    server.stop()


def test_the_docker_api_names_a_container(docker: tuple[Server, Path]) -> None:
    server, path = docker
    server.answers_json({"Id": ID, "Name": "/notebook_1"})
    names = DockerApiNames(path)
    assert names.resolve(None, None, ID) == PodName(None, None, "notebook_1")
    assert server.asked == [f"/containers/{ID}/json"]
    assert names.last_error is None


def test_nothing_is_asked_without_a_proper_id(docker: tuple[Server, Path]) -> None:
    server, path = docker
    names = DockerApiNames(path)
    for identifier in (None, "", "../info", ID + "/../x", ID + "\r\nHost: evil"):
        assert names.resolve(UID, "train", identifier) is None
    assert server.asked == []


def test_a_container_that_the_docker_api_does_not_know(docker: tuple[Server, Path]) -> None:
    server, path = docker
    server.answers_json({"message": "No such container"}, 404)
    names = DockerApiNames(path)
    assert names.resolve(None, None, ID) is None
    assert names.last_error is None


def test_a_failing_docker_api_is_a_miss_with_its_reason(docker: tuple[Server, Path]) -> None:
    server, path = docker
    names = DockerApiNames(path, timeout_s=0.5)
    answers: list[Callable[[Any], None]] = [
        lambda handler: handler.reply(b"{}", 500),
        lambda handler: handler.reply(b"no json"),
        lambda handler: handler.reply(b"{}"),
        lambda handler: handler.wfile.write(b"\x00" * 100),
        lambda handler: handler.reply(b" " * (5 << 20)),
        lambda _: time.sleep(1),
    ]
    for answer in answers:
        server.answers(answer)
        assert names.resolve(None, None, ID) is None
        assert names.last_error is not None
    assert DockerApiNames(path.parent / "none.sock").resolve(None, None, ID) is None


@pytest.mark.parametrize("name", [text for text in HOSTILE if text not in {"A", "a-"}])
def test_a_hostile_name_from_the_docker_api_names_nothing(
    docker: tuple[Server, Path], name: str
) -> None:
    server, path = docker
    server.answers_json({"Name": name})
    assert DockerApiNames(path).resolve(None, None, ID) is None
