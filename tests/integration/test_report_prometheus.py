"""A report from a Prometheus: the same figures as from a recording of the same time."""

import base64
import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from called import call
from prometheus_server import Prometheus, needs_prometheus, prometheus_with
from recorded_day import GAP_S, GPUS, looks, tenants

from libhamiregion.report import (
    Credentials,
    PrometheusAnswer,
    PrometheusApi,
    PrometheusError,
    PrometheusHistory,
    Recording,
    RecordingWriter,
    Report,
    make_report,
)

STEP_S = 60
LENGTH_S = 6 * 3600
# A Prometheus keeps two weeks: the day is one that ended a while ago.
START_S = (int(time.time()) - 2 * LENGTH_S) // 3600 * 3600
SINCE_MS, UNTIL_MS = START_S * 1000, (START_S + LENGTH_S) * 1000
NAMES = ("used", "limit", "sm", "sm_limit")
METRICS = {
    "used": "hami_vgpu_memory_used_bytes",
    "limit": "hami_vgpu_memory_limit_bytes",
    "sm": "hami_container_device_utilization_ratio",
    "sm_limit": "hamiregion_device_sm_limit_ratio",
}
INFO = "hamiregion_container_info"
LEGACY = {
    "used": "vGPU_device_memory_usage_in_bytes",
    "limit": "vGPU_device_memory_limit_in_bytes",
    "sm": "Device_utilization_desc_of_container",
}


def exposition() -> str:
    """What Prometheus would have scraped, as OpenMetrics with time stamps."""
    samples: dict[str, list[str]] = {
        name: [] for name in (*METRICS.values(), *LEGACY.values(), INFO)
    }
    for second, readings in looks(tenants(), interval_s=STEP_S, until_s=LENGTH_S):
        at = START_S + second
        for each in readings:
            namespace, pod = each.container.namespace, each.container.pod
            values = {
                "used": each.memory_used_bytes,
                "limit": each.memory_limit_bytes or 0,
                "sm": each.sm_util_percent,
                "sm_limit": None if each.sm_limit_percent is None else each.sm_limit_percent / 100,
            }
            labels = (
                f'namespace="{namespace}",pod="{pod}",container="{each.container.name}",'
                f'vdevice_index="0",device_uuid="{each.device_uuid}"'
            )
            # As a scrape without honor_labels has them, with the exporter's own pod beside.
            exported = (
                f'exported_namespace="{namespace}",exported_pod="{pod}",'
                f'exported_container="{each.container.name}",namespace="kube-system",'
                f'pod="exporter-abc",container="exporter",vdevice_index="0",'
                f'device_uuid="{each.device_uuid}"'
            )
            old = (
                f'podnamespace="{namespace}",podname="{pod}",ctrname="{each.container.name}",'
                f'vdeviceid="0",deviceuuid="{each.device_uuid}"'
            )
            more = [f'{{job="plain",{labels}}}', f'{{job="exported",{exported}}}']
            for name in NAMES:
                if values[name] is None:
                    continue
                samples[METRICS[name]] += [
                    f"{METRICS[name]}{each_} {values[name]} {at}" for each_ in more
                ]
                if name in LEGACY:
                    line = f'{LEGACY[name]}{{job="old",{old}}} {values[name]} {at}'
                    samples[LEGACY[name]].append(line)
            samples[INFO] += [f"{INFO}{each_} 1 {at}" for each_ in more]
    lines = []
    for name, found in samples.items():
        lines.append(f"# TYPE {name} gauge")
        lines += sorted(
            found, key=lambda line: (line.rsplit(" ", 2)[0], int(line.rsplit(" ", 1)[1]))
        )
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with prometheus_with(tmp_path_factory.mktemp("prometheus"), exposition()) as server:
        yield server


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Report:
    path = tmp_path_factory.mktemp("recorded") / "node.db"
    with RecordingWriter(path, interval_s=STEP_S) as writer:
        for second, readings in looks(tenants(), interval_s=STEP_S, until_s=LENGTH_S):
            writer.write(readings, at_ms=(START_S + second) * 1000, running_ms=second * 1000)
    with Recording(path) as recording:
        return make_report(recording, SINCE_MS, UNTIL_MS, points=24)


