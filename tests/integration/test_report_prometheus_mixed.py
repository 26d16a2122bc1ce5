"""Reports from a Prometheus whose exporters differ, come, go and are labelled by their scrapes."""

import time
from collections.abc import Iterable, Iterator

import pytest
from prometheus_server import Prometheus, needs_prometheus, prometheus_with

from libhamiregion.report import (
    PrometheusApi,
    PrometheusHistory,
    Report,
    Usage,
    make_report,
)

pytestmark = needs_prometheus

HOUR_S = 3600
GIB = 1 << 30
# A Prometheus keeps two weeks: the hours are some that ended a while ago.
START_S = (int(time.time()) - 12 * HOUR_S) // HOUR_S * HOUR_S

USED = "hami_vgpu_memory_used_bytes"
LIMIT = "hami_vgpu_memory_limit_bytes"
UTILIZATION = "hami_container_device_utilization_ratio"
SM_LIMIT = "hamiregion_device_sm_limit_ratio"
INFO = "hamiregion_container_info"
OLD_USED = "vGPU_device_memory_usage_in_bytes"
OLD_LIMIT = "vGPU_device_memory_limit_in_bytes"
METRICS = (USED, LIMIT, UTILIZATION, SM_LIMIT, INFO, OLD_USED, OLD_LIMIT)

Values = Iterable[tuple[float, float]]


def steady(value: float, since_s: int = 0, until_s: int = HOUR_S, every_s: int = 15) -> Values:
    """The same value at every scrape."""
    return [(second, value) for second in range(since_s, until_s, every_s)]


class Scraped:
    """Samples for a Prometheus, as OpenMetrics."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {metric: [] for metric in METRICS}

    def add(self, metric: str, job: str, values: Values, **labels: str) -> None:
        named = ",".join(f'{name}="{value}"' for name, value in {"job": job, **labels}.items())
        self._lines[metric] += [
            f"{metric}{{{named}}} {value} {START_S + second}" for second, value in values
        ]

    def device(self, metric: str, job: str, pod: str, values: Values, **labels: str) -> None:
        """One device of a container, labelled as the metric's generation does."""
        if metric in {OLD_USED, OLD_LIMIT}:
            own = {"podnamespace": "lab", "podname": pod, "ctrname": "c", "vdeviceid": "0"}
            own["deviceuuid"] = f"GPU-{pod}"
        else:
            own = {"namespace": "lab", "pod": pod, "container": "c", "vdevice_index": "0"}
            own["device_uuid"] = f"GPU-{pod}"
        self.add(metric, job, values, **own, **labels)

    def text(self) -> str:
        lines = []
        for metric, samples in self._lines.items():
            lines += [f"# TYPE {metric} gauge", *samples]
        return "\n".join([*lines, "# EOF", ""])


def two_nodes(to: Scraped) -> None:
    """Node a has this library's exporter, node b HAMi's monitor."""
    for pod in ("a", "b"):
        to.device(USED, "nodes", pod, steady(GIB))
    to.device(SM_LIMIT, "nodes", "a", steady(0.3))
    to.add(INFO, "nodes", steady(1), namespace="lab", pod="a", container="c", layout="v1.2")


