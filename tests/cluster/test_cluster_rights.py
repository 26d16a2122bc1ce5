"""What the account of each mode may do at a real API server, with its own token."""

from collections.abc import Iterator
from typing import Any

import pytest
from api_server import PATCH, Cluster, accounts_path, pods_path
from chart import CHART, NAMESPACE, in_cluster

from libhamiregion.plan import KubernetesError, NodePods, PodAnnotations

Rule = tuple[str, str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A server with releases of three kinds, and a pod of somebody else."""
    agent = {"mode": "agent", "hamiMonitor": "absent"}
    tasks = {"feedback": True, "plan": {"enabled": True}}
    releases = {
        "exporter": {},
        "agent": {**agent, "agent": tasks},
        "annotations": {**agent, "agent": {**tasks, "annotations": {"enabled": True}}},
    }
    with Cluster(tmp_path_factory.mktemp("rights")) as cluster:
        cluster.namespace(NAMESPACE)
        for name, values in releases.items():
            in_cluster(cluster, "install", name, CHART, "-n", NAMESPACE, values=values)
        cluster.namespace("research")
        cluster.pod("research", "bert-0", "node-1", annotations={"hamiregion.io/sm-limit": "5"})
        cluster.must("POST", accounts_path(NAMESPACE), {"metadata": {"name": "nobody"}})
        yield cluster


def rules_of(cluster: Cluster, account: str) -> set[Rule]:
    """Verb, group and resource of all that an account may do in any namespace."""
    asked = {"spec": {"namespace": "research"}}
    answer = cluster.must(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        asked,
        token=cluster.account_token(NAMESPACE, account),
    )
    assert not answer["status"]["incomplete"]
    return {
        (verb, group, resource)
        for rule in answer["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize(
    ("account", "rights"),
    [
        ("exporter-hamiregion", set()),
        ("agent-hamiregion", set()),
        ("annotations-hamiregion", {("list", "", "pods"), ("watch", "", "pods")}),
    ],
)
def test_an_account_has_the_rights_it_needs_and_no_others(cluster, account, rights):
    anybodys = rules_of(cluster, "nobody")
    assert rules_of(cluster, account) - anybodys == rights
    assert not {rule for rule in anybodys if rule[2] in {"pods", "nodes", "secrets", "*"}}


def test_the_account_for_annotations_watches_pods_and_changes_nothing(cluster, tmp_path):
    token = cluster.account_token(NAMESPACE, "annotations-hamiregion")
    config = cluster.kubeconfig(tmp_path / "kubeconfig", token)
    pods = PodAnnotations(NodePods("node-1", kubeconfig=config))
    pods.pods.load()
    plan = pods.read().plan
    assert [rule.name for rule in plan.rules] == ["annotations of research/bert-0"]
    refuse_all_changes(cluster, token)


def test_the_exporters_account_may_not_even_list_pods(cluster, tmp_path):
    token = cluster.account_token(NAMESPACE, "exporter-hamiregion")
    config = cluster.kubeconfig(tmp_path / "kubeconfig", token)
    with pytest.raises(KubernetesError, match="403: pods is forbidden") as caught:
        NodePods("node-1", kubeconfig=config).load()
    assert caught.value.status == 403
    refuse_all_changes(cluster, token)


def refuse_all_changes(cluster: Cluster, token: str) -> None:
    patch: dict[str, Any] = {"metadata": {"annotations": {"hamiregion.io/sm-limit": "100"}}}
    bert = pods_path("research", "bert-0")
    for method, path, body in (
        ("PATCH", bert, patch),
        ("DELETE", bert, None),
        ("PUT", bert, patch),
        ("POST", pods_path("research"), patch),
        ("POST", f"{bert}/eviction", patch),
        ("GET", "/api/v1/secrets", None),
        ("GET", "/api/v1/nodes", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps", None),
    ):
        kind = PATCH if method == "PATCH" else "application/json"
        answer = cluster.ask(method, path, body, token=token, kind=kind)
        assert answer.status == 403, (method, path, answer)