def asked(url: str, matchers: str = "", step_s: float | None = STEP_S) -> Report:
    history = PrometheusHistory(PrometheusApi(url), step_s=step_s, matchers=matchers)
    return make_report(history, SINCE_MS, UNTIL_MS, points=24)


# ---- the same figures ----------------------------------------------------------------------------


@needs_prometheus
@pytest.mark.parametrize("job", ["plain", "exported", "old"])
def test_figures_are_those_of_a_recording_of_the_same_time(
    prometheus: Prometheus, recorded: Report, job: str
) -> None:
    """Whatever the scrape did to the labels, and under the names of before HAMi 2.10."""
    found = asked(prometheus.url, f'job="{job}"')
    assert found.coverage == recorded.coverage
    assert found.coverage.gaps[0].start_ms == (START_S + GAP_S[0]) * 1000
    assert found.facts.knows_sm_limits == (job == "plain" or job == "exported")
    assert [row.pod for row in found.rows] == [row.pod for row in recorded.rows]
    for row, same in zip(found.rows, recorded.rows, strict=True):
        for name in (
            "namespace", "container", "device_uuid", "first_seen_ms", "last_seen_ms", "observed_s",
            "memory_limit_bytes", "memory_peak_bytes", "memory_average_bytes", "memory_p95_bytes",
            "memory_p99_bytes", "peak_at_ms", "unused_since_ms", "last_used_ms", "suggestion",
        ):  # fmt: skip
            assert getattr(row, name) == getattr(same, name), (row.pod, name)
        for name in ("busy_gpu_hours", "unused_gib_hours", "limit_gib_hours", "used_gib_hours"):
            assert getattr(row, name) == pytest.approx(getattr(same, name)), (row.pod, name)
        if job != "old":
            assert row.allocated_gpu_hours == pytest.approx(same.allocated_gpu_hours)
            assert row.sm_limit_percent == same.sm_limit_percent
        else:
            assert row.allocated_gpu_hours is None
        assert row.timeline is not None
        assert same.timeline is not None
        assert row.timeline.memory_peak_bytes == same.timeline.memory_peak_bytes
    assert any("before HAMi 2.10" in each for each in found.warnings) == (job == "old")


@needs_prometheus
def test_long_steps_keep_the_peaks_and_the_averages(
    prometheus: Prometheus, recorded: Report
) -> None:
    found = asked(prometheus.url, 'job="plain"', step_s=900)
    for row, same in zip(found.rows, recorded.rows, strict=True):
        assert row.memory_peak_bytes == same.memory_peak_bytes
        if same.observed_s == LENGTH_S - (GAP_S[1] - GAP_S[0]):
            assert row.busy_gpu_hours == pytest.approx(same.busy_gpu_hours, rel=0.2)


@needs_prometheus
def test_two_exporters_of_the_same_are_told(prometheus: Prometheus, recorded: Report) -> None:
    found = asked(prometheus.url, 'job=~"plain|exported"')
    assert [row.memory_peak_bytes for row in found.rows] == [
        row.memory_peak_bytes for row in recorded.rows
    ]
    (warning,) = found.warnings
    assert "exported more than once" in warning
    assert "--match" in warning


@needs_prometheus
def test_the_command_reports_from_a_prometheus(prometheus: Prometheus, tmp_path: Path) -> None:
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_S + LENGTH_S))
    span = ("--since", "6h", "--until", until)
    source = ("report", "--from", f"{prometheus.url}/", "--match", 'job="plain"', *span)
    answer = call(*source, "--json", "--by", "device", "--namespace", "inference")
    assert (answer.returncode, answer.stderr) == (0, "")
    document = json.loads(answer.stdout)
    assert document["facts"]["source"] == prometheus.url
    assert {row["device_uuid"] for row in document["rows"]} == {GPUS[4], GPUS[5], GPUS[6]}
    page = tmp_path / "report.html"
    assert call(*source, "--to", str(page)).returncode == 0
    assert "From the Prometheus at" in page.read_text()
    nothing = call(*source, "--match", 'job="nobody"')
    assert nothing.returncode == 1
    assert "has no hami_vgpu_memory_used_bytes" in nothing.stderr
    wrong = call(*source, "--match", "job=nobody")
    assert wrong.returncode == 1
    assert "refuses (HTTP 400)" in wrong.stderr


