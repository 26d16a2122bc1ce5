"""Each alert fires in a real Prometheus, with the labels that Kubernetes' targets have."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus_server import Prometheus, needs_prometheus, prometheus_server
from support.wait import eventually

from libhamiregion.doctor import FindingKind, Severity
from libhamiregion.exporter import FAMILIES, MetricsServer
from libhamiregion.units import GIB

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
PAGE = ROOT / "docs" / "exporter.md"
OWN_POD = {"namespace": "gpu-tools", "pod": "hamiregion-x7k2p", "container": "exporter"}
# Of a pod's target; a configuration of the community's makes labels of the first three.
TARGET = {
    "__meta_kubernetes_namespace": OWN_POD["namespace"],
    "__meta_kubernetes_pod_name": OWN_POD["pod"],
    "__meta_kubernetes_pod_container_name": OWN_POD["container"],
    "__meta_kubernetes_pod_node_name": "gpu-node-1",
    "__meta_kubernetes_pod_container_port_name": "metrics",
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "hamiregion",
}
USUAL = [
    {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
    for source, target in (
        ("namespace", "namespace"),
        ("pod_name", "pod"),
        ("pod_container_name", "container"),
    )
]
ERRORS = [kind for kind in FindingKind if kind.explanation.severity is Severity.ERROR]


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


class Faults:
    """The metrics of a node on which everything is wrong: each pod has one fault."""

    def __init__(self) -> None:
        self.scrapes = 0

    def pieces(self) -> Iterator[bytes]:
        self.scrapes += 1
        lines = [
            *self.devices("near-limit", used=96 * GIB, limit=100 * GIB),
            *self.devices("over-limit", used=101 * GIB, limit=100 * GIB),
            *self.devices("idle", used=0, limit=GIB),
            *self.devices("differs", used=GIB, limit=90 * GIB),
            self.device("device_memory_driver_bytes", "differs", 3 * GIB),
            *self.devices("dead", used=GIB, limit=90 * GIB),
            self.device("device_memory_dead_bytes", "dead", GIB),
            self.container("missing_info", "unreadable", 'reason="no_permission"'),
            self.container("missing_info", "cut-short", 'reason="not_ready"'),
            'hamiregion_build_info{version="1"} 1',
            'hamiregion_findings{kind="process_escapes",severity="error"} 3',
            'hamiregion_root_readable{root="/usr/local/vgpu/containers"} 0',
            "hamiregion_proc_complete 0",
            "hamiregion_nvml_up 0",
            'hamiregion_gpu_state{uuid="GPU-1",index="0",state="gpu_is_lost"} 1',
            f'hamiregion_errors_total{{stage="refresh"}} {10 * self.scrapes}',
        ]
        for kind in ERRORS:
            pod = kind.value.replace("_", "-")
            finding = f'kind="{kind.value}",severity="error"'
            lines.append(self.container("findings", pod, finding))
            if kind is FindingKind.USAGE_ABOVE_LIMIT:
                lines += self.devices(pod, used=101 * GIB, limit=100 * GIB)
            if kind is FindingKind.PROCESS_ESCAPES:
                lines.append(self.container("processes", pod, 'state="escaped"'))
        yield "".join(f"{line}\n" for line in lines).encode()

    def device(self, name: str, pod: str, value: int) -> str:
        prefix = "hami_" if name.startswith("vgpu") else "hamiregion_"
        labels = f'namespace="ai",pod="{pod}",container="c",vdevice_index="0",device_uuid="GPU-1"'
        return f"{prefix}{name}{{{labels}}} {value}"

    def devices(self, pod: str, *, used: int, limit: int) -> list[str]:
        return [
            self.device("vgpu_memory_used_bytes", pod, used),
            self.device("vgpu_memory_limit_bytes", pod, limit),
            self.device("device_memory_counted_bytes", pod, used),
        ]

    def container(self, name: str, pod: str, label: str) -> str:
        labels = f'namespace="ai",pod="{pod}",container="c",pod_uid="u",{label}'
        return f"hamiregion_container_{name}{{{labels}}} 1"

    def not_ready(self) -> None:
        return None

    def page(self, _query: str = "") -> bytes:
        raise RuntimeError("no page here")


def scrape_config(urls: list[str], **changed: Any) -> dict[str, Any]:
    """The page's configuration; the targets are given instead of found by the API."""
    (text,) = re.findall(r"```yaml\n(scrape_configs:\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert text.count("\n") <= 11
    (config,) = yaml.safe_load(text)["scrape_configs"]
    assert config.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    targets = [url.removeprefix("http://") for url in urls]
    config["static_configs"] = [{"targets": targets, "labels": TARGET}]
    config["relabel_configs"] += USUAL
    return {**config, "scrape_interval": "1s", **changed}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory) -> Iterator[Prometheus]:
    """Prometheus with our rules, without their waiting times, and two servers; one goes away.

    The same node is scraped by the page's configuration, and once more without `honor_labels`.
    """
    directory = tmp_path_factory.mktemp("alerts")
    rules = re.sub(r"\[6h\]|\[15m\]", "[5s]", RULES.read_text())
    rules = re.sub(r"offset (6h|50m)", "offset 2s", re.sub(r"\n +for: \w+", "", rules))
    (directory / "rules.yaml").write_text(rules)
    with MetricsServer(Faults(), "127.0.0.1:0") as ill:  # type: ignore[arg-type]
        with MetricsServer(Faults(), "127.0.0.1:0") as leaving:  # type: ignore[arg-type]
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "scrape_configs": [
                    scrape_config([*ill.urls, *leaving.urls], job_name="pods"),
                    scrape_config([*ill.urls], job_name="wrong", honor_labels=False),
                ],
            }
            stack = prometheus_server(
                directory, yaml.safe_dump(config), rules=directory / "rules.yaml"
            )
            server = stack.__enter__()
            eventually(lambda: len(server.query("hamiregion_build_info")) == 3)
        try:
            yield server
        finally:
            stack.__exit__(None, None, None)


