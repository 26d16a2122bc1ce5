"""Directories of containers that come and go, as an agent says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.agent.root_watch import RootWatch
from libhamiregion.node import Node

if TYPE_CHECKING:
    from pathlib import Path

    from libhamiregion.node.events import Event


def test_what_cannot_be_listed_is_said_once_and_its_return_too(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    said: list[Event] = []
    with Node([str(one), str(other)], outside=False) as node:
        watch = RootWatch(node, emit=said.append)
        watch.run()
        watch.run()
        assert [(each.event, str(other) in each.message) for each in said] == [("unreadable", True)]
        other.mkdir()
        watch.run()
        one.rmdir()
        watch.run()
        watch.stop()
    assert [(each.task, each.event) for each in said] == [
        ("roots", "unreadable"),
        ("roots", "readable"),
        ("roots", "unreadable"),
    ]
    assert watch.counters() == {}