# ---- servers that are none -----------------------------------------------------------------------


Answering = Callable[[http.server.BaseHTTPRequestHandler], None]


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
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
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


def matrix(*values: str) -> str:
    """One series, its values as they stand in the text."""
    listed = ",".join(f'[{each},"1"]' for each in values)
    series = f'{{"metric":{{"pod":"a"}},"values":[{listed}]}}'
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{series}]}}}}'


EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, "", "wants to be signed in to"),
        (403, "no", "HTTP 403"),
        (404, "<html>not here</html>", "has no /api/v1"),
        (302, "", "redirects to http://elsewhere"),
        (503, json.dumps({"status": "error", "error": "too \x1b[2J busy"}), r"too \\x1b\[2J busy"),
        (422, "nonsense", "HTTP 422"),
        (200, "<html>hello</html>", "not as a Prometheus does"),
        (200, json.dumps({"status": "error", "error": "bad"}), "refuses: bad"),
        (200, json.dumps({"status": "success", "data": {"resultType": "vector"}}), "matrix"),
        (200, "[" * 100_000, "not as a Prometheus does"),
        (
            200,
            json.dumps(
                {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": 3}]}}
            ),
            "make no sense",
        ),
        (200, matrix("1e999"), "make no sense"),
        (200, matrix("NaN"), "make no sense"),
        (200, matrix("9" * 400), "make no sense"),
        (200, matrix("[]"), "make no sense"),
    ],
)  # fmt: skip
def test_what_a_server_answers_is_said_precisely(status: int, body: str, said: str) -> None:
    with server(says(status, body, Location="http://elsewhere/")) as url:
        with pytest.raises(PrometheusError, match=said) as caught:
            PrometheusApi(url).query_range("up", 0, 1000, 1000)
        assert str(caught.value).startswith(url)
        assert caught.value.url == url


def test_a_server_that_is_not_there_or_does_not_answer_is_named() -> None:
    with pytest.raises(PrometheusError, match="cannot be reached: Connection refused"):
        PrometheusApi("http://127.0.0.1:9").query_range("up", 0, 1000, 1000)
    hold = threading.Event()

    def silent(_: http.server.BaseHTTPRequestHandler) -> None:
        hold.wait(30)

    with server(silent) as url:
        with pytest.raises(PrometheusError, match=r"does not answer within 0\.1 s"):
            PrometheusApi(url, timeout_s=0.1).query_range("up", 0, 1000, 1000)
        hold.set()


def test_a_server_that_drips_does_not_take_longer_than_the_time_out() -> None:
    hold = threading.Event()

    def dripping(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):
            while not hold.wait(0.01):
                request.wfile.write(b" ")

    with server(dripping) as url:
        with pytest.raises(PrometheusError, match="does not answer within"):
            PrometheusApi(url, timeout_s=0.3).query_range("up", 0, 1000, 1000)
        hold.set()


def test_credentials_go_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        says(200, EMPTY)(request)

    password = tmp_path / "password"
    password.write_text("s3cret\n")
    with server(answer) as url:
        PrometheusApi(url, credentials=Credentials(token="t0ken")).query_range("up", 0, 1, 1000)
        words = ("report", "--from", url, "--since", "10m")
        call(*words, "--user", "ada", "--password-file", str(password))
        monkeypatch.setenv("HAMIREGION_PROMETHEUS_TOKEN", "fr0m-environment")
        call(*words)
        both = call(*words, "--user", "ada")
    assert both.returncode == 2
    basic = base64.b64encode(b"ada:s3cret").decode()
    assert seen[0] == "Bearer t0ken"
    assert set(seen[1:]) == {f"Basic {basic}", "Bearer fr0m-environment"}
    assert "t0ken" not in repr(Credentials(token="t0ken"))


