"""A report from a Prometheus: the same figures as from a recording of the same time."""

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from support.certificates import Authority, needs_openssl
from support.command_line import call, refused
from support.prometheus_server import Prometheus, needs_prometheus, prometheus_with
from support.recorded_day import DEVICES, GAP_S, GIB, GPUS, MODEL, looks, tenants
from support.wait import PATIENCE_S

from libhamiregion.report import (
    PrometheusError,
    PrometheusHistory,
    Recording,
    RecordingWriter,
    Report,
    make_report,
)

STEP_S = 60
HOUR_S = 3600
LENGTH_S = 6 * HOUR_S
# A Prometheus keeps two weeks: the day is one that ended a while ago.
START_S = (int(time.time()) - 2 * LENGTH_S) // HOUR_S * HOUR_S
SINCE_MS, UNTIL_MS = START_S * 1000, (START_S + LENGTH_S) * 1000

USED = "hami_vgpu_memory_used_bytes"
LIMIT = "hami_vgpu_memory_limit_bytes"
UTILIZATION = "hami_container_device_utilization_ratio"
SM_LIMIT = "hamiregion_device_sm_limit_ratio"
INFO = "hamiregion_container_info"
TOTAL = "hamiregion_gpu_memory_total_bytes"
DRIVER_USED = "hamiregion_driver_container_memory_used_bytes"
DRIVER_SM = "hamiregion_driver_container_sm_utilization_ratio"
MISSING = "hamiregion_container_missing_info"

Values = Iterable[tuple[float, float]]


def steady(value: float, since_s: int = 0, until_s: int = HOUR_S) -> Values:
    """The same value at every scrape."""
    return [(second, value) for second in range(since_s, until_s, 15)]


class Scraped:
    """Samples for a Prometheus, as OpenMetrics with time stamps."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {
            metric: []
            for metric in (
                *(USED, LIMIT, UTILIZATION, SM_LIMIT, INFO, TOTAL),
                *(DRIVER_USED, DRIVER_SM, MISSING),
            )
        }

    def add(self, metric: str, job: str, values: Values, **labels: str) -> None:
        named = ",".join(f'{name}="{value}"' for name, value in {"job": job, **labels}.items())
        self._lines[metric] += [
            f"{metric}{{{named}}} {value} {START_S + second}" for second, value in values
        ]

    def device(self, metric: str, job: str, values: Values, pod: str = "a", **more: str) -> None:
        """One device of a container; its info has no device."""
        of = {"namespace": "lab", "pod": pod, "container": "c"}
        if metric not in {INFO, MISSING}:
            of |= {"vdevice_index": "0", "device_uuid": f"GPU-{pod}"}
        self.add(metric, job, values, **of, **more)

    def text(self) -> str:
        lines = []
        for metric, samples in self._lines.items():
            # Samples of one series stand together, in order.
            samples.sort(key=lambda line: (line.rsplit(" ", 2)[0], int(line.rsplit(" ", 1)[1])))
            lines += [f"# TYPE {metric} gauge", *samples]
        return "\n".join([*lines, "# EOF", ""])


def whole_day(to: Scraped) -> None:
    """The tests' day, as scraped with honor_labels and without."""
    exporter = {"namespace": "kube-system", "pod": "exporter-abc", "container": "exporter"}
    found: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
    for second, samples in looks(tenants(), interval_s=STEP_S, until_s=LENGTH_S):
        for of, sample in samples.items():
            names = {"namespace": of.namespace, "pod": of.pod, "container": of.container}
            moved = {**{f"exported_{name}": each for name, each in names.items()}, **exporter}
            device = {"vdevice_index": "0", "device_uuid": str(of.device_uuid)}
            share = sample.sm_limit_percent
            for job, labels in (("plain", names), ("exported", moved)):
                for metric, value, more in (
                    (USED, sample.memory_used_bytes, device),
                    (LIMIT, sample.memory_limit_bytes or 0, device),
                    (UTILIZATION, sample.sm_percent, device),
                    (SM_LIMIT, None if share == 100 else (share or 0) / 100, device),
                    (INFO, 1, {}),
                ):
                    if value is not None:
                        key = (metric, job, tuple({**labels, **more}.items()))
                        found.setdefault(key, []).append((second, value))  # type: ignore[arg-type]
    for (metric, job, pairs), values in found.items():
        to.add(metric, job, values, **dict(pairs))

    for job in ("plain", "exported"):
        for uuid in GPUS:
            labels = {"device_uuid": uuid, "device_type": MODEL}
            to.add(TOTAL, job, steady(80 * GIB, until_s=LENGTH_S), **labels)


