"""A real Prometheus scrapes the exporter; what HAMi's users ask of it has an answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exposition import NodeFiles
from fake_nvml.scenes import CARD, GPU, MIB
from golden_regions import NAMES
from prometheus_server import Prometheus, free_port, needs_prometheus, prometheus_server
from wait import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_nvml.driver import FakeDriver

    from libhamiregion.exporter import MetricFamily

pytestmark = needs_prometheus

DEPLOY = Path(__file__).parents[2] / "deploy"
# What HAMi's own dashboard asks for.
DASHBOARD = (
    "hami_host_gpu_memory_used_bytes",
    "hami_host_gpu_utilization_ratio",
    "hami_vgpu_memory_used_bytes",
    "hami_vgpu_memory_limit_bytes",
    "hami_container_device_utilization_ratio",
)
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: hamiregion-exporter
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, nvml_library: Path
) -> Iterator[Prometheus]:
    """Prometheus with a few scrapes of an exporter whose node has every golden region."""
    from fake_nvml.driver import FakeDriver

    directory = tmp_path_factory.mktemp("scraped-node")
    files = NodeFiles(directory)
    for name in NAMES:
        files.golden(name)
    files.container(pod="without-region")
    driver: FakeDriver = FakeDriver(nvml_library, directory / "nvml-scene")
    driver.play(CARD, f"process 0 compute 4194304 {512 * MIB}")
    port = free_port()
    command = [
        *(sys.executable, "-m", "libhamiregion", "exporter"),
        *("--listen", f"127.0.0.1:{port}", "--legacy-metrics", "--node-name", "gpu-node-1"),
        *("--root", str(files.root), "--pod-logs", str(files.logs)),
        *("--library", str(nvml_library), "--interval", "0.5"),
    ]
    exporter = subprocess.Popen(command, env=driver.environment())
    try:
        rules = DEPLOY / "prometheus" / "rules.yaml"
        with prometheus_server(directory, CONFIG.format(port=port), rules=rules) as server:
            eventually(lambda: len(server.query("hami_vgpu_memory_used_bytes")) >= len(NAMES))
            yield server
    finally:
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(PATIENCE_S) == 0


def test_the_target_is_up_and_every_scrape_succeeds(prometheus: Prometheus) -> None:
    (target,) = prometheus.get("/api/v1/targets")["activeTargets"]
    assert target["health"] == "up"
    assert target["lastError"] == ""
    (dropped,) = prometheus.query("scrape_samples_scraped - scrape_samples_post_metric_relabeling")
    assert dropped["value"][1] == "0"


@pytest.mark.parametrize("metric", DASHBOARD)
def test_the_queries_of_hamis_dashboard_have_answers(prometheus: Prometheus, metric: str) -> None:
    answer = prometheus.query(metric)
    assert answer
    assert all(series["metric"]["zone"] == "vGPU" for series in answer)


def test_the_gpu_is_the_drivers(prometheus: Prometheus) -> None:
    (used,) = prometheus.query(f'hami_host_gpu_memory_used_bytes{{device_uuid="{GPU}"}}')
    assert used["value"][1] == str(5000 * MIB)
    assert used["metric"]["node"] == "gpu-node-1"
    assert used["metric"]["device_type"] == "NVIDIA-NVIDIA H100 80GB HBM3"


def test_both_generations_of_names_agree(prometheus: Prometheus) -> None:
    new = prometheus.query("sum(hami_vgpu_memory_limit_bytes)")
    old = prometheus.query("sum(vGPU_device_memory_limit_in_bytes)")
    assert new[0]["value"][1] == old[0]["value"][1] != "0"


def test_a_container_without_figures_has_its_reason(prometheus: Prometheus) -> None:
    missing, *others = prometheus.query("hamiregion_container_missing_info")
    assert others == []
    assert missing["metric"]["pod"] == "without-region"
    assert missing["metric"]["reason"] == "no_file"


def test_prometheus_knows_type_and_help_of_every_metric(prometheus: Prometheus) -> None:
    from libhamiregion.exporter import FAMILIES

    known = prometheus.get("/api/v1/metadata")
    families: dict[str, MetricFamily] = {family.name: family for family in FAMILIES}
    exported = {
        name for name in prometheus.get("/api/v1/label/__name__/values") if name in families
    }
    assert len(exported) > 30
    for name in exported:
        # Prometheus asks for OpenMetrics, where a counter's family has no _total.
        (entry,) = known[families[name].base_name]
        assert (entry["type"], entry["help"]) == (families[name].kind, families[name].help)


def test_our_alerts_are_loaded_and_evaluate(prometheus: Prometheus) -> None:
    def unhealthy() -> list[str]:
        groups = prometheus.get("/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) >= 14
        return [rule["name"] for rule in rules if rule["health"] != "ok"]

    eventually(lambda: unhealthy() == [])


def test_every_query_of_the_dashboard_is_one(prometheus: Prometheus) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    answered = 0
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable in ("namespace", "pod", "container", "device"):
                expression = expression.replace(f"${variable}", ".*")
            answered += bool(prometheus.query(expression))
    # The rest asks for what a scene without processes does not have.
    assert answered >= 15
