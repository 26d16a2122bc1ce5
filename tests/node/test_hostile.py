"""A container that makes of its directory and its region what it likes, and what comes of it."""

import collections
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.node_root import Root, refresh
from support.observing import details
from support.region_file import RegionFile
from support.wait import goes_on

from libhamiregion import Layout, create_region
from libhamiregion.node import Node, directories

RACER = Path(__file__).parents[1] / "support/racing_container.py"


class Racer:
    """A process that changes a container's directory without end."""

    def __init__(self, directory: Path, victim: Path, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(RACER), str(directory), str(victim), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "begun\n"

    def is_at_it(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def race(node: Node, root: Root, victim: Path, rounds: int, seed: int) -> None:
    stat = victim.stat()
    content = victim.read_bytes()
    directory = root.container("hostile")
    peaceful = root.region("peaceful", memory_limits=("1GiB",))
    racer = Racer(directory, victim, seed)
    seen: collections.Counter[str] = collections.Counter()
    try:
        done, began_s = 0, time.monotonic()
        # The other has to be given a processor now and then, too.
        while done < rounds or goes_on(began_s, 0, is_enough=len(seen) > 2):
            done += 1
            # It reports exactly what it does, whatever happens meanwhile.
            refresh(node)
            snapshot = node.snapshot()
            for row, each in enumerate(snapshot.containers):
                # Nothing of others is opened in its name.
                assert each.region.file_id != (stat.st_dev, stat.st_ino)
                assert str(each.region_path).startswith(f"{each.directory}/")
                if each.name == "peaceful":
                    assert snapshot.table.error(row) is None
                    assert each.region_path == str(peaceful)
                    assert each.region.memory_limit(0) == 1 << 30
            seen.update(
                "a region" if each.missing is None else each.missing.reason.value
                for each in node.containers
                if each.name == "hostile"
            )
        assert racer.is_at_it()
    finally:
        racer.end()
    assert victim.read_bytes() == content
    # It was at it all the time.
    assert len(seen) > 2
    refresh(node)
    with Node(root) as fresh:
        refresh(fresh)
        pairs = zip(node.containers, fresh.containers, strict=True)
        assert all(
            one.name == other.name and (one.region is None) == (other.region is None)
            for one, other in pairs
        )


def test_a_directory_that_changes_while_it_is_scanned(node, root, tmp_path):
    create_region(tmp_path / "victim.cache", memory_limits=(7,))
    race(node, root, tmp_path / "victim.cache", 300, seed=1)


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, *names: str) -> list[str]:
    calls: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return calls


def test_hundreds_of_files_cost_a_bounded_number_of_looks(node, root, monkeypatch):
    directory = root.container()
    elsewhere = root.path.with_name("elsewhere")
    elsewhere.write_text("somebody else's")
    for number in range(300):
        (directory / f"{number}.cache").symlink_to(elsewhere)
    calls = count_calls(monkeypatch, directories, "open_in_container")
    for _ in range(3):
        refresh(node)
        assert len(calls) <= 8
        calls.clear()


# ---- restarts ----


def test_nothing_is_written_by_looking(node, root, actor):
    paths = [root.region(f"c{number}") for number in range(3)]
    RegionFile(paths[0], Layout.V1_2).add_process(2**21, {0: 5})
    members = [actor(path) for path in paths]
    for member in members:
        member("attach")
    before = [path.read_bytes() for path in paths]
    times = [os.stat(path.parent).st_ctime_ns for path in paths]  # noqa: PTH116
    for _ in range(3):
        node.refresh()
        node.snapshot()
        details(node)
    assert [path.read_bytes() for path in paths] == before
    assert [os.stat(path.parent).st_ctime_ns for path in paths] == times  # noqa: PTH116
