"""A checkpoint that cannot be read, as it is by a user other than root."""

import logging
from pathlib import Path

import pytest

from libhamiregion.node.checkpoint import Checkpoint


def test_what_cannot_be_read_is_logged_once_until_it_could_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
