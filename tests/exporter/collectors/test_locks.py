"""Locks that are held for long, and those that are only busy."""

import threading

from support.exposition import parsed
from support.lock_bytes import hold

from libhamiregion.exporter import COLLECTORS
from libhamiregion.exporter.scrape import RowTexts, Scrape
from libhamiregion.node import Node, Observer

UUID = "GPU-00000000-0000-0000-0000-000000000000"


def test_a_lock_that_goes_from_hand_to_hand_is_not_held(files):
    file = files.container(uuids=[UUID])
    hold(file, 1)
    has_ended = threading.Event()

    def pass_on() -> None:
        while not has_ended.wait(0.001):
            file.put("owner_pid", file.get("owner_pid") % 1_000 + 1)

    def held(node: Node) -> int:
        observation = Observer(node).observe()
        scrape = Scrape(observation, RowTexts.of(observation), "", "")
        (series,) = COLLECTORS["locks"]().collect(scrape)
        return len(series.labels)

    with Node(files.root) as node:
        assert held(node) == 1
        passing = threading.Thread(target=pass_on)
        passing.start()
        try:
            assert held(node) == 0
        finally:
            has_ended.set()
            passing.join()


def test_a_lock_that_stays_held_is_told_with_its_age(files, exporter, actor):
    path = files.container(pod="held", uuids=[UUID]).path
    files.container(pod="free", uuids=[UUID])
    held = "hamiregion_lock_same_owner_seconds"
    holder = actor(path)
    assert not parsed(exporter.render()).series(held)
    holder("lock")
    ages = []
    for _ in range(3):
        found = parsed(exporter.render())
        assert found.labels(held)["pod"] == "held"
        ages.append(found.value(held))
    assert 0 <= ages[0] < ages[1] < ages[2], "it is the same hold as before"
    holder("unlock")
    assert not parsed(exporter.render()).series(held)
