"""What deploy/ ships, applied to a real API server."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from api_server import RBAC, Cluster, pods_path
from manifests import (
    KUSTOMIZE,
    NAMESPACE,
    OVERLAYS,
    apply,
    kubectl,
    kustomize,
    rendered,
)
from support.wait import eventually

OPERATOR = "monitoring.coreos.com"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
NODE = f"{DAEMON_SETS}/hamiregion-node"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server that nobody has applied anything to."""
    with Cluster(tmp_path_factory.mktemp("manifests")) as cluster:
        yield cluster


def define_the_operators_kinds(cluster: Cluster) -> None:
    for kind in ("ServiceMonitor", "PrometheusRule"):
        plural = f"{kind.lower()}s"
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {
                "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            },
        }
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{OPERATOR}"},
            "spec": {
                "group": OPERATOR,
                "scope": "Namespaced",
                "names": names,
                "versions": [version],
            },
        }
        cluster.must("POST", DEFINITIONS, body)
        path = f"/apis/{OPERATOR}/v1/{plural}"
        eventually(lambda: cluster.ask("GET", path).status == 200)  # noqa: B023


ROLES = ("clusterrole", "clusterrolebinding")


def test_without_the_operator_all_but_its_kinds_is_applied_and_kubectl_says_so(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = kubectl(cluster, rendered(tmp_path, "hami"), "apply")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "no matches for kind" in line]
    assert len(said) == 2
    assert all(OPERATOR in line for line in said)
    assert cluster.must("GET", NODE)
    define_the_operators_kinds(cluster)
    assert f"servicemonitor.{OPERATOR}" in apply(cluster, rendered(tmp_path, "hami"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_applied_and_its_pods_are_accepted(
    cluster: Cluster, overlay: str, tmp_path: Path
) -> None:
    components = ("network-policy", "recorder")
    apply(cluster, rendered(tmp_path, overlay, components))
    again = apply(cluster, rendered(tmp_path, overlay, components))
    assert {line.rpartition(" ")[2] for line in again.splitlines()} == {"unchanged"}
    (each,) = cluster.must("GET", DAEMON_SETS)["items"]
    template = each["spec"]["template"]
    metadata = {**template["metadata"], "name": each["metadata"]["name"]}
    body = {"metadata": metadata, "spec": {**template["spec"], "nodeName": "node-1"}}
    made = cluster.must("POST", pods_path(NAMESPACE), body)
    assert made["spec"]["priorityClassName"] == "system-node-critical"
    assert made["spec"]["priority"] > 2_000_000_000
    cluster.must("DELETE", f"{pods_path(NAMESPACE, metadata['name'])}?gracePeriodSeconds=0")


@pytest.mark.parametrize(
    ("plain", "steered"),
    [("hami", "hami-steered"), ("hami", "hami-repaired"), ("volcano", "volcano-repaired")],
)
def test_an_overlay_over_another_leaves_nothing_of_it_in_the_pods(
    cluster: Cluster, plain: str, steered: str, tmp_path: Path
) -> None:
    """Either way round: nothing that cannot be changed differs, and nothing merges."""
    wanted = {each: rendered(tmp_path, each) for each in (plain, steered)}
    fresh = {}
    for each, text in wanted.items():
        cluster.ask("DELETE", NODE)
        eventually(lambda: cluster.ask("GET", NODE).status == 404)
        apply(cluster, text)
        fresh[each] = cluster.must("GET", NODE)["spec"]
    assert fresh[plain] != fresh[steered]
    (container,) = fresh[plain]["template"]["spec"]["containers"]
    assert container["args"] == ["exporter", "--listen=:9394"]
    for each in (plain, steered, plain, steered):
        assert "daemonset.apps/hamiregion-node configured" in apply(cluster, wanted[each])
        assert cluster.must("GET", NODE)["spec"] == fresh[each]


def test_the_pages_way_back_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Whatever was applied before: here what has the most, then what has the least."""
    kinds = [f"/apis/rbac.authorization.k8s.io/v1/{each}s" for each in ROLES]

    def ours() -> set[str]:
        return {
            each["metadata"]["name"]
            for path in kinds
            for each in cluster.must("GET", path)["items"]
            if each["metadata"]["name"].startswith("hamiregion")
        }

    apply(cluster, rendered(tmp_path, "hami-steered"))
    apply(cluster, rendered(tmp_path, "hami"))
    assert ours()
    page = (KUSTOMIZE.parents[1] / "docs" / "in-a-cluster.md").read_text()
    (command,) = re.findall(
        r"^ +kubectl delete --ignore-not-found (clusterrole/.*)$", page, re.MULTILINE
    )
    done = kubectl(cluster, None, "delete", "--ignore-not-found", *command.split())
    assert done.returncode == 0, done.stderr
    assert ours() == set()


def test_a_job_is_applied_again_once_the_earlier_one_is_deleted(
    cluster: Cluster, tmp_path: Path
) -> None:
    apply(cluster, rendered(tmp_path, "hami"))
    text = kustomize(KUSTOMIZE.parent / "jobs")
    apply(cluster, text)
    done = kubectl(cluster, text, "delete", "--ignore-not-found", "--wait=false")
    assert done.returncode == 0, done.stderr
    job = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/hamiregion-limit-edit"
    assert cluster.ask("GET", job).status == 404
    assert "job.batch/hamiregion-limit-edit created" in apply(cluster, text)


def test_a_runtime_class_that_is_missing_refuses_each_pod(cluster: Cluster, tmp_path: Path) -> None:
    apply(cluster, rendered(tmp_path, "hami", ("nvidia-runtime",)))
    pod = cluster.must("GET", NODE)["spec"]["template"]["spec"]
    spec = {**pod, "nodeName": "node-1"}
    refused = cluster.ask(
        "POST", pods_path(NAMESPACE), {"metadata": {"name": "exporter"}, "spec": spec}
    )
    assert refused.status == 403
    assert 'RuntimeClass "nvidia" not found' in refused.message


def test_deleting_an_overlay_leaves_nothing_outside_its_namespace(
    cluster: Cluster, tmp_path: Path
) -> None:
    text = rendered(tmp_path, "hami-steered")
    apply(cluster, text)
    done = kubectl(cluster, text, "delete", "--wait=false")
    assert done.returncode == 0, done.stderr
    namespace = cluster.must("GET", f"/api/v1/namespaces/{NAMESPACE}")
    assert namespace["status"]["phase"] == "Terminating"
    outside = [each for each in yaml.safe_load_all(text) if "namespace" not in each["metadata"]]
    assert {each["kind"] for each in outside} == {
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
    }
    for each in outside:
        if each["kind"] != "Namespace":
            path = f"{RBAC}/{each['kind'].lower()}s/{each['metadata']['name']}"
            assert cluster.ask("GET", path).status == 404
    assert cluster.must("GET", DAEMON_SETS)["items"] == []
