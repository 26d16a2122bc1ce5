"""A node's exporter behind a server, in one program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exposition import NodeFiles, parsed
from patience import eventually
from scrapers import Scraper, ask

from libhamiregion.exporter import NodeExporter, exporter_server
from libhamiregion.exporter.small_memory import stay_small

if TYPE_CHECKING:
    from pathlib import Path

UUID = "GPU-00000000-0000-0000-0000-000000000000"
LIMIT = "hami_vgpu_memory_limit_bytes"


def test_a_program_of_one_s_own_can_serve_a_node(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.region(pod="train-0", uuids=[UUID], memory_limits=["2GiB"])
    with (
        files.open() as node,
        NodeExporter(node, node_name="gpu-7") as exporter,
        exporter_server(exporter, "127.0.0.1:0") as server,
    ):
        (url,) = server.urls
        eventually(lambda: ask(url, "/readyz").status == 200)
        with Scraper(url) as scraper:
            found = parsed(scraper.scrape().body, openmetrics=True)
            assert found.value(LIMIT, pod="train-0") == 2 << 30
            assert parsed(scraper.ask(f"/metrics?name[]={LIMIT}").body).names == {LIMIT}


def test_what_the_server_sends_is_what_the_exporter_renders(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    for number in range(50):
        files.region(pod=f"train-{number}", uuids=[UUID] * 4, memory_limits=["2GiB"] * 4)
    with files.open() as node, exporter_server(NodeExporter(node), "127.0.0.1:0") as server:
        with Scraper(server.urls[0]) as scraper:
            plain = parsed(scraper.ask().body)
            compressed = parsed(scraper.ask(accept_encoding="gzip").body)
            openmetrics = parsed(scraper.scrape().body, openmetrics=True)
        for other in (compressed, openmetrics):
            for key, value in plain.samples.items():
                if key[0].startswith("hami_vgpu_"):
                    assert other.samples[key] == value


def test_the_allocator_of_a_long_running_program_can_be_told_to_keep_little() -> None:
    """True with glibc, which the tests' machines have; others say False and are as they were."""
    assert stay_small() in (True, False)