def others(to: Scraped) -> None:
    # Node a has this library's exporter, node b HAMi's monitor.
    for pod in "ab":
        to.device(USED, "nodes", steady(GIB), pod)
    to.device(SM_LIMIT, "nodes", steady(0.3))
    to.device(INFO, "nodes", steady(1), layout="v1.2")
    # HAMi's monitor all the time, and this library's exporter from half past on.
    to.device(USED, "deployed", steady(GIB))
    to.device(SM_LIMIT, "deployed", steady(0.3, HOUR_S // 2))
    to.device(INFO, "deployed", steady(1, HOUR_S // 2))
    to.device(USED, "unlimited", steady(GIB))
    to.device(INFO, "unlimited", steady(1))
    # A pod without a name, scraped without honor_labels.
    exporter = {"namespace": "kube-system", "pod": "exporter-x", "container": "exporter"}
    unnamed = {"exported_pod": "0f1e-uid", "exported_container": "c", "device_uuid": "GPU-b"}
    to.add(USED, "moved", steady(GIB), **exporter, **unnamed)
    # Without regions: a whole GPU, a MIG device that lies idle, and a share that nothing limits.
    # Of two others one has not used CUDA yet, and one cannot be read.
    for pod, reason, used in (
        ("whole", "whole_gpu", GIB),
        ("mig", "mig_device", 0),
        ("share", "not_limited", 3 * GIB),
        ("idle", "no_file", 0),
        ("hidden", "no_file", 2 * GIB),
    ):
        to.device(MISSING, "without", steady(1), pod, reason=reason)
        to.device(DRIVER_USED, "without", steady(used), pod)
        to.device(DRIVER_SM, "without", steady(0.25), pod)
    to.device(USED, "swinging", steady(GIB))
    swing = [(second, second // 15 % 2 * 200) for second, _ in steady(0)]
    to.device(UTILIZATION, "swinging", swing)
    to.device(USED, "later", [(s, (9 if s >= 630 else 1) * GIB) for s, _ in steady(0)])
    # An exporter that is started anew every ten minutes, in the middle of a step.
    for number in range(6):
        values = steady(GIB, max(0, number * 600 - 30), number * 600 + 570)
        to.device(USED, "restarts", values, instance=f"10.0.0.{number}:9400")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory) -> Iterator[Prometheus]:
    scraped = Scraped()
    whole_day(scraped)
    others(scraped)
    with prometheus_with(tmp_path_factory.mktemp("prometheus"), scraped.text()) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("recorded") / "node.db"
    with RecordingWriter(path, interval_s=STEP_S) as writer:
        for second, samples in looks(tenants(), interval_s=STEP_S, until_s=LENGTH_S):
            writer.write(samples, at_ms=(START_S + second) * 1000, devices=DEVICES)
    with Recording(path) as recording:
        return make_report([recording], SINCE_MS, UNTIL_MS, points=24)


def asked(
    server: Prometheus,
    matchers: str,
    *,
    since_s: float = 0,
    until_s: float = HOUR_S,
    step_s: float | None = STEP_S,
) -> Report:
    history = PrometheusHistory(server.url, step_s=step_s, matchers=matchers)
    since_ms, until_ms = (round((START_S + second) * 1000) for second in (since_s, until_s))
    return make_report([history], since_ms, until_ms, points=24)


# ---- the same figures ----------------------------------------------------------------------------


@pytest.mark.slow(keep=1)
@needs_prometheus
@pytest.mark.parametrize("job", ["plain", "exported"])
def test_figures_are_those_of_a_recording_of_the_same_time(prometheus, recorded, job):
    found = asked(prometheus, f'job="{job}"', until_s=LENGTH_S)
    assert found.warnings == ()
    assert (found.recorded_ratio, found.gaps) == (recorded.recorded_ratio, recorded.gaps)
    assert found.gaps[0][0] == (START_S + GAP_S[0]) * 1000
    assert [row.pod for row in found.rows] == [row.pod for row in recorded.rows]
    for row, same in zip(found.rows, recorded.rows, strict=True):
        for name in (
            "namespace", "container", "device_uuid", "first_seen_ms", "last_seen_ms", "observed_s",
            "memory_limit_bytes", "memory_peak_bytes", "memory_average_bytes", "memory_p95_bytes",
            "memory_p99_bytes", "peak_at_ms", "unused_since_ms", "last_used_ms", "advice",
            "suggested_limit_bytes",
            "sm_limit_percent",
        ):  # fmt: skip
            assert getattr(row, name) == getattr(same, name), (row.pod, name)
        for name in (
            "busy_gpu_hours", "unused_gib_hours", "limit_gib_hours", "used_gib_hours",
            "allocated_gpu_hours",
        ):  # fmt: skip
            assert getattr(row, name) == pytest.approx(getattr(same, name)), (row.pod, name)
        assert row.timeline.memory_peak_bytes == same.timeline.memory_peak_bytes


@needs_prometheus
def test_long_steps_keep_the_peaks_and_the_averages(prometheus, recorded):
    found = asked(prometheus, 'job="plain"', until_s=LENGTH_S, step_s=900)
    for row, same in zip(found.rows, recorded.rows, strict=True):
        assert row.memory_peak_bytes == same.memory_peak_bytes
        if same.observed_s == LENGTH_S - (GAP_S[1] - GAP_S[0]):
            assert row.busy_gpu_hours == pytest.approx(same.busy_gpu_hours, rel=0.2)


@pytest.mark.slow
@needs_prometheus
def test_the_command_reports_from_a_prometheus(prometheus, tmp_path):
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_S + LENGTH_S))
    source = ("report", "--from", f"{prometheus.url}/", "--since", "6h", "--until", until)
    plain = (*source, "--match", 'job="plain"')
    answer = call(*plain, "--json", "--by", "device", "--namespace", "inference")
    assert (answer.returncode, answer.stderr) == (0, "")
    document = json.loads(answer.stdout)
    assert document["source"] == prometheus.url
    assert {row["device_uuid"] for row in document["rows"]} == {GPUS[4], GPUS[5], GPUS[6]}
    page = tmp_path / "report.html"
    assert call(*plain, "--to", str(page)).returncode == 0
    assert "From the Prometheus at" in page.read_text()
    for match, said in (
        ('job="nobody"', "--match"),
        ("job=nobody", "HTTP 400"),
    ):
        assert said in refused(*source, "--match", match, code=1)


@needs_prometheus
def test_gpu_hours_are_not_made_up_where_only_hamis_monitor_exports(prometheus):
    nodes = asked(prometheus, 'job="nodes"')
    assert [row.allocated_gpu_hours for row in nodes.rows] == [pytest.approx(0.3), None]
    assert nodes.total.allocated_gpu_hours == pytest.approx(0.3)
    assert set(nodes.total.timeline.allocated_gpus) == {0.3}
    (warning,) = nodes.warnings
    assert "SM limits are not known" in warning
    (row,) = asked(prometheus, 'job="deployed"').rows
    assert row.allocated_gpu_hours == pytest.approx(0.15)
    assert row.sm_limit_percent == 30
    unlimited = asked(prometheus, 'job="unlimited"')
    assert [row.allocated_gpu_hours for row in unlimited.rows] == [pytest.approx(1)]
    assert unlimited.warnings == ()


@needs_prometheus
def test_containers_without_a_region_are_in_it_by_the_driver(prometheus):
    found = asked(prometheus, 'job="without", ')
    rows = {row.pod: row for row in found.rows}
    assert {pod: row.memory_peak_bytes for pod, row in rows.items()} == {
        "whole": GIB,
        "mig": 0,
        "share": 3 * GIB,
        "hidden": 2 * GIB,
    }
    assert rows["whole"].allocated_gpu_hours == pytest.approx(1)
    assert rows["whole"].busy_gpu_hours == pytest.approx(0.25)
    assert rows["mig"].device_uuid == "GPU-mig"
    # What was given of a card is not in the metrics.
    assert rows["share"].allocated_gpu_hours is None
    (warning,) = found.warnings
    assert "had no region" in warning


@needs_prometheus
def test_usage_without_names_is_not_booked_on_the_exporter(prometheus):
    (row,) = asked(prometheus, 'job="moved"').rows
    assert (row.namespace, row.pod, row.container) == (None, "0f1e-uid", "c")


@needs_prometheus
@pytest.mark.parametrize("step_s", [15, 30, 60, 600])
@pytest.mark.parametrize("since_s", [0, 7, 22.5])
def test_what_is_above_100_percent_does_not_count_as_busy(prometheus, step_s, since_s):
    """0 and 200 in turn are half a GPU, wherever steps begin; a sample more or less at an end."""
    (row,) = asked(
        prometheus, 'job="swinging"', since_s=since_s, until_s=since_s + 3000, step_s=step_s
    ).rows
    assert row.busy_gpu_hours == pytest.approx(0.5 * 3000 / HOUR_S, abs=15 / HOUR_S)


@needs_prometheus
@pytest.mark.parametrize(
    ("until_s", "gib"), [(620, 1), (640, 9), (600.001, 1), (600.002, 1), (61.003, 1)]
)
def test_samples_after_the_end_do_not_count(prometheus, until_s, gib):
    (row,) = asked(prometheus, 'job="later"', until_s=until_s).rows
    assert row.memory_peak_bytes == gib * GIB


# ---- servers that are none -----------------------------------------------------------------------


Answering = Callable[[http.server.BaseHTTPRequestHandler], None]
EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})


@contextlib.contextmanager
def server(answer: Answering, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that answers every request so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        if context is not None:
            running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        scheme = "http" if context is None else "https"
        try:
            yield f"{scheme}://127.0.0.1:{running.server_address[1]}"
        finally:
            running.shutdown()
            thread.join()


def says(status: int, body: str, **headers: str) -> Answering:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body.encode())

    return answer


def ask(url: str, **options: object) -> list[object]:
    return list(PrometheusHistory(url, step_s=1, **options).intervals(0, 1000))  # type: ignore[arg-type]


def matrix(value: str) -> str:
    """One series, its time as it stands in the text."""
    series = f'{{"metric":{{"pod":"a"}},"values":[[{value},"1"]]}}'
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{series}]}}}}'


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, "", "credentials"),
        (404, "<html>not here</html>", "HTTP 404"),
        (302, "", "HTTP 302"),
        (503, json.dumps({"status": "error", "error": "too \x1b[2J busy"}), r"too \\x1b\[2J busy"),
        (200, "<html>hello</html>", "as a Prometheus does"),
        (200, json.dumps({"status": "error", "error": "bad"}), "refuses: bad"),
        (200, json.dumps({"status": "success", "data": {"resultType": "vector"}}), "series"),
        (200, "[" * 100_000, "as a Prometheus does"),
        (200, EMPTY.replace("[]", '[{"metric": 3}]'), "series"),
        (200, matrix("1e999"), "series"),
        (200, matrix("NaN"), "series"),
        (200, matrix("[]"), "series"),
    ],
)
def test_an_answer_without_samples_is_reported_with_its_reason(status, body, said):
    with server(says(status, body, Location="http://elsewhere/")) as url:
        with pytest.raises(PrometheusError, match=said) as caught:
            ask(url)
        assert str(caught.value).startswith(url)


