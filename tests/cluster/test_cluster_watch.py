"""Annotations of pods, watched at a real API server that restarts, forgets and refuses."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_server import RBAC, Cluster, accounts_path, pod, pods_path
from support.node_scene import GIB
from support.plan_scene import PlanScene
from support.plan_watching import kept_by_annotations
from support.wait import PATIENCE_S, eventually

from libhamiregion.plan import KubernetesError, NodePods, PodAnnotations

MEMORY = "hamiregion.io/memory-limit"
OUTAGE_S = 8.0


class WatchedPods(NodePods):
    """A watch that tells what the API has answered, and lets others act between its steps."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.statuses: list[int] = []
        self.after_list: list[Callable[[], object]] = []
        self.lists = self.watches = 0

    def _list(self) -> str:
        self.lists += 1
        version = super()._list()
        if self.after_list:
            self.after_list.pop(0)()
        return version

    def _follow(self) -> None:
        self.watches += 1
        try:
            super()._follow()
        except KubernetesError as error:
            self.statuses.append(error.status or 0)
            raise


class Watched(PodAnnotations):
    """The annotations of a watch, and the watch."""

    def __init__(self, pods: WatchedPods) -> None:
        super().__init__(pods=pods, maximum_percent=None)
        self.watched = pods


@pytest.fixture
def node(request) -> str:
    """A node, and a namespace, of the test's own."""
    return re.sub("[^a-z0-9]+", "-", str(request.node.name))[-50:].strip("-")


@pytest.fixture
def watch(cluster, node, tmp_path) -> Iterator[Callable[..., Watched]]:
    """Makes watches of the node's pods, with an account of their own, and closes them."""
    token = cluster.watcher(cluster.namespace(node))
    with contextlib.ExitStack() as made:

        def watch(**options: Any) -> Watched:
            config = cluster.kubeconfig(tmp_path / "kubeconfig", token)
            watched = Watched(WatchedPods(node, kubeconfig=config, **options))
            return made.enter_context(contextlib.closing(watched))

        yield watch


def limit(pods: PodAnnotations, name: str = "bert-0") -> int | None:
    """What a pod asks for; None as long as nobody knows."""
    plan = pods.read().plan
    rules = () if plan is None else plan.rules
    found = [rule.set.memory_limit for rule in rules if str(rule.name).endswith(f"/{name}")]
    return int(found[0]) if found else None


def soon(condition: Callable[[], object]) -> float:
    """Wait for a condition; returns after how many seconds it was true."""
    began = time.monotonic()
    eventually(condition, PATIENCE_S)
    return time.monotonic() - began


def test_an_annotation_reaches_its_region(cluster, node, watch, tmp_path, figure):
    uid = cluster.pod(node, "bert-0", node)
    scene = PlanScene(tmp_path)
    region = scene.container(pod_uid=uid)
    pods = watch()
    taken = []
    with kept_by_annotations(scene, pods):
        eventually(lambda: pods.read().plan is not None, PATIENCE_S)
        for number in range(2, 12):
            # Not at the heels of the one before.
            time.sleep(0.3)
            began = time.monotonic()
            cluster.annotate(node, "bert-0", {MEMORY: f"{number}GiB"})
            eventually(lambda: region.get("limit") == number * GIB, PATIENCE_S)  # noqa: B023
            taken.append(time.monotonic() - began)
        cluster.annotate(node, "bert-0", {MEMORY: None})
        eventually(lambda: region.get("limit") == 8 * GIB, PATIENCE_S)
    figure("from the request that annotates a pod to its region, median", sorted(taken)[5])
    figure("the same, the slowest of ten", max(taken))


