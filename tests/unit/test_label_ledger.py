"""Labels that containers and processes choose, over time."""

from __future__ import annotations

import attrs

from libhamiregion.exporter.label_ledger import OTHER, LabelLedger
from libhamiregion.exporter.naming import Identity
from libhamiregion.node import HostProcess

ONE, TWO = (
    Identity("team-a", pod, "main", pod, is_named=True, age=(0, "")) for pod in ("one", "two")
)


def process(command: str, start_time_ticks: int = 5) -> HostProcess:
    fields = {
        field.name: None for field in attrs.fields(HostProcess) if field.default is attrs.NOTHING
    }
    known = {"pid": 7, "start_time_ticks": start_time_ticks, "command": command, "ns_pids": (7,)}
    return HostProcess(**{**fields, **known})  # type: ignore[arg-type]


def test_a_container_has_64_uuids_and_the_rest_is_other() -> None:
    ledger = LabelLedger()
    told = [ledger.uuid(ONE, 0, f"GPU-{number}") for number in range(70)]
    assert told == [f"GPU-{number}" for number in range(64)] + [OTHER] * 6
    assert ledger.uuid(ONE, 0, "GPU-3") == "GPU-3"
    assert ledger.uuid(TWO, 0, "GPU-69") == "GPU-69"


def test_it_has_no_others_when_it_comes_again() -> None:
    """A region outside the roots is there while its owner maps it, again and again."""
    ledger = LabelLedger()
    told = set()
    for number in range(70):
        told.add(ledger.uuid(ONE, 0, f"GPU-{number}"))
        ledger.keep([ONE], [])
        ledger.keep([], [])
    assert len(told) == 65
    assert OTHER in told


def test_of_containers_that_are_gone_the_longest_gone_is_forgotten() -> None:
    ledger = LabelLedger()
    for number in range(64):
        ledger.uuid(ONE, 0, f"GPU-{number}")
        ledger.uuid(TWO, 0, f"GPU-{number}")
    for number in range(2000):
        one_more = attrs.evolve(ONE, pod=f"pod-{number}")
        ledger.uuid(one_more, 0, "GPU-0")
        # The second one is there all the time.
        ledger.keep([TWO, one_more], [])
    ledger.keep([TWO], [])
    assert ledger.uuid(ONE, 0, "GPU-64") == "GPU-64"
    assert ledger.uuid(TWO, 0, "GPU-64") == OTHER
    assert len(ledger._uuids) <= 1024 + 2


def test_paths_that_anybody_can_make_are_bounded() -> None:
    ledger = LabelLedger()
    told = [ledger.path(f"/tmp/{number}.cache") for number in range(300)]
    assert told == [f"/tmp/{number}.cache" for number in range(256)] + [OTHER] * 44
    assert ledger.path("/tmp/7.cache") == "/tmp/7.cache"


def test_a_process_keeps_the_name_that_it_was_first_seen_under() -> None:
    ledger = LabelLedger()
    first = process("/usr/bin/python3 train.py --token secret")
    assert ledger.program(first) == "python3"
    assert ledger.program(process("renamed")) == "python3"
    assert ledger.program(process("another\x1b[2J", 6)) == r"another\x1b[2J"
    assert ledger.program(None) == ""
    ledger.keep([], [first])
    assert ledger.program(process("renamed")) == "python3"
    ledger.keep([], [])
    assert ledger.program(process("renamed")) == "renamed"