def test_a_server_that_is_not_there_or_hangs_is_named_in_time():
    with pytest.raises(PrometheusError, match="Connection refused"):
        ask("http://127.0.0.1:9")
    hold = threading.Event()

    def silent(_: http.server.BaseHTTPRequestHandler) -> None:
        hold.wait(PATIENCE_S)

    with server(silent) as url:
        with pytest.raises(PrometheusError, match="timed out"):
            ask(url, timeout_s=0.3)
        hold.set()


def test_credentials_go_where_they_belong(monkeypatch):
    seen: list[str | None] = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        says(200, EMPTY)(request)

    variable = "HAMIREGION_PROMETHEUS_{}".format
    basic = base64.b64encode("ada:p\u00e4ss".encode()).decode()
    with server(answer) as url:
        call("report", "--from", url)
        assert seen.pop() is None
        monkeypatch.setenv(variable("USER"), "ada")
        monkeypatch.setenv(variable("PASSWORD"), "p\u00e4ss")
        call("report", "--from", url)
        assert seen.pop() == f"Basic {basic}"
        monkeypatch.setenv(variable("TOKEN"), "t0ken")
        assert "not with both" in refused("report", "--from", url)
        monkeypatch.delenv(variable("USER"))
        call("report", "--from", url)
        assert seen.pop() == "Bearer t0ken"
    with pytest.raises(ValueError, match="no header can hold"):
        PrometheusHistory("http://host", token="a\r\nX-Evil: 1")