@pytest.mark.parametrize("end", [Cluster.stop, Cluster.kill], ids=["SIGTERM", "kill -9"])
def test_a_server_that_comes_back_is_right_again(cluster, node, watch, figure, end, request):
    """The error stands until a list has succeeded; what was known stays in force meanwhile."""
    cluster.pod(node, "bert-0", node, annotations={MEMORY: "1GiB"})
    pods = watch()
    pods.pods.start()
    eventually(lambda: limit(pods) == GIB, PATIENCE_S)
    end(cluster)
    eventually(lambda: pods.pods.error is not None, PATIENCE_S)
    gone_at = time.monotonic()
    while time.monotonic() < gone_at + OUTAGE_S:
        assert pods.pods.error is not None
        assert pods.read().problems.keys() == {"kubernetes"}
        assert limit(pods) == GIB
        time.sleep(0.05)
    cluster.start(wait=False)
    cluster.wait_for_an_answer()
    how = request.node.callspec.id
    taken = soon(lambda: pods.pods.error is None)
    figure(f"listed again after the server's return ({how})", taken)
    assert pods.read().problems == {}
    cluster.wait_until_ready()
    cluster.annotate(node, "bert-0", {MEMORY: "2GiB"})
    taken = soon(lambda: limit(pods) == 2 * GIB)
    figure(f"the first change after that ({how})", taken)


def test_a_version_from_before_a_restart_is_gone_and_a_list_follows_soon(
    cluster, node, watch, figure
):
    cluster.pod(node, "bert-0", node, annotations={MEMORY: "1GiB"})
    pods = watch()
    is_listed, may_watch = threading.Event(), threading.Event()
    pods.watched.after_list.append(lambda: (is_listed.set(), may_watch.wait(PATIENCE_S)))
    pods.pods.start()
    assert is_listed.wait(PATIENCE_S)
    # The new server begins with what is younger than the list.
    cluster.pod(node, "bert-1", node)
    cluster.kill()
    cluster.start()
    cluster.annotate(node, "bert-0", {MEMORY: "2GiB"})
    may_watch.set()
    taken = soon(lambda: limit(pods) == 2 * GIB)
    assert 410 in pods.watched.statuses, pods.watched.statuses
    figure("right again after 410 Gone in the watch", taken)
    eventually(lambda: pods.pods.error is None, PATIENCE_S)


def test_a_revoked_token_is_an_error_until_there_is_another(cluster, node, watch, tmp_path):
    """The API goes on knowing a token for some seconds, and does not cut watches."""
    cluster.pod(node, "bert-0", node, annotations={MEMORY: "1GiB"})
    pods = watch(watch_s=1.0, first_pause_s=0.1)
    pods.pods.start()
    eventually(lambda: limit(pods) == GIB, PATIENCE_S)
    cluster.must("DELETE", accounts_path(node, "watcher"))
    eventually(lambda: str(pods.pods.error) == "the API answered 401: Unauthorized", PATIENCE_S)
    cluster.annotate(node, "bert-0", {MEMORY: "2GiB"})
    assert limit(pods) == GIB
    cluster.must("POST", accounts_path(node), {"metadata": {"name": "watcher"}})
    cluster.kubeconfig(tmp_path / "kubeconfig", cluster.account_token(node, "watcher"))
    eventually(lambda: limit(pods) == 2 * GIB, PATIENCE_S)
    cluster.must("DELETE", f"{RBAC}/clusterrolebindings/{node}")
    eventually(lambda: "403" in str(pods.pods.error), PATIENCE_S)
    assert re.search("cannot (list|watch) resource", str(pods.pods.error))
    assert limit(pods) == 2 * GIB


def test_1300_pods_are_listed_at_once_and_watched(cluster, node, watch, figure):
    connection = cluster.connect()
    for number in range(1300):
        body = pod(f"bert-{number}", node, annotations={MEMORY: "1GiB"})
        cluster.must("POST", pods_path(node), body, connection=connection)
    connection.close()
    pods = watch()
    pods.pods.start()
    figure("the first list of 1,300 pods", soon(lambda: limit(pods, "bert-1299") == GIB))
    plan = pods.read().plan
    assert len(plan.rules) == 1300
    eventually(lambda: pods.watched.watches > 0, PATIENCE_S)
    cluster.annotate(node, "bert-1299", {MEMORY: "2GiB"})
    figure("one change among 1,300 pods", soon(lambda: limit(pods, "bert-1299") == 2 * GIB))