def test_an_answer_has_its_series_and_what_the_server_said_about_it() -> None:
    document = {
        "status": "success",
        "warnings": ["slow \x1b[2J"],
        "data": {
            "resultType": "matrix",
            "result": [{"metric": {"pod": "a"}, "values": [[1.5, "2"], [2.5, "NaN"]]}],
        },
    }
    with server(says(200, json.dumps(document))) as url:
        answer = PrometheusApi(url).query_range("up", 0, 1000, 1000)
    assert answer == PrometheusAnswer(
        ((({"pod": "a"}), [(1.5, "2"), (2.5, "NaN")]),), (r"slow \x1b[2J",)
    )


def report_of(*values: str) -> Report:
    """A minute of one device that several export, with these values of every metric."""
    labels = {"namespace": "a", "pod": "b", "container": "c", "device_uuid": "GPU-a"}
    result: list[dict[str, object]] = [
        {"metric": {**labels, "vdevice_index": "0", "job": str(job)}, "values": [[59.999, value]]}
        for job, value in enumerate(values)
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        says(200, EMPTY if LEGACY["used"] in request.path else json.dumps(document))(request)

    with server(answer) as url:
        return make_report(PrometheusHistory(PrometheusApi(url), step_s=60), 0, 60_000)


@pytest.mark.parametrize("values", [("200", "100"), ("100", "200")])
def test_of_two_that_export_one_device_the_higher_value_counts(values: tuple[str, ...]) -> None:
    (row,) = report_of(*values).rows
    assert row.memory_peak_bytes == 200


@pytest.mark.parametrize("value", ["1e308", "-1", "Inf", "NaN", "1e20", "nonsense", "0x10"])
def test_a_figure_that_cannot_be_is_none(value: str) -> None:
    assert report_of(value).rows == ()


def test_a_share_above_a_whole_gpu_is_no_share() -> None:
    (row,) = report_of("1024").rows
    assert row.allocated_gpu_hours == pytest.approx(1 / 60)
    assert row.sm_limit_percent is None


def test_a_header_holds_what_a_header_can() -> None:
    assert Credentials().header() is None
    assert Credentials(token="t").header() == "Bearer t"
    with pytest.raises(ValueError, match="no header can hold"):
        PrometheusApi("http://host", credentials=Credentials(token="a\r\nX-Evil: 1"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://ada:s3cret@prometheus:9090", "must not hold a password"),
        ("ftp://prometheus/", "no http:// or https:// address"),
        ("http://prometheus:9090/?x=1", "more to it than an address"),
        ("http://", "no http:// or https:// address"),
        ("http://prometheus:9090/\x1b[2J", "characters that no address can have"),
    ],
)
def test_addresses_that_make_no_sense_are_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        PrometheusApi(url)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_address_may_have_a_prefix() -> None:
    assert PrometheusApi("https://host/prometheus/").url == "https://host/prometheus"
    assert PrometheusApi("http://host:9090/api/v1/").url == "http://host:9090"


def test_steps_and_matchers_are_checked() -> None:
    api = PrometheusApi("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="a second or more"):
        PrometheusHistory(api, step_s=0.5)
    with pytest.raises(ValueError, match="without braces"):
        PrometheusHistory(api, matchers='{job="hami"}')


def test_no_query_asks_for_more_points_than_a_prometheus_gives() -> None:
    """Also for a month in steps of 15 s."""
    asked_for: list[float] = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        from urllib.parse import parse_qs, urlsplit

        query = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        span = float(query["end"]) - float(query["start"])
        asked_for.append(span / float(query["step"]) + 1)
        says(200, EMPTY)(request)

    with server(answer) as url:
        history = PrometheusHistory(PrometheusApi(url), step_s=15)
        assert list(history.looks(0, 2 * 86_400_000)) == []
    assert max(asked_for) <= 11_000
    assert sum(asked_for) >= 2 * 86_400 / 15
