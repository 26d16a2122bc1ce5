"""A real Prometheus scrapes the exporter; what HAMi's users ask of it has an answer."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml.scenes import CARD, GPU, MIB
from support.actors import ProcessFactory
from support.exporter_process import ExporterProcess
from support.golden_regions import NAMES
from support.node_scene import NodeScene
from support.own_cgroups import HAS_CGROUPS, cgroup_of_pod, needs_cgroups
from support.prometheus_server import Prometheus, needs_prometheus, prometheus_server
from support.slot_bytes import attached
from support.wait import eventually

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


# HAMi's monitor, as far as its metrics go: the same names and labels from another job; and as the
# ServiceMonitor of its chart has them scraped, where they seem to be about the monitor's own pod.
BESIDE = """
  - job_name: hami-monitor
    honor_labels: true
    static_configs: [{{targets: ["127.0.0.1:{port}"], labels: {{monitor: hami}}}}]
    metric_relabel_configs: &hamis [{{source_labels: [__name__], regex: "hami_.*", action: keep}}]
  - job_name: hami-servicemonitor
    static_configs:
      - targets: ["127.0.0.1:{port}"]
        labels: {{namespace: kube-system, pod: hami-device-plugin-x, container: vgpu-monitor}}
    metric_relabel_configs: *hamis
"""


@pytest.fixture(scope="module")
def exporter_port(tmp_path_factory, nvml_library) -> Iterator[int]:
    """An exporter whose node has every golden region, and what else its metrics tell."""
    from fake_nvml.driver import FakeDriver

    directory = tmp_path_factory.mktemp("scraped-node")
    files = NodeScene(directory)
    for name in NAMES:
        files.golden(name)
    without_region = files.container(pod="without-region", region=False).directory
    used = files.container(pod="used", memory_limits=["8GiB"], sm_limits=[50], uuids=[GPU]).path
    processes = ProcessFactory()
    program = attached(processes.actor(used), 2 << 30)
    driver: FakeDriver = FakeDriver(nvml_library, directory / "nvml-scene")
    outside = subprocess.Popen(["sleep", "infinity"])
    driver.play(
        CARD,
        f"process 0 compute {program.pid_here} {512 * MIB}",
        f"process 0 compute {outside.pid} {256 * MIB}",
        f"sample 0 {outside.pid} 100 30 0 0 0",
    )
    uid = without_region.name.partition("_")[0]
    words = (
        *("--legacy-metrics", "--node-name", "gpu-node-1"),
        *("--root", files.root, "--pod-logs", files.pod_logs, "--library", nvml_library),
    )
    try:
        with contextlib.ExitStack() as stack:
            if HAS_CGROUPS:
                cgroup = stack.enter_context(cgroup_of_pod(uid, uuid.uuid4().hex * 2))
                (cgroup / "cgroup.procs").write_text(str(outside.pid))
            exporter = stack.enter_context(ExporterProcess(*words, env=driver.environment()))
            yield int(exporter.url.rpartition(":")[2])
            assert exporter.stop() == 0
    finally:
        outside.kill()
        outside.wait()
        processes.close()


def scraping(directory: Path, config: str, sources: int) -> Iterator[Prometheus]:
    """Prometheus with a few scrapes."""
    rules = DEPLOY / "prometheus" / "rules.yaml"
    with prometheus_server(directory, config, rules=rules) as server:
        seen = "count by (job) (hami_vgpu_memory_used_bytes)"
        eventually(lambda: len(server.query(seen)) == sources)
        yield server


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, exporter_port) -> Iterator[Prometheus]:
    yield from scraping(tmp_path_factory.mktemp("one"), CONFIG.format(port=exporter_port), 1)


@pytest.fixture(scope="module")
def both_sources(tmp_path_factory, exporter_port) -> Iterator[Prometheus]:
    """Prometheus that scrapes HAMi's monitor, too."""
    config = (CONFIG + BESIDE).format(port=exporter_port)
    yield from scraping(tmp_path_factory.mktemp("both"), config, 3)


def test_the_target_is_up_and_every_scrape_succeeds(prometheus):
    (target,) = prometheus.get("/api/v1/targets")["activeTargets"]
    assert target["health"] == "up"
    assert target["lastError"] == ""
    (dropped,) = prometheus.query("scrape_samples_scraped - scrape_samples_post_metric_relabeling")
    assert dropped["value"][1] == "0"


