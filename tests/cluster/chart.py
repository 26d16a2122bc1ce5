"""The chart of deploy/, rendered and installed as people do it, by the Helm of `make cluster`."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from api_server import Cluster
from build_apiserver import CHARTS
from support.process import finished

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "libhamiregion"
NAMESPACE = "hamiregion"
RELEASE = "hamiregion"
OPERATOR = "monitoring.coreos.com"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# In C where PyYAML was built with it: these are many documents.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Values = dict[str, Any]
Done = subprocess.CompletedProcess[str]
Document = dict[str, Any]


_PLACES = ("KUBECACHEDIR", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")


def helm(*words: object, values: Mapping[str, Any] | None = None, home: Path | None = None) -> Done:
    """Run Helm, with values as a file if there are any.

    It keeps nothing between calls unless it has a home.
    """
    given = () if values is None else ("--values", "-")
    return finished(
        [CHARTS.directory / "helm", *map(str, words), *given],
        input=None if values is None else json.dumps(values),
        env={**os.environ, **dict.fromkeys(_PLACES, str(home or "/nonexistent"))},
    )


def rendered(values: Values, *words: str) -> str:
    """What the chart makes of values."""
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, *words, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(values: Values, *words: str) -> list[Document]:
    return [each for each in yaml.load_all(rendered(values, *words), Loader=LOADER) if each]


def of_kind(found: list[Document], kind: str) -> list[Document]:
    return [each for each in found if each["kind"] == kind]


def pod_of(found: list[Document]) -> Document:
    """The template of the one DaemonSet that there is."""
    (daemon_set,) = of_kind(found, "DaemonSet")
    return dict(daemon_set["spec"]["template"])


def in_cluster(cluster: Cluster, *words: object, values: Values | None = None) -> str:
    """Run Helm against a cluster; returns what it prints."""
    config = cluster.kubeconfig(cluster.directory / "admin")
    home = cluster.directory / "helm"
    done = helm(*words, "--kubeconfig", config, values=values, home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kubectl(cluster: Cluster, *words: str, text: str | None = None) -> Done:
    """`kubectl WORDS`, with `-f -` if there is a text, by the kubectl of the server's version."""
    directory = cluster.directory
    return finished(
        [
            *(str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig(directory / "admin"))),
            *("--cache-dir", str(directory / "kubectl-cache")),
            *(words if text is None else (*words, "-f", "-")),
        ],
        input=text,
    )


def define_foreign_kinds(cluster: Cluster) -> None:
    """The kinds of the Prometheus operator and of OpenShift, without their schemas."""
    from support.wait import eventually

    for group, kind, scope in (
        (OPERATOR, "ServiceMonitor", "Namespaced"),
        (OPERATOR, "PodMonitor", "Namespaced"),
        (OPERATOR, "PrometheusRule", "Namespaced"),
        ("security.openshift.io", "SecurityContextConstraints", "Cluster"),
    ):
        plural = plural_of(kind)
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                "versions": [version],
            },
        }
        cluster.must("POST", DEFINITIONS, body)
        path = f"/apis/{group}/v1/{plural}"
        eventually(lambda: cluster.ask("GET", path).status == 200)  # noqa: B023


def plural_of(kind: str) -> str:
    name = kind.lower()
    if name.endswith("policy"):
        return f"{name[:-1]}ies"
    return name if name.endswith("constraints") else f"{name}s"


def collection_of(document: Document) -> str:
    """The path at which objects of this kind are made."""
    version = document["apiVersion"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = document["metadata"].get("namespace")
    inside = "" if namespace is None else f"/namespaces/{namespace}"
    return f"{base}{inside}/{plural_of(document['kind'])}"
