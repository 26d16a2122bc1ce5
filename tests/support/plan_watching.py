"""Watchers of plans on a scene, and sources that say what they are told."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from libhamiregion.agent import PlanKeeper, TaskRunner
from libhamiregion.node import Node, Observer, RootsUnreadable
from libhamiregion.plan import LimitPlan, PlanFile, PlanReconciler, PodAnnotations
from libhamiregion.plan.reconcile import PlanSource, SourceReading
from support.agent_tasks import Events
from support.node_scene import SceneContainer
from support.plan_scene import PlanScene, plan_yaml

SIX = "{select: {}, set: {memory_limit: 6GiB}}"
FIVE = "{select: {}, set: {memory_limit: 5GiB}}"

Watch = Callable[..., PlanReconciler]


class ObservedReconciler(PlanReconciler):
    """Refreshes the node before each pass, as the agent's loop does."""

    def __init__(self, node: Node, *words: Any, **options: Any) -> None:
        super().__init__(node, *words, **options)
        self._observed = node

    def run(self) -> None:
        with contextlib.suppress(RootsUnreadable):
            self._observed.refresh(processes=False)
        super().run()


def watches(scene: PlanScene, node: Node, events: Events) -> Iterator[Watch]:
    """For a fixture: makes watchers that keep the scene on a plan, and stops them."""
    made: list[PlanReconciler] = []

    def watch(*sources: PlanSource, **options: Any) -> PlanReconciler:
        chosen = sources or [PlanFile(scene.directory / "plan.yaml")]
        options = {"state": scene.state, "emit": events.append, **options}
        made.append(ObservedReconciler(node, chosen, **options))
        return made[-1]

    yield watch
    for each in made:
        each.stop()


def aged(path: Path, text: str) -> None:
    """Write a file as if it had been written a while ago: it is complete."""
    path.write_text(text)
    os.utime(path, (time.time() - 10,) * 2)


def set_plan(scene: PlanScene, *rules: str) -> None:
    aged(scene.directory / "plan.yaml", plan_yaml(*rules))


def kept_on(scene: PlanScene, watch: Watch, *rules: str) -> PlanReconciler:
    """A watcher that has set what these rules say."""
    set_plan(scene, *rules)
    watcher = watch()
    watcher.run()
    return watcher


@contextlib.contextmanager
def kept_by_annotations(scene: PlanScene, pods: PodAnnotations) -> Iterator[None]:
    """Meanwhile an agent keeps the scene on these, without waiting for its interval."""
    with scene.node() as node:
        keeper = PlanKeeper(PlanReconciler(node, [pods], scene.state))
        keeper.interval_s = 3600.0
        runner = TaskRunner(Observer(node), [keeper])
        pods.pods.start()
        runner.start()
        try:
            yield
        finally:
            runner.stop()


def memory(region: SceneContainer) -> list[int]:
    return region.limits()["memory"][:2]


def memory_after(watcher: PlanReconciler, region: SceneContainer) -> list[int]:
    """The limits of a region after a pass."""
    watcher.run()
    return memory(region)


class Changing:
    """A source that says what it is told."""

    origin = "a test"

    def __init__(self, plan: LimitPlan | None) -> None:
        self.reading = SourceReading(plan)
        self.closed = False

    def when_changed(self, wake: Callable[[], None]) -> None:
        pass

    def read(self) -> SourceReading:
        return self.reading

    def close(self) -> None:
        self.closed = True
