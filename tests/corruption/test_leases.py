"""A container that holds a lease on its file: it cannot be opened, and the error says why."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from typing import TYPE_CHECKING

import pytest
from support.command_line import call

from libhamiregion import open_region
from libhamiregion.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.region_file import RegionFileFactory


@contextlib.contextmanager
def leased(path: Path, kind: int) -> Iterator[int]:
    """A process that holds a lease on a file, and does not give it back when it is asked."""
    ready, written = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            how = os.O_RDWR if kind == fcntl.F_WRLCK else os.O_RDONLY
            descriptor = os.open(path, how)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
            os.write(written, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(written)
    try:
        if os.read(ready, 1) != b"1":
            pytest.skip("this file system has no leases")
        yield pid
    finally:
        os.close(ready)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_leased_file_is_said_to_be_that(region_file: RegionFileFactory) -> None:
    file = region_file()
    with leased(file.path, fcntl.F_WRLCK):
        with pytest.raises(BlockingIOError, match="holds a lease on the file") as error:
            open_region(file.path)
        assert error.value.filename == str(file.path)
        shown = call("show", str(file.path))
        assert shown.returncode == 1
        assert "holds a lease on the file" in shown.stderr
        assert "temporarily unavailable" not in shown.stderr
    open_region(file.path).close()


def test_a_lease_on_reading_stops_writers_alone(region_file: RegionFileFactory) -> None:
    file = region_file()
    with leased(file.path, fcntl.F_RDLCK):
        with open_region(file.path) as region:
            assert region.device_count == 0
        with pytest.raises(BlockingIOError, match="holds a lease on the file"):
            open_region(file.path, writable=True)


def test_a_node_says_it_of_the_container_and_reads_the_others(
    region_file: RegionFileFactory, tmp_path: Path
) -> None:
    root = tmp_path / "containers"
    for name in ("held", "free"):
        directory = root / f"0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_{name}"
        directory.mkdir(parents=True)
        region_file(name=str(directory.relative_to(tmp_path) / "usage.cache"))
    held = root / "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_held" / "usage.cache"
    with leased(held, fcntl.F_WRLCK), Node(root) as node:
        node.refresh()
        by_name = {str(each.directory)[-4:]: each for each in node.containers}
        assert by_name["free"].region is not None
        assert by_name["held"].region is None
        assert "holds a lease on the file" in str(by_name["held"].missing)
