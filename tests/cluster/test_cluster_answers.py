"""What the real API server answers to the conversation that the small one of the tests has learned.

`make cluster-answers` writes down anew what it says.
"""

import http.client
import json
import os
from collections.abc import Iterator

import pytest
from api_server import Cluster, accounts_path, pods_path
from fake_kubernetes.conversation import RECORDED, Side, play

NAMESPACE = "research"


class RealSide(Side):
    """A real server."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.namespace(NAMESPACE)
        cluster.must("POST", accounts_path(NAMESPACE), {"metadata": {"name": "powerless"}})
        self.tokens = {
            "reader": cluster.watcher(NAMESPACE),
            "powerless": cluster.account_token(NAMESPACE, "powerless"),
            "nobody": "a-token-of-nobodys",
        }
        self.names: set[str] = set()

    def connect(self) -> http.client.HTTPConnection:
        return self.cluster.connect()

    def token(self, account: str) -> str:
        return self.tokens[account]

    def put(self, name: str, node: str, annotations: dict[str, str] | None = None) -> None:
        if name in self.names:
            self.cluster.annotate(NAMESPACE, name, dict(annotations or {}))
        else:
            self.cluster.pod(NAMESPACE, name, node, annotations=annotations or {})
            self.names.add(name)

    def delete(self, name: str) -> None:
        self.cluster.must("DELETE", f"{pods_path(NAMESPACE, name)}?gracePeriodSeconds=0")

    def reach(self) -> None:
        """Do nothing: it tells bookmarks by itself."""

    def break_watches(self) -> None:
        self.cluster.kill()

    def return_without_history(self) -> None:
        self.cluster.start()
        now = self.cluster.must("GET", "/api/v1/pods?limit=1")["metadata"]["resourceVersion"]
        self.cluster.compact(now)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server of this test's own, which it ends."""
    with Cluster(tmp_path_factory.mktemp("answers")) as cluster:
        yield cluster


def test_the_recorded_answers_are_those_of_the_real_server(cluster: Cluster) -> None:
    heard = play(RealSide(cluster))
    if "HAMIREGION_RECORD" in os.environ:
        RECORDED.write_text(json.dumps(heard, indent=1) + "\n")
    assert heard == json.loads(RECORDED.read_text())
