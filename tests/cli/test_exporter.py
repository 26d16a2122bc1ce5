"""`hamiregion exporter` as people run it."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.answers import check_answer
from support.command_line import call
from support.exporter_process import ExporterProcess, environment, once
from support.exposition import parsed
from support.node_scene import NodeScene
from support.process import finished
from support.scrapers import Scraper, ask

from libhamiregion.exporter import MetricsServer
from libhamiregion.node import Observer
from libhamiregion.units import GIB

UUID = "GPU-00000000-0000-0000-0000-000000000000"
LIMIT = "hami_vgpu_memory_limit_bytes"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> NodeScene:
    """A node with one container."""
    made = NodeScene(tmp_path_factory.mktemp("node"))
    made.container(pod="bert-0", uuids=[UUID], memory_limits=["2GiB"])
    return made


def arguments(files: NodeScene) -> tuple[object, ...]:
    return ("--root", files.root, "--pod-logs", files.pod_logs)


@pytest.fixture(scope="module")
def exporter(files) -> Iterator[ExporterProcess]:
    """An exporter of that node, for tests that only ask it."""
    with ExporterProcess(*arguments(files), "--node-name", "gpu-7") as process:
        process.wait_until_ready()
        yield process


def test_it_exports_what_the_node_has(exporter):
    with Scraper(exporter.url) as scraper:
        reply = scraper.scrape()
        assert reply.headers["content-encoding"] == "gzip"
        found = parsed(reply.body)
        assert found.value(LIMIT, pod="bert-0", namespace="research") == 2 * GIB
        assert parsed(scraper.ask().body).value(LIMIT, pod="bert-0") == 2 * GIB


def test_its_page_leads_to_the_metrics(exporter):
    reply = ask(exporter.url, "/")
    assert 'href="/metrics"' in reply.text
    assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_with_the_monitors_own_metrics_alone_there_is_no_look_at_processes(files):
    words = ("--root", files.root, "--collector", "nvml")
    found = parsed(once(*words).stdout.encode())
    assert found.value(LIMIT) == 2 * GIB
    turns = found.series("hamiregion_collector_success")
    assert {dict(labels)["collector"] for labels in turns} == {"containers", "nvml"}
    found = parsed(once(*words, "--collector", "locks").stdout.encode())
    assert found.value("hamiregion_collector_success", collector="locks") == 1


def test_nobody_but_this_machine_can_connect_unless_told_otherwise(exporter):
    assert exporter.url.startswith("http://127.0.0.1:")
    help_text = call("exporter", "--help").stdout
    assert "else 127.0.0.1:9394" in " ".join(help_text.split())


def test_it_does_not_load_what_it_does_not_need(exporter):
    maps = Path(f"/proc/{exporter.pid}/maps").read_text()
    assert "_bcrypt" not in maps
    assert "_sqlite3" not in maps
    assert "pydantic" not in maps


def test_the_environment_of_hami_s_monitor_is_understood(tmp_path):
    files = NodeScene(tmp_path)
    files.container(pod="bert-0", uuids=[UUID], memory_limits=["2GiB"])
    env = {"HOOK_PATH": str(tmp_path), "NODE_NAME": "node-9", "HAMI_RESYNC_INTERVAL": "10m"}
    done = once("--pod-logs", files.pod_logs, env=env)
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout.encode()).value(LIMIT, pod="bert-0") == 2 * GIB


@pytest.mark.parametrize("value", ["10", "bogus", "-5m"])
def test_an_interval_that_is_none_is_wrong_usage(files, value):
    """Also where it stands in the environment."""
    for words, env in (
        (("--resync-interval", value), {}),
        ((), {"HAMI_RESYNC_INTERVAL": value}),
    ):
        bad = once(*arguments(files), *words, env=env)
        assert bad.returncode == 2
        assert "--resync-interval" in bad.stderr


def test_once_prints_the_metrics(files):
    text = once("--legacy-metrics", *arguments(files))
    assert (text.returncode, text.stderr) == (0, "")
    found = parsed(text.stdout.encode())
    assert found.value(LIMIT, pod="bert-0") == 2 * GIB
    legacy = "vGPU_device_memory_limit_in_bytes"
    assert found.value(legacy, podname="bert-0") == 2 * GIB
    # Former names come only when asked for.
    assert legacy not in once(*arguments(files)).stdout


def test_once_without_a_directory_to_read_fails_and_says_so(tmp_path):
    done = once("--root", tmp_path / "none")
    assert done.returncode == 1
    assert "No such file or directory" in done.stderr
    assert "hamiregion_build_info" in done.stdout


def test_its_health_is_that_of_its_observations(files, monkeypatch):
    found: list[str | None] = []

    def run(server: MetricsServer) -> None:
        found.append(server.healthy())
        monkeypatch.setattr(Observer, "taking_s", 61.0)
        found.append(server.healthy())
        server.stop()

    monkeypatch.setattr(MetricsServer, "run", run)
    call("exporter", "--root", str(files.root), "--listen", "127.0.0.1:0")
    assert found == [None, "an observation has not returned for 61 s"]


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("module", ["bcrypt", "yaml"])
def test_a_missing_extra_is_one_clear_line(files, tmp_path, module):
    hashed = "$2b$04$" + "." * 53
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{alice: '{hashed}'}}")
    words = ["exporter", "--listen", "127.0.0.1:0", "--web-config", str(tmp_path / "web.yml")]
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[0] = 'hamiregion';"
        " from libhamiregion.cli import main; main()"
    )
    done = finished(
        [sys.executable, "-c", program, *words, *map(str, arguments(files))], env=environment()
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"hamiregion needs {module}, which is not installed: pip install" in done.stderr


def test_its_log_can_be_json(files):
    with ExporterProcess(*arguments(files), "--json") as process:
        process.wait_until_ready()
        assert process.stop() == 0
        lines = [json.loads(line) for line in process.log.splitlines()]
    for line in lines:
        check_answer(line)
    assert lines[-1]["message"] == "ended in order"
    assert abs(lines[0]["time_s"] - time.time()) < 600