def deployed_later(to: Scraped) -> None:
    """HAMi's monitor all the time, and this library's exporter from half past on."""
    to.device(USED, "deployed", "a", steady(GIB))
    to.device(SM_LIMIT, "deployed", "a", steady(0.3, HOUR_S // 2))
    since_half = steady(1, HOUR_S // 2)
    to.add(INFO, "deployed", since_half, namespace="lab", pod="a", container="c")


def without_limit(to: Scraped) -> None:
    to.device(USED, "unlimited", "a", steady(GIB))
    to.add(INFO, "unlimited", steady(1), namespace="lab", pod="a", container="c")


def generations(to: Scraped) -> None:
    """One node has the present names, another one those of before HAMi 2.10."""
    to.device(USED, "generations", "a", steady(GIB))
    to.device(LIMIT, "generations", "a", steady(2 * GIB))
    to.device(OLD_USED, "generations", "b", steady(3 * GIB))
    to.device(OLD_LIMIT, "generations", "b", steady(4 * GIB))
    # An upgrade at half past.
    half = HOUR_S // 2
    to.device(OLD_USED, "upgrade", "a", steady(3 * GIB, 0, half))
    to.device(USED, "upgrade", "a", steady(GIB, half))
    # Both names at once, of which the present ones count.
    to.device(OLD_USED, "both", "a", steady(3 * GIB))
    to.device(USED, "both", "a", steady(GIB))


def moved_labels(to: Scraped) -> None:
    """Scrapes without honorLabels; an empty label of the metric is no label in a Prometheus."""
    exporter = {"namespace": "kube-system", "pod": "exporter-x", "container": "exporter"}
    named = {
        "exported_namespace": "lab",
        "exported_pod": "named",
        "exported_container": "c",
        "device_uuid": "GPU-a",
    }
    unnamed = {"exported_pod": "0f1e-uid", "exported_container": "c", "device_uuid": "GPU-b"}
    docker = {"exported_container": "docker-box", "device_uuid": "GPU-c"}
    for labels in (named, unnamed, docker):
        to.add(USED, "moved", steady(GIB), **exporter, **labels)
    # Here the target has a namespace and a pod, and no container.
    target = {"namespace": "kube-system", "pod": "exporter-x"}
    for labels in (
        {"exported_namespace": "lab", "exported_pod": "named", "container": "c"},
        {"exported_pod": "0f1e-uid", "container": "c"},
        {"container": "docker-box"},
    ):
        to.add(USED, "moved-two", steady(GIB), **target, **labels)


def swinging(to: Scraped) -> None:
    to.device(USED, "swinging", "a", steady(GIB))
    to.device(
        UTILIZATION, "swinging", "a", [(second, second // 15 % 2 * 200) for second, _ in steady(0)]
    )


def peak_after_the_end(to: Scraped) -> None:
    values = [(second, (9 if second >= 630 else 1) * GIB) for second, _ in steady(0)]
    to.device(USED, "later", "a", values)


def instances(to: Scraped) -> None:
    """An exporter that is started anew every ten minutes, in the middle of a step."""
    for number in range(6):
        begin = max(0, number * 600 - 30)
        values = steady(GIB, begin, number * 600 + 570)
        to.device(USED, "restarts", "a", values, instance=f"10.0.0.{number}:9400")
    for number in range(2):
        to.device(USED, "twice", "a", steady(GIB), instance=f"10.0.0.{number}:9400")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    scraped = Scraped()
    for scenario in (
        two_nodes,
        deployed_later,
        without_limit,
        generations,
        moved_labels,
        swinging,
        peak_after_the_end,
        instances,
    ):
        scenario(scraped)
    with prometheus_with(tmp_path_factory.mktemp("prometheus"), scraped.text()) as server:
        yield server


def asked(
    prometheus: Prometheus,
    job: str,
    *,
    since_s: float = 0,
    until_s: float = HOUR_S,
    step_s: float = 60,
) -> Report:
    history = PrometheusHistory(
        PrometheusApi(prometheus.url), step_s=step_s, matchers=f'job="{job}"'
    )
    since_ms, until_ms = (round((START_S + second) * 1000) for second in (since_s, until_s))
    return make_report(history, since_ms, until_ms, points=10)


def by_pod(report: Report) -> dict[str | None, Usage]:
    return {row.pod: row for row in report.rows}


# ---- SM limits -----------------------------------------------------------------------------------


def test_gpu_hours_are_not_made_up_for_a_node_that_does_not_tell_sm_limits(
    prometheus: Prometheus,
) -> None:
    report = asked(prometheus, "nodes")
    rows = by_pod(report)
    assert rows["a"].allocated_gpu_hours == pytest.approx(0.3)
    assert rows["b"].allocated_gpu_hours is None
    assert report.total is not None
    assert report.total.allocated_gpu_hours == pytest.approx(0.3)
    assert report.total.timeline is not None
    assert set(report.total.timeline.allocated_gpus) == {0.3}
    (warning,) = report.warnings
    assert "SM limits are not known for all of the time" in warning
    assert "exported them: 1;" in warning


def test_gpu_hours_before_the_exporter_was_there_are_not_known(prometheus: Prometheus) -> None:
    report = asked(prometheus, "deployed")
    (row,) = report.rows
    assert row.allocated_gpu_hours == pytest.approx(0.15)
    assert row.sm_limit_percent == 30
    assert "not known for all of the time" in report.warnings[0]


def test_no_sm_limit_is_a_whole_gpu_where_the_exporter_is_there(prometheus: Prometheus) -> None:
    report = asked(prometheus, "unlimited")
    (row,) = report.rows
    assert row.allocated_gpu_hours == pytest.approx(1)
    assert report.facts.knows_sm_limits
    assert report.warnings == ()


# ---- names of two generations --------------------------------------------------------------------


def test_nodes_of_both_generations_are_reported_together(prometheus: Prometheus) -> None:
    report = asked(prometheus, "generations")
    assert {
        pod: (row.memory_peak_bytes, row.memory_limit_bytes, row.observed_s)
        for pod, row in by_pod(report).items()
    } == {"a": (GIB, 2 * GIB, HOUR_S), "b": (3 * GIB, 4 * GIB, HOUR_S)}
    assert any("before HAMi 2.10" in each for each in report.warnings)


def test_what_came_before_an_upgrade_is_not_lost(prometheus: Prometheus) -> None:
    report = asked(prometheus, "upgrade")
    (row,) = report.rows
    assert row.observed_s == HOUR_S
    assert row.memory_average_bytes == 2 * GIB
    assert report.coverage.gaps == ()
    assert any("before HAMi 2.10" in each for each in report.warnings)


def test_present_names_count_where_both_are_there(prometheus: Prometheus) -> None:
    report = asked(prometheus, "both")
    (row,) = report.rows
    assert row.memory_peak_bytes == GIB
    assert report.warnings == ()


# ---- labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["moved", "moved-two"])
def test_usage_without_names_is_not_booked_on_the_exporter(
    prometheus: Prometheus, job: str
) -> None:
    """Whichever labels the target has; those that it does not have stay the metric's."""
    assert {(row.namespace, row.pod, row.container) for row in asked(prometheus, job).rows} == {
        ("lab", "named", "c"),
        (None, "0f1e-uid", "c"),
        (None, None, "docker-box"),
    }


# ---- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [15, 30, 60, 600])
@pytest.mark.parametrize("since_s", [0, 7, 22.5])
def test_what_is_above_100_percent_does_not_count_as_busy(
    prometheus: Prometheus, step_s: int, since_s: float
) -> None:
    """0 and 200 in turn are half a GPU, wherever steps begin."""
    (row,) = asked(
        prometheus, "swinging", since_s=since_s, until_s=since_s + 3000, step_s=step_s
    ).rows
    assert row.busy_gpu_hours == pytest.approx(0.5 * 3000 / HOUR_S)


def test_samples_after_the_end_do_not_count(prometheus: Prometheus) -> None:
    report = asked(prometheus, "later", until_s=620)
    (row,) = report.rows
    assert row.memory_peak_bytes == GIB
    assert row.observed_s == 620
    (row,) = asked(prometheus, "later", until_s=640).rows
    assert row.memory_peak_bytes == 9 * GIB


@pytest.mark.parametrize("until_s", [600.001, 600.002, 61.003])
def test_a_last_step_may_be_as_short_as_a_millisecond(
    prometheus: Prometheus, until_s: float
) -> None:
    (row,) = asked(prometheus, "later", until_s=until_s).rows
    assert row.memory_peak_bytes == GIB


def test_an_exporter_that_was_started_anew_is_one(prometheus: Prometheus) -> None:
    assert asked(prometheus, "restarts").warnings == ()
    (warning,) = asked(prometheus, "twice").warnings
    assert "exported more than once" in warning
