"""Which containers are diagnosed at a turn, and that each check is asked for what it can find."""

from __future__ import annotations

import inspect
import itertools
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import Layout, create_region
from libhamiregion.node import FindingKind, Node, Observer
from libhamiregion.node.doctor.diagnosis import _CHECKS_OF_NODE, _CHECKS_OF_REGION
from libhamiregion.node.doctor.due import DueContainers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libhamiregion.node import Container

GPU = "GPU-00000000-0000-0000-0000-000000000000"
TURNS = 8
GIB = 1 << 30
# No process has it: Linux counts to 4,194,304 at most.
NOBODY = 4_194_305


class Rig:
    """A node of containers that nobody uses, and what chooses among them."""

    def __init__(self, root: Path, layout: Layout = Layout.V1_2) -> None:
        for number in range(TURNS):
            path = root / f"{uuid.UUID(int=number)}_main" / "usage.cache"
            path.parent.mkdir()
            create_region(path, uuids=[GPU], memory_limits=["1GiB"], sm_limits=[50], layout=layout)
        self.node = Node(root)
        self.observer = Observer(self.node)
        self.due = DueContainers(TURNS)
        # In the order of the rows, which is that of the turns.
        self.containers = self.observer.observe().containers
        self.files = [RegionFile(Path(str(each.region_path)), layout) for each in self.containers]

    def choose(self, *kept: Container) -> set[int]:
        """The rows of the containers that are due; -1 for one without a region."""
        chosen = self.due.choose(self.observer.observe(), kept)
        rows = {each: row for row, each in enumerate(self.containers)}
        return {rows.get(each, -1) for each in chosen}

    def add_dead(self, number: int) -> None:
        """Give a container a slot whose process is proved dead, which can take some looks."""
        file, host_pids = self.files[number], itertools.count(1)
        file.add_process(NOBODY, {0: GIB // 4})

        def is_proved() -> bool:
            # Has it proved anew.
            file.put("slot_hostpid", next(host_pids))
            return self.observer.observe().proved().states == b"\2"

        eventually(is_proved)
        assert number in self.choose()

    def changed(self) -> set[int]:
        """Those that are due beside the one whose turn it is."""
        turn = (self.due._turn + 1) % TURNS
        return self.choose() - {turn}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with made.node:
        assert made.choose() == set(range(TURNS)), "at first all of them"
        yield made


def test_of_containers_that_do_not_change_each_is_due_once_in_so_many_turns(rig: Rig) -> None:
    chosen = [rig.choose() for _ in range(TURNS)]
    assert all(len(each) == 1 for each in chosen)
    assert set.union(*chosen) == set(range(TURNS))


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.put("limit", GIB // 2),
        lambda file: file.put("sm_limit", 20),
        lambda file: file.put("priority", 3),
        lambda file: file.put("recent_kernel", -1),
    ],
    ids=["limit", "sm limit", "priority", "blocked"],
)
def test_what_has_changed_is_due_once(rig: Rig, change: Callable[[RegionFile], Any]) -> None:
    # Neither of the two whose turn is next.
    other = (rig.due._turn + 4) % TURNS
    change(rig.files[other])
    assert rig.changed() == {other}
    assert rig.changed() == set()


@pytest.mark.parametrize(
    ("field", "value"), [("slot_pid", NOBODY + 1), ("slot_hostpid", 1 << 20), ("slot_status", 0)]
)
def test_a_slot_that_has_changed_makes_its_container_due(rig: Rig, field: str, value: int) -> None:
    other = (rig.due._turn + 5) % TURNS
    rig.add_dead(other)
    rig.files[other].put(field, value)
    assert rig.changed() == {other}
    assert rig.changed() == set()


def test_use_counts_where_it_passes_the_limit_and_else_not(rig: Rig) -> None:
    other = (rig.due._turn + 6) % TURNS
    rig.add_dead(other)
    for used, due in ((GIB // 2, set()), (2 * GIB, {other})):
        for part in ("data", "total"):
            rig.files[other].put(f"slot_used.{part}", used)
        assert rig.changed() == due


def test_a_lock_that_is_taken_or_signed_keeps_its_container_due(rig: Rig) -> None:
    taken, signed = ((rig.due._turn + each) % TURNS for each in (5, 6))
    rig.files[taken].put("sem", 0)
    rig.files[signed].put("owner_pid", 77)
    for _ in range(2):
        assert rig.changed() == {taken, signed}
    rig.files[taken].put("sem", 1)
    assert rig.changed() == {signed}


def test_a_seqlock_that_is_odd_keeps_its_container_due(rig: Rig) -> None:
    other = (rig.due._turn + 6) % TURNS
    rig.add_dead(other)
    rig.files[other].put("slot_seqlock", 1)
    for _ in range(3):
        assert rig.changed() == {other}


def test_whom_the_caller_names_is_due(rig: Rig) -> None:
    turn = (rig.due._turn + 1) % TURNS
    other = (turn + 3) % TURNS
    assert rig.choose(rig.containers[other]) == {turn, other}


def test_after_a_diagnosis_that_failed_all_are_due(rig: Rig) -> None:
    rig.due.forget()
    assert rig.choose() == set(range(TURNS))


def test_a_container_without_a_region_is_always_due(rig: Rig) -> None:
    (rig.files[0].path.parent.parent / f"{uuid.UUID(int=99)}_main").mkdir()
    assert -1 in rig.choose()
    assert -1 in rig.choose()


def test_a_layout_with_a_second_lock_is_always_due(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Layout.V1_1_POSTINIT)
    with rig.node:
        for _ in range(2):
            assert rig.choose() == set(range(TURNS))


def _named_in(function: Callable[..., Any]) -> set[FindingKind]:
    """The kinds that stand in a check and in the functions of its module that it calls."""
    module = inspect.getmodule(function)
    known = {name for name, each in inspect.getmembers(module, inspect.isfunction)}
    waiting, seen, found = [function.__name__], set[str](), set[FindingKind]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        source = inspect.getsource(getattr(module, name))
        found.update(FindingKind[kind] for kind in re.findall(r"FindingKind\.([A-Z_0-9]+)", source))
        called = set(re.findall(r"\b([a-z_0-9]+)\(", source)) & known - seen
        waiting += [each for each in called if getattr(module, each).__module__ == module.__name__]
    return found


@pytest.mark.parametrize(
    "check", [*_CHECKS_OF_NODE, *_CHECKS_OF_REGION], ids=lambda each: each.__name__
)
def test_each_check_is_known_to_find_what_it_can_find(check: Callable[..., Any]) -> None:
    declared = {**_CHECKS_OF_NODE, **_CHECKS_OF_REGION}[check]
    assert declared == _named_in(check)


def test_every_kind_has_a_check() -> None:
    checks = (*_CHECKS_OF_NODE.values(), *_CHECKS_OF_REGION.values())
    assert set().union(*checks) == set(FindingKind)
