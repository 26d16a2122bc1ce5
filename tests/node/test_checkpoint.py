"""A checkpoint that cannot be read: not by this user, not now, or never."""

import logging
import os
import resource

from libhamiregion.node.checkpoint import Checkpoint


def test_what_cannot_be_read_is_logged_once_until_it_could_be(tmp_path, caplog):
    path = tmp_path / "checkpoint"
    # No path leads through itself, for root neither.
    path.symlink_to(path / "below")
    checkpoint = Checkpoint(str(path / "file"), bytes.decode, "names")
    with caplog.at_level(logging.INFO, "libhamiregion"):
        assert [checkpoint.read() for _ in range(300)] == [None] * 300
        assert len(caplog.records) == 1
        path.unlink()
        path.mkdir()
        (path / "file").write_text("content")
        assert checkpoint.read() == "content"
        path.replace(tmp_path / "gone")
        path.symlink_to(path / "below")
        checkpoint._checked_s = float("-inf")
        checkpoint.read()
        assert len(caplog.records) == 2


def test_a_file_that_could_not_be_opened_is_read_once_it_can_be(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_text("content")
    checkpoint = Checkpoint(str(path), bytes.decode, "names")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most[1]))
    try:
        without_descriptors = checkpoint.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert without_descriptors is None
    assert checkpoint.read() == "content"


def test_a_file_that_is_too_long_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    path.write_text("content")
    checkpoint = Checkpoint(str(path), bytes.decode, "names")
    monkeypatch.setattr("libhamiregion.node.checkpoint._BYTES_LIMIT", 3)
    assert checkpoint.read() is None
    monkeypatch.undo()
    assert checkpoint.read() is None
    path.write_text("another text")
    assert checkpoint.read() == "another text"
