"""Names of pods and containers by the Kubernetes API, from a real local server."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pod_names import HOSTILE, ID, OTHER_UID, STATIC, UID
from wait import eventually

pytest.importorskip("ijson", reason="needs the extra kubernetes")

from fake_kubernetes.server import FakeApi, container_id

from libhamiregion.node import KubernetesNames, NodePods, PodName, node_pods

BERT = PodName("research", "bert-0", "train")

Names = Callable[..., KubernetesNames]


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """With one pod."""
    api.put("bert-0", UID, {})
    return api


@pytest.fixture
def names(api: FakeApi, tmp_path: Path) -> Iterator[Names]:
    """Makes names from the server, which wait for the first list, and closes them."""
    made: list[KubernetesNames] = []

    def names(node: str | None = "node-1", **options: Any) -> KubernetesNames:
        options = {"kubeconfig": api.kubeconfig(tmp_path), "wait_s": 30.0, **options}
        made.append(KubernetesNames(node, **options))
        return made[-1]

    yield names
    for each in made:
        each.close()


def pod(
    uid: str = UID,
    namespace: object = "research",
    name: object = "bert-0",
    *,
    containers: dict[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """A pod as the API shows it, as far as it matters."""
    statuses = [
        {"name": container, "containerID": f"containerd://{identifier}"}
        for container, identifier in (containers or {}).items()
    ]
    return {
        "metadata": {"uid": uid, "namespace": namespace, "name": name, **metadata},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def listing(*pods: object) -> bytes:
    document = {"kind": "PodList", "metadata": {"resourceVersion": "100"}, "items": list(pods)}
    return json.dumps(document).encode()


def test_a_name_comes_by_uid_and_by_container_id(api: FakeApi, names: Names) -> None:
    found = names()
    assert api.requests == [], "nothing is asked before the first question"
    assert found.resolve(UID, "train") == BERT
    assert found.resolve(None, None, container_id(UID, "train")) == BERT
    assert found.last_error is None
    (asked,) = api.lists
    assert (asked["fieldSelector"], asked["resourceVersion"]) == ("spec.nodeName=node-1", "0")


def test_pods_of_all_nodes_are_named_where_no_node_is(api: FakeApi, names: Names) -> None:
    api.put("web", OTHER_UID, {}, node="node-2")
    found = names(None)
    assert found.resolve(OTHER_UID, "php") == PodName("research", "web", "php")
    assert "fieldSelector" not in api.lists[0]


def test_what_happens_later_is_known_without_another_list(api: FakeApi, names: Names) -> None:
    found = names()
    assert found.resolve(OTHER_UID, "php") is None
    eventually(lambda: api.open_watches)
    api.put("web", OTHER_UID, {}, containers=("php",))
    eventually(lambda: found.resolve(OTHER_UID, "php") == PodName("research", "web", "php"))
    eventually(lambda: found.resolve(None, None, container_id(OTHER_UID, "php")) is not None)
    api.delete(OTHER_UID)
    eventually(lambda: found.resolve(OTHER_UID, "php") is None)
    assert found.resolve(UID, "train") == BERT
    assert len(api.lists) == 1


def test_no_question_waits_where_none_may(api: FakeApi, names: Names) -> None:
    """Names that are not known yet are None, however long the API takes."""
    made: list[KubernetesNames] = []

    def are_answered_at_once() -> bool:
        found = names(wait_s=0.0)
        made.append(found)
        began_s = time.monotonic()
        assert found.resolve(UID, "train") is None
        assert found.pod_labels(UID) == {}
        assert found.resolve_claim(OTHER_UID) is None
        took_s = time.monotonic() - began_s
        assert found.last_error is None
        return took_s < 1.0

    may_answer = api.changed
    with may_answer:
        # A busy machine may take longer now and then.
        eventually(are_answered_at_once)
    eventually(lambda: made[-1].resolve(UID, "train") == BERT)


def test_all_questions_together_wait_once(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(NodePods, "wait", lambda _, for_s: waited.append(for_s) or time.sleep(0.2))
    monkeypatch.setattr(NodePods, "start", lambda _: None)
    found = names(wait_s=0.1)
    for _ in range(3):
        assert found.resolve(UID, "train") is None
    assert len(waited) == 1


def test_a_static_pod_is_found_by_the_uid_that_kubelet_uses(api: FakeApi, names: Names) -> None:
    mirror = {"kubernetes.io/config.mirror": STATIC}
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": UID}
    api.list_answer = listing(
        pod(UID, "kube-system", "etcd", annotations=mirror, ownerReferences=[owner])
    )
    assert names().resolve(STATIC, "etcd") == PodName("kube-system", "etcd", "etcd")


def test_no_pod_takes_the_name_of_another_by_calling_itself_its_mirror(
    api: FakeApi, names: Names
) -> None:
    mirror = {"kubernetes.io/config.mirror": UID, "kubernetes.io/config.hash": UID}
    api.list_answer = listing(pod(), pod(OTHER_UID, "evil", "thief", annotations=mirror))
    assert names().resolve(UID, "train") == BERT


@pytest.mark.parametrize(
    "answer",
    [b"[]", b"{}", b'{"items": {}}', b'{"items": "x"}', b'"x"', b"null", b"", b"no JSON", b'{"a"'],
)
def test_an_answer_that_is_no_list_is_a_miss_with_its_reason(
    api: FakeApi, names: Names, answer: bytes
) -> None:
    api.list_answer = answer
    found = names()
    assert found.resolve(UID) is None
    assert "the API's answer is no" in str(found.last_error)


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_refusing_server_is_a_miss_with_its_reason(
    api: FakeApi, names: Names, status: int
) -> None:
    with api.changed:
        api.refusals += [status] * 100
    found = names()
    assert found.resolve(UID) is None
    assert str(status) in str(found.last_error)


def test_a_server_that_fails_later_leaves_what_was_known(api: FakeApi, names: Names) -> None:
    found = names()
    assert found.resolve(UID, "train") == BERT
    eventually(lambda: api.open_watches)
    with api.changed:
        api.refusals += [500] * 100
        api.drop_watches()
    eventually(lambda: found.last_error is not None)
    assert found.resolve(OTHER_UID) is None
    assert found.resolve(UID, "train") == BERT


def test_a_list_that_is_too_long_is_not_read_to_its_end(
    api: FakeApi, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_pods, "_LIST_LIMIT", 1 << 20)
    api.list_answer = listing(pod(name="x" * (2 << 20)))
    found = names()
    assert found.resolve(UID) is None
    assert "too long" in str(found.last_error)


def test_a_list_that_never_ends_is_given_up(
    api: FakeApi, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_pods, "_LIST_S", 0.2)
    monkeypatch.setattr(node_pods, "_PAGE", 1)
    api.has_cache = False
    # Its second page is the first one again.
    api.list_answer = listing(pod()).replace(b'{"res', b'{"continue": "0", "res')
    found = names()
    assert found.resolve(UID) is None
    assert "took too long" in str(found.last_error)


def test_no_kubeconfig_is_a_miss_with_its_reason(names: Names, tmp_path: Path) -> None:
    found = names(kubeconfig=tmp_path / "none")
    assert found.resolve(UID) is None
    assert str(tmp_path / "none") in str(found.last_error)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_name_nothing(api: FakeApi, names: Names, text: str) -> None:
    api.list_answer = listing(
        pod(UID, text),
        pod(OTHER_UID, "web", text),
        pod(STATIC, "web", "shop", containers={text: ID}),
    )
    found = names()
    assert found.resolve(UID, "train") is None
    assert found.resolve(OTHER_UID, "train") is None
    assert found.resolve(None, None, ID) is None


def test_pods_of_any_shape_do_not_disturb_the_others(api: FakeApi, names: Names) -> None:
    odd = [None, 7, "x", [], {}, {"metadata": 7}, {"metadata": {"uid": 7}}, pod(name=None)]
    odd += [{"metadata": {"uid": OTHER_UID, "namespace": "a", "name": "b"}, "status": [1]}]
    odd += [[[{"metadata": {}}]], {"spec": {"containers": [[], 7, {"name": []}]}}]
    api.list_answer = listing(*odd, pod(containers={"train": ID}))
    assert names().resolve(None, None, ID) == BERT


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ijson", None)
    with pytest.raises(ImportError, match=r"libhamiregion\[kubernetes\]"):
        KubernetesNames()
