"""Limits by plan under kill -9: applying again, or the undo plan, completes every container."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from support.node_scene import GIB, SceneContainer
from support.plan_scene import PlanScene, plan

from libhamiregion import Layout, Region
from libhamiregion.node import Node
from libhamiregion.plan import LimitPlan, PlanFile, PlanReconciler, apply_diff, diff_plan, load_plan
from libhamiregion.plan.state import PlanState, write_new

OLD = plan(
    "{select: {}, set: {memory_limit: 8GiB, sm_limit: 50, priority: 1}}",
    "{select: {device: 1}, set: {memory_limit: 4GiB, sm_limit: unlimited}}",
)
NEW = plan(
    "{select: {}, set: {memory_limit: 6GiB, sm_limit: 20, priority: 0}}",
    "{select: {device: 1}, set: {memory_limit: unlimited}}",
)
EDITS = 5

Victim = Callable[[Callable[[], Any]], int]


@pytest.fixture
def scene(tmp_path) -> PlanScene:
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


def put_into_effect(scene: PlanScene, wanted: LimitPlan) -> None:
    with scene.node() as node:
        assert apply_diff(node, diff_plan(node, wanted), state=scene.state).all_applied


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def one_by_one(then: Callable[[], None]) -> Callable[..., Any]:
    """`Region.edit_limits`, torn apart: the same stores with something done after each."""
    whole = Region.edit_limits

    def edit_limits(self: Region, edits: Any, *, force: bool = False, dry_run: bool = False) -> Any:
        edits = list(edits)
        changes = whole(self, edits, force=force, dry_run=True)
        for edit in edits if not dry_run else ():
            whole(self, [edit], force=force)
            then()
        return changes

    return edit_limits


def at(number: int) -> Callable[..., None]:
    """Dies when it is called for the last of so many times."""
    calls = iter(range(1, number + 1))

    def count(*_: Any, **__: Any) -> None:
        if next(calls) == number:
            die()

    return count


def before(cls: type, name: str, act: Callable[..., None]) -> None:
    """Have something done before a method; only for a process that is going to die."""
    method = getattr(cls, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act()
        return method(*args, **kwargs)

    setattr(cls, name, wrapped)


def tear_apart(then: Callable[[], None]) -> None:
    Region.edit_limits = one_by_one(then)  # type: ignore[method-assign, assignment]


#: Each point of an apply to two containers at which it is killed.
POINTS: dict[str, Callable[[], None]] = {
    "before the undo plan is written": lambda: before(PlanState, "write_undo", die),
    "after the undo plan is written": lambda: before(Node, "open", die),
    "before a container's first store": lambda: before(Region, "edit_limits", die),
    **{
        f"after store {number}": lambda number=number: tear_apart(at(number))
        for number in range(1, 2 * EDITS + 1)
    },
    "between two containers": lambda: before(Node, "open", at(2)),
}


def both(scene: PlanScene, regions: list[SceneContainer]) -> tuple[Any, Any]:
    """The limits of each region as they are, and as the new plan has them."""
    old = [region.limits() for region in regions]
    put_into_effect(scene, NEW)
    new = [region.limits() for region in regions]
    put_into_effect(scene, OLD)
    assert [region.limits() for region in regions] == old
    for undo in scene.state.iterdir():
        undo.unlink()
    return old, new


@pytest.mark.slow(keep=7)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", ["again", "undo"])
def test_killed_at_any_point_applying_again_or_the_undo_plan_completes_every_container(
    scene, victim, point, how
):
    regions = [scene.container("a", layout=Layout.V1_1), scene.container("b")]
    old, new = both(scene, regions)

    def work() -> None:
        POINTS[point]()
        put_into_effect(scene, NEW)

    assert os.waitpid(victim(work), 0)[1] == signal.SIGKILL
    undo = sorted(scene.state.glob("undo-*.yaml"))
    if how == "again":
        put_into_effect(scene, NEW)
        assert [region.limits() for region in regions] == new
    for path in undo[:1]:
        # Also after the second apply, the first undo plan is the way back to the beginning.
        put_into_effect(scene, load_plan(path))
    if undo or how == "undo":
        assert [region.limits() for region in regions] == old


@pytest.mark.parametrize("stores", [0, 1, 2])
def test_a_watcher_killed_beside_an_edit_goes_on_and_gives_back_what_was_there_before(
    scene, victim, stores
):
    """The edit is written down as one to give back, and may have been made or not."""
    region = scene.container()

    def watch(*rules: str) -> None:
        with scene.node() as node:
            watcher = PlanReconciler(node, [PlanFile(scene.plan_file(*rules))], scene.state)
            watcher.run()
            watcher.stop()

    wanted = "{select: {}, set: {memory_limit: 50%}}"

    def work() -> None:
        before(Region, "edit_limits", die) if stores == 0 else tear_apart(at(stores))
        watch(wanted)

    watch("{select: {device: 0}, set: {memory_limit: 6GiB}}")
    assert os.waitpid(victim(work), 0)[1] == signal.SIGKILL
    half = [4 * GIB if stores else 6 * GIB, 2 * GIB if stores == 2 else 4 * GIB]
    assert region.limits()["memory"][:2] == half
    if stores == 1:
        # A percentage is of what stood there before, killed in between or not.
        watch(wanted)
        assert region.limits()["memory"][:2] == [4 * GIB, 2 * GIB]
    watch()
    assert region.limits()["memory"][:2] == [8 * GIB, 4 * GIB]


@pytest.mark.parametrize("call", ["fdopen", "fsync", "link"])
def test_a_killed_write_leaves_no_part_of_an_undo_plan_under_its_name(
    tmp_path, victim, monkeypatch, call
):
    target = tmp_path / "undo.yaml"
    with monkeypatch.context() as patch:
        patch.setattr(os, call, die)
        pid = victim(lambda: write_new(target, "whole"))
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert not target.exists()
    write_new(target, "whole")
    assert target.read_text() == "whole"
