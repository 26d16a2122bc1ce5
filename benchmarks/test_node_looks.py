"""A node, found and followed: its containers, its processes, all of its regions.

256 containers with four real processes each, and how it grows to 1,024. A short run leaves out the
4,096 processes of those, and what is about them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exporter_scene import busy_node
from scene import copies, working_directory_root

from libhamiregion.node import Node, Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger import Ledger

PROBE = Path(__file__).parent / "node_probe.py"
SIZES = (256, 1024)


@pytest.fixture(scope="module", params=SIZES)
def containers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def with_processes(containers: int, quick: bool) -> bool:
    return not (quick and containers > SIZES[0])


@pytest.fixture
def processes(with_processes: bool) -> None:
    """What is measured with the processes there."""
    if not with_processes:
        pytest.skip("a short run")


def empty_containers(directory: Path, containers: int) -> Path:
    """Directories and regions alone."""
    for number, made in enumerate(copies(directory, containers)):
        path = directory / "containers" / f"{uuid.UUID(int=number)}_main" / "usage.cache"
        path.parent.mkdir(parents=True)
        made.rename(path)
    return directory / "containers"


@pytest.fixture(scope="module")
def root(containers: int, with_processes: bool) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hamiregion-node-", dir=working_directory_root()))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        if with_processes:
            root = stack.enter_context(busy_node(directory, containers)).root
        else:
            root = empty_containers(directory, containers)
        # Directories count as settled when they have not changed for a moment.
        time.sleep(0.2)
        yield root


@pytest.fixture(scope="module")
def node(root: Path) -> Iterator[Node]:
    with Node(root) as node:
        node.refresh(processes=False)
        yield node


def named(work: str, containers: int) -> str:
    return f"node of {containers:,} x 4 processes: {work}"


def test_a_full_scan(root: Path, containers: int, timed: Callable[..., Any]) -> None:
    def scan() -> int:
        with Node(root) as node:
            node.refresh(processes=False)
            return len(node.containers)

    assert timed(scan, work=named("a new Node, all regions opened", containers)) == containers


@pytest.mark.usefixtures("processes")
def test_a_first_look_at_all_processes(
    root: Path, containers: int, benchmark: Any, ledger: Ledger
) -> None:
    def look() -> int:
        with Node(root) as node:
            node.processes.refresh()
            return len(node.processes)

    assert benchmark.pedantic(look, rounds=2, iterations=1) >= 4 * containers
    if benchmark.stats is not None:
        stats = benchmark.stats.stats
        work = named("a first look at all processes", containers)
        ledger.add(work, "us", None, stats.median * 1e6, stats.min * 1e6)


def test_a_refresh_with_nothing_changed(
    node: Node, containers: int, timed: Callable[..., Any]
) -> None:
    work = named("refresh, nothing changed, without /proc", containers)
    assert not timed(lambda: node.refresh(processes=False), work=work)


@pytest.mark.usefixtures("processes")
def test_a_refresh_with_the_processes(
    node: Node, containers: int, timed: Callable[..., Any]
) -> None:
    assert not timed(node.refresh, work=named("refresh, nothing changed, with /proc", containers))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as new:
        node.refresh()
        assert node.processes.get(new.pid) is not None, "processes nobody looks at cost nothing"


def test_a_refresh_with_one_change(
    root: Path, node: Node, containers: int, benchmark: Any, ledger: Ledger
) -> None:
    number = 0

    def change() -> None:
        nonlocal number
        number += 1
        (root / f"one-more-{number}_x").mkdir()

    def refresh() -> None:
        assert len(node.refresh(processes=False).added) == 1

    benchmark.pedantic(refresh, setup=change, rounds=20, iterations=1)
    if benchmark.stats is not None:
        stats = benchmark.stats.stats
        work = named("refresh, one container new, without /proc", containers)
        ledger.add(work, "us", None, stats.median * 1e6, stats.min * 1e6)
    for directory in root.glob("one-more-*"):
        directory.rmdir()
    node.refresh(processes=False)


def test_all_regions_read(node: Node, containers: int, timed: Callable[..., Any]) -> None:
    snapshot = timed(node.snapshot, work=named("snapshot()", containers))
    assert len(snapshot.table.processes) == 4 * containers


@pytest.mark.usefixtures("processes")
def test_slots_with_nothing_changed(node: Node, containers: int, timed: Callable[..., Any]) -> None:
    """What a program that looks every few seconds pays, whatever the processes do."""
    work = named("slots(snapshot()), nothing changed", containers)
    states = timed(lambda: node.slots(node.snapshot()), work=work)
    assert len(states.processes) == 4 * containers


@pytest.mark.usefixtures("processes")
def test_slots_proved_anew(node: Node, containers: int, timed: Callable[..., Any]) -> None:
    """What it pays once a minute."""

    def prove() -> int:
        with Node(node.roots) as new:
            new.refresh(processes=False)
            return len(new.slots(new.snapshot()).processes)

    work = named("a new Node, all slots proved", containers)
    assert timed(prove, work=work) == 4 * containers


@pytest.mark.usefixtures("processes")
def test_everything_looked_at(node: Node, containers: int, timed: Callable[..., Any]) -> None:
    views = timed(
        lambda: tuple(Observer(node, anew=True).observe().details()),
        work=named("an observation's details, all slots proved", containers),
    )
    assert len(views) == containers
    assert all(len(view.processes.alive) == 4 for view in views)


@pytest.mark.usefixtures("processes")
def test_memory(root: Path, containers: int, benchmark: Any, ledger: Ledger) -> None:
    def probe() -> dict[str, float]:
        answer = subprocess.run(
            [sys.executable, str(PROBE), str(root)],
            env={**os.environ, "PYTHONMALLOC": "malloc"},
            check=True,
            capture_output=True,
            text=True,
        )
        found: dict[str, float] = json.loads(answer.stdout)
        return found

    found = benchmark.pedantic(probe)
    benchmark.extra_info.update(found)
    for what, key in (("per container", "container"), ("per process", "process")):
        work = named(f"memory {what}", containers)
        assert found[key] > 0
        ledger.add(work, "bytes", None, found[key])
