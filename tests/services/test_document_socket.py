"""A service gives its observation to root only, one reader at a time."""

import contextlib
import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked import unprivileged
from support.node_scene import GPU, NodeScene
from support.wait import eventually, on_this_machine_s

from libhamiregion.node import Observer
from libhamiregion.observation.json import from_json
from libhamiregion.services import document_socket
from libhamiregion.services.document_socket import read_document, serve_documents


@pytest.fixture
def scene(tmp_path) -> Iterator[NodeScene]:
    with NodeScene(tmp_path, uuids=[GPU]) as made:
        yield made


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "observe.sock")


def test_a_reader_gets_a_whole_document_that_is_at_most_a_second_old(scene, path):
    file = scene.container("train", pod="bert-0")
    with scene.open() as node:
        observer = Observer(node)
        serve_documents(path, observer)
        first = from_json(read_document(path))
        assert [each.pod for each in first.containers] == ["bert-0"]
        # Readers share an observation.
        assert from_json(read_document(path)).began_s == first.began_s
        file.put("limit", 5 << 30)

        def has_the_new_limit() -> bool:
            snapshot = from_json(read_document(path)).table.snapshot(0)
            return snapshot.devices[0].memory_limit_bytes == 5 << 30

        eventually(has_the_new_limit)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("mode", [0o600, 0o777], ids=["as-made", "opened-by-hand"])
def test_another_user_gets_nothing(scene, mode):
    with scene.open() as node, tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        path = Path(directory, "observe.sock")
        serve_documents(str(path), Observer(node))
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(mode)
        with pytest.raises(OSError, match="its log says why" if mode == 0o777 else "denied"):
            unprivileged(lambda: read_document(str(path)))
        assert read_document(str(path))


def test_a_reader_that_takes_nothing_keeps_the_next_one_waiting_for_a_moment(
    scene, path, monkeypatch
):
    monkeypatch.setattr(document_socket, "_SEND_S", 0.5)
    monkeypatch.setattr(document_socket, "to_json", lambda _: "1" * (8 << 20))
    with scene.open() as node, socket.socket(socket.AF_UNIX) as stopped:
        serve_documents(path, Observer(node))
        stopped.connect(path)
        began_s = time.monotonic()
        assert len(read_document(path)) == (8 << 20) + 1
        assert time.monotonic() - began_s < on_this_machine_s(5.0)


def test_a_service_that_cannot_observe_says_so_and_goes_on(scene, path, caplog):
    with scene.open() as node:
        serve_documents(path, Observer(node))
    with pytest.raises(OSError, match="its log says why") as raised:
        read_document(path)
    assert raised.value.errno == errno.EIO
    assert "a document was not served" in caplog.text
    with pytest.raises(OSError, match="its log says why"):
        read_document(path)


def test_a_document_that_does_not_end_is_given_up(path, monkeypatch):
    monkeypatch.setattr(document_socket, "MAX_BYTES", 1 << 20)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def pour() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"1" * 65536)

        pouring = threading.Thread(target=pour)
        pouring.start()
        with pytest.raises(OSError, match="too long"):
            read_document(path)
        pouring.join()


def test_a_socket_that_was_left_is_replaced_and_one_in_use_is_not(scene, path, tmp_path, caplog):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with pytest.raises(ConnectionRefusedError):
        read_document(path)
    with scene.open() as node:
        serve_documents(path, Observer(node))
        assert read_document(path)
        assert not caplog.text
        inode = Path(path).stat().st_ino
        serve_documents(path, Observer(node))
        assert "no documents are served" in caplog.text
        assert Path(path).stat().st_ino == inode
        file = tmp_path / "file"
        file.write_text("kept")
        serve_documents(str(file), Observer(node))
        assert file.read_text() == "kept"


def test_a_socket_may_lie_deeper_than_its_address_is_long(scene, tmp_path):
    directory = tmp_path / ("deep" * 30)
    directory.mkdir()
    path = str(directory / "observe.sock")
    scene.container("train", pod="bert-0")
    with scene.open() as node:
        serve_documents(path, Observer(node))
        assert [each.pod for each in from_json(read_document(path)).containers] == ["bert-0"]
