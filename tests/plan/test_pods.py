"""Annotations of the pods of a node, from a server that speaks the real protocol."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.node_scene import GIB
from support.plan_scene import PlanScene
from support.plan_watching import ObservedReconciler, kept_by_annotations
from support.wait import eventually

from libhamiregion.plan import Limits, NodePods, PlanFile, PodAnnotations

pytest.importorskip("ijson", reason="needs the extra kubernetes")

UID = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b%02x"
SIX = {"hamiregion.io/memory-limit": "6GiB"}

Watch = Callable[..., PodAnnotations]


@pytest.fixture
def watch(api, tmp_path) -> Iterator[Watch]:
    """Makes watches of node-1's pods by the client and a kubeconfig file, and closes them."""
    with contextlib.ExitStack() as made:

        def watch() -> PodAnnotations:
            pods = NodePods("node-1", kubeconfig=api.kubeconfig(tmp_path), first_pause_s=0.01)
            return made.enter_context(contextlib.closing(PodAnnotations(pods=pods)))

        yield watch


def limits(pods: PodAnnotations) -> dict[str, Limits] | None:
    """What each pod asks for; None before the first list."""
    found = pods.read().plan
    return (
        None if found is None else {(r.name or "").rpartition("/")[2]: r.set for r in found.rules}
    )


def names(pods: PodAnnotations) -> set[str] | None:
    found = limits(pods)
    return None if found is None else set(found)


def test_changes_arrive_as_they_happen(api, watch):
    api.put("bert-0", UID % 0, SIX)
    pods = watch()
    pods.pods.start()
    eventually(lambda: names(pods) == {"bert-0"})
    api.put("bert-1", UID % 1, SIX)
    eventually(lambda: names(pods) == {"bert-0", "bert-1"})
    api.put("bert-0", UID % 0, {"hamiregion.io/sm-limit": "5"})
    eventually(lambda: (limits(pods) or {})["bert-0"] == Limits(sm_limit=5))
    api.put("bert-0", UID % 0, {})
    eventually(lambda: names(pods) == {"bert-1"})
    api.delete(UID % 1)
    eventually(lambda: names(pods) == set())
    assert (len(api.lists), pods.pods.error) == (1, None)
    (asked,) = api.watches
    assert asked["resourceVersion"] == "101"


def test_an_annotation_reaches_its_region_without_waiting_for_the_interval(api, watch, tmp_path):
    scene = PlanScene(tmp_path)
    region = scene.container(pod_uid=UID % 1)
    pods = watch()
    with kept_by_annotations(scene, pods):
        eventually(lambda: len(api.open_watches) == 1)
        assert region.get("limit") == 8 * GIB
        api.put("bert-0", UID % 1, SIX)
        eventually(lambda: region.get("limit") == 6 * GIB)


# ---- as the source of a plan --------------------------------------------------------------


def test_limits_follow_the_annotations_of_pods(api, watch, tmp_path):
    """Set, changed, wrong, right again, removed: and the plan of a file beneath them."""
    (tmp_path / "node").mkdir()
    scene = PlanScene(tmp_path / "node")
    first = scene.container(pod_uid=UID % 1)
    second = scene.container(pod_uid=UID % 2, pod="bert-1")
    before = second.limits()

    def memory() -> list[int]:
        return [region.get("limit") for region in (first, second)]

    pods = watch()
    file = PlanFile(scene.plan_file("{select: {pod: bert-0}, set: {memory_limit: 7GiB}}"))
    with scene.node() as node:
        watcher = ObservedReconciler(node, [file, pods], scene.state)

        def until(limits: list[int]) -> None:
            eventually(lambda: watcher.run() or memory() == limits)  # type: ignore[func-returns-value]

        watcher.run()
        assert memory() == [8 * GIB, 8 * GIB], "nothing is known of the pods yet"
        api.put("bert-1", UID % 2, {**SIX, "hamiregion.io/train.sm-limit.1": "9"})
        pods.pods.start()
        until([7 * GIB, 6 * GIB])
        assert second.limits()["sm"][:2] == [50, 9]
        api.put("bert-1", UID % 2, {"hamiregion.io/memory-limit": "50%"})
        until([7 * GIB, 4 * GIB])
        assert second.limits()["sm"] == before["sm"]
        api.put("bert-1", UID % 2, {"hamiregion.io/memory-limit": "much"})
        api.put("bert-0", UID % 1, {"hamiregion.io/memory-limit": "1GiB"})
        until([GIB, 4 * GIB])
        assert list(pods.read().problems) == ["research/bert-1"]
        api.put("bert-0", UID % 1, {})
        api.delete(UID % 2)
        until([7 * GIB, 8 * GIB])
        assert second.limits() == before
        assert pods.read().problems == {}
        watcher.stop()
    eventually(lambda: not api.open_watches)