pytestmark = needs_prometheus


def firing(prometheus: Prometheus) -> list[dict[str, str]]:
    found = prometheus.get("/api/v1/alerts")["alerts"]
    return [each["labels"] for each in found if each["state"] == "firing"]


def test_each_alert_fires_and_names_a_container_of_the_node(prometheus):
    eventually(lambda: {each["alertname"] for each in firing(prometheus)} == set(alerts()))
    for labels in firing(prometheus):
        if labels["alertname"].startswith("GPU") and "pod" in labels:
            assert (labels["namespace"], labels["container"]) == ("ai", "c"), labels
        if labels["alertname"] != "HamiregionLabelsWrong" and "instance" in labels:
            assert labels.get("node") == "gpu-node-1", labels
    wrong = {each["job"] for each in firing(prometheus) if "LabelsWrong" in each["alertname"]}
    assert wrong == {"wrong"}
    down = [each for each in firing(prometheus) if each["alertname"] == "HamiregionExporterDown"]
    assert [each["job"] for each in down] == ["pods"]


def test_each_kind_of_error_has_exactly_one_alert(prometheus):
    def counted() -> Counter[str]:
        return Counter(each["pod"] for each in firing(prometheus) if "pod" in each)

    pods = [kind.value.replace("_", "-") for kind in ERRORS]
    eventually(lambda: {counted()[pod] for pod in pods} == {1})
    # Neither is a container over its limit said to be near it.
    assert counted()["over-limit"] == 1
    assert counted()["near-limit"] == 1


def test_what_an_alert_points_to_is_there():
    for name, rule in alerts().items():
        url = rule["annotations"]["runbook_url"]
        path, _, anchor = url.partition("/blob/main/")[2].partition("#")
        text = (ROOT / path).read_text()
        headings = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        kinds = {kind.value for kind in FindingKind}
        wanted = kinds if "{{" in anchor else {anchor} - {""}
        assert wanted <= headings, name


def test_what_an_alert_prints_does_no_harm_as_it_is():
    """Commands look or repair with proof; one that changes a limit has no value yet."""
    for rule in alerts().values():
        for command in re.findall(r"`(kubectl [^`]*)`", rule["annotations"]["description"]):
            verb = re.sub(r"\{\{.*?\}\}", "", command)
            looks = r"kubectl (get|describe) |kubectl hamiregion (ps|containers|doctor)\b"
            assert re.match(looks, verb) or verb.endswith("--memory SIZE"), command
            assert "-n hamiregion" not in command


def test_the_scene_has_only_metrics_that_there_are():
    known = {family.name for family in FAMILIES}
    text = b"".join(Faults().pieces()).decode()
    assert set(re.findall(r"^(\w+)", text, re.MULTILINE)) <= known
