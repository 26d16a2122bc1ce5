"""Limits by plan under kill -9: each container's limits are the old ones or the new ones."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from patience import eventually
from plan_scene import GIB, PlannedRegion, PlanScene, plan

from libhamiregion import Layout, Region
from libhamiregion.plan import (
    FixedPlan,
    LimitPlan,
    PlanApplier,
    PlanWatcher,
    Recovered,
    RecoveryOutcome,
    diff_plan,
    load_plan,
)
from libhamiregion.plan.journal import recover, unfinished

OLD = plan(
    "{select: {}, set: {memory_limit: 8GiB, sm_limit: 50, priority: 1}}",
    "{select: {device: 1}, set: {memory_limit: 4GiB, sm_limit: unlimited}}",
)
NEW = plan(
    "{select: {}, set: {memory_limit: 6GiB, sm_limit: 20, priority: 0}}",
    "{select: {device: 1}, set: {memory_limit: unlimited}}",
)
EDITS = 5
FINISHED, TAKEN_BACK = RecoveryOutcome.FINISHED, RecoveryOutcome.TAKEN_BACK

Victim = Callable[[Callable[[], Any]], int]


@pytest.fixture
def scene(tmp_path: Path) -> PlanScene:
    return PlanScene(tmp_path)


@pytest.fixture
def victim() -> Iterator[Victim]:
    """Starts children of this process, to be killed."""
    started: list[int] = []

    def start(work: Callable[[], Any]) -> int:
        pid = os.fork()
        if pid == 0:
            _work(work)
        started.append(pid)
        return pid

    yield start
    for pid in started:
        kill(pid)


def _work(work: Callable[[], Any]) -> NoReturn:
    try:
        work()
    finally:
        os._exit(1)


def kill(pid: int) -> None:
    """SIGKILL, if it lives; on return it is gone."""
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:
        return


def ended_by(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def put_into_effect(scene: PlanScene, wanted: LimitPlan, **options: Any) -> None:
    undo = scene.directory / "undo.yaml"
    undo.unlink(missing_ok=True)  # what an earlier one has left is not written over
    with scene.node() as node, PlanApplier(node, scene.state, **options) as applier:
        applier.apply(diff_plan(node, wanted), undo=undo)


def one_by_one(then: Callable[[int], None]) -> Callable[..., Any]:
    """`Region.edit_limits`, torn apart: the same stores with something done after each."""
    whole = Region.edit_limits

    def edit_limits(self: Region, edits: Any, *, force: bool = False) -> None:
        edits = list(edits)
        whole(self, edits, force=force, dry_run=True)
        for number, edit in enumerate(edits, 1):
            whole(self, [edit], force=force)
            then(number)

    return edit_limits


def dying_after(stores: int) -> Callable[..., Any]:
    """To be called in the process that shall die; its children live."""
    pid = os.getpid()

    def then(number: int) -> None:
        if number == stores and os.getpid() == pid:
            os.kill(pid, signal.SIGKILL)

    return one_by_one(then)


def torn(scene: PlanScene, victim: Victim, stores: int, **options: Any) -> None:
    """Have a plan applied by a process that dies after so many stores."""

    def work() -> None:
        Region.edit_limits = dying_after(stores)
        put_into_effect(scene, NEW, **options)

    assert ended_by(victim(work)) == signal.SIGKILL


def state_of(region: PlannedRegion, old: Any, new: Any) -> str:
    found = region.limits()
    return "old" if found == old else "new" if found == new else "mixed"


def both(scene: PlanScene, region: PlannedRegion) -> tuple[Any, Any]:
    """The limits as they are, and as the new plan has them."""
    old = region.limits()
    put_into_effect(scene, NEW)
    new = region.limits()
    put_into_effect(scene, OLD)
    assert region.limits() == old
    return old, new


@pytest.mark.parametrize("stores", range(1, EDITS + 1))
def test_the_next_one_finishes_what_was_killed_after_any_store(
    scene: PlanScene, victim: Victim, layout: Layout, stores: int
) -> None:
    region = scene.container(layout=layout)
    old, new = both(scene, region)
    torn(scene, victim, stores)
    assert state_of(region, old, new) == ("mixed" if stores < EDITS else "new")
    assert len(unfinished(scene.state)) == 1
    with scene.node() as node, PlanApplier(node, scene.state) as applier:
        (found,) = applier.recovered
        assert found.outcome is (FINISHED if stores < EDITS else RecoveryOutcome.NEW)
        assert isinstance(found, Recovered)
    assert state_of(region, old, new) == "new"
    assert unfinished(scene.state) == ()


@pytest.mark.parametrize("stores", range(1, EDITS))
def test_a_child_finishes_at_once_what_was_killed_after_any_store(
    scene: PlanScene, victim: Victim, stores: int
) -> None:
    """Nobody has to call again."""
    region = scene.container()
    old, new = both(scene, region)
    torn(scene, victim, stores, guard=True)
    eventually(lambda: not unfinished(scene.state))
    assert state_of(region, old, new) == "new"


def test_the_undo_plan_of_a_killed_one_restores_what_was_there(
    scene: PlanScene, victim: Victim
) -> None:
    region = scene.container()
    old, _ = both(scene, region)
    before = region.content()
    torn(scene, victim, 3)
    with scene.node() as node, PlanApplier(node, scene.state) as applier:
        applier.apply(diff_plan(node, load_plan(scene.directory / "undo.yaml")))
    assert region.limits() == old
    assert region.content() == before


def test_what_cannot_be_finished_is_taken_back(scene: PlanScene, victim: Victim) -> None:
    """More is used by now than the new limit of the second device."""
    region = scene.container(memory_limits=("16GiB", "16GiB"))
    old = region.limits()

    def work() -> None:
        Region.edit_limits = dying_after(1)
        put_into_effect(scene, OLD)

    assert ended_by(victim(work)) == signal.SIGKILL
    assert region.limits()["memory"][:2] == [8 * GIB, 16 * GIB]
    region.add_process(1, {1: 5 * GIB})
    with scene.state.applying():
        (found,) = recover(scene.state)
    assert found.outcome is TAKEN_BACK
    assert "device 1 uses 5 GiB" in found.message
    assert region.limits() == old


def test_what_somebody_else_has_changed_since_is_left_to_him(
    scene: PlanScene, victim: Victim
) -> None:
    region = scene.container()
    torn(scene, victim, 2)
    region.put("sm_limit", 33, device=1)
    with scene.state.applying():
        (found,) = recover(scene.state)
    assert found.outcome is TAKEN_BACK
    left = region.limits()
    assert left["memory"][:2] == [8 * GIB, 4 * GIB]
    assert left["sm"][:2] == [50, 33]
    assert left["priority"] == 1


def test_a_region_that_was_replaced_or_removed_is_forgotten(
    scene: PlanScene, victim: Victim
) -> None:
    for replace in (True, False):
        region = scene.container()
        torn(scene, victim, 2)
        content = region.content()
        region.path.rename(region.path.with_suffix(".gone"))
        if replace:
            region.path.write_bytes(content)
        with scene.state.applying():
            (found,) = recover(scene.state)
        assert found.outcome is RecoveryOutcome.GONE
        assert unfinished(scene.state) == ()
        region.path.parent.rename(scene.directory / f"gone-{replace}")


def test_what_cannot_be_ended_now_waits_for_the_next_one(scene: PlanScene, victim: Victim) -> None:
    torn_region = scene.container("torn")
    old, new = both(scene, torn_region)
    torn(scene, victim, 2)
    header = torn_region.get("magic")
    torn_region.put("magic", 0)
    other = scene.container("other")
    with scene.node() as node, PlanApplier(node, scene.state) as applier:
        assert [each.outcome for each in applier.recovered] == [RecoveryOutcome.FAILED]
        assert applier.apply(diff_plan(node, NEW)).all_applied
    assert other.limits()["priority"] == 0
    assert len(unfinished(scene.state)) == 1
    torn_region.put("magic", header)
    with scene.state.applying():
        assert [each.outcome for each in recover(scene.state)] == [FINISHED]
    assert state_of(torn_region, old, new) == "new"


def test_a_damaged_journal_is_no_journal(scene: PlanScene) -> None:
    region = scene.container()
    put_into_effect(scene, NEW)
    before = region.content()
    for content in ("", "{", "[]\n", '{"version": 1}\n', '{"version": 2, "entries": []}\n'):
        scene.state.write("journal.jsonl", content)
        assert unfinished(scene.state) == ()
        with scene.state.applying():
            assert recover(scene.state) == ()
    assert region.content() == before


@pytest.mark.parametrize("stores", [0, 1])
def test_a_watcher_killed_beside_an_edit_gives_back_what_was_there_before_it(
    scene: PlanScene, victim: Victim, stores: int
) -> None:
    """The edit is written down as one to give back, and may have been made or not."""
    region = scene.container()

    def watch(wanted: LimitPlan) -> None:
        with scene.node() as node:
            watcher = PlanWatcher(node, FixedPlan(wanted), scene.state)
            watcher.run()
            watcher.stop()

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        Region.edit_limits = dying_after(1) if stores else die
        watch(plan("{select: {device: 0}, set: {memory_limit: 5GiB}}"))

    watch(plan("{select: {device: 0}, set: {memory_limit: 6GiB}}"))
    assert ended_by(victim(work)) == signal.SIGKILL
    assert region.limits()["memory"][0] == (5 * GIB if stores else 6 * GIB)
    watch(LimitPlan())
    assert region.limits()["memory"][0] == 8 * GIB


def rounds(
    scene: PlanScene,
    victim: Victim,
    region: PlannedRegion,
    kills: int,
    edit_limits: Callable[..., Any] | None = None,
    *,
    guard: bool = False,
) -> dict[str, int]:
    """Kill a process that applies two plans in turn, again and again; what was found each time."""
    put_into_effect(scene, OLD)
    old, new = both(scene, region)
    found = {"old": 0, "new": 0, "mixed": 0}
    chance = random.Random(9394)
    begun = scene.directory / "begun"

    def work() -> None:
        if edit_limits is not None:
            Region.edit_limits = edit_limits
        with scene.node() as node:
            begun.touch()
            while True:
                for wanted in (NEW, OLD):
                    node.refresh(processes=False)
                    with PlanApplier(node, scene.state, guard=guard) as applier:
                        applier.apply(diff_plan(node, wanted), keep_undo=False)

    for _ in range(kills):
        begun.unlink(missing_ok=True)
        pid = victim(work)
        eventually(begun.exists)
        time.sleep(chance.random() * 0.03)  # a moment that nobody has chosen
        kill(pid)
        if guard:
            eventually(lambda: not unfinished(scene.state))
        found[state_of(region, old, new)] += 1
        with scene.state.applying():
            recover(scene.state)
        assert state_of(region, old, new) in {"old", "new"}
    return found


def slow(pause_s: float) -> Callable[..., Any]:
    """The stores of a container with pauses between them: moments that are easily hit."""
    return one_by_one(lambda _: time.sleep(pause_s))


def test_killed_at_random_moments_the_limits_are_the_old_or_the_new_ones(
    scene: PlanScene, victim: Victim
) -> None:
    """Each of them after the recovery; and the moment between two stores is hardly ever hit."""
    found = rounds(scene, victim, scene.container(), 12)
    assert found["mixed"] <= 2


def test_killed_in_the_middle_of_slowed_down_stores_they_are_so_after_the_recovery(
    scene: PlanScene, victim: Victim
) -> None:
    found = rounds(scene, victim, scene.container(), 12, slow(0.01))
    assert found["mixed"] > 0, "the moments were not chosen well"


def test_with_a_guard_they_are_so_without_anybody_calling_again(
    scene: PlanScene, victim: Victim
) -> None:
    found = rounds(scene, victim, scene.container(), 8, slow(0.01), guard=True)
    assert found["mixed"] == 0


@pytest.mark.stress
def test_thousands_of_kills(scene: PlanScene, victim: Victim) -> None:
    region = scene.container()
    print("as it is:", rounds(scene, victim, region, 2_000))
    print("slowed down:", rounds(scene, victim, region, 500, slow(0.002)))
    guarded = rounds(scene, victim, region, 500, slow(0.002), guard=True)
    print("slowed down, with a guard:", guarded)
    assert guarded["mixed"] == 0