@pytest.mark.parametrize("metric", DASHBOARD)
def test_the_queries_of_hamis_dashboard_have_answers(prometheus, metric):
    answer = prometheus.query(metric)
    assert answer
    assert all(series["metric"]["zone"] == "vGPU" for series in answer)


def test_prometheus_knows_type_and_help_of_every_metric(prometheus):
    from libhamiregion.exporter import FAMILIES

    known = prometheus.get("/api/v1/metadata")
    families: dict[str, MetricFamily] = {family.name: family for family in FAMILIES}
    exported = {
        name for name in prometheus.get("/api/v1/label/__name__/values") if name in families
    }
    assert len(exported) > 30
    for name in exported:
        (entry,) = known[name]
        assert (entry["type"], entry["help"]) == (families[name].kind, families[name].help)


def unhealthy_rules(prometheus: Prometheus) -> list[str]:
    groups = prometheus.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 14
    return [rule["name"] for rule in rules if rule["health"] != "ok"]


def dashboard() -> Any:
    """The dashboard, with all nodes, pods and devices chosen."""
    text = (DEPLOY / "grafana" / "dashboard.json").read_text()
    return json.loads(re.sub(r"\$(node|namespace|pod|container|device)\b", ".*", text))


def dashboard_queries() -> list[tuple[str, str]]:
    """Title and expression of each."""
    found = []
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            assert "$" not in target["expr"]
            found.append((panel["title"], target["expr"]))
    return found


def values(answer: list[dict[str, Any]]) -> list[tuple[frozenset[tuple[str, str]], str]]:
    """What an answer says, apart from which source it is from."""
    source = {"job", "instance"}
    return sorted(
        (frozenset(pair for pair in each["metric"].items() if pair[0] not in source), value)
        for each in answer
        for value in (each["value"][1],)
    )


@pytest.mark.parametrize(
    ("title", "query"),
    [
        pytest.param(*each, marks=needs_cgroups if "driver_container" in each[1] else ())
        for each in dashboard_queries()
    ],
)
def test_every_query_of_the_dashboard_has_an_answer(prometheus, title, query):
    # A lock is held for a moment; the scene has none that is.
    is_empty = title == "Locks held"
    if is_empty:
        query = query.replace("> 0", ">= 0")
    eventually(lambda: prometheus.query(query))


@needs_cgroups
def test_the_dashboard_shows_containers_without_a_region(prometheus):
    """Also those that it lets one choose."""
    queries = dict(dashboard_queries())
    for what, figure in (("Memory used", str(256 * MIB)), ("SM utilisation", "0.3")):
        query = queries[f"{what} without a region"]
        eventually(lambda: prometheus.query(query))  # noqa: B023
        (found,) = prometheus.query(query)
        labels = found["metric"]
        assert (labels["namespace"], labels["pod"]) == ("research", "without-region")
        assert labels["device_uuid"] == GPU
        assert found["value"][1] == figure
    for each in dashboard()["templating"]["list"]:
        if "definition" in each:
            words = each["definition"].removeprefix("label_values(").removesuffix(")")
            selector, label = words.rsplit(", ", 1)
            chosen = prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": selector})
            assert chosen, each["name"]
            assert each["name"] != "pod" or {"without-region", "used"} <= set(chosen)


@pytest.mark.slow
def test_memory_is_what_it_is_beside_hamis_monitor(prometheus, both_sources):
    """Scraped twice, the same series count once: in every panel, and no query fails."""
    for title, query in dashboard_queries():
        if "hami_" not in query or title == "Seconds since the last kernel":
            continue
        expected = prometheus.query(query)
        assert expected
        eventually(
            lambda: len(both_sources.query(query)) == len(prometheus.query(query))  # noqa: B023
        )
        eventually(
            lambda: values(both_sources.query(query)) == values(prometheus.query(query))  # noqa: B023
        )
    limits = "hami_vgpu_memory_limit_bytes"
    # A scrape that failed takes its series away until the next one.
    eventually(lambda: len(both_sources.query(limits)) == 3 * len(prometheus.query(limits)) > 0)


def test_our_rules_hold_beside_hamis_monitor(both_sources):
    eventually(lambda: unhealthy_rules(both_sources) == [])