@needs_openssl
def test_tls_is_checked(tmp_path, monkeypatch):
    authority = Authority.in_directory(tmp_path)
    certificate, key = authority.issue("server", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with server(says(200, EMPTY), context) as url:
        with pytest.raises(PrometheusError, match="certificate verify failed"):
            ask(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert ask(url) == []


def report_of(*values: str) -> Report:
    """A minute of one device, from a server whose every series has each of these values."""
    labels = {"namespace": "a", "pod": "b", "container": "c", "device_uuid": "GPU-a"}
    result: list[dict[str, object]] = [
        {"metric": {**labels, "vdevice_index": "0", "job": str(job)}, "values": [[59.999, value]]}
        for job, value in enumerate(values)
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    with server(says(200, json.dumps(document))) as url:
        return make_report([PrometheusHistory(url, step_s=60)], 0, 60_000)


@pytest.mark.parametrize("value", ["1e308", "-1", "Inf", "NaN", "1e20", "nonsense", "0x10"])
def test_a_figure_that_cannot_be_is_none(value):
    assert report_of(value).rows == ()


def test_of_two_that_export_one_device_the_higher_value_counts():
    for values in (("200", "100"), ("100", "200")):
        (row,) = report_of(*values).rows
        assert row.memory_peak_bytes == 200
    # More than a whole GPU is no share of one.
    assert row.allocated_gpu_hours is None
    assert row.sm_limit_percent is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://ada:s3cret@prometheus:9090", "must not hold a password"),
        ("ftp://prometheus/", "no http:// or https:// address"),
        ("http://prometheus:9090/?x=1", "no http:// or https:// address"),
        ("http://", "no http:// or https:// address"),
    ],
)
def test_addresses_that_make_no_sense_are_refused(url, said):
    with pytest.raises(ValueError, match=said) as caught:
        PrometheusHistory(url)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_steps_matchers_and_prefixes_are_checked():
    with pytest.raises(ValueError, match="a second or more"):
        PrometheusHistory("http://host", step_s=0.5)
    with pytest.raises(ValueError, match="without braces"):
        PrometheusHistory("http://host", matchers='{job="hami"}')
    for url in ("https://host/prometheus/", "https://host/prometheus/api/v1/"):
        assert PrometheusHistory(url).facts().source == "https://host/prometheus"


def test_an_answer_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("libhamiregion.report.prometheus._ANSWER_LIMIT", 500)
    with (
        server(says(200, EMPTY + " " * 500)) as url,
        pytest.raises(PrometheusError, match="--match"),
    ):
        ask(url)


def test_no_query_asks_for_more_points_than_a_prometheus_gives():
    """Also for two days in steps of 15 s."""
    asked_for: list[float] = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        if query["query"].startswith(f"max_over_time({USED}{{}}[14999ms])"):
            length_s = float(query["end"]) - float(query["start"])
            asked_for.append(length_s / float(query["step"]) + 1)
        says(200, EMPTY)(request)

    with server(answer) as url:
        history = PrometheusHistory(url, step_s=15)
        assert list(history.intervals(0, 2 * 86_400_000)) == []
    assert max(asked_for) <= 11_000
    assert sum(asked_for) >= 2 * 86_400 / 15
