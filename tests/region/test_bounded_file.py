"""Files that somebody names are read whole, or refused, and nothing is waited for without end."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from support.process import descriptors
from support.wait import PATIENCE_S, eventually

from libhamiregion.bounded_file import read_bounded


@pytest.fixture
def fifo(tmp_path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_file_may_have_as_many_bytes_as_the_limit_says(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert read_bounded(path, 3) == b"abc"
    with pytest.raises(OSError, match=f"longer than 2 bytes: '{path}'") as caught:
        read_bounded(path, 2)
    assert caught.value.errno == errno.EFBIG
    assert read_bounded(path, 2, cut=True) == b"ab"
    path.write_bytes(bytes(300_000))
    assert read_bounded(path, 300_000) == bytes(300_000)


def test_what_has_no_end_is_read_up_to_the_limit():
    with pytest.raises(OSError, match="longer than 1000 bytes: '/dev/zero'"):
        read_bounded("/dev/zero", 1000, silence_s=PATIENCE_S)
    assert read_bounded("/dev/null", 1000, silence_s=PATIENCE_S) == b""


def test_a_long_read_takes_time_in_proportion_to_its_length():
    """Copied for each piece, these would take seconds."""
    began_s = time.thread_time()
    assert len(read_bounded("/dev/zero", 64 << 20, silence_s=PATIENCE_S, cut=True)) == 64 << 20
    assert time.thread_time() - began_s < 1


def test_where_only_files_are_taken_a_pipe_is_refused_at_once(fifo):
    for path in (fifo, fifo.parent, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file") as caught:
            read_bounded(path, 1000)
        assert caught.value.errno == errno.EINVAL
        assert caught.value.filename == os.fspath(path)


def test_a_link_is_followed_unless_it_must_not_be(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_bounded(tmp_path / "link", 3) == b"abc"
    with pytest.raises(OSError, match="link") as caught:
        read_bounded(tmp_path / "link", 3, follow=False)
    assert caught.value.errno == errno.ELOOP


def test_a_pipe_is_read_to_its_end_whenever_its_writer_comes(fifo):
    """Before it is opened here or after that, all at once or in pieces."""
    read: list[bytes] = []
    reader = threading.Thread(
        target=lambda: read.append(read_bounded(fifo, 1 << 20, silence_s=PATIENCE_S)), daemon=True
    )
    reader.start()
    # This waits until the reader has opened it.
    writer = os.open(fifo, os.O_WRONLY)
    os.write(writer, b"first ")
    os.write(writer, bytes(100_000))
    os.close(writer)
    reader.join(PATIENCE_S)
    assert read == [b"first " + bytes(100_000)]
    ours, theirs = os.pipe()
    os.write(theirs, b"before")
    os.close(theirs)
    try:
        assert read_bounded(f"/proc/self/fd/{ours}", 6, silence_s=PATIENCE_S) == b"before"
    finally:
        os.close(ours)


def test_a_pipe_without_a_writer_is_given_up(fifo):
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=f"written into it for 0.125 s: '{fifo}'"):
        read_bounded(fifo, 1000, silence_s=0.125)
    assert 0.125 <= time.monotonic() - began_s < PATIENCE_S


def test_a_writer_that_is_silent_is_given_up(fifo):
    writer = os.open(fifo, os.O_RDWR)
    os.write(writer, b"half")
    try:
        with pytest.raises(TimeoutError, match=r"written into it for 0\.25 s"):
            read_bounded(fifo, 1000, silence_s=0.25)
    finally:
        os.close(writer)


def test_nothing_stays_open(fifo):
    before = descriptors()
    for path in (fifo, "/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="regular"):
            read_bounded(path, 10)
    # Threads of other tests may be at work.
    eventually(lambda: descriptors() <= before)
